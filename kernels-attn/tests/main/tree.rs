//! The order of all sums, written down a second time: plainly, with a head of one element.

use crate::support::{Model, PLAIN, Sequence, attend_split};
use kernels_core::{Cpu, ref_math::exp2};
use kernels_testkit::compare::assert_same_bits;
use std::ops::Range;

/// Maximum, sum and weighted sum of some keys.
type Part = (f32, f32, f32);

const EMPTY: Part = (f32::NEG_INFINITY, 0.0, 0.0);

/// What a row sees of one K/V head, masked keys included.
struct Row<'a> {
    q: f32,
    keys: &'a [f32],
    values: &'a [f32],
    seen: Range<usize>,
}

fn reference(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

impl Row<'_> {
    /// The accumulator of a leaf after one more tile, that of the keys from `first` on.
    fn tile(&self, (max, sum, out): Part, first: usize) -> Part {
        let scale = std::f64::consts::LOG2_E as f32;
        let score = |key: usize| {
            if self.seen.contains(&key) { self.q * self.keys[key] } else { f32::NEG_INFINITY }
        };
        let scores: Vec<f32> = (first..first + 128).map(score).collect();
        let largest = scores.iter().fold(f32::NEG_INFINITY, |max, score| max.max(*score));
        let m = max.max(largest * scale);
        let r = reference(m);
        let shrink = exp2(max - r);
        let w: Vec<f32> = scores.iter().map(|score| exp2(score.mul_add(scale, -r))).collect();
        let b: Vec<f32> = (0..8)
            .map(|block| {
                let u = |j: usize| w[16 * block + j] + w[16 * block + j + 8];
                ((u(0) + u(1)) + (u(2) + u(3))) + ((u(4) + u(5)) + (u(6) + u(7)))
            })
            .collect();
        let of_tile = ((b[0] + b[1]) + (b[2] + b[3])) + ((b[4] + b[5]) + (b[6] + b[7]));
        // Values behind the last key are zeros, as a kernel makes them.
        let value = |key: usize| self.values.get(key).copied().unwrap_or(0.0);
        let out = (0..128).fold(out * shrink, |out, key| w[key].mul_add(value(first + key), out));
        (m, sum.mul_add(shrink, of_tile), out)
    }

    fn out(&self, leaf_keys: usize) -> f32 {
        // Every part from position 0 on: those without keys change nothing that shows.
        let parts = |first: usize, keys: usize, step: usize| (first..first + keys).step_by(step);
        let leaf = |first| parts(first, leaf_keys, 128).fold(EMPTY, |part, first| self.tile(part, first));
        let group = |first| parts(first, 2048, leaf_keys).fold(EMPTY, |part, first| fold(part, leaf(first)));
        let groups = (0..self.seen.end).step_by(2048);
        let (_, sum, out) = groups.fold(EMPTY, |part, first| fold(part, group(first)));
        if sum == 0.0 { 0.0 } else { (out + 0.0) / sum }
    }
}

fn fold((max, sum, out): Part, (m, s, o): Part) -> Part {
    let m = if s == 0.0 { f32::NEG_INFINITY } else { m };
    if sum == 0.0 {
        return (m, s, o);
    }
    let top = max.max(m);
    let (a, b) = (exp2(max - reference(top)), exp2(m - reference(top)));
    (top, sum.mul_add(a, s * b), out.mul_add(a, o * b))
}

pub(crate) fn sums_have_the_order_of_the_tree() {
    // K/V heads, and the keys of a leaf.
    for (heads, leaf_keys) in [(1, 128), (2, 256), (3, 256), (4, 512), (5, 512)] {
        for (first_key, window) in [(0, None), (1, None), (0, Some(130)), (300, Some(3000))] {
            let (q_heads, kv_heads) = (heads, heads);
            let model = Model { q_heads, kv_heads, head_dim: 1, first_key, window, gated: false };
            for start in [0, 1, 100, 126, 254, 255, 510, 511, 700, 1022, 2046, 2048, 4095, 9000] {
                let sequence: Sequence<f32> = model.sequence(50 + start as u64, start, 3, 4.0);
                let got = attend_split::<Cpu, _>(&(), &model, &PLAIN, &sequence, &[3]);
                let of_head = |x: &[f32], head: usize| -> Vec<f32> {
                    x.iter().skip(head).step_by(heads).copied().collect()
                };
                let [keys, values] = [&sequence.keys, &sequence.values]
                    .map(|x| (0..heads).map(|head| of_head(x, head)).collect::<Vec<_>>());
                let want: Vec<f32> = (0..3 * heads)
                    .map(|i| {
                        let (position, head) = (start + i / heads, i % heads);
                        let seen = model.first_seen(position)..position + 1;
                        let (keys, values) = (&keys[head], &values[head]);
                        Row { q: sequence.q[i], keys, values, seen }.out(leaf_keys)
                    })
                    .collect();
                assert_same_bits(&format!("{model:?} at {start}"), &got, &want);
            }
        }
    }
}

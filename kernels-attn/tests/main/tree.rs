//! The order of all sums, written down a second time: plainly, with a head of one element.

use crate::support::{Model, PLAIN, Sequence, attend_split};
use kernels_core::{Cpu, ref_math::exp2};
use kernels_testkit::compare::assert_same_bits;
use std::ops::Range;

/// Maximum, sum and weighted sum of some keys.
type Part = (f32, f32, f32);

const EMPTY: Part = (f32::NEG_INFINITY, 0.0, 0.0);

fn leaf(q: f32, keys: &[f32], values: &[f32], seen: impl Fn(usize) -> bool, first: usize) -> Part {
    let scale = std::f64::consts::LOG2_E as f32;
    let seen = |key: usize| first + key < keys.len() && seen(first + key);
    let scores: Vec<f32> =
        (0..128).map(|key| if seen(key) { q * keys[first + key] } else { f32::NEG_INFINITY }).collect();
    let max = scores.iter().fold(f32::NEG_INFINITY, |max, score| max.max(*score)) * scale;
    let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };
    let w: Vec<f32> = scores.iter().map(|score| exp2(score.mul_add(scale, -reference))).collect();
    let of_step = |step: usize| {
        let u = |j: usize| w[16 * step + j] + w[16 * step + j + 8];
        ((u(0) + u(1)) + (u(2) + u(3))) + ((u(4) + u(5)) + (u(6) + u(7)))
    };
    let b: Vec<f32> = (0..8).map(of_step).collect();
    let sum = ((b[0] + b[1]) + (b[2] + b[3])) + ((b[4] + b[5]) + (b[6] + b[7]));
    let seen = (0..128).filter(|key| seen(*key));
    (max, sum, seen.fold(0.0, |o, key| w[key].mul_add(values[first + key], o)))
}

fn fold((max, sum, out): Part, (m, s, o): Part) -> Part {
    if sum == 0.0 {
        return (m, s, o);
    }
    let top = max.max(m);
    let reference = if top == f32::NEG_INFINITY { 0.0 } else { top };
    let (a, b) = (exp2(max - reference), exp2(m - reference));
    if s * b == 0.0 { (max, sum, out) } else { (top, sum.mul_add(a, s * b), out.mul_add(a, o * b)) }
}

fn row(q: f32, keys: &[f32], values: &[f32], seen: Range<usize>) -> f32 {
    let leaf = |first| leaf(q, keys, values, |key| seen.contains(&key), first);
    // Every part from position 0 on: those without keys change nothing.
    let quad = |first: usize| (0..4).fold(EMPTY, |part, i| fold(part, leaf(first + 128 * i)));
    let group = |first: usize| (0..4).fold(EMPTY, |part, i| fold(part, quad(first + 512 * i)));
    let groups = (0..seen.end).step_by(2048);
    let (_, sum, out) = groups.fold(EMPTY, |part, first| fold(part, group(first)));
    if sum == 0.0 { 0.0 } else { out / sum }
}

pub(crate) fn sums_have_the_order_of_the_tree() {
    for (first_key, window) in [(0, None), (1, None), (0, Some(130)), (300, Some(3000))] {
        let model = Model { q_heads: 1, kv_heads: 1, head_dim: 1, first_key, window, gated: false };
        for start in [0, 1, 100, 126, 510, 511, 700, 2046, 2048, 4095, 9000] {
            let sequence: Sequence<f32> = model.sequence(50 + start as u64, start, 3, 4.0);
            let got = attend_split::<Cpu, _>(&(), &model, &PLAIN, &sequence, &[3]);
            let want: Vec<f32> = (0..3)
                .map(|i| {
                    let seen = model.first_seen(start + i)..start + i + 1;
                    row(sequence.q[i], &sequence.keys, &sequence.values, seen)
                })
                .collect();
            assert_same_bits(&format!("{model:?} at {start}"), &got, &want);
        }
    }
}

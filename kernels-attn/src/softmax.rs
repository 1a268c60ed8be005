//! The arithmetic of one row and head: scores, online softmax, merge. Everything in fp32, in one order.

use crate::tree::{STEP_KEYS, TILE_KEYS};
use kernels_core::{Activation, ref_math};
use std::ops::Range;

/// What scores are multiplied by to become exponents of two: `log2(e) / sqrt(head_dim)`, rounded once.
pub(crate) fn exponent_scale(head_dim: usize) -> f32 {
    (std::f64::consts::LOG2_E / (head_dim as f64).sqrt()) as f32
}

/// Partial results of several rows and heads, all relative to `2^max`.
pub(crate) struct Accumulators {
    max: Vec<f32>,
    sum: Vec<f32>,
    out: Vec<f32>,
    head_dim: usize,
}

/// One of them. Nothing seen yet = maximum -inf, sum 0, out 0.
pub(crate) struct Accumulator<'a> {
    max: &'a mut f32,
    sum: &'a mut f32,
    out: &'a mut [f32],
}

impl Accumulators {
    pub(crate) fn new(count: usize, head_dim: usize) -> Self {
        let (max, sum) = (vec![f32::NEG_INFINITY; count], vec![0.0; count]);
        Accumulators { max, sum, out: vec![0.0; count * head_dim], head_dim }
    }

    pub(crate) fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.out.fill(0.0);
    }

    #[inline(always)]
    pub(crate) fn get(&mut self, index: usize) -> Accumulator<'_> {
        let d = self.head_dim;
        Accumulator {
            max: &mut self.max[index],
            sum: &mut self.sum[index],
            out: &mut self.out[index * d..][..d],
        }
    }

    /// Merges the accumulators of the keys that follow.
    #[inline(always)]
    pub(crate) fn merge(&mut self, later: &mut Accumulators) {
        for index in 0..self.max.len() {
            merge(self.get(index), later.get(index));
        }
    }
}

/// The maximum as an exponent may use it: -inf (nothing seen, or nothing but -inf) must not meet -inf.
#[inline(always)]
fn reference(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// `into` becomes the result of its own keys and of those of `later`, which is left as it is.
///
/// A part without visible keys is an exact no-op on either side. (The test is on the sum, which NaN
/// fails, so that NaN scores reach the output.)
#[inline(always)]
fn merge(into: Accumulator<'_>, later: Accumulator<'_>) {
    if *later.sum == 0.0 {
        return;
    }
    if *into.sum == 0.0 {
        (*into.max, *into.sum) = (*later.max, *later.sum);
        into.out.copy_from_slice(later.out);
        return;
    }
    let max = into.max.max(*later.max);
    let reference = reference(max);
    let (a, b) = (ref_math::exp2(*into.max - reference), ref_math::exp2(*later.max - reference));
    *into.max = max;
    *into.sum = into.sum.mul_add(a, *later.sum * b);
    for d in 0..into.out.len() {
        into.out[d] = into.out[d].mul_add(a, later.out[d] * b);
    }
}

/// Adds the keys `seen` (at least one, indices inside the tile) of one tile; `query` and each of the `keys`
/// and `values` are padded.
#[inline(always)]
pub(crate) fn tile<A: Activation>(
    accumulator: Accumulator<'_>,
    query: &[f32],
    keys: &[f32],
    values: &[f32],
    seen: Range<usize>,
    scale: f32,
) {
    let width = query.len();
    let mut sums = [[0.0; 8]; TILE_KEYS];
    for key in seen.clone() {
        fold(query, &keys[key * width..][..width], &mut sums[key]);
    }
    let mut scores = [f32::NEG_INFINITY; TILE_KEYS];
    for key in seen.clone() {
        scores[key] = across(&sums[key]);
    }
    let max = accumulator.max.max(largest(&scores) * scale);
    let reference = reference(max);
    let shrink = ref_math::exp2(*accumulator.max - reference);
    *accumulator.max = max;

    let mut weights = [0.0; TILE_KEYS];
    for key in 0..TILE_KEYS {
        let weight = ref_math::exp2(scores[key].mul_add(scale, -reference));
        weights[key] = A::from_f32(weight).to_f32();
    }
    let mut sum = *accumulator.sum * shrink;
    for step in weights.chunks_exact(STEP_KEYS) {
        sum += step_sum(step);
    }
    *accumulator.sum = sum;
    weigh(accumulator.out, shrink, &weights, values, width, seen);
}

/// `out = out * shrink`, then `+= weight * value` key by key.
#[inline(always)]
fn weigh(
    out: &mut [f32],
    shrink: f32,
    weights: &[f32; TILE_KEYS],
    values: &[f32],
    width: usize,
    seen: Range<usize>,
) {
    // So many elements fit the registers of one pass over the keys.
    const PART: usize = 64;
    let mut parts = out.chunks_exact_mut(PART);
    let mut at = 0;
    for part in &mut parts {
        let mut sums = [0.0; PART];
        for d in 0..PART {
            sums[d] = part[d] * shrink;
        }
        for key in seen.clone() {
            let value = &values[key * width + at..][..PART];
            for d in 0..PART {
                sums[d] = weights[key].mul_add(value[d], sums[d]);
            }
        }
        part.copy_from_slice(&sums);
        at += PART;
    }
    let rest = parts.into_remainder();
    for sum in rest.iter_mut() {
        *sum *= shrink;
    }
    for key in seen {
        for (sum, value) in rest.iter_mut().zip(&values[key * width + at..]) {
            *sum = weights[key].mul_add(*value, *sum);
        }
    }
}

/// `out / sum`, times the gate's sigmoid, rounded once; zeros if no key was seen.
#[inline(always)]
pub(crate) fn finish<A: Activation>(total: Accumulator<'_>, gate: Option<&[A]>, out: &mut [A]) {
    if *total.sum == 0.0 {
        out.fill(A::default());
        return;
    }
    for d in 0..out.len() {
        let mut value = total.out[d] / *total.sum;
        if let Some(gate) = gate {
            value *= ref_math::sigmoid(gate[d].to_f32());
        }
        out[d] = A::from_f32(value);
    }
}

/// Lanes of a dot product; vectors are padded with zeros to a multiple of it.
const LANES: usize = 32;

/// The room that a vector of `n` elements takes.
pub(crate) fn padded(n: usize) -> usize {
    n.next_multiple_of(LANES)
}

/// The dot product of two padded vectors: element `d` is added to lane `d % 32`, ascending; then lanes 16,
/// 8, 4, 2 and 1 apart.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; 8];
    fold(a, b, &mut lanes);
    across(&lanes)
}

/// The part of a dot product that works on whole vectors. (Written to memory, so that the compiler takes
/// the widest.)
#[inline(always)]
fn fold(a: &[f32], b: &[f32], by_8: &mut [f32; 8]) {
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
        for i in 0..LANES {
            lanes[i] = a[i].mul_add(b[i], lanes[i]);
        }
    }
    for i in 0..8 {
        by_8[i] = (lanes[i] + lanes[i + 16]) + (lanes[i + 8] + lanes[i + 24]);
    }
}

/// The rest of it.
#[inline(always)]
fn across(by_8: &[f32; 8]) -> f32 {
    let by_4: [f32; 4] = std::array::from_fn(|i| by_8[i] + by_8[i + 4]);
    (by_4[0] + by_4[2]) + (by_4[1] + by_4[3])
}

/// The sum of a step's 16 weights: keys 8 apart, then 1, 2 and 4 apart.
#[inline(always)]
fn step_sum(weights: &[f32]) -> f32 {
    let by_8: [f32; 8] = std::array::from_fn(|i| weights[i] + weights[i + 8]);
    let by_1: [f32; 4] = std::array::from_fn(|i| by_8[2 * i] + by_8[2 * i + 1]);
    (by_1[0] + by_1[1]) + (by_1[2] + by_1[3])
}

/// The largest score; NaN is passed over here and shows in the weights.
#[inline(always)]
fn largest(scores: &[f32; TILE_KEYS]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; STEP_KEYS];
    for step in scores.chunks_exact(STEP_KEYS) {
        for i in 0..STEP_KEYS {
            lanes[i] = lanes[i].max(step[i]);
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accumulators(max: f32, sum: f32, out: f32) -> Accumulators {
        Accumulators { max: vec![max], sum: vec![sum], out: vec![out], head_dim: 1 }
    }

    #[test]
    fn empty_parts_are_exact_no_ops() {
        let full = || accumulators(-3.25, 1.75, -0.0);
        let empty = || Accumulators::new(1, 1);
        for (mut into, mut later) in [(full(), empty()), (empty(), full())] {
            into.merge(&mut later);
            assert_eq!((into.max[0], into.sum[0]), (-3.25, 1.75));
            assert_eq!(into.out[0].to_bits(), (-0.0f32).to_bits());
        }
        let (mut into, mut later) = (empty(), empty());
        into.merge(&mut later);
        assert_eq!((into.max[0], into.sum[0], into.out[0]), (f32::NEG_INFINITY, 0.0, 0.0));
    }

    #[test]
    fn merge_scales_to_the_larger_maximum() {
        let mut into = accumulators(1.0, 2.0, 3.0);
        into.merge(&mut accumulators(3.0, 5.0, 7.0));
        assert_eq!((into.max[0], into.sum[0], into.out[0]), (3.0, 2.0 / 4.0 + 5.0, 3.0 / 4.0 + 7.0));
        into.merge(&mut accumulators(2.0, 1.0, 1.0));
        assert_eq!((into.max[0], into.sum[0], into.out[0]), (3.0, 6.0, 8.25));
    }

    #[test]
    fn nan_is_not_lost() {
        let mut into = accumulators(1.0, 2.0, 3.0);
        into.merge(&mut accumulators(f32::NEG_INFINITY, f32::NAN, f32::NAN));
        assert!(into.sum[0].is_nan() && into.out[0].is_nan());
    }

    #[test]
    fn sums_have_their_stated_order() {
        // 2^24 + 1 rounds to 2^24: which pairs meet first decides the sum.
        let big = 16_777_216.0;
        let mut weights = [0.0; 16];
        (weights[0], weights[8], weights[1], weights[9]) = (big, -big, 1.0, 0.0);
        assert_eq!(step_sum(&weights), 1.0, "8 apart before neighbours");
        (weights[8], weights[1], weights[2], weights[3]) = (0.0, -big, 1.0, 0.0);
        assert_eq!(step_sum(&weights), 1.0, "neighbours before 2 apart");
        let mut a = [0.0; 64];
        (a[0], a[32], a[1]) = (big, -big, 1.0);
        assert_eq!(dot(&a, &[1.0; 64]), 1.0, "a lane's own elements first");
        (a[32], a[16]) = (0.0, -big);
        assert_eq!(dot(&a, &[1.0; 64]), 1.0, "then 16 apart");
    }
}

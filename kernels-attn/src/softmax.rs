//! The arithmetic of one row and head: scores, weights, the fold of parts. Everything in fp32, in one order.

use crate::tree::{STEP_KEYS, TILE_KEYS};
use kernels_core::{Activation, ref_math};
use std::ops::Range;

/// What scores are multiplied by to become exponents of two: `log2(e) / sqrt(head_dim)`, rounded once.
pub(crate) fn exponent_scale(head_dim: usize) -> f32 {
    (std::f64::consts::LOG2_E / (head_dim as f64).sqrt()) as f32
}

/// The parts of several rows and heads: for each its maximum, and its sums relative to `2^max`.
pub(crate) struct Parts {
    max: Vec<f32>,
    sum: Vec<f32>,
    out: Vec<f32>,
    head_dim: usize,
}

/// One of them. A sum of 0 = empty.
pub(crate) struct Part<'a> {
    max: &'a mut f32,
    sum: &'a mut f32,
    out: &'a mut [f32],
}

impl Parts {
    pub(crate) fn new(count: usize, head_dim: usize) -> Self {
        let (max, sum) = (vec![f32::NEG_INFINITY; count], vec![0.0; count]);
        Parts { max, sum, out: vec![0.0; count * head_dim], head_dim }
    }

    pub(crate) fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.out.fill(0.0);
    }

    #[inline(always)]
    pub(crate) fn get(&mut self, index: usize) -> Part<'_> {
        let d = self.head_dim;
        Part { max: &mut self.max[index], sum: &mut self.sum[index], out: &mut self.out[index * d..][..d] }
    }

    /// Folds in the parts of the keys that follow, and leaves `later` empty.
    #[inline(always)]
    pub(crate) fn fold(&mut self, later: &mut Parts) {
        if self.sum.iter().all(|sum| *sum == 0.0) {
            std::mem::swap(self, later);
        } else {
            for index in 0..self.sum.len() {
                fold(self.get(index), later.get(index));
            }
        }
        later.clear();
    }
}

/// The maximum as an exponent may use it: -inf (nothing seen, or nothing but -inf) must not meet -inf.
#[inline(always)]
fn reference(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// `into` becomes the result of its own keys and of those of `later`; if it is empty, `later` as it is.
///
/// Nothing is skipped for its weight, so NaN reaches the output from either of them. A part without a key is
/// a no-op on either side, up to the sign of a zero in `out`.
#[inline(always)]
pub(crate) fn fold(into: Part<'_>, later: Part<'_>) {
    // A part without a weight counts as one without a key.
    let later_max = if *later.sum == 0.0 { f32::NEG_INFINITY } else { *later.max };
    if *into.sum == 0.0 {
        (*into.max, *into.sum) = (later_max, *later.sum);
        into.out.copy_from_slice(later.out);
        return;
    }
    let top = into.max.max(later_max);
    let reference = reference(top);
    let (a, b) = (ref_math::exp2(*into.max - reference), ref_math::exp2(later_max - reference));
    *into.max = top;
    *into.sum = into.sum.mul_add(a, *later.sum * b);
    for d in 0..into.out.len() {
        into.out[d] = into.out[d].mul_add(a, later.out[d] * b);
    }
}

/// A step of the online softmax: `part` takes in the keys `seen` (at least one, indices inside the tile) of the
/// tile that follows; `query` and each of the `keys` and `values` are padded.
#[inline(always)]
pub(crate) fn tile<A: Activation>(
    part: Part<'_>,
    query: &[f32],
    keys: &[f32],
    values: &[f32],
    seen: Range<usize>,
    scale: f32,
) {
    let width = query.len();
    let mut sums = [[0.0; 8]; TILE_KEYS];
    for key in seen.clone() {
        lanes(query, &keys[key * width..][..width], &mut sums[key]);
    }
    let mut scores = [f32::NEG_INFINITY; TILE_KEYS];
    for key in seen.clone() {
        scores[key] = across(&sums[key]);
    }
    let max = part.max.max(largest(&scores) * scale);
    let reference = reference(max);
    let shrink = ref_math::exp2(*part.max - reference);

    // Steps without a seen key have weights and sums of 0.
    let steps = seen.start / STEP_KEYS..seen.end.div_ceil(STEP_KEYS);
    let (mut weights, mut sums) = ([0.0; TILE_KEYS], [0.0; TILE_KEYS / STEP_KEYS]);
    for step in steps {
        for key in step * STEP_KEYS..(step + 1) * STEP_KEYS {
            let weight = ref_math::exp2(scores[key].mul_add(scale, -reference));
            weights[key] = A::from_f32(weight).to_f32();
        }
        sums[step] = step_sum(&weights[step * STEP_KEYS..][..STEP_KEYS]);
    }
    *part.max = max;
    *part.sum = part.sum.mul_add(shrink, in_pairs(&sums));
    weigh(part.out, shrink, &weights, values, width, seen);
}

/// `out = out * shrink`, then `+= weight * value`, key by key.
#[inline(always)]
fn weigh(
    out: &mut [f32],
    shrink: f32,
    weights: &[f32; TILE_KEYS],
    values: &[f32],
    width: usize,
    seen: Range<usize>,
) {
    // Times 1 is exact, and happens for every tile that does not raise the maximum.
    if shrink != 1.0 {
        out.iter_mut().for_each(|out| *out *= shrink);
    }
    // So many elements fit the registers of one pass over the keys.
    const SPAN: usize = 64;
    let mut spans = out.chunks_exact_mut(SPAN);
    let mut at = 0;
    for span in &mut spans {
        let mut sums = [0.0; SPAN];
        sums.copy_from_slice(span);
        for key in seen.clone() {
            let value = &values[key * width + at..][..SPAN];
            for d in 0..SPAN {
                sums[d] = weights[key].mul_add(value[d], sums[d]);
            }
        }
        span.copy_from_slice(&sums);
        at += SPAN;
    }
    let rest = spans.into_remainder();
    for key in seen {
        for (sum, value) in rest.iter_mut().zip(&values[key * width + at..]) {
            *sum = weights[key].mul_add(*value, *sum);
        }
    }
}

/// `out / sum`, times the gate's sigmoid, rounded once; zeros if no key was seen.
///
/// A zero becomes +0 first: whether it is -0 may depend on how many masked keys were added to it, and that on
/// the rows beside this one.
#[inline(always)]
pub(crate) fn finish<A: Activation>(total: Part<'_>, gate: Option<&[A]>, out: &mut [A]) {
    if *total.sum == 0.0 {
        out.fill(A::default());
        return;
    }
    for d in 0..out.len() {
        let mut value = (total.out[d] + 0.0) / *total.sum;
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
    let mut by_8 = [0.0; 8];
    lanes(a, b, &mut by_8);
    across(&by_8)
}

/// The part of a dot product that works on whole vectors. (Written to memory, so that the compiler takes
/// the widest.)
#[inline(always)]
fn lanes(a: &[f32], b: &[f32], by_8: &mut [f32; 8]) {
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
    in_pairs(&std::array::from_fn(|i| weights[i] + weights[i + 8]))
}

/// Neighbours, then 2 apart, then 4.
#[inline(always)]
fn in_pairs(x: &[f32; 8]) -> f32 {
    ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]))
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

    fn parts(max: f32, sum: f32, out: f32) -> Parts {
        Parts { max: vec![max], sum: vec![sum], out: vec![out], head_dim: 1 }
    }

    fn folded(mut into: Parts, mut later: Parts) -> (f32, f32, f32) {
        // By itself: `Parts::fold` has a shorter way where everything is empty.
        fold(into.get(0), later.get(0));
        (into.max[0], into.sum[0], into.out[0])
    }

    #[test]
    fn empty_parts_are_no_ops() {
        let full = |out| parts(-3.25, 1.75, out);
        for out in [-0.5, f32::INFINITY, 1e-45] {
            assert_eq!(folded(full(out), Parts::new(1, 1)), (-3.25, 1.75, out));
            assert_eq!(folded(Parts::new(1, 1), full(out)), (-3.25, 1.75, out));
        }
        assert_eq!(folded(Parts::new(1, 1), Parts::new(1, 1)), (f32::NEG_INFINITY, 0.0, 0.0));
        // So is one that is too far below.
        assert_eq!(folded(parts(200.0, 1.75, -0.5), parts(0.0, 90.0, 7.0)), (200.0, 1.75, -0.5));
    }

    #[test]
    fn a_part_without_a_weight_has_no_maximum() {
        // Scores so large that every weight became 0: only the sum says that nothing is there.
        let lost = || parts(500.0, 0.0, 0.0);
        assert_eq!(folded(parts(1.0, 2.0, 3.0), lost()), (1.0, 2.0, 3.0));
        assert_eq!(folded(Parts::new(1, 1), lost()), (f32::NEG_INFINITY, 0.0, 0.0));
    }

    #[test]
    fn the_sign_of_a_zero_does_not_show() {
        // An empty part follows, or does not.
        let mut alone = parts(1.0, 2.0, -0.0);
        let mut followed = parts(1.0, 2.0, -0.0);
        fold(followed.get(0), Parts::new(1, 1).get(0));
        assert_ne!(alone.out[0].to_bits(), followed.out[0].to_bits());
        for total in [&mut alone, &mut followed] {
            let mut out = [f32::NAN];
            finish(total.get(0), None, &mut out);
            assert_eq!(out[0].to_bits(), 0);
        }
    }

    #[test]
    fn several_parts_at_once() {
        let (mut into, mut later) = (Parts::new(2, 1), Parts::new(2, 1));
        (*later.get(1).sum, *later.get(1).max, later.get(1).out[0]) = (2.0, 1.0, 3.0);
        into.fold(&mut later);
        assert_eq!((into.sum[0], later.sum[1], later.out[1]), (0.0, 0.0, 0.0));
        (*later.get(0).sum, *later.get(0).max, later.get(0).out[0]) = (5.0, -1.0, 6.0);
        into.fold(&mut later);
        assert_eq!((into.sum, into.max, into.out), (vec![5.0, 2.0], vec![-1.0, 1.0], vec![6.0, 3.0]));
    }

    #[test]
    fn parts_are_scaled_to_the_larger_maximum() {
        let (max, sum, out) = folded(parts(1.0, 2.0, 3.0), parts(3.0, 5.0, 7.0));
        assert_eq!((max, sum, out), (3.0, 2.0 / 4.0 + 5.0, 3.0 / 4.0 + 7.0));
        assert_eq!(folded(parts(max, sum, out), parts(2.0, 1.0, 1.0)), (3.0, 6.0, 8.25));
    }

    #[test]
    fn nan_is_not_lost() {
        // Of a part whose every score is NaN the maximum is -inf.
        let lost = parts(f32::NEG_INFINITY, f32::NAN, f32::NAN);
        let far = parts(-500.0, f32::NAN, f32::NAN);
        for (into, later) in [(parts(1.0, 2.0, 3.0), lost), (parts(1.0, 2.0, 3.0), far)] {
            let (_, sum, out) = folded(into, later);
            assert!(sum.is_nan() && out.is_nan());
        }
        let (_, sum, out) = folded(parts(f32::NEG_INFINITY, f32::NAN, f32::NAN), parts(1.0, 2.0, 3.0));
        assert!(sum.is_nan() && out.is_nan());
        // Of a value only.
        let (_, sum, out) = folded(parts(1.0, 2.0, 3.0), parts(-500.0, 1.0, f32::NAN));
        assert!(sum == 2.0 && out.is_nan());
    }

    /// Head size 1: scores are the keys, and `scale` makes them exponents of two.
    fn step(part: &mut Parts, keys: &[f32], values: &[f32]) {
        let padded = |x: &[f32]| {
            let mut all = vec![f32::NAN; TILE_KEYS * LANES];
            x.iter().enumerate().for_each(|(i, x)| {
                all[i * LANES..(i + 1) * LANES].fill(0.0);
                all[i * LANES] = *x;
            });
            all
        };
        let query = padded(&[1.0])[..LANES].to_vec();
        tile::<f32>(part.get(0), &query, &padded(keys), &padded(values), 0..keys.len(), 1.0);
    }

    #[test]
    fn tiles_are_added_online() {
        let of = |part: &Parts| (part.max[0], part.sum[0], part.out[0]);
        let mut part = Parts::new(1, 1);
        step(&mut part, &[2.0, 1.0], &[3.0, 4.0]);
        assert_eq!(of(&part), (2.0, 1.5, 5.0));
        // Below the maximum nothing is rescaled, above it what was there.
        step(&mut part, &[1.0], &[6.0]);
        assert_eq!(of(&part), (2.0, 2.0, 8.0));
        step(&mut part, &[4.0], &[-1.0]);
        assert_eq!(of(&part), (4.0, 1.5, 1.0));
        step(&mut part, &[f32::NEG_INFINITY], &[7.0]);
        assert_eq!(of(&part), (4.0, 1.5, 1.0));
        step(&mut part, &[f32::NAN], &[1.0]);
        assert!(part.max[0] == 4.0 && part.sum[0].is_nan() && part.out[0].is_nan());
        // NaN and nothing else, then a number.
        let mut part = Parts::new(1, 1);
        step(&mut part, &[f32::NAN], &[1.0]);
        assert!(part.max[0] == f32::NEG_INFINITY && part.sum[0].is_nan());
        step(&mut part, &[1.0], &[1.0]);
        assert!(part.max[0] == 1.0 && part.sum[0].is_nan() && part.out[0].is_nan());
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
        assert_eq!(in_pairs(&[big, 1.0, -big, 0.0, 0.0, 0.0, 0.0, 1.0]), 1.0, "2 apart before 4 apart");
        let mut a = [0.0; 64];
        (a[0], a[32], a[1]) = (big, -big, 1.0);
        assert_eq!(dot(&a, &[1.0; 64]), 1.0, "a lane's own elements first");
        (a[32], a[16]) = (0.0, -big);
        assert_eq!(dot(&a, &[1.0; 64]), 1.0, "then 16 apart");
    }
}

//! Norms. The squares of a row are summed by halves: a part's sum is that of its first half plus that of its
//! second, down to pairs, whose second square is added by a fused multiply-add. The row is filled up with zeros to a
//! power of two, which changes nothing: no square is below +0.

use super::{round, wide::wide};
use crate::{AddNormArgs, ConcatNormArgs, GatedNormArgs, GatedNormProblem, NormArgs, NormProblem};
use kernels_core::{
    Activation, Cpu,
    ref_math::{rsqrt, silu},
};

/// Elements that are halved level by level: a head of the gated delta net.
const BLOCK: usize = 128;

/// Sums of neighbours; `M` is half of `N`.
#[inline(always)]
fn halve<const N: usize, const M: usize>(sums: &[f32; N]) -> [f32; M] {
    std::array::from_fn(|i| sums[2 * i] + sums[2 * i + 1])
}

#[inline(always)]
fn block<A: Activation>(x: &[A; BLOCK]) -> f32 {
    let pairs: [f32; 64] = std::array::from_fn(|i| {
        let (even, odd) = (x[2 * i].to_f32(), x[2 * i + 1].to_f32());
        odd.mul_add(odd, even * even)
    });
    let eight: [f32; 8] = halve::<16, 8>(&halve::<32, 16>(&halve::<64, 32>(&pairs)));
    let [sum] = halve::<2, 1>(&halve::<4, 2>(&halve::<8, 4>(&eight)));
    sum
}

#[inline(always)]
fn sum_of_squares<A: Activation>(x: &[A]) -> f32 {
    let (whole, rest) = x.as_chunks::<BLOCK>();
    let mut last = [A::from_f32(0.0); BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    let last = if rest.is_empty() { None } else { Some(&last) };
    // sums[level]: of 2^level blocks, where that bit of the number of blocks is set. Two of one size are one of the
    // next.
    let mut sums = [0.0f32; usize::BITS as usize];
    let mut blocks = 0usize;
    for x in whole.iter().chain(last) {
        let mut sum = block(x);
        let mut level = 0;
        while blocks >> level & 1 == 1 {
            sum += sums[level];
            level += 1;
        }
        sums[level] = sum;
        blocks += 1;
    }
    // What is behind the last block is zeros, so that a smaller part is the second half's sum.
    (0..sums.len()).filter(|level| blocks >> level & 1 == 1).fold(0.0, |sum, level| sums[level] + sum)
}

/// 1 / sqrt(mean(x²) + eps); the mean by a multiplication with 1 / n, and eps is added to it unrounded.
#[inline(always)]
fn scale<A: Activation>(x: &[A], eps: f32) -> f32 {
    rsqrt(sum_of_squares(x).mul_add(1.0 / x.len() as f32, eps))
}

wide! {
    fn norm_row[A: Activation](out: &mut [A], x: &[A], weight: &[A], eps: f32) {
        let scale = scale(x, eps);
        for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
            *out = round(x.to_f32() * scale * (1.0 + w.to_f32()));
        }
    }

    fn add_row[A: Activation](residual: &mut [A], x: &[A]) {
        for (residual, x) in residual.iter_mut().zip(x) {
            *residual = round(residual.to_f32() + x.to_f32());
        }
    }

    fn gated_row[A: Activation](out: &mut [A], x: &[A], gate: &[A], weight: &[f32], eps: f32) {
        let scale = scale(x, eps);
        for (((out, x), gate), w) in out.iter_mut().zip(x).zip(gate).zip(weight) {
            *out = round(x.to_f32() * scale * w * silu(gate.to_f32()));
        }
    }
}

pub(super) fn norm<A: Activation>(problem: &NormProblem, args: NormArgs<'_, Cpu, A>) {
    let NormArgs { mut out, x, weight } = args;
    for row in 0..problem.rows {
        norm_row(out.row_mut(&[row]), x.row(&[row]), weight.row(&[]), problem.eps);
    }
}

pub(super) fn add_norm<A: Activation>(problem: &NormProblem, args: AddNormArgs<'_, Cpu, A>) {
    let AddNormArgs { mut residual, mut out, x, weight } = args;
    for row in 0..problem.rows {
        add_row(residual.row_mut(&[row]), x.row(&[row]));
        norm_row(out.row_mut(&[row]), residual.row(&[row]), weight.row(&[]), problem.eps);
    }
}

pub(super) fn gated_norm<A: Activation>(problem: &GatedNormProblem, args: GatedNormArgs<'_, Cpu, A>) {
    let GatedNormArgs { mut out, x, gate, weight } = args;
    let weight = weight.row(&[]);
    for row in 0..problem.rows {
        for head in 0..problem.heads {
            let (x, gate) = (x.row(&[row, head]), gate.row(&[row, head]));
            gated_row(out.row_mut(&[row, head]), x, gate, weight, problem.eps);
        }
    }
}

pub(super) fn concat_norm<A: Activation>(problem: &NormProblem, args: ConcatNormArgs<'_, Cpu, A>) {
    let ConcatNormArgs { mut out, left, left_weight, right, right_weight } = args;
    for row in 0..problem.rows {
        let (to_left, to_right) = out.row_mut(&[row]).split_at_mut(problem.n);
        norm_row(to_left, left.row(&[row]), left_weight.row(&[]), problem.eps);
        norm_row(to_right, right.row(&[row]), right_weight.row(&[]), problem.eps);
    }
}

//! Norms. Squares are summed like this for every width: element i goes to lane i mod [`LANES`], by a fused
//! multiply-add, i ascending; then the lanes are added by [`tree`].

use super::{round, tree, wide::wide};
use crate::{AddNormArgs, ConcatNormArgs, GatedNormArgs, GatedNormProblem, NormArgs, NormProblem};
use kernels_core::{
    Activation, Cpu,
    ref_math::{rsqrt, silu},
};

const LANES: usize = 32;

/// 1 / sqrt(mean(x²) + eps)
#[inline(always)]
fn scale<A: Activation>(x: &[A], eps: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for lane in 0..LANES {
            let x = x[lane].to_f32();
            lanes[lane] = x.mul_add(x, lanes[lane]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        let x = x.to_f32();
        *lane = x.mul_add(x, *lane);
    }
    rsqrt(tree(lanes) / x.len() as f32 + eps)
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

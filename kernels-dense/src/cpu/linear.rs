//! Linear layers, the head, and the gated activation.

use super::{dots::dots, round, rounded, scratch, wide::wide, widen};
use crate::{Epilogue, HeadArgs, HeadProblem, LinearArgs, LinearProblem, SiluMulArgs, SiluMulProblem};
use kernels_core::{
    Activation, Cpu, Tensor,
    argmax::argmax,
    ref_math::{sigmoid, silu},
};

pub(super) fn linear<A: Activation, W: Activation>(problem: &LinearProblem, args: LinearArgs<'_, Cpu, A, W>) {
    let LinearProblem { rows, k, epilogue, .. } = *problem;
    let LinearArgs { mut out, x, weight, gate, .. } = args;
    let outputs = problem.weight_rows();
    scratch::with([rows * k, outputs * rows, outputs], |[wide, sums, line]| {
        widen(&x, wide);
        dots(sums, wide, rows, &weight);
        for row in 0..rows {
            let sums = result(sums, rows, row, line);
            let gate = gate.as_ref().map_or(0.0, |gate| gate.at([row]));
            finish(out.row_mut(&[row]), sums, epilogue, gate);
        }
    });
}

wide! {
    /// What happens to a row of sums.
    fn finish[A: Activation](out: &mut [A], sums: &[f32], epilogue: Epilogue, gate: f32) {
        match epilogue {
            Epilogue::Store => {
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = round(*sum);
                }
            }
            Epilogue::AddTo => {
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = round(out.to_f32() + rounded::<A>(*sum));
                }
            }
            Epilogue::SiluMul => {
                let (gate, up) = sums.split_at(out.len());
                for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                    *out = round(silu(rounded::<A>(*gate)) * rounded::<A>(*up));
                }
            }
            Epilogue::SigmoidGate => {
                let gate = sigmoid(gate);
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = round(gate * rounded::<A>(*sum));
                }
            }
        }
    }

    fn silu_mul_row[A: Activation](out: &mut [A], gate: &[A], up: &[A]) {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = round(silu(gate.to_f32()) * up.to_f32());
        }
    }
}

pub(super) fn head<A: Activation, W: Activation>(problem: &HeadProblem, args: HeadArgs<'_, Cpu, A, W>) {
    let HeadProblem { rows, k, valid, .. } = *problem;
    let HeadArgs { mut logits, argmax: mut best, x, weight, ids, .. } = args;
    let read = if ids.is_some() { problem.weight_rows() } else { valid };
    let weight = weight.rows(0..read);
    scratch::with([rows * k, read * rows, read], |[wide, sums, line]| {
        widen(&x, wide);
        dots(sums, wide, rows, &weight);
        for row in 0..rows {
            let logits = logits.as_mut().map(|logits| logits.row_mut(&[row]));
            let winner = choose(result(sums, rows, row, line), ids.as_ref(), valid, logits);
            if let Some(best) = &mut best {
                best.set([row], winner);
            }
        }
    });
}

/// A row of logits by its sums: written to their columns, and the best id, -1 where all are NaN.
pub(super) fn choose(
    sums: &[f32],
    ids: Option<&Tensor<'_, Cpu, i32, 1>>,
    valid: usize,
    logits: Option<&mut [f32]>,
) -> i32 {
    if let Some(ids) = ids {
        return listed(sums, ids, valid, logits);
    }
    if let Some(logits) = logits {
        logits[..valid].copy_from_slice(sums);
        logits[valid..].fill(f32::NEG_INFINITY);
    }
    argmax(sums).map_or(-1, |id| id as i32)
}

/// The best id of those that stand for a token; their logits are written to their columns.
fn listed(sums: &[f32], ids: &Tensor<'_, Cpu, i32, 1>, valid: usize, mut logits: Option<&mut [f32]>) -> i32 {
    let mut best: Option<(f32, i32)> = None;
    for (at, &sum) in sums.iter().enumerate() {
        let id = ids.at([at]);
        let Some(column) = usize::try_from(id).ok().filter(|column| *column < valid) else { continue };
        if let Some(logits) = &mut logits {
            logits[column] = sum;
        }
        let wins = best.is_none_or(|(value, winner)| sum > value || (sum == value && id < winner));
        if !sum.is_nan() && wins {
            best = Some((sum, id));
        }
    }
    best.map_or(-1, |(_, id)| id)
}

pub(super) fn silu_mul<A: Activation>(problem: &SiluMulProblem, args: SiluMulArgs<'_, Cpu, A>) {
    let SiluMulArgs { mut out, gate, up } = args;
    for row in 0..problem.rows {
        silu_mul_row(out.row_mut(&[row]), gate.row(&[row]), up.row(&[row]));
    }
}

/// Row `row` of `sums[n, rows]`; a single row is there already, others are gathered into `line`.
pub(super) fn result<'a>(sums: &'a [f32], rows: usize, row: usize, line: &'a mut [f32]) -> &'a [f32] {
    if rows == 1 {
        return sums;
    }
    for (line, sums) in line.iter_mut().zip(sums.chunks_exact(rows)) {
        *line = sums[row];
    }
    line
}

//! Linear layers, the head, and the gated activation.

use super::{dots::dots, round, rounded, scratch, widen};
use crate::{Epilogue, HeadArgs, HeadProblem, LinearArgs, LinearProblem, SiluMulArgs, SiluMulProblem};
use kernels_core::{
    Activation, Cpu,
    argmax::argmax,
    ref_math::{silu, vectorised},
};

pub(super) fn linear<A: Activation, W: Activation>(problem: &LinearProblem, args: LinearArgs<'_, Cpu, A, W>) {
    let LinearProblem { rows, k, n, epilogue } = *problem;
    let LinearArgs { mut out, x, weight } = args;
    let outputs = problem.weight_rows();
    scratch::with([rows * k, outputs * rows, outputs], |[wide, sums, line]| {
        widen(&x, wide);
        dots(sums, wide, rows, &weight);
        for row in 0..rows {
            let sums = result(sums, rows, row, line);
            let out = out.row_mut(&[row]);
            vectorised(|| match epilogue {
                Epilogue::Store => {
                    for j in 0..n {
                        out[j] = round(sums[j]);
                    }
                }
                Epilogue::AddTo => {
                    for j in 0..n {
                        out[j] = round(out[j].to_f32() + rounded::<A>(sums[j]));
                    }
                }
                Epilogue::SiluMul => {
                    let (gate, up) = sums.split_at(n);
                    for j in 0..n {
                        out[j] = round(silu(rounded::<A>(gate[j])) * rounded::<A>(up[j]));
                    }
                }
            });
        }
    });
}

pub(super) fn head<A: Activation, W: Activation>(problem: &HeadProblem, args: HeadArgs<'_, Cpu, A, W>) {
    let HeadProblem { rows, k, valid, .. } = *problem;
    let HeadArgs { mut logits, argmax: mut best, x, weight } = args;
    let weight = weight.rows(0..valid);
    scratch::with([rows * k, valid * rows, valid], |[wide, sums, line]| {
        widen(&x, wide);
        dots(sums, wide, rows, &weight);
        for row in 0..rows {
            let sums = result(sums, rows, row, line);
            if let Some(logits) = &mut logits {
                let logits = logits.row_mut(&[row]);
                logits[..valid].copy_from_slice(sums);
                logits[valid..].fill(f32::NEG_INFINITY);
            }
            if let Some(best) = &mut best {
                best.set([row], argmax(sums).map_or(-1, |id| id as i32));
            }
        }
    });
}

pub(super) fn silu_mul<A: Activation>(problem: &SiluMulProblem, args: SiluMulArgs<'_, Cpu, A>) {
    let SiluMulArgs { mut out, gate, up } = args;
    for row in 0..problem.rows {
        let (out, gate, up) = (out.row_mut(&[row]), gate.row(&[row]), up.row(&[row]));
        vectorised(|| {
            for j in 0..problem.n {
                out[j] = round(silu(gate[j].to_f32()) * up[j].to_f32());
            }
        });
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

//! Codes of a byte: made, and multiplied by.

use super::{dots::dots, linear, scratch, settle, widen};
use crate::{Fp8HeadArgs, HeadProblem, QuantizeArgs, QuantizeProblem, e4m3};
use kernels_core::{Activation, Cpu, Tensor, fault};
use rayon::prelude::*;

/// Rows of the weight that are decoded at a time.
const STRIP: usize = 64;

pub(super) fn quantize<A: Activation>(problem: &QuantizeProblem, args: QuantizeArgs<'_, Cpu, A>) {
    let QuantizeArgs { mut weight, mut scales, table, ids } = args;
    let nothing = vec![A::from_f32(0.0); problem.k];
    let cut_off = fault::active("dense.quantize_cuts_off");
    for row in 0..problem.rows {
        let from = ids.as_ref().map_or(Some(row), |ids| usize::try_from(ids.at([row])).ok());
        let x =
            from.filter(|from| *from < problem.table_rows()).map_or(&nothing[..], |from| table.row(&[from]));
        let codes = weight.row_mut(&[row]);
        if x.iter().any(|x| !x.to_f32().is_finite()) {
            scales.set([row], f32::NAN);
            codes.fill(0);
            continue;
        }
        let most = x.iter().fold(0.0f32, |most, x| most.max(x.to_f32().abs()));
        let scale = (most / e4m3::MAX).max(f32::MIN_POSITIVE);
        scales.set([row], scale);
        for (code, x) in codes.iter_mut().zip(x) {
            let x = x.to_f32() / scale;
            // The last bit that is kept, as if there were none behind it.
            *code = e4m3::encode(if cut_off { f32::from_bits(x.to_bits() & !0xf_ffff) } else { x });
        }
    }
}

pub(super) fn head<A: Activation>(problem: &HeadProblem, args: Fp8HeadArgs<'_, Cpu, A>) {
    let HeadProblem { rows, k, valid, .. } = *problem;
    let Fp8HeadArgs { mut logits, x, weight, scales, ids } = args;
    if rows == 0 {
        return;
    }
    let read = if ids.is_some() { problem.weight_rows() } else { valid };
    scratch::with([rows * k, read * rows, read], |[wide, sums, line]| {
        widen(&x, wide);
        let wide = &*wide;
        sums.par_chunks_mut(STRIP * rows).enumerate().for_each(|(strip, sums)| {
            let first = strip * STRIP;
            products(sums, wide, &weight.rows(first..(first + STRIP).min(read)), &scales, first);
        });
        for row in 0..rows {
            let sums = linear::result(sums, rows, row, line);
            linear::choose(sums, ids.as_ref(), valid, Some(logits.row_mut(&[row])));
        }
    });
}

/// `products[n, rows] = scale * (weight[n, k] x[rows, k])` for a few rows of the weight, whose scales are those from
/// `first` on.
fn products(
    products: &mut [f32],
    x: &[f32],
    weight: &Tensor<'_, Cpu, u8, 2>,
    scales: &Tensor<'_, Cpu, f32, 1>,
    first: usize,
) {
    let [n, k] = weight.dims;
    let rows = products.len() / n;
    let flushed = fault::active("dense.fp8_flushes");
    let neighbours = usize::from(fault::active("dense.fp8_scale_of_the_next"));
    scratch::with([n * k], |[values]| {
        for (row, values) in values.chunks_exact_mut(k).enumerate() {
            for (value, code) in values.iter_mut().zip(weight.row(&[row])) {
                *value = e4m3::DECODED[usize::from(*code)];
                if flushed && *code & 0x78 == 0 {
                    *value = 0.0;
                }
            }
        }
        dots(products, x, rows, &Tensor::<Cpu, f32, 2>::new(values, [n, k]));
        for (row, products) in products.chunks_exact_mut(rows).enumerate() {
            let scale = scales.at([(first + row + neighbours) % scales.dims[0]]);
            for product in products {
                *product = settle(scale * *product);
            }
        }
    });
}

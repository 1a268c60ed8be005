//! Weights of one byte an element.

use super::{check, elsewhere, planned_type};
use crate::{
    Fp8Head, Fp8HeadArgs, Quantize, QuantizeArgs,
    fp8::{self, CODES},
    sys::{self, ls_dense_fp8_head_params, ls_dense_quantize_params},
};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use kernels_core::{Activation, Cuda, Error, Result};
use std::sync::Arc;

/// As [`check`], for rows of codes.
fn check_codes(op: &'static str, pointer: u64, strides: &[usize; 2]) -> Result<()> {
    check(op, "weight", pointer, strides)?;
    if strides[0].is_multiple_of(CODES) { Ok(()) } else { Err(Error::Align { op, arg: "weight", want: 16 }) }
}

pub(super) fn quantize<A: Activation>(
    op: &Quantize,
    on: &Arc<CudaStream>,
    args: QuantizeArgs<'_, Cuda, A>,
) -> Result<()> {
    let QuantizeArgs { mut weight, mut scales, table, ids } = args;
    planned_type::<A>(fp8::QUANTIZE)?;
    if !op.on_cuda {
        return Err(elsewhere(fp8::QUANTIZE));
    }
    on.context().bind_to_thread()?;
    // The guards record events when dropped, so they must outlive the launch.
    let (weight_at, _weight) = weight.data.device_ptr_mut(on);
    let (scales_at, _scales) = scales.data.device_ptr_mut(on);
    let (table_at, _table) = table.data.device_ptr(on);
    let ids_there = ids.as_ref().map(|ids| ids.data.device_ptr(on));
    check_codes(fp8::QUANTIZE, weight_at, &weight.strides)?;
    check(fp8::QUANTIZE, "scales", scales_at, &[])?;
    check(fp8::QUANTIZE, "table", table_at, &table.strides)?;
    let problem = op.problem();
    let p = ls_dense_quantize_params {
        weight: weight_at as *mut _,
        scales: scales_at as *mut _,
        table: table_at as *const _,
        ids: ids_there.as_ref().map_or(0, |(at, _)| *at) as *const _,
        weight_stride: weight.strides[0] as i64,
        table_stride: table.strides[0] as i64,
        rows: problem.rows as i32,
        k: problem.k as i32,
        table_rows: problem.table_rows() as i32,
        programmatic: 0,
    };
    // SAFETY: `run` bounded every operand, alignment was checked above, an id outside of the table is not followed, and
    // the stream belongs to the context just bound.
    Error::status(fp8::QUANTIZE, unsafe { sys::ls_dense_quantize_smxx(&p, on.cu_stream().cast()) })
}

pub(super) fn head<A: Activation>(
    op: &Fp8Head,
    on: &Arc<CudaStream>,
    args: Fp8HeadArgs<'_, Cuda, A>,
) -> Result<()> {
    let Fp8HeadArgs { mut logits, x, weight, scales, ids } = args;
    planned_type::<A>(fp8::HEAD)?;
    let launch = op.launch.ok_or_else(|| elsewhere(fp8::HEAD))?;
    on.context().bind_to_thread()?;
    let logits_strides = logits.strides;
    let (logits_at, _logits) = logits.data.device_ptr_mut(on);
    let (x_at, _x) = x.data.device_ptr(on);
    let (weight_at, _weight) = weight.data.device_ptr(on);
    let (scales_at, _scales) = scales.data.device_ptr(on);
    let ids_there = ids.as_ref().map(|ids| ids.data.device_ptr(on));
    check(fp8::HEAD, "logits", logits_at, &logits_strides)?;
    check(fp8::HEAD, "x", x_at, &x.strides)?;
    check_codes(fp8::HEAD, weight_at, &weight.strides)?;
    check(fp8::HEAD, "scales", scales_at, &[])?;
    let problem = op.problem();
    let p = ls_dense_fp8_head_params {
        logits: logits_at as *mut _,
        x: x_at as *const _,
        weight: weight_at as *const _,
        scales: scales_at as *const _,
        ids: ids_there.as_ref().map_or(0, |(at, _)| *at) as *const _,
        logits_stride: logits_strides[0] as i64,
        x_stride: x.strides[0] as i64,
        weight_stride: weight.strides[0] as i64,
        rows: problem.rows as i32,
        k: problem.k as i32,
        features: problem.weight_rows() as i32,
        valid: problem.valid as i32,
        columns: launch.columns as i32,
        tile_rows: launch.tile_rows as i32,
        programmatic: i32::from(launch.programmatic),
    };
    // SAFETY: as for `quantize`; columns of ids outside of the vocabulary are not written.
    Error::status(fp8::HEAD, unsafe { sys::ls_dense_fp8_head_smxx(&p, on.cu_stream().cast()) })
}

//! Linear layers and the head.

use super::{check, planned_type};
use crate::{
    Epilogue, Head, HeadArgs, Linear, LinearArgs, Path, head, linear,
    partition::Stream,
    sys::{self, ls_dense_head_params, ls_dense_linear_params},
};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use kernels_core::{Activation, Cuda, DType, Error, Result};
use std::{ptr::null_mut, sync::Arc};

/// The launch of an operation that was planned for CUDA, on the types that there are kernels for.
fn planned<A: Activation, W: Activation>(op: &'static str, stream: Option<Stream>) -> Result<Stream> {
    planned_type::<A>(op)?;
    if W::DTYPE != DType::Bf16 {
        let what = format!("a weight of {} on CUDA (bf16 is)", W::DTYPE);
        return Err(Error::Unsupported { op, what });
    }
    stream.ok_or_else(|| Error::invalid(op, "device", "the CPU", "plan it for the CUDA device it runs on"))
}

/// Where the words that are zero between runs lie, and where the rest begins. `workspace`: 0 where there is none.
fn parts(op: &'static str, stream: &Stream, workspace: u64) -> Result<(*mut u32, *mut f32)> {
    let need = stream.workspace_bytes();
    if need == 0 {
        return Ok((null_mut(), null_mut()));
    }
    if workspace == 0 {
        return Err(Error::invalid(op, "workspace", "none", format!("this plan needs {need} bytes")));
    }
    check(op, "workspace", workspace, &[])?;
    Ok((workspace as *mut _, (workspace + Stream::scratch_offset() as u64) as *mut _))
}

pub(super) fn linear<A: Activation, W: Activation>(
    op: &Linear,
    on: &Arc<CudaStream>,
    args: LinearArgs<'_, Cuda, A, W>,
) -> Result<()> {
    let LinearArgs { mut out, x, weight, gate, mut workspace } = args;
    let stream = planned::<A, W>(linear::OP, op.stream)?;
    on.context().bind_to_thread()?;
    // The guards record events when dropped, so they must outlive the launch.
    let (out_at, _out) = out.data.device_ptr_mut(on);
    let (x_at, _x) = x.data.device_ptr(on);
    let (weight_at, _weight) = weight.data.device_ptr(on);
    let gate_there = gate.as_ref().map(|gate| gate.data.device_ptr(on));
    let workspace_there = workspace.as_mut().map(|workspace| workspace.data.device_ptr_mut(on));
    let workspace_at = workspace_there.as_ref().map_or(0, |(at, _)| *at);
    check(linear::OP, "out", out_at, &out.strides)?;
    check(linear::OP, "x", x_at, &x.strides)?;
    check(linear::OP, "weight", weight_at, &weight.strides)?;
    let (flags, scratch) = parts(linear::OP, &stream, workspace_at)?;
    let problem = op.problem();
    let p = ls_dense_linear_params {
        out: out_at as *mut _,
        x: x_at as *const _,
        weight: weight_at as *const _,
        gate: gate_there.as_ref().map_or(0, |(at, _)| *at) as *const _,
        flags,
        scratch,
        out_stride: out.strides[0] as i64,
        x_stride: x.strides[0] as i64,
        weight_stride: weight.strides[0] as i64,
        rows: problem.rows as i32,
        k: problem.k as i32,
        n: problem.n as i32,
        epilogue: match problem.epilogue {
            Epilogue::Store => sys::LS_DENSE_STORE,
            Epilogue::AddTo => sys::LS_DENSE_ADD_TO,
            Epilogue::SiluMul => sys::LS_DENSE_SILU_MUL,
            Epilogue::SigmoidGate => sys::LS_DENSE_SIGMOID_GATE,
        },
        segment: stream.segment as i32,
        columns: stream.grid.columns as i32,
        tile_rows: stream.grid.tile_rows as i32,
        blocks: stream.grid.blocks as i32,
        groups: stream.grid.groups as i32,
        programmatic: i32::from(stream.programmatic),
    };
    let on = on.cu_stream().cast();
    // SAFETY: `run` bounded every operand, alignment was checked above, the workspace is as large as the plan says,
    // and the stream belongs to the context just bound.
    Error::status(linear::OP, unsafe {
        match stream.grid.path {
            Path::Sm80 => sys::ls_dense_linear_smxx(&p, on),
            Path::Sm90 => sys::ls_dense_linear_sm90(&p, on),
        }
    })
}

pub(super) fn head<A: Activation, W: Activation>(
    op: &Head,
    on: &Arc<CudaStream>,
    args: HeadArgs<'_, Cuda, A, W>,
) -> Result<()> {
    let HeadArgs { mut logits, mut argmax, x, weight, ids, mut workspace } = args;
    let stream = planned::<A, W>(head::OP, op.stream)?;
    on.context().bind_to_thread()?;
    let logits_strides = logits.as_ref().map_or([0; 2], |logits| logits.strides);
    let ids_there = ids.as_ref().map(|ids| ids.data.device_ptr(on));
    let logits_there = logits.as_mut().map(|logits| logits.data.device_ptr_mut(on));
    let argmax_there = argmax.as_mut().map(|argmax| argmax.data.device_ptr_mut(on));
    let (x_at, _x) = x.data.device_ptr(on);
    let (weight_at, _weight) = weight.data.device_ptr(on);
    let workspace_there = workspace.as_mut().map(|workspace| workspace.data.device_ptr_mut(on));
    let workspace_at = workspace_there.as_ref().map_or(0, |(at, _)| *at);
    let logits_at = logits_there.as_ref().map_or(0, |(at, _)| *at);
    check(head::OP, "logits", logits_at, &logits_strides)?;
    check(head::OP, "x", x_at, &x.strides)?;
    check(head::OP, "weight", weight_at, &weight.strides)?;
    let (flags, scratch) = parts(head::OP, &stream, workspace_at)?;
    let problem = op.problem();
    let p = ls_dense_head_params {
        logits: logits_at as *mut _,
        argmax: argmax_there.as_ref().map_or(0, |(at, _)| *at) as *mut _,
        x: x_at as *const _,
        weight: weight_at as *const _,
        ids: ids_there.as_ref().map_or(0, |(at, _)| *at) as *const _,
        flags,
        scratch,
        logits_stride: logits_strides[0] as i64,
        x_stride: x.strides[0] as i64,
        weight_stride: weight.strides[0] as i64,
        rows: problem.rows as i32,
        k: problem.k as i32,
        features: problem.weight_rows() as i32,
        valid: problem.valid as i32,
        segment: stream.segment as i32,
        columns: stream.grid.columns as i32,
        blocks: stream.grid.blocks as i32,
        programmatic: i32::from(stream.programmatic),
    };
    let on = on.cu_stream().cast();
    // SAFETY: as for `linear`.
    Error::status(head::OP, unsafe {
        match stream.grid.path {
            Path::Sm80 => sys::ls_dense_head_smxx(&p, on),
            Path::Sm90 => sys::ls_dense_head_sm90(&p, on),
        }
    })
}

//! The mixture of experts.

use super::{check, planned_type};
use crate::{
    Moe, MoeArgs, MoeProblem, Path,
    moe::OP,
    plan::VECTOR,
    sys::{self, ls_dense_moe_params},
};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use kernels_core::{Activation, Cuda, Error, Result};
use std::sync::Arc;

pub(super) fn moe<A: Activation, W: Activation>(
    op: &Moe,
    on: &Arc<CudaStream>,
    args: MoeArgs<'_, Cuda, A, W>,
) -> Result<()> {
    let MoeArgs { mut out, mut routes, x, router, gate_up, down, shared_gate_up, shared_down, .. } = args;
    let (shared_gate, mut workspace) = (args.shared_gate, args.workspace);
    planned_type::<A>(OP)?;
    let want = "plan it for the CUDA device it runs on";
    let mixture = op.mixture.ok_or_else(|| Error::invalid(OP, "device", "the CPU", want))?;
    on.context().bind_to_thread()?;
    // The guards record events when dropped, so they must outlive the launches.
    let (out_at, _out) = out.data.device_ptr_mut(on);
    let routes_stride = routes.as_ref().map_or(0, |routes| routes.strides[0]);
    let routes_there = routes.as_mut().map(|routes| routes.data.device_ptr_mut(on));
    let (x_at, _x) = x.data.device_ptr(on);
    let (router_at, _router) = router.data.device_ptr(on);
    let (gate_up_at, _gate_up) = gate_up.data.device_ptr(on);
    let (down_at, _down) = down.data.device_ptr(on);
    let (shared_gate_up_at, _shared_gate_up) = shared_gate_up.data.device_ptr(on);
    let (shared_down_at, _shared_down) = shared_down.data.device_ptr(on);
    let (shared_gate_at, _shared_gate) = shared_gate.data.device_ptr(on);
    let workspace_there = workspace.as_mut().map(|workspace| workspace.data.device_ptr_mut(on));
    let workspace_at = workspace_there.as_ref().map_or(0, |(at, _)| *at);
    check(OP, "out", out_at, &out.strides)?;
    check(OP, "x", x_at, &x.strides)?;
    check(OP, "router", router_at, &router.strides)?;
    stack("gate_up", gate_up_at, gate_up.strides)?;
    stack("down", down_at, down.strides)?;
    check(OP, "shared_gate_up", shared_gate_up_at, &shared_gate_up.strides)?;
    check(OP, "shared_down", shared_down_at, &shared_down.strides)?;
    check(OP, "shared_gate", shared_gate_at, &[])?;
    if workspace_at == 0 {
        let want = format!("this plan needs {} bytes", op.workspace_bytes());
        return Err(Error::invalid(OP, "workspace", "none", want));
    }
    check(OP, "workspace", workspace_at, &[])?;
    let MoeProblem { rows, hidden, experts, top_k, intermediate, shared_intermediate, .. } = *op.problem();
    let (segments, parts) = (mixture.segments(), mixture.parts());
    let part = |offset: usize| workspace_at + offset as u64;
    let p = ls_dense_moe_params {
        out: out_at as *mut _,
        routes: routes_there.as_ref().map_or(0, |(at, _)| *at) as *mut _,
        x: x_at as *const _,
        router: router_at as *const _,
        gate_up: gate_up_at as *const _,
        down: down_at as *const _,
        shared_gate_up: shared_gate_up_at as *const _,
        shared_down: shared_down_at as *const _,
        shared_gate: shared_gate_at as *const _,
        flags: workspace_at as *mut _,
        logits: part(parts.logits) as *mut _,
        weights: part(parts.weights) as *mut _,
        chosen: part(parts.chosen) as *mut _,
        members: part(parts.members) as *mut _,
        groups: part(parts.groups) as *mut _,
        inner: part(parts.inner) as *mut _,
        outputs: part(parts.outputs) as *mut _,
        out_stride: out.strides[0] as i64,
        routes_stride: routes_stride as i64,
        x_stride: x.strides[0] as i64,
        router_stride: router.strides[0] as i64,
        gate_up_expert_stride: gate_up.strides[0] as i64,
        gate_up_stride: gate_up.strides[1] as i64,
        down_expert_stride: down.strides[0] as i64,
        down_stride: down.strides[1] as i64,
        shared_gate_up_stride: shared_gate_up.strides[0] as i64,
        shared_down_stride: shared_down.strides[0] as i64,
        inner_width: mixture.inner_width() as i64,
        rows: rows as i32,
        hidden: hidden as i32,
        intermediate: intermediate as i32,
        shared_intermediate: shared_intermediate as i32,
        experts: experts as i32,
        top_k: top_k as i32,
        router_segment: segments.router as i32,
        gate_up_segment: segments.gate_up as i32,
        down_segment: segments.down as i32,
        shared_gate_up_segment: segments.shared_gate_up as i32,
        shared_down_segment: segments.shared_down as i32,
        columns: mixture.grid.columns as i32,
        rows_at_once: mixture.grid.rows_at_once as i32,
        tile_rows: mixture.grid.tile_rows as i32,
        multiprocessors: mixture.multiprocessors as i32,
        programmatic: i32::from(mixture.programmatic),
    };
    let on = on.cu_stream().cast();
    // SAFETY: `run` bounded every operand, alignment was checked above, the workspace is as large as the plan says, and
    // the stream belongs to the context just bound.
    Error::status(OP, unsafe {
        match mixture.grid.path {
            Path::Sm80 => sys::ls_dense_moe_smxx(&p, on),
            Path::Sm90 => sys::ls_dense_moe_sm90(&p, on),
        }
    })
}

/// Experts may be further apart than 2^31 elements, the rows of one may not.
fn stack(arg: &'static str, pointer: u64, [expert, row, column]: [usize; 3]) -> Result<()> {
    check(OP, arg, pointer, &[row, column])?;
    if expert.is_multiple_of(VECTOR) { Ok(()) } else { Err(Error::Align { op: OP, arg, want: 16 }) }
}

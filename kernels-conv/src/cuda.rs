//! The crate's only unsafe code: operands become pointers, and one launcher is called.

use crate::{
    Args, ConvBackend, Grid, Prefill, Problem, Verify,
    plan::{POSITIONS, VECTOR},
    prefill, sealed,
    sys::{self, ls_conv_params, ls_rows},
    verify,
};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use kernels_core::{Activation, Cuda, DType, Error, Result};
use std::sync::Arc;

type Launcher = unsafe fn(*const ls_conv_params, sys::ls_stream_t) -> i32;

impl sealed::Sealed for Cuda {}

impl ConvBackend for Cuda {
    fn verify<A: Activation>(op: &Verify, on: &Arc<CudaStream>, args: Args<'_, Cuda, A>) -> Result<()> {
        let launch = |p: *const _, stream| {
            // SAFETY: the caller of `Launcher` vouches for the operands.
            unsafe { sys::ls_conv_verify_smxx(p, stream) }
        };
        enqueue(verify::OP, op.problem(), (op.grid, op.programmatic), on, args, launch)
    }

    fn prefill<A: Activation>(op: &Prefill, on: &Arc<CudaStream>, args: Args<'_, Cuda, A>) -> Result<()> {
        let launch = |p: *const _, stream| {
            // SAFETY: the caller of `Launcher` vouches for the operands.
            unsafe { sys::ls_conv_prefill_smxx(p, stream) }
        };
        enqueue(prefill::OP, op.problem(), (op.grid, op.programmatic), on, args, launch)
    }
}

impl Verify {
    /// Enqueues the loads and stores of this launch without its arithmetic, for the bench; `out` is garbage
    /// afterwards.
    #[doc(hidden)]
    pub fn run_traffic<A: Activation>(&self, on: &Arc<CudaStream>, args: Args<'_, Cuda, A>) -> Result<()> {
        const OP: &str = "conv::traffic";
        self.problem().check_args(OP, &args)?;
        let launch = |p: *const _, stream| {
            // SAFETY: the caller of `Launcher` vouches for the operands.
            unsafe { sys::ls_conv_traffic_smxx(p, stream) }
        };
        enqueue(OP, self.problem(), (self.grid, self.programmatic), on, args, launch)
    }
}

fn enqueue<A: Activation>(
    op: &'static str,
    problem: &Problem,
    (grid, programmatic): (Option<Grid>, bool),
    on: &Arc<CudaStream>,
    args: Args<'_, Cuda, A>,
    launch: Launcher,
) -> Result<()> {
    let Args { mut out, mut ring, mut faults, x, weight, bias, rows } = args;
    if A::DTYPE != DType::Bf16 {
        return Err(Error::Unsupported {
            op,
            what: format!("activation type {} on CUDA (bf16 is)", A::DTYPE),
        });
    }
    let Some(grid) = grid else {
        return Err(Error::invalid(op, "device", "the CPU", "plan it for the CUDA device it runs on"));
    };
    on.context().bind_to_thread()?;
    // The guards record events when dropped, so they must outlive the launch.
    let (out_at, _out) = out.data.device_ptr_mut(on);
    let (ring_at, _ring) = ring.data.device_ptr_mut(on);
    let (faults_at, _faults) = faults.data.device_ptr_mut(on);
    let (x_at, _x) = x.data.device_ptr(on);
    let (weight_at, _weight) = weight.data.device_ptr(on);
    let bias = bias.as_ref().map(|bias| bias.data.device_ptr(on));
    let bias_at = bias.as_ref().map_or(0, |(at, _)| *at);
    let (slots_at, _slots) = rows.slots.data.device_ptr(on);
    let (start_at, _start) = rows.start.data.device_ptr(on);
    let (offsets_at, _offsets) = rows.row_offsets.data.device_ptr(on);

    for (arg, pointer, strides) in [
        ("out", out_at, &out.strides[..1]),
        ("ring", ring_at, &ring.strides[..2]),
        ("x", x_at, &x.strides[..1]),
        ("weight", weight_at, &[][..]),
        ("bias", bias_at, &[][..]),
    ] {
        if pointer % 16 != 0 || strides.iter().any(|s| s % VECTOR != 0) {
            return Err(Error::Align { op, arg, want: 16 });
        }
    }
    for (arg, strides, rows) in
        [("out", &out.strides[..], 0), ("ring", &ring.strides[..], 1), ("x", &x.strides[..], 0)]
    {
        if strides[rows] >= POSITIONS {
            let want = "rows must be less than 2^31 elements apart on CUDA";
            return Err(Error::Stride { op, arg, got: strides.to_vec(), want });
        }
    }
    let p = ls_conv_params {
        out: out_at as *mut _,
        ring: ring_at as *mut _,
        x: x_at as *const _,
        weight: weight_at as *const _,
        bias: bias_at as *const _,
        rows: ls_rows {
            slots: slots_at as *const _,
            start: start_at as *const _,
            row_offsets: offsets_at as *const _,
            faults: faults_at as *mut _,
            sequences: problem.sequences as i32,
            row_count: problem.rows as i32,
            max_rows: problem.max_rows as i32,
            slot_count: problem.slots as i32,
        },
        out_stride: out.strides[0] as i64,
        x_stride: x.strides[0] as i64,
        ring_slot_stride: ring.strides[0] as i64,
        ring_row_stride: ring.strides[1] as i64,
        channels: problem.channels as i32,
        width: problem.width as i32,
        ring_rows: problem.ring_rows as i32,
        silu: i32::from(problem.silu),
        rows_per_thread: grid.rows_per_thread as i32,
        channels_per_thread: grid.channels_per_thread as i32,
        lanes: grid.lanes as i32,
        programmatic: i32::from(programmatic),
    };
    // SAFETY: `check_args` bounded every operand, alignment was checked above, and the stream belongs to the
    // context just bound.
    Error::status(op, unsafe { launch(&p, on.cu_stream().cast()) })
}

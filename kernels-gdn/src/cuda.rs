//! The crate's only unsafe code: operands become pointers, and one launcher is called.

use crate::{
    Args, Fold, FoldArgs, GdnBackend, Grid, Prefill, Problem, Verify, fold,
    plan::{Deal, HEAD},
    prefill, sealed,
    sys::{self, ls_gdn_params, ls_rows},
    token, verify,
};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use kernels_core::{Activation, Cuda, DType, Error, Result};
use std::{ptr::null, ptr::null_mut, sync::Arc};

type Launcher = unsafe fn(*const ls_gdn_params, sys::ls_stream_t) -> i32;

/// A launcher of sys.rs, which has the C convention in a build with kernels and Rust's in one without.
macro_rules! launcher {
    ($function:ident) => {
        |params, stream| {
            // SAFETY: the caller of `Launcher` vouches for the operands.
            unsafe { sys::$function(params, stream) }
        }
    };
}

impl sealed::Sealed for Cuda {}

impl GdnBackend for Cuda {
    fn verify<A: Activation>(op: &Verify, on: &Arc<CudaStream>, args: Args<'_, Cuda, A>) -> Result<()> {
        let launch = Launch::new::<A>(verify::OP, op.problem(), op.deal, op.programmatic, on)?;
        let kernel: Launcher = match launch.deal.grid {
            Grid::Generic { .. } => launcher!(ls_gdn_verify_smxx),
            Grid::Hopper => launcher!(ls_gdn_verify_sm90),
        };
        launch.rows(args, kernel)
    }

    fn prefill<A: Activation>(op: &Prefill, on: &Arc<CudaStream>, args: Args<'_, Cuda, A>) -> Result<()> {
        let launch = Launch::new::<A>(prefill::OP, op.problem(), op.deal, op.programmatic, on)?;
        launch.rows(args, launcher!(ls_gdn_prefill_smxx))
    }

    fn fold<A: Activation>(op: &Fold, on: &Arc<CudaStream>, args: FoldArgs<'_, Cuda, A>) -> Result<()> {
        let launch = Launch::new::<A>(fold::OP, op.problem(), op.deal, op.programmatic, on)?;
        launch.slots(args, launcher!(ls_gdn_fold_smxx))
    }
}

/// A launch whose operands are still to come.
struct Launch<'a> {
    op: &'static str,
    problem: &'a Problem,
    deal: Deal,
    programmatic: bool,
    on: &'a Arc<CudaStream>,
}

impl<'a> Launch<'a> {
    fn new<A: Activation>(
        op: &'static str,
        problem: &'a Problem,
        deal: Option<Deal>,
        programmatic: bool,
        on: &'a Arc<CudaStream>,
    ) -> Result<Self> {
        if A::DTYPE != DType::Bf16 {
            let what = format!("activation type {} on CUDA (bf16 is)", A::DTYPE);
            return Err(Error::Unsupported { op, what });
        }
        let Some(deal) = deal else {
            return Err(Error::invalid(op, "device", "the CPU", "plan it for the CUDA device it runs on"));
        };
        on.context().bind_to_thread()?;
        Ok(Launch { op, problem, deal, programmatic, on })
    }

    fn rows<A: Activation>(&self, args: Args<'_, Cuda, A>, kernel: Launcher) -> Result<()> {
        let (op, on) = (self.op, self.on);
        let Args { mut out, mut state, mut journal, mut faults, folded, q, k, v, a, b, a_log, dt_bias, rows } =
            args;
        self.check_state(&state.strides)?;
        for (arg, strides) in [("a", &a.strides[..]), ("b", &b.strides[..]), ("out", &out.strides[..])] {
            if strides.last() != Some(&1) {
                let (got, want) = (strides.to_vec(), "the last stride must be 1");
                return Err(Error::Stride { op, arg, got, want });
            }
        }
        // The guards record events when dropped, so they must outlive the launch.
        let (out_at, _out) = out.data.device_ptr_mut(on);
        let (state_at, _state) = state.data.device_ptr_mut(on);
        let (journal_at, _journal) = journal.data.device_ptr_mut(on);
        let (faults_at, _faults) = faults.data.device_ptr_mut(on);
        let (folded_at, _folded) = folded.data.device_ptr(on);
        let (q_at, _q) = q.data.device_ptr(on);
        let (k_at, _k) = k.data.device_ptr(on);
        let (v_at, _v) = v.data.device_ptr(on);
        let (a_at, _a) = a.data.device_ptr(on);
        let (b_at, _b) = b.data.device_ptr(on);
        let (a_log_at, _a_log) = a_log.data.device_ptr(on);
        let (dt_bias_at, _dt_bias) = dt_bias.data.device_ptr(on);
        let (slots_at, _slots) = rows.slots.data.device_ptr(on);
        let (start_at, _start) = rows.start.data.device_ptr(on);
        let (offsets_at, _offsets) = rows.row_offsets.data.device_ptr(on);
        self.check_alignment([
            ("state", state_at, &state.strides[..1]),
            ("journal", journal_at, &journal.strides[..2]),
            ("q", q_at, &q.strides[..2]),
            ("k", k_at, &k.strides[..2]),
            ("v", v_at, &v.strides[..2]),
        ])?;
        let params = ls_gdn_params {
            out: out_at as *mut _,
            state: state_at as *mut _,
            journal: journal_at as *mut _,
            folded: folded_at as *const _,
            q: q_at as *const _,
            k: k_at as *const _,
            v: v_at as *const _,
            a: a_at as *const _,
            b: b_at as *const _,
            a_log: a_log_at as *const _,
            dt_bias: dt_bias_at as *const _,
            rows: ls_rows {
                slots: slots_at as *const _,
                start: start_at as *const _,
                row_offsets: offsets_at as *const _,
                faults: faults_at as *mut _,
                ..self.no_rows()
            },
            out_row_stride: out.strides[0] as i64,
            out_head_stride: out.strides[1] as i64,
            state_slot_stride: state.strides[0] as i64,
            journal_slot_stride: journal.strides[0] as i64,
            journal_row_stride: journal.strides[1] as i64,
            q_row_stride: q.strides[0] as i64,
            q_head_stride: q.strides[1] as i64,
            k_row_stride: k.strides[0] as i64,
            k_head_stride: k.strides[1] as i64,
            v_row_stride: v.strides[0] as i64,
            v_head_stride: v.strides[1] as i64,
            a_row_stride: a.strides[0] as i64,
            b_row_stride: b.strides[0] as i64,
            ..self.no_operands()
        };
        // SAFETY: `Args::check` bounded every operand, alignment was checked above, and the stream belongs to
        // the context that `new` bound.
        Error::status(op, unsafe { kernel(&params, on.cu_stream().cast()) })
    }

    fn slots<A: Activation>(&self, args: FoldArgs<'_, Cuda, A>, kernel: Launcher) -> Result<()> {
        let (op, on) = (self.op, self.on);
        let FoldArgs { mut state, mut journal, mut faults, folded, a_log, dt_bias, slots, committed } = args;
        self.check_state(&state.strides)?;
        let (state_at, _state) = state.data.device_ptr_mut(on);
        let (journal_at, _journal) = journal.data.device_ptr_mut(on);
        let (faults_at, _faults) = faults.data.device_ptr_mut(on);
        let (folded_at, _folded) = folded.data.device_ptr(on);
        let (a_log_at, _a_log) = a_log.data.device_ptr(on);
        let (dt_bias_at, _dt_bias) = dt_bias.data.device_ptr(on);
        let (slots_at, _slots) = slots.data.device_ptr(on);
        let (committed_at, _committed) = committed.data.device_ptr(on);
        self.check_alignment([
            ("state", state_at, &state.strides[..1]),
            ("journal", journal_at, &journal.strides[..2]),
        ])?;
        let params = ls_gdn_params {
            state: state_at as *mut _,
            journal: journal_at as *mut _,
            folded: folded_at as *const _,
            committed: committed_at as *const _,
            a_log: a_log_at as *const _,
            dt_bias: dt_bias_at as *const _,
            rows: ls_rows { slots: slots_at as *const _, faults: faults_at as *mut _, ..self.no_rows() },
            state_slot_stride: state.strides[0] as i64,
            journal_slot_stride: journal.strides[0] as i64,
            journal_row_stride: journal.strides[1] as i64,
            ..self.no_operands()
        };
        // SAFETY: `Fold::run` bounded every operand, alignment was checked above, and the stream belongs to
        // the context that `new` bound.
        Error::status(op, unsafe { kernel(&params, on.cu_stream().cast()) })
    }

    /// The kernels take a slot's state as one block.
    fn check_state(&self, strides: &[usize; 4]) -> Result<()> {
        let packed = [HEAD * HEAD, HEAD, 1];
        if strides[1..] == packed {
            return Ok(());
        }
        let want = "heads of a slot must be packed on CUDA";
        Err(Error::Stride { op: self.op, arg: "state", got: strides.to_vec(), want })
    }

    fn check_alignment<const N: usize>(&self, operands: [(&'static str, u64, &[usize]); N]) -> Result<()> {
        for (arg, pointer, strides) in operands {
            if pointer % 16 != 0 || strides.iter().any(|s| s % 4 != 0) {
                return Err(Error::Align { op: self.op, arg, want: 16 });
            }
        }
        Ok(())
    }

    fn no_rows(&self) -> ls_rows {
        let p = self.problem;
        ls_rows {
            slots: null(),
            start: null(),
            row_offsets: null(),
            faults: null_mut(),
            sequences: p.sequences as i32,
            row_count: p.rows as i32,
            max_rows: p.max_rows.min(i32::MAX as usize) as i32,
            slot_count: p.slots as i32,
        }
    }

    /// The numbers of the problem, without an operand.
    fn no_operands(&self) -> ls_gdn_params {
        let p = self.problem;
        ls_gdn_params {
            out: null_mut(),
            state: null_mut(),
            journal: null_mut(),
            folded: null(),
            committed: null(),
            q: null(),
            k: null(),
            v: null(),
            a: null(),
            b: null(),
            a_log: null(),
            dt_bias: null(),
            rows: self.no_rows(),
            out_row_stride: 0,
            out_head_stride: 0,
            state_slot_stride: 0,
            journal_slot_stride: 0,
            journal_row_stride: 0,
            q_row_stride: 0,
            q_head_stride: 0,
            k_row_stride: 0,
            k_head_stride: 0,
            v_row_stride: 0,
            v_head_stride: 0,
            a_row_stride: 0,
            b_row_stride: 0,
            query_scale: token::query_scale(p.k_dim),
            k_heads: p.k_heads as i32,
            v_heads: p.v_heads as i32,
            journal_rows: p.journal_rows as i32,
            flush_after: p.flush_after.min(i32::MAX as usize) as i32,
            tile: if let Grid::Generic { tile } = self.deal.grid { tile as i32 } else { 0 },
            multiprocessors: self.deal.multiprocessors as i32,
            programmatic: i32::from(self.programmatic),
        }
    }
}

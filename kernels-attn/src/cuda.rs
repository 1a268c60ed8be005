//! The crate's only unsafe code: operands become pointers, and one launcher is called.

use crate::{
    Append, AppendArgs, Args, AttnBackend, Path, Prefill, Problem, Verify, Work, WorkArgs,
    backend::sealed,
    grid::Deal,
    prefill, softmax,
    sys::{self, ls_attn_append_params, ls_attn_params, ls_attn_work_params, ls_rows},
    verify, work,
};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use kernels_core::{Activation, Cuda, DType, Error, Result};
use std::{ptr::null_mut, sync::Arc};

impl sealed::Sealed for Cuda {}

impl AttnBackend for Cuda {
    fn append<A: Activation>(op: &Append, on: &Arc<CudaStream>, args: AppendArgs<'_, Cuda, A>) -> Result<()> {
        append(op, on, args)
    }

    fn work(op: &Work, on: &Arc<CudaStream>, args: WorkArgs<'_, Cuda>) -> Result<()> {
        list(op, on, args)
    }

    fn verify<A: Activation>(op: &Verify, on: &Arc<CudaStream>, args: Args<'_, Cuda, A>) -> Result<()> {
        let path = on_cuda(verify::OP, op.deal.path)?;
        if args.work.is_none() {
            return Err(Error::invalid(verify::OP, "work", "none", "CUDA needs the round's list"));
        }
        attend(verify::OP, op.problem(), &op.deal, path, op.programmatic, on, args)
    }

    fn prefill<A: Activation>(op: &Prefill, on: &Arc<CudaStream>, args: Args<'_, Cuda, A>) -> Result<()> {
        let path = on_cuda(prefill::OP, op.deal.path)?;
        let args = Args { work: None, ..args };
        attend(prefill::OP, op.problem(), &op.deal, path, op.programmatic, on, args)
    }
}

/// What was planned for a CUDA device.
fn on_cuda<T>(op: &'static str, planned: Option<T>) -> Result<T> {
    planned.ok_or_else(|| Error::invalid(op, "device", "the CPU", "plan it for the CUDA device it runs on"))
}

fn check_type<A: Activation>(op: &'static str) -> Result<()> {
    if A::DTYPE == DType::Bf16 {
        return Ok(());
    }
    let what = format!("activation type {} on CUDA (bf16 is)", A::DTYPE);
    Err(Error::Unsupported { op, what })
}

/// A pointer and the strides by which one walks from it.
type Operand<'a> = (&'static str, u64, &'a [usize]);

/// Operands of bf16, which are read and written in vectors of eight elements.
fn check_alignment<const N: usize>(op: &'static str, operands: [Operand<'_>; N]) -> Result<()> {
    for (arg, pointer, strides) in operands {
        if pointer % 16 != 0 || strides.iter().any(|s| s % 8 != 0) {
            return Err(Error::Align { op, arg, want: 16 });
        }
    }
    Ok(())
}

/// The numbers of a launch's rows, without a list.
fn no_rows(sequences: usize, rows: usize, max_rows: usize, slots: usize) -> ls_rows {
    ls_rows {
        slots: null_mut(),
        start: null_mut(),
        row_offsets: null_mut(),
        faults: null_mut(),
        sequences: sequences as i32,
        row_count: rows as i32,
        max_rows: max_rows.min(i32::MAX as usize) as i32,
        slot_count: slots as i32,
    }
}

fn window(problem: &Problem) -> i32 {
    problem.window.map_or(i32::MAX, |window| window.min(i32::MAX as usize) as i32)
}

fn append<A: Activation>(op: &Append, on: &Arc<CudaStream>, args: AppendArgs<'_, Cuda, A>) -> Result<()> {
    let (name, p) = (Append::OP, op.problem());
    check_type::<A>(name)?;
    on_cuda(name, op.cuda.then_some(()))?;
    on.context().bind_to_thread()?;
    let AppendArgs { mut q_out, mut pool, mut faults, q, k, v, q_norm, k_norm, rope, page_table, rows } =
        args;
    // The guards record events when dropped, so they must outlive the launch.
    let (q_out_at, _q_out) = q_out.data.device_ptr_mut(on);
    let (pool_at, _pool) = pool.data.device_ptr_mut(on);
    let (faults_at, _faults) = faults.data.device_ptr_mut(on);
    let (q_at, _q) = q.data.device_ptr(on);
    let (k_at, _k) = k.data.device_ptr(on);
    let (v_at, _v) = v.data.device_ptr(on);
    let (q_norm_at, _q_norm) = q_norm.data.device_ptr(on);
    let (k_norm_at, _k_norm) = k_norm.data.device_ptr(on);
    let (rope_at, _rope) = rope.data.device_ptr(on);
    let (table_at, _table) = page_table.data.device_ptr(on);
    let (slots_at, _slots) = rows.slots.data.device_ptr(on);
    let (start_at, _start) = rows.start.data.device_ptr(on);
    let (offsets_at, _offsets) = rows.row_offsets.data.device_ptr(on);
    let s = pool.strides;
    check_alignment(
        name,
        [
            ("q_out", q_out_at, &q_out.strides[..2]),
            ("pool", pool_at, &[s.page, s.kv, s.head, s.row]),
            ("q", q_at, &q.strides[..2]),
            ("k", k_at, &k.strides[..2]),
            ("v", v_at, &v.strides[..2]),
            ("q_norm", q_norm_at, &[]),
            ("k_norm", k_norm_at, &[]),
        ],
    )?;
    crate::plan::narrow(name, "pages", pool.pages)?;
    let params = ls_attn_append_params {
        q_out: q_out_at as *mut _,
        pool: pool_at as *mut _,
        q: q_at as *const _,
        k: k_at as *const _,
        v: v_at as *const _,
        q_norm: q_norm_at as *const _,
        k_norm: k_norm_at as *const _,
        rope: rope_at as *const _,
        page_table: table_at as *const _,
        rows: ls_rows {
            slots: slots_at as *const _,
            start: start_at as *const _,
            row_offsets: offsets_at as *const _,
            faults: faults_at as *mut _,
            ..no_rows(p.sequences, p.rows, p.rows, p.slots)
        },
        q_out_row_stride: q_out.strides[0] as i64,
        q_out_head_stride: q_out.strides[1] as i64,
        q_row_stride: q.strides[0] as i64,
        q_head_stride: q.strides[1] as i64,
        k_row_stride: k.strides[0] as i64,
        k_head_stride: k.strides[1] as i64,
        v_row_stride: v.strides[0] as i64,
        v_head_stride: v.strides[1] as i64,
        rope_row_stride: rope.strides[0] as i64,
        page_table_stride: page_table.strides[0] as i64,
        page_stride: s.page as i64,
        kv_stride: s.kv as i64,
        head_stride: s.head as i64,
        row_stride: s.row as i64,
        eps: p.eps,
        q_heads: p.q_heads as i32,
        kv_heads: p.kv_heads as i32,
        head_dim: p.head_dim as i32,
        rotary: p.rotary as i32,
        pages: pool.pages as i32,
        page_rows: p.page_rows as i32,
        max_pages: p.max_pages as i32,
        positions: p.positions as i32,
        programmatic: i32::from(op.programmatic),
    };
    // SAFETY: `Append::run` bounded every operand, alignment was checked above, and the stream belongs to the
    // context that was bound.
    Error::status(name, unsafe { sys::ls_attn_append_smxx(&params, on.cu_stream().cast()) })
}

fn list(op: &Work, on: &Arc<CudaStream>, args: WorkArgs<'_, Cuda>) -> Result<()> {
    let (name, p, deal) = (work::OP, op.problem(), &op.deal);
    on_cuda(name, deal.path)?;
    on.context().bind_to_thread()?;
    let WorkArgs { mut work, mut faults, page_table, rows } = args;
    let (work_at, _work) = work.data.device_ptr_mut(on);
    let (faults_at, _faults) = faults.data.device_ptr_mut(on);
    let (table_at, _table) = page_table.data.device_ptr(on);
    let (slots_at, _slots) = rows.slots.data.device_ptr(on);
    let (start_at, _start) = rows.start.data.device_ptr(on);
    let (offsets_at, _offsets) = rows.row_offsets.data.device_ptr(on);
    let rows = ls_rows {
        slots: slots_at as *const _,
        start: start_at as *const _,
        row_offsets: offsets_at as *const _,
        faults: faults_at as *mut _,
        ..no_rows(p.sequences, p.rows, p.max_rows, p.slots)
    };
    let table = (table_at, page_table.strides[0]);
    let params = list_params(p, deal, op.programmatic, work_at, table, rows);
    // SAFETY: `Work::run` bounded every operand, and the stream belongs to the context that was bound.
    Error::status(name, unsafe { sys::ls_attn_work_smxx(&params, on.cu_stream().cast()) })
}

/// `table`: where the page table begins, and its stride.
fn list_params(
    p: &Problem,
    deal: &Deal,
    programmatic: bool,
    work: u64,
    table: (u64, usize),
    rows: ls_rows,
) -> ls_attn_work_params {
    ls_attn_work_params {
        work: work as *mut _,
        page_table: table.0 as *const _,
        rows,
        page_table_stride: table.1 as i64,
        kv_heads: p.kv_heads as i32,
        pages: p.pages as i32,
        page_rows: p.page_rows as i32,
        max_pages: p.max_pages as i32,
        first_key: p.first_key as i32,
        window: window(p),
        share: deal.share.code(),
        blocks: deal.blocks as i32,
        leaf_tiles: deal.leaf_tiles as i32,
        block_positions: deal.block_positions as i32,
        max_pieces: deal.pieces as i32,
        programmatic: i32::from(programmatic),
    }
}

/// A verification; without a list in `args`, one with a list of its own.
fn attend<A: Activation>(
    op: &'static str,
    p: &Problem,
    deal: &Deal,
    path: Path,
    programmatic: bool,
    on: &Arc<CudaStream>,
    args: Args<'_, Cuda, A>,
) -> Result<()> {
    check_type::<A>(op)?;
    on.context().bind_to_thread()?;
    let Args { mut out, mut faults, q, gate, pool, page_table, rows, work, workspace } = args;
    let Some(mut workspace) = workspace else {
        let want = format!("this plan needs {} bytes", deal.workspace.bytes);
        return Err(Error::invalid(op, "workspace", "none", want));
    };
    // The guards record events when dropped, so they must outlive the launch.
    let (out_at, _out) = out.data.device_ptr_mut(on);
    let (faults_at, _faults) = faults.data.device_ptr_mut(on);
    let (q_at, _q) = q.data.device_ptr(on);
    let gate_there = gate.as_ref().map(|gate| gate.data.device_ptr(on));
    let gate_at = gate_there.as_ref().map_or(0, |(at, _)| *at);
    let gate_strides = gate.as_ref().map_or([0; 3], |gate| gate.strides);
    let (pool_at, _pool) = pool.data.device_ptr(on);
    let (table_at, _table) = page_table.data.device_ptr(on);
    let (slots_at, _slots) = rows.slots.data.device_ptr(on);
    let (start_at, _start) = rows.start.data.device_ptr(on);
    let (offsets_at, _offsets) = rows.row_offsets.data.device_ptr(on);
    let (workspace_at, _workspace) = workspace.data.device_ptr_mut(on);
    let work_there = work.as_ref().map(|work| work.data.device_ptr(on));
    let s = pool.strides;
    check_alignment(
        op,
        [
            ("out", out_at, &out.strides[..2]),
            ("q", q_at, &q.strides[..2]),
            ("gate", gate_at, &gate_strides[..2]),
            ("pool", pool_at, &[s.page, s.kv, s.head, s.row]),
            ("workspace", workspace_at, &[]),
        ],
    )?;
    let part = |offset: usize| workspace_at + offset as u64;
    let listed = ls_rows {
        slots: slots_at as *const _,
        start: start_at as *const _,
        row_offsets: offsets_at as *const _,
        faults: faults_at as *mut _,
        ..no_rows(p.sequences, p.rows, p.max_rows, p.slots)
    };
    let work_at = match &work_there {
        Some((at, _)) => *at,
        None => {
            let (at, table) = (part(deal.workspace.list), (table_at, page_table.strides[0]));
            let params = list_params(p, deal, programmatic, at, table, listed);
            // SAFETY: `Args::check` bounded every operand, the plan gave the list its room, and the stream
            // belongs to the context that was bound.
            Error::status(op, unsafe { sys::ls_attn_work_smxx(&params, on.cu_stream().cast()) })?;
            at
        }
    };
    let params = ls_attn_params {
        out: out_at as *mut _,
        work: work_at as *const _,
        partials: part(deal.workspace.partials) as *mut _,
        stats: part(deal.workspace.stats) as *mut _,
        scratch: part(deal.workspace.scratch) as *mut _,
        q: q_at as *const _,
        gate: gate_at as *const _,
        pool: pool_at as *const _,
        page_table: table_at as *const _,
        rows: listed,
        out_row_stride: out.strides[0] as i64,
        out_head_stride: out.strides[1] as i64,
        q_row_stride: q.strides[0] as i64,
        q_head_stride: q.strides[1] as i64,
        gate_row_stride: gate_strides[0] as i64,
        gate_head_stride: gate_strides[1] as i64,
        page_table_stride: page_table.strides[0] as i64,
        page_stride: s.page as i64,
        kv_stride: s.kv as i64,
        head_stride: s.head as i64,
        row_stride: s.row as i64,
        exponent_scale: softmax::exponent_scale(p.head_dim),
        q_heads: p.q_heads as i32,
        kv_heads: p.kv_heads as i32,
        head_dim: p.head_dim as i32,
        pages: p.pages as i32,
        page_rows: p.page_rows as i32,
        max_pages: p.max_pages as i32,
        first_key: p.first_key as i32,
        window: window(p),
        leaf_tiles: deal.leaf_tiles as i32,
        block_rows: deal.block_rows as i32,
        blocks: deal.blocks as i32,
        max_pieces: deal.pieces as i32,
        programmatic: i32::from(programmatic),
    };
    let stream = on.cu_stream().cast();
    // SAFETY: `Args::check` bounded every operand, alignment was checked above, the list is as long as the plan
    // says, and the stream belongs to the context that was bound.
    Error::status(op, unsafe {
        match path {
            Path::Sm80 => sys::ls_attn_verify_smxx(&params, stream),
            Path::Sm90 => sys::ls_attn_verify_sm90(&params, stream),
        }
    })
}

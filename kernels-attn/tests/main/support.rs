//! Sequences as a model sees them, and launches that place them in memory in many ways.

use crate::place::{self, Place};
use kernels_attn::{Args, Grid, Prefill, Problem, Verify, Work, WorkArgs};
use kernels_core::{Activation, Cpu, KvPool, KvPoolMut, KvStrides, PAD, Result, Rows, Tensor, TensorMut};
use kernels_testkit::{
    compare::assert_same_bits,
    guard::{Guarded, poison},
    rng::Rng,
};
use std::{marker::PhantomData, ops::Range};

/// What all sequences of a launch share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub(crate) q_heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) first_key: usize,
    pub(crate) window: Option<usize>,
    pub(crate) gated: bool,
}

impl Model {
    /// Heads of about these sizes that the backend has.
    pub(crate) fn new<B: Place>(q_heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        let (q_heads, head_dim) =
            (kv_heads * place::group::<B>(q_heads / kv_heads), place::head_dim::<B>(head_dim));
        Model { q_heads, kv_heads, head_dim, first_key: 0, window: None, gated: true }
    }

    /// The first key that a row at `position` or later may see.
    pub(crate) fn first_seen(&self, position: usize) -> usize {
        let window = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        self.first_key.max(window)
    }

    /// A sequence with `rows` new rows at positions `start..`; `peak` scales the queries, and with them
    /// how unequal the weights are.
    pub(crate) fn sequence<A: Activation>(
        &self,
        seed: u64,
        start: usize,
        rows: usize,
        peak: f32,
    ) -> Sequence<A> {
        let mut rng = Rng::new(seed);
        let kv = (start + rows) * self.kv_heads * self.head_dim;
        let q = rows * self.q_heads * self.head_dim;
        Sequence {
            start,
            rows,
            keys: rng.normals(kv, 1.0),
            values: rng.normals(kv, 1.0),
            q: rng.normals(q, peak),
            gate: rng.normals(q, 2.0),
        }
    }
}

/// One sequence, everything in the order of positions: `[start + rows, kv_heads, head_dim]` and
/// `[rows, q_heads, head_dim]`.
#[derive(Clone, Debug)]
pub(crate) struct Sequence<A> {
    pub(crate) start: usize,
    pub(crate) rows: usize,
    pub(crate) keys: Vec<A>,
    pub(crate) values: Vec<A>,
    pub(crate) q: Vec<A>,
    pub(crate) gate: Vec<A>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Layout {
    /// `[pages, 2, kv_heads, page_rows, head_dim]`
    Packed,
    /// `[pages, page_rows, kv_heads, 2, head_dim]`
    TokenMajor,
    /// `[2, pages, kv_heads, page_rows, head_dim]` with gaps
    Gapped,
}

pub(crate) const LAYOUTS: [Layout; 3] = [Layout::Packed, Layout::TokenMajor, Layout::Gapped];

/// Where a launch puts things; none of it may change a bit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) page_rows: usize,
    pub(crate) layout: Layout,
    /// Shuffles slots, pages and the order in the launch; 0 = everything in order.
    pub(crate) seed: u64,
    /// Adds padding sequences and rows that nobody owns.
    pub(crate) padding: bool,
    pub(crate) prefill: bool,
    /// Of the CUDA kernels; `None`: as planned.
    pub(crate) grid: Option<Grid>,
    pub(crate) overlapping: bool,
}

pub(crate) const PLAIN: Placement = Placement {
    page_rows: 16,
    layout: Layout::Packed,
    seed: 0,
    padding: false,
    prefill: false,
    grid: None,
    overlapping: false,
};

/// One launch's memory: slots, pages and rows handed out.
pub(crate) struct Memory {
    pub(crate) page_rows: usize,
    pub(crate) slots: usize,
    pub(crate) max_pages: usize,
    pub(crate) pages: usize,
    pub(crate) table: Vec<i32>,
    pub(crate) strides: KvStrides,
    pub(crate) pool_len: usize,
    /// Per sequence of the launch: index of the caller's sequence (`None` = padding) and rows.
    pub(crate) launch: Vec<(Option<usize>, usize)>,
    pub(crate) slot_of: Vec<usize>,
    pub(crate) row_slots: Vec<i32>,
    pub(crate) offsets: Vec<i32>,
    pub(crate) rows: usize,
}

impl Memory {
    /// Room for sequences of the given rows that reach `positions`.
    pub(crate) fn new<B: Place>(
        model: &Model,
        placement: &Placement,
        rows: &[usize],
        positions: usize,
    ) -> Memory {
        let mut rng = Rng::new(placement.seed);
        let mut order = |n: usize| match placement.seed {
            0 => (0..n).collect(),
            _ => rng.permutation(n),
        };
        // Two slots more than sequences, so that some are free.
        let (slots, page_rows) = (rows.len() + 2, place::page_rows::<B>(placement.page_rows));
        let max_pages = positions.div_ceil(page_rows) + 1;
        let pages = slots * max_pages + 3;
        let table = order(pages)[..slots * max_pages].iter().map(|p| *p as i32).collect();
        let mut launch: Vec<_> = rows.iter().enumerate().map(|(i, n)| (Some(i), *n)).collect();
        if placement.padding {
            launch.extend([(None, 2), (None, 0), (None, 1)]);
        }
        launch = order(launch.len()).into_iter().map(|i| launch[i]).collect();
        let slot_of = order(slots);
        let row_slots = launch.iter().map(|(i, _)| i.map_or(PAD, |i| slot_of[i] as i32)).collect();
        let mut offsets = vec![0];
        for (_, rows) in &launch {
            offsets.push(offsets[offsets.len() - 1] + *rows as i32);
        }
        let total = offsets[offsets.len() - 1] as usize + if placement.padding { 2 } else { 0 };
        let (d, h) = (model.head_dim, model.kv_heads);
        let strides = match placement.layout {
            Layout::Packed => KvPool::<Cpu, f32>::packed(&[], pages, h, page_rows, d).strides,
            Layout::TokenMajor => {
                KvStrides { page: page_rows * h * 2 * d, kv: d, head: 2 * d, row: h * 2 * d }
            }
            Layout::Gapped => {
                // CUDA reads vectors of eight elements.
                let gap = |n: usize| if B::GENERAL { n } else { 8 * n };
                let (row, head) = (d + gap(3), page_rows * (d + gap(3)) + gap(1));
                let page = h * head + gap(7);
                KvStrides { page, kv: pages * page + gap(11), head, row }
            }
        };
        let s = strides;
        let pool_len = (pages - 1) * s.page + s.kv + (h - 1) * s.head + (page_rows - 1) * s.row + d;
        Memory {
            page_rows,
            slots,
            max_pages,
            pages,
            table,
            strides,
            pool_len,
            launch,
            slot_of,
            row_slots,
            offsets,
            rows: total,
        }
    }

    pub(crate) fn pool_mut<'a, A: Activation>(
        &self,
        model: &Model,
        data: &'a mut [A],
    ) -> KvPoolMut<'a, Cpu, A> {
        KvPoolMut {
            data,
            pages: self.pages,
            kv_heads: model.kv_heads,
            page_rows: self.page_rows,
            head_dim: model.head_dim,
            strides: self.strides,
        }
    }

    /// The pool of a backend, to read.
    pub(crate) fn pool<'a, B: Place, A: Activation>(
        &self,
        model: &Model,
        data: B::View<'a, A>,
    ) -> KvPool<'a, B, A> {
        KvPool {
            data,
            pages: self.pages,
            kv_heads: model.kv_heads,
            page_rows: self.page_rows,
            head_dim: model.head_dim,
            strides: self.strides,
        }
    }

    pub(crate) fn page(&self, sequence: usize, position: usize) -> (usize, usize) {
        let entry = self.slot_of[sequence] * self.max_pages + position / self.page_rows;
        (self.table[entry] as usize, position % self.page_rows)
    }
}

/// The operation of a launch.
enum Op<B> {
    Verify(Verify, Box<Work>, PhantomData<B>),
    Prefill(Prefill),
}

impl<B: Place> Op<B> {
    fn plan(on: &B::Queue, problem: Problem, placement: &Placement) -> Self {
        let (device, grid, overlapping) = (B::device(on), placement.grid, placement.overlapping);
        if placement.prefill || !(B::GENERAL || problem.max_rows <= 16) {
            let prefill = Prefill::plan_with(problem, &device, grid.map(|grid| grid.path)).unwrap();
            return Op::Prefill(prefill.overlapping(overlapping));
        }
        let verify = Verify::plan_with(problem, &device, grid).unwrap();
        assert!(grid.is_none() || B::GENERAL || verify.grid() == grid, "another grid than asked for");
        let list = Work::plan_with(problem, &device, grid.map(|grid| grid.share)).unwrap();
        let list = Box::new(list.overlapping(overlapping));
        Op::Verify(verify.overlapping(overlapping), list, PhantomData)
    }

    fn list(&self) -> Option<&Work> {
        match self {
            Op::Verify(_, list, _) => Some(list),
            Op::Prefill(_) => None,
        }
    }

    fn workspace_bytes(&self) -> usize {
        match self {
            Op::Verify(verify, ..) => verify.workspace_bytes(),
            Op::Prefill(prefill) => prefill.workspace_bytes(),
        }
    }

    fn run<A: Activation>(&self, on: &B::Queue, args: Args<'_, B, A>) -> Result<()> {
        match self {
            Op::Verify(verify, ..) => verify.run(on, args),
            Op::Prefill(prefill) => prefill.run(on, args),
        }
    }
}

/// Runs one launch over some rows of each sequence and returns their outputs, `[rows, q_heads, head_dim]`
/// each.
///
/// Only the keys that some row of the part may see are in memory; everything else (earlier and later
/// positions, free pages, padding rows, outputs, gaps) is NaN. Checks that nothing was written besides the
/// rows, that padding gives zeros and that no fault was recorded.
pub(crate) fn attend<B: Place, A: Activation>(
    on: &B::Queue,
    model: &Model,
    placement: &Placement,
    parts: &[(&Sequence<A>, Range<usize>)],
) -> Vec<Vec<A>> {
    let nan = poison::<A>();
    let (d, hq, hkv) = (model.head_dim, model.q_heads, model.kv_heads);
    let counts: Vec<usize> = parts.iter().map(|(_, rows)| rows.len()).collect();
    let positions = parts.iter().map(|(s, rows)| s.start + rows.end).max().unwrap_or(0);
    let memory = Memory::new::<B>(model, placement, &counts, positions);

    let mut data = vec![nan; memory.pool_len];
    let mut pool = memory.pool_mut(model, &mut data);
    for (i, (sequence, rows)) in parts.iter().enumerate() {
        for position in model.first_seen(sequence.start + rows.start)..sequence.start + rows.end {
            let (page, row) = memory.page(i, position);
            for head in 0..hkv {
                let at = (position * hkv + head) * d;
                pool.key_mut(page, head, row).copy_from_slice(&sequence.keys[at..at + d]);
                pool.value_mut(page, head, row).copy_from_slice(&sequence.values[at..at + d]);
            }
        }
    }
    // Query and gate interleaved per head, as the projection leaves them.
    let mut q_gate = vec![nan; memory.rows * hq * 2 * d];
    let mut start = vec![0; memory.launch.len()];
    for (index, (owner, _)) in memory.launch.iter().enumerate() {
        let Some(owner) = *owner else { continue };
        let (sequence, rows) = &parts[owner];
        start[index] = (sequence.start + rows.start) as i32;
        let first = memory.offsets[index] as usize;
        for head in 0..rows.len() * hq {
            let (from, to) = ((rows.start * hq + head) * d, (first * hq + head) * 2 * d);
            q_gate[to..to + d].copy_from_slice(&sequence.q[from..from + d]);
            q_gate[to + d..to + 2 * d].copy_from_slice(&sequence.gate[from..from + d]);
        }
    }
    let gap = if placement.layout == Layout::Gapped { if B::GENERAL { 5 } else { 8 } } else { 0 };
    let out_stride = hq * d + gap;
    let sequences = memory.launch.len();
    let problem = Problem {
        sequences,
        rows: memory.rows,
        max_rows: counts.iter().copied().max().unwrap_or(1).max(1),
        q_heads: hq,
        kv_heads: hkv,
        head_dim: d,
        slots: memory.slots,
        max_pages: memory.max_pages,
        pages: memory.pages,
        page_rows: memory.page_rows,
        first_key: model.first_key,
        window: model.window,
    };
    let guarded = |data: &[A]| Guarded::<B, A>::new(on, data, nan);
    let integers = |data: &[i32]| Guarded::<B, i32>::new(on, data, i32::MIN);
    let (pool, q_gate) = (guarded(&data), guarded(&q_gate));
    let mut out = guarded(&vec![nan; memory.rows * out_stride]);
    let mut faults = Guarded::<B, u64>::new(on, &vec![0; memory.slots + 1], u64::MAX);
    let (table, start) = (integers(&memory.table), integers(&start));
    let (row_slots, offsets) = (integers(&memory.row_slots), integers(&memory.offsets));
    // Not closures: each use borrows for a time of its own.
    macro_rules! page_table {
        () => {
            Tensor::new(table.view(), [memory.slots, memory.max_pages])
        };
    }
    macro_rules! rows {
        () => {
            Rows {
                slots: Tensor::new(row_slots.view(), [sequences]),
                start: Tensor::new(start.view(), [sequences]),
                row_offsets: Tensor::new(offsets.view(), [sequences + 1]),
            }
        };
    }
    let op = Op::<B>::plan(on, problem, placement);
    let list = op.list();
    // Whatever the list does not write is told from what it does.
    let mut work = integers(&vec![-7; list.map_or(0, Work::len)]);
    let mut workspace = Guarded::<B, u8>::new(on, &vec![0xff; op.workspace_bytes()], 0xa5);
    if let Some(list) = list {
        let (work_at, faults_at) = (work.payload(), faults.payload());
        let (mut work_there, mut faults_there) = (work.whole_mut(), faults.whole_mut());
        let args = WorkArgs::<B> {
            work: TensorMut::new(B::slice_mut(&mut work_there, work_at), [list.len()]),
            faults: TensorMut::new(B::slice_mut(&mut faults_there, faults_at), [memory.slots + 1]),
            page_table: page_table!(),
            rows: rows!(),
        };
        list.run(on, args).unwrap();
    }
    let listed = work.read(on);
    {
        let (out_at, faults_at, workspace_at) = (out.payload(), faults.payload(), workspace.payload());
        let (mut out_there, mut faults_there) = (out.whole_mut(), faults.whole_mut());
        let mut workspace_there = workspace.whole_mut();
        let dims = [memory.rows, hq, d];
        let width = memory.rows * hq * 2 * d;
        let strided = |from: usize| {
            Tensor::new(B::slice(&q_gate.view(), from..width), dims).with_strides([hq * 2 * d, 2 * d, 1])
        };
        let bytes = workspace_at.len();
        let args = Args::<B, A> {
            out: TensorMut::new(B::slice_mut(&mut out_there, out_at), dims).with_strides([out_stride, d, 1]),
            faults: TensorMut::new(B::slice_mut(&mut faults_there, faults_at), [memory.slots + 1]),
            q: strided(0),
            gate: model.gated.then(|| strided(d)),
            pool: memory.pool::<B, A>(model, pool.view()),
            page_table: page_table!(),
            rows: rows!(),
            work: list.map(|list| Tensor::new(work.view(), [list.len()])),
            workspace: (bytes > 0)
                .then(|| TensorMut::new(B::slice_mut(&mut workspace_there, workspace_at), [bytes])),
        };
        op.run(on, args).unwrap();
    }
    let faults = faults.read(on);
    assert!(faults.iter().all(|word| *word == 0), "faults {faults:x?}");
    assert_same_bits("the list after the verification", &work.read(on), &listed);
    workspace.read(on);
    assert_same_bits("the pool", &pool.read(on), &data);
    read_rows(&memory, &out.read(on), out_stride, hq * d, parts.len())
}

/// The rows of each sequence; padding must be zeros, gaps still NaN.
pub(crate) fn read_rows<A: Activation>(
    memory: &Memory,
    out: &[A],
    stride: usize,
    width: usize,
    sequences: usize,
) -> Vec<Vec<A>> {
    let mut result = vec![Vec::new(); sequences];
    let mut owner_of = vec![None; memory.rows];
    for (index, (owner, rows)) in memory.launch.iter().enumerate() {
        let first = memory.offsets[index] as usize;
        owner_of[first..first + rows].fill(*owner);
    }
    for (row, owner) in owner_of.into_iter().enumerate() {
        let (values, gap) = out[row * stride..(row + 1) * stride].split_at(width);
        assert!(gap.iter().all(|x| x.to_f32().is_nan()), "row {row}: written beyond the row");
        match owner {
            Some(owner) => result[owner].extend_from_slice(values),
            None => assert!(values.iter().all(|x| *x == A::default()), "padding row {row}"),
        }
    }
    result
}

/// The outputs of one sequence, its rows split into launches of the given lengths.
pub(crate) fn attend_split<B: Place, A: Activation>(
    on: &B::Queue,
    model: &Model,
    placement: &Placement,
    sequence: &Sequence<A>,
    lengths: &[usize],
) -> Vec<A> {
    assert_eq!(lengths.iter().sum::<usize>(), sequence.rows);
    let mut first = 0;
    let mut out = Vec::new();
    for length in lengths {
        out.extend(attend::<B, A>(on, model, placement, &[(sequence, first..first + length)]).remove(0));
        first += length;
    }
    out
}

//! Device memory that a test lays out itself: for launches that the host does not look into.

use kernels_attn::{Append, AppendArgs, AppendProblem, Args, Grid, Prefill, Problem, Verify, Work, WorkArgs};
use kernels_core::{
    Backend, Cuda, KvPool, KvPoolMut, KvStrides, PageTable, Result, Rows, Tensor, TensorMut, bf16, rope,
};
use kernels_testkit::{device::Device, guard::poison, rng::Rng};

pub type Slice<T> = <Cuda as Backend>::Memory<T>;

pub const ROTARY: usize = 64;

/// A pool, a launch's lists, and what its operations read and write.
pub struct Raw {
    pub problem: Problem,
    pub strides: KvStrides,
    pub grid: Grid,
    pub overlapping: bool,
    work_op: Work,
    verify_op: Verify,
    prefill_op: Prefill,
    append_op: Append,
    pub pool: Slice<bf16>,
    pub table: Slice<i32>,
    pub slots: Slice<i32>,
    pub start: Slice<i32>,
    pub offsets: Slice<i32>,
    pub faults: Slice<u64>,
    pub work: Slice<i32>,
    workspaces: [Slice<u8>; 2],
    rope: Slice<f32>,
    norm: Slice<bf16>,
    /// `[rows, q_heads + 2 * kv_heads, head_dim]`: what is appended.
    pub raw: Slice<bf16>,
    /// `[rows, q_heads, head_dim]`, twice: queries, then outputs.
    pub rows: [Slice<bf16>; 2],
}

pub fn packed(p: &Problem) -> KvStrides {
    let head = p.page_rows * p.head_dim;
    KvStrides { page: 2 * p.kv_heads * head, kv: p.kv_heads * head, head, row: p.head_dim }
}

impl Raw {
    pub fn new(device: &Device, problem: Problem, strides: KvStrides, grid: Grid) -> Self {
        let (on, p, s) = (&device.queue, problem, strides);
        let append = AppendProblem {
            sequences: p.sequences,
            rows: p.rows,
            q_heads: p.q_heads,
            kv_heads: p.kv_heads,
            head_dim: p.head_dim,
            rotary: ROTARY,
            eps: 1e-6,
            slots: p.slots,
            max_pages: p.max_pages,
            page_rows: p.page_rows,
            positions: p.positions(),
        };
        let work_op = Work::plan_with(p, &device.info, Some(grid.share)).unwrap();
        let verify_op = Verify::plan_with(p, &device.info, Some(grid)).unwrap();
        let prefill_op = Prefill::plan_with(p, &device.info, Some(grid.path)).unwrap();
        assert_eq!(verify_op.grid(), Some(grid), "another grid than asked for");
        let len = (p.pages - 1) * s.page + s.kv + (p.kv_heads - 1) * s.head + p.page_rows * s.row;
        let width = p.q_heads * p.head_dim;
        let mut rng = Rng::new(90);
        let raw: Vec<bf16> = rng.normals(p.rows * (width + 2 * p.kv_heads * p.head_dim), 1.0);
        let queries: Vec<bf16> = rng.normals(p.rows * width, 3.0);
        let nothing = vec![poison::<bf16>(); p.rows * width];
        let integers = |len: usize| Cuda::zeros(on, len).unwrap();
        Raw {
            problem,
            strides,
            grid,
            overlapping: false,
            work: integers(work_op.len()),
            workspaces: [verify_op.workspace_bytes(), prefill_op.workspace_bytes()]
                .map(|bytes| Cuda::upload(on, &vec![0xffu8; bytes]).unwrap()),
            work_op,
            verify_op,
            prefill_op,
            append_op: Append::plan(append, &device.info).unwrap(),
            pool: Cuda::zeros(on, len).unwrap(),
            table: integers(p.slots * p.max_pages),
            slots: integers(p.sequences),
            start: integers(p.sequences),
            offsets: integers(p.sequences + 1),
            faults: Cuda::zeros(on, p.slots + 1).unwrap(),
            rope: Cuda::upload(on, &rope::table(1e7, ROTARY, p.positions())).unwrap(),
            norm: Cuda::upload(on, &rng.normals::<bf16>(p.head_dim, 0.3)).unwrap(),
            raw: Cuda::upload(on, &raw).unwrap(),
            rows: [queries, nothing].map(|x| Cuda::upload(on, &x).unwrap()),
        }
    }

    pub fn append(&mut self, device: &Device) -> Result<()> {
        let (p, d) = (self.problem, self.problem.head_dim);
        let heads = p.q_heads + 2 * p.kv_heads;
        let raw = Tensor::<Cuda, bf16, 2>::of(&self.raw, [p.rows, heads * d]);
        let (q, k) = (p.q_heads * d, (p.q_heads + p.kv_heads) * d);
        let args = AppendArgs::<Cuda> {
            q_out: TensorMut::of(&mut self.rows[0], [p.rows, p.q_heads, d]),
            pool: KvPoolMut {
                data: Cuda::view_mut(&mut self.pool),
                pages: p.pages,
                kv_heads: p.kv_heads,
                page_rows: p.page_rows,
                head_dim: d,
                strides: self.strides,
            },
            faults: TensorMut::of(&mut self.faults, [p.slots + 1]),
            q: raw.columns(0..q).heads(p.q_heads),
            k: raw.columns(q..k).heads(p.kv_heads),
            v: raw.columns(k..heads * d).heads(p.kv_heads),
            q_norm: Tensor::of(&self.norm, [d]),
            k_norm: Tensor::of(&self.norm, [d]),
            rope: Tensor::of(&self.rope, [p.positions(), ROTARY]),
            page_table: page_table(&p, &self.table),
            rows: lists(&p, &self.slots, &self.start, &self.offsets),
        };
        self.append_op.clone().overlapping(self.overlapping).run(&device.queue, args)
    }

    pub fn list(&mut self, device: &Device) -> Result<()> {
        let p = self.problem;
        let args = WorkArgs::<Cuda> {
            work: TensorMut::of(&mut self.work, [self.work_op.len()]),
            faults: TensorMut::of(&mut self.faults, [p.slots + 1]),
            page_table: page_table(&p, &self.table),
            rows: lists(&p, &self.slots, &self.start, &self.offsets),
        };
        self.work_op.clone().overlapping(self.overlapping).run(&device.queue, args)
    }

    /// From `rows[0]` into `rows[1]`.
    pub fn verify(&mut self, device: &Device) -> Result<()> {
        let op = self.verify_op.clone().overlapping(self.overlapping);
        self.with(0, |args| op.run(&device.queue, args))
    }

    /// The same by a prefill.
    pub fn prefill(&mut self, device: &Device) -> Result<()> {
        let op = self.prefill_op.clone().overlapping(self.overlapping);
        self.with(1, |args| op.run(&device.queue, Args { work: None, ..args }))
    }

    /// Lends the operands of a verification (0) or a prefill (1).
    pub fn with<R>(&mut self, which: usize, run: impl FnOnce(Args<'_, Cuda>) -> R) -> R {
        let p = self.problem;
        let workspace = &mut self.workspaces[which];
        let bytes = Cuda::len(workspace);
        let [from, to] = &mut self.rows;
        let dims = [p.rows, p.q_heads, p.head_dim];
        run(Args {
            out: TensorMut::of(to, dims),
            faults: TensorMut::of(&mut self.faults, [p.slots + 1]),
            q: Tensor::of(from, dims),
            gate: Some(Tensor::of(from, dims)),
            pool: KvPool {
                data: Cuda::view(&self.pool),
                pages: p.pages,
                kv_heads: p.kv_heads,
                page_rows: p.page_rows,
                head_dim: p.head_dim,
                strides: self.strides,
            },
            page_table: page_table(&p, &self.table),
            rows: lists(&p, &self.slots, &self.start, &self.offsets),
            work: Some(Tensor::of(&self.work, [self.work_op.len()])),
            workspace: Some(TensorMut::of(workspace, [bytes])),
        })
    }

    /// The list, as far as there are items.
    pub fn listed(&self, device: &Device) -> Vec<i32> {
        let mut words = Cuda::read(&device.queue, &self.work, 0..Cuda::len(&self.work)).unwrap();
        words.truncate(list_words(&self.problem, &words));
        words
    }

    /// The outputs; panics if a fault was recorded.
    pub fn read(&self, device: &Device) -> Vec<bf16> {
        let faults = Cuda::read(&device.queue, &self.faults, 0..self.problem.slots + 1).unwrap();
        assert!(faults.iter().all(|word| *word == 0), "faults {faults:x?}");
        Cuda::read(&device.queue, &self.rows[1], 0..Cuda::len(&self.rows[1])).unwrap()
    }
}

/// Words of a list up to the end of its last item.
pub fn list_words(p: &Problem, words: &[i32]) -> usize {
    8 + 4 * p.sequences + 12 * words[0] as usize
}

fn page_table<'a>(p: &Problem, table: &'a Slice<i32>) -> PageTable<'a, Cuda> {
    Tensor::of(table, [p.slots, p.max_pages])
}

fn lists<'a>(
    p: &Problem,
    slots: &'a Slice<i32>,
    start: &'a Slice<i32>,
    offsets: &'a Slice<i32>,
) -> Rows<'a, Cuda> {
    Rows {
        slots: Tensor::of(slots, [p.sequences]),
        start: Tensor::of(start, [p.sequences]),
        row_offsets: Tensor::of(offsets, [p.sequences + 1]),
    }
}

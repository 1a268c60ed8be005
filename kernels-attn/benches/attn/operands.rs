//! Operands of many calls: pools and rows of their own, one launch's lists for all.

use kernels_attn::{AppendArgs, AppendProblem, Args, AttnBackend, Problem, WorkArgs};
use kernels_core::{Backend, KvPool, KvPoolMut, KvStrides, Result, Rows, Tensor, TensorMut, bf16, rope};
use kernels_testkit::rng::Rng;

pub(crate) const ROTARY: usize = 64;

/// `sequences` sequences of `rows` rows each, which end at position `context`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) sequences: usize,
    pub(crate) rows: usize,
    pub(crate) context: usize,
}

/// The problem of an append into the same pool.
pub(crate) fn append_problem(p: &Problem) -> AppendProblem {
    AppendProblem {
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
    }
}

pub(crate) struct Operands<B: Backend> {
    problem: Problem,
    copies: usize,
    /// `[copies, pages, 2, kv_heads, page_rows, head_dim]`, and maybe more.
    pool: B::Memory<bf16>,
    /// `[copies, rows, q_heads, head_dim]`
    q: B::Memory<bf16>,
    /// `[copies, rows, 2 * kv_heads, head_dim]`
    kv: B::Memory<bf16>,
    /// `[copies, rows, q_heads, head_dim]`
    out: B::Memory<bf16>,
    norm: B::Memory<bf16>,
    rope: B::Memory<f32>,
    table: B::Memory<i32>,
    slots: B::Memory<i32>,
    start: B::Memory<i32>,
    offsets: B::Memory<i32>,
    faults: B::Memory<u64>,
    work: B::Memory<i32>,
    workspace: B::Memory<u8>,
    /// Words and bytes of the two; memory on a GPU is never empty.
    sizes: (usize, usize),
}

/// Random numbers: a few hundred thousand, repeated. The time depends on their not being zero, not on more.
fn filled<B: Backend>(queue: &B::Queue, len: usize) -> B::Memory<bf16> {
    let mut memory = B::zeros(queue, len).expect("the bench fits into memory");
    let pattern: Vec<bf16> = Rng::new(1).normals((1 << 18).min(len.max(1)), 1.0);
    for at in (0..len).step_by(pattern.len()) {
        let part = &pattern[..pattern.len().min(len - at)];
        B::write(queue, &mut memory, at, part).expect("the part lies inside");
    }
    B::synchronize(queue).expect("the device works");
    memory
}

impl<B: AttnBackend> Operands<B> {
    /// `copies` sets, with the pools in `pool`, which [`Operands::into_pool`] gives back; room for a list of so
    /// many words and a workspace of so many bytes.
    pub(crate) fn new(
        queue: &B::Queue,
        problem: Problem,
        shape: Shape,
        copies: usize,
        sizes: (usize, usize),
        pool: Option<B::Memory<bf16>>,
    ) -> Self {
        let p = problem;
        let len = copies * pool_len(&p);
        // The old one goes before the new one comes: both may not fit.
        let pool = pool.filter(|pool| B::len(pool) >= len).unwrap_or_else(|| filled::<B>(queue, len));
        let integers = |values: Vec<i32>| B::upload(queue, &values).expect("a few numbers");
        let pages = Rng::new(2).permutation(p.pages);
        let q = copies * p.rows * p.q_heads * p.head_dim;
        Operands {
            problem,
            copies,
            pool,
            q: filled::<B>(queue, q),
            kv: filled::<B>(queue, copies * p.rows * 2 * p.kv_heads * p.head_dim),
            out: B::zeros(queue, q).expect("the bench fits into memory"),
            norm: filled::<B>(queue, p.head_dim),
            rope: B::upload(queue, &rope::table(1e7, ROTARY, p.positions())).expect("it fits"),
            table: integers(pages.into_iter().map(|page| page as i32).collect()),
            slots: integers((0..p.sequences as i32).collect()),
            start: integers(vec![(shape.context - shape.rows) as i32; p.sequences]),
            offsets: integers((0..=p.sequences).map(|i| (i * shape.rows) as i32).collect()),
            faults: B::zeros(queue, p.slots + 1).expect("a few numbers"),
            work: B::zeros(queue, sizes.0).expect("it fits"),
            workspace: B::zeros(queue, sizes.1).expect("it fits"),
            sizes,
        }
    }

    /// The pools, for other operands.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "the CPU's are small"))]
    pub(crate) fn into_pool(self) -> B::Memory<bf16> {
        self.pool
    }

    /// Lends the operands of a list.
    pub(crate) fn list(&mut self, run: impl FnOnce(WorkArgs<'_, B>) -> Result<()>) -> Result<()> {
        let (p, (words, _)) = (&self.problem, self.sizes);
        run(WorkArgs {
            work: TensorMut::of(&mut self.work, [words]),
            faults: TensorMut::of(&mut self.faults, [p.slots + 1]),
            page_table: Tensor::of(&self.table, [p.slots, p.max_pages]),
            rows: lists::<B>(p, &self.slots, &self.start, &self.offsets),
        })
    }

    /// Lends what attention number `call` works on.
    pub(crate) fn attend(&mut self, call: usize, run: impl FnOnce(Args<'_, B>) -> Result<()>) -> Result<()> {
        let (p, copy) = (&self.problem, call % self.copies);
        let part = |len: usize| copy * len..(copy + 1) * len;
        let (dims, width) = ([p.rows, p.q_heads, p.head_dim], p.rows * p.q_heads * p.head_dim);
        let (words, bytes) = self.sizes;
        let mut out = B::view_mut(&mut self.out);
        let queries = || B::slice(&B::view(&self.q), part(width));
        run(Args {
            out: TensorMut::new(B::slice_mut(&mut out, part(width)), dims),
            faults: TensorMut::of(&mut self.faults, [p.slots + 1]),
            q: Tensor::new(queries(), dims),
            gate: Some(Tensor::new(queries(), dims)),
            pool: KvPool::packed(
                B::slice(&B::view(&self.pool), part(pool_len(p))),
                p.pages,
                p.kv_heads,
                p.page_rows,
                p.head_dim,
            ),
            page_table: Tensor::of(&self.table, [p.slots, p.max_pages]),
            rows: lists::<B>(p, &self.slots, &self.start, &self.offsets),
            work: (words > 0).then(|| Tensor::of(&self.work, [words])),
            workspace: (bytes > 0).then(|| TensorMut::of(&mut self.workspace, [bytes])),
        })
    }

    /// Lends what append number `call` works on.
    pub(crate) fn append(
        &mut self,
        call: usize,
        run: impl FnOnce(AppendArgs<'_, B>) -> Result<()>,
    ) -> Result<()> {
        let (p, copy, d) = (&self.problem, call % self.copies, self.problem.head_dim);
        let part = |len: usize| copy * len..(copy + 1) * len;
        let (q, kv) = (p.rows * p.q_heads * d, p.rows * 2 * p.kv_heads * d);
        let (mut out, mut pool) = (B::view_mut(&mut self.out), B::view_mut(&mut self.pool));
        let raw = Tensor::<B, bf16, 2>::new(B::slice(&B::view(&self.kv), part(kv)), [p.rows, kv / p.rows]);
        let head = p.page_rows * d;
        let strides = KvStrides { page: 2 * p.kv_heads * head, kv: p.kv_heads * head, head, row: d };
        run(AppendArgs {
            q_out: TensorMut::new(B::slice_mut(&mut out, part(q)), [p.rows, p.q_heads, d]),
            pool: KvPoolMut {
                data: B::slice_mut(&mut pool, part(pool_len(p))),
                pages: p.pages,
                kv_heads: p.kv_heads,
                page_rows: p.page_rows,
                head_dim: d,
                strides,
            },
            faults: TensorMut::of(&mut self.faults, [p.slots + 1]),
            q: Tensor::new(B::slice(&B::view(&self.q), part(q)), [p.rows, p.q_heads, d]),
            k: raw.columns(0..p.kv_heads * d).heads(p.kv_heads),
            v: raw.columns(p.kv_heads * d..2 * p.kv_heads * d).heads(p.kv_heads),
            q_norm: Tensor::of(&self.norm, [d]),
            k_norm: Tensor::of(&self.norm, [d]),
            rope: Tensor::of(&self.rope, [p.positions(), ROTARY]),
            page_table: Tensor::of(&self.table, [p.slots, p.max_pages]),
            rows: lists::<B>(p, &self.slots, &self.start, &self.offsets),
        })
    }

    /// Whether a call found its numbers wrong: it would have been fast, and have done nothing.
    pub(crate) fn faulted(&self, queue: &B::Queue) -> bool {
        let words = B::read(queue, &self.faults, 0..self.problem.slots + 1).expect("the device works");
        words.iter().any(|word| *word != 0)
    }
}

/// Elements of one pool.
pub(crate) fn pool_len(p: &Problem) -> usize {
    p.pages * 2 * p.kv_heads * p.page_rows * p.head_dim
}

fn lists<'a, B: Backend>(
    p: &Problem,
    slots: &'a B::Memory<i32>,
    start: &'a B::Memory<i32>,
    offsets: &'a B::Memory<i32>,
) -> Rows<'a, B> {
    Rows {
        slots: Tensor::of(slots, [p.sequences]),
        start: Tensor::of(start, [p.sequences]),
        row_offsets: Tensor::of(offsets, [p.sequences + 1]),
    }
}

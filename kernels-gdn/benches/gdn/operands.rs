//! Operands of many calls, cut from a few large buffers that all benches share.

use crate::rounds::Rounds;
use kernels_core::{Activation, Backend, Element, Rows, Tensor, TensorMut, bf16};
use kernels_gdn::{Args, GdnBackend, Problem};
use kernels_testkit::rng::Rng;

/// Gigabytes take longer to fill than a bench takes to run, so they are filled once and grow if they must.
pub(crate) struct Pool<B: Backend> {
    state: B::Memory<f32>,
    journal: B::Memory<bf16>,
    /// The convolution's output.
    pub(crate) mixed: B::Memory<bf16>,
    gates: B::Memory<bf16>,
    pub(crate) out: B::Memory<bf16>,
}

impl<B: Backend> Pool<B> {
    pub(crate) fn new(queue: &B::Queue) -> Self {
        let empty = || B::zeros(queue, 0).expect("nothing fits");
        Pool {
            state: B::zeros(queue, 0).expect("nothing fits"),
            journal: empty(),
            mixed: empty(),
            gates: empty(),
            out: empty(),
        }
    }

    fn reserve(&mut self, queue: &B::Queue, p: &Problem, copies: usize) {
        grow::<B, f32>(queue, &mut self.state, copies * state_len(p));
        grow::<B, bf16>(queue, &mut self.journal, copies * journal_len(p));
        grow::<B, bf16>(queue, &mut self.mixed, copies * p.rows * mixed_width(p));
        grow::<B, bf16>(queue, &mut self.gates, copies * p.rows * 2 * p.v_heads);
        grow::<B, bf16>(queue, &mut self.out, copies * out_len(p));
    }
}

/// Makes `memory` hold at least `len` random numbers.
pub(crate) fn grow<B: Backend, T: Activation + Element>(
    queue: &B::Queue,
    memory: &mut B::Memory<T>,
    len: usize,
) {
    if B::len(memory) >= len {
        return;
    }
    // The old one goes first: both together might not fit.
    *memory = B::zeros(queue, 0).expect("nothing fits");
    *memory = B::zeros(queue, len).expect("the bench fits into memory");
    // A few hundred thousand numbers, repeated: the time depends on their not being zero, not on more.
    let pattern: Vec<T> = Rng::new(1).normals(1 << 18, 1.0);
    for at in (0..len).step_by(pattern.len()) {
        let part = &pattern[..pattern.len().min(len - at)];
        B::write(queue, memory, at, part).expect("the part lies inside");
    }
    B::synchronize(queue).expect("the device works");
}

fn state_len(p: &Problem) -> usize {
    p.slots * p.state_len()
}

fn journal_len(p: &Problem) -> usize {
    p.slots * p.journal_rows * p.journal_width()
}

fn out_len(p: &Problem) -> usize {
    p.rows * p.v_heads * p.v_dim
}

/// A row of the convolution's output: q, k and v side by side.
fn mixed_width(p: &Problem) -> usize {
    2 * p.k_heads * p.k_dim + p.v_heads * p.v_dim
}

/// What belongs to one bench alone: its counters.
pub(crate) struct Operands<B: Backend> {
    problem: Problem,
    /// Sets of states, journals, inputs and outputs.
    pub(crate) copies: usize,
    pub(crate) rounds: usize,
    heads: B::Memory<f32>,
    faults: B::Memory<u64>,
    pub(crate) slots: B::Memory<i32>,
    pub(crate) start: B::Memory<i32>,
    folded: B::Memory<i32>,
    pub(crate) offsets: B::Memory<i32>,
}

impl<B: GdnBackend> Operands<B> {
    pub(crate) fn new(
        queue: &B::Queue,
        pool: &mut Pool<B>,
        problem: Problem,
        copies: usize,
        rounds: &Rounds,
    ) -> Self {
        let p = problem;
        pool.reserve(queue, &p, copies);
        let each = p.rows / p.sequences;
        let order = Rng::new(2).permutation(p.slots);
        let slots: Vec<i32> = order.iter().map(|slot| *slot as i32).collect();
        let offsets: Vec<i32> = (0..=p.sequences).map(|i| (i * each) as i32).collect();
        // The counters of a round come by sequence, `folded` goes by slot.
        let mut folded = vec![0; rounds.folded.len()];
        for (from, to) in rounds.folded.chunks(p.sequences).zip(folded.chunks_mut(p.slots)) {
            order.iter().zip(from).for_each(|(slot, folded)| to[*slot] = *folded);
        }
        let numbers = |values: &[i32]| B::upload(queue, values).expect("the bench fits into memory");
        Operands {
            problem,
            copies,
            rounds: rounds.len(),
            heads: B::upload(queue, &Rng::new(3).normals::<f32>(2 * p.v_heads, 0.5)).expect("a few numbers"),
            faults: B::zeros(queue, p.slots + 1).expect("a few numbers"),
            slots: numbers(&slots),
            start: numbers(&rounds.start),
            folded: numbers(&folded),
            offsets: numbers(&offsets),
        }
    }

    /// Lends `body` what call number `call` works on.
    pub(crate) fn with<R>(
        &mut self,
        pool: &mut Pool<B>,
        call: usize,
        body: impl FnOnce(Args<'_, B>) -> R,
    ) -> R {
        let p = &self.problem;
        let (copy, round) = (call % self.copies, call % self.rounds);
        let part = |len: usize| copy * len..(copy + 1) * len;
        let (keys, heads, mixed_len) = (p.k_heads * p.k_dim, p.v_heads, p.rows * mixed_width(p));
        let mut outs = B::view_mut(&mut pool.out);
        let mut states = B::view_mut(&mut pool.state);
        let mut journals = B::view_mut(&mut pool.journal);
        let mixed = B::slice(&B::view(&pool.mixed), part(mixed_len));
        let mixed = Tensor::<B, bf16, 2>::new(mixed, [p.rows, mixed_width(p)]);
        let gates = B::slice(&B::view(&pool.gates), part(p.rows * 2 * heads));
        let gates = Tensor::<B, bf16, 2>::new(gates, [p.rows, 2 * heads]);
        let head = |range| Tensor::new(B::slice(&B::view(&self.heads), range), [heads]);
        let row = |len: usize| round * len..(round + 1) * len;
        body(Args {
            out: TensorMut::new(B::slice_mut(&mut outs, part(out_len(p))), [p.rows, heads, p.v_dim]),
            state: TensorMut::new(
                B::slice_mut(&mut states, part(state_len(p))),
                [p.slots, heads, p.v_dim, p.k_dim],
            ),
            journal: TensorMut::new(
                B::slice_mut(&mut journals, part(journal_len(p))),
                [p.slots, p.journal_rows, p.journal_width()],
            ),
            faults: TensorMut::of(&mut self.faults, [p.slots + 1]),
            folded: Tensor::new(B::slice(&B::view(&self.folded), row(p.slots)), [p.slots]),
            q: mixed.columns(0..keys).heads(p.k_heads),
            k: mixed.columns(keys..2 * keys).heads(p.k_heads),
            v: mixed.columns(2 * keys..mixed_width(p)).heads(heads),
            a: gates.columns(0..heads),
            b: gates.columns(heads..2 * heads),
            a_log: head(0..heads),
            dt_bias: head(heads..2 * heads),
            rows: Rows {
                slots: Tensor::of(&self.slots, [p.sequences]),
                start: Tensor::new(B::slice(&B::view(&self.start), row(p.sequences)), [p.sequences]),
                row_offsets: Tensor::of(&self.offsets, [p.sequences + 1]),
            },
        })
    }

    /// Whether a call found its counters wrong: it would have been fast, and have done nothing.
    pub(crate) fn faulted(&self, queue: &B::Queue) -> bool {
        let words = B::read(queue, &self.faults, 0..self.problem.slots + 1).expect("the device works");
        words.iter().any(|word| *word != 0)
    }
}

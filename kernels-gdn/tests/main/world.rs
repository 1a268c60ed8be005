//! Slots, streams of tokens and launches, as an engine would hold them.

use kernels_core::{Activation, Cpu, DeviceInfo, PAD, Rows, Tensor, TensorMut, slots};
use kernels_gdn::{Args, Fold, FoldArgs, Prefill, Problem, Verify};
use kernels_testkit::rng::Rng;
use std::ops::Range;

/// Runs a test's body while no planted fault is active: faults reach every thread of the process.
pub(crate) fn undisturbed<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(feature = "planted-faults")]
    return kernels_core::fault::with("", body);
    #[cfg(not(feature = "planted-faults"))]
    body()
}

/// Sizes for the tests: heads that share keys, a `k_dim` that fills no whole set of accumulators, a
/// `v_dim` that fills no whole tile.
pub(crate) const SMALL: Problem = Problem {
    sequences: 1,
    rows: 1,
    max_rows: 4,
    k_heads: 2,
    v_heads: 4,
    k_dim: 40,
    v_dim: 12,
    slots: 7,
    journal_rows: 8,
    flush_after: 0,
};

/// `problem` with another flush policy and the journal that it needs at least.
pub(crate) fn flushing(problem: Problem, flush_after: usize) -> Problem {
    Problem { flush_after, journal_rows: slots::journal_rows(flush_after, problem.max_rows), ..problem }
}

/// The raw inputs of consecutive tokens.
#[derive(Clone, Debug)]
pub(crate) struct Stream<A> {
    pub(crate) mixed: Vec<A>, // [tokens, q | k | v]: as the convolution leaves them
    pub(crate) a: Vec<A>,     // [tokens, v_heads]
    pub(crate) b: Vec<A>,     // [tokens, v_heads]
}

/// Elements of a row of [`Stream::mixed`].
pub(crate) fn mixed_width(p: &Problem) -> usize {
    2 * p.k_heads * p.k_dim + p.v_heads * p.v_dim
}

impl<A: Activation> Stream<A> {
    pub(crate) fn random(p: &Problem, tokens: usize, rng: &mut Rng) -> Self {
        Stream {
            mixed: rng.normals(tokens * mixed_width(p), 1.0),
            a: rng.normals(tokens * p.v_heads, 1.5),
            b: rng.normals(tokens * p.v_heads, 1.5),
        }
    }

    pub(crate) fn empty() -> Self {
        Stream { mixed: vec![], a: vec![], b: vec![] }
    }

    pub(crate) fn part(&self, p: &Problem, tokens: Range<usize>) -> Self {
        let (width, heads) = (mixed_width(p), p.v_heads);
        Stream {
            mixed: self.mixed[tokens.start * width..tokens.end * width].to_vec(),
            a: self.a[tokens.start * heads..tokens.end * heads].to_vec(),
            b: self.b[tokens.start * heads..tokens.end * heads].to_vec(),
        }
    }

    pub(crate) fn append(&mut self, more: &Self) {
        self.mixed.extend_from_slice(&more.mixed);
        self.a.extend_from_slice(&more.a);
        self.b.extend_from_slice(&more.b);
    }

    /// A token's journal row, put together from its parts.
    pub(crate) fn journal_row(&self, p: &Problem, token: usize) -> Vec<A> {
        let mixed = &self.mixed[token * mixed_width(p)..][..mixed_width(p)];
        let part = |x: &[A]| x[token * p.v_heads..][..p.v_heads].to_vec();
        [mixed[p.k_heads * p.k_dim..].to_vec(), part(&self.a), part(&self.b)].concat()
    }
}

/// The rows of a launch.
#[derive(Clone, Debug)]
pub(crate) struct Launch<A> {
    pub(crate) slots: Vec<i32>,
    pub(crate) start: Vec<i32>,
    pub(crate) offsets: Vec<i32>,
    pub(crate) rows: Stream<A>,
}

impl<A: Activation> Launch<A> {
    pub(crate) fn new() -> Self {
        Launch { slots: vec![], start: vec![], offsets: vec![0], rows: Stream::empty() }
    }

    pub(crate) fn one(p: &Problem, slot: usize, start: usize, rows: Stream<A>) -> Self {
        let mut launch = Launch::new();
        launch.push(p, slot as i32, start, &rows);
        launch
    }

    pub(crate) fn push(&mut self, p: &Problem, slot: i32, start: usize, rows: &Stream<A>) {
        self.rows.append(rows);
        self.slots.push(slot);
        self.start.push(start as i32);
        self.offsets.push(self.count(p) as i32);
    }

    /// A skipped sequence with `rows` rows of NaN.
    pub(crate) fn push_padding(&mut self, p: &Problem, rows: usize) {
        self.push(p, PAD, 0, &poison(p, rows));
    }

    /// Rows of NaN that belong to no sequence.
    pub(crate) fn add_unowned(&mut self, p: &Problem, rows: usize) {
        self.rows.append(&poison(p, rows));
    }

    /// Rows, unowned ones included.
    pub(crate) fn count(&self, p: &Problem) -> usize {
        self.rows.a.len() / p.v_heads
    }
}

fn poison<A: Activation>(p: &Problem, rows: usize) -> Stream<A> {
    let nan = A::from_f32(f32::NAN);
    Stream {
        mixed: vec![nan; rows * mixed_width(p)],
        a: vec![nan; rows * p.v_heads],
        b: vec![nan; rows * p.v_heads],
    }
}

/// The memory of all slots, poisoned where nothing was written.
#[derive(Clone, Debug)]
pub(crate) struct World<A> {
    pub(crate) problem: Problem,
    pub(crate) state: Vec<f32>,
    pub(crate) journal: Vec<A>,
    pub(crate) faults: Vec<u64>,
    pub(crate) folded: Vec<i32>,
    pub(crate) committed: Vec<i32>,
    pub(crate) a_log: Vec<f32>,
    pub(crate) dt_bias: Vec<f32>,
}

impl<A: Activation> World<A> {
    /// Heads that forget slowly and heads that forget fast.
    pub(crate) fn new(problem: Problem) -> Self {
        let heads = problem.v_heads;
        World {
            state: vec![f32::NAN; problem.slots * problem.state_len()],
            journal: vec![
                A::from_f32(f32::NAN);
                problem.slots * problem.journal_rows * problem.journal_width()
            ],
            faults: vec![0; problem.slots + 1],
            folded: vec![0; problem.slots],
            committed: vec![0; problem.slots],
            a_log: (0..heads).map(|h| h as f32 * 1.3 - 2.0).collect(),
            dt_bias: (0..heads).map(|h| 0.5 - h as f32 * 0.9).collect(),
            problem,
        }
    }

    fn sized(&self, launch: &Launch<A>) -> Problem {
        let rows = launch.count(&self.problem);
        Problem { sequences: launch.slots.len(), rows, ..self.problem }
    }

    /// Outputs `[rows, v_heads * v_dim]`; the counters stay as they are.
    pub(crate) fn verify(&mut self, launch: &Launch<A>) -> Vec<A> {
        let op = Verify::plan(self.sized(launch), &DeviceInfo::cpu()).unwrap();
        self.run(op.problem(), launch, |args| op.run::<Cpu, A>(&(), args).unwrap())
    }

    /// The same for a prefill; `max_rows` is what the launch needs.
    pub(crate) fn prefill(&mut self, launch: &Launch<A>) -> Vec<A> {
        let problem = self.sized(launch);
        let op = Prefill::plan(Problem { max_rows: problem.rows, ..problem }, &DeviceInfo::cpu()).unwrap();
        self.run(op.problem(), launch, |args| op.run::<Cpu, A>(&(), args).unwrap())
    }

    pub(crate) fn run(
        &mut self,
        p: &Problem,
        launch: &Launch<A>,
        run: impl FnOnce(Args<'_, Cpu, A>),
    ) -> Vec<A> {
        let mut out = vec![A::from_f32(f32::NAN); p.rows * p.v_heads * p.v_dim];
        let mixed = Tensor::<Cpu, A, 2>::new(&launch.rows.mixed[..], [p.rows, mixed_width(p)]);
        let keys = p.k_heads * p.k_dim;
        run(Args {
            out: TensorMut::new(&mut out[..], [p.rows, p.v_heads, p.v_dim]),
            state: TensorMut::new(&mut self.state[..], [p.slots, p.v_heads, p.v_dim, p.k_dim]),
            journal: TensorMut::new(&mut self.journal[..], [p.slots, p.journal_rows, p.journal_width()]),
            faults: TensorMut::new(&mut self.faults[..], [p.slots + 1]),
            folded: Tensor::new(&self.folded[..], [p.slots]),
            q: mixed.columns(0..keys).heads(p.k_heads),
            k: mixed.columns(keys..2 * keys).heads(p.k_heads),
            v: mixed.columns(2 * keys..mixed_width(p)).heads(p.v_heads),
            a: Tensor::new(&launch.rows.a[..], [p.rows, p.v_heads]),
            b: Tensor::new(&launch.rows.b[..], [p.rows, p.v_heads]),
            a_log: Tensor::new(&self.a_log[..], [p.v_heads]),
            dt_bias: Tensor::new(&self.dt_bias[..], [p.v_heads]),
            rows: Rows {
                slots: Tensor::new(&launch.slots[..], [launch.slots.len()]),
                start: Tensor::new(&launch.start[..], [launch.slots.len()]),
                row_offsets: Tensor::new(&launch.offsets[..], [launch.slots.len() + 1]),
            },
        });
        out
    }

    /// Folds the given slots and moves their counters.
    pub(crate) fn fold(&mut self, slots: &[i32]) {
        let p = Problem { sequences: slots.len(), ..self.problem };
        let op = Fold::plan(p, &DeviceInfo::cpu()).unwrap();
        op.run::<Cpu, A>(
            &(),
            FoldArgs {
                state: TensorMut::new(&mut self.state[..], [p.slots, p.v_heads, p.v_dim, p.k_dim]),
                journal: TensorMut::new(&mut self.journal[..], [p.slots, p.journal_rows, p.journal_width()]),
                faults: TensorMut::new(&mut self.faults[..], [p.slots + 1]),
                folded: Tensor::new(&self.folded[..], [p.slots]),
                a_log: Tensor::new(&self.a_log[..], [p.v_heads]),
                dt_bias: Tensor::new(&self.dt_bias[..], [p.v_heads]),
                slots: Tensor::new(slots, [slots.len()]),
                committed: Tensor::new(&self.committed[..], [p.slots]),
            },
        )
        .unwrap();
        for &slot in slots {
            if let Ok(slot) = usize::try_from(slot) {
                self.folded[slot] = self.committed[slot];
            }
        }
    }

    /// The bookkeeping after a verification: `accepted` rows of the slot are kept.
    pub(crate) fn advance(&mut self, slot: usize, accepted: usize) {
        let pending = (self.committed[slot] - self.folded[slot]) as usize;
        if slots::flushes(pending, self.problem.flush_after) {
            self.folded[slot] = self.committed[slot];
        }
        self.committed[slot] += accepted as i32;
    }

    /// The bookkeeping after a prefill.
    pub(crate) fn advance_prefilled(&mut self, slot: usize, rows: usize) {
        self.committed[slot] += rows as i32;
        self.folded[slot] = self.committed[slot];
    }

    pub(crate) fn state_of(&self, slot: usize) -> &[f32] {
        &self.state[slot * self.problem.state_len()..][..self.problem.state_len()]
    }

    pub(crate) fn journal_row(&self, slot: usize, position: usize) -> &[A] {
        let p = &self.problem;
        let row = slot * p.journal_rows + position % p.journal_rows;
        &self.journal[row * p.journal_width()..][..p.journal_width()]
    }
}

/// What plain decoding gives: the yardstick of every bit test.
pub(crate) struct Decoded<A> {
    pub(crate) out: Vec<A>,     // [tokens, v_heads * v_dim]
    pub(crate) state: Vec<f32>, // after all tokens
}

/// One row per launch, one sequence, folding whatever is pending in every round.
pub(crate) fn decode<A: Activation>(p: &Problem, stream: &Stream<A>) -> Decoded<A> {
    let p = flushing(Problem { slots: 1, max_rows: 1, ..*p }, 0);
    let mut world = World::new(p);
    let mut out = vec![];
    for t in 0..stream.a.len() / p.v_heads {
        out.extend(world.verify(&Launch::one(&p, 0, t, stream.part(&p, t..t + 1))));
        world.advance(0, 1);
    }
    world.fold(&[0]);
    assert_eq!(world.faults, [0, 0]);
    Decoded { out, state: world.state }
}

/// Equality of bytes as a result, so that a bite check can expect it to fail.
pub(crate) fn same<A: kernels_core::Element>(
    what: impl std::fmt::Display,
    got: &[A],
    want: &[A],
) -> Result<(), String> {
    match kernels_testkit::compare::first_difference(got, want) {
        None => Ok(()),
        Some(i) => Err(format!("{what}: element {i} is {:?} instead of {:?}", got.get(i), want.get(i))),
    }
}

//! The memory of all slots on a backend, with poison wherever nothing may be read and canaries wherever
//! nothing may be written.

use crate::place::{Place, flushing, generic};
use crate::stream::{Launch, Stream, mixed_width};
use kernels_core::{Activation, DeviceInfo, Element, Result, Rows, Tensor, TensorMut, slots};
use kernels_gdn::{Args, Fold, FoldArgs, Grid, Prefill, Problem, Verify};
use kernels_testkit::{
    compare::first_difference,
    guard::{Guarded, poison},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Verify,
    Prefill,
}

/// Elements from one row of a memory to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Strides {
    state: usize,
    journal: usize,
    out: usize,
    mixed: usize,
    gates: usize,
}

impl Strides {
    fn packed(p: &Problem) -> Self {
        Strides {
            state: p.state_len(),
            journal: p.journal_width(),
            out: p.v_heads * p.v_dim,
            mixed: mixed_width(p),
            gates: p.v_heads,
        }
    }

    /// With poison between the rows. CUDA reads vectors, so rows must begin at multiples of 16 bytes there,
    /// but those of `out`, `a` and `b`.
    fn spread<B: Place>(p: &Problem) -> Self {
        let vectors = |width: usize| if B::GENERAL { width + 5 } else { width.next_multiple_of(8) + 8 };
        let Strides { state, journal, out, mixed, gates } = Self::packed(p);
        Strides {
            state: vectors(state),
            journal: vectors(journal),
            out: out + 3,
            mixed: vectors(mixed),
            gates: gates + 1,
        }
    }
}

/// The operands that change from launch to launch.
struct Staged<B: Place, A: Activation> {
    sequences: usize,
    rows: usize,
    out: Guarded<B, A>,
    mixed: Guarded<B, A>,
    a: Guarded<B, A>,
    b: Guarded<B, A>,
    slots: Guarded<B, i32>,
    start: Guarded<B, i32>,
    offsets: Guarded<B, i32>,
}

impl<B: Place, A: Activation> Staged<B, A> {
    fn new(on: &B::Queue, strides: Strides, sequences: usize, rows: usize) -> Self {
        let poisoned = |stride: usize| Guarded::new(on, &vec![poison::<A>(); rows * stride], poison());
        let integers = |len: usize| Guarded::new(on, &vec![0; len], i32::MIN);
        Staged {
            sequences,
            rows,
            out: poisoned(strides.out),
            mixed: poisoned(strides.mixed),
            a: poisoned(strides.gates),
            b: poisoned(strides.gates),
            slots: integers(sequences),
            start: integers(sequences),
            offsets: integers(sequences + 1),
        }
    }
}

/// The memory of all slots, poisoned where nothing was written, and the counters as the bookkeeping has them.
pub struct World<B: Place, A: Activation> {
    queue: B::Queue,
    device: DeviceInfo,
    pub problem: Problem,
    strides: Strides,
    /// Of the CUDA kernels; `None`: as planned.
    pub grid: Option<Grid>,
    pub overlapping: bool,
    pub folded: Vec<i32>,
    pub committed: Vec<i32>,
    pub a_log: Vec<f32>,
    pub dt_bias: Vec<f32>,
    state: Guarded<B, f32>,
    journal: Guarded<B, A>,
    faults: Guarded<B, u64>,
    folded_there: Guarded<B, i32>,
    committed_there: Guarded<B, i32>,
    a_log_there: Guarded<B, f32>,
    dt_bias_there: Guarded<B, f32>,
    staged: Staged<B, A>,
}

impl<B: Place, A: Activation> World<B, A> {
    /// Heads that forget slowly and heads that forget fast; gaps between all rows.
    pub fn new(on: &B::Queue, problem: Problem) -> Self {
        Self::with_strides(on, problem, Strides::spread::<B>(&problem))
    }

    /// The same without gaps.
    pub fn packed(on: &B::Queue, problem: Problem) -> Self {
        Self::with_strides(on, problem, Strides::packed(&problem))
    }

    fn with_strides(on: &B::Queue, problem: Problem, strides: Strides) -> Self {
        let Problem { slots, v_heads: heads, journal_rows, .. } = problem;
        let integers = || Guarded::new(on, &vec![0; slots], i32::MIN);
        let floats = || Guarded::new(on, &vec![0.0; heads], poison());
        World {
            queue: on.clone(),
            device: B::device(on),
            problem,
            strides,
            grid: None,
            overlapping: false,
            folded: vec![0; slots],
            committed: vec![0; slots],
            a_log: (0..heads).map(|h| (h % 4) as f32 * 1.3 - 2.0).collect(),
            dt_bias: (0..heads).map(|h| 0.5 - (h % 4) as f32 * 0.9).collect(),
            state: Guarded::new(on, &vec![poison(); slots * strides.state], poison()),
            journal: Guarded::new(on, &vec![poison(); slots * journal_rows * strides.journal], poison()),
            faults: Guarded::new(on, &vec![0; slots + 1], u64::MAX),
            folded_there: integers(),
            committed_there: integers(),
            a_log_there: floats(),
            dt_bias_there: floats(),
            staged: Staged::new(on, strides, 1, 1),
        }
    }

    /// A copy in memory of its own.
    pub fn duplicate(&self) -> Self {
        let mut copy = Self::with_strides(&self.queue, self.problem, self.strides);
        (copy.grid, copy.overlapping) = (self.grid, self.overlapping);
        (copy.folded, copy.committed) = (self.folded.clone(), self.committed.clone());
        (copy.a_log, copy.dt_bias) = (self.a_log.clone(), self.dt_bias.clone());
        copy.state.write(&self.queue, 0, &self.state.read(&self.queue));
        copy.journal.write(&self.queue, 0, &self.journal.read(&self.queue));
        copy.faults.write(&self.queue, 0, &self.faults.read(&self.queue));
        copy
    }

    /// Writes a launch's inputs and the counters, and poisons its outputs. Memory is allocated only where the
    /// sizes are not those of the launch before.
    pub fn stage(&mut self, launch: &Launch<A>) {
        let (on, strides) = (&self.queue, self.strides);
        let packed = Strides::packed(&self.problem);
        let (sequences, rows) = (launch.slots.len(), launch.count(&self.problem).max(1));
        if (self.staged.sequences, self.staged.rows) != (sequences, rows) {
            self.staged = Staged::new(on, strides, sequences, rows);
        }
        let staged = &mut self.staged;
        let spread = |to: &mut Guarded<B, A>, data: &[A], width: usize, stride: usize| {
            to.write(on, 0, &with_gaps(data, width, stride));
        };
        spread(&mut staged.mixed, &launch.rows.mixed, packed.mixed, strides.mixed);
        spread(&mut staged.a, &launch.rows.a, packed.gates, strides.gates);
        spread(&mut staged.b, &launch.rows.b, packed.gates, strides.gates);
        staged.out.write(on, 0, &vec![poison(); rows * strides.out]);
        staged.slots.write(on, 0, &launch.slots);
        staged.start.write(on, 0, &launch.start);
        staged.offsets.write(on, 0, &launch.offsets);
        self.stage_counters();
    }

    fn stage_counters(&mut self) {
        self.folded_there.write(&self.queue, 0, &self.folded);
        self.committed_there.write(&self.queue, 0, &self.committed);
        self.a_log_there.write(&self.queue, 0, &self.a_log);
        self.dt_bias_there.write(&self.queue, 0, &self.dt_bias);
    }

    /// The sizes of the staged launch.
    pub fn sized(&self) -> Problem {
        Problem { sequences: self.staged.sequences, rows: self.staged.rows, ..self.problem }
    }

    /// Enqueues the operation on what is staged; `max_rows` of a prefill is what the launch may need.
    pub fn enqueue(&mut self, kind: Kind) -> Result<()> {
        let p = self.sized();
        match kind {
            Kind::Verify => {
                let op = Verify::plan_with(p, &self.device, self.grid)?.overlapping(self.overlapping);
                assert!(self.grid.is_none() || op.grid() == self.grid, "another grid than asked for");
                self.with(|on, args| op.run(on, args))
            }
            Kind::Prefill => {
                let p = Problem { max_rows: p.rows, ..p };
                let op = Prefill::plan_with(p, &self.device, self.generic())?.overlapping(self.overlapping);
                self.with(|on, args| op.run(on, args))
            }
        }
    }

    /// Prefill and fold have generic kernels only.
    fn generic(&self) -> Option<Grid> {
        self.grid.map(generic)
    }

    /// Outputs `[rows, v_heads * v_dim]` of the staged launch; asserts that nothing around them was written.
    pub fn collect(&self) -> Vec<A> {
        let all = self.staged.out.read(&self.queue);
        without_gaps("out", &all, Strides::packed(&self.problem).out, self.strides.out)
    }

    /// The outputs of a launch; the counters stay as they are.
    pub fn run(&mut self, kind: Kind, launch: &Launch<A>) -> Vec<A> {
        self.stage(launch);
        self.enqueue(kind).unwrap();
        let mut out = self.collect();
        out.truncate(launch.count(&self.problem) * self.problem.v_heads * self.problem.v_dim);
        out
    }

    pub fn verify(&mut self, launch: &Launch<A>) -> Vec<A> {
        self.run(Kind::Verify, launch)
    }

    pub fn prefill(&mut self, launch: &Launch<A>) -> Vec<A> {
        self.run(Kind::Prefill, launch)
    }

    /// Lends the operands of the staged launch.
    pub fn with<R>(&mut self, run: impl FnOnce(&B::Queue, Args<'_, B, A>) -> R) -> R {
        let (p, strides, staged) = (self.sized(), self.strides, &mut self.staged);
        let (out_at, state_at) = (staged.out.payload(), self.state.payload());
        let (journal_at, faults_at) = (self.journal.payload(), self.faults.payload());
        let mut out = staged.out.whole_mut();
        let mut state = self.state.whole_mut();
        let mut journal = self.journal.whole_mut();
        let mut faults = self.faults.whole_mut();
        let mixed = Tensor::<B, A, 2>::new(staged.mixed.view(), [p.rows, mixed_width(&p)])
            .with_strides([strides.mixed, 1]);
        let keys = p.k_heads * p.k_dim;
        let args = Args {
            out: TensorMut::new(B::slice_mut(&mut out, out_at), [p.rows, p.v_heads, p.v_dim]).with_strides([
                strides.out,
                p.v_dim,
                1,
            ]),
            state: TensorMut::new(B::slice_mut(&mut state, state_at), [p.slots, p.v_heads, p.v_dim, p.k_dim])
                .with_strides([strides.state, p.v_dim * p.k_dim, p.k_dim, 1]),
            journal: TensorMut::new(
                B::slice_mut(&mut journal, journal_at),
                [p.slots, p.journal_rows, p.journal_width()],
            )
            .with_strides([p.journal_rows * strides.journal, strides.journal, 1]),
            faults: TensorMut::new(B::slice_mut(&mut faults, faults_at), [p.slots + 1]),
            folded: Tensor::new(self.folded_there.view(), [p.slots]),
            q: mixed.columns(0..keys).heads(p.k_heads),
            k: mixed.columns(keys..2 * keys).heads(p.k_heads),
            v: mixed.columns(2 * keys..mixed_width(&p)).heads(p.v_heads),
            a: Tensor::new(staged.a.view(), [p.rows, p.v_heads]).with_strides([strides.gates, 1]),
            b: Tensor::new(staged.b.view(), [p.rows, p.v_heads]).with_strides([strides.gates, 1]),
            a_log: Tensor::new(self.a_log_there.view(), [p.v_heads]),
            dt_bias: Tensor::new(self.dt_bias_there.view(), [p.v_heads]),
            rows: Rows {
                slots: Tensor::new(staged.slots.view(), [p.sequences]),
                start: Tensor::new(staged.start.view(), [p.sequences]),
                row_offsets: Tensor::new(staged.offsets.view(), [p.sequences + 1]),
            },
        };
        run(&self.queue, args)
    }

    /// Folds the given slots and moves their counters.
    pub fn fold(&mut self, slots: &[i32]) {
        self.fold_only(slots);
        for &slot in slots {
            if let Ok(slot) = usize::try_from(slot) {
                self.folded[slot] = self.committed[slot];
            }
        }
    }

    /// The same without the bookkeeping.
    pub fn fold_only(&mut self, slots: &[i32]) {
        let p = Problem { sequences: slots.len(), ..self.problem };
        let op = Fold::plan_with(p, &self.device, self.generic()).unwrap().overlapping(self.overlapping);
        self.with_fold(slots, |on, args| op.run(on, args)).unwrap();
    }

    /// Lends the operands of a fold.
    pub fn with_fold<R>(&mut self, slots: &[i32], run: impl FnOnce(&B::Queue, FoldArgs<'_, B, A>) -> R) -> R {
        self.stage_counters();
        let (p, strides) = (self.problem, self.strides);
        let there = Guarded::<B, i32>::new(&self.queue, slots, i32::MIN);
        let (state_at, journal_at) = (self.state.payload(), self.journal.payload());
        let faults_at = self.faults.payload();
        let mut state = self.state.whole_mut();
        let mut journal = self.journal.whole_mut();
        let mut faults = self.faults.whole_mut();
        let args = FoldArgs {
            state: TensorMut::new(B::slice_mut(&mut state, state_at), [p.slots, p.v_heads, p.v_dim, p.k_dim])
                .with_strides([strides.state, p.v_dim * p.k_dim, p.k_dim, 1]),
            journal: TensorMut::new(
                B::slice_mut(&mut journal, journal_at),
                [p.slots, p.journal_rows, p.journal_width()],
            )
            .with_strides([p.journal_rows * strides.journal, strides.journal, 1]),
            faults: TensorMut::new(B::slice_mut(&mut faults, faults_at), [p.slots + 1]),
            folded: Tensor::new(self.folded_there.view(), [p.slots]),
            a_log: Tensor::new(self.a_log_there.view(), [p.v_heads]),
            dt_bias: Tensor::new(self.dt_bias_there.view(), [p.v_heads]),
            slots: Tensor::new(there.view(), [slots.len()]),
            committed: Tensor::new(self.committed_there.view(), [p.slots]),
        };
        let result = run(&self.queue, args);
        // `there` must outlive what was enqueued.
        B::synchronize(&self.queue).unwrap();
        result
    }

    /// The bookkeeping after a verification: `accepted` rows of the slot are kept.
    pub fn advance(&mut self, slot: usize, accepted: usize) {
        let pending = (self.committed[slot] - self.folded[slot]) as usize;
        if slots::flushes(pending, self.problem.flush_after) {
            self.folded[slot] = self.committed[slot];
        }
        self.committed[slot] += accepted as i32;
    }

    /// The bookkeeping after a prefill.
    pub fn advance_prefilled(&mut self, slot: usize, rows: usize) {
        self.committed[slot] += rows as i32;
        self.folded[slot] = self.committed[slot];
    }

    /// `[slots, state_len]`; asserts that nothing around the states was written.
    pub fn state(&self) -> Vec<f32> {
        let all = self.state.read(&self.queue);
        without_gaps("state", &all, self.problem.state_len(), self.strides.state)
    }

    pub fn state_of(&self, slot: usize) -> Vec<f32> {
        self.state()[slot * self.problem.state_len()..][..self.problem.state_len()].to_vec()
    }

    pub fn set_state_of(&mut self, slot: usize, state: &[f32]) {
        assert_eq!(state.len(), self.problem.state_len());
        self.state.write(&self.queue, slot * self.strides.state, state);
    }

    /// `[slots, journal_rows, journal_width]`; asserts that nothing around the rows was written.
    pub fn journal(&self) -> Vec<A> {
        let all = self.journal.read(&self.queue);
        without_gaps("journal", &all, self.problem.journal_width(), self.strides.journal)
    }

    pub fn set_journal(&mut self, journal: &[A]) {
        let spread = with_gaps(journal, self.problem.journal_width(), self.strides.journal);
        self.journal.write(&self.queue, 0, &spread);
    }

    pub fn faults(&self) -> Vec<u64> {
        self.faults.read(&self.queue)
    }
}

/// The row of a position in what [`World::journal`] gives.
pub fn journal_row<'a, A>(p: &Problem, journal: &'a [A], slot: usize, position: usize) -> &'a [A] {
    let row = slot * p.journal_rows + position % p.journal_rows;
    &journal[row * p.journal_width()..][..p.journal_width()]
}

fn with_gaps<A: Activation>(data: &[A], width: usize, stride: usize) -> Vec<A> {
    let mut all = vec![poison(); data.len() / width * stride];
    for (to, from) in all.chunks_exact_mut(stride).zip(data.chunks_exact(width)) {
        to[..width].copy_from_slice(from);
    }
    all
}

fn without_gaps<A: Activation>(what: &str, all: &[A], width: usize, stride: usize) -> Vec<A> {
    let gap = vec![poison::<A>(); stride - width];
    let mut data = Vec::with_capacity(all.len() / stride * width);
    for row in all.chunks_exact(stride) {
        data.extend_from_slice(&row[..width]);
        assert!(
            first_difference(&row[width..], &gap).is_none(),
            "the gap between rows of {what} was written"
        );
    }
    data
}

/// What plain decoding gives: the yardstick of every bit test.
pub struct Decoded<A> {
    pub out: Vec<A>,     // [tokens, v_heads * v_dim]
    pub state: Vec<f32>, // after all tokens
}

/// One row per launch, one sequence, folding whatever is pending in every round.
pub fn decode<B: Place, A: Activation>(on: &B::Queue, p: &Problem, stream: &Stream<A>) -> Decoded<A> {
    let p = flushing(Problem { slots: 1, max_rows: 1, ..*p }, 0);
    let mut world = World::<B, A>::new(on, p);
    let mut out = vec![];
    for t in 0..stream.tokens(&p) {
        out.extend(world.verify(&Launch::one(&p, 0, t, stream.part(&p, t..t + 1))));
        world.advance(0, 1);
    }
    world.fold(&[0]);
    assert_eq!(world.faults(), [0, 0]);
    Decoded { out, state: world.state() }
}

/// Equality of bytes as a result, so that a bite check can expect it to fail.
pub fn same<T: Element>(what: impl std::fmt::Display, got: &[T], want: &[T]) -> Result<(), String> {
    match first_difference(got, want) {
        None => Ok(()),
        Some(i) => Err(format!("{what}: element {i} is {:?} instead of {:?}", got.get(i), want.get(i))),
    }
}

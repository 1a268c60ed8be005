//! Operands of a conv, with poison wherever nothing may be read and canaries wherever nothing may be written.

use kernels_conv::{Args, ConvBackend, Prefill, Problem, Verify};
use kernels_core::{Activation, PAD, Rows, Tensor, TensorMut, slots::Fault};
use kernels_testkit::{
    compare::assert_same_bits,
    guard::{Guarded, poison},
    place,
    rng::Rng,
};

/// Takes every activation type and any number of channels if it is general.
pub trait Place: place::Place + ConvBackend {}
impl<B: place::Place + ConvBackend> Place for B {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Verify,
    Prefill,
}

/// One sequence's new rows.
#[derive(Clone, Debug)]
pub struct Chunk<A> {
    pub slot: i32,
    pub start: usize,
    pub x: Vec<A>,
}

/// Elements of poison between rows: 16 bytes of bf16, so that vectors stay aligned.
const GAP: usize = 8;

pub struct World<B: Place, A: Activation> {
    pub queue: B::Queue,
    pub problem: Problem,
    pub verify: Option<Verify>,
    pub prefill: Prefill,
    weight: Guarded<B, A>,
    bias: Option<Guarded<B, A>>,
    ring: Guarded<B, A>,
    x: Guarded<B, A>,
    out: Guarded<B, A>,
    faults: Guarded<B, u64>,
    slots: Guarded<B, i32>,
    start: Guarded<B, i32>,
    offsets: Guarded<B, i32>,
}

/// The taps and bias that a seed stands for.
pub fn parameters<A: Activation>(problem: &Problem, seed: u64) -> (Vec<A>, Vec<A>) {
    let mut rng = Rng::new(seed);
    (rng.normals(problem.channels * problem.width, 0.5), rng.normals(problem.channels, 0.5))
}

impl<B: Place, A: Activation> World<B, A> {
    pub fn new(queue: &B::Queue, problem: Problem, (weight, bias): &(Vec<A>, Vec<A>)) -> Self {
        let device = B::device(queue);
        let guarded = |data: &[A]| Guarded::new(queue, data, poison::<A>());
        let integers = |n: usize| Guarded::new(queue, &vec![0; n], i32::MIN);
        let row = problem.channels + GAP;
        World {
            queue: queue.clone(),
            problem,
            verify: Verify::plan(problem, &device).ok(),
            prefill: Prefill::plan(problem, &device).unwrap(),
            weight: guarded(weight),
            bias: problem.bias.then(|| guarded(bias)),
            ring: guarded(&vec![poison(); problem.slots * (problem.ring_rows * row + GAP)]),
            x: guarded(&vec![poison(); problem.rows * row]),
            out: guarded(&vec![poison(); problem.rows * row]),
            faults: Guarded::new(queue, &vec![0; problem.slots + 1], u64::MAX),
            slots: integers(problem.sequences),
            start: integers(problem.sequences),
            offsets: integers(problem.sequences + 1),
        }
    }

    /// The same with another grid.
    #[cfg(feature = "cuda")]
    pub fn with_grid(mut self, grid: kernels_conv::Grid) -> Self {
        self.verify = Some(Verify::plan_with(self.problem, &B::device(&self.queue), Some(grid)).unwrap());
        self
    }

    fn row(&self) -> usize {
        self.problem.channels + GAP
    }

    /// Writes this round's device data; sequences that no chunk stands for have no rows.
    pub fn stage(&mut self, chunks: &[Chunk<A>]) {
        assert!(chunks.len() <= self.problem.sequences, "the test's launch holds its chunks");
        let channels = self.problem.channels;
        let (mut slots, mut start) = (vec![PAD; self.problem.sequences], vec![-7; self.problem.sequences]);
        let (mut offsets, mut x) = (vec![0; self.problem.sequences + 1], Vec::new());
        for (i, chunk) in chunks.iter().enumerate() {
            (slots[i], start[i]) = (chunk.slot, chunk.start as i32);
            offsets[i + 1] = offsets[i] + (chunk.x.len() / channels) as i32;
            for row in chunk.x.chunks_exact(channels) {
                // What belongs to a skipped sequence is not to be read: poison.
                let skip = chunk.slot < 0;
                x.extend(row.iter().map(|u| if skip { poison() } else { *u }));
                x.extend([poison::<A>(); GAP]);
            }
        }
        let last = offsets[chunks.len()];
        offsets[chunks.len()..].fill(last);
        self.stage_raw(&slots, &start, &offsets, &x);
    }

    /// Writes device data as it is; `x` with its gaps. What it does not cover is poison.
    pub fn stage_raw(&mut self, slots: &[i32], start: &[i32], offsets: &[i32], x: &[A]) {
        self.slots.write(&self.queue, 0, slots);
        self.start.write(&self.queue, 0, start);
        self.offsets.write(&self.queue, 0, offsets);
        let mut all = x.to_vec();
        all.resize(self.problem.rows * self.row(), poison());
        self.x.write(&self.queue, 0, &all);
        self.out.write(&self.queue, 0, &vec![poison(); self.problem.rows * self.row()]);
    }

    /// Overwrites the offsets that the staged chunks have.
    pub fn set_offsets(&mut self, offsets: &[i32]) {
        self.offsets.write(&self.queue, 0, offsets);
    }

    /// Runs or enqueues the operation on what is staged.
    pub fn enqueue(&mut self, kind: Kind) -> kernels_core::Result<()> {
        let (row, p) = (self.row(), self.problem);
        let ring_slot = p.ring_rows * row + GAP;
        let (out_at, ring_at, faults_at) = (self.out.payload(), self.ring.payload(), self.faults.payload());
        let mut out = self.out.whole_mut();
        let mut ring = self.ring.whole_mut();
        let mut faults = self.faults.whole_mut();
        let args = Args::<B, A> {
            out: TensorMut::new(B::slice_mut(&mut out, out_at), [p.rows, p.channels]).with_strides([row, 1]),
            ring: TensorMut::new(B::slice_mut(&mut ring, ring_at), [p.slots, p.ring_rows, p.channels])
                .with_strides([ring_slot, row, 1]),
            faults: TensorMut::new(B::slice_mut(&mut faults, faults_at), [p.slots + 1]),
            x: Tensor::new(self.x.view(), [p.rows, p.channels]).with_strides([row, 1]),
            weight: Tensor::new(self.weight.view(), [p.channels, p.width]),
            bias: self.bias.as_ref().map(|bias| Tensor::new(bias.view(), [p.channels])),
            rows: Rows {
                slots: Tensor::new(self.slots.view(), [p.sequences]),
                start: Tensor::new(self.start.view(), [p.sequences]),
                row_offsets: Tensor::new(self.offsets.view(), [p.sequences + 1]),
            },
        };
        match kind {
            Kind::Verify => self.verify.as_ref().expect("the ring is long enough").run(&self.queue, args),
            Kind::Prefill => self.prefill.run(&self.queue, args),
        }
    }

    /// All rows of the output; asserts that the gaps between them are untouched.
    pub fn out(&self) -> Vec<Vec<A>> {
        let all = self.out.read(&self.queue);
        all.chunks_exact(self.row()).map(|row| self.without_gap("out", row)).collect()
    }

    /// A slot's ring, row by row; asserts that the gaps are untouched.
    pub fn ring(&self, slot: usize) -> Vec<Vec<A>> {
        let all = self.ring.read(&self.queue);
        let slot_len = self.problem.ring_rows * self.row() + GAP;
        let slot = &all[slot * slot_len..][..slot_len];
        assert_same_bits("gap between slots", &slot[slot_len - GAP..], &[poison(); GAP]);
        slot[..slot_len - GAP].chunks_exact(self.row()).map(|row| self.without_gap("ring", row)).collect()
    }

    fn without_gap(&self, what: &str, row: &[A]) -> Vec<A> {
        let (row, gap) = row.split_at(self.problem.channels);
        assert_same_bits(&format!("gap between rows of {what}"), gap, &[poison(); GAP]);
        row.to_vec()
    }

    pub fn faults(&self) -> Vec<Option<Fault>> {
        self.faults.read(&self.queue).into_iter().map(Fault::decode).collect()
    }

    /// One launch; gives each chunk's outputs, and asserts what every launch must keep: zeros in the rows of
    /// skipped sequences and of nobody, no fault.
    pub fn run(&mut self, kind: Kind, chunks: &[Chunk<A>]) -> Vec<Vec<A>> {
        self.stage(chunks);
        self.enqueue(kind).unwrap();
        self.collect(chunks)
    }

    /// The second half of [`World::run`].
    pub fn collect(&self, chunks: &[Chunk<A>]) -> Vec<Vec<A>> {
        let mut rows = self.out().into_iter();
        let zeros = vec![A::default(); self.problem.channels];
        let outputs = chunks
            .iter()
            .map(|chunk| {
                let count = chunk.x.len() / self.problem.channels;
                let rows: Vec<Vec<A>> = rows.by_ref().take(count).collect();
                if chunk.slot < 0 {
                    rows.iter().for_each(|row| assert_same_bits("row of a skipped sequence", row, &zeros));
                }
                rows.concat()
            })
            .collect();
        rows.for_each(|row| assert_same_bits("row of nobody", &row, &zeros));
        assert!(self.faults().iter().all(Option::is_none), "faults: {:?}", self.faults());
        outputs
    }
}

/// What plain decode makes of a sequence: one row per launch, alone, in the only slot. Outputs and ring.
pub fn decode<B: Place, A: Activation>(
    queue: &B::Queue,
    problem: Problem,
    parameters: &(Vec<A>, Vec<A>),
    start: usize,
    x: &[A],
) -> (Vec<A>, Vec<Vec<A>>) {
    let one = Problem { sequences: 1, rows: 1, max_rows: 1, slots: 1, ..problem };
    let ring_rows = one.ring_rows.max(one.width);
    let mut world = World::<B, A>::new(queue, Problem { ring_rows, ..one }, parameters);
    let rows = x.chunks_exact(problem.channels).enumerate();
    let outputs: Vec<A> = rows
        .flat_map(|(i, x)| {
            let chunk = Chunk { slot: 0, start: start + i, x: x.to_vec() };
            world.run(Kind::Verify, &[chunk]).remove(0)
        })
        .collect();
    (outputs, world.ring(0))
}

/// Some channels: awkward where the backend takes any, a multiple of 8 elsewhere.
pub fn channels<B: Place>(rng: &mut Rng) -> usize {
    let vectors = 1 + rng.below(70);
    if B::GENERAL { 1 + rng.below(150) } else { 8 * vectors }
}

/// A problem with random width, bias, SiLU and channels, for `sequences` sequences of up to `max_rows` rows.
pub fn problem<B: Place>(rng: &mut Rng, sequences: usize, slots: usize, max_rows: usize) -> Problem {
    let width = 2 + rng.below(3);
    Problem {
        sequences,
        rows: sequences * max_rows + 2,
        channels: channels::<B>(rng),
        width,
        slots,
        ring_rows: width - 1 + max_rows + rng.below(3),
        max_rows,
        bias: rng.below(2) == 0,
        silu: rng.below(4) != 0,
    }
}

impl<B: Place, A: Activation> std::fmt::Debug for World<B, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.problem.fmt(f)
    }
}

//! Slots and row lists as plain numbers, and the operations on them on any backend.

use kernels_core::{Backend, Tensor, TensorMut};
use kernels_spec::*;
use kernels_testkit::{place, rng::Rng};

/// What can choose and can say what it runs on.
pub(crate) trait Place: place::Place + SpecBackend {}
impl<B: place::Place + SpecBackend> Place for B {}

/// What a [`SlotTable`] holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) slots: usize,
    pub(crate) positions: usize,
    pub(crate) tokens: Vec<i32>,
    pub(crate) committed: Vec<i32>,
    pub(crate) folded: Vec<i32>,
    pub(crate) drafted: Vec<i32>,
    pub(crate) proposed: Vec<i32>,
    pub(crate) limit: Vec<i32>,
    pub(crate) length_limit: Vec<i32>,
    pub(crate) prompt: Vec<i32>,
    pub(crate) state: Vec<i32>,
    pub(crate) faults: Vec<u64>,
}

impl Numbers {
    /// Sound slots in the middle of their answers, with few different tokens so that things repeat.
    pub(crate) fn random(rng: &mut Rng, slots: usize, positions: usize) -> Numbers {
        let mut n = Numbers {
            slots,
            positions,
            tokens: (0..slots * positions).map(|_| rng.below(6) as i32).collect(),
            committed: vec![],
            folded: vec![],
            drafted: vec![],
            proposed: vec![],
            limit: vec![],
            length_limit: vec![],
            prompt: vec![],
            state: vec![],
            faults: vec![0; slots + 1],
        };
        for _ in 0..slots {
            let committed = rng.below(positions - 8);
            let room = positions - committed;
            n.committed.push(committed as i32);
            n.folded.push((committed - rng.below(4).min(committed)) as i32);
            n.drafted.push((committed + 1 - rng.below(5).min(committed + 1)) as i32);
            n.proposed.push(rng.below(room.min(6)) as i32);
            n.limit.push((committed + rng.below(room.min(9) + 1)) as i32);
            n.length_limit.push((committed + 1 + rng.below(room.min(9))) as i32);
            n.prompt.push((committed as i32 + rng.below(12) as i32 - 8).clamp(0, positions as i32));
            n.state.push(if rng.below(6) == 0 { rng.below(8) as i32 } else { State::Running as i32 });
        }
        n
    }

    /// Puts a number that cannot be into some counters.
    pub(crate) fn spoil(&mut self, rng: &mut Rng) {
        let odd = [i32::MIN, -1, 0, 3, self.positions as i32, self.positions as i32 + 1, i32::MAX];
        for slot in 0..self.slots {
            if rng.below(3) == 0 {
                let value = odd[rng.below(odd.len())];
                let all = [
                    &mut self.committed,
                    &mut self.folded,
                    &mut self.drafted,
                    &mut self.proposed,
                    &mut self.limit,
                    &mut self.length_limit,
                    &mut self.prompt,
                ];
                let which = rng.below(all.len());
                all[which][slot] = value;
            }
            if rng.below(9) == 0 {
                self.faults[slot] = 1 << 56;
            }
        }
    }

    pub(crate) fn upload<B: Backend>(&self, on: &B::Queue) -> SlotTable<B> {
        let up = |x: &[i32]| B::upload(on, x).unwrap();
        SlotTable {
            slots: self.slots,
            positions: self.positions,
            tokens: up(&self.tokens),
            committed: up(&self.committed),
            folded: up(&self.folded),
            drafted: up(&self.drafted),
            proposed: up(&self.proposed),
            limit: up(&self.limit),
            length_limit: up(&self.length_limit),
            prompt: up(&self.prompt),
            state: up(&self.state),
            faults: B::upload(on, &self.faults).unwrap(),
        }
    }

    pub(crate) fn read<B: Backend>(on: &B::Queue, table: &SlotTable<B>) -> Numbers {
        let down = |x: &B::Memory<i32>| B::read(on, x, 0..B::len(x)).unwrap();
        Numbers {
            slots: table.slots,
            positions: table.positions,
            tokens: down(&table.tokens),
            committed: down(&table.committed),
            folded: down(&table.folded),
            drafted: down(&table.drafted),
            proposed: down(&table.proposed),
            limit: down(&table.limit),
            length_limit: down(&table.length_limit),
            prompt: down(&table.prompt),
            state: down(&table.state),
            faults: B::read(on, &table.faults, 0..table.slots + 1).unwrap(),
        }
    }

    /// The word of rows that name no slot has the first of several faults, and blocks have no order: only whether there
    /// is one can be compared.
    pub(crate) fn settled(mut self) -> Numbers {
        if let Some(last) = self.faults.last_mut() {
            *last = u64::from(*last != 0);
        }
        self
    }
}

/// A row list as plain numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) slots: Vec<i32>,
    pub(crate) start: Vec<i32>,
    pub(crate) offsets: Vec<i32>,
}

impl List {
    /// Rows at each slot's `committed`, slots in any order, some of them padding.
    pub(crate) fn random(rng: &mut Rng, n: &Numbers, sequences: usize, max_rows: usize) -> List {
        let order = rng.permutation(n.slots);
        let (mut list, mut at) = (List { slots: vec![], start: vec![], offsets: vec![0] }, 0);
        for slot in order.into_iter().cycle().take(sequences.min(n.slots)) {
            let padding = rng.below(5) == 0;
            list.slots.push(if padding { -1 } else { slot as i32 });
            list.start.push(n.committed[slot]);
            at += rng.below(max_rows + 1) as i32;
            list.offsets.push(at);
        }
        list
    }

    /// Makes some of the numbers impossible.
    pub(crate) fn spoil(&mut self, rng: &mut Rng) {
        let odd = [i32::MIN, -2, 1, 90, i32::MAX];
        for i in 0..self.slots.len() {
            match rng.below(12) {
                0 => self.slots[i] = [i32::MAX, 1000][rng.below(2)],
                1 => self.start[i] = odd[rng.below(odd.len())],
                _ => {}
            }
        }
        if rng.below(2) == 0 {
            // The last one alone: rows that two sequences claim are written in any order.
            *self.offsets.last_mut().unwrap() = odd[rng.below(odd.len())];
        }
    }

    pub(crate) fn upload<B: Backend>(&self, on: &B::Queue) -> RowTable<B> {
        RowTable {
            sequences: self.slots.len(),
            slots: B::upload(on, &self.slots).unwrap(),
            start: B::upload(on, &self.start).unwrap(),
            row_offsets: B::upload(on, &self.offsets).unwrap(),
        }
    }

    pub(crate) fn read<B: Backend>(on: &B::Queue, table: &RowTable<B>) -> List {
        let n = table.sequences;
        List {
            slots: B::read(on, &table.slots, 0..n).unwrap(),
            start: B::read(on, &table.start, 0..n).unwrap(),
            offsets: B::read(on, &table.row_offsets, 0..n + 1).unwrap(),
        }
    }
}

/// A matrix of logits with what draws from it.
pub(crate) struct Logits<B: Backend> {
    pub(crate) problem: SampleProblem,
    pub(crate) logits: B::Memory<f32>,
    /// Elements from row to row.
    pub(crate) stride: usize,
}

/// Samples into a new vector.
pub(crate) fn sample<B: Place>(
    on: &B::Queue,
    of: &Logits<B>,
    table: &mut SlotTable<B>,
    sampling: &SamplingTable<B>,
    list: &List,
    vectors: Option<usize>,
) -> Vec<i32> {
    let p = of.problem;
    let mut op = Sample::plan(p, &B::device(on)).unwrap();
    if let Some(vectors) = vectors {
        op = op.with_vectors_per_thread(vectors);
    }
    let rows = list.upload::<B>(on);
    let mut choice = B::upload(on, &vec![77; p.rows]).unwrap();
    // Anything may be in it.
    let bytes = op.workspace_bytes();
    let mut workspace = B::upload(on, &vec![0xa5u8; bytes]).unwrap();
    let args = SampleArgs {
        choice: TensorMut::of(&mut choice, [p.rows]),
        faults: TensorMut::of(&mut table.faults, [p.slots + 1]),
        logits: Tensor::of(&of.logits, [p.rows, p.vocab]).with_strides([of.stride, 1]),
        rows: rows.lend(),
        tokens: Tensor::of(&table.tokens, [p.slots, p.positions]),
        prompt: Tensor::of(&table.prompt, [p.slots]),
        sampling: sampling.lend(),
        workspace: (bytes > 0).then(|| TensorMut::of(&mut workspace, [bytes])),
    };
    op.run::<B>(on, args).unwrap();
    B::read(on, &choice, 0..p.rows).unwrap()
}

pub(crate) fn argmax<B: Place>(
    on: &B::Queue,
    logits: &[f32],
    [rows, vocab, valid, stride]: [usize; 4],
    vectors: Option<usize>,
) -> Vec<i32> {
    let mut op = Argmax::plan(ArgmaxProblem { rows, vocab, valid }, &B::device(on)).unwrap();
    if let Some(vectors) = vectors {
        op = op.with_vectors_per_thread(vectors);
    }
    let (logits, bytes) = (B::upload(on, logits).unwrap(), op.workspace_bytes());
    let mut choice = B::upload(on, &vec![77; rows]).unwrap();
    let mut workspace = B::upload(on, &vec![0xa5u8; bytes]).unwrap();
    let args = ArgmaxArgs {
        choice: TensorMut::of(&mut choice, [rows]),
        logits: Tensor::of(&logits, [rows, vocab]).with_strides([stride, 1]),
        workspace: (bytes > 0).then(|| TensorMut::of(&mut workspace, [bytes])),
    };
    op.run::<B>(on, args).unwrap();
    B::read(on, &choice, 0..rows).unwrap()
}

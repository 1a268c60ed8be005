//! One speculative round, and the prompt passes before it.
//!
//! A [`Core`] holds a model, its memories and the counters of every slot, and knows the order of
//! operations; who is in which slot is the [`Engine`](crate::Engine)'s business.

mod digest;
mod draft;
mod recorded;
mod slot;
mod target;
mod ticket;
mod vocab;

pub use digest::{Difference, Digest, Hash, LayerDigest};
pub use ticket::{Outcome, Passed, Ticket};

use crate::{
    Result,
    cache::{Caches, Limits},
    machine::Machine,
    model::{Context, EngineBackend, Kind, Model, Pass, Scratch},
    request::RequestId,
};
use kernels_core::{Activation, Backend, Tensor};
use kernels_spec::{Problem, RowTable};
use recorded::Recordings;
pub(crate) use recorded::launch_sequences;
use slot::Choices;
use ticket::Mail;

/// How the host keeps up with the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// It reads what every pass brought before it enqueues the next, and launches have just the rows there are.
    Wait,
    /// It enqueues a pass before it has read the one before, and launches go by bounds that it knows.
    Ahead,
    /// Like [`Ahead`](Pace::Ahead); and a part of a round that was enqueued before is recorded, and from then
    /// on enqueued as one (a CUDA graph), on backends that can.
    Recorded,
}

impl Pace {
    /// The fastest for a backend.
    pub fn of<B: Machine>() -> Pace {
        if B::DEFERRED { Pace::Recorded } else { Pace::Wait }
    }

    /// Passes that may be enqueued and unread.
    pub fn passes(self) -> usize {
        if self == Pace::Wait { 1 } else { 2 }
    }

    /// Whether launches are sized by bounds, and not by what the device counted.
    pub(crate) fn by_bounds(self) -> bool {
        self != Pace::Wait
    }

    pub(crate) fn records(self) -> bool {
        self == Pace::Recorded
    }
}

/// A model with everything its sequences remember.
#[derive(Debug)]
pub struct Core<B: EngineBackend, A: Activation> {
    cx: Context<B>,
    model: Model<B, A>,
    limits: Limits,
    caches: Caches<B, A>,
    scratch: Scratch<B, A>,
    /// `[slots, vocab]`: logits of drafts that are chosen from a part of the ids; -inf in the others' columns.
    draft_logits: Option<B::Memory<f32>>,
    /// How each slot chooses tokens and what ends it.
    choices: Choices<B>,
    /// The rows of the target's latest pass.
    pass: Launch<B>,
    /// The rows of the drafter's latest pass.
    draft: Launch<B>,
    /// The last row of each sequence of one of them.
    last: RowTable<B>,
    /// `[sequences]`: the slots of the target's pass, before it is known who takes part.
    wanted: List<B>,
    /// `[sequences]`: drafts or prompt rows of the target's pass.
    lengths: List<B>,
    /// `[sequences]`: the slots whose rows the draft head catches up with.
    refreshed: List<B>,
    /// For each step `[sequences]`: the slots that get a draft.
    drafting: Vec<List<B>>,
    /// `[sequences]`: accept lengths.
    accepted: B::Memory<i32>,
    /// `[sequences, max_rows + 2]`: what the host reads of a round.
    emitted: B::Memory<i32>,
    /// What idle reads of passes come back to.
    mail: Vec<Mail<B>>,
    pace: Pace,
    recordings: Recordings<B>,
    /// Sequences that are nobody's, added to every decode round.
    padding: usize,
}

/// Slots or lengths of a launch, as device numbers. From round to round they are mostly the same.
#[derive(Debug)]
pub(crate) struct List<B: Backend> {
    memory: B::Memory<i32>,
    /// What was written last, into the first elements.
    written: Vec<i32>,
}

impl<B: Backend> List<B> {
    pub(crate) fn new(on: &B::Queue, len: usize) -> Result<Self> {
        Ok(List { memory: B::zeros(on, len)?, written: Vec::new() })
    }

    pub(crate) fn set(&mut self, on: &B::Queue, values: impl IntoIterator<Item = i32>) -> Result<()> {
        let values: Vec<i32> = values.into_iter().collect();
        if self.written != values {
            B::write(on, &mut self.memory, 0, &values)?;
            self.written = values;
        }
        Ok(())
    }

    pub(crate) fn of(&self, len: usize) -> Tensor<'_, B, i32, 1> {
        Tensor::of(&self.memory, [len])
    }
}

/// The rows of a pass: who owns them, and their tokens.
#[derive(Debug)]
struct Launch<B: Backend> {
    table: RowTable<B>,
    /// `[rows]`
    ids: B::Memory<i32>,
    /// Rows that are computed.
    rows: usize,
    /// The most rows of one sequence.
    max_rows: usize,
}

impl<B: Backend> Launch<B> {
    fn new(on: &B::Queue, sequences: usize, rows: usize) -> Result<Self> {
        Ok(Launch { table: RowTable::new(on, sequences)?, ids: B::zeros(on, rows)?, rows: 0, max_rows: 0 })
    }

    fn pass(&self, kind: Kind) -> Pass<'_, B> {
        Pass {
            kind,
            rows: self.rows,
            sequences: self.table.sequences,
            max_rows: self.max_rows,
            index: self.table.lend(),
            ids: Tensor::of(&self.ids, [self.rows]),
        }
    }
}

/// A sequence the drafter may work for, after a target pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftJob {
    /// Whose.
    pub request: RequestId,
    /// Where.
    pub slot: usize,
    /// Tokens committed, and the token at this position is the last known one; where rounds are enqueued
    /// ahead, the most that it can be.
    pub committed: usize,
    /// Rows of the draft head's K/V that are not made and could be, at most.
    pub behind: usize,
    /// Drafts wanted for the next round.
    pub drafts: usize,
    /// The request will never want a draft: the head need not keep up.
    pub never: bool,
    /// The sequence has ended: nothing is drafted for it.
    pub finished: bool,
}

impl<B: EngineBackend, A: Activation> Core<B, A> {
    /// Allocates all memories.
    pub fn new(cx: Context<B>, model: Model<B, A>, limits: Limits) -> Result<Self> {
        limits.check()?;
        let on = &cx.queue;
        let c = model.config();
        let (decode_rows, pass_rows) = (limits.decode_rows(), limits.pass_rows());
        Ok(Core {
            caches: Caches::new(on, c, &limits)?,
            scratch: Scratch::new(on, c, pass_rows, decode_rows)?,
            draft_logits: (limits.draft_head && model.draft_vocab().is_some())
                .then(|| vocab::masked::<B>(on, limits.slots, c.vocab))
                .transpose()?,
            choices: Choices::new(on, c, &limits)?,
            pass: Launch::new(on, limits.slots, decode_rows.max(limits.prefill_rows))?,
            draft: Launch::new(on, limits.slots, pass_rows)?,
            last: RowTable::new(on, limits.slots)?,
            wanted: List::new(on, limits.slots)?,
            lengths: List::new(on, limits.slots)?,
            refreshed: List::new(on, limits.slots)?,
            drafting: (0..limits.max_drafts).map(|_| List::new(on, limits.slots)).collect::<Result<_>>()?,
            accepted: B::zeros(on, limits.slots)?,
            emitted: B::zeros(on, limits.slots * (limits.max_rows() + 2))?,
            mail: Vec::new(),
            pace: Pace::Wait,
            recordings: Recordings::default(),
            padding: 0,
            cx,
            model,
            limits,
        })
    }

    /// Adds this many sequences and rows that are nobody's to every decode round, as far as there are
    /// slots: what a launch of a fixed size does, and what nothing may depend on.
    pub fn pad_rounds(&mut self, sequences: usize) {
        self.padding = sequences;
    }

    /// From now on, how launches are sized and whether they are recorded.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// The model, without its memories.
    pub fn into_model(self) -> (Context<B>, Model<B, A>) {
        (self.cx, self.model)
    }

    /// The model.
    pub fn model(&self) -> &Model<B, A> {
        &self.model
    }

    /// What the memories hold.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The memories, for tests and tools that look inside.
    pub fn caches(&self) -> &Caches<B, A> {
        &self.caches
    }

    /// Where operations run.
    pub(crate) fn context(&self) -> &Context<B> {
        &self.cx
    }

    /// The queue everything is enqueued on.
    pub fn queue(&self) -> &B::Queue {
        &self.cx.queue
    }

    fn problem(&self, sequences: usize, rows: usize, max_rows: usize) -> Problem {
        let Limits { slots, positions, .. } = self.limits;
        Problem { sequences, rows, max_rows, slots, positions }
    }
}

/// Where each sequence's rows begin, and behind them the number of all rows.
///
/// This waits for the list. A bound the host knows does as well: rows nobody owns change nothing.
fn offsets_of<B: Backend>(on: &B::Queue, table: &RowTable<B>) -> Result<Vec<usize>> {
    let offsets = B::read(on, &table.row_offsets, 0..table.sequences + 1)?;
    Ok(offsets.iter().map(|at| *at as usize).collect())
}

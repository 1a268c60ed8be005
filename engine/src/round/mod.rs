//! One speculative round, and the prompt passes before it.
//!
//! A [`Core`] holds a model, its memories and the counters of every slot, and knows the order of
//! operations; who is in which slot is the [`Engine`](crate::Engine)'s business.

mod digest;
mod draft;
mod slot;
mod target;

pub use digest::{Difference, Digest, Hash, LayerDigest};
pub use target::Outcome;

use crate::{
    Result,
    cache::{Caches, Limits},
    model::{Context, EngineBackend, Kind, Model, Pass, Scratch},
    request::RequestId,
};
use kernels_core::{Activation, Backend, Tensor};
use kernels_spec::{Problem, RowTable};
use slot::Choices;

/// A model with everything its sequences remember.
#[derive(Debug)]
pub struct Core<B: EngineBackend, A: Activation> {
    cx: Context<B>,
    model: Model<B, A>,
    limits: Limits,
    caches: Caches<B, A>,
    scratch: Scratch<B, A>,
    /// How each slot chooses tokens and what ends it.
    choices: Choices<B>,
    /// The rows of the target's latest pass.
    pass: Launch<B>,
    /// The rows of the drafter's latest pass.
    draft: Launch<B>,
    /// The last row of each sequence of one of them.
    last: RowTable<B>,
    /// `[sequences]`: the slots of a launch, before it is known who takes part.
    wanted: B::Memory<i32>,
    /// `[sequences]`: drafts or prompt rows of a launch.
    lengths: B::Memory<i32>,
    /// `[sequences]`: accept lengths.
    accepted: B::Memory<i32>,
    /// `[sequences, max_rows + 2]`: what the host reads of a round.
    emitted: B::Memory<i32>,
    /// Sequences that are nobody's, added to every decode round.
    padding: usize,
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
    /// Tokens committed; the token at this position is the last known one.
    pub committed: usize,
    /// Rows of the draft head's K/V that are made.
    pub drafted: usize,
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
        let decode_rows = limits.slots * limits.max_rows();
        // The head may be behind by what the hidden ring holds, on top of the pass just made.
        let draft_rows = decode_rows.max(limits.prefill_rows) + limits.slots * limits.hidden_rows();
        let target_rows = decode_rows.max(limits.prefill_rows);
        let rows = if limits.draft_head { draft_rows } else { target_rows };
        Ok(Core {
            caches: Caches::new(on, c, &limits)?,
            scratch: Scratch::new(on, c, rows, decode_rows)?,
            choices: Choices::new(on, c, &limits)?,
            pass: Launch::new(on, limits.slots, target_rows)?,
            draft: Launch::new(on, limits.slots, draft_rows)?,
            last: RowTable::new(on, limits.slots)?,
            wanted: B::zeros(on, limits.slots)?,
            lengths: B::zeros(on, limits.slots)?,
            accepted: B::zeros(on, limits.slots)?,
            emitted: B::zeros(on, limits.slots * (limits.max_rows() + 2))?,
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

/// `values` as device numbers, in the first elements of `memory`.
fn write_all<B: Backend>(
    on: &B::Queue,
    memory: &mut B::Memory<i32>,
    values: impl IntoIterator<Item = i32>,
) -> Result<()> {
    let values: Vec<i32> = values.into_iter().collect();
    Ok(B::write(on, memory, 0, &values)?)
}

/// Where each sequence's rows begin, and behind them the number of all rows.
///
/// This waits for the list. Where a wait costs, a bound the host knows does as well: rows nobody owns
/// change nothing.
fn offsets_of<B: Backend>(on: &B::Queue, table: &RowTable<B>) -> Result<Vec<usize>> {
    let offsets = B::read(on, &table.row_offsets, 0..table.sequences + 1)?;
    Ok(offsets.iter().map(|at| *at as usize).collect())
}

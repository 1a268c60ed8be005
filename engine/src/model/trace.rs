//! When each operation began and ended: what a timeline is made of.

use super::Context;
use crate::{Error, Result, machine::Machine};
use kernels_core::DeviceInfo;
use serde::Serialize;
use std::{
    cell::{Cell, RefCell},
    fmt,
    time::Duration,
};

/// Kinds of operations, in the order in which a round meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Who is in a pass, and the tokens of its rows.
    Inputs,
    /// Hidden rows of the target, carried to the rows of the draft head.
    Carry,
    /// Rows of the embedding.
    Embed,
    /// The draft head's two norms, of embedding and hidden row.
    ConcatNorm,
    /// The draft head's projection of both.
    MtpFc,
    /// The list of what attention's thread blocks do.
    WorkList,
    /// A norm.
    Norm,
    /// GDN's projections in.
    GdnIn,
    /// The short convolution.
    Conv,
    /// The recurrence.
    Gdn,
    /// The norm behind it.
    GatedNorm,
    /// GDN's projection out.
    GdnOut,
    /// Attention's projections in.
    Qkv,
    /// Norm and rotation of queries and keys, and the rows written to the pages.
    Append,
    /// Attention itself.
    Attention,
    /// Attention's projection out.
    AttentionOut,
    /// The projections into a dense feed-forward block, and what joins them.
    GateUp,
    /// The projection out of it.
    Down,
    /// A mixture of experts, from the router to the sum.
    Moe,
    /// The last row of each sequence, found and taken.
    LastRows,
    /// The lm head.
    Head,
    /// A token chosen in each row.
    Sample,
    /// Accept, stop, advance, and what the host reads of it.
    Settle,
    /// Copies to the host.
    Fetch,
    /// Hidden rows of the target, kept for later.
    Keep,
    /// Drafts stood behind the tokens.
    Propose,
    /// Drafts of a script in their place.
    Script,
    /// Rows of a trimmed head, renewed.
    Gather,
}

impl Op {
    /// As in a table.
    pub fn name(self) -> &'static str {
        match self {
            Op::Inputs => "inputs",
            Op::Carry => "carry",
            Op::Embed => "embed",
            Op::ConcatNorm => "concat norm",
            Op::MtpFc => "mtp fc",
            Op::WorkList => "attention work list",
            Op::Norm => "norm",
            Op::GdnIn => "gdn in",
            Op::Conv => "conv",
            Op::Gdn => "gdn",
            Op::GatedNorm => "gated norm",
            Op::GdnOut => "gdn out",
            Op::Qkv => "qkv",
            Op::Append => "attention append",
            Op::Attention => "attention",
            Op::AttentionOut => "attention out",
            Op::GateUp => "gate_up",
            Op::Down => "down",
            Op::Moe => "moe",
            Op::LastRows => "last rows",
            Op::Head => "head",
            Op::Sample => "sample",
            Op::Settle => "settle",
            Op::Fetch => "fetch",
            Op::Keep => "keep",
            Op::Propose => "propose",
            Op::Script => "script",
            Op::Gather => "gather",
        }
    }
}

/// Whom an operation works for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The target: its pass, choice and acceptance included.
    #[default]
    Target,
    /// The drafter.
    Draft,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Side::Target => "target",
            Side::Draft => "draft",
        })
    }
}

/// One operation that was enqueued.
#[derive(Debug)]
pub struct Span<B: Machine> {
    /// For whom.
    pub side: Side,
    /// What.
    pub op: Op,
    /// Bytes of weights that it reads, where its sizes say so.
    pub weights: Option<usize>,
    began: B::Mark,
    ended: B::Mark,
}

impl<B: Machine> Span<B> {
    /// How long it took; waits for it.
    pub fn time(&self) -> Result<Duration> {
        B::between(&self.began, &self.ended)
    }

    /// From the beginning of this one to the end of a later one.
    pub fn until(&self, last: &Span<B>) -> Result<Duration> {
        B::between(&self.began, &last.ended)
    }
}

/// The operations of a context, while it is on. It is off at first, and then costs one branch for each.
#[derive(Debug)]
pub struct Trace<B: Machine> {
    on: Cell<bool>,
    side: Cell<Side>,
    spans: RefCell<Vec<Span<B>>>,
}

impl<B: Machine> Default for Trace<B> {
    fn default() -> Self {
        Trace { on: Cell::new(false), side: Cell::default(), spans: RefCell::default() }
    }
}

impl<B: Machine> Trace<B> {
    /// Keeps operations from now on. While it does, nothing is recorded and nothing recorded is enqueued: a mark inside a
    /// graph cannot be read.
    pub fn start(&self) {
        self.on.set(true);
    }

    /// No longer.
    pub fn stop(&self) {
        self.on.set(false);
    }

    /// What was kept and not yet taken, in order.
    pub fn take(&self) -> Vec<Span<B>> {
        self.spans.take()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.get()
    }

    /// Says for whom the operations from now on are.
    pub(crate) fn side(&self, side: Side) {
        self.side.set(side);
    }
}

impl<B: Machine> Context<B> {
    /// Where operations run.
    pub fn new(queue: B::Queue, device: DeviceInfo) -> Self {
        Context { queue, device, trace: Trace::default() }
    }

    /// Enqueues an operation.
    pub(crate) fn run<E>(&self, op: Op, work: impl FnOnce(&B::Queue) -> Result<(), E>) -> Result<()>
    where
        Error: From<E>,
    {
        self.traced(op, None, work)
    }

    /// Enqueues an operation that reads so many bytes of weights.
    pub(crate) fn stream<E>(
        &self,
        op: Op,
        weights: usize,
        work: impl FnOnce(&B::Queue) -> Result<(), E>,
    ) -> Result<()>
    where
        Error: From<E>,
    {
        self.traced(op, Some(weights), work)
    }

    fn traced<E>(
        &self,
        op: Op,
        weights: Option<usize>,
        work: impl FnOnce(&B::Queue) -> Result<(), E>,
    ) -> Result<()>
    where
        Error: From<E>,
    {
        let (on, trace) = (&self.queue, &self.trace);
        if !trace.is_on() {
            return Ok(work(on)?);
        }
        let began = B::mark(on)?;
        work(on)?;
        let ended = B::mark(on)?;
        trace.spans.borrow_mut().push(Span { side: trace.side.get(), op, weights, began, ended });
        Ok(())
    }
}

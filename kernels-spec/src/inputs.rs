//! Row lists and token ids of the next forward pass, built from the counters.
//!
//! Every operation here takes `sequences`: the slot of each sequence of the launch, negative for
//! padding, each slot at most once. Sequence `i` stays sequence `i` of every list built from it. A
//! sequence that cannot or must not run gets [`PAD`](kernels_core::PAD) and no rows, whatever its slot.

use crate::{
    Problem, RowsMut, Slots,
    problem::{at_least_one, operation},
};
use kernels_core::{Backend, Error, Result, Rows, Tensor, TensorMut};

operation! {
    /// Gives every decoding sequence its last token and the drafts that stand behind it.
    ///
    /// `T = 1 + min(drafts, proposed, max_rows - 1)`, cut so that every row has a page (`position <
    /// limit`) and a place for the token it chooses (`position + 1 < length_limit`). So a draft that was
    /// not proposed for this very round is never fed. Sequences that are not running, have a fault, are
    /// still in their prompt or have no page left get no rows. Counters that contradict each other are a
    /// fault of the slot.
    TargetInputs, "spec::target_inputs", Problem, TargetInputsArgs, target_inputs, also: check_room
}

/// Operands of [`TargetInputs`].
#[derive(Debug)]
pub struct TargetInputsArgs<'a, B: Backend> {
    /// The list to write; `start` is `committed`.
    pub rows: RowsMut<'a, B>,
    /// `[rows]`: token ids; -1 in rows that nobody owns.
    pub ids: TensorMut<'a, B, i32, 1>,
    /// The slots' memory; only fault words are written.
    pub slots: Slots<'a, B>,
    /// `[sequences]`: slots of the launch, negative = padding.
    pub sequences: Tensor<'a, B, i32, 1>,
    /// `[sequences]`: drafts to verify, at most.
    pub drafts: Tensor<'a, B, i32, 1>,
}

impl TargetInputs {
    fn check<B: Backend>(&self, args: &TargetInputsArgs<'_, B>) -> Result<()> {
        let p = &self.problem;
        check_inputs(Self::NAME, p, &args.rows, &args.ids, &args.slots, &args.sequences)?;
        args.drafts.check(Self::NAME, "drafts", [p.sequences])
    }
}

operation! {
    /// Gives every sequence that is still in its prompt the next chunk of it.
    ///
    /// `T = min(length, max_rows, prompt - committed, limit - committed)`, and no more than the rows the
    /// sequences before it have left.
    PrefillInputs, "spec::prefill_inputs", Problem, PrefillInputsArgs, prefill_inputs
}

/// Operands of [`PrefillInputs`].
#[derive(Debug)]
pub struct PrefillInputsArgs<'a, B: Backend> {
    /// The list to write; `start` is `committed`.
    pub rows: RowsMut<'a, B>,
    /// `[rows]`: token ids; -1 in rows that nobody owns.
    pub ids: TensorMut<'a, B, i32, 1>,
    /// The slots' memory; only fault words are written.
    pub slots: Slots<'a, B>,
    /// `[sequences]`: slots of the launch, negative = padding.
    pub sequences: Tensor<'a, B, i32, 1>,
    /// `[sequences]`: prompt tokens to process, at most.
    pub lengths: Tensor<'a, B, i32, 1>,
}

impl PrefillInputs {
    fn check<B: Backend>(&self, args: &PrefillInputsArgs<'_, B>) -> Result<()> {
        let p = &self.problem;
        check_inputs(Self::NAME, p, &args.rows, &args.ids, &args.slots, &args.sequences)?;
        args.lengths.check(Self::NAME, "lengths", [p.sequences])
    }
}

operation! {
    /// Lists the last row of every sequence: where a prompt chunk or a draft refresh chooses a token.
    ///
    /// The list has one row per sequence (row `i` is sequence `i`, padding included), so that it goes
    /// with what [`TakeLast`](crate::TakeLast) gathers. A sequence whose last row is followed by a token
    /// of its prompt has nothing to choose and becomes padding.
    LastRows, "spec::last_rows", Problem, LastRowsArgs, last_rows
}

/// Operands of [`LastRows`].
#[derive(Debug)]
pub struct LastRowsArgs<'a, B: Backend> {
    /// The list to write.
    pub last: RowsMut<'a, B>,
    /// The slots' memory; only fault words are written.
    pub slots: Slots<'a, B>,
    /// The list whose last rows are wanted.
    pub rows: Rows<'a, B>,
}

impl LastRows {
    fn check<B: Backend>(&self, args: &LastRowsArgs<'_, B>) -> Result<()> {
        let p = &self.problem;
        args.last.check(Self::NAME, p.sequences)?;
        args.slots.check(Self::NAME, p.slots, p.positions)?;
        args.rows.check(Self::NAME, p.sequences)
    }
}

/// The bounds of [`DraftInputs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftProblem {
    /// The bounds of the draft's launch.
    pub base: Problem,
    /// Hidden rows a slot keeps from earlier passes (see [`KeepHidden`](crate::KeepHidden)).
    pub ring_rows: usize,
}

impl DraftProblem {
    fn check(&self, op: &'static str) -> Result<()> {
        self.base.check(op)?;
        at_least_one(op, "ring_rows", self.ring_rows)
    }
}

operation! {
    /// Gives the draft every row whose K/V is not yet made from a true hidden state.
    ///
    /// Those are the rows `max(drafted, 1) ..= committed` (cut to `max_rows`, to the rows left and to
    /// pages): row `p` is made from token `p` and the target's hidden row `p - 1`, which
    /// [`Carry`](crate::Carry) gathers. The last of them predicts the token of `committed + 1`. Row 0
    /// does not exist: nothing precedes it. [`Propose`](crate::Propose) moves `drafted` once the
    /// draft's pass has run.
    ///
    /// Run it after [`Advance`](crate::Advance), with the row list of the target's pass just advanced. A
    /// sequence that fell so far behind that its hidden rows are gone gets no rows: it goes on without
    /// drafts.
    DraftInputs, "spec::draft_inputs", DraftProblem, DraftInputsArgs, draft_inputs
}

/// Operands of [`DraftInputs`].
#[derive(Debug)]
pub struct DraftInputsArgs<'a, B: Backend> {
    /// The list to write.
    pub rows: RowsMut<'a, B>,
    /// `[rows]`: token ids; -1 in rows that nobody owns.
    pub ids: TensorMut<'a, B, i32, 1>,
    /// The slots' memory; only fault words are written.
    pub slots: Slots<'a, B>,
    /// `[sequences]`: slots of the launch, negative = padding.
    pub sequences: Tensor<'a, B, i32, 1>,
    /// The row list of the target's pass.
    pub forward: Rows<'a, B>,
}

impl DraftInputs {
    fn check<B: Backend>(&self, args: &DraftInputsArgs<'_, B>) -> Result<()> {
        let p = &self.problem.base;
        check_inputs(Self::NAME, p, &args.rows, &args.ids, &args.slots, &args.sequences)?;
        args.forward.slots.check(Self::NAME, "forward.slots", [p.sequences])?;
        args.forward.start.check(Self::NAME, "forward.start", [p.sequences])?;
        args.forward.row_offsets.check(Self::NAME, "forward.row_offsets", [p.sequences + 1])
    }
}

operation! {
    /// Feeds each sequence's latest draft back to the draft head.
    ///
    /// Continues the draft's pass just run: where sequence `i` ended at position `p` there and
    /// [`Propose`](crate::Propose) stood its choice at `p + 1` (so `p + 1 = committed + proposed`), row
    /// `i` is that draft. Everybody else becomes padding: a sequence that sat the pass out, proposed
    /// nothing or has no page for the row. The hidden row it goes with is the draft's own output for `p`.
    ///
    /// It rewrites the list of that pass ([`DraftInputs`] or the link before) in place. The new list has
    /// one row per sequence, so `rows` must equal `sequences`; `max_rows` is not looked at.
    ChainInputs, "spec::chain_inputs", Problem, ChainInputsArgs, chain_inputs, also: check_one_row
}

/// Operands of [`ChainInputs`].
#[derive(Debug)]
pub struct ChainInputsArgs<'a, B: Backend> {
    /// The list of the draft's pass just run, to be made that of the next.
    pub rows: RowsMut<'a, B>,
    /// `[sequences]`: token ids; -1 in padding rows.
    pub ids: TensorMut<'a, B, i32, 1>,
    /// The slots' memory; only fault words are written.
    pub slots: Slots<'a, B>,
    /// `[sequences]`: slots of the launch, negative = padding.
    pub sequences: Tensor<'a, B, i32, 1>,
}

impl ChainInputs {
    fn check<B: Backend>(&self, args: &ChainInputsArgs<'_, B>) -> Result<()> {
        let p = &self.problem;
        check_inputs(Self::NAME, p, &args.rows, &args.ids, &args.slots, &args.sequences)
    }
}

fn check_inputs<B: Backend>(
    op: &'static str,
    p: &Problem,
    rows: &RowsMut<'_, B>,
    ids: &TensorMut<'_, B, i32, 1>,
    slots: &Slots<'_, B>,
    sequences: &Tensor<'_, B, i32, 1>,
) -> Result<()> {
    rows.check(op, p.sequences)?;
    ids.check(op, "ids", [p.rows])?;
    slots.check(op, p.slots, p.positions)?;
    sequences.check(op, "sequences", [p.sequences])
}

/// Every sequence gets all rows it may have: nobody waits for the rows of others.
fn check_room(op: &'static str, p: &Problem) -> Result<()> {
    if p.rows / p.max_rows >= p.sequences {
        return Ok(());
    }
    let want = format!("must be at least sequences x max_rows = {} x {}", p.sequences, p.max_rows);
    Err(Error::invalid(op, "rows", p.rows, want))
}

fn check_one_row(op: &'static str, p: &Problem) -> Result<()> {
    if p.rows == p.sequences {
        return Ok(());
    }
    let want = format!("a chain has one row per sequence, {}", p.sequences);
    Err(Error::invalid(op, "rows", p.rows, want))
}

//! What a round settles: how many rows are accepted, where it stops, and the counters that follow.
//!
//! The order is [`Accept`] (or [`Rejection`](crate::Rejection)), [`Stop`], [`Advance`]; nothing is
//! committed before the last of them.

use crate::{Problem, Slots, problem::operation};
use kernels_core::{Backend, Result, Rows, Tensor, TensorMut};

operation! {
    /// Accepts the drafts that equal the target's choice, and writes the first choice that does not.
    ///
    /// A sequence's rows stand at `start ..`; row `i` chose the token of position `start + i + 1`. The
    /// accept length `a` is 1 plus the number of leading drafts that were chosen; then
    /// `tokens[start + 1 ..= start + a]` are the new tokens. `a = 0` for padding and for slots that do
    /// not run. A row that is needed and chose nothing (-1) is a fault of the slot; one beyond the first
    /// wrong draft is not even looked at.
    ///
    /// After a prompt's last chunk it runs on the list of [`LastRows`](crate::LastRows): one row, no
    /// drafts, `a = 1`, the first token.
    Accept, "spec::accept", Problem, AcceptArgs, accept
}

/// Operands of [`Accept`].
#[derive(Debug)]
pub struct AcceptArgs<'a, B: Backend> {
    /// `[sequences]`: the accept length of each sequence.
    pub accepted: TensorMut<'a, B, i32, 1>,
    /// The slots' memory; `tokens` is written.
    pub slots: Slots<'a, B>,
    /// `[rows]`: the target's choice in each row.
    pub choice: Tensor<'a, B, i32, 1>,
    /// The rows of the target's pass.
    pub rows: Rows<'a, B>,
}

impl Accept {
    fn check<B: Backend>(&self, args: &AcceptArgs<'_, B>) -> Result<()> {
        let p = &self.problem;
        args.accepted.check(Self::NAME, "accepted", [p.sequences])?;
        args.slots.check(Self::NAME, p.slots, p.positions)?;
        args.choice.check(Self::NAME, "choice", [p.rows])?;
        args.rows.check(Self::NAME, p.sequences)
    }
}

/// What ends a sequence, per slot.
#[derive(Debug)]
pub struct Stops<'a, B: Backend> {
    /// `[slots, max_eos]`: ids that end a sequence; -1 = unused.
    pub eos: Tensor<'a, B, i32, 2>,
    /// `[slots, max_stops, max_stop_length]`: token sequences that end a sequence, from the front, the
    /// rest -1; an empty one (all -1) never matches.
    pub sequences: Tensor<'a, B, i32, 3>,
}

impl<B: Backend> Clone for Stops<'_, B> {
    fn clone(&self) -> Self {
        Stops { eos: self.eos.clone(), sequences: self.sequences.clone() }
    }
}

/// The bounds of [`Stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopProblem {
    /// The bounds of the launch.
    pub base: Problem,
    /// End-of-sequence ids a slot may have.
    pub max_eos: usize,
    /// Stop sequences a slot may have.
    pub max_stops: usize,
    /// Tokens a stop sequence may have.
    pub max_stop_length: usize,
}

impl StopProblem {
    fn check(&self, op: &'static str) -> Result<()> {
        self.base.check(op)
    }
}

operation! {
    /// Cuts the accept length at the first token that ends the sequence, and marks the slot finished.
    ///
    /// Looks at the new tokens in order. A token that is an end-of-sequence id, completes a stop sequence
    /// (which may begin in an earlier round, but not in the prompt) or takes the last place below
    /// `length_limit` is the last one; where several hold, the first of these names the reason.
    Stop, "spec::stop", StopProblem, StopArgs, stop
}

/// Operands of [`Stop`].
#[derive(Debug)]
pub struct StopArgs<'a, B: Backend> {
    /// `[sequences]`: the accept lengths, cut.
    pub accepted: TensorMut<'a, B, i32, 1>,
    /// The slots' memory; `state` is written.
    pub slots: Slots<'a, B>,
    /// What ends each slot's sequence.
    pub stops: Stops<'a, B>,
    /// The rows that were accepted from.
    pub rows: Rows<'a, B>,
}

impl Stop {
    fn check<B: Backend>(&self, args: &StopArgs<'_, B>) -> Result<()> {
        let p = &self.problem;
        args.accepted.check(Self::NAME, "accepted", [p.base.sequences])?;
        args.slots.check(Self::NAME, p.base.slots, p.base.positions)?;
        check_stops(Self::NAME, p, &args.stops)?;
        args.rows.check(Self::NAME, p.base.sequences)
    }
}

/// Which pass [`Advance`] settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// A decode round: commits the accepted rows; pending rows are folded by the flush rule.
    Decode,
    /// A prompt chunk: commits and folds all its rows.
    Prefill,
}

/// Statistics of the rounds, per slot; the caller clears them when it admits a sequence.
#[derive(Debug)]
pub struct Counters<'a, B: Backend> {
    /// `[slots, max_rows + 1]`: decode rounds by accept length (after the cut by [`Stop`]), so that
    /// the sum of `a` times column `a` is the number of tokens emitted.
    pub rounds: TensorMut<'a, B, u64, 2>,
    /// `[slots, max_rows]`: column `j` counts the rounds that verified a draft `j + 1`.
    pub verified: TensorMut<'a, B, u64, 2>,
    /// `[slots, max_rows]`: column `j` counts the rounds that accepted draft `j + 1` and a token after
    /// it; what a stop cut off counts as not accepted.
    pub accepted: TensorMut<'a, B, u64, 2>,
}

/// The bounds of [`Advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvanceProblem {
    /// The bounds of the launch.
    pub base: Problem,
    /// Pending rows that are left unfolded (see [`kernels_core::slots::flushes`]).
    pub flush_after: usize,
    /// Which pass is settled.
    pub pass: Pass,
}

impl AdvanceProblem {
    fn check(&self, op: &'static str) -> Result<()> {
        self.base.check(op)
    }
}

operation! {
    /// Commits: the one place where counters move, after the last layer of a pass.
    ///
    /// Decode: `committed += a`; `folded` becomes the old `committed` where the pass flushed, that is
    /// where `flushes(committed - folded, flush_after)` held. Prefill: `committed += T`, `folded =
    /// committed`, whatever `accepted` says. Both: `proposed = 0`, since the drafts stood behind the old
    /// `committed`. A slot with a fault word is not advanced: it becomes `Faulted` and its `accepted` 0.
    /// Every slot of the list is counted in `counters` by its accept length if that is not 0.
    Advance, "spec::advance", AdvanceProblem, AdvanceArgs, advance
}

/// Operands of [`Advance`].
#[derive(Debug)]
pub struct AdvanceArgs<'a, B: Backend> {
    /// `[sequences]`: the accept lengths; set to 0 where a fault forbids the commit.
    pub accepted: TensorMut<'a, B, i32, 1>,
    /// The slots' memory.
    pub slots: Slots<'a, B>,
    /// Statistics of decode rounds; not touched by a prefill.
    pub counters: Option<Counters<'a, B>>,
    /// The rows of the pass.
    pub rows: Rows<'a, B>,
}

impl Advance {
    fn check<B: Backend>(&self, args: &AdvanceArgs<'_, B>) -> Result<()> {
        let p = &self.problem.base;
        args.accepted.check(Self::NAME, "accepted", [p.sequences])?;
        args.slots.check(Self::NAME, p.slots, p.positions)?;
        if let Some(counters) = &args.counters {
            check_counters(Self::NAME, p, counters)?;
        }
        args.rows.check(Self::NAME, p.sequences)
    }
}

operation! {
    /// Packs what a pass emitted for one copy to the host.
    ///
    /// Run it after [`Advance`] with the same list. Row `i` of the output is
    /// `[accepted, state, tokens...]` of sequence `i`, the rest -1; all -1 but `accepted = 0` for padding.
    Emit, "spec::emit", Problem, EmitArgs, emit
}

/// Operands of [`Emit`].
#[derive(Debug)]
pub struct EmitArgs<'a, B: Backend> {
    /// `[sequences, max_rows + 2]`: accept length, state, new tokens.
    pub emitted: TensorMut<'a, B, i32, 2>,
    /// `[sequences]`: the accept lengths after [`Advance`].
    pub accepted: Tensor<'a, B, i32, 1>,
    /// The slots' memory; only read.
    pub slots: Slots<'a, B>,
    /// The rows that were accepted from.
    pub rows: Rows<'a, B>,
}

impl Emit {
    fn check<B: Backend>(&self, args: &EmitArgs<'_, B>) -> Result<()> {
        let p = &self.problem;
        args.emitted.check(Self::NAME, "emitted", [p.sequences, p.max_rows + 2])?;
        args.emitted.check_disjoint(Self::NAME, "emitted")?;
        args.accepted.check(Self::NAME, "accepted", [p.sequences])?;
        args.slots.check(Self::NAME, p.slots, p.positions)?;
        args.rows.check(Self::NAME, p.sequences)
    }
}

operation! {
    /// Stands the draft's choice behind the tokens, as the next draft to verify.
    ///
    /// Works on the lists of [`DraftInputs`](crate::DraftInputs) and [`ChainInputs`](crate::ChainInputs)
    /// alike, after the draft's pass: let `p` be a sequence's last row.
    ///
    /// * Rows up to `committed` were made from true hidden states: if `p <= committed`, `drafted = p + 1`
    ///   (unless rows between the old `drafted` and these are missing: then nothing at all is done).
    /// * If `p = committed + proposed`, the choice is the next draft: it goes to `tokens[p + 1]` and
    ///   `proposed += 1`, as long as the sequence runs, its prompt is processed and `p + 1` is below
    ///   `limit` and `length_limit`. A choice of -1 proposes nothing.
    Propose, "spec::propose", Problem, ProposeArgs, propose
}

/// Operands of [`Propose`].
#[derive(Debug)]
pub struct ProposeArgs<'a, B: Backend> {
    /// The slots' memory; `tokens`, `proposed` and `drafted` are written.
    pub slots: Slots<'a, B>,
    /// `[sequences]`: the draft's choice in each sequence's last row; `None` where the pass only caught
    /// up and chose nothing.
    pub choice: Option<Tensor<'a, B, i32, 1>>,
    /// The rows of the draft's pass.
    pub rows: Rows<'a, B>,
}

impl Propose {
    fn check<B: Backend>(&self, args: &ProposeArgs<'_, B>) -> Result<()> {
        let p = &self.problem;
        args.slots.check(Self::NAME, p.slots, p.positions)?;
        if let Some(choice) = &args.choice {
            choice.check(Self::NAME, "choice", [p.sequences])?;
        }
        args.rows.check(Self::NAME, p.sequences)
    }
}

/// The bounds of [`Settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettleProblem {
    /// The bounds of the launch and of what ends a sequence.
    pub stop: StopProblem,
    /// See [`AdvanceProblem::flush_after`].
    pub flush_after: usize,
}

impl SettleProblem {
    fn check(&self, op: &'static str) -> Result<()> {
        self.stop.check(op)
    }
}

operation! {
    /// [`Accept`], [`Stop`], [`Advance`] of a decode round and [`Emit`], in one launch: the same bytes.
    Settle, "spec::settle", SettleProblem, SettleArgs, settle
}

/// Operands of [`Settle`].
#[derive(Debug)]
pub struct SettleArgs<'a, B: Backend> {
    /// `[sequences]`: the accept length of each sequence, as [`Advance`] leaves it.
    pub accepted: TensorMut<'a, B, i32, 1>,
    /// `[sequences, max_rows + 2]`: accept length, state, new tokens.
    pub emitted: TensorMut<'a, B, i32, 2>,
    /// The slots' memory.
    pub slots: Slots<'a, B>,
    /// `[rows]`: the target's choice in each row.
    pub choice: Tensor<'a, B, i32, 1>,
    /// What ends each slot's sequence.
    pub stops: Stops<'a, B>,
    /// Statistics of decode rounds.
    pub counters: Option<Counters<'a, B>>,
    /// The rows of the target's pass.
    pub rows: Rows<'a, B>,
}

impl Settle {
    fn check<B: Backend>(&self, args: &SettleArgs<'_, B>) -> Result<()> {
        let p = &self.problem.stop;
        let base = &p.base;
        args.accepted.check(Self::NAME, "accepted", [base.sequences])?;
        args.emitted.check(Self::NAME, "emitted", [base.sequences, base.max_rows + 2])?;
        args.emitted.check_disjoint(Self::NAME, "emitted")?;
        args.slots.check(Self::NAME, base.slots, base.positions)?;
        args.choice.check(Self::NAME, "choice", [base.rows])?;
        check_stops(Self::NAME, p, &args.stops)?;
        if let Some(counters) = &args.counters {
            check_counters(Self::NAME, base, counters)?;
        }
        args.rows.check(Self::NAME, base.sequences)
    }

    /// The four operations it stands for.
    pub(crate) fn parts(&self) -> (Accept, Stop, Advance, Emit) {
        let (stop, launch) = (self.problem.stop, self.launch);
        let advance =
            AdvanceProblem { base: stop.base, flush_after: self.problem.flush_after, pass: Pass::Decode };
        (
            Accept { problem: stop.base, launch },
            Stop { problem: stop, launch },
            Advance { problem: advance, launch },
            Emit { problem: stop.base, launch },
        )
    }
}

fn check_stops<B: Backend>(op: &'static str, p: &StopProblem, stops: &Stops<'_, B>) -> Result<()> {
    stops.eos.check(op, "stops.eos", [p.base.slots, p.max_eos])?;
    stops.sequences.check(op, "stops.sequences", [p.base.slots, p.max_stops, p.max_stop_length])
}

fn check_counters<B: Backend>(op: &'static str, p: &Problem, counters: &Counters<'_, B>) -> Result<()> {
    let columns = p.max_rows;
    counters.rounds.check(op, "counters.rounds", [p.slots, columns + 1])?;
    counters.verified.check(op, "counters.verified", [p.slots, columns])?;
    counters.accepted.check(op, "counters.accepted", [p.slots, columns])?;
    counters.rounds.check_disjoint(op, "counters.rounds")?;
    counters.verified.check_disjoint(op, "counters.verified")?;
    counters.accepted.check_disjoint(op, "counters.accepted")
}

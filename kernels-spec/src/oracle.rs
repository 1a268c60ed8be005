//! Drafts that are right as often as asked: what separates the speed of a round from the quality of a draft head.

use crate::{
    Slots,
    problem::{Problem, at_least_one, at_most, operation},
};
use kernels_core::{Backend, Result, Tensor, TensorMut};

/// The bounds of [`Oracle`], and what its draws are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OracleProblem {
    /// Sequences of the launch, padding included.
    pub sequences: usize,
    /// Drafts that a sequence may get.
    pub max_drafts: usize,
    /// Slots of the memories addressed.
    pub slots: usize,
    /// Positions a slot has tokens for.
    pub positions: usize,
    /// Ids below this exist.
    pub valid: usize,
    /// Rounds of the pattern, where there is one.
    pub pattern: Option<usize>,
    /// The seed of all draws.
    pub seed: u64,
}

impl OracleProblem {
    fn check(&self, op: &'static str) -> Result<()> {
        let OracleProblem { sequences, max_drafts, slots, positions, .. } = *self;
        at_least_one(op, "max_drafts", max_drafts)?;
        at_most(op, "max_drafts", max_drafts, i32::MAX as usize)?;
        at_least_one(op, "valid", self.valid)?;
        at_most(op, "valid", self.valid, i32::MAX as usize)?;
        if let Some(pattern) = self.pattern {
            at_least_one(op, "pattern", pattern)?;
            at_most(op, "pattern", pattern, i32::MAX as usize)?;
        }
        Problem { sequences, rows: 1, max_rows: 1, slots, positions }.check(op)
    }
}

operation! {
    /// Stands drafts behind the tokens that are right as often as asked, whatever stood there before.
    ///
    /// For every sequence that runs and is past its prompt, with `c = committed` and `i` in `0 .. n`, where `n` is
    /// `drafts`, at most `max_drafts`, cut so that `c + 1 + i` is below `limit` and `length_limit`:
    /// `tokens[c + 1 + i]` becomes `truth[c + 1 + i]` if draft `i` is right, and the id after it (modulo `valid`) if
    /// not; `proposed = n`. An id that is negative or not below `valid` is unknown, and taken for 0. Draft `i` is right
    /// if both hold:
    ///
    /// * a uniform number drawn from (`seed`, its position, the slot) is below the slot's `rate`: at 1 always, at 0
    ///   never;
    /// * `i < pattern[rounds % pattern]`, where there is a pattern.
    ///
    /// `rounds` counts how often the slot was asked for at least one draft; where it begins is the place in the pattern
    /// where the sequence begins. Counters that contradict each other are a fault of the slot, as in
    /// [`TargetInputs`](crate::TargetInputs).
    Oracle, "spec::oracle", OracleProblem, OracleArgs, oracle
}

/// Operands of [`Oracle`].
#[derive(Debug)]
pub struct OracleArgs<'a, B: Backend> {
    /// The slots' memory; `tokens` and `proposed` are written.
    pub slots: Slots<'a, B>,
    /// `[slots]`: times each slot was asked for drafts; wraps around.
    pub rounds: TensorMut<'a, B, u32, 1>,
    /// `[slots, positions]`: the token that will stand at each position; negative = unknown.
    pub truth: Tensor<'a, B, i32, 2>,
    /// `[slots]`: the chance of a draft to be right, from 0 to 1.
    pub rate: Tensor<'a, B, f32, 1>,
    /// `[pattern]`: in each round only the first so many drafts may be right; given where
    /// [`OracleProblem::pattern`] is, and only there.
    pub pattern: Option<Tensor<'a, B, i32, 1>>,
    /// `[sequences]`: slots of the launch, negative = padding, each slot at most once.
    pub sequences: Tensor<'a, B, i32, 1>,
    /// `[sequences]`: drafts wanted.
    pub drafts: Tensor<'a, B, i32, 1>,
}

impl Oracle {
    fn check<B: Backend>(&self, args: &OracleArgs<'_, B>) -> Result<()> {
        let p = &self.problem;
        args.slots.check(Self::NAME, p.slots, p.positions)?;
        args.rounds.check(Self::NAME, "rounds", [p.slots])?;
        args.truth.check(Self::NAME, "truth", [p.slots, p.positions])?;
        args.rate.check(Self::NAME, "rate", [p.slots])?;
        match (&args.pattern, p.pattern) {
            (Some(pattern), Some(rounds)) => pattern.check(Self::NAME, "pattern", [rounds])?,
            (None, None) => {}
            (given, _) => {
                let got = given.as_ref().map_or("none".into(), |pattern| format!("{:?}", pattern.dims));
                let want = "it goes with the problem's `pattern`, which says how long it is";
                return Err(kernels_core::Error::invalid(Self::NAME, "pattern", got, want));
            }
        }
        args.sequences.check(Self::NAME, "sequences", [p.sequences])?;
        args.drafts.check(Self::NAME, "drafts", [p.sequences])
    }
}

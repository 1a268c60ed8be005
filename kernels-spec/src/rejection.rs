//! The rejection sampler: drafts with the distribution they are drawn from, and the chain that judges them.

use crate::{
    Sampling, Slots,
    problem::{Launch, at_least_one, operation},
    sample::{Purpose, SampleParts, SampleProblem, check_room},
};
use kernels_core::{Backend, Error, Result, Rows, Tensor, TensorMut};

/// The bounds of [`DrawDraft`] and [`Rejection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectionProblem {
    /// The bounds of the rows and the vocabulary.
    pub base: SampleProblem,
    /// Draft distributions kept per slot: that of the draft at position `p` at `p % ring_rows`. At least
    /// the longest chain.
    pub ring_rows: usize,
}

impl RejectionProblem {
    fn check(&self, op: &'static str) -> Result<()> {
        self.base.check(op)?;
        at_least_one(op, "ring_rows", self.ring_rows)
    }
}

operation! {
    /// Draws a draft for [`Rejection`], and keeps the distribution it was drawn from.
    ///
    /// The same rules as [`Sample`](crate::Sample), with noise of its own ([`Use::Draft`](kernels_core::philox::Use)).
    /// The probabilities kept are `e^z / mass` of what the filters left, zero elsewhere; greedy keeps 1
    /// at the choice.
    DrawDraft, "spec::draw_draft", RejectionProblem, DrawDraftArgs, draw_draft
}

/// Operands of [`DrawDraft`].
#[derive(Debug)]
pub struct DrawDraftArgs<'a, B: Backend> {
    /// `[rows]`: the chosen ids, as [`SampleArgs::choice`](crate::SampleArgs::choice).
    pub choice: TensorMut<'a, B, i32, 1>,
    /// `[slots, ring_rows, vocab]`: the row at position `p` writes `[slot][(p + 1) % ring_rows]`.
    pub probabilities: TensorMut<'a, B, f32, 3>,
    /// `[slots + 1]`: sticky fault words.
    pub faults: TensorMut<'a, B, u64, 1>,
    /// `[rows, vocab]`: the draft's logits.
    pub logits: Tensor<'a, B, f32, 2>,
    /// Whose rows they are.
    pub rows: Rows<'a, B>,
    /// `[slots, positions]`: token ids by absolute position.
    pub tokens: Tensor<'a, B, i32, 2>,
    /// `[slots]`: tokens of the prompt.
    pub prompt: Tensor<'a, B, i32, 1>,
    /// How each slot draws.
    pub sampling: Sampling<'a, B>,
    /// `[workspace]`: [`DrawDraft::workspace_bytes`] on CUDA; the CPU does without. Anything before and after.
    pub workspace: Option<TensorMut<'a, B, u8, 1>>,
}

impl DrawDraft {
    /// Bytes of [`DrawDraftArgs::workspace`]; 0 on the CPU.
    pub fn workspace_bytes(&self) -> usize {
        self.parts().bytes
    }

    /// Deals a row to blocks of 1024 times so many ids on CUDA: 1, 2 or a multiple of 4. No bit depends on it.
    pub fn with_vectors_per_thread(mut self, vectors: usize) -> Self {
        self.launch.vectors = Some(vectors);
        self
    }

    pub(crate) fn parts(&self) -> SampleParts {
        SampleParts::of(&self.problem.base, &self.launch, Purpose::Draft)
    }

    fn check<B: Backend>(&self, args: &DrawDraftArgs<'_, B>) -> Result<()> {
        let RejectionProblem { base: p, ring_rows } = &self.problem;
        check_room(Self::NAME, p.rows, &self.launch, &args.workspace, self.workspace_bytes())?;
        args.choice.check(Self::NAME, "choice", [p.rows])?;
        args.probabilities.check(Self::NAME, "probabilities", [p.slots, *ring_rows, p.vocab])?;
        args.probabilities.check_disjoint(Self::NAME, "probabilities")?;
        args.faults.check(Self::NAME, "faults", [p.slots + 1])?;
        args.logits.check(Self::NAME, "logits", [p.rows, p.vocab])?;
        args.rows.check(Self::NAME, p.sequences)?;
        args.tokens.check(Self::NAME, "tokens", [p.slots, p.positions])?;
        args.prompt.check(Self::NAME, "prompt", [p.slots])?;
        args.sampling.check(Self::NAME, p.slots, p.max_bias)
    }
}

operation! {
    /// The classical rejection chain, in place of [`Sample`](crate::Sample) and [`Accept`](crate::Accept).
    ///
    /// With `P` the target's distribution in the row before a draft `d` at position `c` (by the rules of
    /// [`Sample`](crate::Sample)) and `Q` the one it was drawn from: accept if `u Q[d] < P[d]`, `u` uniform from
    /// ([`Use::Accept`](kernels_core::philox::Use), seed, `c`); at the first rejection draw from
    /// `max(P - Q, 0)`, normalised, with noise of `Use::Residual`; if none is rejected, draw one more
    /// from `P` as [`Sample`](crate::Sample) does. So each token is distributed as the target says, whatever `Q` is, and
    /// a round without drafts gives the bits of [`Sample`](crate::Sample).
    ///
    /// It accepts more than coupled sampling at high temperature (1 - TV, the optimum), but *which* tokens
    /// come out depends on the drafts: this is the one exception to "speculation changes nothing".
    Rejection, "spec::rejection", RejectionProblem, RejectionArgs, rejection
}

/// Operands of [`Rejection`].
#[derive(Debug)]
pub struct RejectionArgs<'a, B: Backend> {
    /// `[sequences]`: the accept length of each sequence.
    pub accepted: TensorMut<'a, B, i32, 1>,
    /// The slots' memory; `tokens` is written.
    pub slots: Slots<'a, B>,
    /// `[rows, vocab]`: the target's logits.
    pub logits: Tensor<'a, B, f32, 2>,
    /// `[slots, ring_rows, vocab]`: what [`DrawDraft`] kept.
    pub probabilities: Tensor<'a, B, f32, 3>,
    /// The rows of the target's pass.
    pub rows: Rows<'a, B>,
    /// How each slot draws.
    pub sampling: Sampling<'a, B>,
    /// `[workspace]`: [`Rejection::workspace_bytes`] on CUDA; the CPU does without. Anything before and after.
    pub workspace: Option<TensorMut<'a, B, u8, 1>>,
}

impl Rejection {
    /// Bytes of [`RejectionArgs::workspace`]; 0 on the CPU.
    pub fn workspace_bytes(&self) -> usize {
        self.parts().bytes
    }

    /// Deals a row to blocks of 1024 times so many ids on CUDA: 1, 2 or a multiple of 4. No bit depends on it.
    pub fn with_vectors_per_thread(mut self, vectors: usize) -> Self {
        self.launch.vectors = Some(vectors);
        self
    }

    pub(crate) fn parts(&self) -> SampleParts {
        SampleParts::of(&self.problem.base, &self.launch, Purpose::Rejection)
    }

    fn check<B: Backend>(&self, args: &RejectionArgs<'_, B>) -> Result<()> {
        let RejectionProblem { base: p, ring_rows } = &self.problem;
        check_room(Self::NAME, p.rows, &self.launch, &args.workspace, self.workspace_bytes())?;
        check_sequences(Self::NAME, p.sequences, &self.launch)?;
        args.accepted.check(Self::NAME, "accepted", [p.sequences])?;
        args.slots.check(Self::NAME, p.slots, p.positions)?;
        args.logits.check(Self::NAME, "logits", [p.rows, p.vocab])?;
        let probabilities = [p.slots, *ring_rows, p.vocab];
        args.probabilities.check(Self::NAME, "probabilities", probabilities)?;
        args.rows.check(Self::NAME, p.sequences)?;
        args.sampling.check(Self::NAME, p.slots, p.max_bias)
    }
}

/// Sequences that a grid has blocks for.
fn check_sequences(op: &'static str, sequences: usize, launch: &Launch) -> Result<()> {
    const MOST: usize = 65_535;
    if launch.multiprocessors.is_some() && sequences > MOST {
        let what = format!("{sequences} sequences on CUDA (at most {MOST} are)");
        return Err(Error::Unsupported { op, what });
    }
    Ok(())
}

//! Choosing tokens: argmax and coupled sampling.

use crate::{
    Problem, Sampling,
    problem::{Launch, at_least_one, at_most, check_logits, chunks, operation},
};
use kernels_core::{Backend, Result, Rows, Tensor, TensorMut, workspace::Layout};

/// The bounds of [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleProblem {
    /// Sequences of the launch, padding included.
    pub sequences: usize,
    /// Rows of logits, unowned ones included.
    pub rows: usize,
    /// Columns of logits.
    pub vocab: usize,
    /// Ids at and beyond this are never chosen.
    pub valid: usize,
    /// Slots of the memories addressed.
    pub slots: usize,
    /// Positions a slot has tokens for.
    pub positions: usize,
    /// Biased tokens a slot may have.
    pub max_bias: usize,
}

impl SampleProblem {
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        self.base().check(op)?;
        at_most(op, "vocab", self.vocab, MAX_VOCAB)?;
        check_vocab(op, self.vocab, self.valid)
    }

    /// Without the vocabulary; a sampler does not care how rows spread over sequences.
    fn base(&self) -> Problem {
        let Self { sequences, rows, slots, positions, .. } = *self;
        Problem { sequences, rows, max_rows: rows, slots, positions }
    }
}

/// So many weights of at most 1 fit 64 bits in units of 2^-40.
const MAX_VOCAB: usize = 1 << 23;

pub(crate) fn check_vocab(op: &'static str, vocab: usize, valid: usize) -> Result<()> {
    at_least_one(op, "vocab", vocab)?;
    at_most(op, "vocab", vocab, i32::MAX as usize)?;
    at_least_one(op, "valid", valid)?;
    at_most(op, "valid", valid, vocab)
}

operation! {
    /// Chooses a token in every row, by the rules of the row's slot.
    ///
    /// The row at position `p` chooses the token of `p + 1`, knowing `tokens[0..=p]` (drafts of this
    /// round included). In this order, each step on what the one before left:
    ///
    /// 1. A logit that is NaN or minus infinity, or whose id is not below `valid`, is masked for good.
    /// 2. Penalties. Repetition `r`, for ids anywhere in `tokens[0..=p]`: `l / r` if `l > 0`, else `l * r`.
    ///    Presence, then frequency, for ids in the answer `tokens[prompt..=p]`: `l - presence`,
    ///    `l - frequency * count`.
    /// 3. Bias: `l + bias`.
    /// 4. Temperature below [`GREEDY_BELOW`](crate::GREEDY_BELOW): the largest logit, the smallest id on a
    ///    tie, and nothing below applies. Else `z = (l - max) / temperature`. (A `max` of plus infinity
    ///    leaves only the ids that have it, all alike.)
    /// 5. Top-k keeps the `k` largest, top-p the shortest run of the largest whose mass is at least
    ///    `top_p` times the mass that top-k left, and at least one; both order by `l`, then by smallest id.
    /// 6. Min-p keeps ids with `e^z >= min_p`: probability relative to the largest.
    /// 7. The choice is the largest `z + g`, the smallest id on a tie, with `g` the Gumbel noise of
    ///    ([`Use::Draw`](kernels_core::philox::Use), seed, `p + 1`, id). That is a draw from the softmax
    ///    of what is left, and depends neither on the round nor on the row nor on the batch.
    ///
    /// Mass is the sum of `e^z` over a set of ids in whole units of 2^-40, each weight cut off to them: a
    /// sum of integers has no order, so that no tree has to be kept, and grows with the set, so that
    /// "shortest" is well defined. What is cut off is less than 2^-17 of the whole in any vocabulary of
    /// 2^23 ids, the most there may be; `top_p` times the mass is rounded up.
    ///
    /// The target and the draft use the same operation with the same parameters: each draws with the
    /// same noise from its own distribution, so that they agree as often as (1 - TV) / (1 + TV) at
    /// least, and what the target draws is what it draws without a draft.
    ///
    /// A row in which everything is masked chooses -1. That is a fault only where the token is needed, so
    /// [`Accept`](crate::Accept) records it: neither a rejected row nor a draft can end a sequence.
    Sample, "spec::sample", SampleProblem, SampleArgs, sample
}

/// Operands of [`Sample`].
#[derive(Debug)]
pub struct SampleArgs<'a, B: Backend> {
    /// `[rows]`: the chosen ids; -1 where everything is masked and in rows of padding or of nobody.
    pub choice: TensorMut<'a, B, i32, 1>,
    /// `[slots + 1]`: sticky fault words.
    pub faults: TensorMut<'a, B, u64, 1>,
    /// `[rows, vocab]`.
    pub logits: Tensor<'a, B, f32, 2>,
    /// Whose rows they are.
    pub rows: Rows<'a, B>,
    /// `[slots, positions]`: token ids by absolute position.
    pub tokens: Tensor<'a, B, i32, 2>,
    /// `[slots]`: tokens of the prompt.
    pub prompt: Tensor<'a, B, i32, 1>,
    /// How each slot draws.
    pub sampling: Sampling<'a, B>,
    /// `[workspace]`: [`Sample::workspace_bytes`] on CUDA; the CPU does without. Anything before and after.
    pub workspace: Option<TensorMut<'a, B, u8, 1>>,
}

/// Where the parts of a workspace begin, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) struct SampleParts {
    pub(crate) vectors: usize,
    /// That run at once.
    pub(crate) blocks: usize,
    pub(crate) shaped: usize,
    pub(crate) shaped_stride: usize,
    pub(crate) best: usize,
    pub(crate) drawn: usize,
    pub(crate) found: usize,
    pub(crate) tasks: usize,
    pub(crate) patch_most: usize,
    pub(crate) bins: usize,
    pub(crate) sums: usize,
    pub(crate) candidates: usize,
    pub(crate) candidate_counts: usize,
    pub(crate) kept: usize,
    /// Of what follows, `Sample` has nothing.
    pub(crate) limits: usize,
    pub(crate) most: usize,
    /// Of `Rejection`.
    pub(crate) choice: usize,
    pub(crate) raced: usize,
    pub(crate) bytes: usize,
}

/// As in the C header.
const CANDIDATES: usize = 4096;
const BINS: usize = 1024;
/// Groups of ids that a chunk names.
const FOUND: usize = 8;
/// As in the C header: 1024 times as many ids are a chunk of a residual's race.
const RACE_VECTORS: usize = 4;
/// Neighbours whose largest logit is kept together.
const PATCH: usize = 128;

/// Who looks at the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Sample,
    Draft,
    Rejection,
}

impl SampleParts {
    /// Nothing on the CPU.
    pub(crate) fn of(p: &SampleProblem, launch: &Launch, purpose: Purpose) -> Self {
        if launch.multiprocessors.is_none() {
            return SampleParts::default();
        }
        let vectors = launch.stream_vectors(p.rows, p.valid);
        let in_a_row = chunks(p.valid, vectors);
        let shaped_stride = p.valid.next_multiple_of(4);
        let mut layout = Layout::default();
        let mut parts = SampleParts {
            vectors,
            blocks: launch.blocks(),
            shaped: layout.add::<f32>(p.rows * shaped_stride).start,
            shaped_stride,
            best: layout.add::<u64>(p.rows * in_a_row).start,
            drawn: layout.add::<u64>(p.rows * in_a_row).start,
            found: layout.add::<u64>(p.rows * in_a_row * FOUND).start,
            tasks: layout.add::<u32>(p.rows).start,
            patch_most: layout.add::<u32>(p.rows * p.valid.div_ceil(PATCH)).start,
            bins: layout.add::<u32>(p.rows * BINS).start,
            sums: layout.add::<u64>(p.rows * 2).start,
            candidates: layout.add::<u64>(p.rows * CANDIDATES).start,
            candidate_counts: layout.add::<u32>(p.rows).start,
            kept: layout.add::<u64>(p.rows).start,
            ..SampleParts::default()
        };
        if purpose != Purpose::Sample {
            parts.limits = layout.add::<u64>(p.rows).start;
            parts.most = layout.add::<u64>(p.rows).start;
        }
        if purpose == Purpose::Rejection {
            parts.choice = layout.add::<i32>(p.rows).start;
            parts.raced = layout.add::<u64>(p.sequences * chunks(p.valid, RACE_VECTORS)).start;
        }
        parts.bytes = layout.bytes();
        parts
    }
}

/// The rows, and the bytes of a workspace.
pub(crate) fn check_room<B: Backend>(
    op: &'static str,
    rows: usize,
    launch: &Launch,
    workspace: &Option<TensorMut<'_, B, u8, 1>>,
    bytes: usize,
) -> Result<()> {
    check_logits(op, rows, launch)?;
    if let Some(workspace) = workspace {
        workspace.check(op, "workspace", [bytes])?;
        workspace.check_disjoint(op, "workspace")?;
    }
    Ok(())
}

impl Sample {
    /// Bytes of [`SampleArgs::workspace`]; 0 on the CPU.
    ///
    /// Mostly the logits behind penalties and bias, for slots that have any.
    pub fn workspace_bytes(&self) -> usize {
        self.parts().bytes
    }

    /// Deals a row to blocks of 1024 times so many ids on CUDA: 1, 2 or a multiple of 4. No bit depends on it.
    pub fn with_vectors_per_thread(mut self, vectors: usize) -> Self {
        self.launch.vectors = Some(vectors);
        self
    }

    pub(crate) fn parts(&self) -> SampleParts {
        SampleParts::of(&self.problem, &self.launch, Purpose::Sample)
    }

    fn check<B: Backend>(&self, args: &SampleArgs<'_, B>) -> Result<()> {
        let p = &self.problem;
        check_room(Self::NAME, p.rows, &self.launch, &args.workspace, self.workspace_bytes())?;
        args.choice.check(Self::NAME, "choice", [p.rows])?;
        args.faults.check(Self::NAME, "faults", [p.slots + 1])?;
        args.logits.check(Self::NAME, "logits", [p.rows, p.vocab])?;
        args.rows.check(Self::NAME, p.sequences)?;
        args.tokens.check(Self::NAME, "tokens", [p.slots, p.positions])?;
        args.prompt.check(Self::NAME, "prompt", [p.slots])?;
        args.sampling.check(Self::NAME, p.slots, p.max_bias)
    }
}

/// The bounds of [`Argmax`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgmaxProblem {
    /// Rows of logits.
    pub rows: usize,
    /// Columns of logits.
    pub vocab: usize,
    /// Ids at and beyond this are never chosen.
    pub valid: usize,
}

impl ArgmaxProblem {
    fn check(&self, op: &'static str) -> Result<()> {
        at_least_one(op, "rows", self.rows)?;
        at_most(op, "rows", self.rows, i32::MAX as usize)?;
        check_vocab(op, self.vocab, self.valid)
    }
}

operation! {
    /// The largest logit of every row: fp32, ties to the smallest id, NaN never.
    Argmax, "spec::argmax", ArgmaxProblem, ArgmaxArgs, argmax
}

/// Operands of [`Argmax`].
#[derive(Debug)]
pub struct ArgmaxArgs<'a, B: Backend> {
    /// `[rows]`: the id; -1 where there is nothing but NaN.
    pub choice: TensorMut<'a, B, i32, 1>,
    /// `[rows, vocab]`.
    pub logits: Tensor<'a, B, f32, 2>,
    /// `[workspace]`: [`Argmax::workspace_bytes`] on CUDA; the CPU does without. Anything before and after.
    pub workspace: Option<TensorMut<'a, B, u8, 1>>,
}

impl Argmax {
    /// Bytes of [`ArgmaxArgs::workspace`]; 0 on the CPU.
    pub fn workspace_bytes(&self) -> usize {
        let p = &self.problem;
        match self.launch.multiprocessors {
            None => 0,
            Some(_) => 8 * p.rows * chunks(p.valid, self.vectors()),
        }
    }

    /// Deals a row to blocks of 1024 times so many ids on CUDA: 1, 2, 4 or 8. No bit depends on it.
    pub fn with_vectors_per_thread(mut self, vectors: usize) -> Self {
        self.launch.vectors = Some(vectors);
        self
    }

    pub(crate) fn vectors(&self) -> usize {
        self.launch.vectors(self.problem.rows, self.problem.valid)
    }

    fn check<B: Backend>(&self, args: &ArgmaxArgs<'_, B>) -> Result<()> {
        let p = &self.problem;
        check_room(Self::NAME, p.rows, &self.launch, &args.workspace, self.workspace_bytes())?;
        args.choice.check(Self::NAME, "choice", [p.rows])?;
        args.logits.check(Self::NAME, "logits", [p.rows, p.vocab])
    }
}

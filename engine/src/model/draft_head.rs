//! A head with some rows of the target's: what drafts are chosen by, where reading the whole one would cost more than
//! the drafts it finds.

use super::{Context, EngineBackend, Model, Op, Workspaces};
use crate::{Result, config::Config, draft::DraftVocab};
use kernels_core::{Activation, Backend, Tensor, TensorMut};
use kernels_dense::{Embed, EmbedArgs, EmbedProblem, Head, HeadArgs, HeadProblem};

/// The rows of the head whose ids may be drafted.
#[derive(Debug)]
pub struct DraftHead<B: Backend, A: Activation> {
    vocab: DraftVocab,
    /// Rows, those included that stand for no id.
    rows: usize,
    /// `[rows]`: the id of each row, -1 behind the last.
    ids: B::Memory<i32>,
    /// `[rows, hidden]`
    weight: B::Memory<A>,
}

/// CUDA kernels take rows in groups of this many.
const ROWS: usize = 8;

impl<B: EngineBackend, A: Activation> Model<B, A> {
    /// From now on drafts are chosen among these ids, by a head that has their rows only. What the target chooses does
    /// not change, and so no output does.
    pub fn trim_drafts(&mut self, cx: &Context<B>, vocab: DraftVocab) -> Result<()> {
        let rows = vocab.ids().len().next_multiple_of(ROWS);
        let ids = B::zeros(&cx.queue, rows)?;
        let weight = B::zeros(&cx.queue, rows * self.config.hidden)?;
        self.draft_head = Some(DraftHead { vocab, rows, ids, weight });
        self.gather(cx)
    }

    /// The ids that drafts are chosen from, where that are not all.
    pub fn draft_vocab(&self) -> Option<&DraftVocab> {
        self.draft_head.as_ref().map(|head| &head.vocab)
    }

    pub(crate) fn draft_vocab_mut(&mut self) -> Option<&mut DraftVocab> {
        self.draft_head.as_mut().map(|head| &mut head.vocab)
    }

    /// Copies the rows of the listed ids, ordered on the queue: launches before see the old list, launches behind the
    /// new one.
    pub(crate) fn gather(&mut self, cx: &Context<B>) -> Result<()> {
        let Some(to) = &mut self.draft_head else { return Ok(()) };
        let (rows, Config { hidden: n, vocab, .. }) = (to.rows, &self.config);
        let mut ids: Vec<i32> = to.vocab.ids().iter().map(|id| *id as i32).collect();
        ids.resize(rows, -1);
        B::write(&cx.queue, &mut to.ids, 0, &ids)?;
        let args = EmbedArgs::<B, A> {
            out: TensorMut::of(&mut to.weight, [rows, *n]),
            ids: Tensor::of(&to.ids, [rows]),
            table: Tensor::of(self.head.as_ref().unwrap_or(&self.embed), [*vocab, *n]),
        };
        let op = Embed::plan(EmbedProblem { rows, n: *n, vocab: *vocab }, &cx.device)?;
        cx.run(Op::Gather, |on| op.run(on, args))
    }

    /// As [`logits`](Self::logits), by the trimmed head: only columns of listed ids are written, the others have to be
    /// -inf already.
    pub(crate) fn draft_logits(
        &self,
        cx: &Context<B>,
        hidden: Tensor<'_, B, A, 2>,
        logits: &mut B::Memory<f32>,
        workspaces: &mut Workspaces<B>,
    ) -> Result<()> {
        let head = self.draft_head.as_ref().expect("there is memory for its logits because there is one");
        let Config { hidden: k, vocab, .. } = self.config;
        let rows = hidden.dims[0];
        let problem = HeadProblem { rows, k, vocab, valid: self.valid_vocab, listed: Some(head.rows) };
        let op = Head::plan(problem, &cx.device)?;
        let args = HeadArgs {
            logits: Some(TensorMut::of(logits, [rows, vocab])),
            argmax: None,
            x: hidden.reborrow(),
            weight: Tensor::of(&head.weight, [head.rows, k]),
            ids: Some(Tensor::of(&head.ids, [head.rows])),
            workspace: workspaces.dense.lend(&cx.queue, op.workspace_bytes())?,
        };
        cx.stream(Op::Head, head.rows * k * size_of::<A>(), |on| op.run(on, args))
    }
}

//! A head that drafts alone are chosen by, where reading the target's would cost more than the drafts it finds: with some of
//! its rows, or with rows in fp8, or both.

use super::{Context, EngineBackend, Model, Op, Workspaces, early};
use crate::{
    Result,
    cache::{product, sum},
    config::Config,
    draft::DraftVocab,
};
use kernels_core::{Activation, Backend, Tensor, TensorMut};
use kernels_dense::{
    Embed, EmbedArgs, EmbedProblem, Fp8Head, Fp8HeadArgs, Head, HeadArgs, HeadProblem, Quantize,
    QuantizeArgs, QuantizeProblem,
};

/// The rows that drafts are chosen by, made from those of the target's head.
#[derive(Debug)]
pub struct DraftHead<B: Backend, A: Activation> {
    /// `None` = all ids, each in its row.
    listed: Option<Listed<B>>,
    /// Rows, those included that stand for no id.
    rows: usize,
    weight: Weight<B, A>,
}

/// Which ids may be drafted.
#[derive(Debug)]
struct Listed<B: Backend> {
    vocab: DraftVocab,
    /// `[rows]`: the id of each row, -1 behind the last.
    ids: B::Memory<i32>,
}

#[derive(Debug)]
enum Weight<B: Backend, A: Activation> {
    /// `[rows, hidden]`, as in the target's head.
    Same(B::Memory<A>),
    /// E4M3 codes, and the scale of each row.
    Fp8 {
        /// `[rows, hidden]`
        codes: B::Memory<u8>,
        /// `[rows]`
        scales: B::Memory<f32>,
    },
}

/// CUDA kernels take rows in groups of this many.
const ROWS: usize = 8;

/// What drafts are chosen by, where that is not the target's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftRows {
    /// Of so many ids; `None`: of all.
    pub listed: Option<usize>,
    /// In fp8; else copies of the target's.
    pub fp8: bool,
}

impl DraftRows {
    fn rows(self, c: &Config) -> usize {
        self.listed.map_or(c.vocab, |ids| ids.next_multiple_of(ROWS))
    }

    /// Bytes of the head, and of the logits beside the target's that some ids need, with weights of `element` bytes.
    pub(crate) fn bytes(self, c: &Config, slots: usize, element: usize) -> usize {
        let rows = self.rows(c);
        // A code for each element and a scale for each row.
        let weight = if self.fp8 { [rows, c.hidden + 4] } else { [rows, c.hidden * element] };
        let listed = self.listed.map_or(0, |_| sum(&[product(&[rows, 4]), product(&[slots, c.vocab, 4])]));
        sum(&[product(&weight), listed])
    }
}

impl<B: EngineBackend, A: Activation> Model<B, A> {
    /// From now on drafts are chosen among these ids, by a head that has their rows only. What the target chooses does
    /// not change, and so no output does.
    pub fn trim_drafts(&mut self, cx: &Context<B>, vocab: DraftVocab) -> Result<()> {
        self.make_draft_head(cx, Some(vocab), self.drafts_in_fp8())
    }

    /// From now on drafts are chosen by rows in fp8, of the ids that they are chosen among. What the target chooses does
    /// not change, and so no output does.
    pub fn quantize_drafts(&mut self, cx: &Context<B>) -> Result<()> {
        self.make_draft_head(cx, self.draft_vocab().cloned(), true)
    }

    fn make_draft_head(&mut self, cx: &Context<B>, vocab: Option<DraftVocab>, fp8: bool) -> Result<()> {
        // One that was there makes room first.
        self.draft_head = None;
        let (on, hidden) = (&cx.queue, self.config.hidden);
        let listed = vocab.as_ref().map(|vocab| vocab.ids().len());
        let rows = DraftRows { listed, fp8 }.rows(&self.config);
        let listed = vocab.map(|vocab| B::zeros(on, rows).map(|ids| Listed { vocab, ids })).transpose()?;
        let weight = if fp8 {
            Weight::Fp8 { codes: B::zeros(on, rows * hidden)?, scales: B::zeros(on, rows)? }
        } else {
            Weight::Same(B::zeros(on, rows * hidden)?)
        };
        self.draft_head = Some(DraftHead { listed, rows, weight });
        self.gather(cx)
    }

    /// The ids that drafts are chosen from, where that are not all.
    pub fn draft_vocab(&self) -> Option<&DraftVocab> {
        self.draft_head.as_ref()?.listed.as_ref().map(|listed| &listed.vocab)
    }

    pub(crate) fn draft_vocab_mut(&mut self) -> Option<&mut DraftVocab> {
        self.draft_head.as_mut()?.listed.as_mut().map(|listed| &mut listed.vocab)
    }

    /// Whether drafts are chosen by rows in fp8.
    pub fn drafts_in_fp8(&self) -> bool {
        self.draft_head.as_ref().is_some_and(|head| matches!(head.weight, Weight::Fp8 { .. }))
    }

    /// Copies the rows of the listed ids, ordered on the queue: launches before see the old list, launches behind the
    /// new one. A head reads its rows before launches in front of it are done, and norms let it: a launch that waits
    /// first has to stand between.
    pub(crate) fn gather(&mut self, cx: &Context<B>) -> Result<()> {
        let Some(to) = &mut self.draft_head else { return Ok(()) };
        let (rows, Config { hidden: k, vocab, .. }) = (to.rows, &self.config);
        let (k, vocab) = (*k, *vocab);
        if let Some(listed) = &mut to.listed {
            let mut ids: Vec<i32> = listed.vocab.ids().iter().map(|id| *id as i32).collect();
            ids.resize(rows, -1);
            B::write(&cx.queue, &mut listed.ids, 0, &ids)?;
        }
        let ids = to.listed.as_ref().map(|listed| Tensor::of(&listed.ids, [rows]));
        let table = Tensor::of(self.head.as_ref().unwrap_or(&self.embed), [vocab, k]);
        match &mut to.weight {
            Weight::Same(weight) => {
                let ids = ids.expect("all rows as they are would be the target's head");
                let args = EmbedArgs::<B, A> { out: TensorMut::of(weight, [rows, k]), ids, table };
                let op = Embed::plan(EmbedProblem { rows, n: k, vocab }, &cx.device)?;
                cx.run(Op::Gather, |on| op.run(on, args))
            }
            Weight::Fp8 { codes, scales } => {
                let problem = QuantizeProblem { rows, k, chosen_from: ids.as_ref().map(|_| vocab) };
                let (weight, scales) = (TensorMut::of(codes, [rows, k]), TensorMut::of(scales, [rows]));
                let args = QuantizeArgs::<B, A> { weight, scales, table, ids };
                let op = Quantize::plan(problem, &cx.device)?;
                cx.run(Op::Gather, |on| op.run(on, args))
            }
        }
    }

    /// As [`logits`](Self::logits), for drafts. Of some ids only their columns are written: the others have to be -inf
    /// already.
    pub(crate) fn draft_logits(
        &self,
        cx: &Context<B>,
        hidden: Tensor<'_, B, A, 2>,
        logits: &mut B::Memory<f32>,
        workspaces: &mut Workspaces<B>,
    ) -> Result<()> {
        let Some(head) = &self.draft_head else { return self.logits(cx, hidden, logits, workspaces) };
        let Config { hidden: k, vocab, .. } = self.config;
        let rows = hidden.dims[0];
        let listed = head.listed.as_ref();
        let problem =
            HeadProblem { rows, k, vocab, valid: self.valid_vocab, listed: listed.map(|_| head.rows) };
        let ids = listed.map(|listed| Tensor::of(&listed.ids, [head.rows]));
        let (logits, x) = (TensorMut::of(logits, [rows, vocab]), hidden.reborrow());
        match &head.weight {
            Weight::Same(weight) => {
                let op = Head::plan(problem, &cx.device)?.overlapping(early(rows));
                let weight = Tensor::of(weight, [head.rows, k]);
                let workspace = workspaces.dense.lend(&cx.queue, op.workspace_bytes())?;
                let args = HeadArgs { logits: Some(logits), argmax: None, x, weight, ids, workspace };
                cx.stream(Op::Head, head.rows * k * size_of::<A>(), |on| op.run(on, args))
            }
            Weight::Fp8 { codes, scales } => {
                let weight = Tensor::of(codes, [head.rows, k]);
                let args = Fp8HeadArgs { logits, x, weight, scales: Tensor::of(scales, [head.rows]), ids };
                let op = Fp8Head::plan(problem, &cx.device)?.overlapping(early(rows));
                cx.stream(Op::Head, head.rows * (k + 4), |on| op.run(on, args))
            }
        }
    }
}

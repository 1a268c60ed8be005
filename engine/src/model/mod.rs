//! The target model and its MTP head: weights on a backend, and the forward pass over ragged rows.

mod attention;
mod build;
mod draft_head;
mod ffn;
mod gdn;
mod random;
pub(crate) mod scratch;
mod trace;
mod workspace;

pub use build::build;
pub use draft_head::{DraftHead, DraftRows};
pub use random::{Scales, random};
pub use scratch::Scratch;
pub use trace::{Op, Side, Span, Trace};
pub use workspace::{Workspace, Workspaces};

use crate::{Result, cache::Caches, config::Config, machine::Machine};
use kernels_attn::AttnBackend;
use kernels_conv::ConvBackend;
use kernels_core::{Activation, Backend, DeviceInfo, Rows, Tensor, TensorMut, fault};
use kernels_dense::{
    ConcatNorm, ConcatNormArgs, DenseBackend, Embed, EmbedArgs, EmbedProblem, Epilogue, Head, HeadArgs,
    HeadProblem, Linear, LinearArgs, LinearProblem, Norm, NormArgs, NormProblem,
};
use kernels_gdn::GdnBackend;
use kernels_spec::SpecBackend;

/// A backend with every kernel family: what the engine needs.
pub trait EngineBackend:
    Machine + AttnBackend + ConvBackend + DenseBackend + GdnBackend + SpecBackend
{
}
impl<B: Machine + AttnBackend + ConvBackend + DenseBackend + GdnBackend + SpecBackend> EngineBackend for B {}

/// Where operations run.
#[derive(Debug)]
pub struct Context<B: Machine> {
    /// The queue everything is enqueued on, in order.
    pub queue: B::Queue,
    /// What plans may know.
    pub device: DeviceInfo,
    /// When each of them began and ended, while it is on.
    pub trace: Trace<B>,
}

/// How the rows of a forward pass treat the GDN journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Rows may be rejected: they are journalled, and the state is left before them.
    Decode,
    /// Rows are certain: the state moves past them.
    Prefill,
}

/// The rows one forward pass computes. Numbers here are bounds; who owns which row is device data.
#[derive(Debug)]
pub struct Pass<'a, B: Backend> {
    /// Decode or prefill.
    pub kind: Kind,
    /// Rows of the pass.
    pub rows: usize,
    /// Sequences of the pass.
    pub sequences: usize,
    /// The most rows of one sequence.
    pub max_rows: usize,
    /// Slots, positions and row offsets.
    pub index: Rows<'a, B>,
    /// `[rows]`: token ids, negative where nobody owns the row.
    pub ids: Tensor<'a, B, i32, 1>,
}

/// Called with the residual stream `[rows, hidden]`: 0 after the embedding, `i + 1` after layer `i`.
pub type Tap<'t, B, A> = &'t mut dyn FnMut(usize, Tensor<'_, B, A, 2>);

/// A gated full-attention mixer.
#[derive(Debug)]
pub struct Attention<B: Backend, A: Activation> {
    /// `[(2 heads + 2 kv_heads) * head_dim, hidden]`: per head its query and its gate, then keys, then values.
    qkv: B::Memory<A>,
    /// `[hidden, heads * head_dim]`
    out: B::Memory<A>,
    /// `[head_dim]`
    q_norm: B::Memory<A>,
    /// `[head_dim]`
    k_norm: B::Memory<A>,
}

/// A Gated Delta Net mixer.
#[derive(Debug)]
pub struct Gdn<B: Backend, A: Activation> {
    /// `[projected_width, hidden]`: q, k and v (through the conv), z, b, a, and rows of zeros.
    input: B::Memory<A>,
    /// `[channels, width]`
    conv: B::Memory<A>,
    /// `[v_heads]`
    a_log: B::Memory<f32>,
    /// `[v_heads]`
    dt_bias: B::Memory<f32>,
    /// `[v_dim]`
    norm: B::Memory<f32>,
    /// `[hidden, v_heads * v_dim]`
    out: B::Memory<A>,
}

/// What mixes tokens in a layer.
#[derive(Debug)]
pub enum Mixer<B: Backend, A: Activation> {
    /// Full attention over paged K/V.
    Attention(Attention<B, A>),
    /// A linear recurrence.
    Gdn(Gdn<B, A>),
}

/// A feed-forward block.
#[derive(Debug)]
pub enum Ffn<B: Backend, A: Activation> {
    /// `down(silu(gate x) * up x)`
    Dense {
        /// `[2 intermediate, hidden]`: gate rows, then up rows.
        gate_up: B::Memory<A>,
        /// `[hidden, intermediate]`
        down: B::Memory<A>,
    },
    /// Routed experts and a gated shared one.
    Moe {
        /// `[experts, hidden]`
        router: B::Memory<A>,
        /// `[experts, 2 intermediate, hidden]`
        gate_up: B::Memory<A>,
        /// `[experts, hidden, intermediate]`
        down: B::Memory<A>,
        /// `[2 shared, hidden]`
        shared_gate_up: B::Memory<A>,
        /// `[hidden, shared]`
        shared_down: B::Memory<A>,
        /// `[1, hidden]`
        shared_gate: B::Memory<A>,
    },
}

/// One decoder layer.
#[derive(Debug)]
pub struct Layer<B: Backend, A: Activation> {
    pub(crate) input_norm: B::Memory<A>,
    pub(crate) mixer: Mixer<B, A>,
    pub(crate) post_norm: B::Memory<A>,
    pub(crate) ffn: Ffn<B, A>,
}

/// The draft head: one attention layer over (embedding of a token, hidden of the position before it).
#[derive(Debug)]
pub struct Mtp<B: Backend, A: Activation> {
    /// `[hidden, 2 hidden]`, embedding half first.
    pub(crate) fc: B::Memory<A>,
    pub(crate) embedding_norm: B::Memory<A>,
    pub(crate) hidden_norm: B::Memory<A>,
    pub(crate) layer: Layer<B, A>,
    pub(crate) norm: B::Memory<A>,
}

/// A loaded model.
#[derive(Debug)]
pub struct Model<B: Backend, A: Activation> {
    config: Config,
    /// Ids the tokenizer knows; the matrices have padding rows beyond, which are never chosen.
    valid_vocab: usize,
    embed: B::Memory<A>,
    layers: Vec<Layer<B, A>>,
    norm: B::Memory<A>,
    /// `None` = tied to the embedding.
    head: Option<B::Memory<A>>,
    mtp: Option<Mtp<B, A>>,
    /// `None` = drafts are chosen by the same head as tokens.
    draft_head: Option<DraftHead<B, A>>,
}

impl<B: EngineBackend, A: Activation> Model<B, A> {
    /// The checkpoint's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The draft head's weights.
    pub(crate) fn mtp(&self) -> Option<&Mtp<B, A>> {
        self.mtp.as_ref()
    }

    /// Whether the checkpoint has a draft head.
    pub fn has_mtp(&self) -> bool {
        self.mtp.is_some()
    }

    /// Ids below this may be chosen.
    pub fn valid_vocab(&self) -> usize {
        self.valid_vocab
    }

    /// Runs the target over the rows of `pass`; post-final-norm rows are left in `scratch.hidden`.
    pub fn forward(
        &self,
        cx: &Context<B>,
        pass: &Pass<'_, B>,
        scratch: &mut Scratch<B, A>,
        caches: &mut Caches<B, A>,
        mut tap: Option<Tap<'_, B, A>>,
    ) -> Result<()> {
        let (rows, n) = (pass.rows, self.config.hidden);
        self.embed(cx, pass.ids.reborrow(), rows, &mut scratch.residual)?;
        if let Some(tap) = &mut tap {
            tap(0, Tensor::of(&scratch.residual, [rows, n]));
        }
        let shared = &mut caches.shared;
        if let Some(pool) = caches.pools.first() {
            self.list_work(cx, pass, 0, pool, shared, scratch)?;
        }
        let (mut pools, mut recurrent) = (caches.pools.iter_mut(), caches.recurrent.iter_mut());
        for (i, layer) in self.layers.iter().enumerate() {
            self.norm(cx, rows, &scratch.residual, &layer.input_norm, &mut scratch.normed)?;
            match &layer.mixer {
                Mixer::Attention(weights) => {
                    let pool = pools.next().expect("one pool for each attention layer");
                    self.attention(cx, pass, weights, 0, pool, shared, scratch)?;
                }
                Mixer::Gdn(weights) => {
                    let memory = recurrent.next().expect("one recurrent memory for each GDN layer");
                    self.gdn(cx, pass, weights, memory, shared, scratch)?;
                }
            }
            self.norm(cx, rows, &scratch.residual, &layer.post_norm, &mut scratch.normed)?;
            self.ffn(cx, rows, Some(i), &layer.ffn, scratch)?;
            if let Some(tap) = &mut tap {
                tap(i + 1, Tensor::of(&scratch.residual, [rows, n]));
            }
        }
        self.norm(cx, rows, &scratch.residual, &self.norm, &mut scratch.hidden)
    }

    /// Runs the draft head over the rows of `pass`: row p sees the embedding of token p and, in
    /// `scratch.carried`, the hidden of position p - 1. Its normed output is left in `scratch.drafted`.
    pub fn draft(
        &self,
        cx: &Context<B>,
        pass: &Pass<'_, B>,
        scratch: &mut Scratch<B, A>,
        caches: &mut Caches<B, A>,
    ) -> Result<()> {
        let mtp = self.mtp.as_ref().expect("the drafter was chosen because the checkpoint has a head");
        let pool = caches.draft_pool.as_mut().expect("the draft pool is allocated with the drafter");
        let (rows, n, eps) = (pass.rows, self.config.hidden, self.config.eps);
        self.embed(cx, pass.ids.reborrow(), rows, &mut scratch.normed)?;
        let mut halves = [(&scratch.normed, &mtp.embedding_norm), (&scratch.carried, &mtp.hidden_norm)];
        if fault::active("engine.concat_swapped") {
            halves.reverse();
        }
        let [left, right] = halves;
        let problem = NormProblem { rows, n, eps };
        let op = ConcatNorm::plan(problem, &cx.device)?.overlapping(early(rows));
        let args = ConcatNormArgs::<B, A> {
            out: TensorMut::of(&mut scratch.concat, [rows, 2 * n]),
            left: Tensor::of(left.0, [rows, n]),
            left_weight: Tensor::of(left.1, [n]),
            right: Tensor::of(right.0, [rows, n]),
            right_weight: Tensor::of(right.1, [n]),
        };
        cx.run(Op::ConcatNorm, |on| op.run(on, args))?;
        let concat = Tensor::of(&scratch.concat, [rows, 2 * n]);
        let residual = TensorMut::of(&mut scratch.residual, [rows, n]);
        linear(cx, Op::MtpFc, &mut scratch.workspaces, residual, concat, &mtp.fc, Epilogue::Store)?;
        self.norm(cx, rows, &scratch.residual, &mtp.layer.input_norm, &mut scratch.normed)?;
        let Mixer::Attention(weights) = &mtp.layer.mixer else {
            unreachable!("the builder gives the draft head an attention layer")
        };
        // Row 0 of the draft's K/V has no predecessor and is never made: keys start at 1.
        self.list_work(cx, pass, 1, pool, &mut caches.shared, scratch)?;
        self.attention(cx, pass, weights, 1, pool, &mut caches.shared, scratch)?;
        self.norm(cx, rows, &scratch.residual, &mtp.layer.post_norm, &mut scratch.normed)?;
        self.ffn(cx, rows, None, &mtp.layer.ffn, scratch)?;
        self.norm(cx, rows, &scratch.residual, &mtp.norm, &mut scratch.drafted)
    }

    /// fp32 logits of normed hidden rows, into the first rows of `logits`.
    pub fn logits(
        &self,
        cx: &Context<B>,
        hidden: Tensor<'_, B, A, 2>,
        logits: &mut B::Memory<f32>,
        workspaces: &mut Workspaces<B>,
    ) -> Result<()> {
        let Config { hidden: k, vocab, .. } = self.config;
        let rows = hidden.dims[0];
        let problem = HeadProblem { rows, k, vocab, valid: self.valid_vocab, listed: None };
        let head = self.head.as_ref().unwrap_or(&self.embed);
        let op = Head::plan(problem, &cx.device)?.overlapping(early(rows));
        let args = HeadArgs {
            logits: Some(TensorMut::of(logits, [rows, vocab])),
            argmax: None,
            x: hidden.reborrow(),
            weight: Tensor::of(head, [vocab, k]),
            ids: None,
            workspace: workspaces.dense.lend(&cx.queue, op.workspace_bytes())?,
        };
        cx.stream(Op::Head, vocab * k * size_of::<A>(), |on| op.run(on, args))
    }

    pub(crate) fn embed(
        &self,
        cx: &Context<B>,
        ids: Tensor<'_, B, i32, 1>,
        rows: usize,
        out: &mut B::Memory<A>,
    ) -> Result<()> {
        let Config { hidden: n, vocab, .. } = self.config;
        let out = TensorMut::of(out, [rows, n]);
        let table = Tensor::of(&self.embed, [vocab, n]);
        let op = Embed::plan(EmbedProblem { rows, n, vocab }, &cx.device)?.overlapping(early(rows));
        cx.run(Op::Embed, |on| op.run(on, EmbedArgs { out, ids: ids.reborrow(), table }))
    }

    pub(crate) fn norm(
        &self,
        cx: &Context<B>,
        rows: usize,
        x: &B::Memory<A>,
        weight: &B::Memory<A>,
        out: &mut B::Memory<A>,
    ) -> Result<()> {
        let (n, eps) = (self.config.hidden, self.config.eps);
        let args = NormArgs::<B, A> {
            out: TensorMut::of(out, [rows, n]),
            x: Tensor::of(x, [rows, n]),
            weight: Tensor::of(weight, [n]),
        };
        let op = Norm::plan(NormProblem { rows, n, eps }, &cx.device)?.overlapping(early(rows));
        cx.run(Op::Norm, |on| op.run(on, args))
    }
}

/// Whether launches over so many rows had better begin before the ones in front have ended: few rows leave room on the
/// chip, and weights can come meanwhile. Behind a prompt's launches there is none: at 1,024 rows it cost a tenth.
pub(crate) fn early(rows: usize) -> bool {
    rows <= 256
}

/// `out = epilogue(x weight^T)`; the sizes are those of `out` and `x`.
pub(crate) fn linear<B: EngineBackend, A: Activation>(
    cx: &Context<B>,
    name: Op,
    workspaces: &mut Workspaces<B>,
    mut out: TensorMut<'_, B, A, 2>,
    x: Tensor<'_, B, A, 2>,
    weight: &B::Memory<A>,
    epilogue: Epilogue,
) -> Result<()> {
    let ([rows, k], n) = (x.dims, out.dims[1]);
    let weight_rows = if epilogue == Epilogue::SiluMul { 2 * n } else { n };
    let weight = Tensor::of(weight, [weight_rows, k]);
    // Not behind gate and up, whose blocks hold every multiprocessor to their end: 1.4 % of a step of the 27B.
    let overlapping = early(rows) && name != Op::Down;
    let op = Linear::plan(LinearProblem { rows, k, n, epilogue }, &cx.device)?.overlapping(overlapping);
    let workspace = workspaces.dense.lend(&cx.queue, op.workspace_bytes())?;
    let args = LinearArgs { out: out.reborrow(), x: x.reborrow(), weight, gate: None, workspace };
    cx.stream(name, weight_rows * k * size_of::<A>(), |on| op.run(on, args))
}

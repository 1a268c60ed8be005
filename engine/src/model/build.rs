//! From tensors to weights on a backend, projections that share an input fused.

use super::{Attention, EngineBackend, Ffn, Gdn, Layer, Mixer, Model, Mtp};
use crate::{
    Result,
    config::{Config, kernel_width},
    weights::{self, Checkpoint, TensorRef},
};
use kernels_core::{Activation, Backend};
use std::marker::PhantomData;

/// Uploads a checkpoint. Ids at and beyond `valid_vocab` are padding rows and never chosen.
///
/// Weights are rounded to `A` where the file's type is wider: that is what running a model in `A` means.
pub fn build<B: EngineBackend, A: Activation>(
    on: &B::Queue,
    checkpoint: &Checkpoint,
    valid_vocab: usize,
) -> Result<Model<B, A>> {
    from(
        &Upload::<B> { on, files: PhantomData },
        &checkpoint.model(),
        checkpoint.config().clone(),
        valid_vocab,
    )
}

/// Where the values of weights come from.
pub(super) trait Source {
    /// Where they go.
    type Backend: EngineBackend;
    /// What stands for a tensor.
    type Tensor;
    /// The rows of several matrices below each other, and this many zeros.
    fn rows<A: Activation>(&self, parts: &[&Self::Tensor], zeros: usize) -> Result<Memory<Self, A>>;
}

type Memory<S, A> = <<S as Source>::Backend as Backend>::Memory<A>;

/// A model of these tensors.
pub(super) fn from<S: Source, A: Activation>(
    source: &S,
    tensors: &weights::Model<S::Tensor>,
    config: Config,
    valid_vocab: usize,
) -> Result<Model<S::Backend, A>> {
    let parts = Parts { source, config: &config };
    let layers = tensors.layers.iter().map(|l| parts.layer(l));
    // Ids that no tokenizer has.
    let vocab = kernel_width(config.vocab);
    let zeros = (vocab - config.vocab) * config.hidden;
    Ok(Model {
        embed: source.rows(&[&tensors.embed], zeros)?,
        layers: layers.collect::<Result<_>>()?,
        norm: parts.rows(&[&tensors.final_norm])?,
        head: tensors.lm_head.as_ref().map(|head| source.rows(&[head], zeros)).transpose()?,
        mtp: tensors.mtp.as_ref().map(|mtp| parts.mtp(mtp)).transpose()?,
        draft_head: None,
        valid_vocab: valid_vocab.min(config.vocab),
        config: Config { vocab, ..config },
    })
}

/// Tensors of mapped files.
struct Upload<'q, 'c, B: Backend> {
    on: &'q B::Queue,
    files: PhantomData<&'c Checkpoint>,
}

impl<'c, B: EngineBackend> Source for Upload<'_, 'c, B> {
    type Backend = B;
    type Tensor = TensorRef<'c>;

    fn rows<A: Activation>(&self, parts: &[&TensorRef<'c>], zeros: usize) -> Result<B::Memory<A>> {
        let read: usize = parts.iter().map(|part| part.elements()).sum();
        let mut all = vec![A::default(); read + zeros];
        let mut rest = &mut all[..];
        for part in parts {
            let (here, after) = rest.split_at_mut(part.elements());
            part.read_rounded(here);
            rest = after;
        }
        Ok(B::upload(self.on, &all)?)
    }
}

struct Parts<'s, S> {
    source: &'s S,
    config: &'s Config,
}

impl<S: Source> Parts<'_, S> {
    fn rows<A: Activation>(&self, parts: &[&S::Tensor]) -> Result<Memory<S, A>> {
        self.source.rows(parts, 0)
    }

    fn layer<A: Activation>(&self, l: &weights::Layer<S::Tensor>) -> Result<Layer<S::Backend, A>> {
        Ok(Layer {
            input_norm: self.rows(&[&l.input_norm])?,
            mixer: match &l.mixer {
                weights::Mixer::Full(a) => Mixer::Attention(self.attention(a)?),
                weights::Mixer::Linear(g) => Mixer::Gdn(self.gdn(g)?),
            },
            post_norm: self.rows(&[&l.post_attention_norm])?,
            ffn: self.ffn(&l.ffn)?,
        })
    }

    fn attention<A: Activation>(
        &self,
        a: &weights::Attention<S::Tensor>,
    ) -> Result<Attention<S::Backend, A>> {
        Ok(Attention {
            qkv: self.rows(&[&a.q_proj, &a.k_proj, &a.v_proj])?,
            out: self.rows(&[&a.o_proj])?,
            q_norm: self.rows(&[&a.q_norm])?,
            k_norm: self.rows(&[&a.k_norm])?,
        })
    }

    fn gdn<A: Activation>(&self, g: &weights::LinearAttention<S::Tensor>) -> Result<Gdn<S::Backend, A>> {
        let Config { gdn, hidden, .. } = self.config;
        let filled = gdn.projected_width() - gdn.conv_channels() - gdn.v_width() - 2 * gdn.v_heads;
        let input = [&g.in_proj_qkv, &g.in_proj_z, &g.in_proj_b, &g.in_proj_a];
        Ok(Gdn {
            input: self.source.rows(&input, filled * hidden)?,
            conv: self.rows(&[&g.conv1d])?,
            a_log: self.rows(&[&g.a_log])?,
            dt_bias: self.rows(&[&g.dt_bias])?,
            norm: self.rows(&[&g.norm])?,
            out: self.rows(&[&g.out_proj])?,
        })
    }

    fn ffn<A: Activation>(&self, ffn: &weights::Ffn<S::Tensor>) -> Result<Ffn<S::Backend, A>> {
        Ok(match ffn {
            weights::Ffn::Dense(mlp) => Ffn::Dense {
                gate_up: self.rows(&[&mlp.gate_proj, &mlp.up_proj])?,
                down: self.rows(&[&mlp.down_proj])?,
            },
            weights::Ffn::Moe(moe) => {
                let (gate_up, down): (Vec<_>, Vec<_>) = match &moe.experts {
                    weights::Experts::Fused { gate_up, down } => (vec![gate_up], vec![down]),
                    weights::Experts::Split(list) => (
                        list.iter().flat_map(|e| [&e.gate_proj, &e.up_proj]).collect(),
                        list.iter().map(|e| &e.down_proj).collect(),
                    ),
                };
                Ffn::Moe {
                    router: self.rows(&[&moe.router])?,
                    gate_up: self.rows(&gate_up)?,
                    down: self.rows(&down)?,
                    shared_gate_up: self.rows(&[&moe.shared.gate_proj, &moe.shared.up_proj])?,
                    shared_down: self.rows(&[&moe.shared.down_proj])?,
                    shared_gate: self.rows(&[&moe.shared_gate])?,
                }
            }
        })
    }

    fn mtp<A: Activation>(&self, mtp: &weights::Mtp<S::Tensor>) -> Result<Mtp<S::Backend, A>> {
        Ok(Mtp {
            fc: self.rows(&[&mtp.fc])?,
            embedding_norm: self.rows(&[&mtp.norm_embedding])?,
            hidden_norm: self.rows(&[&mtp.norm_hidden])?,
            layer: self.layer(&mtp.layer)?,
            norm: self.rows(&[&mtp.norm])?,
        })
    }
}

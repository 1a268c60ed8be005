//! From a checkpoint's tensors to weights on a backend, projections that share an input fused.

use super::{Attention, EngineBackend, Ffn, Gdn, Layer, Mixer, Model, Mtp};
use crate::{
    Result,
    weights::{self, Checkpoint, TensorRef},
};
use kernels_core::{Activation, Backend};

/// Uploads a checkpoint. Ids at and beyond `valid_vocab` are padding rows and never chosen.
///
/// Weights are rounded to `A` where the file's type is wider: that is what running a model in `A` means.
pub fn build<B: EngineBackend, A: Activation>(
    on: &B::Queue,
    checkpoint: &Checkpoint,
    valid_vocab: usize,
) -> Result<Model<B, A>> {
    let up = Upload { on };
    let config = checkpoint.config().clone();
    let layers = (0..config.layers.len()).map(|i| up.layer(&checkpoint.layer(i)));
    Ok(Model {
        embed: up.matrix(&[checkpoint.embed()])?,
        layers: layers.collect::<Result<_>>()?,
        norm: up.matrix(&[checkpoint.final_norm()])?,
        head: checkpoint.lm_head().map(|head| up.matrix(&[head])).transpose()?,
        mtp: checkpoint.mtp().map(|mtp| up.mtp(&mtp)).transpose()?,
        valid_vocab: valid_vocab.min(config.vocab),
        config,
    })
}

struct Upload<'q, B: Backend> {
    on: &'q B::Queue,
}

impl<B: EngineBackend> Upload<'_, B> {
    /// The rows of several matrices below each other.
    fn matrix<A: Activation>(&self, parts: &[TensorRef<'_>]) -> Result<B::Memory<A>> {
        let mut all = vec![A::default(); parts.iter().map(TensorRef::elements).sum()];
        let mut rest = &mut all[..];
        for part in parts {
            let (here, after) = rest.split_at_mut(part.elements());
            part.read_rounded(here);
            rest = after;
        }
        Ok(B::upload(self.on, &all)?)
    }

    fn layer<A: Activation>(&self, l: &weights::Layer<TensorRef<'_>>) -> Result<Layer<B, A>> {
        Ok(Layer {
            input_norm: self.matrix(&[l.input_norm])?,
            mixer: match &l.mixer {
                weights::Mixer::Full(a) => Mixer::Attention(self.attention(a)?),
                weights::Mixer::Linear(g) => Mixer::Gdn(self.gdn(g)?),
            },
            post_norm: self.matrix(&[l.post_attention_norm])?,
            ffn: self.ffn(&l.ffn)?,
        })
    }

    fn attention<A: Activation>(&self, a: &weights::Attention<TensorRef<'_>>) -> Result<Attention<B, A>> {
        Ok(Attention {
            qkv: self.matrix(&[a.q_proj, a.k_proj, a.v_proj])?,
            out: self.matrix(&[a.o_proj])?,
            q_norm: self.matrix(&[a.q_norm])?,
            k_norm: self.matrix(&[a.k_norm])?,
        })
    }

    fn gdn<A: Activation>(&self, g: &weights::LinearAttention<TensorRef<'_>>) -> Result<Gdn<B, A>> {
        Ok(Gdn {
            input: self.matrix(&[g.in_proj_qkv, g.in_proj_z, g.in_proj_b, g.in_proj_a])?,
            conv: self.matrix(&[g.conv1d])?,
            a_log: self.matrix(&[g.a_log])?,
            dt_bias: self.matrix(&[g.dt_bias])?,
            norm: self.matrix(&[g.norm])?,
            out: self.matrix(&[g.out_proj])?,
        })
    }

    fn ffn<A: Activation>(&self, ffn: &weights::Ffn<TensorRef<'_>>) -> Result<Ffn<B, A>> {
        Ok(match ffn {
            weights::Ffn::Dense(mlp) => Ffn::Dense {
                gate_up: self.matrix(&[mlp.gate_proj, mlp.up_proj])?,
                down: self.matrix(&[mlp.down_proj])?,
            },
            weights::Ffn::Moe(moe) => Ffn::Moe {
                router: self.matrix(&[moe.router])?,
                gate_up: B::upload(self.on, &moe.experts.gate_up::<A>(true)?)?,
                down: B::upload(self.on, &moe.experts.down::<A>(true)?)?,
                shared_gate_up: self.matrix(&[moe.shared.gate_proj, moe.shared.up_proj])?,
                shared_down: self.matrix(&[moe.shared.down_proj])?,
                shared_gate: self.matrix(&[moe.shared_gate])?,
            },
        })
    }

    fn mtp<A: Activation>(&self, mtp: &weights::Mtp<TensorRef<'_>>) -> Result<Mtp<B, A>> {
        Ok(Mtp {
            fc: self.matrix(&[mtp.fc])?,
            embedding_norm: self.matrix(&[mtp.norm_embedding])?,
            hidden_norm: self.matrix(&[mtp.norm_hidden])?,
            layer: self.layer(&mtp.layer)?,
            norm: self.matrix(&[mtp.norm])?,
        })
    }
}

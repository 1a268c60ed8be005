//! The parts of a model as a tree, generic in what stands for a tensor.
//!
//! `Model<TensorSpec>` is what a configuration asks for, `Model<TensorRef>` what a checkpoint holds; a
//! backend maps either to a tree of its own device tensors with [`Model::try_map`]. One tree, so that the
//! names that are checked are the names that are loaded.

use crate::config::{Config, FeedForward, LayerKind};

/// A tensor a configuration asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// How many elements it has.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

macro_rules! part {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name<T> { $($(#[$field_doc])* pub $field: T),* }

        impl<T> $name<T> {
            /// Applies `f` to every tensor, in the order of the fields.
            pub fn try_map<U, E>(&self, f: &mut impl FnMut(&T) -> Result<U, E>) -> Result<$name<U>, E> {
                Ok($name { $($field: f(&self.$field)?),* })
            }
        }
    };
}

part! {
    /// A gated full-attention mixer. `q_proj` interleaves query and gate per head: `[heads * 2 * head_dim, hidden]`.
    Attention {
        /// `[heads * 2 * head_dim, hidden]`: for each head its query rows, then its gate rows.
        q_proj,
        /// `[kv_heads * head_dim, hidden]`
        k_proj,
        /// `[kv_heads * head_dim, hidden]`
        v_proj,
        /// `[hidden, heads * head_dim]`
        o_proj,
        /// `[head_dim]`, zero-centred.
        q_norm,
        /// `[head_dim]`, zero-centred.
        k_norm,
    }
}

part! {
    /// A Gated Delta Net mixer.
    LinearAttention {
        /// `[conv_channels, hidden]`: rows of queries, keys, values.
        in_proj_qkv,
        /// `[v_width, hidden]`: the output gate.
        in_proj_z,
        /// `[v_heads, hidden]`: write strength before its sigmoid.
        in_proj_b,
        /// `[v_heads, hidden]`: decay input before its softplus.
        in_proj_a,
        /// `[conv_channels, 1, conv_width]`; the last tap is the current token.
        conv1d,
        /// `[v_heads]`; keep in float32.
        a_log,
        /// `[v_heads]`; keep in float32.
        dt_bias,
        /// `[v_dim]`: the gated norm, one vector for all heads, *not* zero-centred.
        norm,
        /// `[hidden, v_width]`
        out_proj,
    }
}

part! {
    /// A gated MLP.
    Mlp {
        /// `[intermediate, hidden]`
        gate_proj,
        /// `[intermediate, hidden]`
        up_proj,
        /// `[hidden, intermediate]`
        down_proj,
    }
}

/// The routed experts of a layer, as the checkpoint stores them.
#[derive(Clone, Debug)]
pub enum Experts<T> {
    /// All experts in two tensors.
    Fused {
        /// `[experts, 2 * intermediate, hidden]`: gate rows, then up rows.
        gate_up: T,
        /// `[experts, hidden, intermediate]`
        down: T,
    },
    /// Three tensors per expert.
    Split(Vec<Mlp<T>>),
}

impl<T> Experts<T> {
    /// Applies `f` to every tensor.
    pub fn try_map<U, E>(&self, f: &mut impl FnMut(&T) -> Result<U, E>) -> Result<Experts<U>, E> {
        Ok(match self {
            Experts::Fused { gate_up, down } => Experts::Fused { gate_up: f(gate_up)?, down: f(down)? },
            Experts::Split(list) => {
                Experts::Split(list.iter().map(|e| e.try_map(f)).collect::<Result<_, E>>()?)
            }
        })
    }
}

/// A mixture of experts.
#[derive(Clone, Debug)]
pub struct Moe<T> {
    /// `[experts, hidden]`
    pub router: T,
    /// The routed experts.
    pub experts: Experts<T>,
    /// The shared expert.
    pub shared: Mlp<T>,
    /// `[1, hidden]`: the shared expert's gate before its sigmoid.
    pub shared_gate: T,
}

impl<T> Moe<T> {
    /// Applies `f` to every tensor.
    pub fn try_map<U, E>(&self, f: &mut impl FnMut(&T) -> Result<U, E>) -> Result<Moe<U>, E> {
        Ok(Moe {
            router: f(&self.router)?,
            experts: self.experts.try_map(f)?,
            shared: self.shared.try_map(f)?,
            shared_gate: f(&self.shared_gate)?,
        })
    }
}

/// The mixer of a layer.
#[derive(Clone, Debug)]
pub enum Mixer<T> {
    /// Gated softmax attention.
    Full(Attention<T>),
    /// Gated Delta Net.
    Linear(LinearAttention<T>),
}

/// The feed-forward half of a layer.
#[derive(Clone, Debug)]
pub enum Ffn<T> {
    /// One gated MLP.
    Dense(Mlp<T>),
    /// Routed experts and a shared one.
    Moe(Moe<T>),
}

/// A decoder layer.
#[derive(Clone, Debug)]
pub struct Layer<T> {
    /// `[hidden]`, zero-centred, before the mixer.
    pub input_norm: T,
    /// The mixer.
    pub mixer: Mixer<T>,
    /// `[hidden]`, zero-centred, between mixer and feed-forward.
    pub post_attention_norm: T,
    /// The feed-forward half.
    pub ffn: Ffn<T>,
}

impl<T> Layer<T> {
    /// Applies `f` to every tensor.
    pub fn try_map<U, E>(&self, f: &mut impl FnMut(&T) -> Result<U, E>) -> Result<Layer<U>, E> {
        Ok(Layer {
            input_norm: f(&self.input_norm)?,
            mixer: match &self.mixer {
                Mixer::Full(m) => Mixer::Full(m.try_map(f)?),
                Mixer::Linear(m) => Mixer::Linear(m.try_map(f)?),
            },
            post_attention_norm: f(&self.post_attention_norm)?,
            ffn: match &self.ffn {
                Ffn::Dense(mlp) => Ffn::Dense(mlp.try_map(f)?),
                Ffn::Moe(moe) => Ffn::Moe(moe.try_map(f)?),
            },
        })
    }
}

/// The MTP draft head. It shares the model's embedding and output head.
#[derive(Clone, Debug)]
pub struct Mtp<T> {
    /// `[hidden]`, zero-centred, on the embedding of the next token.
    pub norm_embedding: T,
    /// `[hidden]`, zero-centred, on the target's hidden state after its final norm.
    pub norm_hidden: T,
    /// `[hidden, 2 * hidden]`: the embedding's half first.
    pub fc: T,
    /// Its one layer; the mixer is always full attention.
    pub layer: Layer<T>,
    /// `[hidden]`, zero-centred, before the output head and before chaining.
    pub norm: T,
}

impl<T> Mtp<T> {
    /// Applies `f` to every tensor.
    pub fn try_map<U, E>(&self, f: &mut impl FnMut(&T) -> Result<U, E>) -> Result<Mtp<U>, E> {
        Ok(Mtp {
            norm_embedding: f(&self.norm_embedding)?,
            norm_hidden: f(&self.norm_hidden)?,
            fc: f(&self.fc)?,
            layer: self.layer.try_map(f)?,
            norm: f(&self.norm)?,
        })
    }
}

/// A whole model.
#[derive(Clone, Debug)]
pub struct Model<T> {
    /// `[vocab, hidden]`
    pub embed: T,
    /// The decoder layers.
    pub layers: Vec<Layer<T>>,
    /// `[hidden]`, zero-centred.
    pub final_norm: T,
    /// `[vocab, hidden]`; none when the embedding is the output head.
    pub lm_head: Option<T>,
    /// The draft head, where there is one.
    pub mtp: Option<Mtp<T>>,
}

impl<T> Model<T> {
    /// Applies `f` to every tensor, in the order of the forward pass, and stops at the first error.
    pub fn try_map<U, E>(&self, f: &mut impl FnMut(&T) -> Result<U, E>) -> Result<Model<U>, E> {
        Ok(Model {
            embed: f(&self.embed)?,
            layers: self.layers.iter().map(|l| l.try_map(f)).collect::<Result<_, E>>()?,
            final_norm: f(&self.final_norm)?,
            lm_head: self.lm_head.as_ref().map(&mut *f).transpose()?,
            mtp: self.mtp.as_ref().map(|mtp| mtp.try_map(f)).transpose()?,
        })
    }
}

/// Where the names of a checkpoint may differ from the releases'.
pub(super) struct Naming<'a> {
    /// In front of the decoder's names: `model.language_model.` or `model.`.
    pub(super) prefix: &'a str,
    /// Whether the experts under a prefix (`….mlp.experts.`) are one tensor each.
    pub(super) split: &'a dyn Fn(&str) -> bool,
}

impl Model<TensorSpec> {
    /// What `config` asks for, named as the releases name it, experts fused.
    pub fn of(config: &Config) -> Self {
        Self::named(config, &Naming { prefix: "model.language_model.", split: &|_| false })
    }

    pub(super) fn named(config: &Config, naming: &Naming<'_>) -> Self {
        let (h, v, prefix) = (config.hidden, config.vocab, naming.prefix);
        let layers = config.layers.iter().enumerate();
        Model {
            embed: spec(prefix, "embed_tokens.weight", [v, h]),
            layers: layers
                .map(|(i, &kind)| layer(config, naming, &format!("{prefix}layers.{i}."), kind))
                .collect(),
            final_norm: spec(prefix, "norm.weight", [h]),
            lm_head: (!config.tied).then(|| spec("", "lm_head.weight", [v, h])),
            mtp: (config.mtp_layers > 0).then(|| Mtp {
                norm_embedding: spec("mtp.", "pre_fc_norm_embedding.weight", [h]),
                norm_hidden: spec("mtp.", "pre_fc_norm_hidden.weight", [h]),
                fc: spec("mtp.", "fc.weight", [h, 2 * h]),
                layer: layer(config, naming, "mtp.layers.0.", LayerKind::Full),
                norm: spec("mtp.", "norm.weight", [h]),
            }),
        }
    }
}

/// Every tensor that `config` asks for, named as the releases name it, in the order of the forward pass.
///
/// ```
/// use engine::{config::Config, weights::required_tensors};
/// let config = Config::preset("qwen3.5-0.8b").unwrap();
/// let elements: usize = required_tensors(&config).map(|tensor| tensor.elements()).sum();
/// assert_eq!(elements, 772_845_888);
/// ```
pub fn required_tensors(config: &Config) -> impl Iterator<Item = TensorSpec> {
    let mut list = Vec::new();
    let Ok(_) = Model::of(config).try_map(&mut |tensor| -> Result<(), std::convert::Infallible> {
        list.push(tensor.clone());
        Ok(())
    });
    list.into_iter()
}

fn spec<const N: usize>(prefix: &str, name: &str, shape: [usize; N]) -> TensorSpec {
    TensorSpec { name: format!("{prefix}{name}"), shape: shape.to_vec() }
}

fn layer(config: &Config, naming: &Naming<'_>, at: &str, kind: LayerKind) -> Layer<TensorSpec> {
    let h = config.hidden;
    Layer {
        input_norm: spec(at, "input_layernorm.weight", [h]),
        mixer: match kind {
            LayerKind::Full => Mixer::Full(attention(config, &format!("{at}self_attn."))),
            LayerKind::Linear => Mixer::Linear(linear_attention(config, &format!("{at}linear_attn."))),
        },
        post_attention_norm: spec(at, "post_attention_layernorm.weight", [h]),
        ffn: match config.ffn {
            FeedForward::Dense { intermediate } => Ffn::Dense(mlp(&format!("{at}mlp."), intermediate, h)),
            FeedForward::Moe { experts, intermediate, shared_intermediate, .. } => {
                let under = format!("{at}mlp.experts.");
                Ffn::Moe(Moe {
                    router: spec(at, "mlp.gate.weight", [experts, h]),
                    experts: if (naming.split)(&under) {
                        let one = |e| mlp(&format!("{under}{e}."), intermediate, h);
                        Experts::Split((0..experts).map(one).collect())
                    } else {
                        Experts::Fused {
                            gate_up: spec(&under, "gate_up_proj", [experts, 2 * intermediate, h]),
                            down: spec(&under, "down_proj", [experts, h, intermediate]),
                        }
                    },
                    shared: mlp(&format!("{at}mlp.shared_expert."), shared_intermediate, h),
                    shared_gate: spec(at, "mlp.shared_expert_gate.weight", [1, h]),
                })
            }
        },
    }
}

fn attention(config: &Config, at: &str) -> Attention<TensorSpec> {
    let (h, d) = (config.hidden, config.head_dim);
    Attention {
        q_proj: spec(at, "q_proj.weight", [config.heads * 2 * d, h]),
        k_proj: spec(at, "k_proj.weight", [config.kv_heads * d, h]),
        v_proj: spec(at, "v_proj.weight", [config.kv_heads * d, h]),
        o_proj: spec(at, "o_proj.weight", [h, config.heads * d]),
        q_norm: spec(at, "q_norm.weight", [d]),
        k_norm: spec(at, "k_norm.weight", [d]),
    }
}

fn linear_attention(config: &Config, at: &str) -> LinearAttention<TensorSpec> {
    let (h, gdn) = (config.hidden, &config.gdn);
    LinearAttention {
        in_proj_qkv: spec(at, "in_proj_qkv.weight", [gdn.conv_channels(), h]),
        in_proj_z: spec(at, "in_proj_z.weight", [gdn.v_width(), h]),
        in_proj_b: spec(at, "in_proj_b.weight", [gdn.v_heads, h]),
        in_proj_a: spec(at, "in_proj_a.weight", [gdn.v_heads, h]),
        conv1d: spec(at, "conv1d.weight", [gdn.conv_channels(), 1, gdn.conv_width]),
        a_log: spec(at, "A_log", [gdn.v_heads]),
        dt_bias: spec(at, "dt_bias", [gdn.v_heads]),
        norm: spec(at, "norm.weight", [gdn.v_dim]),
        out_proj: spec(at, "out_proj.weight", [h, gdn.v_width()]),
    }
}

fn mlp(at: &str, intermediate: usize, h: usize) -> Mlp<TensorSpec> {
    Mlp {
        gate_proj: spec(at, "gate_proj.weight", [intermediate, h]),
        up_proj: spec(at, "up_proj.weight", [intermediate, h]),
        down_proj: spec(at, "down_proj.weight", [h, intermediate]),
    }
}

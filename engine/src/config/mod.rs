//! What a checkpoint says about itself: `config.json` and `generation_config.json`, checked.
//!
//! A [`Config`] that exists is one the engine can run: every number is in range, every product of sizes
//! fits, and everything that would change the mathematics and is not implemented has been refused by name.
//! Fields the engine does not know are ignored.

mod fields;
mod parse;
mod presets;

use crate::{Error, Result};
use fields::Fields;
use std::path::{Path, PathBuf};

pub use presets::PRESETS;

/// The mixer of one decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Gated Delta Net.
    Linear,
    /// Gated softmax attention.
    Full,
}

/// The least width from this one on that dense CUDA kernels take: rows are whole vectors of 16 bytes.
pub(crate) fn kernel_width(width: usize) -> usize {
    width.next_multiple_of(8)
}

/// The sizes of the Gated Delta Net layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gdn {
    /// Query and key heads.
    pub k_heads: usize,
    /// Value heads, a multiple of `k_heads`; value head j reads key head `j / (v_heads / k_heads)`.
    pub v_heads: usize,
    /// Width of a query or key head.
    pub k_dim: usize,
    /// Width of a value head.
    pub v_dim: usize,
    /// Taps of the causal convolution.
    pub conv_width: usize,
}

impl Gdn {
    /// Width of all query heads together, and of all key heads.
    pub fn k_width(&self) -> usize {
        self.k_heads * self.k_dim
    }

    /// Width of all value heads together.
    pub fn v_width(&self) -> usize {
        self.v_heads * self.v_dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub fn conv_channels(&self) -> usize {
        2 * self.k_width() + self.v_width()
    }

    /// Elements from one row of a journal to the next: raw k, v, a and b of a token, up to a
    /// width that dense kernels take.
    pub fn journal_stride(&self) -> usize {
        kernel_width(self.k_width() + self.v_width() + 2 * self.v_heads)
    }

    /// Width of everything a layer's input is projected to: the convolution's channels, z, b and a, and zeros up to a
    /// width that dense kernels take.
    pub fn projected_width(&self) -> usize {
        kernel_width(self.conv_channels() + self.v_width() + 2 * self.v_heads)
    }
}

/// The feed-forward half of every decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// One gated MLP.
    Dense {
        /// Its inner width.
        intermediate: usize,
    },
    /// Routed experts and one shared expert.
    Moe {
        /// How many routed experts there are.
        experts: usize,
        /// How many of them a token visits.
        top_k: usize,
        /// Inner width of a routed expert.
        intermediate: usize,
        /// Inner width of the shared expert.
        shared_intermediate: usize,
    },
}

/// What `generation_config.json` recommends; absent values mean "off".
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Whether to sample at all; greedy otherwise.
    pub sample: bool,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Keeps the k most likely tokens.
    pub top_k: Option<usize>,
    /// Keeps the smallest set of tokens that holds this much probability.
    pub top_p: Option<f32>,
    /// Drops tokens below this share of the most likely one's probability.
    pub min_p: Option<f32>,
    /// Subtracted once from the logit of every token already in the output.
    pub presence_penalty: Option<f32>,
    /// Divides positive and multiplies negative logits of tokens already seen.
    pub repetition_penalty: Option<f32>,
}

/// A Qwen3.5 or Qwen3.5-MoE text model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The `model_type` of the text model as the file spells it.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// The mixer of each decoder layer.
    pub layers: Vec<LayerKind>,
    /// Query heads of a full-attention layer.
    pub heads: usize,
    /// Key and value heads of a full-attention layer; divides `heads`.
    pub kv_heads: usize,
    /// Width of an attention head; not `hidden / heads`.
    pub head_dim: usize,
    /// The leading dimensions of a head that rotate; even.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// The Gated Delta Net layers.
    pub gdn: Gdn,
    /// The feed-forward halves.
    pub ffn: FeedForward,
    /// Rows of the embedding; the tokenizer may use fewer.
    pub vocab: usize,
    /// Added to the mean square under every RMS norm.
    pub eps: f32,
    /// Whether the embedding is also the output head.
    pub tied: bool,
    /// Layers of the MTP head: 0 or 1.
    pub mtp_layers: usize,
    /// The longest sequence the model was made for.
    pub max_positions: usize,
    /// Tokens that end a sequence: `generation_config.json`'s, else `config.json`'s.
    pub eos: Vec<u32>,
    /// The token a sequence may begin with; Qwen prompts do not use it.
    pub bos: Option<u32>,
    /// The padding token.
    pub pad: Option<u32>,
    /// Recommended sampling.
    pub sampling: Sampling,
}

impl Config {
    /// Reads `config.json` and, where it exists, `generation_config.json` of a checkpoint directory.
    pub fn load(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let mut config = Self::from_file(dir.join("config.json"))?;
        let path = dir.join("generation_config.json");
        match std::fs::read_to_string(&path) {
            Ok(text) => config.apply_generation(&text, &path)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => {
                let remedy = "make it readable, or remove it to use config.json alone".into();
                return Err(Error::Io { path, source, remedy });
            }
        }
        Ok(config)
    }

    /// Reads one configuration file, without a checkpoint around it.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text, &path),
            Err(source) => {
                let remedy = "point --model at a directory that holds a Qwen3.5 checkpoint".into();
                Err(Error::Io { path, source, remedy })
            }
        }
    }

    /// Parses the text of a `config.json`; `path` is only named in errors.
    ///
    /// ```
    /// use engine::config::Config;
    /// let error = Config::parse(r#"{"model_type": "llama"}"#, "config.json".as_ref()).unwrap_err();
    /// assert!(error.to_string().contains("model_type"));
    /// ```
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        parse::config(Fields::root(text, path)?)
    }

    /// Takes stop tokens and sampling from the text of a `generation_config.json`.
    pub fn apply_generation(&mut self, text: &str, path: &Path) -> Result<()> {
        parse::generation(self, Fields::root(text, path)?)
    }

    /// The geometry of a published model by name, such as `qwen3.5-27b` or `27b`: see [`PRESETS`].
    pub fn preset(name: &str) -> Option<Self> {
        presets::preset(name)
    }

    /// How many layers have this mixer.
    pub fn count(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|&&k| k == kind).count()
    }

    /// Whether the feed-forward halves are mixtures of experts.
    pub fn is_moe(&self) -> bool {
        matches!(self.ffn, FeedForward::Moe { .. })
    }
}

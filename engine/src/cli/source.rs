//! Where a command's weights come from: a checkpoint, or nowhere.

use anyhow::{Context as _, Result, bail};
use clap::Args;
use engine::{
    config::{Config, PRESETS},
    model::{self, Context, EngineBackend, Model, Scales},
    text::{Detokenizer, Tokenizer},
    weights::{Checkpoint, MtpFrom, Options},
};
use kernels_core::Activation;
use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
};

/// A checkpoint, or a geometry without one.
#[derive(Clone, Debug, Args)]
pub(crate) struct SourceArgs {
    /// Checkpoint directory [default: the embedded tiny-qwen35-mtp]
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Random weights instead of a checkpoint's, in the geometry of a published model, such as 27b or
    /// qwen3.5-35b-a3b, or of a config.json
    #[arg(long, value_name = "NAME|JSON", conflicts_with = "model")]
    pub(crate) random_weights: Option<String>,
}

/// A model that is not on a device yet.
#[derive(Debug)]
pub(crate) enum Source {
    /// Read and checked.
    Checkpoint { checkpoint: Box<Checkpoint>, tokenizer: Tokenizer },
    /// To be drawn.
    Random { config: Box<Config>, name: String, seed: u64 },
}

impl SourceArgs {
    /// Whether it is the checkpoint that comes with the repository.
    pub(crate) fn is_embedded(&self) -> bool {
        self.model.is_none() && self.random_weights.is_none()
    }

    /// The checkpoint's directory.
    pub(crate) fn dir(&self) -> Result<PathBuf> {
        match &self.model {
            Some(dir) => Ok(dir.clone()),
            None => super::embedded(),
        }
    }

    /// Checks a checkpoint, or finds a geometry; `seed` is that of random weights.
    pub(crate) fn open(&self, mtp: MtpFrom, seed: u64) -> Result<Source> {
        if let Some(name) = &self.random_weights {
            let mut config = Box::new(geometry(name)?);
            if mtp == MtpFrom::Nowhere {
                config.mtp_layers = 0;
            }
            return Ok(Source::Random { config, name: name.clone(), seed });
        }
        let dir = self.dir()?;
        let checkpoint = Box::new(with_progress(Checkpoint::open_with(&dir, &Options { mtp })?));
        let tokenizer = Tokenizer::open(&dir)?;
        tokenizer.check(checkpoint.config())?;
        Ok(Source::Checkpoint { checkpoint, tokenizer })
    }
}

/// A published model's geometry by its name, or that of a file.
pub(super) fn geometry(name: &str) -> Result<Config> {
    if let Some(config) = Config::preset(name) {
        return Ok(config);
    }
    let path = Path::new(name);
    if path.is_dir() {
        return Ok(Config::load(path)?);
    }
    if path.is_file() {
        return Ok(Config::from_file(path)?);
    }
    bail!(
        "--random-weights is {name}, which is neither a file nor the name of a published geometry; known are {}, \
         also without the first part",
        PRESETS.join(", ")
    )
}

impl Source {
    pub(crate) fn config(&self) -> &Config {
        match self {
            Source::Checkpoint { checkpoint, .. } => checkpoint.config(),
            Source::Random { config, .. } => config,
        }
    }

    /// Ids below this may be chosen.
    pub(crate) fn valid_vocab(&self) -> usize {
        match self {
            Source::Checkpoint { tokenizer, .. } => tokenizer.valid_vocab().min(self.config().vocab),
            Source::Random { config, .. } => config.vocab,
        }
    }

    pub(crate) fn has_head(&self) -> bool {
        self.config().mtp_layers > 0
    }

    /// The error that tells a user who asked for speculation why there is none.
    pub(crate) fn require_head(&self) -> Result<()> {
        match self {
            Source::Checkpoint { checkpoint, .. } => checkpoint.require_mtp().map(|_| ()).map_err(Into::into),
            Source::Random { name, .. } if !self.has_head() => {
                bail!(
                    "--random-weights {name} has no MTP head: its `mtp_num_hidden_layers` is 0; run it with --draft 0"
                )
            }
            Source::Random { .. } => Ok(()),
        }
    }

    /// What it is, in one line.
    pub(crate) fn verdict(&self) -> String {
        match self {
            Source::Checkpoint { checkpoint, .. } => checkpoint.verdict().to_string(),
            Source::Random { config, name, seed } => {
                let head = if self.has_head() { "with an MTP head" } else { "without an MTP head" };
                let layers = config.layers.len();
                format!(
                    "{name}: random weights of seed {seed}, {layers} layers, {head}; tokens are numbers, not text"
                )
            }
        }
    }

    /// How tokens are written.
    pub(crate) fn words(&self) -> Words {
        match self {
            Source::Checkpoint { checkpoint, tokenizer } => {
                Words::Text { tokenizer: tokenizer.clone(), dir: checkpoint.path().to_owned() }
            }
            Source::Random { config, .. } => Words::Numbers { vocab: config.vocab },
        }
    }

    /// Uploads or draws the weights.
    pub(crate) fn build<B: EngineBackend, A: Activation>(&self, context: &Context<B>) -> Result<Model<B, A>> {
        Ok(match self {
            Source::Checkpoint { checkpoint, tokenizer } => {
                model::build(&context.queue, checkpoint, tokenizer.valid_vocab())?
            }
            Source::Random { config, seed, .. } => {
                model::random(context, Config::clone(config), *seed, &Scales::default())?
            }
        })
    }
}

/// How a model's tokens are written.
#[derive(Clone, Debug)]
pub(crate) enum Words {
    /// As text.
    Text {
        tokenizer: Tokenizer,
        /// Where a chat template is.
        dir: PathBuf,
    },
    /// As ids: nothing says what tokens of random weights mean.
    Numbers { vocab: usize },
}

impl Words {
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let vocab = match self {
            Words::Text { tokenizer, .. } => return Ok(tokenizer.encode(text)?),
            Words::Numbers { vocab } => *vocab,
        };
        let id = |word: &str| {
            let id = word.parse::<u32>().ok().filter(|id| (*id as usize) < vocab);
            id.with_context(|| {
                format!(
                    "the prompt's `{word}` is no token id: random weights have no tokenizer, their prompts are numbers \
                     below {vocab}, such as \"17 4 42\""
                )
            })
        };
        text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty()).map(id).collect()
    }

    /// What turns tokens back into something to read.
    pub(crate) fn speller(&self) -> Speller {
        match self {
            Words::Text { tokenizer, .. } => Speller::Text(tokenizer.detokenizer(true)),
            Words::Numbers { .. } => Speller::Numbers { any: false },
        }
    }

    /// The directory of what only text has; `what` is said where there is none.
    pub(crate) fn text_only(&self, what: &str) -> Result<&Path> {
        match self {
            Words::Text { dir, .. } => Ok(dir),
            Words::Numbers { .. } => {
                bail!(
                    "{what}: random weights have no tokenizer and no template; a prompt is a list of token ids"
                )
            }
        }
    }
}

/// Tokens to text as they arrive.
#[derive(Clone, Debug)]
pub(crate) enum Speller {
    Text(Detokenizer),
    /// With a blank between two.
    Numbers {
        any: bool,
    },
}

impl Speller {
    pub(crate) fn push_into(&mut self, token: u32, out: &mut String) {
        match self {
            Speller::Text(detokenizer) => detokenizer.push_into(token, out),
            Speller::Numbers { any } => {
                if std::mem::replace(any, true) {
                    out.push(' ');
                }
                *out += &token.to_string();
            }
        }
    }

    pub(crate) fn flush(&mut self) -> String {
        match self {
            Speller::Text(detokenizer) => detokenizer.flush(),
            Speller::Numbers { .. } => String::new(),
        }
    }
}

/// A bar while weights are read, where somebody watches and there is enough to watch.
pub(super) fn with_progress(checkpoint: Checkpoint) -> Checkpoint {
    const WORTH_A_BAR: u64 = 256 << 20;
    if checkpoint.total_bytes() < WORTH_A_BAR || !std::io::stderr().is_terminal() {
        return checkpoint;
    }
    let style =
        indicatif::ProgressStyle::with_template("loading {bar:40} {bytes}/{total_bytes} {bytes_per_sec}")
            .expect("the template is ours");
    let bar = indicatif::ProgressBar::new(checkpoint.total_bytes()).with_style(style);
    checkpoint.with_progress(move |done, total| {
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    })
}

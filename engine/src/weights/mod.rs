//! Safetensors checkpoints: which files, which tensors, whether they are the model the configuration says.
//!
//! [`Checkpoint::open`] maps the files and checks every tensor by name, shape and type before a single
//! weight is read. What it returns is complete: the model builder walks [`Checkpoint::model`] or
//! [`Checkpoint::layer`] and cannot meet a hole.

mod layout;
mod shard;
mod source;
mod tensor;
mod verdict;

use crate::{Error, Result, config::Config};
use kernels_core::DType;
use layout::Naming;
use safetensors::Dtype;
use source::{Place, Source};
use std::{
    collections::HashSet,
    convert::Infallible,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

pub use layout::{
    Attention, Experts, Ffn, Layer, LinearAttention, Mixer, Mlp, Model, Moe, Mtp, TensorSpec,
    required_tensors,
};
pub use shard::{Entry, parse_header};
pub use tensor::TensorRef;
pub use verdict::{Head, Verdict};

/// Where the MTP head comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MtpFrom {
    /// The checkpoint itself, if it has one.
    #[default]
    Checkpoint,
    /// Nowhere: `mtp.*` is skipped, even where it is incomplete.
    Nowhere,
    /// Another directory or safetensors file; only its `mtp.*` is used.
    Path(PathBuf),
}

/// How to open a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where the MTP head comes from.
    pub mtp: MtpFrom,
}

/// Which of the (at most two) sources a tensor is in, and where there.
#[derive(Clone, Copy)]
struct At {
    source: usize,
    place: Place,
}

type Progress = Box<dyn Fn(u64, u64) + Send + Sync>;

/// A checkpoint whose every required tensor is present, mapped, and of the right shape and type.
pub struct Checkpoint {
    config: Config,
    /// The checkpoint, then the head's own source where it has one.
    sources: Vec<Source>,
    model: Model<At>,
    verdict: Verdict,
    total_bytes: u64,
    done_bytes: AtomicU64,
    progress: Option<Progress>,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Checkpoint({}: {})", self.path().display(), self.verdict)
    }
}

impl Checkpoint {
    /// Opens the checkpoint in directory `dir`.
    ///
    /// ```no_run
    /// let checkpoint = engine::weights::Checkpoint::open("assets/tiny-qwen35-mtp")?;
    /// println!("{}", checkpoint.verdict());
    /// let embedding = checkpoint.model().embed.to_vec::<f32>()?;
    /// # Ok::<(), engine::Error>(())
    /// ```
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(dir, &Options::default())
    }

    /// Opens the checkpoint in directory `dir`, taking its MTP head from where `options` say.
    pub fn open_with(dir: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let dir = dir.as_ref();
        let mut config = Config::load(dir)?;
        let mut sources = vec![Source::open(dir)?];
        let prefix = prefix(&sources[0]);
        let head = match &options.mtp {
            MtpFrom::Nowhere => Head::Ignored,
            MtpFrom::Path(path) => {
                sources.push(if path.is_dir() { Source::open(path)? } else { Source::open_file(path)? });
                Head::Used
            }
            MtpFrom::Checkpoint => match (config.mtp_layers, has_head(&sources[0])) {
                (0, false) => Head::None,
                (0, true) => Head::NotConfigured,
                (_, false) => Head::Absent,
                (_, true) => Head::Used,
            },
        };
        config.mtp_layers = usize::from(head == Head::Used);
        let model = resolve(&config, prefix, &sources)?;
        let skipped = unknown(dir, &sources, &model, &config, prefix, head)?;
        let mut checkpoint = Self {
            verdict: Verdict::default(),
            config,
            sources,
            model,
            total_bytes: 0,
            done_bytes: AtomicU64::new(0),
            progress: None,
        };
        checkpoint.summarise(head, skipped);
        Ok(checkpoint)
    }

    /// The configuration, with `mtp_layers` 0 where the head is not used.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The directory it was opened from.
    pub fn path(&self) -> &Path {
        &self.sources[0].path
    }

    /// What was found, used, and skipped, in one line when displayed.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Every tensor in its place.
    pub fn model(&self) -> Model<TensorRef<'_>> {
        infallible(self.model.try_map(&mut |at| Ok(self.at(*at))))
    }

    /// Decoder layer `i`.
    ///
    /// # Panics
    /// If there are not that many layers.
    pub fn layer(&self, i: usize) -> Layer<TensorRef<'_>> {
        infallible(self.model.layers[i].try_map(&mut |at| Ok(self.at(*at))))
    }

    /// The MTP head, where there is one and it is used; else [`verdict`](Self::verdict) says why not.
    pub fn mtp(&self) -> Option<Mtp<TensorRef<'_>>> {
        self.model.mtp.as_ref().map(|mtp| infallible(mtp.try_map(&mut |at| Ok(self.at(*at)))))
    }

    /// The MTP head, or the error that tells a user who asked for speculation why there is none.
    pub fn require_mtp(&self) -> Result<Mtp<TensorRef<'_>>> {
        self.mtp().ok_or_else(|| {
            let (why, remedy) = self.verdict.head.why_not();
            Error::NoDraftHead { path: self.path().to_owned(), why: why.into(), remedy: remedy.into() }
        })
    }

    /// The embedding, `[vocab, hidden]`.
    pub fn embed(&self) -> TensorRef<'_> {
        self.at(self.model.embed)
    }

    /// The final norm, `[hidden]`.
    pub fn final_norm(&self) -> TensorRef<'_> {
        self.at(self.model.final_norm)
    }

    /// The output head, `[vocab, hidden]`; none when it is the embedding.
    pub fn lm_head(&self) -> Option<TensorRef<'_>> {
        self.model.lm_head.map(|at| self.at(at))
    }

    /// A tensor by its name in the file, skipped ones excluded.
    pub fn tensor(&self, name: &str) -> Option<TensorRef<'_>> {
        let mut found = None;
        self.each(|at| {
            if self.entry(at).name == name {
                found = Some(at);
            }
        });
        found.map(|at| self.at(at))
    }

    /// Bytes of all tensors that the model is made of.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Has `report(done, total)` called, in bytes, as tensors are converted.
    #[must_use]
    pub fn with_progress(mut self, report: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(report));
        self
    }

    /// Counts `bytes` as done: for callers that use [`TensorRef::bytes`] directly.
    pub fn advance(&self, bytes: u64) {
        let done = self.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(report) = &self.progress {
            report(done.min(self.total_bytes), self.total_bytes);
        }
    }

    fn entry(&self, at: At) -> &Entry {
        self.sources[at.source].entry(at.place)
    }

    fn at(&self, at: At) -> TensorRef<'_> {
        let entry = self.entry(at);
        let shard = &self.sources[at.source].shards[at.place.shard];
        TensorRef {
            checkpoint: self,
            name: &entry.name,
            dtype: dtype(entry.dtype).expect("resolve() refuses every other type"),
            shape: &entry.shape,
            bytes: shard.bytes(at.place.entry),
            file: &shard.path,
        }
    }

    /// Calls `f` with every tensor of the model.
    fn each(&self, mut f: impl FnMut(At)) {
        infallible(self.model.try_map(&mut |at| {
            f(*at);
            Ok(())
        }));
    }
}

fn infallible<T>(result: Result<T, Infallible>) -> T {
    let Ok(value) = result;
    value
}

/// The three types that weights may have.
fn dtype(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::BF16 => Some(DType::Bf16),
        Dtype::F16 => Some(DType::F16),
        Dtype::F32 => Some(DType::F32),
        _ => None,
    }
}

/// Releases say `model.language_model.`, text-only exports `model.`.
fn prefix(source: &Source) -> &'static str {
    let nested = "model.language_model.";
    if source.names().any(|name| name.starts_with(nested)) { nested } else { "model." }
}

/// Heads of fine-tunes that live under `mtp.` and are not the MTP head.
const FOREIGN_HEADS: [&str; 2] = ["mtp.sci.", "mtp.normal."];

fn is_head(name: &str) -> bool {
    name.starts_with("mtp.") && !FOREIGN_HEADS.iter().any(|p| name.starts_with(p))
}

fn has_head(source: &Source) -> bool {
    source.names().any(is_head)
}

/// Finds every tensor the configuration asks for.
fn resolve(config: &Config, prefix: &str, sources: &[Source]) -> Result<Model<At>> {
    let source_of = |name: &str| if is_head(name) { sources.len() - 1 } else { 0 };
    let split = |under: &str| {
        let source = &sources[source_of(under)];
        source.place(&format!("{under}gate_up_proj")).is_none()
            && source.place(&format!("{under}0.gate_proj.weight")).is_some()
    };
    let wanted = Model::named(config, &Naming { prefix, split: &split });
    let mut missing = 0;
    let found: Result<Model<At>> = wanted.try_map(&mut |want| {
        let source = source_of(&want.name);
        let Some(place) = sources[source].place(&want.name) else {
            return Err(missing_tensor(want, &sources[source]));
        };
        let path = || sources[source].shards[place.shard].path.clone();
        let entry = sources[source].entry(place);
        if dtype(entry.dtype).is_none() {
            let got = format!("{:?}", entry.dtype);
            return Err(Error::TensorType { path: path(), name: want.name.clone(), got });
        }
        if entry.shape != want.shape {
            refuse_mlx(&path(), entry, &want.shape)?;
            let (got, want) = (entry.shape.clone(), want.shape.clone());
            return Err(Error::TensorShape { path: path(), name: entry.name.clone(), got, want });
        }
        Ok(At { source, place })
    });
    found.map_err(|error| match error {
        Error::MissingTensor { path, name, want, remedy, .. } => {
            infallible(wanted.try_map(&mut |want| {
                missing += usize::from(sources[source_of(&want.name)].place(&want.name).is_none());
                Ok(())
            }));
            Error::MissingTensor { path, name, want, others: missing - 1, remedy }
        }
        other => other,
    })
}

/// MLX conversions move the taps of the convolution last but one and add 1 to most norm weights. The first
/// can be seen, the second cannot; loaded as they are, such weights give nonsense at full speed.
fn refuse_mlx(path: &Path, entry: &Entry, want: &[usize]) -> Result<()> {
    match (want, entry.shape.as_slice()) {
        (&[channels, 1, width], &[c, w, 1]) if (channels, width) == (c, w) && width > 1 => {
            Err(Error::Malformed {
                path: path.to_owned(),
                what: format!(
                    "tensor `{}` has the shape {:?} of an MLX conversion, which also shifts norm weights",
                    entry.name, entry.shape
                ),
                remedy: "use the release that it was converted from".into(),
            })
        }
        _ => Ok(()),
    }
}

fn missing_tensor(want: &TensorSpec, source: &Source) -> Error {
    let remedy = if is_head(&want.name) {
        "fetch the whole MTP head, or run with --draft 0, which does not load it"
    } else if want.name == "lm_head.weight" {
        "fetch the shard that holds it; if this model shares its embedding, config.json lacks `tie_word_embeddings`: true"
    } else {
        "fetch every shard, index and config.json from one release"
    };
    Error::MissingTensor {
        path: source.path.clone(),
        name: want.name.clone(),
        want: want.shape.clone(),
        others: 0,
        remedy: remedy.into(),
    }
}

/// Counts what is skipped by name; anything else that the model does not use is an error.
fn unknown(
    dir: &Path,
    sources: &[Source],
    model: &Model<At>,
    config: &Config,
    prefix: &str,
    head: Head,
) -> Result<verdict::Skipped> {
    let mut used = HashSet::new();
    infallible(model.try_map(&mut |at| {
        if at.source == 0 {
            used.insert(sources[0].entry(at.place).name.as_str());
        }
        Ok(())
    }));
    let head_elsewhere = head != Head::Used || sources.len() > 1;
    let mut skipped = verdict::Skipped::default();
    let mut strange: Vec<&str> = Vec::new();
    for name in sources[0].names().filter(|name| !used.contains(name)) {
        match name {
            _ if name.starts_with("model.visual.") => skipped.vision += 1,
            _ if name.starts_with("model.time_series.") => skipped.time_series += 1,
            _ if FOREIGN_HEADS.iter().any(|p| name.starts_with(p)) => skipped.foreign_heads += 1,
            _ if is_head(name) && head_elsewhere => skipped.head += 1,
            "lm_head.weight" if config.tied => {
                same_as_embedding(dir, &sources[0], prefix)?;
                skipped.tied_head = true;
            }
            _ => strange.push(name),
        }
    }
    strange.sort_unstable();
    let Some(&name) = strange.first() else {
        return Ok(skipped);
    };
    let place = sources[0].place(name).expect("names() lists the table");
    Err(Error::UnknownTensor {
        path: sources[0].shards[place.shard].path.clone(),
        name: name.to_owned(),
        got: sources[0].entry(place).shape.clone(),
        others: strange.len() - 1,
    })
}

/// A tied checkpoint may store its head as well, if it is the embedding.
fn same_as_embedding(dir: &Path, source: &Source, prefix: &str) -> Result<()> {
    let bytes = |name: &str| {
        let place = source.place(name)?;
        let entry = source.entry(place);
        Some((entry.dtype, entry.shape.as_slice(), source.shards[place.shard].bytes(place.entry)))
    };
    if bytes("lm_head.weight") == bytes(&format!("{prefix}embed_tokens.weight")) {
        return Ok(());
    }
    Err(Error::Config {
        path: dir.join("config.json"),
        field: "tie_word_embeddings".into(),
        value: "true".into(),
        why: "the checkpoint has an `lm_head.weight` that differs from its embedding".into(),
        remedy: "set it to false in config.json, also inside text_config, or remove that tensor".into(),
    })
}

//! What was found, used and skipped: the line printed when a checkpoint opens.

use super::{At, Checkpoint, Experts, Ffn};
use crate::config::{FeedForward, LayerKind};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Whether the MTP head is used, and if not, why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// Complete and used.
    Used,
    /// Neither the configuration nor the files have one.
    #[default]
    None,
    /// The configuration announces one, the files have no `mtp.*`: a converter dropped it.
    Absent,
    /// The files have `mtp.*`, the configuration says that there is none.
    NotConfigured,
    /// It was not asked for.
    Ignored,
}

impl Head {
    /// Why speculation is not available, and what would make it so.
    pub(super) fn why_not(self) -> (&'static str, &'static str) {
        match self {
            Head::Used => ("it is there", "use it"),
            Head::None => (
                "the checkpoint has none and its config.json announces none",
                "use a release that has one, or take the head of another file",
            ),
            Head::Absent => (
                "config.json announces one, but the checkpoint has no mtp.* tensors",
                "fetch the shard that holds them (often a file of its own), or use the original release: \
                 converters drop it",
            ),
            Head::NotConfigured => (
                "the checkpoint has mtp.* tensors, but config.json says mtp_num_hidden_layers 0",
                "set mtp_num_hidden_layers to 1 in config.json",
            ),
            Head::Ignored => ("it was not asked for", "open the checkpoint with its head"),
        }
    }
}

/// What in the checkpoint is no part of the model that runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Skipped {
    pub(super) vision: usize,
    pub(super) time_series: usize,
    pub(super) foreign_heads: usize,
    pub(super) head: usize,
    pub(super) tied_head: bool,
}

/// A checkpoint in one line.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Model type, layers, feed-forward, tying.
    pub model: String,
    /// Element types of the weights, with how many tensors have each.
    pub dtypes: String,
    /// Tensors of the model, the head's included.
    pub tensors: usize,
    /// Files they are in.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Whether the MTP head is used.
    pub head: Head,
    /// The head's tensors, types and files, where it is used.
    pub head_detail: String,
    /// What was skipped, by name; empty if nothing was.
    pub skipped: Vec<String>,
    /// Safetensors files in the directory that are not part of the checkpoint.
    pub stray: Vec<String>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.files == 1 { "" } else { "s" };
        write!(
            f,
            "{}; {} tensors ({}), {} in {} file{plural}; ",
            self.model,
            self.tensors,
            self.dtypes,
            size(self.bytes),
            self.files
        )?;
        match self.head {
            Head::Used => write!(f, "MTP head: {}", self.head_detail)?,
            head => write!(f, "no speculation: {}", head.why_not().0)?,
        }
        if !self.skipped.is_empty() {
            write!(f, "; skipped: {}", self.skipped.join(", "))?;
        }
        if !self.stray.is_empty() {
            write!(f, "; not part of it: {}", self.stray.join(", "))?;
        }
        Ok(())
    }
}

fn size(bytes: u64) -> String {
    match bytes as f64 {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b => format!("{:.1} MB", b / 1e6),
    }
}

/// Counts tensors by type and collects the files they are in.
#[derive(Default)]
struct Tally {
    tensors: usize,
    bytes: u64,
    dtypes: BTreeMap<String, usize>,
    files: BTreeSet<String>,
}

impl Tally {
    fn dtypes(&self) -> String {
        if self.dtypes.len() == 1 {
            return self.dtypes.keys().cloned().collect();
        }
        let each: Vec<_> = self.dtypes.iter().map(|(dtype, n)| format!("{n} {dtype}")).collect();
        each.join(", ")
    }
}

impl Checkpoint {
    fn tally(&self, tally: &mut Tally, at: At) {
        let tensor = self.at(at);
        tally.tensors += 1;
        tally.bytes += tensor.bytes().len() as u64;
        *tally.dtypes.entry(tensor.dtype().to_string()).or_default() += 1;
        tally.files.insert(self.sources[at.source].shards[at.place.shard].file_name());
    }

    /// Fills in the verdict and the byte count.
    pub(super) fn summarise(&mut self, head: Head, skipped: Skipped) {
        let (mut all, mut mtp) = (Tally::default(), Tally::default());
        self.each(|at| self.tally(&mut all, at));
        if let Some(model) = &self.model.mtp {
            super::infallible(model.try_map(&mut |at| {
                self.tally(&mut mtp, *at);
                Ok(())
            }));
        }
        let tensors = |n: usize, what: &str| (n > 0).then(|| format!("{what} ({n} tensors)"));
        let skipped = [
            tensors(skipped.vision, "vision tower"),
            tensors(skipped.time_series, "time series encoder"),
            tensors(skipped.foreign_heads, "mtp.sci and mtp.normal"),
            tensors(skipped.head, "the checkpoint's own mtp"),
            skipped.tied_head.then(|| "lm_head.weight, equal to the embedding".to_owned()),
        ];
        let files: Vec<_> = mtp.files.iter().map(String::as_str).collect();
        self.total_bytes = all.bytes;
        self.verdict = Verdict {
            model: self.describe(),
            dtypes: all.dtypes(),
            tensors: all.tensors,
            files: all.files.len(),
            bytes: all.bytes,
            head,
            head_detail: format!("{} tensors, {}, in {}", mtp.tensors, mtp.dtypes(), files.join(" and ")),
            skipped: skipped.into_iter().flatten().collect(),
            stray: self.sources[0].stray.clone(),
        };
    }

    fn describe(&self) -> String {
        let config = &self.config;
        let ffn = match config.ffn {
            FeedForward::Dense { .. } => "dense".to_owned(),
            FeedForward::Moe { experts, top_k, .. } => {
                let split = |layer: &super::Layer<At>| matches!(&layer.ffn, Ffn::Moe(moe) if matches!(moe.experts, Experts::Split(_)));
                let how = if self.model.layers.iter().any(split) { "one tensor each" } else { "fused" };
                format!("{experts} experts ({how}), {top_k} per token")
            }
        };
        format!(
            "{}: {} layers ({} linear, {} full attention), {ffn}, {}",
            config.model_type,
            config.layers.len(),
            config.count(LayerKind::Linear),
            config.count(LayerKind::Full),
            if config.tied { "tied embeddings" } else { "untied embeddings" },
        )
    }
}

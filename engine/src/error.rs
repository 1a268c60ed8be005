//! The engine's error type: what is wrong, where, and what to do about it.

use std::path::PathBuf;

/// Why the engine refused or failed. Every message is one paragraph that names the thing and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: cannot be read: {source}; {remedy}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
        /// What to do.
        remedy: String,
    },
    /// A file is not what its name says: broken JSON, a cut shard, an index that lies.
    #[error("{}: {what}; {remedy}", path.display())]
    Malformed {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// A field of a configuration file has a value the engine does not support.
    #[error("{}: `{field}` is {value}: {why}; {remedy}", path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// The field, with the object it sits in.
        field: String,
        /// Its value as JSON, or `missing`.
        value: String,
        /// Why that cannot be used.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// A tensor the configuration asks for is nowhere in the checkpoint.
    #[error(
        "{}: tensor `{name}` of shape {want:?} is missing{}; {remedy}", path.display(), and_more(*others, "missing")
    )]
    MissingTensor {
        /// The checkpoint's directory.
        path: PathBuf,
        /// The first missing tensor.
        name: String,
        /// The shape it should have.
        want: Vec<usize>,
        /// How many more are missing.
        others: usize,
        /// What to do.
        remedy: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error(
        "{}: tensor `{name}` has shape {got:?}, the configuration wants {want:?}; the weights and config.json \
         belong to different models, fetch both from one release", path.display()
    )]
    TensorShape {
        /// The file that holds it.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its shape in the file.
        got: Vec<usize>,
        /// The shape it should have.
        want: Vec<usize>,
    },
    /// A tensor has an element type that is not one of the three the engine reads.
    #[error(
        "{}: tensor `{name}` is {got}, wanted BF16, F16 or F32; quantised checkpoints are not supported, use \
         the 16-bit release", path.display()
    )]
    TensorType {
        /// The file that holds it.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type in the file.
        got: String,
    },
    /// A tensor that belongs to no part of the model. Skipping it silently could drop half a model.
    #[error(
        "{}: tensor `{name}` {got:?} belongs to no part of the configured model{}; check that config.json is \
         this checkpoint's own", path.display(), and_more(*others, "unknown")
    )]
    UnknownTensor {
        /// The file that holds it.
        path: PathBuf,
        /// The first unknown tensor.
        name: String,
        /// Its shape.
        got: Vec<usize>,
        /// How many more there are.
        others: usize,
    },
    /// Two shards hold the same tensor.
    #[error(
        "tensor `{name}` is in both {} and {}; keep the one that the index names and rebuild the other shard",
        first.display(), second.display()
    )]
    DuplicateTensor {
        /// The tensor.
        name: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A value does not survive the conversion to the type asked for.
    #[error(
        "{}: tensor `{name}` ({from}) holds {value} at element {index}, which {to} cannot represent; load the \
         checkpoint with rounding or run it in f32", path.display()
    )]
    Inexact {
        /// The file that holds it.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type.
        from: kernels_core::DType,
        /// The type asked for.
        to: kernels_core::DType,
        /// The flat index of the first such element.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// Speculation was asked for and the checkpoint cannot serve it.
    #[error("{}: no MTP head to draft with: {why}; {remedy}", path.display())]
    NoDraftHead {
        /// The checkpoint's directory.
        path: PathBuf,
        /// Why there is none.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// The chat template failed on these messages.
    #[error("{}: chat template{}: {what}; {remedy}", path.display(), at_line(*line))]
    Template {
        /// The file the template came from.
        path: PathBuf,
        /// The line in the template, where known.
        line: Option<usize>,
        /// What went wrong.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The tokenizer failed on this input.
    #[error("tokenizer: {what}; {remedy}")]
    Tokenizer {
        /// What went wrong.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// An engine option that cannot work.
    #[error("engine option `{name}` is {got}; {remedy}")]
    Limit {
        /// The option.
        name: &'static str,
        /// Its value.
        got: String,
        /// What to do.
        remedy: String,
    },
    /// A request that can never be served.
    #[error("request: `{name}` is {got}; {remedy}")]
    Request {
        /// The part of the request.
        name: &'static str,
        /// Its value.
        got: String,
        /// What to do.
        remedy: String,
    },
    /// A kernel refused its arguments or failed.
    #[error(transparent)]
    Kernel(#[from] kernels_core::Error),
}

impl Error {
    pub(crate) fn limit(name: &'static str, got: impl std::fmt::Display, remedy: impl Into<String>) -> Self {
        Error::Limit { name, got: got.to_string(), remedy: remedy.into() }
    }

    pub(crate) fn request(
        name: &'static str,
        got: impl std::fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        Error::Request { name, got: got.to_string(), remedy: remedy.into() }
    }
}

/// `Result` with the engine's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn and_more(others: usize, what: &str) -> String {
    if others == 0 { String::new() } else { format!(" ({others} more {what})") }
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(" line {line}")).unwrap_or_default()
}

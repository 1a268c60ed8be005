//! The engine's error type: what is wrong, where, and what to do about it.

use crate::memory::human;
use std::path::{Path, PathBuf};

/// Why the engine refused or failed. Every message is one paragraph that names the thing and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: cannot be read: {source}; {remedy}", shown(path))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
        /// What to do.
        remedy: String,
    },
    /// A file is not what its name says: broken JSON, a cut shard, an index that lies.
    #[error("{}: {}; {}", shown(path), one_line(what), one_line(remedy))]
    Malformed {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// A field of a configuration file has a value the engine does not support.
    #[error("{}: `{field}` is {}: {}; {remedy}", shown(path), one_line(value), one_line(why))]
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
        "{}: tensor `{}` of shape {want:?} is missing{}; {remedy}", shown(path), one_line(name), and_more(*others, "missing")
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
        "{}: tensor `{}` has shape {}, the configuration wants {want:?}; the weights and config.json \
         belong to different models, fetch both from one release",
        shown(path),
        one_line(name),
        dimensions(got)
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
        "{}: tensor `{}` is {got}, wanted BF16, F16 or F32; quantised checkpoints are not supported, use \
         the 16-bit release",
        shown(path),
        one_line(name)
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
        "{}: tensor `{}` {} belongs to no part of the configured model{}; check that config.json is \
         this checkpoint's own", shown(path), one_line(name), dimensions(got),
         and_more(*others, "unknown")
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
        "tensor `{}` is in both {} and {}; keep the one that the index names and rebuild the other shard",
        one_line(name),
        shown(first),
        shown(second)
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
        "{}: tensor `{}` ({from}) holds {value} at element {index}, which {to} cannot represent; load the \
         checkpoint with rounding or run it in f32",
        shown(path),
        one_line(name)
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
    #[error("{}: no MTP head to draft with: {why}; {remedy}", shown(path))]
    NoDraftHead {
        /// The checkpoint's directory.
        path: PathBuf,
        /// Why there is none.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// The chat template failed on these messages.
    #[error("{}: chat template{}: {}; {remedy}", shown(path), at_line(*line), one_line(what))]
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
    #[error("tokenizer: {}; {}", one_line(what), one_line(remedy))]
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
    /// A line of a file of requests is none.
    #[error("{} line {number}: {}; {remedy}", shown(path), one_line(what))]
    RequestLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        number: usize,
        /// What is wrong with it.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The device has too little memory for what was asked for.
    #[error("needs {}, the device has {} free: {remedy}", human(*need), human(*free))]
    Memory {
        /// Bytes of everything.
        need: usize,
        /// Bytes that are free.
        free: usize,
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

/// The longest piece of somebody else's text in a message.
const LONGEST: usize = 600;

/// Text out of a file, such as a tensor's name: it can hold anything, and a message is one paragraph.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == LONGEST {
            line.push('…');
            break;
        }
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

fn dimensions(shape: &[usize]) -> String {
    one_line(&format!("{shape:?}"))
}

fn shown(path: &Path) -> String {
    one_line(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_paragraph_whatever_a_file_holds() {
        let missing = Error::MissingTensor {
            path: "a\nb".into(),
            name: format!("x\u{1b}[2J{}", "y".repeat(10_000)),
            want: vec![1],
            others: 0,
            remedy: "fetch it".into(),
        };
        let message = missing.to_string();
        assert!(message.starts_with(r"a\nb: tensor `x\u{1b}[2Jyyy"), "{message}");
        assert!(message.ends_with("y…` of shape [1] is missing; fetch it"), "{message}");
        let malformed =
            Error::Malformed { path: "a".into(), what: "says\r\n`b`".into(), remedy: "fetch it".into() };
        assert_eq!(malformed.to_string(), r"a: says\r\n`b`; fetch it");
    }
}

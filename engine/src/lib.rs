//! The lockstep engine: decodes Qwen3.5 checkpoints with their MTP head, and never another token than
//! plain decoding would emit.
//!
//! [`Engine`] is the loop; everything it computes is an operation of one of the kernel crates, so the same
//! code runs on every backend that has them.

pub mod bench;
pub mod cache;
pub mod config;
pub mod doctor;
pub mod draft;
mod engine;
mod error;
pub mod jsonl;
pub mod machine;
pub mod memory;
pub mod model;
pub mod parity;
pub mod policy;
pub mod request;
pub mod round;
pub mod stats;
pub mod text;
pub mod weights;

pub use engine::{Engine, Options, Pace};
pub use error::{Error, Result};
pub use request::{End, Event, Finish, Request, RequestId, Sampling};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

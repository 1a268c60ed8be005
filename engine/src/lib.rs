//! The lockstep engine.

pub mod config;
mod error;
pub mod weights;

pub use error::{Error, Result};

//! All tests of the crate, in one executable.
//!
//! With `planted-faults` only the bite checks run: a planted fault is active in the whole process.
#![cfg_attr(feature = "planted-faults", allow(dead_code))]

mod accuracy;
mod append;
#[cfg(feature = "planted-faults")]
mod bite;
mod bits;
mod golden;
mod literal;
mod properties;
#[cfg(not(feature = "planted-faults"))]
mod refusals;
mod support;

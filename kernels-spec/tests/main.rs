//! Tests of the glue of speculation.
//!
//! A planted fault is active in the whole process, so a build with that feature holds the bite checks
//! and nothing else; they take turns.

mod engine;
#[cfg_attr(feature = "planted-faults", allow(dead_code))] // the bites do without the rejection sampler
mod sim;

#[cfg(feature = "planted-faults")]
mod bites;
#[cfg(not(feature = "planted-faults"))]
mod bookkeeping;
#[cfg(not(feature = "planted-faults"))]
mod chances;
#[cfg(not(feature = "planted-faults"))]
mod garbage;
#[cfg(not(feature = "planted-faults"))]
mod hidden;
#[cfg(not(feature = "planted-faults"))]
mod kinds;
#[cfg(not(feature = "planted-faults"))]
mod refusals;
#[cfg(not(feature = "planted-faults"))]
mod sampling;
#[cfg(not(feature = "planted-faults"))]
mod streams;

//! What the tests and benches of the kernel crates share: generators, comparisons, fixtures, a runner
//! that says why a GPU case did not run, and timing on a device.

pub mod compare;
pub mod fixture;
pub mod rng;

//! What the tests and benches of the kernel crates share: generators, comparisons, fixtures, a runner
//! that says why a GPU case did not run, and timing on a device.

pub mod bench;
pub mod compare;
#[cfg(feature = "cuda")]
pub mod cublaslt;
#[cfg(feature = "cuda")]
pub mod device;
#[cfg(feature = "cuda")]
pub mod first_difference;
pub mod fixture;
pub mod guard;
pub mod place;
pub mod rng;
pub mod runner;
#[cfg(feature = "cuda")]
pub mod timing;

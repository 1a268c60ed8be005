//! The backends under test, the shapes that each of them takes, and how exact its sums are.

use kernels_attn::AttnBackend;
use kernels_core::{Activation, Cpu, DType};
use kernels_testkit::place;

/// Takes every activation type, head size, group, page size and number of rows if it is general.
pub trait Place: place::Place + AttnBackend {
    /// Roundoffs of an exponential.
    const EXP2: f64;
    /// Roundoffs of adding a tile's keys, weights or weighted values.
    const TILE: f64;
    /// Roundoffs of a score, as a share of `sum |q k|`.
    fn dot(n: usize) -> f64;
}

impl Place for Cpu {
    const EXP2: f64 = 3.0;
    // One rounding for each of its keys.
    const TILE: f64 = 128.0;
    fn dot(n: usize) -> f64 {
        // A lane's own, then five halvings.
        (n.div_ceil(32) + 5) as f64
    }
}

/// Roundoffs of one k16 step of a tensor core: 16 exact products and the accumulator are cut off, each by at
/// most 2^-23 = 2 u of the largest of them, and so is their sum.
#[cfg(feature = "cuda")]
const STEP: f64 = 2.0 * 18.0;

#[cfg(feature = "cuda")]
impl Place for kernels_core::Cuda {
    const EXP2: f64 = 4.0;
    // Eight steps of 16 keys.
    const TILE: f64 = 8.0 * STEP;
    fn dot(n: usize) -> f64 {
        n as f64 / 16.0 * STEP
    }
}

/// Whether the backend has the activation type.
pub fn takes<B: Place, A: Activation>() -> bool {
    B::GENERAL || A::DTYPE == DType::Bf16
}

fn at_least(n: usize, sizes: &[usize]) -> usize {
    sizes.iter().copied().find(|size| *size >= n).unwrap_or(sizes[sizes.len() - 1])
}

/// A head size near `n` that the backend has.
pub fn head_dim<B: Place>(n: usize) -> usize {
    if B::GENERAL { n } else { at_least(n, &[128, 256]) }
}

/// A group near `n` that the backend has.
pub fn group<B: Place>(n: usize) -> usize {
    if B::GENERAL { n } else { at_least(n, &[1, 2, 3, 4, 6, 8, 12, 16]) }
}

/// A page size near `n` that the backend has.
pub fn page_rows<B: Place>(n: usize) -> usize {
    if B::GENERAL { n } else { at_least(n, &[16, 32, 64, 128]) }
}

//! The backends under test, and the sizes that each of them takes.

use kernels_core::{Cpu, DeviceInfo, slots};
use kernels_gdn::{GdnBackend, Grid, Problem};

/// A backend that can say what it runs on.
pub trait Place: GdnBackend {
    /// Whether it takes every activation type and head size.
    const GENERAL: bool;
    fn device(on: &Self::Queue) -> DeviceInfo;
}

impl Place for Cpu {
    const GENERAL: bool = true;
    fn device((): &()) -> DeviceInfo {
        DeviceInfo::cpu()
    }
}

#[cfg(feature = "cuda")]
impl Place for kernels_core::Cuda {
    const GENERAL: bool = false;
    fn device(on: &Self::Queue) -> DeviceInfo {
        DeviceInfo::of(on.context()).unwrap()
    }
}

/// Runs a test body for the activation types that the backend has.
macro_rules! for_types {
    ($backend:ident, $queue:expr, $body:ident) => {{
        $body::<$backend, kernels_core::bf16>($queue);
        if <$backend as crate::place::Place>::GENERAL {
            $body::<$backend, kernels_core::f16>($queue);
            $body::<$backend, f32>($queue);
        }
    }};
}
pub(crate) use for_types;

/// Sizes for the tests: heads that share keys, a `k_dim` that fills no whole set of accumulators, a
/// `v_dim` that fills no whole tile.
pub const SMALL: Problem = Problem {
    sequences: 1,
    rows: 1,
    max_rows: 4,
    k_heads: 2,
    v_heads: 4,
    k_dim: 40,
    v_dim: 12,
    slots: 7,
    journal_rows: 8,
    flush_after: 0,
};

/// `problem` with heads that the backend has kernels for.
pub fn fit<B: Place>(problem: Problem) -> Problem {
    if B::GENERAL { problem } else { Problem { k_dim: 128, v_dim: 128, ..problem } }
}

/// [`SMALL`], as the backend can take it.
pub fn small<B: Place>() -> Problem {
    fit::<B>(SMALL)
}

/// `problem` with another flush policy and the journal that it needs at least.
pub fn flushing(problem: Problem, flush_after: usize) -> Problem {
    Problem { flush_after, journal_rows: slots::journal_rows(flush_after, problem.max_rows), ..problem }
}

/// The grid of an operation that has generic kernels only, beside one of [`kernels_gdn::Verify`].
pub fn generic(grid: Grid) -> Grid {
    match grid {
        Grid::Hopper => Grid::Generic { tile: 64 },
        tile => tile,
    }
}

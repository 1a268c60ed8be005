//! The backends under test, and the sizes that each of them takes.

use kernels_core::slots;
use kernels_gdn::{GdnBackend, Grid, Problem};
use kernels_testkit::place;

/// Takes every activation type and head size if it is general.
pub trait Place: place::Place + GdnBackend {}
impl<B: place::Place + GdnBackend> Place for B {}

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

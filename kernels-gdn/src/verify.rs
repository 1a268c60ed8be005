//! Verify-and-commit: the operation of every decode round.

use crate::{
    Args, GdnBackend, Grid, Problem,
    plan::{BUILT, Deal, Kernels},
};
use kernels_core::{Activation, DeviceInfo, Result};

pub(crate) const OP: &str = "gdn::verify";

/// Runs the recurrence over each sequence's new rows and leaves nothing behind that a rejection must undo.
///
/// For each sequence, with `start` the position of its first row (= its committed tokens) and
/// `pending = start - folded[slot]`:
///
/// 1. the `pending` journal rows at positions `folded..start` are replayed on the state;
/// 2. if [`flushes`](kernels_core::slots::flushes)`(pending, flush_after)`, that state is stored;
/// 3. the T new rows go on from there in registers (T = 1 is plain decode), their outputs are rounded
///    once to `A`, and their raw inputs stand in the journal from then on.
///
/// Afterwards the bookkeeping, not this operation, sets `folded = start` where the state was stored, and
/// advances the committed count by the accepted rows. Rejected rows exist only in journal rows that the
/// next round overwrites.
///
/// # Faults
///
/// A sequence whose `pending` is negative, or whose `pending + T` exceeds the journal, gets
/// [`FaultKind::Pending`](kernels_core::slots::FaultKind::Pending) with `pending` as its value; one with
/// more than `max_rows` rows gets `RowOffsets` with its row count. It is skipped: zeros as output, no
/// memory touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verify {
    problem: Problem,
    pub(crate) deal: Option<Deal>,
    pub(crate) programmatic: bool,
}

impl Verify {
    /// Checks the sizes and chooses a kernel.
    ///
    /// # Errors
    ///
    /// Sizes of zero, value heads that are no multiple of the key heads, a journal shorter than
    /// `flush_after + 2 max_rows`, and devices that this build has no kernels for.
    ///
    /// ```
    /// use kernels_core::DeviceInfo;
    /// use kernels_gdn::{Problem, Verify};
    ///
    /// let problem = Problem {
    ///     sequences: 8, rows: 32, max_rows: 4, k_heads: 16, v_heads: 48, k_dim: 128, v_dim: 128,
    ///     slots: 8, journal_rows: 11, flush_after: 4,
    /// };
    /// let error = Verify::plan(problem, &DeviceInfo::cpu()).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "gdn::verify: journal_rows is 11; it must be at least 12: flush_after = 4 plus twice max_rows = 4",
    /// );
    /// ```
    pub fn plan(problem: Problem, device: &DeviceInfo) -> Result<Self> {
        Self::plan_with(problem, device, None)
    }

    /// Like [`Verify::plan`] with a grid of the caller's, for tuning and tests.
    ///
    /// # Errors
    ///
    /// Those of [`Verify::plan`], and grids that no kernel has.
    pub fn plan_with(problem: Problem, device: &DeviceInfo, grid: Option<Grid>) -> Result<Self> {
        problem.check(OP)?;
        problem.check_journal(OP)?;
        let deal = problem.deal(OP, device, grid, BUILT, Kernels::Both)?;
        Ok(Verify { problem, deal, programmatic: false })
    }

    /// Lets the CUDA kernel begin while the one before it on the stream still runs. It waits for that one
    /// before it reads or writes anything.
    pub fn overlapping(mut self, on: bool) -> Self {
        self.programmatic = on;
        self
    }

    /// The grid of the CUDA kernel; `None` if it was planned for the CPU.
    pub fn grid(&self) -> Option<Grid> {
        self.deal.map(|deal| deal.grid)
    }

    /// The sizes planned for.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Enqueues the operation.
    ///
    /// # Errors
    ///
    /// Operands whose shape, strides or size do not fit the problem, by name.
    pub fn run<B: GdnBackend, A: Activation>(&self, on: &B::Queue, args: Args<'_, B, A>) -> Result<()> {
        args.check(OP, &self.problem)?;
        B::verify(self, on, args)
    }
}

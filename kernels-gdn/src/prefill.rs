//! The same token function over many known tokens.

use crate::{
    Args, GdnBackend, Grid, Problem,
    plan::{BUILT, Deal, Kernels},
};
use kernels_core::{Activation, DeviceInfo, Result};

pub(crate) const OP: &str = "gdn::prefill";

/// Runs the recurrence over rows that are all known to be kept, and stores the state behind them.
///
/// Replays what is pending, runs the rows, always stores the state, journals nothing. Afterwards the
/// bookkeeping sets `folded = committed = start + T`. Any chunking, single rows through
/// [`Verify`](crate::Verify) included, gives the same bits.
///
/// `flush_after` has no meaning here, and the journal needs to hold only what is pending: a plan may
/// have `max_rows` far beyond it.
///
/// # Faults
///
/// As for [`Verify`](crate::Verify), except that `pending` alone must fit the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefill {
    problem: Problem,
    pub(crate) deal: Option<Deal>,
    pub(crate) programmatic: bool,
}

impl Prefill {
    /// Checks the sizes and chooses a kernel.
    ///
    /// # Errors
    ///
    /// Sizes of zero, value heads that are no multiple of the key heads, and devices that this build has
    /// no kernels for.
    pub fn plan(problem: Problem, device: &DeviceInfo) -> Result<Self> {
        Self::plan_with(problem, device, None)
    }

    /// Like [`Prefill::plan`] with a grid of the caller's, for tuning and tests.
    ///
    /// # Errors
    ///
    /// Those of [`Prefill::plan`], and grids that no kernel has.
    pub fn plan_with(problem: Problem, device: &DeviceInfo, grid: Option<Grid>) -> Result<Self> {
        problem.check(OP)?;
        let deal = problem.deal(OP, device, grid, BUILT, Kernels::Generic)?;
        Ok(Prefill { problem, deal, programmatic: false })
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
        B::prefill(self, on, args)
    }
}

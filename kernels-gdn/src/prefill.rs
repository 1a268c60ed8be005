//! The same token function over many known tokens.

use crate::{Args, GdnBackend, Problem};
use kernels_core::{Activation, DeviceInfo, Result};

const OP: &str = "gdn::prefill";

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
}

impl Prefill {
    /// Checks the sizes and chooses a kernel.
    ///
    /// # Errors
    ///
    /// Sizes of zero, value heads that are no multiple of the key heads, and devices that this build has
    /// no kernels for.
    pub fn plan(problem: Problem, device: &DeviceInfo) -> Result<Self> {
        problem.check(OP)?;
        Problem::check_device(OP, device)?;
        Ok(Prefill { problem })
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

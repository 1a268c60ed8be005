use crate::{Args, ConvBackend, Grid, Problem, plan::BUILT};
use kernels_core::{Activation, DeviceInfo, Result};

pub(crate) const OP: &str = "conv::prefill";

/// Convolves a chunk of a prompt, of any length, and leaves its last inputs in the ring.
///
/// The ring may be shorter than the chunk: it holds the inputs of the last `ring_rows` positions afterwards,
/// as if the rows had been decoded one by one. Outputs and ring have the same bits under any chunking, and
/// the same as [`Verify`](crate::Verify)'s.
///
/// # Errors
///
/// As [`Verify`](crate::Verify), with a ring of at least `width - 1` rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefill {
    problem: Problem,
    pub(crate) grid: Option<Grid>,
    pub(crate) programmatic: bool,
}

impl Prefill {
    /// Checks `problem` and chooses a grid for `device`.
    pub fn plan(problem: Problem, device: &DeviceInfo) -> Result<Self> {
        problem.check(OP, problem.width.saturating_sub(1))?;
        let grid = problem.grid(OP, device, None, BUILT)?;
        Ok(Prefill { problem, grid, programmatic: false })
    }

    /// Lets the CUDA kernel begin while the one before it on the stream still runs; see
    /// [`Verify::overlapping`](crate::Verify::overlapping).
    pub fn overlapping(mut self, on: bool) -> Self {
        self.programmatic = on;
        self
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Runs it, or enqueues it. Capturable: allocates nothing and never waits.
    pub fn run<B: ConvBackend, A: Activation>(&self, on: &B::Queue, args: Args<'_, B, A>) -> Result<()> {
        self.problem.check_args(OP, &args)?;
        B::prefill(self, on, args)
    }
}

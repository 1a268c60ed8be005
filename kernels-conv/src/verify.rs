use crate::{Args, ConvBackend, Grid, Problem, plan::BUILT};
use kernels_core::{Activation, DeviceInfo, Result, slots::conv_ring_rows};

pub(crate) const OP: &str = "conv::verify";

/// Convolves the rows of a decode or verification round, and keeps their inputs in the ring.
///
/// Reads the inputs of positions `start - (width - 1) .. start` from the ring and writes those of the new
/// rows into it; the cells of rejected rows are overwritten by the next round. One row per sequence is plain
/// decode. The bits of a row do not depend on the rest of the launch.
///
/// # Errors
///
/// `plan` refuses, by name and value: widths other than 2 to 4, a ring shorter than
/// `width - 1 + max_rows`, sizes beyond i32, and on CUDA channels that are no multiple of 8, or a device that
/// the build has no kernel for. `run` refuses operands whose shape, strides, bounds or (CUDA) alignment and
/// type do not fit. Wrong device data (a slot that does not exist, offsets out of range, more than
/// `max_rows` rows) sets the slot's fault word and zeroes the sequence's outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verify {
    problem: Problem,
    pub(crate) grid: Option<Grid>,
    pub(crate) programmatic: bool,
}

impl Verify {
    /// Checks `problem` and chooses a grid for `device`.
    pub fn plan(problem: Problem, device: &DeviceInfo) -> Result<Self> {
        Self::plan_with(problem, device, None)
    }

    /// Like [`Verify::plan`] with a grid of the caller's, for tuning and tests.
    pub fn plan_with(problem: Problem, device: &DeviceInfo, grid: Option<Grid>) -> Result<Self> {
        problem.check(OP, conv_ring_rows(problem.width, problem.max_rows))?;
        let grid = problem.grid(OP, device, grid, BUILT)?;
        Ok(Verify { problem, grid, programmatic: false })
    }

    /// Lets the CUDA kernel begin while the one before it on the stream still runs.
    ///
    /// Its taps and bias are loaded at once, all else after the other kernel is done: they must not have been
    /// written by a kernel that may still be running.
    pub fn overlapping(mut self, on: bool) -> Self {
        self.programmatic = on;
        self
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The grid of the CUDA kernel; `None` if it was planned for the CPU.
    pub fn grid(&self) -> Option<Grid> {
        self.grid
    }

    /// Runs it, or enqueues it. Capturable: allocates nothing and never waits.
    pub fn run<B: ConvBackend, A: Activation>(&self, on: &B::Queue, args: Args<'_, B, A>) -> Result<()> {
        self.problem.check_args(OP, &args)?;
        B::verify(self, on, args)
    }
}

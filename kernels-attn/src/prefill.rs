//! Attention of a prompt, in chunks of any length.

use crate::{Args, AttnBackend, Path, Problem, Share, grid::Deal, plan::BUILT};
use kernels_core::{Activation, DeviceInfo, Result};

pub(crate) const OP: &str = "attn::prefill";

/// Lets the rows of a prompt chunk attend to everything up to themselves.
///
/// The same function of a row as [`Verify`](crate::Verify): a prompt in any chunking, token by token
/// included, gives the same bytes. It is an operation of its own because many rows of one sequence want
/// another grid than a few rows of many: a thread block owns some rows and all their keys.
///
/// It takes no list: on CUDA it makes its own, in a workspace that the layers of a pass may share.
#[derive(Clone, Debug, PartialEq)]
pub struct Prefill {
    problem: Problem,
    pub(crate) deal: Deal,
    pub(crate) programmatic: bool,
}

impl Prefill {
    /// Chooses how to solve `problem` on `device`; refuses what makes no sense by name and value.
    ///
    /// # Errors
    ///
    /// Those of [`Verify::plan`](crate::Verify::plan), with any number of rows.
    pub fn plan(problem: Problem, device: &DeviceInfo) -> Result<Self> {
        Self::plan_with(problem, device, None)
    }

    /// Like [`Prefill::plan`] with kernels of the caller's choice, for tuning and tests.
    ///
    /// # Errors
    ///
    /// Those of [`Prefill::plan`], and paths that no kernel has.
    pub fn plan_with(problem: Problem, device: &DeviceInfo, path: Option<Path>) -> Result<Self> {
        problem.validate(OP)?;
        let deal = problem.deal(OP, device, (path, Some(Share::Sequence)), BUILT)?.with_list(&problem);
        Ok(Prefill { problem, deal, programmatic: false })
    }

    /// Lets the CUDA kernels begin while the one before it on the stream still runs. It waits for that one
    /// before it reads or writes anything.
    pub fn overlapping(mut self, on: bool) -> Self {
        self.programmatic = on;
        self
    }

    /// The kernels of its launches; `None` if it was planned for the CPU.
    pub fn path(&self) -> Option<Path> {
        self.deal.path
    }

    /// Bytes of [`Args::workspace`]; 0 on the CPU.
    pub fn workspace_bytes(&self) -> usize {
        self.deal.workspace.bytes
    }

    /// The sizes this was planned for.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Enqueues the operation.
    ///
    /// # Errors
    ///
    /// Operands whose shape, strides or size do not fit the problem, by name.
    pub fn run<B: AttnBackend, A: Activation>(&self, on: &B::Queue, args: Args<'_, B, A>) -> Result<()> {
        args.check(OP, &self.problem, &self.deal)?;
        B::prefill(self, on, args)
    }
}

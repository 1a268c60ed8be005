//! Attention of a prompt, in chunks of any length.

use crate::{Args, AttnBackend, Problem};
use kernels_core::{Activation, DeviceInfo, Result};

/// Lets the rows of a prompt chunk attend to everything up to themselves.
///
/// The same function of a row as [`Verify`](crate::Verify): a prompt in any chunking, token by token
/// included, gives the same bytes. It is an operation of its own because many rows of one sequence want
/// another kernel than a few rows of many.
#[derive(Clone, Debug, PartialEq)]
pub struct Prefill {
    problem: Problem,
}

impl Prefill {
    const OP: &'static str = "attn::prefill";

    /// Chooses how to solve `problem` on `device`; refuses what makes no sense by name and value.
    pub fn plan(problem: Problem, device: &DeviceInfo) -> Result<Self> {
        problem.validate(Self::OP, device)?;
        Ok(Prefill { problem })
    }

    /// The sizes this was planned for.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Enqueues the operation.
    pub fn run<B: AttnBackend, A: Activation>(&self, on: &B::Queue, args: Args<'_, B, A>) -> Result<()> {
        args.check(Self::OP, &self.problem)?;
        B::prefill(self, on, args)
    }
}

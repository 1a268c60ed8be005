//! Folding what is pending into the state, without new rows.

use crate::{
    GdnBackend, Grid, Problem,
    args::check_memory,
    plan::{BUILT, Deal, Kernels},
};
use kernels_core::{Activation, Backend, DeviceInfo, Result, Tensor, TensorMut, bf16};

pub(crate) const OP: &str = "gdn::fold";

/// The operands of [`Fold`].
#[derive(Debug)]
pub struct FoldArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[slots, v_heads, v_dim, k_dim]`: the state after `folded` tokens, then after `committed`.
    pub state: TensorMut<'a, B, f32, 4>,
    /// `[slots, journal_rows, journal_width]`: read only, but lent as every operation takes it.
    pub journal: TensorMut<'a, B, A, 3>,
    /// `[slots + 1]`: sticky fault words.
    pub faults: TensorMut<'a, B, u64, 1>,
    /// `[slots]`: tokens inside `state`.
    pub folded: Tensor<'a, B, i32, 1>,
    /// `[v_heads]`: logarithm of the decay rate.
    pub a_log: Tensor<'a, B, f32, 1>,
    /// `[v_heads]`: added to `a`.
    pub dt_bias: Tensor<'a, B, f32, 1>,
    /// `[sequences]`: the slots to fold; negative = skip.
    pub slots: Tensor<'a, B, i32, 1>,
    /// `[slots]`: tokens whose effect is final.
    pub committed: Tensor<'a, B, i32, 1>,
}

/// Brings the state of some slots up to their committed tokens: for saving, comparing and migrating.
///
/// Replays the journal rows `folded..committed` and stores the state; the caller then sets
/// `folded = committed`. A slot with nothing pending is not touched, so where `folded` is zero the state
/// is still *defined* as zero rather than written. `rows`, `max_rows` and `flush_after` of the problem
/// have no meaning here.
///
/// # Faults
///
/// `Pending` where `committed - folded` is negative or exceeds the journal, `Slot` where a slot does not
/// exist; the slot is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    problem: Problem,
    pub(crate) deal: Option<Deal>,
    pub(crate) programmatic: bool,
}

impl Fold {
    /// Checks the sizes and chooses a kernel.
    ///
    /// # Errors
    ///
    /// Sizes of zero, value heads that are no multiple of the key heads, and devices that this build has
    /// no kernels for.
    pub fn plan(problem: Problem, device: &DeviceInfo) -> Result<Self> {
        Self::plan_with(problem, device, None)
    }

    /// Like [`Fold::plan`] with a grid of the caller's, for tuning and tests.
    ///
    /// # Errors
    ///
    /// Those of [`Fold::plan`], and grids that no kernel has.
    pub fn plan_with(problem: Problem, device: &DeviceInfo, grid: Option<Grid>) -> Result<Self> {
        problem.check(OP)?;
        let deal = problem.deal(OP, device, grid, BUILT, Kernels::Generic)?;
        Ok(Fold { problem, deal, programmatic: false })
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
    pub fn run<B: GdnBackend, A: Activation>(&self, on: &B::Queue, args: FoldArgs<'_, B, A>) -> Result<()> {
        let p = &self.problem;
        check_memory(OP, p, &args.state, &args.journal, &args.faults)?;
        args.folded.check(OP, "folded", [p.slots])?;
        args.a_log.check(OP, "a_log", [p.v_heads])?;
        args.dt_bias.check(OP, "dt_bias", [p.v_heads])?;
        args.slots.check(OP, "slots", [p.sequences])?;
        args.committed.check(OP, "committed", [p.slots])?;
        B::fold(self, on, args)
    }
}

//! Hidden rows on their way from the target to the draft.

use crate::problem::{at_least_one, at_most, operation};
use kernels_core::{Activation, Backend, Result, Rows, Tensor, TensorMut, bf16};

/// The bounds of the operations on hidden rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HiddenProblem {
    /// Sequences of the launch, padding included.
    pub sequences: usize,
    /// Rows of the draft's pass ([`Carry`]) or of the pass given ([`KeepHidden`], [`TakeLast`]).
    pub rows: usize,
    /// Rows of the target's pass; only [`Carry`] looks at it.
    pub forward_rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Slots of the ring.
    pub slots: usize,
    /// Hidden rows kept per slot: position `p` at `p % ring_rows`.
    pub ring_rows: usize,
}

impl HiddenProblem {
    fn check(&self, op: &'static str) -> Result<()> {
        at_least_one(op, "sequences", self.sequences)?;
        at_least_one(op, "rows", self.rows)?;
        at_least_one(op, "forward_rows", self.forward_rows)?;
        at_least_one(op, "width", self.width)?;
        at_least_one(op, "slots", self.slots)?;
        at_least_one(op, "ring_rows", self.ring_rows)?;
        at_most(op, "ring_rows", self.ring_rows, i32::MAX as usize)
    }
}

operation! {
    /// Gathers the hidden row that goes with each row of [`DraftInputs`](crate::DraftInputs): the
    /// target's, one position earlier.
    ///
    /// It comes from the pass that just ran where that pass covers the position, else from the ring. Run
    /// it before [`KeepHidden`], which may overwrite older ring rows. Rows of padding and rows nobody
    /// owns become zero.
    Carry, "spec::carry", HiddenProblem, CarryArgs<A>, carry
}

/// Operands of [`Carry`].
#[derive(Debug)]
pub struct CarryArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[rows, width]`: the hidden row of each draft row.
    pub out: TensorMut<'a, B, A, 2>,
    /// `[slots + 1]`: sticky fault words.
    pub faults: TensorMut<'a, B, u64, 1>,
    /// `[forward_rows, width]`: the hidden rows of the target's pass, after its final norm.
    pub hidden: Tensor<'a, B, A, 2>,
    /// `[slots, ring_rows, width]`: hidden rows of earlier passes.
    pub ring: Tensor<'a, B, A, 3>,
    /// The rows of the target's pass.
    pub forward: Rows<'a, B>,
    /// The rows of the draft's pass.
    pub rows: Rows<'a, B>,
}

impl Carry {
    fn check<B: Backend, A: Activation>(&self, args: &CarryArgs<'_, B, A>) -> Result<()> {
        let p = &self.problem;
        args.out.check(Self::NAME, "out", [p.rows, p.width])?;
        args.out.check_disjoint(Self::NAME, "out")?;
        args.faults.check(Self::NAME, "faults", [p.slots + 1])?;
        args.hidden.check(Self::NAME, "hidden", [p.forward_rows, p.width])?;
        args.ring.check(Self::NAME, "ring", [p.slots, p.ring_rows, p.width])?;
        args.forward.slots.check(Self::NAME, "forward.slots", [p.sequences])?;
        args.forward.start.check(Self::NAME, "forward.start", [p.sequences])?;
        args.forward.row_offsets.check(Self::NAME, "forward.row_offsets", [p.sequences + 1])?;
        args.rows.check(Self::NAME, p.sequences)
    }
}

operation! {
    /// Keeps the committed hidden rows of a pass for drafts to come.
    ///
    /// Run it after every pass of the target, behind [`Advance`](crate::Advance) and [`Carry`]: rows
    /// below `committed` go to the ring (the last `ring_rows` of them), rejected ones nowhere.
    KeepHidden, "spec::keep_hidden", HiddenProblem, KeepHiddenArgs<A>, keep_hidden
}

/// Operands of [`KeepHidden`].
#[derive(Debug)]
pub struct KeepHiddenArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[slots, ring_rows, width]`: position `p` at `p % ring_rows`.
    pub ring: TensorMut<'a, B, A, 3>,
    /// `[slots + 1]`: sticky fault words.
    pub faults: TensorMut<'a, B, u64, 1>,
    /// `[slots]`: tokens committed, this pass included.
    pub committed: Tensor<'a, B, i32, 1>,
    /// `[rows, width]`: the hidden rows of the pass, after its final norm.
    pub hidden: Tensor<'a, B, A, 2>,
    /// The rows of the pass.
    pub rows: Rows<'a, B>,
}

impl KeepHidden {
    fn check<B: Backend, A: Activation>(&self, args: &KeepHiddenArgs<'_, B, A>) -> Result<()> {
        let p = &self.problem;
        args.ring.check(Self::NAME, "ring", [p.slots, p.ring_rows, p.width])?;
        args.ring.check_disjoint(Self::NAME, "ring")?;
        args.faults.check(Self::NAME, "faults", [p.slots + 1])?;
        args.committed.check(Self::NAME, "committed", [p.slots])?;
        args.hidden.check(Self::NAME, "hidden", [p.rows, p.width])?;
        args.rows.check(Self::NAME, p.sequences)
    }
}

operation! {
    /// Gathers the last row of every sequence: row `i` of the output is sequence `i`.
    ///
    /// Sequences without rows give zeros.
    TakeLast, "spec::take_last", HiddenProblem, TakeLastArgs<A>, take_last
}

/// Operands of [`TakeLast`].
#[derive(Debug)]
pub struct TakeLastArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[sequences, width]`.
    pub out: TensorMut<'a, B, A, 2>,
    /// `[slots + 1]`: sticky fault words.
    pub faults: TensorMut<'a, B, u64, 1>,
    /// `[rows, width]`.
    pub hidden: Tensor<'a, B, A, 2>,
    /// Whose rows they are.
    pub rows: Rows<'a, B>,
}

impl TakeLast {
    fn check<B: Backend, A: Activation>(&self, args: &TakeLastArgs<'_, B, A>) -> Result<()> {
        let p = &self.problem;
        args.out.check(Self::NAME, "out", [p.sequences, p.width])?;
        args.out.check_disjoint(Self::NAME, "out")?;
        args.faults.check(Self::NAME, "faults", [p.slots + 1])?;
        args.hidden.check(Self::NAME, "hidden", [p.rows, p.width])?;
        args.rows.check(Self::NAME, p.sequences)
    }
}

//! The gated activation on its own, for callers whose linear layer has no epilogue.

use crate::{
    DenseBackend,
    plan::{self, BUILT},
};
use kernels_core::{Activation, Backend, DeviceInfo, Result, Tensor, TensorMut, bf16};

pub(crate) const OP: &str = "dense::silu_mul";

/// The sizes of [`SiluMul`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SiluMulProblem {
    /// Rows.
    pub rows: usize,
    /// Width of a row.
    pub n: usize,
}

/// Operands of [`SiluMul`].
#[derive(Debug)]
pub struct SiluMulArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[rows, n]`
    pub out: TensorMut<'a, B, A, 2>,
    /// `[rows, n]`
    pub gate: Tensor<'a, B, A, 2>,
    /// `[rows, n]`
    pub up: Tensor<'a, B, A, 2>,
}

/// `out = A(silu(gate) * up)`: the bits of [`crate::Epilogue::SiluMul`] from stored sums.
///
/// The CUDA kernel has bf16 only, widths and strides that are multiples of 8, and operands aligned to 16 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiluMul {
    problem: SiluMulProblem,
    /// Whether it was planned for a CUDA device.
    pub(crate) on_cuda: bool,
    pub(crate) programmatic: bool,
}

impl SiluMul {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: SiluMulProblem, device: &DeviceInfo) -> Result<Self> {
        plan::rows(OP, problem.rows)?;
        plan::sizes(OP, [("n", problem.n)])?;
        plan::vectors(OP, problem.n, device)?;
        let on_cuda = plan::has_kernel(OP, device, BUILT)?;
        Ok(SiluMul { problem, on_cuda, programmatic: false })
    }

    /// Lets the CUDA kernel begin while the one before it on the stream still runs; it touches nothing before that
    /// one is done.
    pub fn overlapping(mut self, on: bool) -> Self {
        self.programmatic = on;
        self
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &SiluMulProblem {
        &self.problem
    }

    /// Checks the operands and computes or enqueues.
    pub fn run<B: DenseBackend, A: Activation>(
        &self,
        on: &B::Queue,
        args: SiluMulArgs<'_, B, A>,
    ) -> Result<()> {
        let SiluMulProblem { rows, n } = self.problem;
        args.out.check(OP, "out", [rows, n])?;
        args.out.check_disjoint(OP, "out")?;
        args.gate.check(OP, "gate", [rows, n])?;
        args.up.check(OP, "up", [rows, n])?;
        B::silu_mul(self, on, args)
    }
}

//! The gated activation on its own, for callers whose linear layer has no epilogue.

use crate::{DenseBackend, plan};
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiluMul {
    problem: SiluMulProblem,
}

impl SiluMul {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: SiluMulProblem, device: &DeviceInfo) -> Result<Self> {
        plan::rows(OP, problem.rows)?;
        plan::sizes(OP, [("n", problem.n)])?;
        plan::on_cpu(OP, device)?;
        Ok(SiluMul { problem })
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

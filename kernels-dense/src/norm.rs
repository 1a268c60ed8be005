//! Root-mean-square norms: plain, after a residual, gated, and two side by side.
//!
//! `r(x) = 1 / sqrt(mean(x²) + eps)` over a row in fp32; the tree of that sum depends on the width only.

use crate::{DenseBackend, plan};
use kernels_core::{Activation, Backend, DeviceInfo, Result, Tensor, TensorMut, bf16};

const NORM: &str = "dense::norm";
const ADD_NORM: &str = "dense::add_norm";
const GATED_NORM: &str = "dense::gated_norm";
const CONCAT_NORM: &str = "dense::concat_norm";

/// The sizes of [`Norm`], [`AddNorm`] and [`ConcatNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormProblem {
    /// Rows.
    pub rows: usize,
    /// Width of a row (of one half, for [`ConcatNorm`]).
    pub n: usize,
    /// Added to the mean square.
    pub eps: f32,
}

impl NormProblem {
    fn plan(&self, op: &'static str, device: &DeviceInfo) -> Result<()> {
        plan::rows(op, self.rows)?;
        plan::sizes(op, [("n", self.n)])?;
        plan::eps(op, self.eps)?;
        plan::on_cpu(op, device)
    }
}

/// Operands of [`Norm`].
#[derive(Debug)]
pub struct NormArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[rows, n]`
    pub out: TensorMut<'a, B, A, 2>,
    /// `[rows, n]`
    pub x: Tensor<'a, B, A, 2>,
    /// `[n]`, stored around zero.
    pub weight: Tensor<'a, B, A, 1>,
}

/// `out = A(x * r(x) * (1 + w))`: the zero-centred norm of Qwen3.5.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    problem: NormProblem,
}

impl Norm {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: NormProblem, device: &DeviceInfo) -> Result<Self> {
        problem.plan(NORM, device)?;
        Ok(Norm { problem })
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &NormProblem {
        &self.problem
    }

    /// Checks the operands and computes or enqueues.
    pub fn run<B: DenseBackend, A: Activation>(&self, on: &B::Queue, args: NormArgs<'_, B, A>) -> Result<()> {
        let NormProblem { rows, n, .. } = self.problem;
        args.out.check(NORM, "out", [rows, n])?;
        args.out.check_disjoint(NORM, "out")?;
        args.x.check(NORM, "x", [rows, n])?;
        args.weight.check(NORM, "weight", [n])?;
        B::norm(self, on, args)
    }
}

/// Operands of [`AddNorm`].
#[derive(Debug)]
pub struct AddNormArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[rows, n]`, read and written: the residual stream.
    pub residual: TensorMut<'a, B, A, 2>,
    /// `[rows, n]`
    pub out: TensorMut<'a, B, A, 2>,
    /// `[rows, n]`: what is added.
    pub x: Tensor<'a, B, A, 2>,
    /// `[n]`, stored around zero.
    pub weight: Tensor<'a, B, A, 1>,
}

/// `residual = A(residual + x)`, then [`Norm`] of the rounded residual.
#[derive(Clone, Debug, PartialEq)]
pub struct AddNorm {
    problem: NormProblem,
}

impl AddNorm {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: NormProblem, device: &DeviceInfo) -> Result<Self> {
        problem.plan(ADD_NORM, device)?;
        Ok(AddNorm { problem })
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &NormProblem {
        &self.problem
    }

    /// Checks the operands and computes or enqueues.
    pub fn run<B: DenseBackend, A: Activation>(
        &self,
        on: &B::Queue,
        args: AddNormArgs<'_, B, A>,
    ) -> Result<()> {
        let NormProblem { rows, n, .. } = self.problem;
        args.residual.check(ADD_NORM, "residual", [rows, n])?;
        args.residual.check_disjoint(ADD_NORM, "residual")?;
        args.out.check(ADD_NORM, "out", [rows, n])?;
        args.out.check_disjoint(ADD_NORM, "out")?;
        args.x.check(ADD_NORM, "x", [rows, n])?;
        args.weight.check(ADD_NORM, "weight", [n])?;
        B::add_norm(self, on, args)
    }
}

/// The sizes of [`GatedNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNormProblem {
    /// Rows.
    pub rows: usize,
    /// Heads of a row; each is normed by itself.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Added to the mean square.
    pub eps: f32,
}

/// Operands of [`GatedNorm`].
#[derive(Debug)]
pub struct GatedNormArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[rows, heads, head_dim]`
    pub out: TensorMut<'a, B, A, 3>,
    /// `[rows, heads, head_dim]`
    pub x: Tensor<'a, B, A, 3>,
    /// `[rows, heads, head_dim]`
    pub gate: Tensor<'a, B, A, 3>,
    /// `[head_dim]`, stored around one and shared by all heads.
    pub weight: Tensor<'a, B, f32, 1>,
}

/// `out = A(x * r(x) * w * silu(gate))` per head: what follows the gated delta net. No 1 + w here.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedNorm {
    problem: GatedNormProblem,
}

impl GatedNorm {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: GatedNormProblem, device: &DeviceInfo) -> Result<Self> {
        plan::rows(GATED_NORM, problem.rows)?;
        plan::sizes(GATED_NORM, [("heads", problem.heads), ("head_dim", problem.head_dim)])?;
        plan::eps(GATED_NORM, problem.eps)?;
        plan::on_cpu(GATED_NORM, device)?;
        Ok(GatedNorm { problem })
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &GatedNormProblem {
        &self.problem
    }

    /// Checks the operands and computes or enqueues.
    pub fn run<B: DenseBackend, A: Activation>(
        &self,
        on: &B::Queue,
        args: GatedNormArgs<'_, B, A>,
    ) -> Result<()> {
        let GatedNormProblem { rows, heads, head_dim, .. } = self.problem;
        args.out.check(GATED_NORM, "out", [rows, heads, head_dim])?;
        args.out.check_disjoint(GATED_NORM, "out")?;
        args.x.check(GATED_NORM, "x", [rows, heads, head_dim])?;
        args.gate.check(GATED_NORM, "gate", [rows, heads, head_dim])?;
        args.weight.check(GATED_NORM, "weight", [head_dim])?;
        B::gated_norm(self, on, args)
    }
}

/// Operands of [`ConcatNorm`].
#[derive(Debug)]
pub struct ConcatNormArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[rows, 2n]`: the normed left row, then the normed right row.
    pub out: TensorMut<'a, B, A, 2>,
    /// `[rows, n]`: the embedding of the next token, for the draft head.
    pub left: Tensor<'a, B, A, 2>,
    /// `[n]`, stored around zero.
    pub left_weight: Tensor<'a, B, A, 1>,
    /// `[rows, n]`: the hidden row, for the draft head.
    pub right: Tensor<'a, B, A, 2>,
    /// `[n]`, stored around zero.
    pub right_weight: Tensor<'a, B, A, 1>,
}

/// Two [`Norm`]s side by side in one row: the input of the draft head's first linear layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcatNorm {
    problem: NormProblem,
}

impl ConcatNorm {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: NormProblem, device: &DeviceInfo) -> Result<Self> {
        problem.plan(CONCAT_NORM, device)?;
        Ok(ConcatNorm { problem })
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &NormProblem {
        &self.problem
    }

    /// Checks the operands and computes or enqueues.
    pub fn run<B: DenseBackend, A: Activation>(
        &self,
        on: &B::Queue,
        args: ConcatNormArgs<'_, B, A>,
    ) -> Result<()> {
        let NormProblem { rows, n, .. } = self.problem;
        args.out.check(CONCAT_NORM, "out", [rows, 2 * n])?;
        args.out.check_disjoint(CONCAT_NORM, "out")?;
        args.left.check(CONCAT_NORM, "left", [rows, n])?;
        args.left_weight.check(CONCAT_NORM, "left_weight", [n])?;
        args.right.check(CONCAT_NORM, "right", [rows, n])?;
        args.right_weight.check(CONCAT_NORM, "right_weight", [n])?;
        B::concat_norm(self, on, args)
    }
}

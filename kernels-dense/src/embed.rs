//! Token ids to rows.

use crate::{DenseBackend, plan};
use kernels_core::{Activation, Backend, DeviceInfo, Result, Tensor, TensorMut, bf16};

const OP: &str = "dense::embed";

/// The sizes of an embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EmbedProblem {
    /// Rows to gather.
    pub rows: usize,
    /// Width of a row.
    pub n: usize,
    /// Rows of the table.
    pub vocab: usize,
}

/// Operands of [`Embed`].
#[derive(Debug)]
pub struct EmbedArgs<'a, B: Backend, A: Activation = bf16, W: Activation = A> {
    /// `[rows, n]`
    pub out: TensorMut<'a, B, A, 2>,
    /// `[rows]`; an id that is negative or not in the table gives a row of zeros.
    pub ids: Tensor<'a, B, i32, 1>,
    /// `[vocab, n]`
    pub table: Tensor<'a, B, W, 2>,
}

/// `out[i] = A(table[ids[i]])`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embed {
    problem: EmbedProblem,
}

impl Embed {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: EmbedProblem, device: &DeviceInfo) -> Result<Self> {
        plan::rows(OP, problem.rows)?;
        plan::sizes(OP, [("n", problem.n), ("vocab", problem.vocab)])?;
        plan::on_cpu(OP, device)?;
        Ok(Embed { problem })
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &EmbedProblem {
        &self.problem
    }

    /// Checks the operands and computes or enqueues.
    pub fn run<B: DenseBackend, A: Activation, W: Activation>(
        &self,
        on: &B::Queue,
        args: EmbedArgs<'_, B, A, W>,
    ) -> Result<()> {
        let EmbedProblem { rows, n, vocab } = self.problem;
        args.out.check(OP, "out", [rows, n])?;
        args.out.check_disjoint(OP, "out")?;
        args.ids.check(OP, "ids", [rows])?;
        args.table.check(OP, "table", [vocab, n])?;
        B::embed(self, on, args)
    }
}

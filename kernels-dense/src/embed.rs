//! Token ids to rows.

use crate::{
    DenseBackend,
    plan::{self, BUILT},
};
use kernels_core::{Activation, Backend, DeviceInfo, Result, Tensor, TensorMut, bf16};

pub(crate) const OP: &str = "dense::embed";

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
///
/// The CUDA kernel has bf16 rows and tables only, widths and strides that are multiples of 8, and operands aligned to
/// 16 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embed {
    problem: EmbedProblem,
    /// Whether it was planned for a CUDA device.
    pub(crate) on_cuda: bool,
    pub(crate) programmatic: bool,
}

impl Embed {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: EmbedProblem, device: &DeviceInfo) -> Result<Self> {
        plan::rows(OP, problem.rows)?;
        plan::sizes(OP, [("n", problem.n), ("vocab", problem.vocab)])?;
        plan::vectors(OP, problem.n, device)?;
        let on_cuda = plan::has_kernel(OP, device, BUILT)?;
        Ok(Embed { problem, on_cuda, programmatic: false })
    }

    /// Lets the CUDA kernel begin while the one before it on the stream still runs; it touches nothing before that
    /// one is done.
    pub fn overlapping(mut self, on: bool) -> Self {
        self.programmatic = on;
        self
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

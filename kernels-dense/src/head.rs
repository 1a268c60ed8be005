//! The language model head: fp32 logits, and the best id of every row.

use crate::{
    DenseBackend,
    partition::{Form, Grid, Stream},
    plan::{self, BUILT},
};
use kernels_core::{Activation, Backend, DeviceInfo, Error, Result, Tensor, TensorMut, bf16};

pub(crate) const OP: &str = "dense::head";

/// The sizes of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadProblem {
    /// Rows of `x`.
    pub rows: usize,
    /// Width of a row.
    pub k: usize,
    /// Columns of the logits, and rows of the weight unless `listed` says otherwise.
    pub vocab: usize,
    /// Ids from here on stand for no token: they never win, and their logits are -inf.
    pub valid: usize,
    /// Rows of a weight that is a part of a larger one, a trimmed draft head's: [`HeadArgs::ids`] says what they stand
    /// for.
    pub listed: Option<usize>,
}

impl HeadProblem {
    /// Rows of the weight.
    pub fn weight_rows(&self) -> usize {
        self.listed.unwrap_or(self.vocab)
    }
}

/// Operands of [`Head`]. At least one of the two outputs must be there.
#[derive(Debug)]
pub struct HeadArgs<'a, B: Backend, A: Activation = bf16, W: Activation = A> {
    /// `[rows, vocab]`, fp32 and not rounded. Columns of ids that are not listed stay as they are.
    pub logits: Option<TensorMut<'a, B, f32, 2>>,
    /// `[rows]`: the smallest id among the largest logits; -1 where all are NaN.
    pub argmax: Option<TensorMut<'a, B, i32, 1>>,
    /// `[rows, k]`
    pub x: Tensor<'a, B, A, 2>,
    /// `[weight_rows, k]`; rows from `valid` on are not read where all ids are there.
    pub weight: Tensor<'a, B, W, 2>,
    /// `[weight_rows]`: the ids that rows of the weight stand for, each once; those outside of `0..valid` are left out.
    /// Given where [`HeadProblem::listed`] is, and only there.
    pub ids: Option<Tensor<'a, B, i32, 1>>,
    /// `[workspace]`: [`Head::workspace_bytes`], as in [`LinearArgs`](crate::LinearArgs).
    pub workspace: Option<TensorMut<'a, B, u8, 1>>,
}

/// Logits and their argmax in one pass over the weight.
///
/// The argmax is taken on the fp32 sums (rounding first would tie a few rows in a hundred), by the rule
/// of [`kernels_core::argmax`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    problem: HeadProblem,
    pub(crate) stream: Option<Stream>,
}

impl Head {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: HeadProblem, device: &DeviceInfo) -> Result<Self> {
        sizes(OP, &problem)?;
        let HeadProblem { rows, k, .. } = problem;
        Ok(Head {
            problem,
            stream: Stream::plan(OP, Form::Head, [rows, k, problem.weight_rows()], device, BUILT)?,
        })
    }

    /// Lets the CUDA kernel begin while the one before it on the stream still runs, as in
    /// [`Linear::overlapping`](crate::Linear::overlapping).
    pub fn overlapping(mut self, on: bool) -> Self {
        if let Some(stream) = &mut self.stream {
            stream.programmatic = on;
        }
        self
    }

    /// Another grid, for tuning and tests.
    #[doc(hidden)]
    pub fn with_grid(mut self, choose: impl FnOnce(Grid) -> Grid) -> Self {
        self.stream = self.stream.map(|stream| stream.with(choose(stream.grid)));
        self
    }

    /// Bytes of [`HeadArgs::workspace`]; 0 on the CPU.
    pub fn workspace_bytes(&self) -> usize {
        self.stream.map_or(0, |stream| stream.workspace_bytes())
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &HeadProblem {
        &self.problem
    }

    /// Checks the operands and computes or enqueues.
    pub fn run<B: DenseBackend, A: Activation, W: Activation>(
        &self,
        on: &B::Queue,
        args: HeadArgs<'_, B, A, W>,
    ) -> Result<()> {
        let HeadProblem { rows, k, vocab, .. } = self.problem;
        if args.logits.is_none() && args.argmax.is_none() {
            let want = "one of `logits` and `argmax` must be given";
            return Err(Error::invalid(OP, "the number of outputs", 0, want));
        }
        if let Some(logits) = &args.logits {
            logits.check(OP, "logits", [rows, vocab])?;
            logits.check_disjoint(OP, "logits")?;
        }
        if let Some(argmax) = &args.argmax {
            argmax.check(OP, "argmax", [rows])?;
        }
        args.x.check(OP, "x", [rows, k])?;
        args.weight.check(OP, "weight", [self.problem.weight_rows(), k])?;
        ids(OP, &self.problem, args.ids.as_ref())?;
        if let Some(workspace) = &args.workspace {
            workspace.check(OP, "workspace", [self.workspace_bytes()])?;
            workspace.check_disjoint(OP, "workspace")?;
        }
        B::head(self, on, args)
    }
}

/// What every head refuses of its sizes.
pub(crate) fn sizes(op: &'static str, problem: &HeadProblem) -> Result<()> {
    plan::rows(op, problem.rows)?;
    plan::sizes(op, [("k", problem.k), ("vocab", problem.vocab)])?;
    if !(1..=problem.vocab).contains(&problem.valid) {
        let want = format!("it must be in 1..={}, the vocabulary", problem.vocab);
        return Err(Error::invalid(op, "valid", problem.valid, want));
    }
    if let Some(listed) = problem.listed {
        if listed == 0 {
            return Err(Error::invalid(op, "listed", 0, "it must be at least 1, or none for all ids"));
        }
        plan::sizes(op, [("listed", listed)])?;
    }
    Ok(())
}

/// The ids of a part of the vocabulary: where there is one, and only there.
pub(crate) fn ids<B: Backend>(
    op: &'static str,
    problem: &HeadProblem,
    ids: Option<&Tensor<'_, B, i32, 1>>,
) -> Result<()> {
    match (ids, problem.listed) {
        (Some(ids), Some(listed)) => ids.check(op, "ids", [listed]),
        (None, Some(listed)) => {
            let want = format!("the weight has {listed} rows, and somebody must say which ids they are");
            Err(Error::invalid(op, "ids", "none", want))
        }
        (Some(ids), None) => {
            let want = "they go with `listed` in the problem, which says how many there are";
            Err(Error::invalid(op, "ids", format!("{:?}", ids.dims), want))
        }
        (None, None) => Ok(()),
    }
}

//! y = x Wᵀ, with what follows it folded in.

use crate::{
    DenseBackend,
    partition::{Form, Grid, Stream},
    plan::{self, BUILT},
};
use kernels_core::{Activation, Archs, Backend, DeviceInfo, Error, Result, Tensor, TensorMut, bf16};

pub(crate) const OP: &str = "dense::linear";

/// What happens to a sum once it is rounded to the activation type.
///
/// `A(v)` rounds to the activation type; everything else is fp32. An epilogue starts from the *rounded*
/// sum, so that it gives the bits of [`Epilogue::Store`] followed by an operation of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// `out = A(sum)`.
    Store,
    /// `out = A(out + A(sum))`: a residual.
    AddTo,
    /// `out = A(silu(A(gate)) * A(up))`: the weight has `n` gate rows, then `n` up rows.
    SiluMul,
    /// `out = A(sigmoid(gate of the row) * A(sum))`, the gate in fp32, as [`Head`](crate::Head) gives it.
    SigmoidGate,
}

/// The sizes of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearProblem {
    /// Rows of `x` and `out`.
    pub rows: usize,
    /// Input width.
    pub k: usize,
    /// Output width.
    pub n: usize,
    /// What happens to the sums.
    pub epilogue: Epilogue,
}

impl LinearProblem {
    /// Rows of the weight: twice `n` where it holds gate and up.
    pub fn weight_rows(&self) -> usize {
        match self.epilogue {
            Epilogue::Store | Epilogue::AddTo | Epilogue::SigmoidGate => self.n,
            Epilogue::SiluMul => 2 * self.n,
        }
    }
}

/// Operands of [`Linear`].
#[derive(Debug)]
pub struct LinearArgs<'a, B: Backend, A: Activation = bf16, W: Activation = A> {
    /// `[rows, n]`; read too by [`Epilogue::AddTo`].
    pub out: TensorMut<'a, B, A, 2>,
    /// `[rows, k]`
    pub x: Tensor<'a, B, A, 2>,
    /// `[n, k]`; `[2n, k]` for [`Epilogue::SiluMul`].
    pub weight: Tensor<'a, B, W, 2>,
    /// `[rows]`: what [`Epilogue::SigmoidGate`] multiplies with, before the sigmoid; the others do not read it.
    pub gate: Option<Tensor<'a, B, f32, 1>>,
    /// `[workspace]`: [`Linear::workspace_bytes`], which are zeros before the first run that uses them and which nothing
    /// but [`Linear`], [`Head`](crate::Head) and [`Moe`](crate::Moe) on one stream may write to. Not needed where those are
    /// 0.
    pub workspace: Option<TensorMut<'a, B, u8, 1>>,
}

/// A linear layer without bias, `x Wᵀ`, and its epilogue.
///
/// Sums are fp32 and their order is a function of `k` alone (on CUDA, of the weight's shape), so a row has the same bits
/// however many rows are computed with it.
///
/// ```
/// use kernels_core::{Cpu, DeviceInfo, Tensor, TensorMut};
/// use kernels_dense::{Epilogue, Linear, LinearArgs, LinearProblem};
///
/// let op = Linear::plan(
///     LinearProblem { rows: 1, k: 2, n: 2, epilogue: Epilogue::AddTo },
///     &DeviceInfo::cpu(),
/// )?;
/// let (x, weight) = (vec![1.0f32, 2.0], vec![3.0f32, 4.0, 5.0, 6.0]);
/// let mut out = vec![100.0f32, 200.0];
/// op.run::<Cpu, f32, f32>(&(), LinearArgs {
///     out: TensorMut::of(&mut out, [1, 2]),
///     x: Tensor::of(&x, [1, 2]),
///     weight: Tensor::of(&weight, [2, 2]),
///     gate: None,
///     workspace: None,
/// })?;
/// assert_eq!(out, [111.0, 217.0]);
/// # Ok::<(), kernels_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linear {
    problem: LinearProblem,
    pub(crate) stream: Option<Stream>,
}

impl Linear {
    /// Chooses how `device` computes `problem`.
    ///
    /// # Errors
    ///
    /// Sizes out of range; on CUDA, widths that are no multiples of 8, and devices that this build has no kernels for.
    pub fn plan(problem: LinearProblem, device: &DeviceInfo) -> Result<Self> {
        Self::plan_for(problem, device, BUILT)
    }

    fn plan_for(problem: LinearProblem, device: &DeviceInfo, built: Archs) -> Result<Self> {
        let LinearProblem { rows, k, n, epilogue } = problem;
        plan::rows(OP, rows)?;
        plan::sizes(OP, [("k", k), ("n", n)])?;
        let form = if epilogue == Epilogue::SiluMul { Form::Gated } else { Form::Linear };
        Ok(Linear { problem, stream: Stream::plan(OP, form, [rows, k, n], device, built)? })
    }

    /// Lets the CUDA kernel begin while the one before it on the stream still runs.
    ///
    /// Its weights are loaded at once, all else after the other kernel is done: they must not have been written by a
    /// kernel that may still be running.
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

    /// Bytes of [`LinearArgs::workspace`]; 0 on the CPU.
    pub fn workspace_bytes(&self) -> usize {
        self.stream.map_or(0, |stream| stream.workspace_bytes())
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &LinearProblem {
        &self.problem
    }

    /// Checks the operands and computes or enqueues.
    pub fn run<B: DenseBackend, A: Activation, W: Activation>(
        &self,
        on: &B::Queue,
        args: LinearArgs<'_, B, A, W>,
    ) -> Result<()> {
        let LinearProblem { rows, k, n, .. } = self.problem;
        args.out.check(OP, "out", [rows, n])?;
        args.out.check_disjoint(OP, "out")?;
        args.x.check(OP, "x", [rows, k])?;
        args.weight.check(OP, "weight", [self.problem.weight_rows(), k])?;
        match &args.gate {
            Some(gate) => gate.check(OP, "gate", [rows])?,
            None if self.problem.epilogue == Epilogue::SigmoidGate => {
                return Err(Error::invalid(OP, "gate", "none", "this epilogue needs one"));
            }
            None => (),
        }
        if let Some(workspace) = &args.workspace {
            workspace.check(OP, "workspace", [self.workspace_bytes()])?;
            workspace.check_disjoint(OP, "workspace")?;
        }
        B::linear(self, on, args)
    }
}

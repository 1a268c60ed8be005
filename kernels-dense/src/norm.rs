//! Root-mean-square norms: plain, after a residual, gated, and two side by side.
//!
//! `r(x) = 1 / sqrt(mean(x²) + eps)` over a row in fp32; the tree of that sum depends on the width only.
//!
//! The CUDA kernels have bf16 only, rows of whole 16-byte vectors (multiples of 8, at most 8192 wide; heads of 128
//! in [`GatedNorm`]), operands aligned to 16 bytes, and strides that are multiples of 8 and below 2^31.

use crate::{
    DenseBackend,
    plan::{self, BUILT},
};
use kernels_core::{Activation, Archs, Backend, DeviceInfo, Error, Result, Tensor, TensorMut, bf16};

pub(crate) const NORM: &str = "dense::norm";
pub(crate) const ADD_NORM: &str = "dense::add_norm";
pub(crate) const GATED_NORM: &str = "dense::gated_norm";
pub(crate) const CONCAT_NORM: &str = "dense::concat_norm";

/// The widest row that a CUDA block norms.
const MAX_WIDTH: usize = 8192;
/// The head that the gated norm's kernel has.
const HEAD_DIM: usize = 128;

/// How a CUDA launch is made. No output bit depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// 16-byte vectors of a row that a thread has; the gated norm's kernel has no choice.
    pub(crate) vectors: usize,
    /// Whether it may begin while its predecessor still runs.
    pub(crate) programmatic: bool,
}

impl Launch {
    fn of(vectors: usize) -> Self {
        Launch { vectors, programmatic: false }
    }
}

/// What the norms share: how they are launched.
macro_rules! launched {
    ($($operation:ident)*) => { $(
        impl $operation {
            /// Lets the CUDA kernel begin while the one before it on the stream still runs.
            ///
            /// Its weights are loaded at once, all else after the other kernel is done: they must not have been
            /// written by a kernel that may still be running.
            pub fn overlapping(mut self, on: bool) -> Self {
                if let Some(launch) = &mut self.launch {
                    launch.programmatic = on;
                }
                self
            }
        }
    )* };
}
launched!(Norm AddNorm ConcatNorm GatedNorm);

/// What the norms of whole rows share: how rows are dealt to threads.
macro_rules! dealt {
    ($($operation:ident)*) => { $(
        impl $operation {
            /// Gives each CUDA thread 1, 2 or 4 vectors of a row, for tuning and tests; `run` refuses what there is
            /// no kernel for.
            #[doc(hidden)]
            pub fn with_vectors_per_thread(mut self, vectors: usize) -> Self {
                if let Some(launch) = &mut self.launch {
                    launch.vectors = vectors;
                }
                self
            }
        }
    )* };
}
dealt!(Norm AddNorm ConcatNorm);

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
    fn plan(&self, op: &'static str, device: &DeviceInfo) -> Result<Option<Launch>> {
        plan::rows(op, self.rows)?;
        plan::sizes(op, [("n", self.n)])?;
        plan::eps(op, self.eps)?;
        self.launch(op, device, BUILT)
    }

    /// How to launch it on `device`; `None` on the CPU.
    fn launch(&self, op: &'static str, device: &DeviceInfo, built: Archs) -> Result<Option<Launch>> {
        plan::vectors(op, self.n, device)?;
        if device.arch.is_some() && self.n > MAX_WIDTH {
            let what = format!("a width of {} on CUDA (up to {MAX_WIDTH} is)", self.n);
            return Err(Error::Unsupported { op, what });
        }
        // Up to 256 threads with one vector each; wider rows share their barrier among fewer warps.
        let vectors = if self.n <= 2048 { 1 } else { 2 };
        Ok(plan::has_kernel(op, device, built)?.then(|| Launch::of(vectors)))
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
    pub(crate) launch: Option<Launch>,
}

impl Norm {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: NormProblem, device: &DeviceInfo) -> Result<Self> {
        Ok(Norm { problem, launch: problem.plan(NORM, device)? })
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
    pub(crate) launch: Option<Launch>,
}

impl AddNorm {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: NormProblem, device: &DeviceInfo) -> Result<Self> {
        Ok(AddNorm { problem, launch: problem.plan(ADD_NORM, device)? })
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

impl GatedNormProblem {
    /// How to launch it on `device`; `None` on the CPU.
    fn launch(&self, device: &DeviceInfo, built: Archs) -> Result<Option<Launch>> {
        let GatedNormProblem { heads, head_dim, .. } = *self;
        let op = GATED_NORM;
        if device.arch.is_some() && head_dim != HEAD_DIM {
            let what = format!("head_dim {head_dim} on CUDA ({HEAD_DIM} is)");
            return Err(Error::Unsupported { op, what });
        }
        if device.arch.is_some() && heads > 1 << 17 {
            return Err(Error::invalid(op, "heads", heads, "a CUDA grid takes at most 131072"));
        }
        Ok(plan::has_kernel(op, device, built)?.then(|| Launch::of(1)))
    }
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
    pub(crate) launch: Option<Launch>,
}

impl GatedNorm {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: GatedNormProblem, device: &DeviceInfo) -> Result<Self> {
        plan::rows(GATED_NORM, problem.rows)?;
        plan::sizes(GATED_NORM, [("heads", problem.heads), ("head_dim", problem.head_dim)])?;
        plan::eps(GATED_NORM, problem.eps)?;
        Ok(GatedNorm { problem, launch: problem.launch(device, BUILT)? })
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
    pub(crate) launch: Option<Launch>,
}

impl ConcatNorm {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: NormProblem, device: &DeviceInfo) -> Result<Self> {
        Ok(ConcatNorm { problem, launch: problem.plan(CONCAT_NORM, device)? })
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

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Archs = Archs { sm80: true, sm90a: true };

    fn norm(n: usize, device: &DeviceInfo, built: Archs) -> Result<Option<Launch>> {
        NormProblem { rows: 3, n, eps: 1e-6 }.launch(NORM, device, built)
    }

    fn gated(heads: usize, head_dim: usize) -> Result<Option<Launch>> {
        GatedNormProblem { rows: 1, heads, head_dim, eps: 1e-6 }.launch(&DeviceInfo::h200(), BOTH)
    }

    #[test]
    fn threads_have_one_vector_of_rows_up_to_2048() {
        let vectors = |n| norm(n, &DeviceInfo::h200(), BOTH).unwrap().unwrap().vectors;
        assert_eq!([8, 256, 2048, 2056, 5120, 8192].map(vectors), [1, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn only_a_gpu_needs_a_launch() {
        assert_eq!(norm(13, &DeviceInfo::cpu(), Archs::default()).unwrap(), None);
        assert_eq!(norm(1 << 20, &DeviceInfo::cpu(), BOTH).unwrap(), None);
        assert_eq!(gated(48, 128).unwrap(), Some(Launch::of(1)));
    }

    #[test]
    fn widths_without_a_kernel_are_named() {
        let text = |n| norm(n, &DeviceInfo::h200(), BOTH).unwrap_err().to_string();
        assert_eq!(text(12), "dense::norm: a width of 12 on CUDA (multiples of 8 are) is not supported");
        assert_eq!(text(8200), "dense::norm: a width of 8200 on CUDA (up to 8192 is) is not supported");
        let text = gated(1, 64).unwrap_err().to_string();
        assert_eq!(text, "dense::gated_norm: head_dim 64 on CUDA (128 is) is not supported");
        let text = gated((1 << 17) + 1, 128).unwrap_err().to_string();
        assert_eq!(text, "dense::gated_norm: heads is 131073; a CUDA grid takes at most 131072");
    }

    #[test]
    fn builds_without_a_fitting_kernel_are_refused() {
        assert!(matches!(norm(8, &DeviceInfo::h200(), Archs::default()), Err(Error::NotBuilt { op: NORM })));
        let hopper = Archs { sm80: false, sm90a: true };
        assert!(matches!(norm(8, &DeviceInfo::a100(), hopper), Err(Error::Arch { op: NORM, .. })));
    }
}

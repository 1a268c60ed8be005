#![doc = include_str!("../README.md")]

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod plan;
mod prefill;
#[cfg(feature = "cuda")]
mod sys;
mod verify;

pub use plan::{Grid, Problem};
pub use prefill::Prefill;
pub use verify::Verify;

use kernels_core::{Activation, Backend, Result, Rows, Tensor, TensorMut, bf16};

/// The operands of a conv launch, outputs first.
///
/// `x` and `out` may have any row stride, `ring` any slot and row stride, so that they can be columns of
/// wider tensors; channels are contiguous. The CUDA backend needs 16-byte alignment, strides that are
/// multiples of 8 elements, and rows less than 2^31 elements apart.
#[derive(Debug)]
pub struct Args<'a, B: Backend, A: Activation = bf16> {
    /// `[rows, channels]`: the outputs. Rows of skipped sequences, and of nobody, become zeros.
    pub out: TensorMut<'a, B, A, 2>,
    /// `[slots, ring_rows, channels]`: the raw inputs, that of position p in row `p % ring_rows`.
    pub ring: TensorMut<'a, B, A, 3>,
    /// `[slots + 1]`: sticky fault words, see [`kernels_core::slots::Fault`].
    pub faults: TensorMut<'a, B, u64, 1>,
    /// `[rows, channels]`: the inputs of the new rows.
    pub x: Tensor<'a, B, A, 2>,
    /// `[channels, width]`, packed: tap j meets the input of position `p - width + 1 + j`.
    pub weight: Tensor<'a, B, A, 2>,
    /// `[channels]`, where the problem has one.
    pub bias: Option<Tensor<'a, B, A, 1>>,
    /// Which rows are whose.
    pub rows: Rows<'a, B>,
}

/// The backends that this crate has kernels for: `Cpu`, and `Cuda` with the feature `cuda`.
pub trait ConvBackend: Backend + sealed::Sealed {
    #[doc(hidden)]
    fn verify<A: Activation>(op: &Verify, on: &Self::Queue, args: Args<'_, Self, A>) -> Result<()>;
    #[doc(hidden)]
    fn prefill<A: Activation>(op: &Prefill, on: &Self::Queue, args: Args<'_, Self, A>) -> Result<()>;
}

mod sealed {
    pub trait Sealed {}
}

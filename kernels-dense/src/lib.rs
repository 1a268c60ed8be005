#![doc = include_str!("../README.md")]

mod act;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod embed;
mod fill;
mod fp8;
mod head;
mod linear;
mod mixture;
mod moe;
mod norm;
mod partition;
mod plan;
#[cfg(feature = "cuda")]
mod sys;

pub use act::{SiluMul, SiluMulArgs, SiluMulProblem};
pub use embed::{Embed, EmbedArgs, EmbedProblem};
pub use fill::{RandomFill, RandomFillArgs, RandomFillProblem};
pub use fp8::{Fp8Head, Fp8HeadArgs, Quantize, QuantizeArgs, QuantizeProblem, e4m3};
pub use head::{Head, HeadArgs, HeadProblem};
pub use linear::{Epilogue, Linear, LinearArgs, LinearProblem};
pub use moe::{Moe, MoeArgs, MoeProblem};
pub use norm::{
    AddNorm, AddNormArgs, ConcatNorm, ConcatNormArgs, GatedNorm, GatedNormArgs, GatedNormProblem, Norm,
    NormArgs, NormProblem,
};

#[doc(hidden)]
pub use mixture::MoeGrid;
#[doc(hidden)]
pub use partition::{Grid, Path};

use kernels_core::{Activation, Backend, Result};

mod sealed {
    pub trait Sealed {}
}

/// The backends this crate has kernels for.
///
/// Its functions are what `run` calls once the arguments are checked; there is no other way in.
pub trait DenseBackend: Backend + sealed::Sealed {
    #[doc(hidden)]
    fn linear<A: Activation, W: Activation>(
        op: &Linear,
        on: &Self::Queue,
        args: LinearArgs<'_, Self, A, W>,
    ) -> Result<()>;
    #[doc(hidden)]
    fn head<A: Activation, W: Activation>(
        op: &Head,
        on: &Self::Queue,
        args: HeadArgs<'_, Self, A, W>,
    ) -> Result<()>;
    #[doc(hidden)]
    fn fp8_head<A: Activation>(op: &Fp8Head, on: &Self::Queue, args: Fp8HeadArgs<'_, Self, A>) -> Result<()>;
    #[doc(hidden)]
    fn quantize<A: Activation>(
        op: &Quantize,
        on: &Self::Queue,
        args: QuantizeArgs<'_, Self, A>,
    ) -> Result<()>;
    #[doc(hidden)]
    fn norm<A: Activation>(op: &Norm, on: &Self::Queue, args: NormArgs<'_, Self, A>) -> Result<()>;
    #[doc(hidden)]
    fn add_norm<A: Activation>(op: &AddNorm, on: &Self::Queue, args: AddNormArgs<'_, Self, A>) -> Result<()>;
    #[doc(hidden)]
    fn gated_norm<A: Activation>(
        op: &GatedNorm,
        on: &Self::Queue,
        args: GatedNormArgs<'_, Self, A>,
    ) -> Result<()>;
    #[doc(hidden)]
    fn concat_norm<A: Activation>(
        op: &ConcatNorm,
        on: &Self::Queue,
        args: ConcatNormArgs<'_, Self, A>,
    ) -> Result<()>;
    #[doc(hidden)]
    fn silu_mul<A: Activation>(op: &SiluMul, on: &Self::Queue, args: SiluMulArgs<'_, Self, A>) -> Result<()>;
    #[doc(hidden)]
    fn embed<A: Activation, W: Activation>(
        op: &Embed,
        on: &Self::Queue,
        args: EmbedArgs<'_, Self, A, W>,
    ) -> Result<()>;
    #[doc(hidden)]
    fn random_fill<A: Activation>(
        op: &RandomFill,
        on: &Self::Queue,
        args: RandomFillArgs<'_, Self, A>,
    ) -> Result<()>;
    #[doc(hidden)]
    fn moe<A: Activation, W: Activation>(
        op: &Moe,
        on: &Self::Queue,
        args: MoeArgs<'_, Self, A, W>,
    ) -> Result<()>;
}

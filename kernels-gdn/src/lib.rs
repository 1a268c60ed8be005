#![doc = include_str!("../README.md")]

mod args;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod fold;
mod plan;
mod prefill;
mod state_io;
#[cfg(feature = "cuda")]
mod sys;
mod token;
mod verify;

pub use args::Args;
pub use fold::{Fold, FoldArgs};
pub use plan::{Grid, Problem};
pub use prefill::Prefill;
pub use state_io::{export_state, import_state};
pub use verify::Verify;

use kernels_core::{Activation, Backend, Cpu, Result};

mod sealed {
    pub trait Sealed {}
    impl Sealed for kernels_core::Cpu {}
}

/// A backend with kernels for this family; sealed, since `check` and kernels rely on each other.
pub trait GdnBackend: Backend + sealed::Sealed {
    /// Enqueues a checked [`Verify`].
    #[doc(hidden)]
    fn verify<A: Activation>(op: &Verify, on: &Self::Queue, args: Args<'_, Self, A>) -> Result<()>;
    /// Enqueues a checked [`Prefill`].
    #[doc(hidden)]
    fn prefill<A: Activation>(op: &Prefill, on: &Self::Queue, args: Args<'_, Self, A>) -> Result<()>;
    /// Enqueues a checked [`Fold`].
    #[doc(hidden)]
    fn fold<A: Activation>(op: &Fold, on: &Self::Queue, args: FoldArgs<'_, Self, A>) -> Result<()>;
}

impl GdnBackend for Cpu {
    fn verify<A: Activation>(op: &Verify, (): &(), args: Args<'_, Cpu, A>) -> Result<()> {
        cpu::verify(op.problem(), args);
        Ok(())
    }
    fn prefill<A: Activation>(op: &Prefill, (): &(), args: Args<'_, Cpu, A>) -> Result<()> {
        cpu::prefill(op.problem(), args);
        Ok(())
    }
    fn fold<A: Activation>(op: &Fold, (): &(), args: FoldArgs<'_, Cpu, A>) -> Result<()> {
        cpu::fold(op.problem(), args);
        Ok(())
    }
}

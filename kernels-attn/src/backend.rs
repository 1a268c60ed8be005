//! What a backend must be able to do.

use crate::{Append, AppendArgs, Args, Prefill, Verify, Work, WorkArgs};
use kernels_core::{Activation, Backend, Cpu, Result};

pub(crate) mod sealed {
    pub trait Sealed {}
    impl Sealed for kernels_core::Cpu {}
}

/// A backend with this crate's operations; implemented by the crate itself only.
///
/// Operands have passed the operation's `check` when these functions see them.
pub trait AttnBackend: Backend + sealed::Sealed {
    /// Runs [`Append`].
    #[doc(hidden)]
    fn append<A: Activation>(op: &Append, on: &Self::Queue, args: AppendArgs<'_, Self, A>) -> Result<()>;
    /// Runs [`Work`].
    #[doc(hidden)]
    fn work(op: &Work, on: &Self::Queue, args: WorkArgs<'_, Self>) -> Result<()>;
    /// Runs [`Verify`].
    #[doc(hidden)]
    fn verify<A: Activation>(op: &Verify, on: &Self::Queue, args: Args<'_, Self, A>) -> Result<()>;
    /// Runs [`Prefill`].
    #[doc(hidden)]
    fn prefill<A: Activation>(op: &Prefill, on: &Self::Queue, args: Args<'_, Self, A>) -> Result<()>;
}

impl AttnBackend for Cpu {
    fn append<A: Activation>(op: &Append, (): &(), args: AppendArgs<'_, Cpu, A>) -> Result<()> {
        crate::cpu::append(op.problem(), args);
        Ok(())
    }
    fn work(op: &Work, (): &(), args: WorkArgs<'_, Cpu>) -> Result<()> {
        crate::cpu::work(op.problem(), &op.deal, args);
        Ok(())
    }
    fn verify<A: Activation>(op: &Verify, (): &(), args: Args<'_, Cpu, A>) -> Result<()> {
        crate::cpu::attend(op.problem(), args);
        Ok(())
    }
    fn prefill<A: Activation>(op: &Prefill, (): &(), args: Args<'_, Cpu, A>) -> Result<()> {
        crate::cpu::attend(op.problem(), args);
        Ok(())
    }
}

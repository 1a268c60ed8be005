#![doc = include_str!("../README.md")]
//!
//! # Errors and faults
//!
//! `plan` and `run` return [`kernels_core::Error`] for sizes and shapes, by name and value. Numbers on the
//! device are checked where they are read: a violated invariant goes into the slot's sticky fault word
//! ([`kernels_core::slots::Fault`]), nothing is committed for it, and the slot becomes
//! [`State::Faulted`]. No operation reads or writes beyond its operands, whatever the numbers say.
//!
//! # Source
//!
//! Gumbel-max: "A* Sampling" (2014). Coupled drafts and their bound: "Coupling without Communication and
//! Drafter-Invariant Speculative Decoding" (2024). Rejection: "Fast Inference from Transformers via
//! Speculative Decoding" (2023).

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod hidden;
mod inputs;
mod memory;
mod oracle;
mod problem;
mod rejection;
mod sample;
mod sampling;
mod settle;
#[cfg(feature = "cuda")]
mod sys;

pub use hidden::{Carry, CarryArgs, HiddenProblem, KeepHidden, KeepHiddenArgs, TakeLast, TakeLastArgs};
pub use inputs::{
    ChainInputs, ChainInputsArgs, DraftInputs, DraftInputsArgs, DraftProblem, LastRows, LastRowsArgs,
    PrefillInputs, PrefillInputsArgs, TargetInputs, TargetInputsArgs,
};
pub use memory::{RowTable, RowsMut, SlotTable, Slots, State};
pub use oracle::{Oracle, OracleArgs, OracleProblem};
pub use problem::Problem;
pub use rejection::{DrawDraft, DrawDraftArgs, Rejection, RejectionArgs, RejectionProblem};
pub use sample::{Argmax, ArgmaxArgs, ArgmaxProblem, Sample, SampleArgs, SampleProblem};
pub use sampling::{GREEDY_BELOW, Sampling, SamplingParams, SamplingTable};
pub use settle::{
    Accept, AcceptArgs, Advance, AdvanceArgs, AdvanceProblem, Counters, Emit, EmitArgs, Pass, Propose,
    ProposeArgs, Settle, SettleArgs, SettleProblem, Stop, StopArgs, StopProblem, Stops,
};

use kernels_core::{Activation, Backend, Cpu, Result};

mod sealed {
    pub trait Sealed {}
    impl Sealed for kernels_core::Cpu {}
}

macro_rules! backend {
    ($($method:ident: $op:ident, $args:ident $(<$a:ident>)?;)*) => {
        /// A backend that has these operations.
        pub trait SpecBackend: Backend + sealed::Sealed {
            $(
                #[doc(hidden)]
                fn $method$(<$a: Activation>)?(
                    op: &$op,
                    on: &Self::Queue,
                    args: $args<'_, Self $(, $a)?>,
                ) -> Result<()>;
            )*
        }

        impl SpecBackend for Cpu {
            $(
                fn $method$(<$a: Activation>)?(
                    op: &$op,
                    (): &(),
                    args: $args<'_, Cpu $(, $a)?>,
                ) -> Result<()> {
                    cpu::$method(op, args);
                    Ok(())
                }
            )*
        }
    };
}
backend! {
    target_inputs: TargetInputs, TargetInputsArgs;
    prefill_inputs: PrefillInputs, PrefillInputsArgs;
    last_rows: LastRows, LastRowsArgs;
    draft_inputs: DraftInputs, DraftInputsArgs;
    chain_inputs: ChainInputs, ChainInputsArgs;
    accept: Accept, AcceptArgs;
    stop: Stop, StopArgs;
    advance: Advance, AdvanceArgs;
    emit: Emit, EmitArgs;
    settle: Settle, SettleArgs;
    propose: Propose, ProposeArgs;
    oracle: Oracle, OracleArgs;
    carry: Carry, CarryArgs<A>;
    keep_hidden: KeepHidden, KeepHiddenArgs<A>;
    take_last: TakeLast, TakeLastArgs<A>;
    argmax: Argmax, ArgmaxArgs;
    sample: Sample, SampleArgs;
    draw_draft: DrawDraft, DrawDraftArgs;
    rejection: Rejection, RejectionArgs;
}

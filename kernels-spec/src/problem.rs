//! The bounds that every operation is planned with, and the checks at the door.

use kernels_core::{DeviceInfo, Error, Result};

/// The bounds of a launch. The numbers of a round are device data and must stay below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Sequences of the launch, padding included.
    pub sequences: usize,
    /// Rows of the launch, unowned ones included.
    pub rows: usize,
    /// Rows one sequence may have: `k_max + 1` in a decode round, the longest chunk in a prefill.
    pub max_rows: usize,
    /// Slots of the memories addressed.
    pub slots: usize,
    /// Positions a slot has tokens for.
    pub positions: usize,
}

impl Problem {
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        at_least_one(op, "sequences", self.sequences)?;
        at_least_one(op, "rows", self.rows)?;
        at_least_one(op, "max_rows", self.max_rows)?;
        at_least_one(op, "slots", self.slots)?;
        at_least_one(op, "positions", self.positions)?;
        at_most(op, "slots", self.slots, MAX_SLOTS)?;
        at_most(op, "rows", self.rows, i32::MAX as usize)?;
        at_most(op, "sequences", self.sequences, i32::MAX as usize - 1)?;
        at_most(op, "positions", self.positions, i32::MAX as usize)
    }
}

/// A fault word has 24 bits for the slot, one of them the sign.
const MAX_SLOTS: usize = 0x7f_ffff;

pub(crate) fn at_least_one(op: &'static str, name: &'static str, got: usize) -> Result<()> {
    if got == 0 { Err(Error::invalid(op, name, got, "must be at least 1")) } else { Ok(()) }
}

pub(crate) fn at_most(op: &'static str, name: &'static str, got: usize, most: usize) -> Result<()> {
    if got > most {
        return Err(Error::invalid(op, name, got, format!("must be at most {most}")));
    }
    Ok(())
}

/// The CUDA half of this crate does not exist yet, so no plan for a GPU can be kept.
pub(crate) fn check_device(op: &'static str, device: &DeviceInfo) -> Result<()> {
    if device.arch.is_some() { Err(Error::NotBuilt { op }) } else { Ok(()) }
}

/// Declares an operation: its struct, `plan`, `problem` and `run`. What is left to write by hand is what
/// differs: `Problem::check` and the operation's own `check` of its arguments.
macro_rules! operation {
    (
        $(#[$doc:meta])*
        $op:ident, $name:literal, $problem:ty, $args:ident $(<$activation:ident>)?, $method:ident
        $(, also: $also:ident)?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $op {
            problem: $problem,
        }

        impl $op {
            const NAME: &'static str = $name;

            /// Checks the sizes and the device; an error names what is wrong with them.
            pub fn plan(problem: $problem, device: &kernels_core::DeviceInfo) -> kernels_core::Result<Self> {
                crate::problem::check_device(Self::NAME, device)?;
                problem.check(Self::NAME)?;
                $($also(Self::NAME, &problem)?;)?
                Ok(Self { problem })
            }

            /// What was planned.
            pub fn problem(&self) -> &$problem {
                &self.problem
            }

            /// Checks the arguments and enqueues the operation.
            pub fn run<B: crate::SpecBackend $(, $activation: kernels_core::Activation)?>(
                &self,
                on: &B::Queue,
                args: $args<'_, B $(, $activation)?>,
            ) -> kernels_core::Result<()> {
                self.check(&args)?;
                B::$method(self, on, args)
            }
        }
    };
}
pub(crate) use operation;

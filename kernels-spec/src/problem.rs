//! The bounds that every operation is planned with, and the checks at the door.

use kernels_core::{Archs, DeviceInfo, Error, Result};

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

/// What the build has kernels for.
#[cfg(feature = "cuda")]
const BUILT: Archs = Archs { sm80: cfg!(kernels_sm80), sm90a: cfg!(kernels_sm90) };
#[cfg(not(feature = "cuda"))]
const BUILT: Archs = Archs { sm80: false, sm90a: false };

/// How an operation is launched on CUDA. No output bit depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) struct Launch {
    /// `None` where it was planned for the CPU.
    pub(crate) multiprocessors: Option<usize>,
    /// Whether it may begin while the launch before it still runs.
    pub(crate) programmatic: bool,
    /// Groups of four neighbouring logits per thread, where the plan does not choose.
    pub(crate) vectors: Option<usize>,
}

impl Launch {
    pub(crate) fn of(op: &'static str, device: &DeviceInfo) -> Result<Launch> {
        // All kernels are portable ones: without them there is nothing, whatever the device.
        let multiprocessors = match device.arch {
            None => None,
            Some(_) if !BUILT.sm80 => return Err(Error::NotBuilt { op }),
            Some(arch) if BUILT.run_on(arch) => Some(device.multiprocessors),
            Some(arch) => return Err(Error::Arch { op, device: arch, built: BUILT }),
        };
        Ok(Launch { multiprocessors, programmatic: false, vectors: None })
    }

    /// Groups per thread over rows of `valid` ids: as many as leave a few blocks for each multiprocessor.
    pub(crate) fn vectors(&self, rows: usize, valid: usize) -> usize {
        let blocks = 8 * self.multiprocessors.unwrap_or(1);
        let enough = |v: &usize| chunks(valid, *v).saturating_mul(rows) >= blocks;
        self.vectors.unwrap_or_else(|| [8, 4, 2].into_iter().find(enough).unwrap_or(1))
    }

    /// Blocks of 256 threads that run at once where each has a share of a row to go through.
    pub(crate) fn blocks(&self) -> usize {
        2 * self.multiprocessors.unwrap_or(1)
    }

    /// Groups per thread where a block goes through its share of a row in steps.
    ///
    /// What a block does once takes about as long as 14 groups of each thread, measured on an H200. So all should
    /// run at once, or in as few waves as the rows allow.
    pub(crate) fn stream_vectors(&self, rows: usize, valid: usize) -> usize {
        const ONCE: usize = 14;
        let whole = chunks(valid, 4) * 4;
        let time = |v: &usize| {
            chunks(valid, *v).saturating_mul(rows).div_ceil(self.blocks()).saturating_mul(ONCE + v)
        };
        let shares = [1, 2].into_iter().chain((4..=whole).step_by(4));
        self.vectors.unwrap_or_else(|| shares.min_by_key(time).expect("there are some"))
    }
}

/// Blocks of 256 threads that share a row.
pub(crate) fn chunks(valid: usize, vectors: usize) -> usize {
    valid.div_ceil(1024 * vectors)
}

/// Rows of logits that a grid has blocks for.
pub(crate) fn check_logits(op: &'static str, rows: usize, launch: &Launch) -> Result<()> {
    const MOST: usize = 65_535;
    if launch.multiprocessors.is_some() && rows > MOST {
        let what = format!("{rows} rows of logits on CUDA (at most {MOST} are)");
        return Err(Error::Unsupported { op, what });
    }
    Ok(())
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
            pub(crate) launch: crate::problem::Launch,
        }

        impl $op {
            pub(crate) const NAME: &'static str = $name;

            /// Checks the sizes and the device; an error names what is wrong with them.
            pub fn plan(problem: $problem, device: &kernels_core::DeviceInfo) -> kernels_core::Result<Self> {
                let launch = crate::problem::Launch::of(Self::NAME, device)?;
                problem.check(Self::NAME)?;
                $($also(Self::NAME, &problem)?;)?
                Ok(Self { problem, launch })
            }

            /// Lets the CUDA kernel begin while the one before it on the stream still runs; it touches nothing
            /// before that one is done.
            pub fn overlapping(mut self, on: bool) -> Self {
                self.launch.programmatic = on;
                self
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

#[cfg(test)]
mod tests {
    use super::Launch;

    #[test]
    fn rows_are_dealt_in_few_waves() {
        let launch = Launch { multiprocessors: Some(132), programmatic: false, vectors: None };
        let shares = [1, 4, 32, 256].map(|rows| launch.stream_vectors(rows, 248_320));
        // 243, 244 and 256 blocks of 264 at once; the last has whole rows.
        assert_eq!(shares, [1, 4, 32, 244]);
        assert_eq!(launch.stream_vectors(65_535, 1), 1);
        assert_eq!(Launch { vectors: Some(8), ..launch }.stream_vectors(1, 248_320), 8);
    }
}

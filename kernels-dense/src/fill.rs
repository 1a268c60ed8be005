//! Memory full of numbers that only have to look random: weights of a model that nobody trained.

use crate::{
    DenseBackend,
    plan::{self, BUILT, VECTOR},
};
use kernels_core::{Activation, Backend, DeviceInfo, Error, Result, TensorMut, bf16};

pub(crate) const OP: &str = "dense::random_fill";

/// What [`RandomFill`] writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomFillProblem {
    /// Elements.
    pub len: usize,
    /// The element of the stream that is written first, a multiple of 8: parts may be filled one by one.
    pub first: u64,
    /// Chooses one of 2^64 families of streams.
    pub seed: u64,
    /// The stream: no two of a seed share numbers.
    pub stream: u32,
    /// Mean of the numbers.
    pub mean: f32,
    /// Their standard deviation; none is farther from the mean than 3.45 of it.
    pub std: f32,
}

/// Operands of [`RandomFill`].
#[derive(Debug)]
pub struct RandomFillArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[len]`
    pub out: TensorMut<'a, B, A, 1>,
}

/// `out[i] = A(mean + (bytes(word i) - 510) * unit)`: normal-ish numbers with the same bits on every backend.
///
/// `bytes` is the sum of a word's four bytes, `unit` the standard deviation over `sqrt(21845)`, which is that of the
/// sum; product and sum are rounded one after the other. Word `i` is number `i % 4` of Philox block `i / 4` of the
/// stream, counted from `first`.
///
/// The CUDA kernels have bf16 and f32, and an operand aligned to 16 bytes; any number of elements.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomFill {
    problem: RandomFillProblem,
    pub(crate) unit: f32,
    /// Whether it was planned for a CUDA device.
    pub(crate) on_cuda: bool,
}

/// What a sum of four bytes, each uniform in 0..=255, has: mean 510 and variance 4 (256² - 1) / 12.
pub(crate) const MEAN: f32 = 510.0;
const VARIANCE: f64 = 21_845.0;

/// Elements and places in a stream: more than any memory has, and far from what 64 bits hold.
const MAX: u64 = 1 << 42;

impl RandomFill {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: RandomFillProblem, device: &DeviceInfo) -> Result<Self> {
        let RandomFillProblem { len, first, mean, std, .. } = problem;
        for (name, value) in [("len", len as u64), ("first", first)] {
            if value > MAX {
                return Err(Error::invalid(OP, name, value, format!("at most {MAX} fit")));
            }
        }
        if !first.is_multiple_of(VECTOR as u64) {
            return Err(Error::invalid(OP, "first", first, format!("it must be a multiple of {VECTOR}")));
        }
        if !mean.is_finite() {
            return Err(Error::invalid(OP, "mean", mean, "it must be finite"));
        }
        if !(std.is_finite() && std >= 0.0) {
            return Err(Error::invalid(OP, "std", std, "it must be finite and not below zero"));
        }
        let unit = (f64::from(std) / VARIANCE.sqrt()) as f32;
        Ok(RandomFill { problem, unit, on_cuda: plan::has_kernel(OP, device, BUILT)? })
    }

    /// What it was planned for.
    pub fn problem(&self) -> &RandomFillProblem {
        &self.problem
    }

    /// Checks the operand and computes or enqueues.
    pub fn run<B: DenseBackend, A: Activation>(
        &self,
        on: &B::Queue,
        args: RandomFillArgs<'_, B, A>,
    ) -> Result<()> {
        args.out.check(OP, "out", [self.problem.len])?;
        B::random_fill(self, on, args)
    }
}

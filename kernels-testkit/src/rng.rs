//! Reproducible test data.

use kernels_core::{Activation, philox::philox4x32_10};

/// A small generator with a seed, built on Philox.
#[derive(Clone, Debug)]
pub struct Rng {
    seed: u64,
    drawn: u64,
}

impl Rng {
    /// The same seed gives the same numbers on every machine.
    pub fn new(seed: u64) -> Self {
        Rng { seed, drawn: 0 }
    }

    /// 32 random bits.
    pub fn bits(&mut self) -> u32 {
        let block = self.drawn / 4;
        let words = philox4x32_10(
            [block as u32, (block >> 32) as u32, 0x7e57, 0],
            [self.seed as u32, (self.seed >> 32) as u32],
        );
        let word = words[(self.drawn % 4) as usize];
        self.drawn += 1;
        word
    }

    /// Uniform in `[low, high)`.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.bits() >> 8) as f32 / 16_777_216.0)
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.bits()) * n as u64) >> 32) as usize
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - f64::from(self.uniform(0.0, 1.0))).ln()).sqrt();
        let angle = std::f64::consts::TAU * f64::from(self.uniform(0.0, 1.0));
        (radius * angle.cos()) as f32
    }

    /// `len` normal numbers of the given standard deviation, rounded to `A`.
    pub fn normals<A: Activation>(&mut self, len: usize, deviation: f32) -> Vec<A> {
        (0..len).map(|_| A::from_f32(self.normal() * deviation)).collect()
    }

    /// `len` uniform numbers, rounded to `A`.
    pub fn uniforms<A: Activation>(&mut self, len: usize, low: f32, high: f32) -> Vec<A> {
        (0..len).map(|_| A::from_f32(self.uniform(low, high))).collect()
    }

    /// The numbers `0..n` in random order.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

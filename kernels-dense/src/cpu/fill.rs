//! Random numbers as sums of bytes.

use super::wide::wide;
use crate::{
    RandomFill,
    fill::{MEAN, RandomFillProblem},
};
use kernels_core::{Activation, Cpu, TensorMut, fault, philox};
use rayon::prelude::*;

/// Elements that a thread writes at a time: whole Philox blocks.
const STRIP: usize = 1 << 14;

pub(super) fn random_fill<A: Activation>(op: &RandomFill, mut out: TensorMut<'_, Cpu, A, 1>) {
    let problem = op.problem();
    let wrapped = fault::active("dense.fill_wraps");
    out.row_mut(&[]).par_chunks_mut(STRIP).enumerate().for_each(|(strip, out)| {
        let mut block = (problem.first + (strip * STRIP) as u64) / 4;
        if wrapped {
            block = u64::from(block as u32);
        }
        fill(problem, op.unit, block, out);
    });
}

/// By way of fp32, so that only the rounding is compiled where it is used.
fn fill<A: Activation>(problem: &RandomFillProblem, unit: f32, block: u64, out: &mut [A]) {
    const PART: usize = 256;
    let mut numbers = [0.0; PART];
    for (i, out) in out.chunks_mut(PART).enumerate() {
        draw(problem, unit, block + (i * PART / 4) as u64, &mut numbers);
        for (out, number) in out.iter_mut().zip(numbers) {
            *out = A::from_f32(number);
        }
    }
}

wide! {
    fn draw[](problem: &RandomFillProblem, unit: f32, block: u64, numbers: &mut [f32]) {
        let (blocks, _) = numbers.as_chunks_mut::<4>();
        for (block, numbers) in (block..).zip(blocks) {
            let words = philox::stream_block(problem.seed, problem.stream, block);
            for (number, word) in numbers.iter_mut().zip(words) {
                let sum: u32 = word.to_le_bytes().into_iter().map(u32::from).sum();
                *number = problem.mean + (sum as f32 - MEAN) * unit;
            }
        }
    }
}

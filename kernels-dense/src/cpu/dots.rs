//! The one sum of products behind every linear layer.
//!
//! Element k of a row goes to lane k mod [`LANES`], by a fused multiply-add, k ascending; then the lanes
//! are added by [`tree`]. Nothing else: rows and outputs are tiled so that weights are read once for
//! several rows and sums stay in registers, but no tile and no thread ever splits a sum.

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::{settle, tree};
use kernels_core::{Activation, Cpu, Tensor, fault};
use rayon::prelude::*;

/// Partial sums of a row: one vector of eight, so that a tile of rows and outputs fits the registers.
pub(super) const LANES: usize = 8;

/// Below this many multiply-adds (some 40 µs of one core) waking another thread costs more than it saves.
const PARALLEL: usize = 1 << 20;

/// `sums[n, rows]` (a column of it is a row of the result) `= weight[n, k] x[rows, k]`.
pub(super) fn dots<W: Activation>(sums: &mut [f32], x: &[f32], rows: usize, weight: &Tensor<'_, Cpu, W, 2>) {
    let [n, k] = weight.dims;
    debug_assert_eq!((sums.len(), x.len()), (n * rows, rows * k));
    if rows == 0 {
        return;
    }
    let threads = rayon::current_num_threads();
    if threads == 1 || n.saturating_mul(k).saturating_mul(rows) < PARALLEL {
        return block(sums, x, rows, weight, 0);
    }
    // Twice as many parts as threads, so that a thread that comes late leaves little undone.
    let part = n.div_ceil(2 * threads).next_multiple_of(LANES);
    sums.par_chunks_mut(part * rows).enumerate().for_each(|(i, sums)| block(sums, x, rows, weight, i * part));
}

/// The outputs from `first` on that `sums` has room for.
#[inline(never)]
fn block<W: Activation>(
    sums: &mut [f32],
    x: &[f32],
    rows: usize,
    weight: &Tensor<'_, Cpu, W, 2>,
    first: usize,
) {
    let planted = fault::active("dense.contract_one") || fault::active("dense.order_by_rows");
    #[cfg(target_arch = "x86_64")]
    if !planted && avx2::block(sums, x, rows, weight, first) {
        return;
    }
    let k = weight.dims[1];
    for (j, sums) in sums.chunks_exact_mut(rows).enumerate() {
        for (row, sum) in sums.iter_mut().enumerate() {
            let (x, w) = (&x[row * k..][..k], weight.row(&[first + j]));
            *sum = if planted { wrong_dot(x, w, rows) } else { dot(x, w) };
        }
    }
}

/// The definition.
pub(super) fn dot<W: Activation>(x: &[f32], w: &[W]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (x, w) in x.chunks(LANES).zip(w.chunks(LANES)) {
        for ((lane, x), w) in lanes.iter_mut().zip(x).zip(w) {
            *lane = x.mul_add(w.to_f32(), *lane);
        }
    }
    settle(tree(lanes))
}

/// Two ways to lose the contract, for the bite checks.
fn wrong_dot<W: Activation>(x: &[f32], w: &[W], rows: usize) -> f32 {
    let by_rows = rows > 1 && fault::active("dense.order_by_rows");
    let contract = fault::active("dense.contract_one");
    let lanes_in_use = if by_rows { LANES / 2 } else { LANES };
    let mut lanes = [0.0f32; LANES];
    for (i, (x, w)) in x.iter().zip(w).enumerate() {
        let (lane, w) = (&mut lanes[i % lanes_in_use], w.to_f32());
        // One product of the row is rounded before it is added, as a compiler left to itself might do.
        *lane = if contract && i == LANES { x * w + *lane } else { x.mul_add(w, *lane) };
    }
    settle(tree(lanes))
}

//! The one sum of products behind every linear layer.
//!
//! Element k of a row goes to lane k mod [`LANES`], by a fused multiply-add, k ascending; then the lanes
//! are added by [`tree`]. Nothing else: rows and outputs are tiled so that weights are widened once for
//! several rows and sums stay in registers, but no tile and no thread ever splits a sum.

use super::{scratch, tree};
use kernels_core::{Activation, Cpu, Tensor, fault, ref_math::vectorised};
use rayon::prelude::*;

/// Partial sums of a row: one vector of eight, so that a tile of rows and outputs fits the registers.
const LANES: usize = 8;

/// Below this many multiply-adds waking another thread costs more than it saves.
const PARALLEL: usize = 1 << 17;

/// Rows of a tile.
const TILE_ROWS: usize = 4;

/// Outputs whose weights are widened once for all tiles of rows.
const WIDENED: usize = 24;

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
    let k = weight.dims[1];
    if rows <= TILE_ROWS {
        return vectorised(|| tiles(sums, x, rows, 0, rows, |j| weight.row(&[first + j])));
    }
    scratch::with([WIDENED * k], |[wide]| {
        for (group, sums) in sums.chunks_mut(WIDENED * rows).enumerate() {
            for j in 0..sums.len() / rows {
                let weight = weight.row(&[first + group * WIDENED + j]);
                vectorised(|| {
                    for (wide, w) in wide[j * k..][..k].iter_mut().zip(weight) {
                        *wide = w.to_f32();
                    }
                });
            }
            for row in (0..rows).step_by(TILE_ROWS) {
                let count = TILE_ROWS.min(rows - row);
                vectorised(|| tiles(sums, x, rows, row, count, |j| &wide[j * k..][..k]));
            }
        }
    });
}

/// `count` rows from `row` on, for all outputs of `sums`.
#[inline(always)]
fn tiles<'w, W: Activation>(
    sums: &mut [f32],
    x: &[f32],
    rows: usize,
    row: usize,
    count: usize,
    weight: impl Fn(usize) -> &'w [W],
) {
    // Twelve accumulators or eight of the sixteen vector registers; at least eight hide the latency.
    match count {
        1 => tiles_of::<W, 1, 8>(sums, x, rows, row, weight),
        2 => tiles_of::<W, 2, 4>(sums, x, rows, row, weight),
        3 => tiles_of::<W, 3, 4>(sums, x, rows, row, weight),
        _ => tiles_of::<W, TILE_ROWS, 3>(sums, x, rows, row, weight),
    }
}

#[inline(always)]
fn tiles_of<'w, W: Activation, const R: usize, const N: usize>(
    sums: &mut [f32],
    x: &[f32],
    rows: usize,
    row: usize,
    weight: impl Fn(usize) -> &'w [W],
) {
    let n = sums.len() / rows;
    let k = x.len() / rows;
    let x: [&[f32]; R] = std::array::from_fn(|r| &x[(row + r) * k..][..k]);
    let mut j = 0;
    while j < n {
        if j + N <= n {
            let tile = tile::<W, R, N>(x, std::array::from_fn(|i| weight(j + i)), rows);
            for i in 0..N {
                sums[(j + i) * rows + row..][..R].copy_from_slice(&tile[i]);
            }
            j += N;
        } else {
            let tile = tile::<W, R, 1>(x, [weight(j)], rows);
            sums[j * rows + row..][..R].copy_from_slice(&tile[0]);
            j += 1;
        }
    }
}

/// `R` rows times `N` outputs: `[N][R]`.
#[inline(always)]
fn tile<W: Activation, const R: usize, const N: usize>(
    x: [&[f32]; R],
    w: [&[W]; N],
    rows: usize,
) -> [[f32; R]; N] {
    let k = x[0].len();
    let x = x.map(|x| x[..k].as_chunks::<LANES>());
    let w = w.map(|w| w[..k].as_chunks::<LANES>());
    let mut sums = [[[0.0f32; LANES]; R]; N];
    for step in 0..k / LANES {
        let before = sums[0][0][0];
        for i in 0..N {
            let w: [f32; LANES] = std::array::from_fn(|lane| w[i].0[step][lane].to_f32());
            for r in 0..R {
                let x = &x[r].0[step];
                for lane in 0..LANES {
                    sums[i][r][lane] = x[lane].mul_add(w[lane], sums[i][r][lane]);
                }
            }
        }
        if step == 1 && fault::active("dense.contract_one") {
            // What a compiler left to itself might do: here the product is rounded before it is added.
            sums[0][0][0] = before + x[0].0[1][0] * w[0].0[1][0].to_f32();
        }
    }
    for i in 0..N {
        for r in 0..R {
            for (lane, (x, w)) in x[r].1.iter().zip(w[i].1).enumerate() {
                sums[i][r][lane] = x.mul_add(w.to_f32(), sums[i][r][lane]);
            }
        }
    }
    let by_rows = rows > 1 && fault::active("dense.order_by_rows");
    let add = |lanes: [f32; LANES]| if by_rows { lanes.iter().sum() } else { tree(lanes) };
    sums.map(|sums| sums.map(add))
}

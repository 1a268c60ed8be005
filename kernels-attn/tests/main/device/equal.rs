//! Equal bytes on the device: paths, shares, splits, batches, placements; and the bound against f64.

use super::{grids, paths};
use crate::accuracy;
use crate::append;
use crate::literal;
use crate::support::{LAYOUTS, Model, PLAIN, Placement, Sequence, attend, attend_split};
use kernels_attn::{Grid, Share};
use kernels_core::{Cpu, Cuda, bf16};
use kernels_testkit::{
    compare::assert_same_bits,
    device::Device,
    runner::{sanitized, stride},
};

const REAL: [(usize, usize); 2] = [(24, 4), (16, 2)];

/// Norm, rotary and the copy of values: no sum there is a tensor core's.
pub fn appended_bytes_equal_the_cpu(device: &Device) {
    for (q_heads, kv_heads) in REAL {
        for head_dim in [128, 256] {
            let model = Model::new::<Cuda>(q_heads, kv_heads, head_dim);
            for (rotary, start) in [(64, 0), (64, 61), (0, 127), (head_dim, 5)] {
                append::same_on_both::<Cuda>(&device.queue, &model, rotary, start);
            }
        }
    }
}

/// Sequences of many lengths in one launch.
fn ragged(model: &Model, lengths: &[(usize, usize)]) -> Vec<Sequence<bf16>> {
    let sequence =
        |(i, (start, rows)): (usize, &(usize, usize))| model.sequence(i as u64, *start, *rows, 4.0);
    lengths.iter().enumerate().map(sequence).collect()
}

/// One batch on every path and share, in several placements: the bytes of each sequence alone, row by row.
pub fn every_grid_gives_the_same_bits(device: &Device) {
    let on = &device.queue;
    let lengths = [(0, 1), (0, 4), (1, 3), (2045, 4), (4100, 2), (130, 16), (6000, 1)];
    for model in [
        Model::new::<Cuda>(12, 2, 256),
        Model { first_key: 1, gated: false, ..Model::new::<Cuda>(32, 4, 256) },
        Model { window: Some(2100), ..Model::new::<Cuda>(2, 1, 128) },
    ]
    .into_iter()
    .step_by(stride(2))
    {
        let sequences = ragged(&model, &lengths);
        let alone: Vec<Vec<bf16>> = sequences
            .iter()
            .map(|s| attend_split::<Cuda, _>(on, &model, &PLAIN, s, &vec![1; s.rows]))
            .collect();
        let parts: Vec<_> = sequences.iter().map(|s| (s, 0..s.rows)).collect();
        for (seed, grid) in grids(device).into_iter().enumerate() {
            for (page_rows, overlapping) in
                [(64, true), (16, false), (128, false)].into_iter().step_by(stride(2))
            {
                let layout = LAYOUTS[(seed + page_rows / 64) % 3];
                let seed = 1 + seed as u64;
                let placement = Placement {
                    page_rows,
                    layout,
                    seed,
                    padding: true,
                    prefill: false,
                    grid: Some(grid),
                    overlapping,
                };
                let together = attend::<Cuda, _>(on, &model, &placement, &parts);
                for (i, (got, want)) in together.iter().zip(&alone).enumerate() {
                    assert_same_bits(&format!("sequence {i}, {model:?}, {placement:?}"), got, want);
                }
            }
        }
    }
}

/// A row's position, and so the number of keys it sees, at every edge and one to either side: of MMA steps of 16
/// keys, tiles of 128, leaves of 128, 256 and 512, groups of 2048, and pages of 16 and 64 rows.
pub fn every_boundary_gives_the_bits_of_single_rows(device: &Device) {
    for (q_heads, kv_heads, head_dim) in [(12, 2, 256), (2, 1, 128), (8, 4, 128)] {
        every_boundary(device, Model::new::<Cuda>(q_heads, kv_heads, head_dim));
    }
}

fn every_boundary(device: &Device, model: Model) {
    let on = &device.queue;
    let edges = [16, 64, 128, 256, 384, 512, 640, 1024, 1920, 2048, 2176, 2560, 4096];
    let mut starts: Vec<usize> = edges.iter().flat_map(|edge| [edge - 2, edge - 1, *edge]).collect();
    starts.extend([0, 1, 2]);
    for start in starts.into_iter().step_by(stride(13)) {
        let sequence: Sequence<bf16> = model.sequence(start as u64, start, 4, 4.0);
        let single = attend_split::<Cuda, _>(on, &model, &PLAIN, &sequence, &[1; 4]);
        assert!(single.iter().all(|x| x.is_finite()), "NaN leaked");
        for grid in grids(device) {
            let grid = Some(grid);
            // The splits once: what they run is what the others run.
            let splits = if Some(grids(device)[0]) == grid { 3 } else { 1 };
            let all = [(16, &[4][..]), (64, &[1, 3]), (64, &[2, 2])];
            for (page_rows, lengths) in all.into_iter().take(splits) {
                let placement = Placement { page_rows, grid, seed: 3, ..PLAIN };
                let got = attend_split::<Cuda, _>(on, &model, &placement, &sequence, lengths);
                assert_same_bits(&format!("{model:?} at {start}, {lengths:?}, {placement:?}"), &got, &single);
            }
        }
    }
}

/// Every head size, group, page size and number of rows that has a kernel, on every path, with one row block and
/// with several: equal bytes, and near enough to f64.
pub fn every_shape_runs_on_every_path(device: &Device) {
    let on = &device.queue;
    let (mut ran, mut several) = (0, 0);
    for head_dim in [128, 256] {
        for group in [1, 2, 3, 4, 6, 8, 12, 16].into_iter().step_by(stride(5)) {
            let model = Model::new::<Cuda>(2 * group, 2, head_dim);
            assert_eq!((model.q_heads, model.head_dim), (2 * group, head_dim));
            for rows in (1..=16).step_by(stride(15)) {
                let sequence: Sequence<bf16> = model.sequence(rows as u64, 300, rows, 4.0);
                let single = attend_split::<Cuda, _>(on, &model, &PLAIN, &sequence, &vec![1; rows]);
                let page_rows = [16, 32, 64, 128][rows % 4];
                several += usize::from(rows > 64 / group);
                for path in paths(device) {
                    for share in [Share::Leaf, Share::Group, Share::Sequence] {
                        let grid = Some(Grid { path, share });
                        let placement = Placement { page_rows, grid, ..PLAIN };
                        let got = attend_split::<Cuda, _>(on, &model, &placement, &sequence, &[rows]);
                        assert_same_bits(&format!("{model:?}, {rows} rows, {grid:?}"), &got, &single);
                        ran += 1;
                    }
                }
                if rows == 2 || rows == 16 {
                    for path in paths(device) {
                        let grid = Some(Grid { path, share: Share::Sequence });
                        let placement = Placement { page_rows, grid, prefill: true, ..PLAIN };
                        let got = attend_split::<Cuda, _>(on, &model, &placement, &sequence, &[rows]);
                        assert_same_bits(
                            &format!("{model:?}, prefill of {rows} rows, {path:?}"),
                            &got,
                            &single,
                        );
                    }
                    accuracy::check_outputs::<Cuda, bf16>(&model, &sequence, &single);
                }
            }
        }
    }
    assert_eq!(ran, 2 * 8usize.div_ceil(stride(5)) * 16usize.div_ceil(stride(15)) * 3 * paths(device).len());
    if !sanitized() {
        assert_eq!(several, 2 * (6 + 8 + 11 + 12), "groups of 6, 8, 12 and 16 heads");
    }
}

/// Rows that a verification gives, by prefill in chunks: of any length, across edges, on every path.
pub fn verified_rows_equal_prefilled_ones(device: &Device) {
    let on = &device.queue;
    for model in [
        Model::new::<Cuda>(24, 4, 256),
        Model { first_key: 1, window: Some(150), ..Model::new::<Cuda>(4, 2, 128) },
    ]
    .into_iter()
    .step_by(stride(2))
    {
        for start in [model.first_key, 61, 1990].into_iter().step_by(stride(3)) {
            let rows = 200;
            let sequence: Sequence<bf16> = model.sequence(7, start, rows, 4.0);
            let mut fours = vec![4; 50];
            let want = attend_split::<Cuda, _>(on, &model, &PLAIN, &sequence, &fours);
            fours.clear();
            for path in paths(device) {
                let grid = Some(Grid { path, share: Share::Sequence });
                let placement = Placement { prefill: true, grid, page_rows: 64, seed: 5, ..PLAIN };
                let all = [&[200][..], &[1, 127, 72], &[64, 64, 64, 8], &[16, 17, 1, 166], &[100, 100]];
                for chunks in all.into_iter().step_by(stride(3)) {
                    let got = attend_split::<Cuda, _>(on, &model, &placement, &sequence, chunks);
                    assert_same_bits(&format!("{model:?} at {start}, {path:?}, {chunks:?}"), &got, &want);
                }
            }
        }
    }
}

/// Nearly equal weights, unequal ones, and such that one key has almost everything; on every grid.
pub fn outputs_stay_within_the_derived_bound(device: &Device) {
    let on = &device.queue;
    for (q_heads, kv_heads) in [(12, 2), (16, 2)] {
        for head_dim in [128, 256] {
            let model = Model::new::<Cuda>(q_heads, kv_heads, head_dim);
            let all = [(0, 8.0), (63, 4.0), (700, 1.0), (2047, 8.0), (4500, 4.0), (8192, 16.0)];
            for (start, peak) in all.into_iter().step_by(stride(3)) {
                let sequence: Sequence<bf16> = model.sequence(start as u64, start, 3, peak);
                let mut outputs = grids(device).into_iter().map(|grid| {
                    let placement = Placement { grid: Some(grid), page_rows: 64, ..PLAIN };
                    (grid, attend_split::<Cuda, _>(on, &model, &placement, &sequence, &[3]))
                });
                let (first, got) = outputs.next().unwrap();
                accuracy::check_outputs::<Cuda, bf16>(&model, &sequence, &got);
                for (grid, other) in outputs {
                    assert_same_bits(&format!("{grid:?} and {first:?}, {model:?} at {start}"), &other, &got);
                }
                // The CPU's are of the same quality by the same measure.
                if start < 1000 {
                    let cpu = attend_split::<Cpu, _>(&(), &model, &PLAIN, &sequence, &[3]);
                    accuracy::check_outputs::<Cpu, bf16>(&model, &sequence, &cpu);
                }
            }
        }
    }
}

/// One key with a value in thousands without: seen by exactly the rows that should, on every grid.
pub fn probes_move_with_the_mask_on_every_grid(device: &Device) {
    for grid in grids(device).into_iter().step_by(stride(2)) {
        let placement = Placement { grid: Some(grid), page_rows: 64, seed: 4, ..PLAIN };
        literal::a_probe::<Cuda, bf16>(&device.queue, &placement, &[(5, Some(2000))]);
    }
}

//! Far away: long contexts, and pages that 32-bit offsets do not reach.

use super::raw::{Raw, packed};
use super::{SMALL, grids};
use crate::accuracy;
use crate::support::{Model, PLAIN, Placement, Sequence, attend_split};
use kernels_attn::{Problem, Share};
use kernels_core::{Backend, Cuda, KvStrides, bf16};
use kernels_testkit::{
    compare::assert_same_bits,
    device::Device,
    rng::Rng,
    runner::{sanitized, stride},
};

/// Three rows that end at position 262,144: the same bytes row by row, by every share and path, by a prefill; within
/// the bound of f64.
pub fn a_quarter_of_a_million_tokens(device: &Device) {
    let on = &device.queue;
    let model = Model::new::<Cuda>(2, 1, 128);
    let sequence: Sequence<bf16> = model.sequence(60, 262_144 / stride(8) - 3, 3, 8.0);
    let want = attend_split::<Cuda, _>(on, &model, &PLAIN, &sequence, &[1; 3]);
    if !sanitized() {
        accuracy::check_outputs::<Cuda, bf16>(&model, &sequence, &want);
    }
    for grid in grids(device).into_iter().step_by(stride(2)) {
        let placement = Placement { page_rows: 64, seed: 61, grid: Some(grid), ..PLAIN };
        let got = attend_split::<Cuda, _>(on, &model, &placement, &sequence, &[3]);
        assert_same_bits(&format!("{grid:?}"), &got, &want);
        if grid.share == Share::Sequence {
            let prefill = Placement { prefill: true, ..placement };
            let got = attend_split::<Cuda, _>(on, &model, &prefill, &sequence, &[3]);
            assert_same_bits(&format!("prefill, {:?}", grid.path), &got, &want);
        }
    }
}

/// Elements from one page to the next: the third begins beyond 2^31 elements, the second beyond 2^31 bytes.
const FAR: usize = (1 << 30) + 1024;

/// A sequence written and read far from the start of its pool gives what it gives in a small one.
pub fn offsets_are_64_bits(device: &Device) {
    let on = &device.queue;
    let p = Problem { rows: 4, slots: 1, max_pages: 3, pages: 3, page_rows: 128, ..SMALL };
    let pages: Vec<Vec<bf16>> = (0..3).map(|i| Rng::new(70 + i).normals(packed(&p).page, 1.0)).collect();
    for grid in grids(device) {
        let run = |strides: KvStrides| {
            let mut raw = Raw::new(device, p, strides, grid);
            for (page, data) in pages.iter().enumerate() {
                Cuda::write(on, &mut raw.pool, page * strides.page, data).unwrap();
            }
            Cuda::write(on, &mut raw.table, 0, &[1, 0, 2]).unwrap();
            Cuda::write(on, &mut raw.offsets, 0, &[0, 4]).unwrap();
            // Two rows into the last page.
            Cuda::write(on, &mut raw.start, 0, &[254]).unwrap();
            raw.append(device).unwrap();
            raw.list(device).unwrap();
            raw.verify(device).unwrap();
            let verified = raw.read(device);
            raw.prefill(device).unwrap();
            assert_same_bits(&format!("prefill, {grid:?}"), &raw.read(device), &verified);
            let stored: Vec<Vec<bf16>> = (0..3)
                .map(|page| page * strides.page)
                .map(|at| Cuda::read(on, &raw.pool, at..at + pages[0].len()).unwrap())
                .collect();
            (verified, stored)
        };
        let near = packed(&p);
        let (want, stored) = run(near);
        assert!(stored[2] != pages[2] && stored[1] == pages[1], "rows stand in the last two pages");
        let (got, there) = run(KvStrides { page: FAR, ..near });
        assert_same_bits(&format!("outputs, {grid:?}"), &got, &want);
        for (page, (got, want)) in there.iter().zip(&stored).enumerate() {
            assert_same_bits(&format!("page {page}, {grid:?}"), got, want);
        }
    }
}

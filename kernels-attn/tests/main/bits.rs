//! Equal bytes: a row's output depends on its own sequence and on nothing else.

use crate::place::{self, Place, takes};
use crate::support::{LAYOUTS, Model, PLAIN, Placement, Sequence, attend, attend_split};
use kernels_core::{Activation, bf16, f16};
use kernels_testkit::{compare::assert_same_bits, runner::stride};

/// Rows that cross the edges of tiles, leaves (of 128, 256 and 512 keys) and groups: the first row's position.
const STARTS: [usize; 13] = [0, 1, 63, 126, 127, 254, 255, 510, 511, 1022, 2044, 2047, 4094];

fn same_as_single_rows<B: Place, A: Activation>(on: &B::Queue, model: Model, start: usize, rows: usize) {
    if !takes::<B, A>() {
        return;
    }
    let sequence: Sequence<A> = model.sequence(start as u64, start, rows, 3.0);
    let single = attend_split::<B, _>(on, &model, &PLAIN, &sequence, &vec![1; rows]);
    assert!(single.iter().all(|x| x.to_f32().is_finite()), "NaN leaked");
    let what = format!("{model:?}, {rows} rows at {start}");
    for prefill in [false, true] {
        let placement = Placement { prefill, ..PLAIN };
        let block = attend_split::<B, _>(on, &model, &placement, &sequence, &[rows]);
        assert_same_bits(&what, &block, &single);
        let split = attend_split::<B, _>(on, &model, &placement, &sequence, &[2, rows - 2]);
        assert_same_bits(&what, &split, &single);
    }
}

pub(crate) fn rows_are_single_rows<B: Place>(on: &B::Queue) {
    for start in STARTS.into_iter().step_by(stride(9)) {
        same_as_single_rows::<B, bf16>(on, Model::new::<B>(6, 1, 32), start, 5);
        same_as_single_rows::<B, f32>(on, Model::new::<B>(3, 3, 24), start, 4);
        same_as_single_rows::<B, bf16>(on, Model::new::<B>(2, 2, 16), start, 4);
        same_as_single_rows::<B, bf16>(on, Model::new::<B>(8, 4, 16), start, 4);
    }
    // More rows than one pass over the keys serves, or than a row block has; and the real head sizes.
    same_as_single_rows::<B, bf16>(on, Model::new::<B>(24, 4, 256), 120, 16);
    same_as_single_rows::<B, bf16>(on, Model::new::<B>(16, 2, 256), 60, 16);
    same_as_single_rows::<B, bf16>(on, Model::new::<B>(16, 1, 128), 505, 16);
    same_as_single_rows::<B, f16>(on, Model::new::<B>(4, 1, 128), 120, 11);
}

pub(crate) fn every_group_of_query_heads<B: Place>(on: &B::Queue) {
    for group in 1..=16 {
        if place::group::<B>(group) != group {
            continue;
        }
        same_as_single_rows::<B, bf16>(on, Model::new::<B>(2 * group, 2, 16), 126, 4);
    }
}

pub(crate) fn windows_and_first_key<B: Place>(on: &B::Queue) {
    let all = [
        (1, None),
        (0, Some(1)),
        (0, Some(64)),
        (1, Some(65)),
        (0, Some(130)),
        (0, Some(700)),
        (3, Some(9000)),
    ];
    for (first_key, window) in all.into_iter().step_by(stride(3)) {
        for start in [first_key, 61, 125, 510, 2046].into_iter().step_by(stride(3)) {
            let model = Model { first_key, window, ..Model::new::<B>(4, 2, 32) };
            same_as_single_rows::<B, bf16>(on, model, start, 5);
        }
    }
}

pub(crate) fn prefill_in_any_chunking_is_token_by_token<B: Place>(on: &B::Queue) {
    let rows = 300 / stride(4);
    let models = [
        Model::new::<B>(4, 2, 32),
        Model::new::<B>(4, 4, 16),
        Model { first_key: 1, ..Model::new::<B>(2, 1, 32) },
        Model { window: Some(100), ..Model::new::<B>(2, 1, 32) },
    ];
    for model in models.into_iter().step_by(stride(4)) {
        let sequence: Sequence<bf16> = model.sequence(7, model.first_key, rows, 3.0);
        let decode = attend_split::<B, _>(on, &model, &PLAIN, &sequence, &vec![1; rows]);
        let prefill = Placement { prefill: true, ..PLAIN };
        for chunks in [&[300][..], &[64, 64, 64, 64, 44], &[1, 127, 128, 44], &[3, 250, 47]] {
            let mut left = rows;
            let cut = |chunk: &usize| {
                let now = left.min(*chunk);
                left -= now;
                (now > 0).then_some(now)
            };
            let chunks: Vec<usize> = chunks.iter().map_while(cut).collect();
            let chunked = attend_split::<B, _>(on, &model, &prefill, &sequence, &chunks);
            assert_same_bits(&format!("{model:?}, chunks {chunks:?}"), &chunked, &decode);
        }
    }
}

pub(crate) fn pages_slots_and_strides_do_not_matter<B: Place>(on: &B::Queue) {
    for model in [Model::new::<B>(4, 2, 32), Model { window: Some(90), ..Model::new::<B>(6, 1, 40) }] {
        for start in [0, 100, 2045] {
            let sequence: Sequence<bf16> = model.sequence(11, start, 5, 3.0);
            let plain = attend_split::<B, _>(on, &model, &PLAIN, &sequence, &[5]);
            for page_rows in [16, 1, 3, 64, 128, 200].into_iter().step_by(stride(3)) {
                for layout in LAYOUTS {
                    let placement =
                        Placement { page_rows, layout, seed: 1 + page_rows as u64, padding: true, ..PLAIN };
                    let got = attend_split::<B, _>(on, &model, &placement, &sequence, &[5]);
                    assert_same_bits(&format!("{placement:?}"), &got, &plain);
                }
            }
        }
    }
}

pub(crate) fn the_batch_does_not_matter<B: Place>(on: &B::Queue) {
    let model = Model::new::<B>(4, 2, 32);
    let lengths = [(0, 1), (1, 4), (63, 3), (500, 16), (127, 2), (2047, 4)];
    let sequences: Vec<Sequence<bf16>> = lengths
        .iter()
        .enumerate()
        .map(|(i, (start, rows))| model.sequence(i as u64, *start, *rows, 3.0))
        .collect();
    let alone: Vec<Vec<bf16>> =
        sequences.iter().map(|s| attend_split::<B, _>(on, &model, &PLAIN, s, &vec![1; s.rows])).collect();
    // Every slot is taken by some seed, the first and the last included; see `Memory::new`.
    for seed in (0..12).step_by(stride(5)) {
        for padding in [false, true] {
            let placement = Placement { seed, padding, layout: LAYOUTS[seed as usize % 3], ..PLAIN };
            let parts: Vec<_> = sequences.iter().map(|s| (s, 0..s.rows)).collect();
            let together = attend::<B, _>(on, &model, &placement, &parts);
            for (i, (got, want)) in together.iter().zip(&alone).enumerate() {
                assert_same_bits(&format!("sequence {i}, {placement:?}"), got, want);
            }
        }
    }
}

pub(crate) fn no_gate_is_no_factor<B: Place>(on: &B::Queue) {
    let model = Model { gated: false, ..Model::new::<B>(4, 2, 32) };
    same_as_single_rows::<B, bf16>(on, model, 126, 4);
    // A sigmoid that rounds to one leaves the bytes alone.
    let mut sequence: Sequence<bf16> = model.sequence(3, 200, 3, 3.0);
    sequence.gate.fill(bf16::from_f32(100.0));
    let without = attend_split::<B, _>(on, &model, &PLAIN, &sequence, &[3]);
    let with = attend_split::<B, _>(on, &Model { gated: true, ..model }, &PLAIN, &sequence, &[3]);
    assert_same_bits("gate of 100", &with, &without);
}

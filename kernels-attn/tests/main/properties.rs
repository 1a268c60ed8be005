//! Random shapes, splits and placements.

use crate::place::{self, Place, takes};
use crate::support::{LAYOUTS, Model, PLAIN, Placement, Sequence, attend, attend_split};
use kernels_core::{Activation, bf16};
use kernels_testkit::{compare::assert_same_bits, runner::stride};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

fn models<B: Place>() -> impl Strategy<Value = Model> {
    let window = prop_oneof![Just(None), (1usize..200).prop_map(Some)];
    (1usize..=8, 1usize..=5, prop_oneof![1usize..=8, 30usize..=34, 63usize..=97], window, 0usize..3).prop_map(
        |(group, kv_heads, head_dim, window, first_key)| Model {
            q_heads: place::group::<B>(group) * kv_heads,
            kv_heads,
            head_dim: place::head_dim::<B>(head_dim),
            first_key,
            window,
            gated: head_dim % 2 == 0,
        },
    )
}

fn placements() -> impl Strategy<Value = Placement> {
    (1usize..=140, 0usize..3, 1u64..1000, any::<bool>(), any::<bool>()).prop_map(
        |(page_rows, layout, seed, padding, prefill)| Placement {
            page_rows,
            layout: LAYOUTS[layout],
            seed,
            padding,
            prefill,
            ..PLAIN
        },
    )
}

/// Starts anywhere, but half of them near the edge of a tile, leaf or group.
fn starts() -> impl Strategy<Value = usize> {
    let edge = prop_oneof![Just(128usize), Just(256), Just(512), Just(2048)];
    prop_oneof![0usize..400, (edge, 0usize..8).prop_map(|(edge, before)| edge - before)]
}

fn check<B: Place, A: Activation>(
    on: &B::Queue,
    model: Model,
    placement: Placement,
    shapes: &[(usize, usize, usize)],
) {
    let sequences: Vec<Sequence<A>> = shapes
        .iter()
        .enumerate()
        .map(|(i, (start, rows, _))| model.sequence(i as u64, *start, *rows, 3.0))
        .collect();
    let parts: Vec<_> = sequences.iter().map(|s| (s, 0..s.rows)).collect();
    let together = attend::<B, _>(on, &model, &placement, &parts);
    for ((sequence, (_, rows, cut)), got) in sequences.iter().zip(shapes).zip(&together) {
        let single = attend_split::<B, _>(on, &model, &PLAIN, sequence, &vec![1; *rows]);
        assert_same_bits("together", got, &single);
        let cut = cut % rows;
        let lengths = if cut == 0 { vec![*rows] } else { vec![cut, rows - cut] };
        let split = attend_split::<B, _>(on, &model, &placement, sequence, &lengths);
        assert_same_bits("split", &split, &single);
    }
}

pub(crate) fn any_launch_gives_the_bytes_of_single_rows<B: Place>(on: &B::Queue) {
    let config = ProptestConfig {
        cases: if B::GENERAL { 60 } else { 40 / stride(10) as u32 },
        failure_persistence: None,
        ..Default::default()
    };
    // At least two rows each: one row proves nothing.
    let shapes = proptest::collection::vec((starts(), 2usize..=10, 0usize..10), 1..4);
    TestRunner::new(config)
        .run(&(models::<B>(), placements(), shapes, any::<bool>()), |(model, placement, shapes, wide)| {
            if wide && takes::<B, f32>() {
                check::<B, f32>(on, model, placement, &shapes);
            } else {
                check::<B, bf16>(on, model, placement, &shapes);
            }
            Ok(())
        })
        .unwrap();
}

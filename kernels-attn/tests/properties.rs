//! Random shapes, splits and placements.

use crate::support::{LAYOUTS, Model, PLAIN, Placement, Sequence, attend, attend_split};
use kernels_core::{Activation, bf16};
use kernels_testkit::compare::assert_same_bits;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

fn models() -> impl Strategy<Value = Model> {
    let window = prop_oneof![Just(None), (1usize..200).prop_map(Some)];
    (1usize..=8, 1usize..=3, prop_oneof![1usize..=8, 30usize..=34, 63usize..=97], window, 0usize..3).prop_map(
        |(group, kv_heads, head_dim, window, first_key)| Model {
            q_heads: group * kv_heads,
            kv_heads,
            head_dim,
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
        },
    )
}

/// Starts anywhere, but half of them near the edge of a tile, leaf or group.
fn starts() -> impl Strategy<Value = usize> {
    let edge = prop_oneof![Just(64usize), Just(128), Just(2048)];
    prop_oneof![0usize..400, (edge, 0usize..8).prop_map(|(edge, before)| edge - before)]
}

fn check<A: Activation>(model: Model, placement: Placement, shapes: &[(usize, usize, usize)]) {
    let sequences: Vec<Sequence<A>> = shapes
        .iter()
        .enumerate()
        .map(|(i, (start, rows, _))| model.sequence(i as u64, *start, *rows, 3.0))
        .collect();
    let parts: Vec<_> = sequences.iter().map(|s| (s, 0..s.rows)).collect();
    let together = attend(&model, &placement, &parts);
    for ((sequence, (_, rows, cut)), got) in sequences.iter().zip(shapes).zip(&together) {
        let single = attend_split(&model, &PLAIN, sequence, &vec![1; *rows]);
        assert_same_bits("together", got, &single);
        let cut = cut % rows;
        let lengths = if cut == 0 { vec![*rows] } else { vec![cut, rows - cut] };
        let split = attend_split(&model, &placement, sequence, &lengths);
        assert_same_bits("split", &split, &single);
    }
}

#[cfg_attr(not(feature = "planted-faults"), test)]
pub(crate) fn any_launch_gives_the_bytes_of_single_rows() {
    let config = ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() };
    // At least two rows each: one row proves nothing.
    let shapes = proptest::collection::vec((starts(), 2usize..=10, 0usize..10), 1..4);
    TestRunner::new(config)
        .run(&(models(), placements(), shapes, any::<bool>()), |(model, placement, shapes, wide)| {
            if wide {
                check::<f32>(model, placement, &shapes);
            } else {
                check::<bf16>(model, placement, &shapes);
            }
            Ok(())
        })
        .unwrap();
}

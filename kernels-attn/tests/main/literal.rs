//! Small cases whose result can be worked out by hand, and probes of the mask.

use crate::place::{Place, takes};
use crate::support::{Model, PLAIN, Placement, Sequence, attend, attend_split};
use kernels_core::{Activation, Cpu, DType, bf16};
use kernels_testkit::{compare::assert_same_bits, runner::stride};

/// Equal scores: every row is the mean of the values it sees. Small whole numbers, so that every sum is exact.
pub(crate) fn equal_scores_give_the_mean<B: Place>(on: &B::Queue) {
    equal_scores::<B, f32>(on);
    equal_scores::<B, bf16>(on);
}

fn equal_scores<B: Place, A: Activation>(on: &B::Queue) {
    if !takes::<B, A>() {
        return;
    }
    let model = Model { gated: false, ..Model::new::<B>(1, 1, 1) };
    let d = model.head_dim;
    let one = A::from_f32(1.0);
    for (start, rows) in [(0, 4), (62, 4), (126, 4), (510, 4), (2046, 4), (4094, 3)] {
        let n = start + rows;
        let sequence = Sequence {
            start,
            rows,
            keys: vec![one; n * d],
            values: (0..n * d).map(|i| A::from_f32((i / d % 128) as f32)).collect(),
            q: vec![A::default(); rows * d],
            gate: vec![A::default(); rows * d],
        };
        let out = attend_split::<B, A>(on, &model, &PLAIN, &sequence, &[rows]);
        let sum = |p: usize| (0..=p).map(|key| key % 128).sum::<usize>() as f32;
        let want = (0..rows * d).map(|i| start + i / d).map(|p| A::from_f32(sum(p) / (p + 1) as f32));
        assert_eq!(out, want.collect::<Vec<_>>());
    }
}

/// Weights 1 : e, by way of head size 4 (scale 1/2), query 2 and keys 0 and 1.
pub(crate) fn two_keys() {
    let model = Model::new::<Cpu>(1, 1, 4);
    let sequence = Sequence {
        start: 1,
        rows: 1,
        keys: vec![0.0f32, 9.0, 9.0, 9.0, 1.0, 9.0, 9.0, 9.0],
        values: vec![0.0, 1.0, 3.0, 5.0, 1.0, 1.0, 3.0, -5.0],
        q: vec![2.0, 0.0, 0.0, 0.0],
        gate: vec![100.0, 0.0, 100.0, 100.0],
    };
    let out = attend_split::<Cpu, _>(&(), &model, &PLAIN, &sequence, &[1]);
    // e / (1 + e); 1 times sigmoid(0); 3; 5 (1 - e) / (1 + e)
    let want = [0.731_058_6, 0.5, 3.0, -2.310_585_8];
    for (got, want) in out.iter().zip(want) {
        assert!((got - want).abs() <= 4.0 * f32::EPSILON * want.abs(), "{got} for {want}");
    }
    // In bf16 the weights are 1 and 0.3671875, and so is their sum: 1 / 1.3671875 = 187.25 / 256.
    let narrow = |x: &Vec<f32>| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
    let sequence = Sequence {
        start: 1,
        rows: 1,
        keys: narrow(&sequence.keys),
        values: narrow(&sequence.values),
        q: narrow(&sequence.q),
        gate: narrow(&sequence.gate),
    };
    let out = attend_split::<Cpu, _>(&(), &model, &PLAIN, &sequence, &[1]);
    let out: Vec<f32> = out.iter().map(|x| x.to_f32()).collect();
    assert_eq!(out, [187.0 / 256.0, 0.5, 3.0, -2.3125]);
}

/// One key has value 1, all others 0: the output is positive exactly where the row sees that key.
pub(crate) fn a_probe_moves_with_the_mask<B: Place>(on: &B::Queue) {
    let masks = [(0, None), (1, None), (0, Some(70)), (5, Some(2000))];
    a_probe::<B, f32>(on, &PLAIN, &masks);
    a_probe::<B, bf16>(on, &PLAIN, &masks);
}

/// `masks`: the first key and the window.
pub(crate) fn a_probe<B: Place, A: Activation>(
    on: &B::Queue,
    placement: &Placement,
    masks: &[(usize, Option<usize>)],
) {
    // The CPU's sums are slow, and of one kind for both types.
    if !takes::<B, A>() || (B::GENERAL && A::DTYPE == DType::Bf16) {
        return;
    }
    for &(first_key, window) in masks {
        let model = Model { first_key, window, gated: false, ..Model::new::<B>(2, 1, 4) };
        for start in [63, 510, 2048, 8, 127, 4200].into_iter().step_by(stride(3)) {
            // Rows beyond the ones looked at, so that later keys are in memory and finite.
            let rows = 6;
            let d = model.head_dim;
            let mut sequence: Sequence<A> = model.sequence(5, start, rows, 1.0);
            let lowest = model.first_seen(start);
            let near = (start.saturating_sub(2)..start + rows).chain(lowest..lowest + 4);
            let keys = near.chain([0, 1, 64, 128, 200, 511, 512, 2047, 2048, 2049]);
            for key in keys.step_by(stride(3)) {
                if key >= start + rows {
                    continue;
                }
                sequence.values.fill(A::default());
                sequence.values[key * d..(key + 1) * d].fill(A::from_f32(1.0));
                let out = attend_split::<B, _>(on, &model, placement, &sequence, &[rows]);
                for row in 0..rows {
                    let position = start + row;
                    let seen = model.first_seen(position) <= key && key <= position;
                    let got = out[row * 2 * d].to_f32();
                    assert_eq!(got > 0.0, seen, "{model:?}: row at {position}, key {key}: {got}");
                }
            }
        }
    }
}

/// A draft's row 0 has no key at all: zeros, whatever lies in memory.
pub(crate) fn no_key_gives_zeros<B: Place>(on: &B::Queue) {
    let model = Model { first_key: 2, ..Model::new::<B>(2, 1, 8) };
    let sequence: Sequence<bf16> = model.sequence(6, 0, 4, 1.0);
    for prefill in [false, true] {
        let placement = Placement { prefill, ..PLAIN };
        let out = attend::<B, _>(on, &model, &placement, &[(&sequence, 0..4)]).remove(0);
        let (none, some) = out.split_at(2 * 2 * model.head_dim);
        assert!(none.iter().all(|x| x.to_bits() == 0));
        assert!(some.iter().filter(|x| x.to_f32() == 0.0).count() <= some.len() / 100);
    }
}

/// NaN in a visible key or value is not hidden.
pub(crate) fn visible_nan_shows<B: Place>(on: &B::Queue) {
    let model = Model::new::<B>(1, 1, 8);
    for start in [3, 130, 600] {
        let sequence: Sequence<bf16> = model.sequence(6, start, 1, 1.0);
        let mut bad_key = sequence.clone();
        bad_key.keys[model.head_dim] = bf16::NAN;
        let out = attend_split::<B, _>(on, &model, &PLAIN, &bad_key, &[1]);
        assert!(out.iter().all(|x| x.to_f32().is_nan()));
        let mut all_bad = sequence.clone();
        all_bad.keys.fill(bf16::NAN);
        let out = attend_split::<B, _>(on, &model, &PLAIN, &all_bad, &[1]);
        assert!(out.iter().all(|x| x.to_f32().is_nan()));
        let mut bad_value = sequence.clone();
        bad_value.values[model.head_dim + 3] = bf16::NAN;
        let out = attend_split::<B, _>(on, &model, &PLAIN, &bad_value, &[1]);
        let nan: Vec<bool> = out.iter().map(|x| x.to_f32().is_nan()).collect();
        assert_eq!(nan, (0..model.head_dim).map(|i| i == 3).collect::<Vec<_>>());
    }
    // A key with a tile, leaf or group to itself, whose every score is NaN then; in the first one, and later.
    for kv_heads in [1, 2, 4] {
        let model = Model::new::<B>(kv_heads, kv_heads, 8);
        let width = kv_heads * model.head_dim;
        let alone = [128, 256, 512, 2048].map(|key| (key, key..key + 1));
        for (start, bad) in alone.into_iter().chain([(2048, 0..128), (700, 128..256), (700, 512..640)]) {
            let mut sequence: Sequence<bf16> = model.sequence(6, start, 1, 1.0);
            sequence.keys[bad.start * width..bad.end * width].fill(bf16::NAN);
            let out = attend_split::<B, _>(on, &model, &PLAIN, &sequence, &[1]);
            assert!(
                out.iter().all(|x| x.to_f32().is_nan()),
                "{model:?}, keys {bad:?} for the row at {start}"
            );
        }
    }
}

/// The sequences of a launch share what works on them, and nothing else.
pub(crate) fn nan_stays_in_its_sequence<B: Place>(on: &B::Queue) {
    let model = Model::new::<B>(4, 2, 8);
    let [mut bad, good]: [Sequence<bf16>; 2] = [7, 8].map(|seed| model.sequence(seed, 600, 2, 1.0));
    let alone = attend_split::<B, _>(on, &model, &PLAIN, &good, &[2]);
    bad.keys.fill(bf16::NAN);
    bad.values.fill(bf16::NAN);
    for prefill in [false, true] {
        let placement = Placement { prefill, ..PLAIN };
        let together = attend::<B, _>(on, &model, &placement, &[(&bad, 0..2), (&good, 0..2)]);
        assert!(together[0].iter().all(|x| x.to_f32().is_nan()));
        assert_same_bits("beside NaN", &together[1], &alone);
    }
}

/// A weighted sum that underflows to -0, with masked keys behind it where rows are verified together: a zero of
/// one sign.
pub(crate) fn zeros_have_one_sign<B: Place>(on: &B::Queue) {
    let tiny = bf16::from_bits(0x8001);
    for kv_heads in [1, 2, 4] {
        let model = Model { gated: false, ..Model::new::<B>(kv_heads, kv_heads, 8) };
        let (d, width) = (model.head_dim, kv_heads * model.head_dim);
        // What is 2^-30 of the weight of a key of zeros, and what is 2^30 times it.
        let far = 30.0 * std::f32::consts::LN_2 * (d as f32).sqrt();
        // The last row of a tile, a leaf or a group, and rows that see more.
        for start in [127, 255, 383, 511, 2047].into_iter().step_by(stride(2)) {
            // The large weight first: each of the others underflows. Or last: what was there does, rescaled.
            for large in [0, start - 1] {
                let mut sequence: Sequence<bf16> = model.sequence(6, start, 3, 1.0);
                sequence.q.fill(bf16::ZERO);
                sequence.q.chunks_exact_mut(d).for_each(|q| q[0] = bf16::from_f32(1.0));
                sequence.keys.fill(bf16::ZERO);
                sequence.values.fill(tiny);
                let key = large * width..(large + 1) * width;
                sequence.values[key.clone()].fill(-bf16::ZERO);
                sequence.keys[key].chunks_exact_mut(d).for_each(|key| key[0] = bf16::from_f32(far));
                let single = attend_split::<B, _>(on, &model, &PLAIN, &sequence, &[1; 3]);
                let together = attend_split::<B, _>(on, &model, &PLAIN, &sequence, &[3]);
                assert_same_bits(&format!("{model:?} at {start}"), &together, &single);
                assert!(
                    single.iter().all(|x| x.to_bits() == 0),
                    "{model:?} at {start}: zeros, and none is -0"
                );
            }
        }
    }
}

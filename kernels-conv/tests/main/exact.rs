//! Equal bytes: a row is a function of its own sequence, whatever the launch looks like.

use crate::world::{Chunk, Kind, Place, World, decode, parameters, problem};
use kernels_conv::Problem;
use kernels_core::{Activation, PAD};
use kernels_testkit::{compare::assert_same_bits, for_types, rng::Rng};
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;

/// T rows of a launch equal T launches of one row, however a sequence is cut; property test.
pub fn rows_are_single_rows<B: Place>(queue: &B::Queue) {
    for_types!(B, queue, any_cut);
}

fn any_cut<B: Place, A: Activation>(queue: &B::Queue) {
    let longest = Cell::new(0);
    let cases = if B::GENERAL { 24 } else { 12 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let strategy = (proptest::num::u64::ANY, proptest::collection::vec(1..=8usize, 1..12));
    TestRunner::new_with_rng(config, deterministic())
        .run(&strategy, |(seed, cuts)| {
            let mut rng = Rng::new(seed);
            let max_rows = *cuts.iter().max().expect("a cut has parts");
            longest.set(max_rows.max(longest.get()));
            let p = problem::<B>(&mut rng, 1, 2, max_rows);
            let parameters = parameters::<A>(&p, seed);
            let x: Vec<A> = rng.normals(cuts.iter().sum::<usize>() * p.channels, 2.0);
            let (want, _) = decode::<B, A>(queue, p, &parameters, 0, &x);
            let mut world = World::<B, A>::new(queue, p, &parameters);
            let (mut got, mut start) = (Vec::new(), 0);
            for rows in cuts {
                let x = x[start * p.channels..][..rows * p.channels].to_vec();
                got.extend(world.run(Kind::Verify, &[Chunk { slot: 1, start, x }]).remove(0));
                start += rows;
            }
            assert_same_bits(&format!("{p:?}"), &got, &want);
            Ok(())
        })
        .unwrap();
    assert!(longest.get() > 1, "no launch had more than one row");
}

fn deterministic() -> proptest::test_runner::TestRng {
    proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha)
}

/// Batch composition, padding, permuted slots (first and last among them) and what lies in free slots change
/// nothing; free slots stay as they were.
pub fn launches_do_not_mix<B: Place>(queue: &B::Queue) {
    for_types!(B, queue, mixed_batch);
}

fn mixed_batch<B: Place, A: Activation>(queue: &B::Queue) {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let (sequences, slots, max_rows) = (7, 9, 5);
        let p = problem::<B>(&mut rng, sequences, slots, max_rows);
        let parameters = parameters::<A>(&p, seed);
        let own = [8, 0, 5, 3, 6];
        let total = 3 * p.ring_rows;
        let streams: Vec<Vec<A>> = own.iter().map(|_| rng.normals(total * p.channels, 2.0)).collect();
        let mut world = World::<B, A>::new(queue, p, &parameters);
        let mut done = [0; 5];
        let mut got = vec![Vec::new(); 5];
        while done.iter().any(|d| *d < total) {
            // A new order in every launch, two padding sequences among them, some without rows.
            let mut chunks: Vec<Chunk<A>> = Vec::new();
            let order = rng.permutation(sequences);
            for &i in &order {
                let rows = rng.below(max_rows + 1);
                chunks.push(match own.get(i) {
                    Some(&slot) => {
                        let rows = rows.min(total - done[i]);
                        let x = streams[i][done[i] * p.channels..][..rows * p.channels].to_vec();
                        Chunk { slot, start: done[i], x }
                    }
                    None => Chunk { slot: PAD, start: 3, x: vec![A::from_f32(1.0); rows * p.channels] },
                });
            }
            let outputs = world.run(Kind::Verify, &chunks);
            for (&i, (chunk, out)) in order.iter().zip(chunks.iter().zip(outputs)) {
                if i < own.len() {
                    done[i] += chunk.x.len() / p.channels;
                    got[i].extend(out);
                }
            }
        }
        for i in 0..own.len() {
            let (want, ring) = decode::<B, A>(queue, p, &parameters, 0, &streams[i]);
            assert_same_bits(&format!("sequence {i}, {p:?}"), &got[i], &want);
            assert_same_bits("ring", &world.ring(own[i] as usize).concat(), &ring.concat());
        }
        let free = kernels_testkit::guard::poison::<A>();
        for slot in [1, 2, 4, 7] {
            let ring = world.ring(slot).concat();
            assert_same_bits("free slot", &ring, &vec![free; ring.len()]);
        }
    }
}

/// A prompt in any chunks equals decode, outputs and ring; and a round may follow at any point.
pub fn prefill_is_decode<B: Place>(queue: &B::Queue) {
    for_types!(B, queue, any_chunks);
}

fn any_chunks<B: Place, A: Activation>(queue: &B::Queue) {
    for seed in 0..8 {
        let mut rng = Rng::new(100 + seed);
        let p = problem::<B>(&mut rng, 3, 4, 60);
        // From the shortest ring that works (chunks race with themselves there) to a comfortable one.
        let ring_rows = p.width - 1 + seed as usize % 4 * 3;
        let p = Problem { ring_rows, ..p };
        let parameters = parameters::<A>(&p, seed);
        let total = 120;
        let streams: Vec<Vec<A>> = (0..2).map(|_| rng.normals(total * p.channels, 2.0)).collect();
        let mut world = World::<B, A>::new(queue, p, &parameters);
        let (mut done, mut got) = ([0; 2], vec![Vec::new(); 2]);
        while done.iter().any(|d| *d < total) {
            let chunks: Vec<Chunk<A>> = (0..2)
                .map(|i| {
                    let rows = [1, 2, 7, 8, 9, 16, 33, 60][rng.below(8)].min(total - done[i]);
                    let x = streams[i][done[i] * p.channels..][..rows * p.channels].to_vec();
                    Chunk { slot: 3 - 2 * i as i32, start: done[i], x }
                })
                .collect();
            for (i, out) in world.run(Kind::Prefill, &chunks).into_iter().enumerate() {
                done[i] += chunks[i].x.len() / p.channels;
                got[i].extend(out);
            }
        }
        for i in 0..2 {
            let (want, ring) = decode::<B, A>(queue, p, &parameters, 0, &streams[i]);
            assert_same_bits(&format!("sequence {i}, {p:?}"), &got[i], &want);
            // Decode's ring is longer where prefill's is below what decode needs.
            let decoded = ring.len();
            let slot = world.ring(3 - 2 * i);
            for position in total - p.ring_rows..total {
                let got = &slot[position % p.ring_rows];
                assert_same_bits("ring", got, &ring[position % decoded]);
            }
        }
    }
}

/// Whatever a slot's ring held before: positions below zero are zeros.
pub fn stale_rings_are_never_read<B: Place>(queue: &B::Queue) {
    for_types!(B, queue, stale_ring);
}

fn stale_ring<B: Place, A: Activation>(queue: &B::Queue) {
    for (seed, kind) in [(0, Kind::Verify), (1, Kind::Prefill), (2, Kind::Verify), (3, Kind::Prefill)] {
        let mut rng = Rng::new(seed);
        let p = problem::<B>(&mut rng, 1, 1, 6);
        let parameters = parameters::<A>(&p, seed);
        let x: Vec<A> = rng.normals(6 * p.channels, 2.0);
        // The world's ring is NaN all over.
        let mut world = World::<B, A>::new(queue, p, &parameters);
        let out = world.run(kind, &[Chunk { slot: 0, start: 0, x: x.clone() }]).remove(0);
        assert!(out.iter().all(|y| y.to_f32().is_finite()), "{p:?}");
        // A second tenant of the slot sees nothing of the first.
        let again = world.run(kind, &[Chunk { slot: 0, start: 0, x }]).remove(0);
        assert_same_bits("second tenant", &again, &out);
    }
}

/// Positions up to the last one an i32 can hold.
pub fn far_positions_are_like_near_ones<B: Place>(queue: &B::Queue) {
    for_types!(B, queue, far_positions);
}

fn far_positions<B: Place, A: Activation>(queue: &B::Queue) {
    let mut rng = Rng::new(9);
    let p = problem::<B>(&mut rng, 1, 2, 4);
    let parameters = parameters::<A>(&p, 9);
    let rows = 24;
    let x: Vec<A> = rng.normals(rows * p.channels, 2.0);
    let (near, _) = decode::<B, A>(queue, p, &parameters, 0, &x);
    for (start, kind) in [((1 << 31) - rows, Kind::Verify), ((1 << 31) - rows, Kind::Prefill)] {
        let mut world = World::<B, A>::new(queue, p, &parameters);
        let mut got = Vec::new();
        for (i, x) in x.chunks(3 * p.channels).enumerate() {
            got.extend(world.run(kind, &[Chunk { slot: 1, start: start + 3 * i, x: x.to_vec() }]).remove(0));
        }
        // The first width - 1 rows looked back at positions that nobody wrote.
        let known = (p.width - 1) * p.channels;
        assert_same_bits(&format!("{kind:?} from {start}"), &got[known..], &near[known..]);
    }
}

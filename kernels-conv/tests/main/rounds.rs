//! Speculation as it happens: rounds of drafts of which a prefix is accepted.

use crate::world::{Chunk, Kind, Place, World, decode, parameters, problem};
use kernels_core::Activation;
use kernels_testkit::{compare::assert_same_bits, for_types, rng::Rng};

/// Five sequences, 64 rounds and more, random drafts, random accept lengths, a third of the rounds with a
/// prefill chunk in between: accepted rows equal plain decode, and so does the history in the ring.
pub fn rejected_rows_leave_no_trace<B: Place>(queue: &B::Queue) {
    for_types!(B, queue, speculate);
}

fn speculate<B: Place, A: Activation>(queue: &B::Queue) {
    let mut rng = Rng::new(77);
    let (slots, max_rows) = ([6, 0, 7, 2, 4], 9);
    let p = problem::<B>(&mut rng, 5, 8, max_rows);
    let p = kernels_conv::Problem { ring_rows: p.width - 1 + max_rows, ..p };
    let parameters = parameters::<A>(&p, 77);
    let mut world = World::<B, A>::new(queue, p, &parameters);
    let mut truth: Vec<Vec<A>> = vec![Vec::new(); 5];
    let mut outputs: Vec<Vec<A>> = vec![Vec::new(); 5];
    let mut accepted_counts = [0usize; 10];
    for round in 0..72 {
        let kind = if round % 3 == 2 { Kind::Prefill } else { Kind::Verify };
        let chunks: Vec<Chunk<A>> = (0..5)
            .map(|i| {
                let rows = 1 + rng.below(max_rows);
                let x = rng.normals(rows * p.channels, 2.0);
                Chunk { slot: slots[i], start: truth[i].len() / p.channels, x }
            })
            .collect();
        let outs = world.run(kind, &chunks);
        for (i, (chunk, out)) in chunks.iter().zip(outs).enumerate() {
            let rows = chunk.x.len() / p.channels;
            // A prefill chunk is accepted as a whole; a finished sequence would accept nothing.
            let accepted = if kind == Kind::Prefill { rows } else { rng.below(rows + 1) };
            accepted_counts[accepted] += 1;
            truth[i].extend_from_slice(&chunk.x[..accepted * p.channels]);
            outputs[i].extend_from_slice(&out[..accepted * p.channels]);
        }
    }
    assert!(accepted_counts.iter().all(|n| *n > 0), "some accept length never occurred: {accepted_counts:?}");
    for i in 0..5 {
        let (want, _) = decode::<B, A>(queue, p, &parameters, 0, &truth[i]);
        assert_same_bits(&format!("sequence {i}"), &outputs[i], &want);
        let committed = truth[i].len() / p.channels;
        let ring = world.ring(slots[i] as usize);
        for position in committed - (p.width - 1)..committed {
            let want = &truth[i][position * p.channels..][..p.channels];
            assert_same_bits("committed history", &ring[position % p.ring_rows], want);
        }
    }
}

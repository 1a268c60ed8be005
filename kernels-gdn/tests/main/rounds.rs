//! Speculative rounds of every kind against plain decoding and prefill: outputs, states, journals.

use crate::place::{Place, flushing, small};
use crate::stream::{Launch, Stream};
use crate::world::{Decoded, World, decode, journal_row, same};
use kernels_core::{Activation, slots};
use kernels_testkit::{for_types, rng::Rng, runner::stride};

const SEQUENCES: usize = 5;
const ROUNDS: usize = 64;

/// What the rounds of a run went through, so that a run cannot pass hollow.
#[derive(Debug, Default)]
struct Seen {
    drafts: usize,
    rejections: usize,
    stores: usize,
    kept: usize,
    longest_pending: usize,
    wraps: usize,
}

/// Runs rounds with random lengths and accept counts, then folds; compares with decoding.
pub fn rounds<B: Place, A: Activation>(on: &B::Queue, flush_after: usize, seed: u64) -> Result<(), String> {
    let p = flushing(small::<B>(), flush_after);
    let mut rng = Rng::new(seed);
    let mut world = World::<B, A>::new(on, p);
    // Five of seven slots, the first and the last among them, in an order that is not theirs.
    let slots = [6, 2, 0, 5, 3];
    let streams: Vec<Stream<A>> =
        (0..SEQUENCES).map(|_| Stream::random(&p, ROUNDS * p.max_rows, &mut rng)).collect();
    let decoded: Vec<Decoded<A>> = streams.iter().map(|s| decode::<B, A>(on, &p, s)).collect();
    let width = p.v_heads * p.v_dim;
    let mut seen = Seen::default();

    for round in 0..ROUNDS {
        let mut launch = Launch::new();
        let mut plan = vec![];
        for i in rng.permutation(SEQUENCES) {
            let slot = slots[i];
            // Sequences drop out of rounds, and padding stands between those that stay.
            if rng.below(8) == 0 {
                launch.push_padding(&p, rng.below(3));
                continue;
            }
            let t = if rng.below(2) == 0 { p.max_rows } else { 1 + rng.below(p.max_rows) };
            let accepted = if rng.below(2) == 0 { t } else { 1 + rng.below(t) };
            let start = world.committed[slot] as usize;
            let mut rows = streams[i].part(&p, start..start + accepted);
            rows.append(&Stream::random(&p, t - accepted, &mut rng));
            let first = launch.count(&p);
            launch.push(&p, slot as i32, start, &rows);
            plan.push((i, slot, start, first, t, accepted));
        }
        launch.add_unowned(&p, rng.below(3));

        let before = world.state();
        let out = world.verify(&launch);
        let (after, journal) = (world.state(), world.journal());
        for &(i, slot, start, first, t, accepted) in &plan {
            let what = format!("round {round}, sequence {i}, {t} rows from {start}, {accepted} accepted");
            let got = &out[first * width..][..accepted * width];
            same(format!("{what}: outputs"), got, &decoded[i].out[start * width..][..accepted * width])?;

            let pending = start - world.folded[slot] as usize;
            let state = slot * p.state_len()..(slot + 1) * p.state_len();
            let stored = same("", &after[state.clone()], &before[state]).is_err();
            if stored != slots::flushes(pending, flush_after) {
                return Err(format!("{what}: stored = {stored} with {pending} pending"));
            }
            seen.stores += usize::from(stored);
            seen.kept += usize::from(!stored && pending > 0);
            seen.drafts += t - 1;
            seen.rejections += t - accepted;
            seen.longest_pending = seen.longest_pending.max(pending);
            seen.wraps += usize::from(start % p.journal_rows + t > p.journal_rows);

            world.advance(slot, accepted);
            for position in world.folded[slot] as usize..world.committed[slot] as usize {
                let want = streams[i].journal_row(&p, position);
                same(
                    format!("{what}: journal of {position}"),
                    journal_row(&p, &journal, slot, position),
                    &want,
                )?;
            }
        }
        same(format!("round {round}: faults"), &world.faults(), &vec![0; p.slots + 1])?;
    }

    world.fold(&[6, 2, slots::PAD, 0, 5, 3]);
    for (i, &slot) in slots.iter().enumerate() {
        let tokens = world.committed[slot] as usize;
        let want = decode::<B, A>(on, &p, &streams[i].part(&p, 0..tokens)).state;
        same(format!("state of sequence {i} after {tokens} tokens"), &world.state_of(slot), &want)?;
    }
    for free in [1, 4] {
        if !world.state_of(free).iter().all(|x| x.is_nan()) {
            return Err(format!("free slot {free} was written"));
        }
    }
    let hollow = seen.drafts == 0
        || seen.rejections == 0
        || seen.stores == 0
        || seen.wraps == 0
        || (flush_after > 0 && seen.kept == 0)
        || seen.longest_pending != flush_after + p.max_rows;
    if hollow { Err(format!("the run was hollow: {seen:?}")) } else { Ok(()) }
}

pub fn any_rounds_equal_decoding_at_every_flush_policy<B: Place>(on: &B::Queue) {
    for_types!(B, on, every_policy);
}

fn every_policy<B: Place, A: Activation>(on: &B::Queue) {
    for flush_after in [3, 0, 1, 2, 4, 5, 6].into_iter().step_by(stride(7)) {
        rounds::<B, A>(on, flush_after, 100 + flush_after as u64).unwrap();
    }
}

/// Prefill in random chunks, decode and verification in turn, all against plain decoding.
pub fn chunks<B: Place, A: Activation>(on: &B::Queue, seed: u64) -> Result<(), String> {
    let p = flushing(small::<B>(), 2);
    let mut rng = Rng::new(seed);
    let tokens = 230;
    let stream = Stream::<A>::random(&p, tokens, &mut rng);
    let decoded = decode::<B, A>(on, &p, &stream);
    let width = p.v_heads * p.v_dim;
    let mut world = World::<B, A>::new(on, p);
    let slot = 6;
    let mut at = 0;
    while at < tokens {
        // Every third step is a verification, so that prefills find something pending.
        let verifies = rng.below(3) == 0;
        let t = (1 + rng.below(if verifies { p.max_rows } else { 90 })).min(tokens - at);
        let launch = Launch::one(&p, slot, at, stream.part(&p, at..at + t));
        let out = if verifies { world.verify(&launch) } else { world.prefill(&launch) };
        same(format!("{t} rows from {at}"), &out, &decoded.out[at * width..][..t * width])?;
        if verifies {
            world.advance(slot, t);
        } else {
            world.advance_prefilled(slot, t);
        }
        at += t;
    }
    world.fold(&[slot as i32]);
    same("state", &world.state_of(slot), &decoded.state)?;
    same("faults", &world.faults(), &vec![0; p.slots + 1])
}

pub fn prefill_in_any_chunks_equals_decoding<B: Place>(on: &B::Queue) {
    for_types!(B, on, any_chunks);
}

fn any_chunks<B: Place, A: Activation>(on: &B::Queue) {
    for seed in (0..6).step_by(stride(6)) {
        chunks::<B, A>(on, seed).unwrap();
    }
}

pub fn several_prefills_of_a_launch_equal_those_alone<B: Place>(on: &B::Queue) {
    for_types!(B, on, several_prefills);
}

fn several_prefills<B: Place, A: Activation>(on: &B::Queue) {
    let p = flushing(small::<B>(), 2);
    let mut rng = Rng::new(7);
    let lengths = [70, 1, 9];
    let streams = lengths.map(|n| Stream::<A>::random(&p, n, &mut rng));
    let mut world = World::<B, A>::new(on, p);
    let mut launch = Launch::new();
    for (slot, stream) in [6, 0, 3].into_iter().zip(&streams) {
        launch.push(&p, slot, 0, stream);
        launch.push_padding(&p, 2);
    }
    let width = p.v_heads * p.v_dim;
    let out = world.prefill(&launch);
    let mut first = 0;
    for ((slot, stream), n) in [6, 0, 3].into_iter().zip(&streams).zip(lengths) {
        let alone = decode::<B, A>(on, &p, stream);
        same(slot, &out[first * width..][..n * width], &alone.out).unwrap();
        same(slot, &world.state_of(slot), &alone.state).unwrap();
        first += n + 2;
    }
}

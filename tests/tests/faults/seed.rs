use crate::book::request;
use engine::{Request, Sampling};
use kernels_core::bf16;
use std::collections::BTreeSet;
use workspace_tests::{HOSTILE, Served, engine, limits, streams};

fn sampled(seed: u64, length: usize, tokens: usize) -> Request {
    let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
    Request { sampling, ..request(200 + length as u64, length, tokens) }
}

/// B-053: a seed was ignored under speculation, or its noise depended on neighbours and on how long the
/// engine had run.
#[test]
fn a_seed_decides_whoever_is_there() {
    let wanted = sampled(42, 12, 24);
    let want =
        streams(&mut engine::<bf16>(HOSTILE, limits(1, 0), 0), std::slice::from_ref(&wanted)).remove(0);
    for k in [0, 3] {
        // After work of others, in a batch of each size, in each row of it.
        let mut engine = engine::<bf16>(HOSTILE, limits(8, 3), k);
        for (mates, row) in [(0, 0), (1, 0), (1, 1), (3, 2), (7, 0), (7, 7)] {
            let mut served = Served::default();
            let mut ids = Vec::new();
            for at in 0..=mates {
                // Two of the mates have the same seed; some are greedy.
                let mate =
                    if at % 3 == 2 { request(210, 5, 20) } else { sampled(42 + at as u64 % 2, 4 + at, 30) };
                ids.push(served.submit(&mut engine, if at == row { &wanted } else { &mate }));
            }
            served.drain(&mut engine);
            assert_eq!(served.of(ids[row]).ended(), want, "row {row} beside {mates}, k = {k}");
        }
    }
}

/// B-053: requests that should differ were all alike, or two tokens of a block shared a random number.
#[test]
fn seeds_differ_and_so_do_positions() {
    let mut engine = engine::<bf16>(HOSTILE, limits(8, 3), 3);
    let mut flat: Vec<_> = (0..64).map(|seed| sampled(seed, 4, 4)).collect();
    flat.iter_mut().for_each(|r| r.sampling.temperature = 50.0);
    let answers: BTreeSet<Vec<u32>> =
        streams(&mut engine, &flat).into_iter().map(|(tokens, _)| tokens).collect();
    assert!(answers.len() >= 63, "{} of 64 answers differ", answers.len());
    // On a flat distribution, equal noise at two positions would be an equal token.
    let long = Request { max_tokens: 200, ..flat[0].clone() };
    let (tokens, _) = streams(&mut engine, &[long]).remove(0);
    let repeats = tokens.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!(repeats < 6, "{repeats} of 199 tokens are those before them");
}

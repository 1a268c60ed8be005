//! Whatever stands in the device arrays, no operation leaves its operands or panics.

use crate::sim::{Inputs, Sim, rows};
use kernels_core::Cpu;
use kernels_spec::*;
use kernels_testkit::rng::Rng;
use proptest::prelude::*;

const SLOTS: usize = 3;
const POSITIONS: usize = 12;
const VOCAB: usize = 5;

/// Mostly sensible numbers, and now and then the worst.
fn word(rng: &mut Rng, sensible: usize) -> i32 {
    match rng.below(24) {
        0 => i32::MIN,
        1 => i32::MAX,
        2 => -1,
        3 => POSITIONS as i32,
        4 => rng.bits() as i32,
        _ => rng.below(sensible) as i32,
    }
}

fn words(rng: &mut Rng, count: usize, sensible: usize) -> Vec<i32> {
    (0..count).map(|_| word(rng, sensible)).collect()
}

/// A list of three sequences; its offsets ascend, usually.
fn list(rng: &mut Rng, capacity: usize) -> RowTable<Cpu> {
    let mut offsets = words(rng, 4, capacity + 1);
    if rng.below(4) > 0 {
        offsets.sort_unstable();
        offsets[0] = 0;
    }
    let mut start = words(rng, 3, POSITIONS);
    if rng.below(3) > 0 {
        // Up to the last position.
        (0..3)
            .for_each(|i| start[i] = POSITIONS as i32 - offsets[i + 1].wrapping_sub(offsets[i]).clamp(0, 9));
    }
    rows(&words(rng, 3, SLOTS), &start, &offsets)
}

fn fill(sim: &mut Sim, rng: &mut Rng) {
    let table = &mut sim.table;
    table.tokens = words(rng, SLOTS * POSITIONS, VOCAB);
    for counter in [&mut table.committed, &mut table.folded, &mut table.drafted] {
        *counter = words(rng, SLOTS, POSITIONS);
    }
    table.proposed = words(rng, SLOTS, 3);
    table.prompt = words(rng, SLOTS, 3);
    // Limits that promise more than there is tempt every operation to the edge.
    let sensible = [POSITIONS, i32::MAX as usize][rng.below(2)];
    (table.limit, table.length_limit) = (words(rng, SLOTS, sensible), words(rng, SLOTS, sensible));
    table.state = (0..SLOTS).map(|_| i32::from(rng.below(8) > 0)).collect();
    table.faults.fill(0);
    sim.eos = words(rng, sim.eos.len(), VOCAB);
    sim.stops = words(rng, sim.stops.len(), VOCAB);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
    #[test]
    fn nothing_panics(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let mut sim = Sim::new(SLOTS, POSITIONS, 4);
        for slot in 0..SLOTS {
            let temperature = slot as f32;
            let params = SamplingParams { temperature, frequency_penalty: 0.5, top_p: 0.9, ..SamplingParams::default() };
            sim.sampling.set(&(), slot, &params, VOCAB).unwrap();
        }
        let logits: Vec<f32> = (0..8 * VOCAB).map(|_| [f32::NAN, f32::INFINITY, -1.0, 2.0][rng.below(4)]).collect();
        let mut kept: Vec<f32> = (0..SLOTS * 3 * VOCAB).map(|_| [f32::NAN, 0.0, 0.5][rng.below(3)]).collect();
        for _ in 0..20 {
            fill(&mut sim, &mut rng);
            let (some, given, choice) = (words(&mut rng, 3, SLOTS), list(&mut rng, 8), words(&mut rng, 8, VOCAB));
            let other = list(&mut rng, 8);
            let mut accepted = words(&mut rng, 3, 5);
            let rows_of = |inputs: Inputs| inputs.rows;
            match rng.below(18) {
                0 => drop(sim.target_inputs(&some, &choice[..3])),
                1 => drop(sim.prefill_inputs(&some, &choice[..3], 8)),
                2 => drop(rows_of(sim.draft_inputs(&some, &given, 8, 4))),
                3 => drop(rows_of(sim.chain_inputs(&some, given))),
                4 => drop(sim.last_rows(&given, 8)),
                5 => drop(sim.accept(&given, &choice)),
                6 => sim.stop(&given, 8, &mut accepted),
                7 => sim.advance(Pass::Decode, &given, 8, &mut accepted),
                8 => sim.advance(Pass::Prefill, &given, 8, &mut accepted),
                9 => drop(sim.emit(&given, 8, &accepted)),
                10 => sim.propose(&given, 8, Some(&choice[..3])),
                11 => drop(sim.sample(&given, &logits, VOCAB)),
                12 => drop(sim.draw_draft(&given, &logits, VOCAB, &mut kept)),
                13 => drop(sim.rejection(&given, &logits, VOCAB, &kept)),
                14 => drop(sim.carry(&logits[..8], &logits[..6], 1, &given, &other, 8)),
                15 => drop(sim.oracle(&some, &choice[..3], &choice[3..3 + some.len() % 5])),
                16 => sim.keep_hidden(&logits[..8], &mut kept[..6], 1, &given),
                _ => drop(sim.take_last(&logits[..8], 1, &given)),
            }
        }
    }
}

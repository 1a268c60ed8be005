//! Distributions of every kind of token that a round emits: accepted drafts, corrections, the bonus; under
//! the coupled rule and under rejection. By chi-squared on fixed seeds.

use crate::{
    chances::{DRAWS, assert_drawn_from, keep, softmax},
    sim::{Sim, rows},
};
use kernels_spec::*;

/// What the rounds of one pair of distributions emitted, by kind.
struct Emitted {
    /// The first token of each round, whatever its kind.
    first: Vec<usize>,
    /// Accepted drafts (the first of each round).
    accepted: Vec<usize>,
    /// Corrections of the first draft.
    corrected: Vec<usize>,
    /// The token behind an accepted first draft.
    second: Vec<usize>,
    /// The token behind a whole accepted chain.
    bonus: Vec<usize>,
    rate: f64,
}

const SEQUENCES: usize = 100;
const CHAIN: usize = 2;

/// Rounds of drafts from one distribution and a target with another, the same everywhere.
fn rounds(rejection: bool, params: &SamplingParams, p: &[f32], q: &[f32]) -> Emitted {
    rounds_by_row(rejection, params, &[p; CHAIN + 1], &[q; CHAIN])
}

/// Rounds in which each row has its own two distributions.
fn rounds_by_row(
    rejection: bool,
    params: &SamplingParams,
    p: &[&[f32]; CHAIN + 1],
    q: &[&[f32]; CHAIN],
) -> Emitted {
    let vocab = p[0].len();
    let positions = DRAWS / SEQUENCES + CHAIN + 2;
    let mut sim = Sim::new(SEQUENCES, positions, CHAIN + 1);
    for slot in 0..SEQUENCES {
        let seed = 0x5eed_0000 + slot as u64 * 0x1_0000_0001;
        sim.sampling.set(&(), slot, &SamplingParams { seed, ..params.clone() }, vocab).unwrap();
        sim.table.admit(&(), slot, &[0], positions, positions).unwrap();
    }
    let slots: Vec<i32> = (0..SEQUENCES as i32).collect();
    let mut kept = vec![f32::NAN; SEQUENCES * CHAIN * vocab];
    let empty = || vec![0; vocab];
    let mut out = Emitted {
        first: empty(),
        accepted: empty(),
        corrected: empty(),
        second: empty(),
        bonus: empty(),
        rate: 0.0,
    };
    let draft_logits = q.map(|q| q.repeat(SEQUENCES));
    let target_logits = p.concat().repeat(SEQUENCES);
    for start in 0..DRAWS / SEQUENCES {
        for step in 0..CHAIN {
            let at = rows(&slots, &[(start + step) as i32; SEQUENCES], &steps(1));
            let drafts = if rejection {
                sim.draw_draft(&at, &draft_logits[step], vocab, &mut kept)
            } else {
                sim.sample(&at, &draft_logits[step], vocab)
            };
            for (slot, draft) in drafts.into_iter().enumerate() {
                sim.table.tokens[slot * positions + start + step + 1] = draft;
            }
        }
        let at = rows(&slots, &[start as i32; SEQUENCES], &steps(CHAIN + 1));
        let accepted = if rejection {
            sim.rejection(&at, &target_logits, vocab, &kept)
        } else {
            let choice = sim.sample(&at, &target_logits, vocab);
            sim.accept(&at, &choice)
        };
        for (slot, a) in accepted.into_iter().enumerate() {
            let new = &sim.tokens(slot)[start + 1..][..a as usize];
            out.first[new[0] as usize] += 1;
            (if a > 1 { &mut out.accepted } else { &mut out.corrected })[new[0] as usize] += 1;
            if a > 1 {
                out.second[new[1] as usize] += 1;
            }
            if a as usize == CHAIN + 1 {
                out.bonus[new[CHAIN] as usize] += 1;
            }
        }
    }
    assert!(sim.table.faults.iter().all(|f| *f == 0));
    out.rate = out.accepted.iter().sum::<usize>() as f64 / DRAWS as f64;
    out
}

fn steps(rows: usize) -> Vec<i32> {
    (0..=SEQUENCES).map(|i| (i * rows) as i32).collect()
}

const TARGET: [f32; 8] = [0.3, -1.0, 2.0, 1.1, 0.0, 1.9, 0.7, 1.4];
const DRAFT: [f32; 8] = [1.0, -0.5, 1.2, 1.5, -0.6, 0.2, 0.9, 2.0];

fn unit() -> SamplingParams {
    SamplingParams { temperature: 1.0, ..SamplingParams::default() }
}

fn total_variation(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0
}

#[test]
fn rejection_emits_the_target_distribution() {
    for (what, params, p, q) in [
        ("plain", unit(), TARGET, DRAFT),
        ("the same", unit(), TARGET, TARGET),
        ("hot", SamplingParams { temperature: 1.7, ..unit() }, TARGET, DRAFT),
        ("filtered", SamplingParams { top_k: 5, top_p: 0.9, min_p: 0.05, ..unit() }, TARGET, DRAFT),
    ] {
        // The filters of these cases, in f64: five ids, then 0.9 of them; min-p takes none of those.
        let of = |l: &[f32]| {
            let p = softmax(l, f64::from(params.temperature));
            let p = if params.top_k > 0 { keep(&p, |n, _| n == 5) } else { p };
            if params.top_p < 1.0 { keep(&p, |_, mass| mass >= 0.9) } else { p }
        };
        let (p64, q64) = (of(&p), of(&q));
        let got = rounds(true, &params, &p, &q);
        assert_drawn_from(&format!("{what}: any first token"), &got.first, &p64);
        assert_drawn_from(&format!("{what}: the token behind an accepted draft"), &got.second, &p64);
        assert_drawn_from(&format!("{what}: the bonus"), &got.bonus, &p64);
        let both: Vec<f64> = p64.iter().zip(&q64).map(|(p, q)| p.min(*q)).collect();
        assert_drawn_from(&format!("{what}: accepted drafts"), &got.accepted, &both);
        // Accepted with 1 - TV, the most there is; the deviation of a rate is below 1 / (2 sqrt(draws)).
        let rate = 1.0 - total_variation(&p64, &q64);
        let bound = 4.0 / (2.0 * (DRAWS as f64).sqrt());
        assert!((got.rate - rate).abs() < bound, "{what}: accepted {}, not {rate}", got.rate);
        if what == "the same" {
            // u * q may round up to p: at most once in 2^24 draws, and never in these.
            assert_eq!(got.rate, 1.0);
        } else {
            let rest: Vec<f64> = p64.iter().zip(&q64).map(|(p, q)| (p - q).max(0.0)).collect();
            assert_drawn_from(&format!("{what}: corrections"), &got.corrected, &rest);
        }
    }
}

#[test]
fn rejection_at_the_extremes() {
    let only = |id: usize| {
        let mut l = [f32::NEG_INFINITY; 8];
        l[id] = 0.0;
        l
    };
    // A draft that knows one id: accepted as often as the target wants it.
    let p64 = softmax(&TARGET, 1.0);
    let got = rounds(true, &unit(), &TARGET, &only(5));
    assert_drawn_from("one-hot draft", &got.first, &p64);
    assert!((got.rate - p64[5]).abs() < 4.0 / (2.0 * (DRAWS as f64).sqrt()));
    // Nothing in common: never accepted, drawn from the target as it is.
    let mut left = TARGET;
    left[..4].fill(f32::NEG_INFINITY);
    let mut right = TARGET;
    right[4..].fill(f32::NEG_INFINITY);
    let got = rounds(true, &unit(), &left, &right);
    assert_eq!(got.rate, 0.0);
    assert_drawn_from("disjoint", &got.first, &softmax(&left, 1.0));
    // Greedy on both sides.
    let greedy = SamplingParams::default();
    let got = rounds(true, &greedy, &TARGET, &DRAFT);
    assert_eq!((got.rate, got.first[2]), (0.0, DRAWS));
    let got = rounds(true, &greedy, &TARGET, &only(2));
    assert_eq!((got.rate, got.first[2]), (1.0, DRAWS));
}

#[test]
fn coupled_draws_agree_as_often_as_promised() {
    for (what, params, p, q) in [
        ("plain", unit(), TARGET, DRAFT),
        ("cool", SamplingParams { temperature: 0.6, ..unit() }, TARGET, DRAFT),
        ("the same", unit(), TARGET, TARGET),
    ] {
        let of = |l: &[f32]| softmax(l, f64::from(params.temperature));
        let (p64, q64) = (of(&p), of(&q));
        let got = rounds(false, &params, &p, &q);
        assert_drawn_from(&format!("{what}: any first token"), &got.first, &p64);
        assert_drawn_from(&format!("{what}: the token behind an accepted draft"), &got.second, &p64);
        assert_drawn_from(&format!("{what}: the bonus"), &got.bonus, &p64);
        // Both pick x iff its exponential is the least of the others', scaled by the larger of the two
        // ratios: 1 / sum over y of max(p_y / p_x, q_y / q_x).
        let both: Vec<f64> = (0..8)
            .map(|x| 1.0 / (0..8).map(|y| (p64[y] / p64[x]).max(q64[y] / q64[x])).sum::<f64>())
            .collect();
        assert_drawn_from(&format!("{what}: accepted drafts"), &got.accepted, &both);
        let bound = 4.0 / (2.0 * (DRAWS as f64).sqrt());
        let rate: f64 = both.iter().sum();
        assert!((got.rate - rate).abs() < bound, "{what}: accepted {}, not {rate}", got.rate);
        let tv = total_variation(&p64, &q64);
        assert!(got.rate > (1.0 - tv) / (1.0 + tv) - bound, "{what}: accepted {} at TV {tv}", got.rate);
        if what == "the same" {
            assert_eq!(got.rate, 1.0);
        } else {
            let rest: Vec<f64> = p64.iter().zip(&both).map(|(p, both)| p - both).collect();
            assert_drawn_from(&format!("{what}: corrections"), &got.corrected, &rest);
        }
    }
}

/// A reported case, its figures computed by hand: with one rule or the other in place of this one (draw again
/// from p, or accept whatever is equal) chi-squared is above 10,000.
#[test]
fn a_chain_whose_rows_differ() {
    let ln = |p: [f32; 8]| p.map(f32::ln);
    let p = [0.30, 0.25, 0.15, 0.10, 0.08, 0.06, 0.04, 0.02];
    let q = [0.05, 0.40, 0.05, 0.20, 0.10, 0.10, 0.05, 0.05];
    let last = [0.02, 0.03, 0.05, 0.10, 0.15, 0.20, 0.20, 0.25];
    // At 0.7 the logits are scaled, so that the distributions are those again.
    for temperature in [1.0f32, 0.7] {
        let scaled = |p: [f32; 8]| ln(p).map(|l| l * temperature);
        let params = SamplingParams { temperature, ..unit() };
        for rejection in [true, false] {
            let what = format!("rejection {rejection}, temperature {temperature}");
            let (rows, drafts) = ([scaled(p), scaled(q), scaled(last)], [scaled(q), scaled(p)]);
            let got = rounds_by_row(
                rejection,
                &params,
                &rows.each_ref().map(|r| &r[..]),
                &drafts.each_ref().map(|r| &r[..]),
            );
            let wide = |p: [f32; 8]| p.map(f64::from);
            assert_drawn_from(&format!("{what}: row 0"), &got.first, &wide(p));
            assert_drawn_from(&format!("{what}: row 1"), &got.second, &wide(q));
            assert_drawn_from(&format!("{what}: row 2"), &got.bonus, &wide(last));
            let bound = 4.0 / (2.0 * (DRAWS as f64).sqrt());
            let tv = total_variation(&wide(p), &wide(q));
            assert!((tv - 0.35).abs() < 1e-6);
            if rejection {
                assert!((got.rate - 0.65).abs() < bound, "{what}: accepted {}", got.rate);
            } else {
                assert!(got.rate > (1.0 - tv) / (1.0 + tv) - bound, "{what}: accepted {}", got.rate);
            }
        }
    }
}

/// What a filter leaves of a distribution.
type Filter<'a> = &'a dyn Fn(Vec<f64>) -> Vec<f64>;

#[test]
fn filters_reach_every_row_and_kind() {
    // Ids that the target's filter leaves, by filter; the draft has filters of its own from the same rule.
    for temperature in [0.6, 1.3] {
        let base = SamplingParams { temperature, ..unit() };
        let of =
            |l: &[f32], filter: &dyn Fn(Vec<f64>) -> Vec<f64>| filter(softmax(l, f64::from(temperature)));
        let min_p = |p: Vec<f64>| {
            let best = p.iter().copied().fold(0.0, f64::max);
            let kept: Vec<f64> = p.iter().map(|x| if *x >= 0.2 * best { *x } else { 0.0 }).collect();
            let mass: f64 = kept.iter().sum();
            kept.iter().map(|x| x / mass).collect()
        };
        let top_k = |p: Vec<f64>| keep(&p, |n, _| n == 3);
        let top_p = |p: Vec<f64>| keep(&p, |_, mass| mass >= 0.7);
        let all = |p: Vec<f64>| min_p(top_p(top_k(p)));
        let cases: [(&str, SamplingParams, Filter<'_>); 4] = [
            ("top-k", SamplingParams { top_k: 3, ..base.clone() }, &top_k),
            ("top-p", SamplingParams { top_p: 0.7, ..base.clone() }, &top_p),
            ("min-p", SamplingParams { min_p: 0.2, ..base.clone() }, &min_p),
            ("all", SamplingParams { top_k: 3, top_p: 0.7, min_p: 0.2, ..base.clone() }, &all),
        ];
        for (name, params, filter) in cases {
            let (p64, q64) = (of(&TARGET, filter), of(&DRAFT, filter));
            for rejection in [true, false] {
                let what = format!("{name}, temperature {temperature}, rejection {rejection}");
                let got = rounds(rejection, &params, &TARGET, &DRAFT);
                assert_drawn_from(&format!("{what}: any first token"), &got.first, &p64);
                for (kind, counts) in [
                    ("accepted", &got.accepted),
                    ("corrected", &got.corrected),
                    ("behind an accepted draft", &got.second),
                    ("bonus", &got.bonus),
                ] {
                    for (id, n) in counts.iter().enumerate() {
                        assert!(*n == 0 || p64[id] > 0.0, "{what}: {n} times id {id}, {kind}");
                        let drafted = kind != "accepted" || q64[id] > 0.0;
                        assert!(*n == 0 || drafted, "{what}: accepted id {id}, which is never drafted");
                    }
                }
                // Filters may leave the two without an id in common: then nothing is ever accepted.
                let common = p64.iter().zip(&q64).any(|(p, q)| *p > 0.0 && *q > 0.0);
                assert_eq!(got.accepted.iter().any(|n| *n > 0), common, "{what}");
                assert!(got.corrected.iter().sum::<usize>() > 100, "{what}");
                if got.bonus.iter().sum::<usize>() > 400 {
                    assert_drawn_from(&format!("{what}: the bonus"), &got.bonus, &p64);
                }
            }
        }
    }
}

#[test]
fn rejection_without_drafts_is_plain_sampling() {
    let mut sim = Sim::new(1, 64, 4);
    let params = SamplingParams { top_p: 0.9, seed: 12, ..unit() };
    sim.sampling.set(&(), 0, &params, 8).unwrap();
    sim.table.admit(&(), 0, &[0], 64, 64).unwrap();
    let kept = [f32::NAN; 3 * 8];
    for start in 0..60 {
        let list = rows(&[0], &[start], &[0, 1]);
        let want = sim.sample(&list, &TARGET, 8)[0];
        assert_eq!(sim.rejection(&list, &TARGET, 8, &kept), [1]);
        assert_eq!(sim.tokens(0)[start as usize + 1], want);
    }
}

#[test]
fn rejection_faults_where_nothing_can_be_drawn() {
    let mut sim = Sim::new(1, 16, 4);
    sim.sampling.set(&(), 0, &unit(), 2).unwrap();
    sim.table.admit(&(), 0, &[0], 16, 16).unwrap();
    let list = rows(&[0], &[0], &[0, 1]);
    assert_eq!(sim.rejection(&list, &[f32::NAN, f32::NAN], 2, &[0.0; 6]), [0]);
    let fault = kernels_core::slots::Fault::decode(sim.table.faults[0]).unwrap();
    assert_eq!(fault.to_string(), "slot 0: no finite logit to choose from (value 1)");
}

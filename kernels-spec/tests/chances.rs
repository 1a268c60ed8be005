//! Distributions, by chi-squared on fixed seeds.

use crate::sim::{Sim, rows};
use kernels_spec::*;

/// Draws per test.
const DRAWS: usize = 40_000;

/// The critical value of chi-squared at `df` degrees of freedom that chance exceeds once in a thousand
/// (Wilson and Hilferty's approximation; within 2 % from 3 degrees on: 16.27 for 3, 45.31 for 20).
fn critical(df: usize) -> f64 {
    let n = df as f64;
    let t = 2.0 / (9.0 * n);
    n * (1.0 - t + 3.0902 * t.sqrt()).powi(3)
}

/// Pearson's statistic of `counts` against `chances` (any scale), and its degrees of freedom. Ids without
/// a chance must not occur; those expected less than five times go into one class.
fn chi_squared(counts: &[usize], chances: &[f64]) -> (f64, usize) {
    assert_eq!(counts.len(), chances.len());
    let (draws, scale) = (counts.iter().sum::<usize>() as f64, chances.iter().sum::<f64>());
    let (mut statistic, mut classes, mut rare) = (0.0, 0, (0.0, 0.0));
    for (id, (&count, &chance)) in counts.iter().zip(chances).enumerate() {
        assert!(chance > 0.0 || count == 0, "{count} times id {id}, which has no chance");
        let expected = draws * chance / scale;
        if expected >= 5.0 {
            statistic += (count as f64 - expected).powi(2) / expected;
            classes += 1;
        } else {
            rare = (rare.0 + count as f64, rare.1 + expected);
        }
    }
    if rare.1 >= 5.0 {
        statistic += (rare.0 - rare.1).powi(2) / rare.1;
        classes += 1;
    }
    assert!(classes > 1, "a test of nothing");
    (statistic, classes - 1)
}

#[track_caller]
fn assert_drawn_from(what: &str, counts: &[usize], chances: &[f64]) {
    let (statistic, df) = chi_squared(counts, chances);
    assert!(
        statistic < critical(df),
        "{what}: chi-squared {statistic:.1} with {df} degrees of freedom, critical {:.1}",
        critical(df)
    );
}

fn count(vocab: usize, ids: impl IntoIterator<Item = i32>) -> Vec<usize> {
    let mut counts = vec![0; vocab];
    ids.into_iter().for_each(|id| counts[id as usize] += 1);
    counts
}

/// `DRAWS` draws from one distribution: as many rows of one sequence.
fn draws(params: &SamplingParams, logits: &[f32]) -> Vec<i32> {
    const ROWS: usize = 2000;
    let vocab = logits.len();
    let mut sim = Sim::new(1, DRAWS, 1);
    sim.sampling.set(&(), 0, params, vocab).unwrap();
    let block = logits.repeat(ROWS);
    let at = |start: usize| rows(&[0], &[start as i32], &[0, ROWS as i32]);
    (0..DRAWS / ROWS).flat_map(|i| sim.sample(&at(i * ROWS), &block, vocab)).collect()
}

const LOGITS: [f32; 12] = [0.3, -1.0, 2.0, 1.1, 0.0, 1.9, -3.0, 0.7, 1.4, -0.4, 2.4, -7.0];

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let e: Vec<f64> = logits.iter().map(|l| (f64::from(*l) / temperature).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|x| x / sum).collect()
}

/// Keeps the ids of the likeliest run that `enough(n, mass of n)` accepts first.
fn keep(p: &[f64], enough: impl Fn(usize, f64) -> bool) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
    let (mut kept, mut mass) = (vec![0.0; p.len()], 0.0);
    for (n, &id) in order.iter().enumerate() {
        kept[id] = p[id];
        mass += p[id];
        if enough(n + 1, mass) {
            break;
        }
    }
    kept.iter().map(|x| x / mass).collect()
}

#[test]
fn every_filter_draws_what_it_leaves() {
    let base = SamplingParams { temperature: 1.0, seed: 0xfeed_0000_beef, ..SamplingParams::default() };
    let p = softmax(&LOGITS, 1.0);
    let top_k = keep(&p, |n, _| n == 4);
    let cases = [
        ("plain", base.clone(), p.clone()),
        ("temperature", SamplingParams { temperature: 0.6, ..base.clone() }, softmax(&LOGITS, 0.6)),
        ("hot", SamplingParams { temperature: 2.5, ..base.clone() }, softmax(&LOGITS, 2.5)),
        ("top-k", SamplingParams { top_k: 4, ..base.clone() }, top_k.clone()),
        ("top-p", SamplingParams { top_p: 0.8, ..base.clone() }, keep(&p, |_, mass| mass >= 0.8)),
        // 0.8 of what top-k left, not of everything: three ids, not four.
        (
            "top-k, top-p",
            SamplingParams { top_k: 4, top_p: 0.8, ..base.clone() },
            keep(&top_k, |_, mass| mass >= 0.8),
        ),
        (
            "min-p",
            SamplingParams { min_p: 0.2, ..base.clone() },
            p.iter().map(|x| if *x >= 0.2 * p[10] { *x } else { 0.0 }).collect(),
        ),
        ("bias", SamplingParams { bias: vec![(6, 5.0), (10, f32::NEG_INFINITY)], ..base.clone() }, {
            let mut l = LOGITS;
            (l[6], l[10]) = (l[6] + 5.0, f32::NEG_INFINITY);
            softmax(&l, 1.0)
        }),
        // The answer of the rows drawn in is all zeros: id 0 is penalised once in each.
        ("presence", SamplingParams { presence_penalty: 1.5, ..base.clone() }, {
            let mut l = LOGITS;
            l[0] -= 1.5;
            softmax(&l, 1.0)
        }),
        ("repetition", SamplingParams { repetition_penalty: 3.0, ..base }, {
            let mut l = LOGITS;
            l[0] /= 3.0;
            softmax(&l, 1.0)
        }),
    ];
    for (what, params, chances) in cases {
        let counts = count(LOGITS.len(), draws(&params, &LOGITS));
        assert_drawn_from(what, &counts, &chances);
    }
}

#[test]
fn a_large_vocabulary_is_drawn_evenly() {
    // Every id once in 1500: the noise of distant ids, blocks and lanes must not be related.
    let logits = vec![0.25; 1500];
    let params = SamplingParams { temperature: 1.0, seed: 4, ..SamplingParams::default() };
    let counts = count(1500, draws(&params, &logits));
    assert_drawn_from("uniform", &counts, &vec![1.0; 1500]);
}

#[test]
fn the_test_itself_sees_small_errors() {
    let params = SamplingParams { temperature: 1.0, seed: 6, ..SamplingParams::default() };
    let counts = count(LOGITS.len(), draws(&params, &LOGITS));
    let (right, df) = chi_squared(&counts, &softmax(&LOGITS, 1.0));
    let (wrong, _) = chi_squared(&counts, &softmax(&LOGITS, 0.95));
    assert!(right < critical(df) && critical(df) < wrong, "{right} {wrong}");
    // The table's values.
    for (df, want) in [(3, 16.27), (10, 29.59), (20, 45.31), (100, 149.4)] {
        assert!((critical(df) / want - 1.0).abs() < 0.02, "{df}: {}", critical(df));
    }
}

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
    let vocab = p.len();
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
    let (draft_logits, target_logits) = (q.repeat(SEQUENCES), p.repeat(SEQUENCES * (CHAIN + 1)));
    for start in 0..DRAWS / SEQUENCES {
        for step in 0..CHAIN {
            let at = rows(&slots, &[(start + step) as i32; SEQUENCES], &steps(1));
            let drafts = if rejection {
                sim.draw_draft(&at, &draft_logits, vocab, &mut kept)
            } else {
                sim.sample(&at, &draft_logits, vocab)
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

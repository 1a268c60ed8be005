//! Distributions of single draws, by chi-squared on fixed seeds.

use crate::sim::{Sim, rows};
use kernels_spec::*;

/// Draws per test.
pub(crate) const DRAWS: usize = 40_000;

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
pub(crate) fn assert_drawn_from(what: &str, counts: &[usize], chances: &[f64]) {
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

pub(crate) fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let e: Vec<f64> = logits.iter().map(|l| (f64::from(*l) / temperature).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|x| x / sum).collect()
}

/// Keeps the ids of the likeliest run that `enough(n, mass of n)` accepts first.
pub(crate) fn keep(p: &[f64], enough: impl Fn(usize, f64) -> bool) -> Vec<f64> {
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
        ("repetition", SamplingParams { repetition_penalty: 3.0, ..base.clone() }, {
            let mut l = LOGITS;
            l[0] /= 3.0;
            softmax(&l, 1.0)
        }),
        // All at once, in the order that is promised: bias last among the logits, then k, p and min-p.
        (
            "all",
            SamplingParams {
                temperature: 0.8,
                top_k: 7,
                top_p: 0.9,
                min_p: 0.1,
                presence_penalty: -2.0,
                bias: vec![(9, 2.0)],
                ..base
            },
            {
                let mut l = LOGITS;
                l[0] += 2.0;
                l[9] += 2.0;
                let p = keep(&softmax(&l, 0.8), |n, _| n == 7);
                let p = keep(&p, |_, mass| mass >= 0.9);
                let best = p.iter().copied().fold(0.0, f64::max);
                p.iter().map(|x| if *x >= 0.1 * best { *x } else { 0.0 }).collect()
            },
        ),
    ];
    for (what, params, chances) in cases {
        let counts = count(LOGITS.len(), draws(&params, &LOGITS));
        assert_drawn_from(what, &counts, &chances);
    }
}

#[test]
fn frequency_draws_what_the_count_leaves() {
    // 200 answers that hold id 0 five times and id 4 twice; one row of each is drawn from.
    const ANSWERS: usize = 200;
    let answer = [0, 4, 0, 0, 4, 0, 0];
    let mut chances = LOGITS;
    chances[0] -= 5.0 * 0.3;
    chances[4] -= 2.0 * 0.3;
    let params = SamplingParams { temperature: 1.0, frequency_penalty: 0.3, ..SamplingParams::default() };
    let mut counts = vec![0; LOGITS.len()];
    let mut sim = Sim::new(ANSWERS, 8, 1);
    for slot in 0..ANSWERS {
        sim.table.tokens[slot * 8 + 1..(slot + 1) * 8].copy_from_slice(&answer);
        sim.table.tokens[slot * 8] = 4;
        sim.table.prompt[slot] = 1;
    }
    let slots: Vec<i32> = (0..ANSWERS as i32).collect();
    let at = rows(&slots, &[7; ANSWERS], &(0..=ANSWERS as i32).collect::<Vec<_>>());
    let block = LOGITS.repeat(ANSWERS);
    for round in 0..DRAWS / ANSWERS {
        for slot in 0..ANSWERS {
            let params = SamplingParams { seed: (round * ANSWERS + slot) as u64, ..params.clone() };
            sim.sampling.set(&(), slot, &params, LOGITS.len()).unwrap();
        }
        sim.sample(&at, &block, LOGITS.len()).into_iter().for_each(|id| counts[id as usize] += 1);
    }
    assert_drawn_from("frequency", &counts, &softmax(&chances, 1.0));
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

//! Engines that only have a cost and an acceptance, and what a policy makes of them.

use engine::policy::{Observed, Policy};
use std::{collections::VecDeque, time::Duration};

/// Acceptance of a draft, given that all before it were accepted, as rounds go by.
#[derive(Clone, Debug)]
pub(crate) enum Text {
    /// Always the same.
    Constant(f64),
    /// One, and from some round on another.
    Step(f64, f64, usize),
    /// Two in turn, each for so many rounds on average.
    Bursts(f64, f64, usize),
}

/// Something to decode with.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) max_drafts: usize,
    /// `costs[bucket][k]`, seconds.
    pub(crate) costs: Vec<Vec<f64>>,
    /// The sequences of the rounds, each for so many, over and over.
    pub(crate) batches: Vec<(usize, usize)>,
    pub(crate) text: Text,
    /// Acceptance falls by this factor with each position.
    pub(crate) decay: f64,
    /// The second half of the sequences accept by this factor less.
    pub(crate) spread: f64,
    /// Rounds that are enqueued before a round is reported.
    pub(crate) ahead: usize,
    /// Relative error of a measurement.
    pub(crate) noise: f64,
    /// Share of measurements that are three times too long.
    pub(crate) hiccups: f64,
    /// The first run of every graph takes so many times as long.
    pub(crate) first: f64,
    /// Share of rounds that are not reported, and as much again reported without a time.
    pub(crate) unreported: f64,
    /// What every cost grows by over the run, relative.
    pub(crate) drift: f64,
    /// Catching up after plain rounds, in plain rounds.
    pub(crate) resume: f64,
    /// From some round on, every bucket has these costs.
    pub(crate) later: Option<(usize, Vec<f64>)>,
    pub(crate) rounds: usize,
    pub(crate) seed: u64,
}

/// What happened in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) k: usize,
    /// Expected tokens of a sequence.
    pub(crate) tokens: f64,
    /// Tokens of a sequence.
    pub(crate) emitted: f64,
    /// Seconds without noise.
    pub(crate) time: f64,
    pub(crate) plain: f64,
    /// The highest tokens per time of any fixed k in this very round, in units of plain.
    pub(crate) best: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) rounds: Vec<Round>,
    /// By k: tokens per time against plain, had all rounds been of that k.
    pub(crate) fixed: Vec<f64>,
}

impl Run {
    /// Tokens per time against what plain rounds would have given, in expectation over tokens and without
    /// noise of times: what is left is the policy's doing.
    pub(crate) fn rate(&self, rounds: std::ops::Range<usize>) -> f64 {
        let rounds = &self.rounds[rounds];
        rounds.iter().map(|r| r.tokens * r.plain).sum::<f64>() / rounds.iter().map(|r| r.time).sum::<f64>()
    }

    /// The same with the tokens that were emitted.
    pub(crate) fn emitted(&self) -> f64 {
        let rounds = &self.rounds;
        rounds.iter().map(|r| r.emitted * r.plain).sum::<f64>() / rounds.iter().map(|r| r.time).sum::<f64>()
    }

    /// Of these rounds as they were, the most that was to be had.
    pub(crate) fn best(&self, rounds: std::ops::Range<usize>) -> f64 {
        let rounds = &self.rounds[rounds];
        let time: f64 = rounds.iter().map(|r| r.plain).sum();
        time / rounds.iter().map(|r| r.plain / r.best).sum::<f64>()
    }

    pub(crate) fn total(&self) -> f64 {
        self.rate(0..self.rounds.len())
    }

    pub(crate) fn best_fixed(&self) -> f64 {
        self.fixed.iter().copied().fold(0.0, f64::max)
    }
}

struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }
}

struct Report {
    sequences: usize,
    k: usize,
    time: Option<Duration>,
    reached: Vec<usize>,
    accepted: Vec<usize>,
}

fn bucket(sequences: usize) -> usize {
    sequences.next_power_of_two().trailing_zeros() as usize
}

impl World {
    /// Acceptance of a sequence at a position, where the first of a good sequence has `p`.
    fn acceptance(&self, p: f64, sequence: usize, sequences: usize, position: usize) -> f64 {
        let spread = if 2 * sequence >= sequences && sequences > 1 { self.spread } else { 1.0 };
        p * spread * self.decay.powi(position as i32)
    }

    /// Expected tokens of a sequence of this batch, by k.
    fn tokens(&self, p: f64, sequences: usize) -> Vec<f64> {
        let mut tokens = vec![0.0; self.max_drafts + 1];
        for s in 0..sequences {
            let mut chain = 1.0;
            let mut sum = 1.0;
            for (k, t) in tokens.iter_mut().enumerate() {
                if k > 0 {
                    chain *= self.acceptance(p, s, sequences, k - 1);
                    sum += chain;
                }
                *t += sum / sequences as f64;
            }
        }
        tokens
    }

    /// Has a policy decode.
    pub(crate) fn run(&self) -> Run {
        let mut policy = Policy::new(self.max_drafts);
        let mut noise = Random(self.seed);
        let mut text = Random(self.seed ^ 0x5eed);
        let mut seen = vec![vec![false; self.max_drafts + 1]; self.costs.len()];
        let mut queue = VecDeque::new();
        let mut rounds = vec![];
        let mut fixed = vec![(0.0, 0.0); self.max_drafts + 1];
        let batches: Vec<usize> = self
            .batches
            .iter()
            .flat_map(|(sequences, rounds)| std::iter::repeat_n(*sequences, *rounds))
            .collect();
        let mut high = true;
        let mut before = 0;
        for round in 0..self.rounds {
            let sequences = batches[round % batches.len()];
            let bucket = bucket(sequences);
            let p = match self.text {
                Text::Constant(p) => p,
                Text::Step(a, b, at) => {
                    if round < at {
                        a
                    } else {
                        b
                    }
                }
                Text::Bursts(a, b, mean) => {
                    high ^= text.chance(1.0 / mean as f64);
                    if high { a } else { b }
                }
            };
            let k = policy.choose(sequences);
            assert!(k <= self.max_drafts, "{k} drafts of {}", self.max_drafts);
            let drift = 1.0 + self.drift * round as f64 / self.rounds as f64;
            let later = self.later.as_ref().filter(|later| round >= later.0);
            let costs = later.map_or(&self.costs[bucket], |later| &later.1);
            let costs: Vec<f64> = costs.iter().map(|c| c * drift).collect();
            let resume = if k > 0 && before == 0 { self.resume * costs[0] } else { 0.0 };
            before = k;
            let tokens = self.tokens(p, sequences);
            for (i, f) in fixed.iter_mut().enumerate() {
                f.0 += tokens[i] * costs[0];
                f.1 += costs[i];
            }
            let best = (0..=self.max_drafts).map(|k| tokens[k] * costs[0] / costs[k]).fold(0.0, f64::max);
            let time = costs[k] + resume;
            let mut taken = time * (1.0 + self.noise * (2.0 * noise.unit() - 1.0));
            if noise.chance(self.hiccups) {
                taken *= 3.0;
            }
            if !std::mem::replace(&mut seen[bucket][k], true) {
                taken *= self.first;
            }
            let (mut reached, mut accepted) = (vec![0; k], vec![0; k]);
            for s in 0..sequences {
                for i in 0..k {
                    reached[i] += 1;
                    if !text.chance(self.acceptance(p, s, sequences, i)) {
                        break;
                    }
                    accepted[i] += 1;
                }
            }
            let emitted = 1.0 + accepted.iter().sum::<usize>() as f64 / sequences as f64;
            rounds.push(Round { k, tokens: tokens[k], emitted, time, plain: costs[0], best });
            let time = (!noise.chance(self.unreported)).then(|| Duration::from_secs_f64(taken));
            let report = Report { sequences, k, time, reached, accepted };
            queue.push_back((!noise.chance(self.unreported)).then_some(report));
            if queue.len() >= self.ahead
                && let Some(r) = queue.pop_front().flatten()
            {
                policy.observe(&Observed {
                    sequences: r.sequences,
                    drafts: r.k,
                    time: r.time,
                    reached: &r.reached,
                    accepted: &r.accepted,
                });
            }
        }
        Run { rounds, fixed: fixed.into_iter().map(|(tokens, time)| tokens / time).collect() }
    }
}

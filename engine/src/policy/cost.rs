//! What rounds cost, from what they took.

use std::collections::VecDeque;

/// Samples that a cost is taken from: six hiccups among them do not move it.
const SAMPLES: usize = 9;
/// A k that seems to cost this many times what the others let expect is measured once more: it may have
/// been a hiccup, or the first run of a graph.
const DOUBT: f64 = 1.25;
/// And once more still if it is the first draft, on which all depends, but not beyond this.
const ABSURD: f64 = 4.0;
/// Samples that are believed whatever they say.
const ENOUGH: usize = 3;
/// Cost of one draft, in plain rounds, where nothing like it has been measured.
const DRAFT: f64 = 0.1;
/// Rounds after which samples are no longer neighbours in time.
const APART: u64 = 16;

/// Times of rounds, by bucket and drafts.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    buckets: Vec<Bucket>,
    max_drafts: usize,
}

#[derive(Clone, Debug)]
struct Bucket {
    /// By drafts.
    entries: Vec<Entry>,
    /// What all samples are divided by: follows the drift that rounds of every k share.
    level: f64,
    /// Rounds measured.
    rounds: u64,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    samples: VecDeque<f64>,
    /// The round of the bucket that gave the last one.
    seen: u64,
    /// Samples since the last gap.
    run: usize,
    /// Enough samples, or near enough to what the others let expect.
    believed: bool,
}

impl Entry {
    /// The sample a third up from the least: hiccups only add.
    fn typical(&self) -> f64 {
        let mut sorted: Vec<f64> = self.samples.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted[(sorted.len() - 1) / 3]
    }
}

impl Costs {
    pub(super) fn new(max_drafts: usize) -> Self {
        Costs { buckets: vec![], max_drafts }
    }

    /// Counts a round.
    pub(super) fn add(&mut self, bucket: usize, drafts: usize, seconds: f64) {
        let entries = vec![Entry::default(); self.max_drafts + 1];
        let fresh = Bucket { entries, level: 1.0, rounds: 0 };
        self.buckets.resize(self.buckets.len().max(bucket + 1), fresh);
        let Bucket { entries, level, rounds } = &mut self.buckets[bucket];
        let entry = &mut entries[drafts];
        *rounds += 1;
        entry.run = if *rounds - entry.seen > APART { 1 } else { entry.run + 1 };
        entry.seen = *rounds;
        // What lies far back counts, but a change must not have to wait for many more looks.
        let outdated = if entry.run == 1 { entry.samples.len().saturating_sub(ENOUGH - 1) } else { 0 };
        entry.samples.drain(..outdated);
        let before = (entry.run > SAMPLES).then(|| entry.typical());
        if entry.samples.len() == SAMPLES {
            entry.samples.pop_front();
        }
        entry.samples.push_back(seconds / *level);
        // All its samples are recent, so if they move it is the world that moves, and the costs of other k
        // with it. After a gap they only correct themselves.
        if let Some(before) = before {
            let drift = entry.typical() / before;
            *level *= drift;
            entry.samples.iter_mut().for_each(|s| *s /= drift);
        }
        for k in 0..=self.max_drafts {
            let Some((n, x)) = self.entry(bucket, k) else { continue };
            let plausible = |e: f64| x <= e * DOUBT || n + 1 == ENOUGH && (k > 1 || x > e * ABSURD);
            let believed = n >= ENOUGH || self.expected(bucket, k, true).is_some_and(plausible);
            self.buckets[bucket].entries[k].believed |= believed;
        }
    }

    /// Seconds of a round; in units of a plain round where the bucket has not been measured.
    pub(super) fn of(&self, bucket: usize, drafts: usize) -> f64 {
        let expected = self.expected(bucket, drafts, true).or_else(|| self.expected(bucket, drafts, false));
        let expected = expected.unwrap_or_else(|| self.shape(bucket, drafts));
        self.measured(bucket, drafts).map_or(expected, |x| x.min(expected))
    }

    /// Whether the cost is measured and believed.
    pub(super) fn known(&self, bucket: usize, drafts: usize) -> bool {
        self.buckets.get(bucket).is_some_and(|b| b.entries[drafts].believed)
    }

    /// Whether more samples could change it much.
    pub(super) fn doubtful(&self, bucket: usize, drafts: usize) -> bool {
        self.entry(bucket, drafts).is_none_or(|(n, _)| n < ENOUGH)
    }

    /// Seconds of a round as measured, believed or not.
    pub(super) fn measured(&self, bucket: usize, drafts: usize) -> Option<f64> {
        self.entry(bucket, drafts).map(|(_, seconds)| seconds)
    }

    /// The most drafts of known cost.
    pub(super) fn deepest(&self, bucket: usize) -> Option<usize> {
        (0..=self.max_drafts).rev().find(|k| self.known(bucket, *k))
    }

    /// How many rounds of this bucket ago a k was last measured.
    pub(super) fn age(&self, bucket: usize, drafts: usize) -> u64 {
        self.buckets.get(bucket).map_or(0, |b| b.rounds - b.entries[drafts].seen)
    }

    /// The nearest other bucket that can say what drafts cost.
    pub(super) fn neighbour(&self, bucket: usize) -> Option<usize> {
        let knows = |b: &usize| *b != bucket && self.known(*b, 0) && self.deepest(*b) > Some(0);
        (0..self.buckets.len()).filter(knows).min_by_key(|b| b.abs_diff(bucket))
    }

    /// Number of samples and their typical seconds.
    fn entry(&self, bucket: usize, drafts: usize) -> Option<(usize, f64)> {
        let bucket = self.buckets.get(bucket)?;
        let entry = &bucket.entries[drafts];
        let n = entry.samples.len();
        (n > 0).then(|| (n, entry.typical() * bucket.level))
    }

    /// Seconds from all measurements of the bucket, or from those that are believed: between two on their
    /// line; beyond the deepest as the neighbour goes on, or on the line from plain through it. More drafts
    /// never cost less.
    fn expected(&self, bucket: usize, drafts: usize, believed: bool) -> Option<f64> {
        let (mut below, mut above) = (None, None);
        let mut least = f64::INFINITY;
        for k in (0..=self.max_drafts).rev().filter(|k| !believed || self.known(bucket, *k)) {
            let Some(seconds) = self.measured(bucket, k) else { continue };
            least = least.min(seconds);
            if k >= drafts {
                above = Some((k, least));
            }
            if k <= drafts {
                below = below.or(Some((k, least)));
            }
        }
        let shape = |k| self.shape(bucket, k);
        match (below, above) {
            (Some((i, x)), _) if i == drafts => Some(x),
            (Some((i, x)), Some((j, y))) => Some(x + (y - x) * (drafts - i) as f64 / (j - i) as f64),
            (Some((i, x)), None) if i > 0 => {
                let plain = self.expected(bucket, 0, believed)?;
                let guide = self.neighbour(bucket).filter(|b| self.deepest(*b) >= Some(drafts));
                let line = (x - plain) * (drafts - i) as f64 / i as f64;
                Some(x + guide.map_or(line, |_| plain * (shape(drafts) - shape(i))))
            }
            (Some((i, x)), None) | (None, Some((i, x))) => Some(x * shape(drafts) / shape(i)),
            (None, None) => None,
        }
    }

    /// The cost in plain rounds as the nearest bucket has it.
    fn shape(&self, bucket: usize, drafts: usize) -> f64 {
        let guess = 1.0 + DRAFT * drafts as f64;
        let relative = |b| Some(self.expected(b, drafts, true)? / self.expected(b, 0, true)?);
        self.neighbour(bucket).and_then(relative).unwrap_or(guess)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 1e-9
    }

    fn costs(samples: &[(usize, usize, f64)]) -> Costs {
        let mut costs = Costs::new(8);
        samples.iter().for_each(|(bucket, drafts, seconds)| costs.add(*bucket, *drafts, *seconds));
        costs
    }

    #[test]
    fn goes_between_and_beyond_what_is_measured() {
        let c = costs(&[(0, 0, 10.0), (0, 0, 10.0), (0, 0, 10.0), (0, 1, 11.0), (0, 3, 12.4), (0, 3, 12.4)]);
        assert!(close(c.of(0, 2), 11.7), "between: {}", c.of(0, 2));
        assert!(close(c.of(0, 5), 14.0), "beyond: {}", c.of(0, 5));
        assert_eq!(c.deepest(0), Some(3));
        // Another bucket that knows only its plain rounds has the same shape, at its own level.
        let mut c = c;
        (0..3).for_each(|_| c.add(3, 0, 20.0));
        assert!(close(c.of(3, 1), 22.0) && close(c.of(3, 5), 28.0), "{} {}", c.of(3, 1), c.of(3, 5));
        // Having a first draft of its own, it goes on from there as the other does.
        (0..3).for_each(|_| c.add(3, 1, 30.0));
        assert!(close(c.of(3, 3), 30.0 + 20.0 * (1.24 - 1.1)), "{}", c.of(3, 3));
    }

    #[test]
    fn hiccups_and_first_runs_do_not_count() {
        let mut c = costs(&[(0, 0, 30.0), (0, 0, 10.0), (0, 0, 10.0), (0, 1, 33.0)]);
        assert!(!c.known(0, 1) && close(c.of(0, 1), 11.0), "a first run is not believed: {}", c.of(0, 1));
        c.add(0, 1, 11.2);
        assert!(c.known(0, 1) && close(c.of(0, 1), 11.2));
        for _ in 0..6 {
            c.add(0, 1, 33.0);
            c.add(0, 1, 11.2);
        }
        assert!(close(c.of(0, 1), 11.2), "every other round a hiccup: {}", c.of(0, 1));
        // What is slow again and again is slow.
        (0..3).for_each(|_| c.add(0, 2, 40.0));
        assert!(c.known(0, 2) && close(c.of(0, 2), 40.0));
        // A draft cannot make a round cheaper, so what seemed slow was not if more drafts are faster.
        (0..3).for_each(|_| c.add(0, 4, 15.0));
        assert!(close(c.of(0, 2), 15.0));
    }

    #[test]
    fn all_costs_follow_the_drift_of_one() {
        let mut c = costs(&[(0, 0, 10.0); 3]);
        (0..SAMPLES + 3).for_each(|_| c.add(0, 1, 11.0));
        (0..400).for_each(|i| c.add(0, 1, 11.0 * (1.0 + i as f64 / 1000.0)));
        let ratio = c.of(0, 1) / c.of(0, 0);
        assert!(c.of(0, 0) > 13.8 && (ratio - 1.1).abs() < 0.01, "{} {ratio}", c.of(0, 0));
        // But what only this k costs, after a gap, is its own.
        (0..40).for_each(|_| c.add(0, 0, 14.0));
        (0..40).for_each(|_| c.add(0, 1, 21.0));
        assert!((c.of(0, 1) / c.of(0, 0) - 1.5).abs() < 0.02, "{}", c.of(0, 1) / c.of(0, 0));
    }
}

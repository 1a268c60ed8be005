//! What happened, counted.

use serde::Serialize;
use std::{fmt, time::Duration};

/// Counts of one request or of all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Prompt tokens computed, recomputation after a pause included.
    pub prefilled: usize,
    /// Tokens emitted.
    pub generated: usize,
    /// Decode rounds.
    pub rounds: usize,
    /// `drafted[i]`: rounds that verified a draft at position i + 1.
    pub drafted: Vec<usize>,
    /// `reached[i]`: those of them in which every draft before it was accepted.
    pub reached: Vec<usize>,
    /// `accepted[i]`: those of them in which it was accepted too.
    pub accepted: Vec<usize>,
}

impl Stats {
    /// One decode round that verified `drafts` drafts and emitted `tokens` tokens.
    ///
    /// Where a stop cuts a round short, drafts beyond it were not emitted and do not count as accepted.
    pub(crate) fn round(&mut self, drafts: usize, tokens: usize) {
        self.rounds += 1;
        self.generated += tokens;
        let accepted = tokens.saturating_sub(1).min(drafts);
        count(&mut self.drafted, drafts);
        count(&mut self.reached, drafts.min(accepted + 1));
        count(&mut self.accepted, accepted);
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Stats) {
        self.prefilled += other.prefilled;
        self.generated += other.generated;
        self.rounds += other.rounds;
        for (to, from) in [
            (&mut self.drafted, &other.drafted),
            (&mut self.reached, &other.reached),
            (&mut self.accepted, &other.accepted),
        ] {
            to.resize(to.len().max(from.len()), 0);
            to.iter_mut().zip(from).for_each(|(t, f)| *t += f);
        }
    }

    /// What was counted since `earlier`, counts of the same requests.
    pub(crate) fn since(&self, earlier: &Stats) -> Stats {
        let positions = |all: &[usize], earlier: &[usize]| {
            let earlier = earlier.iter().chain(std::iter::repeat(&0));
            all.iter().zip(earlier).map(|(all, earlier)| all - earlier).collect()
        };
        Stats {
            prefilled: self.prefilled - earlier.prefilled,
            generated: self.generated - earlier.generated,
            rounds: self.rounds - earlier.rounds,
            drafted: positions(&self.drafted, &earlier.drafted),
            reached: positions(&self.reached, &earlier.reached),
            accepted: positions(&self.accepted, &earlier.accepted),
        }
    }

    /// Drafts per decode round, verified ones.
    pub fn draft_length(&self) -> f64 {
        ratio(self.drafted.iter().sum(), self.rounds)
    }

    /// Tokens per decode round: 1 without speculation. (A prompt's pass emits one more token.)
    pub fn accept_length(&self) -> f64 {
        ratio(self.rounds + self.accepted.iter().sum::<usize>(), self.rounds)
    }

    /// For each draft position, the share accepted of the drafts whose predecessors all were: what
    /// compares with a head's teacher-forced agreement.
    pub fn acceptance(&self) -> Vec<f64> {
        let accepted = self.accepted.iter().chain(std::iter::repeat(&0));
        self.reached.iter().zip(accepted).map(|(r, a)| ratio(*a, *r)).collect()
    }
}

/// Counts with the rates that they make.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rates<'a> {
    /// The counts.
    #[serde(flatten)]
    pub stats: &'a Stats,
    /// See [`Stats::accept_length`].
    pub accept_length: f64,
    /// See [`Stats::acceptance`].
    pub acceptance: Vec<f64>,
}

impl<'a> From<&'a Stats> for Rates<'a> {
    fn from(stats: &'a Stats) -> Self {
        Rates { stats, accept_length: stats.accept_length(), acceptance: stats.acceptance() }
    }
}

/// In words: rounds, and what became of their drafts.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rounds, ", self.rounds)?;
        let acceptance: Vec<String> =
            self.acceptance().iter().map(|rate| format!("{:.0} %", 100.0 * rate)).collect();
        if acceptance.is_empty() {
            return f.write_str("no drafts");
        }
        write!(f, "accept length {:.2}, by position {}", self.accept_length(), acceptance.join(" / "))
    }
}

fn count(counts: &mut Vec<usize>, n: usize) {
    counts.resize(counts.len().max(n), 0);
    counts[..n].iter_mut().for_each(|c| *c += 1);
}

fn ratio(a: usize, b: usize) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

/// Where the time of an engine went, of all requests together: a pass computes many at once, and what each of them costs
/// of it nobody can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// Target passes over prompt tokens.
    #[serde(serialize_with = "seconds")]
    pub prefill: Duration,
    /// Target passes of decode rounds, choice and acceptance included.
    #[serde(serialize_with = "seconds")]
    pub target: Duration,
    /// The drafter.
    #[serde(serialize_with = "seconds")]
    pub draft: Duration,
}

fn seconds<S: serde::Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_f64(d.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_what_was_emitted() {
        let mut s = Stats::default();
        s.round(3, 4); // all accepted
        s.round(3, 1); // none
        s.round(3, 2); // one
        s.round(0, 1); // plain
        s.round(3, 2); // a stop may cut a round of more matches: one accepted draft was emitted
        assert_eq!((s.rounds, s.generated), (5, 10));
        assert_eq!(s.drafted, [4, 4, 4]);
        assert_eq!(s.reached, [4, 3, 1]);
        assert_eq!(s.accepted, [3, 1, 1]);
        assert_eq!(s.accept_length(), 2.0);
        assert_eq!(s.acceptance(), [0.75, 1.0 / 3.0, 1.0]);
        let mut sum = Stats::default();
        sum.add(&s);
        sum.add(&s);
        assert_eq!(sum.drafted, [8, 8, 8]);
        assert_eq!(sum.to_string(), "10 rounds, accept length 2.00, by position 75 % / 33 % / 100 %");
        assert_eq!((sum.since(&s), s.since(&Stats::default())), (s.clone(), s.clone()));
        assert_eq!((s.draft_length(), Stats::default().draft_length()), (12.0 / 5.0, 0.0));
        let json = serde_json::to_value(Rates::from(&s)).unwrap();
        assert_eq!(
            (&json["rounds"], &json["accept_length"], &json["acceptance"][0]),
            (&5.into(), &2.0.into(), &0.75.into())
        );
        let mut plain = Stats::default();
        plain.round(0, 1);
        assert_eq!(plain.to_string(), "1 rounds, no drafts");
    }
}

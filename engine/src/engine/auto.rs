//! Rounds as the policy that picks k wants to hear of them.

use crate::{
    policy::{Observed, Policy},
    round::Outcome,
};
use std::{collections::HashMap, time::Duration};

/// Picks the number of drafts of the next round, and learns from those before.
#[derive(Debug)]
pub(super) struct Auto {
    policy: Policy,
    /// What was picked last.
    drafts: usize,
    /// How long it took to make so many drafts for so many sequences, the last time.
    making: HashMap<(usize, usize), Duration>,
}

/// A decode round in which every sequence verified the same number of drafts.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) sequences: usize,
    pub(super) drafts: usize,
    /// Drafts made behind it for the round after it.
    pub(super) next: usize,
    /// All of it had been enqueued before, so that its time is that of others like it.
    pub(super) steady: bool,
    /// `reached[i]`, `accepted[i]`: sequences in which draft i was compared, and was right.
    reached: Vec<usize>,
    accepted: Vec<usize>,
}

impl Round {
    pub(super) fn new(sequences: usize, drafts: usize, next: usize, steady: bool) -> Self {
        Round { sequences, drafts, next, steady, reached: vec![0; drafts], accepted: vec![0; drafts] }
    }

    pub(super) fn add(&mut self, outcome: &Outcome) {
        let accepted = outcome.tokens.len().saturating_sub(1).min(outcome.drafts);
        let reached = (accepted + 1).min(outcome.drafts);
        self.accepted.iter_mut().take(accepted).for_each(|n| *n += 1);
        self.reached.iter_mut().take(reached).for_each(|n| *n += 1);
    }
}

impl Auto {
    pub(super) fn new(max_drafts: usize) -> Self {
        Auto { policy: Policy::new(max_drafts), drafts: 0, making: HashMap::new() }
    }

    /// Picks for the next round of so many sequences.
    pub(super) fn pick(&mut self, sequences: usize) {
        self.drafts = self.policy.choose(sequences);
    }

    /// What was picked last.
    pub(super) fn drafts(&self) -> usize {
        self.drafts
    }

    /// A round took this long on the target, and this long to make the next one's drafts.
    pub(super) fn learn(&mut self, round: &Round, target: Duration, draft: Duration) {
        let key = |drafts| (round.sequences.next_power_of_two(), drafts);
        if round.steady {
            self.making.insert(key(round.next), draft);
        }
        // A round pays for the drafts that it verifies, not for those that it leaves behind.
        let made = self.making.get(&key(round.drafts)).filter(|_| round.steady);
        self.policy.observe(&Observed {
            sequences: round.sequences,
            drafts: round.drafts,
            time: made.map(|made| target + *made),
            reached: &round.reached,
            accepted: &round.accepted,
        });
    }
}

//! How many drafts the next round should verify.
//!
//! Drafts never change what is emitted, only how fast. So k may follow what rounds of each k took and how
//! many drafts were accepted lately, round by round, down to plain rounds without any. All of it is
//! measured; nothing here knows a model or a device, and there is no clock and no chance in it.
//!
//! # What holds
//!
//! The policy keeps an account of the time that drafts gained or lost against plain rounds of the same
//! batch, and starts no round with drafts that the account cannot pay for. It opens with three plain
//! rounds' worth and is paid 1.6 % of all time; what drafts earn is added, up to twelve rounds' worth. So
//! a run as long as n plain rounds loses at most 3 + 0.016 n of them against plain, whatever the text does:
//! less than 3 % from 215 rounds on. On top come the rounds that are under way when the text turns, a k
//! that turns out far dearer than its neighbours let expect, and the error of measured costs: up to four
//! rounds' worth, seldom more than one. Shorter runs may lose more than 3 %, since something must be tried
//! to be known, and so may runs where the very first draft costs three plain rounds or more.
//!
//! Where drafts do not pay, one round in three to ten tries one, less often where that costs more than the
//! account is paid. A draft that costs up to a fifth of a plain round is tried often enough that a text
//! which turns good is found out and used within 30 rounds. One that costs half a round can be tried only
//! once in 31 rounds: there the bound on the loss comes first and recovery later, soonest in large batches,
//! where one try says enough.

mod acceptance;
mod cost;

use acceptance::Acceptance;
use cost::Costs;
use std::{collections::VecDeque, time::Duration};

/// Share of the time that drafts may lose against plain rounds.
const BUDGET: f64 = 0.016;
/// Plain rounds' worth of time that drafts may lose on top.
const START: f64 = 3.0;
/// The most that the account may hold.
const CREDIT: f64 = 12.0;
/// What a round of known cost must have behind it at most: its loss if nothing is accepted, up to this.
const DEPOSIT: f64 = 1.5;
/// The advantage that is worth a change of k.
const MARGIN: f64 = 1.02;
/// The advantage that a k of unknown cost must promise to be tried beside a better known one.
const HOPE: f64 = 1.05;
/// What lies beyond all measurements may cost so many times more than it seems to.
const DREAD: f64 = 3.0;
/// Plain rounds' worth of cost that one step into the unknown may add, if it is a step of several drafts.
const STEP: f64 = 1.0;
/// Rounds between two tries.
const INTERVAL: f64 = 4.0;
/// Rounds between two tries where no draft pays and tries keep failing, at least and at most.
const FAILING: (f64, f64) = (3.0, 10.0);
/// What such a try may cost for each round in between, in plain rounds.
const PRICE: f64 = 0.01;
/// Rounds between two looks at what other k cost by now.
const LOOK: usize = 32;
/// Rounds between two tries where no number of accepted drafts could pay.
const HOPELESS: usize = 256;
/// Rounds that may be under way when another is chosen, at most.
const AHEAD: usize = 4;
/// Rounds of doubtful cost that wait for a better one to be known, at most.
const UNSETTLED: usize = 16;

/// Picks k, the drafts of a round, from what rounds cost and how many drafts are accepted.
///
/// ```
/// use engine::policy::{Observed, Policy};
/// use std::time::Duration;
///
/// // Drafts that are always right, for a twelfth of a round each.
/// let mut policy = Policy::new(4);
/// let mut k = 0;
/// for _ in 0..40 {
///     k = policy.choose(1);
///     let time = Some(Duration::from_micros(12_000 + 1_000 * k as u64));
///     let all = vec![1; k];
///     policy.observe(&Observed { sequences: 1, drafts: k, time, reached: &all, accepted: &all });
/// }
/// assert_eq!(k, 4);
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    max_drafts: usize,
    costs: Costs,
    acceptance: Acceptance,
    /// The k in use, by bucket: leaves tries aside.
    current: Vec<usize>,
    /// Seconds that drafts have gained over plain rounds, the budget included.
    gained: f64,
    /// Rounds of doubtful cost, not yet part of it.
    unsettled: VecDeque<Spent>,
    /// Bucket and k of the rounds that are under way, oldest first.
    pending: VecDeque<(usize, usize)>,
    /// Rounds since the last try.
    since: usize,
    /// Rounds between two tries where drafts do not pay.
    interval: f64,
}

/// What a round turned out to be.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Its sequences.
    pub sequences: usize,
    /// Its k.
    pub drafts: usize,
    /// The whole of it: making the drafts, verifying them, and all that a plain round does too. None if
    /// something else ran in between, such as a prompt's pass or the recording of a graph.
    pub time: Option<Duration>,
    /// By position, up to k: the sequences in which all drafts before it were accepted.
    pub reached: &'a [usize],
    /// By position, up to k: the sequences in which this one was accepted too.
    pub accepted: &'a [usize],
}

#[derive(Clone, Copy, Debug)]
struct Spent {
    bucket: usize,
    drafts: usize,
    /// Tokens of a sequence.
    tokens: f64,
}

impl Policy {
    /// A policy that knows nothing yet and picks k from 0 to `max_drafts`.
    pub fn new(max_drafts: usize) -> Self {
        Policy {
            max_drafts,
            costs: Costs::new(max_drafts),
            acceptance: Acceptance::new(max_drafts),
            current: vec![],
            gained: 0.0,
            unsettled: VecDeque::new(),
            pending: VecDeque::new(),
            since: 0,
            interval: INTERVAL,
        }
    }

    /// k of the next round, which will have so many sequences. To be called once for each round.
    ///
    /// Rounds of the same power of two, rounded up, are taken to cost the same.
    pub fn choose(&mut self, sequences: usize) -> usize {
        let bucket = bucket(sequences);
        self.current.resize(self.current.len().max(bucket + 1), 0);
        let best = self.best(bucket);
        self.current[bucket] = best;
        self.since += 1;
        let k = match self.attempt(bucket, best) {
            Some(attempt) => {
                self.since = 0;
                attempt
            }
            None => best,
        };
        if self.pending.len() == AHEAD {
            self.pending.pop_front();
        }
        self.pending.push_back((bucket, k));
        k
    }

    /// Learns from a round. Rounds come in order; they may come late, when others have been chosen, and
    /// some may not come at all.
    pub fn observe(&mut self, round: &Observed) {
        let (bucket, drafts) = (bucket(round.sequences), round.drafts.min(self.max_drafts));
        if let Some(at) = self.pending.iter().position(|p| *p == (bucket, drafts)) {
            self.pending.drain(..=at);
        }
        if let Some(time) = round.time {
            self.costs.add(bucket, drafts, time.as_secs_f64());
        }
        let mut tokens = 1.0;
        if drafts > 0 {
            let better = self.acceptance.add(round.reached, round.accepted);
            self.interval = if better { 1.0 } else { (self.interval * 1.5).min(self.patience(bucket)) };
            let accepted: usize = round.accepted.iter().take(drafts).sum();
            tokens += accepted as f64 / round.sequences.max(1) as f64;
        }
        self.unsettled.push_back(Spent { bucket, drafts, tokens });
        self.settle();
    }

    /// Rounds between two tries that keep failing.
    fn patience(&self, bucket: usize) -> f64 {
        ((self.relative(bucket, 1) - 1.0) / PRICE).clamp(FAILING.0, FAILING.1)
    }

    /// Enters the rounds whose cost is beyond doubt into the account. The others are valued anew each time.
    fn settle(&mut self) {
        let known = |s: &Spent| [0, s.drafts].iter().all(|k| !self.costs.doubtful(s.bucket, *k));
        let (mut due, mut rest): (VecDeque<_>, VecDeque<_>) = self.unsettled.drain(..).partition(known);
        if rest.len() > UNSETTLED {
            due.extend(rest.pop_front());
        }
        self.unsettled = rest;
        for spent in due {
            let most = (CREDIT - START) * self.costs.of(spent.bucket, 0);
            self.gained = (self.gained + self.gain(&spent)).min(most);
        }
    }

    /// Seconds that a round is ahead of plain rounds that emit as much, the budget included.
    fn gain(&self, spent: &Spent) -> f64 {
        let cost = self.costs.of(spent.bucket, spent.drafts);
        spent.tokens * self.costs.of(spent.bucket, 0) - (1.0 - BUDGET) * cost
    }

    /// Plain rounds' worth of time that may be lost now, after what the tries under way may lose.
    fn credit(&self, bucket: usize) -> f64 {
        let at_risk = |(b, k): &(usize, usize)| {
            let used = self.costs.known(*b, *k) && self.current[*b] == *k;
            if used { 0.0 } else { self.costs.of(*b, *k) - self.costs.of(*b, 0) }
        };
        let unsettled: f64 = self.unsettled.iter().map(|s| self.gain(s)).sum();
        let pending: f64 = self.pending.iter().map(at_risk).sum();
        START + (self.gained + unsettled - pending) / self.costs.of(bucket, 0)
    }

    /// Plain rounds' worth of time that a try may lose.
    fn risk(&self, bucket: usize, drafts: usize) -> f64 {
        let known = self.relative(bucket, self.deepest(bucket).min(drafts));
        let risk = known - 1.0 + DREAD * (self.relative(bucket, drafts) - known);
        match self.costs.measured(bucket, drafts) {
            // Where a first draft was slow once, that is not held against it: all would end there.
            Some(seconds) if drafts > 1 => {
                risk.max((seconds / self.costs.of(bucket, 0) - 1.0).min(CREDIT / 2.0))
            }
            _ => risk,
        }
    }

    /// The cost of a round in plain rounds.
    fn relative(&self, bucket: usize, drafts: usize) -> f64 {
        self.costs.of(bucket, drafts) / self.costs.of(bucket, 0)
    }

    fn deepest(&self, bucket: usize) -> usize {
        self.costs.deepest(bucket).unwrap_or(0)
    }

    /// Whether this bucket's costs reach so far that this k is near: twice as many drafts, if they do not
    /// seem to cost much more.
    fn in_reach(&self, bucket: usize, drafts: usize) -> bool {
        let deepest = self.deepest(bucket);
        let step = || self.relative(bucket, drafts) - self.relative(bucket, deepest);
        drafts <= deepest + 1 || drafts <= 2 * deepest + 1 && step() < STEP
    }

    fn under_way(&self, bucket: usize, drafts: usize) -> usize {
        self.pending.iter().filter(|p| **p == (bucket, drafts)).count()
    }

    /// The k of the most tokens per time that the account allows.
    fn best(&self, bucket: usize) -> usize {
        let measured = self.costs.deepest(bucket).is_some();
        if !measured && self.pending.iter().all(|p| p.0 != bucket) {
            return 0;
        }
        // A bucket without costs of its own goes by the nearest one.
        let guide = self.costs.neighbour(bucket).filter(|_| self.deepest(bucket) == 0);
        let credit = self.credit(bucket);
        let (mut best, mut current) = ((0, 1.0), (0, 1.0));
        for (k, tokens) in self.acceptance.tokens().enumerate().skip(1) {
            let cost = self.relative(bucket, k);
            let rate = tokens / cost;
            let allowed = if self.costs.known(bucket, k) {
                credit >= (cost - 1.0).min(DEPOSIT)
            } else {
                let most = if guide.is_some() { AHEAD - 1 } else { 1 };
                self.in_reach(guide.unwrap_or(bucket), k)
                    && self.under_way(bucket, k) < most
                    && credit >= self.risk(bucket, k)
            };
            if allowed && rate > best.1 {
                best = (k, rate);
            }
            if allowed && rate > 1.0 && k == self.current[bucket] {
                current = (k, rate);
            }
        }
        if best.1 > MARGIN * current.1 { best.0 } else { current.0 }
    }

    /// Another k to learn from, if it is time for it.
    fn attempt(&self, bucket: usize, best: usize) -> Option<usize> {
        let free = |k: usize| self.under_way(bucket, k) == 0;
        let affordable = |k: &usize| self.credit(bucket) >= self.risk(bucket, *k);
        if best == 0 {
            let could_pay = (1..=self.max_drafts).any(|k| (1 + k) as f64 > MARGIN * self.relative(bucket, k));
            let wait = if could_pay { self.interval as usize } else { HOPELESS };
            if self.since < wait || self.max_drafts == 0 {
                return None;
            }
            let k = self.promising(bucket, 0).unwrap_or(1);
            return Some(k).filter(|k| self.costs.known(bucket, *k) || free(*k)).filter(affordable);
        }
        if !self.costs.known(bucket, 0) && free(0) {
            return Some(0);
        }
        if self.since < INTERVAL as usize {
            return None;
        }
        if let Some(k) = self.promising(bucket, best).filter(|k| free(*k)) {
            return Some(k);
        }
        let others = [0, best - 1, (best + 1).min(self.max_drafts)].into_iter().filter(|k| *k != best);
        let stalest = others.filter(affordable).max_by_key(|k| self.costs.age(bucket, *k));
        stalest.filter(|_| self.since >= LOOK)
    }

    /// A k of unknown or doubtful cost that would beat the best one if it cost no more than a smaller one.
    fn promising(&self, bucket: usize, best: usize) -> Option<usize> {
        let tokens: Vec<f64> = self.acceptance.tokens().collect();
        let (mut k_of_most, mut most) = (None, HOPE * tokens[best] / self.costs.of(bucket, best));
        let mut least_cost = self.costs.of(bucket, 0);
        let credit = self.credit(bucket);
        for (k, tokens) in tokens.into_iter().enumerate() {
            let known = self.costs.known(bucket, k);
            let due = !known || self.costs.doubtful(bucket, k) && self.since >= LOOK;
            let rate = tokens / least_cost;
            if due && rate > most && self.in_reach(bucket, k) && credit >= self.risk(bucket, k) {
                (k_of_most, most) = (Some(k), rate);
            }
            if known {
                least_cost = self.costs.of(bucket, k);
            }
        }
        k_of_most
    }
}

/// The power of two that a number of sequences is rounded up to.
fn bucket(sequences: usize) -> usize {
    sequences.max(1).next_power_of_two().trailing_zeros() as usize
}

//! Random scripts of launches, the same for several worlds.

use crate::place::Place;
use crate::stream::{Launch, Stream};
use crate::world::{Kind, World};
use kernels_core::{PAD, bf16, slots};
use kernels_gdn::Problem;
use kernels_testkit::rng::Rng;

/// Rows of a sequence in a prefill: more than the kernels prepare at a time.
pub const LONGEST_CHUNK: usize = 40;

/// One step of a script.
#[derive(Clone, Debug)]
pub enum Step {
    Rows { kind: Kind, launch: Launch<bf16>, kept: Vec<Kept> },
    Fold(Vec<i32>),
}

/// What of a sequence's rows is kept.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    pub slot: usize,
    pub start: usize,
    pub rows: usize,
    pub accepted: usize,
}

/// The sequences of a script: slot and committed tokens.
pub struct Author {
    pub rng: Rng,
    problem: Problem,
    positions: Vec<(usize, usize)>,
}

impl Author {
    pub fn new(seed: u64, problem: Problem, slots: &[usize]) -> Self {
        Author { rng: Rng::new(seed), problem, positions: slots.iter().map(|slot| (*slot, 0)).collect() }
    }

    /// Mostly verifications; now and then a prefill or a fold.
    pub fn step(&mut self) -> Step {
        match self.rng.below(10) {
            0 => self.rows(Kind::Prefill),
            1 => {
                let order = self.rng.permutation(self.positions.len());
                let mut slots: Vec<i32> = order.into_iter().map(|i| self.positions[i].0 as i32).collect();
                slots.truncate(1 + self.rng.below(slots.len()));
                slots.insert(self.rng.below(slots.len()), PAD);
                Step::Fold(slots)
            }
            _ => self.rows(Kind::Verify),
        }
    }

    /// A launch of all sequences in a new order, padding in the place of some, with rows of nobody at its end.
    pub fn rows(&mut self, kind: Kind) -> Step {
        let (p, rng) = (self.problem, &mut self.rng);
        let mut launch = Launch::new();
        let mut kept = vec![];
        let longest = if kind == Kind::Verify { p.max_rows } else { LONGEST_CHUNK };
        for i in rng.permutation(self.positions.len()) {
            if rng.below(8) == 0 {
                launch.push_padding(&p, rng.below(3));
                continue;
            }
            let (slot, start) = self.positions[i];
            let rows = if rng.below(2) == 0 { longest } else { rng.below(longest + 1) };
            let accepted = match rng.below(4) {
                _ if kind == Kind::Prefill => rows,
                0 => rng.below(rows + 1),
                1 => rows.min(1 + rng.below(rows + 1)),
                _ => rows,
            };
            launch.push(&p, slot as i32, start, &Stream::random(&p, rows, rng));
            self.positions[i].1 += accepted;
            kept.push(Kept { slot, start, rows, accepted });
        }
        launch.add_unowned(&p, 1 + rng.below(2));
        Step::Rows { kind, launch, kept }
    }
}

impl<B: Place> World<B, bf16> {
    /// Runs a step and its bookkeeping; the outputs of its rows.
    pub fn play(&mut self, step: &Step) -> Vec<bf16> {
        match step {
            Step::Rows { kind, launch, kept } => {
                let out = self.run(*kind, launch);
                self.keep(*kind, kept);
                out
            }
            Step::Fold(slots) => {
                self.fold(slots);
                vec![]
            }
        }
    }

    pub fn keep(&mut self, kind: Kind, kept: &[Kept]) {
        // A sequence without rows is skipped by the launch, so nothing moves.
        for kept in kept.iter().filter(|kept| kept.rows > 0) {
            assert_eq!(self.committed[kept.slot] as usize, kept.start, "the script and the world part");
            match kind {
                Kind::Verify => self.advance(kept.slot, kept.accepted),
                Kind::Prefill => self.advance_prefilled(kept.slot, kept.rows),
            }
        }
    }
}

/// What a script went through, so that a comparison cannot pass hollow.
#[derive(Debug, Default)]
pub struct Seen {
    verifications: usize,
    prefills: usize,
    folds: usize,
    without_rows: usize,
    padding: usize,
    rejections: usize,
    stores: usize,
    retained: usize,
    wraps: usize,
    longest_pending: usize,
    /// Replayed and new ones of a verification.
    most_tokens: usize,
}

impl Seen {
    /// To be called before the world plays the step.
    pub fn note<B: Place>(&mut self, world: &World<B, bf16>, step: &Step) {
        let p = world.problem;
        let Step::Rows { kind, launch, kept } = step else {
            self.folds += 1;
            return;
        };
        self.padding += launch.slots.iter().filter(|slot| **slot < 0).count();
        self.without_rows += kept.iter().filter(|kept| kept.rows == 0).count();
        if *kind == Kind::Prefill {
            self.prefills += 1;
            return;
        }
        self.verifications += 1;
        for kept in kept.iter().filter(|kept| kept.rows > 0) {
            let pending = kept.start - world.folded[kept.slot] as usize;
            let flushes = slots::flushes(pending, p.flush_after);
            self.stores += usize::from(flushes);
            self.retained += usize::from(!flushes && pending > 0);
            self.rejections += kept.rows - kept.accepted;
            self.wraps += usize::from(kept.start % p.journal_rows + kept.rows > p.journal_rows);
            self.longest_pending = self.longest_pending.max(pending);
            self.most_tokens = self.most_tokens.max(pending + kept.rows);
        }
    }

    /// Panics if something that a long script should go through never happened.
    pub fn check(&self, p: &Problem, rounds: usize) {
        self.check_some(rounds);
        assert!(p.flush_after == 0 || self.retained > 0, "the script was hollow: {self:?}");
        assert_eq!(self.longest_pending, p.flush_after + p.max_rows, "{self:?}");
        assert_eq!(self.most_tokens, p.flush_after + 2 * p.max_rows, "{self:?}");
    }

    /// The same for a short one, which need not come to the most extreme counts.
    pub fn check_some(&self, rounds: usize) {
        let Seen { prefills, folds, without_rows, padding, rejections, stores, wraps, .. } = *self;
        let all = [prefills, folds, without_rows, padding, rejections, stores, wraps];
        assert!(all.iter().all(|n| *n > 0), "the script was hollow: {self:?}");
        assert!(self.verifications >= rounds, "{self:?}");
    }
}

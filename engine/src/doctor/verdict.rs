//! From measured numbers to a sentence.

use super::Wiring;
use serde::Serialize;

/// How many of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rate {
    /// Times it was so.
    pub hits: usize,
    /// Times it could have been.
    pub of: usize,
}

impl Rate {
    /// Counts one more chance.
    pub(super) fn count(&mut self, hit: bool) {
        self.hits += usize::from(hit);
        self.of += 1;
    }

    /// The share; 0 where there was no chance.
    pub fn share(self) -> f64 {
        if self.of == 0 { 0.0 } else { self.hits as f64 / self.of as f64 }
    }

    /// All of them together.
    pub fn sum(rates: &[Rate]) -> Rate {
        rates.iter().fold(Rate::default(), |a, b| Rate { hits: a.hits + b.hits, of: a.of + b.of })
    }

    /// Whether it is larger than `other` by more than chance and by more than a trifle.
    fn clearly_above(self, other: Rate) -> bool {
        let variance = |r: Rate| r.share() * (1.0 - r.share()) / r.of.max(1) as f64;
        let noise = 3.0 * (variance(self) + variance(other)).sqrt();
        self.share() > other.share() + noise.max(CLEAR)
    }

    /// Of the same drafts: whether it has clearly more of them. Missing a single one is enough against a
    /// wiring that has them all, since the right one has.
    fn explains_better_than(self, other: Rate) -> bool {
        self.hits >= other.hits + BETTER || (self.hits == self.of && other.hits < other.of)
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.of == 0 { f.write_str("-") } else { write!(f, "{:.1} %", 100.0 * self.share()) }
    }
}

/// A difference in agreement below this is not worth a word.
const CLEAR: f64 = 0.05;
/// The engine proposes what a wiring proposes, if at least this share of its drafts are the same. The same
/// operators give the same bits, so a right wiring has 1 on the CPU backend; less leaves room for a head that
/// drafts with cheaper arithmetic than the reference.
const SAME: f64 = 0.9;
/// Drafts by which one wiring must explain the engine better than another, unless it explains all of them.
const BETTER: usize = 3;
/// First drafts that are right less often than this hardly pay for themselves.
const WEAK: f64 = 0.3;

/// A way to spoil the head, and how often it agrees then.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wired {
    /// How the head was fed.
    pub wiring: Wiring,
    /// Teacher-forced agreement with the target by depth; empty for wirings that only exist in rounds.
    pub agreement: Vec<Rate>,
    /// By position: the engine's drafts that this wiring drafts too, of those behind right ones only.
    pub same: Vec<Rate>,
}

/// Everything a verdict rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measures {
    /// Drafts per round.
    pub depth: usize,
    /// One entry for each [`Wiring`], the published one first.
    pub wirings: Vec<Wired>,
    /// Agreement of the published wiring with the target's choice one place earlier.
    pub target_earlier: Vec<Rate>,
    /// The same, one place later.
    pub target_later: Vec<Rate>,
    /// What the head by itself would have had accepted in the engine's rounds, by position.
    pub expected: Vec<Rate>,
    /// Drafts of the engine that were right, by position, of those behind right ones only.
    pub right: Vec<Rate>,
    /// What the engine counted as accepted, by position.
    pub accepted: Vec<Rate>,
    /// Texts of which speculation emitted something else than plain decoding.
    pub changed: usize,
    /// Texts.
    pub texts: usize,
}

impl Measures {
    fn of(&self, wiring: Wiring) -> Option<&Wired> {
        self.wirings.iter().find(|w| w.wiring == wiring)
    }

    /// Teacher-forced agreement by depth.
    pub fn agreement(&self) -> &[Rate] {
        self.of(Wiring::Published).map_or(&[], |w| &w.agreement)
    }

    fn same(&self, wiring: Wiring) -> Rate {
        self.of(wiring).map_or(Rate::default(), |w| Rate::sum(&w.same))
    }
}

/// What is the matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verdict {
    /// The engine drafts what the head drafts, and the head agrees with the target.
    Healthy,
    /// The engine drafts what the head drafts, and the head is bad at it.
    WeakHead,
    /// The engine drafts what a wrongly wired head drafts.
    Miswired {
        /// The wrong wiring.
        wiring: Wiring,
        /// Others that explain the engine's drafts as well.
        or: Vec<Wiring>,
    },
    /// The engine drafts neither what the head drafts nor what any known wrong wiring does.
    MiswiredOtherwise {
        /// The wiring that comes nearest.
        nearest: Wiring,
    },
    /// The engine drafts what the head drafts, but this head agrees more when it is wired otherwise.
    MadeForAnother {
        /// The wiring it seems made for.
        wiring: Wiring,
    },
    /// The head agrees more with another place of the text than with the one it should guess.
    MadeForAnotherPlace {
        /// Whether that place is later.
        later: bool,
    },
    /// Right drafts are not accepted.
    NotAccepted,
    /// No draft was ever verified.
    NoDrafts,
    /// Speculation changed the output, which nothing a drafter does may.
    OutputChanged,
}

impl Verdict {
    /// What the numbers say.
    pub fn of(m: &Measures) -> Verdict {
        if m.changed > 0 {
            return Verdict::OutputChanged;
        }
        if Rate::sum(&m.right).of == 0 {
            return Verdict::NoDrafts;
        }
        let published = m.same(Wiring::Published);
        let others = || m.wirings.iter().map(|w| w.wiring).filter(|w| *w != Wiring::Published);
        let best = others().max_by_key(|w| m.same(*w).hits).unwrap_or(Wiring::Published);
        let explained = m.same(best);
        if explained.share() >= SAME && explained.explains_better_than(published) {
            let or = others().filter(|w| *w != best && !explained.explains_better_than(m.same(*w)));
            return Verdict::Miswired { wiring: best, or: or.collect() };
        }
        if published.share() < SAME {
            let nearest = if explained.hits > published.hits { best } else { Wiring::Published };
            return Verdict::MiswiredOtherwise { nearest };
        }
        // A stop may end a text inside a block and leave right drafts uncounted: once for each text.
        let lost = |(right, accepted): (&Rate, &Rate)| right.hits > accepted.hits + m.texts;
        if m.right.iter().zip(&m.accepted).any(lost) || m.accepted.is_empty() {
            return Verdict::NotAccepted;
        }
        Verdict::of_head(m)
    }

    /// The wiring is right: what the numbers say about the head.
    fn of_head(m: &Measures) -> Verdict {
        let first = |rates: &[Rate]| rates.first().copied().unwrap_or_default();
        let agreement = first(m.agreement());
        let rival = m
            .wirings
            .iter()
            .filter(|w| w.wiring != Wiring::Published && first(&w.agreement).clearly_above(agreement))
            .max_by(|a, b| first(&a.agreement).share().total_cmp(&first(&b.agreement).share()));
        if let Some(rival) = rival {
            return Verdict::MadeForAnother { wiring: rival.wiring };
        }
        for (place, later) in [(&m.target_earlier, false), (&m.target_later, true)] {
            if first(place).clearly_above(agreement) {
                return Verdict::MadeForAnotherPlace { later };
            }
        }
        let shuffled = m.of(Wiring::Shuffled).map_or(Rate::default(), |w| first(&w.agreement));
        if agreement.share() < WEAK || !agreement.clearly_above(shuffled) {
            return Verdict::WeakHead;
        }
        Verdict::Healthy
    }

    /// Whether something is wired wrongly; a weak head is nobody's fault here.
    pub fn is_fault(&self) -> bool {
        !matches!(self, Verdict::Healthy | Verdict::WeakHead)
    }

    /// The verdict in one line.
    pub fn line(&self, m: &Measures) -> String {
        let list = |rates: &[Rate]| {
            let shares: Vec<_> = rates.iter().map(|r| format!("{:.0}", 100.0 * r.share())).collect();
            format!("{} %", shares.join(" / "))
        };
        let agrees = list(m.agreement());
        let same = m.same(Wiring::Published);
        match self {
            Verdict::Healthy => format!("wiring ok, the head agrees {agrees}"),
            Verdict::WeakHead => {
                let shuffled = m.of(Wiring::Shuffled).map_or(String::new(), |w| list(&w.agreement));
                format!(
                    "weak head: the engine proposes what the head says, but the head agrees only {agrees} \
                     (with shuffled hidden rows {shuffled}); the wiring is ok"
                )
            }
            Verdict::Miswired { wiring, or } => {
                let same = m.same(*wiring);
                let mut line = format!(
                    "wiring fault, {wiring}: {}; {same} of the engine's drafts are those of a head fed like \
                     this (accepted {}, the head by itself {})",
                    wiring.meaning(),
                    list(&m.accepted),
                    list(&m.expected)
                );
                if !or.is_empty() {
                    let or: Vec<_> = or.iter().map(|w| w.name()).collect();
                    line += &format!("; these numbers also fit: {}", or.join(", "));
                }
                line
            }
            Verdict::MiswiredOtherwise { nearest } => format!(
                "wiring fault of no known kind: only {same} of the engine's drafts are those of the head by itself \
                 (accepted {}, the head by itself {}); nearest is \"{nearest}\" with {}",
                list(&m.accepted),
                list(&m.expected),
                m.same(*nearest)
            ),
            Verdict::MadeForAnother { wiring } => {
                let other = m.of(*wiring).map_or(String::new(), |w| list(&w.agreement));
                format!(
                    "the checkpoint's head does not fit its wiring: it agrees {agrees}, but {other} with \
                     \"{wiring}\"; was it trained or converted for another engine?"
                )
            }
            Verdict::MadeForAnotherPlace { later } => {
                let (word, rates) =
                    if *later { ("later", &m.target_later) } else { ("earlier", &m.target_earlier) };
                format!(
                    "the checkpoint's head guesses another place: it agrees {agrees}, but {} with the token one \
                     place {word}; was it trained or converted for another engine?",
                    list(rates)
                )
            }
            Verdict::NotAccepted => format!(
                "drafts are lost: the engine proposed {} right and accepted {}; look at acceptance and stops",
                list(&m.right),
                list(&m.accepted)
            ),
            Verdict::NoDrafts => {
                "no draft was verified: the drafter proposed nothing, or its drafts never reached the target"
                    .into()
            }
            Verdict::OutputChanged => format!(
                "speculation changed the output of {} of {} texts, which no drafter may; run the parity check",
                m.changed, m.texts
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(percent: [usize; 3]) -> Vec<Rate> {
        percent.map(|hits| Rate { hits: 10 * hits, of: 1000 }).to_vec()
    }

    /// A good head, rightly wired, and what the controls do to it.
    fn healthy() -> Measures {
        let wired = |wiring: Wiring| {
            let (agreement, same) = match wiring {
                Wiring::Published => (rates([76, 76, 75]), rates([100, 100, 100])),
                Wiring::PreNorm => (rates([70, 66, 64]), rates([88, 85, 84])),
                w if w.follows_rounds() => (Vec::new(), rates([80, 70, 70])),
                _ => (rates([20, 15, 12]), rates([25, 15, 12])),
            };
            Wired { wiring, agreement, same }
        };
        Measures {
            depth: 3,
            wirings: Wiring::ALL.map(wired).to_vec(),
            target_earlier: rates([3, 3, 3]),
            target_later: rates([5, 5, 5]),
            expected: rates([74, 76, 75]),
            right: rates([74, 76, 75]),
            accepted: rates([74, 76, 75]),
            changed: 0,
            texts: 10,
        }
    }

    fn set(m: &mut Measures, wiring: Wiring, change: impl FnOnce(&mut Wired)) {
        change(m.wirings.iter_mut().find(|w| w.wiring == wiring).unwrap());
    }

    #[test]
    fn a_good_head() {
        let m = healthy();
        let verdict = Verdict::of(&m);
        assert_eq!(verdict, Verdict::Healthy);
        assert!(!verdict.is_fault());
        assert_eq!(verdict.line(&m), "wiring ok, the head agrees 76 / 76 / 75 %");
    }

    #[test]
    fn a_weak_head_is_not_a_fault() {
        let mut m = healthy();
        for w in &mut m.wirings {
            w.agreement = rates([1, 0, 0]);
        }
        assert_eq!(Verdict::of(&m), Verdict::WeakHead);
        assert!(!Verdict::WeakHead.is_fault());
        // One that agrees now and then, but not because of what it is told.
        let mut m = healthy();
        set(&mut m, Wiring::Published, |w| w.agreement = rates([40, 38, 37]));
        set(&mut m, Wiring::PreNorm, |w| w.agreement = rates([39, 38, 37]));
        set(&mut m, Wiring::Shuffled, |w| w.agreement = rates([38, 38, 37]));
        assert_eq!(Verdict::of(&m), Verdict::WeakHead);
        // A head that says the same whatever it is fed fits every wiring, the right one too.
        for w in &mut m.wirings {
            (w.agreement, w.same) = (rates([1, 1, 1]), rates([100, 100, 100]));
        }
        assert_eq!(Verdict::of(&m), Verdict::WeakHead);
    }

    #[test]
    fn every_wrong_wiring_is_named() {
        for wiring in Wiring::ALL.into_iter().skip(1) {
            let mut m = healthy();
            m.accepted = rates([30, 25, 20]);
            m.right = m.accepted.clone();
            set(&mut m, Wiring::Published, |w| w.same = rates([88, 80, 80]));
            set(&mut m, wiring, |w| w.same = rates([100, 100, 99]));
            let verdict = Verdict::of(&m);
            assert_eq!(verdict, Verdict::Miswired { wiring, or: vec![] });
            assert!(verdict.is_fault());
            assert!(
                verdict.line(&m).starts_with(&format!("wiring fault, {wiring}: ")),
                "{}",
                verdict.line(&m)
            );
        }
    }

    #[test]
    fn a_fault_that_seldom_shows_is_still_one() {
        let fault = Verdict::Miswired { wiring: Wiring::ChainKept, or: vec![] };
        let mut m = healthy();
        set(&mut m, Wiring::Published, |w| w.same[1].hits -= 1);
        assert_eq!(Verdict::of(&m), Verdict::Healthy, "nothing else has that draft");
        set(&mut m, Wiring::ChainKept, |w| w.same = rates([100, 100, 100]));
        assert_eq!(Verdict::of(&m), fault, "it has every draft");
        set(&mut m, Wiring::ChainKept, |w| w.same[0].hits -= 1);
        assert_eq!(Verdict::of(&m), Verdict::Healthy, "now neither has");
        set(&mut m, Wiring::Published, |w| w.same[1].hits -= BETTER);
        assert_eq!(Verdict::of(&m), fault, "it has clearly more");
    }

    #[test]
    fn faults_that_cannot_be_told_apart_are_all_named() {
        let mut m = healthy();
        set(&mut m, Wiring::Published, |w| w.same = rates([50, 50, 50]));
        set(&mut m, Wiring::ChainKept, |w| w.same = rates([99, 99, 99]));
        set(&mut m, Wiring::NewestOnly, |w| w.same = vec![Rate { hits: 2999, of: 3000 }]);
        set(&mut m, Wiring::PromptUnseen, |w| w.same = vec![Rate { hits: 2998, of: 3000 }]);
        let or = vec![Wiring::PromptUnseen];
        assert_eq!(Verdict::of(&m), Verdict::Miswired { wiring: Wiring::NewestOnly, or });
        set(&mut m, Wiring::NewestOnly, |w| w.same = vec![Rate { hits: 3000, of: 3000 }]);
        assert_eq!(Verdict::of(&m), Verdict::Miswired { wiring: Wiring::NewestOnly, or: vec![] });
    }

    #[test]
    fn a_fault_of_no_known_kind() {
        let mut m = healthy();
        set(&mut m, Wiring::Published, |w| w.same = rates([60, 50, 50]));
        let nearest = Verdict::of(&m);
        assert!(matches!(nearest, Verdict::MiswiredOtherwise { nearest: Wiring::PreNorm }), "{nearest:?}");
        for w in &mut m.wirings {
            w.same = rates([5, 5, 5]);
        }
        assert_eq!(Verdict::of(&m), Verdict::MiswiredOtherwise { nearest: Wiring::Published });
    }

    #[test]
    fn a_head_made_for_another_wiring() {
        let mut m = healthy();
        set(&mut m, Wiring::Published, |w| w.agreement = rates([4, 3, 3]));
        set(&mut m, Wiring::PreNorm, |w| w.agreement = rates([4, 3, 3]));
        set(&mut m, Wiring::Swapped, |w| w.agreement = rates([76, 76, 75]));
        assert_eq!(Verdict::of(&m), Verdict::MadeForAnother { wiring: Wiring::Swapped });
        let mut m = healthy();
        for w in &mut m.wirings {
            w.agreement = rates([2, 2, 2]);
        }
        m.target_later = rates([70, 70, 70]);
        assert_eq!(Verdict::of(&m), Verdict::MadeForAnotherPlace { later: true });
        assert!(Verdict::of(&m).is_fault());
    }

    #[test]
    fn chance_is_not_a_fault() {
        let mut m = healthy();
        // Three points more in forty are nothing.
        set(&mut m, Wiring::Published, |w| w.agreement = vec![Rate { hits: 30, of: 40 }]);
        set(&mut m, Wiring::PreNorm, |w| w.agreement = vec![Rate { hits: 33, of: 40 }]);
        assert_eq!(Verdict::of(&m), Verdict::Healthy);
    }

    #[test]
    fn what_else_can_go_wrong() {
        let mut m = healthy();
        m.accepted = rates([30, 76, 75]);
        assert_eq!(Verdict::of(&m), Verdict::NotAccepted);
        m.right = vec![Rate::default(); 3];
        assert_eq!(Verdict::of(&m), Verdict::NoDrafts);
        m.changed = 1;
        assert_eq!(Verdict::of(&m), Verdict::OutputChanged);
        assert!(Verdict::of(&m).line(&m).contains("1 of 10 texts"));
    }
}

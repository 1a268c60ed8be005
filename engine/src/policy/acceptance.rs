//! How many drafts are accepted lately, by position.

/// Drafts of the first position that the long memory holds.
const LONG: f64 = 128.0;
/// Rounds that it holds at least.
const ROUNDS: f64 = 8.0;
/// Drafts that the short memories hold.
const SHORT: [f64; 2] = [6.0, 24.0];
/// Rounds for which a position that is not tried any more is remembered.
const UNTRIED: f64 = 48.0;
/// Standard deviations between the two that say that the text has changed.
const CHANGE: f64 = 2.5;
/// Share of a short memory that is left of the past after a change.
const KEPT: f64 = 0.4;
/// Drafts that a position's predecessor counts for in its estimate.
const BORROWED: f64 = 2.0;
/// Acceptance before anything is known, and the drafts it counts for.
const PRIOR: (f64, f64) = (0.7, 2.0);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    reached: f64,
    accepted: f64,
    /// Drafts weighted by the square of what is left of them.
    squares: f64,
}

impl Counts {
    fn add(&mut self, keep: f64, reached: f64, accepted: f64) {
        self.reached = self.reached * keep + reached;
        self.accepted = self.accepted * keep + accepted;
        self.squares = self.squares * keep * keep + reached;
    }

    fn scaled(self, by: f64) -> Self {
        Counts { reached: self.reached * by, accepted: self.accepted * by, squares: self.squares * by * by }
    }
}

/// Accepted drafts of the past, remembered for long and for short. When the short memories say something
/// clearly else than the long one, the text has changed and the long one is replaced.
#[derive(Clone, Debug)]
pub(super) struct Acceptance {
    /// By position.
    long: Vec<Counts>,
    short: [Vec<Counts>; 2],
}

impl Acceptance {
    pub(super) fn new(max_drafts: usize) -> Self {
        let none = vec![Counts::default(); max_drafts];
        let mut long = none.clone();
        if let Some(first) = long.first_mut() {
            first.add(0.0, PRIOR.1, PRIOR.0 * PRIOR.1);
        }
        Acceptance { long, short: [none.clone(), none] }
    }

    /// Counts a round; true if drafts do clearly better than they did.
    pub(super) fn add(&mut self, reached: &[usize], accepted: &[usize]) -> bool {
        let Some(&first) = reached.first().filter(|r| **r > 0) else { return false };
        let counts = |i: usize| {
            let of = |counts: &[usize]| counts.get(i).copied().unwrap_or(0) as f64;
            (of(reached), of(accepted).min(of(reached)))
        };
        let keep = |drafts: f64| (1.0 - 1.0 / drafts).powi(first as i32);
        let keeps = [keep(LONG).max(1.0 - 1.0 / ROUNDS), keep(SHORT[0]), keep(SHORT[1])];
        for (memory, keep) in std::iter::once(&mut self.long).chain(&mut self.short).zip(keeps) {
            for (i, c) in memory.iter_mut().enumerate() {
                let (r, a) = counts(i);
                let keep = if i < reached.len() { keep } else { keep.min(1.0 - 1.0 / UNTRIED) };
                c.add(keep, r, a);
            }
        }
        let mut better = false;
        for at in 0..self.short.len() {
            let (l, s) = (self.long[0], self.short[at][0]);
            let p = l.accepted / l.reached;
            let surprise = s.accepted - s.reached * p;
            better |= surprise > 0.1 * s.reached;
            if surprise.abs() > CHANGE * (s.squares * p * (1.0 - p) + 0.1).sqrt() {
                self.long = self.short[at].iter().map(|c| c.scaled(KEPT)).collect();
                self.short[at + 1..].fill(self.long.clone());
                break;
            }
        }
        better
    }

    /// Tokens that one sequence is expected to emit, by drafts from 0: 1, 1 + p1, 1 + p1 + p1 p2, …
    ///
    /// What has not been tried is taken to go on like the position before it.
    pub(super) fn tokens(&self) -> impl Iterator<Item = f64> {
        let (mut tokens, mut chain, mut p) = (1.0, 1.0, 0.0);
        let first = std::iter::once(1.0);
        first.chain(self.long.iter().enumerate().map(move |(i, c)| {
            let borrowed = if i == 0 { 0.0 } else { BORROWED };
            if c.reached + borrowed > 0.0 {
                p = (c.accepted + borrowed * p) / (c.reached + borrowed);
            }
            chain *= p;
            tokens += chain;
            tokens
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(a: &Acceptance) -> Vec<f64> {
        a.tokens().collect()
    }

    #[test]
    fn expects_the_tokens_of_a_chain() {
        let mut a = Acceptance::new(4);
        for _ in 0..200 {
            a.add(&[100, 80, 40], &[80, 40, 10]);
        }
        let t = tokens(&a);
        let want = [1.0, 1.8, 2.2, 2.3, 2.325];
        assert!(t.iter().zip(want).all(|(t, w)| (t - w).abs() < 0.01), "{t:?}");
        assert_eq!(tokens(&Acceptance::new(0)), [1.0]);
    }

    #[test]
    fn goes_on_like_the_last_position_tried() {
        let mut a = Acceptance::new(3);
        (0..200).for_each(|_| _ = a.add(&[100], &[50]));
        let t = tokens(&a);
        assert!((t[3] - 1.875).abs() < 0.01, "{t:?}");
    }

    #[test]
    fn a_change_is_noticed_by_one_sequence_too() {
        let mut a = Acceptance::new(1);
        // Nine of ten, evenly.
        (0..300).for_each(|i| _ = a.add(&[1], &[usize::from(i % 10 != 0)]));
        assert!((tokens(&a)[1] - 1.9).abs() < 0.05, "{:?}", tokens(&a));
        (0..25).for_each(|_| _ = a.add(&[1], &[0]));
        assert!(tokens(&a)[1] < 1.15, "{:?}", tokens(&a));
        (0..40).for_each(|_| _ = a.add(&[1], &[0]));
        // The first one that is right says that there is something to be seen.
        assert!(a.add(&[1], &[1]));
        (0..24).for_each(|_| _ = a.add(&[1], &[1]));
        assert!(tokens(&a)[1] > 1.75, "{:?}", tokens(&a));
    }

    #[test]
    fn what_is_not_reached_says_nothing() {
        let mut a = Acceptance::new(2);
        let before = tokens(&a);
        assert!(!a.add(&[0, 0], &[0, 0]) && !a.add(&[], &[]));
        assert_eq!(tokens(&a), before);
    }
}

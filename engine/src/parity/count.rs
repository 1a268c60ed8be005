//! Whether a row that is identical also proves something: it has to have verified what it was to verify.

use super::{
    drive::Brought,
    reference::Known,
    row::{CHANCE, Drafts, Proposer, Row},
};
use crate::stats::Stats;
use serde::Serialize;

/// Whether a row counts, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// A row that does not count is a failure too.
    pub counts: bool,
    /// In words.
    pub why: String,
}

/// A head's acceptance may be this far from what it would draft by itself, in hundredths.
const POINTS: f64 = 3.0;
/// Where drafts are right by chance, an accept length has to occur if this many rounds should have it: then
/// it would be missing once in three thousand times.
const LIKELY: f64 = 8.0;

/// What the rounds of a row had to bring, given where they began.
#[derive(Debug, Default, PartialEq, Eq)]
struct Expected {
    /// Drafts to verify, and rounds with at least one.
    drafts: usize,
    rounds: usize,
    /// Rounds in which the head's first draft is the next token and not the last.
    first_right: usize,
    /// Rounds in which the head by itself makes no draft.
    silent: usize,
}

impl Expected {
    fn of(row: &Row, known: &[Known], brought: &Brought) -> Self {
        let (length, mut expected) = (row.drafts.length(), Expected::default());
        for (known, here) in known.iter().zip(&brought.streamed) {
            let stream = known.stream();
            // The prompt brings the first token; the token at `at` is the last known one.
            let mut at = known.request.prompt.len();
            let room = at + known.request.max_tokens;
            for (round, tokens) in here.passes.iter().skip(1).enumerate() {
                let drafts = length.of_round(round).unwrap_or(0).min(room.saturating_sub(at + 2));
                expected.drafts += drafts;
                if drafts > 0 {
                    expected.rounds += 1;
                    let first = known.first_drafts.get(&at).copied().flatten();
                    expected.silent += usize::from(first.is_none());
                    // A last token ends the round, so a draft behind it is not accepted.
                    let right = first.is_some() && first.as_ref() == stream.get(at + 1);
                    expected.first_right += usize::from(right && at + 2 < stream.len());
                }
                at += tokens;
            }
        }
        expected
    }
}

pub(super) fn count(row: &Row, known: &[Known], brought: &Brought) -> Counted {
    let stats = &brought.stats;
    let (yes, no) = (|why| Counted { counts: true, why }, |why| Counted { counts: false, why });
    if row.drafts.most() == 0 {
        return yes("plain decoding, cut and batched differently".into());
    }
    let expected = Expected::of(row, known, brought);
    let (drafts, rounds) = (stats.drafted.iter().sum::<usize>(), at(&stats.drafted, 0));
    if drafts == 0 {
        return no("no draft was verified".into());
    }
    if row.drafts == Drafts::Auto {
        return yes(format!("{drafts} drafts in {rounds} rounds, as the policy picked"));
    }
    if (drafts, rounds) != (expected.drafts, expected.rounds) {
        let (want, of) = (expected.drafts, expected.rounds);
        return no(format!("{drafts} drafts in {rounds} rounds were verified, of {want} in {of}"));
    }
    let missing = |most: usize| (0..=most).find(|length| of_length(stats, *length) == 0);
    let most = row.drafts.most();
    let rejected = stats.reached.iter().sum::<usize>() - stats.accepted.iter().sum::<usize>();
    match row.proposer {
        Proposer::Nobody => no("drafts without anybody to make them".into()),
        Proposer::Mtp => {
            let (accepted, alone) = (at(&stats.accepted, 0), expected.first_right);
            let [rate, alone] = [accepted, alone].map(|n| 100.0 * n as f64 / rounds as f64);
            let why = format!("{rate:.1} % of first drafts accepted, the head alone {alone:.1} %");
            if expected.silent > 0 {
                return no(format!(
                    "the head alone makes no draft in {} of {rounds} places",
                    expected.silent
                ));
            }
            Counted { counts: (rate - alone).abs() <= POINTS, why }
        }
        Proposer::AllRight => {
            let (ends, full) = (brought.streamed.len(), of_length(stats, most));
            let why = format!("all right by design: {full} full blocks, {rejected} cut by an end");
            // An end may cut one block of each request.
            Counted { counts: full > 0 && rejected <= ends, why }
        }
        Proposer::AllWrong => {
            let accepted: usize = stats.accepted.iter().sum();
            Counted { counts: accepted == 0, why: format!("all wrong by design: {accepted} accepted") }
        }
        Proposer::Random => {
            let longest = likely(rounds, most);
            let (accepted, of) = (stats.accepted.iter().sum::<usize>(), f64::from(CHANCE));
            match missing(longest) {
                _ if accepted == 0 => no(format!("no draft accepted at a chance of {of:.1}")),
                None => yes(format!("accept lengths 0 to {longest} at a chance of {of:.1}")),
                Some(length) => no(format!("no round accepted {length} drafts")),
            }
        }
        Proposer::Pattern => match missing(most) {
            None => yes(format!("every accept length, 0 to {most}")),
            Some(length) => no(format!("no round accepted {length} drafts")),
        },
    }
}

/// The longest accept length that has to occur in this many rounds of random drafts.
fn likely(rounds: usize, most: usize) -> usize {
    let chance = f64::from(CHANCE);
    let ends = |length: usize| if length < most { 1.0 - chance } else { 1.0 };
    let expected = |length: usize| rounds as f64 * chance.powi(length as i32) * ends(length);
    (1..=most).take_while(|length| expected(*length) >= LIKELY).last().unwrap_or(0)
}

fn at(counts: &[usize], i: usize) -> usize {
    counts.get(i).copied().unwrap_or(0)
}

/// Rounds with drafts of which exactly this many were accepted.
fn of_length(stats: &Stats, accepted: usize) -> usize {
    let at_least = |n: usize| if n == 0 { at(&stats.drafted, 0) } else { at(&stats.accepted, n - 1) };
    at_least(accepted) - at_least(accepted + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_owes_more_lengths_to_more_rounds() {
        assert_eq!([0, 27, 40, 250].map(|rounds| likely(rounds, 8)), [0, 0, 1, 6]);
        assert_eq!(likely(1000, 2), 2);
    }

    #[test]
    fn accept_lengths_come_from_the_counts() {
        let mut stats = Stats::default();
        for tokens in [4, 1, 2, 4] {
            stats.round(3, tokens);
        }
        stats.round(0, 1);
        assert_eq!([0, 1, 2, 3].map(|n| of_length(&stats, n)), [1, 1, 0, 2]);
    }
}

//! What can vary between two runs that must not differ: one configuration, and sets of them.

use super::cover;
use crate::{Pace, Sampling, draft::DraftLength};
use serde::{Serialize, Serializer};
use std::fmt;

/// Drafts of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drafts {
    /// The same number in every round; 0 is plain decoding.
    Fixed(usize),
    /// Another number in every round, sometimes none.
    Changing,
    /// What the engine's policy picks, from times that are never the same.
    Auto,
}

/// The numbers of [`Drafts::Changing`]: none, one after the other and after many, and all of a block.
const CHANGING: [usize; 8] = [0, 3, 1, 8, 0, 0, 5, 2];

impl Drafts {
    /// The engine's option.
    pub fn length(self) -> DraftLength {
        match self {
            Drafts::Fixed(k) => DraftLength::Fixed(k),
            Drafts::Changing => DraftLength::Cycle(CHANGING.to_vec()),
            Drafts::Auto => DraftLength::Auto,
        }
    }

    /// The most of any round.
    pub fn most(self) -> usize {
        self.length().most()
    }
}

impl fmt::Display for Drafts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Drafts::Fixed(k) => f.pad(&k.to_string()),
            Drafts::Changing => f.pad("changing"),
            Drafts::Auto => f.pad("auto"),
        }
    }
}

/// What proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proposer {
    /// Nothing: plain decoding.
    Nobody,
    /// The checkpoint's draft head.
    Mtp,
    /// A script: every draft is right.
    AllRight,
    /// A script: every draft is wrong.
    AllWrong,
    /// A script: each draft is right with a chance of 0.7.
    Random,
    /// A script: every accept length, one after the other.
    Pattern,
}

/// The chance of a draft of [`Proposer::Random`] to be right.
pub(super) const CHANCE: f32 = 0.7;

impl fmt::Display for Proposer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Proposer::Nobody => "none",
            Proposer::Mtp => "mtp",
            Proposer::AllRight => "all right",
            Proposer::AllWrong => "all wrong",
            Proposer::Random => "random",
            Proposer::Pattern => "pattern",
        })
    }
}

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// The largest logit.
    Greedy,
    /// From the model's own distribution.
    Sampled,
    /// With a temperature, top-k and top-p.
    Filtered,
    /// With all penalties, a bias, min-p and a high temperature.
    Penalised,
}

impl Choice {
    /// The parameters for request `index`; each request has its own seed.
    pub fn sampling(self, index: usize) -> Sampling {
        let seed = (77 << 32) + index as u64;
        let off = Sampling { seed, ..Sampling::default() };
        match self {
            Choice::Greedy => off,
            Choice::Sampled => Sampling { temperature: 1.0, ..off },
            Choice::Filtered => Sampling { temperature: 0.8, top_k: 20, top_p: 0.95, ..off },
            Choice::Penalised => Sampling {
                temperature: 1.2,
                min_p: 0.05,
                repetition_penalty: 1.2,
                presence_penalty: 0.5,
                frequency_penalty: 0.2,
                bias: vec![(0, f32::NEG_INFINITY), (1, -2.0), (13, 1.5)],
                ..off
            },
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Choice::Greedy => "greedy",
            Choice::Sampled => "sampled",
            Choice::Filtered => "filtered",
            Choice::Penalised => "penalised",
        })
    }
}

/// Prompt tokens of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Chunk {
    /// At most this many.
    Rows(usize),
    /// All there are.
    Whole,
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chunk::Rows(rows) => f.pad(&rows.to_string()),
            Chunk::Whole => f.pad("whole"),
        }
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Pace::Wait => "wait",
            Pace::Ahead => "ahead",
            Pace::Recorded => "recorded",
        })
    }
}

macro_rules! as_text {
    ($($name:ident),*) => { $(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
    )* };
}
as_text!(Drafts, Proposer, Choice, Chunk, Pace);

/// One configuration: a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Row {
    /// Drafts of a round.
    pub drafts: Drafts,
    /// What proposes them.
    pub proposer: Proposer,
    /// Sequences that are live at once.
    pub batch: usize,
    /// How tokens are chosen.
    pub choice: Choice,
    /// Tokens that may be pending in the GDN journal before the state is written.
    pub flush_after: usize,
    /// Prompt tokens of a pass.
    pub chunk: Chunk,
    /// Whether rounds carry a sequence and a row that are nobody's.
    pub padded: bool,
    /// How the host keeps up with the device.
    pub pace: Pace,
}

const DRAFTS: [Drafts; 11] = {
    use Drafts::{Auto, Changing, Fixed};
    [
        Fixed(1),
        Fixed(2),
        Fixed(3),
        Fixed(4),
        Fixed(5),
        Fixed(6),
        Fixed(7),
        Fixed(8),
        Fixed(15),
        Changing,
        Auto,
    ]
};
const PROPOSERS: [Proposer; 5] =
    [Proposer::Mtp, Proposer::AllRight, Proposer::AllWrong, Proposer::Random, Proposer::Pattern];
const BATCHES: [usize; 3] = [1, 3, 8];
const CHOICES: [Choice; 4] = [Choice::Greedy, Choice::Sampled, Choice::Filtered, Choice::Penalised];
const FLUSHES: [usize; 3] = [0, 2, 6];
const CHUNKS: [Chunk; 4] = [Chunk::Rows(1), Chunk::Rows(7), Chunk::Rows(64), Chunk::Whole];

const PACES: [Pace; 3] = [Pace::Wait, Pace::Ahead, Pace::Recorded];

const SIZES: [usize; 8] = [
    DRAFTS.len(),
    PROPOSERS.len(),
    BATCHES.len(),
    CHOICES.len(),
    FLUSHES.len(),
    CHUNKS.len(),
    2,
    PACES.len(),
];

impl Row {
    fn of(at: &[usize]) -> Self {
        Row {
            drafts: DRAFTS[at[0]],
            proposer: PROPOSERS[at[1]],
            batch: BATCHES[at[2]],
            choice: CHOICES[at[3]],
            flush_after: FLUSHES[at[4]],
            chunk: CHUNKS[at[5]],
            padded: at[6] == 1,
            pace: PACES[at[7]],
        }
    }
}

/// Every pair of values of two columns in at least one row; always the same rows.
pub(super) fn pairs() -> Vec<Row> {
    let mut rows: Vec<Row> = cover::pairs(&SIZES, 3).iter().map(|at| Row::of(at)).collect();
    rows.sort();
    rows
}

/// Every combination.
pub(super) fn product() -> Vec<Row> {
    let count: usize = SIZES.iter().product();
    let row = |mut n: usize| {
        let at: Vec<usize> = SIZES
            .iter()
            .map(|size| {
                let value = n % size;
                n /= size;
                value
            })
            .collect();
        Row::of(&at)
    };
    (0..count).map(row).collect()
}

/// Every value of every column in at least one row, with the pairs in which faults like to hide.
pub(super) fn each() -> Vec<Row> {
    use Choice::{Filtered, Greedy, Penalised, Sampled};
    use Chunk::{Rows, Whole};
    use Drafts::{Auto, Changing, Fixed};
    use Pace::{Ahead, Recorded, Wait};
    use Proposer::{AllRight, AllWrong, Mtp, Pattern, Random};
    let row = |drafts, proposer, batch, choice, flush_after, chunk, padded, pace| Row {
        drafts,
        proposer,
        batch,
        choice,
        flush_after,
        chunk,
        padded,
        pace,
    };
    vec![
        row(Fixed(1), Mtp, 1, Penalised, 2, Rows(64), true, Recorded),
        row(Fixed(2), Pattern, 3, Sampled, 2, Whole, false, Wait),
        row(Fixed(3), AllRight, 3, Greedy, 0, Rows(7), true, Ahead),
        row(Fixed(4), Mtp, 8, Greedy, 6, Rows(7), false, Recorded),
        row(Fixed(5), AllWrong, 8, Penalised, 0, Rows(64), false, Wait),
        row(Fixed(6), Mtp, 3, Sampled, 0, Rows(1), false, Ahead),
        row(Fixed(7), Random, 8, Filtered, 6, Whole, true, Wait),
        row(Fixed(8), AllRight, 1, Filtered, 2, Rows(1), false, Recorded),
        row(Fixed(15), AllRight, 8, Sampled, 6, Rows(7), false, Ahead),
        row(Changing, Mtp, 3, Filtered, 2, Whole, true, Recorded),
        row(Auto, Mtp, 3, Greedy, 6, Rows(64), false, Recorded),
    ]
}

/// For models of a real size, where a row takes seconds: the pairs that matter most.
pub(super) fn geometry() -> Vec<Row> {
    use Choice::{Filtered, Greedy};
    use Drafts::{Auto, Fixed};
    use Pace::{Ahead, Recorded, Wait};
    use Proposer::{Mtp, Nobody, Pattern, Random};
    let row = |drafts, proposer, batch, choice, flush_after, pace| Row {
        drafts,
        proposer,
        batch,
        choice,
        flush_after,
        chunk: Chunk::Rows(96),
        padded: false,
        pace,
    };
    vec![
        row(Fixed(0), Nobody, 3, Greedy, 2, Recorded),
        row(Fixed(0), Nobody, 8, Filtered, 0, Ahead),
        row(Fixed(1), Mtp, 8, Greedy, 2, Recorded),
        row(Fixed(2), Mtp, 3, Greedy, 3, Recorded),
        row(Fixed(3), Mtp, 8, Filtered, 2, Ahead),
        row(Fixed(4), Mtp, 8, Greedy, 6, Recorded),
        row(Fixed(1), Pattern, 8, Greedy, 0, Recorded),
        row(Fixed(2), Pattern, 8, Filtered, 2, Recorded),
        row(Fixed(3), Random, 3, Greedy, 3, Wait),
        row(Fixed(4), Pattern, 8, Greedy, 2, Recorded),
        row(Auto, Mtp, 8, Greedy, 2, Recorded),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The columns of a row as text.
    fn columns(row: &Row) -> [String; 8] {
        [
            row.drafts.to_string(),
            row.proposer.to_string(),
            row.batch.to_string(),
            row.choice.to_string(),
            row.flush_after.to_string(),
            row.chunk.to_string(),
            row.padded.to_string(),
            row.pace.to_string(),
        ]
    }

    fn values(rows: &[Row], column: usize) -> std::collections::BTreeSet<String> {
        rows.iter().map(|row| columns(row)[column].clone()).collect()
    }

    #[test]
    fn every_pair_of_values_stands_in_a_row() {
        let (rows, all) = (pairs(), product());
        assert_eq!(rows, pairs(), "always the same rows");
        assert_eq!(all.len(), 47_520);
        for a in 0..8 {
            for b in a + 1..8 {
                for x in values(&all, a) {
                    for y in values(&all, b) {
                        let has = |row: &Row| columns(row)[a] == x && columns(row)[b] == y;
                        assert!(rows.iter().any(has), "no row has {x} with {y}");
                    }
                }
            }
        }
        // Eleven numbers of drafts with five proposers are the most pairs of two columns.
        assert!((55..=66).contains(&rows.len()), "{} rows", rows.len());
    }

    #[test]
    fn the_quick_rows_have_every_value() {
        let (rows, all) = (each(), product());
        for column in 0..8 {
            assert_eq!(values(&rows, column), values(&all, column));
        }
    }
}

//! The table.

use super::{
    count::{Counted, count},
    drive::{Brought, Differs, What},
    reference::Known,
    row::{Drafts, Proposer, Row},
    watch::TopTwo,
};
use crate::{stats::Stats, text::Tokenizer};
use serde::Serialize;
use std::fmt;

/// One configuration and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct RowReport {
    /// The configuration; none for plain decoding of the word problems, which the others are compared with.
    pub row: Option<Row>,
    /// The first difference.
    pub differs: Option<Differs>,
    /// The same in words.
    pub difference: Option<String>,
    /// Whether the row proves anything.
    pub counted: Counted,
    /// Counts of its requests.
    pub stats: Stats,
    /// States compared.
    pub states: usize,
    /// Requests that left in the middle, beside those compared.
    pub aborted: usize,
    /// Of the word problems: right answers, problems, right answers wanted.
    pub words: Option<[usize; 3]>,
}

/// All rows.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// In the order of the plan, the word problems last.
    pub rows: Vec<RowReport>,
    /// Prompts of each row.
    pub prompts: usize,
    /// Tokens after each.
    pub tokens: usize,
    /// Wall time.
    pub seconds: f64,
}

impl RowReport {
    pub(super) fn of(row: &Row, known: &[Known], brought: Brought, tokenizer: &Tokenizer) -> Self {
        let counted = count(row, known, &brought);
        let Brought { differs, stats, states, aborted, .. } = brought;
        let difference = differs.as_ref().map(|differs| in_words(differs, tokenizer));
        RowReport { row: Some(*row), differs, difference, counted, stats, states, aborted, words: None }
    }

    /// Plain decoding of the word problems.
    pub(super) fn words(right: usize, of: usize, wanted: usize) -> Self {
        let counted = Counted { counts: true, why: "what the next rows are compared with".into() };
        RowReport {
            row: None,
            differs: None,
            difference: None,
            counted,
            stats: Stats::default(),
            states: 0,
            aborted: 0,
            words: Some([right, of, wanted]),
        }
    }

    pub(super) fn scored(self, right: usize, of: usize, wanted: usize) -> Self {
        RowReport { words: Some([right, of, wanted]), ..self }
    }

    /// Identical, counted, and enough words right.
    pub fn passed(&self) -> bool {
        let words = self.words.is_none_or(|[right, _, wanted]| right >= wanted);
        self.differs.is_none() && self.counted.counts && words
    }
}

impl Report {
    /// Whether every row passed.
    pub fn passed(&self) -> bool {
        self.rows.iter().all(RowReport::passed)
    }
}

fn in_words(differs: &Differs, tokenizer: &Tokenizer) -> String {
    let name = |id: u32| format!("{:?} ({id})", String::from_utf8_lossy(tokenizer.bytes(id)));
    let chosen = |id: &Option<u32>| id.map_or_else(|| "nothing more".to_owned(), name);
    let best = |top: &Option<TopTwo>| match top {
        None => "unknown".to_owned(),
        Some(top) => {
            let [a, b] = top.ids.map(name);
            format!("{a} {:.4} and {b} {:.4}, margin {:.4}", top.logits[0], top.logits[1], top.margin())
        }
    };
    let what = match &differs.what {
        What::Token { index, position, plain, here, plain_top, here_top } => format!(
            "token {index} of the answer (position {position}) is {} instead of {}; the best two logits there: \
             plainly {}; here {}",
            chosen(here),
            chosen(plain),
            best(plain_top),
            best(here_top)
        ),
        What::Finish { plain, here, error } => {
            let error = error.as_ref().map_or_else(String::new, |error| format!(" ({error})"));
            format!("ends with {here:?}{error} instead of {plain:?}")
        }
        What::State { committed, memory } => {
            format!("after {committed} committed tokens the state differs: {memory}")
        }
        What::Endless => "does not end".to_owned(),
    };
    format!("request {}: {what}", differs.request)
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { drafts, proposer, batch, choice, flush_after, chunk, padded, pace } = self;
        let padding = if *padded { "padded" } else { "" };
        // Columns of the table; as a sentence in messages the spaces do not matter.
        write!(
            f,
            "{drafts:>8}  {proposer:<9}  {batch:>5}  {choice:<9}  {flush_after:>5}  {chunk:>6}  {padding:<7}  {pace:<8}"
        )
    }
}

/// Acceptance by position is shown for this many.
const POSITIONS: usize = 4;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>8}  {:<9}  {:>5}  {:<9}  {:>5}  {:>6}  {:<7}  {:<8}  {:<9}  {:>6}  {:>6}  {:>6}  {:<19}  counted",
            "drafts",
            "drafter",
            "batch",
            "choice",
            "flush",
            "chunk",
            "padding",
            "pace",
            "result",
            "states",
            "rounds",
            "drafts",
            "accepted, % by pos."
        )?;
        for report in &self.rows {
            match &report.row {
                Some(row) => write!(f, "{row}")?,
                None => write!(f, "{:>8}  {:<9}  {:>5}  {:<52}", 0, "none", 8, "greedy")?,
            }
            let stats = &report.stats;
            let acceptance = stats.acceptance();
            let shown: Vec<String> =
                acceptance.iter().take(POSITIONS).map(|a| format!("{:.0}", 100.0 * a)).collect();
            let more = if acceptance.len() > POSITIONS { " ..." } else { "" };
            let result = match (&report.row, &report.differs) {
                (None, _) => "reference",
                (_, None) => "identical",
                _ => "DIFFERS",
            };
            write!(
                f,
                "  {result:<9}  {:>6}  {:>6}  {:>6}  {:<19}  {}{}",
                report.states,
                stats.rounds,
                stats.drafted.iter().sum::<usize>(),
                shown.join(" ") + more,
                if report.counted.counts { "yes: " } else { "NO: " },
                report.counted.why
            )?;
            if let Some([right, of, wanted]) = report.words {
                let verdict = if right >= wanted { "" } else { ", TOO FEW" };
                write!(f, "; word problems: {right} of {of} right{verdict}")?;
            }
            writeln!(f)?;
            if let Some(difference) = &report.difference {
                writeln!(f, "          {difference}")?;
            }
        }
        let failed = self.rows.iter().filter(|row| !row.passed()).count();
        let states: usize = self.rows.iter().map(|row| row.states).sum();
        let drafts: usize = self.rows.iter().flat_map(|row| &row.stats.drafted).sum();
        let plain = |row: &&RowReport| {
            row.row.is_some_and(|r| r.drafts == Drafts::Fixed(0) && r.proposer == Proposer::Nobody)
        };
        write!(
            f,
            "\n{} rows ({} of them plain decoding, cut and batched differently), {} prompts x {} tokens, {drafts} drafts \
             verified, {states} states compared, {:.0} s: ",
            self.rows.len(),
            self.rows.iter().filter(plain).count(),
            self.prompts,
            self.tokens,
            self.seconds
        )?;
        match failed {
            0 => writeln!(f, "every row is identical to plain decoding"),
            n => writeln!(f, "{n} FAILED"),
        }
    }
}

//! The first claim, tried: speculation cannot change the output, not by one bit.
//!
//! [`run`] decodes the same requests plainly (one at a time, no drafts, whole prompts) and in every
//! configuration of a [`Plan`], and compares token streams, the reasons why they end, and
//! [digests](crate::round::Digest) of the committed state, on the way and at the end, byte for byte. A row
//! that is identical counts only if it verified what it was to verify.

mod across;
mod count;
mod cover;
mod drive;
mod lab;
mod reference;
mod report;
mod row;
mod watch;
mod words;

pub use across::{Across, Divergence, across};
pub use count::Counted;
pub use drive::{Differs, What};
pub use reference::States;
pub use report::{Report, RowReport};
pub use row::{Choice, Chunk, Drafts, Proposer, Row};
pub use watch::TopTwo;

use crate::{
    Error, Pace, Request, Result,
    cache::Limits,
    config::Config,
    model::{Context, EngineBackend, Model},
    text::Tokenizer,
};
use kernels_core::Activation;
use lab::Lab;
use reference::{How, Known};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Instant,
};

/// Word problems there are.
pub const WORDS: usize = 200;

/// What to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The configurations.
    pub rows: Vec<Row>,
    /// Prompts of [`prompts`], at most 16.
    pub prompts: usize,
    /// Tokens after each prompt.
    pub tokens: usize,
    /// Word problems, at most 200; plain, with 3 and with 8 drafts, in batches of 8.
    pub words: usize,
    /// Sequences at once in the reference.
    pub reference_batch: usize,
    /// Which states are compared.
    pub states: States,
}

impl Plan {
    /// A covering array: every pair of values of two columns.
    pub fn pairs() -> Self {
        let rows = plain_rows().chain(row::pairs()).collect();
        Plan { rows, prompts: 16, tokens: 48, words: 200, reference_batch: 1, states: States::All }
    }

    /// Every combination.
    pub fn full() -> Self {
        Plan { rows: plain_rows().chain(row::product()).collect(), ..Plan::pairs() }
    }

    /// Every value of every column, few prompts and short answers.
    pub fn quick() -> Self {
        let rows = plain_rows().take(1).chain(row::each()).collect();
        Plan { rows, prompts: 6, tokens: 24, words: 16, ..Plan::pairs() }
    }

    /// A few rows with many tokens, for a model of a real size: plain decoding in other batches, every k up to 4
    /// with the head, and scripts of every accept length.
    pub fn geometry() -> Self {
        Plan {
            rows: row::geometry(),
            prompts: 8,
            tokens: 512,
            words: 0,
            reference_batch: 8,
            states: States::Last,
        }
    }
}

/// Plain decoding against itself: prompts cut in every way, among others and with padding.
fn plain_rows() -> impl Iterator<Item = Row> {
    let chunks = [Chunk::Rows(7), Chunk::Rows(1), Chunk::Rows(64), Chunk::Whole];
    use Pace::{Ahead, Recorded, Wait};
    let rows = chunks.into_iter().zip([(3, 2, Recorded), (8, 0, Ahead), (8, 6, Recorded), (3, 0, Wait)]);
    rows.map(|(chunk, (batch, flush_after, pace))| Row {
        drafts: Drafts::Fixed(0),
        proposer: Proposer::Nobody,
        batch,
        choice: Choice::Sampled,
        flush_after,
        chunk,
        padded: chunk != Chunk::Whole,
        pace,
    })
}

/// The prompts: beginnings of stories, code and documentation. Two of them stand behind a preface that is
/// longer than a prompt pass of 64 tokens and than the keys that attention takes at a time.
pub fn prompts() -> Vec<String> {
    const PROMPTS: &str = include_str!("../../../assets/tiny-qwen35-mtp/prompts.json");
    let mut prompts: Vec<String> = serde_json::from_str(PROMPTS).expect("the file is a list of texts");
    let preface = prompts.join("\n\n") + "\n\n";
    for i in [2, 11] {
        prompts[i].insert_str(0, &preface);
    }
    prompts
}

/// Runs a plan; `progress` hears what is being done, how many things are done and how many there are.
pub fn run<B: EngineBackend, A: Activation>(
    context: Context<B>,
    model: Model<B, A>,
    tokenizer: &Tokenizer,
    plan: &Plan,
    mut progress: impl FnMut(&str, usize, usize),
) -> Result<Report> {
    let started = Instant::now();
    check(plan, model.config(), model.has_mtp())?;
    let vocab = model.valid_vocab();
    let prompts: Vec<Vec<u32>> =
        prompts().iter().take(plan.prompts).map(|text| tokenizer.encode(text)).collect::<Result<_>>()?;
    let mut lab = Lab::new(context, model);
    let words = if plan.words > 0 { word_rows().len() + 1 } else { 0 };
    let (mut done, all) = (0, plan.rows.len() + words);
    let mut references: BTreeMap<Choice, Vec<Known>> = BTreeMap::new();
    let mut rows = Vec::new();
    for row in &plan.rows {
        let known = match references.entry(row.choice) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                progress(&format!("plain decoding, {}", row.choice), done, all);
                let drafts = |r: &Row| r.proposer == Proposer::Mtp && r.choice == row.choice;
                let listen = plan.rows.iter().any(drafts);
                place.insert(reference(&mut lab, &prompts, plan, row.choice, listen)?)
            }
        };
        progress(&row.to_string(), done, all);
        rows.push(RowReport::of(
            row,
            known,
            drive::run(&mut lab, row, known, vocab, plan.states)?,
            tokenizer,
        ));
        done += 1;
    }
    if plan.words > 0 {
        progress("word problems, plain", done, all);
        let problems = words::problems(plan.words);
        let requests = words::requests(tokenizer, &problems)?;
        let known =
            reference::decode(&mut lab, requests, How { batch: 8, states: States::Last, listen: true })?;
        let required = words::required(problems.len());
        let score = |answers: &mut dyn Iterator<Item = &[u32]>| words::right(tokenizer, &problems, answers);
        rows.push(RowReport::words(score(&mut words::plain_answers(&known)), problems.len(), required));
        done += 1;
        for row in word_rows() {
            progress(&format!("word problems, {row}"), done, all);
            let brought = drive::run(&mut lab, &row, &known, vocab, States::All)?;
            let right = score(&mut brought.streamed.iter().map(|s| &s.tokens[..]));
            let report = RowReport::of(&row, &known, brought, tokenizer);
            rows.push(report.scored(right, problems.len(), required));
            done += 1;
        }
    }
    Ok(Report { rows, prompts: prompts.len(), tokens: plan.tokens, seconds: started.elapsed().as_secs_f64() })
}

/// What the engines of a plan hold at most, one after the other.
pub fn limits(plan: &Plan, tokenizer: &Tokenizer) -> Result<Limits> {
    let mut requests = Vec::new();
    for text in prompts().iter().take(plan.prompts) {
        requests.push(Request::greedy(tokenizer.encode(text)?, plan.tokens));
    }
    let mut rows = plan.rows.clone();
    if plan.words > 0 {
        requests.extend(words::requests(tokenizer, &words::problems(plan.words))?);
        rows.extend(word_rows());
    }
    let most = |of: fn(&Row) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let slots = most(|row| row.batch + usize::from(row.padded)).max(1);
    Ok(Limits {
        max_drafts: most(|row| row.drafts.most()),
        flush_after: most(|row| row.flush_after),
        draft_head: rows.iter().any(|row| row.proposer == Proposer::Mtp),
        ..lab::limits(requests.iter(), slots)
    })
}

/// How the word problems are decoded, beside plainly.
fn word_rows() -> Vec<Row> {
    let row = |k| Row {
        drafts: Drafts::Fixed(k),
        proposer: Proposer::Mtp,
        batch: 8,
        choice: Choice::Greedy,
        flush_after: 2,
        chunk: Chunk::Whole,
        padded: false,
        pace: Pace::Recorded,
    };
    vec![row(3), row(8)]
}

fn check(plan: &Plan, config: &Config, has_mtp: bool) -> Result<()> {
    if plan.rows.is_empty() && plan.words == 0 {
        return Err(Error::limit("rows", "an empty list", "name at least one configuration"));
    }
    if plan.prompts == 0 || plan.tokens == 0 {
        let remedy = "parity compares what follows prompts: give at least 1 prompt and 1 token";
        return Err(Error::limit(
            "prompts and tokens",
            format!("{} and {}", plan.prompts, plan.tokens),
            remedy,
        ));
    }
    if !has_mtp && (plan.words > 0 || plan.rows.iter().any(|row| row.proposer == Proposer::Mtp)) {
        let remedy = "this checkpoint has no MTP head; take one that has, or leave rows with it out";
        return Err(Error::limit("drafter", "mtp", remedy));
    }
    // The longest prompt stays far below this in any tokenizer.
    const PROMPT: usize = 2048;
    if plan.tokens.saturating_add(PROMPT) > config.max_positions {
        let remedy = format!("the model was made for at most {} positions", config.max_positions);
        return Err(Error::limit("tokens", plan.tokens, remedy));
    }
    Ok(())
}

/// Plain decoding of the prompts. Every fourth request ends at a stop sequence.
fn reference<B: EngineBackend, A: Activation>(
    lab: &mut Lab<B, A>,
    prompts: &[Vec<u32>],
    plan: &Plan,
    choice: Choice,
    listen: bool,
) -> Result<Vec<Known>> {
    let request = |(i, prompt): (usize, &Vec<u32>)| Request {
        sampling: choice.sampling(i),
        ..Request::greedy(prompt.clone(), plan.tokens)
    };
    let mut requests: Vec<Request> = prompts.iter().enumerate().map(request).collect();
    // A stop has to be something that will come: two tokens from the middle of what comes without it.
    let stopping: Vec<usize> = (0..requests.len()).filter(|i| i % 4 == 3).collect();
    if !stopping.is_empty() {
        let free = stopping.iter().map(|&i| requests[i].clone()).collect();
        let how = How { batch: plan.reference_batch, states: States::Last, listen: false };
        let free = reference::decode(lab, free, how)?;
        for (&i, free) in stopping.iter().zip(&free) {
            let middle = free.tokens.len() / 2;
            if middle >= 2 {
                requests[i].stop = vec![free.tokens[middle - 1..=middle].to_vec()];
            }
        }
    }
    let how = How { batch: plan.reference_batch, states: plan.states, listen };
    reference::decode(lab, requests, how)
}

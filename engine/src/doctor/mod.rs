//! Is the draft head weak, or is its wiring wrong?
//!
//! A drafter cannot change the output, so a fault in how it is fed shows nowhere but in speed, and is blamed
//! on the model. [`examine`] tells the two apart: it walks the head by itself along texts that the target
//! wrote, watches the engine draft for the same texts, and compares them draft by draft, with the head fed as
//! published and in every wrong way of [`Wiring`].

mod head;
mod record;
mod verdict;
mod walk;
mod wiring;

pub use verdict::{Measures, Rate, Verdict, Wired};
pub use wiring::Wiring;

use crate::{
    Engine, Error, Finish, Pace, Request, Result,
    cache::{Limits, MAX_DRAFTS},
    draft::DraftLength,
    model::{Context, EngineBackend, Model},
    request::RequestId,
    round::Core,
    stats::Stats,
};
use head::Head;
use kernels_core::Activation;
use record::{Proposal, Recorder};
use serde::Serialize;
use std::{collections::BTreeMap, sync::PoisonError};
use walk::{Anchor, Text, everywhere, walk};

/// How much to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Drafts per round, and depths of the head.
    pub drafts: usize,
    /// Tokens that the target writes after each prompt, at most.
    pub tokens: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { drafts: 3, tokens: 48 }
    }
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Places where the head was asked by itself.
    pub places: usize,
    /// Rounds of the engine that had drafts.
    pub rounds: usize,
    /// The numbers.
    pub measures: Measures,
    /// What they say.
    pub verdict: Verdict,
    /// The same in words.
    pub line: String,
}

/// Fewer places than this say nothing about a rate.
const FEWEST_PLACES: usize = 30;
/// The most prompt tokens that are computed in one pass.
const MOST_PREFILL: usize = 4096;

/// Prompts of several kinds, for want of the user's own: beginnings of stories, code, documentation, and word
/// problems.
pub fn prompts() -> Vec<String> {
    const PROMPTS: &str = include_str!("../../../assets/tiny-qwen35-mtp/prompts.json");
    const PROBLEMS: &str = include_str!("../../../assets/tiny-qwen35-mtp/problems.jsonl");
    let mut prompts: Vec<String> = serde_json::from_str(PROMPTS).expect("the file is a list of texts");
    let problem = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("each line is an object");
        line["prompt"].as_str().expect("with a prompt").to_owned()
    };
    prompts.extend(PROBLEMS.lines().take(8).map(problem));
    prompts
}

/// Examines the head of `model` with what the target writes after each of `prompts`.
pub fn examine<B: EngineBackend, A: Activation>(
    context: Context<B>,
    model: Model<B, A>,
    prompts: &[Vec<u32>],
    options: &Options,
) -> Result<Report> {
    let depth = options.drafts;
    if !(1..=MAX_DRAFTS).contains(&depth) {
        return Err(Error::limit("drafts", depth, format!("the doctor looks at 1 to {MAX_DRAFTS}")));
    }
    if !model.has_mtp() {
        return Err(Error::limit("drafter", "mtp", "this checkpoint has no MTP head to examine"));
    }
    if prompts.is_empty() {
        return Err(Error::limit("prompts", "an empty list", "give the doctor a text to look at"));
    }
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let positions =
        longest.saturating_add(options.tokens).saturating_add(1).min(model.config().max_positions);
    let mut limits = Limits {
        slots: prompts.len(),
        positions,
        page_rows: 64,
        pages: 0,
        max_drafts: depth,
        flush_after: 2,
        // Whole prompts in one pass, where that is not out of proportion.
        prefill_rows: prompts.iter().map(Vec::len).sum::<usize>().clamp(1, MOST_PREFILL),
        draft_head: true,
    };
    // Nobody waits and no page is used twice: every stream's draft K/V begins empty.
    limits.pages = 1 + limits.slots * limits.pages_for(limits.positions);

    let (recorder, proposals) = Recorder::<A>::new();
    let setup = crate::Options { limits, drafts: DraftLength::Fixed(depth), pace: Pace::Wait };
    let mut engine = Engine::new(context, model, setup, Box::new(recorder))?;
    let (plain, _) = generate(&mut engine, prompts, options.tokens, 0)?;
    let (streams, stats) = generate(&mut engine, prompts, options.tokens, depth)?;
    let proposals = std::mem::take(&mut *proposals.lock().unwrap_or_else(PoisonError::into_inner));
    let changed = plain.values().zip(streams.values()).filter(|(plain, stream)| plain != stream).count();

    let mut core = engine.into_core();
    let texts: Vec<Text<A>> =
        prompts.iter().zip(plain.values()).map(|(p, new)| read(&mut core, p, new)).collect::<Result<_>>()?;
    // Ids ascend in order of submission, so the streams stand in the order of the prompts.
    let none = Vec::new();
    let rounds: Vec<&[Proposal<A>]> =
        streams.keys().map(|id| proposals.get(id).unwrap_or(&none).as_slice()).collect();
    let measures = measure(&core, &texts, &rounds, &stats, depth, changed)?;
    let places = texts.iter().map(|t| everywhere(t).len()).sum();
    if places < FEWEST_PLACES {
        let remedy = format!(
            "a verdict needs at least {FEWEST_PLACES} places to draft from: give more text, or more tokens"
        );
        return Err(Error::limit("places", places, remedy));
    }
    let verdict = Verdict::of(&measures);
    let rounds = rounds.iter().map(|r| r.len()).sum();
    Ok(Report { places, rounds, line: verdict.line(&measures), verdict, measures })
}

/// What the engine emits after each prompt with `drafts` drafts, and the counts of these requests.
fn generate<B: EngineBackend, A: Activation>(
    engine: &mut Engine<B, A>,
    prompts: &[Vec<u32>],
    tokens: usize,
    drafts: usize,
) -> Result<(BTreeMap<RequestId, Vec<u32>>, Stats)> {
    let mut streams = BTreeMap::new();
    for prompt in prompts {
        let request = Request { drafts: Some(drafts), ..Request::greedy(prompt.clone(), tokens) };
        streams.insert(engine.submit(request)?, Vec::new());
    }
    let mut stats = Stats::default();
    while !engine.is_idle() {
        for event in engine.step()? {
            streams.entry(event.request).or_default().extend(event.tokens);
            let Some(end) = event.end else { continue };
            stats.add(&end.stats);
            if end.finish == Finish::Failed {
                let what = end.error.unwrap_or_else(|| "failed".into());
                return Err(Error::request("text", what, "this is a defect of lockstep; please report it"));
            }
        }
    }
    Ok((streams, stats))
}

/// Has the target read a text, which yields its hidden rows.
fn read<B: EngineBackend, A: Activation>(
    core: &mut Core<B, A>,
    prompt: &[u32],
    new: &[u32],
) -> Result<Text<A>> {
    let tokens = [prompt, new].concat();
    let width = core.model().config().hidden;
    let mut text = Text { prompt: prompt.len(), width, hidden: Vec::new(), residual: Vec::new(), tokens };
    // The engine is idle, so every slot and every page is free.
    let slot = 0;
    let (positions, chunk) = (core.limits().positions, core.limits().prefill_rows);
    let pages: Vec<u32> = (1..=core.limits().pages_for(text.tokens.len()) as u32).collect();
    core.open(slot, &text.tokens, &Request::greedy(text.tokens.clone(), 1), positions)?;
    core.lend_pages(slot, &pages)?;
    let mut left = text.tokens.len() - 1;
    while left > 0 {
        let rows = left.min(chunk);
        core.prefill(&[(slot, rows)], None)?;
        text.residual.extend(core.residual(rows)?);
        text.hidden.extend(core.hidden(rows)?);
        left -= rows;
    }
    core.close(slot)?;
    Ok(text)
}

fn measure<B: EngineBackend, A: Activation>(
    core: &Core<B, A>,
    texts: &[Text<A>],
    rounds: &[&[Proposal<A>]],
    stats: &Stats,
    depth: usize,
    changed: usize,
) -> Result<Measures> {
    let anchors: Vec<Vec<Anchor<A>>> = rounds
        .iter()
        .zip(texts)
        .map(|(rounds, text)| {
            let known = rounds.iter().map(|r| r.anchor.clone()).filter(|a| a.at + 1 < text.tokens.len());
            known.collect()
        })
        .collect();
    let all: Vec<Vec<Anchor<A>>> = texts.iter().map(everywhere).collect();
    // The most rows of a pass: every text's whole prompt, or what a round may accept.
    let rows = texts.iter().map(|t| (t.prompt + 1).max(depth + 2)).sum();
    let positions = core.limits().positions;
    let mut head = Head::new(core.context(), core.model(), texts.len(), positions, rows)?;

    let nothing = || vec![Rate::default(); depth];
    let (mut expected, mut right) = (nothing(), nothing());
    let (mut target_earlier, mut target_later) = (nothing(), nothing());
    let mut wirings = Vec::new();
    for wiring in Wiring::ALL {
        let (mut agreement, mut same) = (nothing(), nothing());
        let at = if wiring.follows_rounds() { &anchors } else { &all };
        let drafts = walk(&mut head, texts, at, wiring, depth)?;
        for (t, text) in texts.iter().enumerate() {
            if wiring.follows_rounds() {
                agreement.clear();
            } else {
                for (anchor, drafts) in all[t].iter().zip(&drafts[t]) {
                    agree(&mut agreement, drafts, text, anchor.at + 1);
                    if wiring == Wiring::Published {
                        agree(&mut target_earlier, drafts, text, anchor.at);
                        agree(&mut target_later, drafts, text, anchor.at + 2);
                    }
                }
            }
            for round in rounds[t] {
                // Anchors ascend, and every place is among all of them.
                let Ok(index) = at[t].binary_search_by_key(&round.anchor.at, |a| a.at) else { continue };
                let drafts = &drafts[t][index];
                // A draft for the last place is never verified: no row could choose beyond it.
                let truth = &text.tokens[round.anchor.at + 1..text.tokens.len() - 1];
                compare(&mut same, &round.drafts, drafts, truth);
                if wiring == Wiring::Published {
                    compare(&mut right, &round.drafts, truth, truth);
                    let fed = drafts.len().min(round.drafts.len());
                    compare(&mut expected, &drafts[..fed], truth, truth);
                }
            }
        }
        wirings.push(Wired { wiring, agreement, same });
    }
    let accepted = stats.accepted.iter().chain(std::iter::repeat(&0));
    let accepted =
        stats.reached.iter().zip(accepted).map(|(of, hits)| Rate { hits: *hits, of: *of }).collect();
    let texts = texts.len();
    Ok(Measures { depth, wirings, target_earlier, target_later, expected, right, accepted, changed, texts })
}

/// Counts by depth which drafts are the text's tokens from `from` on.
fn agree<A>(rates: &mut [Rate], drafts: &[u32], text: &Text<A>, from: usize) {
    for (rate, (draft, token)) in rates.iter_mut().zip(drafts.iter().zip(&text.tokens[from..])) {
        rate.count(draft == token);
    }
}

/// Counts by position which of `drafts` are those of `other`, up to the first that is not the `truth`.
fn compare(rates: &mut [Rate], drafts: &[u32], other: &[u32], truth: &[u32]) {
    for (i, (draft, token)) in drafts.iter().zip(truth).enumerate().take(rates.len()) {
        let Some(other) = other.get(i) else { break };
        rates[i].count(draft == other);
        if draft != token {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_drafts_behind_right_ones_compare() {
        let mut rates = vec![Rate::default(); 3];
        compare(&mut rates, &[5, 6, 7], &[5, 9, 7], &[5, 6, 8, 9]);
        compare(&mut rates, &[4, 6, 7], &[4, 6, 7], &[5, 6, 7]);
        compare(&mut rates, &[5, 6], &[5], &[5]);
        assert_eq!(rates, [Rate { hits: 3, of: 3 }, Rate { hits: 0, of: 1 }, Rate { hits: 1, of: 1 }]);
    }

    #[test]
    fn there_are_prompts_of_several_kinds() {
        let prompts = prompts();
        assert_eq!(prompts.len(), 24);
        assert!(prompts.iter().all(|p| !p.is_empty()));
    }
}

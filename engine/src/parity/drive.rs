//! One configuration against the reference: requests that join and leave, compared token by token and state
//! by state.

use super::{
    lab::{Lab, limits},
    reference::{Known, States, Streamed},
    row::{CHANCE, Chunk, Drafts, Proposer, Row},
    watch::{TopTwo, Watch},
};
use crate::{
    Engine, Finish, Pace, Result,
    cache::Limits,
    draft::{Drafter, Mtp, Oracle, Plain, Right, Script, Scripted},
    model::EngineBackend,
    request::RequestId,
    round::{self, Digest},
    stats::Stats,
};
use kernels_core::Activation;
use serde::Serialize;
use std::collections::BTreeMap;

/// How a configuration differed from plain decoding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Differs {
    /// Which request.
    pub request: usize,
    /// What differs.
    pub what: What,
}

/// What differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A token.
    Token {
        /// Its index in the answer.
        index: usize,
        /// Its absolute position.
        position: usize,
        /// What plain decoding chose, if it went on that far.
        plain: Option<u32>,
        /// What was chosen here, if it went on that far.
        here: Option<u32>,
        /// The best two logits there, plainly decoded.
        plain_top: Option<TopTwo>,
        /// The best two logits there, here.
        here_top: Option<TopTwo>,
    },
    /// The reason why it ended.
    Finish {
        /// Plainly decoded.
        plain: Finish,
        /// Here.
        here: Finish,
        /// What was reported.
        error: Option<String>,
    },
    /// The committed state.
    State {
        /// Tokens committed.
        committed: usize,
        /// The first memory that differs.
        memory: round::Difference,
    },
    /// It did not end within any number of steps that makes sense.
    Endless,
}

/// What a configuration brought.
#[derive(Debug)]
pub(super) struct Brought {
    pub(super) differs: Option<Differs>,
    /// Counts of all requests that ran to their ends.
    pub(super) stats: Stats,
    /// States compared.
    pub(super) states: usize,
    /// Requests that left in the middle.
    pub(super) aborted: usize,
    /// By request.
    pub(super) streamed: Vec<Streamed>,
}

/// A request to submit.
#[derive(Clone, Copy, Debug)]
struct Submission {
    /// Which of the known requests.
    of: usize,
    /// It will be aborted: a companion that joins and leaves in the middle.
    leaves: bool,
}

/// After this many requests comes one that leaves again.
const BETWEEN_COMPANIONS: usize = 5;
/// Steps that a companion stays.
const STAY: usize = 3;
/// A state is compared in one of this many steps, and at the end.
const STATE_EVERY: usize = 4;

fn submissions(count: usize) -> Vec<Submission> {
    let mut all = Vec::new();
    for of in 0..count {
        if of % BETWEEN_COMPANIONS == 1 {
            all.push(Submission { of: (of + count / 2) % count, leaves: true });
        }
        all.push(Submission { of, leaves: false });
    }
    all
}

pub(super) fn limits_of(row: &Row, known: &[Known]) -> Limits {
    // With padding one slot more than sequences: there is always room for somebody who is nobody.
    let slots = row.batch + usize::from(row.padded);
    let all = limits(known.iter().map(|known| &known.request), slots);
    Limits {
        max_drafts: row.drafts.most(),
        flush_after: row.flush_after,
        prefill_rows: match row.chunk {
            Chunk::Rows(rows) => rows,
            Chunk::Whole => all.prefill_rows,
        },
        draft_head: row.proposer == Proposer::Mtp,
        ..all
    }
}

fn drafter<B: EngineBackend, A: Activation>(
    row: &Row,
    known: &[Known],
    vocab: usize,
) -> Box<dyn Drafter<B, A>> {
    // Ids ascend from 0 in order of submission.
    let streams = submissions(known.len()).into_iter().enumerate();
    let streams = streams.map(|(id, s)| (RequestId(id as u64), known[s.of].stream())).collect();
    let lengths = || every_length(row.drafts.most());
    const SEED: u64 = 5;
    // A script on the host has to see every pass; where the host runs ahead, the same is made on the device.
    if row.pace == Pace::Wait {
        let script = match row.proposer {
            Proposer::Nobody => return Box::new(Plain),
            Proposer::Mtp => return Box::new(Mtp),
            Proposer::AllRight => Script::AllRight,
            Proposer::AllWrong => Script::AllWrong,
            Proposer::Random => Script::Random { seed: SEED, rate: CHANCE },
            Proposer::Pattern => Script::Pattern(lengths()),
        };
        return Box::new(Scripted::new(script, streams, vocab));
    }
    let right = match row.proposer {
        Proposer::Nobody => return Box::new(Plain),
        Proposer::Mtp => return Box::new(Mtp),
        Proposer::AllRight => Right::Rate(1.0),
        Proposer::AllWrong => Right::Rate(0.0),
        Proposer::Random => Right::Rate(CHANCE),
        Proposer::Pattern => Right::Pattern(lengths()),
    };
    Box::new(Oracle::new(right, SEED, streams))
}

/// All accept lengths in turn, none next to its neighbour: none, all, one, all but one, ...
fn every_length(most: usize) -> Vec<usize> {
    (0..=most).map(|i| if i % 2 == 0 { i / 2 } else { most - i / 2 }).collect()
}

/// Runs a configuration and compares.
pub(super) fn run<B: EngineBackend, A: Activation>(
    lab: &mut Lab<B, A>,
    row: &Row,
    known: &[Known],
    vocab: usize,
    states: States,
) -> Result<Brought> {
    let limits = limits_of(row, known);
    let mut brought =
        lab.engine(limits.clone(), row.drafts.length(), row.pace, drafter(row, known, vocab), |engine| {
            serve(engine, row, known, states)
        })?;
    let Some(Differs { request, what: What::Token { position, plain_top, here_top, .. } }) =
        &mut brought.differs
    else {
        return Ok(brought);
    };
    // The same again with somebody who looks at the logits there; both runs are deterministic.
    let all = submissions(known.len());
    let id = all.iter().position(|s| s.of == *request && !s.leaves).expect("every request is submitted");
    let watch = |inner, id, request: usize| Watch {
        inner,
        request: RequestId(id as u64),
        prompt: known[request].request.prompt.len(),
        position: *position,
        committed: 0,
        seen: Default::default(),
    };
    let here = watch(drafter(row, known, vocab), id, *request);
    let seen = here.seen.clone();
    lab.engine(limits, row.drafts.length(), row.pace, Box::new(here), |engine| {
        serve(engine, row, known, States::Last)
    })?;
    *here_top = seen.take();

    let alone = std::slice::from_ref(&known[*request]);
    let plain = Row {
        drafts: Drafts::Fixed(0),
        proposer: Proposer::Nobody,
        batch: 1,
        chunk: Chunk::Whole,
        padded: false,
        pace: Pace::Wait,
        ..*row
    };
    let looker = watch(Box::new(Plain), 0, *request);
    let seen = looker.seen.clone();
    lab.engine(limits_of(&plain, alone), plain.drafts.length(), plain.pace, Box::new(looker), |engine| {
        engine.submit(alone[0].request.clone())?;
        engine.run().map(|_| ())
    })?;
    *plain_top = seen.take();
    Ok(brought)
}

/// Submits one request a step while there is room, lets companions leave, and compares what comes.
fn serve<B: EngineBackend, A: Activation>(
    engine: &mut Engine<B, A>,
    row: &Row,
    known: &[Known],
    states: States,
) -> Result<Brought> {
    engine.keep_digests(true);
    engine.pad_rounds(usize::from(row.padded));
    let all = submissions(known.len());
    // Where rounds are padded nobody waits, as that would fill the padding's slot.
    let at_once = if row.padded { row.batch } else { row.batch + 1 };
    let work: usize = known.iter().map(|k| k.request.prompt.len() + k.request.max_tokens + STAY).sum();
    let mut streamed: BTreeMap<RequestId, Streamed> = BTreeMap::new();
    let mut leaving: Vec<(usize, RequestId)> = Vec::new();
    let (mut ended, mut step, mut compared) = (0, 0, 0);
    let mut differs = None;
    while ended < all.len() {
        if step > 2 * work + 16 {
            let request = streamed.len().saturating_sub(1).min(known.len() - 1);
            differs = Some(Differs { request, what: What::Endless });
            break;
        }
        if streamed.len() < all.len() && streamed.len() - ended < at_once {
            let next = all[streamed.len()];
            let id = engine.submit(known[next.of].request.clone())?;
            streamed.insert(id, Streamed::new());
            if next.leaves {
                leaving.push((step + STAY, id));
            }
        }
        for (_, id) in leaving.iter().filter(|(at, _)| *at == step) {
            engine.abort(*id)?;
        }
        for event in engine.step()? {
            ended += usize::from(event.end.is_some());
            streamed.get_mut(&event.request).expect("it was submitted").event(event);
        }
        for (&id, streamed) in &mut streamed {
            if states == States::All
                && (step + id.0 as usize).is_multiple_of(STATE_EVERY)
                && let Some(digest) = engine.digest(id)?
            {
                streamed.digests.insert(digest.committed, digest);
            }
        }
        step += 1;
    }
    let mut stats = Stats::default();
    let mut kept = Vec::new();
    for (submission, streamed) in all.iter().zip(streamed.into_values()) {
        if submission.leaves {
            continue;
        }
        let (states, first) = compare(submission.of, &streamed, &known[submission.of]);
        compared += states;
        differs = differs.or(first);
        stats.add(&streamed.stats);
        kept.push(streamed);
    }
    Ok(Brought { differs, stats, states: compared, aborted: leaving.len(), streamed: kept })
}

/// The states that could be compared, and the first difference.
fn compare(request: usize, here: &Streamed, plain: &Known) -> (usize, Option<Differs>) {
    let pairs: Vec<(&Digest, &Digest)> =
        here.digests.iter().filter_map(|(at, digest)| plain.digests.get(at).map(|p| (p, digest))).collect();
    let token = (0..plain.tokens.len().max(here.tokens.len()))
        .find(|&i| plain.tokens.get(i) != here.tokens.get(i))
        .map(|index| What::Token {
            index,
            position: plain.request.prompt.len() + index,
            plain: plain.tokens.get(index).copied(),
            here: here.tokens.get(index).copied(),
            plain_top: None,
            here_top: None,
        });
    let state = || {
        pairs.iter().find_map(|(plain, here)| {
            let committed = here.committed;
            plain.difference(here).map(|memory| What::State { committed, memory })
        })
    };
    let finish = || {
        let (plain, here, error) = (plain.finish, here.finish, here.error.clone());
        (plain != here).then_some(What::Finish { plain, here, error })
    };
    // The end's state must be among those compared.
    let last = || {
        let (Some((&plain, _)), Some((&here, _))) =
            (plain.digests.last_key_value(), here.digests.last_key_value())
        else {
            return None;
        };
        let memory = round::Difference::Committed(plain, here);
        (plain != here).then_some(What::State { committed: here, memory })
    };
    // A request that failed says why, which is more than where its tokens end.
    let failed = here.error.is_some().then(finish).flatten();
    let what = failed.or(token).or_else(finish).or_else(state).or_else(last);
    (pairs.len(), what.map(|what| Differs { request, what }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_every_length_once() {
        assert_eq!(every_length(4), [0, 4, 1, 3, 2]);
        assert_eq!(every_length(1), [0, 1]);
        let mut all = every_length(15);
        all.sort();
        assert_eq!(all, (0..=15).collect::<Vec<_>>());
    }

    #[test]
    fn every_request_is_submitted_once_and_some_companions_leave() {
        let all = submissions(16);
        let staying: Vec<usize> = all.iter().filter(|s| !s.leaves).map(|s| s.of).collect();
        assert_eq!(staying, (0..16).collect::<Vec<_>>());
        assert_eq!(all.len() - 16, 3);
    }
}

//! What plain decoding says: streams, states on the way, and what the head would have drafted.

use super::{
    lab::{Lab, limits},
    watch::Listen,
};
use crate::{
    Error, Finish, Pace, Request, Result,
    cache::Limits,
    draft::{DraftLength, Plain},
    model::EngineBackend,
    request::RequestId,
    round::Digest,
    stats::Stats,
};
use kernels_core::Activation;
use std::collections::BTreeMap;

/// A request and all that is known of it.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) request: Request,
    /// What is generated.
    pub(super) tokens: Vec<u32>,
    pub(super) finish: Finish,
    /// By committed tokens.
    pub(super) digests: BTreeMap<usize, Digest>,
    /// The head's first draft, by committed tokens; empty where nobody listened.
    pub(super) first_drafts: BTreeMap<usize, Option<u32>>,
}

impl Known {
    /// Prompt and answer.
    pub(super) fn stream(&self) -> Vec<u32> {
        [&self.request.prompt[..], &self.tokens].concat()
    }
}

/// Which committed states are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum States {
    /// The reference's after every token, and a part of those of a row.
    All,
    /// Those at the ends of requests: a large model's states are too much to be read all the time.
    Last,
}

/// How a reference is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// Sequences at once.
    pub(super) batch: usize,
    pub(super) states: States,
    /// What the head would draft, too.
    pub(super) listen: bool,
}

/// What one request brought.
#[derive(Debug)]
pub(super) struct Streamed {
    pub(super) tokens: Vec<u32>,
    pub(super) finish: Finish,
    pub(super) error: Option<String>,
    pub(super) stats: Stats,
    pub(super) digests: BTreeMap<usize, Digest>,
    /// Tokens of each pass that brought any.
    pub(super) passes: Vec<usize>,
}

impl Streamed {
    pub(super) fn new() -> Self {
        Streamed {
            tokens: Vec::new(),
            // Until its end is seen.
            finish: Finish::Aborted,
            error: None,
            stats: Stats::default(),
            digests: BTreeMap::new(),
            passes: Vec::new(),
        }
    }

    /// Takes one event in.
    pub(super) fn event(&mut self, event: crate::Event) {
        if !event.tokens.is_empty() {
            self.passes.push(event.tokens.len());
        }
        self.tokens.extend(event.tokens);
        if let Some(end) = event.end {
            (self.finish, self.error, self.stats) = (end.finish, end.error, end.stats);
            self.digests.extend(end.digest.map(|digest| (digest.committed, digest)));
        }
    }
}

/// Decodes the requests plainly, whole prompts first.
pub(super) fn decode<B: EngineBackend, A: Activation>(
    lab: &mut Lab<B, A>,
    requests: Vec<Request>,
    how: How,
) -> Result<Vec<Known>> {
    let limits = limits(requests.iter(), how.batch);
    let plain = lab.engine(limits.clone(), DraftLength::Fixed(0), Pace::Wait, Box::new(Plain), |engine| {
        engine.keep_digests(true);
        let mut all: BTreeMap<RequestId, Streamed> = BTreeMap::new();
        for request in &requests {
            all.insert(engine.submit(request.clone())?, Streamed::new());
        }
        while !engine.is_idle() {
            for event in engine.step()? {
                all.get_mut(&event.request).expect("it was submitted").event(event);
            }
            for (&id, streamed) in all.iter_mut().filter(|_| how.states == States::All) {
                let digest = engine.digest(id)?;
                streamed.digests.extend(digest.map(|digest| (digest.committed, digest)));
            }
        }
        Ok(all)
    })?;
    let mut known: Vec<Known> = requests
        .into_iter()
        .zip(plain.into_values())
        .map(|(request, streamed)| {
            if let Some(error) = streamed.error {
                let remedy = "this is a defect of lockstep; please report it";
                return Err(Error::request("plain decoding", error, remedy));
            }
            let Streamed { tokens, finish, digests, .. } = streamed;
            Ok(Known { request, tokens, finish, digests, first_drafts: BTreeMap::new() })
        })
        .collect::<Result<_>>()?;
    if how.listen {
        let limits = Limits { draft_head: true, max_drafts: 1, slots: LISTENERS, ..limits };
        let limits = Limits { pages: 1 + LISTENERS * limits.pages_for(limits.positions), ..limits };
        listen(lab, limits, &mut known)?;
    }
    Ok(known)
}

/// Sequences at once where the head drafts along.
const LISTENERS: usize = 8;

/// Notes what the head would draft along plain decoding.
fn listen<B: EngineBackend, A: Activation>(
    lab: &mut Lab<B, A>,
    limits: Limits,
    known: &mut [Known],
) -> Result<()> {
    let listener = Listen::default();
    let heard = listener.heard.clone();
    let streams = lab.engine(limits, DraftLength::Fixed(1), Pace::Wait, Box::new(listener), |engine| {
        known.iter().try_for_each(|known| engine.submit(known.request.clone()).map(|_| ()))?;
        engine.run()
    })?;
    let mut heard = heard.take();
    // Ids ascend in order of submission.
    for (known, (id, (tokens, _))) in known.iter_mut().zip(streams) {
        // What was said along another stream says nothing of this one.
        if tokens == known.tokens {
            known.first_drafts = heard.remove(&id).unwrap_or_default();
        }
    }
    Ok(())
}

//! What is enqueued, and what is read of it.

use super::{
    Engine, Live, Pace,
    auto::{Auto, Round},
    schedule::length_limit,
};
use crate::{
    Result,
    draft::DraftLength,
    model::EngineBackend,
    request::{Event, Finish, RequestId},
    round::{DraftJob, Outcome, Passed, Ticket},
};
use kernels_core::Activation;

/// Passes between two renewals of a draft vocabulary that learns: a renewed list is copied whole.
const RENEW_EVERY: usize = 32;

/// A pass that nobody has read.
#[derive(Debug)]
pub(super) struct Unread<B: EngineBackend> {
    ticket: Ticket<B>,
    /// Who was in it, with the rows that it may commit, in a decode round.
    of: Vec<(RequestId, usize)>,
    prompts: bool,
    round: Option<Round>,
    /// Behind the drafts that follow it.
    drafted: B::Mark,
}

/// When a pass began, when the target was through, when the drafts were made.
#[derive(Debug)]
pub(super) struct Span<B: EngineBackend> {
    prompts: bool,
    round: Option<Round>,
    started: B::Mark,
    computed: B::Mark,
    drafted: B::Mark,
}

impl<B: EngineBackend, A: Activation> Engine<B, A> {
    /// One pass over prompt tokens, oldest sequences first, within the row budget; whether there was any.
    pub(super) fn prefill(&mut self) -> Result<bool> {
        let mut budget = self.core.limits().prefill_rows;
        let mut chunks = Vec::new();
        for (at, live) in self.live.iter().enumerate() {
            let rows = live.prefill_rows().min(budget);
            if rows > 0 {
                budget -= rows;
                chunks.push((at, rows));
            }
        }
        if chunks.is_empty() {
            return Ok(false);
        }
        let rows: Vec<_> = chunks.iter().map(|&(at, rows)| (self.live[at].slot, rows)).collect();
        let ticket = self.core.enqueue_prefill(&rows, None)?;
        for &(at, rows) in &chunks {
            let live = &mut self.live[at];
            live.committed += rows;
            live.behind += rows;
            live.job.stats.prefilled += rows;
            if live.resuming && !live.prefilling() {
                live.resuming = false;
                self.core.resume(live.slot, live.job.request.prompt.len())?;
            }
        }
        let at: Vec<usize> = chunks.iter().map(|(at, _)| *at).collect();
        self.follow(ticket, &at, true)?;
        Ok(true)
    }

    /// One decode round over every sequence whose known tokens are computed; whether there was any.
    pub(super) fn decode(&mut self) -> Result<bool> {
        self.make_room()?;
        let limits = self.core.limits();
        let ready: Vec<usize> = (0..self.live.len())
            .filter(|&at| {
                let live = &self.live[at];
                // Where unread rounds are sure to reach its end, another one would find nothing to do.
                let sure = live.committed + live.rounds;
                !live.prefilling() && sure + 1 < length_limit(&live.job.request, limits)
            })
            .collect();
        if ready.is_empty() {
            return Ok(false);
        }
        let rows: Vec<_> = ready.iter().map(|&at| (self.live[at].slot, self.live[at].proposed)).collect();
        let ticket = self.core.enqueue_decode(&rows, None)?;
        for &at in &ready {
            let live = &mut self.live[at];
            let rows = 1 + live.proposed;
            live.ahead += rows;
            live.rounds += 1;
            live.behind += rows;
        }
        self.follow(ticket, &ready, false)?;
        Ok(true)
    }

    /// Has the drafter look at the pass that these live sequences just took part in, and leaves it to be
    /// read; or reads it at once, where nothing is gained by running ahead, or where the drafter has to know.
    fn follow(&mut self, ticket: Ticket<B>, at: &[usize], prompts: bool) -> Result<()> {
        let rows = |live: &Live| if prompts { 0 } else { 1 + live.proposed };
        let of: Vec<(RequestId, usize)> =
            at.iter().map(|&at| (self.live[at].job.id, rows(&self.live[at]))).collect();
        let drafts = self.equal_drafts(at);
        if !prompts && self.drafts == DraftLength::Auto {
            self.auto.pick(at.len());
        }
        if self.pace == Pace::Wait || self.drafter.looks_back() {
            let Passed { outcomes, started, computed } = self.core.read(ticket)?;
            self.take_in(&of, &outcomes, prompts)?;
            self.propose(at, Some(&outcomes))?;
            let drafted = B::mark(self.core.queue())?;
            let round = self.round(prompts, at, drafts);
            self.report(&of, Span { prompts, round, started, computed, drafted }, outcomes)?;
            return self.clock();
        }
        self.propose(at, None)?;
        let drafted = B::mark(self.core.queue())?;
        let round = self.round(prompts, at, drafts);
        self.unread.push_back(Unread { ticket, of, prompts, round, drafted });
        Ok(())
    }

    /// The number of drafts that stand for each of these, if it is the same.
    fn equal_drafts(&self, at: &[usize]) -> Option<usize> {
        let first = self.live[*at.first()?].proposed;
        at.iter().all(|&at| self.live[at].proposed == first).then_some(first)
    }

    /// What the policy may learn from: rounds whose cost is that of one k.
    fn round(&mut self, prompts: bool, at: &[usize], drafts: Option<usize>) -> Option<Round> {
        let fresh = self.core.fresh_parts();
        let steady = std::mem::replace(&mut self.fresh_parts, fresh) == fresh;
        let (drafts, next) = (drafts?, self.equal_drafts(at)?);
        (!prompts).then(|| Round::new(at.len(), drafts, next, steady))
    }

    fn find(&self, id: RequestId) -> Option<usize> {
        self.live.iter().position(|live| live.job.id == id)
    }

    /// Reads passes, the oldest first, until no more than `most` are unread.
    pub(super) fn read_until(&mut self, most: usize) -> Result<()> {
        while self.unread.len() > most {
            let Some(Unread { ticket, of, prompts, round, drafted }) = self.unread.pop_front() else { break };
            let Passed { outcomes, started, computed } = self.core.read(ticket)?;
            self.take_in(&of, &outcomes, prompts)?;
            // The drafts behind this pass may not be made yet; before it, all are.
            self.clock()?;
            self.report(&of, Span { prompts, round, started, computed, drafted }, outcomes)?;
        }
        if self.unread.is_empty() {
            self.clock()?;
        }
        Ok(())
    }

    /// Adds up where the time went, of passes whose drafts are made.
    fn clock(&mut self) -> Result<()> {
        for span in self.spans.drain(..) {
            let target = B::between(&span.started, &span.computed)?;
            let draft = B::between(&span.computed, &span.drafted)?;
            if span.prompts {
                self.times.prefill += target;
            } else {
                self.times.target += target;
            }
            self.times.draft += draft;
            if let Some(round) = &span.round {
                self.auto.learn(round, target, draft);
            }
        }
        Ok(())
    }

    /// Counts what a pass brought. Who has left meanwhile, or had ended before, gets nothing.
    fn take_in(&mut self, of: &[(RequestId, usize)], outcomes: &[Outcome], prompts: bool) -> Result<()> {
        for (&(id, rows), outcome) in of.iter().zip(outcomes) {
            let Some(at) = self.find(id) else { continue };
            let live = &mut self.live[at];
            live.job.tokens.extend(&outcome.tokens);
            if prompts {
                live.job.stats.generated += outcome.tokens.len();
                continue;
            }
            live.committed += outcome.tokens.len();
            live.ahead -= rows;
            live.rounds -= 1;
            live.job.stats.round(outcome.drafts, outcome.tokens.len());
        }
        let Some(vocab) = self.core.draft_vocab_mut().filter(|vocab| vocab.learns()) else { return Ok(()) };
        outcomes.iter().for_each(|outcome| vocab.observe(&outcome.tokens));
        self.unlearned += 1;
        if self.unlearned == RENEW_EVERY {
            self.unlearned = 0;
            self.core.refresh_draft_vocab()?;
        }
        Ok(())
    }

    /// Has the drafter look at the pass that these live sequences just took part in.
    fn propose(&mut self, at: &[usize], outcomes: Option<&[Outcome]>) -> Result<()> {
        let finished = |i: usize| outcomes.is_some_and(|all| all[i].finish.is_some());
        let jobs: Vec<DraftJob> = at
            .iter()
            .enumerate()
            .map(|(i, &at)| draft_job(&self.drafts, &self.auto, &self.live[at], finished(i)))
            .collect();
        let made = self.drafter.observe(&mut self.core, &jobs)?;
        for (&at, made) in at.iter().zip(made) {
            let live = &mut self.live[at];
            live.proposed = made.proposed;
            if made.refreshed {
                live.behind = 0;
            }
        }
        Ok(())
    }

    /// Turns outcomes into events, releases what has ended, and keeps when it was.
    pub(super) fn report(
        &mut self,
        of: &[(RequestId, usize)],
        mut span: Span<B>,
        outcomes: Vec<Outcome>,
    ) -> Result<()> {
        for (&(request, _), outcome) in of.iter().zip(outcomes) {
            // It may have left, or have ended in a pass before this one.
            let Some(at) = self.find(request) else { continue };
            if let Some(round) = &mut span.round {
                round.add(&outcome);
            }
            match outcome.finish {
                None if outcome.tokens.is_empty() => {}
                None => self.pending.push(Event { request, tokens: outcome.tokens, end: None }),
                Some(finish) => {
                    let live = self.live.remove(at);
                    let whole = self.digests && finish != Finish::Failed;
                    let digest = whole.then(|| self.core.digest(live.slot)).transpose()?;
                    let job = self.release(live)?;
                    self.finish(job, finish, outcome.tokens, outcome.error, digest);
                }
            }
        }
        self.spans.push_back(span);
        Ok(())
    }
}

fn draft_job(length: &DraftLength, auto: &Auto, live: &Live, finished: bool) -> DraftJob {
    let request = &live.job.request;
    let fixed = || length.of_round(live.job.stats.rounds + live.rounds);
    let drafts = request.drafts.or_else(fixed).unwrap_or_else(|| auto.drafts());
    DraftJob {
        request: live.job.id,
        slot: live.slot,
        committed: live.most(),
        behind: live.behind,
        drafts: if finished || live.prefilling() { 0 } else { drafts },
        never: request.drafts == Some(0),
        finished,
    }
}

//! Who computes: admission, pages, leaving.

use super::{Engine, Job, Live};
use crate::{
    Result,
    cache::Limits,
    model::EngineBackend,
    request::{End, Event, Finish, Request},
    round::Digest,
};
use kernels_core::Activation;

impl<B: EngineBackend, A: Activation> Engine<B, A> {
    /// Oldest first, all or nothing: a slot, and pages for the known tokens and one round beyond them.
    pub(super) fn admit(&mut self) -> Result<()> {
        while let Some(job) = self.waiting.front() {
            let limits = self.core.limits();
            let ahead = job.tokens.len() + limits.max_rows();
            let need = limits.pages_for(ahead.min(length_limit(&job.request, limits)));
            if self.slots.available() == 0 {
                return Ok(());
            }
            let Some(pages) = self.pages.take(need) else {
                return Ok(());
            };
            let job = self.waiting.pop_front().expect("looked at just now");
            let slot = self.slots.take().expect("counted just now");
            let length = length_limit(&job.request, self.core.limits());
            if let Some(vocab) = self.core.draft_vocab_mut() {
                vocab.observe(&job.request.prompt);
            }
            self.core.open(slot, &job.tokens, &job.request, length)?;
            self.core.lend_pages(slot, &pages)?;
            let resuming = job.tokens.len() > job.request.prompt.len();
            self.live.push(Live {
                job,
                slot,
                pages,
                committed: 0,
                ahead: 0,
                rounds: 0,
                behind: 0,
                proposed: 0,
                resuming,
            });
        }
        Ok(())
    }

    /// Every decoding sequence gets pages for its next round; where the pool is empty the youngest live
    /// sequence is paused: its pages go back, and it will be recomputed, bit for bit, when there is room.
    pub(super) fn make_room(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.live.len() {
            if self.live[at].prefilling() {
                at += 1;
                continue;
            }
            let limits = self.core.limits();
            let live = &self.live[at];
            let length = length_limit(&live.job.request, limits);
            // Drafts use pages where there are some; one more token must have one.
            let wish = limits.pages_for((live.most() + 2 * limits.max_rows()).min(length));
            let must = limits.pages_for((live.most() + 1).min(length));
            let short = wish.saturating_sub(live.pages.len()).min(self.pages.available());
            if live.pages.len() + short >= must {
                if short > 0 {
                    let more = self.pages.take(short).expect("counted just now");
                    let live = &mut self.live[at];
                    live.pages.extend(more);
                    self.core.lend_pages(live.slot, &live.pages)?;
                }
                at += 1;
            } else if !self.unread.is_empty() {
                // What is unread may have ended somebody, and a paused sequence must be known to its end.
                self.read_until(0)?;
                at = 0;
            } else {
                let youngest = self.live.pop().expect("this sequence is live");
                let job = self.release(youngest)?;
                self.waiting.push_front(job);
            }
        }
        Ok(())
    }

    /// Takes a sequence out of its slot.
    pub(super) fn release(&mut self, live: Live) -> Result<Job> {
        self.core.close(live.slot)?;
        self.pages.give(live.pages);
        self.slots.give(live.slot);
        Ok(live.job)
    }

    pub(super) fn finish(
        &mut self,
        job: Job,
        finish: Finish,
        tokens: Vec<u32>,
        error: Option<String>,
        digest: Option<Digest>,
    ) {
        self.total.add(&job.stats);
        let end = End { finish, error, stats: job.stats, digest };
        self.pending.push(Event { request: job.id, tokens, end: Some(end) });
    }
}

/// Tokens of a sequence at most, prompt included.
pub(super) fn length_limit(request: &Request, limits: &Limits) -> usize {
    request.prompt.len().saturating_add(request.max_tokens).min(limits.positions)
}

//! Drafters that look on.

use crate::{
    Result,
    draft::{Drafter, Made},
    model::EngineBackend,
    request::RequestId,
    round::{Core, DraftJob},
};
use kernels_core::Activation;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// What a looker-on leaves behind.
#[derive(Debug, Default)]
pub(super) struct Shared<T>(Arc<Mutex<T>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

impl<T: Default> Shared<T> {
    pub(super) fn take(&self) -> T {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The head's first draft after each number of committed tokens; `None` where it made none.
pub(super) type FirstDrafts = BTreeMap<RequestId, BTreeMap<usize, Option<u32>>>;

/// Has the head draft one token after every pass, and none of them verified: what it would say where plain
/// decoding comes by.
#[derive(Debug, Default)]
pub(super) struct Listen {
    pub(super) heard: Shared<FirstDrafts>,
}

/// No token has this id.
const NO_TOKEN: u32 = u32::MAX;

impl<B: EngineBackend, A: Activation> Drafter<B, A> for Listen {
    fn name(&self) -> &'static str {
        "mtp"
    }

    fn needs_head(&self) -> bool {
        true
    }

    fn observe(&mut self, core: &mut Core<B, A>, jobs: &[DraftJob]) -> Result<Vec<Made>> {
        // In the middle of a prompt the next token is the prompt's.
        let drafting = || jobs.iter().filter(|job| job.drafts > 0);
        for job in drafting() {
            // A mark that the head overwrites, and nothing proposed: what is found there later is its own.
            core.write_drafts(job, &[NO_TOKEN])?;
            core.write_drafts(job, &[])?;
        }
        let refresh = vec![true; jobs.len()];
        core.refresh(jobs, &refresh)?;
        core.keep_hidden()?;
        core.draft_step(jobs, 0)?;
        let positions = core.limits().positions;
        for job in drafting().filter(|job| job.committed + 1 < positions) {
            let at = job.slot * positions + job.committed + 1;
            let token = B::read(core.queue(), &core.caches().shared.table.tokens, at..at + 1)?[0];
            self.heard.with(|heard| {
                let heard = heard.entry(job.request).or_default();
                heard.insert(job.committed, u32::try_from(token).ok());
            });
        }
        Ok(vec![Made { proposed: 0, refreshed: true }; jobs.len()])
    }
}

/// The two largest logits of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TopTwo {
    /// Ids, the larger logit first.
    pub ids: [u32; 2],
    /// Their logits.
    pub logits: [f32; 2],
}

impl TopTwo {
    pub(super) fn of(logits: &[f32]) -> Self {
        let mut top = TopTwo { ids: [0; 2], logits: [f32::NEG_INFINITY; 2] };
        for (id, &logit) in logits.iter().enumerate() {
            if logit > top.logits[0] {
                top = TopTwo { ids: [id as u32, top.ids[0]], logits: [logit, top.logits[0]] };
            } else if logit > top.logits[1] {
                (top.ids[1], top.logits[1]) = (id as u32, logit);
            }
        }
        top
    }

    /// How far they are apart.
    pub fn margin(&self) -> f32 {
        self.logits[0] - self.logits[1]
    }
}

/// Looks at the logits that one token of one request is chosen from.
#[derive(Debug)]
pub(super) struct Watch<B: EngineBackend, A: Activation> {
    pub(super) inner: Box<dyn Drafter<B, A>>,
    pub(super) request: RequestId,
    /// Tokens of its prompt.
    pub(super) prompt: usize,
    /// The token's place.
    pub(super) position: usize,
    /// Tokens committed before the pass that is observed.
    pub(super) committed: usize,
    pub(super) seen: Shared<Option<TopTwo>>,
}

impl<B: EngineBackend, A: Activation> Drafter<B, A> for Watch<B, A> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn needs_head(&self) -> bool {
        self.inner.needs_head()
    }

    fn observe(&mut self, core: &mut Core<B, A>, jobs: &[DraftJob]) -> Result<Vec<Made>> {
        if let Some(index) = jobs.iter().position(|job| job.request == self.request) {
            let before = std::mem::replace(&mut self.committed, jobs[index].committed);
            let offsets = core.row_offsets()?;
            let rows = offsets[index]..offsets[index + 1];
            // A prompt pass chooses in one row of each sequence, a decode round in all.
            let row = if before < self.prompt {
                (jobs[index].committed == self.position).then_some(index)
            } else {
                let row = (self.position).checked_sub(before + 1).map(|i| rows.start + i);
                row.filter(|row| rows.contains(row))
            };
            if let Some(row) = row {
                let (vocab, valid) = (core.model().config().vocab, core.model().valid_vocab());
                let logits = core.logits(row + 1)?;
                let top = TopTwo::of(&logits[row * vocab..][..valid]);
                // A later round overwrites what stood behind a rejected draft.
                self.seen.with(|seen| *seen = Some(top));
            }
        }
        self.inner.observe(core, jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::TopTwo;

    #[test]
    fn the_first_of_equals_is_on_top() {
        let top = TopTwo::of(&[1.0, 3.0, f32::NAN, 2.0, 3.0]);
        assert_eq!((top.ids, top.margin()), ([1, 4], 0.0));
        assert_eq!(TopTwo::of(&[1.0, 0.5]).ids, [0, 1]);
    }
}

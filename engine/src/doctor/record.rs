//! What the engine's own drafter proposed, taken down round by round.

use super::walk::Anchor;
use crate::{
    Result,
    draft::{Drafter, Made, Mtp},
    model::EngineBackend,
    request::RequestId,
    round::{Core, DraftJob},
};
use kernels_core::Activation;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Drafts that stood ready for a round.
#[derive(Clone, Debug)]
pub(super) struct Proposal<A> {
    /// The last known token's place.
    pub(super) anchor: Anchor<A>,
    pub(super) drafts: Vec<u32>,
}

/// What a [`Recorder`] took down, in order.
pub(super) type Proposals<A> = BTreeMap<RequestId, Vec<Proposal<A>>>;

/// The engine's MTP drafter, watched.
#[derive(Debug)]
pub(super) struct Recorder<A> {
    inner: Mtp,
    /// Tokens committed before the pass that is observed.
    committed: BTreeMap<RequestId, usize>,
    proposals: Arc<Mutex<Proposals<A>>>,
}

impl<A> Recorder<A> {
    /// A drafter, and where its proposals will be found.
    pub(super) fn new() -> (Self, Arc<Mutex<Proposals<A>>>) {
        let proposals = Arc::new(Mutex::new(BTreeMap::new()));
        (Recorder { inner: Mtp, committed: BTreeMap::new(), proposals: proposals.clone() }, proposals)
    }
}

impl<B: EngineBackend, A: Activation> Drafter<B, A> for Recorder<A> {
    fn name(&self) -> &'static str {
        "mtp"
    }

    fn needs_head(&self) -> bool {
        true
    }

    fn observe(&mut self, core: &mut Core<B, A>, jobs: &[DraftJob]) -> Result<Vec<Made>> {
        let offsets = core.row_offsets()?;
        let hidden = core.hidden(offsets[jobs.len()])?;
        let width = core.model().config().hidden;
        let made = self.inner.observe(core, jobs)?;
        let mut proposals = self.proposals.lock().unwrap_or_else(PoisonError::into_inner);
        for (i, job) in jobs.iter().enumerate() {
            let before = self.committed.insert(job.request, job.committed).unwrap_or(0);
            if job.drafts == 0 {
                continue;
            }
            let rejected = offsets[i] + job.committed - before;
            let rejected = (rejected < offsets[i + 1])
                .then(|| hidden[rejected * width..(rejected + 1) * width].to_vec());
            proposals.entry(job.request).or_default().push(Proposal {
                anchor: Anchor { at: job.committed, rejected },
                drafts: drafts_of(core, job)?,
            });
        }
        Ok(made)
    }
}

/// The drafts that stand beyond a sequence's last known token.
fn drafts_of<B: EngineBackend, A: Activation>(core: &Core<B, A>, job: &DraftJob) -> Result<Vec<u32>> {
    let table = &core.caches().shared.table;
    let proposed = B::read(core.queue(), &table.proposed, job.slot..job.slot + 1)?[0].max(0) as usize;
    let positions = core.limits().positions;
    let first = job.slot * positions + job.committed + 1;
    let room = positions.saturating_sub(job.committed + 1).min(proposed);
    let drafts = B::read(core.queue(), &table.tokens, first..first + room)?;
    Ok(drafts.into_iter().map(|id| id as u32).collect())
}

//! The checkpoint's own MTP head, its one layer applied again and again.

use super::{Drafter, Made};
use crate::{
    Result,
    model::EngineBackend,
    round::{Core, DraftJob},
};
use kernels_core::Activation;

/// Drafts with the MTP head.
///
/// After each target pass the head first runs over the rows that became certain (so that its K/V is made
/// from the target's own hidden rows, never from its own guesses), which yields the first draft; each
/// further draft is one more row per sequence, fed with the head's own output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mtp;

impl<B: EngineBackend, A: Activation> Drafter<B, A> for Mtp {
    fn name(&self) -> &'static str {
        "mtp"
    }

    fn needs_head(&self) -> bool {
        true
    }

    fn looks_back(&self) -> bool {
        false
    }

    fn observe(&mut self, core: &mut Core<B, A>, jobs: &[DraftJob]) -> Result<Vec<Made>> {
        // Plain rounds may skip the head: it catches up from the hidden ring before that would overflow.
        let due = |job: &DraftJob| !job.finished && !job.never && (job.drafts > 0 || core.catch_up_due(job));
        let refresh: Vec<bool> = jobs.iter().map(due).collect();
        if refresh.contains(&true) {
            core.refresh(jobs, &refresh)?;
        }
        core.keep_hidden()?;
        let most = jobs.iter().map(|job| job.drafts).max().unwrap_or(0);
        for step in 0..most {
            core.draft_step(jobs, step)?;
        }
        let made = |(job, refreshed): (&DraftJob, bool)| Made { proposed: job.drafts, refreshed };
        Ok(jobs.iter().zip(refresh).map(made).collect())
    }
}

//! Drafts from a script, for tests: it separates the logic of rounds from the quality of drafts.

use super::{Drafter, Made};
use crate::{
    Result,
    model::EngineBackend,
    request::RequestId,
    round::{Core, DraftJob},
};
use kernels_core::Activation;
use std::collections::BTreeMap;

/// Which drafts are right.
#[derive(Clone, Debug, PartialEq)]
pub enum Script {
    /// All of them.
    AllRight,
    /// None of them.
    AllWrong,
    /// In round i of request r exactly the first `pattern[(i + r) % len]` are right: requests begin at
    /// different places, so that short ones together see all of it.
    Pattern(Vec<usize>),
    /// Each with this probability, drawn from (seed, request, position).
    Random {
        /// Of all draws.
        seed: u64,
        /// From 0 to 1.
        rate: f32,
    },
}

/// Proposes from known token streams: right where the script says so, and one id off elsewhere.
#[derive(Clone, Debug)]
pub struct Scripted {
    script: Script,
    /// What each request generates without speculation, prompt included.
    streams: BTreeMap<RequestId, Vec<u32>>,
    rounds: BTreeMap<RequestId, usize>,
    vocab: u32,
}

impl Scripted {
    /// `streams`: for each request its prompt and what plain decoding generates; `vocab`: ids below it exist.
    pub fn new(script: Script, streams: BTreeMap<RequestId, Vec<u32>>, vocab: usize) -> Self {
        Scripted { script, streams, rounds: BTreeMap::new(), vocab: vocab as u32 }
    }

    fn right(&self, job: &DraftJob, round: usize, draft: usize) -> bool {
        match &self.script {
            Script::AllRight => true,
            Script::AllWrong => false,
            Script::Pattern(list) => draft < list[(round + job.request.0 as usize) % list.len()],
            Script::Random { seed, rate } => {
                use kernels_core::philox::{Use, bits, uniform};
                let position = (job.committed + draft) as u32;
                uniform(bits(*seed, position, job.request.0 as u32, Use::Draft)) < *rate
            }
        }
    }
}

impl<B: EngineBackend, A: Activation> Drafter<B, A> for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn observe(&mut self, core: &mut Core<B, A>, jobs: &[DraftJob]) -> Result<Vec<Made>> {
        for job in jobs.iter().filter(|job| job.drafts > 0) {
            let round = *self.rounds.entry(job.request).and_modify(|r| *r += 1).or_insert(0);
            let stream = self.streams.get(&job.request).map_or(&[][..], Vec::as_slice);
            let drafts: Vec<u32> = (0..job.drafts)
                .map(|i| {
                    // Past the end of the known stream anything may be proposed.
                    let next = stream.get(job.committed + 1 + i).copied().unwrap_or(0);
                    if self.right(job, round, i) { next } else { (next + 1) % self.vocab }
                })
                .collect();
            core.write_drafts(job, &drafts)?;
        }
        Ok(jobs.iter().map(|job| Made { proposed: job.drafts, refreshed: false }).collect())
    }
}

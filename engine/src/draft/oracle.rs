//! Drafts that are right as often as asked, made on the device: for measurements and tests.

use super::{Drafter, Made, Mtp};
use crate::{
    Result,
    model::EngineBackend,
    request::RequestId,
    round::{Core, DraftJob, List},
};
use kernels_core::{Activation, Backend};
use std::collections::BTreeMap;

/// How often the drafts of an [`Oracle`] are right.
#[derive(Clone, Debug, PartialEq)]
pub enum Right {
    /// Each with this chance, from 0 to 1.
    Rate(f32),
    /// So often that a round emits this many tokens on average, whatever number of drafts it verifies; from 1 to one
    /// more than that number.
    AcceptLength(f64),
    /// In round i of request r exactly the first `pattern[(i + r) % len]` are, and with an empty pattern all.
    Pattern(Vec<usize>),
}

/// Proposes from known token streams, as [`Scripted`](super::Scripted) does, without the host: what a round needs to
/// know lies on the device.
///
/// With a head to run first it costs what drafting costs, so that a measured round is a real one with the accept length
/// that was asked for.
#[derive(Debug)]
pub struct Oracle<B: Backend> {
    right: Right,
    /// Of all draws.
    seed: u64,
    /// What each request generates without speculation, prompt included.
    streams: BTreeMap<RequestId, Vec<u32>>,
    over: Option<Mtp>,
    /// Nothing before the first pass.
    table: Option<OracleTable<B>>,
}

/// What [`Core::script`] makes drafts from.
#[derive(Debug)]
pub struct OracleTable<B: Backend> {
    /// The seed of all draws.
    pub(crate) seed: u64,
    /// `[slots, positions]`
    pub(crate) truth: B::Memory<i32>,
    /// `[slots]`
    pub(crate) rounds: B::Memory<u32>,
    /// `[slots]`
    pub(crate) rate: B::Memory<f32>,
    /// `[pattern]`, and how many that is.
    pub(crate) pattern: Option<(B::Memory<i32>, usize)>,
    /// `[sequences]`: who gets drafts, and how many.
    pub(crate) sequences: List<B>,
    pub(crate) drafts: List<B>,
    /// Who each slot's row of the truth is about, and for how many drafts its rate was chosen.
    slots: Vec<Option<(RequestId, usize)>>,
}

impl<B: Backend> Oracle<B> {
    /// `streams`: for each request its prompt and what plain decoding generates. Without one, drafts are wrong but for
    /// coincidences.
    pub fn new(right: Right, seed: u64, streams: BTreeMap<RequestId, Vec<u32>>) -> Self {
        Oracle { right, seed, streams, over: None, table: None }
    }

    /// Runs the draft head before it writes over the head's drafts.
    pub fn over(self, head: Mtp) -> Self {
        Oracle { over: Some(head), ..self }
    }

    /// Tells the device what a slot's request will generate, once, and how often to be right about it.
    fn tell<A: Activation>(&mut self, core: &Core<B, A>, jobs: &[DraftJob]) -> Result<()>
    where
        B: EngineBackend,
    {
        let (on, slots, positions) = (core.queue(), core.limits().slots, core.limits().positions);
        if self.table.is_none() {
            let pattern = match &self.right {
                Right::Pattern(list) if !list.is_empty() => {
                    let words: Vec<i32> =
                        list.iter().map(|n| i32::try_from(*n).unwrap_or(i32::MAX)).collect();
                    Some((B::upload(on, &words)?, words.len()))
                }
                _ => None,
            };
            self.table = Some(OracleTable {
                seed: self.seed,
                truth: B::zeros(on, slots * positions)?,
                rounds: B::zeros(on, slots)?,
                rate: B::zeros(on, slots)?,
                pattern,
                sequences: List::new(on, slots)?,
                drafts: List::new(on, slots)?,
                slots: vec![None; slots],
            });
        }
        let table = self.table.as_mut().expect("made just now");
        for job in jobs.iter().filter(|job| job.drafts > 0 && !job.finished) {
            let known = table.slots[job.slot];
            if known.map(|known| known.0) != Some(job.request) {
                let stream = self.streams.get(&job.request).map_or(&[][..], Vec::as_slice);
                let mut row: Vec<i32> = stream.iter().take(positions).map(|id| *id as i32).collect();
                row.resize(positions, -1);
                B::write(on, &mut table.truth, job.slot * positions, &row)?;
                // Requests begin at different places of a pattern, so that short ones together see all of it.
                B::write(on, &mut table.rounds, job.slot, &[job.request.0 as u32])?;
            }
            if known != Some((job.request, job.drafts)) {
                let rate = match &self.right {
                    Right::Rate(rate) => *rate,
                    Right::AcceptLength(length) => rate_of(*length, job.drafts) as f32,
                    Right::Pattern(_) => 1.0,
                };
                B::write(on, &mut table.rate, job.slot, &[rate])?;
            }
            table.slots[job.slot] = Some((job.request, job.drafts));
        }
        Ok(())
    }
}

impl<B: EngineBackend, A: Activation> Drafter<B, A> for Oracle<B> {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn needs_head(&self) -> bool {
        self.over.is_some()
    }

    fn looks_back(&self) -> bool {
        false
    }

    fn observe(&mut self, core: &mut Core<B, A>, jobs: &[DraftJob]) -> Result<Vec<Made>> {
        let made = match &mut self.over {
            Some(head) => head.observe(core, jobs)?,
            None => jobs.iter().map(|job| Made { proposed: job.drafts, refreshed: false }).collect(),
        };
        self.tell(core, jobs)?;
        core.script(jobs, self.table.as_mut().expect("it was told"))?;
        Ok(made)
    }
}

/// The chance of a draft to be right with which a round of `drafts` drafts emits `length` tokens on average: the root
/// of `1 + r + ... + r^drafts = length`.
fn rate_of(length: f64, drafts: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    // Halved until neighbours: 53 bits, and as many again below the smallest rate that anybody could tell from 0.
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        let sum = (0..drafts).fold(1.0, |sum, _| 1.0 + middle * sum);
        if sum < length { low = middle } else { high = middle }
    }
    // Out of reach above or below: always right, or never.
    if length >= drafts as f64 + 1.0 {
        1.0
    } else if length <= 1.0 {
        0.0
    } else {
        high
    }
}

#[cfg(test)]
mod tests {
    use super::rate_of;

    #[test]
    fn rates_give_the_accept_length() {
        // The positive root of r^2 + r = 1.43.
        let by_hand = (-1.0 + (1.0f64 + 4.0 * 1.43).sqrt()) / 2.0;
        assert!((rate_of(2.43, 2) - by_hand).abs() < 1e-12);
        assert!((rate_of(1.5, 1) - 0.5).abs() < 1e-12);
        for drafts in 1..=15 {
            for length in [1.1, 1.9, 2.43, 7.0] {
                let rate = rate_of(length, drafts);
                let sum: f64 = (0..=drafts as i32).map(|i| rate.powi(i)).sum();
                let want = length.min(drafts as f64 + 1.0);
                assert!((sum - want).abs() < 1e-9, "{length} of {drafts}: {rate}");
            }
        }
        assert_eq!(
            (rate_of(1.0, 4), rate_of(0.0, 4), rate_of(5.0, 4), rate_of(2.0, 0)),
            (0.0, 0.0, 1.0, 1.0)
        );
    }
}

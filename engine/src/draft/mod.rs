//! Drafters: what proposes the tokens that the target verifies.
//!
//! A drafter only proposes. It sees the target through its hidden rows and the token rows, and nothing it
//! does can change the output.

mod mtp;
mod oracle;
mod scripted;
mod vocab;

pub use mtp::Mtp;
pub use oracle::{Oracle, OracleTable, Right};
pub use scripted::{Script, Scripted};
pub use vocab::DraftVocab;

use crate::{
    Error, Result,
    cache::Limits,
    model::{EngineBackend, Model},
    round::{Core, DraftJob},
};
use kernels_core::Activation;
use std::fmt;

/// Proposes drafts after every target pass.
pub trait Drafter<B: EngineBackend, A: Activation>: std::fmt::Debug {
    /// Its name, as on the command line.
    fn name(&self) -> &'static str;

    /// Whether it runs the checkpoint's draft head.
    fn needs_head(&self) -> bool {
        false
    }

    /// Whether it must know what a pass brought before it can propose: then jobs are exact, and the engine
    /// waits for every pass. Otherwise their counts may be bounds, and nobody is said to have finished.
    fn looks_back(&self) -> bool {
        true
    }

    /// The target has just computed a pass over the jobs' sequences, in this order, and moved their
    /// counters; writes up to `drafts` tokens beyond the last known one of each sequence.
    fn observe(&mut self, core: &mut Core<B, A>, jobs: &[DraftJob]) -> Result<Vec<Made>>;
}

/// What a drafter did for one job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Drafts that stand beyond the last known token, at most.
    pub proposed: usize,
    /// The draft head's K/V is made up to the last known token.
    pub refreshed: bool,
}

/// Proposes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl<B: EngineBackend, A: Activation> Drafter<B, A> for Plain {
    fn name(&self) -> &'static str {
        "none"
    }
    fn looks_back(&self) -> bool {
        false
    }
    fn observe(&mut self, _: &mut Core<B, A>, jobs: &[DraftJob]) -> Result<Vec<Made>> {
        Ok(vec![Made::default(); jobs.len()])
    }
}

/// Drafts that [`DraftLength::Auto`] picks from where nothing says how many there is memory for: beyond them the
/// published heads are seldom right.
pub const AUTO_DRAFTS: usize = 4;

/// How many drafts a round verifies, for requests that do not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftLength {
    /// What pays, from measured rounds and from what was accepted lately ([`policy`](crate::policy)).
    Auto,
    /// The same in every round.
    Fixed(usize),
    /// One number after the other, over and over: for tests that nothing depends on it.
    Cycle(Vec<usize>),
}

impl fmt::Display for DraftLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DraftLength::Auto => f.pad("auto"),
            DraftLength::Fixed(k) => f.pad(&k.to_string()),
            DraftLength::Cycle(list) => f.pad(&format!("{list:?}")),
        }
    }
}

impl DraftLength {
    /// The number for a request's round; `None` where it is picked when the time has come.
    pub fn of_round(&self, round: usize) -> Option<usize> {
        match self {
            DraftLength::Auto => None,
            DraftLength::Fixed(k) => Some(*k),
            DraftLength::Cycle(list) => Some(list[round % list.len()]),
        }
    }

    /// The most of any round.
    pub fn most(&self) -> usize {
        match self {
            DraftLength::Auto => AUTO_DRAFTS,
            DraftLength::Fixed(k) => *k,
            DraftLength::Cycle(list) => list.iter().copied().max().unwrap_or(0),
        }
    }

    pub(crate) fn check(&self, max: usize) -> Result<()> {
        let list = match self {
            DraftLength::Auto => return Ok(()),
            DraftLength::Fixed(k) => std::slice::from_ref(k),
            DraftLength::Cycle(list) => list,
        };
        if list.is_empty() {
            return Err(Error::limit("drafts", "an empty cycle", "name at least one number"));
        }
        match list.iter().find(|k| **k > max) {
            None => Ok(()),
            Some(k) => Err(Error::limit("drafts", k, format!("max_drafts allows at most {max}"))),
        }
    }
}

pub(crate) fn check<B: EngineBackend, A: Activation>(
    drafter: &dyn Drafter<B, A>,
    model: &Model<B, A>,
    limits: &Limits,
) -> Result<()> {
    if !drafter.needs_head() {
        return Ok(());
    }
    if !model.has_mtp() {
        let remedy = "the checkpoint has no MTP head that could draft; use --drafter none";
        return Err(Error::limit("drafter", drafter.name(), remedy));
    }
    if !limits.draft_head {
        let remedy = "set `draft_head` in the limits, so that its memory is allocated";
        return Err(Error::limit("drafter", drafter.name(), remedy));
    }
    Ok(())
}

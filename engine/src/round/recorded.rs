//! Parts of a round that are enqueued as one, once they have been recorded.

use super::Core;
use crate::{Result, machine::Machine, model::EngineBackend};
use kernels_core::Activation;
use std::collections::HashMap;

/// Sequences of a recorded round, padding included, for so many that are live: each number has recordings of its
/// own, so there are few of them, and fewer the less a row of padding weighs. (With experts it can choose some that
/// nobody else reads.)
pub(crate) fn launch_sequences(live: usize, slots: usize) -> usize {
    let step = (live.next_power_of_two() / 8).max(1);
    live.next_multiple_of(step).min(slots)
}

/// A part of a round, with every number on which it depends what is enqueued: counts and who takes part are
/// device data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// The target's pass over decode rows, until they are settled.
    Target { sequences: usize, max_rows: usize },
    /// The draft head over rows that have become certain.
    Refresh { sequences: usize, max_rows: usize, forward_rows: usize },
    /// The target's hidden rows, kept for later.
    Keep { sequences: usize, forward_rows: usize },
    /// One draft, chosen behind `rows` rows of the head.
    Draft { sequences: usize, step: usize, rows: usize, max_rows: usize },
}

/// What has been recorded.
#[derive(Debug)]
pub(super) struct Recordings<B: Machine> {
    parts: HashMap<Part, Recording<B>>,
    /// Parts that were enqueued for the first time or recorded, so far.
    fresh: u64,
}

#[derive(Debug)]
enum Recording<B: Machine> {
    /// It ran once, so that what it allocates is there: nothing can be allocated while work is recorded.
    Ran,
    /// With the state of workspaces that it holds for.
    Graph(B::Graph, u64),
}

impl<B: Machine> Default for Recordings<B> {
    fn default() -> Self {
        Recordings { parts: HashMap::new(), fresh: 0 }
    }
}

impl<B: EngineBackend, A: Activation> Core<B, A> {
    /// Does `work`, from the second time on by a recording, unless there is a trace to keep. Everything that `work`
    /// enqueues must follow from `part`, and it must leave the host's own numbers alone: with a recording it is not called.
    pub(super) fn part(&mut self, part: Part, mut work: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        if !self.pace.records() || self.cx.trace.is_on() {
            return work(self);
        }
        let moves = self.scratch.workspaces.moves();
        let on = self.cx.queue.clone();
        match self.recordings.parts.get(&part) {
            Some(Recording::Graph(graph, at)) if *at == moves => return B::replay(&on, graph),
            Some(_) => self.recordings.fresh += 1,
            None => {
                self.recordings.fresh += 1;
                work(self)?;
                self.recordings.parts.insert(part, Recording::Ran);
                return Ok(());
            }
        }
        let Some(graph) = B::record(&on, &mut || work(self))? else { return work(self) };
        B::replay(&on, &graph)?;
        self.recordings.parts.insert(part, Recording::Graph(graph, moves));
        Ok(())
    }

    /// Another number after a round with parts that were new or were recorded: its time says nothing of later ones.
    pub(crate) fn fresh_parts(&self) -> u64 {
        self.recordings.fresh
    }

    /// Parts of rounds that have been recorded.
    pub fn recorded(&self) -> usize {
        self.recordings.parts.values().filter(|r| matches!(r, Recording::Graph(..))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::launch_sequences;

    #[test]
    fn padding_is_at_most_a_quarter() {
        for live in 1..600 {
            let all = launch_sequences(live, 4096);
            assert!(all >= live && (all - live) * 4 <= live, "{all} for {live}");
            assert_eq!(launch_sequences(all, 4096), all);
            assert_eq!(launch_sequences(live, live), live, "never more than there are slots");
        }
        let sizes: std::collections::BTreeSet<usize> = (1..=64).map(|n| launch_sequences(n, 64)).collect();
        assert_eq!(sizes.len(), 20);
    }
}

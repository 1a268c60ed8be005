//! What a pass brought, read when the host needs it.

use super::{Core, RowTable};
use crate::{
    Result,
    machine::Machine,
    model::{EngineBackend, Kind, Op, Side},
    request::Finish,
};
use kernels_core::Activation;
use kernels_spec::State;

/// What a pass brought for one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Drafts that were verified.
    pub drafts: usize,
    /// New tokens.
    pub tokens: Vec<u32>,
    /// Set where the sequence has ended.
    pub finish: Option<Finish>,
    /// Why it failed.
    pub error: Option<String>,
}

/// A pass that was enqueued.
#[derive(Debug)]
pub struct Ticket<B: Machine> {
    kind: Kind,
    /// Who is in it.
    slots: Vec<usize>,
    /// Numbers of one sequence in `emitted`.
    width: usize,
    mail: Mail<B>,
    started: B::Mark,
    computed: B::Mark,
}

/// What a pass was.
#[derive(Debug)]
pub struct Passed<B: Machine> {
    /// One for each sequence, in the order it was enqueued with.
    pub outcomes: Vec<Outcome>,
    /// Before its first operation.
    pub started: B::Mark,
    /// Behind its last one.
    pub computed: B::Mark,
}

/// Where the device leaves what the host reads of a pass: one for each pass that is unread.
#[derive(Debug)]
pub(super) struct Mail<B: Machine> {
    emitted: B::Pinned<i32>,
    offsets: B::Pinned<i32>,
    faults: B::Pinned<u64>,
}

impl<B: EngineBackend, A: Activation> Core<B, A> {
    /// Has the results of the pass just enqueued copied to the host. Padding stands last in it.
    pub(super) fn ticket(
        &mut self,
        kind: Kind,
        slots: impl Iterator<Item = usize>,
        started: B::Mark,
    ) -> Result<Ticket<B>> {
        let on = &self.cx.queue;
        let slots: Vec<usize> = slots.collect();
        let most = self.limits.slots;
        let mut mail = match self.mail.pop() {
            Some(mail) => mail,
            None => Mail {
                emitted: B::pinned(on, most * (self.limits.max_rows() + 2))?,
                offsets: B::pinned(on, most + 1)?,
                faults: B::pinned(on, most)?,
            },
        };
        let computed = B::mark(on)?;
        let width = match kind {
            Kind::Decode => self.pass.max_rows + 2,
            Kind::Prefill => 3,
        };
        let table: &RowTable<B> = &self.pass.table;
        let faults = &self.caches.shared.table.faults;
        self.cx.run(Op::Fetch, |on| {
            B::fetch(on, &self.emitted, slots.len() * width, &mut mail.emitted)?;
            B::fetch(on, &table.row_offsets, slots.len() + 1, &mut mail.offsets)?;
            B::fetch(on, faults, most, &mut mail.faults)
        })?;
        // Until the next pass, whatever comes is the drafter's.
        self.cx.trace.side(Side::Draft);
        Ok(Ticket { kind, slots, width, mail, started, computed })
    }

    /// Waits for a pass, but for nothing behind it, and reads what it brought.
    pub fn read(&mut self, ticket: Ticket<B>) -> Result<Passed<B>> {
        let Ticket { kind, slots, width, mail, started, computed } = ticket;
        let (emitted, offsets) = (B::fetched(&mail.emitted)?, B::fetched(&mail.offsets)?);
        let faults = B::fetched(&mail.faults)?;
        let outcome = |(i, (row, slot)): (usize, (&[i32], &usize))| {
            let tokens = row[2..2 + row[0].max(0) as usize].iter().map(|id| *id as u32).collect();
            let error = Self::fault(faults[*slot]);
            let finish = match State::of(row[1]) {
                _ if error.is_some() => Some(Finish::Failed),
                Some(State::Eos) => Some(Finish::Eos),
                Some(State::Stop) => Some(Finish::Stop),
                Some(State::Length) => Some(Finish::Length),
                _ => None,
            };
            let rows = (offsets[i + 1] - offsets[i]) as usize;
            let drafts = if kind == Kind::Decode { rows.saturating_sub(1) } else { 0 };
            Outcome { drafts, tokens, finish, error }
        };
        let rows = emitted.chunks_exact(width);
        let outcomes = rows.zip(&slots).enumerate().map(outcome).collect();
        self.mail.push(mail);
        Ok(Passed { outcomes, started, computed })
    }
}

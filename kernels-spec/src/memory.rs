//! What the bookkeeping remembers of every slot, and the row lists it builds from it.

use kernels_core::{Backend, Error, Result, Rows, Tensor, TensorMut};

/// What a slot is doing, as its word in [`Slots::state`].
///
/// Only a running slot is ever given rows, drafts or tokens. Every finished state is final until the
/// host admits somebody else, so a round queued behind the one that finished a slot does nothing for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum State {
    /// Nobody lives here.
    Empty = 0,
    /// Being prefilled or decoded.
    Running = 1,
    /// Finished: the last token is an end-of-sequence id.
    Eos = 2,
    /// Finished: the last tokens are a stop sequence.
    Stop = 3,
    /// Finished: there is no room for another token.
    Length = 4,
    /// Finished by the host.
    Aborted = 5,
    /// Finished by a violated invariant; the slot's fault word says which.
    Faulted = 6,
}

impl State {
    /// The state a word stands for; `None` for words nobody wrote.
    pub fn of(word: i32) -> Option<State> {
        use State::*;
        [Empty, Running, Eos, Stop, Length, Aborted, Faulted].into_iter().find(|s| *s as i32 == word)
    }

    /// Whether the slot holds a sequence that will get no more tokens.
    pub fn finished(self) -> bool {
        !matches!(self, State::Empty | State::Running)
    }
}

/// The device arrays of all slots, lent to one operation.
///
/// The token at position `committed` is known and not yet processed; drafts stand beyond it. Invariants
/// of a running slot, between operations: `folded <= committed < length_limit <= positions`,
/// `limit <= positions`, `proposed` drafts stand at `committed + 1 ..`, `drafted <= committed + 1`.
#[derive(Debug)]
pub struct Slots<'a, B: Backend> {
    /// `[slots, positions]`: token ids by absolute position.
    pub tokens: TensorMut<'a, B, i32, 2>,
    /// `[slots]`: tokens whose effect is final.
    pub committed: TensorMut<'a, B, i32, 1>,
    /// `[slots]`: tokens inside the recurrent state.
    pub folded: TensorMut<'a, B, i32, 1>,
    /// `[slots]`: rows of draft K/V that were made from true hidden states (row 0 counts as made).
    pub drafted: TensorMut<'a, B, i32, 1>,
    /// `[slots]`: draft tokens that stand at `committed + 1 ..`.
    pub proposed: TensorMut<'a, B, i32, 1>,
    /// `[slots]`: positions below this have pages behind them.
    pub limit: TensorMut<'a, B, i32, 1>,
    /// `[slots]`: tokens may exist at positions below this.
    pub length_limit: TensorMut<'a, B, i32, 1>,
    /// `[slots]`: tokens of the prompt.
    pub prompt: TensorMut<'a, B, i32, 1>,
    /// `[slots]`: a [`State`].
    pub state: TensorMut<'a, B, i32, 1>,
    /// `[slots + 1]`: sticky fault words (see [`kernels_core::slots::Fault`]).
    pub faults: TensorMut<'a, B, u64, 1>,
}

impl<B: Backend> Slots<'_, B> {
    /// Lends the arrays again, for a shorter time.
    pub fn reborrow(&mut self) -> Slots<'_, B> {
        Slots {
            tokens: self.tokens.reborrow(),
            committed: self.committed.reborrow(),
            folded: self.folded.reborrow(),
            drafted: self.drafted.reborrow(),
            proposed: self.proposed.reborrow(),
            limit: self.limit.reborrow(),
            length_limit: self.length_limit.reborrow(),
            prompt: self.prompt.reborrow(),
            state: self.state.reborrow(),
            faults: self.faults.reborrow(),
        }
    }

    /// Checks every shape.
    pub fn check(&self, op: &'static str, slots: usize, positions: usize) -> Result<()> {
        self.tokens.check(op, "slots.tokens", [slots, positions])?;
        self.tokens.check_disjoint(op, "slots.tokens")?;
        for (tensor, name) in [
            (&self.committed, "slots.committed"),
            (&self.folded, "slots.folded"),
            (&self.drafted, "slots.drafted"),
            (&self.proposed, "slots.proposed"),
            (&self.limit, "slots.limit"),
            (&self.length_limit, "slots.length_limit"),
            (&self.prompt, "slots.prompt"),
            (&self.state, "slots.state"),
        ] {
            tensor.check(op, name, [slots])?;
        }
        self.faults.check(op, "slots.faults", [slots + 1])
    }
}

/// A row list to be written: the three arrays of [`Rows`].
#[derive(Debug)]
pub struct RowsMut<'a, B: Backend> {
    /// `[sequences]`: slot, or [`kernels_core::PAD`] for a sequence that sits this launch out.
    pub slots: TensorMut<'a, B, i32, 1>,
    /// `[sequences]`: absolute position of the first row.
    pub start: TensorMut<'a, B, i32, 1>,
    /// `[sequences + 1]`: first row of each sequence.
    pub row_offsets: TensorMut<'a, B, i32, 1>,
}

impl<B: Backend> RowsMut<'_, B> {
    /// Lends the arrays again, for a shorter time.
    pub fn reborrow(&mut self) -> RowsMut<'_, B> {
        RowsMut {
            slots: self.slots.reborrow(),
            start: self.start.reborrow(),
            row_offsets: self.row_offsets.reborrow(),
        }
    }

    /// Checks the three shapes.
    pub fn check(&self, op: &'static str, sequences: usize) -> Result<()> {
        self.slots.check(op, "rows.slots", [sequences])?;
        self.start.check(op, "rows.start", [sequences])?;
        self.row_offsets.check(op, "rows.row_offsets", [sequences + 1])
    }
}

/// Owned memory behind [`Slots`].
#[derive(Debug)]
pub struct SlotTable<B: Backend> {
    /// The number of slots.
    pub slots: usize,
    /// Positions of each slot.
    pub positions: usize,
    /// `[slots, positions]`: see [`Slots::tokens`].
    pub tokens: B::Memory<i32>,
    /// See [`Slots::committed`].
    pub committed: B::Memory<i32>,
    /// See [`Slots::folded`].
    pub folded: B::Memory<i32>,
    /// See [`Slots::drafted`].
    pub drafted: B::Memory<i32>,
    /// See [`Slots::proposed`].
    pub proposed: B::Memory<i32>,
    /// See [`Slots::limit`].
    pub limit: B::Memory<i32>,
    /// See [`Slots::length_limit`].
    pub length_limit: B::Memory<i32>,
    /// See [`Slots::prompt`].
    pub prompt: B::Memory<i32>,
    /// See [`Slots::state`].
    pub state: B::Memory<i32>,
    /// `[slots + 1]`: see [`Slots::faults`].
    pub faults: B::Memory<u64>,
}

impl<B: Backend> SlotTable<B> {
    /// Empty slots.
    pub fn new(on: &B::Queue, slots: usize, positions: usize) -> Result<Self> {
        let too_many =
            || Error::invalid("spec::slot_table", "positions", positions, "too many for the address space");
        let tokens = slots.checked_mul(positions).ok_or_else(too_many)?;
        Ok(SlotTable {
            slots,
            positions,
            tokens: B::zeros(on, tokens)?,
            committed: B::zeros(on, slots)?,
            folded: B::zeros(on, slots)?,
            drafted: B::zeros(on, slots)?,
            proposed: B::zeros(on, slots)?,
            limit: B::zeros(on, slots)?,
            length_limit: B::zeros(on, slots)?,
            prompt: B::zeros(on, slots)?,
            state: B::zeros(on, slots)?,
            faults: B::zeros(on, slots + 1)?,
        })
    }

    /// Lends all arrays.
    pub fn lend(&mut self) -> Slots<'_, B> {
        let (slots, positions) = (self.slots, self.positions);
        Slots {
            tokens: TensorMut::of(&mut self.tokens, [slots, positions]),
            committed: TensorMut::of(&mut self.committed, [slots]),
            folded: TensorMut::of(&mut self.folded, [slots]),
            drafted: TensorMut::of(&mut self.drafted, [slots]),
            proposed: TensorMut::of(&mut self.proposed, [slots]),
            limit: TensorMut::of(&mut self.limit, [slots]),
            length_limit: TensorMut::of(&mut self.length_limit, [slots]),
            prompt: TensorMut::of(&mut self.prompt, [slots]),
            state: TensorMut::of(&mut self.state, [slots]),
            faults: TensorMut::of(&mut self.faults, [slots + 1]),
        }
    }

    /// Puts a sequence into `slot`: nothing is committed, folded or drafted yet, and old faults are gone.
    ///
    /// Tokens may exist at positions below `length_limit`; positions below `limit` have pages.
    pub fn admit(
        &mut self,
        on: &B::Queue,
        slot: usize,
        prompt: &[i32],
        limit: usize,
        length_limit: usize,
    ) -> Result<()> {
        const OP: &str = "spec::admit";
        if slot >= self.slots {
            return Err(Error::invalid(OP, "slot", slot, format!("there are {} slots", self.slots)));
        }
        for (name, value) in [("limit", limit), ("length_limit", length_limit)] {
            if value > self.positions {
                let want = format!("a slot has {} positions", self.positions);
                return Err(Error::invalid(OP, name, value, want));
            }
        }
        if prompt.is_empty() || prompt.len() >= length_limit {
            let want = format!("1 to {} tokens leave room for an answer", length_limit.saturating_sub(1));
            return Err(Error::invalid(OP, "prompt length", prompt.len(), want));
        }
        B::write(on, &mut self.tokens, slot * self.positions, prompt)?;
        for counter in [&mut self.committed, &mut self.folded, &mut self.drafted, &mut self.proposed] {
            B::write(on, counter, slot, &[0])?;
        }
        B::write(on, &mut self.limit, slot, &[limit as i32])?;
        B::write(on, &mut self.length_limit, slot, &[length_limit as i32])?;
        B::write(on, &mut self.prompt, slot, &[prompt.len() as i32])?;
        B::write(on, &mut self.faults, slot, &[0])?;
        B::write(on, &mut self.state, slot, &[State::Running as i32])
    }

    /// Sets the state of `slot`: `Aborted` by the host, or `Empty` once its result was taken.
    pub fn set_state(&mut self, on: &B::Queue, slot: usize, state: State) -> Result<()> {
        if slot >= self.slots {
            let want = format!("there are {} slots", self.slots);
            return Err(Error::invalid("spec::set_state", "slot", slot, want));
        }
        B::write(on, &mut self.state, slot, &[state as i32])
    }
}

/// Owned memory behind [`RowsMut`] and [`Rows`].
#[derive(Debug)]
pub struct RowTable<B: Backend> {
    /// The number of sequences.
    pub sequences: usize,
    /// `[sequences]`: see [`RowsMut::slots`].
    pub slots: B::Memory<i32>,
    /// `[sequences]`: see [`RowsMut::start`].
    pub start: B::Memory<i32>,
    /// `[sequences + 1]`: see [`RowsMut::row_offsets`].
    pub row_offsets: B::Memory<i32>,
}

impl<B: Backend> RowTable<B> {
    /// A list of sequences without rows (all padding).
    pub fn new(on: &B::Queue, sequences: usize) -> Result<Self> {
        Ok(RowTable {
            sequences,
            slots: B::upload(on, &vec![kernels_core::PAD; sequences])?,
            start: B::zeros(on, sequences)?,
            row_offsets: B::zeros(on, sequences + 1)?,
        })
    }

    /// Lends the list to an operation that reads it.
    pub fn lend(&self) -> Rows<'_, B> {
        Rows {
            slots: Tensor::of(&self.slots, [self.sequences]),
            start: Tensor::of(&self.start, [self.sequences]),
            row_offsets: Tensor::of(&self.row_offsets, [self.sequences + 1]),
        }
    }

    /// Lends the list to an operation that writes it.
    pub fn lend_mut(&mut self) -> RowsMut<'_, B> {
        RowsMut {
            slots: TensorMut::of(&mut self.slots, [self.sequences]),
            start: TensorMut::of(&mut self.start, [self.sequences]),
            row_offsets: TensorMut::of(&mut self.row_offsets, [self.sequences + 1]),
        }
    }
}

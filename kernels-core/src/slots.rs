//! The rules every cache of a sequence follows.
//!
//! A sequence lives in a slot. Everything it remembers is addressed by the absolute position of a token:
//! index = position, or position modulo a ring's length. `committed[slot]` tokens are final; a rejected
//! row lies beyond them and is overwritten by the next round. No kernel ever takes an accepted count.

use crate::{Backend, Cpu, Result, Tensor, TensorMut};
use std::ops::Range;

/// The slot of a padding row. Slot 0 is real; padding is negative, so that a zeroed table fails loudly.
pub const PAD: i32 = -1;

/// Which rows of a ragged launch belong to which sequence, as device data.
///
/// Sequence `i` owns rows `row_offsets[i]..row_offsets[i + 1]`, which stand at positions `start[i]..`.
/// A negative slot means: skip, read nothing, write zeros as output. Rows behind those of every sequence
/// belong to nobody and are treated like skipped ones.
#[derive(Debug)]
pub struct Rows<'a, B: Backend> {
    /// `[sequences]`: state slot, negative = skip.
    pub slots: Tensor<'a, B, i32, 1>,
    /// `[sequences]`: absolute position of the first row.
    pub start: Tensor<'a, B, i32, 1>,
    /// `[sequences + 1]`: first row of each sequence; ascending from 0.
    pub row_offsets: Tensor<'a, B, i32, 1>,
}

impl<B: Backend> Clone for Rows<'_, B> {
    fn clone(&self) -> Self {
        Self { slots: self.slots.clone(), start: self.start.clone(), row_offsets: self.row_offsets.clone() }
    }
}

/// One sequence's part of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Its index in the launch.
    pub index: usize,
    /// Its slot; `None` = skip.
    pub slot: Option<usize>,
    /// The position of its first row.
    pub start: usize,
    /// Its rows in the launch.
    pub rows: Range<usize>,
}

impl<B: Backend> Rows<'_, B> {
    /// Lends the list again, for a shorter time.
    pub fn reborrow(&self) -> Rows<'_, B> {
        Rows {
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

impl Rows<'_, Cpu> {
    /// The number of sequences, skipped ones included.
    pub fn sequences(&self) -> usize {
        self.slots.dims[0]
    }

    /// Reads what the launch says of sequence `index`, and checks it against the bounds: a sequence that
    /// violates them is skipped and its fault recorded, as on the device.
    pub fn sequence(
        &self,
        index: usize,
        bounds: Bounds,
        faults: &mut TensorMut<'_, Cpu, u64, 1>,
    ) -> Sequence {
        let (slot, start) = (self.slots.at([index]), self.start.at([index]));
        let (first, end) = (self.row_offsets.at([index]), self.row_offsets.at([index + 1]));
        let owned = owned_rows(first, end, bounds.rows);
        // A bad offset owns no rows at all: nothing may be written through it, not even zeros.
        let rows = owned.clone().unwrap_or(0..0);
        let fault = if owned.is_none() {
            Some((FaultKind::RowOffsets, end))
        } else if slot < 0 {
            None
        } else if slot as usize >= bounds.slots {
            Some((FaultKind::Slot, slot))
        } else if start < 0 || start as usize + rows.len() > bounds.positions {
            Some((FaultKind::Position, start))
        } else {
            None
        };
        if let Some((kind, value)) = fault {
            Fault { kind, slot, value }.record(faults);
        }
        let live = slot >= 0 && fault.is_none() && !rows.is_empty();
        Sequence { index, slot: live.then_some(slot as usize), start: start.max(0) as usize, rows }
    }

    /// The rows that belong to no sequence: those behind the largest end among the offsets that are sound.
    ///
    /// The last offset does not say it: below an earlier one, which is a fault of the last sequence, it would
    /// give rows of a sound sequence to nobody.
    pub fn unowned(&self, rows: usize) -> Range<usize> {
        let owned = |index: usize| {
            let (first, end) = (self.row_offsets.at([index]), self.row_offsets.at([index + 1]));
            owned_rows(first, end, rows).map_or(0, |owned| owned.end)
        };
        (0..self.sequences()).map(owned).max().unwrap_or(0)..rows
    }
}

/// The rows between two neighbouring offsets, if they are sound in a launch of `rows` rows.
fn owned_rows(first: i32, end: i32, rows: usize) -> Option<Range<usize>> {
    (0 <= first && first <= end && end as usize <= rows).then_some(first as usize..end as usize)
}

/// What the numbers of a launch must stay below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Rows of the launch.
    pub rows: usize,
    /// Slots of the memories addressed.
    pub slots: usize,
    /// Positions a sequence may have (`usize::MAX` where a ring makes them unbounded).
    pub positions: usize,
}

/// What was wrong with a sequence's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum FaultKind {
    /// Row offsets are not ascending or reach beyond the launch.
    RowOffsets = 1,
    /// The slot does not exist.
    Slot = 2,
    /// A position is negative or beyond the memory behind it.
    Position = 3,
    /// Journal rows pending are negative or more than the journal holds.
    Pending = 4,
    /// A page number does not exist.
    Page = 5,
    /// A token id is beyond the vocabulary.
    Token = 6,
    /// No token can be chosen: every logit is NaN or masked.
    Logits = 7,
}

/// A violated invariant, as stored in a slot's sticky fault word.
///
/// `faults` is `[slots + 1]` words of u64, zero = fine; the last word is for rows that name no slot. The
/// first fault of a slot wins. A slot with a fault is not committed; the host reports it and retires it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What was wrong.
    pub kind: FaultKind,
    /// The slot named.
    pub slot: i32,
    /// The offending value.
    pub value: i32,
}

impl Fault {
    /// The word: kind in the top 8 bits, then 24 bits of slot, then 32 bits of value.
    pub fn encode(self) -> u64 {
        (self.kind as u64) << 56 | (self.slot as u32 as u64 & 0xff_ffff) << 32 | self.value as u32 as u64
    }

    /// Reads a word back; `None` for zero and for words nobody wrote.
    pub fn decode(word: u64) -> Option<Fault> {
        use FaultKind::*;
        let kind = [RowOffsets, Slot, Position, Pending, Page, Token, Logits]
            .into_iter()
            .find(|k| *k as u64 == word >> 56)?;
        // Shifting up and back restores the sign of a 24-bit slot.
        let slot = ((word >> 32) as u32 as i32) << 8 >> 8;
        Some(Fault { kind, slot, value: word as u32 as i32 })
    }

    /// Records the fault in its slot's word, unless an earlier one is there.
    pub fn record(self, faults: &mut TensorMut<'_, Cpu, u64, 1>) {
        let last = faults.dims[0] - 1;
        let word = usize::try_from(self.slot).map_or(last, |slot| slot.min(last));
        if faults.at([word]) == 0 {
            faults.set([word], self.encode());
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.kind {
            FaultKind::RowOffsets => "row offset out of range",
            FaultKind::Slot => "no such slot",
            FaultKind::Position => "position out of range",
            FaultKind::Pending => "pending journal rows out of range",
            FaultKind::Page => "no such page",
            FaultKind::Token => "token id beyond the vocabulary",
            FaultKind::Logits => "no finite logit to choose from",
        };
        write!(f, "slot {}: {what} (value {})", self.slot, self.value)
    }
}

/// Whether a round folds the pending journal rows into the state: the one flush rule, used by the GDN
/// kernel and by the bookkeeping that moves `folded`.
#[inline(always)]
pub const fn flushes(pending: usize, flush_after: usize) -> bool {
    pending > flush_after
}

/// Journal rows a slot needs: up to `flush_after + max_rows` are replayed while `max_rows` new ones are
/// written, and both share the ring.
pub const fn journal_rows(flush_after: usize, max_rows: usize) -> usize {
    flush_after + 2 * max_rows
}

/// Conv ring rows a slot needs: the `width - 1` inputs before the first row, and the rows themselves.
pub const fn conv_ring_rows(width: usize, max_rows: usize) -> usize {
    width - 1 + max_rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_words_round_trip() {
        for slot in [-1, 0, 5, 0x7f_ffff] {
            for value in [i32::MIN, -1, 0, 7, i32::MAX] {
                let fault = Fault { kind: FaultKind::Pending, slot, value };
                assert_eq!(Fault::decode(fault.encode()), Some(fault));
            }
        }
        assert_eq!(Fault::decode(0), None);
    }

    #[test]
    fn first_fault_of_a_slot_wins() {
        let mut words = [0u64; 3];
        let mut faults = TensorMut::<Cpu, _, 1>::new(&mut words[..], [3]);
        Fault { kind: FaultKind::Position, slot: 1, value: 4 }.record(&mut faults);
        Fault { kind: FaultKind::Pending, slot: 1, value: 5 }.record(&mut faults);
        Fault { kind: FaultKind::Slot, slot: 99, value: 99 }.record(&mut faults);
        assert_eq!(Fault::decode(words[1]).unwrap().to_string(), "slot 1: position out of range (value 4)");
        assert_eq!(words[0], 0);
        assert_eq!(Fault::decode(words[2]).unwrap().slot, 99);
    }

    #[test]
    fn bad_offsets_own_no_rows() {
        let (slots, start, offsets) = ([0, 1, PAD], [0, 0, 0], [0, 2, 9, 4]);
        let rows = Rows::<Cpu> {
            slots: Tensor::new(&slots[..], [3]),
            start: Tensor::new(&start[..], [3]),
            row_offsets: Tensor::new(&offsets[..], [4]),
        };
        let mut words = [0u64; 3];
        let mut faults = TensorMut::new(&mut words[..], [3]);
        let bounds = Bounds { rows: 5, slots: 2, positions: 10 };
        assert_eq!(rows.sequence(0, bounds, &mut faults).rows, 0..2);
        assert_eq!(rows.sequence(1, bounds, &mut faults).rows, 0..0);
        assert_eq!(rows.sequence(2, bounds, &mut faults).slot, None);
        assert_eq!(rows.unowned(5), 2..5);
        assert_ne!(words[1], 0);
    }

    #[test]
    fn rows_of_nobody_begin_behind_every_sound_sequence() {
        for (offsets, unowned) in [
            ([0, 2, 3, 4], 4..6),
            ([0, 0, 0, 0], 0..6),
            ([0, 6, 6, 6], 6..6),
            ([0, 2, 4, 2], 4..6),
            ([0, 4, 2, 3], 4..6),
            ([0, 4, 4, -1], 4..6),
            ([0, 4, 4, 7], 4..6),
            ([0, 4, i32::MAX, i32::MIN], 4..6),
            ([-1, 4, 3, 2], 0..6),
            ([-2, -1, 7, 9], 0..6),
        ] {
            let padding = [PAD; 3];
            let rows = Rows::<Cpu> {
                slots: Tensor::new(&padding[..], [3]),
                start: Tensor::new(&[0; 3][..], [3]),
                row_offsets: Tensor::new(&offsets[..], [4]),
            };
            assert_eq!(rows.unowned(6), unowned, "{offsets:?}");
        }
    }
}

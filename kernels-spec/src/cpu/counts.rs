//! A slot's counters, for operations on lists of slots.

use crate::Slots;
use kernels_core::{
    Cpu,
    slots::{Fault, FaultKind},
};

/// A running slot's counters, checked against each other.
pub(super) struct Counts {
    pub(super) slot: usize,
    pub(super) committed: usize,
    pub(super) drafted: usize,
    pub(super) proposed: usize,
    pub(super) limit: usize,
    pub(super) length_limit: usize,
    pub(super) prompt: usize,
}

impl Counts {
    /// `None` for padding, for slots that do not run, and for counters that cannot be: those are faults.
    pub(super) fn of(slots: &mut Slots<'_, Cpu>, slot: i32) -> Option<Counts> {
        let index = usize::try_from(slot).ok()?;
        if index >= slots.count() {
            Fault { kind: FaultKind::Slot, slot, value: slot }.record(&mut slots.faults);
            return None;
        }
        if !slots.runs(index) {
            return None;
        }
        let positions = slots.positions() as i32;
        let (committed, folded) = (slots.committed.at([index]), slots.folded.at([index]));
        let (drafted, proposed) = (slots.drafted.at([index]), slots.proposed.at([index]));
        let (limit, length_limit) = (slots.limit.at([index]), slots.length_limit.at([index]));
        let prompt = slots.prompt.at([index]);
        let fault = if !(0..positions).contains(&committed) {
            Some((FaultKind::Position, committed))
        } else if !(0..=committed).contains(&folded) {
            Some((FaultKind::Pending, committed.wrapping_sub(folded)))
        } else if !(0..=committed + 1).contains(&drafted) {
            Some((FaultKind::Position, drafted))
        } else if !(0..positions - committed).contains(&proposed) {
            Some((FaultKind::Position, proposed))
        } else {
            [limit, length_limit, prompt]
                .into_iter()
                .find(|value| !(0..=positions).contains(value))
                .map(|value| (FaultKind::Position, value))
        };
        if let Some((kind, value)) = fault {
            slots.fault(kind, index, value);
            slots.runs(index);
            return None;
        }
        Some(Counts {
            slot: index,
            committed: committed as usize,
            drafted: drafted as usize,
            proposed: proposed as usize,
            limit: limit as usize,
            length_limit: length_limit as usize,
            prompt: prompt as usize,
        })
    }
}

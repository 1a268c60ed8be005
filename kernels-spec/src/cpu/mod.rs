//! The specification: each operation written out, one sequence after the other.

mod counts;
mod distribution;
mod hidden;
mod inputs;
mod oracle;
mod sample;
mod settle;

pub(crate) use hidden::{carry, keep_hidden, take_last};
pub(crate) use inputs::{chain_inputs, draft_inputs, last_rows, prefill_inputs, target_inputs};
pub(crate) use oracle::oracle;
pub(crate) use sample::{argmax, draw_draft, rejection, sample};
pub(crate) use settle::{accept, advance, emit, propose, settle, stop};

use crate::{Problem, Slots, State};
use kernels_core::{
    Cpu, Rows,
    slots::{Bounds, Fault, FaultKind, Sequence},
};

impl Slots<'_, Cpu> {
    fn count(&self) -> usize {
        self.state.dims[0]
    }

    fn positions(&self) -> usize {
        self.tokens.dims[1]
    }

    fn fault(&mut self, kind: FaultKind, slot: usize, value: i32) {
        Fault { kind, slot: slot as i32, value }.record(&mut self.faults);
    }

    /// Whether `slot` may get rows and tokens. A slot with a fault is finished on sight, so that the
    /// host sees it wherever the fault was found.
    fn runs(&mut self, slot: usize) -> bool {
        let running = self.state.at([slot]) == State::Running as i32;
        if running && self.faults.at([slot]) != 0 {
            self.state.set([slot], State::Faulted as i32);
            return false;
        }
        running
    }

    /// Sequence `index` of `rows` with its slot, or `None` if it is padding or violates the bounds.
    /// `places` is how far beyond its position a row reaches: 1 where it writes the next token.
    fn sequence(
        &mut self,
        problem: &Problem,
        rows: &Rows<'_, Cpu>,
        index: usize,
        places: usize,
    ) -> Option<(usize, Sequence)> {
        let positions = problem.positions - places.min(problem.positions);
        let bounds = Bounds { rows: problem.rows, slots: problem.slots, positions };
        let sequence = rows.sequence(index, bounds, &mut self.faults);
        let slot = sequence.slot?;
        if sequence.rows.len() > problem.max_rows {
            self.fault(FaultKind::RowOffsets, slot, sequence.rows.len() as i32);
            return None;
        }
        Some((slot, sequence))
    }
}

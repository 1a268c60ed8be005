//! Hidden rows between target, ring and draft.

use crate::{Carry, CarryArgs, KeepHidden, KeepHiddenArgs, TakeLast, TakeLastArgs};
use kernels_core::{
    Activation, Cpu, TensorMut, fault,
    slots::{Bounds, Fault, FaultKind},
};

fn zero<A: Activation>(out: &mut TensorMut<'_, Cpu, A, 2>, rows: std::ops::Range<usize>) {
    for row in rows {
        out.row_mut(&[row]).fill(A::default());
    }
}

pub(crate) fn carry<A: Activation>(op: &Carry, mut args: CarryArgs<'_, Cpu, A>) {
    let p = op.problem();
    let bounds = Bounds { rows: p.rows, slots: p.slots, positions: i32::MAX as usize };
    let forward_bounds = Bounds { rows: p.forward_rows, ..bounds };
    for index in 0..p.sequences {
        let sequence = args.rows.sequence(index, bounds, &mut args.faults);
        let forward = args.forward.sequence(index, forward_bounds, &mut args.faults);
        let Some(slot) = sequence.slot else {
            zero(&mut args.out, sequence.rows);
            continue;
        };
        // The hidden rows of positions `start..end` are those of the pass, older ones are in the ring.
        let here = forward.slot == Some(slot);
        let (start, end) =
            if here { (forward.start, forward.start + forward.rows.len()) } else { (usize::MAX, usize::MAX) };
        let reach = sequence.start + sequence.rows.len() - 1;
        if sequence.start == 0 || reach > end {
            let value = if sequence.start == 0 { 0 } else { reach as i32 };
            Fault { kind: FaultKind::Position, slot: slot as i32, value }.record(&mut args.faults);
            zero(&mut args.out, sequence.rows);
            continue;
        }
        for (i, row) in sequence.rows.enumerate() {
            let mut position = sequence.start + i - 1;
            if fault::active("spec.wrong_hidden_row") {
                position = (position + 1).min(end - 1);
            }
            if fault::active("spec.hidden_row_early") {
                position = position.saturating_sub(1);
            }
            let source = if position >= start {
                args.hidden.row(&[forward.rows.start + position - start])
            } else {
                args.ring.row(&[slot, position % p.ring_rows])
            };
            args.out.row_mut(&[row]).copy_from_slice(source);
        }
    }
    zero(&mut args.out, args.rows.unowned(p.rows));
}

pub(crate) fn keep_hidden<A: Activation>(op: &KeepHidden, mut args: KeepHiddenArgs<'_, Cpu, A>) {
    let p = op.problem();
    let bounds = Bounds { rows: p.rows, slots: p.slots, positions: i32::MAX as usize };
    for index in 0..p.sequences {
        let sequence = args.rows.sequence(index, bounds, &mut args.faults);
        let Some(slot) = sequence.slot else { continue };
        let (first, start) = (sequence.rows.start, sequence.start);
        let committed = args.committed.at([slot]).max(0) as usize;
        let end = committed.clamp(start, start + sequence.rows.len());
        for position in start.max(end.saturating_sub(p.ring_rows))..end {
            let source = args.hidden.row(&[first + position - start]);
            args.ring.row_mut(&[slot, position % p.ring_rows]).copy_from_slice(source);
        }
    }
}

pub(crate) fn take_last<A: Activation>(op: &TakeLast, mut args: TakeLastArgs<'_, Cpu, A>) {
    let p = op.problem();
    let bounds = Bounds { rows: p.rows, slots: p.slots, positions: i32::MAX as usize };
    for index in 0..p.sequences {
        let sequence = args.rows.sequence(index, bounds, &mut args.faults);
        match sequence.slot {
            Some(_) => {
                let source = args.hidden.row(&[sequence.rows.end - 1]);
                args.out.row_mut(&[index]).copy_from_slice(source);
            }
            None => zero(&mut args.out, index..index + 1),
        }
    }
}

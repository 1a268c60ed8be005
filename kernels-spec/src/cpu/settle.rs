//! Accept, stop, advance, propose.

use crate::{
    Accept, AcceptArgs, Advance, AdvanceArgs, Counters, Emit, EmitArgs, Pass, Problem, Propose, ProposeArgs,
    Settle, SettleArgs, Slots, State, Stop, StopArgs, Stops,
};
use kernels_core::{
    Cpu, Rows, Tensor, fault,
    slots::{FaultKind, Sequence, flushes},
};

/// The sequence that chooses tokens at `index`, if it may: running, without a fault, past its prompt.
pub(super) fn chooses(
    slots: &mut Slots<'_, Cpu>,
    problem: &Problem,
    rows: &Rows<'_, Cpu>,
    index: usize,
) -> Option<(usize, Sequence)> {
    let (slot, sequence) = slots.sequence(problem, rows, index, 1)?;
    if !slots.runs(slot) {
        return None;
    }
    if ((sequence.start + 1) as i64) < i64::from(slots.prompt.at([slot])) {
        // A choice here would overwrite the prompt.
        slots.fault(FaultKind::Position, slot, sequence.start as i32);
        return None;
    }
    Some((slot, sequence))
}

pub(crate) fn accept(op: &Accept, mut args: AcceptArgs<'_, Cpu>) {
    for index in 0..op.problem().sequences {
        let a = match chooses(&mut args.slots, op.problem(), &args.rows, index) {
            Some((slot, sequence)) => accept_one(&mut args, slot, &sequence),
            None => 0,
        };
        args.accepted.set([index], a as i32);
    }
}

fn accept_one(args: &mut AcceptArgs<'_, Cpu>, slot: usize, sequence: &Sequence) -> usize {
    let (start, rows) = (sequence.start, sequence.rows.len());
    let first = sequence.rows.start;
    let mut a = 1;
    while a < rows && args.choice.at([first + a - 1]) == args.slots.tokens.at([slot, start + a]) {
        a += 1;
    }
    if fault::active("spec.accept_one_more") {
        a = (a + 1).min(rows);
    }
    let choice = args.choice.at([first + a - 1]);
    if choice < 0 {
        args.slots.fault(FaultKind::Logits, slot, (start + a) as i32);
        return 0;
    }
    args.slots.tokens.set([slot, start + a], choice);
    a
}

pub(crate) fn stop(op: &Stop, mut args: StopArgs<'_, Cpu>) {
    let problem = &op.problem().base;
    for index in 0..problem.sequences {
        let Some((slot, sequence)) = args.slots.sequence(problem, &args.rows, index, 1) else { continue };
        let a = args.accepted.at([index]);
        if a < 0 || a as usize > sequence.rows.len() {
            args.slots.fault(FaultKind::Position, slot, a);
            args.accepted.set([index], 0);
            continue;
        }
        if let Some((last, state)) = ends(&args.slots, &args.stops, slot, sequence.start, a as usize) {
            args.slots.state.set([slot], state as i32);
            if !fault::active("spec.stop_not_clamped") {
                args.accepted.set([index], last as i32);
            }
        }
    }
}

/// The first of the tokens `start + 1 ..= start + a` that is the last one, counted from 1, and why.
fn ends(
    slots: &Slots<'_, Cpu>,
    stops: &Stops<'_, Cpu>,
    slot: usize,
    start: usize,
    a: usize,
) -> Option<(usize, State)> {
    let answer = slots.prompt.at([slot]).max(0) as usize;
    let room = slots.length_limit.at([slot]).max(0) as usize;
    let tokens = slots.tokens.row(&[slot]);
    for i in 1..=a {
        let position = start + i;
        if position >= room {
            return Some((i - 1, State::Length));
        }
        if tokens[position] >= 0 && stops.eos.row(&[slot]).contains(&tokens[position]) {
            return Some((i, State::Eos));
        }
        let so_far = &tokens[answer.min(position + 1)..=position];
        for sequence in 0..stops.sequences.dims[1] {
            let row = stops.sequences.row(&[slot, sequence]);
            let stop = &row[..row.iter().position(|id| *id < 0).unwrap_or(row.len())];
            if !stop.is_empty() && so_far.ends_with(stop) {
                return Some((i, State::Stop));
            }
        }
        if position + 1 == room {
            return Some((i, State::Length));
        }
    }
    None
}

pub(crate) fn advance(op: &Advance, mut args: AdvanceArgs<'_, Cpu>) {
    let problem = op.problem();
    for index in 0..problem.base.sequences {
        advance_one(op, &mut args, index);
        // Wherever the fault was found, this round or in this very operation: nothing is committed.
        let slot = args.rows.slots.at([index]);
        if slot >= 0 && (slot as usize) < problem.base.slots && args.slots.faults.at([slot as usize]) != 0 {
            args.slots.state.set([slot as usize], State::Faulted as i32);
            args.accepted.set([index], 0);
        }
    }
}

fn advance_one(op: &Advance, args: &mut AdvanceArgs<'_, Cpu>, index: usize) {
    let problem = op.problem();
    if fault::active("spec.padding_advanced") && args.rows.slots.at([index]) < 0 {
        let committed = args.slots.committed.at([0]);
        args.slots.committed.set([0], committed + 1);
    }
    let Some((slot, sequence)) = args.slots.sequence(&problem.base, &args.rows, index, 0) else { return };
    if args.slots.faults.at([slot]) != 0 {
        return;
    }
    let (committed, folded) = (args.slots.committed.at([slot]), args.slots.folded.at([slot]));
    let (a, rows) = (args.accepted.at([index]), sequence.rows.len());
    if committed != sequence.start as i32 {
        return args.slots.fault(FaultKind::Position, slot, sequence.start as i32);
    }
    if !(0..=committed).contains(&folded) {
        return args.slots.fault(FaultKind::Pending, slot, committed.wrapping_sub(folded));
    }
    match problem.pass {
        Pass::Decode => {
            if a < 0 || a as usize > rows {
                return args.slots.fault(FaultKind::Position, slot, a);
            }
            args.slots.committed.set([slot], committed + a);
            if flushes((committed - folded) as usize, problem.flush_after) {
                args.slots.folded.set([slot], committed);
            }
            if a > 0 {
                count(args, slot, a as usize, rows);
            }
        }
        Pass::Prefill => {
            args.slots.committed.set([slot], committed + rows as i32);
            args.slots.folded.set([slot], committed + rows as i32);
        }
    }
    if !fault::active("spec.stale_counter") {
        args.slots.proposed.set([slot], 0);
    }
}

fn count(args: &mut AdvanceArgs<'_, Cpu>, slot: usize, a: usize, rows: usize) {
    let Some(counters) = &mut args.counters else { return };
    counters.rounds.row_mut(&[slot])[a] += 1;
    counters.verified.row_mut(&[slot])[..rows - 1].iter_mut().for_each(|n| *n += 1);
    counters.accepted.row_mut(&[slot])[..a - 1].iter_mut().for_each(|n| *n += 1);
}

pub(crate) fn emit(op: &Emit, mut args: EmitArgs<'_, Cpu>) {
    let problem = op.problem();
    for index in 0..problem.sequences {
        let row = args.emitted.row_mut(&[index]);
        row.fill(-1);
        row[0] = 0;
        let slot = args.rows.slots.at([index]);
        if slot >= 0 && (slot as usize) < problem.slots {
            row[1] = args.slots.state.at([slot as usize]);
        }
        let Some((slot, sequence)) = args.slots.sequence(problem, &args.rows, index, 1) else { continue };
        let a = (args.accepted.at([index]).max(0) as usize).min(sequence.rows.len());
        row[0] = a as i32;
        let first = sequence.start + 1;
        row[2..2 + a].copy_from_slice(&args.slots.tokens.row(&[slot])[first..first + a]);
    }
}

pub(crate) fn propose(op: &Propose, mut args: ProposeArgs<'_, Cpu>) {
    let problem = op.problem();
    for index in 0..problem.sequences {
        let Some((slot, sequence)) = args.slots.sequence(problem, &args.rows, index, 0) else { continue };
        if !args.slots.runs(slot) {
            continue;
        }
        // In 64 bits, as nobody has checked these counters here.
        let last = (sequence.start + sequence.rows.len()) as i64 - 1;
        let committed = i64::from(args.slots.committed.at([slot]));
        let proposed = i64::from(args.slots.proposed.at([slot]));
        if last <= committed {
            let drafted = i64::from(args.slots.drafted.at([slot]));
            if sequence.start as i64 > drafted.max(1) {
                // Rows before these were never made: what the draft said here, it said without them.
                continue;
            }
            args.slots.drafted.set([slot], drafted.max(last + 1) as i32);
        }
        let Some(choice) = &args.choice else { continue };
        let choice = choice.at([index]);
        let room = args.slots.limit.at([slot]).min(args.slots.length_limit.at([slot]));
        let room = i64::from(room).min(problem.positions as i64);
        let in_answer = committed >= i64::from(args.slots.prompt.at([slot]));
        if choice >= 0 && in_answer && last == committed + proposed && last + 1 < room {
            args.slots.tokens.set([slot, last as usize + 1], choice);
            args.slots.proposed.set([slot], proposed as i32 + 1);
        }
    }
}

pub(crate) fn settle(op: &Settle, args: SettleArgs<'_, Cpu>) {
    let (one, two, three, four) = op.parts();
    let SettleArgs { mut accepted, emitted, mut slots, choice, stops, mut counters, rows } = args;
    accept(
        &one,
        AcceptArgs {
            accepted: accepted.reborrow(),
            slots: slots.reborrow(),
            choice: choice.reborrow(),
            rows: rows.reborrow(),
        },
    );
    let stops = Stops { eos: stops.eos.reborrow(), sequences: stops.sequences.reborrow() };
    let (a, s) = (accepted.reborrow(), slots.reborrow());
    stop(&two, StopArgs { accepted: a, slots: s, stops, rows: rows.reborrow() });
    let counters = counters.as_mut().map(|c| Counters {
        rounds: c.rounds.reborrow(),
        verified: c.verified.reborrow(),
        accepted: c.accepted.reborrow(),
    });
    let (a, s) = (accepted.reborrow(), slots.reborrow());
    advance(&three, AdvanceArgs { accepted: a, slots: s, counters, rows: rows.reborrow() });
    let accepted = Tensor::new(&*accepted.data, accepted.dims);
    emit(&four, EmitArgs { emitted, accepted, slots, rows });
}

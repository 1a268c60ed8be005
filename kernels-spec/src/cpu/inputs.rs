//! Row lists from counters.

use super::counts::Counts;
use crate::{
    ChainInputs, ChainInputsArgs, DraftInputs, DraftInputsArgs, LastRows, LastRowsArgs, PrefillInputs,
    PrefillInputsArgs, RowsMut, Slots, TargetInputs, TargetInputsArgs,
};
use kernels_core::{Cpu, PAD, Tensor, TensorMut, fault};

/// Fills a row list: `want` gives each running sequence its first position and number of rows, which is
/// cut to the rows that are left.
fn build(
    rows: &mut RowsMut<'_, Cpu>,
    ids: &mut TensorMut<'_, Cpu, i32, 1>,
    slots: &mut Slots<'_, Cpu>,
    sequences: &Tensor<'_, Cpu, i32, 1>,
    mut want: impl FnMut(usize, &Counts) -> (usize, usize),
) {
    let capacity = ids.dims[0];
    let mut first = 0;
    for index in 0..sequences.dims[0] {
        let (mut slot, mut start, mut count) = (PAD, 0, 0);
        if let Some(counts) = Counts::of(slots, sequences.at([index])) {
            (start, count) = want(index, &counts);
            count = count.min(capacity - first);
            if count > 0 {
                slot = counts.slot as i32;
                for row in 0..count {
                    ids.set([first + row], slots.tokens.at([counts.slot, start + row]));
                }
            } else {
                start = 0;
            }
        }
        rows.slots.set([index], slot);
        rows.start.set([index], start as i32);
        rows.row_offsets.set([index], first as i32);
        first += count;
    }
    rows.row_offsets.set([sequences.dims[0]], first as i32);
    for row in first..capacity {
        ids.set([row], -1);
    }
}

pub(crate) fn target_inputs(op: &TargetInputs, mut args: TargetInputsArgs<'_, Cpu>) {
    let max_rows = op.problem().max_rows;
    build(&mut args.rows, &mut args.ids, &mut args.slots, &args.sequences, |index, c| {
        if c.committed < c.prompt {
            return (c.committed, 0);
        }
        let drafts = (args.drafts.at([index]).max(0) as usize).min(c.proposed);
        // A page for every row, and a place for the token that each row chooses.
        let pages = c.limit.saturating_sub(c.committed);
        let places = c.length_limit.saturating_sub(c.committed + 1);
        (c.committed, (1 + drafts).min(max_rows).min(pages).min(places))
    });
}

pub(crate) fn prefill_inputs(op: &PrefillInputs, mut args: PrefillInputsArgs<'_, Cpu>) {
    let max_rows = op.problem().max_rows;
    build(&mut args.rows, &mut args.ids, &mut args.slots, &args.sequences, |index, c| {
        let length = (args.lengths.at([index]).max(0) as usize).min(max_rows);
        let end = c.prompt.min(c.limit).max(c.committed);
        (c.committed, length.min(end - c.committed))
    });
}

pub(crate) fn draft_inputs(op: &DraftInputs, mut args: DraftInputsArgs<'_, Cpu>) {
    let (max_rows, ring_rows) = (op.problem().base.max_rows, op.problem().ring_rows);
    let forward = args.forward;
    build(&mut args.rows, &mut args.ids, &mut args.slots, &args.sequences, |index, c| {
        let mut first = c.drafted.max(1);
        if fault::active("spec.draft_kv_not_refreshed") {
            first = first.max(c.committed);
        }
        let end = (c.committed + 1).min(c.limit).max(first);
        // The pass just advanced holds its own hidden rows, the ring those before it.
        let here = forward.slots.at([index]) == c.slot as i32;
        let start = if here { forward.start.at([index]).max(0) as usize } else { c.committed };
        if first - 1 + ring_rows < start {
            return (first, 0);
        }
        (first, (end - first).min(max_rows))
    });
    if fault::active("spec.draft_token_unshifted") {
        for index in 0..op.problem().base.sequences {
            let (slot, start) = (args.rows.slots.at([index]), args.rows.start.at([index]));
            let (from, to) = (args.rows.row_offsets.at([index]), args.rows.row_offsets.at([index + 1]));
            for row in from..to {
                let token = args.slots.tokens.at([slot as usize, (start + row - from - 1) as usize]);
                args.ids.set([row as usize], token);
            }
        }
    }
}

pub(crate) fn chain_inputs(op: &ChainInputs, mut args: ChainInputsArgs<'_, Cpu>) {
    let sequences = op.problem().sequences;
    let rows = &mut args.rows;
    for index in 0..sequences {
        let (mut slot, mut start, mut id) = (PAD, 0, -1);
        let offsets = &rows.row_offsets;
        let count = i64::from(offsets.at([index + 1])) - i64::from(offsets.at([index]));
        let next = i64::from(rows.start.at([index])) + count;
        if let Some(c) = Counts::of(&mut args.slots, args.sequences.at([index])) {
            let (ran, latest) = (rows.slots.at([index]) == c.slot as i32, c.committed + c.proposed);
            let proposed = c.proposed > 0 && count > 0 && next == latest as i64;
            if ran && proposed && latest < c.limit {
                (slot, start) = (c.slot as i32, latest as i32);
                id = args.slots.tokens.at([c.slot, latest]);
            }
        }
        rows.slots.set([index], slot);
        rows.start.set([index], start);
        // In place: the next sequence still reads its own two offsets as they were.
        rows.row_offsets.set([index], index as i32);
        args.ids.set([index], id);
    }
    rows.row_offsets.set([sequences], sequences as i32);
}

pub(crate) fn last_rows(op: &LastRows, mut args: LastRowsArgs<'_, Cpu>) {
    let problem = op.problem();
    for index in 0..problem.sequences {
        let (mut slot, mut start) = (PAD, 0);
        if let Some((live, sequence)) = args.slots.sequence(problem, &args.rows, index, 0) {
            let end = sequence.start + sequence.rows.len();
            // Where the next token is one of the prompt, there is nothing to choose.
            if end as i64 >= i64::from(args.slots.prompt.at([live])) {
                (slot, start) = (live as i32, end as i32 - 1);
            }
        }
        args.last.slots.set([index], slot);
        args.last.start.set([index], start);
        args.last.row_offsets.set([index], index as i32);
    }
    args.last.row_offsets.set([problem.sequences], problem.sequences as i32);
}

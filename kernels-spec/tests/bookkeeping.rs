//! Literal tables for every operation that moves a counter or a token.

use crate::sim::{Sim, rows};
use kernels_core::{
    PAD,
    slots::{Fault, FaultKind},
};
use kernels_spec::*;

/// Slot 1 of three decodes behind a prompt of 4: 6 tokens committed, token 6 known, drafts 7 and 8.
fn decoding() -> Sim {
    let mut sim = Sim::new(3, 16, 4);
    sim.table.admit(&(), 1, &[10, 11, 12, 13], 16, 16).unwrap();
    sim.table.tokens[16..32]
        .copy_from_slice(&[10, 11, 12, 13, 14, 15, 16, 17, 18, -9, -9, -9, -9, -9, -9, -9]);
    (sim.table.committed[1], sim.table.folded[1]) = (6, 5);
    (sim.table.drafted[1], sim.table.proposed[1]) = (7, 2);
    sim
}

fn fault_of(sim: &Sim, slot: usize) -> Option<(FaultKind, i32)> {
    Fault::decode(sim.table.faults[slot]).map(|f| (f.kind, f.value))
}

#[test]
fn target_inputs_feed_the_last_token_and_fresh_drafts() {
    // drafts wanted, limit, length_limit -> rows
    for (k, limit, length_limit, count) in [
        (2, 16, 16, 3),
        (0, 16, 16, 1),
        (1, 16, 16, 2),
        (9, 16, 16, 3), // only two were proposed
        (-5, 16, 16, 1),
        (2, 8, 16, 2), // a page for positions 6 and 7 only
        (2, 7, 16, 1),
        (2, 6, 16, 0), // no page for the last token: it waits
        (2, 16, 8, 1), // one more token, then the end
        (2, 16, 9, 2),
        (2, 16, 7, 0),
        (2, 0, 0, 0),
    ] {
        let mut sim = decoding();
        (sim.table.limit[1], sim.table.length_limit[1]) = (limit, length_limit);
        let made = sim.target_inputs(&[PAD, 1, 0], &[3, k, 3]);
        let case = format!("k {k}, limit {limit}, length limit {length_limit}");
        let want = [[16, 17, 18][..count].to_vec(), vec![-1; 12 - count]].concat();
        assert_eq!(made.ids, want, "{case}");
        let (slot, start) = if count > 0 { (1, 6) } else { (PAD, 0) };
        assert_eq!(made.rows.slots, [PAD, slot, PAD], "{case}");
        assert_eq!(made.rows.start, [0, start, 0], "{case}");
        assert_eq!(made.rows.row_offsets, [0, 0, count as i32, count as i32], "{case}");
        assert_eq!(sim.table.faults, [0; 4]);
    }
}

#[test]
fn more_drafts_than_rows_are_cut() {
    let mut sim = decoding();
    sim.table.proposed[1] = 7;
    let made = sim.target_inputs(&[1], &[7]);
    assert_eq!(made.rows.row_offsets, [0, 4]);
}

#[test]
fn only_running_slots_past_their_prompt_decode() {
    for state in [State::Empty, State::Eos, State::Stop, State::Length, State::Aborted, State::Faulted] {
        let mut sim = decoding();
        sim.table.set_state(&(), 1, state).unwrap();
        assert_eq!(sim.target_inputs(&[1], &[2]).rows.slots, [PAD], "{state:?}");
        assert_eq!(sim.state(1), state);
    }
    let mut sim = decoding();
    sim.table.prompt[1] = 7;
    assert_eq!(sim.target_inputs(&[1], &[2]).rows.slots, [PAD]);
}

#[test]
fn a_slot_with_a_fault_is_finished_on_sight() {
    let mut sim = decoding();
    sim.table.faults[1] = Fault { kind: FaultKind::Page, slot: 1, value: 3 }.encode();
    assert_eq!(sim.target_inputs(&[1], &[2]).rows.slots, [PAD]);
    assert_eq!(sim.state(1), State::Faulted);
}

#[test]
fn impossible_counters_are_faults() {
    type Change = fn(&mut SlotTable<kernels_core::Cpu>);
    let cases: [(Change, FaultKind, i32); 9] = [
        (|t| t.committed[1] = 16, FaultKind::Position, 16),
        (|t| t.committed[1] = -1, FaultKind::Position, -1),
        (|t| t.folded[1] = 7, FaultKind::Pending, -1),
        (|t| t.folded[1] = -1, FaultKind::Pending, 7),
        (|t| t.drafted[1] = 8, FaultKind::Position, 8),
        (|t| t.proposed[1] = 10, FaultKind::Position, 10),
        (|t| t.proposed[1] = -1, FaultKind::Position, -1),
        (|t| t.limit[1] = 17, FaultKind::Position, 17),
        (|t| t.length_limit[1] = -2, FaultKind::Position, -2),
    ];
    for (index, (change, kind, value)) in cases.into_iter().enumerate() {
        let mut sim = decoding();
        change(&mut sim.table);
        let made = sim.target_inputs(&[1, 0], &[2, 2]);
        assert_eq!(made.rows.slots, [PAD, PAD], "case {index}");
        assert_eq!(fault_of(&sim, 1), Some((kind, value)), "case {index}");
        assert_eq!(sim.state(1), State::Faulted, "case {index}");
    }
    let mut sim = decoding();
    assert_eq!(sim.target_inputs(&[3], &[2]).rows.slots, [PAD]);
    assert_eq!(fault_of(&sim, 3), Some((FaultKind::Slot, 3)), "a slot that does not exist");
}

#[test]
fn prefill_inputs_cut_the_prompt_into_chunks() {
    let mut sim = Sim::new(3, 16, 4);
    sim.table.admit(&(), 2, &[20, 21, 22, 23, 24], 16, 16).unwrap();
    sim.table.admit(&(), 0, &[10, 11, 12], 2, 16).unwrap();
    sim.table.committed[2] = 1;
    // Slot 0 has pages for two tokens; slot 2 has four tokens left.
    let made = sim.prefill_inputs(&[2, PAD, 0], &[9, 9, 9], 8);
    assert_eq!(made.rows.slots, [2, PAD, 0]);
    assert_eq!(made.rows.start, [1, 0, 0]);
    assert_eq!(made.rows.row_offsets, [0, 4, 4, 6]);
    assert_eq!(made.ids, [21, 22, 23, 24, 10, 11, -1, -1]);
    // What is asked for, and then what is left of the launch.
    let made = sim.prefill_inputs(&[2, 0], &[3, 2], 4);
    assert_eq!(made.rows.row_offsets, [0, 3, 4]);
    assert_eq!(made.ids, [21, 22, 23, 10]);
    let made = sim.prefill_inputs(&[2, 0], &[4, 2], 4);
    assert_eq!((made.rows.slots, made.rows.row_offsets), (vec![2, PAD], vec![0, 4, 4]));
    // Nothing to do: decoding, or told to do nothing.
    sim.table.committed[2] = 5;
    let made = sim.prefill_inputs(&[2, 0], &[4, 0], 4);
    assert_eq!((made.rows.slots, made.ids), (vec![PAD, PAD], vec![-1; 4]));
}

#[test]
fn last_rows_choose_where_the_prompt_ends() {
    let mut sim = Sim::new(2, 16, 4);
    sim.table.admit(&(), 0, &[1, 2, 3, 4, 5], 16, 16).unwrap();
    sim.table.admit(&(), 1, &[1, 2], 16, 16).unwrap();
    // Slot 0 stops one short of its prompt's end; slot 1 reaches it.
    let last = sim.last_rows(&rows(&[0, PAD, 1], &[2, 0, 0], &[0, 2, 2, 4]), 6);
    assert_eq!(last.slots, [PAD, PAD, 1]);
    assert_eq!(last.start, [0, 0, 1]);
    assert_eq!(last.row_offsets, [0, 1, 2, 3]);
    let last = sim.last_rows(&rows(&[0], &[2], &[0, 3]), 6);
    assert_eq!((last.slots, last.start), (vec![0], vec![4]));
}

#[test]
fn accept_counts_the_matching_prefix_and_writes_the_next_token() {
    // The target's choices in rows 6, 7, 8 -> accept length, tokens 7..=9. Drafts are 17, 18.
    for (choice, a, after) in [
        ([17, 18, 30], 3, [17, 18, 30]),
        ([17, 31, 30], 2, [17, 31, -9]),
        ([32, 18, 30], 1, [32, 18, -9]), // a right draft behind a wrong one is not accepted
        ([17, 18, 18], 3, [17, 18, 18]),
        ([17, 33, -1], 2, [17, 33, -9]), // nothing to choose in a rejected row: nobody asks
    ] {
        let mut sim = decoding();
        let list = rows(&[PAD, 1], &[0, 6], &[0, 0, 3]);
        assert_eq!(sim.accept(&list, &choice), [0, a], "{choice:?}");
        assert_eq!(sim.tokens(1)[7..10], after, "{choice:?}");
        assert_eq!(sim.table.faults, [0; 4]);
        assert_eq!(sim.table.committed[1], 6, "accept commits nothing");
    }
}

#[test]
fn accept_faults_where_a_needed_row_chose_nothing() {
    for (choice, position) in [([-1, 18, 30], 7), ([17, -1, 30], 8), ([17, 18, -1], 9)] {
        let mut sim = decoding();
        let before = sim.tokens(1).to_vec();
        assert_eq!(sim.accept(&rows(&[1], &[6], &[0, 3]), &choice), [0]);
        assert_eq!(fault_of(&sim, 1), Some((FaultKind::Logits, position)), "{choice:?}");
        assert_eq!(sim.tokens(1), before);
        let mut accepted = [0];
        sim.advance(Pass::Decode, &rows(&[1], &[6], &[0, 3]), 3, &mut accepted);
        assert_eq!((sim.state(1), sim.table.committed[1]), (State::Faulted, 6));
    }
}

#[test]
fn accept_leaves_finished_slots_and_prompts_alone() {
    for state in [State::Eos, State::Aborted, State::Empty] {
        let mut sim = decoding();
        sim.table.set_state(&(), 1, state).unwrap();
        assert_eq!(sim.accept(&rows(&[1], &[6], &[0, 3]), &[17, 18, 30]), [0]);
        assert_eq!(sim.tokens(1)[9], -9);
    }
    let mut sim = decoding();
    assert_eq!(sim.accept(&rows(&[1], &[2], &[0, 1]), &[99]), [0], "position 3 is the prompt's");
    assert_eq!(fault_of(&sim, 1), Some((FaultKind::Position, 2)));
    // The first token of an answer.
    let mut sim = decoding();
    assert_eq!(sim.accept(&rows(&[1], &[3], &[0, 1]), &[99]), [1]);
    assert_eq!(sim.tokens(1)[4], 99);
    // The last position has no place behind it.
    let mut sim = decoding();
    assert_eq!(sim.accept(&rows(&[1], &[15], &[0, 1]), &[99]), [0]);
    assert_eq!(fault_of(&sim, 1), Some((FaultKind::Position, 15)));
    // Rows of nobody's sequence, too many rows for one.
    let mut sim = decoding();
    assert_eq!(sim.accept(&rows(&[1], &[6], &[0, 5]), &[17, 18, 30, 31, 32]), [0]);
    assert_eq!(fault_of(&sim, 1), Some((FaultKind::RowOffsets, 5)));
}

/// Stops slot 1 behind tokens 7, 8, 9 = 17, 18, 30 with the given rules.
fn stopped(eos: [i32; 2], stops: [i32; 6], length_limit: i32, a: i32) -> (i32, State) {
    let mut sim = decoding();
    sim.table.tokens[16 + 9] = 30;
    sim.eos[2..4].copy_from_slice(&eos);
    sim.stops[6..12].copy_from_slice(&stops);
    sim.table.length_limit[1] = length_limit;
    let mut accepted = [0, a];
    sim.stop(&rows(&[PAD, 1], &[0, 6], &[0, 0, 3]), 3, &mut accepted);
    assert_eq!(accepted[0], 0);
    (accepted[1], sim.state(1))
}

#[test]
fn stop_cuts_at_the_first_end() {
    const NONE: [i32; 6] = [-1; 6];
    use State::*;
    for (eos, stops, length_limit, a, want) in [
        ([-1, -1], NONE, 16, 3, (3, Running)),
        ([30, -1], NONE, 16, 3, (3, Eos)),
        ([-1, 18], NONE, 16, 3, (2, Eos)),     // in the middle of the block
        ([17, 18], NONE, 16, 3, (1, Eos)),     // the first one counts
        ([30, -1], NONE, 16, 2, (2, Running)), // beyond what was accepted
        ([18, -1], NONE, 16, 1, (1, Running)),
        ([18, -1], NONE, 16, 0, (0, Running)),
        ([16, 13], NONE, 16, 3, (3, Running)), // old tokens do not count again
        // Stop sequences: inside the block, spanning two rounds, not into the prompt, unused rows.
        ([-1, -1], [17, 18, -1, -1, -1, -1], 16, 3, (2, Stop)),
        ([-1, -1], [-1, -1, -1, 16, 17, -1], 16, 3, (1, Stop)),
        ([-1, -1], [15, 16, 17, -1, -1, -1], 16, 3, (1, Stop)),
        ([-1, -1], [14, 15, 17, -1, -1, -1], 16, 3, (3, Running)),
        ([-1, -1], [30, -1, -1, -1, -1, -1], 16, 3, (3, Stop)),
        ([18, -1], [18, -1, -1, 17, -1, -1], 16, 3, (1, Stop)),
        ([18, -1], [17, 18, -1, -1, -1, -1], 16, 3, (2, Eos)),
        // Length: position length_limit - 1 holds the last token.
        ([-1, -1], NONE, 10, 3, (3, Length)),
        ([-1, -1], NONE, 9, 3, (2, Length)),
        ([-1, -1], NONE, 8, 3, (1, Length)),
        ([-1, -1], NONE, 7, 3, (0, Length)),
        ([18, -1], NONE, 9, 3, (2, Eos)),
        ([30, -1], NONE, 9, 3, (2, Length)),
    ] {
        assert_eq!(stopped(eos, stops, length_limit, a), want, "{eos:?} {stops:?} {length_limit} {a}");
    }
}

#[test]
fn stop_sequences_do_not_begin_in_the_prompt() {
    // The answer is position 4 on; the prompt ends in 12, 13.
    for (stop, want) in [([13, 14, -1], State::Running), ([14, -1, -1], State::Stop)] {
        let mut sim = decoding();
        sim.stops[6..9].copy_from_slice(&stop);
        let mut accepted = [1];
        sim.stop(&rows(&[1], &[3], &[0, 1]), 1, &mut accepted);
        assert_eq!((accepted, sim.state(1)), ([1], want));
    }
}

#[test]
fn advance_commits_and_folds_by_the_shared_rule() {
    // folded, a, flush_after -> committed, folded
    for (folded, a, flush_after, want) in [
        (5, 3, 1, (9, 5)), // one pending: not more than one
        (4, 3, 1, (9, 6)), // two pending: the pass folded up to the old committed
        (4, 1, 2, (7, 4)),
        (6, 2, 0, (8, 6)), // nothing pending
        (5, 2, 0, (8, 6)),
        (4, 0, 1, (6, 6)), // nothing accepted, and yet the pass folded
    ] {
        let mut sim = decoding();
        (sim.table.folded[1], sim.flush_after) = (folded, flush_after);
        let mut accepted = [0, a];
        sim.advance(Pass::Decode, &rows(&[PAD, 1], &[0, 6], &[0, 0, 3]), 3, &mut accepted);
        assert_eq!((sim.table.committed[1], sim.table.folded[1]), want, "{folded} {a} {flush_after}");
        assert_eq!(sim.table.proposed[1], 0);
        assert_eq!(sim.table.drafted[1], 7);
        assert_eq!((sim.table.committed[0], sim.table.committed[2]), (0, 0));
        assert_eq!(accepted, [0, a]);
    }
}

#[test]
fn advance_counts_rounds_and_drafts() {
    let mut sim = decoding();
    for (committed, count, a) in [(6, 3, 3), (9, 3, 1), (10, 1, 1), (11, 4, 2)] {
        let list = rows(&[1], &[committed], &[0, count]);
        sim.advance(Pass::Decode, &list, count as usize, &mut [a]);
    }
    assert_eq!(sim.rounds[5..10], [0, 2, 1, 1, 0]);
    assert_eq!(sim.verified[4..8], [3, 3, 1, 0]);
    assert_eq!(sim.accepted[4..8], [2, 1, 0, 0]);
    // A finished slot's idle rows count for nothing.
    sim.advance(Pass::Decode, &rows(&[1], &[13], &[0, 1]), 1, &mut [0]);
    assert_eq!(sim.rounds, [[0; 5].as_slice(), &[0, 2, 1, 1, 0], &[0; 5]].concat());
}

#[test]
fn advance_commits_a_prompt_chunk_whole() {
    let mut sim = Sim::new(2, 16, 4);
    sim.table.admit(&(), 1, &[1, 2, 3, 4, 5, 6, 7], 16, 16).unwrap();
    sim.advance(Pass::Prefill, &rows(&[1], &[0], &[0, 5]), 6, &mut [0]);
    assert_eq!((sim.table.committed[1], sim.table.folded[1]), (5, 5));
    assert_eq!(sim.rounds, [0; 10]);
}

#[test]
fn advance_refuses_what_does_not_fit() {
    // first row, accept length, folded -> fault
    for (start, a, folded, kind, value) in [
        (5, 1, 5, FaultKind::Position, 5), // not where the slot stands
        (6, 4, 5, FaultKind::Position, 4), // more than there were rows
        (6, -1, 5, FaultKind::Position, -1),
        (6, 1, 7, FaultKind::Pending, -1),
    ] {
        let mut sim = decoding();
        sim.table.folded[1] = folded;
        let mut accepted = [a];
        sim.advance(Pass::Decode, &rows(&[1], &[start], &[0, 3]), 3, &mut accepted);
        assert_eq!(fault_of(&sim, 1), Some((kind, value)));
        assert_eq!((sim.table.committed[1], sim.state(1), accepted[0]), (6, State::Faulted, 0));
    }
    // A fault from anywhere in the round.
    let mut sim = decoding();
    sim.table.faults[1] = Fault { kind: FaultKind::Page, slot: 1, value: 9 }.encode();
    let mut accepted = [2];
    sim.advance(Pass::Decode, &rows(&[1], &[6], &[0, 3]), 3, &mut accepted);
    assert_eq!((sim.table.committed[1], sim.table.folded[1]), (6, 5));
    assert_eq!((sim.state(1), accepted), (State::Faulted, [0]));
    assert_eq!(sim.rounds, [0; 15]);
}

#[test]
fn emit_packs_accept_length_state_and_tokens() {
    let mut sim = decoding();
    sim.table.set_state(&(), 1, State::Stop).unwrap();
    let list = rows(&[PAD, 1, 0], &[0, 6, 0], &[0, 0, 3, 3]);
    let stop = State::Stop as i32;
    let nobody = vec![0, -1, -1, -1, -1, -1];
    let empty = vec![0, 0, -1, -1, -1, -1];
    assert_eq!(sim.emit(&list, 4, &[0, 2, 0]), [nobody, vec![2, stop, 17, 18, -1, -1], empty]);
}

#[test]
fn draft_inputs_cover_what_is_not_drafted() {
    // drafted, committed, forward start and rows (or none), limit -> first, tokens
    for (drafted, forward, limit, first, ids) in [
        (7, Some((6, 3)), 16, 7, vec![17, 18, 19]), // the usual: the accepted rows
        (9, Some((6, 3)), 16, 9, vec![19]),
        (4, Some((6, 3)), 16, 4, vec![14, 15, 16, 17, 18, 19]), // plain rounds before: caught up
        (0, Some((0, 9)), 16, 1, vec![11, 12, 13, 14, 15, 16]), // a prompt: row 0 is never made; cut
        (7, Some((6, 3)), 9, 7, vec![17, 18]),                  // no page for position 9
        (10, Some((6, 3)), 16, 0, vec![]),                      // nothing to do
        (7, None, 16, 7, vec![17, 18, 19]),                     // from the ring alone
        (5, None, 16, 0, vec![]),                               // further back than the ring goes
        (3, Some((7, 2)), 16, 3, vec![13, 14, 15, 16, 17, 18]), // the oldest row in the ring is 2
        (2, Some((7, 2)), 16, 0, vec![]),                       // one more, and it is gone
    ] {
        let mut sim = decoding();
        sim.table.tokens[16 + 9] = 19;
        (sim.table.committed[1], sim.table.folded[1], sim.table.proposed[1]) = (9, 9, 0);
        (sim.table.drafted[1], sim.table.limit[1]) = (drafted, limit);
        let pass = match forward {
            Some((start, count)) => rows(&[PAD, 1], &[0, start], &[0, 0, count]),
            None => rows(&[PAD, PAD], &[0, 0], &[0, 0, 0]),
        };
        let ring_rows = if forward.is_none() { 4 } else { 5 };
        let made = sim.draft_inputs(&[PAD, 1], &pass, 6, ring_rows);
        let case = format!("drafted {drafted}, forward {forward:?}, limit {limit}");
        assert_eq!(made.rows.slots, [PAD, if ids.is_empty() { PAD } else { 1 }], "{case}");
        assert_eq!(made.rows.start, [0, first], "{case}");
        assert_eq!(made.rows.row_offsets, [0, 0, ids.len() as i32], "{case}");
        assert_eq!(made.ids[..ids.len()], ids, "{case}");
        assert!(made.ids[ids.len()..].iter().all(|id| *id == -1), "{case}");
        assert_eq!(sim.table.drafted[1], drafted, "{case}: moved by propose, not here");
    }
    let mut sim = decoding();
    sim.table.set_state(&(), 1, State::Eos).unwrap();
    let made = sim.draft_inputs(&[1], &rows(&[1], &[5], &[0, 1]), 6, 4);
    assert_eq!(made.rows.slots, [PAD]);
}

#[test]
fn proposals_stand_one_behind_the_other() {
    let mut sim = decoding();
    (sim.table.drafted[1], sim.table.proposed[1]) = (5, 0);
    // The refresh: rows 5 and 6 are made, and row 6 predicts position 7.
    let refresh = rows(&[PAD, 1], &[0, 5], &[0, 0, 2]);
    sim.propose(&refresh, 4, Some(&[99, 40]));
    assert_eq!((sim.table.drafted[1], sim.table.proposed[1], sim.tokens(1)[7]), (7, 1, 40));
    // Two links of the chain.
    let made = sim.chain_inputs(&[0, 1], refresh);
    assert_eq!((&made.rows.slots[..], &made.rows.start[..]), (&[PAD, 1][..], &[0, 7][..]));
    assert_eq!((&made.rows.row_offsets[..], &made.ids[..]), (&[0, 1, 2][..], &[-1, 40][..]));
    sim.propose(&made.rows, 2, Some(&[99, 41]));
    let made = sim.chain_inputs(&[0, 1], made.rows);
    assert_eq!((made.rows.start[1], made.ids[1]), (8, 41));
    sim.propose(&made.rows, 2, Some(&[99, 42]));
    assert_eq!((sim.table.proposed[1], sim.table.drafted[1]), (3, 7));
    assert_eq!(sim.tokens(1)[6..11], [16, 40, 41, 42, -9]);
    // Padding ends a chain, and it cannot be taken up again.
    let made = sim.chain_inputs(&[0, PAD], made.rows);
    assert_eq!((made.rows.slots[1], made.ids[1]), (PAD, -1));
    let made = sim.chain_inputs(&[0, 1], made.rows);
    assert_eq!(made.rows.slots[1], PAD);
}

#[test]
fn nothing_is_proposed_without_room_or_reason() {
    type Change = fn(&mut SlotTable<kernels_core::Cpu>);
    let cases: [(&str, Change, i32); 7] = [
        ("no page", |t| t.limit[1] = 7, 40),
        ("no length", |t| t.length_limit[1] = 7, 40),
        ("nothing chosen", |_| {}, -1),
        ("finished", |t| t.state[1] = State::Eos as i32, 40),
        ("still in the prompt", |t| t.prompt[1] = 7, 40),
        ("drafts stand there already", |t| t.proposed[1] = 1, 40),
        ("rows before it were never made", |t| t.drafted[1] = 4, 40),
    ];
    for (case, change, choice) in cases {
        let mut sim = decoding();
        (sim.table.drafted[1], sim.table.proposed[1]) = (6, 0);
        change(&mut sim.table);
        let proposed = sim.table.proposed[1];
        let list = rows(&[1], &[6], &[0, 1]);
        sim.propose(&list, 1, Some(&[choice]));
        assert_eq!((sim.table.proposed[1], sim.tokens(1)[7]), (proposed, 17), "{case}");
        let chained = sim.chain_inputs(&[1], list);
        // An older draft that still stands there is as good a link as a new one.
        let slot = if proposed > 0 { 1 } else { PAD };
        assert_eq!(chained.rows.slots, [slot], "{case}");
    }
    // A pass that only catches up.
    let mut sim = decoding();
    (sim.table.drafted[1], sim.table.proposed[1]) = (4, 0);
    sim.propose(&rows(&[1], &[4], &[0, 2]), 4, None);
    assert_eq!((sim.table.drafted[1], sim.table.proposed[1]), (6, 0));
    // Its last row is not the last one: no draft, even if something was chosen.
    sim.table.drafted[1] = 4;
    sim.propose(&rows(&[1], &[4], &[0, 2]), 4, Some(&[40]));
    assert_eq!((sim.table.drafted[1], sim.table.proposed[1]), (6, 0));
}

#[test]
fn a_chain_needs_a_page() {
    let mut sim = decoding();
    (sim.table.proposed[1], sim.table.limit[1]) = (1, 8);
    let list = rows(&[1], &[6], &[0, 1]);
    assert_eq!(sim.chain_inputs(&[1], list).rows.start, [7]);
    sim.table.limit[1] = 7;
    let list = rows(&[1], &[6], &[0, 1]);
    assert_eq!(sim.chain_inputs(&[1], list).rows.slots, [PAD]);
}

#[test]
fn admission_forgets_the_one_before() {
    let mut sim = decoding();
    sim.table.faults[1] = 7;
    sim.table.state[1] = State::Faulted as i32;
    sim.table.admit(&(), 1, &[5, 6], 8, 12).unwrap();
    let t = &sim.table;
    assert_eq!((t.committed[1], t.folded[1], t.drafted[1], t.proposed[1]), (0, 0, 0, 0));
    assert_eq!((t.limit[1], t.length_limit[1], t.prompt[1], t.faults[1]), (8, 12, 2, 0));
    assert_eq!((&sim.tokens(1)[..3], sim.state(1)), (&[5, 6, 12][..], State::Running));
}

#[test]
fn state_words_round_trip() {
    for word in -1..9 {
        assert_eq!(State::of(word).map(|s| s as i32), (0..7).contains(&word).then_some(word));
    }
    assert!(State::Length.finished() && !State::Running.finished() && !State::Empty.finished());
}

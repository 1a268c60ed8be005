use crate::book::{Book, How, request};
use engine::{
    cache::Limits,
    draft::{DraftLength, Script},
};
use workspace_tests::{ledger, limits};

/// B-034: the drafter never saw the prompt. Its K/V rows and its first drafts behind a prompt do not depend
/// on how the prompt was cut, and are there in full (the ledger asks for `committed + 1` of them); that they
/// are the right ones is compared with transformers in golden_hf.
#[test]
fn the_head_sees_the_whole_prompt() {
    let book = Book::new(vec![request(120, 50, 8), request(121, 130, 8)]);
    for prefill_rows in [1, 7, 64, 160] {
        let limits = Limits { prefill_rows, ..limits(2, 4) };
        book.play(&format!("pieces of {prefill_rows}"), limits, DraftLength::Fixed(4), How::Head);
    }
    book.ledger.assert_agreed(&ledger::DRAFT, 50);
}

/// B-036: a fully accepted draft left a hole in the draft's context. B-041: after plain rounds the context
/// was not fed again, or rows were read that nobody had written. Drafts and K/V rows of the head are the
/// same at a prefix, however that was reached.
#[test]
fn drafts_do_not_depend_on_the_way() {
    let book = Book::new((0..3).map(|i| request(130 + i, 20 + i as usize, 110)).collect());
    for k in [1, 2, 3] {
        let stats =
            book.play("all right", limits(3, 3), DraftLength::Fixed(k), How::Script(Script::AllRight));
        assert!(stats.accept_length() > k as f64 + 0.8, "{stats:?}");
    }
    // A pause of ten rounds; one longer than the ring of hidden rows, so that the head catches up in it.
    for pause in [10, 75] {
        let drafts = DraftLength::Cycle([vec![3, 3], vec![0; pause], vec![3, 3]].concat());
        for how in [How::Head, How::Script(Script::AllRight)] {
            book.play(&format!("{how:?}, a pause of {pause}"), limits(3, 3), drafts.clone(), how);
        }
    }
    // Paused for one of the batch only, at different times.
    let drafts = DraftLength::Cycle([vec![3; 4], vec![0; 12]].concat());
    book.arrive("in turn", limits(3, 3), drafts, How::Head, &[0, 5, 9]);
    book.ledger.assert_agreed(&ledger::DRAFT, 500);
}

/// B-099: draft widths that differ inside a batch cut off the longer ones, or asserted.
#[test]
fn ragged_widths() {
    let book = Book::new((0..3).map(|i| request(140 + i, 9, 100)).collect());
    for script in [None, Some(Script::Random { seed: 1, rate: 0.6 })] {
        let how = script.map_or(How::Head, How::Script);
        let drafts = DraftLength::Cycle(vec![1, 3, 2, 0, 0, 3, 2, 2, 1]);
        // One step apart: widths of a batch are (1, ..), (3, 1, ..), (2, 3, 1), (0, 2, 3), ...
        book.arrive(&format!("{how:?}"), limits(3, 3), drafts.clone(), how.clone(), &[0, 1, 2]);
        // One alone with the same schedule.
        book.play("alone", limits(1, 3), drafts, how);
    }
    book.ledger.assert_agreed(&ledger::DRAFT, 500);
}

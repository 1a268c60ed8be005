use crate::{
    book::{Book, How, request},
    drafters::Among,
};
use engine::{
    cache::Limits,
    draft::{DraftLength, Script},
};
use kernels_core::bf16;
use kernels_testkit::rng::Rng;
use workspace_tests::{Edited, HOSTILE, engine_with, ledger, limits, streams};

/// B-005: rejected drafts left a trace in the recurrent state or the conv window. B-008: a repair path
/// computed the kept tokens without the context of the real one. B-023: tokens doubled or dropped right
/// after a rejection.
#[test]
fn every_memory_after_every_rejection() {
    let requests = [(40, 64), (200, 40), (14, 50), (15, 50)];
    let book = Book::new(requests.map(|(n, tokens)| request(n as u64, n, tokens)).to_vec());
    let scripts = [
        Script::AllWrong,
        Script::Pattern(vec![0, 1, 2, 3, 3, 2, 1, 0]),
        Script::Pattern(vec![1, 0, 2]),
        Script::Pattern(vec![3, 0, 2, 1, 0, 0, 3]),
    ];
    for script in scripts {
        for (slots, flush_after) in [(1, 2), (4, 0), (4, 2), (3, 6)] {
            let what = format!("{script:?}, {slots} slots, F = {flush_after}");
            let limits = Limits { flush_after, ..limits(slots, 3) };
            let stats = book.play(&what, limits, DraftLength::Fixed(3), How::Script(script.clone()));
            match script {
                Script::AllWrong => assert_eq!(stats.accept_length(), 1.0),
                _ => assert!(stats.accepted[0] > 20 && stats.accepted[0] < stats.reached[0], "{stats:?}"),
            }
        }
    }
    book.ledger.assert_agreed(&ledger::TARGET, 1000);
    book.ledger.assert_agreed(&ledger::DRAFT, 1000);
}

/// B-005, B-010: a draft whose every value is NaN is refused and leaves nothing behind, in no memory.
#[test]
fn a_poisoned_draft_leaves_no_trace() {
    const BAD: u32 = 77;
    let checkpoint = Edited::of(HOSTILE).poison_row("model.language_model.embed_tokens.weight", BAD as usize);
    let mut requests: Vec<_> = (0..3).map(|i| request(400 + i, 1 + 14 * i as usize, 40)).collect();
    requests.iter_mut().flat_map(|r| &mut r.prompt).filter(|id| **id == BAD).for_each(|id| *id = 78);
    let book = Book::of(checkpoint.name(), requests);
    assert!(book.answers.iter().all(|(tokens, _)| !tokens.contains(&BAD)), "the plain answers are sound");
    for (slots, flush_after) in [(1, 0), (3, 2), (2, 6)] {
        let poison = Box::new(Among { ids: vec![BAD], rng: Rng::new(0) });
        let limits = Limits { flush_after, ..limits(slots, 3) };
        let witness = book.ledger.witness::<bf16>(poison, false);
        let mut engine = engine_with(checkpoint.name(), limits, DraftLength::Fixed(3), witness);
        assert_eq!(streams(&mut engine, &book.requests), book.answers, "{slots} slots, F = {flush_after}");
        let stats = engine.stats();
        assert!(stats.drafted[2] > 80 && stats.accepted.is_empty(), "{stats:?}");
        book.ledger.assert_agreed(&ledger::TARGET, 100);
    }
}

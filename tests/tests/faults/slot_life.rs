use crate::book::{Book, How, request};
use engine::{
    Finish,
    cache::Limits,
    draft::{DraftLength, Mtp},
};
use kernels_core::bf16;
use workspace_tests::{Edited, HOSTILE, Served, engine_with, ledger, limits};

/// B-029: a new request inherited the state of the slot's previous owner. Here every slot and page is first
/// filled with NaN by requests that fail of it. (B-066, without its cache: A, B, A again.)
#[test]
fn nothing_is_inherited() {
    const BAD: u32 = 77;
    let checkpoint = Edited::of(HOSTILE).poison_row("model.language_model.embed_tokens.weight", BAD as usize);
    let clean = |mut r: engine::Request| {
        r.prompt.iter_mut().filter(|id| **id == BAD).for_each(|id| *id = 78);
        r
    };
    // Prompts that share a beginning, and A again.
    let mut requests: Vec<_> = (0..3).map(|i| clean(request(100, 20 + 3 * i, 20 + i))).collect();
    requests.push(requests[0].clone());
    let book = Book::of(checkpoint.name(), requests);
    for together in [1, 2] {
        for drafts in [0, 3] {
            // As many pages as two sequences need, so that all of them have been somebody else's.
            let limits = Limits { page_rows: 4, pages: 1 + 24, ..limits(2, 3) };
            let all = (limits.pages - 1, limits.slots);
            let witness = book.ledger.witness(Box::new(Mtp), true);
            let mut engine =
                engine_with::<bf16>(checkpoint.name(), limits, DraftLength::Fixed(drafts), witness);
            let mut served = Served::default();
            let mut poison = request(101, 40, 8);
            poison.prompt.fill(BAD);
            let bad: Vec<_> = (0..2).map(|_| served.submit(&mut engine, &poison)).collect();
            served.drain(&mut engine);
            assert!(
                served.ended(&bad).iter().all(|(tokens, end)| tokens.is_empty() && *end == Finish::Failed)
            );
            let mut ids = Vec::new();
            for group in book.requests.chunks(together) {
                ids.extend(group.iter().map(|r| served.submit(&mut engine, r)));
                served.drain(&mut engine);
            }
            assert_eq!(served.ended(&ids), book.answers, "{together} at a time, k = {drafts}");
            assert_eq!(engine.free(), all);
        }
    }
    // All that NaN went into one prefix, which nobody else shares.
    book.ledger.assert_agreed(&ledger::TARGET, 60);
    book.play("a fresh engine", limits(2, 3), DraftLength::Fixed(3), How::Head);
}

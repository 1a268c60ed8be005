use crate::book::{Book, How, request};
use engine::{
    Finish, Request,
    cache::Limits,
    draft::{DraftLength, Mtp, Script},
};
use kernels_core::bf16;
use workspace_tests::{HOSTILE, Served, engine_with, ledger, limits};

/// B-062: a prompt chunk of one token, a plain step and verified rows in one batch were taken for each
/// other.
#[test]
fn kinds_of_rows_in_one_step() {
    let requests: Vec<_> = [(33, 3), (65, 0), (1, 1), (17, 3)]
        .into_iter()
        .enumerate()
        .map(|(i, (n, k))| Request { drafts: Some(k), ..request(230 + i as u64, n, 60) })
        .collect();
    let book = Book::new(requests);
    let limits = || Limits { prefill_rows: 32, ..limits(4, 3) };
    for how in [How::Head, How::Script(Script::Random { seed: 4, rate: 0.6 })] {
        // 33 and 65 leave chunks of one token.
        book.arrive(&format!("{how:?}"), limits(), DraftLength::Fixed(2), how, &[0, 1, 2, 5]);
    }
    book.ledger.assert_agreed(&ledger::TARGET, 200);
}

/// B-027: a request skipped for a step kept placeholders where drafts should be. Six prompt rows a step, and
/// pages for about two of four, so that somebody is skipped or computed again all the time.
#[test]
fn skipped_and_paused_requests_keep_their_drafts_straight() {
    let book = Book::new((0..4).map(|i| request(240 + i, 10 + i as usize, 50)).collect());
    let limits = || Limits { prefill_rows: 6, page_rows: 4, pages: 1 + 34, ..limits(4, 3) };
    for how in [How::Head, How::Script(Script::Pattern(vec![3, 0, 2, 1]))] {
        let stats = book.arrive(&format!("{how:?}"), limits(), DraftLength::Fixed(3), how, &[0, 1, 3, 4]);
        let again = stats.iter().zip(&book.requests).filter(|(s, r)| s.prefilled > r.prompt.len()).count();
        assert!(again > 0, "nothing was paused: {stats:?}");
    }
    book.ledger.assert_agreed(&ledger::TARGET, 200);
    book.ledger.assert_agreed(&ledger::DRAFT, 100);
}

/// B-021: numbers of a bigger batch stayed in buffers that a smaller one used after it.
#[test]
fn batches_that_shrink_and_grow() {
    let book = Book::new((0..24).map(|i| request(250 + i, 3 + (i as usize * 7) % 20, 30)).collect());
    for script in [Script::AllWrong, Script::Random { seed: 5, rate: 0.7 }] {
        let drafter = Box::new(crate::drafters::Overruled {
            head: book.ledger.witness::<bf16>(Box::new(Mtp), true),
            by: Box::new(book.script(script)),
        });
        let drafts = DraftLength::Cycle(vec![3, 1, 4, 0, 2]);
        let mut engine = engine_with(HOSTILE, limits(8, 4), drafts, drafter);
        let mut served = Served::default();
        let mut ids = Vec::new();
        for size in [8, 3, 7, 1, 8, 2] {
            while engine.load().0 + engine.load().1 < size && ids.len() < book.requests.len() {
                ids.push(served.submit(&mut engine, &book.requests[ids.len()]));
            }
            // The oldest leave, so that those who stay change their rows in the batch.
            let open: Vec<_> = ids.iter().copied().filter(|id| served.of(*id).end.is_none()).collect();
            open[..open.len() - size].iter().for_each(|id| engine.abort(*id).unwrap());
            assert_eq!(engine.load().0 + engine.load().1, size);
            (0..4).for_each(|_| drop(served.step(&mut engine)));
        }
        served.drain(&mut engine);
        for (i, id) in ids.iter().enumerate() {
            let (tokens, finish) = served.of(*id).ended();
            let want = &book.answers[i];
            let whole = finish == Finish::Aborted || (&tokens, finish) == (&want.0, want.1);
            assert!(whole && tokens == want.0[..tokens.len()], "request {i}: {tokens:?}, {finish:?}");
        }
        assert_eq!(engine.free(), (8 * 16, 8));
        book.ledger.assert_agreed(&ledger::TARGET, 200);
    }
}

use crate::book::{Book, How, request};
use engine::{
    cache::Limits,
    draft::{DraftLength, Script},
};
use workspace_tests::{ledger, limits};

/// B-013: a prompt shorter than the conv window worked in prefill and broke at the first token after it.
/// That such prompts are right at all is compared with transformers in golden_hf.
#[test]
fn prompts_shorter_than_the_conv_window() {
    let book = Book::new((1..=4).map(|n| request(70 + n as u64, n, 24)).collect());
    // In one piece; a two-token chunk and then one of one; token by token.
    for prefill_rows in [160, 2, 1] {
        for (slots, drafts) in [(4, 3), (1, 3), (4, 0)] {
            let limits = Limits { prefill_rows, ..limits(slots, 3) };
            let what = format!("pieces of {prefill_rows}, {slots} slots, k = {drafts}");
            book.play(&what, limits.clone(), DraftLength::Fixed(drafts), How::Head);
            if drafts > 0 {
                book.play(&what, limits, DraftLength::Fixed(drafts), How::Script(Script::AllRight));
            }
        }
    }
    book.ledger.assert_agreed(&ledger::TARGET, 100);
    book.ledger.assert_agreed(&ledger::DRAFT, 100);
}

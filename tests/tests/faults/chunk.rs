use crate::book::{Book, How, request};
use engine::{Request, cache::Limits, draft::DraftLength};
use kernels_core::bf16;
use workspace_tests::{HOSTILE, core, ledger, limits};

/// B-015: a chunk after the first one started from a zero state.
#[test]
fn a_prompt_in_any_chunks() {
    let prompt = request(80, 100, 1).prompt;
    let all = |chunks: &[usize]| -> Vec<u32> {
        let mut core = core::<bf16>(HOSTILE, limits(1, 0));
        core.open(0, &prompt, &Request::greedy(prompt.clone(), 1), 256).unwrap();
        core.lend_pages(0, &(1..17).collect::<Vec<_>>()).unwrap();
        chunks.iter().flat_map(|n| core.score(0, *n, None).unwrap()).map(f32::to_bits).collect()
    };
    let whole = all(&[100]);
    assert_eq!(whole.len(), 100 * 512);
    for chunks in [&[64, 36][..], &[33, 33, 34], &[97, 3], &[99, 1], &[1, 99], &[2; 50], &[1; 100]] {
        assert!(all(chunks) == whole, "logits of {chunks:?} differ");
    }
    // Through the engine, 20 tokens behind it, and what the draft head made of it.
    let book = Book::new(vec![request(80, 100, 20)]);
    for prefill_rows in [1, 2, 33, 50, 64, 97, 99] {
        for drafts in [0, 3] {
            let limits = Limits { prefill_rows, ..limits(1, 3) };
            book.play(&format!("pieces of {prefill_rows}"), limits, DraftLength::Fixed(drafts), How::Head);
        }
    }
    book.ledger.assert_agreed(&ledger::TARGET, 100);
    book.ledger.assert_agreed(&ledger::DRAFT, 100);
}

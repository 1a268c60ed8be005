use crate::book::request;
use engine::{
    Request, RequestId,
    cache::Limits,
    draft::{Drafter, Mtp, Script, Scripted},
    round::DraftJob,
};
use kernels_core::bf16;
use std::collections::BTreeMap;
use workspace_tests::{HOSTILE, core, limits};

const K: usize = 3;

/// One round of K drafts behind `length` tokens that lie in these pages; all other pages must stay as they
/// were allocated. Returns the emitted tokens, and the sequence's rows of every pool.
fn round(length: usize, pages: &[u32], limits: Limits, right: bool) -> (Vec<u32>, Vec<Vec<u16>>) {
    let text = request(95, 40, 1).prompt;
    let prompt = text[..length].to_vec();
    let positions = limits.positions;
    let mut core = core::<bf16>(HOSTILE, limits);
    core.open(0, &prompt, &Request::greedy(prompt.clone(), 64), positions).unwrap();
    core.lend_pages(0, pages).unwrap();
    let job = |committed, behind, drafts| DraftJob {
        request: RequestId(0),
        slot: 0,
        committed,
        behind,
        drafts,
        never: false,
        finished: false,
    };
    let mut tokens = core.prefill(&[(0, length)], None).unwrap().remove(0).tokens;
    let mut head = Mtp;
    head.observe(&mut core, &[job(length, length, K)]).unwrap();
    if right {
        // What plain decoding emits.
        let mut engine = workspace_tests::engine::<bf16>(HOSTILE, workspace_tests::limits(1, 0), 0);
        let plain = Request { ignore_eos: true, ..Request::greedy(prompt.clone(), 6) };
        let stream = workspace_tests::streams(&mut engine, &[plain]).remove(0).0;
        let known = BTreeMap::from([(RequestId(0), [&prompt[..], &stream].concat())]);
        Scripted::new(Script::AllRight, known, 490).observe(&mut core, &[job(length, length, K)]).unwrap();
    }
    let outcome = core.decode(&[(0, K)], None).unwrap().remove(0);
    assert_eq!(outcome.drafts, K);
    assert_eq!(outcome.tokens.len() == K + 1, right, "a = {}", outcome.tokens.len());
    let committed = length + outcome.tokens.len();
    tokens.extend(outcome.tokens);
    head.observe(&mut core, &[job(committed, committed - length, K)]).unwrap();

    let caches = core.caches();
    let mut rows = Vec::new();
    for pool in caches.pools.iter().chain(&caches.draft_pool) {
        let view = pool.view();
        for position in 0..committed {
            let (page, row) = (pages[position / view.page_rows] as usize, position % view.page_rows);
            let heads = (0..view.kv_heads)
                .flat_map(|h| view.key(page, h, row).iter().chain(view.value(page, h, row)));
            rows.push(heads.map(|x| x.to_bits()).collect::<Vec<u16>>());
        }
        for page in (0..view.pages).filter(|page| !pages.contains(&(*page as u32))) {
            let mut values = (0..view.kv_heads)
                .flat_map(|h| (0..view.page_rows).map(move |r| (h, r)))
                .flat_map(|(h, r)| view.key(page, h, r).iter().chain(view.value(page, h, r)));
            assert!(values.all(|x| x.to_bits() == 0), "{length} tokens: page {page} was written");
        }
    }
    (tokens, rows)
}

/// B-060: rows of a round that crosses a page boundary went into a page the request does not own.
#[test]
fn a_round_across_a_page_boundary() {
    for length in 12..=17 {
        for right in [false, true] {
            let limits = || Limits { positions: 128, pages: 12, ..limits(1, K) };
            let what = format!("{length} tokens, drafts right: {right}");
            let got = round(length, &[9, 2, 7], limits(), right);
            assert_eq!(got, round(length, &[1, 2, 3], limits(), right), "{what}");
            // Without any boundary.
            let one = Limits { page_rows: 64, pages: 2, ..limits() };
            assert_eq!(got, round(length, &[1], one, right), "{what}");
        }
    }
}

/// B-059: page numbers were multiplied in too few bits. On the CPU every offset is 64 bits wide; page
/// numbers beyond 15 and 16 bits, in descending order, must still be those of a small pool.
#[test]
fn page_numbers_of_a_large_pool() {
    let small =
        round(10, &[1, 2, 3, 4], Limits { positions: 16, page_rows: 4, pages: 5, ..limits(1, K) }, true);
    for base in [32_767, 65_535] {
        let limits = Limits { positions: 16, page_rows: 4, pages: base + 3, ..limits(1, K) };
        let base = base as u32;
        assert_eq!(
            round(10, &[base + 2, base + 1, base, base - 1], limits, true),
            small,
            "pages around {base}"
        );
    }
}

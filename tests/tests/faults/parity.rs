use crate::book::request;
use engine::{Request, RequestId, round::DraftJob};
use kernels_core::bf16;
use workspace_tests::{HOSTILE, core, limits};

const PROMPTS: [usize; 3] = [1, 17, 60];
const TOKENS: usize = 34;

/// Prompts with what follows them, and where each is written.
fn texts() -> Vec<Vec<u32>> {
    let requests: Vec<_> = PROMPTS.iter().map(|n| request(*n as u64, *n, TOKENS)).collect();
    let mut engine = workspace_tests::engine::<bf16>(HOSTILE, limits(1, 0), 0);
    requests
        .iter()
        .map(|r| {
            [&r.prompt[..], &workspace_tests::streams(&mut engine, std::slice::from_ref(r))[0].0].concat()
        })
        .collect()
}

/// Logits of every row of decode rounds of the given drafts, all of them right; `[sequence][row][vocab]`.
fn logits(texts: &[Vec<u32>], which: &[usize], drafts: impl Fn(usize, usize) -> usize) -> Vec<Vec<u32>> {
    let mut core = core::<bf16>(HOSTILE, limits(3, 8));
    let vocab = core.model().config().vocab;
    let mut done = vec![0; which.len()];
    let mut rows: Vec<Vec<u32>> = vec![Vec::new(); which.len()];
    for (slot, &text) in which.iter().enumerate() {
        let prompt = &texts[text][..PROMPTS[text]];
        core.open(slot, prompt, &Request::greedy(prompt.to_vec(), 1), 256).unwrap();
        core.lend_pages(slot, &(1 + 16 * slot as u32..17 + 16 * slot as u32).collect::<Vec<_>>()).unwrap();
        core.prefill(&[(slot, prompt.len())], None).unwrap();
    }
    for round in 0.. {
        let mut jobs = Vec::new();
        for (slot, &text) in which.iter().enumerate() {
            let committed = PROMPTS[text] + done[slot];
            let k = drafts(slot, round).min(TOKENS - 2 - done[slot].min(TOKENS - 2));
            if done[slot] + 1 < TOKENS {
                let job = DraftJob {
                    request: RequestId(0),
                    slot,
                    committed,
                    behind: 0,
                    drafts: k,
                    never: false,
                    finished: false,
                };
                core.write_drafts(&job, &texts[text][committed + 1..][..k]).unwrap();
                jobs.push((slot, k));
            }
        }
        if jobs.is_empty() {
            return rows;
        }
        let outcomes = core.decode(&jobs, None).unwrap();
        let total = jobs.iter().map(|(_, k)| k + 1).sum();
        let all = core.logits(total).unwrap();
        let mut at = 0;
        for ((slot, k), outcome) in jobs.iter().zip(outcomes) {
            assert_eq!(outcome.tokens.len(), k + 1, "all drafts are right");
            let mine = &all[at * vocab..(at + k + 1) * vocab];
            rows[*slot].extend(mine.iter().map(|x| x.to_bits()));
            done[*slot] += k + 1;
            at += k + 1;
        }
    }
    unreachable!("the texts end")
}

/// B-001: a row of a verified block was not computed like a row alone, so near-ties fell differently.
#[test]
fn rows_of_a_block_are_rows_alone() {
    let texts = texts();
    let single: Vec<_> = (0..3).map(|text| logits(&texts, &[text], |_, _| 0).remove(0)).collect();
    assert!(single.iter().all(|rows| rows.len() == (TOKENS - 1) * 512));
    for k in 1..=8 {
        for text in 0..3 {
            let block = logits(&texts, &[text], |_, _| k).remove(0);
            assert!(block == single[text], "text {text}: logits of blocks of {} rows differ", k + 1);
        }
        // Among others, in another row and slot, with other drafts.
        let together = logits(&texts, &[2, 0, 1], |slot, round| (k + slot + round) % 9);
        for (got, text) in together.iter().zip([2, 0, 1]) {
            assert!(*got == single[text], "text {text}: logits in a batch differ, k = {k}");
        }
    }
    // Given as a prompt, in one piece: the same bits again.
    for (text, single) in texts.iter().zip(&single) {
        let mut core = core::<bf16>(HOSTILE, limits(1, 0));
        core.open(0, text, &Request::greedy(text.clone(), 1), 256).unwrap();
        core.lend_pages(0, &(1..17).collect::<Vec<_>>()).unwrap();
        let all: Vec<f32> = core.score(0, text.len() - 1, None).unwrap();
        let from = (text.len() - TOKENS) * 512;
        let got: Vec<u32> = all[from..].iter().map(|x| x.to_bits()).collect();
        assert!(got == *single, "logits of a prompt of {} tokens differ", text.len());
    }
}

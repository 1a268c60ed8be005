use crate::book::request;
use engine::{Request, RequestId, cache::Limits, round::DraftJob};
use kernels_core::bf16;
use kernels_testkit::rng::Rng;
use workspace_tests::{HOSTILE, core, limits};

/// B-019: rows that pad a batch wrote into a live slot. Here every round names all eight slots, or is padded
/// with sequences that name none, and the memories of slots that are not live must stay as they were
/// allocated.
#[test]
fn rows_of_nobody_touch_nothing() {
    let limits = Limits { page_rows: 8, pages: 1 + 8 * 16, positions: 128, ..limits(8, 3) };
    let lives: [&[usize]; 4] = [&[0, 7], &[0], &[7], &[0, 1, 2, 4, 5, 6, 7]];
    let mut first = None;
    for (live, padded) in lives.into_iter().flat_map(|live| [(live, false), (live, true)]) {
        let mut core = core::<bf16>(HOSTILE, limits.clone());
        core.pad_rounds(if padded { 8 } else { 0 });
        let prompt = request(90, 10, 1).prompt;
        let mut done = [10; 8];
        for &slot in live {
            core.open(slot, &prompt, &Request::greedy(prompt.clone(), 100), 128).unwrap();
            core.lend_pages(slot, &(1 + 16 * slot as u32..17 + 16 * slot as u32).collect::<Vec<_>>())
                .unwrap();
            core.prefill(&[(slot, 10)], None).unwrap();
        }
        let mut rng = Rng::new(5);
        let mut streams = vec![Vec::new(); 8];
        for _ in 0..50 {
            for &slot in live {
                let job = DraftJob {
                    request: RequestId(0),
                    slot,
                    committed: done[slot],
                    behind: 0,
                    drafts: 3,
                    never: false,
                    finished: false,
                };
                let drafts: Vec<u32> = (0..3).map(|_| rng.below(490) as u32).collect();
                core.write_drafts(&job, &drafts).unwrap();
            }
            // Slots that hold nobody, or sequences and rows that name no slot.
            let batch: Vec<_> = if padded {
                live.iter().map(|slot| (*slot, 3)).collect()
            } else {
                (0..8).map(|slot| (slot, 3)).collect()
            };
            for ((slot, _), outcome) in batch.iter().zip(core.decode(&batch, None).unwrap()) {
                let slot = *slot;
                assert_eq!(live.contains(&slot), !outcome.tokens.is_empty(), "slot {slot} of {live:?}");
                done[slot] += outcome.tokens.len();
                streams[slot].extend(outcome.tokens);
            }
        }
        for &slot in live {
            // The same prompt everywhere: the same answer, whoever is beside it.
            let stream = streams[slot][..50].to_vec();
            assert_eq!(*first.get_or_insert(stream.clone()), stream, "slot {slot} of {live:?}");
        }
        let caches = core.caches();
        let nobody = |slot: &usize| !live.contains(slot);
        for memory in &caches.recurrent {
            for slot in (0..8).filter(nobody) {
                let of = |len: usize| slot * len / 8..(slot + 1) * len / 8;
                let zero = |x: &bf16| x.to_bits() == 0;
                assert!(memory.ring[of(memory.ring.len())].iter().all(zero), "ring of {slot}, {live:?}");
                assert!(memory.journal[of(memory.journal.len())].iter().all(zero), "journal of {slot}");
                let state = &memory.state[of(memory.state.len())];
                assert!(state.iter().all(|x| x.to_bits() == 0), "state of {slot}, {live:?}");
            }
        }
        for pool in &caches.pools {
            let view = pool.view();
            // Page 0 is nobody's, and the pages of slots that are not live are free.
            let free = |page: &usize| *page == 0 || nobody(&((page - 1) / 16));
            for page in (0..view.pages).filter(free) {
                for head in 0..view.kv_heads {
                    for row in 0..view.page_rows {
                        let values = view.key(page, head, row).iter().chain(view.value(page, head, row));
                        assert!(values.into_iter().all(|x| x.to_bits() == 0), "page {page} of {live:?}");
                    }
                }
            }
        }
        assert!(core.faults().unwrap().iter().all(Option::is_none));
    }
}

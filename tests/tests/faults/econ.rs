use engine::cache::{Caches, Limits, MemoryPlan};
use kernels_core::{Cpu, bf16};
use workspace_tests::{EMBEDDED, HOSTILE, limits, load};

/// B-078: memory for rollback. There is one state for each slot and layer whatever k is; what k costs is
/// what the plan says, to the byte, and all of it is allocated once.
#[test]
fn memory_is_what_the_plan_says() {
    for name in [HOSTILE, EMBEDDED, "fixtures/tiny-moe"] {
        let (context, model) = load::<bf16>(name);
        let config = model.config();
        let mut states = Vec::new();
        for k in [0, 1, 3, 7, 15] {
            for slots in [1, 16] {
                let limits = Limits { draft_head: k > 0, ..limits(slots, k) };
                let plan = MemoryPlan::of(config, &limits, 2);
                let caches = Caches::<Cpu, bf16>::new(&context.queue, config, &limits).unwrap();
                let pools: usize =
                    caches.pools.iter().chain(&caches.draft_pool).map(|p| p.view().data.len()).sum();
                let sum = |of: fn(&engine::cache::Recurrent<Cpu, bf16>) -> usize| {
                    caches.recurrent.iter().map(of).sum::<usize>()
                };
                assert_eq!(plan.kv, 2 * pools, "{name}, k = {k}");
                assert_eq!(plan.state, 4 * sum(|r| r.state.len()));
                assert_eq!(plan.journal, 2 * sum(|r| r.journal.len()));
                assert_eq!(plan.conv, 2 * sum(|r| r.ring.len()));
                assert_eq!(plan.hidden, 2 * caches.hidden.len());
                let shared = &caches.shared;
                assert_eq!(
                    plan.tables,
                    4 * (shared.rope.len() + shared.page_table.len() + shared.table.tokens.len())
                );
                states.push(plan.state / slots);
            }
        }
        states.dedup();
        assert_eq!(states.len(), 1, "the state of a sequence does not depend on k");
    }
}

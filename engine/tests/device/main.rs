//! The engine on a GPU beside the CPU: the first claim, its logits, drafts of every kind, long runs through small
//! pools, rounds enqueued ahead.

mod ahead;
#[cfg(feature = "cuda")]
mod cuda;
mod drafts;
mod golden;
mod soak;

use kernels_testkit::{both, gpu, place::Place, runner::Suite};

/// Random weights behind a head of its own, so that the best tokens are nearly tied: the smallest that a backend has.
fn nearly_tied<B: Place>() -> &'static str {
    if B::GENERAL { workspace_tests::HOSTILE } else { "fixtures/mini-dense" }
}

/// The same with experts.
fn experts<B: Place>() -> &'static str {
    if B::GENERAL { "fixtures/tiny-moe" } else { "fixtures/mini-moe" }
}

fn main() {
    let mut suite = Suite::new();
    both!(suite, golden::walk);
    gpu!(suite, "golden::mini_dense", |device| golden::check(device, "mini-dense"));
    gpu!(suite, "golden::mini_moe", |device| golden::check(device, "mini-moe"));
    both!(suite, drafts::an_oracle_is_as_right_as_asked);
    both!(suite, drafts::a_trimmed_head_leaves_the_output);
    both!(suite, soak::a_thousand_requests);
    both!(suite, soak::rounds_enqueued_ahead);
    both!(suite, soak::experts_and_a_trained_head);
    both!(suite, ahead::a_slot_changes_hands_in_every_phase);
    both!(suite, ahead::no_round_behind_a_foreseen_end);
    both!(suite, ahead::counts_are_those_of_waiting);
    gpu!(suite, "cuda::every_row_is_identical_to_plain_decoding", |device| cuda::parity(device));
    gpu!(suite, "cuda::logits_are_as_far_from_f32_as_the_cpus", |device| cuda::logits(device));
    gpu!(suite, "cuda::random_weights_keep_parity", |device| cuda::random_parity(device));
    gpu!(suite, "cuda::memory_is_as_planned", |device| cuda::memory(device));
    gpu!(suite, "cuda::the_self_test_promises_bits", |device| cuda::self_test(device));
    gpu!(suite, "cuda::a_timeline_adds_up", |device| cuda::timeline(device));
    suite.run()
}

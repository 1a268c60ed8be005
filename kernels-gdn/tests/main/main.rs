//! The tests of the family, on both backends: the CPU half is its specification. Without a GPU the CUDA cases
//! show as ignored, with the reason.

#![allow(unreachable_pub)] // everything is private to this executable

mod accuracy;
mod bite;
mod bits;
#[cfg(feature = "cuda")]
mod device;
mod golden;
mod literal;
mod place;
mod properties;
mod refusals;
mod rounds;
mod stream;
mod world;

use kernels_testkit::{both, gpu, runner::Suite};

fn main() {
    let mut suite = Suite::new();
    both!(suite, accuracy::long_sequences_stay_within_the_derived_bound);
    both!(suite, accuracy::fifty_thousand_tokens_do_not_drift);
    both!(suite, bits::a_fresh_slot_is_never_read);
    both!(suite, bits::a_reset_is_two_zeros);
    both!(suite, bits::fold_touches_only_what_is_pending);
    both!(suite, bits::strided_memories_give_the_same_bits);
    suite.cpu(
        "cpu::golden::transformers_in_f32_with_an_initial_state",
        golden::transformers_in_f32_with_an_initial_state,
    );
    both!(suite, golden::transformers_on_bf16_inputs_at_real_head_sizes);
    both!(suite, literal::two_tokens);
    both!(suite, literal::the_tree_over_k);
    both!(suite, properties::a_block_equals_its_rows);
    both!(suite, properties::a_batch_equals_each_sequence_alone);
    suite.cpu("cpu::refusals::plans_refuse_sizes_by_name", refusals::plans_refuse_sizes_by_name);
    suite.cpu("cpu::refusals::states_of_another_size", refusals::states_of_another_size);
    both!(suite, refusals::operands_are_refused_by_name);
    both!(suite, refusals::fold_refuses_operands_by_name);
    both!(suite, refusals::violated_counters_are_faults);
    both!(suite, refusals::fold_faults);
    both!(suite, refusals::bad_row_offsets_write_nothing_through_them);
    both!(suite, refusals::a_last_offset_below_the_others_zeroes_none_of_theirs);
    both!(suite, rounds::any_rounds_equal_decoding_at_every_flush_policy);
    both!(suite, rounds::prefill_in_any_chunks_equals_decoding);
    both!(suite, rounds::several_prefills_of_a_launch_equal_those_alone);
    gpu!(suite, "cuda::device::any_division_of_a_sequence_gives_the_same_bits", |device| {
        device::any_division_of_a_sequence_gives_the_same_bits(device)
    });
    gpu!(suite, "cuda::device::rounds_equal_the_cpu", |device| device::rounds_equal_the_cpu(device));
    gpu!(suite, "cuda::device::real_heads_equal_the_cpu", |device| device::real_heads_equal_the_cpu(device));
    gpu!(suite, "cuda::device::replays_equal_eager_runs", |device| device::replays_equal_eager_runs(device));
    gpu!(suite, "cuda::device::overlapping_launches_wait", |device| device::overlapping_launches_wait(
        device
    ));
    gpu!(suite, "cuda::device::slow_producers_are_waited_for", |device| {
        device::slow_producers_are_waited_for(device)
    });
    gpu!(suite, "cuda::device::blocks_may_meet_states_in_any_order", |device| {
        device::blocks_may_meet_states_in_any_order(device)
    });
    gpu!(suite, "cuda::device::a_hundred_thousand_tokens_equal_decoding", |device| {
        device::a_hundred_thousand_tokens_equal_decoding(device)
    });
    gpu!(suite, "cuda::device::offsets_are_64_bits", |device| device::offsets_are_64_bits(device));
    gpu!(suite, "cuda::device::states_are_stored_by_the_rule_only", |device| {
        device::states_are_stored_by_the_rule_only(device)
    });
    gpu!(suite, "cuda::device::faults_equal_the_cpus", |device| device::faults_equal_the_cpus(device));
    gpu!(suite, "cuda::device::what_has_no_kernel_is_refused", |device| {
        device::what_has_no_kernel_is_refused(device)
    });
    bite::add(&mut suite);
    suite.run()
}

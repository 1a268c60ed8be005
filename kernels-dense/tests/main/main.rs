//! The contract of the dense operators: equal bytes where it says equal, derived bounds elsewhere.
//!
//! All but the gated activation runs on both backends. Without a GPU the CUDA cases show as ignored, with the reason.

mod accuracy;
mod approx;
#[cfg(feature = "planted-faults")]
mod bite;
mod bits;
mod calls;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod device_chain;
#[cfg(feature = "cuda")]
mod device_counts;
#[cfg(feature = "cuda")]
mod device_experts;
#[cfg(feature = "cuda")]
mod device_fill;
#[cfg(feature = "cuda")]
mod device_fp8;
#[cfg(feature = "cuda")]
mod device_layers;
mod experts;
mod fill;
mod fp8;
mod fp8_head;
mod golden;
mod layers;
mod literal;
mod moe;
mod properties;
mod refusals;
mod rows;
mod world;

use kernels_testkit::{both, gpu, runner::Suite};

/// Tests of what only the CPU has.
macro_rules! cpu {
    ($suite:ident, $module:ident: $($test:ident)*) => {
        $($suite.cpu(concat!("cpu::", stringify!($module), "::", stringify!($test)), $module::$test);)*
    };
}

fn main() {
    let mut suite = Suite::new();
    cpu!(suite, accuracy: linear_is_within_its_bound norms_are_within_their_bound moe_is_within_its_bound);
    cpu!(suite, bits:
        linear_rows_do_not_know_of_each_other
        linear_sums_in_the_documented_order
        negative_zeros_and_the_last_partial_vector
        norms_sum_in_the_documented_order
        epilogues_round_where_separate_steps_do
        norm_rows_do_not_know_of_each_other
        a_row_of_nan_stays_alone
        strided_operands_and_their_gaps
        threads_do_not_change_bits
        calls_from_many_threads_at_once
        head_and_linear_share_their_sums);
    cpu!(suite, fill: places_have_64_bits moments_are_those_of_four_bytes plans_and_operands_are_refused);
    fill::add(&mut suite);
    cpu!(suite, fp8: numbers_and_codes_of_the_format plans_and_operands_are_refused);
    fp8::add(&mut suite);
    cpu!(suite, fp8_head:
        equals_the_head_of_its_numbers
        threads_do_not_change_bits
        plans_and_operands_are_refused);
    fp8_head::add(&mut suite);
    cpu!(suite, golden:
        norms_of_transformers
        feed_forward_of_transformers
        mixture_of_experts_of_transformers);
    cpu!(suite, literal:
        linear_stores_adds_and_gates
        the_sum_is_rounded_before_it_is_added_to_the_residual
        multiply_adds_are_fused
        head_masks_ties_and_nan
        head_gives_one_output_without_the_other
        norms_scale_by_the_root_mean_square
        a_row_of_zeros_is_normed_to_zeros
        embedding_gathers_rows_and_zeros
        moe_of_width_one
        no_rows_do_nothing);
    cpu!(suite, moe:
        moe_rows_do_not_know_of_each_other
        moe_is_its_parts
        experts_nobody_chose_are_not_read
        a_token_of_nan_keeps_to_itself);
    properties::add(&mut suite);
    cpu!(suite, refusals:
        plans_refuse_sizes_by_name_and_value
        plans_for_a_device_want_whole_vectors
        operations_give_their_problem_back
        operands_are_checked_by_name
        every_operand_of_the_mixture_is_checked);
    #[cfg(feature = "planted-faults")]
    cpu!(suite, bite:
        one_product_rounded_before_it_is_added
        a_sum_whose_order_depends_on_the_rows
        experts_added_in_order_of_arrival
        the_last_of_equal_experts
        a_stream_that_begins_again
        numbers_cut_off_where_they_are_rounded
        least_numbers_of_a_byte_that_vanish
        a_scale_of_another_row);
    both!(suite, layers::rows_are_single_rows);
    both!(suite, layers::odd_rows_keep_to_themselves);
    both!(suite, layers::epilogues_are_their_parts);
    both!(suite, layers::heads_choose_among_their_logits);
    both!(suite, layers::heads_of_some_ids);
    both!(suite, layers::sums_are_within_their_bound);
    both!(suite, layers::no_rows_do_nothing);
    both!(suite, experts::rows_are_single_rows);
    both!(suite, experts::is_its_parts);
    both!(suite, experts::ties_by_hand);
    both!(suite, experts::others_do_not_matter);
    both!(suite, experts::is_within_its_bound);
    both!(suite, experts::no_rows_do_nothing);
    both!(suite, rows::rows_are_single_rows);
    both!(suite, rows::a_row_of_nan_keeps_to_itself);
    both!(suite, rows::fused_norms_are_their_parts);
    both!(suite, rows::norms_by_hand);
    both!(suite, rows::ids_outside_the_table_give_zeros);
    both!(suite, rows::no_rows_do_nothing);
    both!(suite, fill::sums_by_hand);
    both!(suite, fill::parts_are_of_the_whole);
    both!(suite, fp8::quantizes_by_hand);
    both!(suite, fp8::quantizes_to_the_nearest);
    both!(suite, fp8::quantized_rows_are_within_their_bound);
    both!(suite, fp8_head::every_code_is_its_number);
    both!(suite, fp8_head::every_element_is_where_it_is);
    both!(suite, fp8_head::rows_are_single_rows);
    both!(suite, fp8_head::odd_rows_keep_to_themselves);
    both!(suite, fp8_head::some_ids_and_masked_ones);
    both!(suite, fp8_head::logits_are_within_their_bound);
    both!(suite, fp8_head::no_rows_do_nothing);
    gpu!(suite, "cuda::fill::equals_the_cpu", |device| device_fill::equals_the_cpu(device));
    gpu!(suite, "cuda::fill::large_memory_is_filled_to_its_end", |device| {
        device_fill::large_memory_is_filled_to_its_end(device)
    });
    gpu!(suite, "cuda::fill::what_has_no_kernel_is_refused", |device| {
        device_fill::what_has_no_kernel_is_refused(device)
    });
    gpu!(suite, "cuda::fp8::equals_the_cpu", |device| device_fp8::equals_the_cpu(device));
    gpu!(suite, "cuda::fp8::tiles_share_their_bits", |device| device_fp8::tiles_share_their_bits(device));
    gpu!(suite, "cuda::fp8::equals_the_head_of_its_numbers", |device| {
        device_fp8::equals_the_head_of_its_numbers(device)
    });
    gpu!(suite, "cuda::fp8::heads_replay", |device| device_fp8::heads_replay(device));
    gpu!(suite, "cuda::fp8::heads_wait_for_a_slow_producer", |device| {
        device_fp8::heads_wait_for_a_slow_producer(device)
    });
    gpu!(suite, "cuda::fp8::rows_lie_far_apart", |device| device_fp8::rows_lie_far_apart(device));
    gpu!(suite, "cuda::fp8::what_has_no_kernel_is_refused", |device| {
        device_fp8::what_has_no_kernel_is_refused(device)
    });
    gpu!(suite, "cuda::device::equals_the_cpu", |device| device::equals_the_cpu(device));
    gpu!(suite, "cuda::device::every_finite_value_equals_the_cpu", |device| {
        device::every_finite_value_equals_the_cpu(device)
    });
    gpu!(suite, "cuda::device::threads_share_their_bits", |device| device::threads_share_their_bits(device));
    gpu!(suite, "cuda::device::replays_equal_eager_runs", |device| device::replays_equal_eager_runs(device));
    gpu!(suite, "cuda::device::overlapping_launches_wait", |device| device::overlapping_launches_wait(
        device
    ));
    gpu!(suite, "cuda::device::offsets_are_64_bits", |device| device::offsets_are_64_bits(device));
    gpu!(suite, "cuda::device::what_has_no_kernel_is_refused", |device| {
        device::what_has_no_kernel_is_refused(device)
    });
    gpu!(suite, "cuda::layers::grids_share_their_bits", |device| {
        device_layers::grids_share_their_bits(device)
    });
    gpu!(suite, "cuda::layers::widths_share_their_bits", |device| {
        device_layers::widths_share_their_bits(device)
    });
    gpu!(suite, "cuda::layers::rows_beside_rows_share_their_bits", |device| {
        device_layers::rows_beside_rows_share_their_bits(device)
    });
    gpu!(suite, "cuda::layers::choices_lie_behind_sums", |device| {
        device_layers::choices_lie_behind_sums(device)
    });
    gpu!(suite, "cuda::counts::every_count_of_real_layers", |device| {
        device_counts::every_count_of_real_layers(device)
    });
    gpu!(suite, "cuda::counts::every_count_of_real_heads", |device| {
        device_counts::every_count_of_real_heads(device)
    });
    gpu!(suite, "cuda::counts::a_pinned_algorithm_of_cublaslt_keeps_rows", |device| {
        device_counts::a_pinned_algorithm_of_cublaslt_keeps_rows(device)
    });
    gpu!(suite, "cuda::layers::layers_replay", |device| device_layers::layers_replay(device));
    gpu!(suite, "cuda::layers::layers_wait_for_a_slow_producer", |device| {
        device_layers::layers_wait_for_a_slow_producer(device)
    });
    gpu!(suite, "cuda::layers::layers_refuse_by_name", |device| {
        device_layers::layers_refuse_by_name(device)
    });
    gpu!(suite, "cuda::experts::grids_share_their_bits", |device| {
        device_experts::grids_share_their_bits(device)
    });
    gpu!(suite, "cuda::experts::experts_replay", |device| device_experts::experts_replay(device));
    gpu!(suite, "cuda::experts::experts_wait_for_a_slow_producer", |device| {
        device_experts::experts_wait_for_a_slow_producer(device)
    });
    gpu!(suite, "cuda::experts::experts_share_a_workspace", |device| {
        device_experts::experts_share_a_workspace(device)
    });
    gpu!(suite, "cuda::experts::experts_lie_far_apart", |device| {
        device_experts::experts_lie_far_apart(device)
    });
    gpu!(suite, "cuda::experts::experts_refuse_by_name", |device| {
        device_experts::experts_refuse_by_name(device)
    });
    suite.run()
}

/// What a check gives: why it failed, if it did. The bite checks want it to fail.
type Check = Result<(), String>;

/// Runs an ordinary test while no fault is planted.
///
/// Planted faults are process-wide and tests run side by side, so that the bite checks wait until they are
/// alone.
fn calm<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(feature = "planted-faults")]
    let _calm = bite::CALM.read().unwrap_or_else(|e| e.into_inner());
    body()
}

/// An error that says where two results first differ.
fn same<T: kernels_core::Element>(what: &str, got: &[T], want: &[T]) -> Check {
    match kernels_testkit::compare::first_difference(got, want) {
        None => Ok(()),
        Some(i) => Err(format!("{what}: element {i} is {:?} instead of {:?}", got.get(i), want.get(i))),
    }
}

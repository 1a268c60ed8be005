//! The tests of the family, on both backends: the CPU half is its specification. Without a GPU the CUDA cases
//! show as ignored, with the reason.

#![allow(unreachable_pub)] // everything is private to this executable

mod accuracy;
mod append;
mod bite;
mod bits;
#[cfg(feature = "cuda")]
mod device;
mod golden;
mod literal;
mod place;
mod properties;
mod refusals;
mod support;
mod tree;

use kernels_testkit::{both, gpu, runner::Suite};

/// A test that needs the device.
macro_rules! device {
    ($suite:expr, $($name:ident,)*) => {$(
        gpu!($suite, concat!("cuda::device::", stringify!($name)), |device| device::$name(device));
    )*};
}

fn main() {
    let mut suite = Suite::new();
    both!(suite, accuracy::within_the_bound_of_f64);
    both!(suite, append::rows_batch_and_placement_do_not_matter);
    both!(suite, append::within_the_bound_of_f64);
    suite.cpu("cpu::append::literal", append::literal);
    both!(suite, bits::rows_are_single_rows);
    both!(suite, bits::every_group_of_query_heads);
    both!(suite, bits::windows_and_first_key);
    both!(suite, bits::prefill_in_any_chunking_is_token_by_token);
    both!(suite, bits::pages_slots_and_strides_do_not_matter);
    both!(suite, bits::the_batch_does_not_matter);
    both!(suite, bits::no_gate_is_no_factor);
    suite.cpu("cpu::golden::same_as_transformers", || golden::same_as_transformers::<kernels_core::Cpu>(&()));
    both!(suite, literal::equal_scores_give_the_mean);
    suite.cpu("cpu::literal::two_keys", literal::two_keys);
    both!(suite, literal::a_probe_moves_with_the_mask);
    both!(suite, literal::no_key_gives_zeros);
    both!(suite, literal::visible_nan_shows);
    both!(suite, literal::nan_stays_in_its_sequence);
    both!(suite, literal::zeros_have_one_sign);
    both!(suite, properties::any_launch_gives_the_bytes_of_single_rows);
    suite.cpu("cpu::refusals::problems", refusals::problems);
    suite.cpu("cpu::refusals::keys_of_a_position", refusals::keys_of_a_position);
    suite.cpu("cpu::refusals::operands_of_verify", refusals::operands_of_verify);
    suite.cpu("cpu::refusals::operands_of_append", refusals::operands_of_append);
    suite.cpu("cpu::refusals::faults", refusals::faults);
    suite.cpu("cpu::refusals::faults_of_append", refusals::faults_of_append);
    suite.cpu("cpu::refusals::faults_of_a_list", refusals::faults_of_a_list);
    suite.cpu("cpu::tree::sums_have_the_order_of_the_tree", tree::sums_have_the_order_of_the_tree);
    device!(
        suite,
        appended_bytes_equal_the_cpu,
        lists_equal_the_cpu,
        faults_equal_the_cpus,
        every_grid_gives_the_same_bits,
        every_boundary_gives_the_bits_of_single_rows,
        every_shape_runs_on_every_path,
        verified_rows_equal_prefilled_ones,
        outputs_stay_within_the_derived_bound,
        probes_move_with_the_mask_on_every_grid,
        a_quarter_of_a_million_tokens,
        offsets_are_64_bits,
        replays_equal_eager_runs,
        overlapping_launches_wait,
        slow_producers_are_waited_for,
        what_has_no_kernel_is_refused,
    );
    bite::add(&mut suite);
    suite.run()
}

//! All tests of the crate, on both backends. Without a GPU the CUDA cases show as ignored, with the reason.

#![allow(unreachable_pub)] // everything is private to this executable

mod bites;
#[cfg(feature = "cuda")]
mod device;
mod exact;
mod refusals;
mod rounds;
mod values;
mod world;

use kernels_testkit::{both, gpu, runner::Suite};

fn main() {
    let mut suite = Suite::new();
    both!(suite, exact::rows_are_single_rows);
    both!(suite, exact::launches_do_not_mix);
    both!(suite, exact::prefill_is_decode);
    both!(suite, exact::stale_rings_are_never_read);
    both!(suite, exact::far_positions_are_like_near_ones);
    both!(suite, rounds::rejected_rows_leave_no_trace);
    both!(suite, values::values_by_hand);
    both!(suite, values::within_the_derived_bound);
    both!(suite, values::equals_scipy);
    both!(suite, refusals::wrong_operands_are_named);
    both!(suite, refusals::wrong_device_data_is_recorded);
    suite.cpu("cpu::refusals::wrong_problems_are_named", refusals::wrong_problems_are_named);
    gpu!(suite, "cuda::device::equals_the_cpu", |device| device::equals_the_cpu(device));
    gpu!(suite, "cuda::device::replays_equal_eager_runs", |device| device::replays_equal_eager_runs(device));
    gpu!(suite, "cuda::device::grids_share_their_bits", |device| device::grids_share_their_bits(device));
    gpu!(suite, "cuda::device::overlapping_launches_wait", |device| device::overlapping_launches_wait(
        device
    ));
    gpu!(suite, "cuda::device::offsets_are_64_bits", |device| device::offsets_are_64_bits(device));
    gpu!(suite, "cuda::device::other_types_are_refused", |device| device::other_types_are_refused(device));
    bites::add(&mut suite);
    suite.run()
}

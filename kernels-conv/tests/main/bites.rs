//! Each planted fault must make the test that looks for it fail: the same function, with one fault active.

use kernels_testkit::runner::Suite;

#[cfg(not(feature = "planted-faults"))]
pub fn add(_: &mut Suite) {}

#[cfg(feature = "planted-faults")]
pub fn add(suite: &mut Suite) {
    use crate::{exact, refusals, rounds, values};
    use kernels_core::{Cpu, fault};

    // A planted fault is active in the whole process.
    suite.one_thread();
    // Failures are expected here; the harness still reports the message of one that is not.
    std::panic::set_hook(Box::new(|_| {}));
    let bites: [(&'static str, fn(&())); 13] = [
        ("conv.taps_reversed", values::values_by_hand::<Cpu>),
        ("conv.taps_reversed", values::equals_scipy::<Cpu>),
        ("conv.rounds_each_tap", values::within_the_derived_bound::<Cpu>),
        ("conv.ring_row_off_by_one", exact::rows_are_single_rows::<Cpu>),
        ("conv.ring_row_off_by_one", exact::far_positions_are_like_near_ones::<Cpu>),
        ("conv.ring_row_off_by_one", rounds::rejected_rows_leave_no_trace::<Cpu>),
        ("conv.reads_before_start", exact::stale_rings_are_never_read::<Cpu>),
        ("conv.batch_index_as_slot", exact::launches_do_not_mix::<Cpu>),
        ("conv.padding_not_zeroed", exact::launches_do_not_mix::<Cpu>),
        ("conv.padding_not_zeroed", refusals::wrong_device_data_is_recorded::<Cpu>),
        ("conv.ring_before_outputs", exact::prefill_is_decode::<Cpu>),
        ("conv.keeps_first_rows", exact::prefill_is_decode::<Cpu>),
        ("conv.batch_index_as_slot", rounds::rejected_rows_leave_no_trace::<Cpu>),
    ];
    for (i, (fault, test)) in bites.into_iter().enumerate() {
        suite.cpu(format!("bite::{i}::{fault}"), move || {
            let outcome = fault::with(fault, || std::panic::catch_unwind(|| test(&())));
            assert!(outcome.is_err(), "the test passed with the fault {fault} planted");
        });
    }
}

//! Each planted fault must be noticed by the tests that look for it.

use kernels_testkit::runner::Suite;

#[cfg(not(feature = "planted-faults"))]
pub(crate) fn add(_: &mut Suite) {}

#[cfg(feature = "planted-faults")]
pub(crate) fn add(suite: &mut Suite) {
    // A planted fault is active in the whole process.
    suite.one_thread();
    suite.cpu("bite::mask_off_by_one", bites::mask_off_by_one);
    suite.cpu("bite::padding_row_written", bites::padding_row_written);
    suite.cpu("bite::page_stale", bites::page_stale);
    suite.cpu("bite::tile_skipped", bites::tile_skipped);
    suite.cpu("bite::rope_shift", bites::rope_shift);
}

#[cfg(feature = "planted-faults")]
mod bites {
    use crate::{accuracy, append, bits, golden, literal, properties, tree};
    use kernels_core::{Cpu, fault};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn bites(fault: &'static str, checks: &[(&str, fn())]) {
        for (name, check) in checks {
            fault::with("attn.none", check);
            let noticed = fault::with(fault, || catch_unwind(AssertUnwindSafe(check)).is_err());
            assert!(noticed, "`{name}` passes although `{fault}` is planted");
        }
    }

    pub(crate) fn mask_off_by_one() {
        bites(
            "attn.mask_off_by_one",
            &[
                ("rows_are_single_rows", || bits::rows_are_single_rows::<Cpu>(&())),
                ("a_probe_moves_with_the_mask", || literal::a_probe_moves_with_the_mask::<Cpu>(&())),
                ("any_launch", || properties::any_launch_gives_the_bytes_of_single_rows::<Cpu>(&())),
            ],
        );
    }

    pub(crate) fn padding_row_written() {
        bites(
            "attn.padding_row_written",
            &[("append placement", || append::rows_batch_and_placement_do_not_matter::<Cpu>(&()))],
        );
    }

    pub(crate) fn page_stale() {
        bites(
            "attn.page_stale",
            &[
                ("pages_slots_and_strides", || bits::pages_slots_and_strides_do_not_matter::<Cpu>(&())),
                ("any_launch", || properties::any_launch_gives_the_bytes_of_single_rows::<Cpu>(&())),
            ],
        );
    }

    pub(crate) fn tile_skipped() {
        bites(
            "attn.tile_skipped",
            &[
                ("within_the_bound_of_f64", || accuracy::within_the_bound_of_f64::<Cpu>(&())),
                ("a_probe_moves_with_the_mask", || literal::a_probe_moves_with_the_mask::<Cpu>(&())),
                ("sums_have_the_order_of_the_tree", tree::sums_have_the_order_of_the_tree),
                ("same_as_transformers", || golden::same_as_transformers::<Cpu>(&())),
            ],
        );
    }

    pub(crate) fn rope_shift() {
        bites(
            "attn.rope_shift",
            &[
                ("append rows", || append::rows_batch_and_placement_do_not_matter::<Cpu>(&())),
                ("append f64", || append::within_the_bound_of_f64::<Cpu>(&())),
            ],
        );
    }
}

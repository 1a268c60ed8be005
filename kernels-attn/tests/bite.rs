//! Each planted fault must be noticed by the tests that look for it.

use crate::{accuracy, append, bits, golden, literal, properties};
use kernels_core::fault;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn bites(fault: &'static str, checks: &[(&str, fn())]) {
    for (name, check) in checks {
        fault::with("attn.none", check);
        let noticed = fault::with(fault, || catch_unwind(AssertUnwindSafe(check)).is_err());
        assert!(noticed, "`{name}` passes although `{fault}` is planted");
    }
}

#[test]
fn mask_off_by_one() {
    bites(
        "attn.mask_off_by_one",
        &[
            ("rows_are_single_rows", bits::rows_are_single_rows),
            ("a_probe_moves_with_the_mask", literal::a_probe_moves_with_the_mask),
            ("any_launch", properties::any_launch_gives_the_bytes_of_single_rows),
        ],
    );
}

#[test]
fn padding_row_written() {
    bites(
        "attn.padding_row_written",
        &[("append placement", append::rows_batch_and_placement_do_not_matter)],
    );
}

#[test]
fn page_stale() {
    bites(
        "attn.page_stale",
        &[
            ("pages_slots_and_strides", bits::pages_slots_and_strides_do_not_matter),
            ("any_launch", properties::any_launch_gives_the_bytes_of_single_rows),
        ],
    );
}

#[test]
fn leaf_skipped() {
    bites(
        "attn.leaf_skipped",
        &[
            ("within_the_bound_of_f64", accuracy::within_the_bound_of_f64),
            ("a_probe_moves_with_the_mask", literal::a_probe_moves_with_the_mask),
            ("same_as_transformers", golden::same_as_transformers),
        ],
    );
}

#[test]
fn rope_shift() {
    bites(
        "attn.rope_shift",
        &[
            ("append rows", append::rows_batch_and_placement_do_not_matter),
            ("append f64", append::within_the_bound_of_f64),
        ],
    );
}

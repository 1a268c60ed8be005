//! The checks above notice what they are there for.

use crate::{Check, bits, experts, fill, fp8, fp8_head, literal, moe};
use kernels_core::{Cpu, bf16, fault};
use std::sync::RwLock;

/// Held for reading by every ordinary test, for writing while a fault is planted.
pub(crate) static CALM: RwLock<()> = RwLock::new(());

fn must_fail(name: &'static str, checks: &[fn() -> Check]) {
    let _alone = CALM.write().unwrap_or_else(|e| e.into_inner());
    for check in checks {
        check().unwrap_or_else(|e| panic!("without the fault: {e}"));
    }
    fault::with(name, || {
        for (i, check) in checks.iter().enumerate() {
            assert!(check().is_err(), "check {i} does not notice {name}");
        }
    });
}

pub(crate) fn one_product_rounded_before_it_is_added() {
    must_fail("dense.contract_one", &[literal::fused, bits::linear_order::<f32>]);
}

pub(crate) fn a_sum_whose_order_depends_on_the_rows() {
    must_fail(
        "dense.order_by_rows",
        &[bits::linear_rows::<bf16, bf16>, bits::linear_rows::<f32, f32>, moe::moe_rows::<f32>],
    );
}

pub(crate) fn experts_added_in_order_of_arrival() {
    must_fail("dense.moe_arrival_order", &[moe::moe_rows::<f32>]);
}

pub(crate) fn the_last_of_equal_experts() {
    must_fail("dense.moe_last_of_equals", &[|| experts::ties::<Cpu>(&())]);
}

pub(crate) fn a_stream_that_begins_again() {
    must_fail("dense.fill_wraps", &[fill::far_places]);
}

pub(crate) fn numbers_cut_off_where_they_are_rounded() {
    must_fail("dense.quantize_cuts_off", &[|| fp8::nearest_codes::<Cpu>(&())]);
}

pub(crate) fn least_numbers_of_a_byte_that_vanish() {
    must_fail("dense.fp8_flushes", &[|| fp8_head::numbers::<Cpu>(&())]);
}

pub(crate) fn a_scale_of_another_row() {
    must_fail("dense.fp8_scale_of_the_next", &[|| fp8_head::numbers::<Cpu>(&())]);
}

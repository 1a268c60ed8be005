//! Every planted fault must be found by the very test that looks for it.

use kernels_testkit::runner::Suite;

#[cfg(not(feature = "planted-faults"))]
pub fn add(_: &mut Suite) {}

#[cfg(feature = "planted-faults")]
pub fn add(suite: &mut Suite) {
    // A planted fault is active in the whole process.
    suite.one_thread();
    suite.cpu("bite::rounds_notice_wrong_replays", bites::rounds_notice_wrong_replays);
    suite.cpu(
        "bite::rounds_notice_rejected_rows_in_the_state",
        bites::rounds_notice_rejected_rows_in_the_state,
    );
    suite.cpu("bite::rounds_notice_a_journal_one_row_short", bites::rounds_notice_a_journal_one_row_short);
    suite.cpu(
        "bite::a_sum_order_that_depends_on_the_block_is_noticed",
        bites::a_sum_order_that_depends_on_the_block_is_noticed,
    );
}

#[cfg(feature = "planted-faults")]
mod bites {
    use crate::{properties, rounds};
    use kernels_core::{Cpu, bf16, fault};

    /// Expects `check` to pass as it is, and to fail with the fault planted.
    fn bites(name: &'static str, check: impl Fn() -> Result<(), String>) {
        fault::with("", &check).unwrap();
        let verdict = fault::with(name, &check);
        assert!(verdict.is_err(), "{name} went unnoticed");
    }

    pub fn rounds_notice_wrong_replays() {
        for flush_after in [0, 1, 3, 6] {
            for name in ["gdn.skip_replay", "gdn.replay_rejected_row", "gdn.stale_counter"] {
                bites(name, || rounds::rounds::<Cpu, bf16>(&(), flush_after, 11 + flush_after as u64));
            }
        }
    }

    pub fn rounds_notice_rejected_rows_in_the_state() {
        for flush_after in [0, 3] {
            bites("gdn.store_rejected", || rounds::rounds::<Cpu, bf16>(&(), flush_after, 21));
        }
    }

    pub fn rounds_notice_a_journal_one_row_short() {
        for flush_after in [0, 1, 3, 6] {
            bites("gdn.short_journal", || {
                rounds::rounds::<Cpu, bf16>(&(), flush_after, 31 + flush_after as u64)
            });
        }
    }

    pub fn a_sum_order_that_depends_on_the_block_is_noticed() {
        bites("gdn.block_arithmetic", || rounds::rounds::<Cpu, f32>(&(), 2, 41));
        bites("gdn.block_arithmetic", || {
            properties::block_equals_rows::<Cpu, f32>(&(), properties::Case::example())
        });
    }
}

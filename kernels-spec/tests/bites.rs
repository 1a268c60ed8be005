//! Each planted fault must be noticed, by the toy engine and by the table made for it.

use crate::{
    engine::{check, standard},
    sim::{Sim, rows},
};
use kernels_core::{PAD, fault};
use kernels_spec::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the toy engine says of all its standard runs, panics included.
fn engine() -> Result<(), String> {
    standard().into_iter().try_for_each(|options| {
        let run = catch_unwind(AssertUnwindSafe(|| check(options).map(|_| ())));
        run.unwrap_or_else(|_| Err("panicked".into()))
    })
}

#[test]
fn nothing_fails_without_a_fault() {
    fault::with("spec.none", engine).expect("the runs pass without a fault");
}

/// With the fault the engine must fail, in one of the named words.
fn bites(name: &'static str, words: &[&str]) {
    let error = fault::with(name, engine).expect_err("nobody noticed");
    assert!(words.iter().any(|word| error.contains(word)), "{name}: failed for another reason: {error}");
}

/// Slot 1 behind three of its tokens, with drafts 40 and 41.
fn decoding() -> Sim {
    let mut sim = Sim::new(2, 16, 4);
    sim.table.admit(&(), 1, &[10, 11, 12], 16, 16).unwrap();
    sim.table.tokens[16 + 3..16 + 6].copy_from_slice(&[30, 40, 41]);
    (sim.table.committed[1], sim.table.folded[1]) = (3, 3);
    (sim.table.drafted[1], sim.table.proposed[1]) = (4, 2);
    sim
}

#[test]
fn stale_counter() {
    bites("spec.stale_counter", &["proposed", "rejected"]);
    let proposed = || {
        let mut sim = decoding();
        sim.advance(Pass::Decode, &rows(&[1], &[3], &[0, 3]), 3, &mut [2]);
        sim.table.proposed[1]
    };
    assert_eq!(fault::with("spec.none", proposed), 0);
    assert_ne!(fault::with("spec.stale_counter", proposed), 0);
}

#[test]
fn stop_not_clamped() {
    bites("spec.stop_not_clamped", &["emitted", "ended"]);
    let accepted = || {
        let mut sim = decoding();
        sim.eos[2] = 40;
        let mut accepted = [3];
        sim.stop(&rows(&[1], &[3], &[0, 3]), 3, &mut accepted);
        accepted
    };
    assert_eq!(fault::with("spec.none", accepted), [1]);
    assert_ne!(fault::with("spec.stop_not_clamped", accepted), [1]);
}

#[test]
fn noise_by_row() {
    bites("spec.noise_by_row", &["emitted", "rejected"]);
}

#[test]
fn wrong_hidden_row() {
    bites("spec.wrong_hidden_row", &["has hidden row"]);
    let carried = || {
        let mut sim = decoding();
        let (forward, draft) = (rows(&[1], &[3], &[0, 3]), rows(&[1], &[4], &[0, 2]));
        sim.carry(&[3.0, 4.0, 5.0], &[f32::NAN; 8], 1, &forward, &draft, 2)
    };
    assert_eq!(fault::with("spec.none", carried), [3.0, 4.0]);
    assert_ne!(fault::with("spec.wrong_hidden_row", carried), [3.0, 4.0]);
}

#[test]
fn draft_kv_not_refreshed() {
    bites("spec.draft_kv_not_refreshed", &["draft K/V at"]);
    let first = || {
        let mut sim = decoding();
        sim.table.committed[1] = 5;
        sim.draft_inputs(&[1], &rows(&[1], &[3], &[0, 3]), 4, 4).rows.start
    };
    assert_eq!(fault::with("spec.none", first), [4]);
    assert_ne!(fault::with("spec.draft_kv_not_refreshed", first), [4]);
}

#[test]
fn padding_advanced() {
    bites("spec.padding_advanced", &["pending", "committed", "fault"]);
    let committed = || {
        let mut sim = decoding();
        sim.advance(Pass::Decode, &rows(&[PAD, 1], &[0, 3], &[0, 0, 3]), 3, &mut [0, 1]);
        sim.table.committed
    };
    assert_eq!(fault::with("spec.none", committed), [0, 4]);
    assert_ne!(fault::with("spec.padding_advanced", committed), [0, 4]);
}

#[test]
fn accept_one_more() {
    bites("spec.accept_one_more", &["emitted"]);
    let accepted = || decoding().accept(&rows(&[1], &[3], &[0, 3]), &[40, 50, 60]);
    assert_eq!(fault::with("spec.none", accepted), [2]);
    assert_ne!(fault::with("spec.accept_one_more", accepted), [2]);
}

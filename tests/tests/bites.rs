//! The bite checks of parity: with each fault planted, the same run that passes without it fails, in the row
//! named here and for the reason named here. The fault is there for plain decoding too, as it would be in a
//! real defect: nothing is compared with a clean run.
#![cfg(feature = "planted-faults")]

use engine::{
    Finish,
    parity::{self, Plan, Proposer, Row, RowReport, What},
    text::Tokenizer,
};
use kernels_core::{bf16, fault};
use workspace_tests::{EMBEDDED, assets, load};

/// A row of the quick table, by its drafts and proposer.
fn row(drafts: &str, proposer: Proposer) -> Row {
    let rows = Plan::quick().rows;
    let found = rows.into_iter().find(|row| row.drafts.to_string() == drafts && row.proposer == proposer);
    found.expect("the quick table has the row")
}

/// Runs rows of the quick table, on four of its prompts, with a fault planted.
fn run_all(fault: &'static str, rows: Vec<Row>) -> Vec<RowReport> {
    let plan = Plan { rows, prompts: 4, words: 0, ..Plan::quick() };
    let (context, model) = load::<bf16>(EMBEDDED);
    let tokenizer = Tokenizer::open(assets(EMBEDDED)).unwrap();
    let report = fault::with(fault, || parity::run(context, model, &tokenizer, &plan, |_, _, _| {})).unwrap();
    report.rows
}

fn run(fault: &'static str, row: Row) -> RowReport {
    run_all(fault, vec![row]).remove(0)
}

/// The fault changes what is emitted or remembered.
#[track_caller]
fn differs(fault: &'static str, row: Row) -> What {
    let report = run(fault, row);
    let difference = report.difference.unwrap_or_else(|| panic!("{fault}: nobody noticed"));
    assert!(difference.starts_with("request "), "{difference}");
    report.differs.expect("it has words").what
}

/// The fault changes no output, as it is in the draft alone, but the row does not count any more.
#[track_caller]
fn accepts_less(fault: &'static str, row: Row) -> String {
    let report = run(fault, row);
    assert!(!report.passed(), "{fault}: nobody noticed: {}", report.counted.why);
    assert_eq!(report.differs, None, "{fault}: a fault of the draft changed the output");
    assert!(!report.counted.counts);
    report.counted.why
}

#[test]
fn nothing_fails_without_a_fault() {
    let rows = [
        row("2", Proposer::Pattern),
        row("3", Proposer::AllRight),
        row("4", Proposer::Mtp),
        row("6", Proposer::Mtp),
        row("7", Proposer::Random),
        row("8", Proposer::AllRight),
    ];
    for report in run_all("none", rows.to_vec()) {
        assert!(report.passed(), "{report:?}");
    }
}

#[test]
fn conv_off_by_one() {
    differs("conv.ring_row_off_by_one", row("2", Proposer::Pattern));
}

#[test]
fn replay_skipped() {
    differs("gdn.skip_replay", row("2", Proposer::Pattern));
}

#[test]
fn a_rejected_row_replayed() {
    differs("gdn.replay_rejected_row", row("7", Proposer::Random));
}

#[test]
fn journal_one_cell_too_short() {
    differs("gdn.short_journal", row("3", Proposer::AllRight));
}

#[test]
fn stale_counters() {
    differs("gdn.stale_counter", row("2", Proposer::Pattern));
    let what = differs("spec.stale_counter", row("4", Proposer::Mtp));
    assert!(matches!(what, What::Finish { here: Finish::Failed, .. }), "{what:?}");
}

#[test]
fn wrong_hidden_row_for_the_draft() {
    let why = accepts_less("spec.wrong_hidden_row", row("4", Proposer::Mtp));
    assert!(why.contains("the head alone"), "{why}");
}

#[test]
fn draft_kv_not_refreshed() {
    accepts_less("spec.draft_kv_not_refreshed", row("4", Proposer::Mtp));
}

#[test]
fn stop_not_clamped() {
    let what = differs("spec.stop_not_clamped", row("8", Proposer::AllRight));
    assert!(matches!(what, What::Token { plain: None, here: Some(_), .. }), "{what:?}");
}

#[test]
fn padding_written() {
    differs("attn.padding_row_written", row("3", Proposer::AllRight));
    differs("spec.padding_advanced", row("3", Proposer::AllRight));
}

/// Where a token differs, the margins of both runs are there to judge it.
#[test]
fn noise_keyed_by_row() {
    let report = run("spec.noise_by_row", row("6", Proposer::Mtp));
    assert!(!report.passed());
    let Some(What::Token { index, position, plain_top, here_top, .. }) = report.differs.map(|d| d.what)
    else {
        panic!("noise changes tokens");
    };
    assert!(position > index);
    let (plain, here) = (plain_top.expect("seen plainly"), here_top.expect("seen here"));
    // Noise is drawn after the logits, so those are still the same.
    assert_eq!(plain, here);
    assert!(plain.margin() >= 0.0);
    let text = report.difference.unwrap();
    assert!(text.contains(&format!("(position {position})")) && text.contains("margin"), "{text}");
}

#[test]
fn one_multiply_add_contracted_otherwise_in_blocks() {
    differs("gdn.contract_in_blocks", row("7", Proposer::Random));
}

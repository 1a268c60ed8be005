//! `lockstep bench`: its table, its timeline, its refusals.

use super::{lockstep, refused_with, text};

const QUICK: [&str; 7] = ["bench", "--batch", "1", "--filled", "8", "--rounds", "2"];

#[test]
fn prints_rounds_and_where_their_time_goes() {
    let output = lockstep(&[&QUICK[..], &["--draft", "1", "--timeline"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for words in [
        "batch 1, 0 drafts, one by one",
        "batch 1, 1 draft, one by one",
        "target  gated norm",
        "draft   mtp fc",
        "between operations",
        "enqueued one by one, with marks around each, so launches that overlap in a graph do not here",
        "1 streams compared with plain decoding: identical",
    ] {
        assert!(table.contains(words), "`{words}` is not in: {table}");
    }
}

#[test]
fn writes_json() {
    for timeline in [false, true] {
        let more: &[&str] =
            if timeline { &["--plain", "--json", "--timeline"] } else { &["--plain", "--json"] };
        let output = lockstep(&[&QUICK[..], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_str(&text(&output.stdout)).expect("JSON");
        assert_eq!(report["points"].as_array().map(Vec::len), Some(1), "{report}");
        if !timeline {
            assert!(report["timelines"].is_null(), "{report}");
            continue;
        }
        let all = report["timelines"][0]["operations"].as_array().expect("a list");
        let head = all.iter().find(|row| row["op"] == "head").expect("every round has one");
        assert_eq!((&head["side"], &head["count"]), (&"target".into(), &1.0.into()));
        assert!(head["terabytes_per_second"].as_f64().is_some_and(|speed| speed > 0.0), "{head}");
    }
}

#[test]
fn the_long_run_goes_by_drafts_that_were_verified() {
    let output = lockstep(&[&QUICK[..], &["--draft", "1", "--simulate-accept", "2.43", "--json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&text(&output.stdout)).expect("JSON");
    let [plain, drafted] = [0, 1].map(|point| &report["points"][point]);
    assert_eq!((&plain["draft_length"], &drafted["draft_length"]), (&0.0.into(), &1.0.into()));
    assert_eq!(plain["expected_accept_length"], 1.0);
    // Each draft is right with a chance of r, where 1 + r + r^2 = 2.43.
    let long = drafted["expected_accept_length"].as_f64().expect("it is simulated");
    assert!((long - 1.79615).abs() < 1e-4, "{long}");
}

#[test]
fn refuses_numbers_that_cannot_work() {
    refused_with(&["bench", "--rounds", "0"], &["`rounds` is 0", "at least 1"]);
    refused_with(&["bench", "--draft", "16"], &["`drafts` is 16", "at most 15"]);
    refused_with(&["bench", "--plain", "--draft-fp8"], &["--draft-fp8", "--plain"]);
}

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
fn refuses_numbers_that_cannot_work() {
    refused_with(&["bench", "--rounds", "0"], &["`rounds` is 0", "at least 1"]);
    refused_with(&["bench", "--draft", "16"], &["`drafts` is 16", "at most 15"]);
    refused_with(&["bench", "--plain", "--draft-fp8"], &["--draft-fp8", "--plain"]);
}

//! `lockstep doctor`: its table, its exit code, its refusals.

use super::{lockstep, refused_with, root, text, without_head};

const QUICK: [&str; 5] = ["doctor", "--prompts", "6", "--tokens", "16"];

#[test]
fn prints_a_table_and_a_verdict() {
    let output = lockstep(&QUICK);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for words in ["teacher-forced", "the engine accepts", "hidden rows shuffled", "verdict: wiring ok"] {
        assert!(table.contains(words), "`{words}` is not in: {table}");
    }
    assert!(text(&output.stderr).contains("MTP head"), "{}", text(&output.stderr));
}

#[test]
fn writes_json_about_a_text_of_the_user() {
    let readme = root().join("README.md");
    let more = ["--draft", "2", "--json", "--text", readme.to_str().unwrap()];
    let output = lockstep(&[&QUICK[..], &more].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&text(&output.stdout)).expect("JSON");
    assert_eq!(report["verdict"]["kind"], "healthy");
    assert_eq!(report["measures"]["wirings"][0]["wiring"], "published");
    assert_eq!(report["measures"]["wirings"][0]["agreement"].as_array().unwrap().len(), 2);
    assert_eq!(report["measures"]["texts"], 6);
    let tested = report.as_object().expect("an object").get("self_test").expect("the chip's");
    assert!(tested.is_null(), "no chip, no test: {tested}");
}

#[test]
fn refuses_what_it_cannot_examine() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let headless = without_head();
    let headless = headless.path().to_str().unwrap();
    let (empty, binary, word) = (path("empty", b""), path("binary", b"\xff\xfe"), path("word", b"word"));
    for (args, words) in [
        (&["--draft", "0"][..], &["drafts", "is 0", "1 to 15"][..]),
        (&["--draft", "16"], &["drafts", "is 16", "1 to 15"]),
        (&["--tokens", "0"], &["--tokens is 0"]),
        (&["--prompts", "0"], &["--prompts is 0"]),
        (&["--text", "no-such-file"], &["no-such-file: cannot be read", "UTF-8"]),
        (&["--text", &binary], &["binary: cannot be read", "UTF-8"]),
        (&["--text", &empty], &["empty", "some text"]),
        (&["--text", &word, "--tokens", "8"], &["places", "at least 30", "more text, or more tokens"]),
        (&["--mtp", "no-such-head"], &["no-such-head"]),
        (&["--model", "no-such-model"], &["no-such-model"]),
        (&["--model", headless], &["no MTP head", "mtp_num_hidden_layers"]),
    ] {
        refused_with(&[&["doctor"][..], args].concat(), words);
    }
}

//! A run that is killed leaves nothing broken behind.

use crate::{root, text};
use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

/// The program writes no file at all; what it has printed are whole lines.
#[test]
fn a_killed_run_leaves_whole_lines_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let requests = dir.path().join("requests.jsonl");
    // The first are short, so that there is something to see; each of the rest takes seconds.
    let line = |i: usize| {
        let tokens = if i < 3 { 2 } else { 4000 };
        serde_json::json!({"prompt": "One morning", "max_tokens": tokens, "ignore_eos": true}).to_string()
            + "\n"
    };
    std::fs::write(&requests, (0..20).map(line).collect::<String>()).unwrap();
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let model = root().canonicalize().unwrap().join("assets/tiny-qwen35-mtp");
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["generate", "--model", model.to_str().unwrap(), "--requests", requests.to_str().unwrap()])
        .current_dir(&work)
        .env("TMPDIR", &work)
        .env("HOME", &work)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut seen = Vec::new();
    for _ in 0..3 {
        out.read_until(b'\n', &mut seen).unwrap();
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "it was still at work");
    out.read_to_end(&mut seen).unwrap();
    let seen = text(&seen);
    assert!(seen.ends_with('\n'), "{seen}");
    assert!((3..20).contains(&seen.lines().count()), "{seen}");
    for line in seen.lines() {
        let reply: serde_json::Value = serde_json::from_str(line).expect("a whole line");
        assert!(reply["stats"]["generated"].as_u64().is_some_and(|n| n > 0), "{reply}");
    }
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0, "a file was written");
}

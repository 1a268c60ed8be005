//! The program as its users meet it: what it prints, and what it says when something is wrong.

mod bench;
mod doctor;

mod killed;
mod parity;
mod random;

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn lockstep(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockstep")).args(args).current_dir(root()).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Runs to an error and returns its one paragraph.
#[track_caller]
fn refused(args: &[&str]) -> String {
    let output = lockstep(args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    let paragraph = stderr.rsplit("error: ").next().expect("an error").to_owned();
    assert!(stderr.contains("error: "), "{stderr}");
    paragraph
}

#[track_caller]
fn refused_with(args: &[&str], words: &[&str]) {
    let paragraph = refused(args);
    for word in words {
        assert!(paragraph.contains(word), "`{word}` is not in: {paragraph}");
    }
}

const QUESTION: &str =
    "Question: A shop had 6 trays of 13 pencils. It sold 12 on Monday. How many pencils remain?\nAnswer:";

fn generate<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["generate", "--max-tokens", "40", "--prompt"], more].concat()
}

#[test]
fn devices_are_refused_by_name() {
    for command in ["generate", "parity", "doctor"] {
        let want = ["--dtype is f32", "bf16", "--device cpu"];
        refused_with(&[command, "--device", "cuda", "--dtype", "f32"], &want);
    }
    if cfg!(not(feature = "cuda")) {
        refused_with(&generate(&["x", "--device", "cuda"]), &["--device is cuda", "--features cuda"]);
    }
    // It loads nothing, so that there is no device to choose.
    assert_eq!(lockstep(&["inspect", "--device", "cuda"]).status.code(), Some(2));
}

#[test]
fn answers_the_readme_question_with_and_without_drafts() {
    let with = lockstep(&generate(&[QUESTION]));
    assert!(with.status.success(), "{}", text(&with.stderr));
    assert!(text(&with.stdout).contains("The answer is 66."), "{}", text(&with.stdout));
    let report = text(&with.stderr);
    for word in ["MTP head", "tokens/s", "accept length", "by position"] {
        assert!(report.contains(word), "`{word}` is not in: {report}");
    }
    for more in [["--draft", "0"], ["--draft", "7"], ["--drafter", "none"]] {
        let other = lockstep(&generate(&[&[QUESTION][..], &more].concat()));
        assert_eq!(text(&other.stdout), text(&with.stdout), "{more:?}");
    }
}

#[test]
fn drafts_out_of_a_part_of_the_vocabulary_change_only_how_many_come_true() {
    let with = lockstep(&generate(&[QUESTION, "--stats", "json"]));
    let report = |output: &Output| -> serde_json::Value {
        serde_json::from_str(text(&output.stderr).lines().last().expect("a line")).expect("JSON")
    };
    let whole = report(&with);
    assert!(whole["draft_vocab"].is_null(), "{whole}");
    let folder = tempfile::tempdir().unwrap();
    let (lines, array) = (folder.path().join("lines"), folder.path().join("array.json"));
    std::fs::write(&lines, "7\n5\n300\n").unwrap();
    std::fs::write(&array, "[7, 5, 300, 2]").unwrap();
    let learning = format!("learn:{}", array.display());
    for (list, ids) in [
        ("1", None),
        ("500", None),
        ("learn:500", None),
        (lines.to_str().unwrap(), Some(3)),
        (array.to_str().unwrap(), Some(4)),
        (learning.as_str(), Some(4)),
    ] {
        let output = lockstep(&generate(&[QUESTION, "--stats", "json", "--draft-vocab", list]));
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), text(&with.stdout), "{list}");
        let report = report(&output);
        let listed = report["draft_vocab"].as_u64().expect("a number");
        // Special ids come on top of a number.
        let wanted = list.trim_start_matches("learn:").parse().unwrap_or(0);
        assert!(
            ids.map_or(listed > wanted && listed < wanted + 100, |ids| listed == ids),
            "{list}: {report}"
        );
        assert!(report["accept_length"].as_f64() <= whole["accept_length"].as_f64(), "{list}: {report}");
    }
    let output = lockstep(&generate(&[QUESTION, "--draft-vocab", lines.to_str().unwrap()]));
    for word in ["drafts are chosen among 3 of", "accept length", "with drafts among 3 of", "tokens/s"] {
        assert!(text(&output.stderr).contains(word), "`{word}` is not in: {}", text(&output.stderr));
    }
}

#[test]
fn drafts_by_a_head_in_fp8_change_only_how_many_come_true() {
    let report = |output: &Output| -> serde_json::Value {
        serde_json::from_str(text(&output.stderr).lines().last().expect("a line")).expect("JSON")
    };
    let with = lockstep(&generate(&[QUESTION, "--stats", "json"]));
    assert_eq!(report(&with)["draft_fp8"], false);
    for more in [&["--draft-fp8"][..], &["--draft-fp8", "--draft-vocab", "learn:500"]] {
        let output = lockstep(&generate(&[&[QUESTION, "--stats", "json"][..], more].concat()));
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), text(&with.stdout), "{more:?}");
        let report = report(&output);
        assert_eq!(report["draft_fp8"], true, "{report}");
        assert_eq!(report["draft_vocab"].is_null(), more.len() == 1, "{report}");
        assert!(report["accept_length"].as_f64() > Some(1.0), "{more:?}: {report}");
    }
    let output = lockstep(&generate(&[QUESTION, "--draft-fp8"]));
    let (stderr, by) = (text(&output.stderr), "ids by a head in fp8");
    for word in ["drafts are chosen among", "accept length", by, "with drafts among", "tokens/s"] {
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
    }
    assert_eq!(stderr.matches(by).count(), 2, "before the text and beside the acceptance: {stderr}");
    let nothing = generate(&["x", "--draft-fp8", "--draft", "0"]);
    refused_with(&nothing, &["--draft-fp8", "nothing is drafted", "--draft K"]);
    let headless = without_head();
    let parity = ["parity", "--draft-fp8", "--model", headless.path().to_str().unwrap()];
    refused_with(&parity, &["--draft-fp8 changes the draft head", "MTP"]);
}

#[test]
fn lists_of_drafts_are_refused_by_name() {
    let with = |list| generate(&["x", "--draft-vocab", list]);
    refused_with(&with("0"), &["--draft-vocab", "`draft_vocab` is 0", "at least 1"]);
    refused_with(&with("no/such/file"), &["no/such/file", "cannot be read", "token ids"]);
    refused_with(&with("README.md"), &["README.md", "no token id in line 1"]);
    let nothing = generate(&["x", "--draft-vocab", "9", "--draft", "0"]);
    refused_with(&nothing, &["--draft-vocab", "nothing is drafted", "--draft K"]);
    refused_with(&["parity", "--draft-vocab", "learn:9"], &["--draft-vocab learns", "give N or FILE alone"]);
    let headless = without_head();
    let parity = ["parity", "--draft-vocab", "9", "--model", headless.path().to_str().unwrap()];
    refused_with(&parity, &["--draft-vocab changes the draft head", "MTP"]);
}

#[test]
fn sampled_text_depends_on_the_seed_and_not_on_drafts() {
    let run = |seed: &str, draft: &str| {
        let args = ["One morning", "--temperature", "1", "--seed", seed, "--draft", draft];
        text(&lockstep(&generate(&args)).stdout)
    };
    assert_eq!(run("1", "0"), run("1", "3"));
    assert_ne!(run("1", "3"), run("2", "3"));
}

#[test]
fn reads_a_prompt_from_standard_input_and_stops_at_text() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["generate", "--stop", " is", "--stats", "json"])
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("piped").write_all(QUESTION.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(text(&output.stdout), " 6 * 13 = 78; 78 - 12 = 66. The answer\n");
    let report = text(&output.stderr);
    let json: serde_json::Value = serde_json::from_str(report.lines().last().expect("a line")).expect("JSON");
    assert!(json["rounds"].as_u64().is_some_and(|rounds| rounds > 0), "{json}");
    assert!(json["times"]["target"].as_f64().is_some(), "{json}");
    let acceptance = json["acceptance"].as_array().expect("a rate for each position");
    assert_eq!(acceptance.len(), json["drafted"].as_array().expect("counts").len());
    assert!(json["accept_length"].as_f64().is_some_and(|length| length > 1.0), "{json}");
}

#[test]
fn serves_a_file_of_requests_in_its_order() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("requests.jsonl");
    let lines = [
        serde_json::json!({"prompt": QUESTION, "max_tokens": 40, "stop": ["\n"]}),
        serde_json::json!({"prompt": "def", "max_tokens": 3, "draft": 0}),
        serde_json::json!({"prompt": "class Node", "max_tokens": 5, "temperature": 0.7, "seed": 5, "draft": 4}),
    ];
    std::fs::write(&file, lines.map(|line| line.to_string()).join("\n")).unwrap();
    let output = lockstep(&["generate", "--stats", "text", "--requests", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let replies: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(replies.len(), 3);
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply["index"], i);
    }
    assert_eq!(replies[0]["text"], " 6 * 13 = 78; 78 - 12 = 66. The answer is 66.");
    assert_eq!(replies[0]["finish"], "stop");
    assert_eq!(replies[1]["stats"]["generated"], 3);
    assert_eq!(replies[1]["stats"]["drafted"], serde_json::json!([]));
    assert_eq!(replies[2]["finish"], "length");
    for reply in &replies {
        let stats = |name: &str| reply["stats"][name].as_f64().unwrap_or_else(|| panic!("{name}: {reply}"));
        assert!(stats("first_token") <= stats("seconds") && stats("tokens_per_second") > 0.0, "{reply}");
        let tokens = stats("tokens_per_second") * stats("seconds");
        assert!((tokens - stats("generated")).abs() < 1e-6, "{reply}");
        assert!(stats("accept_length") >= 1.0, "{reply}");
        let positions = |name: &str| reply["stats"][name].as_array().map(Vec::len);
        assert_eq!(positions("acceptance"), positions("reached"), "{reply}");
    }
    let report = text(&output.stderr);
    for words in
        ["request 0: ", "request 1: 3 tokens in ", "no drafts", "time of all requests together: prefill"]
    {
        assert!(report.contains(words), "`{words}` is not in: {report}");
    }
}

#[test]
fn refuses_numbers_that_cannot_work() {
    refused_with(&generate(&["x", "--draft", "99"]), &["--draft is 99", "15"]);
    refused_with(&generate(&["x", "--draft", "2", "--drafter", "none"]), &["--drafter none", "2"]);
    refused_with(&generate(&["", "--draft", "2"]), &["prompt is empty"]);
    refused_with(&generate(&["x", "--context", "999999"]), &["--context", "999999", "32768"]);
    refused_with(&generate(&[QUESTION, "--context", "16"]), &["prompt", "tokens long", "16", "--context"]);
    refused_with(
        &generate(&[QUESTION, "--pages", "3", "--page-rows", "8"]),
        &["29 prompt and 40 new tokens", "9 pages", "the pool has 2", "--pages"],
    );
    refused_with(&generate(&["x", "--pages", "0"]), &["pages", "0"]);
    let most = i32::MAX.to_string();
    let huge = ["--pages", &most, "--page-rows", &most];
    refused_with(&generate(&[&["x"][..], &huge].concat()), &["pages", &most, "lower"]);
    let planned = lockstep(&[&["inspect"][..], &huge].concat());
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    refused_with(&generate(&["x", "--page-rows", "0"]), &["--page-rows"]);
    refused_with(&generate(&["x", "--slots", "0"]), &["slots"]);
    refused_with(&generate(&["x", "--prefill", "0"]), &["prefill_rows"]);
    refused_with(&generate(&["x", "--flush-after", "1000"]), &["flush_after", "1000"]);
    refused_with(&["generate", "--prompt", "x", "--max-tokens", "0"], &["max_tokens", "0"]);
    refused_with(&generate(&["x", "--temperature=-1"]), &["temperature", "-1"]);
    refused_with(&generate(&["x", "--top-p", "1.5"]), &["top_p", "1.5"]);
    refused_with(&generate(&["x", "--stop", ""]), &["stop text is empty"]);
    refused_with(&generate(&["x", "--chat"]), &["chat"]);
}

#[test]
fn refuses_checkpoints_that_are_not_there() {
    refused_with(&generate(&["x", "--model", "/nowhere/at/all"]), &["/nowhere/at/all"]);
    refused_with(&generate(&["x", "--model", "docs"]), &["config.json"]);
    refused_with(&["inspect", "--preset", "qwen9"], &["qwen9", "qwen3.5-27b"]);
}

#[test]
fn refuses_requests_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("requests.jsonl");
    let path = file.to_str().unwrap();
    for (line, words) in [
        ("{", &["line 2", "is no request"][..]),
        (r#"{"prompt": "x", "tempreture": 1}"#, &["line 2", "tempreture"]),
        (r#"{"max_tokens": 1}"#, &["line 2", "none of `prompt` and `messages`"]),
        (r#"{"prompt": "x", "draft": 16}"#, &["16", "15"]),
        (r#"{"prompt": "x", "bias": [[5000, 1.0]]}"#, &["bias", "5000"]),
        (r#"{"prompt": "x", "stop": [""]}"#, &["line 2", "stop text is empty"]),
    ] {
        std::fs::write(&file, format!("{{\"prompt\": \"a\"}}\n{line}\n")).unwrap();
        refused_with(&["generate", "--requests", path], words);
    }
    std::fs::write(&file, "\n\n").unwrap();
    refused_with(&["generate", "--requests", path], &["no request in it"]);
    refused_with(&["generate", "--requests", "nowhere.jsonl"], &["nowhere.jsonl"]);
}

/// A fixture with its config saying that there is no head; its mtp tensors are there and unused.
fn without_head() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let from = root().join("assets/fixtures/tiny-dense");
    for file in std::fs::read_dir(&from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let config = config.replace("\"mtp_num_hidden_layers\": 1", "\"mtp_num_hidden_layers\": 0");
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    dir
}

#[test]
fn a_checkpoint_without_a_head_says_so_and_decodes_plainly() {
    let dir = without_head();
    let model = dir.path().to_str().unwrap();
    let plain = lockstep(&["generate", "--model", model, "--prompt", "post", "--max-tokens", "4"]);
    assert!(plain.status.success(), "{}", text(&plain.stderr));
    assert!(text(&plain.stderr).contains("no drafts"), "{}", text(&plain.stderr));
    let asked = ["generate", "--model", model, "--prompt", "post", "--draft", "2"];
    refused_with(&asked, &["mtp", "mtp_num_hidden_layers"]);
    // A head from elsewhere.
    let head = root().join("assets/fixtures/tiny-dense/model.safetensors");
    let with_head = [&asked[..], &["--mtp", head.to_str().unwrap(), "--max-tokens", "4"]].concat();
    let drafted = lockstep(&with_head);
    assert_eq!(text(&drafted.stdout), text(&plain.stdout), "{}", text(&drafted.stderr));
    assert!(text(&drafted.stderr).contains("accept length"), "{}", text(&drafted.stderr));
}

#[test]
fn inspects_without_loading() {
    let output = lockstep(&["inspect"]);
    let report = text(&output.stdout);
    for word in ["8 layers: 6 gated delta net, 2 full attention", "journals", "total", "MTP head"] {
        assert!(report.contains(word), "`{word}` is not in: {report}");
    }
    let output = lockstep(&["inspect", "--preset", "qwen3.5-27b", "--slots", "1", "--tensors"]);
    let report = text(&output.stdout);
    // 48 layers x 48 heads x 128 x 128 x 4 bytes.
    for word in ["144.0 MiB", "model.language_model.embed_tokens.weight", "[248320, 5120]"] {
        assert!(report.contains(word), "`{word}` is not in: {report}");
    }
}

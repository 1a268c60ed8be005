//! `--random-weights`: models that nobody trained.

use super::{lockstep, refused_with, text};
use std::{fs, path::PathBuf};

/// A configuration small enough for the CPU, of a tied dense model or of experts.
fn config(dir: &tempfile::TempDir, moe: bool, vocab: usize) -> PathBuf {
    let path = dir.path().join(if moe { "moe.json" } else { "dense.json" });
    let model_type = if moe { "qwen3_5_moe_text" } else { "qwen3_5_text" };
    let config = serde_json::json!({
        "model_type": model_type, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "rope_theta": 10_000, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "intermediate_size": 96, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16, "vocab_size": vocab, "tie_word_embeddings": !moe,
        "mtp_num_hidden_layers": 1,
    });
    fs::write(&path, config.to_string()).unwrap();
    path
}

fn generate<'a>(path: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["generate", "--random-weights", path, "--max-tokens", "24", "--prompt", "7 8,9"], more].concat()
}

#[test]
fn tokens_are_numbers_and_depend_on_the_seed_and_not_on_drafts() {
    let dir = tempfile::tempdir().unwrap();
    for moe in [false, true] {
        let path = config(&dir, moe, 500);
        let path = path.to_str().unwrap();
        let run = |more: &[&str]| {
            let output = lockstep(&generate(path, more));
            assert!(output.status.success(), "{}", text(&output.stderr));
            let words = text(&output.stdout);
            let ids: Vec<u32> = words.split(' ').map(|id| id.trim_end().parse().expect("an id")).collect();
            assert!(ids.len() == 24 && ids.iter().all(|id| *id < 500), "{words}");
            (ids, text(&output.stderr))
        };
        let (ids, report) = run(&[]);
        for words in ["random weights of seed 0, 4 layers, with an MTP head", "accept length"] {
            assert!(report.contains(words), "`{words}` is not in: {report}");
        }
        assert_eq!(run(&["--draft", "0"]).0, ids);
        assert_eq!(run(&["--draft", "5"]).0, ids);
        assert_ne!(run(&["--seed", "1"]).0, ids);
    }
}

#[test]
fn serves_requests_of_ids() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(&dir, false, 500);
    let file = dir.path().join("requests.jsonl");
    fs::write(&file, "{\"prompt\": \"1 2 3\", \"max_tokens\": 3}\n{\"prompt\": \"4\", \"max_tokens\": 2}\n")
        .unwrap();
    let (path, requests) = (path.to_str().unwrap(), file.to_str().unwrap());
    let args = ["generate", "--random-weights", path, "--requests", requests];
    let output = lockstep(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let counts: Vec<usize> =
        lines.iter().map(|line| line["text"].as_str().expect("a text").split(' ').count()).collect();
    assert_eq!(counts, [3, 2]);
    for (line, words) in [
        (
            r#"{"messages": [{"role": "user", "content": "x"}]}"#,
            "a chat was asked for: random weights have no",
        ),
        (r#"{"prompt": "1", "stop": ["x"]}"#, "a stop text was given: random weights have no"),
        (r#"{"prompt": "one"}"#, "the prompt's `one` is no token id"),
    ] {
        fs::write(&file, line).unwrap();
        refused_with(&args, &["line 1", words]);
    }
}

#[test]
fn refuses_what_random_weights_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(&dir, false, 500);
    let path = path.to_str().unwrap();
    refused_with(
        &["generate", "--random-weights", "28b", "--prompt", "1"],
        &["28b", "qwen3.5-27b", "known are"],
    );
    let broken = dir.path().join("broken.json");
    fs::write(&broken, "{").unwrap();
    refused_with(
        &["generate", "--random-weights", broken.to_str().unwrap(), "--prompt", "1"],
        &["broken.json", "is not valid JSON"],
    );
    for (prompt, words) in [
        ("1 500", ["`500`", "below 500"]),
        ("-1", ["`-1`", "no token id"]),
        ("Once upon", ["`Once`", "have no tokenizer"]),
        (" , ", ["prompt is empty", "token"]),
    ] {
        let args = ["generate", "--random-weights", path, "--max-tokens", "2", &format!("--prompt={prompt}")];
        refused_with(&args, &words);
    }
    for more in [["--model", "assets"], ["--stop", "x"], ["--mtp", "x"]] {
        assert_eq!(lockstep(&generate(path, &more)).status.code(), Some(2), "{more:?}");
    }
    assert_eq!(lockstep(&generate(path, &["--chat"])).status.code(), Some(2));
    // Without a head.
    let headless =
        fs::read_to_string(path).unwrap().replace("\"mtp_num_hidden_layers\":1", "\"bos_token_id\":1");
    fs::write(path, headless).unwrap();
    refused_with(&generate(path, &["--draft", "2"]), &["has no MTP head", "--draft 0"]);
    assert!(lockstep(&generate(path, &[])).status.success());
}

#[test]
fn parity_holds_for_random_weights() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(&dir, true, 5000);
    let output = lockstep(&["parity", "--quick", "--random-weights", path.to_str().unwrap(), "--seed", "3"]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table}{}", text(&output.stderr));
    for words in ["every row is identical", "of first drafts accepted, the head alone", "all right by design"]
    {
        assert!(table.contains(words), "`{words}` is not in: {table}");
    }
    assert!(text(&output.stderr).contains("random weights of seed 3"), "{}", text(&output.stderr));
    let small = config(&dir, true, 500);
    refused_with(
        &["parity", "--quick", "--random-weights", small.to_str().unwrap()],
        &["vocab_size is 500", "up to 4095"],
    );
    // A seed without anything to draw.
    assert_eq!(lockstep(&["parity", "--quick", "--seed", "3"]).status.code(), Some(2));
}

#[test]
fn the_memory_plan_comes_before_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(&dir, false, 500);
    let path = path.to_str().unwrap();
    let plan = |more: &[&str]| text(&lockstep(&generate(path, more)).stderr);
    let report = plan(&["--stats", "text"]);
    let at = |words: &str| report.find(words).unwrap_or_else(|| panic!("`{words}` is not in: {report}"));
    let memory = at("memory for 1 sequences of up to 4096 tokens, 2 drafts, 65 pages of 64:");
    for words in ["\n  weights ", "journals ", "conv rings ", "activations ", "logits ", "total "] {
        assert!(at(words) > memory, "{report}");
    }
    assert!(at("accept length") > memory, "{report}");
    // Nobody asked.
    assert!(!plan(&[]).contains("memory for"));
    assert!(!plan(&["--stats", "none"]).contains("memory for"));
}

#[test]
fn inspects_geometries_by_short_names_and_files() {
    let by = |name: &str| text(&lockstep(&["inspect", "--random-weights", name]).stdout);
    let long = by("qwen3.5-27b");
    assert!(long.contains("hidden 5120, 64 layers: 48 gated delta net, 16 full attention"), "{long}");
    assert_eq!(by("27b"), long);
    assert_eq!(by("27B"), long);
    assert_eq!(text(&lockstep(&["inspect", "--preset", "27b"]).stdout), long);
    let dir = tempfile::tempdir().unwrap();
    assert!(by(config(&dir, true, 500).to_str().unwrap()).contains("8 experts of 16, 2 chosen"));
    let both = lockstep(&["inspect", "--preset", "27b", "--random-weights", "27b"]);
    assert_eq!(both.status.code(), Some(2));
}

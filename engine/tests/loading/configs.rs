//! config.json and generation_config.json: defaults, precedence, refusals.

use crate::support::{Copy, asset, message, says};
use engine::config::{Config, FeedForward, Gdn, LayerKind, Sampling};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{fs, path::Path};

fn parse(value: &Value) -> engine::Result<Config> {
    Config::parse(&value.to_string(), Path::new("some/config.json"))
}

/// The text model of tiny-dense, flat, with one field set or (null) removed.
fn with(field: &str, value: Value) -> Value {
    let path = asset("fixtures/tiny-dense/config.json");
    let mut root: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut text = root["text_config"].take();
    if value.is_null() {
        text.as_object_mut().unwrap().remove(field);
    } else {
        text[field] = value;
    }
    text
}

#[test]
fn the_fixture_reads_as_it_is() {
    let config = Config::load(asset("fixtures/tiny-dense")).unwrap();
    assert_eq!((config.hidden, config.vocab, config.heads, config.kv_heads), (64, 512, 4, 2));
    assert_eq!((config.head_dim, config.rotary_dim, config.rope_theta, config.eps), (32, 8, 1e7, 1e-6));
    assert_eq!(config.gdn, Gdn { k_heads: 2, v_heads: 4, k_dim: 32, v_dim: 32, conv_width: 4 });
    assert_eq!((config.gdn.conv_channels(), config.gdn.v_width()), (256, 128));
    assert_eq!(config.ffn, FeedForward::Dense { intermediate: 128 });
    assert_eq!((config.tied, config.mtp_layers, config.max_positions), (false, 1, 4096));
    assert_eq!((config.eos.as_slice(), config.bos, config.pad), (&[502, 500][..], Some(500), Some(500)));
    let sampling = Sampling {
        sample: true,
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        ..Sampling::default()
    };
    assert_eq!(config.sampling, sampling);
    let config = Config::load(asset("fixtures/tiny-moe")).unwrap();
    let ffn = FeedForward::Moe { experts: 8, top_k: 2, intermediate: 32, shared_intermediate: 32 };
    assert_eq!(config.ffn, ffn);
}

#[test]
fn absent_fields_have_the_published_defaults() {
    let dense = parse(&json!({ "model_type": "qwen3_5_text", "rope_theta": 1e7 })).unwrap();
    let mut nine = Config::preset("qwen3.5-9b").unwrap();
    (nine.mtp_layers, nine.max_positions, nine.sampling) = (0, 32_768, Sampling::default());
    (nine.eos, nine.bos, nine.pad) = (Vec::new(), None, None);
    assert_eq!(dense, nine);
    let moe = parse(&json!({ "model_type": "qwen3_5_moe", "text_config": { "rope_theta": 1e7 } })).unwrap();
    let preset = Config::preset("qwen3.5-35b-a3b").unwrap();
    assert_eq!((moe.hidden, moe.layers, moe.ffn), (preset.hidden, preset.layers, preset.ffn));
}

#[test]
fn layers_come_from_the_list_or_the_interval() {
    let by_interval = parse(&with("layer_types", Value::Null)).unwrap();
    let by_list = parse(&with("full_attention_interval", json!(3))).unwrap();
    assert_eq!(by_interval.layers, by_list.layers);
    assert_eq!(by_interval.layers[3], LayerKind::Full);
    let mut two = with("layer_types", Value::Null);
    two["full_attention_interval"] = json!(2);
    assert_eq!(parse(&two).unwrap().count(LayerKind::Full), 4);
}

#[test]
fn rope_parameters_win_over_the_fields_beside_them() {
    let mut text = with("rope_parameters", json!({ "rope_theta": 5e6, "partial_rotary_factor": 0.5 }));
    (text["rope_theta"], text["partial_rotary_factor"]) = (json!(1e4), json!(0.25));
    let config = parse(&text).unwrap();
    assert_eq!((config.rope_theta, config.rotary_dim), (5e6, 16));
    text["rope_parameters"] = json!({ "rope_type": "default" });
    let config = parse(&text).unwrap();
    assert_eq!((config.rope_theta, config.rotary_dim), (1e4, 8));
    text.as_object_mut().unwrap().remove("rope_theta");
    says(&message(parse(&text)), &["rope_parameters.rope_theta", "missing", "10000000"]);
}

#[test]
fn tying_is_read_in_either_place() {
    for (outer, inner) in [(true, json!(null)), (false, json!(true)), (true, json!(false))] {
        let root = json!({
            "model_type": "qwen3_5",
            "tie_word_embeddings": outer,
            "text_config": with("tie_word_embeddings", inner),
        });
        assert!(parse(&root).unwrap().tied);
    }
}

#[test]
fn unknown_fields_and_nulls_are_no_reason_to_refuse() {
    let mut text = with("brand_new_field", json!({ "a": [1, null] }));
    for field in
        ["pad_token_id", "rope_scaling", "quantization_config", "layer_types", "mtp_num_hidden_layers"]
    {
        text[field] = Value::Null;
    }
    (text["hidden_size"], text["output_gate_type"]) = (json!(64.0), json!("swish"));
    let config = parse(&text).unwrap();
    assert_eq!((config.hidden, config.mtp_layers), (64, 0));
}

#[test]
fn what_is_not_implemented_or_absurd_is_refused_by_name() {
    let cases: Vec<(&str, Value, &[&str])> = vec![
        ("model_type", json!("qwen3_next"), &["\"qwen3_next\"", "qwen3_5"]),
        ("model_type", Value::Null, &["missing"]),
        ("model_type", json!(5), &["string"]),
        ("quantization_config", json!({ "quant_method": "fp8" }), &["fp8", "BF16 release"]),
        ("attention_bias", json!(true), &["bias"]),
        ("attention_bias", json!("no"), &["true or false"]),
        ("attn_output_gate", json!(false), &["gate"]),
        ("hidden_act", json!("gelu"), &["\"gelu\"", "silu"]),
        ("output_gate_type", json!("sigmoid"), &["\"sigmoid\"", "swish"]),
        ("norm_topk_prob", json!(false), &["renormalised"]),
        ("mtp_num_hidden_layers", json!(2), &["is 2", "set it to 0"]),
        ("mtp_num_hidden_layers", json!(-1), &["is -1"]),
        ("mtp_use_dedicated_embeddings", json!(true), &["shares"]),
        (
            "rope_scaling",
            json!({ "type": "yarn", "factor": 4.0 }),
            &["rope_scaling.type", "\"yarn\"", "context"],
        ),
        (
            "rope_parameters",
            json!({ "rope_type": "linear", "rope_theta": 1e7 }),
            &["rope_parameters.rope_type"],
        ),
        ("rope_parameters", json!({ "rope_theta": 0 }), &["rope_parameters.rope_theta", "is 0"]),
        (
            "rope_parameters",
            json!({ "rope_theta": 1e7, "partial_rotary_factor": 0.01 }),
            &["partial_rotary_factor", "even"],
        ),
        ("rope_parameters", json!({ "rope_theta": 1e7, "partial_rotary_factor": 1.5 }), &["1.5"]),
        ("rope_parameters", json!([1]), &["object"]),
        ("layer_types", json!(["linear_attention"]), &["num_hidden_layers = 8"]),
        (
            "layer_types",
            json!(vec!["sliding_attention"; 8]),
            &["entry 0", "sliding_attention", "full_attention"],
        ),
        ("num_hidden_layers", json!(0), &["is 0", "from 1 to"]),
        ("num_hidden_layers", json!(1e6), &["from 1 to"]),
        ("num_hidden_layers", json!(7), &["layer_types"]),
        ("full_attention_interval", json!(0), &["is 0"]),
        ("num_key_value_heads", json!(3), &["divide num_attention_heads", "4"]),
        ("linear_num_value_heads", json!(3), &["multiple of linear_num_key_heads"]),
        ("hidden_size", json!(0), &["is 0"]),
        ("hidden_size", json!(-64), &["is -64"]),
        ("hidden_size", json!(64.5), &["64.5", "whole"]),
        ("hidden_size", json!("64"), &["whole"]),
        ("hidden_size", json!(u64::MAX), &["18446744073709551615"]),
        ("vocab_size", json!(1u64 << 40), &["from 1 to"]),
        ("head_dim", json!(1e300), &["from 1 to"]),
        ("linear_conv_kernel_dim", json!(5), &["is 5", "from 1 to 4"]),
        ("linear_conv_kernel_dim", json!(1), &["is 1", "2, 3 and 4"]),
        ("intermediate_size", json!(1u64 << 33), &["from 1 to"]),
        ("rms_norm_eps", json!(0.0), &["above 0"]),
        ("rms_norm_eps", json!("NaN"), &["\"NaN\"", "above 0"]),
        ("rms_norm_eps", json!(1e-300), &["above 0"]),
        ("tie_word_embeddings", json!(1), &["true or false"]),
        ("eos_token_id", json!(512), &["is 512", "below the vocabulary's 512"]),
        ("eos_token_id", json!([1, "x"]), &["below the vocabulary's 512"]),
    ];
    for (field, value, words) in cases {
        let error = message(parse(&with(field, value.clone())));
        let named = if field == "num_hidden_layers" && value == json!(7) { "layer_types" } else { field };
        says(&error, &[&["some/config.json", named], words].concat());
    }
    let mut moe = with("model_type", json!("qwen3_5_moe_text"));
    (moe["num_experts"], moe["num_experts_per_tok"]) = (json!(4), json!(5));
    says(&message(parse(&moe)), &["num_experts_per_tok", "is 5", "num_experts, which is 4"]);
    let root = json!({ "model_type": "qwen3_5", "text_config": with("hidden_size", json!(0)) });
    says(&message(parse(&root)), &["text_config.hidden_size"]);
    let scheme = json!({ "quant_method": "fp8" });
    let outer = json!({
        "model_type": "qwen3_5",
        "text_config": with("pad_token_id", Value::Null),
        "quantization_config": scheme,
    });
    says(&message(parse(&outer)), &["`quantization_config`", "fp8"]);
    let inner = json!({ "model_type": "qwen3_5", "text_config": with("quantization_config", scheme) });
    says(&message(parse(&inner)), &["`text_config.quantization_config`", "fp8"]);
    let long = "x".repeat(5000);
    assert!(message(parse(&with("hidden_act", json!(long)))).len() < 400);
}

#[test]
fn broken_json_is_refused_with_its_place() {
    let parse = |text: &str| message(Config::parse(text, Path::new("some/config.json")));
    says(&parse("{\"a\": 1,\n oops"), &["some/config.json", "not valid JSON", "line 2"]);
    says(&parse("[1]"), &["not an object"]);
    says(&parse(""), &["not valid JSON"]);
    says(&parse("{\"model_type\": \"qwen3_5\", \"rms_norm_eps\": NaN}"), &["not valid JSON", "column"]);
}

#[test]
fn generation_config_is_optional_and_checked() {
    let copy = Copy::dense();
    fs::remove_file(copy.file("generation_config.json")).unwrap();
    let config = Config::load(copy.path()).unwrap();
    assert_eq!((config.eos.as_slice(), config.sampling), (&[500][..], Sampling::default()));
    let cases: [(Value, &[&str]); 5] = [
        (json!({ "eos_token_id": [502, 512] }), &["eos_token_id", "another model"]),
        (json!({ "temperature": -1 }), &["temperature", "is -1"]),
        (json!({ "top_p": 0 }), &["top_p", "above 0"]),
        (json!({ "top_k": 1.5 }), &["top_k", "1.5"]),
        (json!({ "do_sample": "yes" }), &["do_sample", "true or false"]),
    ];
    for (value, words) in cases {
        fs::write(copy.file("generation_config.json"), value.to_string()).unwrap();
        says(&message(Config::load(copy.path())), &[&["generation_config.json"], words].concat());
    }
    fs::write(copy.file("generation_config.json"), r#"{"eos_token_id": 7, "top_k": 0}"#).unwrap();
    let config = Config::load(copy.path()).unwrap();
    assert_eq!((config.eos.as_slice(), config.sampling.top_k, config.bos), (&[7][..], None, Some(500)));
}

proptest! {
    #[test]
    fn edited_configurations_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let mut text = fs::read(asset("fixtures/tiny-moe/config.json")).unwrap();
        for (at, byte) in edits {
            let at = at.index(text.len());
            text[at] = byte;
        }
        let text = String::from_utf8_lossy(&text);
        if let Ok(config) = Config::parse(&text, Path::new("x")) {
            let total: u128 = engine::weights::required_tensors(&config).map(|t| t.elements() as u128).sum();
            prop_assert!(total > 0);
        }
    }
}

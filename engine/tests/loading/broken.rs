//! Broken files: each is refused in words that name the file, the tensor and the remedy.

use crate::support::{Copy, asset, says};
use engine::weights::parse_header;
use proptest::prelude::*;
use std::{fs, path::Path};

const EMBED: &str = "model.language_model.embed_tokens.weight";
const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn header_len(file: &[u8]) -> usize {
    8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize
}

#[test]
fn truncation_anywhere_is_seen() {
    let copy = Copy::dense();
    let whole = fs::read(copy.file(MODEL)).unwrap();
    let header = header_len(&whole);
    for length in [0, 1, 7, 8, 9, 100, header - 1, header, header + 1, whole.len() / 2, whole.len() - 1] {
        fs::write(copy.file(MODEL), &whole[..length]).unwrap();
        says(&copy.error(), &[MODEL, "truncated", "fetch the file again"]);
    }
    fs::write(copy.file(MODEL), [whole.as_slice(), b"???"].concat()).unwrap();
    says(&copy.error(), &[MODEL, "3 bytes that belong to no tensor"]);
    fs::write(copy.file(MODEL), "version https://git-lfs.github.com/spec/v1\noid sha256:0").unwrap();
    says(&copy.error(), &[MODEL, "not a safetensors file", "download"]);
}

#[test]
fn a_lying_header_is_seen() {
    let header = |json: &str, data: usize| {
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(json.as_bytes());
        file.resize(file.len() + data, 0);
        parse_header(&file, Path::new("x.safetensors"))
    };
    let one = |shape: &str, offsets: &str| {
        format!(r#"{{"t": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}"#)
    };
    assert_eq!(header(&one("[2, 3]", "[0, 24]"), 24).unwrap()[0].shape, [2, 3]);
    assert!(header("{}", 0).unwrap().is_empty());
    assert!(header(&one("[0]", "[0, 0]"), 0).is_ok());
    let max = u64::MAX;
    let bad = [
        ("".to_owned(), 0),
        ("[]".to_owned(), 0),
        ("{".to_owned(), 0),
        (one("[2, 3]", "[0, 23]"), 23),
        (one("[2, 3]", "[4, 28]"), 28),
        (one("[2, 3]", "[24, 0]"), 24),
        (one("[2, 3]", "[0, 24]"), 20),
        (one("[-1]", "[0, 4]"), 4),
        (one(&format!("[{max}, {max}]"), "[0, 4]"), 4),
        (one(&format!("[{}, 8]", max / 4), "[0, 4]"), 4),
        (one("[4611686018427387903]", "[0, 18446744073709551612]"), 0),
        (one("[1]", "[0, 4]").replace("F32", "F33"), 4),
        ("{\"t\": 3}".to_owned(), 0),
    ];
    for (json, data) in bad {
        let error = header(&json, data).expect_err(&json).to_string();
        says(&error, &["x.safetensors"]);
    }
    // Sizes whose sum passes the end of 64-bit numbers.
    let huge = 1u64 << 61;
    let many: Vec<String> = (0..7u64)
        .map(|i| {
            format!(
                r#""t{i}": {{"dtype": "U8", "shape": [{huge}], "data_offsets": [{}, {}]}}"#,
                i * huge,
                (i + 1) * huge
            )
        })
        .chain([format!(
            r#""u": {{"dtype": "U8", "shape": [{}], "data_offsets": [{}, {max}]}}"#,
            huge - 1,
            7 * huge
        )])
        .collect();
    says(&header(&format!("{{{}}}", many.join(", ")), 16).unwrap_err().to_string(), &["x.safetensors"]);
}

#[test]
fn missing_misshaped_and_unknown_tensors_are_named() {
    let copy = Copy::dense();
    copy.edit(|t| drop(t.remove(EMBED)));
    says(&copy.error(), &[EMBED, "[512, 64]", "missing", "one release"]);

    let copy = Copy::dense();
    copy.edit(|t| t.retain(|name, _| !name.contains("layers.5.")));
    says(&copy.error(), &["model.language_model.layers.5.input_layernorm.weight", "13 more missing"]);

    let copy = Copy::dense();
    copy.edit(|t| t.get_mut(EMBED).unwrap().shape = vec![64, 512]);
    says(&copy.error(), &[EMBED, "[64, 512]", "[512, 64]", MODEL]);

    let copy = Copy::dense();
    copy.edit(|t| {
        let spare = t[EMBED].clone();
        t.insert("model.language_model.layers.8.secret.weight".into(), spare.clone());
        t.insert("model.other.weight".into(), spare);
    });
    says(&copy.error(), &["model.language_model.layers.8.secret.weight", "1 more unknown", "no part", MODEL]);

    let copy = Copy::dense();
    copy.edit(|t| drop(t.remove("lm_head.weight")));
    says(&copy.error(), &["lm_head.weight", "tie_word_embeddings"]);

    let copy = Copy::dense();
    copy.edit(|t| {
        let tensor = t.get_mut(EMBED).unwrap();
        tensor.dtype = safetensors::Dtype::I16;
    });
    says(&copy.error(), &[EMBED, "I16", "BF16", "quantised"]);

    // Tensors that a fine-tune or a multimodal release may carry are skipped and counted.
    let copy = Copy::dense();
    copy.edit(|t| {
        let spare = t["mtp.norm.weight"].clone();
        for name in ["mtp.sci.norm.weight", "mtp.normal.norm.weight", "model.time_series.x"] {
            t.insert(name.into(), spare.clone());
        }
    });
    let verdict = copy.open().unwrap().verdict().to_string();
    says(
        &verdict,
        &["time series encoder (1 tensors)", "mtp.sci and mtp.normal (2 tensors)", "MTP head: 15"],
    );
}

#[test]
fn conversions_with_other_conventions_are_refused() {
    let copy = Copy::dense();
    copy.edit(|t| {
        for (name, tensor) in t {
            if name.ends_with("conv1d.weight") {
                tensor.shape = vec![256, 4, 1];
            }
        }
    });
    says(&copy.error(), &["layers.0.linear_attn.conv1d.weight", "[256, 4, 1]", "MLX", "converted from"]);
}

#[test]
fn both_expert_layouts_at_once_are_refused() {
    let copy = Copy::of("fixtures/tiny-moe");
    let split = Copy::of("fixtures/tiny-moe-per-expert").tensors();
    let name = "mtp.layers.0.mlp.experts.3.up_proj.weight";
    copy.edit(|t| drop(t.insert(name.into(), split[name].clone())));
    says(&copy.error(), &[name, "no part"]);
    // And one expert too few is a missing tensor.
    let copy = Copy::of("fixtures/tiny-moe-per-expert");
    copy.edit(|t| drop(t.remove(name)));
    says(&copy.error(), &[name, "missing"]);
}

#[test]
fn an_index_that_lies_is_refused() {
    let sharded = || {
        let copy = Copy::dense();
        copy.shard("a.safetensors", "b.safetensors", |name| name.starts_with("mtp."));
        copy
    };
    assert!(sharded().open().is_ok());
    let index = |edit: &dyn Fn(&mut serde_json::Value)| {
        let copy = sharded();
        copy.json(INDEX, |index| edit(&mut index["weight_map"]));
        copy.error()
    };
    says(
        &index(&|map| map[EMBED] = "c.safetensors".into()),
        &[INDEX, "c.safetensors", "not in the directory"],
    );
    says(
        &index(&|map| map[EMBED] = "a.safetensors".into()),
        &[INDEX, EMBED, "a.safetensors", "b.safetensors"],
    );
    says(&index(&|map| map["ghost"] = "a.safetensors".into()), &[INDEX, "ghost", "no shard has it"]);
    says(&index(&|map| drop(map.as_object_mut().unwrap().remove(EMBED))), &[INDEX, "does not list", EMBED]);
    for outside in ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ""] {
        says(&index(&|map| map[EMBED] = outside.into()), &[INDEX, EMBED, "plain file name"]);
    }
    says(&index(&|map| map[EMBED] = 3.into()), &[INDEX, EMBED, "plain file name"]);
    says(&index(&|map| *map = serde_json::json!({})), &[INDEX, "empty"]);
    says(&index(&|map| *map = 3.into()), &[INDEX, "weight_map"]);

    let copy = sharded();
    fs::write(copy.file(INDEX), "{\"weight_map\": ").unwrap();
    says(&copy.error(), &[INDEX, "not valid JSON", "line 1"]);

    let copy = sharded();
    fs::copy(copy.file("a.safetensors"), copy.file("c.safetensors")).unwrap();
    copy.json(INDEX, |index| index["weight_map"]["mtp.fc.weight"] = "c.safetensors".into());
    says(&copy.error(), &["tensor `mtp.", "is in both", "a.safetensors and", "c.safetensors"]);

    let copy = sharded();
    fs::remove_file(copy.file("b.safetensors")).unwrap();
    says(&copy.error(), &["b.safetensors", "fetch"]);

    let copy = sharded();
    fs::remove_file(copy.file(INDEX)).unwrap();
    says(&copy.error(), &["neither", INDEX, "a.safetensors"]);
}

#[test]
fn a_directory_without_weights_is_refused() {
    let copy = Copy::dense();
    fs::remove_file(copy.file(MODEL)).unwrap();
    says(&copy.error(), &["no safetensors file", "fetch"]);
    fs::create_dir(copy.file(MODEL)).unwrap();
    says(&copy.error(), &[MODEL]);
    fs::remove_file(copy.file("config.json")).unwrap();
    says(&copy.error(), &["config.json", "cannot be read", "--model"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn flipped_and_cut_headers_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = fs::read(asset("fixtures/tiny-dense").join(MODEL)).unwrap();
        let header = header_len(&file);
        for (at, byte) in flips {
            file[at.index(header)] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len() + 1));
        }
        if let Ok(entries) = parse_header(&file, Path::new("x")) {
            for entry in entries {
                prop_assert!(entry.bytes.start <= entry.bytes.end && entry.bytes.end <= file.len());
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), length in 0u64..64) {
        let _ = parse_header(&bytes, Path::new("x"));
        let _ = parse_header(&[&length.to_le_bytes(), bytes.as_slice()].concat(), Path::new("x"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_checkpoint_with_a_flipped_header_opens_or_errs(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let copy = Copy::dense();
        let mut file = fs::read(copy.file(MODEL)).unwrap();
        let header = header_len(&file);
        for (at, byte) in flips {
            file[at.index(header)] = byte;
        }
        fs::write(copy.file(MODEL), file).unwrap();
        if let Ok(checkpoint) = copy.open() {
            checkpoint.model().try_map(&mut |t| t.to_vec::<f32>().map(drop)).unwrap();
        }
    }
}

//! Whole checkpoints, in every layout that is published.

use crate::support::{CHECKPOINTS, Copy, asset, read};
use engine::{
    config::{Config, FeedForward, LayerKind, PRESETS},
    weights::{Checkpoint, Experts, Ffn, Mixer, required_tensors},
};
use half::{bf16, f16};
use kernels_core::DType;
use safetensors::Dtype;
use std::sync::{Arc, Mutex};

#[test]
fn every_tensor_of_every_asset_resolves() {
    for name in CHECKPOINTS {
        let checkpoint = Checkpoint::open(asset(name)).unwrap();
        let config = checkpoint.config();
        assert_eq!(config.mtp_layers, 1, "{name}");
        assert_eq!(config.count(LayerKind::Full) * 4, config.layers.len(), "{name}");
        let mut elements = 0;
        let mut tensors = 0;
        checkpoint
            .model()
            .try_map(&mut |tensor| -> engine::Result<()> {
                assert_eq!(tensor.to_vec::<f32>()?.len(), tensor.elements());
                elements += tensor.elements();
                tensors += 1;
                Ok(())
            })
            .unwrap();
        let wanted: usize = required_tensors(config).map(|t| t.elements()).sum();
        assert_eq!(elements, wanted, "{name}");
        assert_eq!(tensors, checkpoint.verdict().tensors, "{name}");
        if !name.ends_with("per-expert") {
            for want in required_tensors(config) {
                let got = checkpoint.tensor(&want.name).unwrap_or_else(|| panic!("{name}: {}", want.name));
                assert_eq!(got.shape(), want.shape);
            }
        }
    }
}

#[test]
fn verdicts_say_what_was_found() {
    let verdict = Checkpoint::open(asset("tiny-qwen35-mtp")).unwrap().verdict().to_string();
    assert_eq!(
        verdict,
        "qwen3_5_text: 8 layers (6 linear, 2 full attention), dense, tied embeddings; 123 tensors (111 bf16, 12 \
         f32), 22.1 MB in 2 files; MTP head: 15 tensors, bf16, in model-00002-of-00002.safetensors; not part of \
         it: golden.safetensors"
    );
    let verdict = Checkpoint::open(asset("fixtures/tiny-moe-per-expert")).unwrap().verdict().to_string();
    assert!(verdict.contains("8 experts (one tensor each), 2 per token"), "{verdict}");
    assert!(verdict.contains("skipped: vision tower (21 tensors)"), "{verdict}");
}

#[test]
fn fused_and_split_experts_give_the_same_rows() {
    let fused = Checkpoint::open(asset("fixtures/tiny-moe")).unwrap();
    let split = Checkpoint::open(asset("fixtures/tiny-moe-per-expert")).unwrap();
    let FeedForward::Moe { experts, intermediate, .. } = fused.config().ffn else { panic!("not MoE") };
    let both = |a: Ffn<_>, b: Ffn<_>| {
        let (Ffn::Moe(a), Ffn::Moe(b)) = (a, b) else { panic!("not MoE") };
        assert!(matches!(a.experts, Experts::Fused { .. }) && matches!(b.experts, Experts::Split(_)));
        let gate_up = a.experts.gate_up::<bf16>(false).unwrap();
        assert_eq!(gate_up.len(), experts * 2 * intermediate * fused.config().hidden);
        assert_eq!(gate_up, b.experts.gate_up::<bf16>(false).unwrap());
        assert_eq!(a.experts.down::<f32>(false).unwrap(), b.experts.down::<f32>(true).unwrap());
    };
    for i in 0..fused.config().layers.len() {
        both(fused.layer(i).ffn, split.layer(i).ffn);
    }
    both(fused.mtp().unwrap().layer.ffn, split.mtp().unwrap().layer.ffn);
}

#[test]
fn layouts_of_one_model_hold_the_same_weights() {
    let plain = Copy::dense();
    let reference: Vec<f32> = plain.open().unwrap().mtp().unwrap().fc.to_vec().unwrap();

    // A head in a shard of its own, as some releases have it.
    let sharded = Copy::dense();
    sharded.shard("mtp.safetensors", "model.safetensors", |name| name.starts_with("mtp."));
    let checkpoint = sharded.open().unwrap();
    assert!(checkpoint.verdict().to_string().contains("MTP head: 15 tensors, bf16, in mtp.safetensors"));
    assert_eq!(checkpoint.mtp().unwrap().fc.to_vec::<f32>().unwrap(), reference);

    // A text-only export: flat configuration, short names, no vision tower.
    let text = Copy::dense();
    text.json("config.json", |root| *root = root["text_config"].take());
    text.edit(|tensors| {
        tensors.retain(|name, _| !name.starts_with("model.visual."));
        *tensors = std::mem::take(tensors)
            .into_iter()
            .map(|(name, tensor)| (name.replace("model.language_model.", "model."), tensor))
            .collect();
    });
    let checkpoint = text.open().unwrap();
    assert!(checkpoint.verdict().skipped.is_empty());
    assert_eq!(checkpoint.embed().name(), "model.embed_tokens.weight");

    // An index beats a stray model.safetensors, which is mentioned.
    let stray = Copy::dense();
    let bytes = std::fs::read(stray.file("model.safetensors")).unwrap();
    stray.shard("a.safetensors", "b.safetensors", |name| name.starts_with("mtp."));
    std::fs::write(stray.file("model.safetensors"), bytes).unwrap();
    assert_eq!(stray.open().unwrap().verdict().stray, ["model.safetensors"]);
}

#[test]
fn a_tied_model_may_store_its_head_if_it_is_the_embedding() {
    let copy = Copy::dense();
    copy.config(|config| config["tie_word_embeddings"] = true.into());
    crate::support::says(&copy.error(), &["tie_word_embeddings", "lm_head.weight", "set it to false"]);
    copy.edit(|tensors| {
        let embedding = tensors["model.language_model.embed_tokens.weight"].clone();
        tensors.insert("lm_head.weight".into(), embedding);
    });
    let checkpoint = copy.open().unwrap();
    assert!(checkpoint.lm_head().is_none());
    assert!(checkpoint.verdict().to_string().contains("lm_head.weight, equal to the embedding"));
}

#[test]
fn every_type_is_read_at_every_type() {
    let name = "model.language_model.layers.0.linear_attn.out_proj.weight";
    let stored = read(&asset("fixtures/tiny-dense/model.safetensors"));
    let values: Vec<f32> =
        stored[name].data.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
    type Encode = fn(f32) -> Vec<u8>;
    let types: [(Dtype, DType, Encode); 3] = [
        (Dtype::BF16, DType::Bf16, |x| bf16::from_f32(x).to_le_bytes().to_vec()),
        (Dtype::F16, DType::F16, |x| f16::from_f32(x).to_le_bytes().to_vec()),
        (Dtype::F32, DType::F32, |x| x.to_le_bytes().to_vec()),
    ];
    for (dtype, named, encode) in types {
        let copy = Copy::dense();
        copy.edit(|tensors| {
            let tensor = tensors.get_mut(name).unwrap();
            tensor.dtype = dtype;
            tensor.data = values.iter().flat_map(|&x| encode(x)).collect();
        });
        let checkpoint = copy.open().unwrap();
        let Mixer::Linear(mixer) = checkpoint.layer(0).mixer else { panic!("layer 0 is linear") };
        let tensor = mixer.out_proj;
        assert_eq!((tensor.name(), tensor.dtype()), (name, named));
        let near =
            |got: Vec<f32>| got.iter().zip(&values).all(|(a, b)| (a - b).abs() <= 1e-3 * b.abs() + 1e-7);
        assert!(near(tensor.to_vec().unwrap()));
        assert!(near(tensor.to_vec_rounded::<f16>().into_iter().map(f16::to_f32).collect()));
        if dtype != Dtype::F16 {
            let exact = tensor.to_vec::<bf16>().unwrap();
            assert!(exact.iter().zip(&values).all(|(a, b)| a.to_f32() == *b));
        }
    }
}

#[test]
fn weights_at_odd_addresses_are_read() {
    let copy = Copy::dense();
    let path = copy.file("model.safetensors");
    let want: Vec<f32> = copy.open().unwrap().embed().to_vec().unwrap();
    // One more space at the header's end moves every tensor by a byte.
    let mut file = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) + 1;
    file[..8].copy_from_slice(&length.to_le_bytes());
    file.insert(7 + length as usize, b' ');
    std::fs::write(&path, file).unwrap();
    let checkpoint = copy.open().unwrap();
    assert_eq!(checkpoint.embed().bytes().as_ptr() as usize % 2, 1);
    assert_eq!(checkpoint.embed().to_vec::<f32>().unwrap(), want);
    assert_eq!(checkpoint.embed().to_vec::<bf16>().unwrap()[9].to_f32(), want[9]);
}

#[test]
fn narrowing_is_exact_or_asked_for() {
    let name = "model.language_model.layers.0.linear_attn.A_log";
    let copy = Copy::dense();
    copy.edit(|tensors| {
        let tensor = tensors.get_mut(name).unwrap();
        assert_eq!(tensor.dtype, Dtype::F32);
        tensor.data[..4].copy_from_slice(&1.0f32.to_le_bytes());
        tensor.data[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
        tensor.data[8..12].copy_from_slice(&1.001f32.to_le_bytes());
    });
    let checkpoint = copy.open().unwrap();
    let tensor = checkpoint.tensor(name).unwrap();
    let error = tensor.to_vec::<bf16>().unwrap_err().to_string();
    crate::support::says(&error, &[name, "1.001", "element 2", "bf16", "model.safetensors"]);
    assert_eq!(tensor.to_vec_rounded::<bf16>()[2], bf16::from_f32(1.001));
}

#[test]
fn progress_ends_at_the_whole() {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = reports.clone();
    let checkpoint = Checkpoint::open(asset("tiny-qwen35-mtp"))
        .unwrap()
        .with_progress(move |done, total| sink.lock().unwrap().push((done, total)));
    checkpoint.model().try_map(&mut |t| t.to_vec::<f32>().map(drop)).unwrap();
    let reports = reports.lock().unwrap();
    let total = checkpoint.total_bytes();
    assert!(reports.windows(2).all(|w| w[0].0 < w[1].0) && reports.iter().all(|r| r.1 == total));
    assert_eq!(reports.last(), Some(&(total, total)));
}

#[test]
fn presets_have_the_sizes_of_their_names() {
    // Parameters of the text model without its head, in units of 1e8; embeddings counted once.
    let wanted = [7.5, 18.8, 42.1, 89.5, 269.0, 346.6, 1221.1, 3963.5];
    for (name, wanted) in PRESETS.iter().zip(wanted) {
        let config = Config::preset(name).unwrap();
        let count: usize =
            required_tensors(&config).filter(|t| !t.name.starts_with("mtp.")).map(|t| t.elements()).sum();
        let got = count as f64 / 1e8;
        assert!((got - wanted).abs() < 0.01 * wanted, "{name}: {got:.1}, wanted {wanted}");
    }
    assert_eq!(Config::preset("qwen2"), None);
}

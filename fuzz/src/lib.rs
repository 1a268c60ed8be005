//! What the fuzz targets share: a checkpoint of the smallest legal size, and what every error must be.

use engine::{Error, config::Config, weights::required_tensors};
use kernels_core::bf16;
use std::{fmt::Write as _, fs, path::Path};

/// A model with one layer of each kind and a draft head, every size as small as it gets.
pub const CONFIG: &str = r#"{"model_type": "qwen3_5_text", "hidden_size": 2, "intermediate_size": 1,
"num_hidden_layers": 2, "full_attention_interval": 2, "num_attention_heads": 1, "num_key_value_heads": 1,
"head_dim": 2, "partial_rotary_factor": 1.0, "rope_theta": 10000.0, "linear_num_key_heads": 1,
"linear_num_value_heads": 1, "linear_key_head_dim": 1, "linear_value_head_dim": 1,
"linear_conv_kernel_dim": 2, "vocab_size": 3, "max_position_embeddings": 8, "mtp_num_hidden_layers": 1}"#;

/// The configuration of [`CONFIG`].
pub fn config() -> Config {
    Config::parse(CONFIG, Path::new("config.json")).expect("the configuration is a valid one")
}

/// A safetensors file with every tensor of the model for which `wanted` holds.
pub fn shard(wanted: impl Fn(&str) -> bool) -> Vec<u8> {
    let (mut header, mut data) = (String::from("{"), Vec::new());
    for tensor in required_tensors(&config()).filter(|tensor| wanted(&tensor.name)) {
        let start = data.len();
        data.extend((0..tensor.elements()).flat_map(|i| bf16::from_f32(i as f32).to_le_bytes()));
        let comma = if header.len() > 1 { "," } else { "" };
        write!(
            header,
            r#"{comma}"{}":{{"dtype":"BF16","shape":{:?},"data_offsets":[{start},{}]}}"#,
            tensor.name,
            tensor.shape,
            data.len()
        )
        .expect("a string takes everything");
    }
    header.push('}');
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// Writes `bytes` into `dir` under `name`.
pub fn put(dir: &Path, name: &str, bytes: &[u8]) {
    fs::write(dir.join(name), bytes).expect("the temporary folder takes files");
}

/// Every refusal is one paragraph of a readable length, whatever the file holds.
pub fn is_one_paragraph(error: &Error) {
    let message = error.to_string();
    assert!(!message.chars().any(char::is_control), "control characters: {message:?}");
    assert!(message.chars().count() < 4000, "{} characters: {message}", message.chars().count());
    assert!(message.contains("; ") || message.contains(": "), "no remedy: {message}");
}

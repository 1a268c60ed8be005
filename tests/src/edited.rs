//! Copies of checkpoints with something changed.

use crate::assets;
use serde_json::Value;
use std::path::Path;

/// A copy of a checkpoint in a directory of its own, gone when dropped.
#[derive(Debug)]
pub struct Edited {
    dir: tempfile::TempDir,
}

impl Edited {
    /// A copy of a checkpoint under `assets/`, which has one `model.safetensors`.
    pub fn of(name: &str) -> Self {
        let dir = tempfile::tempdir().expect("there is room for a copy");
        for file in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(assets(name).join(file), dir.path().join(file)).expect("the file can be copied");
        }
        Edited { dir }
    }

    /// Where it is, as [`load`](crate::load) takes it.
    pub fn name(&self) -> &str {
        self.dir.path().to_str().expect("temporary directories have plain names")
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.name()).join(name)
    }

    /// Makes these the ids that end a sequence.
    pub fn eos(self, ids: &[u32]) -> Self {
        for name in ["config.json", "generation_config.json"] {
            let text = std::fs::read_to_string(self.file(name)).expect("it was copied");
            let mut root: Value = serde_json::from_str(&text).expect("it is JSON");
            let object = if name == "config.json" { &mut root["text_config"] } else { &mut root };
            object["eos_token_id"] = ids.into();
            std::fs::write(self.file(name), root.to_string()).expect("it can be written");
        }
        self
    }

    /// Makes one row of a bf16 matrix NaN.
    pub fn poison_row(self, tensor: &str, row: usize) -> Self {
        let path = self.file("model.safetensors");
        let mut bytes = std::fs::read(&path).expect("it was copied");
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let index: Value = serde_json::from_slice(&bytes[8..8 + header]).expect("it is JSON");
        let entry = &index[tensor];
        assert_eq!(entry["dtype"], "BF16", "{tensor}");
        let number = |v: &Value| v.as_u64().expect("a number") as usize;
        let row_bytes = 2 * number(&entry["shape"][1]);
        let at = 8 + header + number(&entry["data_offsets"][0]) + row * row_bytes;
        for element in bytes[at..at + row_bytes].chunks_exact_mut(2) {
            element.copy_from_slice(&0x7fc0u16.to_le_bytes());
        }
        std::fs::write(path, bytes).expect("it can be written");
        self
    }
}

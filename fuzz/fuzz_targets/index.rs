//! An index of any content beside two good shards: refused in words, or the whole checkpoint.
#![no_main]

use engine::weights::Checkpoint;
use libfuzzer_sys::fuzz_target;
use lockstep_fuzz::{CONFIG, config, is_one_paragraph, put, shard};
use std::sync::LazyLock;

static DIR: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("there is a temporary folder");
    put(dir.path(), "config.json", CONFIG.as_bytes());
    put(dir.path(), "a.safetensors", &shard(|name| !name.starts_with("mtp.")));
    put(dir.path(), "b.safetensors", &shard(|name| name.starts_with("mtp.")));
    dir
});

fuzz_target!(|index: &[u8]| {
    put(DIR.path(), "model.safetensors.index.json", index);
    match Checkpoint::open(DIR.path()) {
        Ok(checkpoint) => assert_eq!(checkpoint.config().layers, config().layers),
        Err(error) => is_one_paragraph(&error),
    }
});

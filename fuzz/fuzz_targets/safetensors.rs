//! A safetensors file of any content: refused in words, or a list of tensors that lie inside the file; and
//! the checkpoint around it refused, or complete and readable.
#![no_main]

use engine::weights::{Checkpoint, parse_header};
use kernels_core::bf16;
use libfuzzer_sys::fuzz_target;
use lockstep_fuzz::{CONFIG, is_one_paragraph, put};
use std::{path::Path, sync::LazyLock};

static DIR: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("there is a temporary folder");
    put(dir.path(), "config.json", CONFIG.as_bytes());
    dir
});

fuzz_target!(|file: &[u8]| {
    let mut entries = match parse_header(file, Path::new("model.safetensors")) {
        Ok(entries) => entries,
        Err(error) => return is_one_paragraph(&error),
    };
    entries.sort_by_key(|entry| (entry.bytes.start, entry.bytes.end));
    let mut end = 0;
    for entry in &entries {
        assert!(entry.bytes.start >= end && entry.bytes.end <= file.len(), "{entry:?}");
        assert!(entry.bytes.start <= entry.bytes.end, "{entry:?}");
        end = entry.bytes.end;
        let elements = entry.shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n)).expect("checked");
        assert_eq!(entry.bytes.len() * 8, elements * entry.dtype.bitsize(), "{entry:?}");
    }
    put(DIR.path(), "model.safetensors", file);
    match Checkpoint::open(DIR.path()) {
        Ok(checkpoint) => {
            let read = checkpoint.model().try_map(&mut |tensor| {
                assert_eq!(tensor.to_vec_rounded::<bf16>().len(), tensor.elements());
                tensor.to_vec::<f32>().map(drop)
            });
            read.expect("every 16-bit and 32-bit value is an f32");
        }
        Err(error) => is_one_paragraph(&error),
    }
});

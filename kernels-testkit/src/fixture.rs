//! Tensors computed by somebody else's code, stored as safetensors in `assets/`.

use safetensors::{Dtype, SafeTensors};
use std::{collections::BTreeMap, path::PathBuf};

/// The repository's root: `LOCKSTEP_ROOT` where tests run from a pack, else above the crate under test.
pub fn root() -> PathBuf {
    std::env::var_os("LOCKSTEP_ROOT")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("CARGO_MANIFEST_DIR").map(|d| PathBuf::from(d).join("..")))
        .unwrap_or_else(|| PathBuf::from("."))
}

/// The tensors of one file, floating-point ones widened to fp32 and integers to i64.
#[derive(Debug)]
pub struct Fixture {
    floats: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    integers: BTreeMap<String, (Vec<usize>, Vec<i64>)>,
}

impl Fixture {
    /// Reads `path`, relative to the repository's root.
    pub fn open(path: &str) -> Fixture {
        let full = root().join(path);
        let bytes = std::fs::read(&full).unwrap_or_else(|e| panic!("{}: {e}", full.display()));
        let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|e| panic!("{}: {e}", full.display()));
        let mut fixture = Fixture { floats: BTreeMap::new(), integers: BTreeMap::new() };
        for (name, view) in file.iter() {
            let (shape, data) = (view.shape().to_vec(), view.data());
            let wide = |n: usize, f: fn(&[u8]) -> f32| data.chunks_exact(n).map(f).collect::<Vec<f32>>();
            match view.dtype() {
                Dtype::F32 => {
                    let v = wide(4, |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                    fixture.floats.insert(name.into(), (shape, v));
                }
                Dtype::BF16 => {
                    let v = wide(2, |b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16));
                    fixture.floats.insert(name.into(), (shape, v));
                }
                Dtype::I64 => {
                    let read = |b: &[u8]| i64::from_le_bytes(b.try_into().expect("eight bytes"));
                    let v = data.chunks_exact(8).map(read).collect();
                    fixture.integers.insert(name.into(), (shape, v));
                }
                Dtype::I32 => {
                    let read = |b: &[u8]| i64::from(i32::from_le_bytes(b.try_into().expect("four bytes")));
                    let v = data.chunks_exact(4).map(read).collect();
                    fixture.integers.insert(name.into(), (shape, v));
                }
                other => panic!("{}: `{name}` has dtype {other:?}", full.display()),
            }
        }
        fixture
    }

    /// A floating-point tensor: shape and values.
    #[track_caller]
    pub fn get(&self, name: &str) -> (&[usize], &[f32]) {
        self.try_get(name).unwrap_or_else(|| panic!("the fixture has no tensor `{name}`"))
    }

    /// A floating-point tensor, if it is there.
    pub fn try_get(&self, name: &str) -> Option<(&[usize], &[f32])> {
        self.floats.get(name).map(|(shape, values)| (&shape[..], &values[..]))
    }

    /// An integer tensor: shape and values.
    pub fn try_integers(&self, name: &str) -> Option<(&[usize], &[i64])> {
        self.integers.get(name).map(|(shape, values)| (&shape[..], &values[..]))
    }

    /// The names of all floating-point tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.floats.keys().map(String::as_str)
    }
}

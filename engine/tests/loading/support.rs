//! Copies of a fixture that a test can damage.

use engine::weights::Checkpoint;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

pub(crate) const CHECKPOINTS: [&str; 6] = [
    "tiny-qwen35-mtp",
    "fixtures/tiny-dense",
    "fixtures/tiny-moe",
    "fixtures/tiny-moe-per-expert",
    "fixtures/mini-dense",
    "fixtures/mini-moe",
];

pub(crate) fn asset(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets").join(name)
}

#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

pub(crate) type Tensors = BTreeMap<String, Tensor>;

/// A copy of a fixture in a directory of its own, without its reference values.
pub(crate) struct Copy {
    dir: tempfile::TempDir,
}

impl Copy {
    pub(crate) fn of(fixture: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for file in fs::read_dir(asset(fixture)).unwrap() {
            let from = file.unwrap().path();
            let name = from.file_name().unwrap().to_str().unwrap();
            if !name.starts_with("reference") && from.is_file() {
                fs::write(dir.path().join(name), fs::read(&from).unwrap()).unwrap();
            }
        }
        Self { dir }
    }

    pub(crate) fn dense() -> Self {
        Self::of("fixtures/tiny-dense")
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Edits `config.json`; `edit` gets the text model's object.
    pub(crate) fn config(&self, edit: impl FnOnce(&mut Value)) -> &Self {
        self.json("config.json", |root| edit(&mut root["text_config"]))
    }

    pub(crate) fn json(&self, name: &str, edit: impl FnOnce(&mut Value)) -> &Self {
        let path = self.file(name);
        let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut value);
        fs::write(path, value.to_string()).unwrap();
        self
    }

    pub(crate) fn tensors(&self) -> Tensors {
        read(&self.file("model.safetensors"))
    }

    /// Edits the tensors of `model.safetensors`.
    pub(crate) fn edit(&self, edit: impl FnOnce(&mut Tensors)) -> &Self {
        let mut tensors = self.tensors();
        edit(&mut tensors);
        write(&self.file("model.safetensors"), &tensors);
        self
    }

    /// Splits the single file into `a` (what `first` says) and `b`, with an index.
    pub(crate) fn shard(&self, a: &str, b: &str, first: impl Fn(&str) -> bool) -> &Self {
        let (left, right): (Tensors, Tensors) = self.tensors().into_iter().partition(|(name, _)| first(name));
        let entry = |file: &str, names: &Tensors| -> Vec<(String, Value)> {
            names.keys().map(|name| (name.clone(), file.into())).collect()
        };
        let map: serde_json::Map<_, _> = entry(a, &left).into_iter().chain(entry(b, &right)).collect();
        fs::remove_file(self.file("model.safetensors")).unwrap();
        write(&self.file(a), &left);
        write(&self.file(b), &right);
        let index = serde_json::json!({ "metadata": {}, "weight_map": map });
        fs::write(self.file("model.safetensors.index.json"), index.to_string()).unwrap();
        self
    }

    pub(crate) fn open(&self) -> engine::Result<Checkpoint> {
        Checkpoint::open(self.path())
    }

    /// The message of the error that opening must give.
    pub(crate) fn error(&self) -> String {
        message(self.open())
    }
}

pub(crate) fn message<T>(result: engine::Result<T>) -> String {
    match result {
        Ok(_) => panic!("accepted what it should refuse"),
        Err(error) => error.to_string(),
    }
}

/// Asserts that a message holds every word.
#[track_caller]
pub(crate) fn says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    assert!(!message.contains('\n'), "more than one paragraph: {message}");
}

pub(crate) fn read(path: &Path) -> Tensors {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let own = |view: TensorView<'_>| Tensor {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        data: view.data().to_vec(),
    };
    file.tensors().into_iter().map(|(name, view)| (name, own(view))).collect()
}

pub(crate) fn write(path: &Path, tensors: &Tensors) {
    let views =
        tensors.iter().map(|(name, t)| (name, TensorView::new(t.dtype, t.shape.clone(), &t.data).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

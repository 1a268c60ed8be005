//! Which files make up a checkpoint, and which tensor is in which.

use super::shard::{Entry, Shard};
use crate::{Error, Result};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::ErrorKind,
    path::{Path, PathBuf},
};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// The mapped shards of one checkpoint and the table of their tensors.
pub(super) struct Source {
    /// The directory, or the one file.
    pub(super) path: PathBuf,
    pub(super) shards: Vec<Shard>,
    table: HashMap<String, Place>,
    /// Safetensors files beside the checkpoint that are not part of it.
    pub(super) stray: Vec<String>,
}

/// Where a tensor is: the shard, and the entry in its header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) shard: usize,
    pub(super) entry: usize,
}

impl Source {
    /// Opens a checkpoint directory: its index, or its single file.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let found = safetensors_in(dir)?;
        let index = dir.join(INDEX);
        let weight_map = match std::fs::read(&index) {
            Ok(text) => Some(parse_index(&text, &index)?),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(source) => {
                return Err(Error::Io { path: index, source, remedy: "make it readable".into() });
            }
        };
        let wanted: BTreeSet<String> = match &weight_map {
            Some(map) => map.values().cloned().collect(),
            None if found.contains(SINGLE) => [SINGLE.to_owned()].into(),
            None => return Err(no_weights(dir, &found)),
        };
        let mut shards = Vec::with_capacity(wanted.len());
        for name in &wanted {
            let path = dir.join(name);
            if !path.exists() {
                return Err(Error::Malformed {
                    path: index,
                    what: format!("names the shard {name}, which is not in the directory"),
                    remedy: format!("fetch {name} of the same release"),
                });
            }
            shards.push(Shard::open(path)?);
        }
        let stray = found.into_iter().filter(|name| !wanted.contains(name)).collect();
        let source = Self { path: dir.to_owned(), table: table(&shards)?, shards, stray };
        if let Some(map) = weight_map {
            source.check_index(&index, &map)?;
        }
        Ok(source)
    }

    /// Opens one safetensors file.
    pub(super) fn open_file(path: &Path) -> Result<Self> {
        let shards = vec![Shard::open(path.to_owned())?];
        Ok(Self { path: path.to_owned(), table: table(&shards)?, shards, stray: Vec::new() })
    }

    pub(super) fn place(&self, name: &str) -> Option<Place> {
        self.table.get(name).copied()
    }

    pub(super) fn entry(&self, place: Place) -> &Entry {
        &self.shards[place.shard].entries[place.entry]
    }

    /// Every tensor name, in no particular order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.table.keys().map(String::as_str)
    }

    /// The index must name every tensor of its shards, each in the shard it is in.
    fn check_index(&self, index: &Path, map: &BTreeMap<String, String>) -> Result<()> {
        let refuse =
            |what, remedy: &str| Error::Malformed { path: index.to_owned(), what, remedy: remedy.into() };
        for (name, file) in map {
            let holder = self.place(name).map(|place| self.shards[place.shard].file_name());
            if holder.as_ref() != Some(file) {
                let but = holder.map_or("no shard has it".into(), |h| format!("it is in {h}"));
                let what = format!("says that tensor `{name}` is in {file}, but {but}");
                return Err(refuse(what, "fetch the index and the shards from one release"));
            }
        }
        if let Some(name) = self.names().filter(|name| !map.contains_key(*name)).min() {
            let place = self.table[name];
            let file = self.shards[place.shard].file_name();
            let what = format!("does not list tensor `{name}`, which is in {file}");
            return Err(refuse(what, "add it to the index, or fetch both from one release"));
        }
        Ok(())
    }
}

/// The safetensors files of a directory.
fn safetensors_in(dir: &Path) -> Result<BTreeSet<String>> {
    let io = |source| Error::Io {
        path: dir.to_owned(),
        source,
        remedy: "give the directory of a checkpoint".into(),
    };
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        if let Ok(name) = entry.map_err(io)?.file_name().into_string()
            && name.ends_with(".safetensors")
        {
            found.insert(name);
        }
    }
    Ok(found)
}

fn no_weights(dir: &Path, found: &BTreeSet<String>) -> Error {
    let (what, remedy) = match found.first() {
        None => {
            ("no safetensors file is here".to_owned(), format!("fetch {SINGLE}, or {INDEX} and its shards"))
        }
        Some(one) => (
            format!("neither {INDEX} nor {SINGLE} is here, so what {one} is part of is not known"),
            format!("fetch {INDEX} of the same release"),
        ),
    };
    Error::Malformed { path: dir.to_owned(), what, remedy }
}

/// Tensor name to file name.
fn parse_index(text: &[u8], path: &Path) -> Result<BTreeMap<String, String>> {
    let refuse = |what| Error::Malformed {
        path: path.to_owned(),
        what,
        remedy: "fetch the index of the same release again".into(),
    };
    let index: Value = serde_json::from_slice(text).map_err(|e| refuse(format!("is not valid JSON: {e}")))?;
    let Some(Value::Object(map)) = index.get("weight_map") else {
        return Err(refuse("has no object `weight_map`".into()));
    };
    if map.is_empty() {
        return Err(refuse("has an empty `weight_map`".into()));
    }
    map.iter()
        .map(|(name, file)| match file.as_str() {
            // A name with a directory in it could reach outside of the checkpoint.
            Some(file) if Path::new(file).file_name().is_some_and(|n| n == file) && !file.contains('\\') => {
                Ok((name.clone(), file.to_owned()))
            }
            _ => Err(refuse(format!("puts tensor `{name}` into {file}, which is not a plain file name"))),
        })
        .collect()
}

fn table(shards: &[Shard]) -> Result<HashMap<String, Place>> {
    let mut table: HashMap<String, Place> = HashMap::new();
    for (shard, file) in shards.iter().enumerate() {
        for (entry, tensor) in file.entries.iter().enumerate() {
            if let Some(first) = table.insert(tensor.name.clone(), Place { shard, entry }) {
                return Err(Error::DuplicateTensor {
                    name: tensor.name.clone(),
                    first: shards[first.shard].path.clone(),
                    second: file.path.clone(),
                });
            }
        }
    }
    Ok(table)
}

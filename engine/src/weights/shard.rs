//! One mapped safetensors file.

use crate::{Error, Result};
use memmap2::Mmap;
use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};
use std::{
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
};

/// The largest header that is read. 397B with one tensor per expert needs about a tenth of it.
const MAX_HEADER: u64 = 100 << 20;
/// A header starts after its own length.
const LENGTH_BYTES: usize = 8;

/// What a safetensors header says about one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The tensor's name.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its bytes, counted from the beginning of the file; inside the file.
    pub bytes: Range<usize>,
}

/// Reads the header of the safetensors file whose contents are `file`; `path` is only named in errors.
///
/// Any bytes whatever give a list or an error, never a panic. The ranges of the list lie inside `file`, do
/// not overlap, and hold exactly shape times element size.
///
/// ```
/// let cut = [40, 0, 0, 0, 0, 0, 0, 0, b'{'];
/// let error = engine::weights::parse_header(&cut, "model.safetensors".as_ref()).unwrap_err();
/// assert!(error.to_string().contains("truncated"));
/// ```
pub fn parse_header(file: &[u8], path: &Path) -> Result<Vec<Entry>> {
    let refuse =
        |what: String, remedy: &str| Error::Malformed { path: path.to_owned(), what, remedy: remedy.into() };
    const AGAIN: &str = "fetch the file again";
    let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(refuse(format!("is truncated: {} bytes hold no safetensors header", file.len()), AGAIN));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        let what = format!("is not a safetensors file: it announces a header of {length} bytes");
        return Err(refuse(what, "fetch the file again; a text file in its place is a download that failed"));
    }
    let length = length as usize;
    let Some((header, data)) = rest.split_at_checked(length) else {
        let what = format!("is truncated: its header has {length} bytes, the file {} in all", file.len());
        return Err(refuse(what, AGAIN));
    };
    // `SafeTensors::read_metadata` does the same, but adds sizes unchecked and does not say what is short.
    let metadata: Metadata = serde_json::from_slice(header)
        .map_err(|e| refuse(format!("has a broken safetensors header: {e}"), AGAIN))?;
    let start = LENGTH_BYTES + length;
    let end = metadata.data_len();
    if end > data.len() {
        let what = format!(
            "is truncated: its tensors take {end} bytes after the header, the file has {}",
            data.len()
        );
        return Err(refuse(what, AGAIN));
    }
    if end < data.len() {
        let what = format!("has {} bytes that belong to no tensor", data.len() - end);
        return Err(refuse(what, AGAIN));
    }
    let entry = |(name, info): (String, &TensorInfo)| {
        let (from, to) = info.data_offsets;
        Entry { name, dtype: info.dtype, shape: info.shape.clone(), bytes: start + from..start + to }
    };
    Ok(metadata.tensors().into_iter().map(entry).collect())
}

/// A mapped file and its parsed header.
pub(super) struct Shard {
    pub(super) path: PathBuf,
    pub(super) entries: Vec<Entry>,
    map: Mmap,
}

impl Shard {
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let io = |path: &Path, source| Error::Io {
            path: path.to_owned(),
            source,
            remedy: "fetch the file, or make it readable".into(),
        };
        let file = File::open(&path).map_err(|e| io(&path, e))?;
        let metadata = file.metadata().map_err(|e| io(&path, e))?;
        if metadata.len() < LENGTH_BYTES as u64 || !metadata.is_file() {
            // Nothing to map; the same words as for every other file that is too short.
            parse_header(&[], &path)?;
        }
        // SAFETY: the mapping is read-only. Another process that shortens the file while it is mapped ends
        // this one with SIGBUS, as with every program that maps its weights; bytes that change under the
        // mapping change weights, which are plain numbers for which every bit pattern is valid.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| io(&path, e))?;
        let entries = parse_header(&map, &path)?;
        Ok(Self { path, entries, map })
    }

    pub(super) fn bytes(&self, entry: usize) -> &[u8] {
        &self.map[self.entries[entry].bytes.clone()]
    }

    pub(super) fn file_name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

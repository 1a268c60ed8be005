//! `tokenizer.json`: byte-level BPE, as every Qwen model has it.

use super::Detokenizer;
use crate::{Error, Result, config::Config};
use serde_json::Value;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokenizers::AddedToken;

/// Beyond this an id in `tokenizer.json` is a mistake, not a vocabulary.
const MAX_IDS: usize = 1 << 22;

/// The bytes of every token.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Token i is `bytes[ends[i - 1]..ends[i]]`.
    ends: Vec<u32>,
    special: Vec<bool>,
}

impl Pieces {
    pub(super) fn bytes(&self, token: u32) -> &[u8] {
        let i = token as usize;
        let Some(&end) = self.ends.get(i) else { return &[] };
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..end as usize]
    }

    pub(super) fn is_special(&self, token: u32) -> bool {
        self.special.get(token as usize).copied().unwrap_or(false)
    }
}

/// Splits text into tokens, and knows the bytes of each.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    pieces: Arc<Pieces>,
    path: PathBuf,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({}, {} tokens)", self.path.display(), self.valid_vocab())
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a checkpoint directory.
    ///
    /// ```no_run
    /// let tokenizer = engine::text::Tokenizer::open("assets/tiny-qwen35-mtp")?;
    /// let ids = tokenizer.encode("One morning Ada found a")?;
    /// assert_eq!(tokenizer.decode(&ids, true), "One morning Ada found a");
    /// # Ok::<(), engine::Error>(())
    /// ```
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let path = dir.as_ref().join("tokenizer.json");
        match std::fs::read(&path) {
            Ok(bytes) => Self::parse(&bytes, &path),
            Err(source) => {
                let remedy =
                    "fetch tokenizer.json of the same release (vocab.json and merges.txt are not read)";
                Err(Error::Io { path, source, remedy: remedy.into() })
            }
        }
    }

    /// Parses the contents of a `tokenizer.json`; `path` is only named in errors.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        let refuse = |what: String| Error::Malformed {
            path: path.to_owned(),
            what,
            remedy: "fetch tokenizer.json of the same release again".into(),
        };
        let mut json: Value =
            serde_json::from_slice(bytes).map_err(|e| refuse(format!("is not valid JSON: {e}")))?;
        check_parts(&json).map_err(refuse)?;
        // It could only add tokens, which is the chat template's business, or move offsets.
        json["post_processor"] = Value::Null;
        // Of the training run, as padding and truncation below: it would make encoding random.
        json["model"]["dropout"] = Value::Null;
        let mut inner: tokenizers::Tokenizer =
            serde_json::from_value(json).map_err(|e| refuse(format!("is not a tokenizer: {e}")))?;
        // Some files carry these settings; a prompt must never be cut or padded.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| refuse(format!("has broken settings: {e}")))?;
        let vocab = inner.get_vocab(true);
        let count = vocab.values().max().map_or(0, |&id| id as usize + 1);
        if count == 0 || count > MAX_IDS {
            return Err(refuse(format!("has {count} token ids; wanted 1 to {MAX_IDS}")));
        }
        let added: HashMap<u32, AddedToken> = inner.get_added_tokens_decoder().into_iter().collect();
        let pieces = Arc::new(pieces(count, vocab, &added));
        Ok(Self { inner: Arc::new(inner), pieces, path: path.to_owned() })
    }

    /// Fails if the tokenizer can produce ids that the model has no embedding for.
    pub fn check(&self, config: &Config) -> Result<()> {
        if self.valid_vocab() <= config.vocab {
            return Ok(());
        }
        Err(Error::Malformed {
            path: self.path.clone(),
            what: format!(
                "has token ids up to {}, the model's vocab_size is {}",
                self.valid_vocab() - 1,
                config.vocab
            ),
            remedy: "fetch tokenizer.json and config.json from one release".into(),
        })
    }

    /// The tokens of `text`; special tokens in it are recognised, none are added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self.inner.encode_fast(text, false) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(e) => Err(Error::Tokenizer {
                what: format!("cannot encode the text: {e}"),
                remedy: format!("check {}", self.path.display()),
            }),
        }
    }

    /// The text of `tokens`; bytes that are no UTF-8 become U+FFFD, ids beyond the last have no text.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        let mut stream = self.detokenizer(skip_special);
        let mut text = String::new();
        tokens.iter().for_each(|&token| stream.push_into(token, &mut text));
        text + &stream.flush()
    }

    /// A decoder for tokens that arrive one by one.
    pub fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(self.pieces.clone(), skip_special)
    }

    /// How many ids exist. Embedding rows from here on are padding: mask them when choosing a token.
    pub fn valid_vocab(&self) -> usize {
        self.pieces.ends.len()
    }

    /// The id of a token by its exact text, such as `<|im_end|>`.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The ids of all tokens that are matched whole and were not learned from text, ascending: turns, tools, ends.
    pub fn added(&self) -> Vec<u32> {
        let added: std::collections::BTreeSet<u32> =
            self.inner.get_added_tokens_decoder().into_keys().collect();
        added.into_iter().collect()
    }

    /// Whether the token is special: not part of the text a user sees.
    pub fn is_special(&self, token: u32) -> bool {
        self.pieces.is_special(token)
    }

    /// The bytes of a token; a character may span several tokens.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.pieces.bytes(token)
    }
}

/// Refuses what no Qwen tokenizer has, before the file goes to the library: it knows much more, and panics on
/// some of it (a lookup table cut short, a chunk length of zero) where it should say what is wrong.
fn check_parts(json: &Value) -> Result<(), String> {
    const UNICODE: [&str; 4] = ["NFC", "NFD", "NFKC", "NFKD"];
    part("decoder", &json["decoder"], &["ByteLevel"], None)?;
    part("model", &json["model"], &["BPE"], None)?;
    if !json["normalizer"].is_null() {
        part("normalizer", &json["normalizer"], &UNICODE, Some("normalizers"))?;
    }
    if !json["pre_tokenizer"].is_null() {
        let known = ["Split", "ByteLevel"];
        part("pre_tokenizer", &json["pre_tokenizer"], &known, Some("pretokenizers"))?;
    }
    for name in ["continuing_subword_prefix", "end_of_word_suffix"] {
        let affix = &json["model"][name];
        if !affix.is_null() && affix != "" {
            return Err(format!("has {name} {affix}; a byte-level vocabulary has none"));
        }
    }
    Ok(())
}

/// Refuses a part that is not of a `known` type, nor a sequence of such parts in its field `list`.
fn part(name: &str, json: &Value, known: &[&str], list: Option<&str>) -> Result<(), String> {
    match (json["type"].as_str(), list) {
        (Some("Sequence"), Some(field)) => {
            let parts = json[field].as_array().ok_or(format!("has a {name} without a list `{field}`"))?;
            parts.iter().try_for_each(|each| part(name, each, known, list))
        }
        (Some(kind), _) if known.contains(&kind) => Ok(()),
        _ => Err(format!("has a {name} of type {}; wanted {}", json["type"], known.join(" or "))),
    }
}

fn pieces(count: usize, vocab: HashMap<String, u32>, added: &HashMap<u32, AddedToken>) -> Pieces {
    let mut names = vec![""; count];
    for (name, &id) in &vocab {
        names[id as usize] = name;
    }
    for (&id, token) in added {
        if let Some(name) = names.get_mut(id as usize) {
            *name = &token.content;
        }
    }
    let table = byte_of_char();
    let mut bytes = Vec::new();
    let mut ends = Vec::with_capacity(count);
    for name in names {
        // A token with a character outside the alphabet is not byte-level coded but literal.
        match name.chars().map(|c| table.get(&c).copied()).collect::<Option<Vec<u8>>>() {
            Some(coded) => bytes.extend(coded),
            None => bytes.extend_from_slice(name.as_bytes()),
        }
        ends.push(bytes.len() as u32);
    }
    let special = (0..count as u32).map(|id| added.get(&id).is_some_and(|token| token.special)).collect();
    Pieces { bytes, ends, special }
}

/// The byte-level alphabet: a byte that prints is its own Latin-1 character; the others, in order, are the
/// characters from U+0100 on.
fn byte_of_char() -> HashMap<char, u8> {
    let mut next = 0x100;
    (0..=u8::MAX)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => (char::from(byte), byte),
            _ => {
                let c = char::from_u32(next).expect("256 characters from U+0100 on exist");
                next += 1;
                (c, byte)
            }
        })
        .collect()
}

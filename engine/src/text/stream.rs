//! Tokens to text as they arrive.

use super::tokenizer::Pieces;
use std::sync::Arc;

/// Turns a stream of tokens into text without ever emitting half a character.
///
/// Bytes that may still become a character are held back until the next token completes or breaks them.
/// What all calls return together equals [`Tokenizer::decode`](super::Tokenizer::decode) of all tokens.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    pieces: Arc<Pieces>,
    skip_special: bool,
    /// An incomplete UTF-8 sequence: at most three bytes.
    held: Vec<u8>,
}

impl Detokenizer {
    pub(super) fn new(pieces: Arc<Pieces>, skip_special: bool) -> Self {
        Self { pieces, skip_special, held: Vec::new() }
    }

    /// The text that `token` completes; often empty. Ids beyond the tokenizer's last have no text.
    pub fn push(&mut self, token: u32) -> String {
        let mut out = String::new();
        self.push_into(token, &mut out);
        out
    }

    /// [`push`](Self::push) onto the caller's string.
    pub fn push_into(&mut self, token: u32, out: &mut String) {
        if self.skip_special && self.pieces.is_special(token) {
            return;
        }
        self.held.extend_from_slice(self.pieces.bytes(token));
        let mut done = 0;
        for chunk in self.held.utf8_chunks() {
            out.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let is_last = done + invalid.len() == self.held.len();
            if invalid.is_empty() || (is_last && is_prefix(invalid)) {
                break;
            }
            out.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.held.drain(..done);
    }

    /// Ends the stream: what was held back can no longer become a character, so it is one U+FFFD.
    pub fn flush(&mut self) -> String {
        if std::mem::take(&mut self.held).is_empty() {
            String::new()
        } else {
            char::REPLACEMENT_CHARACTER.to_string()
        }
    }
}

/// Whether more bytes can make a character of these.
fn is_prefix(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(e) if e.valid_up_to() == 0 && e.error_len().is_none())
}

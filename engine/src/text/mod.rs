//! Text to tokens and back: tokenizer, streaming detokeniser, chat template.

mod chat;
mod stream;
mod tokenizer;

pub use chat::{ChatOptions, ChatTemplate, Message};
pub use stream::Detokenizer;
pub use tokenizer::Tokenizer;

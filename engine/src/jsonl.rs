//! Files of requests: one JSON object a line.

use crate::{Error, Request, Result, text::Message};
use serde::Deserialize;
use std::path::Path;

/// What a line asks for: a prompt, and what it says about its generation.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestLine {
    /// Its number in the file, from 1.
    pub number: usize,
    /// The text to continue.
    pub prompt: Prompt,
    /// Texts that end the reply, where the line names any.
    pub stop: Option<Vec<String>>,
    fields: Fields,
}

/// The two ways to give a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Text as it is.
    Text(String),
    /// A conversation, for the checkpoint's chat template.
    Messages(Vec<Message>),
}

/// A line as it is written.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    prompt: Option<String>,
    messages: Option<Vec<ChatLine>>,
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    #[serde(default)]
    bias: Vec<(u32, f32)>,
    seed: Option<u64>,
    stop: Option<Vec<String>>,
    draft: Option<usize>,
    ignore_eos: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChatLine {
    role: String,
    content: String,
}

/// The requests of a file's `text`, one of every line that is not blank; `path` is only named in errors.
///
/// ```
/// use engine::jsonl::{self, Prompt};
/// let lines = jsonl::parse("{\"prompt\": \"Hi\", \"max_tokens\": 3}\n\n", "requests.jsonl".as_ref())?;
/// assert_eq!(lines[0].prompt, Prompt::Text("Hi".into()));
/// let error = jsonl::parse("{\"tempreture\": 1}", "requests.jsonl".as_ref()).unwrap_err();
/// assert!(error.to_string().contains("line 1"));
/// # Ok::<(), engine::Error>(())
/// ```
pub fn parse(text: &str, path: &Path) -> Result<Vec<RequestLine>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let made: Vec<_> = lines.map(|(i, text)| line(text, i + 1, path)).collect::<Result<_>>()?;
    if made.is_empty() {
        return Err(Error::Malformed {
            path: path.to_owned(),
            what: "there is no request in it".into(),
            remedy: "write one JSON object a line".into(),
        });
    }
    Ok(made)
}

fn line(text: &str, number: usize, path: &Path) -> Result<RequestLine> {
    let refuse = |what: String, remedy: &str| Error::RequestLine {
        path: path.to_owned(),
        number,
        what,
        remedy: remedy.into(),
    };
    let mut fields: Fields = serde_json::from_str(text).map_err(|e| {
        let remedy = "write an object such as {\"prompt\": \"...\", \"max_tokens\": 64}";
        refuse(format!("is no request: {e}"), remedy)
    })?;
    let prompt = match (fields.prompt.take(), fields.messages.take()) {
        (Some(prompt), None) => Prompt::Text(prompt),
        (None, Some(messages)) => {
            Prompt::Messages(messages.into_iter().map(|m| Message::new(m.role, m.content)).collect())
        }
        (prompt, _) => {
            let how_many = if prompt.is_some() { "both" } else { "none" };
            return Err(refuse(format!("has {how_many} of `prompt` and `messages`"), "give exactly one"));
        }
    };
    let stop = fields.stop.take();
    if stop.iter().flatten().any(String::is_empty) {
        return Err(refuse("a stop text is empty".into(), "leave it out"));
    }
    Ok(RequestLine { number, prompt, stop, fields })
}

impl RequestLine {
    /// Writes what the line says over `request`, and leaves the rest of it as it is.
    pub fn apply(&self, request: &mut Request) {
        let line = &self.fields;
        request.max_tokens = line.max_tokens.unwrap_or(request.max_tokens);
        request.drafts = line.draft.or(request.drafts);
        request.ignore_eos = line.ignore_eos.unwrap_or(request.ignore_eos);
        let s = &mut request.sampling;
        s.temperature = line.temperature.unwrap_or(s.temperature);
        s.top_k = line.top_k.unwrap_or(s.top_k);
        s.top_p = line.top_p.unwrap_or(s.top_p);
        s.min_p = line.min_p.unwrap_or(s.min_p);
        s.repetition_penalty = line.repetition_penalty.unwrap_or(s.repetition_penalty);
        s.presence_penalty = line.presence_penalty.unwrap_or(s.presence_penalty);
        s.frequency_penalty = line.frequency_penalty.unwrap_or(s.frequency_penalty);
        s.seed = line.seed.unwrap_or(s.seed);
        s.bias = line.bias.clone();
    }
}

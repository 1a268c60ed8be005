//! Requests from the command line or from a JSONL file.

use super::source::Words;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use engine::{
    Request, Sampling, config,
    jsonl::{self, Prompt, RequestLine},
    request::recommended,
    text::{ChatOptions, ChatTemplate, Message},
};
use std::path::Path;

/// How tokens are chosen, for every request that does not say otherwise.
#[derive(Clone, Debug, Args)]
pub(crate) struct SamplingArgs {
    /// Start from the sampling that the checkpoint recommends instead of greedy
    #[arg(long)]
    recommended: bool,
    /// Divides the logits; 0 takes the most likely token
    #[arg(long)]
    temperature: Option<f32>,
    /// Keeps the k most likely tokens; 0 keeps all
    #[arg(long)]
    top_k: Option<u32>,
    /// Keeps the smallest set of tokens with this much probability
    #[arg(long)]
    top_p: Option<f32>,
    /// Drops tokens below this share of the most likely one's probability
    #[arg(long)]
    min_p: Option<f32>,
    /// Divides the logits of tokens already seen
    #[arg(long)]
    repetition_penalty: Option<f32>,
    /// Subtracted from the logits of tokens already generated
    #[arg(long, allow_hyphen_values = true)]
    presence_penalty: Option<f32>,
    /// Subtracted per occurrence from the logits of tokens already generated
    #[arg(long, allow_hyphen_values = true)]
    frequency_penalty: Option<f32>,
    /// Seed of the noise, and of random weights: the same seed gives the same text, with or without drafts
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

impl SamplingArgs {
    pub(crate) fn sampling(&self, config: &config::Sampling) -> Sampling {
        let base = if self.recommended {
            recommended(config, self.seed)
        } else {
            Sampling { seed: self.seed, ..Sampling::default() }
        };
        Sampling {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            ..base
        }
    }
}

/// A request with what only its text needs.
#[derive(Clone, Debug)]
pub(crate) struct TextRequest {
    pub(crate) request: Request,
    /// Text that ends the reply and is not part of it.
    pub(crate) stops: Vec<String>,
}

/// Makes requests out of text.
pub(crate) struct Maker<'a> {
    pub(crate) words: &'a Words,
    pub(crate) template: TextRequest,
}

impl Maker<'_> {
    pub(crate) fn prompt(&self, prompt: &str) -> Result<TextRequest> {
        let mut made = self.template.clone();
        made.request.prompt = self.words.encode(prompt)?;
        if made.request.prompt.is_empty() {
            bail!("the prompt is empty; give at least one token");
        }
        Ok(made)
    }

    pub(crate) fn chat(&self, messages: &[Message]) -> Result<TextRequest> {
        let template = ChatTemplate::open(self.words.text_only("a chat was asked for")?)?;
        let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
        self.prompt(&template.render(messages, &options)?)
    }

    /// One request of every line that is not blank; what a line leaves out comes from the command line.
    pub(crate) fn jsonl(&self, text: &str, path: &Path) -> Result<Vec<TextRequest>> {
        let made = jsonl::parse(text, path)?
            .into_iter()
            .map(|line| self.line(&line).with_context(|| format!("{} line {}", path.display(), line.number)));
        made.collect()
    }

    fn line(&self, line: &RequestLine) -> Result<TextRequest> {
        let mut made = match &line.prompt {
            Prompt::Text(prompt) => self.prompt(prompt)?,
            Prompt::Messages(messages) => self.chat(messages)?,
        };
        line.apply(&mut made.request);
        if let Some(stops) = &line.stop {
            self.words.text_only("a stop text was given")?;
            made.stops.clone_from(stops);
        }
        Ok(made)
    }
}

pub(crate) fn check_stops(stops: &[String]) -> Result<()> {
    if stops.iter().any(String::is_empty) {
        bail!("a stop text is empty; leave it out");
    }
    Ok(())
}

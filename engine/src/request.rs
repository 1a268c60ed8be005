//! What a user asks for, and what comes back.

use crate::{Error, Result, cache::MAX_DRAFTS, config, round::Digest, stats::Stats};

use serde::Serialize;

pub use kernels_spec::SamplingParams as Sampling;

/// Names a request of one engine; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// What a checkpoint's `generation_config.json` recommends.
pub fn recommended(config: &config::Sampling, seed: u64) -> Sampling {
    let off = Sampling::default();
    Sampling {
        temperature: if config.sample { config.temperature.unwrap_or(1.0) } else { 0.0 },
        top_k: config.top_k.map_or(off.top_k, |k| k.try_into().unwrap_or(u32::MAX)),
        top_p: config.top_p.unwrap_or(off.top_p),
        min_p: config.min_p.unwrap_or(off.min_p),
        repetition_penalty: config.repetition_penalty.unwrap_or(off.repetition_penalty),
        presence_penalty: config.presence_penalty.unwrap_or(off.presence_penalty),
        seed,
        ..off
    }
}

/// Token biases a request may have.
pub const MAX_BIAS: usize = 64;
/// Stop sequences a request may have.
pub const MAX_STOPS: usize = 8;
/// Tokens a stop sequence may have.
pub const MAX_STOP_LENGTH: usize = 16;
/// End-of-sequence tokens a model may have.
pub const MAX_EOS: usize = 8;

/// One generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Token ids; at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; the context's end also stops.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Generation ends after any of these token sequences.
    pub stop: Vec<Vec<u32>>,
    /// Go on past the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Drafts per round, instead of the engine's own choice; cannot change the output.
    pub drafts: Option<usize>,
}

impl Request {
    /// A greedy request.
    pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Request {
            prompt,
            max_tokens,
            sampling: Sampling::default(),
            stop: Vec::new(),
            ignore_eos: false,
            drafts: None,
        }
    }

    pub(crate) fn check(&self, vocab: usize, positions: usize, max_drafts: usize) -> Result<()> {
        if self.prompt.is_empty() {
            return Err(Error::request("prompt", "empty", "give at least one token"));
        }
        if let Some((at, id)) = self.prompt.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
            let remedy = format!("token ids are below {vocab}; was the text encoded by another tokenizer?");
            return Err(Error::request("prompt", format!("{id} at index {at}"), remedy));
        }
        if self.prompt.len() >= positions {
            let remedy = format!(
                "the context holds {positions} and needs room for one more; shorten it or raise --context"
            );
            return Err(Error::request("prompt", format!("{} tokens long", self.prompt.len()), remedy));
        }
        if self.max_tokens == 0 {
            return Err(Error::request("max_tokens", 0, "ask for at least one token"));
        }
        if self.stop.len() > MAX_STOPS {
            return Err(Error::request(
                "stop",
                self.stop.len(),
                format!("give at most {MAX_STOPS} sequences"),
            ));
        }
        for stop in &self.stop {
            if stop.is_empty() || stop.len() > MAX_STOP_LENGTH {
                let remedy = format!("a stop sequence has 1 to {MAX_STOP_LENGTH} tokens");
                return Err(Error::request("stop", format!("{} tokens long", stop.len()), remedy));
            }
        }
        if let Some(drafts) = self.drafts
            && drafts > max_drafts
        {
            let remedy = if max_drafts == MAX_DRAFTS {
                format!("a round verifies at most {MAX_DRAFTS}")
            } else {
                format!("this engine was built for at most {max_drafts} drafts")
            };
            return Err(Error::request("drafts", drafts, remedy));
        }
        Ok(self.sampling.check(vocab, MAX_BIAS)?)
    }
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// An end-of-sequence token, which is the last one emitted.
    Eos,
    /// A stop sequence, whose tokens are the last ones emitted.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    /// The caller's wish.
    Aborted,
    /// A violated invariant; see the event's error.
    Failed,
}

/// What a step brought for one request.
#[derive(Clone, Debug)]
pub struct Event {
    /// Whose.
    pub request: RequestId,
    /// New tokens, in order.
    pub tokens: Vec<u32>,
    /// Set in the request's last event.
    pub end: Option<End>,
}

/// How a request ended.
#[derive(Clone, Debug)]
pub struct End {
    /// Why.
    pub finish: Finish,
    /// What went wrong, where it failed.
    pub error: Option<String>,
    /// What it took.
    pub stats: Stats,
    /// What its memories held at the end, where the engine [keeps digests](crate::Engine::keep_digests).
    pub digest: Option<Digest>,
}

//! One backend beside another. Their bits differ, by the order of sums; that a token differs is legal only where
//! the best two logits were as near to each other as the backends are.

use super::{
    lab::{Lab, limits},
    reference::{self, How, States},
    watch::TopTwo,
};
use crate::{
    Request, Result,
    cache::Limits,
    model::{Context, EngineBackend, Model},
    round::Core,
};
use kernels_core::Activation;
use serde::Serialize;
use std::fmt;

/// How far apart the best two logits may be where backends choose differently, in deviations of the logits'
/// differences: each of the two may be off by six.
const DEVIATIONS: f64 = 12.0;

/// What two backends said of the same prompts, plainly and greedily.
#[derive(Clone, Debug, Serialize)]
pub struct Across {
    /// Streams compared.
    pub streams: usize,
    /// Streams that are equal to their ends.
    pub equal: usize,
    /// Tokens before the first difference, of all streams.
    pub tokens: usize,
    /// Root of the mean square of the differences between logits, over the rows of prompts.
    pub deviation: f64,
    /// The first differences of streams.
    pub divergences: Vec<Divergence>,
}

/// Where a stream first differs.
#[derive(Clone, Debug, Serialize)]
pub struct Divergence {
    /// Which prompt.
    pub request: usize,
    /// Tokens of the answer that are equal.
    pub index: usize,
    /// The best two logits there, of the first backend.
    pub one: TopTwo,
    /// The same, of the second.
    pub other: TopTwo,
}

impl Across {
    /// The largest margin that a difference may have.
    pub fn bound(&self) -> f64 {
        DEVIATIONS * self.deviation
    }

    /// Whether every difference is within the bound, on both backends.
    pub fn passed(&self) -> bool {
        let margin = |d: &Divergence| d.one.margin().max(d.other.margin());
        self.divergences.iter().all(|d| f64::from(margin(d)) <= self.bound())
    }
}

impl fmt::Display for Across {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "backends: {} of {} streams are equal, {} tokens before first differences; logits differ by {:.5} (rms), so \
             margins up to {:.4} may decide differently: {}",
            self.equal,
            self.streams,
            self.tokens,
            self.deviation,
            self.bound(),
            if self.passed() { "they do nowhere else" } else { "BUT SO DO LARGER ONES" }
        )?;
        for d in &self.divergences {
            writeln!(
                f,
                "  request {}, token {}: {} or {}, margins {:.4} and {:.4}",
                d.request,
                d.index,
                d.one.ids[0],
                d.other.ids[0],
                d.one.margin(),
                d.other.margin()
            )?;
        }
        Ok(())
    }
}

/// Decodes the same prompts on two backends.
pub fn across<B: EngineBackend, C: EngineBackend, A: Activation>(
    one: (Context<B>, Model<B, A>),
    other: (Context<C>, Model<C, A>),
    prompts: &[Vec<u32>],
    tokens: usize,
) -> Result<Across> {
    let requests: Vec<Request> =
        prompts.iter().map(|prompt| Request::greedy(prompt.clone(), tokens)).collect();
    let mut one = Side::new(one, &requests)?;
    let mut other = Side::new(other, &requests)?;
    let (mut squares, mut count) = (0.0, 0usize);
    let mut brought = Across { streams: 0, equal: 0, tokens: 0, deviation: 0.0, divergences: Vec::new() };
    for (request, (a, b)) in one.streams.clone().iter().zip(&other.streams.clone()).enumerate() {
        let index = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        brought.streams += 1;
        brought.tokens += index;
        let differs = index < a.len().max(b.len());
        brought.equal += usize::from(!differs);
        // What both agree on, up to where the next token is chosen; there is one more, or there would be no room.
        let text = [&prompts[request][..], &a[..index - usize::from(!differs)]].concat();
        let (rows, [here, there]) = (text.len(), [one.score(&text)?, other.score(&text)?]);
        for (a, b) in here.iter().zip(&there).filter(|(a, b)| a.is_finite() && b.is_finite()) {
            squares += f64::from(a - b).powi(2);
            count += 1;
        }
        if differs {
            let last = (rows - 1) * one.vocab;
            let top = |logits: &[f32]| TopTwo::of(&logits[last..][..one.valid]);
            brought.divergences.push(Divergence { request, index, one: top(&here), other: top(&there) });
        }
    }
    brought.deviation = (squares / count.max(1) as f64).sqrt();
    Ok(brought)
}

/// A backend with what it decoded.
struct Side<B: EngineBackend, A: Activation> {
    core: Core<B, A>,
    positions: usize,
    vocab: usize,
    valid: usize,
    streams: Vec<Vec<u32>>,
}

impl<B: EngineBackend, A: Activation> Side<B, A> {
    fn new((context, model): (Context<B>, Model<B, A>), requests: &[Request]) -> Result<Self> {
        let mut lab = Lab::new(context, model);
        let how = How { batch: 1, states: States::Last, listen: false };
        let known = reference::decode(&mut lab, requests.to_vec(), how)?;
        let limits = limits(requests.iter(), 1);
        let limits = Limits { prefill_rows: limits.positions, ..limits };
        let positions = limits.positions;
        let (context, model) = lab.into_parts();
        let (vocab, valid) = (model.config().vocab, model.valid_vocab());
        let core = Core::new(context, model, limits)?;
        Ok(Side { core, positions, vocab, valid, streams: known.into_iter().map(|k| k.tokens).collect() })
    }

    /// Logits of every row of a text, `[rows, vocab]`.
    fn score(&mut self, text: &[u32]) -> Result<Vec<f32>> {
        self.core.open(0, text, &Request::greedy(text.to_vec(), 1), self.positions)?;
        let pages: Vec<u32> = (1..self.core.limits().pages as u32).collect();
        self.core.lend_pages(0, &pages)?;
        let logits = self.core.score(0, text.len(), None)?;
        self.core.close(0)?;
        Ok(logits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_needs_a_small_margin() {
        let top = |margin: f32| TopTwo { ids: [1, 2], logits: [1.0 + margin, 1.0] };
        let one = Divergence { request: 0, index: 3, one: top(0.1), other: top(0.25) };
        let mut across = Across { streams: 2, equal: 1, tokens: 9, deviation: 0.02, divergences: vec![one] };
        assert!(!across.passed(), "0.25 is more than 12 x 0.02");
        assert!(across.to_string().contains("BUT SO DO LARGER ONES"));
        across.deviation = 0.03;
        assert!(across.passed());
    }
}

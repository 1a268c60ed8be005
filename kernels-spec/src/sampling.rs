//! How each slot's tokens are drawn: the numbers, their checks, and their device arrays.

use kernels_core::{Backend, Error, Result, Tensor};

/// Temperatures below this (and NaN) mean: take the largest logit.
pub const GREEDY_BELOW: f32 = 1e-5;

/// How the tokens of one sequence are drawn. The default takes the largest logit.
///
/// Applied in the order of the fields, with the bias between the penalties and the temperature; each
/// filter works on what the one before it left. The rules are spelled out at [`Sample`](crate::Sample).
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Logits of tokens in the prompt or the answer are divided by this if positive, else multiplied;
    /// 1 = off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token in the answer; 0 = off.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the answer; 0 = off.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens; minus infinity forbids one.
    pub bias: Vec<(u32, f32)>,
    /// 0 = take the largest logit, 1 = the model's distribution.
    pub temperature: f32,
    /// Keeps this many of the likeliest tokens; 0 = off.
    pub top_k: u32,
    /// Keeps the likeliest tokens that together reach this share; 1 = off.
    pub top_p: f32,
    /// Keeps tokens at least this likely, relative to the likeliest; 0 = off.
    pub min_p: f32,
    /// The noise of every draw is a function of this, the token's position and its id.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            bias: Vec::new(),
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Refuses numbers that mean nothing, by name and value.
    pub fn check(&self, vocab: usize, max_bias: usize) -> Result<()> {
        const OP: &str = "spec::sampling";
        let within = |name, got: f32, low: f32, high: f32| {
            if got.is_finite() && (low..=high).contains(&got) {
                return Ok(());
            }
            Err(Error::invalid(OP, name, got, format!("must be between {low} and {high}")))
        };
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            let want = "must be positive; 1 is off";
            return Err(Error::invalid(OP, "repetition_penalty", self.repetition_penalty, want));
        }
        within("presence_penalty", self.presence_penalty, -100.0, 100.0)?;
        within("frequency_penalty", self.frequency_penalty, -100.0, 100.0)?;
        within("temperature", self.temperature, 0.0, 100.0)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        if self.top_k > i32::MAX as u32 {
            return Err(Error::invalid(OP, "top_k", self.top_k, "must fit 31 bits; 0 is off"));
        }
        if self.bias.len() > max_bias {
            let want = format!("this engine was planned for {max_bias} at most");
            return Err(Error::invalid(OP, "bias entries", self.bias.len(), want));
        }
        for &(id, value) in &self.bias {
            if id as usize >= vocab {
                return Err(Error::invalid(OP, "bias id", id, format!("the vocabulary has {vocab} ids")));
            }
            if value.is_nan() || value == f32::INFINITY {
                return Err(Error::invalid(OP, "bias", value, "must be a number or minus infinity"));
            }
        }
        Ok(())
    }
}

/// The device arrays of every slot's [`SamplingParams`], lent to one operation.
#[derive(Debug)]
pub struct Sampling<'a, B: Backend> {
    /// `[slots]`: see [`SamplingParams::repetition_penalty`].
    pub repetition: Tensor<'a, B, f32, 1>,
    /// `[slots]`: see [`SamplingParams::presence_penalty`].
    pub presence: Tensor<'a, B, f32, 1>,
    /// `[slots]`: see [`SamplingParams::frequency_penalty`].
    pub frequency: Tensor<'a, B, f32, 1>,
    /// `[slots, max_bias]`: ids of [`SamplingParams::bias`]; -1 = unused.
    pub bias_ids: Tensor<'a, B, i32, 2>,
    /// `[slots, max_bias]`: values of [`SamplingParams::bias`].
    pub bias_values: Tensor<'a, B, f32, 2>,
    /// `[slots]`: see [`SamplingParams::temperature`].
    pub temperature: Tensor<'a, B, f32, 1>,
    /// `[slots]`: see [`SamplingParams::top_k`].
    pub top_k: Tensor<'a, B, i32, 1>,
    /// `[slots]`: see [`SamplingParams::top_p`].
    pub top_p: Tensor<'a, B, f32, 1>,
    /// `[slots]`: see [`SamplingParams::min_p`].
    pub min_p: Tensor<'a, B, f32, 1>,
    /// `[slots]`: low half of [`SamplingParams::seed`].
    pub seed_lo: Tensor<'a, B, u32, 1>,
    /// `[slots]`: high half of [`SamplingParams::seed`].
    pub seed_hi: Tensor<'a, B, u32, 1>,
}

impl<B: Backend> Clone for Sampling<'_, B> {
    fn clone(&self) -> Self {
        Sampling {
            repetition: self.repetition.clone(),
            presence: self.presence.clone(),
            frequency: self.frequency.clone(),
            bias_ids: self.bias_ids.clone(),
            bias_values: self.bias_values.clone(),
            temperature: self.temperature.clone(),
            top_k: self.top_k.clone(),
            top_p: self.top_p.clone(),
            min_p: self.min_p.clone(),
            seed_lo: self.seed_lo.clone(),
            seed_hi: self.seed_hi.clone(),
        }
    }
}

impl<B: Backend> Sampling<'_, B> {
    /// Checks every shape.
    pub fn check(&self, op: &'static str, slots: usize, max_bias: usize) -> Result<()> {
        self.repetition.check(op, "sampling.repetition", [slots])?;
        self.presence.check(op, "sampling.presence", [slots])?;
        self.frequency.check(op, "sampling.frequency", [slots])?;
        self.bias_ids.check(op, "sampling.bias_ids", [slots, max_bias])?;
        self.bias_values.check(op, "sampling.bias_values", [slots, max_bias])?;
        self.temperature.check(op, "sampling.temperature", [slots])?;
        self.top_k.check(op, "sampling.top_k", [slots])?;
        self.top_p.check(op, "sampling.top_p", [slots])?;
        self.min_p.check(op, "sampling.min_p", [slots])?;
        self.seed_lo.check(op, "sampling.seed_lo", [slots])?;
        self.seed_hi.check(op, "sampling.seed_hi", [slots])
    }
}

/// Owned memory behind [`Sampling`]; every slot starts out greedy.
#[derive(Debug)]
pub struct SamplingTable<B: Backend> {
    slots: usize,
    max_bias: usize,
    repetition: B::Memory<f32>,
    presence: B::Memory<f32>,
    frequency: B::Memory<f32>,
    bias_ids: B::Memory<i32>,
    bias_values: B::Memory<f32>,
    temperature: B::Memory<f32>,
    top_k: B::Memory<i32>,
    top_p: B::Memory<f32>,
    min_p: B::Memory<f32>,
    seed_lo: B::Memory<u32>,
    seed_hi: B::Memory<u32>,
}

impl<B: Backend> SamplingTable<B> {
    /// Greedy slots with room for `max_bias` biased tokens each.
    pub fn new(on: &B::Queue, slots: usize, max_bias: usize) -> Result<Self> {
        let all = |value: f32| B::upload(on, &vec![value; slots]);
        Ok(SamplingTable {
            slots,
            max_bias,
            repetition: all(1.0)?,
            presence: all(0.0)?,
            frequency: all(0.0)?,
            bias_ids: B::upload(on, &vec![-1; slots * max_bias])?,
            bias_values: B::zeros(on, slots * max_bias)?,
            temperature: all(0.0)?,
            top_k: B::zeros(on, slots)?,
            top_p: all(1.0)?,
            min_p: all(0.0)?,
            seed_lo: B::zeros(on, slots)?,
            seed_hi: B::zeros(on, slots)?,
        })
    }

    /// Checks `params` and gives them to `slot`.
    pub fn set(&mut self, on: &B::Queue, slot: usize, params: &SamplingParams, vocab: usize) -> Result<()> {
        if slot >= self.slots {
            let want = format!("there are {} slots", self.slots);
            return Err(Error::invalid("spec::sampling", "slot", slot, want));
        }
        params.check(vocab, self.max_bias)?;
        B::write(on, &mut self.repetition, slot, &[params.repetition_penalty])?;
        B::write(on, &mut self.presence, slot, &[params.presence_penalty])?;
        B::write(on, &mut self.frequency, slot, &[params.frequency_penalty])?;
        let (mut ids, mut values) = (vec![-1; self.max_bias], vec![0.0; self.max_bias]);
        for (i, &(id, value)) in params.bias.iter().enumerate() {
            (ids[i], values[i]) = (id as i32, value);
        }
        B::write(on, &mut self.bias_ids, slot * self.max_bias, &ids)?;
        B::write(on, &mut self.bias_values, slot * self.max_bias, &values)?;
        B::write(on, &mut self.temperature, slot, &[params.temperature])?;
        B::write(on, &mut self.top_k, slot, &[params.top_k as i32])?;
        B::write(on, &mut self.top_p, slot, &[params.top_p])?;
        B::write(on, &mut self.min_p, slot, &[params.min_p])?;
        B::write(on, &mut self.seed_lo, slot, &[params.seed as u32])?;
        B::write(on, &mut self.seed_hi, slot, &[(params.seed >> 32) as u32])
    }

    /// Lends all arrays.
    pub fn lend(&self) -> Sampling<'_, B> {
        let (slots, max_bias) = (self.slots, self.max_bias);
        Sampling {
            repetition: Tensor::of(&self.repetition, [slots]),
            presence: Tensor::of(&self.presence, [slots]),
            frequency: Tensor::of(&self.frequency, [slots]),
            bias_ids: Tensor::of(&self.bias_ids, [slots, max_bias]),
            bias_values: Tensor::of(&self.bias_values, [slots, max_bias]),
            temperature: Tensor::of(&self.temperature, [slots]),
            top_k: Tensor::of(&self.top_k, [slots]),
            top_p: Tensor::of(&self.top_p, [slots]),
            min_p: Tensor::of(&self.min_p, [slots]),
            seed_lo: Tensor::of(&self.seed_lo, [slots]),
            seed_hi: Tensor::of(&self.seed_hi, [slots]),
        }
    }
}

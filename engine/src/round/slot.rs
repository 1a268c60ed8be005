//! Who moves into a slot, how it chooses tokens, what ends it.

use super::Core;
use crate::{
    Result,
    cache::Limits,
    config::Config,
    model::EngineBackend,
    request::{MAX_BIAS, MAX_EOS, MAX_STOP_LENGTH, MAX_STOPS, Request},
};
use kernels_core::{Activation, Backend, Tensor, slots::Fault};
use kernels_spec::{SamplingTable, State, Stops};

/// Per-slot parameters of choosing and stopping.
#[derive(Debug)]
pub(super) struct Choices<B: Backend> {
    slots: usize,
    vocab: usize,
    pub(super) sampling: SamplingTable<B>,
    /// `[slots, MAX_EOS]`
    eos: B::Memory<i32>,
    /// `[slots, MAX_STOPS, MAX_STOP_LENGTH]`
    stops: B::Memory<i32>,
    /// The model's own end-of-sequence ids, -1 padded.
    model_eos: Vec<i32>,
}

impl<B: Backend> Choices<B> {
    pub(super) fn new(on: &B::Queue, c: &Config, limits: &Limits) -> Result<Self> {
        let slots = limits.slots;
        if c.eos.len() > MAX_EOS {
            let remedy = format!("at most {MAX_EOS} end-of-sequence ids are supported; shorten the list");
            return Err(crate::Error::limit("eos_token_id", format!("{:?}", c.eos), remedy));
        }
        let ids = c.eos.iter().map(|id| *id as i32).chain(std::iter::repeat(-1));
        Ok(Choices {
            slots,
            vocab: c.vocab,
            sampling: SamplingTable::new(on, slots, MAX_BIAS)?,
            eos: B::zeros(on, slots * MAX_EOS)?,
            stops: B::zeros(on, slots * MAX_STOPS * MAX_STOP_LENGTH)?,
            model_eos: ids.take(MAX_EOS).collect(),
        })
    }

    fn write(&mut self, on: &B::Queue, slot: usize, request: &Request) -> Result<()> {
        self.sampling.set(on, slot, &request.sampling, self.vocab)?;
        let none = [-1; MAX_EOS];
        let eos = if request.ignore_eos { &none[..] } else { &self.model_eos };
        B::write(on, &mut self.eos, slot * MAX_EOS, eos)?;
        let mut stops = [-1; MAX_STOPS * MAX_STOP_LENGTH];
        for (stop, row) in request.stop.iter().zip(stops.chunks_exact_mut(MAX_STOP_LENGTH)) {
            row.iter_mut().zip(stop).for_each(|(to, id)| *to = *id as i32);
        }
        Ok(B::write(on, &mut self.stops, slot * stops.len(), &stops)?)
    }

    pub(super) fn stops(&self) -> Stops<'_, B> {
        Stops {
            eos: Tensor::of(&self.eos, [self.slots, MAX_EOS]),
            sequences: Tensor::of(&self.stops, [self.slots, MAX_STOPS, MAX_STOP_LENGTH]),
        }
    }
}

impl<B: EngineBackend, A: Activation> Core<B, A> {
    /// Puts a sequence into a free slot. `tokens` are its prompt and, after a pause, its output so far;
    /// tokens may exist at positions below `length`.
    ///
    /// While tokens are computed again, all of them count as prompt, so that nothing is chosen anew;
    /// [`resume`](Self::resume) ends that.
    pub fn open(&mut self, slot: usize, tokens: &[u32], request: &Request, length: usize) -> Result<()> {
        let ids: Vec<i32> = tokens.iter().map(|id| *id as i32).collect();
        self.choices.write(&self.cx.queue, slot, request)?;
        let table = &mut self.caches.shared.table;
        Ok(table.admit(&self.cx.queue, slot, &ids, 0, length)?)
    }

    /// Says that of a slot's tokens only the first `prompt` are its prompt.
    pub fn resume(&mut self, slot: usize, prompt: usize) -> Result<()> {
        let table = &mut self.caches.shared.table;
        Ok(B::write(&self.cx.queue, &mut table.prompt, slot, &[prompt as i32])?)
    }

    /// Says which pages hold a slot's positions; entries beyond them name the trash page.
    pub fn lend_pages(&mut self, slot: usize, pages: &[u32]) -> Result<()> {
        let shared = &mut self.caches.shared;
        let mut row: Vec<i32> = pages.iter().map(|page| *page as i32).collect();
        row.resize(shared.max_pages, 0);
        let limit = (pages.len() * self.limits.page_rows).min(self.limits.positions) as i32;
        let on = &self.cx.queue;
        B::write(on, &mut shared.page_table, slot * shared.max_pages, &row)?;
        Ok(B::write(on, &mut shared.table.limit, slot, &[limit])?)
    }

    /// Empties a slot; its memories need no cleaning.
    pub fn close(&mut self, slot: usize) -> Result<()> {
        self.lend_pages(slot, &[])?;
        Ok(self.caches.shared.table.set_state(&self.cx.queue, slot, State::Empty)?)
    }

    /// What is wrong with each slot, where anything is.
    pub fn faults(&self) -> Result<Vec<Option<String>>> {
        let words = B::read(&self.cx.queue, &self.caches.shared.table.faults, 0..self.limits.slots)?;
        Ok(words.into_iter().map(Self::fault).collect())
    }

    pub(super) fn fault(word: u64) -> Option<String> {
        Fault::decode(word).map(|fault| fault.to_string())
    }
}

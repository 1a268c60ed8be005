//! Drafts by a head of their own, and out of a part of the vocabulary.

use super::{Core, target::Choosing};
use crate::{Result, draft::DraftVocab, model::EngineBackend};
use kernels_core::{Activation, Backend, Tensor};

impl<B: EngineBackend, A: Activation> Core<B, A> {
    /// The ids that drafts are chosen from, where that are not all: to
    /// [observe](DraftVocab::observe) what was emitted.
    pub fn draft_vocab_mut(&mut self) -> Option<&mut DraftVocab> {
        self.model.draft_vocab_mut()
    }

    /// Lets ids that were observed take the places of others, and returns how many did.
    ///
    /// For between two rounds, now and then: whatever is enqueued before it sees the old list, what comes behind the new
    /// one, in the same memories, so that recorded launches stay valid. It waits for nothing and cannot change the
    /// output. A renewed list is copied whole: its rows of the head, and a row of -inf for every slot.
    pub fn refresh_draft_vocab(&mut self) -> Result<usize> {
        let renewed = self.draft_vocab_mut().map_or(0, DraftVocab::renew);
        if renewed > 0 {
            self.model.gather(&self.cx)?;
            if let Some(logits) = &mut self.draft_logits {
                mask::<B>(&self.cx.queue, logits, self.limits.slots)?;
            }
        }
        Ok(renewed)
    }

    /// Chooses a draft in each row of `carried`.
    pub(super) fn choose_drafts(&mut self, choosing: Choosing, sequences: usize) -> Result<()> {
        let carried = Tensor::of(&self.scratch.carried, [sequences, self.model.config().hidden]);
        let Some(logits) = &mut self.draft_logits else {
            let (logits, workspaces) = (&mut self.scratch.logits, &mut self.scratch.workspaces);
            self.model.draft_logits(&self.cx, carried, logits, workspaces)?;
            return self.sample(choosing, sequences);
        };
        self.model.draft_logits(&self.cx, carried, logits, &mut self.scratch.workspaces)?;
        // Columns without an id hold -inf in this memory and in no other.
        std::mem::swap(&mut self.scratch.logits, logits);
        let chosen = self.sample(choosing, sequences);
        if let Some(logits) = &mut self.draft_logits {
            std::mem::swap(&mut self.scratch.logits, logits);
        }
        chosen
    }
}

/// Memory for the logits of a draft step by a trimmed head, all of them -inf.
pub(super) fn masked<B: Backend>(on: &B::Queue, slots: usize, vocab: usize) -> Result<B::Memory<f32>> {
    let mut logits = B::zeros(on, slots * vocab)?;
    mask::<B>(on, &mut logits, slots)?;
    Ok(logits)
}

fn mask<B: Backend>(on: &B::Queue, logits: &mut B::Memory<f32>, rows: usize) -> Result<()> {
    let row = vec![f32::NEG_INFINITY; B::len(logits) / rows];
    for at in 0..rows {
        B::write(on, logits, at * row.len(), &row)?;
    }
    Ok(())
}

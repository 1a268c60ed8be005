//! One model, and engine after engine around it.

use crate::{
    Engine, Options, Pace, Result,
    cache::Limits,
    draft::{DraftLength, Drafter},
    model::{Context, EngineBackend, Model},
    request::Request,
};
use kernels_core::Activation;

/// Holds the model between two engines.
#[derive(Debug)]
pub(super) struct Lab<B: EngineBackend, A: Activation> {
    idle: Option<(Context<B>, Model<B, A>)>,
}

impl<B: EngineBackend, A: Activation> Lab<B, A> {
    pub(super) fn new(context: Context<B>, model: Model<B, A>) -> Self {
        Lab { idle: Some((context, model)) }
    }

    /// What was held.
    pub(super) fn into_parts(self) -> (Context<B>, Model<B, A>) {
        self.idle.expect("an engine that failed ends the whole run")
    }

    /// Runs something on a fresh engine.
    pub(super) fn engine<T>(
        &mut self,
        limits: Limits,
        drafts: DraftLength,
        pace: Pace,
        drafter: Box<dyn Drafter<B, A>>,
        run: impl FnOnce(&mut Engine<B, A>) -> Result<T>,
    ) -> Result<T> {
        let (context, model) = self.idle.take().expect("an engine that failed ends the whole run");
        let mut engine = Engine::new(context, model, Options { limits, drafts, pace }, drafter)?;
        let result = run(&mut engine);
        self.idle = Some(engine.into_core().into_model());
        result
    }
}

/// Tokens of a K/V page: small, so that every sequence has several.
const PAGE_ROWS: usize = 16;

/// Memory for `slots` of the longest of these requests.
pub(super) fn limits<'r>(requests: impl Iterator<Item = &'r Request>, slots: usize) -> Limits {
    let lengths = requests.map(|r| (r.prompt.len(), r.prompt.len().saturating_add(r.max_tokens)));
    let (prompt, positions) = lengths.fold((1, 2), |most, one| (most.0.max(one.0), most.1.max(one.1)));
    Limits {
        slots,
        positions,
        page_rows: PAGE_ROWS,
        // One more than all sequences need: the trash page.
        pages: 1 + slots * positions.div_ceil(PAGE_ROWS),
        max_drafts: 0,
        flush_after: 2,
        prefill_rows: slots * prompt,
        draft_head: false,
    }
}

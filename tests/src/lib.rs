//! What the tests that cross crates share: checkpoints, engines, streams.

mod edited;
pub mod ledger;
mod served;

pub use edited::Edited;
pub use ledger::Ledger;
pub use served::{Received, Served};

use engine::{
    Engine, Finish, Options, Pace, Request,
    cache::Limits,
    draft::{DraftLength, Drafter, Mtp, Plain},
    model::{self, Context, EngineBackend, Model},
    round::Core,
    text::Tokenizer,
    weights::Checkpoint,
};
use kernels_core::{Activation, Cpu};
use kernels_testkit::place::Place;
use std::path::PathBuf;

/// A folder under the repository's `assets/`.
pub fn assets(name: &str) -> PathBuf {
    kernels_testkit::fixture::root().join("assets").join(name)
}

/// A small model with random weights: the best tokens are nearly tied everywhere, so that one bit in the
/// wrong place shows up within a few tokens.
pub const HOSTILE: &str = "fixtures/tiny-dense";

/// The embedded checkpoint.
pub const EMBEDDED: &str = "tiny-qwen35-mtp";

/// Memory enough for the tests' sequences.
pub fn limits(slots: usize, max_drafts: usize) -> Limits {
    Limits {
        slots,
        positions: 256,
        page_rows: 16,
        pages: 1 + slots * 16,
        max_drafts,
        flush_after: 2,
        prefill_rows: 160,
        draft_head: true,
    }
}

/// Loads a checkpoint under `assets/`, or an edited one by its path.
pub fn load<A: Activation>(name: &str) -> (Context<Cpu>, Model<Cpu, A>) {
    load_on(&(), name)
}

/// The same on any backend.
pub fn load_on<B: EngineBackend + Place, A: Activation>(
    on: &B::Queue,
    name: &str,
) -> (Context<B>, Model<B, A>) {
    let dir = assets(name);
    let checkpoint = Checkpoint::open(&dir).expect("the checkpoint is complete");
    let valid = Tokenizer::open(&dir).expect("the tokenizer is there").valid_vocab();
    let model = model::build(on, &checkpoint, valid).expect("it fits in memory");
    (Context::new(on.clone(), B::device(on)), model)
}

/// Model, memories and rounds, without the scheduler.
pub fn core<A: Activation>(name: &str, limits: Limits) -> Core<Cpu, A> {
    let (context, model) = load(name);
    Core::new(context, model, limits).expect("the limits are sane")
}

/// An engine that drafts `drafts` tokens a round with the checkpoint's head, or with 0 none.
pub fn engine<A: Activation>(name: &str, limits: Limits, drafts: usize) -> Engine<Cpu, A> {
    let drafter: Box<dyn Drafter<Cpu, A>> = if drafts > 0 { Box::new(Mtp) } else { Box::new(Plain) };
    engine_with(name, limits, DraftLength::Fixed(drafts), drafter)
}

/// An engine with any drafter.
pub fn engine_with<A: Activation>(
    name: &str,
    limits: Limits,
    drafts: DraftLength,
    drafter: Box<dyn Drafter<Cpu, A>>,
) -> Engine<Cpu, A> {
    engine_on(&(), name, Options { limits, drafts, pace: Pace::Wait }, drafter)
}

/// An engine of any kind, on any backend.
pub fn engine_on<B: EngineBackend + Place, A: Activation>(
    on: &B::Queue,
    name: &str,
    options: Options,
    drafter: Box<dyn Drafter<B, A>>,
) -> Engine<B, A> {
    let (context, model) = load_on(on, name);
    Engine::new(context, model, options, drafter).expect("the options are sane")
}

/// One that drafts nothing and waits for every pass, which others are measured by.
pub fn plain_on<B: EngineBackend + Place, A: Activation>(
    on: &B::Queue,
    name: &str,
    limits: Limits,
) -> Engine<B, A> {
    let options = Options { limits, drafts: DraftLength::Fixed(0), pace: Pace::Wait };
    engine_on(on, name, options, Box::new(Plain))
}

/// Runs requests to their ends, in the order given.
pub fn streams<B: EngineBackend, A: Activation>(
    engine: &mut Engine<B, A>,
    requests: &[Request],
) -> Vec<(Vec<u32>, Finish)> {
    let ids: Vec<_> =
        requests.iter().map(|r| engine.submit(r.clone()).expect("the request is sane")).collect();
    let mut done = engine.run().expect("the engine runs");
    ids.iter().map(|id| done.remove(id).expect("every request ends")).collect()
}

/// A JSON file under `assets/`.
pub fn json(path: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(assets(path)).expect("the file is in the repository");
    serde_json::from_str(&text).expect("it is JSON")
}

/// An array of token ids.
pub fn ids(value: &serde_json::Value) -> Vec<u32> {
    let list = value.as_array().expect("a list of ids");
    list.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// The examples of the repository's README and articles are tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
#[cfg(doctest)]
#[doc = include_str!("../../docs/adding-a-kernel.md")]
struct AddingAKernel;
#[cfg(doctest)]
#[doc = include_str!("../../docs/depending.md")]
struct Depending;

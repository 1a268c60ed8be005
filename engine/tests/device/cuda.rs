//! What only a GPU can show: the first claim on it, its logits beside the CPU's, its memory.

use engine::{
    Engine, Options, Pace, Request, bench,
    cache::Limits,
    config::{Config, FeedForward},
    draft::{DraftLength, Mtp},
    machine::Machine,
    memory,
    model::{self, Context, EngineBackend, Op, Scales, Side},
    parity::{self, Plan},
    round::Core,
    text::Tokenizer,
    weights::Checkpoint,
};
use kernels_core::{Activation, Backend, Cpu, Cuda, DeviceInfo, bf16};
use kernels_testkit::{device::Device, fixture};
use std::path::PathBuf;

fn dir() -> PathBuf {
    fixture::root().join("assets/tiny-qwen35-mtp")
}

fn on(device: &Device) -> Context<Cuda> {
    Context::new(device.queue.clone(), device.info.clone())
}

fn load<B: EngineBackend, A: Activation>(cx: &Context<B>) -> (Tokenizer, model::Model<B, A>) {
    let checkpoint = Checkpoint::open(dir()).expect("the checkpoint is complete");
    let tokenizer = Tokenizer::open(dir()).expect("the tokenizer is there");
    let model = model::build(&cx.queue, &checkpoint, tokenizer.valid_vocab()).expect("it fits");
    (tokenizer, model)
}

/// Every drafter, batch, sampling rule, flush policy, chunk and padding of the CPU's quick run.
pub(crate) fn parity(device: &Device) {
    let cx = on(device);
    let (tokenizer, model) = load::<Cuda, bf16>(&cx);
    let report = parity::run(cx, model, &tokenizer, &Plan::quick(), |_, _, _| {}).expect("it runs");
    assert!(report.passed(), "{report}");
}

/// The same for the heads and widths of real models, dense and of experts, a few layers of each.
pub(crate) fn random_parity(device: &Device) {
    let tokenizer = Tokenizer::open(dir()).expect("the tokenizer is there");
    let dense = Config::preset("0.8b").expect("a preset");
    let moe = Config {
        ffn: FeedForward::Moe { experts: 32, top_k: 4, intermediate: 512, shared_intermediate: 512 },
        ..Config::preset("35b-a3b").expect("a preset")
    };
    for config in [dense, moe] {
        let (cx, layers) = (on(device), config.layers[..8].to_vec());
        let config = Config { layers, vocab: 8192, eos: Vec::new(), ..config };
        let model = model::random::<Cuda, bf16>(&cx, config, 5, &Scales::default()).expect("it fits");
        // What random weights answer is wrong.
        let plan = Plan { words: 0, ..Plan::quick() };
        let report = parity::run(cx, model, &tokenizer, &plan, |_, _, _| {}).expect("it runs");
        assert!(report.passed(), "{report}");
    }
}

/// What the device lacks once a model has decoded is what was planned, but for what the driver keeps for itself. Nobody
/// else may use the device meanwhile.
pub(crate) fn memory(device: &Device) {
    const SLACK: usize = 256 << 20;
    let (cx, config) = (on(device), Config::preset("4b").expect("a preset"));
    let limits = Limits {
        slots: 8,
        positions: 4096,
        page_rows: 64,
        pages: 8 * 64 + 1,
        max_drafts: 2,
        flush_after: 2,
        prefill_rows: 512,
        draft_head: true,
    };
    let plan = memory::Plan::of(&config, &limits, 2, None, &cx.device).expect("kernels are built");
    let free = || {
        device.queue.synchronize().expect("it is idle");
        Cuda::free_memory(&device.queue).expect("it answers").expect("it can tell")
    };
    let before = free();
    plan.check(Some(before)).expect("an idle device has room");
    let model = model::random::<Cuda, bf16>(&cx, config, 5, &Scales::default()).expect("it fits");
    let options = Options { limits, drafts: DraftLength::Fixed(2), pace: Pace::of::<Cuda>() };
    let mut engine = Engine::new(cx, model, options, Box::new(Mtp)).expect("it fits");
    for first in 0..8 {
        let prompt = (0..300).map(|i| first * 300 + i).collect();
        engine.submit(Request { ignore_eos: true, ..Request::greedy(prompt, 8) }).expect("it fits");
    }
    engine.run().expect("it decodes");
    let used = before.saturating_sub(free());
    println!("planned {}, used {}", memory::human(plan.total()), memory::human(used));
    assert!(used <= plan.total() + SLACK, "{plan:?}: {used}");
    assert!(used + SLACK + plan.graphs + plan.workspaces >= plan.total(), "{plan:?}: {used}");
}

/// As commands run it.
pub(crate) fn self_test(device: &Device) {
    let test = Cuda::self_test(&device.queue).expect("it runs").expect("there is a chip");
    println!("{test}");
    assert!(test.holds(), "{test}");
    assert!(test.compared > test.facts, "{test}");
}

/// Rounds that were recorded before are enqueued one by one, every mark can be read, and streams stay what they were.
pub(crate) fn timeline(device: &Device) {
    let cx = on(device);
    let (_, model) = load::<Cuda, bf16>(&cx);
    let layers = model.config().layers.len() as f64;
    let plan = bench::Plan {
        batches: vec![1, 3],
        context: 40,
        drafts: vec![DraftLength::Fixed(2), DraftLength::Fixed(1)],
        rounds: 8,
        accept: None,
        pace: Pace::Recorded,
        prefill_rows: 128,
        flush_after: 3,
        seed: 1,
        timeline: true,
    };
    let report = bench::run(cx, model, &plan, |_| {}).expect("it runs");
    println!("{report}");
    assert!(report.identical(), "{report}");
    assert_eq!(report.timelines.len(), 6);
    for timeline in &report.timelines {
        let row = |side, op| timeline.operations.iter().find(|o| (o.side, o.op) == (side, op));
        assert_eq!(row(Side::Target, Op::Down).map(|o| o.count), Some(layers), "{timeline}");
        let passes = (timeline.drafts > 0).then_some(timeline.drafts as f64);
        assert_eq!(row(Side::Draft, Op::MtpFc).map(|o| o.count), passes, "{timeline}");
        assert!(timeline.operations.iter().all(|o| o.us > 0.0), "{timeline}");
        assert!(timeline.between_us > 0.0 && timeline.between_us < timeline.us, "{timeline}");
    }
}

const TEXT: &str = "fn main() {\n    let mut total = 0;\n    for i in 0..10 {\n        total += i * i;\n    }\n    \
                    println!(\"{total}\");\n}\n\nThe sum of the first ten squares is 285. Once upon a time there was";

fn score<B: EngineBackend, A: Activation>(cx: Context<B>) -> Vec<f32> {
    let (tokenizer, model) = load::<B, A>(&cx);
    let ids = tokenizer.encode(TEXT).expect("it is text");
    let limits = Limits {
        slots: 2,
        positions: 256,
        page_rows: 64,
        pages: 9,
        max_drafts: 0,
        flush_after: 2,
        prefill_rows: 256,
        draft_head: false,
    };
    let valid = model.valid_vocab();
    let mut core = Core::new(cx, model, limits).expect("the limits are sane");
    core.open(1, &ids, &Request::greedy(ids.clone(), 1), 256).expect("a slot");
    core.lend_pages(1, &[3, 1, 4, 2]).expect("pages");
    let logits = core.score(1, ids.len(), None).expect("it runs");
    let vocab = core.model().config().vocab;
    logits.chunks_exact(vocab).flat_map(|row| row[..valid].iter().copied()).collect()
}

/// Both halves round to bf16 at the same places and differ in the order of sums: their distances from fp32 are those
/// of two draws from one distribution. A wrong operation is out by the logits themselves.
pub(crate) fn logits(device: &Device) {
    let exact = score::<Cpu, f32>(Context::new((), DeviceInfo::cpu()));
    let reference = score::<Cpu, bf16>(Context::new((), DeviceInfo::cpu()));
    let got = score::<Cuda, bf16>(on(device));
    assert_eq!(got.len(), exact.len());
    let rms = |a: &[f32], b: &[f32]| {
        let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
        (squares.sum::<f64>() / a.len() as f64).sqrt()
    };
    let (ours, theirs, size) =
        (rms(&got, &exact), rms(&reference, &exact), rms(&exact, &vec![0.0; exact.len()]));
    println!("rms of logits {size:.3}; from fp32: CUDA bf16 {ours:.5}, CPU bf16 {theirs:.5}");
    assert!(ours < 1.25 * theirs, "CUDA is {ours} from fp32, the CPU's bf16 {theirs}");
    assert!(theirs < 0.05 * size, "the bound says nothing: {theirs} of {size}");
}

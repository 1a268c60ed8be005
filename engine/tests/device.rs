//! The engine on a GPU: the first claim with the embedded checkpoint, and its logits beside the CPU's.

#[path = "device/golden.rs"]
mod golden;

use kernels_testkit::{both, gpu, runner::Suite};

fn main() {
    let mut suite = Suite::new();
    both!(suite, golden::walk);
    gpu!(suite, "golden::mini_dense", |device| golden::check(device, "mini-dense"));
    gpu!(suite, "golden::mini_moe", |device| golden::check(device, "mini-moe"));
    both!(suite, drafts::an_oracle_is_as_right_as_asked);
    both!(suite, drafts::a_trimmed_head_leaves_the_output);
    gpu!(suite, "cuda::every_row_is_identical_to_plain_decoding", |device| cuda::parity(device));
    gpu!(suite, "cuda::logits_are_as_far_from_f32_as_the_cpus", |device| cuda::logits(device));
    gpu!(suite, "cuda::random_weights_keep_parity", |device| cuda::random_parity(device));
    gpu!(suite, "cuda::memory_is_as_planned", |device| cuda::memory(device));
    gpu!(suite, "cuda::the_self_test_promises_bits", |device| cuda::self_test(device));
    gpu!(suite, "cuda::a_timeline_adds_up", |device| cuda::timeline(device));
    suite.run()
}

/// Drafts that are not simply the head's.
mod drafts {
    use engine::{
        Engine, Finish, Options, Pace, Request, RequestId, Sampling,
        cache::Limits,
        draft::{DraftLength, DraftVocab, Drafter, Mtp, Oracle, Plain, Right},
        model::{self, Context, EngineBackend, Model},
        stats::Stats,
        text::Tokenizer,
        weights::Checkpoint,
    };
    use kernels_core::bf16;
    use kernels_testkit::{fixture, place::Place};
    use std::collections::BTreeMap;

    const TOKENS: usize = 60;

    fn load<B: EngineBackend + Place>(on: &B::Queue) -> (Tokenizer, Model<B, bf16>) {
        let dir = fixture::root().join("assets/tiny-qwen35-mtp");
        let checkpoint = Checkpoint::open(&dir).expect("the checkpoint is complete");
        let tokenizer = Tokenizer::open(&dir).expect("the tokenizer is there");
        let model = model::build(on, &checkpoint, tokenizer.valid_vocab()).expect("it fits");
        (tokenizer, model)
    }

    fn requests(tokenizer: &Tokenizer) -> Vec<Request> {
        let prompts = ["fn main() {\n    let mut total = 0;\n", "Once upon a time there was", "def total("];
        let request = |prompt: &str| Request {
            ignore_eos: true,
            ..Request::greedy(tokenizer.encode(prompt).expect("it is text"), TOKENS)
        };
        let mut requests = prompts.map(request);
        requests[1].sampling =
            Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, seed: 9, ..Sampling::default() };
        requests[2].sampling = Sampling { temperature: 1.0, repetition_penalty: 1.1, ..Sampling::default() };
        requests.to_vec()
    }

    /// Runs all requests, and returns what each received and the counts.
    fn run<B: EngineBackend + Place>(
        on: &B::Queue,
        k: usize,
        drafter: Box<dyn Drafter<B, bf16>>,
        change: impl FnOnce(&Context<B>, &Tokenizer, &mut Model<B, bf16>),
    ) -> (Vec<(Vec<u32>, Finish)>, Stats) {
        let (tokenizer, mut model) = load::<B>(on);
        let context = Context::new(on.clone(), B::device(on));
        change(&context, &tokenizer, &mut model);
        let limits = Limits {
            slots: 2,
            positions: 128,
            page_rows: 64,
            pages: 5,
            max_drafts: k,
            flush_after: 2,
            prefill_rows: 64,
            draft_head: true,
        };
        let options = Options { limits, drafts: DraftLength::Fixed(k), pace: Pace::of::<B>() };
        let mut engine = Engine::new(context, model, options, drafter).expect("the options are sane");
        for request in requests(&tokenizer) {
            engine.submit(request).expect("the request is sane");
        }
        let streams = engine.run().expect("it runs").into_values().collect();
        (streams, engine.stats().clone())
    }

    pub(crate) fn an_oracle_is_as_right_as_asked<B: EngineBackend + Place>(on: &B::Queue) {
        let (plain, _) = run::<B>(on, 0, Box::new(Plain), |_, _, _| {});
        let prompts = requests(&load::<B>(on).0);
        let whole =
            prompts.iter().zip(&plain).map(|(request, (stream, _))| [&request.prompt[..], stream].concat());
        let known: BTreeMap<RequestId, Vec<u32>> =
            whole.enumerate().map(|(i, stream)| (RequestId(i as u64), stream)).collect();
        for right in [Right::Rate(1.0), Right::Rate(0.0), Right::Pattern(vec![1, 3, 0])] {
            for head in [false, true] {
                let oracle = Oracle::new(right.clone(), 3, known.clone());
                let oracle = if head { oracle.over(Mtp) } else { oracle };
                let (streams, stats) = run::<B>(on, 3, Box::new(oracle), |_, _, _| {});
                assert_eq!(streams, plain, "{right:?}, head: {head}");
                match &right {
                    Right::Rate(1.0) => assert_eq!(stats.accepted, stats.drafted),
                    Right::Rate(_) => assert_eq!(stats.accept_length(), 1.0),
                    // Two thirds of the rounds accept a first draft, one third all three.
                    _ => {
                        let share = |n: usize| n as f64 / stats.rounds as f64;
                        assert!((share(stats.accepted[0]) - 2.0 / 3.0).abs() < 0.1, "{stats:?}");
                        assert!((share(stats.accepted[2]) - 1.0 / 3.0).abs() < 0.1, "{stats:?}");
                    }
                }
            }
        }
    }

    /// Lists that stay and one that follows, among them one shorter than the top-k of a request.
    pub(crate) fn a_trimmed_head_leaves_the_output<B: EngineBackend + Place>(on: &B::Queue) {
        let (plain, _) = run::<B>(on, 0, Box::new(Plain), |_, _, _| {});
        let (streams, whole) = run::<B>(on, 3, Box::new(Mtp), |_, _, _| {});
        assert_eq!(streams, plain);
        let mut lengths = Vec::new();
        for (count, learns) in [(usize::MAX, false), (1500, false), (10, false), (10, true)] {
            let (streams, stats) = run::<B>(on, 3, Box::new(Mtp), |context, tokenizer, model| {
                let vocab = DraftVocab::first(count, &[], tokenizer.valid_vocab()).expect("some ids");
                let vocab = if learns { vocab.learning(&[0]) } else { vocab };
                model.trim_drafts(context, vocab).expect("it fits");
            });
            assert_eq!(streams, plain, "{count} ids, learning: {learns}");
            if count == usize::MAX {
                assert_eq!(stats, whole, "nothing is left out");
            }
            lengths.push(stats.accept_length());
        }
        println!("accept length {:.2}; all, 1500, 10, 10 that follow: {lengths:.2?}", whole.accept_length());
        assert!(lengths[2] + 0.1 < lengths[1], "{lengths:?}");
        assert!(lengths.iter().all(|length| *length >= 1.0));
    }
}

#[cfg(feature = "cuda")]
mod cuda {
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
            let report = parity::run(cx, model, &tokenizer, &Plan::quick(), |_, _, _| {}).expect("it runs");
            assert!(report.passed(), "{report}");
        }
    }

    /// What the device lacks once a model has decoded is what was planned, but for what the driver keeps for itself.
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
        let plan = memory::Plan::of(&config, &limits, 2, &cx.device).expect("kernels are built");
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
}

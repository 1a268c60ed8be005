//! The engine on a GPU: the first claim with the embedded checkpoint, and its logits beside the CPU's.

use kernels_testkit::{gpu, runner::Suite};

fn main() {
    let mut suite = Suite::new();
    gpu!(suite, "cuda::every_row_is_identical_to_plain_decoding", |device| cuda::parity(device));
    gpu!(suite, "cuda::logits_are_as_far_from_f32_as_the_cpus", |device| cuda::logits(device));
    suite.run()
}

#[cfg(feature = "cuda")]
mod cuda {
    use engine::{
        Request,
        cache::Limits,
        model::{self, Context, EngineBackend},
        parity::{self, Plan},
        round::Core,
        text::Tokenizer,
        weights::Checkpoint,
    };
    use kernels_core::{Activation, Cpu, Cuda, DeviceInfo, bf16};
    use kernels_testkit::{device::Device, fixture};
    use std::path::PathBuf;

    fn dir() -> PathBuf {
        fixture::root().join("assets/tiny-qwen35-mtp")
    }

    fn on(device: &Device) -> Context<Cuda> {
        Context { queue: device.queue.clone(), device: device.info.clone() }
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
        let exact = score::<Cpu, f32>(Context { queue: (), device: DeviceInfo::cpu() });
        let reference = score::<Cpu, bf16>(Context { queue: (), device: DeviceInfo::cpu() });
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

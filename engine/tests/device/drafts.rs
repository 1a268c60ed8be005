//! Drafts that are not simply the head's.

use engine::{
    Engine, Finish, Options, Pace, Request, RequestId, Sampling,
    cache::Limits,
    draft::{DraftLength, DraftVocab, Drafter, Mtp, Oracle, Plain, Right},
    model::{Context, EngineBackend, Model},
    stats::Stats,
    text::Tokenizer,
};
use kernels_core::bf16;
use kernels_testkit::place::Place;
use std::collections::BTreeMap;
use workspace_tests::{EMBEDDED, assets, load_on};

const TOKENS: usize = 60;

fn tokenizer() -> Tokenizer {
    Tokenizer::open(assets(EMBEDDED)).expect("the tokenizer is there")
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
    let (tokenizer, (context, mut model)) = (tokenizer(), load_on(on, EMBEDDED));
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
    let prompts = requests(&tokenizer());
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

/// Lists that stay and one that follows, among them one shorter than the top-k of a request; and rows in fp8.
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
    for (count, learns) in [(None, false), (Some(1500), false), (Some(10), true)] {
        let (streams, stats) = run::<B>(on, 3, Box::new(Mtp), |context, tokenizer, model| {
            if let Some(count) = count {
                let vocab = DraftVocab::first(count, &[], tokenizer.valid_vocab()).expect("some ids");
                let vocab = if learns { vocab.learning(&[0]) } else { vocab };
                model.trim_drafts(context, vocab).expect("it fits");
            }
            model.quantize_drafts(context).expect("it fits");
            assert!(model.drafts_in_fp8() && model.draft_vocab().is_some() == count.is_some());
        });
        assert_eq!(streams, plain, "{count:?} ids in fp8, learning: {learns}");
        let (same, here) = (if learns { lengths[3] } else { lengths[1] }, stats.accept_length());
        let same = if count.is_none() { whole.accept_length() } else { same };
        println!("accept length of {count:?} ids in fp8 {here:.2}, in bf16 {same:.2}");
        assert!((here - same).abs() < 0.15, "{count:?} ids in fp8: {here} instead of {same}");
    }
    assert!(lengths[2] + 0.1 < lengths[1], "{lengths:?}");
    assert!(lengths.iter().all(|length| *length >= 1.0));
}

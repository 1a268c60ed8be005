//! L2: with speculation the token stream is what plain decoding emits, byte for byte. The embedded
//! checkpoint, bf16; every way of cutting the work into passes, every accept length.

use engine::{
    Finish, Request, Sampling,
    cache::Limits,
    draft::{DraftLength, Mtp, Script, Scripted},
    request::RequestId,
};
use kernels_core::bf16;
use std::{collections::BTreeMap, sync::OnceLock};
use workspace_tests::{EMBEDDED, assets, engine, engine_with, json, limits, streams};

const TOKENS: usize = 32;

/// Eight prompts: stories, code, documentation; half greedy, half sampled with different filters.
fn requests() -> Vec<Request> {
    let tokenizer = engine::text::Tokenizer::open(assets(EMBEDDED)).unwrap();
    let prompts = json("tiny-qwen35-mtp/prompts.json");
    let prompts = prompts.as_array().unwrap().iter().take(8);
    let sampling = [
        Sampling { temperature: 1.0, ..Sampling::default() },
        Sampling { temperature: 0.8, top_k: 20, top_p: 0.95, ..Sampling::default() },
        Sampling { temperature: 1.2, min_p: 0.05, presence_penalty: 0.7, ..Sampling::default() },
        Sampling { repetition_penalty: 1.3, frequency_penalty: 0.2, ..Sampling::default() },
    ];
    let request = |(i, prompt): (usize, &serde_json::Value)| {
        let mut request = Request::greedy(tokenizer.encode(prompt.as_str().unwrap()).unwrap(), TOKENS);
        if i % 2 == 1 {
            request.sampling = Sampling { seed: (77 << 32) + i as u64, ..sampling[i / 2].clone() };
        }
        // Different lengths, so that sequences leave a batch at different times.
        request.max_tokens -= i;
        request
    };
    prompts.enumerate().map(request).collect()
}

/// What plain decoding emits, each request alone, the prompt in one piece.
fn plain() -> &'static [(Vec<u32>, Finish)] {
    static PLAIN: OnceLock<Vec<(Vec<u32>, Finish)>> = OnceLock::new();
    PLAIN.get_or_init(|| {
        let mut engine = engine::<bf16>(EMBEDDED, limits(1, 0), 0);
        let alone = |r: Request| streams(&mut engine, &[r]).remove(0);
        requests().into_iter().map(alone).collect()
    })
}

#[track_caller]
fn same(what: &str, got: &[(Vec<u32>, Finish)]) {
    for (i, (got, want)) in got.iter().zip(plain()).enumerate() {
        if let Some(at) = (0..want.0.len()).find(|&at| got.0.get(at) != want.0.get(at)) {
            panic!("{what}: request {i} differs at token {at}: {:?} instead of {:?}", got.0, want.0);
        }
        assert_eq!(got, want, "{what}: request {i}");
    }
    assert_eq!(got.len(), plain().len());
}

#[test]
fn any_number_of_drafts_in_any_batch() {
    for (k, slots) in [(1, 8), (2, 3), (3, 1), (4, 8), (8, 2), (15, 8)] {
        let mut engine = engine::<bf16>(EMBEDDED, limits(slots, k), k);
        same(&format!("k = {k}, {slots} slots"), &streams(&mut engine, &requests()));
        let stats = engine.stats();
        assert!(stats.drafted[0] > 20, "drafts were verified");
        let first = stats.acceptance()[0];
        assert!(first > 0.5, "the head is right about three times in four, not {first}");
        assert_eq!(engine.free(), (slots * 16, slots), "everything was given back");
    }
}

#[test]
fn drafts_that_change_from_round_to_round() {
    let drafts = DraftLength::Cycle(vec![0, 3, 1, 0, 0, 7, 2]);
    let mut engine = engine_with::<bf16>(EMBEDDED, limits(4, 7), drafts, Box::new(Mtp));
    same("changing k", &streams(&mut engine, &requests()));
    assert!(engine.stats().drafted.len() == 7);
}

#[test]
fn requests_with_drafts_of_their_own() {
    let mut requests = requests();
    for (i, request) in requests.iter_mut().enumerate() {
        request.drafts = Some(i % 5);
    }
    let mut engine = engine::<bf16>(EMBEDDED, limits(8, 4), 4);
    same("own k", &streams(&mut engine, &requests));
}

#[test]
fn every_accept_length() {
    let vocab = 4095;
    let known: BTreeMap<RequestId, Vec<u32>> = requests()
        .iter()
        .zip(plain())
        .enumerate()
        .map(|(i, (r, (stream, _)))| (RequestId(i as u64), [&r.prompt[..], stream].concat()))
        .collect();
    let scripts = [
        Script::AllRight,
        Script::AllWrong,
        Script::Pattern(vec![0, 4, 1, 3, 2, 4, 4, 0, 0, 1]),
        Script::Random { seed: 5, rate: 0.7 },
    ];
    for script in scripts {
        for flush_after in [0, 2, 6] {
            let drafter = Scripted::new(script.clone(), known.clone(), vocab);
            let limits = Limits { flush_after, ..limits(5, 4) };
            let mut engine = engine_with::<bf16>(EMBEDDED, limits, DraftLength::Fixed(4), Box::new(drafter));
            same(&format!("{script:?}, F = {flush_after}"), &streams(&mut engine, &requests()));
            let stats = engine.stats();
            match script {
                Script::AllRight => assert!(stats.accept_length() > 4.0),
                Script::AllWrong => assert_eq!(stats.accept_length(), 1.0),
                _ => assert!(stats.accepted.iter().all(|n| *n > 0), "{stats:?}"),
            }
        }
    }
}

#[test]
fn prompts_in_any_pieces() {
    for prefill_rows in [1, 7, 64] {
        for k in [0, 3] {
            let limits = Limits { prefill_rows, ..limits(3, k) };
            let mut engine = engine::<bf16>(EMBEDDED, limits, k);
            same(&format!("pieces of {prefill_rows}, k = {k}"), &streams(&mut engine, &requests()));
        }
    }
}

#[test]
fn a_pool_too_small_for_all_pauses_the_youngest() {
    // Eight sequences of up to 48 tokens in 9 pages of 8: some must wait for others.
    let limits = Limits { pages: 1 + 9, page_rows: 8, ..limits(4, 3) };
    let mut engine = engine::<bf16>(EMBEDDED, limits, 3);
    let prompts: usize = requests().iter().map(|r| r.prompt.len()).sum();
    same("small pool", &streams(&mut engine, &requests()));
    assert!(engine.stats().prefilled > prompts, "nothing was paused and recomputed");
    assert_eq!(engine.free(), (9, 4));
}

#[test]
fn requests_that_join_late_and_are_aborted() {
    let mut engine = engine::<bf16>(EMBEDDED, limits(3, 2), 2);
    let requests = requests();
    let mut ids = vec![engine.submit(requests[0].clone()).unwrap()];
    let mut got: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    let mut finishes = BTreeMap::new();
    let mut steps = 0;
    while !engine.is_idle() || ids.len() < requests.len() {
        if steps % 3 == 1 && ids.len() < requests.len() {
            ids.push(engine.submit(requests[ids.len()].clone()).unwrap());
            // A companion that leaves again in the middle of its prompt or its first rounds.
            let companion = engine.submit(requests[2].clone()).unwrap();
            if steps % 2 == 0 {
                for event in engine.step().unwrap() {
                    got.entry(event.request).or_default().extend(event.tokens);
                    finishes.extend(event.end.map(|end| (event.request, end.finish)));
                }
            }
            engine.abort(companion).unwrap();
        }
        for event in engine.step().unwrap() {
            got.entry(event.request).or_default().extend(event.tokens);
            finishes.extend(event.end.map(|end| (event.request, end.finish)));
        }
        steps += 1;
    }
    let got: Vec<_> = ids.iter().map(|id| (got[id].clone(), finishes[id])).collect();
    same("joins and aborts", &got);
    assert!(finishes.values().any(|f| *f == Finish::Aborted));
    assert_eq!(engine.free(), (48, 3));
}

#[test]
fn stops_inside_a_block() {
    let all = requests();
    for (i, (stream, _)) in plain().iter().enumerate() {
        // The sequence's own tokens 9 and 10 as a stop: wherever that falls in a block of drafts.
        let mut request = all[i].clone();
        request.stop = vec![stream[9..11].to_vec()];
        let end = (1..stream.len()).find(|&at| stream[at - 1..=at] == stream[9..11]).unwrap();
        for k in [0, 1, 3, 5] {
            let mut engine = engine::<bf16>(EMBEDDED, limits(1, k), k);
            let got = streams(&mut engine, std::slice::from_ref(&request)).remove(0);
            assert_eq!(got, (stream[..=end].to_vec(), Finish::Stop), "request {i}, k = {k}");
        }
    }
}

//! Drafts of an oracle: the output is what plain decoding emits, and rounds emit what was asked for.

use engine::{
    Engine, Finish, Request, RequestId, Sampling,
    draft::{DraftLength, Mtp, Oracle, Right},
};
use kernels_core::{Cpu, bf16};
use std::{collections::BTreeMap, sync::OnceLock};
use workspace_tests::{EMBEDDED, assets, engine, engine_with, json, limits, streams};

const TOKENS: usize = 110;
const REQUESTS: usize = 8;

/// Greedy and sampled ones in turn, none of which ends early.
fn requests() -> Vec<Request> {
    let tokenizer = engine::text::Tokenizer::open(assets(EMBEDDED)).unwrap();
    let prompts = json("tiny-qwen35-mtp/prompts.json");
    let request = |(i, prompt): (usize, &serde_json::Value)| {
        let mut request = Request::greedy(tokenizer.encode(prompt.as_str().unwrap()).unwrap(), TOKENS);
        request.ignore_eos = true;
        if i % 2 == 1 {
            request.sampling = Sampling { temperature: 1.0, seed: 40 + i as u64, ..Sampling::default() };
        }
        request
    };
    prompts.as_array().unwrap().iter().take(REQUESTS).enumerate().map(request).collect()
}

fn plain() -> &'static [(Vec<u32>, Finish)] {
    static PLAIN: OnceLock<Vec<(Vec<u32>, Finish)>> = OnceLock::new();
    PLAIN.get_or_init(|| streams(&mut engine::<bf16>(EMBEDDED, limits(REQUESTS, 0), 0), &requests()))
}

fn known() -> BTreeMap<RequestId, Vec<u32>> {
    let whole =
        requests().into_iter().zip(plain()).map(|(r, (stream, _))| [r.prompt, stream.clone()].concat());
    whole.enumerate().map(|(i, stream)| (RequestId(i as u64), stream)).collect()
}

fn of(right: Right, k: usize, slots: usize) -> Engine<Cpu, bf16> {
    let drafter = Oracle::new(right, 21, known());
    engine_with(EMBEDDED, limits(slots, k), DraftLength::Fixed(k), Box::new(drafter))
}

#[test]
fn accept_lengths_are_those_asked_for() {
    for (length, k) in [(2.43, 2), (3.5, 5)] {
        let mut engine = of(Right::AcceptLength(length), k, REQUESTS);
        assert_eq!(streams(&mut engine, &requests()), plain(), "{length} at {k} drafts");
        let stats = engine.stats();
        assert!(stats.rounds > 200, "{} rounds", stats.rounds);
        // Between 1 and k + 1 tokens a round, so that the deviation is at most half of k, that of the mean less by the
        // root of the rounds; four of them. The last rounds of a request have no room for all drafts.
        let cut = (REQUESTS * k) as f64 / stats.rounds as f64;
        let off = 4.0 * 0.5 * k as f64 / (stats.rounds as f64).sqrt() + cut;
        let got = stats.accept_length();
        assert!((got - length).abs() < off.min(0.25), "{got} instead of {length} at {k} drafts");
    }
}

#[test]
fn rates_of_one_and_zero_are_certain() {
    let mut right = of(Right::Rate(1.0), 3, 3);
    assert_eq!(streams(&mut right, &requests()), plain());
    let stats = right.stats();
    assert_eq!(stats.accepted, stats.drafted, "every draft is right");
    let mut wrong = of(Right::Rate(0.0), 3, 3);
    assert_eq!(streams(&mut wrong, &requests()), plain());
    assert_eq!(wrong.stats().accept_length(), 1.0);
    assert!(wrong.stats().drafted[2] > 700, "drafts were verified");
}

#[test]
fn patterns_are_exact() {
    let pattern = [0, 4, 1, 3, 2, 4, 4, 0, 0, 1];
    let mut engine = of(Right::Pattern(pattern.to_vec()), 4, 2);
    let ids: Vec<RequestId> = requests().into_iter().map(|r| engine.submit(r).unwrap()).collect();
    let mut emitted: BTreeMap<RequestId, Vec<usize>> = BTreeMap::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            emitted.entry(event.request).or_default().push(event.tokens.len());
        }
    }
    for id in ids {
        let (first, rounds) = emitted[&id].split_first().unwrap();
        assert_eq!(*first, 1, "the prompt's token");
        // Near the end there is no room for all drafts.
        let full = rounds.len() - 4;
        assert!(full > 30, "{} rounds of {id}", rounds.len());
        let want: Vec<usize> = (0..full).map(|i| 1 + pattern[(i + id.0 as usize) % pattern.len()]).collect();
        assert_eq!(rounds[..full], want, "{id}");
        assert_eq!(1 + rounds.iter().sum::<usize>(), TOKENS);
    }
}

#[test]
fn an_oracle_over_the_head_pays_for_it_and_is_right_where_the_head_is_not() {
    let drafter = Oracle::new(Right::Rate(1.0), 0, known()).over(Mtp);
    let mut over =
        engine_with::<bf16>(EMBEDDED, limits(REQUESTS, 3), DraftLength::Fixed(3), Box::new(drafter));
    assert_eq!(streams(&mut over, &requests()), plain());
    let stats = over.stats();
    assert_eq!(stats.accepted, stats.drafted);
    let mut head = engine::<bf16>(EMBEDDED, limits(REQUESTS, 3), 3);
    assert_eq!(streams(&mut head, &requests()), plain());
    assert!(head.stats().accept_length() < stats.accept_length(), "the head is wrong now and then");
    // Rounds without a draft in between: the head catches up, whatever was written over its drafts.
    let drafts = DraftLength::Cycle(vec![0, 3, 0, 0, 2, 1]);
    let drafter = Oracle::new(Right::Rate(0.5), 0, known()).over(Mtp);
    let mut changing = engine_with::<bf16>(EMBEDDED, limits(3, 3), drafts, Box::new(drafter));
    assert_eq!(streams(&mut changing, &requests()[..3]), plain()[..3]);
}

#[test]
fn requests_that_nobody_knows_are_drafted_for_in_vain() {
    let drafter = Oracle::new(Right::Rate(1.0), 0, BTreeMap::new());
    let mut engine = engine_with::<bf16>(EMBEDDED, limits(2, 2), DraftLength::Fixed(2), Box::new(drafter));
    assert_eq!(streams(&mut engine, &requests()[..2]), plain()[..2]);
    let accepted: usize = engine.stats().accepted.iter().sum();
    let zeros = plain()[..2].iter().flat_map(|(stream, _)| stream).filter(|id| **id == 0).count();
    assert!(accepted <= zeros, "{accepted} accepted drafts, and {zeros} tokens are the one that is guessed");
}

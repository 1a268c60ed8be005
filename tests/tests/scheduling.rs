//! Who computes when: joining, waiting, pausing, ending, failing. Whatever the order, streams are those of
//! requests alone.

use engine::{
    Engine, Finish, Request, RequestId,
    cache::Limits,
    draft::{DraftLength, Mtp, Script, Scripted},
};
use kernels_core::bf16;
use kernels_testkit::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use workspace_tests::{Edited, HOSTILE, Served, engine, engine_with, limits, streams};

/// A prompt of `length` random tokens that generates `tokens`, whatever they are.
fn request(seed: u64, length: usize, tokens: usize) -> Request {
    let mut rng = Rng::new(seed);
    let prompt = (0..length).map(|_| rng.below(490) as u32).collect();
    Request { ignore_eos: true, ..Request::greedy(prompt, tokens) }
}

/// What plain decoding answers, each request alone.
fn alone(name: &str, requests: &[Request]) -> Vec<(Vec<u32>, Finish)> {
    let mut engine = engine::<bf16>(name, limits(1, 0), 0);
    let plain = |r: &Request| Request { drafts: None, ..r.clone() };
    requests.iter().map(|r| streams(&mut engine, &[plain(r)]).remove(0)).collect()
}

/// Drafts from the plain answers, for requests submitted in this order to a new engine.
fn scripted(script: Script, requests: &[Request], answers: &[(Vec<u32>, Finish)]) -> Box<Scripted> {
    let known: BTreeMap<RequestId, Vec<u32>> = requests
        .iter()
        .zip(answers)
        .enumerate()
        .map(|(i, (r, (tokens, _)))| (RequestId(i as u64), [&r.prompt[..], tokens].concat()))
        .collect();
    Box::new(Scripted::new(script, known, 490))
}

/// The requests that got tokens in this step.
fn step(served: &mut Served, engine: &mut Engine<kernels_core::Cpu, bf16>) -> BTreeSet<RequestId> {
    served.step(engine).into_iter().filter(|e| !e.tokens.is_empty()).map(|e| e.request).collect()
}

#[test]
fn decoding_goes_on_beside_a_long_prompt() {
    let requests: Vec<_> = (0..4).map(|i| request(i, if i == 3 { 90 } else { 3 }, 40)).collect();
    let want = alone(HOSTILE, &requests);
    // The prompt takes 12 passes of 8 tokens.
    let mut engine = engine::<bf16>(HOSTILE, Limits { prefill_rows: 8, ..limits(4, 2) }, 2);
    let mut served = Served::default();
    let mut ids: Vec<_> = requests[..3].iter().map(|r| served.submit(&mut engine, r)).collect();
    let others: BTreeSet<_> = ids.iter().copied().collect();
    // 3 + 3 + 2 rows, then the last one.
    while step(&mut served, &mut engine) != others {}
    ids.push(served.submit(&mut engine, &requests[3]));
    for pass in 1..=12 {
        let emitted = step(&mut served, &mut engine);
        let joined = emitted.contains(&ids[3]);
        assert!(others.is_subset(&emitted), "pass {pass} of the prompt held somebody up: {emitted:?}");
        assert_eq!(joined, pass == 12, "the first token comes with the last prompt token");
    }
    served.drain(&mut engine);
    assert_eq!(served.ended(&ids), want);
}

#[test]
fn sequences_join_and_leave_between_rounds() {
    let requests: Vec<_> = (0..5).map(|i| request(10 + i, 4, 6 + 5 * i as usize)).collect();
    let want = alone(HOSTILE, &requests);
    let mut engine = engine::<bf16>(HOSTILE, limits(2, 0), 0);
    let mut served = Served::default();
    let ids: Vec<_> = requests.iter().map(|r| served.submit(&mut engine, r)).collect();
    let mut first_step = BTreeMap::new();
    let mut last_step = BTreeMap::new();
    for at in 0.. {
        for event in served.step(&mut engine) {
            first_step.entry(event.request).or_insert(at);
            last_step.insert(event.request, at);
        }
        assert!(engine.load().1 <= 2);
        if engine.is_idle() {
            break;
        }
    }
    // The first step gives a prompt's token and a round's, further ones one each; a slot that somebody left
    // is taken in the very next step, whatever the other one is doing.
    assert_eq!((first_step[&ids[0]], last_step[&ids[0]]), (0, 4));
    assert_eq!((first_step[&ids[1]], last_step[&ids[1]]), (0, 9));
    assert_eq!((first_step[&ids[2]], last_step[&ids[2]]), (5, 5 + 14));
    assert_eq!((first_step[&ids[3]], last_step[&ids[3]]), (10, 10 + 19));
    assert_eq!(first_step[&ids[4]], 20);
    assert_eq!(served.ended(&ids), want);
}

#[test]
fn admission_is_oldest_first_and_all_or_nothing() {
    // Ten pages of 4 tokens. The first takes 5 of them for good, the second needs 7, the third 2.
    let requests = [request(20, 14, 6), request(21, 24, 4), request(22, 2, 5)];
    let want = alone(HOSTILE, &requests);
    let limits = Limits { page_rows: 4, pages: 1 + 10, ..limits(4, 0) };
    let mut engine = engine::<bf16>(HOSTILE, limits, 0);
    let mut served = Served::default();
    let ids: Vec<_> = requests.iter().map(|r| served.submit(&mut engine, r)).collect();
    let mut order = Vec::new();
    while !engine.is_idle() {
        let emitted = step(&mut served, &mut engine);
        order.extend(emitted.into_iter().filter(|id| !order.contains(id)).collect::<Vec<_>>());
        if served.of(ids[0]).end.is_none() {
            // The third would fit, but it is not its turn; the second holds nothing while it waits.
            assert_eq!(engine.load(), (2, 1));
            let (pages, slots) = engine.free();
            assert!((5..=6).contains(&pages) && slots == 3, "{pages} pages, {slots} slots");
        }
    }
    assert_eq!(order, ids);
    assert_eq!(engine.free(), (10, 4));
    assert_eq!(served.ended(&ids), want);
    // What can never be served is refused at once, with the numbers.
    let error = engine.submit(request(23, 30, 20)).unwrap_err().to_string();
    for word in ["30 prompt and 20 new tokens", "13 pages of 4", "the pool has 10", "--pages"] {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn the_youngest_is_paused_and_comes_back_exactly() {
    // Three sequences of up to 44 tokens in 24 pages of 4: two fit to their ends, three do not.
    let requests: Vec<_> = (0..3).map(|i| request(30 + i, 8, 36)).collect();
    let want = alone(HOSTILE, &requests);
    for drafts in [0, 3] {
        let limits = Limits { page_rows: 4, pages: 1 + 24, ..limits(3, drafts) };
        let mut engine = engine::<bf16>(HOSTILE, limits, drafts);
        let mut served = Served::default();
        let ids: Vec<_> = requests.iter().map(|r| served.submit(&mut engine, r)).collect();
        let mut paused = 0;
        while !engine.is_idle() {
            let before: Vec<bool> = ids.iter().map(|id| served.of(*id).end.is_some()).collect();
            let emitted = step(&mut served, &mut engine);
            if engine.load().0 > 0 {
                paused += 1;
                // Only ever the last one to come, and the oldest goes on.
                assert!(!emitted.contains(&ids[2]), "k = {drafts}: the youngest was not the one paused");
                assert!(before[0] || emitted.contains(&ids[0]), "k = {drafts}: the oldest stood still");
            }
        }
        assert!(paused > 2, "k = {drafts}: nothing was paused");
        assert_eq!(served.ended(&ids), want, "k = {drafts}");
        let prefilled: Vec<_> =
            ids.iter().map(|id| served.of(*id).end.as_ref().unwrap().stats.prefilled).collect();
        assert_eq!(prefilled[..2], [8, 8], "k = {drafts}");
        assert!(prefilled[2] > 8, "k = {drafts}: it was not computed again");
        assert_eq!(engine.free(), (24, 3));
    }
}

#[test]
fn max_tokens_and_stops_fall_on_every_row_of_a_block() {
    let long = request(40, 5, 30);
    let (stream, _) = alone(HOSTILE, std::slice::from_ref(&long)).remove(0);
    for drafts in [1, 2, 4] {
        // All drafts are right, so that blocks are as long as they can be.
        for length in 1..=14 {
            let capped = Request { max_tokens: length, ..long.clone() };
            let stopped = Request { stop: vec![stream[..length].to_vec()], ..long.clone() };
            let mut cases = vec![(capped, Finish::Length)];
            if length <= 12 {
                cases.push((stopped, Finish::Stop));
            }
            for (request, finish) in cases {
                let answers = [(stream.clone(), finish)];
                let drafter = scripted(Script::AllRight, std::slice::from_ref(&request), &answers);
                let draft_length = DraftLength::Fixed(drafts);
                let mut engine = engine_with::<bf16>(HOSTILE, limits(1, drafts), draft_length, drafter);
                let got = streams(&mut engine, std::slice::from_ref(&request)).remove(0);
                assert_eq!(got, (stream[..length].to_vec(), finish), "k = {drafts}, {length} tokens");
                let stats = engine.stats();
                // The prompt gives one token, and every round as many as it has rows.
                assert_eq!(stats.rounds, (length - 1).div_ceil(drafts + 1), "k = {drafts}, {length} tokens");
                assert_eq!(stats.generated, length);
                assert_eq!(stats.accepted.iter().sum::<usize>() + stats.rounds + 1, length);
            }
        }
    }
}

#[test]
fn the_end_of_the_context_ends_a_sequence() {
    const POSITIONS: usize = 24;
    for length in [1, 10, 21, 22, 23] {
        let request = request(50 + length as u64, length, 1000);
        let mut want = None;
        for drafts in [0, 1, 4] {
            // Pages that do not divide the context, too.
            for page_rows in [8, 5] {
                let limits = Limits { positions: POSITIONS, page_rows, ..limits(2, drafts) };
                let mut engine = engine::<bf16>(HOSTILE, limits, drafts);
                let got = streams(&mut engine, std::slice::from_ref(&request)).remove(0);
                assert_eq!((got.0.len(), got.1), (POSITIONS - length, Finish::Length), "k = {drafts}");
                assert_eq!(want.get_or_insert(got.clone()), &got, "k = {drafts}, pages of {page_rows}");
            }
        }
    }
    let mut engine = engine::<bf16>(HOSTILE, Limits { positions: POSITIONS, ..limits(2, 0) }, 0);
    let error = engine.submit(request(50, POSITIONS, 1)).unwrap_err().to_string();
    assert!(error.contains("24 tokens long") && error.contains("--context"), "{error}");
}

#[test]
fn every_request_has_its_own_number_of_drafts() {
    let requests: Vec<_> =
        (0..6).map(|i| Request { drafts: Some(i), ..request(60 + i as u64, 4 + i, 40) }).collect();
    let want = alone(HOSTILE, &requests);
    // One of two drafts is right, so that there are rounds of every accept length.
    let drafter = scripted(Script::Random { seed: 3, rate: 0.7 }, &requests, &want);
    let mut engine = engine_with::<bf16>(HOSTILE, limits(6, 5), DraftLength::Fixed(2), drafter);
    let mut served = Served::default();
    let ids: Vec<_> = requests.iter().map(|r| served.submit(&mut engine, r)).collect();
    served.drain(&mut engine);
    assert_eq!(served.ended(&ids), want);
    for (drafts, id) in ids.iter().enumerate() {
        let stats = &served.of(*id).end.as_ref().unwrap().stats;
        assert_eq!(stats.drafted.len(), drafts, "{stats:?}");
        assert_eq!(stats.accepted.iter().filter(|n| **n > 0).count(), drafts, "{stats:?}");
    }
}

#[test]
fn a_faulty_sequence_fails_alone() {
    // A token whose embedding is NaN: whoever has it in the prompt has nothing to choose from.
    const BAD: u32 = 77;
    let checkpoint = Edited::of(HOSTILE).poison_row("model.language_model.embed_tokens.weight", BAD as usize);
    let clean = |mut r: Request| {
        r.prompt.iter_mut().filter(|id| **id == BAD).for_each(|id| *id = 78);
        r
    };
    let mut requests: Vec<_> = (0..6).map(|i| clean(request(70 + i, 6, 20))).collect();
    let want = alone(checkpoint.name(), &requests);
    requests[1].prompt[3] = BAD;
    requests[4].prompt[5] = BAD;
    for drafts in [0, 3] {
        // Two slots: those of the failed are taken over by others, NaN and all.
        let mut engine = engine_with::<bf16>(
            checkpoint.name(),
            Limits { prefill_rows: 4, ..limits(2, drafts) },
            DraftLength::Fixed(drafts),
            if drafts > 0 { Box::new(Mtp) } else { Box::new(engine::draft::Plain) },
        );
        let mut served = Served::default();
        let ids: Vec<_> = requests.iter().map(|r| served.submit(&mut engine, r)).collect();
        served.drain(&mut engine);
        for (i, id) in ids.iter().enumerate() {
            let got = served.of(*id);
            if i == 1 || i == 4 {
                let end = got.end.as_ref().unwrap();
                assert_eq!((end.finish, got.tokens.len(), end.stats.generated), (Finish::Failed, 0, 0));
                let error = end.error.as_deref().expect("a failure says what failed");
                assert!(error.contains("no finite logit to choose from"), "{error}");
            } else {
                assert_eq!(got.ended(), want[i], "request {i}, k = {drafts}");
                assert!(got.end.as_ref().unwrap().error.is_none());
            }
        }
        assert_eq!(engine.free(), (32, 2), "a failed sequence gives everything back");
    }
}

#[test]
fn statistics_count_what_was_received() {
    let requests: Vec<_> = (0..5).map(|i| request(80 + i, 3 + i as usize, 25)).collect();
    let mut stopped = requests.clone();
    let want = alone(HOSTILE, &requests);
    for (i, request) in stopped.iter_mut().enumerate() {
        request.stop = vec![want[i].0[10 + i..12 + i].to_vec()];
    }
    let want = alone(HOSTILE, &stopped);
    let drafter = scripted(Script::Pattern(vec![4, 0, 2, 4, 1, 3]), &stopped, &want);
    let mut engine = engine_with::<bf16>(HOSTILE, limits(3, 4), DraftLength::Fixed(4), drafter);
    let mut served = Served::default();
    let ids: Vec<_> = stopped.iter().map(|r| served.submit(&mut engine, r)).collect();
    // Tokens by request and step: the first event is the prompt's token.
    let mut rounds: BTreeMap<RequestId, Vec<usize>> = BTreeMap::new();
    while !engine.is_idle() {
        for event in served.step(&mut engine) {
            rounds.entry(event.request).or_default().push(event.tokens.len());
        }
    }
    let mut total = engine::stats::Stats::default();
    for ((id, request), want) in ids.iter().zip(&stopped).zip(&want) {
        assert_eq!(&served.of(*id).ended(), want);
        assert_eq!(want.1, Finish::Stop);
        let stats = &served.of(*id).end.as_ref().unwrap().stats;
        let by_round = &rounds[id][1..];
        assert_eq!(stats.prefilled, request.prompt.len());
        assert_eq!(stats.generated, want.0.len());
        assert_eq!(stats.rounds, by_round.len());
        for position in 0..4 {
            // Tokens behind the stop were not received: they count as drafted, and not as accepted.
            let at_least = |n: usize| by_round.iter().filter(|t| **t > n).count();
            assert_eq!(
                stats.accepted.get(position).copied().unwrap_or(0),
                at_least(position + 1),
                "{stats:?}"
            );
            assert!(
                stats.drafted[position] <= stats.rounds && stats.reached[position] <= stats.drafted[position]
            );
        }
        let length = by_round.iter().sum::<usize>() as f64 / by_round.len() as f64;
        assert_eq!(stats.accept_length(), length);
        total.add(stats);
    }
    assert_eq!(engine.stats(), &total);
}

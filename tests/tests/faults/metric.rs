use crate::{
    book::{Book, How, request},
    drafters::{Among, Said, TeacherForced},
};
use engine::{
    Request,
    draft::{DraftLength, Script},
    stats::Stats,
    text::Tokenizer,
};
use kernels_core::bf16;
use kernels_testkit::rng::Rng;
use workspace_tests::{EMBEDDED, HOSTILE, assets, engine, engine_with, json, limits, streams};

/// B-042: an acceptance that was not true: a wiring fault taken for a weak head, or a corrupt verifier that
/// agreed with anything. What the head says of a given text foretells the engine's counts to the last one.
#[test]
fn acceptance_is_what_the_head_deserves() {
    let tokenizer = Tokenizer::open(assets(EMBEDDED)).unwrap();
    let prompts = json("tiny-qwen35-mtp/prompts.json");
    let requests: Vec<_> = prompts.as_array().unwrap()[..8]
        .iter()
        .map(|p| Request {
            ignore_eos: true,
            ..Request::greedy(tokenizer.encode(p.as_str().unwrap()).unwrap(), 32)
        })
        .collect();
    let drafter = TeacherForced::default();
    let said: Said = drafter.said.clone();
    let mut forced = engine_with::<bf16>(EMBEDDED, limits(8, 1), DraftLength::Fixed(1), Box::new(drafter));
    let plain = streams(&mut forced, &requests);
    assert_eq!(forced.stats().accept_length(), 1.0, "nothing was verified");

    // Rounds of one draft, walked by hand along the plain answers.
    let said = said.borrow();
    let (mut want, mut right, mut all) = (Stats::default(), 0, 0);
    (want.drafted, want.reached, want.accepted) = (vec![0], vec![0], vec![0]);
    for (i, (request, (tokens, _))) in requests.iter().zip(&plain).enumerate() {
        let n = request.prompt.len();
        let agrees = |at: usize| said.get(&(i as u64, n + at)).map(|token| *token == tokens[at + 1]);
        (0..tokens.len() - 1).filter_map(agrees).for_each(|agrees| {
            right += usize::from(agrees);
            all += 1;
        });
        want.prefilled += n;
        want.generated += tokens.len();
        let mut known = 1;
        while known < tokens.len() {
            want.rounds += 1;
            // A draft has no room where only one token is left.
            let drafted = known + 1 < tokens.len();
            let hit = drafted && agrees(known - 1).expect("the head has spoken here");
            want.drafted[0] += usize::from(drafted);
            want.accepted[0] += usize::from(hit);
            known += 1 + usize::from(hit);
        }
    }
    want.reached = want.drafted.clone();
    let mut one = engine::<bf16>(EMBEDDED, limits(8, 1), 1);
    assert_eq!(streams(&mut one, &requests), plain);
    assert_eq!(one.stats(), &want);

    // Longer drafts begin their rounds elsewhere: a sample of the same positions.
    let mut three = engine::<bf16>(EMBEDDED, limits(8, 3), 3);
    assert_eq!(streams(&mut three, &requests), plain);
    let (truth, got) = (right as f64 / all as f64, three.stats().acceptance()[0]);
    let error = (truth * (1.0 - truth) / three.stats().reached[0] as f64).sqrt();
    assert!((got - truth).abs() < 3.0 * error, "accepted {got}, teacher-forced {truth} +- {error}");
}

/// B-042, B-027: drafts that are noise, ids that do not exist among them, are accepted as often as chance
/// has it and change nothing.
#[test]
fn noise_is_not_accepted() {
    let requests: Vec<_> = (0..4).map(|i| request(150 + i, 7, 120)).collect();
    let book = Book::new(requests);
    for (ids, vocab) in
        [((0..512).collect::<Vec<u32>>(), 512.0), (vec![u32::MAX, 1 << 31, 512, 100_000, 510], 5.0)]
    {
        let drafter = book.ledger.witness::<bf16>(Box::new(Among { ids, rng: Rng::new(7) }), false);
        let mut engine = engine_with(HOSTILE, limits(3, 3), DraftLength::Fixed(3), drafter);
        assert_eq!(streams(&mut engine, &book.requests), book.answers);
        let stats = engine.stats();
        let (n, p) = (stats.reached[0] as f64, 1.0 / vocab);
        assert!(n > 300.0);
        assert!(stats.acceptance()[0] <= 3.0 * p + 3.0 * (p / n).sqrt(), "{stats:?}");
        book.ledger.assert_agreed(&workspace_tests::ledger::TARGET, 100);
    }
}

/// B-098: a rate whose denominator is a setting. What is reported is tokens per round and acceptance by
/// position among the drafts that were reached, neither of which depends on k. B-089: k counts drafts;
/// a round has k + 1 rows and emits 1 to k + 1 tokens.
#[test]
fn figures_do_not_depend_on_k() {
    let book = Book::new((0..10).map(|i| request(160 + i, 5, 240)).collect());
    for (k, length) in [(1, 1.80), (2, 2.44), (3, 2.952), (4, 3.3616)] {
        // The scripted drafts alone: the head would only cost time.
        let script = Box::new(book.script(Script::Random { seed: k, rate: 0.8 }));
        let k = k as usize;
        let mut engine = engine_with::<bf16>(HOSTILE, limits(10, k), DraftLength::Fixed(k), script);
        assert_eq!(streams(&mut engine, &book.requests), book.answers);
        let stats = engine.stats();
        assert_eq!((stats.drafted.len(), stats.accepted.len()), (k, k));
        // Rounds of at most k + 1 tokens with a deviation below 1.5; the last ones of each request are cut.
        let rounds = stats.rounds as f64;
        assert!((stats.accept_length() - length).abs() < 4.0 * 1.5 / rounds.sqrt(), "k = {k}: {stats:?}");
        for (position, rate) in stats.acceptance().into_iter().enumerate() {
            let error = (0.8 * 0.2 / stats.reached[position] as f64).sqrt();
            assert!((rate - 0.8).abs() < 4.0 * error, "k = {k}, draft {}: {rate} +- {error}", position + 1);
        }
    }
}

/// B-091: "off" for a request still drafted. B-077: work for drafts that nobody wants.
#[test]
fn off_is_off() {
    let requests: Vec<_> = (0..2).map(|i| Request { drafts: Some(0), ..request(170 + i, 30, 60) }).collect();
    let book = Book::new(requests);
    let stats = book.play("off", limits(2, 3), DraftLength::Fixed(3), How::Head);
    assert!(stats.drafted.is_empty() && stats.accept_length() == 1.0, "{stats:?}");
}

//! A thousand random requests through pools that are too small for them, a third of them aborted in every
//! phase of their lives: streams are those of requests alone, everything is given back, nothing stalls.

use engine::{
    Finish, Pace, Request, RequestId, Sampling,
    cache::Limits,
    draft::{DraftLength, Drafter, Made, Mtp, Oracle, Right, Script, Scripted},
    round::{Core, DraftJob},
};
use kernels_core::{Cpu, bf16};
use kernels_testkit::rng::Rng;
use std::collections::BTreeMap;
use workspace_tests::{EMBEDDED, HOSTILE, Served, engine, engine_at, limits, streams};

/// When the caller loses patience.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Abort {
    Never,
    /// Before any step has seen it.
    AtOnce,
    /// After this many steps, whether it still waits, is in the middle of its prompt, or decodes.
    AfterSteps(usize),
    /// When this many tokens have come.
    AfterTokens(usize),
    /// When the next round will or may end it.
    BeforeLast,
    /// In the very step that ended it.
    AfterEnd,
}

/// Where an abort met its request, as seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Waiting,
    Paused,
    Prompt,
    Decoding,
    LastRound,
    Ended,
}

/// Drafts of the head for even requests. On random weights they are hardly ever right, so those of odd
/// requests come from a script instead; the head keeps up all the same.
#[derive(Debug)]
struct HalfScripted(Scripted);

impl Drafter<Cpu, bf16> for HalfScripted {
    fn name(&self) -> &'static str {
        "half scripted"
    }

    fn needs_head(&self) -> bool {
        true
    }

    fn observe(&mut self, core: &mut Core<Cpu, bf16>, jobs: &[DraftJob]) -> engine::Result<Vec<Made>> {
        let made = Mtp.observe(core, jobs)?;
        let odd: Vec<_> = jobs.iter().filter(|job| job.request.0 % 2 == 1).cloned().collect();
        self.0.observe(core, &odd)?;
        Ok(made)
    }
}

struct Ticket {
    request: Request,
    alone: (Vec<u32>, Finish),
    abort: Abort,
}

const PROMPTS: [usize; 12] = [1, 1, 2, 3, 4, 5, 8, 9, 13, 20, 30, 45];

fn ticket(rng: &mut Rng, texts: &[Vec<u32>], positions: usize) -> (Request, Abort) {
    let text = &texts[rng.below(texts.len())];
    let mut request =
        Request::greedy(text[..text.len().min(PROMPTS[rng.below(12)])].to_vec(), 1 + rng.below(16));
    if rng.below(12) == 0 {
        // The context ends it, not its own wish.
        request.max_tokens = positions;
    }
    if rng.below(2) == 0 {
        request.sampling = Sampling {
            temperature: [0.3, 0.8, 1.0, 1.6][rng.below(4)],
            top_k: [0, 0, 5, 40][rng.below(4)],
            top_p: [1.0, 0.9, 0.5][rng.below(3)],
            min_p: [0.0, 0.0, 0.05][rng.below(3)],
            presence_penalty: [0.0, 0.7][rng.below(2)],
            frequency_penalty: [0.0, 0.3][rng.below(2)],
            repetition_penalty: [1.0, 1.2][rng.below(2)],
            bias: if rng.below(4) == 0 { vec![(rng.below(400) as u32, 4.0)] } else { Vec::new() },
            seed: u64::from(rng.bits()),
        };
    }
    request.drafts = [None, None, Some(0), Some(1), Some(4)][rng.below(5)];
    request.ignore_eos = rng.below(2) == 0;
    let abort = match rng.below(20) {
        0 => Abort::AtOnce,
        1..=3 => Abort::AfterSteps(1 + rng.below(6)),
        4 => Abort::AfterTokens(1 + rng.below(8)),
        5 => Abort::BeforeLast,
        6 => Abort::AfterEnd,
        _ => Abort::Never,
    };
    (request, abort)
}

/// Requests with what each of them is answered alone, without drafts, its prompt in one piece.
fn tickets(name: &str, count: usize, seed: u64, positions: usize) -> Vec<Ticket> {
    let mut rng = Rng::new(seed);
    let vocab = if name == EMBEDDED { 4000 } else { 490 };
    let texts: Vec<Vec<u32>> = (0..6).map(|_| (0..45).map(|_| rng.below(vocab) as u32).collect()).collect();
    let alone = Limits { positions, ..limits(1, 0) };
    let mut engine = engine::<bf16>(name, alone, 0);
    let mut answer =
        |request: &Request| streams(&mut engine, &[Request { drafts: None, ..request.clone() }]).remove(0);
    let mut all = Vec::new();
    while all.len() < count {
        let (mut request, abort) = ticket(&mut rng, &texts, positions);
        let mut alone = answer(&request);
        if rng.below(3) == 0 {
            // Some of its own tokens as a stop, one that never comes beside it.
            let at = rng.below(alone.0.len());
            let length = (1 + rng.below(3)).min(alone.0.len() - at);
            request.stop = vec![vec![vocab as u32; 3], alone.0[at..at + length].to_vec()];
            alone = answer(&request);
        }
        all.push(Ticket { request, alone, abort });
    }
    all
}

fn soak(pace: Pace, name: &str, count: usize, seed: u64, least: usize) {
    const POSITIONS: usize = 64;
    const PREFILL: usize = 5;
    let tickets = tickets(name, count, seed, POSITIONS);
    // 76 positions for four sequences of up to 64: they take turns.
    let limits =
        Limits { positions: POSITIONS, page_rows: 4, pages: 1 + 19, prefill_rows: PREFILL, ..limits(4, 4) };
    let all = (limits.pages - 1, limits.slots);
    let drafts = DraftLength::Cycle(vec![2, 4, 0, 3, 1]);
    let known: BTreeMap<RequestId, Vec<u32>> = tickets
        .iter()
        .enumerate()
        .map(|(i, ticket)| (RequestId(i as u64), [&ticket.request.prompt[..], &ticket.alone.0].concat()))
        .collect();
    // A script has to see what every round brought; where rounds are enqueued ahead, an oracle stands in.
    let drafter: Box<dyn Drafter<Cpu, bf16>> = if pace == Pace::Wait {
        Box::new(HalfScripted(Scripted::new(Script::Random { seed, rate: 0.75 }, known, 490)))
    } else {
        Box::new(Oracle::new(Right::Rate(0.75), seed, known).over(Mtp))
    };
    let mut engine = engine_at(pace, name, limits, drafts, drafter);
    let mut rng = Rng::new(seed + 1);
    let mut served = Served::default();
    let mut ids: Vec<RequestId> = Vec::new();
    // Requests that may still be aborted, with the steps they have seen.
    let mut open: BTreeMap<RequestId, (usize, usize)> = BTreeMap::new();
    let mut met: BTreeMap<Phase, usize> = BTreeMap::new();
    let (mut quiet, mut drains, mut hold) = (0, 0, false);
    while ids.len() < tickets.len() || !engine.is_idle() {
        if engine.is_idle() {
            assert_eq!(engine.free(), all, "pages or slots were lost after {} requests", ids.len());
            drains += 1;
            hold = false;
        }
        // Bursts, and now and then a pause in which everything is worked off.
        hold |= rng.below(50) == 0;
        if engine.is_idle() || !hold && engine.load().0 < 2 {
            for _ in 0..rng.below(4).min(tickets.len() - ids.len()) {
                let index = ids.len();
                let id = served.submit(&mut engine, &tickets[index].request);
                open.insert(id, (index, 0));
                ids.push(id);
            }
        }
        let mut due = Vec::new();
        for (&id, &(index, steps)) in &open {
            let got = served.of(id);
            let (ended, tokens) = (got.end.is_some(), got.tokens.len());
            let left = tickets[index].alone.0.len() - tokens;
            let now = match tickets[index].abort {
                Abort::Never => false,
                Abort::AtOnce => true,
                Abort::AfterSteps(n) => steps >= n,
                Abort::AfterTokens(n) => tokens >= n,
                Abort::BeforeLast => tokens > 0 && left <= 2,
                Abort::AfterEnd => ended,
            };
            if now {
                due.push((id, ended, tokens, left));
            }
        }
        for (id, ended, tokens, left) in due {
            let before = engine.load();
            engine.abort(id).unwrap();
            let after = engine.load();
            let phase = match (before.0 - after.0, before.1 - after.1) {
                (0, 0) => Phase::Ended,
                (1, 0) if tokens == 0 => Phase::Waiting,
                (1, 0) => Phase::Paused,
                (0, 1) if tokens == 0 => Phase::Prompt,
                (0, 1) if left <= 2 => Phase::LastRound,
                (0, 1) => Phase::Decoding,
                other => panic!("an abort took {other:?} requests away"),
            };
            assert_eq!(phase == Phase::Ended, ended, "request {id} was lost before its end");
            *met.entry(phase).or_default() += 1;
            open.remove(&id);
        }
        let events = served.step(&mut engine);
        open.values_mut().for_each(|(_, steps)| *steps += 1);
        // Who decodes emits in every step, and the oldest prompt moves on in every step; what is read a pass
        // later comes a step later.
        quiet = if events.is_empty() { quiet + 1 } else { 0 };
        assert!(quiet < POSITIONS.div_ceil(PREFILL) + pace.passes(), "nothing has come for {quiet} steps");
    }
    assert_eq!(engine.free(), all, "pages or slots were lost");

    let (mut whole, mut paused, mut generated, mut prefilled) = (0, 0, 0, 0);
    for (id, ticket) in ids.iter().zip(&tickets) {
        let (tokens, finish) = served.of(*id).ended();
        let what = format!("{id}: {:?}", ticket.request);
        match finish {
            Finish::Aborted => assert_eq!(tokens, ticket.alone.0[..tokens.len()], "{what}"),
            _ => assert_eq!((&tokens, finish), (&ticket.alone.0, ticket.alone.1), "{what}"),
        }
        whole += usize::from(finish != Finish::Aborted);
        let stats = &served.of(*id).end.as_ref().unwrap().stats;
        assert_eq!(stats.generated, tokens.len(), "{what}");
        paused += usize::from(stats.prefilled > ticket.request.prompt.len());
        generated += tokens.len();
        prefilled += stats.prefilled;
    }
    assert_eq!((engine.stats().generated, engine.stats().prefilled), (generated, prefilled));
    let lengths = &engine.stats().accepted;
    println!(
        "{name}: {count} requests, {whole} to their end, {paused} paused, {drains} times idle, {generated} tokens, \
         accept length {:.2} with {lengths:?} accepted by position; aborted {met:?}",
        engine.stats().accept_length()
    );
    assert!(paused > 3 * least, "{paused} were paused and computed again");
    assert!(lengths.len() == 4 && lengths[3] > 3 * least, "accepted by position: {lengths:?}");
    assert!(drains > count / 50, "the queue was empty {drains} times only");
    for phase in [Phase::Waiting, Phase::Prompt, Phase::Decoding, Phase::LastRound, Phase::Ended] {
        assert!(met.get(&phase).copied().unwrap_or(0) >= least, "aborts met {met:?}");
    }
}

#[test]
fn a_thousand_requests() {
    soak(Pace::Wait, HOSTILE, 1000, 1, 10);
}

#[test]
fn rounds_enqueued_ahead() {
    soak(Pace::Recorded, EMBEDDED, 150, 4, 1);
    soak(Pace::Ahead, "fixtures/tiny-moe", 60, 5, 0);
}

#[test]
fn experts_and_a_trained_head() {
    soak(Pace::Wait, "fixtures/tiny-moe", 60, 2, 0);
    soak(Pace::Wait, EMBEDDED, 40, 3, 0);
}

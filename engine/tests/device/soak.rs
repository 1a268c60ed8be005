//! A thousand random requests through pools that are too small for them, a third of them aborted in every
//! phase of their lives: streams are those of requests alone, everything is given back, nothing stalls.

use crate::{experts, nearly_tied};
use engine::{
    Engine, Finish, Options, Pace, Request, RequestId, Sampling,
    cache::Limits,
    draft::{DraftLength, Drafter, Made, Mtp, Oracle, Right, Script, Scripted},
    model::EngineBackend,
    round::{Core, DraftJob},
};
use kernels_core::bf16;
use kernels_testkit::{place::Place, rng::Rng, runner::sanitized};
use std::collections::BTreeMap;
use workspace_tests::{EMBEDDED, Served, engine_on, limits, plain_on, streams};

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

impl<B: EngineBackend> Drafter<B, bf16> for HalfScripted {
    fn name(&self) -> &'static str {
        "half scripted"
    }

    fn needs_head(&self) -> bool {
        true
    }

    fn observe(&mut self, core: &mut Core<B, bf16>, jobs: &[DraftJob]) -> engine::Result<Vec<Made>> {
        let made = Mtp.observe(core, jobs)?;
        let odd: Vec<_> = jobs.iter().filter(|job| job.request.0 % 2 == 1).cloned().collect();
        self.0.observe(core, &odd)?;
        Ok(made)
    }
}

#[derive(Debug)]
struct Ticket {
    request: Request,
    alone: (Vec<u32>, Finish),
    abort: Abort,
}

/// Of a sequence, at most.
const POSITIONS: usize = 64;
/// Prompt tokens of a step.
const PREFILL: usize = 5;

/// Not nearly enough for four sequences of up to 64 positions: they take turns.
#[derive(Clone, Copy, Debug)]
struct Pool {
    page_rows: usize,
    pages: usize,
    /// Tokens that are asked for, at most: so many that sequences outgrow the pages they began with.
    outputs: usize,
}

impl Pool {
    fn of<B: Place>() -> Pool {
        if B::GENERAL {
            Pool { page_rows: 4, pages: 19, outputs: 16 }
        } else {
            // The smallest pages that kernels have.
            Pool { page_rows: 16, pages: 5, outputs: 32 }
        }
    }
}

const PROMPTS: [usize; 12] = [1, 1, 2, 3, 4, 5, 8, 9, 13, 20, 30, 45];

fn ticket(rng: &mut Rng, texts: &[Vec<u32>], pool: Pool) -> (Request, Abort) {
    let text = &texts[rng.below(texts.len())];
    let mut request =
        Request::greedy(text[..text.len().min(PROMPTS[rng.below(12)])].to_vec(), 1 + rng.below(pool.outputs));
    if rng.below(12) == 0 {
        // The context ends it, not its own wish.
        request.max_tokens = POSITIONS;
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
fn tickets<B: EngineBackend + Place>(on: &B::Queue, run: &Run) -> Vec<Ticket> {
    let mut rng = Rng::new(run.seed);
    let vocab = if run.name == EMBEDDED { 4000 } else { 490 };
    let texts: Vec<Vec<u32>> = (0..6).map(|_| (0..45).map(|_| rng.below(vocab) as u32).collect()).collect();
    let alone = Limits { positions: POSITIONS, ..limits(1, 0) };
    let mut engine = plain_on::<B, bf16>(on, run.name, alone);
    let mut answer =
        |request: &Request| streams(&mut engine, &[Request { drafts: None, ..request.clone() }]).remove(0);
    let mut all = Vec::new();
    while all.len() < run.count {
        let (mut request, abort) = ticket(&mut rng, &texts, Pool::of::<B>());
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

/// Bytes of device memory that nobody has, where a backend can tell.
fn free_memory<B: EngineBackend>(on: &B::Queue) -> Option<usize> {
    B::synchronize(on).expect("it is idle");
    B::free_memory(on).expect("it answers")
}

/// What a driver takes at once, of a device: for an allocation, for the first launch of a kernel, for a recording.
const GRANULE: usize = 2 << 20;

/// One long run of an engine.
#[derive(Clone, Copy, Debug)]
struct Run {
    pace: Pace,
    name: &'static str,
    count: usize,
    seed: u64,
    /// Of everything that a run is for, at least so much must have happened.
    least: usize,
}

fn soak<B: EngineBackend + Place>(on: &B::Queue, run: Run) {
    // Under a sanitizer what is looked for are bad accesses, and every step has all kernels.
    let run = if sanitized() { Run { count: 4, ..run } } else { run };
    let Run { pace, name, count, seed, least } = run;
    let tickets = tickets::<B>(on, &run);
    let Pool { page_rows, pages, .. } = Pool::of::<B>();
    let limits =
        Limits { positions: POSITIONS, page_rows, pages: 1 + pages, prefill_rows: PREFILL, ..limits(4, 4) };
    let all = (limits.pages - 1, limits.slots);
    let drafts = DraftLength::Cycle(vec![2, 4, 0, 3, 1]);
    let known: BTreeMap<RequestId, Vec<u32>> = tickets
        .iter()
        .enumerate()
        .map(|(i, ticket)| (RequestId(i as u64), [&ticket.request.prompt[..], &ticket.alone.0].concat()))
        .collect();
    // A script has to see what every round brought; where rounds are enqueued ahead, an oracle stands in.
    let drafter: Box<dyn Drafter<B, bf16>> = if pace == Pace::Wait {
        Box::new(HalfScripted(Scripted::new(Script::Random { seed, rate: 0.75 }, known, 490)))
    } else {
        Box::new(Oracle::new(Right::Rate(0.75), seed, known).over(Mtp))
    };
    let mut engine: Engine<B, bf16> = engine_on(on, name, Options { limits, drafts, pace }, drafter);
    let mut rng = Rng::new(seed + 1);
    let mut served = Served::default();
    let mut ids: Vec<RequestId> = Vec::new();
    // Requests that may still be aborted, with the steps they have seen.
    let mut open: BTreeMap<RequestId, (usize, usize)> = BTreeMap::new();
    let mut met: BTreeMap<Phase, usize> = BTreeMap::new();
    let (mut quiet, mut drains, mut hold) = (0, 0, false);
    // Free memory and recorded parts of rounds, once half of the requests are through.
    let mut warm = None;
    while ids.len() < tickets.len() || !engine.is_idle() {
        // Bursts, and now and then a pause in which everything is worked off.
        hold |= rng.below(50) == 0;
        // Where memory is looked at, that pause must come in time.
        hold |= B::DEFERRED && warm.is_none() && 2 * ids.len() >= count;
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
        if engine.is_idle() {
            assert_eq!(engine.free(), all, "pages or slots were lost after {} requests", ids.len());
            drains += 1;
            hold = false;
            if warm.is_none() && 2 * ids.len() >= count {
                warm = Some((free_memory::<B>(on), engine.recorded()));
            }
        }
    }
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
    if sanitized() {
        // So few requests do not meet everything, and other processes have memory of the device.
        return;
    }
    assert_eq!(engine.recorded() > 0, B::DEFERRED && pace == Pace::Recorded, "what was recorded");
    let (warm, recorded) = warm.expect("it is idle after half of the requests");
    if let (Some(before), Some(after)) = (warm, free_memory::<B>(on)) {
        let late = engine.recorded() - recorded;
        println!(
            "{name}: {before} bytes were free after half of the requests, {after} at the end; {late} recorded since"
        );
        // Short runs meet a kernel for the first time, and have it loaded, in their second half.
        let gone = if count < 500 { 0 } else { before.saturating_sub(after) };
        assert!(
            gone <= (1 + late) * GRANULE,
            "{gone} bytes are gone, and {late} parts of rounds were recorded"
        );
    }
    assert!(paused > 3 * least, "{paused} were paused and computed again");
    assert!(lengths.len() == 4 && lengths[3] > 3 * least, "accepted by position: {lengths:?}");
    assert!(drains > count / 50, "the queue was empty {drains} times only");
    for phase in [Phase::Waiting, Phase::Prompt, Phase::Decoding, Phase::LastRound, Phase::Ended] {
        assert!(met.get(&phase).copied().unwrap_or(0) >= least, "aborts met {met:?}");
    }
}

/// Waiting for every pass; on a device half of it by recordings, enqueued ahead.
pub(crate) fn a_thousand_requests<B: EngineBackend + Place>(on: &B::Queue) {
    let run = Run { pace: Pace::Wait, name: nearly_tied::<B>(), count: 1000, seed: 1, least: 10 };
    if B::GENERAL {
        return soak::<B>(on, run);
    }
    soak::<B>(on, Run { count: 500, least: 4, ..run });
    soak::<B>(on, Run { pace: Pace::Recorded, count: 500, seed: 6, least: 4, ..run });
}

pub(crate) fn rounds_enqueued_ahead<B: EngineBackend + Place>(on: &B::Queue) {
    soak::<B>(on, Run { pace: Pace::Recorded, name: EMBEDDED, count: 150, seed: 4, least: 1 });
    soak::<B>(on, Run { pace: Pace::Ahead, name: experts::<B>(), count: 60, seed: 5, least: 0 });
}

pub(crate) fn experts_and_a_trained_head<B: EngineBackend + Place>(on: &B::Queue) {
    soak::<B>(on, Run { pace: Pace::Wait, name: experts::<B>(), count: 60, seed: 2, least: 0 });
    soak::<B>(on, Run { pace: Pace::Wait, name: EMBEDDED, count: 40, seed: 3, least: 0 });
}

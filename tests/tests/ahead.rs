//! Rounds that are enqueued before the one before was read: who leaves, joins or ends in between.

use engine::{
    Finish, Pace, Request,
    cache::Limits,
    draft::{DraftLength, Drafter, Made, Mtp, Plain},
    round::{Core, DraftJob},
};
use kernels_core::{Cpu, bf16};
use kernels_testkit::rng::Rng;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use workspace_tests::{EMBEDDED, Served, engine, engine_at, limits, streams};

fn request(seed: u64, length: usize, tokens: usize) -> Request {
    let mut rng = Rng::new(seed);
    let prompt = (0..length).map(|_| rng.below(4000) as u32).collect();
    Request { ignore_eos: true, ..Request::greedy(prompt, tokens) }
}

/// What plain decoding answers, each request alone and every pass waited for.
fn alone(requests: &[Request]) -> Vec<(Vec<u32>, Finish)> {
    let mut engine = engine::<bf16>(EMBEDDED, limits(1, 0), 0);
    requests.iter().map(|r| streams(&mut engine, std::slice::from_ref(r)).remove(0)).collect()
}

/// One slot: whoever comes next moves in behind rounds that still name who was there before. Whatever of the
/// pipeline is under way when the first one leaves, the next one's answer is its own.
#[test]
fn a_slot_changes_hands_in_every_phase() {
    let requests = [request(1, 19, 30), request(2, 11, 12)];
    let want = alone(&requests);
    // Prompts of three passes and of two.
    let limits = Limits { prefill_rows: 7, ..limits(1, 3) };
    for pace in [Pace::Ahead, Pace::Recorded] {
        let drafts = DraftLength::Cycle(vec![3, 0, 1, 2]);
        let mut engine = engine_at::<bf16>(pace, EMBEDDED, limits.clone(), drafts, Box::new(Mtp));
        for steps in 0..12 {
            let mut served = Served::default();
            let first = served.submit(&mut engine, &requests[0]);
            for _ in 0..steps {
                served.step(&mut engine);
            }
            // Both are there before anything of the first is read.
            engine.abort(first).unwrap();
            let second = served.submit(&mut engine, &requests[1]);
            served.drain(&mut engine);
            let (tokens, finish) = served.of(first).ended();
            assert_eq!((&tokens[..], finish), (&want[0].0[..tokens.len()], Finish::Aborted), "{steps} steps");
            assert_eq!(served.of(second).ended(), want[1], "after {steps} steps of another");
            assert_eq!(engine.free(), (limits.pages - 1, 1));
        }
    }
}

/// Counts the passes it is shown.
#[derive(Debug)]
struct Passes(Plain, Arc<AtomicUsize>);

impl Drafter<Cpu, bf16> for Passes {
    fn name(&self) -> &'static str {
        "counting"
    }
    fn looks_back(&self) -> bool {
        false
    }
    fn observe(&mut self, core: &mut Core<Cpu, bf16>, jobs: &[DraftJob]) -> engine::Result<Vec<Made>> {
        self.1.fetch_add(1, Relaxed);
        self.0.observe(core, jobs)
    }
}

/// An end that the host can foresee costs no round; one that it cannot costs one.
#[test]
fn no_round_behind_a_foreseen_end() {
    let length = request(3, 5, 9);
    let (tokens, _) = alone(std::slice::from_ref(&length)).remove(0);
    let stopped = Request { stop: vec![tokens[3..5].to_vec()], ..length.clone() };
    let ends = alone(std::slice::from_ref(&stopped)).remove(0).0.len();
    for (request, more) in [(length, 0), (stopped, 1)] {
        let passes = Arc::new(AtomicUsize::new(0));
        let counting = Box::new(Passes(Plain, passes.clone()));
        let mut engine = engine_at(Pace::Ahead, EMBEDDED, limits(1, 0), DraftLength::Fixed(0), counting);
        let got = streams(&mut engine, &[request]).remove(0).0;
        assert_eq!(got, tokens[..if more > 0 { ends } else { tokens.len() }]);
        // The prompt's pass brings the first token.
        assert_eq!(passes.load(Relaxed), got.len() + more);
        assert_eq!(engine.stats().rounds, got.len() - 1);
    }
}

/// A fixed number of launches and sizes says nothing about tokens: streams, ends and counts of drafts are
/// those of waiting for every pass.
#[test]
fn counts_are_those_of_waiting() {
    let requests: Vec<Request> = (0..5).map(|i| request(10 + i, 3 + 4 * i as usize, 20)).collect();
    let want = alone(&requests);
    let mut counts = Vec::new();
    for pace in [Pace::Wait, Pace::Ahead, Pace::Recorded] {
        let drafts = DraftLength::Fixed(3);
        let mut engine = engine_at::<bf16>(pace, EMBEDDED, limits(3, 3), drafts, Box::new(Mtp));
        assert_eq!(streams(&mut engine, &requests), want, "{pace}");
        counts.push(engine.stats().clone());
    }
    assert!(counts[0].accepted.len() == 3, "{:?}", counts[0]);
    assert_eq!(counts[0], counts[1]);
    assert_eq!(counts[0], counts[2]);
}

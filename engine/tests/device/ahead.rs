//! Rounds that are enqueued before the one before was read: who leaves, joins or ends in between.

use crate::nearly_tied;
use engine::{
    Finish, Options, Pace, Request,
    cache::Limits,
    draft::{DraftLength, Drafter, Made, Mtp, Plain},
    model::EngineBackend,
    round::{Core, DraftJob},
};
use kernels_core::bf16;
use kernels_testkit::{place::Place, rng::Rng, runner::stride};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use workspace_tests::{EMBEDDED, Served, engine_on, limits, plain_on, streams};

/// The checkpoints to try, with ids that each knows: where a step is cheap, nearly tied tokens too.
fn checkpoints<B: Place>() -> Vec<(&'static str, usize)> {
    let tied = (!B::GENERAL).then(|| (nearly_tied::<B>(), 490));
    [(EMBEDDED, 4000)].into_iter().chain(tied).collect()
}

/// A prompt of `length` ids below `ids` that generates `tokens`, whatever they are.
fn request(seed: u64, ids: usize, length: usize, tokens: usize) -> Request {
    let mut rng = Rng::new(seed);
    let prompt = (0..length).map(|_| rng.below(ids) as u32).collect();
    Request { ignore_eos: true, ..Request::greedy(prompt, tokens) }
}

/// What plain decoding answers, each request alone and every pass waited for.
fn alone<B: EngineBackend + Place>(
    on: &B::Queue,
    name: &str,
    requests: &[Request],
) -> Vec<(Vec<u32>, Finish)> {
    let mut engine = plain_on::<B, bf16>(on, name, limits(1, 0));
    requests.iter().map(|r| streams(&mut engine, std::slice::from_ref(r)).remove(0)).collect()
}

/// One slot: whoever comes next moves in behind rounds that still name who was there before. Whatever of the
/// pipeline is under way when the first one leaves, the next one's answer is its own.
pub(crate) fn a_slot_changes_hands_in_every_phase<B: EngineBackend + Place>(on: &B::Queue) {
    for (name, ids) in checkpoints::<B>() {
        let requests = [request(1, ids, 19, 30), request(2, ids, 11, 12)];
        let want = alone::<B>(on, name, &requests);
        // Prompts of three passes and of two.
        let limits = Limits { prefill_rows: 7, ..limits(1, 3) };
        for pace in [Pace::Ahead, Pace::Recorded] {
            let drafts = DraftLength::Cycle(vec![3, 0, 1, 2]);
            let options = Options { limits: limits.clone(), drafts, pace };
            let mut engine = engine_on::<B, bf16>(on, name, options, Box::new(Mtp));
            for steps in (0..12).step_by(stride(5)) {
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
                let what = format!("{name}, {pace}, after {steps} steps of another");
                assert_eq!((&tokens[..], finish), (&want[0].0[..tokens.len()], Finish::Aborted), "{what}");
                assert_eq!(served.of(second).ended(), want[1], "{what}");
                assert_eq!(engine.free(), (limits.pages - 1, 1), "{what}");
            }
            assert_eq!(engine.recorded() > 0, B::DEFERRED && pace == Pace::Recorded, "{name}, {pace}");
        }
    }
}

/// Counts the passes it is shown.
#[derive(Debug)]
struct Passes(Plain, Arc<AtomicUsize>);

impl<B: EngineBackend> Drafter<B, bf16> for Passes {
    fn name(&self) -> &'static str {
        "counting"
    }
    fn looks_back(&self) -> bool {
        false
    }
    fn observe(&mut self, core: &mut Core<B, bf16>, jobs: &[DraftJob]) -> engine::Result<Vec<Made>> {
        self.1.fetch_add(1, Relaxed);
        self.0.observe(core, jobs)
    }
}

/// An end that the host can foresee costs no round; one that it cannot costs one.
pub(crate) fn no_round_behind_a_foreseen_end<B: EngineBackend + Place>(on: &B::Queue) {
    let length = request(3, 4000, 5, 9);
    let (tokens, _) = alone::<B>(on, EMBEDDED, std::slice::from_ref(&length)).remove(0);
    let stopped = Request { stop: vec![tokens[3..5].to_vec()], ..length.clone() };
    let ends = alone::<B>(on, EMBEDDED, std::slice::from_ref(&stopped)).remove(0).0.len();
    for (request, more) in [(length, 0), (stopped, 1)] {
        let passes = Arc::new(AtomicUsize::new(0));
        let counting = Box::new(Passes(Plain, passes.clone()));
        let options = Options { limits: limits(1, 0), drafts: DraftLength::Fixed(0), pace: Pace::Ahead };
        let mut engine = engine_on::<B, bf16>(on, EMBEDDED, options, counting);
        let got = streams(&mut engine, &[request]).remove(0).0;
        assert_eq!(got, tokens[..if more > 0 { ends } else { tokens.len() }]);
        // The prompt's pass brings the first token.
        assert_eq!(passes.load(Relaxed), got.len() + more);
        assert_eq!(engine.stats().rounds, got.len() - 1);
    }
}

/// A fixed number of launches and sizes says nothing about tokens: streams, ends and counts of drafts are
/// those of waiting for every pass.
pub(crate) fn counts_are_those_of_waiting<B: EngineBackend + Place>(on: &B::Queue) {
    for (name, ids) in checkpoints::<B>() {
        let request = |i: usize| request(10 + i as u64, ids, 3 + 4 * i, 20);
        let requests: Vec<Request> = (0..5).step_by(stride(2)).map(request).collect();
        let want = alone::<B>(on, name, &requests);
        let mut counts = Vec::new();
        for pace in [Pace::Wait, Pace::Ahead, Pace::Recorded] {
            let options = Options { limits: limits(3, 3), drafts: DraftLength::Fixed(3), pace };
            let mut engine = engine_on::<B, bf16>(on, name, options, Box::new(Mtp));
            assert_eq!(streams(&mut engine, &requests), want, "{name}, {pace}");
            counts.push(engine.stats().clone());
        }
        assert!(counts[0].drafted.len() == 3, "{name}: {:?}", counts[0]);
        // A head of random weights is never right three times in a row.
        assert!(name != EMBEDDED || counts[0].accepted.len() == 3, "{:?}", counts[0]);
        assert_eq!(counts[0], counts[1], "{name}");
        assert_eq!(counts[0], counts[2], "{name}");
    }
}

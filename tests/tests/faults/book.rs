//! Requests with their plain answers, and a ledger of what every memory must hold on the way.

use crate::drafters::Overruled;
use engine::{
    Finish, Request, RequestId,
    cache::Limits,
    draft::{DraftLength, Drafter, Mtp, Plain, Script, Scripted},
    stats::Stats,
};
use kernels_core::{Cpu, bf16};
use kernels_testkit::rng::Rng;
use workspace_tests::{HOSTILE, Ledger, Served, engine_with, limits};

/// A prompt of `length` random tokens that generates `tokens`, whatever they are.
pub(crate) fn request(seed: u64, length: usize, tokens: usize) -> Request {
    let mut rng = Rng::new(seed);
    let prompt = (0..length).map(|_| rng.below(490) as u32).collect();
    Request { ignore_eos: true, ..Request::greedy(prompt, tokens) }
}

/// What proposes.
#[derive(Clone, Debug)]
pub(crate) enum How {
    /// Nothing.
    Plain,
    /// The draft head.
    Head,
    /// The draft head drafts, and a script then writes over its drafts.
    Script(Script),
}

/// Requests, what plain decoding answers each of them alone, and the state on the way.
pub(crate) struct Book {
    pub(crate) name: String,
    pub(crate) requests: Vec<Request>,
    pub(crate) answers: Vec<(Vec<u32>, Finish)>,
    pub(crate) ledger: Ledger,
    /// Proposals of the head are a function of the tokens: they are, where requests are greedy.
    greedy: bool,
}

impl Book {
    /// Of the model in which one wrong bit shows.
    pub(crate) fn new(requests: Vec<Request>) -> Self {
        Self::of(HOSTILE, requests)
    }

    pub(crate) fn of(name: &str, requests: Vec<Request>) -> Self {
        let greedy = requests.iter().all(|r| r.sampling == engine::Sampling::default());
        let mut book = Book { name: name.into(), requests, answers: vec![], ledger: Ledger::new(), greedy };
        // One token a step, the state stored in each; then the head, alone and undisturbed.
        let most = book.requests.iter().filter_map(|r| r.drafts).max().unwrap_or(1).max(1);
        let alone = Limits { flush_after: 0, ..limits(1, most) };
        for request in book.requests.clone() {
            let mut engine =
                engine_with(name, alone.clone(), DraftLength::Fixed(0), book.drafter(&How::Plain));
            let request = Request { drafts: None, ..request };
            book.answers.extend(workspace_tests::streams(&mut engine, std::slice::from_ref(&request)));
        }
        book.play("the head alone", alone, DraftLength::Fixed(1), How::Head);
        book
    }

    /// Answers as a drafter's script knows them, for an engine that gets all requests in order.
    pub(crate) fn script(&self, script: Script) -> Scripted {
        let known = self.requests.iter().zip(&self.answers).enumerate();
        let known = known
            .map(|(i, (r, answer))| (RequestId(i as u64), [&r.prompt[..], &answer.0].concat()))
            .collect();
        Scripted::new(script, known, 490)
    }

    fn drafter(&self, how: &How) -> Box<dyn Drafter<Cpu, bf16>> {
        let witness = |inner: Box<dyn Drafter<Cpu, bf16>>| self.ledger.witness(inner, self.greedy);
        match how {
            How::Plain => witness(Box::new(Plain)),
            How::Head => witness(Box::new(Mtp)),
            How::Script(script) => Box::new(Overruled {
                head: witness(Box::new(Mtp)),
                by: Box::new(self.script(script.clone())),
            }),
        }
    }

    /// Serves all requests, those of `arrivals` at these steps and the rest at once: the answers must be
    /// the plain ones and every memory on the way what the ledger says. Returns each one's counts.
    #[track_caller]
    pub(crate) fn arrive(
        &self,
        what: &str,
        limits: Limits,
        drafts: DraftLength,
        how: How,
        arrivals: &[usize],
    ) -> Vec<Stats> {
        let all = (limits.pages - 1, limits.slots);
        let mut engine = engine_with(&self.name, limits, drafts, self.drafter(&how));
        // A sequence that is nobody's in every round that has room for one.
        engine.pad_rounds(1);
        let mut served = Served::default();
        let mut ids = Vec::new();
        for step in 0.. {
            while ids.len() < self.requests.len() && arrivals.get(ids.len()).is_none_or(|at| *at <= step) {
                ids.push(served.submit(&mut engine, &self.requests[ids.len()]));
            }
            if ids.len() == self.requests.len() && engine.is_idle() {
                break;
            }
            served.step(&mut engine);
        }
        for (i, (got, want)) in served.ended(&ids).iter().zip(&self.answers).enumerate() {
            assert_eq!(got, want, "{what}: request {i}");
        }
        assert_eq!(engine.free(), all, "{what}: pages or slots were lost");
        self.ledger.assert_agreed(&[], 0);
        ids.iter().map(|id| served.of(*id).end.as_ref().expect("it has ended").stats.clone()).collect()
    }

    /// The same with all requests at once; returns the counts of all.
    #[track_caller]
    pub(crate) fn play(&self, what: &str, limits: Limits, drafts: DraftLength, how: How) -> Stats {
        let mut total = Stats::default();
        self.arrive(what, limits, drafts, how, &[]).iter().for_each(|stats| total.add(stats));
        total
    }
}

/// What all the scenarios lean on: a ledger that agrees with anything would prove nothing.
#[test]
fn the_ledger_notices_other_bits() {
    let book = Book::new(vec![request(1, 20, 12)]);
    // The same model in float32: every memory differs in its last bits.
    let witness = book.ledger.witness::<f32>(Box::new(Mtp), true);
    let mut engine = engine_with::<f32>(HOSTILE, limits(1, 2), DraftLength::Fixed(2), witness);
    workspace_tests::streams(&mut engine, &book.requests);
    let refused =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| book.ledger.assert_agreed(&[], 0)));
    let message = *refused.expect_err("the ledger agreed").downcast::<String>().expect("a message");
    assert!(message.contains("differences") && message.contains("K/V, layer 0: row 0"), "{message}");
}

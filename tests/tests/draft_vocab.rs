//! Drafts out of a part of the vocabulary, or by a head in fp8: the output stays, no draft is an id that is not listed, and acceptance is
//! what it was where nothing is left out.

use engine::{
    Engine, Finish, Options, Pace, Request, Result, Sampling,
    draft::{DraftLength, DraftVocab, Drafter, Made, Mtp},
    model::EngineBackend,
    parity::{self, Plan, Proposer},
    round::{Core, DraftJob},
    stats::Stats,
    text::Tokenizer,
};
use kernels_core::{Activation, bf16};
use std::{cell::Cell, rc::Rc, sync::OnceLock};
use workspace_tests::{EMBEDDED, assets, engine, json, limits, load, streams};

const TOKENS: usize = 48;
const K: usize = 3;

fn tokenizer() -> Tokenizer {
    Tokenizer::open(assets(EMBEDDED)).unwrap()
}

/// Six prompts, half of them sampled, each by other rules.
fn requests() -> Vec<Request> {
    let (tokenizer, prompts) = (tokenizer(), json("tiny-qwen35-mtp/prompts.json"));
    let sampling = [
        Sampling { temperature: 1.0, ..Sampling::default() },
        Sampling { temperature: 0.8, top_k: 20, top_p: 0.95, repetition_penalty: 1.1, ..Sampling::default() },
        Sampling {
            temperature: 1.2,
            min_p: 0.05,
            bias: vec![(0, f32::NEG_INFINITY), (13, 1.5)],
            ..Sampling::default()
        },
    ];
    let request = |(i, prompt): (usize, &serde_json::Value)| {
        let mut request = Request::greedy(tokenizer.encode(prompt.as_str().unwrap()).unwrap(), TOKENS - i);
        if i % 2 == 1 {
            request.sampling = Sampling { seed: 300 + i as u64, ..sampling[i / 2].clone() };
        }
        request
    };
    prompts.as_array().unwrap().iter().take(6).enumerate().map(request).collect()
}

fn plain() -> &'static [(Vec<u32>, Finish)] {
    static PLAIN: OnceLock<Vec<(Vec<u32>, Finish)>> = OnceLock::new();
    PLAIN.get_or_init(|| streams(&mut engine::<bf16>(EMBEDDED, limits(3, 0), 0), &requests()))
}

/// Looks at what another drafter stands behind the tokens.
#[derive(Debug)]
struct Watched<D> {
    inner: D,
    seen: Rc<Cell<usize>>,
    renewed: Rc<Cell<bool>>,
    /// The ids of the pass before.
    listed: Option<Vec<u32>>,
}

impl<B: EngineBackend, A: Activation, D: Drafter<B, A>> Drafter<B, A> for Watched<D> {
    fn name(&self) -> &'static str {
        "watched"
    }

    fn needs_head(&self) -> bool {
        true
    }

    fn observe(&mut self, core: &mut Core<B, A>, jobs: &[DraftJob]) -> Result<Vec<Made>> {
        // A list that learns is renewed between rounds.
        let vocab = core.draft_vocab_mut().expect("drafts are trimmed").clone();
        let made = self.inner.observe(core, jobs)?;
        let (on, table) = (core.queue(), &core.caches().shared.table);
        for job in jobs.iter().filter(|job| job.drafts > 0 && !job.finished) {
            let proposed = B::read(on, &table.proposed, job.slot..job.slot + 1)?[0] as usize;
            let first = job.slot * table.positions + job.committed + 1;
            for id in B::read(on, &table.tokens, first..first + proposed)? {
                assert!(vocab.contains(id as u32), "{id} is drafted and not listed");
            }
            self.seen.set(self.seen.get() + proposed);
        }
        let before = self.listed.replace(vocab.ids().to_vec());
        self.renewed.set(self.renewed.get() || before.is_some_and(|before| before != vocab.ids()));
        Ok(made)
    }
}

/// What the requests receive, and the counts; drafts out of `vocab`, by `inner`.
fn run(vocab: DraftVocab, inner: impl Drafter<kernels_core::Cpu, bf16> + 'static) -> (Stats, bool) {
    run_in(false, vocab, inner)
}

/// The same by rows in fp8, if asked for.
fn run_in(
    fp8: bool,
    vocab: DraftVocab,
    inner: impl Drafter<kernels_core::Cpu, bf16> + 'static,
) -> (Stats, bool) {
    let (context, mut model) = load::<bf16>(EMBEDDED);
    let listed = vocab.ids().len();
    model.trim_drafts(&context, vocab).unwrap();
    if fp8 {
        model.quantize_drafts(&context).unwrap();
    }
    assert_eq!(model.drafts_in_fp8(), fp8);
    let (seen, renewed) = (Rc::default(), Rc::default());
    let drafter = Watched { inner, seen: Rc::clone(&seen), renewed: Rc::clone(&renewed), listed: None };
    let options = Options { limits: limits(3, K), drafts: DraftLength::Fixed(K), pace: Pace::Wait };
    let mut engine = Engine::new(context, model, options, Box::new(drafter)).unwrap();
    assert_eq!(streams(&mut engine, &requests()), plain(), "drafts among {listed} ids");
    assert!(seen.get() > 100, "{} drafts were looked at", seen.get());
    (engine.stats().clone(), renewed.get())
}

fn valid() -> usize {
    tokenizer().valid_vocab()
}

fn first(count: usize) -> DraftVocab {
    DraftVocab::first(count, &tokenizer().added(), valid()).unwrap()
}

#[test]
fn any_part_of_the_vocabulary_leaves_the_output() {
    let mut full = engine::<bf16>(EMBEDDED, limits(3, K), K);
    assert_eq!(streams(&mut full, &requests()), plain());
    let (all, _) = run(first(valid()), Mtp);
    assert_eq!(all, *full.stats(), "nothing is left out");
    let lengths: Vec<f64> = [1, 16, 300, 1500].map(|n| run(first(n), Mtp).0.accept_length()).to_vec();
    println!(
        "accept length {:.2}; among the first 1, 16, 300 and 1500 ids {lengths:.2?}",
        all.accept_length()
    );
    assert!(
        lengths.iter().all(|length| *length >= 1.0 && *length < all.accept_length() + 0.05),
        "{lengths:?}"
    );
    assert!(lengths[0] + 0.2 < lengths[3], "more ids are more drafts that come true: {lengths:?}");
    // In any order, one alone, one that stands for nothing frequent: no multiple of a kernel's row group.
    run(DraftVocab::listed((0..1501).rev().step_by(3).collect(), valid()).unwrap(), Mtp);
    run(DraftVocab::listed(vec![valid() as u32 - 1], valid()).unwrap(), Mtp);
}

#[test]
fn a_list_that_learns_finds_what_comes() {
    let (fixed, renewed) = run(first(200), Mtp);
    assert!(!renewed);
    let (learned, renewed) = run(first(200).learning(&tokenizer().added()), Mtp);
    assert!(renewed);
    println!("accept length {:.2}, learned {:.2}", fixed.accept_length(), learned.accept_length());
    assert!(learned.accept_length() > fixed.accept_length() + 0.05, "it learned nothing");
}

/// All ids, as they are chosen among without a list.
fn run_fp8() -> Stats {
    let (context, mut model) = load::<bf16>(EMBEDDED);
    model.quantize_drafts(&context).unwrap();
    assert!(model.drafts_in_fp8() && model.draft_vocab().is_none());
    let options = Options { limits: limits(3, K), drafts: DraftLength::Fixed(K), pace: Pace::Wait };
    let mut engine = Engine::new(context, model, options, Box::new(Mtp)).unwrap();
    assert_eq!(streams(&mut engine, &requests()), plain(), "all ids in fp8");
    engine.stats().clone()
}

#[test]
fn a_head_in_fp8_leaves_the_output_and_most_drafts() {
    let percent =
        |stats: &Stats| stats.acceptance().into_iter().map(|share| 100.0 * share).collect::<Vec<_>>();
    let of_all = |fp8| run_in(fp8, first(valid()), Mtp).0;
    let pairs = [
        ("all ids", of_all(false), run_fp8()),
        ("1500 ids", run(first(1500), Mtp).0, run_in(true, first(1500), Mtp).0),
        ("300 ids", run(first(300), Mtp).0, run_in(true, first(300), Mtp).0),
    ];
    for (what, bf16, fp8) in &pairs {
        let (length, in_fp8) = (bf16.accept_length(), fp8.accept_length());
        let (shares, shares_in_fp8) = (percent(bf16), percent(fp8));
        println!(
            "{what}: accept length {length:.3} in bf16, {in_fp8:.3} in fp8; by position {shares:.1?}, {shares_in_fp8:.1?} %"
        );
        for (one, other) in shares.iter().zip(&shares_in_fp8) {
            assert!((one - other).abs() < 5.0, "{what}: {shares:.1?} and {shares_in_fp8:.1?} %");
        }
    }
    // A list of all ids is no list.
    assert_eq!(of_all(true), pairs[0].2);
    assert!(pairs.iter().any(|(_, bf16, fp8)| bf16 != fp8), "somewhere another draft is made");
    let (learned, renewed) = run_in(true, first(200).learning(&tokenizer().added()), Mtp);
    assert!(renewed && learned.accept_length() > 1.0);
    // In which order they are asked for does not matter.
    let (context, mut model) = load::<bf16>(EMBEDDED);
    model.quantize_drafts(&context).unwrap();
    model.trim_drafts(&context, first(300)).unwrap();
    assert!(model.drafts_in_fp8() && model.draft_vocab().is_some());
}

/// Renewed at every opportunity, with tokens that have nothing to do with what comes.
#[derive(Debug)]
struct Restless {
    inner: Mtp,
    next: u32,
    valid: u32,
}

impl<B: EngineBackend, A: Activation> Drafter<B, A> for Restless {
    fn name(&self) -> &'static str {
        "restless"
    }

    fn observe(&mut self, core: &mut Core<B, A>, jobs: &[DraftJob]) -> Result<Vec<Made>> {
        let made = self.inner.observe(core, jobs)?;
        let ids: Vec<u32> = (0..40).map(|i| (self.next + 97 * i) % self.valid).collect();
        self.next += 13;
        core.draft_vocab_mut().expect("drafts are trimmed").observe(&ids);
        assert!(core.refresh_draft_vocab()? > 0);
        Ok(made)
    }
}

#[test]
fn a_list_may_change_in_every_round() {
    for fp8 in [false, true] {
        let restless = Restless { inner: Mtp, next: 0, valid: valid() as u32 };
        let (_, renewed) = run_in(fp8, first(100).learning(&[]), restless);
        assert!(renewed);
    }
}

/// The rows of the table that draft with the head, by a trimmed one: it counts by what it says itself.
#[test]
fn parity_holds_and_counts() {
    for fp8 in [false, true] {
        parity_of(fp8);
    }
}

fn parity_of(fp8: bool) {
    let (context, mut model) = load::<bf16>(EMBEDDED);
    model.trim_drafts(&context, first(600)).unwrap();
    if fp8 {
        model.quantize_drafts(&context).unwrap();
    }
    let mut plan = Plan { prompts: 4, tokens: 16, words: 0, ..Plan::quick() };
    plan.rows.retain(|row| row.proposer == Proposer::Mtp);
    assert!(plan.rows.len() > 1);
    let report = parity::run(context, model, &tokenizer(), &plan, |_, _, _| {}).unwrap();
    assert!(report.passed(), "{report}");
}

#[test]
fn lists_are_refused_by_name() {
    let refused = |list: Vec<u32>| DraftVocab::listed(list, valid()).unwrap_err().to_string();
    assert!(refused(vec![valid() as u32]).contains(&format!("ids are below {}", valid())));
    assert!(refused(vec![]).contains("an empty list"));
    assert!(refused(vec![2, 5, 2]).contains("2 twice"));
}

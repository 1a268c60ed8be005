//! `lockstep parity --quick`: every value of every option, compared with plain decoding byte for byte.

use engine::{
    Error,
    cache::Limits,
    model::{self, Scales},
    parity::{self, Drafts, Plan, Report},
    round::{Difference, LayerDigest},
    text::Tokenizer,
};
use kernels_core::bf16;
use workspace_tests::{EMBEDDED, assets, core, limits, load};

fn run(plan: &Plan) -> engine::Result<Report> {
    let (context, model) = load::<bf16>(EMBEDDED);
    let tokenizer = Tokenizer::open(assets(EMBEDDED)).unwrap();
    parity::run(context, model, &tokenizer, plan, |_, _, _| {})
}

#[test]
fn every_row_is_identical_and_counts() {
    let plan = Plan::quick();
    let report = run(&plan).unwrap();
    assert!(report.passed(), "{report}");
    // The configurations, and the word problems plain, with 3 and with 8 drafts.
    assert_eq!(report.rows.len(), plan.rows.len() + 3);
    for row in report.rows.iter().filter(|row| row.row.is_some()) {
        assert!(row.states >= plan.prompts, "a state at every request's end, at least: {report}");
        let verified = row.stats.drafted.iter().sum::<usize>();
        let plain = row.row.is_some_and(|row| row.drafts == Drafts::Fixed(0));
        assert_eq!(verified == 0, plain, "{report}");
    }
    assert!(report.rows.iter().all(|row| row.row.is_none() || row.aborted > 0), "companions left: {report}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["rows"][1]["row"]["drafts"], "1");
    assert_eq!(json["rows"][1]["counted"]["counts"], true);
}

#[test]
fn float32_too() {
    let plan = Plan::quick();
    let (context, model) = load::<f32>(EMBEDDED);
    let tokenizer = Tokenizer::open(assets(EMBEDDED)).unwrap();
    // A row with the head and changing drafts, and one with every accept length.
    let rows = plan
        .rows
        .iter()
        .copied()
        .filter(|row| row.drafts == Drafts::Changing || row.proposer == parity::Proposer::Pattern);
    let plan = Plan { rows: rows.collect(), words: 0, prompts: 4, ..plan };
    assert_eq!(plan.rows.len(), 2);
    let report = parity::run(context, model, &tokenizer, &plan, |_, _, _| {}).unwrap();
    assert!(report.passed(), "{report}");
}

/// A backend beside itself, and beside another model.
#[test]
fn backends_are_compared_by_margins() {
    let prompts: Vec<Vec<u32>> = vec![vec![10, 20, 30], vec![400; 9]];
    let across = parity::across(load::<bf16>(EMBEDDED), load::<bf16>(EMBEDDED), &prompts, 12).unwrap();
    assert_eq!((across.streams, across.equal, across.tokens), (2, 2, 24));
    assert_eq!((across.deviation, across.divergences.len()), (0.0, 0));
    assert!(across.passed());
    // Another model of the same geometry has nothing to say about it.
    let (context, model) = load::<bf16>(EMBEDDED);
    let other = model::random::<_, bf16>(&context, model.config().clone(), 1, &Scales::default()).unwrap();
    let across = parity::across(load(EMBEDDED), (context, other), &prompts, 12).unwrap();
    assert_eq!((across.equal, across.divergences.len()), (0, 2));
    assert!(across.deviation > 1.0, "{across}");
}

/// Decodes a few tokens and returns the digest of the slot they stand in.
fn digest(slot: usize, pages: &[u32], tokens: &[u32], flush_after: usize) -> engine::round::Digest {
    let mut core = core::<bf16>(EMBEDDED, Limits { flush_after, ..limits(3, 2) });
    let request = engine::Request::greedy(tokens[..2].to_vec(), 20);
    core.open(slot, &tokens[..2], &request, 40).unwrap();
    core.lend_pages(slot, pages).unwrap();
    core.prefill(&[(slot, 2)], None).unwrap();
    for _ in 0..20 {
        core.decode(&[(slot, 0)], None).unwrap();
    }
    let before = core.digest(slot).unwrap();
    assert_eq!(before, core.digest(slot).unwrap(), "looking changes nothing");
    before
}

#[test]
fn a_digest_depends_on_tokens_alone() {
    let one = digest(0, &[1, 2, 3], &[40, 41], 0);
    assert_eq!(one.committed, 22);
    assert_eq!(one.layers.len(), 8);
    assert!(matches!(one.layers[3], LayerDigest::Attention { .. }));
    assert_eq!(one.difference(&digest(2, &[9, 4, 6], &[40, 41], 6)), None, "slot, pages, flush policy");
    let other = digest(0, &[1, 2, 3], &[41, 40], 0);
    assert_eq!(one.difference(&other), Some(Difference::Tokens));
    for (a, b) in one.layers.iter().zip(&other.layers) {
        assert_ne!(a, b, "every layer remembers the tokens");
    }
}

#[test]
fn an_empty_slot_has_no_digest() {
    let core = core::<bf16>(EMBEDDED, limits(2, 0));
    let text = core.digest(1).unwrap_err().to_string();
    assert_eq!(text, "engine option `slot` is 1; nobody lives there; name one that holds a sequence");
    assert!(matches!(core.digest(2), Err(Error::Limit { name: "slot", .. })));
}

#[test]
fn plans_that_prove_nothing_are_refused() {
    let refused = |plan: Plan| run(&plan).unwrap_err().to_string();
    let text = refused(Plan { prompts: 0, ..Plan::quick() });
    assert!(text.contains("give at least 1 prompt and 1 token"), "{text}");
    let text = refused(Plan { rows: Vec::new(), words: 0, ..Plan::quick() });
    assert!(text.contains("name at least one configuration"), "{text}");
    let text = refused(Plan { tokens: 40_000, ..Plan::quick() });
    assert!(text.contains("at most 32768 positions"), "{text}");
}

//! What the policy that picks k is worth, in worlds that are made up.
//!
//! Rates are against plain rounds of the same batches. "Emitted" counts the tokens that came out; where a
//! run is compared with what another k would have given, expected tokens are counted on both sides, so that
//! luck has no part in it. Times are without noise: the policy sees them with.

mod world;

use proptest::{
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::{RngSeed, TestRunner},
};
use world::{Run, Text, World};

/// Seconds by k, from the relative cost of a round.
fn costs(plain: f64, relative: &[f64]) -> Vec<f64> {
    relative.iter().map(|r| r * plain).collect()
}

fn world(costs: Vec<Vec<f64>>, sequences: usize, text: Text) -> World {
    World {
        max_drafts: costs[0].len() - 1,
        costs,
        batches: vec![(sequences, 1)],
        text,
        decay: 0.95,
        spread: 1.0,
        ahead: 3,
        noise: 0.02,
        hiccups: 0.01,
        first: 3.0,
        unreported: 0.02,
        drift: 0.05,
        resume: 0.0,
        later: None,
        rounds: 400,
        seed: 1,
    }
}

/// A dense model, whose drafts are cheap for one sequence and dear for 64.
fn dense(sequences: usize, text: Text) -> World {
    let buckets = (0..7).map(|b| {
        let slope = 1.0 + 0.6 * b as f64;
        costs(0.01325 * (1.0 + 0.04 * b as f64), &[0.0, 0.08, 0.15, 0.22, 0.29].map(|c| 1.0 + slope * c))
    });
    world(buckets.collect(), sequences, text)
}

/// A mixture of experts, where every draft reads others.
fn experts(text: Text) -> World {
    world(vec![costs(0.0023, &[1.0, 1.55, 2.06, 2.55, 3.0])], 1, text)
}

/// Every draft doubles the cost.
fn hostile(text: Text) -> World {
    world(vec![costs(0.01, &[1.0, 2.0, 3.0, 4.0, 5.0]); 7], 1, text)
}

/// The same world with other luck.
fn lives(world: &World, n: u64) -> impl Iterator<Item = Run> {
    (0..n).map(|seed| World { seed: 1000 + 77 * seed, ahead: 1 + seed as usize % 4, ..world.clone() }.run())
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len() as f64
}

/// Any costs whose first draft costs from `dear.0` to `dear.1` plain rounds more: even, uneven, a dear first
/// draft, or dear steps where rows fill a tile; dearer in greater buckets.
fn any_costs(dear: (f64, f64)) -> impl Strategy<Value = Vec<Vec<f64>>> {
    let drafts = prop_oneof![3 => 1..=6usize, 1 => 7..=15usize];
    (drafts, dear.0..dear.1, 0..4, 1.0..1.3, prop::collection::vec(0.3..1.7, 15)).prop_map(
        move |(drafts, first, kind, growth, uneven)| {
            let weight = |k: usize| match kind {
                0 => 1.0,
                1 if k > 0 => uneven[k],
                2 if k > 0 => 0.35,
                3 if k % 4 == 3 => 4.0,
                _ => 1.0,
            };
            let bucket = |b: i32| {
                let slope = (first * f64::powi(growth, b)).min(dear.1);
                let relative =
                    (0..=drafts).map(|k| 1.0 + slope * (0..k).map(weight).sum::<f64>()).collect::<Vec<_>>();
                costs(0.013 * f64::powi(1.08, b), &relative)
            };
            (0..7).map(bucket).collect()
        },
    )
}

/// Any world of such costs and such a text, with all the nuisances.
fn any_world(
    dear: (f64, f64),
    batches: impl Strategy<Value = Vec<(usize, usize)>>,
    text: impl Strategy<Value = Text>,
) -> impl Strategy<Value = World> {
    let nuisance = (1..=4usize, select(vec![1.0, 3.0]), select(vec![0.0, 0.05]), 0.0..0.2, 0.0..0.03);
    let text = (text, 0.85..1.0, prop_oneof![2 => Just(1.0), 1 => 0.3..1.0]);
    (any_costs(dear), batches, text, nuisance, any::<u64>()).prop_map(
        |(costs, batches, (text, decay, spread), (ahead, first, unreported, drift, resume), seed)| World {
            batches,
            decay,
            spread,
            ahead,
            first,
            unreported,
            drift,
            resume,
            seed,
            ..world(costs, 1, text)
        },
    )
}

fn acceptance() -> impl Strategy<Value = f64> {
    prop_oneof![1 => Just(0.0), 4 => 0.0..0.98]
}

fn any_text() -> impl Strategy<Value = Text> {
    let (a, b) = (acceptance(), acceptance());
    let (c, d) = (acceptance(), acceptance());
    prop_oneof![
        acceptance().prop_map(Text::Constant),
        (a, b, 50..350usize).prop_map(|(a, b, at)| Text::Step(a, b, at)),
        (c, d, 10..80usize).prop_map(|(a, b, mean)| Text::Bursts(a, b, mean)),
    ]
}

fn any_batches() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop_oneof![
        1 => Just(vec![(1, 1)]),
        1 => (2..=64usize).prop_map(|n| vec![(n, 1)]),
        1 => prop::collection::vec((1..=64usize, 15..80usize), 2..=4),
    ]
}

fn cases(cases: u32) -> ProptestConfig {
    // Always the same worlds: a bound that luck can break must not break builds now and then.
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(27), failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn never_far_behind_plain(w in any_world((0.01, 0.7), any_batches(), any_text())) {
        let run = w.run();
        prop_assert!(run.emitted() >= 0.97, "{:.4} of plain", run.emitted());
    }
}

fn several() -> impl Strategy<Value = Vec<(usize, usize)>> {
    (4..=64usize).prop_map(|n| vec![(n, 1)])
}

fn one() -> impl Strategy<Value = Vec<(usize, usize)>> {
    Just(vec![(1, 1)])
}

fn any_step() -> impl Strategy<Value = Text> {
    (acceptance(), acceptance()).prop_map(|(a, b)| Text::Step(a, b, 200))
}

/// What is found in a thousand worlds, least first. A few are unlucky: acceptance near where drafts begin
/// to pay, or a hiccup on top of the first run of a graph. How few is what can be bounded.
fn thousand(worlds: impl Strategy<Value = World>, what: impl Fn(Run) -> f64) -> Vec<f64> {
    let mut runner = TestRunner::new(cases(1));
    let world = |_| worlds.new_tree(&mut runner).expect("nothing is rejected").current();
    let mut found: Vec<f64> = (0..1000).map(world).map(|w| what(w.run())).collect();
    found.sort_by(f64::total_cmp);
    println!("the least of 1000: {:.3?}", &found[..50]);
    found
}

#[test]
fn near_the_best_fixed_k() {
    let text = || acceptance().prop_map(Text::Constant);
    let found = thousand(any_world((0.01, 0.35), several(), text()), |r| r.total() / r.best_fixed());
    assert!(found[5] >= 0.95 && found[0] >= 0.85);
    let found = thousand(any_world((0.01, 0.35), one(), text()), |r| r.total() / r.best_fixed());
    assert!(found[10] >= 0.95 && found[0] >= 0.75);
}

#[test]
fn follows_any_change_within_30_rounds() {
    let after = |r: Run| r.rate(230..330) / r.best(230..330);
    let found = thousand(any_world((0.01, 0.2), several(), any_step()), after);
    assert!(found[5] >= 0.95 && found[1] >= 0.85);
    // One sequence has one draft in a round as evidence.
    let found = thousand(any_world((0.01, 0.2), one(), any_step()), after);
    assert!(found[50] >= 0.95 && found[10] >= 0.9);
}

#[test]
fn one_sequence_follows_the_changes_we_know_within_30_rounds() {
    for (from, to) in [(0.0, 0.9), (0.9, 0.0), (0.2, 0.9), (0.9, 0.3), (0.6, 0.9), (0.0, 0.6)] {
        let runs: Vec<_> = lives(&dense(1, Text::Step(from, to, 200)), 100).collect();
        let got = mean(runs.iter().map(|r| r.rate(230..260) / r.best(230..260)));
        assert!(got >= 0.95, "from {from} to {to}: {got:.4} of the best k on average");
        let slow = runs.iter().filter(|r| r.rate(230..330) < 0.9 * r.best(230..330)).count();
        assert!(slow <= 4, "from {from} to {to}: {slow} of 100 are slow to follow");
    }
}

#[test]
fn worlds_we_know() {
    for sequences in [1, 2, 7, 32, 64] {
        for p in [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98] {
            for run in lives(&dense(sequences, Text::Constant(p)), 10) {
                assert!(run.emitted() >= 0.97, "{sequences} at {p}: {:.4} of plain", run.emitted());
                let best = run.best_fixed();
                assert!(run.total() >= 0.95 * best, "{sequences} at {p}: {:.4} of {best:.4}", run.total());
            }
        }
    }
    for p in [0.0, 0.3, 0.6, 0.8, 0.95] {
        let runs: Vec<_> = lives(&experts(Text::Constant(p)), 100).collect();
        let emitted = runs.iter().map(|r| r.emitted()).fold(9.0, f64::min);
        assert!(emitted >= 0.97, "experts at {p}: {emitted:.4} of plain");
        // One sequence has little evidence where a draft costs half a round.
        let got = mean(runs.iter().map(|r| r.total() / r.best_fixed()));
        assert!(got >= 0.95, "experts at {p}: {got:.4} of the best fixed k on average");
    }
    for text in [Text::Constant(0.0), Text::Constant(0.9), Text::Bursts(0.9, 0.0, 40)] {
        for run in lives(&hostile(text), 100) {
            assert!(run.emitted() >= 0.97, "{:.4} of plain where nothing pays", run.emitted());
        }
    }
}

#[test]
fn the_account_is_never_overdrawn() {
    // What is under way when something is found out cannot be called back, and costs are not quite known.
    let late = 4.5;
    for text in [Text::Constant(0.0), Text::Constant(0.3), Text::Bursts(0.95, 0.0, 25)] {
        for w in [dense(1, text.clone()), dense(64, text.clone()), experts(text.clone()), hostile(text)] {
            for run in lives(&World { first: 1.0, rounds: 2000, ..w }, 16) {
                let (mut lost, mut all) = (0.0, 0.0);
                for (n, r) in run.rounds.iter().enumerate() {
                    lost += r.time / r.plain - r.emitted;
                    all += r.time / r.plain;
                    assert!(lost <= 3.0 + 0.016 * all + late, "{lost:.2} lost after {n} rounds of {all:.0}");
                }
                assert!(lost <= 0.02 * all, "{:.4} of 2000 rounds lost", lost / all);
            }
        }
    }
}

#[test]
fn noise_does_not_flip_k() {
    for p in [0.5, 0.8] {
        let changes = mean(lives(&dense(8, Text::Constant(p)), 50).map(|run| {
            let k: Vec<_> = run.rounds[50..].iter().map(|r| r.k).collect();
            k.windows(2).filter(|k| k[0] != k[1]).count() as f64
        }));
        // A look at another k makes two, every 32 rounds: 22 in 350.
        assert!(changes < 35.0, "{changes} changes of k at {p}");
    }
}

#[test]
fn plain_costs_that_drift_mislead_nobody() {
    // Costs double while k stays at 4, and then drafts turn bad.
    let w = World { rounds: 3000, drift: 1.0, ..dense(1, Text::Step(0.95, 0.0, 2000)) };
    for run in lives(&w, 20) {
        assert!(run.rate(1500..2000) > 0.97 * run.best(1500..2000));
        assert!(run.rate(2040..3000) > 0.97, "{}", run.rate(2040..3000));
    }
}

#[test]
fn costs_of_other_k_are_looked_at() {
    let before = costs(0.013, &[1.0, 1.1, 1.9, 2.8]);
    for after in [[1.0, 1.1, 1.15, 1.2], [1.0, 1.5, 1.55, 1.6]] {
        let later = Some((500, costs(0.013, &after)));
        let w = World { later, rounds: 1500, ..world(vec![before.clone()], 1, Text::Constant(0.9)) };
        let got = mean(lives(&w, 20).map(|run| run.rate(1000..1500) / run.best(1000..1500)));
        assert!(got > 0.95, "{got:.4} of the best k after costs became {after:?}");
    }
}

#[test]
fn same_reports_same_choices() {
    let w = dense(5, Text::Bursts(0.9, 0.1, 30));
    let k = |w: &World| w.run().rounds.iter().map(|r| r.k).collect::<Vec<_>>();
    assert_eq!(k(&w), k(&w));
    assert_ne!(k(&w), k(&World { seed: 2, ..w }));
}

#[test]
fn without_drafts_there_is_no_choice() {
    let run = world(vec![vec![0.01]], 1, Text::Constant(0.9)).run();
    assert!(run.rounds.iter().all(|r| r.k == 0));
}

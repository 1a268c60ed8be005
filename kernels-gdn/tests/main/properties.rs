//! A row is a function of itself and of its own past, for any sizes, types and surroundings.

use crate::place::{Place, SMALL, fit, flushing};
use crate::stream::{Launch, Stream};
use crate::world::{World, same};
use kernels_core::Activation;
use kernels_gdn::Problem;
use kernels_testkit::{for_types, rng::Rng};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// A problem and a launch of one sequence after some history.
#[derive(Clone, Debug)]
pub struct Case {
    pub problem: Problem,
    pub seed: u64,
    /// Tokens committed before the launch.
    pub history: usize,
    /// Rows of the launch, more than one.
    pub t: usize,
}

impl Case {
    #[cfg_attr(not(feature = "planted-faults"), allow(dead_code))]
    pub fn example() -> Case {
        let problem = flushing(Problem { slots: 5, max_rows: 4, ..SMALL }, 2);
        Case { problem, seed: 3, history: 5, t: 4 }
    }
}

fn cases_of<B: Place>() -> impl Strategy<Value = Case> {
    let heads = (1usize..3, 1usize..4, 1usize..70, 1usize..20);
    let launch = (0usize..7, 2usize..7, 0usize..12, any::<u64>());
    (heads, launch).prop_map(|((k_heads, group, k_dim, v_dim), (flush_after, t, history, seed))| {
        let problem = Problem {
            sequences: 1,
            rows: 1,
            max_rows: 6,
            k_heads,
            v_heads: k_heads * group,
            k_dim,
            v_dim,
            slots: 5,
            journal_rows: 0,
            flush_after,
        };
        Case { problem: flushing(fit::<B>(problem), flush_after), seed, history, t }
    })
}

/// A world in which the slots' sequences have some history each, and the last launch's rows for them.
fn world<B: Place, A: Activation>(on: &B::Queue, case: &Case, rng: &mut Rng, slots: &[usize]) -> World<B, A> {
    let p = case.problem;
    let mut world = World::<B, A>::new(on, p);
    for &slot in slots {
        for i in 0..case.history {
            // Prefill first, so that there is a state; then rounds, so that there is something pending.
            let rows = Stream::random(&p, 1, rng);
            let launch = Launch::one(&p, slot, i, rows);
            if i < case.history / 2 {
                world.prefill(&launch);
                world.advance_prefilled(slot, 1);
            } else {
                world.verify(&launch);
                world.advance(slot, 1);
            }
        }
    }
    world
}

/// T rows in one launch against T launches of one row, none of them folded differently.
pub fn block_equals_rows<B: Place, A: Activation>(on: &B::Queue, case: Case) -> Result<(), String> {
    let p = case.problem;
    let mut rng = Rng::new(case.seed);
    let before = world::<B, A>(on, &case, &mut rng, &[4]);
    let rows = Stream::random(&p, case.t, &mut rng);

    let mut block = before.duplicate();
    let together = block.verify(&Launch::one(&p, 4, case.history, rows.clone()));
    block.advance(4, case.t);
    block.fold(&[4]);

    let mut single = before;
    let mut alone = vec![];
    for t in 0..case.t {
        alone.extend(single.verify(&Launch::one(&p, 4, case.history + t, rows.part(&p, t..t + 1))));
        single.advance(4, 1);
    }
    single.fold(&[4]);
    same("outputs", &together, &alone)?;
    same("state", &block.state(), &single.state())?;
    same("journal", &block.journal(), &single.journal())
}

/// A launch of three sequences, padding and unowned rows against each of them alone.
fn batch_equals_alone<B: Place, A: Activation>(on: &B::Queue, case: Case) -> Result<(), String> {
    let p = case.problem;
    let mut rng = Rng::new(case.seed);
    // First and last slot in reverse, with free ones between.
    let slots = [4, 0, 2];
    let before = world::<B, A>(on, &case, &mut rng, &slots);
    let rows: Vec<Stream<A>> = (0..3).map(|i| Stream::random(&p, (case.t + i) % 6 + 1, &mut rng)).collect();

    let mut launch = Launch::new();
    let mut firsts = vec![];
    for (i, &slot) in slots.iter().enumerate() {
        launch.push_padding(&p, i);
        firsts.push(launch.count(&p));
        launch.push(&p, slot as i32, case.history, &rows[i]);
    }
    launch.add_unowned(&p, 2);
    let mut batch = before.duplicate();
    let out = batch.verify(&launch);

    let width = p.v_heads * p.v_dim;
    let mut owned = vec![false; launch.count(&p)];
    let mut alone = before;
    for (i, &slot) in slots.iter().enumerate() {
        let want = alone.verify(&Launch::one(&p, slot, case.history, rows[i].clone()));
        same(format!("sequence {i}"), &out[firsts[i] * width..][..want.len()], &want)?;
        owned[firsts[i]..][..want.len() / width].fill(true);
    }
    for (row, _) in owned.iter().enumerate().filter(|(_, owned)| !**owned) {
        same(format!("padding row {row}"), &out[row * width..][..width], &vec![A::default(); width])?;
    }
    // Free slots included, whose poison must still be there.
    same("states", &batch.state(), &alone.state())?;
    same("journals", &batch.journal(), &alone.journal())?;
    same("faults", &batch.faults(), &vec![0; p.slots + 1])
}

type Test<B> = fn(&<B as kernels_core::Backend>::Queue, Case) -> Result<(), String>;

fn check<B: Place>(on: &B::Queue, test: Test<B>) {
    let cases = if B::GENERAL { 60 } else { 12 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let run = |case: Case| {
        assert!(case.t > 1, "one row proves nothing");
        test(on, case).map_err(TestCaseError::fail)
    };
    TestRunner::new(config).run(&cases_of::<B>(), run).unwrap();
}

pub fn a_block_equals_its_rows<B: Place>(on: &B::Queue) {
    for_types!(B, on, any_block);
}

fn any_block<B: Place, A: Activation>(on: &B::Queue) {
    check::<B>(on, block_equals_rows::<B, A>);
}

pub fn a_batch_equals_each_sequence_alone<B: Place>(on: &B::Queue) {
    for_types!(B, on, any_batch);
}

fn any_batch<B: Place, A: Activation>(on: &B::Queue) {
    check::<B>(on, batch_equals_alone::<B, A>);
}

//! The ring invariants of docs/caches.md: the bounds hold for any rounds, and one cell fewer does not do.

use engine::{
    Finish, Request,
    draft::{DraftLength, Mtp},
};
use kernels_core::{
    bf16,
    slots::{conv_ring_rows, flushes, journal_rows},
};
use kernels_testkit::rng::Rng;
use workspace_tests::{EMBEDDED, assets, engine, engine_with, limits, streams};

const ROUNDS: usize = 400;

/// Which position each cell of a ring was last written for.
struct Ring {
    cells: Vec<Option<usize>>,
}

impl Ring {
    fn new(rows: usize) -> Self {
        Ring { cells: vec![None; rows] }
    }

    fn write(&mut self, position: usize) {
        let rows = self.cells.len();
        self.cells[position % rows] = Some(position);
    }

    fn holds(&self, position: usize) -> bool {
        self.cells[position % self.cells.len()] == Some(position)
    }
}

/// A round's rows, and how many of them are accepted: often all there can be, so that bounds are reached.
fn round(max_rows: usize, rng: &mut Rng) -> (usize, usize) {
    let most = |most: usize, rng: &mut Rng| if rng.below(2) == 0 { most } else { 1 + rng.below(most) };
    let rows = most(max_rows, rng);
    (rows, most(rows, rng))
}

/// Whether every journal row was there when a launch replayed it, even if the launch wrote its own rows first:
/// on a device nothing orders the two.
fn journal_suffices(rows: usize, flush_after: usize, max_rows: usize, seed: u64) -> bool {
    let mut rng = Rng::new(seed);
    let (mut ring, mut committed, mut folded) = (Ring::new(rows), 0, 0);
    (0..ROUNDS).all(|_| {
        let (new, accepted) = round(max_rows, &mut rng);
        (committed..committed + new).for_each(|position| ring.write(position));
        let all_there = (folded..committed).all(|position| ring.holds(position));
        if flushes(committed - folded, flush_after) {
            folded = committed;
        }
        committed += accepted;
        all_there
    })
}

/// The same for the `width - 1` inputs before a launch's first row.
fn conv_ring_suffices(rows: usize, width: usize, max_rows: usize, seed: u64) -> bool {
    let mut rng = Rng::new(seed);
    let (mut ring, mut committed) = (Ring::new(rows), 0usize);
    (0..ROUNDS).all(|_| {
        let (new, accepted) = round(max_rows, &mut rng);
        (committed..committed + new).for_each(|position| ring.write(position));
        let all_there = (committed.saturating_sub(width - 1)..committed).all(|position| ring.holds(position));
        committed += accepted;
        all_there
    })
}

#[test]
fn the_journal_holds_what_a_launch_replays_and_writes() {
    for flush_after in 0..=8 {
        for max_rows in 1..=16 {
            let (rows, what) =
                (journal_rows(flush_after, max_rows), format!("F = {flush_after}, T = {max_rows}"));
            for seed in 0..8 {
                assert!(journal_suffices(rows, flush_after, max_rows, seed), "{what}");
            }
            let fails = |seed| !journal_suffices(rows - 1, flush_after, max_rows, seed);
            assert!((0..8).any(fails), "{what}: one row fewer suffices too");
        }
    }
}

#[test]
fn the_conv_ring_holds_the_inputs_before_a_launch() {
    for width in 2..=4 {
        for max_rows in 1..=16 {
            let (rows, what) = (conv_ring_rows(width, max_rows), format!("W = {width}, T = {max_rows}"));
            for seed in 0..8 {
                assert!(conv_ring_suffices(rows, width, max_rows, seed), "{what}");
            }
            let fails = |seed| !conv_ring_suffices(rows - 1, width, max_rows, seed);
            assert!((0..8).any(fails), "{what}: one row fewer suffices too");
        }
    }
}

/// A prompt longer than the hidden ring, then more plain rounds than the ring holds, then drafts: the head has
/// caught up, its guesses come true as ever, and the stream is that of plain decoding.
#[test]
fn the_draft_head_catches_up_from_the_hidden_ring() {
    let tokenizer = engine::text::Tokenizer::open(assets(EMBEDDED)).unwrap();
    let prompt = "The river was wide and the boat was small. ".repeat(12);
    let request = |tokens| {
        let mut request = Request::greedy(tokenizer.encode(&prompt).unwrap(), tokens);
        request.ignore_eos = true;
        request
    };
    let limits = limits(1, 4);
    let (plain_rounds, tokens) = (limits.hidden_rows() + 7, limits.hidden_rows() + 40);
    assert!(request(1).prompt.len() > limits.hidden_rows(), "{}", request(1).prompt.len());

    let want = streams(&mut engine::<bf16>(EMBEDDED, workspace_tests::limits(1, 0), 0), &[request(tokens)]);
    let lengths = [vec![0; plain_rounds], vec![4; tokens]].concat();
    let drafts = DraftLength::Cycle(lengths);
    let mut engine = engine_with::<bf16>(EMBEDDED, limits, drafts, Box::new(Mtp));
    assert_eq!(streams(&mut engine, &[request(tokens)]), want);
    assert_eq!(want[0].1, Finish::Length);
    let stats = engine.stats();
    assert!(stats.drafted[0] >= 5, "drafts after the plain rounds: {stats:?}");
    assert!(stats.acceptance()[0] > 0.5, "{stats:?}");
}

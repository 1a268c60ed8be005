use crate::book::{Book, How, request};
use engine::draft::{DraftLength, Script};
use workspace_tests::{ledger, limits};

/// B-009: a step without drafts right after one with accepted drafts looked for the state elsewhere.
#[test]
fn plain_steps_between_rounds() {
    // K = 3 with two drafts accepted, plain, K = 1 with one accepted, plain: a = 3, 1, 2, 1.
    let drafts = DraftLength::Cycle(vec![3, 0, 1, 0]);
    let script = How::Script(Script::Pattern(vec![2]));
    let book = Book::new((0..3).map(|i| request(50 + i, 20, 141)).collect());
    for slots in [1, 3] {
        // In a batch the three are in different phases of the cycle.
        for stats in
            book.arrive("plain between", limits(slots, 3), drafts.clone(), script.clone(), &[0, 1, 2])
        {
            assert_eq!((stats.rounds, stats.accept_length()), (80, 1.75), "{stats:?}");
            assert_eq!(stats.accepted, [40, 20]);
        }
    }
    book.ledger.assert_agreed(&ledger::TARGET, 1000);
}

/// B-010: a bound on the accepted count that failed closed ate valid counts. Here each accept length 1..=4
/// in each row of a batch of four commits exactly that many. (Counts that cannot be are the kernel crates'
/// tests.)
#[test]
fn every_accept_length_in_every_row() {
    let book = Book::new((0..4).map(|i| request(60 + i, 5, 81)).collect());
    let script = How::Script(Script::Pattern(vec![0, 1, 2, 3, 3, 1, 0, 2]));
    // Apart from each other, so that in one round the four rows have different accept lengths.
    for stats in book.arrive("rows", limits(4, 3), DraftLength::Fixed(3), script, &[0, 2, 4, 6]) {
        assert_eq!((stats.generated, stats.rounds), (81, 32));
        assert_eq!(stats.accepted, [24, 16, 8], "each length in a quarter of the rounds");
    }
    book.ledger.assert_agreed(&ledger::TARGET, 200);
}

use crate::book::{Book, How, request};
use engine::{
    Request, Sampling,
    draft::{DraftLength, Script},
};
use workspace_tests::{ledger, limits};

/// B-055: penalties were ignored inside a block, weakened by the accepted length, or counted twice. (Row by
/// row, by hand: kernels-spec.)
#[test]
fn penalties_with_every_accept_length() {
    let off = Sampling::default();
    let rules = [
        Sampling { repetition_penalty: 1.3, ..off.clone() },
        Sampling { presence_penalty: 0.4, ..off.clone() },
        Sampling { frequency_penalty: 0.5, ..off.clone() },
        Sampling { repetition_penalty: 1.3, presence_penalty: 0.4, frequency_penalty: 0.5, ..off.clone() },
        // Rewards, so that repetitions do come up.
        Sampling { presence_penalty: -1.5, frequency_penalty: -0.3, temperature: 0.8, seed: 9, ..off },
    ];
    let requests = rules.into_iter().map(|sampling| Request { sampling, ..request(220, 12, 60) });
    let book = Book::new(requests.collect());
    let distinct: std::collections::BTreeSet<_> = book.answers.iter().map(|(tokens, _)| tokens).collect();
    assert_eq!(distinct.len(), 5, "every rule makes a difference");
    for script in [Script::AllRight, Script::Random { seed: 2, rate: 0.7 }, Script::Pattern(vec![0, 1, 2, 3])]
    {
        for slots in [1, 5] {
            let how = How::Script(script.clone());
            let stats = book.play(&format!("{script:?}"), limits(slots, 3), DraftLength::Fixed(3), how);
            assert!(stats.accepted[2] > 20, "{stats:?}");
        }
    }
    book.ledger.assert_agreed(&ledger::TARGET, 100);
}

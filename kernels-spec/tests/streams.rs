//! Whatever the drafts, the schedule and the batch: the stream is that of decoding token by token.

use crate::engine::{Options, check, standard};
use kernels_spec::State;
use proptest::prelude::*;

#[test]
fn streams_equal_plain_decoding() {
    let (mut finished, mut caught_up, mut waited) = ([0; 7], 0, 0);
    for options in standard() {
        let report = check(options).unwrap_or_else(|e| panic!("{options:?}: {e}"));
        if options.draft_noise == 0.7 {
            assert!(report.lengths[1..].iter().all(|n| *n > 0), "accept lengths {:?}", report.lengths);
        }
        if options.draft_noise == 0.0 {
            assert!(report.lengths[options.max_rows] >= 10, "accept lengths {:?}", report.lengths);
        }
        (0..7).for_each(|i| finished[i] += report.finished[i]);
        caught_up += report.caught_up;
        waited += report.waited;
    }
    for state in [State::Eos, State::Stop, State::Length, State::Aborted] {
        assert!(finished[state as usize] > 0, "{state:?} never happened: {finished:?}");
    }
    assert_eq!(finished[State::Faulted as usize], 0);
    assert!(caught_up > 0 && waited > 0, "{caught_up} {waited}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn streams_equal_plain_decoding_anyhow(
        seed in any::<u64>(),
        slots in 1usize..6,
        max_rows in 1usize..9,
        flush_after in 0usize..7,
        draft_noise in prop::sample::select(vec![0.0f32, 0.2, 0.7, 2.0]),
        skip_draft in 0.0f32..0.7,
    ) {
        let options = Options { seed, slots, max_rows, flush_after, draft_noise, requests: 8, skip_draft };
        if let Err(e) = check(options) {
            prop_assert!(false, "{options:?}: {e}");
        }
    }
}

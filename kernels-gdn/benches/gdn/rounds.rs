//! The counters of rounds in the steady state, and the bytes that such a round must move.

use kernels_core::slots;
use kernels_gdn::Problem;
use kernels_testkit::rng::Rng;

/// The chance that a draft is accepted, given that those before it were: three rows then commit
/// 1 + p + p^2 = 2.43 tokens on average.
const ACCEPTANCE: f32 = 0.796;

/// Where every sequence stands in some consecutive rounds.
pub(crate) struct Rounds {
    pub(crate) sequences: usize,
    /// `[rounds, sequences]`: position of the first row.
    pub(crate) start: Vec<i32>,
    /// `[rounds, sequences]`: tokens inside the state.
    pub(crate) folded: Vec<i32>,
}

impl Rounds {
    /// `rounds` rounds of `rows` rows for each of `sequences` sequences, long after they began.
    pub(crate) fn simulate(sequences: usize, rows: usize, flush_after: usize, rounds: usize) -> Self {
        let mut all =
            Rounds { sequences, start: vec![0; rounds * sequences], folded: vec![0; rounds * sequences] };
        for sequence in 0..sequences {
            let mut rng = Rng::new(1 + sequence as u64);
            // Far from zero: the state of a slot with nothing folded is not read.
            let (mut start, mut folded) = (1000, 1000);
            // Sequences come at different times, so that they do not all flush in the same round.
            let before = 64 + rng.below(64);
            for round in 0..before + rounds {
                if let Some(round) = round.checked_sub(before) {
                    all.start[round * sequences + sequence] = start;
                    all.folded[round * sequences + sequence] = folded;
                }
                if slots::flushes((start - folded) as usize, flush_after) {
                    folded = start;
                }
                let drafts = (1..rows).take_while(|_| rng.uniform(0.0, 1.0) < ACCEPTANCE).count();
                start += 1 + drafts as i32;
            }
        }
        all
    }

    /// One round of sequences that have nothing pending.
    pub(crate) fn settled(sequences: usize) -> Self {
        Rounds { sequences, start: vec![1000; sequences], folded: vec![1000; sequences] }
    }

    pub(crate) fn len(&self) -> usize {
        self.start.len() / self.sequences
    }

    fn pending(&self) -> impl Iterator<Item = usize> {
        self.start.iter().zip(&self.folded).map(|(start, folded)| (start - folded) as usize)
    }

    /// Bytes that a verification moves in the mean of these rounds: states read, and written where they
    /// are flushed; journal rows replayed; new rows read, journalled, and their outputs written.
    pub(crate) fn verify_bytes(&self, p: &Problem) -> u64 {
        let flushes = self.pending().filter(|n| slots::flushes(*n, p.flush_after)).count();
        let states = (self.sequences * self.len() + flushes) * p.state_len() * size_of::<f32>();
        let journal = 2 * p.journal_width() * (self.pending().sum::<usize>() + p.rows * self.len());
        ((states + journal) / self.len() + rows_bytes(p)) as u64
    }
}

/// Bytes that a prefill moves with nothing pending: the state read and written, rows read and written.
pub(crate) fn prefill_bytes(p: &Problem) -> u64 {
    (p.sequences * 2 * p.state_len() * size_of::<f32>() + rows_bytes(p)) as u64
}

/// q, k, v, a, b and the output of all rows, and the two constants of each head.
fn rows_bytes(p: &Problem) -> usize {
    2 * p.rows * (p.k_heads * p.k_dim + p.journal_width() + p.v_heads * p.v_dim) + 8 * p.v_heads
}

//! How a round is dealt to thread blocks: a choice of speed, which no bit depends on.

use crate::{
    Problem,
    tree::{GROUP_LEAVES, LEAF_KEYS},
};
use kernels_core::{Error, Result, workspace::Layout};

/// Which kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// `mma.sync` and `cp.async`: compute capability 8.0 and everything after it.
    Sm80,
    /// WGMMA and bulk copies: Hopper.
    Sm90,
}

/// What one thread block of a verification owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// One leaf of 128 keys.
    Leaf,
    /// One group of 2048 keys.
    Group,
    /// All keys of a sequence; nothing is merged.
    Sequence,
    /// One of these, chosen anew for each round by the lengths that its list is made from.
    ByLengths,
}

/// The kernels of a launch and what their thread blocks own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Which kernels run.
    pub path: Path,
    /// What one thread block owns.
    pub share: Share,
}

/// Pieces that the workspace of [`Share::ByLengths`] has room for, per block that the chip runs at a time. A
/// round with more of them is dealt in larger shares.
const PIECES_PER_BLOCK: usize = 32;

/// Words of the list: its own numbers, those of a sequence, those of an item.
pub(crate) const HEAD: usize = 8;
pub(crate) const ENTRY: usize = 4;

/// A grid, and the sizes of the memory that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deal {
    /// `None` on the CPU.
    pub(crate) path: Option<Path>,
    pub(crate) share: Share,
    /// Thread blocks that the device runs at a time.
    pub(crate) blocks: usize,
    /// Pieces that the workspace holds.
    pub(crate) pieces: usize,
    /// Words of the list.
    pub(crate) work: usize,
    /// Bytes of the partial results: `[pieces, max_rows * group, head_dim]`, then two numbers for each row.
    pub(crate) partials: usize,
    pub(crate) workspace: usize,
}

impl Share {
    /// By the bounds: contexts of one leaf have nothing to share, all others are dealt by their lengths.
    pub(crate) fn choose(problem: &Problem) -> Share {
        if problem.positions() <= LEAF_KEYS { Share::Sequence } else { Share::ByLengths }
    }

    /// The share of [`Share::ByLengths`] for a round: the one that is done first where `blocks` shares are
    /// worked on at a time. The sums are over the K/V heads of all sequences.
    pub(crate) fn of_round(round: &Round, blocks: usize, pieces: usize) -> Share {
        // In 64ths of a leaf's time. What is written for the merge and read by it is a fifth of a leaf's keys
        // and a hundredth of a group's.
        let rounds = |n: usize| n.div_ceil(blocks.max(1));
        let costs = [
            (Share::Sequence, 64 * round.longest * rounds(round.heads)),
            (Share::Group, 65 * round.longest.min(GROUP_LEAVES) * rounds(round.groups)),
            (Share::Leaf, 80 * rounds(round.leaves)),
        ];
        let fits = |share: Share| match share {
            Share::Group => round.groups <= pieces,
            Share::Leaf => round.leaves <= pieces,
            _ => true,
        };
        // The first of equals, which has the fewest pieces.
        let costs = costs.into_iter().filter(|(share, _)| fits(*share));
        costs.min_by_key(|(_, cost)| *cost).map_or(Share::Sequence, |(share, _)| share)
    }

    /// As the C header has it.
    pub(crate) fn code(self) -> i32 {
        match self {
            Share::Leaf => 1,
            Share::Group => 2,
            Share::Sequence => 3,
            Share::ByLengths => 4,
        }
    }
}

/// What is to be done in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    /// K/V heads of all sequences, their groups, their leaves.
    pub(crate) heads: usize,
    pub(crate) groups: usize,
    pub(crate) leaves: usize,
    /// Leaves of the longest sequence.
    pub(crate) longest: usize,
}

impl Deal {
    pub(crate) fn new(
        op: &'static str,
        problem: &Problem,
        path: Option<Path>,
        share: Share,
        blocks: usize,
    ) -> Result<Self> {
        let p = problem;
        let pieces_of = |keys: usize| {
            // Visible keys may begin inside of a piece.
            let each = p.positions().div_ceil(keys);
            each.checked_mul(p.sequences)?.checked_mul(p.kv_heads)
        };
        let pieces = match share {
            Share::Leaf => pieces_of(LEAF_KEYS),
            Share::Group => pieces_of(LEAF_KEYS * GROUP_LEAVES),
            Share::Sequence => Some(0),
            Share::ByLengths => {
                Some(pieces_of(LEAF_KEYS).unwrap_or(usize::MAX).min(PIECES_PER_BLOCK * blocks))
            }
        };
        let sizes = || {
            let pieces = pieces?;
            let heads = p.sequences.checked_mul(p.kv_heads)?;
            let items = heads.checked_add(p.kv_heads)?.checked_add(pieces)?;
            let words = items.checked_add(p.sequences)?.checked_mul(ENTRY)?;
            let work = words.checked_add(heads)?.checked_add(HEAD)?;
            let rows = p.max_rows.checked_mul(p.group())?.checked_mul(pieces)?;
            // Both parts, their alignment, in bytes.
            rows.checked_mul(p.head_dim.checked_add(2)?)?.checked_mul(8)?;
            i32::try_from(work).ok()?;
            Some((pieces, rows, work))
        };
        let Some((pieces, rows, work)) = sizes() else {
            let what = format!("a list or workspace beyond what is addressable ({p:?}, {share:?})");
            return Err(Error::Unsupported { op, what });
        };
        let mut layout = Layout::default();
        let partials = layout.add::<f32>(rows * p.head_dim).len();
        layout.add::<f32>(rows * 2);
        Ok(Deal { path, share, blocks, pieces, work, partials, workspace: layout.bytes() })
    }

    /// Where the maxima and sums begin in the workspace.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // the CUDA half alone asks
    pub(crate) fn stats(&self) -> usize {
        let mut layout = Layout::default();
        layout.add::<u8>(self.partials);
        layout.add::<f32>(0).start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Problem = Problem {
        sequences: 1,
        rows: 4,
        max_rows: 4,
        q_heads: 24,
        kv_heads: 4,
        head_dim: 256,
        slots: 1,
        max_pages: 4096,
        pages: 4096,
        page_rows: 64,
        first_key: 0,
        window: None,
    };

    fn round(sequences: usize, keys: usize) -> Round {
        let leaves = keys.div_ceil(LEAF_KEYS);
        let heads = 4 * sequences;
        Round {
            heads,
            groups: heads * leaves.div_ceil(GROUP_LEAVES),
            leaves: heads * leaves,
            longest: leaves,
        }
    }

    fn chosen(sequences: usize, keys: usize) -> Share {
        Share::of_round(&round(sequences, keys), 132, 132 * PIECES_PER_BLOCK)
    }

    #[test]
    fn few_keys_are_spread_and_many_are_not() {
        // One sequence of four heads on 132 multiprocessors.
        assert_eq!(chosen(1, 100), Share::Sequence);
        assert_eq!([1000, 4096, 16_384].map(|keys| chosen(1, keys)), [Share::Leaf; 3]);
        // 128 and 256 groups: all blocks but four have one or two of them.
        assert_eq!([65_536, 131_072, 262_144].map(|keys| chosen(1, keys)), [Share::Group; 3]);
        // 32 sequences are 128 heads.
        assert_eq!([1000, 16_384, 131_072].map(|keys| chosen(32, keys)), [Share::Sequence; 3]);
        assert_eq!([4096, 16_384].map(|keys| chosen(8, keys)), [Share::Leaf, Share::Group]);
    }

    #[test]
    fn a_round_fits_its_workspace() {
        for sequences in 1..=64 {
            for keys in [1, 128, 129, 2048, 2049, 40_000, 262_144] {
                for pieces in [0, 10, 1000, 4224] {
                    let round = round(sequences, keys);
                    match Share::of_round(&round, 132, pieces) {
                        Share::Leaf => assert!(round.leaves <= pieces),
                        Share::Group => assert!(round.groups <= pieces),
                        share => assert_eq!(share, Share::Sequence),
                    }
                }
            }
        }
        let long = round(1, 262_144);
        assert_eq!(Share::of_round(&long, 132, 500), Share::Sequence, "512 groups do not fit");
    }

    #[test]
    fn sizes() {
        let deal = |p: Problem, share| Deal::new("attn::test", &p, None, share, 132).unwrap();
        let short = Problem { max_pages: 2, ..P };
        assert_eq!((Share::choose(&short), Share::choose(&P)), (Share::Sequence, Share::ByLengths));
        assert_eq!(Share::choose(&Problem { max_pages: 3, ..P }), Share::ByLengths);
        // Header, arrivals, the sequence, one item per head and one for nobody's rows.
        let whole = deal(P, Share::Sequence);
        assert_eq!((whole.pieces, whole.work, whole.workspace), (0, 8 + 4 + 4 + 4 * 8, 0));
        let leaves = deal(P, Share::Leaf);
        assert_eq!((leaves.pieces, leaves.work), (4 * 2048, whole.work + 4 * 4 * 2048));
        assert_eq!(leaves.workspace, 4 * 2048 * 24 * 258 * 4);
        assert_eq!(leaves.stats(), 4 * 2048 * 24 * 256 * 4);
        assert_eq!(deal(P, Share::Group).pieces, 4 * 128);
        // A context of 262,144 tokens, in 105 MB for all layers, whatever the batch.
        let by_lengths = deal(P, Share::ByLengths);
        assert_eq!((by_lengths.pieces, by_lengths.workspace), (4224, 104_620_032));
        assert_eq!(deal(Problem { sequences: 64, ..P }, Share::ByLengths).pieces, 4224);
        assert_eq!(deal(Problem { max_pages: 4, ..P }, Share::ByLengths).pieces, 8);
        let huge = Problem { sequences: usize::MAX / 8, ..P };
        let text = Deal::new("attn::test", &huge, None, Share::Leaf, 132).unwrap_err().to_string();
        assert!(text.starts_with("attn::test: a list or workspace beyond what is addressable"), "{text}");
    }
}

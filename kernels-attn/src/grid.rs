//! How a round is dealt to thread blocks: a choice of speed, which no bit depends on.

use crate::{
    Problem,
    tree::{GROUP_LEAVES, LEAF_KEYS, QUAD_LEAVES},
};
use kernels_core::{Error, Result, workspace::Layout};
use std::ops::Range;

/// Which kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// `mma.sync` and `cp.async`: compute capability 8.0 and everything after it.
    Sm80,
    /// WGMMA and bulk tensor copies: Hopper.
    Sm90,
}

/// What one thread block of a verification owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// One leaf of 128 keys.
    Leaf,
    /// One quad of 512 keys.
    Quad,
    /// One group of 2048 keys.
    Group,
    /// All keys of its rows; nothing is merged.
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

/// Rows of a row block, at most: those of one K/V head's query heads at some positions of a sequence.
const BLOCK_ROWS: usize = 64;

/// Words of the list: its own numbers, those of a sequence, those of an item.
pub(crate) const HEAD: usize = 8;
pub(crate) const ENTRY: usize = 4;
pub(crate) const ITEM: usize = 12;

/// A grid, and the sizes of the memory that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deal {
    /// `None` on the CPU.
    pub(crate) path: Option<Path>,
    pub(crate) share: Share,
    /// Thread blocks that the device runs at a time.
    pub(crate) blocks: usize,
    /// Rows of a sequence in a row block.
    pub(crate) block_positions: usize,
    /// Rows of a row block in this launch, at most: the stride of what is kept for one.
    pub(crate) block_rows: usize,
    /// Pieces that the workspace holds.
    pub(crate) pieces: usize,
    /// Words of the list.
    pub(crate) work: usize,
    pub(crate) workspace: Workspace,
}

/// Where the parts of a workspace begin, and its size: bytes. All 0 on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Workspace {
    /// The list of an operation that makes its own.
    pub(crate) list: usize,
    /// `[pieces, block_rows, head_dim]` f32
    pub(crate) partials: usize,
    /// `[pieces, block_rows, 2]` f32
    pub(crate) stats: usize,
    /// `[blocks, 2, block_rows, head_dim]` f32
    pub(crate) scratch: usize,
    pub(crate) bytes: usize,
}

/// The shares that leave pieces, those with the fewest first, and their leaves.
const PIECES: [(Share, usize); 3] =
    [(Share::Group, GROUP_LEAVES), (Share::Quad, QUAD_LEAVES), (Share::Leaf, 1)];

impl Share {
    /// By the bounds: contexts of one leaf have nothing to share, all others are dealt by their lengths.
    pub(crate) fn choose(problem: &Problem) -> Share {
        if problem.positions() <= LEAF_KEYS { Share::Sequence } else { Share::ByLengths }
    }

    /// Leaves between two cuts; `None` where nothing is cut.
    pub(crate) fn leaves(self) -> Option<usize> {
        PIECES.into_iter().find(|(share, _)| *share == self).map(|(_, leaves)| leaves)
    }

    /// The share of [`Share::ByLengths`] for a round: the one that is done first.
    ///
    /// `blocks` thread blocks work at a time, each on a run of consecutive items, as many as any other. The
    /// longest run is taken to consist of row blocks of the longest sequence. It costs 64 for each of its
    /// leaves, and a piece what its partial result adds in bytes written and read, 2 * 4 * block_rows *
    /// head_dim beside a leaf's 2 * 2 * 128 * head_dim, which is block_rows / 64 of it.
    ///
    /// The kernel that makes the list repeats this, in unsigned integers of 64 bits:
    ///
    /// ```text
    /// chosen = SEQUENCE
    /// for (share, unit) in (GROUP, 16), (QUAD, 4), (LEAF, 1):
    ///     if pieces[share] > max_pieces: continue
    ///     turns = (zeros + items[share] + blocks - 1) / blocks
    ///     cuts = max(1, (longest + unit - 1) / unit)
    ///     run = turns / cuts * longest + min(turns % cuts * unit, longest)
    ///     cost = 64 * run + (pieces[share] > 0 ? turns * block_rows : 0)
    ///     if chosen == SEQUENCE or cost < least: (chosen, least) = (share, cost)
    /// ```
    ///
    /// with `block_rows = min(max_rows, block_positions) * (64 / block_positions)`, and [`Round`]'s numbers.
    pub(crate) fn of_round(round: &Round, blocks: u64, max_pieces: u64, block_rows: u64) -> Share {
        let (mut chosen, mut least) = (Share::Sequence, u64::MAX);
        for (i, (share, unit)) in PIECES.into_iter().enumerate() {
            if round.pieces[i] > max_pieces {
                continue;
            }
            let turns = (round.zeros + round.items[i]).div_ceil(blocks);
            let cuts = round.longest.div_ceil(unit as u64).max(1);
            let run = turns / cuts * round.longest + (turns % cuts * unit as u64).min(round.longest);
            let cost = 64 * run + if round.pieces[i] > 0 { turns * block_rows } else { 0 };
            if chosen == Share::Sequence || cost < least {
                (chosen, least) = (share, cost);
            }
        }
        chosen
    }

    /// As the C header has it.
    pub(crate) fn code(self) -> i32 {
        match self {
            Share::Leaf => 1,
            Share::Quad => 2,
            Share::Group => 3,
            Share::Sequence => 4,
            Share::ByLengths => 5,
        }
    }
}

/// What is to be done in a round. Three numbers are those of groups, quads and leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    /// Leaves of the longest sequence.
    pub(crate) longest: u64,
    /// Items that write zeros.
    pub(crate) zeros: u64,
    /// Items of all other sequences: K/V heads times row blocks times cuts.
    pub(crate) items: [u64; 3],
    /// Those of them that are one of several of their row block.
    pub(crate) pieces: [u64; 3],
}

impl Round {
    /// Adds a sequence of `blocks` row blocks, those of each K/V head counted.
    pub(crate) fn add(&mut self, blocks: usize, leaves: &Range<usize>) {
        self.longest = self.longest.max(leaves.len() as u64);
        for (i, (_, unit)) in PIECES.into_iter().enumerate() {
            let cuts = leaves.end.div_ceil(unit) - leaves.start / unit;
            self.items[i] += (blocks * cuts) as u64;
            self.pieces[i] += if cuts > 1 { (blocks * cuts) as u64 } else { 0 };
        }
    }
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
        let block_positions = (BLOCK_ROWS / p.group()).max(1);
        let block_rows = p.max_rows.min(block_positions).saturating_mul(p.group());
        let sizes = || {
            let heads = p.max_rows.div_ceil(block_positions).checked_mul(p.kv_heads)?;
            let pieces_of = |leaves: usize| {
                // Visible keys may begin inside of a piece.
                let each = p.positions().div_ceil(leaves * LEAF_KEYS);
                each.checked_mul(p.sequences)?.checked_mul(heads)
            };
            let pieces = match (share, share.leaves()) {
                (_, Some(leaves)) => pieces_of(leaves)?,
                (Share::ByLengths, _) => pieces_of(1).unwrap_or(usize::MAX).min(PIECES_PER_BLOCK * blocks),
                _ => 0,
            };
            let items = p.sequences.checked_add(1)?.checked_mul(heads)?.checked_add(pieces)?;
            let entries = p.sequences.checked_mul(ENTRY)?;
            let work = items.checked_mul(ITEM)?.checked_add(entries)?.checked_add(HEAD)?;
            // A generous bound of the workspace, in bytes.
            let rows = pieces.checked_add(blocks.checked_mul(2)?)?.checked_mul(block_rows)?;
            rows.checked_mul(p.head_dim.checked_add(2)?)?.checked_mul(8)?.checked_add(4 * work)?;
            i32::try_from(work).ok()?;
            Some((pieces, work))
        };
        let Some((pieces, work)) = sizes() else {
            let what = format!("a list or workspace beyond what is addressable ({p:?}, {share:?})");
            return Err(Error::Unsupported { op, what });
        };
        let workspace = Workspace::default();
        let deal = Deal { path, share, blocks, block_positions, block_rows, pieces, work, workspace };
        Ok(Deal { workspace: deal.workspace(p, 0), ..deal })
    }

    /// The same with room for the list in the workspace.
    pub(crate) fn with_list(self, problem: &Problem) -> Self {
        Deal { workspace: self.workspace(problem, self.work), ..self }
    }

    fn workspace(&self, problem: &Problem, words: usize) -> Workspace {
        if self.path.is_none() {
            return Workspace::default();
        }
        let mut layout = Layout::default();
        let list = layout.add::<i32>(words).start;
        let rows = self.pieces * self.block_rows;
        let partials = layout.add::<f32>(rows * problem.head_dim).start;
        let stats = layout.add::<f32>(rows * 2).start;
        let scratch = layout.add::<f32>(self.blocks * 2 * self.block_rows * problem.head_dim).start;
        Workspace { list, partials, stats, scratch, bytes: layout.bytes() }
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

    /// Sequences of four K/V heads and one row block.
    fn round(sequences: usize, keys: usize) -> Round {
        let mut round = Round::default();
        (0..sequences).for_each(|_| round.add(4, &(0..keys.div_ceil(LEAF_KEYS))));
        round
    }

    fn chosen(sequences: usize, keys: usize) -> Share {
        Share::of_round(&round(sequences, keys), 132, 132 * PIECES_PER_BLOCK as u64, 24)
    }

    #[test]
    fn the_share_that_is_done_first() {
        // One sequence of four heads on 132 multiprocessors.
        assert_eq!(chosen(1, 100), Share::Group, "one item a head, whatever the share");
        assert_eq!([1000, 4096].map(|keys| chosen(1, keys)), [Share::Leaf; 2]);
        assert_eq!(chosen(1, 16_384), Share::Quad, "128 items");
        assert_eq!([65_536, 131_072, 262_144].map(|keys| chosen(1, keys)), [Share::Group; 3]);
        assert_eq!(
            [1000, 4096, 16_384].map(|keys| chosen(8, keys)),
            [Share::Leaf, Share::Quad, Share::Group]
        );
        // 32 sequences are 128 heads.
        assert_eq!([1000, 65_536].map(|keys| chosen(32, keys)), [Share::Group; 2]);
        assert_eq!(chosen(32, 131_072), Share::Sequence, "8192 groups have no room");
    }

    #[test]
    fn the_cost_formula() {
        let of = |round: &Round, blocks, pieces, rows| Share::of_round(round, blocks, pieces, rows);
        // 17 leaves from leaf 3 on, of 2 row blocks: two groups, five quads; by 4 blocks at a time.
        let mut one = Round::default();
        one.add(2, &(3..20));
        assert_eq!((one.longest, one.items, one.pieces), (17, [4, 10, 34], [4, 10, 34]));
        // One turn of 16 leaves, three of 4, nine of 1, r for each turn.
        use Share::{Group, Leaf, Quad, Sequence};
        let shares = [1, 31, 32, 127, 128, 129].map(|r| of(&one, 4, 99, r));
        assert_eq!(shares, [Leaf, Leaf, Quad, Quad, Group, Group]);
        assert_eq!([33, 9, 3].map(|room| of(&one, 4, room, 1)), [Quad, Group, Sequence]);
        // Two items of zeros: groups take two turns, which are all of a row block.
        let zeros = Round { zeros: 2, ..one };
        assert_eq!([90, 120].map(|r| of(&zeros, 4, 99, r)), [Quad, Quad]);
        // A block for each row block: whoever has it all has the fewest pieces.
        assert_eq!([0, 1, 64].map(|r| of(&one, 2, 99, r)), [Group; 3]);
        // Nothing is in pieces, so nothing is added for a merge; of equals the first.
        let mut short = Round::default();
        short.add(2, &(0..1));
        assert_eq!((short.items, short.pieces), ([2; 3], [0; 3]));
        assert_eq!(of(&short, 132, 0, 64), Share::Group);
        assert_eq!(of(&Round::default(), 132, 0, 64), Share::Group);
    }

    #[test]
    fn a_round_fits_its_workspace() {
        for sequences in 1..=64 {
            for keys in [1, 128, 129, 2048, 2049, 40_000, 262_144] {
                for pieces in [0, 10, 1000, 4224] {
                    let round = round(sequences, keys);
                    let share = Share::of_round(&round, 132, pieces, 24);
                    match PIECES.iter().position(|(there, _)| *there == share) {
                        Some(i) => assert!(round.pieces[i] <= pieces),
                        None => assert!(round.pieces.iter().all(|n| *n > pieces)),
                    }
                }
            }
        }
    }

    #[test]
    fn sizes() {
        let deal = |p: Problem, share| Deal::new("attn::test", &p, Some(Path::Sm80), share, 132).unwrap();
        let short = Problem { max_pages: 2, ..P };
        assert_eq!((Share::choose(&short), Share::choose(&P)), (Share::Sequence, Share::ByLengths));
        assert_eq!(Share::choose(&Problem { max_pages: 3, ..P }), Share::ByLengths);
        // Header, the sequence, one item per head and one for nobody's rows; a group and a total per block.
        let whole = deal(P, Share::Sequence);
        let scratch = 132 * 2 * 24 * 256 * 4;
        assert_eq!((whole.pieces, whole.work), (0, 8 + 4 + 12 * 8));
        assert_eq!((whole.block_positions, whole.block_rows, whole.workspace.bytes), (10, 24, scratch));
        let own = whole.with_list(&P).workspace;
        assert_eq!((own.list, own.partials, own.scratch, own.bytes), (0, 512, 512, 512 + scratch));
        let leaves = deal(P, Share::Leaf);
        assert_eq!((leaves.pieces, leaves.work), (4 * 2048, whole.work + 12 * 4 * 2048));
        let Workspace { stats, scratch: at, bytes, .. } = leaves.workspace;
        assert_eq!((stats, at), (4 * 2048 * 24 * 256 * 4, 4 * 2048 * 24 * 258 * 4));
        assert_eq!(bytes, at + scratch);
        assert_eq!((deal(P, Share::Quad).pieces, deal(P, Share::Group).pieces), (4 * 512, 4 * 128));
        // A context of 262,144 tokens, in 111 MB for all layers, whatever the batch.
        let by_lengths = deal(P, Share::ByLengths);
        assert_eq!((by_lengths.pieces, by_lengths.workspace.bytes), (4224, 104_620_032 + scratch));
        assert_eq!(deal(Problem { sequences: 64, ..P }, Share::ByLengths).pieces, 4224);
        assert_eq!(deal(Problem { max_pages: 4, ..P }, Share::ByLengths).pieces, 8);
        let none = Deal::new("attn::test", &P, None, Share::ByLengths, 132).unwrap();
        assert_eq!(none.with_list(&P).workspace, Workspace::default());
        let huge = Problem { sequences: usize::MAX / 8, ..P };
        let text = Deal::new("attn::test", &huge, None, Share::Leaf, 132).unwrap_err().to_string();
        assert!(text.starts_with("attn::test: a list or workspace beyond what is addressable"), "{text}");
    }

    #[test]
    fn row_blocks() {
        let deal = |group: usize, max_rows| {
            let p = Problem { q_heads: 4 * group, max_rows, ..P };
            Deal::new("attn::test", &p, Some(Path::Sm80), Share::Leaf, 132).unwrap()
        };
        let groups = [1, 2, 3, 4, 6, 8, 12, 16];
        let positions = groups.map(|group| deal(group, 16).block_positions);
        assert_eq!(positions, [64, 32, 21, 16, 10, 8, 5, 4]);
        assert_eq!(groups.map(|group| deal(group, 16).block_rows), [16, 32, 48, 64, 60, 64, 60, 64]);
        // What the kernel of the list knows it by.
        assert_eq!(positions.map(|positions| BLOCK_ROWS / positions), groups);
        // Two row blocks of 6 heads, four of 16.
        assert_eq!([6, 16].map(|group| deal(group, 16).pieces), [2 * 4 * 2048, 4 * 4 * 2048]);
        assert_eq!((deal(100, 3).block_positions, deal(100, 3).block_rows), (1, 100), "on the CPU");
    }
}

//! How a round is dealt to thread blocks: a choice of speed, which no bit depends on.

use crate::{
    Problem,
    tree::{self, GROUP_TILES, TILE_KEYS},
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
    /// One leaf: 128, 256 or 512 keys, see [`tree::leaf_tiles`](crate::tree::leaf_tiles).
    Leaf,
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
    /// Tiles of a leaf.
    pub(crate) leaf_tiles: usize,
    /// Rows of a sequence in a row block.
    pub(crate) block_positions: usize,
    /// Rows of a row block in this launch, at most, rounded up to [`ROW_TILE`]: of what is kept for one.
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
    /// `[pieces, block_rows, head_dim]` f32, in an order of the kernels' own
    pub(crate) partials: usize,
    /// `[pieces, block_rows, 2]` f32
    pub(crate) stats: usize,
    /// `[blocks, 2, block_rows, head_dim]` f32, in an order of the kernels' own
    pub(crate) scratch: usize,
    pub(crate) bytes: usize,
}

/// Rows of a tile of a tensor core's result.
const ROW_TILE: usize = 8;

/// What [`Share::ByLengths`] chooses from, those with the fewest pieces first.
const SHARES: [Share; 3] = [Share::Sequence, Share::Group, Share::Leaf];

/// Nanoseconds of an H200 at head_dim 256, of which only proportions count: a tile where one block streams, and where
/// all do; a tile that arithmetic binds, and what each row adds to it; a merge, what each piece of a row block adds to it, and a row of a piece,
/// written and read, of which a merged row is worth three.
const TILE_STREAMED_ALONE: u64 = 1700;
const TILE_STREAMED: u64 = 3850;
const TILE: u64 = 1400;
const TILE_ROW: u64 = 37;
const MERGE: u64 = 2500;
const MERGE_PIECE: u64 = 100;
const MERGED_ROW: u64 = 3;

impl Share {
    /// By the bounds: contexts of one leaf have nothing to share, all others are dealt by their lengths.
    pub(crate) fn choose(problem: &Problem) -> Share {
        let leaf = tree::leaf_tiles(problem.kv_heads) * TILE_KEYS;
        if problem.positions() <= leaf { Share::Sequence } else { Share::ByLengths }
    }

    /// Tiles between two cuts; `None` where nothing is cut.
    pub(crate) fn tiles(self, leaf_tiles: usize) -> Option<usize> {
        match self {
            Share::Leaf => Some(leaf_tiles),
            Share::Group => Some(GROUP_TILES),
            Share::Sequence | Share::ByLengths => None,
        }
    }

    /// The share of [`Share::ByLengths`] for a round: the one that is done first.
    ///
    /// `blocks` thread blocks work at a time. Where all have an item they stream from memory, which is what binds
    /// them then; the items of the last turn may be few, and each takes as long as it takes alone. Items are taken to
    /// be alike, but for those of the last turn, which are whole. Pieces cost a merge.
    ///
    /// The kernel that makes the list repeats this, in unsigned integers of 64 bits:
    ///
    /// ```text
    /// alone = 1400 + 37 * block_rows
    /// for share in SEQUENCE, GROUP, LEAF:
    ///     if pieces[share] > max_pieces: continue
    ///     whole = min(longest, tiles of the share)
    ///     turns = items[share] / blocks, last = items[share] % blocks
    ///     cost = max(3850, alone) * tiles / max(items[share], 1) * turns
    ///     if last > 0: cost += max(1700 + 2150 * last * last / (blocks * blocks), alone) * whole
    ///     cost = max(cost, alone * whole)
    ///     if pieces[share] > 0:
    ///         cost += 2500 + 100 * pieces[share] / items[SEQUENCE]
    ///         cost += block_rows * (pieces[share] + 3 * items[SEQUENCE])
    ///     the first share with the least cost is chosen
    /// ```
    ///
    /// with `block_rows = min(max_rows, block_positions) * (64 / block_positions)`, rounded up to 8, and [`Round`]'s
    /// numbers.
    pub(crate) fn of_round(round: &Round, blocks: u64, max_pieces: u64, block_rows: u64) -> Share {
        let alone = TILE + TILE_ROW * block_rows;
        let (mut chosen, mut least) = (Share::Sequence, u64::MAX);
        for (i, share) in SHARES.into_iter().enumerate() {
            let (items, pieces) = (round.items[i], round.pieces[i]);
            if pieces > max_pieces {
                continue;
            }
            let whole =
                share.tiles(round.leaf_tiles).map_or(round.longest, |unit| round.longest.min(unit as u64));
            let (turns, last) = (items / blocks, items % blocks);
            let mut cost = TILE_STREAMED.max(alone) * round.tiles / items.max(1) * turns;
            if last > 0 {
                let streamed = TILE_STREAMED_ALONE
                    + (TILE_STREAMED - TILE_STREAMED_ALONE) * last * last / (blocks * blocks);
                cost += streamed.max(alone) * whole;
            }
            cost = cost.max(alone * whole);
            if pieces > 0 {
                cost += MERGE + MERGE_PIECE * pieces / round.items[0];
                cost += block_rows * (pieces + MERGED_ROW * round.items[0]);
            }
            if cost < least {
                (chosen, least) = (share, cost);
            }
        }
        chosen
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

/// What is to be done in a round; items and pieces of each of [`SHARES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// Tiles of a leaf.
    leaf_tiles: usize,
    /// Tiles of the longest sequence.
    pub(crate) longest: u64,
    /// Tiles of all sequences, for each K/V head and row block.
    pub(crate) tiles: u64,
    /// Items that have tiles: K/V heads times row blocks times cuts.
    pub(crate) items: [u64; 3],
    /// Those of them that are one of several of their row block.
    pub(crate) pieces: [u64; 3],
}

impl Round {
    pub(crate) fn new(leaf_tiles: usize) -> Self {
        Round { leaf_tiles, longest: 0, tiles: 0, items: [0; 3], pieces: [0; 3] }
    }

    /// Adds a sequence of `blocks` row blocks, those of each K/V head counted.
    pub(crate) fn add(&mut self, blocks: usize, tiles: &Range<usize>) {
        self.longest = self.longest.max(tiles.len() as u64);
        self.tiles += (blocks * tiles.len()) as u64;
        for (i, share) in SHARES.into_iter().enumerate() {
            let cuts =
                share.tiles(self.leaf_tiles).map_or(1, |unit| tiles.end.div_ceil(unit) - tiles.start / unit);
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
        let leaf_tiles = tree::leaf_tiles(p.kv_heads);
        let block_positions = (BLOCK_ROWS / p.group()).max(1);
        let rows = p.max_rows.min(block_positions).saturating_mul(p.group());
        let block_rows = rows.checked_next_multiple_of(ROW_TILE).unwrap_or(usize::MAX);
        let sizes = || {
            let heads = p.max_rows.div_ceil(block_positions).checked_mul(p.kv_heads)?;
            let pieces_of = |tiles: usize| {
                // Visible keys may begin inside of a piece.
                let each = p.positions().div_ceil(tiles * TILE_KEYS);
                each.checked_mul(p.sequences)?.checked_mul(heads)
            };
            let pieces = match (share, share.tiles(leaf_tiles)) {
                (_, Some(tiles)) => pieces_of(tiles)?,
                (Share::ByLengths, _) => {
                    pieces_of(leaf_tiles).unwrap_or(usize::MAX).min(PIECES_PER_BLOCK * blocks)
                }
                _ => 0,
            };
            let items = p.sequences.checked_add(1)?.checked_mul(heads)?.checked_add(pieces)?;
            let entries = p.sequences.checked_mul(ENTRY)?;
            let work = items.checked_mul(ITEM)?.checked_add(entries)?.checked_add(HEAD)?;
            // A generous bound of the workspace, in bytes.
            let rows = blocks.checked_mul(2)?.checked_add(pieces)?.checked_mul(block_rows)?;
            rows.checked_mul(p.head_dim.checked_add(2)?)?.checked_mul(8)?.checked_add(4 * work)?;
            i32::try_from(work).ok()?;
            Some((pieces, work))
        };
        let Some((pieces, work)) = sizes() else {
            let what = format!("a list or workspace beyond what is addressable ({p:?}, {share:?})");
            return Err(Error::Unsupported { op, what });
        };
        let workspace = Workspace::default();
        let deal =
            Deal { path, share, blocks, leaf_tiles, block_positions, block_rows, pieces, work, workspace };
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
        let scratch = layout.add::<f32>(2 * self.blocks * self.block_rows * problem.head_dim).start;
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
        let mut round = Round::new(4);
        (0..sequences).for_each(|_| round.add(4, &(0..keys.div_ceil(TILE_KEYS))));
        round
    }

    fn chosen(sequences: usize, keys: usize) -> Share {
        Share::of_round(&round(sequences, keys), 132, 132 * PIECES_PER_BLOCK as u64, 24)
    }

    #[test]
    fn the_share_that_is_done_first() {
        use Share::{Group, Leaf, Sequence};
        // One sequence of four heads on 132 multiprocessors.
        assert_eq!(chosen(1, 100), Sequence, "one item a head, whatever the share");
        assert_eq!([1000, 4096, 16_384].map(|keys| chosen(1, keys)), [Leaf; 3]);
        assert_eq!([65_536, 131_072, 262_144].map(|keys| chosen(1, keys)), [Group; 3]);
        // 64 groups would leave half of the multiprocessors without work.
        assert_eq!([1000, 4096, 16_384].map(|keys| chosen(8, keys)), [Leaf, Leaf, Group]);
        // 32 sequences are 128 heads.
        assert_eq!([1000, 4096, 65_536, 131_072].map(|keys| chosen(32, keys)), [Sequence; 4]);
        // The longest of many binds, unless it is cut.
        let mut ragged = round(32, 1000);
        ragged.add(4, &(0..512));
        assert_eq!(Share::of_round(&ragged, 132, 4224, 24), Group);
    }

    #[test]
    fn the_cost_formula() {
        use Share::{Group, Leaf, Sequence};
        let of = |round: &Round, blocks, pieces, rows| Share::of_round(round, blocks, pieces, rows);
        // 17 tiles from tile 3 on, of 2 row blocks: two groups; leaves of each size.
        let one = |leaf_tiles| {
            let mut round = Round::new(leaf_tiles);
            round.add(2, &(3..20));
            round
        };
        assert_eq!([1, 2, 4].map(|leaf_tiles| one(leaf_tiles).items), [[2, 4, 34], [2, 4, 18], [2, 4, 10]]);
        let one = one(4);
        assert_eq!((one.longest, one.tiles, one.pieces), (17, 34, [0, 4, 10]));
        // With 8 rows a tile alone takes 1696. By 8 blocks: whole 17 * (1700 + 2150 * 4 / 64) = 31178; as groups
        // 16 * (1700 + 2150 * 16 / 64) and 2500 + 200 + 8 * (4 + 6) for the merge, 38572; as leaves one turn of 3.4
        // tiles and one of 2 blocks, 13090 + 4 * 1834, and 2500 + 500 + 8 * (10 + 6) for the merge, 23554.
        assert_eq!([10, 9, 3].map(|room| of(&one, 8, room, 8)), [Leaf, Sequence, Sequence]);
        // By 2 blocks all are bound by memory, 17 * 3850; whoever has no pieces.
        assert_eq!(of(&one, 2, 99, 8), Sequence);
        // With room for groups alone, 24 tiles of 2 row blocks of 16 rows, 1992 a tile: by 2 blocks memory takes 92400 in
        // any case, and a merge 2500 + 200 + 16 * (4 + 6) = 2860; by 64 blocks 24 * 1992 = 47808 whole, as groups
        // 16 * 1992 + 2860 = 34732.
        let mut two = Round::new(4);
        two.add(2, &(0..24));
        assert_eq!([2, 64].map(|blocks| of(&two, blocks, 4, 16)), [Sequence, Group]);
        // Nothing is in pieces, so nothing is added for a merge; of equals the first.
        let mut short = Round::new(1);
        short.add(2, &(0..1));
        assert_eq!((short.items, short.pieces), ([2; 3], [0; 3]));
        assert_eq!(of(&short, 132, 0, 64), Sequence);
        assert_eq!(of(&Round::new(1), 132, 0, 64), Sequence);
    }

    #[test]
    fn a_round_fits_its_workspace() {
        for sequences in 1..=64 {
            for keys in [1, 128, 129, 2048, 2049, 40_000, 262_144] {
                for pieces in [0, 10, 1000, 4224] {
                    let round = round(sequences, keys);
                    let share = Share::of_round(&round, 132, pieces, 24);
                    let chosen = SHARES.iter().position(|there| *there == share).unwrap();
                    assert!(round.pieces[chosen] <= pieces);
                }
            }
        }
    }

    #[test]
    fn sizes() {
        let deal = |p: Problem, share| Deal::new("attn::test", &p, Some(Path::Sm80), share, 132).unwrap();
        // A leaf of 512 keys, and one of 128.
        let fits = |kv_heads, max_pages| Share::choose(&Problem { kv_heads, max_pages, ..P });
        assert_eq!([8, 9].map(|pages| fits(4, pages)), [Share::Sequence, Share::ByLengths]);
        assert_eq!([2, 3].map(|pages| fits(1, pages)), [Share::Sequence, Share::ByLengths]);
        // Header, the sequence, one item per head and one for nobody's rows; a total per block.
        let whole = deal(P, Share::Sequence);
        let scratch = 132 * 2 * 24 * 256 * 4;
        assert_eq!((whole.pieces, whole.leaf_tiles, whole.work), (0, 4, 8 + 4 + 12 * 8));
        assert_eq!((whole.block_positions, whole.block_rows, whole.workspace.bytes), (10, 24, scratch));
        let own = whole.with_list(&P).workspace;
        assert_eq!((own.list, own.partials, own.scratch, own.bytes), (0, 512, 512, 512 + scratch));
        // 18 rows of each block take the room of 24.
        assert_eq!(deal(Problem { max_rows: 3, ..P }, Share::Sequence).workspace.bytes, scratch);
        let leaves = deal(P, Share::Leaf);
        assert_eq!((leaves.pieces, leaves.work), (4 * 512, whole.work + 12 * 4 * 512));
        let Workspace { stats, scratch: at, bytes, .. } = leaves.workspace;
        assert_eq!((stats, at), (4 * 512 * 24 * 256 * 4, 4 * 512 * 24 * 258 * 4));
        assert_eq!(bytes, at + scratch);
        assert_eq!(deal(P, Share::Group).pieces, 4 * 128);
        assert_eq!(
            [1, 2].map(|kv_heads| deal(Problem { kv_heads, q_heads: 4, ..P }, Share::Leaf).pieces),
            [2048; 2]
        );
        // Contexts of 262,144 tokens, in 108 MB for all layers, whatever the batch.
        let by_lengths = deal(Problem { sequences: 64, ..P }, Share::ByLengths);
        assert_eq!((by_lengths.pieces, by_lengths.workspace.bytes), (4224, 104_620_032 + scratch));
        assert_eq!(deal(P, Share::ByLengths).pieces, 4 * 512);
        assert_eq!(deal(Problem { max_pages: 9, ..P }, Share::ByLengths).pieces, 8);
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
        assert_eq!(groups.map(|group| deal(group, 16).block_rows), [16, 32, 48, 64, 64, 64, 64, 64]);
        // What the kernel of the list knows it by.
        assert_eq!(positions.map(|positions| BLOCK_ROWS / positions), groups);
        // Two row blocks of 6 heads, four of 16.
        assert_eq!([6, 16].map(|group| deal(group, 16).pieces), [2 * 4 * 512, 4 * 4 * 512]);
        assert_eq!((deal(100, 3).block_positions, deal(100, 3).block_rows), (1, 104), "on the CPU");
    }
}

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
    /// `[blocks, 2, block_rows rounded up to 8, head_dim]` f32
    pub(crate) scratch: usize,
    pub(crate) bytes: usize,
}

/// Scratch rows of a block are a multiple of this: the width of a tile of a tensor core's result.
const SCRATCH_ROWS: usize = 8;

/// The shares that leave pieces, those with the fewest first, and their tiles.
fn cut(leaf_tiles: usize) -> [(Share, usize); 2] {
    [(Share::Group, GROUP_TILES), (Share::Leaf, leaf_tiles)]
}

impl Share {
    /// By the bounds: contexts of one leaf have nothing to share, all others are dealt by their lengths.
    pub(crate) fn choose(problem: &Problem) -> Share {
        let leaf = tree::leaf_tiles(problem.kv_heads) * TILE_KEYS;
        if problem.positions() <= leaf { Share::Sequence } else { Share::ByLengths }
    }

    /// Tiles between two cuts; `None` where nothing is cut.
    pub(crate) fn tiles(self, leaf_tiles: usize) -> Option<usize> {
        cut(leaf_tiles).into_iter().find(|(share, _)| *share == self).map(|(_, tiles)| tiles)
    }

    /// The share of [`Share::ByLengths`] for a round: the one that is done first.
    ///
    /// `blocks` thread blocks work at a time, each on a run of consecutive items, as many as any other. The
    /// longest run is taken to consist of row blocks of the longest sequence. It costs 64 for each of its
    /// tiles; but where all blocks stream, memory binds, and a tile takes 7 / 2 of what it takes alone, so the
    /// round costs no less than that for its mean share of all tiles. A piece costs what its partial result
    /// adds in bytes written and read, 2 * 4 * block_rows * head_dim beside a tile's 2 * 2 * 128 * head_dim,
    /// which is block_rows / 64 of it.
    ///
    /// The kernel that makes the list repeats this, in unsigned integers of 64 bits:
    ///
    /// ```text
    /// chosen = SEQUENCE
    /// for (share, unit) in (GROUP, 16), (LEAF, leaf_tiles):
    ///     if pieces[share] > max_pieces: continue
    ///     turns = (zeros + items[share] + blocks - 1) / blocks
    ///     cuts = max(1, (longest + unit - 1) / unit)
    ///     run = turns / cuts * longest + min(turns % cuts * unit, longest)
    ///     cost = 32 * max(2 * run, (7 * tiles + blocks - 1) / blocks)
    ///     cost += pieces[share] > 0 ? turns * block_rows : 0
    ///     if chosen == SEQUENCE or cost < least: (chosen, least) = (share, cost)
    /// ```
    ///
    /// with `block_rows = min(max_rows, block_positions) * (64 / block_positions)`, and [`Round`]'s numbers.
    pub(crate) fn of_round(round: &Round, blocks: u64, max_pieces: u64, block_rows: u64) -> Share {
        let (mut chosen, mut least) = (Share::Sequence, u64::MAX);
        for (i, (share, unit)) in cut(round.leaf_tiles).into_iter().enumerate() {
            if round.pieces[i] > max_pieces {
                continue;
            }
            let turns = (round.zeros + round.items[i]).div_ceil(blocks);
            let cuts = round.longest.div_ceil(unit as u64).max(1);
            let run = turns / cuts * round.longest + (turns % cuts * unit as u64).min(round.longest);
            let merge = if round.pieces[i] > 0 { turns * block_rows } else { 0 };
            let cost = 32 * (2 * run).max((7 * round.tiles).div_ceil(blocks)) + merge;
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
            Share::Group => 2,
            Share::Sequence => 3,
            Share::ByLengths => 4,
        }
    }
}

/// What is to be done in a round. Two numbers are those of groups and of leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// Tiles of a leaf.
    leaf_tiles: usize,
    /// Tiles of the longest sequence.
    pub(crate) longest: u64,
    /// Tiles of all sequences, for each K/V head and row block.
    pub(crate) tiles: u64,
    /// Items that write zeros.
    pub(crate) zeros: u64,
    /// Items of all other sequences: K/V heads times row blocks times cuts.
    pub(crate) items: [u64; 2],
    /// Those of them that are one of several of their row block.
    pub(crate) pieces: [u64; 2],
}

impl Round {
    pub(crate) fn new(leaf_tiles: usize) -> Self {
        Round { leaf_tiles, longest: 0, tiles: 0, zeros: 0, items: [0; 2], pieces: [0; 2] }
    }

    /// Adds a sequence of `blocks` row blocks, those of each K/V head counted.
    pub(crate) fn add(&mut self, blocks: usize, tiles: &Range<usize>) {
        self.longest = self.longest.max(tiles.len() as u64);
        self.tiles += (blocks * tiles.len()) as u64;
        for (i, (_, unit)) in cut(self.leaf_tiles).into_iter().enumerate() {
            let cuts = tiles.end.div_ceil(unit) - tiles.start / unit;
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
        let block_rows = p.max_rows.min(block_positions).saturating_mul(p.group());
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
            let scratch_rows = block_rows.checked_next_multiple_of(SCRATCH_ROWS)?;
            let rows = blocks.checked_mul(2)?.checked_add(pieces)?.checked_mul(scratch_rows)?;
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
        let scratch_rows = 2 * self.blocks * self.block_rows.next_multiple_of(SCRATCH_ROWS);
        let scratch = layout.add::<f32>(scratch_rows * problem.head_dim).start;
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
        // One sequence of four heads on 132 multiprocessors.
        assert_eq!(chosen(1, 100), Share::Group, "one item a head, whatever the share");
        assert_eq!([1000, 4096, 16_384].map(|keys| chosen(1, keys)), [Share::Leaf; 3]);
        assert_eq!([65_536, 131_072, 262_144].map(|keys| chosen(1, keys)), [Share::Group; 3]);
        // 64 groups, half as many as multiprocessors, already ask for more than memory gives.
        assert_eq!(
            [1000, 4096, 16_384].map(|keys| chosen(8, keys)),
            [Share::Leaf, Share::Group, Share::Group]
        );
        // 32 sequences are 128 heads.
        assert_eq!([1000, 65_536].map(|keys| chosen(32, keys)), [Share::Group; 2]);
        assert_eq!(chosen(32, 131_072), Share::Sequence, "8192 groups have no room");
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
        assert_eq!([1, 2, 4].map(|leaf_tiles| one(leaf_tiles).items), [[4, 34], [4, 18], [4, 10]]);
        let one = one(4);
        assert_eq!((one.longest, one.tiles, one.pieces), (17, 34, [4, 10]));
        // By 8 blocks at a time one turn of 16 tiles, 32 * 32, or two of 4, for which memory takes as long as
        // for 15: 32 * 30. And r for each turn.
        assert_eq!([1, 63, 64, 65].map(|r| of(&one, 8, 99, r)), [Leaf, Leaf, Group, Group]);
        assert_eq!([10, 9, 4, 3].map(|room| of(&one, 8, room, 1)), [Leaf, Group, Group, Sequence]);
        // Five items of zeros: groups take two turns, which are all of a row block.
        let zeros = Round { zeros: 5, ..one };
        assert_eq!([64, 999].map(|r| of(&zeros, 8, 99, r)), [Leaf, Leaf]);
        // By 4 blocks memory binds, however the tiles are dealt: whoever has the fewest pieces.
        assert_eq!([0, 1, 64].map(|r| of(&one, 4, 99, r)), [Group; 3]);
        // Two more row blocks elsewhere bind it too.
        let mut two = one;
        two.add(2, &(0..3));
        assert_eq!([1, 31, 32].map(|r| of(&two, 8, 99, r)), [Group; 3]);
        // Nothing is in pieces, so nothing is added for a merge; of equals the first.
        let mut short = Round::new(1);
        short.add(2, &(0..1));
        assert_eq!((short.items, short.pieces), ([2; 2], [0; 2]));
        assert_eq!(of(&short, 132, 0, 64), Group);
        assert_eq!(of(&Round::new(1), 132, 0, 64), Group);
    }

    #[test]
    fn a_round_fits_its_workspace() {
        for sequences in 1..=64 {
            for keys in [1, 128, 129, 2048, 2049, 40_000, 262_144] {
                for pieces in [0, 10, 1000, 4224] {
                    let round = round(sequences, keys);
                    let share = Share::of_round(&round, 132, pieces, 24);
                    match cut(4).iter().position(|(there, _)| *there == share) {
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
        assert_eq!(groups.map(|group| deal(group, 16).block_rows), [16, 32, 48, 64, 60, 64, 60, 64]);
        // What the kernel of the list knows it by.
        assert_eq!(positions.map(|positions| BLOCK_ROWS / positions), groups);
        // Two row blocks of 6 heads, four of 16.
        assert_eq!([6, 16].map(|group| deal(group, 16).pieces), [2 * 4 * 512, 4 * 4 * 512]);
        assert_eq!((deal(100, 3).block_positions, deal(100, 3).block_rows), (1, 100), "on the CPU");
    }
}

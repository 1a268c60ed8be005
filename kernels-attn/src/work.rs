//! The list of a round's work, which all layers share.

use crate::{
    AttnBackend, Problem, Share,
    grid::{Deal, ENTRY, HEAD, ITEM, Round},
    plan::BUILT,
    tree,
};
use kernels_core::{Backend, DeviceInfo, PageTable, Result, Rows, TensorMut};
use std::ops::Range;

pub(crate) const OP: &str = "attn::work";

/// Checks the sequences of a round and lists what the thread blocks of its [`Verify`](crate::Verify) do.
///
/// Once for each round and each kind of layer (those that differ in [`Problem::first_key`] or
/// [`Problem::window`]); the list stands until rows, positions or pages change. Its words are described in
/// the C header. The CPU half of a verification does without.
///
/// # Faults
///
/// All those of [`Verify`](crate::Verify): on CUDA that one trusts the list.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    problem: Problem,
    pub(crate) deal: Deal,
    pub(crate) programmatic: bool,
}

/// The operands of [`Work`].
#[derive(Debug)]
pub struct WorkArgs<'a, B: Backend> {
    /// `[work]`: the list, [`Work::len`] words.
    pub work: TensorMut<'a, B, i32, 1>,
    /// `[slots + 1]`: sticky fault words, see [`kernels_core::slots::Fault`].
    pub faults: TensorMut<'a, B, u64, 1>,
    /// `[slots, max_pages]`: the pages of each slot.
    pub page_table: PageTable<'a, B>,
    /// Which rows belong to which sequence, and where they stand.
    pub rows: Rows<'a, B>,
}

impl Work {
    /// Plans the list for [`Verify::plan`](crate::Verify::plan) with the same sizes.
    ///
    /// # Errors
    ///
    /// Those of [`Verify::plan`](crate::Verify::plan).
    pub fn plan(problem: Problem, device: &DeviceInfo) -> Result<Self> {
        Self::plan_with(problem, device, None)
    }

    /// Like [`Work::plan`] for a verification with a grid of the caller's.
    ///
    /// # Errors
    ///
    /// Those of [`Work::plan`].
    pub fn plan_with(problem: Problem, device: &DeviceInfo, share: Option<Share>) -> Result<Self> {
        problem.validate(OP)?;
        let deal = problem.deal(OP, device, (None, share), BUILT)?;
        crate::plan::verify_rows(OP, &problem, device)?;
        Ok(Work { problem, deal, programmatic: false })
    }

    /// Lets the CUDA kernel begin while the one before it on the stream still runs. It waits for that one
    /// before it reads or writes anything.
    pub fn overlapping(mut self, on: bool) -> Self {
        self.programmatic = on;
        self
    }

    /// Words of the list.
    #[expect(clippy::len_without_is_empty, reason = "it always has words")]
    pub fn len(&self) -> usize {
        self.deal.work
    }

    /// The sizes this was planned for.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Enqueues the operation.
    ///
    /// # Errors
    ///
    /// Operands whose shape, strides or size do not fit the problem, by name.
    pub fn run<B: AttnBackend>(&self, on: &B::Queue, args: WorkArgs<'_, B>) -> Result<()> {
        let p = &self.problem;
        args.work.check(OP, "work", [self.deal.work])?;
        args.work.check_disjoint(OP, "work")?;
        args.faults.check(OP, "faults", [p.slots + 1])?;
        args.page_table.check(OP, "page_table", [p.slots, p.max_pages])?;
        args.rows.check(OP, p.sequences)?;
        B::work(self, on, args)
    }
}

/// What a list says of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// These rows of the launch become zeros.
    Zeros(Range<usize>),
    /// These rows of the launch attend.
    Attends {
        /// Where its keys and values are.
        slot: usize,
        /// The position of the first row.
        start: usize,
        /// Its rows.
        rows: Range<usize>,
    },
}

/// Writes the list; words behind its last item stay as they are.
///
/// Where the header leaves a choice: an item of zeros is `[sequence, kv_head, 0, 0, 0, -1, -1, 0, first row,
/// rows, 0, 0]`, for a sequence that is skipped or sees no key, and for a row block of a whole sequence that
/// sees none. Where there are no rows there is no item. A sequence without items to merge has no pieces and
/// first piece 0; one that does not attend has four zeros.
pub(crate) fn list(p: &Problem, deal: &Deal, entries: &[Entry], unowned: Range<usize>, words: &mut [i32]) {
    let share = share(p, deal, entries);
    let (head, rest) = words.split_at_mut(HEAD);
    let (numbers, items) = rest.split_at_mut(p.sequences * ENTRY);
    let mut lister = Lister { p, deal, share, words: items, items: 0, pieces: 0 };
    for ((sequence, entry), numbers) in entries.iter().enumerate().zip(numbers.chunks_exact_mut(ENTRY)) {
        numbers.copy_from_slice(&lister.sequence(sequence, entry).map(|n| n as i32));
    }
    lister.zeros(p.sequences, unowned);
    let (items, pieces) = (lister.items as i32, lister.pieces as i32);
    head.copy_from_slice(&[items, pieces, share.code(), 0, 0, 0, 0, 0]);
}

/// The tiles that the rows of a sequence see.
fn tiles(p: &Problem, start: usize, rows: usize) -> Range<usize> {
    tree::tiles(p.span(start..start + rows))
}

/// The share of this round.
fn share(p: &Problem, deal: &Deal, entries: &[Entry]) -> Share {
    if deal.share != Share::ByLengths {
        return deal.share;
    }
    let mut round = Round::new(deal.leaf_tiles);
    for entry in entries {
        let Entry::Attends { start, rows, .. } = entry else { continue };
        let tiles = tiles(p, *start, rows.len());
        if !tiles.is_empty() {
            round.add(p.kv_heads * rows.len().div_ceil(deal.block_positions), &tiles);
        }
    }
    Share::of_round(&round, deal.blocks as u64, deal.pieces as u64, deal.block_rows as u64)
}

/// The items of a list, while it is made.
struct Lister<'a> {
    p: &'a Problem,
    deal: &'a Deal,
    share: Share,
    words: &'a mut [i32],
    items: usize,
    pieces: usize,
}

impl Lister<'_> {
    /// Lists a sequence and returns its own numbers.
    fn sequence(&mut self, sequence: usize, entry: &Entry) -> [usize; ENTRY] {
        let (slot, start, rows) = match entry {
            Entry::Attends { slot, start, rows } => (*slot, *start, rows.clone()),
            Entry::Zeros(rows) => {
                self.zeros(sequence, rows.clone());
                return [0; ENTRY];
            }
        };
        let tiles = tiles(self.p, start, rows.len());
        if tiles.is_empty() {
            self.zeros(sequence, rows);
            return [0; ENTRY];
        }
        let row_blocks = rows.len().div_ceil(self.deal.block_positions);
        let tail = [slot, start, rows.start, rows.len()];
        let Some(unit) = self.share.tiles(self.deal.leaf_tiles) else {
            self.whole(sequence, row_blocks, start, &rows, tail);
            return [0, 0, tiles.start, tiles.end];
        };
        let cuts = tiles.start / unit..tiles.end.div_ceil(unit);
        let pieces = if cuts.len() > 1 { cuts.len() } else { 0 };
        let first = if pieces > 0 { self.pieces } else { 0 };
        for head in 0..self.p.kv_heads {
            for block in 0..row_blocks {
                for cut in cuts.clone() {
                    let part = (cut * unit).max(tiles.start)..((cut + 1) * unit).min(tiles.end);
                    let piece = (pieces > 0).then_some(self.pieces);
                    self.item(sequence, head, block, part, piece, tail);
                    self.pieces += usize::from(pieces > 0);
                }
            }
        }
        [first, pieces, tiles.start, tiles.end]
    }

    /// Row blocks with all keys of their own, those with the most first.
    fn whole(
        &mut self,
        sequence: usize,
        row_blocks: usize,
        start: usize,
        rows: &Range<usize>,
        tail: [usize; 4],
    ) {
        let positions = self.deal.block_positions;
        for head in 0..self.p.kv_heads {
            for block in (0..row_blocks).rev() {
                let part = block * positions..((block + 1) * positions).min(rows.len());
                let tiles = tiles(self.p, start + part.start, part.len());
                if tiles.is_empty() {
                    self.zero(sequence, head, rows.start + part.start..rows.start + part.end);
                } else {
                    self.item(sequence, head, block, tiles, None, tail);
                }
            }
        }
    }

    /// Zeros for all heads of some rows.
    fn zeros(&mut self, sequence: usize, rows: Range<usize>) {
        if !rows.is_empty() {
            (0..self.p.kv_heads).for_each(|head| self.zero(sequence, head, rows.clone()));
        }
    }

    fn zero(&mut self, sequence: usize, head: usize, rows: Range<usize>) {
        let (first, count) = (rows.start as i32, rows.len() as i32);
        self.push([sequence as i32, head as i32, 0, 0, 0, -1, -1, 0, first, count, 0, 0]);
    }

    fn item(
        &mut self,
        sequence: usize,
        head: usize,
        block: usize,
        tiles: Range<usize>,
        piece: Option<usize>,
        tail: [usize; 4],
    ) {
        let [sequence, head, block] = [sequence, head, block].map(|n| n as i32);
        let (first, end) = (tiles.start as i32, tiles.end as i32);
        let [slot, start, row, rows] = tail.map(|n| n as i32);
        let piece = piece.map_or(-1, |piece| piece as i32);
        self.push([sequence, head, block, first, end, piece, slot, start, row, rows, 0, 0]);
    }

    fn push(&mut self, item: [i32; ITEM]) {
        self.words[self.items * ITEM..][..ITEM].copy_from_slice(&item);
        self.items += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Problem = Problem {
        sequences: 4,
        rows: 30,
        max_rows: 6,
        q_heads: 16,
        kv_heads: 1,
        head_dim: 128,
        slots: 4,
        max_pages: 40,
        pages: 99,
        page_rows: 128,
        first_key: 0,
        window: None,
    };

    fn attends(slot: usize, start: usize, rows: Range<usize>) -> Entry {
        Entry::Attends { slot, start, rows }
    }

    fn words(p: &Problem, share: Share, blocks: usize, entries: &[Entry], unowned: Range<usize>) -> Vec<i32> {
        let deal = Deal::new(OP, p, None, share, blocks).unwrap();
        let mut words = vec![-7; deal.work];
        list(p, &deal, entries, unowned, &mut words);
        assert!(words[1] as usize <= deal.pieces);
        let end = HEAD + ENTRY * p.sequences + ITEM * words[0] as usize;
        assert!(words[3..HEAD].iter().all(|x| *x == 0));
        assert!(words[end..].iter().all(|x| *x == -7), "behind the last item");
        words.truncate(end);
        words
    }

    /// Header, sequences, items.
    type Parts = (Vec<i32>, Vec<[i32; ENTRY]>, Vec<[i32; ITEM]>);

    fn parts(p: &Problem, words: &[i32]) -> Parts {
        let (numbers, items) = words[HEAD..].split_at(ENTRY * p.sequences);
        let numbers = numbers.as_chunks().0.to_vec();
        (words[..3].to_vec(), numbers, items.as_chunks().0.to_vec())
    }

    #[test]
    fn literal() {
        // Four positions make a row block of 16 heads. Eighteen tiles from inside a group on, of six rows;
        // padding; a single tile; no rows.
        let p = Problem { window: Some(2200), ..P };
        let entries = [
            attends(2, 2680, 0..6), // keys 481.. of the first row, ..2686 of the last
            Entry::Zeros(6..8),
            attends(0, 7, 8..9),
            Entry::Zeros(0..0),
        ];
        let of = |share, blocks| parts(&p, &words(&p, share, blocks, &entries, 9..30));
        let zeros = [[1, 0, 0, 0, 0, -1, -1, 0, 6, 2, 0, 0], [4, 0, 0, 0, 0, -1, -1, 0, 9, 21, 0, 0]];
        let short = [2, 0, 0, 0, 1, -1, 0, 7, 8, 1, 0, 0];
        let (head, sequences, items) = of(Share::Group, 1);
        assert_eq!(head, [7, 4, 2]);
        assert_eq!(sequences, [[0, 2, 3, 21], [0; 4], [0, 0, 0, 1], [0; 4]]);
        let long = |block, first, end, piece| [0, 0, block, first, end, piece, 2, 2680, 0, 6, 0, 0];
        let pieces = [long(0, 3, 16, 0), long(0, 16, 21, 1), long(1, 3, 16, 2), long(1, 16, 21, 3)];
        assert_eq!(items, [&pieces[..], &[zeros[0], short, zeros[1]]].concat());
        // One K/V head: a leaf is a tile.
        let (head, sequences, items) = of(Share::Leaf, 1);
        assert_eq!((head, sequences[0]), (vec![39, 36, 1], [0, 18, 3, 21]));
        assert_eq!((items[17], items[18], items[36]), (long(0, 20, 21, 17), long(1, 3, 4, 18), zeros[0]));
        // The later row block has more keys in general, and comes first.
        let (head, sequences, items) = of(Share::Sequence, 1);
        assert_eq!((head, sequences[0]), (vec![5, 0, 3], [0, 0, 3, 21]));
        assert_eq!(items[..2], [long(1, 3, 21, -1), long(0, 3, 21, -1)]);
        assert_eq!(items[2..], [zeros[0], short, zeros[1]]);
        // All 39 items at a time, or one.
        assert_eq!(of(Share::ByLengths, 39).0, [39, 36, 1]);
        assert_eq!(of(Share::ByLengths, 1).0, [5, 0, 3]);
    }

    #[test]
    fn leaves_by_kv_heads() {
        // Tiles 3..21 of a row block for each head: cut at every second tile, at every fourth.
        for (kv_heads, cuts) in [(2, [3, 4, 6, 20, 21]), (3, [3, 4, 6, 20, 21]), (4, [3, 4, 8, 20, 21])] {
            let p = Problem { sequences: 1, kv_heads, q_heads: 16 * kv_heads, window: Some(2200), ..P };
            let (head, sequences, items) =
                parts(&p, &words(&p, Share::Leaf, 1, &[attends(2, 2680, 0..4)], 4..4));
            let pieces = if kv_heads == 4 { 6 } else { 10 };
            assert_eq!((head[1], sequences[0]), ((kv_heads as i32) * pieces, [0, pieces, 3, 21]));
            let spans: Vec<[i32; 2]> =
                items[..pieces as usize].iter().map(|item| [item[3], item[4]]).collect();
            assert_eq!([spans[0], spans[1]], [[cuts[0], cuts[1]], [cuts[1], cuts[2]]]);
            assert_eq!(spans[pieces as usize - 1], [cuts[3], cuts[4]]);
        }
    }

    #[test]
    fn rows_without_keys_are_zeros() {
        // Row blocks of four rows; the first five rows are below the first key.
        let p = Problem { sequences: 1, first_key: 5, ..P };
        let (_, sequences, items) = parts(&p, &words(&p, Share::Sequence, 1, &[attends(1, 0, 3..9)], 9..9));
        assert_eq!(sequences, [[0, 0, 0, 1]]);
        let [live, zeros] = [[0, 0, 1, 0, 1, -1, 1, 0, 3, 6, 0, 0], [0, 0, 0, 0, 0, -1, -1, 0, 3, 4, 0, 0]];
        assert_eq!(items, [live, zeros]);
        for share in [Share::Leaf, Share::Sequence, Share::ByLengths] {
            let all = parts(&p, &words(&p, share, 1, &[attends(1, 0, 3..6)], 9..9));
            assert_eq!((all.1, all.2), (vec![[0; 4]], vec![[0, 0, 0, 0, 0, -1, -1, 0, 3, 3, 0, 0]]));
        }
    }

    #[test]
    fn every_tile_is_listed_once_and_everything_fits() {
        let p = Problem { kv_heads: 3, q_heads: 48, ..P };
        let longest = p.positions() / 128;
        let end = p.positions() - 6;
        let entries =
            [attends(0, end, 0..6), attends(1, end, 6..12), attends(2, 700, 12..13), attends(3, 100, 13..18)];
        for share in [Share::Leaf, Share::Group, Share::Sequence, Share::ByLengths] {
            for blocks in [1, 2, 8, 132] {
                let words = words(&p, share, blocks, &entries, 18..30);
                let (_, sequences, items) = parts(&p, &words);
                let mut seen = vec![0; 4 * 3 * 2 * longest];
                for item in items.iter().filter(|item| item[0] < 4) {
                    let at = ((item[0] * 3 + item[1]) * 2 + item[2]) as usize * longest;
                    (item[3]..item[4]).for_each(|tile| seen[at + tile as usize] += 1);
                    let [first, pieces, ..] = sequences[item[0] as usize];
                    // Numbered as the header says: two row blocks, but one in the third sequence.
                    let of = if item[0] == 2 { 1 } else { 2 };
                    let number = first + (item[1] * of + item[2]) * pieces;
                    let sound = if pieces == 0 {
                        item[5] == -1
                    } else {
                        (number..number + pieces).contains(&item[5])
                    };
                    assert!(sound, "{item:?}");
                }
                let numbered = items.iter().map(|item| item[5]).filter(|piece| *piece >= 0);
                assert!(numbered.eq(0..words[1]), "pieces in the order of the list");
                let want = entries.iter().flat_map(|entry| {
                    let Entry::Attends { start, rows, .. } = entry else { unreachable!() };
                    let tiles = tiles(&p, *start, rows.len());
                    let blocks = rows.len().div_ceil(4);
                    (0..3 * 2 * longest)
                        .map(move |i| usize::from(tiles.contains(&(i % longest)) && i / longest % 2 < blocks))
                });
                assert_eq!(seen, want.collect::<Vec<_>>(), "{share:?}, {blocks} blocks");
            }
        }
    }
}

//! The list of a round's work, which all layers share.

use crate::{
    AttnBackend, Problem, Share,
    grid::{Deal, ENTRY, HEAD, Round},
    plan::BUILT,
    tree::GROUP_LEAVES,
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
    /// No rows that anything could be written to.
    Nothing,
    /// Its rows become zeros.
    Zeros,
    /// The leaves that its rows see.
    Leaves(Range<usize>),
}

/// The words of the list.
pub(crate) fn list(problem: &Problem, deal: &Deal, entries: &[Entry]) -> Vec<i32> {
    let (heads, sequences) = (problem.kv_heads, problem.sequences);
    let groups = |leaves: &Range<usize>| leaves.start / GROUP_LEAVES..leaves.end.div_ceil(GROUP_LEAVES);
    let mut round = Round::default();
    for entry in entries {
        let Entry::Leaves(leaves) = entry else { continue };
        round.heads += heads;
        round.groups += heads * groups(leaves).len();
        round.leaves += heads * leaves.len();
        round.longest = round.longest.max(leaves.len());
    }
    let share = match deal.share {
        Share::ByLengths => Share::of_round(&round, deal.blocks, deal.pieces),
        share => share,
    };
    let mut words = vec![0; deal.work];
    let entries_at = HEAD + sequences * heads;
    let items_at = entries_at + sequences * ENTRY;
    let (mut items, mut pieces) = (0, 0);
    let mut item = |words: &mut Vec<i32>, numbers: [usize; ENTRY]| {
        let at = items_at + items * ENTRY;
        words[at..at + ENTRY].copy_from_slice(&numbers.map(|n| n as i32));
        items += 1;
    };
    for (sequence, entry) in entries.iter().enumerate() {
        let at = entries_at + sequence * ENTRY;
        let leaves = match entry {
            Entry::Leaves(leaves) => leaves.clone(),
            _ => {
                words[at] = -1;
                if *entry == Entry::Zeros {
                    (0..heads).for_each(|head| item(&mut words, [sequence, head, 0, 0]));
                }
                continue;
            }
        };
        let parts: Vec<Range<usize>> = match share {
            Share::Leaf => leaves.clone().map(|leaf| leaf..leaf + 1).collect(),
            Share::Group => groups(&leaves)
                .map(|group| {
                    let (first, end) = (group * GROUP_LEAVES, (group + 1) * GROUP_LEAVES);
                    first.max(leaves.start)..end.min(leaves.end)
                })
                .collect(),
            _ => vec![],
        };
        // A single part is the whole.
        let parts = if parts.len() > 1 { parts } else { vec![] };
        let numbers = [leaves.start, leaves.end, if parts.is_empty() { 0 } else { pieces }, parts.len()];
        words[at..at + ENTRY].copy_from_slice(&numbers.map(|n| n as i32));
        pieces += heads * parts.len();
        for head in 0..heads {
            if parts.is_empty() {
                item(&mut words, [sequence, head, leaves.start, leaves.end]);
            }
            for part in &parts {
                item(&mut words, [sequence, head, part.start, part.end]);
            }
        }
    }
    (0..heads).for_each(|head| item(&mut words, [sequences, head, 0, 0]));
    (words[0], words[1], words[2]) = (items as i32, pieces as i32, share.code());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Problem = Problem {
        sequences: 4,
        rows: 8,
        max_rows: 2,
        q_heads: 2,
        kv_heads: 1,
        head_dim: 128,
        slots: 4,
        max_pages: 40,
        pages: 99,
        page_rows: 128,
        first_key: 0,
        window: None,
    };

    fn words(share: Share, blocks: usize, entries: &[Entry; 4]) -> Vec<i32> {
        let deal = Deal::new(OP, &P, None, share, blocks).unwrap();
        list(&P, &deal, entries)
    }

    /// Header, sequences, items.
    type Parts = (Vec<i32>, Vec<[i32; 4]>, Vec<[i32; 4]>);

    fn parts(words: &[i32]) -> Parts {
        let fours = |words: &[i32]| words.chunks_exact(4).map(|x| [x[0], x[1], x[2], x[3]]).collect();
        assert!(words[3..HEAD + 4].iter().all(|x| *x == 0), "arrivals");
        let end = HEAD + 20 + 4 * words[0] as usize;
        assert!(words[end..].iter().all(|x| *x == 0), "behind the last item");
        (words[..3].to_vec(), fours(&words[HEAD + 4..HEAD + 20]), fours(&words[HEAD + 20..end]))
    }

    #[test]
    fn literal() {
        // A sequence of 18 leaves that begins inside a group, padding, a single leaf, offsets that are wrong.
        let entries = [Entry::Leaves(3..21), Entry::Zeros, Entry::Leaves(0..1), Entry::Nothing];
        let (head, sequences, items) = parts(&words(Share::Group, 1, &entries));
        assert_eq!(head, [5, 2, 2]);
        assert_eq!(sequences, [[3, 21, 0, 2], [-1, 0, 0, 0], [0, 1, 0, 0], [-1, 0, 0, 0]]);
        assert_eq!(items, [[0, 0, 3, 16], [0, 0, 16, 21], [1, 0, 0, 0], [2, 0, 0, 1], [4, 0, 0, 0]]);
        let (head, sequences, items) = parts(&words(Share::Sequence, 1, &entries));
        assert_eq!((head, sequences[0]), (vec![4, 0, 3], [3, 21, 0, 0]));
        assert_eq!(items, [[0, 0, 3, 21], [1, 0, 0, 0], [2, 0, 0, 1], [4, 0, 0, 0]]);
        let (head, sequences, items) = parts(&words(Share::Leaf, 1, &entries));
        assert_eq!((head, sequences[0]), (vec![21, 18, 1], [3, 21, 0, 18]));
        assert_eq!((items[0], items[17], items[18]), ([0, 0, 3, 4], [0, 0, 20, 21], [1, 0, 0, 0]));
        // 19 leaves for 32 blocks.
        let (head, ..) = parts(&words(Share::ByLengths, 32, &entries));
        assert_eq!(head, [21, 18, 1]);
    }

    #[test]
    fn every_leaf_is_listed_once_and_everything_fits() {
        let p = Problem { kv_heads: 3, q_heads: 3, ..P };
        let longest = p.positions() / 128;
        let entries = [
            Entry::Leaves(0..longest),
            Entry::Leaves(0..longest),
            Entry::Leaves(5..longest),
            Entry::Leaves(7..7),
        ];
        for share in [Share::Leaf, Share::Group, Share::Sequence, Share::ByLengths] {
            for blocks in [1, 2, 8, 132] {
                let deal = Deal::new(OP, &p, None, share, blocks).unwrap();
                let words = list(&p, &deal, &entries);
                let items = &words[HEAD + 4 * 3 + 16..][..4 * words[0] as usize];
                let mut seen = vec![0; 4 * 3 * longest];
                for item in items.chunks_exact(4).filter(|item| item[0] < 4) {
                    let at = (item[0] * 3 + item[1]) as usize * longest;
                    (item[2]..item[3]).for_each(|leaf| seen[at + leaf as usize] += 1);
                }
                let visible = entries.iter().flat_map(|entry| {
                    let Entry::Leaves(leaves) = entry else { unreachable!() };
                    (0..3 * longest).map(|i| usize::from(leaves.contains(&(i % longest))))
                });
                assert_eq!(seen, visible.collect::<Vec<_>>(), "{share:?}, {blocks} blocks");
                assert!(words[1] as usize <= deal.pieces);
                let whole = items.chunks_exact(4).filter(|item| item[0] == 3).count();
                assert_eq!(whole, 3, "a sequence without keys is one item for each head");
            }
        }
    }
}

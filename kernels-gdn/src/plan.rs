//! The sizes of a problem, and what of them is refused.

use kernels_core::{Arch, Archs, DeviceInfo, Error, Result, slots};

/// The sizes of a launch: bounds, not this step's lengths, which are device data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Sequences of a launch, padding included.
    pub sequences: usize,
    /// Rows of a launch, all sequences and padding together.
    pub rows: usize,
    /// Rows of one sequence in one launch: k + 1 for a verification, the chunk for a prefill.
    pub max_rows: usize,
    /// Query and key heads.
    pub k_heads: usize,
    /// Value heads, a multiple of the key heads; value head `j` uses key head `j / (v_heads / k_heads)`.
    pub v_heads: usize,
    /// Elements of a query or key head.
    pub k_dim: usize,
    /// Elements of a value head.
    pub v_dim: usize,
    /// Slots of the state and of the journal.
    pub slots: usize,
    /// Journal rows of a slot, at least [`slots::journal_rows`]`(flush_after, max_rows)` for [`Verify`].
    ///
    /// [`Verify`]: crate::Verify
    pub journal_rows: usize,
    /// Pending tokens beyond which a verification folds them into the state; see [`slots::flushes`].
    pub flush_after: usize,
}

/// How a launch is dealt to CUDA threads. No output bit depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// For compute capability 8.0 and everything after it: a block per tile of a head.
    Generic {
        /// Value elements of a block, which holds as many rows of the state: 16, 32 or 64.
        tile: usize,
    },
    /// For Hopper: persistent blocks that hold a head each, with the next state on its way by a bulk copy.
    Hopper,
}

/// A grid and what it is dealt to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deal {
    pub(crate) grid: Grid,
    /// Persistent blocks fill them.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // the CUDA half alone asks
    pub(crate) multiprocessors: usize,
}

/// The only head size that CUDA kernels have.
pub(crate) const HEAD: usize = 128;

/// What the build has kernels for.
#[cfg(feature = "cuda")]
pub(crate) const BUILT: Archs = Archs { sm80: cfg!(kernels_sm80), sm90a: cfg!(kernels_sm90) };
#[cfg(not(feature = "cuda"))]
pub(crate) const BUILT: Archs = Archs { sm80: false, sm90a: false };

/// The kernels an operation comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernels {
    /// Both variants.
    Both,
    /// The generic one.
    Generic,
}

impl Problem {
    /// Elements of a journal row: the raw k of all key heads, v of all value heads, then a, then b.
    pub const fn journal_width(&self) -> usize {
        self.k_heads * self.k_dim + self.v_heads * self.v_dim + 2 * self.v_heads
    }

    /// fp32 elements of one slot's state: `[v_heads, v_dim, k_dim]`.
    pub const fn state_len(&self) -> usize {
        self.v_heads * self.v_dim * self.k_dim
    }

    /// Value heads that share a key head.
    pub const fn group(&self) -> usize {
        self.v_heads / self.k_heads
    }

    /// What every operation of the family asks of its sizes.
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        let sizes = [
            ("sequences", self.sequences),
            ("rows", self.rows),
            ("max_rows", self.max_rows),
            ("k_heads", self.k_heads),
            ("v_heads", self.v_heads),
            ("k_dim", self.k_dim),
            ("v_dim", self.v_dim),
            ("slots", self.slots),
            ("journal_rows", self.journal_rows),
        ];
        for (name, got) in sizes {
            if got == 0 {
                return Err(Error::invalid(op, name, got, "it must be at least 1"));
            }
        }
        if !self.v_heads.is_multiple_of(self.k_heads) {
            let want = format!("it must be a multiple of k_heads = {}", self.k_heads);
            return Err(Error::invalid(op, "v_heads", self.v_heads, want));
        }
        // Slots, positions and row offsets travel as i32, and no memory may be larger than it can be
        // addressed; the sums below come out of sizes that a caller may have read from a file.
        let limit = i32::MAX as usize;
        let narrow = [("sequences", self.sequences), ("rows", self.rows), ("slots", self.slots)];
        for (name, got) in narrow {
            if got >= limit {
                return Err(Error::invalid(op, name, got, format!("it must be below {limit}")));
            }
        }
        let product = |factors: &[usize]| factors.iter().try_fold(1usize, |n, f| n.checked_mul(*f));
        let state = product(&[self.slots, self.v_heads, self.v_dim, self.k_dim, size_of::<f32>()]);
        let keys = product(&[self.k_heads, self.k_dim]);
        let values = self.v_dim.checked_add(2).and_then(|n| n.checked_mul(self.v_heads));
        let width = keys.zip(values).and_then(|(k, v)| k.checked_add(v));
        let journal = width.and_then(|w| product(&[w, self.slots, self.journal_rows, size_of::<f32>()]));
        if state.is_none() || journal.is_none() {
            let what = format!("a state or journal beyond the address space ({self:?})");
            return Err(Error::Unsupported { op, what });
        }
        Ok(())
    }

    /// Replayed rows and new rows share the ring (see [`slots::journal_rows`]).
    pub(crate) fn check_journal(&self, op: &'static str) -> Result<()> {
        let twice = self.max_rows.checked_mul(2).and_then(|n| n.checked_add(self.flush_after));
        let need = twice.map_or(usize::MAX, |_| slots::journal_rows(self.flush_after, self.max_rows));
        if self.journal_rows >= need {
            return Ok(());
        }
        let want = format!(
            "it must be at least {need}: flush_after = {} plus twice max_rows = {}",
            self.flush_after, self.max_rows
        );
        Err(Error::invalid(op, "journal_rows", self.journal_rows, want))
    }

    /// The grid on `device`; `None` on the CPU.
    pub(crate) fn deal(
        &self,
        op: &'static str,
        device: &DeviceInfo,
        choice: Option<Grid>,
        built: Archs,
        kernels: Kernels,
    ) -> Result<Option<Deal>> {
        let Some(arch) = device.arch else { return Ok(None) };
        for (name, got) in [("k_dim", self.k_dim), ("v_dim", self.v_dim)] {
            if got != HEAD {
                let what = format!("{name} = {got} on CUDA ({HEAD} is)");
                return Err(Error::Unsupported { op, what });
            }
        }
        if self.sequences >= 65_535 {
            return Err(Error::invalid(op, "sequences", self.sequences, "a CUDA grid takes at most 65534"));
        }
        if self.journal_rows > i32::MAX as usize {
            return Err(Error::invalid(op, "journal_rows", self.journal_rows, "it must fit an i32"));
        }
        if built == Archs::default() {
            return Err(Error::NotBuilt { op });
        }
        if !built.run_on(arch) {
            return Err(Error::Arch { op, device: arch, built });
        }
        let hopper = kernels == Kernels::Both && built.sm90a && arch == Arch::SM90;
        let grid = choice.unwrap_or_else(|| self.choose(device.multiprocessors, hopper));
        match grid {
            Grid::Generic { tile: 16 | 32 | 64 } => {}
            Grid::Generic { tile } => {
                return Err(Error::invalid(op, "tile", tile, "it must be 16, 32 or 64"));
            }
            Grid::Hopper if hopper => {}
            Grid::Hopper => {
                let what = format!("the Hopper grid on {arch} in a build for {built}");
                return Err(Error::Unsupported { op, what });
            }
        }
        Ok(Some(Deal { grid, multiprocessors: device.multiprocessors }))
    }

    /// Persistent blocks where each gets more than one head. Else the largest tile that leaves half of the
    /// multiprocessors with work: a larger one loads a key once for more rows.
    fn choose(&self, multiprocessors: usize, hopper: bool) -> Grid {
        let heads = self.sequences * self.v_heads;
        if hopper && heads >= 2 * multiprocessors {
            return Grid::Hopper;
        }
        let fills = |tile: &usize| 2 * heads * HEAD >= multiprocessors * tile;
        Grid::Generic { tile: [64, 32].into_iter().find(fills).unwrap_or(16) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP: &str = "gdn::test";
    const BOTH: Archs = Archs { sm80: true, sm90a: true };

    fn problem(sequences: usize) -> Problem {
        Problem {
            sequences,
            rows: 4 * sequences,
            max_rows: 4,
            k_heads: 16,
            v_heads: 48,
            k_dim: 128,
            v_dim: 128,
            slots: sequences,
            journal_rows: 12,
            flush_after: 4,
        }
    }

    fn chosen(sequences: usize, device: &DeviceInfo, kernels: Kernels) -> Grid {
        problem(sequences).deal(OP, device, None, BOTH, kernels).unwrap().unwrap().grid
    }

    #[test]
    fn few_heads_are_spread_and_many_persist() {
        let on_h200 = |sequences| chosen(sequences, &DeviceInfo::h200(), Kernels::Both);
        assert_eq!([1, 5].map(on_h200), [Grid::Generic { tile: 64 }; 2]);
        // 132 multiprocessors: 264 heads are there from 5.5 sequences of 48 on.
        assert_eq!(on_h200(6), Grid::Hopper);
        // 66 tiles of 64 rows take 33 heads.
        let one = |v_heads| {
            let p = Problem { v_heads, ..problem(1) };
            p.deal(OP, &DeviceInfo::h200(), None, BOTH, Kernels::Both).unwrap().unwrap().grid
        };
        assert_eq!([48, 32, 16].map(one), [64, 32, 16].map(|tile| Grid::Generic { tile }));
        let few = Problem { k_heads: 2, v_heads: 4, ..problem(1) };
        let grid = few.deal(OP, &DeviceInfo::h200(), None, BOTH, Kernels::Both).unwrap().unwrap().grid;
        assert_eq!(grid, Grid::Generic { tile: 16 });
    }

    #[test]
    fn hopper_kernels_are_for_hopper() {
        assert_eq!(chosen(64, &DeviceInfo::a100(), Kernels::Both), Grid::Generic { tile: 64 });
        assert_eq!(chosen(64, &DeviceInfo::h200(), Kernels::Generic), Grid::Generic { tile: 64 });
        let text = problem(64)
            .deal(OP, &DeviceInfo::a100(), Some(Grid::Hopper), BOTH, Kernels::Both)
            .unwrap_err()
            .to_string();
        assert!(text.contains("the Hopper grid on sm_80"), "{text}");
        assert_eq!(problem(1).deal(OP, &DeviceInfo::cpu(), None, BOTH, Kernels::Both).unwrap(), None);
    }
}

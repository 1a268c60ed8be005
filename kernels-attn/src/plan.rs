//! The sizes of an attention launch, and what is refused.

use crate::grid::{Deal, Grid, Path, Share};
use kernels_core::{Arch, Archs, DeviceInfo, Error, Result};
use std::ops::Range;

/// The sizes of a [`Verify`](crate::Verify), a [`Prefill`](crate::Prefill) or a [`Work`](crate::Work).
///
/// Bounds fixed when planning; this step's lengths, slots and positions are device data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Sequences of the launch, padding included.
    pub sequences: usize,
    /// Rows of the launch, those that nobody owns included.
    pub rows: usize,
    /// The most rows one sequence may have.
    pub max_rows: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub q_heads: usize,
    /// K/V heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Slots of the page table.
    pub slots: usize,
    /// Pages a slot can have.
    pub max_pages: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// Rows (tokens) of a page.
    pub page_rows: usize,
    /// The first key that exists: 0 for a model's layer, 1 for a draft layer, whose row 0 is never made.
    pub first_key: usize,
    /// The number of keys a row sees at most, its own included; `None` = all.
    pub window: Option<usize>,
}

/// What the build has kernels for.
#[cfg(feature = "cuda")]
pub(crate) const BUILT: Archs = Archs { sm80: cfg!(kernels_sm80), sm90a: cfg!(kernels_sm90) };
#[cfg(not(feature = "cuda"))]
pub(crate) const BUILT: Archs = Archs { sm80: false, sm90a: false };

/// Rows of one sequence that a CUDA verification takes.
pub(crate) const VERIFY_ROWS: usize = 16;

impl Problem {
    /// The keys that a row at `position` attends to; empty if `first_key` lies beyond it.
    pub fn keys(&self, position: usize) -> Range<usize> {
        let end = position + 1;
        let from = self.window.map_or(0, |window| end.saturating_sub(window));
        from.max(self.first_key).min(end)..end
    }

    /// The keys that some row at `rows` sees: both ends of a row's keys ascend with its position.
    pub(crate) fn span(&self, rows: Range<usize>) -> Range<usize> {
        let end = self.keys(rows.end - 1).end;
        // A row without any key has an empty range below `first_key`.
        let start = self.keys(rows.start).start.max(self.first_key);
        start.min(end)..end
    }

    /// Query heads that share one K/V head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// Positions that a slot's pages can hold.
    pub fn positions(&self) -> usize {
        self.max_pages.saturating_mul(self.page_rows)
    }

    /// What every operation asks of its sizes.
    pub(crate) fn validate(&self, op: &'static str) -> Result<()> {
        at_least_one(
            op,
            &[
                ("sequences", self.sequences),
                ("rows", self.rows),
                ("max_rows", self.max_rows),
                ("head_dim", self.head_dim),
                ("slots", self.slots),
                ("max_pages", self.max_pages),
                ("page_rows", self.page_rows),
            ],
        )?;
        heads(op, self.q_heads, self.kv_heads)?;
        if self.window == Some(0) {
            let want = "a window holds at least the row's own key; use None for no window";
            return Err(Error::invalid(op, "window", 0, want));
        }
        addressable(op, "rows", self.rows)
    }

    /// The grid on `device`; on the CPU a list of whole sequences.
    pub(crate) fn deal(
        &self,
        op: &'static str,
        device: &DeviceInfo,
        (path, share): (Option<Path>, Option<Share>),
        built: Archs,
    ) -> Result<Deal> {
        let Some(arch) = device.arch else {
            return Deal::new(op, self, None, Share::Sequence, device.multiprocessors);
        };
        self.on_cuda(op)?;
        let path = Some(self::path(op, arch, path, built)?);
        let share = share.unwrap_or_else(|| Share::choose(self));
        Deal::new(op, self, path, share, device.multiprocessors)
    }

    /// What CUDA kernels ask of the sizes.
    fn on_cuda(&self, op: &'static str) -> Result<()> {
        shape_on_cuda(op, self.head_dim, self.q_heads, self.kv_heads, self.page_rows)?;
        let numbers = [
            ("sequences", self.sequences),
            ("slots", self.slots),
            ("max_pages", self.max_pages),
            ("pages", self.pages),
            ("first_key", self.first_key),
            // The position after the last one, too.
            ("max_pages * page_rows", self.positions()),
        ];
        numbers.into_iter().try_for_each(|(name, size)| narrow(op, name, size))
    }
}

/// Which kernels run: those asked for, or the best that the build has.
pub(crate) fn path(op: &'static str, arch: Arch, choice: Option<Path>, built: Archs) -> Result<Path> {
    if built == Archs::default() {
        return Err(Error::NotBuilt { op });
    }
    if !built.run_on(arch) {
        return Err(Error::Arch { op, device: arch, built });
    }
    let hopper = built.sm90a && arch == Arch::SM90;
    match choice {
        None if hopper => Ok(Path::Sm90),
        None => Ok(Path::Sm80),
        Some(Path::Sm90) if !hopper => {
            let what = format!("the WGMMA path on {arch} in a build for {built}");
            Err(Error::Unsupported { op, what })
        }
        Some(path) => Ok(path),
    }
}

/// What has CUDA kernels.
pub(crate) fn shape_on_cuda(
    op: &'static str,
    head_dim: usize,
    q_heads: usize,
    kv_heads: usize,
    page_rows: usize,
) -> Result<()> {
    let group = q_heads / kv_heads;
    let sizes: [(&str, usize, &[usize], &str); 3] = [
        ("head_dim", head_dim, &[128, 256], "128 and 256 are"),
        ("q_heads / kv_heads", group, &[1, 2, 3, 4, 6, 8, 12, 16], "1, 2, 3, 4, 6, 8, 12 and 16 are"),
        ("page_rows", page_rows, &[16, 32, 64, 128], "16, 32, 64 and 128 are"),
    ];
    for (name, got, there, are) in sizes {
        if !there.contains(&got) {
            return Err(Error::Unsupported { op, what: format!("{name} = {got} on CUDA ({are})") });
        }
    }
    // A block has the rows of one K/V head of one sequence.
    narrow(op, "q_heads", q_heads)
}

/// Refuses what does not fit the kernels' i32.
pub(crate) fn narrow(op: &'static str, name: &'static str, size: usize) -> Result<()> {
    if i32::try_from(size).is_ok_and(|size| size < i32::MAX) {
        return Ok(());
    }
    Err(Error::invalid(op, name, size, "it must fit an i32"))
}

pub(crate) fn at_least_one(op: &'static str, sizes: &[(&'static str, usize)]) -> Result<()> {
    match sizes.iter().find(|(_, size)| *size == 0) {
        Some((name, _)) => Err(Error::invalid(op, name, 0, "it must be at least 1")),
        None => Ok(()),
    }
}

pub(crate) fn heads(op: &'static str, q_heads: usize, kv_heads: usize) -> Result<()> {
    at_least_one(op, &[("q_heads", q_heads), ("kv_heads", kv_heads)])?;
    if !q_heads.is_multiple_of(kv_heads) {
        let want = format!("it must be a multiple of kv_heads ({kv_heads})");
        return Err(Error::invalid(op, "q_heads", q_heads, want));
    }
    Ok(())
}

/// Row offsets and positions are i32 in memory.
pub(crate) fn addressable(op: &'static str, name: &'static str, size: usize) -> Result<()> {
    if i32::try_from(size).is_err() {
        let want = format!("row offsets reach {} at most", i32::MAX);
        return Err(Error::invalid(op, name, size, want));
    }
    Ok(())
}

/// Refuses more rows of a sequence than a verification takes on CUDA.
pub(crate) fn verify_rows(op: &'static str, problem: &Problem, device: &DeviceInfo) -> Result<()> {
    if device.arch.is_none() || problem.max_rows <= VERIFY_ROWS {
        return Ok(());
    }
    let what = format!("max_rows = {} on CUDA (1 to {VERIFY_ROWS} are)", problem.max_rows);
    Err(Error::Unsupported { op, what })
}

/// The grid that an operation of `deal` was planned for.
pub(crate) fn grid_of(deal: &Deal) -> Option<Grid> {
    deal.path.map(|path| Grid { path, share: deal.share })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP: &str = "attn::test";
    const BOTH: Archs = Archs { sm80: true, sm90a: true };
    const PROBLEM: Problem = Problem {
        sequences: 8,
        rows: 32,
        max_rows: 4,
        q_heads: 24,
        kv_heads: 4,
        head_dim: 256,
        slots: 8,
        max_pages: 4096,
        pages: 20_000,
        page_rows: 64,
        first_key: 0,
        window: None,
    };

    fn refused(problem: Problem) -> String {
        problem.deal(OP, &DeviceInfo::h200(), (None, None), BOTH).unwrap_err().to_string()
    }

    #[test]
    fn shapes_without_kernels_are_named() {
        let deal = PROBLEM.deal(OP, &DeviceInfo::h200(), (None, None), BOTH).unwrap();
        assert_eq!(grid_of(&deal), Some(Grid { path: Path::Sm90, share: Share::ByLengths }));
        for head_dim in [8, 64, 192, 512] {
            let want =
                format!("attn::test: head_dim = {head_dim} on CUDA (128 and 256 are) is not supported");
            assert_eq!(refused(Problem { head_dim, ..PROBLEM }), want);
        }
        for group in 1..=20 {
            let p = Problem { q_heads: 4 * group, ..PROBLEM };
            if [1, 2, 3, 4, 6, 8, 12, 16].contains(&group) {
                p.deal(OP, &DeviceInfo::h200(), (None, None), BOTH).unwrap();
                continue;
            }
            let start = format!("attn::test: q_heads / kv_heads = {group} on CUDA (1, 2, 3, 4, 6, 8, 12 and");
            assert!(refused(p).starts_with(&start), "{}", refused(p));
        }
        for page_rows in [1, 8, 17, 256] {
            let want = "on CUDA (16, 32, 64 and 128 are) is not supported";
            let want = format!("attn::test: page_rows = {page_rows} {want}");
            assert_eq!(refused(Problem { page_rows, ..PROBLEM }), want);
        }
        let long = Problem { max_pages: 1 << 25, ..PROBLEM };
        assert_eq!(refused(long), "attn::test: max_pages * page_rows is 2147483648; it must fit an i32");
        for max_rows in [1, 16] {
            verify_rows(OP, &Problem { max_rows, ..PROBLEM }, &DeviceInfo::h200()).unwrap();
        }
        let many = Problem { max_rows: 17, ..PROBLEM };
        let text = verify_rows(OP, &many, &DeviceInfo::h200()).unwrap_err().to_string();
        assert_eq!(text, "attn::test: max_rows = 17 on CUDA (1 to 16 are) is not supported");
        verify_rows(OP, &many, &DeviceInfo::cpu()).unwrap();
        // The CPU takes them all.
        let odd = Problem { head_dim: 7, page_rows: 3, q_heads: 20, max_rows: 40, ..PROBLEM };
        assert_eq!(grid_of(&odd.deal(OP, &DeviceInfo::cpu(), (None, None), BOTH).unwrap()), None);
    }

    #[test]
    fn hopper_kernels_are_for_hopper() {
        let chosen = |device: &DeviceInfo, path, built| PROBLEM.deal(OP, device, (path, None), built);
        let (a100, h200) = (DeviceInfo::a100(), DeviceInfo::h200());
        let path = |deal: Result<Deal>| deal.unwrap().path.unwrap();
        assert_eq!(path(chosen(&a100, None, BOTH)), Path::Sm80);
        assert_eq!(path(chosen(&h200, None, BOTH)), Path::Sm90);
        assert_eq!(path(chosen(&h200, Some(Path::Sm80), BOTH)), Path::Sm80);
        assert_eq!(path(chosen(&h200, None, Archs { sm90a: false, ..BOTH })), Path::Sm80);
        let text = chosen(&a100, Some(Path::Sm90), BOTH).unwrap_err().to_string();
        assert!(text.contains("the WGMMA path on sm_80"), "{text}");
        let text = chosen(&a100, None, Archs { sm80: false, ..BOTH }).unwrap_err().to_string();
        assert!(text.starts_with("attn::test: device is sm_80, this build has "), "{text}");
        let text = chosen(&h200, None, Archs::default()).unwrap_err().to_string();
        assert!(text.contains("built without CUDA kernels"), "{text}");
    }
}

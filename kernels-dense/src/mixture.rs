//! How the CUDA kernels of [`Moe`](crate::Moe) are launched, and where the parts of their workspace lie.
//!
//! Segments of k are those of linear layers of the same shapes, and decide bits. Everything else is a matter of speed.

use crate::{
    MoeProblem, Path,
    partition::{STEP, ZEROED, segment},
    plan::{self, VECTOR},
};
use kernels_core::{Arch, Archs, DType, DeviceInfo, Error, Result};

/// `LS_DENSE_MOE_MAX_EXPERTS`, `LS_DENSE_MOE_MAX_TOP_K`, `LS_DENSE_MOE_MAX_PAIRS`.
const MAX_EXPERTS: usize = 1024;
const MAX_TOP_K: usize = 32;
const MAX_PAIRS: usize = 8192;
/// Rows that share a reading of the experts at most: a prompt's piece, not all of it, so that the workspace stays small.
const ROWS_AT_ONCE: usize = 1024;
/// Rows of an expert that are computed together.
const COLUMNS: [usize; 3] = [8, 16, 32];
/// Of gate and up together.
const TILE_ROWS: usize = 64;
/// Blocks with up to 16 columns that a multiprocessor has room for.
const BLOCKS_OF_ONE: usize = 3;

/// What a launch of the kernels may choose. No output bit depends on it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeGrid {
    /// Which kernels run.
    pub path: Path,
    /// Rows of an expert that a block computes together: 8, 16 or 32.
    pub columns: usize,
    /// Rows that are routed and computed together.
    pub rows_at_once: usize,
    /// Rows of gate and up that a block has at a time: 64, or, of 8 columns, 32; on [`Path::Sm90`] only.
    pub tile_rows: usize,
}

/// A launch on a CUDA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mixture {
    problem: MoeProblem,
    pub(crate) grid: MoeGrid,
    pub(crate) programmatic: bool,
    pub(crate) multiprocessors: usize,
    hopper: bool,
}

/// Lengths of the segments of k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    pub(crate) router: usize,
    pub(crate) gate_up: usize,
    pub(crate) down: usize,
    pub(crate) shared_gate_up: usize,
    pub(crate) shared_down: usize,
}

/// Where in the workspace the parts begin, in bytes, behind the words that are zero between runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) logits: usize,
    pub(crate) weights: usize,
    pub(crate) chosen: usize,
    pub(crate) members: usize,
    pub(crate) groups: usize,
    pub(crate) inner: usize,
    pub(crate) outputs: usize,
    end: usize,
}

impl Mixture {
    /// How to run it on `device`; `None` on the CPU.
    pub(crate) fn plan(
        op: &'static str,
        problem: MoeProblem,
        device: &DeviceInfo,
        built: Archs,
    ) -> Result<Option<Self>> {
        for width in [problem.hidden, problem.intermediate, problem.shared_intermediate] {
            plan::vectors(op, width, device)?;
        }
        if device.arch.is_some() {
            let refuse = |what| Err(Error::Unsupported { op, what });
            if problem.experts > MAX_EXPERTS {
                return refuse(format!("{} experts on CUDA (up to {MAX_EXPERTS} are)", problem.experts));
            }
            if problem.top_k > MAX_TOP_K {
                return refuse(format!("a top_k of {} on CUDA (up to {MAX_TOP_K} is)", problem.top_k));
            }
            if problem.weights != DType::Bf16 {
                return refuse(format!("weights of {} on CUDA (bf16 are)", problem.weights));
            }
        }
        if !plan::has_kernel(op, device, built)? {
            return Ok(None);
        }
        let grid = MoeGrid { path: Path::Sm90, columns: 8, rows_at_once: ROWS_AT_ONCE, tile_rows: TILE_ROWS };
        let multiprocessors = device.multiprocessors.max(1);
        let hopper = built.sm90a && device.arch == Some(Arch::SM90);
        let mixture = Mixture { problem, grid, programmatic: false, multiprocessors, hopper };
        let path = mixture.with(grid).grid.path;
        // Of an expert's rows, on average: more columns than most experts have rows for leave less room for weights.
        let each = problem.rows.min(ROWS_AT_ONCE) * problem.top_k / problem.experts;
        let fit = match path {
            // No expert has more rows than there are.
            Path::Sm80 => problem.rows,
            Path::Sm90 => 2 * each,
        };
        let columns = COLUMNS.into_iter().find(|c| *c >= fit).unwrap_or(COLUMNS[2]);
        // Half tiles where there is room for all of them at once: a block reads no faster if others have nothing to do.
        let tiles = |width: usize| (2 * width).div_ceil(TILE_ROWS / 2);
        let of_row = problem.top_k * tiles(problem.intermediate) + tiles(problem.shared_intermediate);
        let room = problem.rows.saturating_mul(of_row) <= BLOCKS_OF_ONE * multiprocessors;
        let tile_rows = if room { TILE_ROWS / 2 } else { TILE_ROWS };
        Ok(Some(mixture.with(MoeGrid { columns, tile_rows, ..grid })))
    }

    /// The same with another grid; what the kernels do not have becomes what they have.
    pub(crate) fn with(self, grid: MoeGrid) -> Self {
        let MoeProblem { rows, hidden, top_k, intermediate, shared_intermediate, .. } = self.problem;
        let whole = [hidden, intermediate, shared_intermediate].iter().all(|k| k.is_multiple_of(STEP));
        let path = if self.hopper && whole { grid.path } else { Path::Sm80 };
        let columns = COLUMNS.into_iter().find(|c| *c >= grid.columns).unwrap_or(COLUMNS[2]);
        let most = (MAX_PAIRS / top_k).min(rows).max(1);
        let half = path == Path::Sm90 && columns == COLUMNS[0] && grid.tile_rows < TILE_ROWS;
        let tile_rows = if half { TILE_ROWS / 2 } else { TILE_ROWS };
        Mixture {
            grid: MoeGrid { path, columns, rows_at_once: grid.rows_at_once.clamp(1, most), tile_rows },
            ..self
        }
    }

    pub(crate) fn segments(&self) -> Segments {
        let MoeProblem { hidden, experts, intermediate, shared_intermediate, .. } = self.problem;
        Segments {
            router: segment(hidden, experts),
            gate_up: segment(hidden, 2 * intermediate),
            down: segment(intermediate, hidden),
            shared_gate_up: segment(hidden, 2 * shared_intermediate),
            shared_down: segment(shared_intermediate, hidden),
        }
    }

    /// Width of a row that any expert has between its two layers.
    pub(crate) fn inner_width(&self) -> usize {
        self.problem.intermediate.max(self.problem.shared_intermediate)
    }

    pub(crate) fn parts(&self) -> Parts {
        let MoeProblem { hidden, experts, top_k, .. } = self.problem;
        let MoeGrid { columns, rows_at_once: rows, .. } = self.grid;
        let segments = hidden.div_ceil(self.segments().router);
        // The shared expert's gate is one more row of the router.
        let width = (experts + 1).next_multiple_of(VECTOR);
        let pairs = rows * top_k;
        // With d experts that have r rows in all: d + (r - d) / columns groups at most.
        let distinct = experts.min(pairs);
        let groups = distinct + (pairs - distinct) / columns;
        let mut end = ZEROED;
        let mut part = |bytes: usize| {
            let begin = end;
            end = (end + bytes).next_multiple_of(256);
            begin
        };
        Parts {
            logits: part(4 * segments * rows * width),
            weights: part(4 * rows * (top_k + 1)),
            chosen: part(4 * pairs),
            members: part(4 * pairs),
            groups: part(16 * groups),
            inner: part(2 * (pairs + rows) * self.inner_width()),
            outputs: part(2 * (pairs + rows) * hidden),
            end: 0,
        }
        .ending_at(end)
    }

    pub(crate) fn workspace_bytes(&self) -> usize {
        self.parts().end
    }
}

impl Parts {
    fn ending_at(self, end: usize) -> Self {
        Parts { end, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Archs = Archs { sm80: true, sm90a: true };

    /// The 35B-A3B.
    const REAL: MoeProblem = MoeProblem {
        rows: 1,
        hidden: 2048,
        experts: 256,
        top_k: 8,
        intermediate: 512,
        shared_intermediate: 512,
        weights: DType::Bf16,
    };

    fn plan(problem: MoeProblem) -> Mixture {
        Mixture::plan("dense::test", problem, &DeviceInfo::h200(), BOTH).unwrap().unwrap()
    }

    #[test]
    fn segments_are_those_of_linear_layers() {
        let want = Segments { router: 512, gate_up: 512, down: 512, shared_gate_up: 512, shared_down: 512 };
        for rows in [1, 8, 64, 1000, 5000] {
            assert_eq!(plan(MoeProblem { rows, ..REAL }).segments(), want);
        }
    }

    #[test]
    fn rows_choose_the_grid() {
        let sm90 = |columns, rows_at_once| MoeGrid { path: Path::Sm90, columns, rows_at_once, tile_rows: 64 };
        let grid = |rows, top_k| plan(MoeProblem { rows, top_k, ..REAL }).grid;
        assert_eq!(grid(1, 8), MoeGrid { tile_rows: 32, ..sm90(8, 1) }, "288 tiles for 396 blocks");
        assert_eq!(grid(2, 8), sm90(8, 2), "half tiles would be 576");
        assert_eq!(grid(9, 8), sm90(8, 9));
        assert_eq!(grid(159, 8), sm90(8, 159));
        assert_eq!(grid(160, 8), sm90(16, 160), "5 of an expert");
        assert_eq!(grid(300, 8), sm90(32, 300));
        assert_eq!(grid(3000, 8), sm90(32, 1024));
        assert_eq!(grid(3000, 32), sm90(32, 256));
        // No rows: no launch, but a plan.
        assert_eq!(grid(0, 8), MoeGrid { tile_rows: 32, ..sm90(8, 1) });
    }

    #[test]
    fn devices_and_widths_choose_the_path() {
        let sm80 = |columns, rows_at_once| MoeGrid { path: Path::Sm80, columns, rows_at_once, tile_rows: 64 };
        let grid = |problem, device: &DeviceInfo, built| {
            Mixture::plan("dense::test", problem, device, built).unwrap().unwrap().grid
        };
        let (h200, rows) = (DeviceInfo::h200(), |rows| MoeProblem { rows, ..REAL });
        for odd in [
            MoeProblem { hidden: 2040, ..REAL },
            MoeProblem { intermediate: 520, ..REAL },
            MoeProblem { shared_intermediate: 8, ..REAL },
        ] {
            assert_eq!(grid(odd, &h200, BOTH), sm80(8, 1));
        }
        let portable = Archs { sm90a: false, ..BOTH };
        assert_eq!(grid(rows(9), &h200, portable), sm80(16, 9));
        assert_eq!(grid(rows(64), &h200, portable), sm80(32, 64));
        assert_eq!(grid(rows(9), &DeviceInfo { arch: Some(Arch::SM80), ..h200 }, BOTH), sm80(16, 9));
    }

    #[test]
    fn parts_lie_one_after_the_other() {
        let mixture = plan(MoeProblem { rows: 64, ..REAL });
        let parts = mixture.with(MoeGrid { columns: 32, ..mixture.grid }).parts();
        assert_eq!(parts.logits, 8192);
        assert_eq!(parts.weights - parts.logits, 4 * 4 * 64 * 264);
        assert_eq!(parts.chosen - parts.weights, 4 * 64 * 9);
        assert_eq!(parts.members - parts.chosen, 4 * 64 * 8);
        assert_eq!(parts.groups - parts.members, 4 * 64 * 8);
        // 256 experts with one row, and 8 more groups of the 256 rows that remain.
        assert_eq!(parts.inner - parts.groups, 16 * 264 + 128, "rounded up to 256");
        assert_eq!(parts.outputs - parts.inner, 2 * 64 * 9 * 512);
        assert_eq!(parts.end - parts.outputs, 2 * 64 * 9 * 2048);
    }

    #[test]
    fn what_has_no_kernel_is_named() {
        let h200 = DeviceInfo::h200();
        let text = |problem| Mixture::plan("dense::test", problem, &h200, BOTH).unwrap_err().to_string();
        for (problem, want) in [
            (MoeProblem { hidden: 20, ..REAL }, "a width of 20 on CUDA (multiples of 8 are)"),
            (MoeProblem { intermediate: 4, ..REAL }, "a width of 4 on CUDA (multiples of 8 are)"),
            (MoeProblem { shared_intermediate: 9, ..REAL }, "a width of 9 on CUDA (multiples of 8 are)"),
            (MoeProblem { experts: 1025, ..REAL }, "1025 experts on CUDA (up to 1024 are)"),
            (MoeProblem { top_k: 33, ..REAL }, "a top_k of 33 on CUDA (up to 32 is)"),
            (MoeProblem { weights: DType::F16, ..REAL }, "weights of f16 on CUDA (bf16 are)"),
        ] {
            assert_eq!(text(problem), format!("dense::test: {want} is not supported"));
            assert_eq!(Mixture::plan("dense::test", problem, &DeviceInfo::cpu(), BOTH).unwrap(), None);
        }
        let none = Mixture::plan("dense::test", REAL, &h200, Archs::default());
        assert!(matches!(none, Err(Error::NotBuilt { .. })));
    }
}

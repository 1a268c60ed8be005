//! How the CUDA kernels of [`Linear`](crate::Linear) and [`Head`](crate::Head) cut a weight, and how they are launched.
//!
//! The segments of k are a function of the weight's shape: they decide bits. Everything else is a matter of speed.

use crate::plan;
use kernels_core::{Arch, Archs, DeviceInfo, Error, Result};

/// Which kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// `mma.sync` and `cp.async`: compute capability 8.0 and everything after it.
    Sm80,
    /// WGMMA and bulk tensor copies: Hopper.
    Sm90,
}

/// What a launch of the linear kernels may choose. No output bit depends on it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Which kernels run.
    pub path: Path,
    /// Rows of the weight that a block has at a time: 64 or 128; on [`Path::Sm90`] only.
    pub tile_rows: usize,
    /// Thread blocks of each group of rows; on [`Path::Sm90`] only.
    pub blocks: usize,
    /// Rows of x that are computed together: a group.
    pub columns: usize,
    /// Groups that stand beside each other in a launch, others follow; on [`Path::Sm90`] only.
    pub groups: usize,
}

/// Elements of k that are loaded together.
pub(crate) const STEP: usize = 64;
/// Tiles of 128 rows that make a weight large enough for the whole chip, whatever it is; smaller ones are cut along k
/// into no more units than that. A number of the rule, not of a device.
const ENOUGH: usize = 128;
/// More segments take longer to add up than they save.
const MOST_SEGMENTS: usize = 8;
/// Shorter segments would cost more in adding up than in reading.
const FEWEST_STEPS: usize = 8;
/// Columns of the kernels that have tiles of 64 rows and, of segments, blocks that add up among themselves.
const FEW_COLUMNS: usize = 64;
/// Groups of more columns that read a weight at about the same time, most of them from the L2 cache.
const TOGETHER: usize = 8;
/// As many as a grid has room for in its second dimension.
const MOST_GROUPS: usize = 65_535;
/// `LS_DENSE_ZEROED_WORDS`, in bytes.
pub(crate) const ZEROED: usize = 4 * 2048;
/// `LS_DENSE_MAX_BLOCKS`.
const MAX_BLOCKS: usize = 1024;
/// `LS_DENSE_MAX_SPLIT_TILES`.
const MAX_SPLIT_TILES: usize = 512;
const COLUMNS_SM90: [usize; 10] = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256];
const COLUMNS_SM80: [usize; 4] = [8, 16, 32, 64];

/// Length of the contiguous segments of k, each of which is one chain of sums: a function of the weight's shape alone.
pub(crate) fn segment(k: usize, weight_rows: usize) -> usize {
    let steps = k.div_ceil(STEP);
    let wanted = (ENOUGH / weight_rows.div_ceil(128).max(1)).clamp(1, MOST_SEGMENTS);
    steps.div_ceil(wanted).max(FEWEST_STEPS).min(steps) * STEP
}

/// The weight and what is made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Linear,
    Gated,
    Head,
}

/// A launch on a CUDA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    form: Form,
    rows: usize,
    n: usize,
    steps: usize,
    pub(crate) segment: usize,
    pub(crate) grid: Grid,
    pub(crate) programmatic: bool,
}

impl Stream {
    /// How to run it on `device`; `None` on the CPU. `n`: features of the output.
    pub(crate) fn plan(
        op: &'static str,
        form: Form,
        [rows, k, n]: [usize; 3],
        device: &DeviceInfo,
        built: Archs,
    ) -> Result<Option<Self>> {
        plan::vectors(op, k, device)?;
        plan::vectors(op, n, device)?;
        if !plan::has_kernel(op, device, built)? {
            return Ok(None);
        }
        let weight_rows = if form == Form::Gated { 2 * n } else { n };
        let segment = segment(k, weight_rows);
        let hopper = built.sm90a && device.arch == Some(Arch::SM90);
        let path = if hopper { Path::Sm90 } else { Path::Sm80 };
        let grid = Grid { path, tile_rows: 128, blocks: 1, columns: 1, groups: 1 };
        let mut stream =
            Stream { form, rows, n, steps: k.div_ceil(STEP), segment, grid, programmatic: false };
        if stream.units().saturating_mul(segment / STEP) > i32::MAX as usize {
            let what = format!("a weight of {weight_rows} x {k} on CUDA");
            return Err(Error::Unsupported { op, what });
        }
        // As few readings of the weight as there can be, none of them of more columns than it needs.
        let each = |most| rows.div_ceil(rows.div_ceil(most).max(1));
        stream.grid.columns = each(*stream.widths(path).last().expect("there are some"));
        // Tiles of 64 rows where those of 128 would leave half of the chip without any. Of many rows a few at a time, side
        // by side, where all of them together would leave three quarters of it.
        let busy = stream.units() * if rows > FEW_COLUMNS { 4 } else { 2 };
        if form == Form::Linear && path == Path::Sm90 && busy <= device.multiprocessors {
            stream.grid = Grid { tile_rows: 64, columns: each(FEW_COLUMNS), ..stream.grid };
        }
        let all = rows.div_ceil(stream.grid.columns.max(1));
        let grid = if stream.grid.columns > FEW_COLUMNS && all > 1 && form != Form::Head {
            // The chip is theirs by equal parts, of neighbours who share what they read of x.
            let groups = all.div_ceil(all.div_ceil(TOGETHER));
            let blocks = device.multiprocessors / groups / 2 * 2;
            Grid { blocks, groups, ..stream.grid }
        } else {
            // Blocks of one unit each add up the segments of a tile among themselves.
            let most = if stream.segments() > 1 { MAX_BLOCKS } else { device.multiprocessors };
            Grid { blocks: most, groups: all, ..stream.grid }
        };
        Ok(Some(stream.with(grid)))
    }

    /// The same with another grid; what the kernels do not have becomes what they have.
    pub(crate) fn with(self, grid: Grid) -> Self {
        let mut stream = Stream { grid, ..self };
        let widths = self.widths(grid.path);
        let columns = widths.iter().find(|width| **width >= grid.columns).or(widths.last());
        stream.grid.columns = *columns.expect("there are some");
        if self.form != Form::Linear || stream.grid.columns > FEW_COLUMNS || grid.path == Path::Sm80 {
            stream.grid.tile_rows = 128;
        }
        stream.grid.blocks = grid.blocks.min(stream.units()).clamp(1, MAX_BLOCKS);
        stream.grid.groups = grid.groups.clamp(1, stream.most_groups());
        stream
    }

    /// Groups that a launch has room for.
    fn most_groups(&self) -> usize {
        let few = self.grid.columns <= FEW_COLUMNS;
        let beside = match self.form {
            Form::Head => false,
            Form::Gated => !few,
            Form::Linear => !few || self.grid.tile_rows == 64 || self.segments() > 1,
        };
        let of_tiles =
            if self.adds_up() { MAX_SPLIT_TILES * self.segments() / self.units() } else { MOST_GROUPS };
        let of_blocks = if self.hands_on() { MAX_BLOCKS / self.grid.blocks } else { MOST_GROUPS };
        let groups = self.rows.div_ceil(self.grid.columns);
        if beside { groups.min(of_tiles).min(of_blocks).max(1) } else { 1 }
    }

    /// Whether a block may end within a unit, and the next one go on.
    fn hands_on(&self) -> bool {
        self.grid.blocks < self.units()
    }

    /// Whether segments are added up by way of the workspace.
    fn adds_up(&self) -> bool {
        self.segments() > 1
            && (self.hands_on() || self.form != Form::Linear || self.grid.columns > FEW_COLUMNS)
    }

    /// The numbers of columns that there are kernels for.
    fn widths(&self, path: Path) -> &'static [usize] {
        match (path, self.form) {
            (Path::Sm80, Form::Gated) => &COLUMNS_SM80[..3],
            (Path::Sm80, _) => &COLUMNS_SM80,
            (Path::Sm90, Form::Head) => &COLUMNS_SM90[..8],
            (Path::Sm90, _) => &COLUMNS_SM90,
        }
    }

    fn segments(&self) -> usize {
        self.steps.div_ceil(self.segment / STEP)
    }

    /// Tiles times segments.
    fn units(&self) -> usize {
        let features = if self.form == Form::Gated { 64 } else { self.grid.tile_rows };
        self.n.div_ceil(features) * self.segments()
    }

    /// Bytes of the workspace: words that are zero between runs, then what may be anything.
    pub(crate) fn workspace_bytes(&self) -> usize {
        let Grid { path, tile_rows, blocks, columns, groups } = self.grid;
        let head = self.form == Form::Head;
        match path {
            // The best of each 64 ids, for each row.
            Path::Sm80 if head => ZEROED + 8 * self.n.div_ceil(64) * self.rows,
            Path::Sm80 => 0,
            Path::Sm90 => {
                let tiles = match (self.adds_up(), self.hands_on() || head) {
                    (true, _) => groups * (blocks + self.units()),
                    (false, true) => groups * blocks,
                    (false, false) => 0,
                };
                let best = if head { 8 * blocks * columns } else { 0 };
                ZEROED + 4 * tiles * tile_rows * columns + best
            }
        }
    }

    /// Where the second part of the workspace begins.
    #[cfg(feature = "cuda")]
    pub(crate) fn scratch_offset() -> usize {
        ZEROED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Archs = Archs { sm80: true, sm90a: true };

    fn stream(form: Form, rows: usize, n: usize, k: usize) -> Stream {
        Stream::plan("dense::test", form, [rows, k, n], &DeviceInfo::h200(), BOTH).unwrap().unwrap()
    }

    #[test]
    fn segments_of_real_weights() {
        for (n, k, want, segments) in [
            (5120, 6144, 2048, 3),
            (14336, 5120, 5120, 1),
            (5120, 17408, 5824, 3),
            (34816, 5120, 5120, 1),
            (96, 5120, 640, 8),
            (16384, 5120, 5120, 1),
            (248_320, 5120, 5120, 1),
            (5120, 10240, 3456, 3),
            (2048, 4096, 512, 8),
            (9216, 2048, 2048, 1),
            (12288, 2048, 2048, 1),
            (256, 2048, 512, 4),
            (2048, 512, 512, 1),
            (1024, 2048, 512, 4),
            (8, 8, 64, 1),
        ] {
            assert_eq!(segment(k, n), want, "{n} x {k}");
            assert_eq!(k.div_ceil(want), segments, "{n} x {k}");
        }
    }

    #[test]
    fn rows_choose_everything_but_segments() {
        for (n, k) in [(5120, 6144), (96, 5120), (34816, 5120), (2048, 512)] {
            for rows in 1..=1024 {
                let s = stream(Form::Linear, rows, n, k);
                assert_eq!(s.segment, segment(k, n));
                assert!(s.grid.blocks <= s.units());
                let Grid { tile_rows, columns, .. } = s.grid;
                let most = if tile_rows == 64 { 64 } else { 256 };
                assert_eq!(rows.div_ceil(columns), rows.div_ceil(most), "{rows} rows, {columns} at a time");
                // Nothing is handed on between blocks where rows stand side by side.
                assert!(tile_rows == 128 || s.grid.blocks == s.units());
            }
        }
    }

    #[test]
    fn no_more_columns_than_a_reading_needs() {
        let columns = |form, rows| stream(form, rows, 5120, 6144).grid.columns;
        for (rows, want) in [(1, 8), (64, 64), (65, 96), (97, 128), (129, 192), (192, 192), (193, 256)] {
            assert_eq!(columns(Form::Linear, rows), want, "{rows} rows");
        }
        // Two readings of 150 rows, four of 250.
        assert_eq!((columns(Form::Gated, 300), columns(Form::Gated, 1000)), (192, 256));
        assert_eq!(
            (columns(Form::Head, 96), columns(Form::Head, 192), columns(Form::Head, 300)),
            (96, 96, 128)
        );
    }

    #[test]
    fn grids_of_an_h200() {
        let grid = |rows, n, k| {
            let Grid { path, tile_rows, blocks, columns, .. } = stream(Form::Linear, rows, n, k).grid;
            assert_eq!(path, Path::Sm90);
            (tile_rows, blocks, columns)
        };
        assert_eq!(grid(1, 5120, 6144), (128, 120, 8));
        assert_eq!(grid(1, 14336, 5120), (128, 112, 8));
        assert_eq!(grid(1, 16384, 5120), (128, 128, 8));
        assert_eq!(grid(1, 34816, 5120), (128, 132, 8));
        assert_eq!(grid(1, 96, 5120), (64, 16, 8));
        assert_eq!(grid(1, 2048, 4096), (128, 128, 8));
        assert_eq!(grid(1, 9216, 2048), (128, 72, 8));
        assert_eq!(grid(1, 1024, 2048), (64, 64, 8));
        // Two, four and 64 times as many blocks side by side.
        assert_eq!((grid(65, 96, 5120), grid(256, 96, 5120)), ((64, 16, 48), (64, 16, 64)));
        assert_eq!((grid(4096, 96, 5120), grid(256, 1024, 2048)), ((64, 16, 64), (64, 64, 64)));
        assert_eq!((grid(65, 2048, 4096), grid(256, 5120, 6144)), ((128, 128, 96), (128, 120, 256)));
        let gated = stream(Form::Gated, 1, 17408, 5120).grid;
        assert_eq!(gated, Grid { path: Path::Sm90, tile_rows: 128, blocks: 132, columns: 8, groups: 1 });
        let device = DeviceInfo::a100();
        let s = Stream::plan("dense::test", Form::Gated, [64, 512, 64], &device, BOTH).unwrap().unwrap();
        assert_eq!((s.grid.path, s.grid.columns, s.workspace_bytes()), (Path::Sm80, 32, 0));
        // A build without Hopper's instructions has the other path there.
        let early = Archs { sm80: true, sm90a: false };
        let s = Stream::plan("dense::test", Form::Linear, [1, 512, 64], &DeviceInfo::h200(), early);
        assert_eq!(s.unwrap().unwrap().grid.path, Path::Sm80);
    }

    #[test]
    fn groups_of_an_h200() {
        let groups = |form, rows, n, k| {
            let Grid { columns, groups, blocks, .. } = stream(form, rows, n, k).grid;
            (columns, groups, blocks)
        };
        assert_eq!(groups(Form::Linear, 256, 34816, 5120), (256, 1, 132));
        // Two halves of the chip, then equal parts of it: sixteen groups by two launches, nine by one of five and one of four.
        assert_eq!(groups(Form::Linear, 300, 34816, 5120), (192, 2, 66));
        assert_eq!(groups(Form::Gated, 1000, 17408, 5120), (256, 4, 32));
        assert_eq!(groups(Form::Gated, 4096, 17408, 5120), (256, 8, 16));
        assert_eq!(groups(Form::Linear, 9 * 256, 5120, 6144), (256, 5, 26));
        // Few columns stand beside each other where nobody owes anything: 64 blocks for each 64 rows, however many.
        assert_eq!(groups(Form::Linear, 4096, 1024, 2048), (64, 64, 64));
        assert_eq!(groups(Form::Linear, 64 * 70_000, 1024, 2048), (64, 65_535, 64));
        assert_eq!(groups(Form::Gated, 0, 17408, 5120), (8, 1, 132));
        // A head's rows follow each other.
        assert_eq!(groups(Form::Head, 1024, 248_320, 5120), (128, 1, 132));
        // No more than flags and counters for.
        let with = |rows, n, k, grid: Grid| stream(Form::Linear, rows, n, k).with(grid).grid.groups;
        let wide = Grid { path: Path::Sm90, tile_rows: 128, blocks: 100, columns: 128, groups: usize::MAX };
        assert_eq!(with(4096, 34816, 5120, wide), MAX_BLOCKS / 100);
        assert_eq!(with(4096, 5120, 6144, Grid { blocks: 16, ..wide }), MAX_SPLIT_TILES / 40);
        assert_eq!(with(4096, 5120, 6144, Grid { blocks: 16, columns: 64, ..wide }), MAX_SPLIT_TILES / 40);
        assert_eq!(
            with(4096, 34816, 5120, Grid { columns: 64, ..wide }),
            1,
            "one segment, tiles of 128 rows"
        );
    }

    #[test]
    fn workspaces_hold_what_is_written() {
        // Blocks of a cluster send each other what they add up.
        assert_eq!(stream(Form::Linear, 1, 5120, 6144).workspace_bytes(), 8192);
        // Eight groups of 16 blocks and 120 units.
        assert_eq!(stream(Form::Linear, 4096, 5120, 6144).workspace_bytes(), 8192 + 4 * 8 * 136 * 128 * 256);
        // One segment: accumulators that are handed on.
        assert_eq!(stream(Form::Linear, 64, 34816, 5120).workspace_bytes(), 8192 + 4 * 132 * 128 * 64);
        let head = stream(Form::Head, 100, 248_320, 5120);
        assert_eq!(
            (head.grid.columns, head.workspace_bytes()),
            (128, 8192 + 4 * 132 * 128 * 128 + 8 * 132 * 128)
        );
    }

    #[test]
    fn what_has_no_kernel_is_named() {
        let plan =
            |sizes, device: &DeviceInfo| Stream::plan("dense::test", Form::Linear, sizes, device, BOTH);
        let text = plan([1, 12, 8], &DeviceInfo::h200()).unwrap_err().to_string();
        assert_eq!(text, "dense::test: a width of 12 on CUDA (multiples of 8 are) is not supported");
        assert_eq!(plan([1, 12, 9], &DeviceInfo::cpu()).unwrap(), None);
        let none =
            Stream::plan("dense::test", Form::Linear, [1, 8, 8], &DeviceInfo::h200(), Archs::default());
        assert!(matches!(none, Err(Error::NotBuilt { .. })));
    }
}

//! Numbers in, choices out: what is refused, and the grid of a launch.

use crate::Args;
use kernels_core::{Activation, Archs, Backend, DeviceInfo, Error, Result};

/// The sizes of a launch. Bounds, not this round's lengths: those are device data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Sequences of a launch, skipped ones included.
    pub sequences: usize,
    /// Rows of a launch, those of nobody included.
    pub rows: usize,
    /// Channels.
    pub channels: usize,
    /// Taps: 2, 3 or 4.
    pub width: usize,
    /// Slots of the ring.
    pub slots: usize,
    /// Rows of a slot's ring: at least `width - 1 + max_rows` for [`Verify`](crate::Verify), at least
    /// `width - 1` for [`Prefill`](crate::Prefill).
    pub ring_rows: usize,
    /// Rows that one sequence may have.
    pub max_rows: usize,
    /// Whether a bias is added.
    pub bias: bool,
    /// Whether SiLU is applied.
    pub silu: bool,
}

/// How rows and channels are dealt to CUDA threads. No output bit depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Neighbouring rows of a thread: 1, 2 or 4 (prefill always takes 8).
    pub rows_per_thread: usize,
    /// Neighbouring channels of a thread: 2, 4 or 8 (prefill always takes 8).
    pub channels_per_thread: usize,
    /// Threads of a block along the channels: 32, 64, 128 or 256.
    pub lanes: usize,
}

/// Channels of one 16-byte access.
pub(crate) const VECTOR: usize = 8;

/// Positions are i32 on the device, and so are strides of rows.
pub(crate) const POSITIONS: usize = 1 << 31;

/// What the build has kernels for.
#[cfg(feature = "cuda")]
pub(crate) const BUILT: Archs = Archs { sm80: cfg!(kernels_sm80), sm90a: cfg!(kernels_sm90) };
#[cfg(not(feature = "cuda"))]
pub(crate) const BUILT: Archs = Archs { sm80: false, sm90a: false };

impl Problem {
    /// Refuses, by name and value, what no backend does; `history` is what the ring must hold.
    pub(crate) fn check(&self, op: &'static str, ring_needs: usize) -> Result<()> {
        let Problem { width, ring_rows, max_rows, channels, slots, .. } = *self;
        if !(2..=4).contains(&width) {
            return Err(Error::Unsupported { op, what: format!("width {width} (2, 3 and 4 are)") });
        }
        for (name, value) in [("channels", channels), ("slots", slots), ("max_rows", max_rows)] {
            if value == 0 {
                return Err(Error::invalid(op, name, value, "it must be at least 1"));
            }
        }
        for (name, value) in [
            ("sequences", self.sequences),
            ("rows", self.rows),
            ("channels", channels),
            ("ring_rows", ring_rows),
            ("max_rows", max_rows),
        ] {
            if value >= POSITIONS {
                return Err(Error::invalid(op, name, value, "it must fit an i32"));
            }
        }
        if slots >= 1 << 23 {
            return Err(Error::invalid(op, "slots", slots, "a fault word holds slots below 8388608"));
        }
        if ring_rows < ring_needs {
            let want = format!("width {width} and max_rows {max_rows} need at least {ring_needs}");
            return Err(Error::invalid(op, "ring_rows", ring_rows, want));
        }
        Ok(())
    }

    /// The grid on `device`; `None` on the CPU.
    pub(crate) fn grid(
        &self,
        op: &'static str,
        device: &DeviceInfo,
        choice: Option<Grid>,
        built: Archs,
    ) -> Result<Option<Grid>> {
        let Some(arch) = device.arch else { return Ok(None) };
        if !self.channels.is_multiple_of(VECTOR) {
            let what = format!("{} channels on CUDA (multiples of {VECTOR} are)", self.channels);
            return Err(Error::Unsupported { op, what });
        }
        if self.sequences >= 65_535 {
            return Err(Error::invalid(op, "sequences", self.sequences, "a CUDA grid takes at most 65534"));
        }
        let grid = choice.unwrap_or_else(|| self.choose(device.multiprocessors));
        if ![1, 2, 4].contains(&grid.rows_per_thread) {
            return Err(Error::invalid(op, "rows_per_thread", grid.rows_per_thread, "it must be 1, 2 or 4"));
        }
        if ![2, 4, 8].contains(&grid.channels_per_thread) {
            let want = "it must be 2, 4 or 8";
            return Err(Error::invalid(op, "channels_per_thread", grid.channels_per_thread, want));
        }
        if ![32, 64, 128, 256].contains(&grid.lanes) {
            return Err(Error::invalid(op, "lanes", grid.lanes, "it must be 32, 64, 128 or 256"));
        }
        // The grid's z axis ends at 65535, with at least one group of rows in each step.
        if self.max_rows > 65_535 {
            return Err(Error::invalid(op, "max_rows", self.max_rows, "a CUDA grid takes at most 65535"));
        }
        if built == Archs::default() {
            return Err(Error::NotBuilt { op });
        }
        if !built.run_on(arch) {
            return Err(Error::Arch { op, device: arch, built });
        }
        Ok(Some(grid))
    }

    /// Measured: four channels a thread, and two rows where there are several, so that taps and earlier inputs
    /// are loaded once for both; a launch that does not fill the device is spread as thin as it goes.
    fn choose(&self, multiprocessors: usize) -> Grid {
        let vectors = self.channels.div_ceil(VECTOR) * self.sequences.max(1) * self.max_rows;
        let (rows_per_thread, channels_per_thread, lanes) = match self.max_rows {
            1 => (1, 4, 128),
            _ if vectors <= multiprocessors * 64 => (1, 2, 32),
            _ => (2, 4, 64),
        };
        Grid { rows_per_thread, channels_per_thread, lanes }
    }

    /// Shapes, strides and bounds of the operands, in the same words for every backend.
    pub(crate) fn check_args<B: Backend, A: Activation>(
        &self,
        op: &'static str,
        args: &Args<'_, B, A>,
    ) -> Result<()> {
        let Problem { sequences, rows, channels, width, slots, ring_rows, .. } = *self;
        args.out.check(op, "out", [rows, channels])?;
        args.out.check_disjoint(op, "out")?;
        args.ring.check(op, "ring", [slots, ring_rows, channels])?;
        args.ring.check_disjoint(op, "ring")?;
        args.faults.check(op, "faults", [slots + 1])?;
        args.x.check(op, "x", [rows, channels])?;
        args.weight.check(op, "weight", [channels, width])?;
        if args.weight.strides != [width, 1] && channels > 1 {
            let got = args.weight.strides.to_vec();
            return Err(Error::Stride { op, arg: "weight", got, want: "taps must be packed" });
        }
        match (&args.bias, self.bias) {
            (Some(bias), true) => bias.check(op, "bias", [channels])?,
            (None, false) => {}
            (given, _) => {
                let got = if given.is_some() { "given" } else { "missing" };
                let want = if self.bias { "the problem has a bias" } else { "the problem has no bias" };
                return Err(Error::invalid(op, "bias", got, want));
            }
        }
        args.rows.check(op, sequences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_core::Arch;

    const OP: &str = "conv::test";
    const BOTH: Archs = Archs { sm80: true, sm90a: true };

    fn problem() -> Problem {
        Problem {
            sequences: 8,
            rows: 32,
            channels: 10_240,
            width: 4,
            slots: 16,
            ring_rows: 11,
            max_rows: 4,
            bias: false,
            silu: true,
        }
    }

    fn grid(p: Problem) -> Result<Option<Grid>> {
        p.grid(OP, &DeviceInfo::h200(), None, BOTH)
    }

    #[test]
    fn small_batches_spread_and_large_ones_share_loads() {
        let with = |sequences, max_rows| {
            let p = Problem { sequences, max_rows, rows: sequences * max_rows, ..problem() };
            grid(p).unwrap().unwrap()
        };
        let of = |rows_per_thread, channels_per_thread, lanes| Grid {
            rows_per_thread,
            channels_per_thread,
            lanes,
        };
        assert_eq!([1, 8, 64].map(|n| with(n, 1)), [of(1, 4, 128); 3]);
        assert_eq!(with(1, 4), of(1, 2, 32));
        // 132 x 64 threads: one sequence of 6 rows of 1280 vectors fits, 7 rows do not.
        assert_eq!([6, 7].map(|rows| with(1, rows)), [of(1, 2, 32), of(2, 4, 64)]);
        assert_eq!(with(64, 8), of(2, 4, 64));
    }

    #[test]
    fn the_cpu_has_no_grid_and_takes_any_channels() {
        let p = Problem { channels: 13, ..problem() };
        assert_eq!(p.grid(OP, &DeviceInfo::cpu(), None, Archs::default()).unwrap(), None);
        let text = grid(p).unwrap_err().to_string();
        assert_eq!(text, "conv::test: 13 channels on CUDA (multiples of 8 are) is not supported");
    }

    #[test]
    fn builds_without_a_fitting_kernel_are_refused() {
        let on =
            |device: &DeviceInfo, built| problem().grid(OP, device, None, built).unwrap_err().to_string();
        assert!(on(&DeviceInfo::h200(), Archs::default()).contains("built without CUDA kernels"));
        let hopper = Archs { sm80: false, sm90a: true };
        let text = on(&DeviceInfo::a100(), hopper);
        assert!(text.contains("device is sm_80, this build has sm_90a"), "{text}");
        let turing = DeviceInfo { arch: Some(Arch { major: 7, minor: 5 }), ..DeviceInfo::a100() };
        assert!(on(&turing, BOTH).contains("device is sm_75"));
    }

    #[test]
    fn bounds_of_a_cuda_grid() {
        let text = |p: Problem| grid(p).unwrap_err().to_string();
        let many = Problem { sequences: 65_535, ..problem() };
        assert_eq!(text(many), "conv::test: sequences is 65535; a CUDA grid takes at most 65534");
        let long = Problem { max_rows: 65_536, ..problem() };
        assert_eq!(text(long), "conv::test: max_rows is 65536; a CUDA grid takes at most 65535");
        let refused = |rows_per_thread, channels_per_thread, lanes| {
            let odd = Grid { rows_per_thread, channels_per_thread, lanes };
            problem().grid(OP, &DeviceInfo::h200(), Some(odd), BOTH).unwrap_err().to_string()
        };
        assert_eq!(refused(3, 8, 64), "conv::test: rows_per_thread is 3; it must be 1, 2 or 4");
        assert_eq!(refused(1, 1, 64), "conv::test: channels_per_thread is 1; it must be 2, 4 or 8");
        assert_eq!(refused(1, 2, 16), "conv::test: lanes is 16; it must be 32, 64, 128 or 256");
    }
}

//! The sizes of an attention launch, and what is refused.

use kernels_core::{DeviceInfo, Error, Result};
use std::ops::Range;

/// The sizes of a [`Verify`](crate::Verify) or [`Prefill`](crate::Prefill).
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
    /// The first key that exists: 0 for a model's layer, 1 for a draft layer, whose row 0 is never made.
    pub first_key: usize,
    /// The number of keys a row sees at most, its own included; `None` = all.
    pub window: Option<usize>,
}

impl Problem {
    /// The keys that a row at `position` attends to; empty if `first_key` lies beyond it.
    pub fn keys(&self, position: usize) -> Range<usize> {
        let end = position + 1;
        let from = self.window.map_or(0, |window| end.saturating_sub(window));
        from.max(self.first_key).min(end)..end
    }

    /// Query heads that share one K/V head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    pub(crate) fn validate(&self, op: &'static str, device: &DeviceInfo) -> Result<()> {
        at_least_one(
            op,
            &[
                ("sequences", self.sequences),
                ("rows", self.rows),
                ("max_rows", self.max_rows),
                ("head_dim", self.head_dim),
                ("slots", self.slots),
                ("max_pages", self.max_pages),
            ],
        )?;
        heads(op, self.q_heads, self.kv_heads)?;
        if self.window == Some(0) {
            let want = "a window holds at least the row's own key; use None for no window";
            return Err(Error::invalid(op, "window", 0, want));
        }
        addressable(op, "rows", self.rows)?;
        built(op, device)
    }
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

/// Only the CPU half exists in this build.
pub(crate) fn built(op: &'static str, device: &DeviceInfo) -> Result<()> {
    match device.arch {
        None => Ok(()),
        Some(_) => Err(Error::NotBuilt { op }),
    }
}

//! What every plan of this crate refuses, in the same words.

use kernels_core::{DeviceInfo, Error, Result};

/// Only the CPU half exists in this build.
pub(crate) fn on_cpu(op: &'static str, device: &DeviceInfo) -> Result<()> {
    if device.arch.is_some() { Err(Error::NotBuilt { op }) } else { Ok(()) }
}

/// A number of rows: zero is a launch that does nothing.
pub(crate) fn rows(op: &'static str, rows: usize) -> Result<()> {
    // Row counts and widths are 32-bit in device code; their products are 64-bit.
    if rows <= MAX { Ok(()) } else { Err(Error::invalid(op, "rows", rows, format!("at most {MAX} fit"))) }
}

/// Widths, numbers of heads, of experts, of ids: one at least.
pub(crate) fn sizes<const N: usize>(op: &'static str, sizes: [(&'static str, usize); N]) -> Result<()> {
    for (name, size) in sizes {
        if !(1..=MAX).contains(&size) {
            return Err(Error::invalid(op, name, size, format!("it must be in 1..={MAX}")));
        }
    }
    Ok(())
}

/// The term under the root that keeps a row of zeros finite.
pub(crate) fn eps(op: &'static str, eps: f32) -> Result<()> {
    if eps.is_finite() && eps > 0.0 {
        Ok(())
    } else {
        Err(Error::invalid(op, "eps", eps, "it must be finite and above zero"))
    }
}

/// Half of what 32 bits hold, so that gate and up rows together still fit.
const MAX: usize = (i32::MAX / 2) as usize;

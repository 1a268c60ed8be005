//! What every plan of this crate refuses, in the same words.

use kernels_core::{Archs, DeviceInfo, Error, Result};

/// Elements of a 16-byte access.
pub(crate) const VECTOR: usize = 8;

/// What the build has kernels for.
#[cfg(feature = "cuda")]
pub(crate) const BUILT: Archs = Archs { sm80: cfg!(kernels_sm80), sm90a: cfg!(kernels_sm90) };
#[cfg(not(feature = "cuda"))]
pub(crate) const BUILT: Archs = Archs { sm80: false, sm90a: false };

/// Whether there is a kernel for `device` to run; `false` on the CPU, which needs none.
pub(crate) fn has_kernel(op: &'static str, device: &DeviceInfo, built: Archs) -> Result<bool> {
    match device.arch {
        None => Ok(false),
        Some(_) if built == Archs::default() => Err(Error::NotBuilt { op }),
        Some(arch) if built.run_on(arch) => Ok(true),
        Some(arch) => Err(Error::Arch { op, device: arch, built }),
    }
}

/// Rows of whole vectors, where the device is a GPU.
pub(crate) fn vectors(op: &'static str, n: usize, device: &DeviceInfo) -> Result<()> {
    if device.arch.is_some() && !n.is_multiple_of(VECTOR) {
        let what = format!("a width of {n} on CUDA (multiples of {VECTOR} are)");
        return Err(Error::Unsupported { op, what });
    }
    Ok(())
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

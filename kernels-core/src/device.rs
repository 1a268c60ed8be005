//! What a plan may know of a device.

use std::fmt;

/// A compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Major number: 8 for Ampere, 9 for Hopper.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Arch {
    /// A100.
    pub const SM80: Arch = Arch { major: 8, minor: 0 };
    /// H100, H200.
    pub const SM90: Arch = Arch { major: 9, minor: 0 };
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// The architectures a build has kernels for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Archs {
    /// Code for compute capability 8.0, with PTX that later devices can compile.
    pub sm80: bool,
    /// Code that uses Hopper's own instructions.
    pub sm90a: bool,
}

impl Archs {
    /// Whether any kernel of this build can run on `device`.
    pub fn run_on(self, device: Arch) -> bool {
        (self.sm80 && device >= Arch::SM80) || (self.sm90a && device == Arch::SM90)
    }
}

impl fmt::Display for Archs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.sm80, self.sm90a) {
            (true, true) => "sm_80 (with PTX) and sm_90a",
            (true, false) => "sm_80 (with PTX)",
            (false, true) => "sm_90a",
            (false, false) => "no CUDA kernels",
        })
    }
}

/// The figures of a device that plans depend on.
///
/// They choose variants and grids; never the order of a sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// What it calls itself.
    pub name: String,
    /// Its compute capability; `None` is the CPU backend.
    pub arch: Option<Arch>,
    /// Multiprocessors (worker threads on the CPU).
    pub multiprocessors: usize,
    /// Shared memory a block may opt in to, in bytes.
    pub shared_memory: usize,
    /// Last-level cache in bytes.
    pub l2_bytes: usize,
    /// Memory in bytes.
    pub memory: usize,
}

impl DeviceInfo {
    /// The CPU backend.
    pub fn cpu() -> Self {
        DeviceInfo {
            name: "CPU".into(),
            arch: None,
            multiprocessors: std::thread::available_parallelism().map_or(1, |n| n.get()),
            shared_memory: 0,
            l2_bytes: 0,
            memory: 0,
        }
    }

    /// An H200's figures, for testing plans on a machine without one.
    pub fn h200() -> Self {
        DeviceInfo {
            name: "NVIDIA H200".into(),
            arch: Some(Arch::SM90),
            multiprocessors: 132,
            shared_memory: 227 * 1024,
            l2_bytes: 60 << 20,
            memory: 143_771 << 20,
        }
    }

    /// An A100's figures, for testing plans on a machine without one.
    pub fn a100() -> Self {
        DeviceInfo {
            name: "NVIDIA A100".into(),
            arch: Some(Arch::SM80),
            multiprocessors: 108,
            shared_memory: 163 * 1024,
            l2_bytes: 40 << 20,
            memory: 81_920 << 20,
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use crate::{Error, Result};
    use cudarc::driver::{CudaContext, sys::CUdevice_attribute_enum as Attribute};
    use std::sync::Arc;

    impl DeviceInfo {
        /// Reads the figures of a context's device.
        pub fn of(context: &Arc<CudaContext>) -> Result<Self> {
            let (major, minor) = context.compute_capability()?;
            let figure = |a| Ok::<_, Error>(context.attribute(a)?.max(0) as usize);
            Ok(DeviceInfo {
                name: context.name()?,
                arch: Some(Arch { major: major as u32, minor: minor as u32 }),
                multiprocessors: figure(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
                shared_memory: figure(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
                l2_bytes: figure(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
                memory: context.total_mem()?,
            })
        }

        /// Opens the CUDA device `ordinal`; [`Error::NoDriver`] where libcuda is missing.
        pub fn open(ordinal: usize) -> Result<(Arc<CudaContext>, Self)> {
            // SAFETY: only asks the loader whether the library is there; cudarc panics later if it is not.
            if !unsafe { cudarc::driver::sys::is_culib_present() } {
                return Err(Error::NoDriver);
            }
            let context = CudaContext::new(ordinal)?;
            let info = Self::of(&context)?;
            Ok((context, info))
        }
    }
}

//! The one error type of the kernel crates.

use crate::device::{Arch, Archs};

/// Why an operation was refused or failed.
///
/// Faults inside a CUDA kernel appear at the next synchronisation of its stream, as CUDA itself reports
/// them; violated invariants of a slot are recorded in its fault word (see [`crate::slots::Fault`]).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has other dimensions than the problem says.
    #[error("{op}: `{arg}` has shape {got:?}, expected {want:?}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The argument's name.
        arg: &'static str,
        /// Its dimensions.
        got: Vec<usize>,
        /// The dimensions the problem asks for.
        want: Vec<usize>,
    },
    /// A tensor's dimensions and strides reach beyond its buffer.
    #[error("{op}: `{arg}` needs {need} elements, its buffer holds {have}")]
    Bounds {
        /// The operation.
        op: &'static str,
        /// The argument's name.
        arg: &'static str,
        /// Elements spanned by dimensions and strides.
        need: usize,
        /// Elements in the buffer.
        have: usize,
    },
    /// A tensor's strides are not what the operation can address.
    #[error("{op}: `{arg}` has strides {got:?}; {want}")]
    Stride {
        /// The operation.
        op: &'static str,
        /// The argument's name.
        arg: &'static str,
        /// Its strides in elements.
        got: Vec<usize>,
        /// What they must satisfy.
        want: &'static str,
    },
    /// A pointer or stride is not aligned as the kernel's vector accesses need.
    #[error("{op}: `{arg}` must be aligned to {want} bytes")]
    Align {
        /// The operation.
        op: &'static str,
        /// The argument's name.
        arg: &'static str,
        /// The alignment in bytes.
        want: usize,
    },
    /// A problem no variant can solve, named.
    #[error("{op}: {what} is not supported")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// The part of the problem that is not supported, with its value.
        what: String,
    },
    /// A number that makes no sense, with what would.
    #[error("{op}: {name} is {got}; {want}")]
    Invalid {
        /// The operation.
        op: &'static str,
        /// The parameter's name.
        name: &'static str,
        /// Its value.
        got: String,
        /// What it must be.
        want: String,
    },
    /// No kernel of this build runs on the device.
    #[error("{op}: device is {device}, this build has {built}; set LOCKSTEP_CUDA_ARCHS and rebuild")]
    Arch {
        /// The operation.
        op: &'static str,
        /// The device's architecture.
        device: Arch,
        /// What the build holds.
        built: Archs,
    },
    /// The crate was built in stub mode, or without the architecture asked for.
    #[error("{op}: built without CUDA kernels; rebuild with a CUDA toolkit and without LOCKSTEP_STUB")]
    NotBuilt {
        /// The operation.
        op: &'static str,
    },
    /// The launch itself failed.
    #[error("{op}: launch failed with CUDA error {code}")]
    Launch {
        /// The operation.
        op: &'static str,
        /// A `cudaError_t`.
        code: i32,
    },
    /// libcuda is not there.
    #[error("no CUDA driver found; install the NVIDIA driver or use the CPU backend")]
    NoDriver,
    /// Memory could not be had.
    #[error("{op}: cannot allocate {bytes} bytes")]
    OutOfMemory {
        /// Who asked.
        op: &'static str,
        /// How much.
        bytes: usize,
    },
    /// The CUDA driver refused a call.
    #[cfg(feature = "cuda")]
    #[error("CUDA driver: {0}")]
    Driver(#[from] cudarc::driver::DriverError),
}

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Turns a launcher's status into a result: 0, a `cudaError_t` (> 0) or an `LS_ERR_*` (< 0).
    pub fn status(op: &'static str, code: i32) -> Result<()> {
        match code {
            0 => Ok(()),
            -1 => Err(Error::NotBuilt { op }),
            -2 => Err(Error::Unsupported { op, what: "this problem's combination of sizes".into() }),
            code => Err(Error::Launch { op, code }),
        }
    }

    /// An [`Error::Invalid`], for checks at the door.
    pub fn invalid(
        op: &'static str,
        name: &'static str,
        got: impl std::fmt::Display,
        want: impl Into<String>,
    ) -> Self {
        Error::Invalid { op, name, got: got.to_string(), want: want.into() }
    }
}

//! What every lockstep kernel crate shares.
//!
//! A kernel crate is used in three steps: numbers go into a `Problem`, `plan` turns them into an
//! operation, and the operation's `run` takes an `Args` of tensor views. Both backends go through the
//! same `Args` and the same checks:
//!
//! * [`Cpu`] is always there. It is the specification: every operation is written out in the order of
//!   its equations, rounding where the contract says so.
//! * `Cuda` (feature `cuda`) enqueues hand-written kernels on the caller's own stream.
//!
//! Every cache is addressed by absolute position; see [`slots`] for the rules that all crates share.

pub mod argmax;
pub mod backend;
#[cfg(feature = "cuda")]
mod cuda;
pub mod device;
pub mod dtype;
pub mod error;
pub mod fault;
pub mod paged;
pub mod philox;
pub mod ref_math;
pub mod rope;
#[cfg(feature = "cuda")]
pub mod selftest;
pub mod slots;
#[cfg(feature = "cuda")]
mod sys;
pub mod tensor;

pub use backend::{Backend, Buffer, Cpu};
#[cfg(feature = "cuda")]
pub use cuda::Cuda;
pub use device::{Arch, Archs, DeviceInfo};
pub use dtype::{Activation, DType, Element};
pub use error::{Error, Result};
pub use half::{bf16, f16};
pub use paged::{KvPool, KvPoolMut, KvStrides, PageTable};
pub use slots::{PAD, Rows};
pub use tensor::{Tensor, TensorMut};

#![doc = include_str!("../README.md")]
//!
//! # How a kernel crate is used
//!
//! Numbers go into a `Problem`, `plan` turns them into an operation, and the operation's `run` takes an
//! `Args` of tensor views. Both backends go through the same `Args` and the same checks. The CPU backend is
//! the specification: every operation is written out in the order of its equations. The CUDA backend
//! enqueues hand-written kernels on the caller's own stream.

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
pub mod workspace;

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

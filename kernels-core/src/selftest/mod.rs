//! The facts that the exactness contract stands on, measured on the device at hand.
//!
//! The contract is per chip: before it promises bits on a new one, a program runs [`facts`] and looks for
//! a [`Fact`] that does not hold. The tests of this crate run the same functions.

mod facts;
mod patterns;

pub use facts::{
    Fact, cpu_equals_cuda, facts, mma_equals_wgmma, mma_equals_wgmma_of, zero_columns, zero_times_infinity,
};
pub use patterns::Pattern;

use crate::{Activation, Buffer, Cuda, DType, Error, Result, Tensor, TensorMut, sys};
use cudarc::driver::{CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut};
use std::sync::Arc;

/// A matrix instruction with fp32 accumulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// `mma.sync.m16n8k16`
    Mma,
    /// `wgmma.m64nNk16`, both operands in shared memory (compute capability 9.0 only)
    Wgmma {
        /// N: 8, 16, 24, 32, 48, 64, 96, 128, 192 or 256.
        columns: usize,
    },
}

/// The accumulators of `a b^T`, k16 steps ascending: `out` `[m, n]`, `a` `[m, k]`, `b` `[n, k]`, all packed.
///
/// `m` must be a multiple of 64, `k` of 16, `n` of the instruction's columns; bf16 and f16 only.
pub fn product<A: Activation>(
    on: &Arc<CudaStream>,
    instruction: Instruction,
    out: TensorMut<'_, Cuda, f32, 2>,
    a: Tensor<'_, Cuda, A, 2>,
    b: Tensor<'_, Cuda, A, 2>,
) -> Result<()> {
    const OP: &str = "selftest::product";
    let ([m, k], [n, _]) = (a.dims, b.dims);
    let columns = match instruction {
        Instruction::Mma => 8,
        Instruction::Wgmma { columns } => columns,
    };
    if !matches!(A::DTYPE, DType::Bf16 | DType::F16) {
        return Err(Error::Unsupported { op: OP, what: format!("type {}", A::DTYPE) });
    }
    if ![8, 16, 24, 32, 48, 64, 96, 128, 192, 256].contains(&columns) {
        return Err(Error::Unsupported { op: OP, what: format!("an instruction of {columns} columns") });
    }
    for (name, got, unit) in [("m", m, 64), ("n", n, columns), ("k", k, 16)] {
        if got == 0 || got % unit != 0 || got > i32::MAX as usize {
            return Err(Error::invalid(OP, name, got, format!("it must be a multiple of {unit}")));
        }
    }
    a.check(OP, "a", [m, k])?;
    b.check(OP, "b", [n, k])?;
    out.check(OP, "out", [m, n])?;
    for (arg, got, want) in [
        ("a", a.strides, crate::tensor::packed(a.dims)),
        ("b", b.strides, crate::tensor::packed(b.dims)),
        ("out", out.strides, crate::tensor::packed(out.dims)),
    ] {
        if got != want {
            return Err(Error::Stride { op: OP, arg, got: got.to_vec(), want: "rows must be packed" });
        }
    }
    on.context().bind_to_thread()?;
    let mut out = out.data;
    let (out, _out) = out.device_ptr_mut(on);
    let (a, _a) = a.data.device_ptr(on);
    let (b, _b) = b.data.device_ptr(on);
    let p = sys::ls_core_product_params {
        out: out as *mut _,
        a: a as *const _,
        b: b as *const _,
        m: m as i32,
        n: n as i32,
        k: k as i32,
        tile_n: columns as i32,
        fp16: i32::from(A::DTYPE == DType::F16),
    };
    let launch = match instruction {
        Instruction::Mma => sys::ls_core_product_smxx,
        Instruction::Wgmma { .. } => sys::ls_core_product_sm90,
    };
    // SAFETY: the checks above bounded every operand; the stream belongs to the context just bound.
    Error::status(OP, unsafe { launch(&p, on.cu_stream().cast()) })
}

/// A function of the device headers, applied to bit patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Function {
    /// [`crate::ref_math::exp`]
    Exp = sys::LS_CORE_EXP,
    /// [`crate::ref_math::sigmoid`]
    Sigmoid = sys::LS_CORE_SIGMOID,
    /// [`crate::ref_math::silu`]
    Silu = sys::LS_CORE_SILU,
    /// [`crate::ref_math::rsqrt`]
    Rsqrt = sys::LS_CORE_RSQRT,
    /// [`crate::philox::bits`] of id = index, position 7, seed (x, !x)
    PhiloxBits = sys::LS_CORE_PHILOX_BITS,
    /// [`crate::philox::uniform`]
    PhiloxUniform = sys::LS_CORE_PHILOX_UNIFORM,
    /// 1 / x for x from 1 to 2, inside [`crate::ref_math::sigmoid`] and [`crate::ref_math::silu`]
    Reciprocal = sys::LS_CORE_RECIPROCAL,
    /// [`crate::ref_math::softplus`]
    Softplus = sys::LS_CORE_SOFTPLUS,
    /// [`crate::philox::exponential`]
    Exponential = sys::LS_CORE_EXPONENTIAL,
    /// [`crate::philox::gumbel`]
    Gumbel = sys::LS_CORE_GUMBEL,
}

/// `out[i] = function(x[i])`, on bit patterns.
pub fn apply(
    on: &Arc<CudaStream>,
    function: Function,
    mut out: CudaViewMut<'_, u32>,
    x: CudaView<'_, u32>,
) -> Result<()> {
    const OP: &str = "selftest::apply";
    let (need, have) = (Buffer::len(&x), Buffer::len(&out));
    if need > have {
        return Err(Error::Bounds { op: OP, arg: "out", need, have });
    }
    on.context().bind_to_thread()?;
    let (out, _out) = out.device_ptr_mut(on);
    let (x, _x) = x.device_ptr(on);
    let p = sys::ls_core_math_params {
        out: out as *mut _,
        x: x as *const _,
        count: need as i64,
        function: function as i32,
    };
    // SAFETY: both buffers hold `count` words; the stream belongs to the context just bound.
    Error::status(OP, unsafe { sys::ls_core_math_smxx(&p, on.cu_stream().cast()) })
}

/// Reads all of `memory`, which must be zeros, with `blocks` blocks of 512 threads: the streaming ceiling.
pub fn read(
    on: &Arc<CudaStream>,
    memory: CudaView<'_, u8>,
    mut sink: CudaViewMut<'_, u32>,
    blocks: usize,
) -> Result<()> {
    const OP: &str = "selftest::read";
    if Buffer::len(&sink) == 0 {
        return Err(Error::Bounds { op: OP, arg: "sink", need: 1, have: 0 });
    }
    if !(1..=65_535).contains(&blocks) {
        return Err(Error::invalid(OP, "blocks", blocks, "it must be 1 to 65535"));
    }
    on.context().bind_to_thread()?;
    let bytes = Buffer::len(&memory) / 16 * 16;
    let (memory, _memory) = memory.device_ptr(on);
    let (sink, _sink) = sink.device_ptr_mut(on);
    if memory % 16 != 0 {
        return Err(Error::Align { op: OP, arg: "memory", want: 16 });
    }
    let p = sys::ls_core_read_params {
        from: memory as *const _,
        bytes: bytes as i64,
        sink: sink as *mut _,
        blocks: blocks as i32,
    };
    // SAFETY: `bytes` lie inside `memory`; the stream belongs to the context just bound.
    Error::status(OP, unsafe { sys::ls_core_read_smxx(&p, on.cu_stream().cast()) })
}

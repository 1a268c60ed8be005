//! The crate's only unsafe code: operands become pointers, and one launcher is called.

mod experts;
mod fp8;
mod streams;

use crate::{
    AddNorm, AddNormArgs, ConcatNorm, ConcatNormArgs, DenseBackend, Embed, EmbedArgs, Fp8Head, Fp8HeadArgs,
    GatedNorm, GatedNormArgs, Head, HeadArgs, Linear, LinearArgs, Moe, MoeArgs, Norm, NormArgs, Quantize,
    QuantizeArgs, RandomFill, RandomFillArgs, SiluMul, SiluMulArgs, act, embed, fill, norm,
    norm::Launch,
    plan::VECTOR,
    sealed::Sealed,
    sys::{
        self, ls_dense_add_norm_params, ls_dense_concat_norm_params, ls_dense_embed_params,
        ls_dense_gated_norm_params, ls_dense_norm_params, ls_dense_random_fill_params,
        ls_dense_silu_mul_params,
    },
};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use kernels_core::{Activation, Cuda, DType, Error, Result};
use std::sync::Arc;

impl Sealed for Cuda {}

impl DenseBackend for Cuda {
    fn linear<A: Activation, W: Activation>(
        op: &Linear,
        on: &Arc<CudaStream>,
        args: LinearArgs<'_, Cuda, A, W>,
    ) -> Result<()> {
        streams::linear(op, on, args)
    }

    fn head<A: Activation, W: Activation>(
        op: &Head,
        on: &Arc<CudaStream>,
        args: HeadArgs<'_, Cuda, A, W>,
    ) -> Result<()> {
        streams::head(op, on, args)
    }

    fn fp8_head<A: Activation>(
        op: &Fp8Head,
        on: &Arc<CudaStream>,
        args: Fp8HeadArgs<'_, Cuda, A>,
    ) -> Result<()> {
        fp8::head(op, on, args)
    }

    fn quantize<A: Activation>(
        op: &Quantize,
        on: &Arc<CudaStream>,
        args: QuantizeArgs<'_, Cuda, A>,
    ) -> Result<()> {
        fp8::quantize(op, on, args)
    }

    fn norm<A: Activation>(op: &Norm, on: &Arc<CudaStream>, args: NormArgs<'_, Cuda, A>) -> Result<()> {
        let NormArgs { mut out, x, weight } = args;
        let launch = planned::<A>(norm::NORM, op.launch)?;
        on.context().bind_to_thread()?;
        // The guards record events when dropped, so they must outlive the launch.
        let (out_at, _out) = out.data.device_ptr_mut(on);
        let (x_at, _x) = x.data.device_ptr(on);
        let (weight_at, _weight) = weight.data.device_ptr(on);
        check(norm::NORM, "out", out_at, &out.strides)?;
        check(norm::NORM, "x", x_at, &x.strides)?;
        check(norm::NORM, "weight", weight_at, &[])?;
        let p = ls_dense_norm_params {
            out: out_at as *mut _,
            x: x_at as *const _,
            weight: weight_at as *const _,
            out_stride: out.strides[0] as i64,
            x_stride: x.strides[0] as i64,
            rows: op.problem().rows as i32,
            n: op.problem().n as i32,
            eps: op.problem().eps,
            vectors_per_thread: launch.vectors as i32,
            programmatic: i32::from(launch.programmatic),
        };
        // SAFETY: `run` bounded every operand, alignment was checked above, and the stream belongs to the context
        // just bound.
        Error::status(norm::NORM, unsafe { sys::ls_dense_norm_smxx(&p, on.cu_stream().cast()) })
    }

    fn add_norm<A: Activation>(
        op: &AddNorm,
        on: &Arc<CudaStream>,
        args: AddNormArgs<'_, Cuda, A>,
    ) -> Result<()> {
        let AddNormArgs { mut residual, mut out, x, weight } = args;
        let launch = planned::<A>(norm::ADD_NORM, op.launch)?;
        on.context().bind_to_thread()?;
        let (residual_at, _residual) = residual.data.device_ptr_mut(on);
        let (out_at, _out) = out.data.device_ptr_mut(on);
        let (x_at, _x) = x.data.device_ptr(on);
        let (weight_at, _weight) = weight.data.device_ptr(on);
        check(norm::ADD_NORM, "residual", residual_at, &residual.strides)?;
        check(norm::ADD_NORM, "out", out_at, &out.strides)?;
        check(norm::ADD_NORM, "x", x_at, &x.strides)?;
        check(norm::ADD_NORM, "weight", weight_at, &[])?;
        let p = ls_dense_add_norm_params {
            residual: residual_at as *mut _,
            out: out_at as *mut _,
            x: x_at as *const _,
            weight: weight_at as *const _,
            residual_stride: residual.strides[0] as i64,
            out_stride: out.strides[0] as i64,
            x_stride: x.strides[0] as i64,
            rows: op.problem().rows as i32,
            n: op.problem().n as i32,
            eps: op.problem().eps,
            vectors_per_thread: launch.vectors as i32,
            programmatic: i32::from(launch.programmatic),
        };
        // SAFETY: as for `norm`.
        Error::status(norm::ADD_NORM, unsafe { sys::ls_dense_add_norm_smxx(&p, on.cu_stream().cast()) })
    }

    fn gated_norm<A: Activation>(
        op: &GatedNorm,
        on: &Arc<CudaStream>,
        args: GatedNormArgs<'_, Cuda, A>,
    ) -> Result<()> {
        let GatedNormArgs { mut out, x, gate, weight } = args;
        let launch = planned::<A>(norm::GATED_NORM, op.launch)?;
        on.context().bind_to_thread()?;
        let (out_at, _out) = out.data.device_ptr_mut(on);
        let (x_at, _x) = x.data.device_ptr(on);
        let (gate_at, _gate) = gate.data.device_ptr(on);
        let (weight_at, _weight) = weight.data.device_ptr(on);
        check(norm::GATED_NORM, "out", out_at, &out.strides)?;
        check(norm::GATED_NORM, "x", x_at, &x.strides)?;
        check(norm::GATED_NORM, "gate", gate_at, &gate.strides)?;
        check(norm::GATED_NORM, "weight", weight_at, &[])?;
        let p = ls_dense_gated_norm_params {
            out: out_at as *mut _,
            x: x_at as *const _,
            gate: gate_at as *const _,
            weight: weight_at as *const _,
            out_row_stride: out.strides[0] as i64,
            out_head_stride: out.strides[1] as i64,
            x_row_stride: x.strides[0] as i64,
            x_head_stride: x.strides[1] as i64,
            gate_row_stride: gate.strides[0] as i64,
            gate_head_stride: gate.strides[1] as i64,
            rows: op.problem().rows as i32,
            heads: op.problem().heads as i32,
            eps: op.problem().eps,
            programmatic: i32::from(launch.programmatic),
        };
        // SAFETY: as for `norm`.
        Error::status(norm::GATED_NORM, unsafe { sys::ls_dense_gated_norm_smxx(&p, on.cu_stream().cast()) })
    }

    fn concat_norm<A: Activation>(
        op: &ConcatNorm,
        on: &Arc<CudaStream>,
        args: ConcatNormArgs<'_, Cuda, A>,
    ) -> Result<()> {
        let ConcatNormArgs { mut out, left, left_weight, right, right_weight } = args;
        let launch = planned::<A>(norm::CONCAT_NORM, op.launch)?;
        on.context().bind_to_thread()?;
        let (out_at, _out) = out.data.device_ptr_mut(on);
        let (left_at, _left) = left.data.device_ptr(on);
        let (left_weight_at, _left_weight) = left_weight.data.device_ptr(on);
        let (right_at, _right) = right.data.device_ptr(on);
        let (right_weight_at, _right_weight) = right_weight.data.device_ptr(on);
        check(norm::CONCAT_NORM, "out", out_at, &out.strides)?;
        check(norm::CONCAT_NORM, "left", left_at, &left.strides)?;
        check(norm::CONCAT_NORM, "left_weight", left_weight_at, &[])?;
        check(norm::CONCAT_NORM, "right", right_at, &right.strides)?;
        check(norm::CONCAT_NORM, "right_weight", right_weight_at, &[])?;
        let p = ls_dense_concat_norm_params {
            out: out_at as *mut _,
            left: left_at as *const _,
            left_weight: left_weight_at as *const _,
            right: right_at as *const _,
            right_weight: right_weight_at as *const _,
            out_stride: out.strides[0] as i64,
            left_stride: left.strides[0] as i64,
            right_stride: right.strides[0] as i64,
            rows: op.problem().rows as i32,
            n: op.problem().n as i32,
            eps: op.problem().eps,
            vectors_per_thread: launch.vectors as i32,
            programmatic: i32::from(launch.programmatic),
        };
        // SAFETY: as for `norm`.
        Error::status(norm::CONCAT_NORM, unsafe { sys::ls_dense_concat_norm_smxx(&p, on.cu_stream().cast()) })
    }

    fn silu_mul<A: Activation>(
        op: &SiluMul,
        on: &Arc<CudaStream>,
        args: SiluMulArgs<'_, Cuda, A>,
    ) -> Result<()> {
        let SiluMulArgs { mut out, gate, up } = args;
        let launch = op.on_cuda.then_some(Launch { vectors: 1, programmatic: op.programmatic });
        let launch = planned::<A>(act::OP, launch)?;
        on.context().bind_to_thread()?;
        let (out_at, _out) = out.data.device_ptr_mut(on);
        let (gate_at, _gate) = gate.data.device_ptr(on);
        let (up_at, _up) = up.data.device_ptr(on);
        check(act::OP, "out", out_at, &out.strides)?;
        check(act::OP, "gate", gate_at, &gate.strides)?;
        check(act::OP, "up", up_at, &up.strides)?;
        let p = ls_dense_silu_mul_params {
            out: out_at as *mut _,
            gate: gate_at as *const _,
            up: up_at as *const _,
            out_stride: out.strides[0] as i64,
            gate_stride: gate.strides[0] as i64,
            up_stride: up.strides[0] as i64,
            rows: op.problem().rows as i32,
            n: op.problem().n as i32,
            programmatic: i32::from(launch.programmatic),
        };
        // SAFETY: as for `norm`.
        Error::status(act::OP, unsafe { sys::ls_dense_silu_mul_smxx(&p, on.cu_stream().cast()) })
    }

    fn embed<A: Activation, W: Activation>(
        op: &Embed,
        on: &Arc<CudaStream>,
        args: EmbedArgs<'_, Cuda, A, W>,
    ) -> Result<()> {
        let EmbedArgs { mut out, ids, table } = args;
        let launch = op.on_cuda.then_some(Launch { vectors: 1, programmatic: op.programmatic });
        let launch = planned::<A>(embed::OP, launch)?;
        if W::DTYPE != DType::Bf16 {
            let what = format!("a table of {} on CUDA (bf16 is)", W::DTYPE);
            return Err(Error::Unsupported { op: embed::OP, what });
        }
        on.context().bind_to_thread()?;
        let (out_at, _out) = out.data.device_ptr_mut(on);
        let (ids_at, _ids) = ids.data.device_ptr(on);
        let (table_at, _table) = table.data.device_ptr(on);
        check(embed::OP, "out", out_at, &out.strides)?;
        check(embed::OP, "table", table_at, &table.strides)?;
        let p = ls_dense_embed_params {
            out: out_at as *mut _,
            ids: ids_at as *const _,
            table: table_at as *const _,
            out_stride: out.strides[0] as i64,
            table_stride: table.strides[0] as i64,
            rows: op.problem().rows as i32,
            n: op.problem().n as i32,
            vocab: op.problem().vocab as i32,
            programmatic: i32::from(launch.programmatic),
        };
        // SAFETY: as for `norm`; an id outside of the table is not followed.
        Error::status(embed::OP, unsafe { sys::ls_dense_embed_smxx(&p, on.cu_stream().cast()) })
    }

    fn random_fill<A: Activation>(
        op: &RandomFill,
        on: &Arc<CudaStream>,
        args: RandomFillArgs<'_, Cuda, A>,
    ) -> Result<()> {
        let RandomFillArgs { mut out } = args;
        let launcher = match A::DTYPE {
            DType::Bf16 => sys::ls_dense_random_fill_bf16_smxx,
            DType::F32 => sys::ls_dense_random_fill_f32_smxx,
            other => {
                let what = format!("activation type {other} on CUDA (bf16 and f32 are)");
                return Err(Error::Unsupported { op: fill::OP, what });
            }
        };
        if !op.on_cuda {
            return Err(elsewhere(fill::OP));
        }
        on.context().bind_to_thread()?;
        let (out_at, _out) = out.data.device_ptr_mut(on);
        check(fill::OP, "out", out_at, &[])?;
        let p = ls_dense_random_fill_params {
            out: out_at as *mut _,
            len: op.problem().len as i64,
            first: op.problem().first as i64,
            seed: op.problem().seed,
            stream: op.problem().stream,
            mean: op.problem().mean,
            unit: op.unit,
        };
        // SAFETY: as for `norm`.
        Error::status(fill::OP, unsafe { launcher(&p, on.cu_stream().cast()) })
    }

    fn moe<A: Activation, W: Activation>(
        op: &Moe,
        on: &Arc<CudaStream>,
        args: MoeArgs<'_, Cuda, A, W>,
    ) -> Result<()> {
        experts::moe(op, on, args)
    }
}

/// The launch of an operation that was planned for CUDA, on the activation type that there are kernels for.
fn planned<A: Activation>(op: &'static str, launch: Option<Launch>) -> Result<Launch> {
    planned_type::<A>(op)?;
    launch.ok_or_else(|| elsewhere(op))
}

fn elsewhere(op: &'static str) -> Error {
    Error::invalid(op, "device", "the CPU", "plan it for the CUDA device it runs on")
}

fn planned_type<A: Activation>(op: &'static str) -> Result<()> {
    if A::DTYPE == DType::Bf16 {
        return Ok(());
    }
    let what = format!("activation type {} on CUDA (bf16 is)", A::DTYPE);
    Err(Error::Unsupported { op, what })
}

/// 16-byte vectors: alignment and, but for the last, strides; and rows within the reach of 32-bit strides.
fn check(op: &'static str, arg: &'static str, pointer: u64, strides: &[usize]) -> Result<()> {
    let outer = &strides[..strides.len().saturating_sub(1)];
    if !pointer.is_multiple_of(16) || outer.iter().any(|s| !s.is_multiple_of(VECTOR)) {
        return Err(Error::Align { op, arg, want: 16 });
    }
    if outer.iter().any(|s| *s >= 1 << 31) {
        let want = "rows and heads must be less than 2^31 elements apart on CUDA";
        return Err(Error::Stride { op, arg, got: strides.to_vec(), want });
    }
    Ok(())
}

//! The reference: fp32 in the order of the equations, rounded where the contract says so.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod dots;
mod fill;
mod fp8;
mod linear;
mod moe;
mod norm;
mod scratch;
mod wide;

use crate::{
    AddNorm, AddNormArgs, ConcatNorm, ConcatNormArgs, DenseBackend, Embed, EmbedArgs, Fp8Head, Fp8HeadArgs,
    GatedNorm, GatedNormArgs, Head, HeadArgs, Linear, LinearArgs, Moe, MoeArgs, Norm, NormArgs, Quantize,
    QuantizeArgs, RandomFill, RandomFillArgs, SiluMul, SiluMulArgs, sealed::Sealed,
};
use kernels_core::{Activation, Cpu, Result, Tensor};

impl Sealed for Cpu {}

impl DenseBackend for Cpu {
    fn linear<A: Activation, W: Activation>(
        op: &Linear,
        (): &(),
        args: LinearArgs<'_, Cpu, A, W>,
    ) -> Result<()> {
        linear::linear(op.problem(), args);
        Ok(())
    }

    fn head<A: Activation, W: Activation>(op: &Head, (): &(), args: HeadArgs<'_, Cpu, A, W>) -> Result<()> {
        linear::head(op.problem(), args);
        Ok(())
    }

    fn fp8_head<A: Activation>(op: &Fp8Head, (): &(), args: Fp8HeadArgs<'_, Cpu, A>) -> Result<()> {
        fp8::head(op.problem(), args);
        Ok(())
    }

    fn quantize<A: Activation>(op: &Quantize, (): &(), args: QuantizeArgs<'_, Cpu, A>) -> Result<()> {
        fp8::quantize(op.problem(), args);
        Ok(())
    }

    fn norm<A: Activation>(op: &Norm, (): &(), args: NormArgs<'_, Cpu, A>) -> Result<()> {
        norm::norm(op.problem(), args);
        Ok(())
    }

    fn add_norm<A: Activation>(op: &AddNorm, (): &(), args: AddNormArgs<'_, Cpu, A>) -> Result<()> {
        norm::add_norm(op.problem(), args);
        Ok(())
    }

    fn gated_norm<A: Activation>(op: &GatedNorm, (): &(), args: GatedNormArgs<'_, Cpu, A>) -> Result<()> {
        norm::gated_norm(op.problem(), args);
        Ok(())
    }

    fn concat_norm<A: Activation>(op: &ConcatNorm, (): &(), args: ConcatNormArgs<'_, Cpu, A>) -> Result<()> {
        norm::concat_norm(op.problem(), args);
        Ok(())
    }

    fn silu_mul<A: Activation>(op: &SiluMul, (): &(), args: SiluMulArgs<'_, Cpu, A>) -> Result<()> {
        linear::silu_mul(op.problem(), args);
        Ok(())
    }

    fn embed<A: Activation, W: Activation>(
        op: &Embed,
        (): &(),
        args: EmbedArgs<'_, Cpu, A, W>,
    ) -> Result<()> {
        let EmbedArgs { mut out, ids, table } = args;
        for row in 0..op.problem().rows {
            let out = out.row_mut(&[row]);
            let id = usize::try_from(ids.at([row])).ok().filter(|id| *id < op.problem().vocab);
            match id {
                Some(id) => {
                    for (out, w) in out.iter_mut().zip(table.row(&[id])) {
                        *out = A::from_f32(w.to_f32());
                    }
                }
                None => out.fill(A::from_f32(0.0)),
            }
        }
        Ok(())
    }

    fn random_fill<A: Activation>(op: &RandomFill, (): &(), args: RandomFillArgs<'_, Cpu, A>) -> Result<()> {
        fill::random_fill(op, args.out);
        Ok(())
    }

    fn moe<A: Activation, W: Activation>(op: &Moe, (): &(), args: MoeArgs<'_, Cpu, A, W>) -> Result<()> {
        moe::moe(op.problem(), args);
        Ok(())
    }
}

/// Every NaN becomes the same NaN.
///
/// Which operand's payload survives an addition is left open by IEEE 754 and by Rust, so without this two
/// vector forms of one sum could differ in the bytes of a NaN.
#[inline(always)]
fn settle(x: f32) -> f32 {
    if x.is_nan() { f32::NAN } else { x }
}

/// Rounds to the activation type.
#[inline(always)]
fn round<A: Activation>(x: f32) -> A {
    A::from_f32(settle(x))
}

/// The value that `x` has once it is rounded to the activation type.
#[inline(always)]
fn rounded<A: Activation>(x: f32) -> f32 {
    round::<A>(x).to_f32()
}

/// Adds neighbours at half the distance until one value is left: lane i takes lane i + width / 2.
#[inline(always)]
fn tree<const LANES: usize>(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

wide::wide! {
    /// The rows of `x` in fp32, packed.
    fn widen[A: Activation](x: &Tensor<'_, Cpu, A, 2>, to: &mut [f32]) {
        for (row, to) in to.chunks_exact_mut(x.dims[1]).enumerate() {
            for (to, x) in to.iter_mut().zip(x.row(&[row])) {
                *to = x.to_f32();
            }
        }
    }
}

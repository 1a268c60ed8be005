//! Element types and the activation types among them.

use half::{bf16, f16};
use std::fmt;

/// The name of an element type, for messages and file formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// bfloat16
    Bf16,
    /// IEEE half
    F16,
    /// IEEE single
    F32,
    /// 8-bit unsigned
    U8,
    /// 32-bit signed
    I32,
    /// 32-bit unsigned
    U32,
    /// 64-bit unsigned
    U64,
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::F32 => "f32",
            DType::U8 => "u8",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::U64 => "u64",
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// What device memory may hold: plain bits, all patterns valid.
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub trait Storable: cudarc::driver::DeviceRepr + cudarc::driver::ValidAsZeroBits {}
#[cfg(feature = "cuda")]
impl<T: cudarc::driver::DeviceRepr + cudarc::driver::ValidAsZeroBits> Storable for T {}
#[cfg(not(feature = "cuda"))]
#[doc(hidden)]
pub trait Storable {}
#[cfg(not(feature = "cuda"))]
impl<T: bytemuck::Pod> Storable for T {}

/// An element of a tensor.
pub trait Element:
    sealed::Sealed + Storable + bytemuck::Pod + fmt::Debug + PartialEq + Default + Send + Sync + 'static
{
    /// Its name.
    const DTYPE: DType;
}

/// A floating-point type that activations may have.
///
/// All arithmetic is fp32 inside the operators; a value is rounded to its activation type exactly where
/// the rounding contract says so, and with `f32` that rounding is the identity.
pub trait Activation: Element {
    /// The exact value in fp32.
    fn to_f32(self) -> f32;
    /// Rounds to nearest, ties to even.
    fn from_f32(x: f32) -> Self;
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => { $(
        impl sealed::Sealed for $t {}
        impl Element for $t { const DTYPE: DType = DType::$d; }
    )* };
}
element!(bf16 => Bf16, f16 => F16, f32 => F32, u8 => U8, i32 => I32, u32 => U32, u64 => U64);

impl Activation for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        // Branch-free except for NaN, so that loops over rows vectorise.
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet_nan = (bits >> 16) | 0x40;
        bf16::from_bits(if x.is_nan() { quiet_nan } else { rounded } as u16)
    }
}

impl Activation for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        f16::from_f32(x)
    }
}

impl Activation for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_as_half_does() {
        for bits in (0..=u32::MAX).step_by(0x1003) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (<bf16 as Activation>::from_f32(x), bf16::from_f32(x));
            assert_eq!(ours.to_bits(), theirs.to_bits(), "{bits:#x}");
            assert_eq!(Activation::to_f32(ours).to_bits(), bf16::to_f32(theirs).to_bits());
        }
    }
}

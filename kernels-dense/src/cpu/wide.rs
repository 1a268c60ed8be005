//! Loops compiled for the widest vectors the processor has.
//!
//! [`kernels_core::ref_math::vectorised`] takes a closure, and a closure cannot be marked
//! `#[inline(always)]`: one that is not small stays a function of its own, compiled without the vector
//! instructions, where each `mul_add` is a library call. Measured on an add + norm of 256: 1.13 µs
//! through the closure, 0.4 µs like this.

/// A function whose body must be compiled anew for each set of instructions.
pub(super) trait Wide<Args> {
    /// To be marked `#[inline(always)]`, as everything it calls in its loops.
    fn run(args: Args);
}

/// Runs `Body` with AVX2 and fused multiply-adds where the processor has them.
///
/// A fused multiply-add has one right result, so the bits do not depend on what is found.
#[inline(always)]
pub(super) fn run<Body: Wide<Args>, Args>(args: Args) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2<Body: Wide<Args>, Args>(args: Args) {
            Body::run(args);
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            // SAFETY: both features were just detected on this processor.
            return unsafe { with_avx2::<Body, Args>(args) };
        }
    }
    Body::run(args);
}

/// Defines functions that run [`Wide`]: generic parameters stand in square brackets.
macro_rules! wide {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident[$($generics:tt)*]($($arg:ident: $type:ty),* $(,)?) $body:block
    )*) => { $(
        $(#[$meta])*
        $vis fn $name<$($generics)*>($($arg: $type),*) {
            struct Body;
            impl<$($generics)*> crate::cpu::wide::Wide<($($type,)*)> for Body {
                #[inline(always)]
                fn run(($($arg,)*): ($($type,)*)) $body
            }
            crate::cpu::wide::run::<Body, _>(($($arg,)*))
        }
    )* };
}
pub(super) use wide;

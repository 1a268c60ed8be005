//! Functions compiled for the widest vectors the processor has.

/// Defines functions whose body runs under [`kernels_core::ref_math::vectorised`]: generic parameters stand
/// in square brackets. What the bodies call in their loops must be `#[inline(always)]`.
macro_rules! wide {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident[$($generics:tt)*]($($arg:ident: $type:ty),* $(,)?) $body:block
    )*) => { $(
        $(#[$meta])*
        $vis fn $name<$($generics)*>($($arg: $type),*) {
            kernels_core::ref_math::vectorised(#[inline(always)] move || $body)
        }
    )* };
}
pub(super) use wide;

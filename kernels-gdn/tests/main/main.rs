//! The tests of the CPU half, which is the specification of the family.

mod accuracy;
#[cfg(feature = "planted-faults")]
mod bite;
mod bits;
mod golden;
mod literal;
mod properties;
mod refusals;
mod rounds;
mod world;

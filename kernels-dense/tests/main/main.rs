//! The contract of the dense operators: equal bytes where it says equal, derived bounds elsewhere.

mod accuracy;
mod approx;
#[cfg(feature = "planted-faults")]
mod bite;
mod bits;
mod calls;
mod golden;
mod literal;
mod moe;
mod properties;
mod refusals;

/// What a check gives: why it failed, if it did. The bite checks want it to fail.
type Check = Result<(), String>;

/// Runs an ordinary test while no fault is planted.
///
/// Planted faults are process-wide and tests run side by side, so that the bite checks wait until they are
/// alone.
fn calm<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(feature = "planted-faults")]
    let _calm = bite::CALM.read().unwrap_or_else(|e| e.into_inner());
    body()
}

/// An error that says where two results first differ.
fn same<T: kernels_core::Element>(what: &str, got: &[T], want: &[T]) -> Check {
    match kernels_testkit::compare::first_difference(got, want) {
        None => Ok(()),
        Some(i) => Err(format!("{what}: element {i} is {:?} instead of {:?}", got.get(i), want.get(i))),
    }
}

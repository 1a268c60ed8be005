//! Two comparisons: equal bytes where the contract says equal, relative error where it states a bound.

use kernels_core::{Activation, Element};

/// Where two slices first differ in their bytes; `None` if nowhere. NaN equals the same NaN.
pub fn first_difference<T: Element>(got: &[T], want: &[T]) -> Option<usize> {
    if got.len() != want.len() {
        return Some(got.len().min(want.len()));
    }
    (0..got.len()).find(|&i| bytes_of(&got[i]) != bytes_of(&want[i]))
}

fn bytes_of<T: Element>(x: &T) -> &[u8] {
    bytemuck::bytes_of(x)
}

/// Panics unless every byte is equal, and says where and what differs first.
#[track_caller]
pub fn assert_same_bits<T: Element>(what: &str, got: &[T], want: &[T]) {
    assert_eq!(got.len(), want.len(), "{what}: lengths differ");
    if let Some(i) = first_difference(got, want) {
        let count = (0..got.len()).filter(|&i| bytes_of(&got[i]) != bytes_of(&want[i])).count();
        panic!(
            "{what}: {count} of {} elements differ, first at {i}: {:?} instead of {:?}",
            got.len(),
            got[i],
            want[i]
        );
    }
}

/// `|got - want| / |want|` in the Frobenius norm; infinite if anything in `got` is NaN.
pub fn relative_error<A: Activation>(got: &[A], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len(), "lengths differ");
    let (mut error, mut norm) = (0.0, 0.0);
    for (g, w) in got.iter().zip(want) {
        let g = f64::from(g.to_f32());
        if g.is_nan() {
            return f64::INFINITY;
        }
        error += (g - w).powi(2);
        norm += w.powi(2);
    }
    if error == 0.0 { 0.0 } else { (error / norm).sqrt() }
}

/// The largest absolute difference; infinite if anything in `got` is NaN.
pub fn max_difference<A: Activation>(got: &[A], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len(), "lengths differ");
    got.iter().zip(want).fold(0.0, |worst, (g, w)| {
        let d = (f64::from(g.to_f32()) - f64::from(*w)).abs();
        if d.is_nan() { f64::INFINITY } else { d.max(worst) }
    })
}

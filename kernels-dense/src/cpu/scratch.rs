//! Buffers that live as long as their thread, so that a decode step allocates only once.

use std::cell::RefCell;

thread_local! {
    // A stack: while a thread waits for its share of the work, rayon may have it run another call.
    static FREE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Lends `body` one buffer of each size. They hold whatever they held before.
pub(super) fn with<const N: usize, R>(sizes: [usize; N], body: impl FnOnce([&mut [f32]; N]) -> R) -> R {
    let mut buffer = FREE.with_borrow_mut(|free| free.pop().unwrap_or_default());
    let total = sizes.iter().sum();
    if buffer.len() < total {
        buffer.resize(total, 0.0);
    }
    let mut rest = &mut buffer[..];
    let parts = sizes.map(|size| {
        let (part, after) = std::mem::take(&mut rest).split_at_mut(size);
        rest = after;
        part
    });
    let result = body(parts);
    FREE.with_borrow_mut(|free| free.push(buffer));
    result
}

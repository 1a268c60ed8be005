//! Faults planted on purpose, so that a test can show that it would notice.
//!
//! Every "equal bytes" test has a bite check: it runs once more with one named fault active and must
//! then fail. The hooks compile to `false` unless the feature `planted-faults` is on, which no product
//! build may turn on.

/// Whether the fault `name` is active on this thread.
#[cfg(not(feature = "planted-faults"))]
#[inline(always)]
pub const fn active(_name: &str) -> bool {
    false
}

#[cfg(feature = "planted-faults")]
pub use planted::{active, with};

#[cfg(feature = "planted-faults")]
mod planted {
    use std::sync::Mutex;

    static ACTIVE: Mutex<Option<&'static str>> = Mutex::new(None);
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// Whether the fault `name` is active.
    pub fn active(name: &str) -> bool {
        ACTIVE.lock().unwrap_or_else(|e| e.into_inner()).is_some_and(|n| n == name)
    }

    /// Runs `body` with the fault `name` active everywhere in the process, worker threads included.
    pub fn with<R>(name: &'static str, body: impl FnOnce() -> R) -> R {
        struct Clear;
        impl Drop for Clear {
            fn drop(&mut self) {
                *ACTIVE.lock().unwrap_or_else(|e| e.into_inner()) = None;
            }
        }
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
        *ACTIVE.lock().unwrap_or_else(|e| e.into_inner()) = Some(name);
        let _clear = Clear;
        body()
    }
}

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
    use std::sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    };

    /// The active fault's name, hashed: hooks stand in the innermost loops.
    static ACTIVE: AtomicU64 = AtomicU64::new(NONE);
    const NONE: u64 = 0;
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// FNV-1a.
    #[inline(always)]
    const fn hash(name: &str) -> u64 {
        let (bytes, mut hash, mut i) = (name.as_bytes(), 0xcbf2_9ce4_8422_2325u64, 0);
        while i < bytes.len() {
            hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
            i += 1;
        }
        hash
    }

    /// Whether the fault `name` is active.
    #[inline(always)]
    pub fn active(name: &str) -> bool {
        let active = ACTIVE.load(Ordering::Relaxed);
        active != NONE && active == hash(name)
    }

    /// Runs `body` with the fault `name` active everywhere in the process, worker threads included.
    pub fn with<R>(name: &'static str, body: impl FnOnce() -> R) -> R {
        struct Clear;
        impl Drop for Clear {
            fn drop(&mut self) {
                ACTIVE.store(NONE, Ordering::SeqCst);
            }
        }
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
        ACTIVE.store(hash(name), Ordering::SeqCst);
        let _clear = Clear;
        body()
    }
}

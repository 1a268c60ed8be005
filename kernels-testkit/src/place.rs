//! What a test that runs on several backends asks of each of them.

use kernels_core::{Backend, Cpu, DeviceInfo};

/// A backend that can say what it runs on.
pub trait Place: Backend {
    /// Whether it takes every activation type and every size; the CPU does, since it is the specification.
    const GENERAL: bool;
    /// The device behind a queue.
    fn device(on: &Self::Queue) -> DeviceInfo;
}

impl Place for Cpu {
    const GENERAL: bool = true;
    fn device((): &()) -> DeviceInfo {
        DeviceInfo::cpu()
    }
}

#[cfg(feature = "cuda")]
impl Place for kernels_core::Cuda {
    const GENERAL: bool = false;
    fn device(on: &Self::Queue) -> DeviceInfo {
        DeviceInfo::of(on.context()).expect("an open device has properties")
    }
}

/// Runs a test body `fn body<B: Place, A: Activation>(queue: &B::Queue)` for the activation types that the
/// backend has.
#[macro_export]
macro_rules! for_types {
    ($backend:ident, $queue:expr, $body:ident) => {{
        $body::<$backend, kernels_core::bf16>($queue);
        if <$backend as $crate::place::Place>::GENERAL {
            $body::<$backend, kernels_core::f16>($queue);
            $body::<$backend, f32>($queue);
        }
    }};
}

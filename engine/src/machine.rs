//! What the engine asks of a backend beside its kernels: copies that arrive later, points in time, work that
//! is recorded once and enqueued again.

use crate::Result;
use kernels_core::{Backend, Cpu, Element};
use serde::Serialize;
use std::{
    convert::Infallible,
    fmt::{self, Debug},
    time::{Duration, Instant},
};

/// A backend that the engine can run ahead of.
pub trait Machine: Backend {
    /// Whether an operation may still have to run when the call that enqueued it has returned. Then to read
    /// what it computed is to wait, and launches had better go by bounds that the host knows.
    const DEFERRED: bool;
    /// Host memory that the device copies into while the host goes on.
    type Pinned<T: Element>: Debug;
    /// A point in the queue, and when it was reached.
    type Mark: Debug;
    /// Operations that were recorded.
    type Graph: Debug;

    /// Memory for [`fetch`](Machine::fetch): allocated once, because that is slow.
    fn pinned<T: Element>(on: &Self::Queue, len: usize) -> Result<Self::Pinned<T>>;
    /// Enqueues a copy of the first `len` elements.
    fn fetch<T: Element>(
        on: &Self::Queue,
        memory: &Self::Memory<T>,
        len: usize,
        to: &mut Self::Pinned<T>,
    ) -> Result<()>;
    /// What the latest copy brought, in the first elements; waits for it and not for what is behind it.
    fn fetched<T: Element>(from: &Self::Pinned<T>) -> Result<&[T]>;

    /// Marks the point that the queue has come to.
    fn mark(on: &Self::Queue) -> Result<Self::Mark>;
    /// The time from one mark to a later one; waits for both.
    fn between(from: &Self::Mark, to: &Self::Mark) -> Result<Duration>;

    /// Records what `work` enqueues, and runs none of it; `None` from a backend that cannot, which has not
    /// called `work`.
    fn record(on: &Self::Queue, work: &mut dyn FnMut() -> Result<()>) -> Result<Option<Self::Graph>>;
    /// Enqueues what was recorded.
    fn replay(on: &Self::Queue, graph: &Self::Graph) -> Result<()>;

    /// Tries the facts that the exactness contract stands on; `None` where it stands on the language alone.
    fn self_test(on: &Self::Queue) -> Result<Option<SelfTest>>;
    /// Bytes a second of a long read, the best of several: what nothing that streams weights can pass. `None`
    /// where there is no measure of it.
    fn read_ceiling(on: &Self::Queue) -> Result<Option<f64>>;
}

/// What a chip was asked, and what it said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SelfTest {
    /// Facts that were tried: instructions against each other, zero columns, functions against the CPU.
    pub facts: usize,
    /// Numbers compared, bit for bit.
    pub compared: usize,
    /// The facts that do not hold.
    pub broken: Vec<String>,
}

impl SelfTest {
    /// Whether equal bits can be promised on this chip.
    pub fn holds(&self) -> bool {
        self.facts > 0 && self.broken.is_empty()
    }
}

impl fmt::Display for SelfTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SelfTest { facts, compared, broken } = self;
        write!(f, "self-test: {facts} facts, {compared} numbers compared, ")?;
        match &broken[..] {
            [] if self.holds() => write!(f, "all hold"),
            [] => write!(f, "nothing was tried, so equal bits cannot be promised here"),
            [first, others @ ..] => write!(
                f,
                "{} NOT hold on this chip, so equal bits cannot be promised here; the first: {first}",
                if others.is_empty() { "1 does".into() } else { format!("{} do", broken.len()) }
            ),
        }
    }
}

impl Machine for Cpu {
    const DEFERRED: bool = false;
    type Pinned<T: Element> = Vec<T>;
    type Mark = Instant;
    type Graph = Infallible;

    fn pinned<T: Element>(on: &(), len: usize) -> Result<Vec<T>> {
        Ok(Cpu::zeros(on, len)?)
    }
    fn fetch<T: Element>((): &(), memory: &Vec<T>, len: usize, to: &mut Vec<T>) -> Result<()> {
        to[..len].copy_from_slice(&memory[..len]);
        Ok(())
    }
    fn fetched<T: Element>(from: &Vec<T>) -> Result<&[T]> {
        Ok(from)
    }
    fn mark((): &()) -> Result<Instant> {
        Ok(Instant::now())
    }
    fn between(from: &Instant, to: &Instant) -> Result<Duration> {
        Ok(to.saturating_duration_since(*from))
    }
    fn record((): &(), _: &mut dyn FnMut() -> Result<()>) -> Result<Option<Infallible>> {
        Ok(None)
    }
    fn replay((): &(), graph: &Infallible) -> Result<()> {
        match *graph {}
    }
    fn self_test((): &()) -> Result<Option<SelfTest>> {
        Ok(None)
    }
    fn read_ceiling((): &()) -> Result<Option<f64>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_fact_is_named_and_takes_the_promise_back() {
        let test = |facts, broken: &[&str]| SelfTest {
            facts,
            compared: 900,
            broken: broken.iter().map(ToString::to_string).collect(),
        };
        let whole = test(3, &[]);
        assert!(whole.holds());
        assert_eq!(whole.to_string(), "self-test: 3 facts, 900 numbers compared, all hold");
        let one = test(3, &["exp: 2 of 300 elements differ"]);
        assert!(!one.holds());
        assert_eq!(
            one.to_string(),
            "self-test: 3 facts, 900 numbers compared, 1 does NOT hold on this chip, so equal bits cannot be promised \
             here; the first: exp: 2 of 300 elements differ"
        );
        let two = test(3, &["exp: 2 of 300 elements differ", "silu: 1 of 300 elements differ"]);
        assert!(two.to_string().contains(" 2 do NOT hold "), "{two}");
        assert!(two.to_string().ends_with("the first: exp: 2 of 300 elements differ"), "{two}");
        let nothing = test(0, &[]);
        assert!(!nothing.holds() && nothing.to_string().contains("cannot be promised"), "{nothing}");
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{Machine, SelfTest};
    use crate::{Error, Result};
    use cudarc::driver::{
        CudaEvent, CudaGraph, CudaSlice, CudaStream, DevicePtr, DriverError, PinnedHostSlice, result, sys,
    };
    use kernels_core::{Backend, Cuda, Element, selftest};
    use std::{fmt, sync::Arc, time::Duration};

    impl Machine for Cuda {
        const DEFERRED: bool = true;
        type Pinned<T: Element> = Pinned<T>;
        type Mark = CudaEvent;
        type Graph = Graph;

        fn pinned<T: Element>(on: &Arc<CudaStream>, len: usize) -> Result<Pinned<T>> {
            // Without flags, because the default is memory that is slow to read.
            // SAFETY: an element is a number, and every bit pattern is one.
            let memory = unsafe { on.context().alloc_pinned_with_flags(len.max(1), 0) }.map_err(driver)?;
            let arrived = on.context().new_event(None).map_err(driver)?;
            Ok(Pinned { memory, arrived })
        }
        fn fetch<T: Element>(
            on: &Arc<CudaStream>,
            memory: &CudaSlice<T>,
            len: usize,
            to: &mut Pinned<T>,
        ) -> Result<()> {
            // Should the copy before this one be unread, it is waited for: they share the memory.
            to.arrived.synchronize().map_err(driver)?;
            let part = memory.slice(..len);
            let (from, _read) = part.device_ptr(on);
            let here = &mut to.memory.as_mut_slice().map_err(driver)?[..len];
            // SAFETY: `from` has `len` elements; nobody looks at `here`, and it lives, until `arrived`.
            unsafe { result::memcpy_dtoh_async(here, from, on.cu_stream()) }.map_err(driver)?;
            Ok(to.arrived.record(on).map_err(driver)?)
        }
        fn fetched<T: Element>(from: &Pinned<T>) -> Result<&[T]> {
            from.arrived.synchronize().map_err(driver)?;
            Ok(from.memory.as_slice().map_err(driver)?)
        }
        fn mark(on: &Arc<CudaStream>) -> Result<CudaEvent> {
            Ok(on.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver)?)
        }
        fn between(from: &CudaEvent, to: &CudaEvent) -> Result<Duration> {
            Ok(Duration::from_secs_f64(f64::from(from.elapsed_ms(to).map_err(driver)?) / 1e3))
        }
        fn record(on: &Arc<CudaStream>, work: &mut dyn FnMut() -> Result<()>) -> Result<Option<Graph>> {
            // Thread-local: other threads may use the device meanwhile.
            on.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
                .map_err(driver)?;
            let outcome = work();
            // The capture is ended whatever happened, or the stream stays unusable.
            let graph = on.end_capture(sys::CUgraphInstantiate_flags(0)).map_err(driver);
            outcome?;
            let empty = || Error::limit("recorded round", "empty", "something must be enqueued");
            Ok(Some(Graph(graph?.ok_or_else(empty)?)))
        }
        fn replay(on: &Arc<CudaStream>, graph: &Graph) -> Result<()> {
            on.context().bind_to_thread().map_err(driver)?;
            Ok(graph.0.launch().map_err(driver)?)
        }
        fn self_test(on: &Arc<CudaStream>) -> Result<Option<SelfTest>> {
            let facts = selftest::facts(on)?;
            let broken = facts.iter().filter(|fact| !fact.holds()).map(ToString::to_string).collect();
            let compared = facts.iter().map(|fact| fact.compared).sum();
            Ok(Some(SelfTest { facts: facts.len(), compared, broken }))
        }
        fn read_ceiling(on: &Arc<CudaStream>) -> Result<Option<f64>> {
            // Far more than any cache, and little beside a model.
            const BYTES: usize = 4 << 30;
            let memory = Cuda::zeros::<u8>(on, BYTES)?;
            let mut sink = Cuda::zeros::<u32>(on, 1)?;
            let processors = on
                .context()
                .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
                .map_err(driver)?;
            let mut best = 0f64;
            for blocks in [2, 4, 8].map(|each| each * processors as usize) {
                for _ in 0..4 {
                    let from = Self::mark(on)?;
                    selftest::read(on, Cuda::view(&memory), Cuda::view_mut(&mut sink), blocks)?;
                    let took = Self::between(&from, &Self::mark(on)?)?;
                    best = best.max(BYTES as f64 / took.as_secs_f64());
                }
            }
            Ok(Some(best))
        }
    }

    fn driver(error: DriverError) -> kernels_core::Error {
        error.into()
    }

    /// Page-locked host memory.
    #[derive(Debug)]
    pub struct Pinned<T> {
        memory: PinnedHostSlice<T>,
        /// The latest copy has.
        arrived: CudaEvent,
    }

    impl<T> Drop for Pinned<T> {
        fn drop(&mut self) {
            // A copy on its way must not find the memory gone. What the device has to say comes elsewhere.
            let _ = self.arrived.synchronize();
        }
    }

    /// A CUDA graph, ready to launch.
    pub struct Graph(CudaGraph);

    impl fmt::Debug for Graph {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Graph")
        }
    }
}

//! Time on the device, by CUDA events.

use crate::device::Device;
use cudarc::driver::{CudaEvent, CudaGraph, CudaSlice, sys};
use kernels_core::Result;
use std::time::Duration;

/// Times work on a device's stream.
#[derive(Debug)]
pub struct Timer<'d> {
    device: &'d Device,
    start: CudaEvent,
    end: CudaEvent,
    flush: Option<CudaSlice<u8>>,
}

impl<'d> Timer<'d> {
    /// A timer on the device's stream.
    pub fn new(device: &'d Device) -> Result<Self> {
        let event = || device.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
        Ok(Timer { device, start: event()?, end: event()?, flush: None })
    }

    /// The time of everything that `body` enqueues, on the device's clock.
    pub fn time(&mut self, body: impl FnOnce() -> Result<()>) -> Result<Duration> {
        self.start.record(&self.device.queue)?;
        body()?;
        self.end.record(&self.device.queue)?;
        self.end.synchronize()?;
        Ok(Duration::from_secs_f64(f64::from(self.start.elapsed_ms(&self.end)?) / 1e3))
    }

    /// The time of one call of `body` with nothing in the L2 cache.
    ///
    /// Includes about a microsecond of launch and event; for kernels of a few microseconds use
    /// [`Timer::rotated`].
    pub fn cold(&mut self, body: impl FnOnce() -> Result<()>) -> Result<Duration> {
        let bytes = 2 * self.device.info.l2_bytes.max(1 << 20);
        let mut flush = match self.flush.take() {
            Some(flush) => flush,
            None => self.device.queue.alloc_zeros(bytes)?,
        };
        self.device.queue.memset_zeros(&mut flush)?;
        self.flush = Some(flush);
        self.time(body)
    }

    /// The time of one node of a graph of `nodes` calls, replayed `replays` times.
    ///
    /// The calls should use different memory, more than the L2 cache holds in all (see [`copies`]): then each
    /// finds its operands in memory, and launch and event costs are spread over the nodes.
    pub fn rotated(&mut self, graph: &CudaGraph, nodes: usize, replays: usize) -> Result<Duration> {
        let replay = || (0..replays).try_for_each(|_| Ok(graph.launch()?));
        Ok(self.time(replay)? / (nodes * replays).max(1) as u32)
    }
}

/// How many copies of operands of `bytes` bytes are needed so that none is found in the L2 cache.
pub fn copies(device: &Device, bytes: usize) -> usize {
    (2 * device.info.l2_bytes).div_ceil(bytes.max(1)).clamp(4, 1024)
}

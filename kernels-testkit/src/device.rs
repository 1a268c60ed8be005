//! The GPU under test, and graph capture on it.

use cudarc::driver::{CudaContext, CudaGraph, CudaStream, sys};
use kernels_core::{DeviceInfo, Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// One CUDA device with one stream, for one test at a time.
#[derive(Debug)]
pub struct Device {
    /// The device's primary context.
    pub context: Arc<CudaContext>,
    /// A stream of its own: the default one cannot be captured.
    pub queue: Arc<CudaStream>,
    /// What plans may know of it.
    pub info: DeviceInfo,
    _alone: MutexGuard<'static, ()>,
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The context of device 0, or why there is none.
fn context() -> Result<(Arc<CudaContext>, DeviceInfo), String> {
    static CONTEXT: OnceLock<Result<(Arc<CudaContext>, DeviceInfo), String>> = OnceLock::new();
    let open = || {
        let (context, info) = DeviceInfo::open(0).map_err(|e| e.to_string())?;
        // SAFETY: every buffer of a test is used on the one stream of its `Device`, which orders the
        // accesses; and nothing has been allocated in this context yet.
        unsafe { context.disable_event_tracking() };
        Ok((context, info))
    };
    CONTEXT.get_or_init(open).clone()
}

impl Device {
    /// Opens device 0 on a new stream; waits while another test uses it.
    pub fn open() -> Result<Device, String> {
        let (context, info) = context()?;
        // A failed test may have panicked with the lock held; the device itself is still good.
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
        context.bind_to_thread().map_err(|e| e.to_string())?;
        let queue = context.new_stream().map_err(|e| e.to_string())?;
        Ok(Device { context, queue, info, _alone: alone })
    }

    /// Why device 0 cannot be used, if so.
    pub fn missing() -> Option<String> {
        context().err()
    }

    /// Records what `body` enqueues on the stream, without running it.
    pub fn capture(&self, body: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
        // Thread-local mode: other tests may allocate meanwhile.
        self.queue.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let outcome = body();
        // The capture is ended whatever happened, or the stream stays unusable.
        let graph = self.queue.end_capture(sys::CUgraphInstantiate_flags(0));
        outcome?;
        graph?
            .ok_or_else(|| Error::invalid("Device::capture", "graph", "empty", "something must be enqueued"))
    }

    /// How many launches and copies a graph holds.
    pub fn nodes(graph: &CudaGraph) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the graph lives as long as the borrow; without an array the call only counts.
        unsafe { sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &mut count) }.result()?;
        Ok(count)
    }
}

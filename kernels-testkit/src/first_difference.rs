//! Where two buffers on the device first differ: for results too large, or too many, to be read back.

use crate::device::Device;
use cudarc::driver::{CudaStream, CudaView, DevicePtr, result, sys};
use kernels_core::{Backend, Cuda, Element, Error, Result};
use std::{ffi::CString, sync::Arc};

/// Compares on one device's stream.
#[derive(Debug)]
pub struct FirstDifference {
    queue: Arc<CudaStream>,
    module: sys::CUmodule,
    kernel: sys::CUfunction,
    blocks: u32,
}

impl FirstDifference {
    /// Loads the kernel, which is PTX: this crate has no other device code and needs no nvcc.
    pub fn new(device: &Device) -> Result<Self> {
        let text = CString::new(include_str!("first_difference.ptx")).expect("a text without zeros");
        let name = CString::new("first_difference").expect("a name without zeros");
        // SAFETY: the image is a text that ends with a zero, and the module outlives the function.
        let (module, kernel) = unsafe {
            let module = result::module::load_data(text.as_ptr().cast())?;
            (module, result::module::get_function(module, name)?)
        };
        let blocks = 8 * device.info.multiprocessors as u32;
        Ok(FirstDifference { queue: device.queue.clone(), module, kernel, blocks })
    }

    /// The index of the first element whose bytes are not the same, if there is one. Waits for the stream.
    pub fn of<T: Element>(&self, a: CudaView<'_, T>, b: CudaView<'_, T>) -> Result<Option<usize>> {
        const OP: &str = "FirstDifference::of";
        if a.len() != b.len() {
            return Err(Error::invalid(OP, "b", b.len(), format!("`a` has {} elements", a.len())));
        }
        let bytes = a.len() * size_of::<T>();
        if !bytes.is_multiple_of(4) {
            return Err(Error::invalid(OP, "bytes", bytes, "whole words of four are compared"));
        }
        let first = Cuda::upload(&self.queue, &[u64::MAX])?;
        let (mut a_at, _a) = a.device_ptr(&self.queue);
        let (mut b_at, _b) = b.device_ptr(&self.queue);
        let (mut first_at, _first) = first.device_ptr(&self.queue);
        let mut words = bytes as u64 / 4;
        let mut arguments = [&mut a_at, &mut b_at, &mut words, &mut first_at].map(|p| (p as *mut u64).cast());
        // SAFETY: the kernel takes these four, and reads `words` words of operands that have them.
        unsafe {
            let (grid, block) = ((self.blocks, 1, 1), (256, 1, 1));
            result::launch_kernel(self.kernel, grid, block, 0, self.queue.cu_stream(), &mut arguments)?;
        }
        let first = Cuda::read(&self.queue, &first, 0..1)?[0];
        Ok((first != u64::MAX).then(|| first as usize * 4 / size_of::<T>()))
    }
}

impl Drop for FirstDifference {
    fn drop(&mut self) {
        // SAFETY: every launch was waited for. A module that stays loaded harms nobody.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

//! The CUDA backend: cudarc's own slices and streams, nothing wrapped.

use crate::{Backend, Buffer, Element, Result};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceSlice};
use std::{ops::Range, sync::Arc};

/// Device memory of one CUDA context; operations are enqueued on a stream of the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuda {}

impl Backend for Cuda {
    type View<'a, T: Element> = CudaView<'a, T>;
    type ViewMut<'a, T: Element> = CudaViewMut<'a, T>;
    type Queue = Arc<CudaStream>;
    type Memory<T: Element> = CudaSlice<T>;

    fn zeros<T: Element>(on: &Self::Queue, len: usize) -> Result<CudaSlice<T>> {
        // CUDA refuses an empty allocation; an empty tensor is legal here.
        Ok(on.alloc_zeros(len.max(1))?)
    }
    fn upload<T: Element>(on: &Self::Queue, data: &[T]) -> Result<CudaSlice<T>> {
        if data.is_empty() { Self::zeros(on, 0) } else { Ok(on.clone_htod(data)?) }
    }
    fn write<T: Element>(on: &Self::Queue, memory: &mut CudaSlice<T>, at: usize, data: &[T]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        Ok(on.memcpy_htod(data, &mut memory.slice_mut(at..at + data.len()))?)
    }
    fn read<T: Element>(on: &Self::Queue, memory: &CudaSlice<T>, range: Range<usize>) -> Result<Vec<T>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let copy = on.clone_dtoh(&memory.slice(range))?;
        on.synchronize()?;
        Ok(copy)
    }
    fn len<T: Element>(memory: &CudaSlice<T>) -> usize {
        DeviceSlice::len(memory)
    }
    fn view<T: Element>(memory: &CudaSlice<T>) -> CudaView<'_, T> {
        memory.as_view()
    }
    fn view_mut<T: Element>(memory: &mut CudaSlice<T>) -> CudaViewMut<'_, T> {
        memory.as_view_mut()
    }
    fn slice<'a: 'a, T: Element>(view: &CudaView<'a, T>, range: Range<usize>) -> CudaView<'a, T> {
        view.slice(range)
    }
    fn shorten<'b, 'a: 'b, T: Element>(view: CudaView<'a, T>) -> CudaView<'b, T> {
        view
    }
    fn slice_mut<'b, T: Element>(
        view: &'b mut CudaViewMut<'_, T>,
        range: Range<usize>,
    ) -> CudaViewMut<'b, T> {
        view.slice_mut(range)
    }
    fn synchronize(on: &Self::Queue) -> Result<()> {
        Ok(on.synchronize()?)
    }
    fn free_memory(on: &Self::Queue) -> Result<Option<usize>> {
        let (free, _) = on.context().mem_get_info()?;
        Ok(Some(free))
    }
}

impl<T> Buffer for CudaView<'_, T> {
    fn len(&self) -> usize {
        DeviceSlice::len(self)
    }
}
impl<T> Buffer for CudaViewMut<'_, T> {
    fn len(&self) -> usize {
        DeviceSlice::len(self)
    }
}

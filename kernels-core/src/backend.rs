//! Where operands live and what operations are enqueued on.

use crate::{Element, Result};
use std::{fmt::Debug, ops::Range};

/// A place where kernels run.
///
/// Operations take borrowed views, so a caller may keep its memory in anything that can lend one;
/// [`Backend::Memory`] and the functions here are the plain owned buffer that tests, examples and the
/// engine use.
pub trait Backend: Sized + Debug + 'static {
    /// A read-only view of elements.
    type View<'a, T: Element>: Buffer + Debug;
    /// An exclusive view of elements.
    type ViewMut<'a, T: Element>: Buffer + Debug;
    /// What work is enqueued on, in order.
    type Queue: Clone + Debug;
    /// An owned buffer.
    type Memory<T: Element>: Debug;

    /// A buffer of `len` zeros.
    fn zeros<T: Element>(on: &Self::Queue, len: usize) -> Result<Self::Memory<T>>;
    /// A buffer with a copy of `data`.
    fn upload<T: Element>(on: &Self::Queue, data: &[T]) -> Result<Self::Memory<T>>;
    /// Overwrites the elements of `memory` from `at` on with `data`, ordered on the queue.
    fn write<T: Element>(on: &Self::Queue, memory: &mut Self::Memory<T>, at: usize, data: &[T])
    -> Result<()>;
    /// A copy of the elements `range` of `memory`; waits for the queue.
    fn read<T: Element>(on: &Self::Queue, memory: &Self::Memory<T>, range: Range<usize>) -> Result<Vec<T>>;
    /// The number of elements of `memory`.
    fn len<T: Element>(memory: &Self::Memory<T>) -> usize;
    /// Lends all of `memory`.
    fn view<T: Element>(memory: &Self::Memory<T>) -> Self::View<'_, T>;
    /// Lends all of `memory` exclusively.
    fn view_mut<T: Element>(memory: &mut Self::Memory<T>) -> Self::ViewMut<'_, T>;

    /// A part of a view; `range` must lie inside it.
    fn slice<'a, T: Element>(view: &Self::View<'a, T>, range: Range<usize>) -> Self::View<'a, T>;
    /// The same view for a shorter time. (Generic code cannot shorten lifetimes by itself: for all it knows
    /// a backend's view could be one that must not be.)
    fn shorten<'b, 'a: 'b, T: Element>(view: Self::View<'a, T>) -> Self::View<'b, T>;
    /// Lends a part of an exclusive view, for as long as the view is borrowed.
    fn slice_mut<'b, T: Element>(
        view: &'b mut Self::ViewMut<'_, T>,
        range: Range<usize>,
    ) -> Self::ViewMut<'b, T>;

    /// Waits until everything enqueued so far is done.
    fn synchronize(on: &Self::Queue) -> Result<()>;
    /// Bytes that nobody has, where the backend can tell.
    fn free_memory(on: &Self::Queue) -> Result<Option<usize>>;
}

/// Anything with a number of elements.
pub trait Buffer {
    /// The number of elements.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Host memory; operations run when called, on the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpu {}

impl Backend for Cpu {
    type View<'a, T: Element> = &'a [T];
    type ViewMut<'a, T: Element> = &'a mut [T];
    type Queue = ();
    type Memory<T: Element> = Vec<T>;

    fn zeros<T: Element>((): &(), len: usize) -> Result<Vec<T>> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(len).map_err(|_| crate::Error::OutOfMemory {
            op: "Cpu::zeros",
            bytes: len.saturating_mul(size_of::<T>()),
        })?;
        memory.resize(len, T::default());
        Ok(memory)
    }
    fn upload<T: Element>((): &(), data: &[T]) -> Result<Vec<T>> {
        Ok(data.to_vec())
    }
    fn write<T: Element>((): &(), memory: &mut Vec<T>, at: usize, data: &[T]) -> Result<()> {
        memory[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn read<T: Element>((): &(), memory: &Vec<T>, range: Range<usize>) -> Result<Vec<T>> {
        Ok(memory[range].to_vec())
    }
    fn len<T: Element>(memory: &Vec<T>) -> usize {
        memory.len()
    }
    fn view<T: Element>(memory: &Vec<T>) -> &[T] {
        memory
    }
    fn view_mut<T: Element>(memory: &mut Vec<T>) -> &mut [T] {
        memory
    }
    fn slice<'a: 'a, T: Element>(view: &&'a [T], range: Range<usize>) -> &'a [T] {
        &view[range]
    }
    fn shorten<'b, 'a: 'b, T: Element>(view: &'a [T]) -> &'b [T] {
        view
    }
    fn slice_mut<'b, T: Element>(view: &'b mut &mut [T], range: Range<usize>) -> &'b mut [T] {
        &mut view[range]
    }
    fn synchronize((): &()) -> Result<()> {
        Ok(())
    }
    fn free_memory((): &()) -> Result<Option<usize>> {
        Ok(None)
    }
}

impl<T> Buffer for &[T] {
    fn len(&self) -> usize {
        <[T]>::len(self)
    }
}
impl<T> Buffer for &mut [T] {
    fn len(&self) -> usize {
        <[T]>::len(self)
    }
}

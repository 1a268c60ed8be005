//! Borrowed, typed, strided views: what every `Args` is made of.

use crate::{Backend, Buffer, Cpu, Element, Error, Result};
use std::ops::Range;

/// A read-only view of `R` axes; the last axis is contiguous.
#[derive(Debug)]
pub struct Tensor<'a, B: Backend, T: Element, const R: usize> {
    /// The elements, from index zero of every axis on.
    pub data: B::View<'a, T>,
    /// The number of indices of each axis.
    pub dims: [usize; R],
    /// Elements between neighbours of each axis.
    pub strides: [usize; R],
}

/// An exclusive view of `R` axes; the last axis is contiguous.
#[derive(Debug)]
pub struct TensorMut<'a, B: Backend, T: Element, const R: usize> {
    /// The elements, from index zero of every axis on.
    pub data: B::ViewMut<'a, T>,
    /// The number of indices of each axis.
    pub dims: [usize; R],
    /// Elements between neighbours of each axis.
    pub strides: [usize; R],
}

/// The strides of a row-major tensor without gaps.
pub const fn packed<const R: usize>(dims: [usize; R]) -> [usize; R] {
    let mut strides = [1; R];
    let mut axis = R;
    while axis > 1 {
        axis -= 1;
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

/// Elements from the first to the last one addressed, or `None` if that overflows.
fn span<const R: usize>(dims: &[usize; R], strides: &[usize; R]) -> Option<usize> {
    if dims.contains(&0) {
        return Some(0);
    }
    dims.iter()
        .zip(strides)
        .try_fold(1usize, |sum, (d, s)| (d - 1).checked_mul(*s).and_then(|x| sum.checked_add(x)))
}

macro_rules! common {
    ($name:ident, $view:ident) => {
        impl<'a, B: Backend, T: Element, const R: usize> $name<'a, B, T, R> {
            /// A packed tensor over `data`.
            pub fn new(data: B::$view<'a, T>, dims: [usize; R]) -> Self {
                Self { data, dims, strides: packed(dims) }
            }

            /// The same elements under other strides (in elements).
            pub fn with_strides(mut self, strides: [usize; R]) -> Self {
                self.strides = strides;
                self
            }

            /// Checks dimensions, strides and bounds; the words name the argument.
            pub fn check(&self, op: &'static str, arg: &'static str, want: [usize; R]) -> Result<()> {
                if self.dims != want {
                    return Err(Error::Shape { op, arg, got: self.dims.to_vec(), want: want.to_vec() });
                }
                if R > 0 && self.dims[R - 1] > 1 && self.strides[R - 1] != 1 {
                    let want = "the last axis must be contiguous";
                    return Err(Error::Stride { op, arg, got: self.strides.to_vec(), want });
                }
                let have = self.data.len();
                let need = span(&self.dims, &self.strides).unwrap_or(usize::MAX);
                if need > have {
                    return Err(Error::Bounds { op, arg, need, have });
                }
                Ok(())
            }

            fn offset(&self, index: &[usize]) -> usize {
                index.iter().zip(&self.strides).map(|(i, s)| i * s).sum()
            }
        }
    };
}
common!(Tensor, View);
common!(TensorMut, ViewMut);

impl<B: Backend, T: Element, const R: usize> TensorMut<'_, B, T, R> {
    /// Two indices of the outer axis never share elements: needed wherever rows are written.
    pub fn check_disjoint(&self, op: &'static str, arg: &'static str) -> Result<()> {
        let disjoint = (1..R).all(|axis| {
            let inner = span(
                &std::array::from_fn::<_, R, _>(|i| if i < axis { 1 } else { self.dims[i] }),
                &self.strides,
            );
            self.dims[axis - 1] <= 1 || inner.is_some_and(|inner| self.strides[axis - 1] >= inner)
        });
        if disjoint {
            return Ok(());
        }
        let want = "an outer stride must span the inner axes, or rows overlap";
        Err(Error::Stride { op, arg, got: self.strides.to_vec(), want })
    }
}

impl<B: Backend, T: Element, const R: usize> Clone for Tensor<'_, B, T, R> {
    fn clone(&self) -> Self {
        let data = B::slice(&self.data, 0..self.data.len());
        Self { data, dims: self.dims, strides: self.strides }
    }
}

impl<'a, B: Backend, T: Element, const R: usize> Tensor<'a, B, T, R> {
    /// A packed tensor over all of `memory`.
    pub fn of(memory: &'a B::Memory<T>, dims: [usize; R]) -> Self {
        Self::new(B::view(memory), dims)
    }

    /// Lends the tensor again, for a shorter time: generic code needs that to put tensors of different
    /// owners into one `Args`.
    pub fn reborrow(&self) -> Tensor<'_, B, T, R> {
        let data = B::shorten(B::slice(&self.data, 0..self.data.len()));
        Tensor { data, dims: self.dims, strides: self.strides }
    }
}

impl<'a, B: Backend, T: Element, const R: usize> TensorMut<'a, B, T, R> {
    /// A packed tensor over all of `memory`.
    pub fn of(memory: &'a mut B::Memory<T>, dims: [usize; R]) -> Self {
        Self::new(B::view_mut(memory), dims)
    }

    /// Lends the tensor again, for a shorter time.
    pub fn reborrow(&mut self) -> TensorMut<'_, B, T, R> {
        let len = self.data.len();
        TensorMut { data: B::slice_mut(&mut self.data, 0..len), dims: self.dims, strides: self.strides }
    }
}

impl<'a, B: Backend, T: Element> Tensor<'a, B, T, 2> {
    /// Some columns of every row.
    pub fn columns(&self, range: Range<usize>) -> Tensor<'a, B, T, 2> {
        let data = B::slice(&self.data, range.start.min(self.data.len())..self.data.len());
        Tensor { data, dims: [self.dims[0], range.len()], strides: self.strides }
    }

    /// Some of the rows.
    pub fn rows(&self, range: Range<usize>) -> Tensor<'a, B, T, 2> {
        let from = (range.start * self.strides[0]).min(self.data.len());
        let data = B::slice(&self.data, from..self.data.len());
        Tensor { data, dims: [range.len(), self.dims[1]], strides: self.strides }
    }

    /// Every row as `heads` equal parts.
    pub fn heads(&self, heads: usize) -> Tensor<'a, B, T, 3> {
        let width = self.dims[1] / heads;
        let data = B::slice(&self.data, 0..self.data.len());
        Tensor { data, dims: [self.dims[0], heads, width], strides: [self.strides[0], width, 1] }
    }
}

impl<'a, T: Element, const R: usize> Tensor<'a, Cpu, T, R> {
    /// The contiguous last axis at the given outer indices.
    pub fn row(&self, index: &[usize]) -> &'a [T] {
        debug_assert_eq!(index.len() + 1, R);
        let at = self.offset(index);
        &self.data[at..at + self.dims[R - 1]]
    }
    /// One element.
    pub fn at(&self, index: [usize; R]) -> T {
        self.data[self.offset(&index)]
    }
}

impl<T: Element, const R: usize> TensorMut<'_, Cpu, T, R> {
    /// The contiguous last axis at the given outer indices.
    pub fn row(&self, index: &[usize]) -> &[T] {
        debug_assert_eq!(index.len() + 1, R);
        let at = self.offset(index);
        &self.data[at..at + self.dims[R - 1]]
    }
    /// The contiguous last axis at the given outer indices, to write.
    pub fn row_mut(&mut self, index: &[usize]) -> &mut [T] {
        debug_assert_eq!(index.len() + 1, R);
        let at = self.offset(index);
        &mut self.data[at..at + self.dims[R - 1]]
    }
    /// One element.
    pub fn at(&self, index: [usize; R]) -> T {
        self.data[self.offset(&index)]
    }
    /// Writes one element.
    pub fn set(&mut self, index: [usize; R], value: T) {
        let at = self.offset(&index);
        self.data[at] = value;
    }
}

//! Memory that operations need only while they run.

use crate::Result;
use kernels_core::{Backend, Element, Tensor, TensorMut};

/// Memory that grows to what the largest plan wants; zeros where it is new.
///
/// Operations that may share one are enqueued one after the other.
#[derive(Debug)]
pub struct Workspace<B: Backend, T: Element = u8> {
    /// Nothing before the first plan that wants some: backends without workspaces never do.
    memory: Option<B::Memory<T>>,
    len: usize,
    /// How often it has moved.
    moves: u64,
}

impl<B: Backend, T: Element> Default for Workspace<B, T> {
    fn default() -> Self {
        Workspace { memory: None, len: 0, moves: 0 }
    }
}

impl<B: Backend, T: Element> Workspace<B, T> {
    /// The first `len` elements, for an operation to write; `None` if that is none.
    pub fn lend(&mut self, on: &B::Queue, len: usize) -> Result<Option<TensorMut<'_, B, T, 1>>> {
        if len > self.len {
            self.memory = Some(B::zeros(on, len)?);
            self.len = len;
            self.moves += 1;
        }
        let memory = self.memory.as_mut().filter(|_| len > 0);
        Ok(memory.map(|memory| TensorMut::of(memory, [len])))
    }

    /// The first `len` elements, as they were left.
    pub fn left(&self, len: usize) -> Option<Tensor<'_, B, T, 1>> {
        let memory = self.memory.as_ref().filter(|_| len > 0);
        memory.map(|memory| Tensor::of(memory, [len]))
    }
}

/// The workspaces of a model's operations.
#[derive(Debug)]
pub struct Workspaces<B: Backend> {
    /// Of linear layers, heads and mixtures, which find words as they left them: nobody else writes here.
    pub dense: Workspace<B>,
    /// Of attention and sampling, which find and leave anything.
    pub other: Workspace<B>,
    /// The list of what attention's thread blocks do, of a pass and all its layers.
    pub work: Workspace<B, i32>,
}

impl<B: Backend> Workspaces<B> {
    /// Another number whenever any of them has moved: what was recorded before then writes to memory that is
    /// gone.
    pub fn moves(&self) -> u64 {
        self.dense.moves + self.other.moves + self.work.moves
    }
}

impl<B: Backend> Default for Workspaces<B> {
    fn default() -> Self {
        Workspaces { dense: Workspace::default(), other: Workspace::default(), work: Workspace::default() }
    }
}

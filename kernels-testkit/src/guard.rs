//! Poison and canaries: memory that shows what was read or written out of turn.

use kernels_core::{Activation, Backend, Element};
use std::{marker::PhantomData, ops::Range};

/// A NaN that no operation produces by itself, so that it is recognised where it turns up.
pub fn poison<A: Activation>() -> A {
    A::from_f32(f32::from_bits(0x7fe5_0000))
}

/// Elements of canary on each side: 256 bytes of bf16, so that the payload keeps its alignment.
const MARGIN: usize = 128;

/// A buffer between two strips of canaries.
#[derive(Debug)]
pub struct Guarded<B: Backend, T: Element> {
    memory: B::Memory<T>,
    canary: T,
    len: usize,
    backend: PhantomData<B>,
}

impl<B: Backend, T: Element> Guarded<B, T> {
    /// Holds `data`, between strips of `canary`.
    pub fn new(on: &B::Queue, data: &[T], canary: T) -> Self {
        let mut all = vec![canary; data.len() + 2 * MARGIN];
        all[MARGIN..MARGIN + data.len()].copy_from_slice(data);
        let memory = B::upload(on, &all).expect("the test's memory fits");
        Guarded { memory, canary, len: data.len(), backend: PhantomData }
    }

    /// The payload, to read.
    pub fn view(&self) -> B::View<'_, T> {
        B::slice(&B::view(&self.memory), MARGIN..MARGIN + self.len)
    }

    /// Overwrites part of the payload, in the order of the queue.
    pub fn write(&mut self, on: &B::Queue, at: usize, data: &[T]) {
        assert!(at + data.len() <= self.len, "the write stays inside the payload");
        B::write(on, &mut self.memory, MARGIN + at, data).expect("writing the test's memory");
    }

    /// All of the memory, canaries too; the payload is [`Guarded::payload`] of it.
    pub fn whole_mut(&mut self) -> B::ViewMut<'_, T> {
        B::view_mut(&mut self.memory)
    }

    /// Where the payload lies in [`Guarded::whole_mut`].
    pub fn payload(&self) -> Range<usize> {
        MARGIN..MARGIN + self.len
    }

    /// A copy of the payload; panics if a canary was overwritten.
    #[track_caller]
    pub fn read(&self, on: &B::Queue) -> Vec<T> {
        let all = B::read(on, &self.memory, 0..self.len + 2 * MARGIN).expect("reading the test's memory");
        let alive = |strip: &[T]| strip.iter().all(|x| bytes(x) == bytes(&self.canary));
        assert!(alive(&all[..MARGIN]), "something was written before the start of a buffer");
        assert!(alive(&all[MARGIN + self.len..]), "something was written past the end of a buffer");
        all[MARGIN..MARGIN + self.len].to_vec()
    }
}

fn bytes<T: Element>(x: &T) -> &[u8] {
    bytemuck::bytes_of(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_core::{Cpu, bf16};

    #[test]
    fn canaries_die_when_written_past_the_end() {
        let mut guarded = Guarded::<Cpu, bf16>::new(&(), &[bf16::ONE; 3], poison());
        let payload = guarded.payload();
        guarded.whole_mut()[payload].fill(bf16::ZERO);
        assert_eq!(guarded.read(&()), [bf16::ZERO; 3]);
        guarded.memory[MARGIN + 3] = bf16::ZERO;
        assert!(std::panic::catch_unwind(|| guarded.read(&())).is_err());
    }

    #[test]
    fn poison_is_a_nan_in_every_type() {
        assert!(
            poison::<f32>().is_nan() && poison::<bf16>().is_nan() && poison::<kernels_core::f16>().is_nan()
        );
    }
}

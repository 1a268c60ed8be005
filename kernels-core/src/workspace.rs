//! Memory an operation needs only while it runs: sized by its plan, owned by the caller.

use crate::{Backend, Buffer, Element, Error, Result};
use std::ops::Range;

/// Every region begins at a multiple of this, as device allocations do.
const ALIGNMENT: usize = 256;

/// Where the temporaries of an operation lie in its workspace: a pure function of the problem, so that a
/// plan can say how many bytes it needs before any memory is there.
///
/// ```
/// use kernels_core::workspace::Layout;
/// let mut layout = Layout::default();
/// let sums = layout.add::<f32>(100);
/// let flags = layout.add::<u8>(3);
/// assert_eq!((sums, flags), (0..400, 512..515));
/// assert_eq!(layout.bytes(), 515);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    end: usize,
}

impl Layout {
    /// Appends room for `len` elements and returns its bytes.
    ///
    /// # Panics
    /// If the sizes add up to more than an address space: a plan bounds its problem before.
    pub fn add<T: Element>(&mut self, len: usize) -> Range<usize> {
        let start = self.end.next_multiple_of(ALIGNMENT);
        let end = len.checked_mul(size_of::<T>()).and_then(|bytes| start.checked_add(bytes));
        self.end = end.expect("a plan bounds its problem before it lays out memory");
        start..self.end
    }

    /// Bytes of the whole workspace.
    pub fn bytes(&self) -> usize {
        self.end
    }

    /// Checks that `workspace` holds the layout. Its contents may be anything before and after a run.
    pub fn check<'a, B: Backend>(&self, op: &'static str, workspace: &B::ViewMut<'a, u8>) -> Result<()> {
        let (need, have) = (self.bytes(), workspace.len());
        if need > have {
            return Err(Error::Bounds { op, arg: "workspace", need, have });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cpu;

    #[test]
    fn too_small_a_workspace_is_named() {
        let mut layout = Layout::default();
        layout.add::<u64>(4);
        let mut memory = [0u8; 31];
        let error = layout.check::<Cpu>("attn::verify", &&mut memory[..]).unwrap_err();
        assert_eq!(error.to_string(), "attn::verify: `workspace` needs 32 elements, its buffer holds 31");
        layout.check::<Cpu>("attn::verify", &&mut [0u8; 32][..]).unwrap();
    }
}

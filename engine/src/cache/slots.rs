//! Which slots are free.

/// Hands out slot numbers; a slot holds one live sequence.
#[derive(Clone, Debug)]
pub struct Slots {
    free: Vec<usize>,
    total: usize,
}

impl Slots {
    /// All slots are free.
    pub fn new(slots: usize) -> Self {
        Slots { free: (0..slots).rev().collect(), total: slots }
    }

    /// Slots that can be taken now.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Slots that can ever be taken.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Takes a slot.
    pub fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    /// Gives a slot back. It must have been taken and not yet given back.
    pub fn give(&mut self, slot: usize) {
        debug_assert!(slot < self.total && !self.free.contains(&slot), "slot freed twice");
        self.free.push(slot);
    }
}

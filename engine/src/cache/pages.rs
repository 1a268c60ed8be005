//! Which K/V pages are free.

/// Hands out page numbers. Page 0 is the trash page: unused page-table entries name it, so that a tile
/// load past a sequence's end reads something harmless; it is never lent.
#[derive(Clone, Debug)]
pub struct Pages {
    free: Vec<u32>,
    total: usize,
}

impl Pages {
    /// All pages but the trash page are free.
    pub fn new(pages: usize) -> Self {
        // Popped from the end: low numbers first, so that a lightly used pool stays compact.
        let free = (1..pages as u32).rev().collect();
        Pages { free, total: pages.saturating_sub(1) }
    }

    /// Pages that can be taken now.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Pages that can ever be taken.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Takes `n` pages, or none at all.
    pub fn take(&mut self, n: usize) -> Option<Vec<u32>> {
        let at = self.free.len().checked_sub(n)?;
        let mut pages = self.free.split_off(at);
        pages.reverse();
        Some(pages)
    }

    /// Gives pages back. Each must have been taken and not yet given back.
    pub fn give(&mut self, pages: Vec<u32>) {
        debug_assert!(pages.iter().all(|p| *p != 0 && !self.free.contains(p)), "page freed twice");
        self.free.extend(pages.into_iter().rev());
        debug_assert!(self.free.len() <= self.total);
    }
}

#[cfg(test)]
mod tests {
    use super::Pages;

    #[test]
    fn all_or_nothing_and_never_the_trash_page() {
        let mut pages = Pages::new(4);
        assert_eq!(pages.total(), 3);
        assert_eq!(pages.take(4), None);
        let taken = pages.take(2).unwrap();
        assert_eq!(taken, [1, 2]);
        assert_eq!(pages.available(), 1);
        pages.give(taken);
        let mut all = pages.take(3).unwrap();
        all.sort();
        assert_eq!(all, [1, 2, 3]);
        assert_eq!(pages.take(0), Some(vec![]));
        assert_eq!(Pages::new(0).total(), 0);
    }
}

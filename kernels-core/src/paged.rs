//! Paged K/V memory: a pool of pages per layer, and a table that names a slot's pages.

use crate::{Activation, Backend, Buffer, Cpu, Error, Result, Tensor};

/// `[slots, max_pages]`: the page that holds a slot's positions `i * page_rows..`; unused entries must
/// name some existing page, so that a tile load past the end is harmless.
pub type PageTable<'a, B> = Tensor<'a, B, i32, 2>;

/// Elements between neighbours along each axis of a pool; `head_dim` is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvStrides {
    /// Between pages.
    pub page: usize,
    /// From a page's keys to its values.
    pub kv: usize,
    /// Between K/V heads.
    pub head: usize,
    /// Between rows of a page.
    pub row: usize,
}

macro_rules! pool {
    ($(#[$doc:meta])* $name:ident, $view:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'a, B: Backend, A: Activation> {
            /// All pages of one layer.
            pub data: B::$view<'a, A>,
            /// How many there are.
            pub pages: usize,
            /// K/V heads.
            pub kv_heads: usize,
            /// Rows (tokens) of a page.
            pub page_rows: usize,
            /// Elements of a head.
            pub head_dim: usize,
            /// Where they lie.
            pub strides: KvStrides,
        }

        impl<'a, B: Backend, A: Activation> $name<'a, B, A> {
            /// The default layout, `[pages, 2 (k, v), kv_heads, page_rows, head_dim]` without gaps.
            pub fn packed(
                data: B::$view<'a, A>,
                pages: usize,
                kv_heads: usize,
                page_rows: usize,
                head_dim: usize,
            ) -> Self {
                let head = page_rows * head_dim;
                let kv = kv_heads * head;
                let strides = KvStrides { page: 2 * kv, kv, head, row: head_dim };
                Self { data, pages, kv_heads, page_rows, head_dim, strides }
            }

            /// Checks sizes and that the last element lies inside the buffer.
            pub fn check(
                &self,
                op: &'static str,
                arg: &'static str,
                kv_heads: usize,
                head_dim: usize,
            ) -> Result<()> {
                let (got, want) = ([self.kv_heads, self.head_dim], [kv_heads, head_dim]);
                if got != want {
                    return Err(Error::Shape { op, arg, got: got.to_vec(), want: want.to_vec() });
                }
                if self.page_rows == 0 {
                    return Err(Error::invalid(op, "page_rows", 0, "a page holds at least one row"));
                }
                let s = self.strides;
                let last = [
                    (self.pages.saturating_sub(1), s.page),
                    (1, s.kv),
                    (self.kv_heads.saturating_sub(1), s.head),
                    (self.page_rows - 1, s.row),
                ];
                let need = last
                    .iter()
                    .try_fold(self.head_dim, |sum, (n, s)| n.checked_mul(*s).and_then(|x| sum.checked_add(x)))
                    .unwrap_or(usize::MAX);
                let have = self.data.len();
                if self.pages > 0 && need > have {
                    return Err(Error::Bounds { op, arg, need, have });
                }
                Ok(())
            }

            fn at(&self, page: usize, kv: usize, head: usize, row: usize) -> std::ops::Range<usize> {
                let s = self.strides;
                let at = page * s.page + kv * s.kv + head * s.head + row * s.row;
                at..at + self.head_dim
            }
        }
    };
}
pool!(
    /// A layer's keys and values, to read.
    KvPool,
    View
);
pool!(
    /// A layer's keys and values, to write.
    KvPoolMut,
    ViewMut
);

impl<'a, A: Activation> KvPool<'a, Cpu, A> {
    /// A token's key of one head.
    pub fn key(&self, page: usize, head: usize, row: usize) -> &'a [A] {
        &self.data[self.at(page, 0, head, row)]
    }
    /// A token's value of one head.
    pub fn value(&self, page: usize, head: usize, row: usize) -> &'a [A] {
        &self.data[self.at(page, 1, head, row)]
    }
}

impl<A: Activation> KvPoolMut<'_, Cpu, A> {
    /// A token's key of one head, to write.
    pub fn key_mut(&mut self, page: usize, head: usize, row: usize) -> &mut [A] {
        let at = self.at(page, 0, head, row);
        &mut self.data[at]
    }
    /// A token's value of one head, to write.
    pub fn value_mut(&mut self, page: usize, head: usize, row: usize) -> &mut [A] {
        let at = self.at(page, 1, head, row);
        &mut self.data[at]
    }
}

//! The memories of all sequences, addressed by absolute position (docs/caches.md).
//!
//! Nothing here computes: it allocates, lends views, and hands out pages and slots.

mod pages;
mod slots;

pub use pages::Pages;
pub use slots::Slots;

use crate::{Error, Result, config::Config};
use kernels_core::{
    Activation, Backend, KvPool, KvPoolMut, rope,
    slots::{conv_ring_rows, journal_rows},
};
use kernels_spec::SlotTable;

/// How much an engine may hold. All of it is allocated once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that can be live at once.
    pub slots: usize,
    /// The longest sequence, prompt included.
    pub positions: usize,
    /// Tokens of a K/V page.
    pub page_rows: usize,
    /// K/V pages of the pool that all sequences share.
    pub pages: usize,
    /// The most drafts verified in one round.
    pub max_drafts: usize,
    /// A round folds the GDN journal into the state when more than this many tokens are pending.
    pub flush_after: usize,
    /// The most prompt tokens one prefill pass takes, over all its sequences.
    pub prefill_rows: usize,
    /// Whether memory for a draft head is needed.
    pub draft_head: bool,
}

impl Limits {
    /// Rows a sequence may have in one decode round.
    pub fn max_rows(&self) -> usize {
        self.max_drafts + 1
    }

    /// Rows of the largest decode round, and of logits.
    pub fn decode_rows(&self) -> usize {
        self.slots.saturating_mul(self.max_rows())
    }

    /// Rows of the largest pass. The draft head may be behind by what the hidden ring holds, on top of the target's
    /// pass just made.
    pub fn pass_rows(&self) -> usize {
        let behind = if self.draft_head { self.slots.saturating_mul(self.hidden_rows()) } else { 0 };
        self.decode_rows().max(self.prefill_rows).saturating_add(behind)
    }

    /// Pages that a sequence of `positions` tokens occupies.
    pub fn pages_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.page_rows)
    }

    /// Rows of the hidden ring: the draft head may fall this far behind in plain rounds.
    pub fn hidden_rows(&self) -> usize {
        HIDDEN_CATCH_UP + self.max_rows()
    }

    /// Refuses what cannot work, by name.
    pub fn check(&self) -> Result<()> {
        let positive = [
            ("slots", self.slots),
            ("positions", self.positions),
            ("page_rows", self.page_rows),
            ("pages", self.pages),
            ("prefill_rows", self.prefill_rows),
        ];
        for (name, value) in positive {
            if value == 0 {
                return Err(Error::limit(name, value, "give at least 1"));
            }
            if i32::try_from(value).is_err() {
                return Err(Error::limit(name, value, format!("give at most {}", i32::MAX)));
            }
        }
        if self.max_drafts > MAX_DRAFTS {
            return Err(Error::limit("max_drafts", self.max_drafts, format!("give at most {MAX_DRAFTS}")));
        }
        if self.flush_after > MAX_FLUSH_AFTER {
            let remedy =
                format!("give at most {MAX_FLUSH_AFTER}: every pending token is replayed each round");
            return Err(Error::limit("flush_after", self.flush_after, remedy));
        }
        Ok(())
    }
}

/// The most drafts a round can verify: attention kernels take up to 16 rows of a sequence.
pub const MAX_DRAFTS: usize = 15;
/// Beyond this a longer journal cannot pay: replay costs arithmetic in every round.
pub const MAX_FLUSH_AFTER: usize = 64;
/// Plain rounds the draft head may skip before it has to catch up.
const HIDDEN_CATCH_UP: usize = 48;

/// K/V pages of one layer.
#[derive(Debug)]
pub struct Pool<B: Backend, A: Activation> {
    /// `[pages, 2, kv_heads, page_rows, head_dim]`
    data: B::Memory<A>,
    pages: usize,
    kv_heads: usize,
    page_rows: usize,
    head_dim: usize,
}

impl<B: Backend, A: Activation> Pool<B, A> {
    pub(crate) fn new(on: &B::Queue, c: &Config, limits: &Limits) -> Result<Self> {
        let (pages, page_rows) = (limits.pages, limits.page_rows);
        let len = pages * 2 * c.kv_heads * page_rows * c.head_dim;
        Ok(Pool { data: B::zeros(on, len)?, pages, kv_heads: c.kv_heads, page_rows, head_dim: c.head_dim })
    }

    /// To read.
    pub fn view(&self) -> KvPool<'_, B, A> {
        KvPool::packed(B::view(&self.data), self.pages, self.kv_heads, self.page_rows, self.head_dim)
    }

    /// A copy of the first `rows` keys (`kv` 0) or values (1) of one head of a page.
    pub(crate) fn read(
        &self,
        on: &B::Queue,
        page: usize,
        kv: usize,
        head: usize,
        rows: usize,
    ) -> Result<Vec<A>> {
        let first = ((page * 2 + kv) * self.kv_heads + head) * self.page_rows * self.head_dim;
        Ok(B::read(on, &self.data, first..first + rows * self.head_dim)?)
    }

    /// To write.
    pub fn view_mut(&mut self) -> KvPoolMut<'_, B, A> {
        let data = B::view_mut(&mut self.data);
        KvPoolMut::packed(data, self.pages, self.kv_heads, self.page_rows, self.head_dim)
    }
}

/// What one GDN layer remembers.
#[derive(Debug)]
pub struct Recurrent<B: Backend, A: Activation> {
    /// `[slots, ring_rows, channels]`: raw conv inputs of position p at row `p % ring_rows`.
    pub ring: B::Memory<A>,
    /// Rows of the conv ring.
    pub ring_rows: usize,
    /// `[slots, v_heads, v_dim, k_dim]`: the state after `folded` tokens.
    pub state: B::Memory<f32>,
    /// `[slots, journal_rows, journal_stride]`: raw k, v, a, b of position p at row `p % journal_rows`.
    pub journal: B::Memory<A>,
    /// Rows of the journal.
    pub journal_rows: usize,
    /// The flush rule's parameter.
    pub flush_after: usize,
}

impl<B: Backend, A: Activation> Recurrent<B, A> {
    fn new(on: &B::Queue, c: &Config, limits: &Limits) -> Result<Self> {
        let (g, slots) = (&c.gdn, limits.slots);
        let ring_rows = conv_ring_rows(g.conv_width, limits.max_rows());
        let journal_rows = journal_rows(limits.flush_after, limits.max_rows());
        Ok(Recurrent {
            ring: B::zeros(on, slots * ring_rows * g.conv_channels())?,
            ring_rows,
            state: B::zeros(on, slots * g.v_width() * g.k_dim)?,
            journal: B::zeros(on, slots * journal_rows * g.journal_stride())?,
            journal_rows,
            flush_after: limits.flush_after,
        })
    }
}

/// What every layer reads or marks.
#[derive(Debug)]
pub struct Shared<B: Backend> {
    /// Slots of all memories.
    pub slots: usize,
    /// Columns of the page table.
    pub max_pages: usize,
    /// Rows of the rotary table.
    pub positions: usize,
    /// `[positions, rotary]`
    pub rope: B::Memory<f32>,
    /// `[slots, max_pages]`; entries without a page name page 0, which is never lent to a sequence.
    pub page_table: B::Memory<i32>,
    /// Token ids, counters and fault words of all slots.
    pub table: SlotTable<B>,
}

/// All memories of all sequences.
#[derive(Debug)]
pub struct Caches<B: Backend, A: Activation> {
    /// One for each full-attention layer, in order.
    pub pools: Vec<Pool<B, A>>,
    /// The draft head's K/V; its row p is made from the hidden of p - 1 and token p. Same page table.
    pub draft_pool: Option<Pool<B, A>>,
    /// One for each GDN layer, in order.
    pub recurrent: Vec<Recurrent<B, A>>,
    /// `[slots, hidden_rows, hidden]`: the target's post-norm hidden rows, for the draft head to catch up.
    pub hidden: B::Memory<A>,
    /// What all layers share.
    pub shared: Shared<B>,
}

impl<B: Backend, A: Activation> Caches<B, A> {
    /// Allocates everything.
    pub fn new(on: &B::Queue, c: &Config, limits: &Limits) -> Result<Self> {
        limits.check()?;
        let plan = MemoryPlan::of(c, limits, size_of::<A>());
        if plan.total() > isize::MAX as usize {
            let Limits { slots, positions, pages, page_rows, .. } = limits;
            let got = format!("{pages} of {page_rows} tokens, for {slots} slots of {positions} positions");
            let remedy = "that is more than memory can be addressed; lower what is far too large";
            return Err(Error::limit("pages", got, remedy));
        }
        let count = |kind| c.count(kind);
        let max_pages = limits.pages_for(limits.positions);
        let pool = || Pool::new(on, c, limits);
        let hidden_len = if limits.draft_head { limits.slots * limits.hidden_rows() * c.hidden } else { 0 };
        Ok(Caches {
            pools: (0..count(crate::config::LayerKind::Full)).map(|_| pool()).collect::<Result<_>>()?,
            draft_pool: limits.draft_head.then(pool).transpose()?,
            recurrent: (0..count(crate::config::LayerKind::Linear))
                .map(|_| Recurrent::new(on, c, limits))
                .collect::<Result<_>>()?,
            hidden: B::zeros(on, hidden_len)?,
            shared: Shared {
                slots: limits.slots,
                max_pages,
                positions: limits.positions,
                rope: B::upload(on, &rope::table(c.rope_theta, c.rotary_dim, limits.positions))?,
                page_table: B::zeros(on, limits.slots * max_pages)?,
                table: SlotTable::new(on, limits.slots, limits.positions)?,
            },
        })
    }
}

/// Bytes each kind of memory takes: what `inspect` prints and what an out-of-memory error names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// K/V pages of all attention layers, the draft's included.
    pub kv: usize,
    /// GDN states.
    pub state: usize,
    /// GDN journals.
    pub journal: usize,
    /// Conv rings.
    pub conv: usize,
    /// Hidden rows kept for the draft head.
    pub hidden: usize,
    /// Rotary table, page table, token rows and counters.
    pub tables: usize,
}

impl MemoryPlan {
    /// What [`Caches::new`] and the slot arrays will allocate, with activations of `element` bytes.
    pub fn of(c: &Config, limits: &Limits, element: usize) -> Self {
        let g = &c.gdn;
        let (full, linear) =
            (c.count(crate::config::LayerKind::Full), c.count(crate::config::LayerKind::Linear));
        let pools = full + usize::from(limits.draft_head);
        let s = limits.slots;
        let (journal_rows, ring_rows) = (
            journal_rows(limits.flush_after, limits.max_rows()),
            conv_ring_rows(g.conv_width, limits.max_rows()),
        );
        let hidden_rows = if limits.draft_head { limits.hidden_rows() } else { 0 };
        let tables = [
            product(&[limits.positions, c.rotary_dim]),
            product(&[s, limits.pages_for(limits.positions)]),
            product(&[s, limits.positions]),
        ];
        MemoryPlan {
            kv: product(&[pools, limits.pages, 2, c.kv_heads, limits.page_rows, c.head_dim, element]),
            state: product(&[linear, s, g.v_width(), g.k_dim, 4]),
            journal: product(&[linear, s, journal_rows, g.journal_stride(), element]),
            conv: product(&[linear, s, ring_rows, g.conv_channels(), element]),
            hidden: product(&[s, hidden_rows, c.hidden, element]),
            tables: product(&[4, sum(&tables)]),
        }
    }

    /// Everything together.
    pub fn total(&self) -> usize {
        sum(&[self.kv, self.state, self.journal, self.conv, self.hidden, self.tables])
    }
}

/// Limits come from a command line: their products may be any size, and then stay at the largest.
pub(crate) fn product(factors: &[usize]) -> usize {
    factors.iter().fold(1, |all: usize, factor| all.saturating_mul(*factor))
}

pub(crate) fn sum(terms: &[usize]) -> usize {
    terms.iter().fold(0, |all: usize, term| all.saturating_add(*term))
}

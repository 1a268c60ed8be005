//! Norm, rotary and the write into the pages, for all rows at once.

use crate::{
    AttnBackend,
    plan::{self, BUILT},
};
use kernels_core::{
    Activation, Backend, DeviceInfo, Error, KvPoolMut, PageTable, Result, Rows, Tensor, TensorMut, bf16,
};

/// The sizes of an [`Append`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendProblem {
    /// Sequences of the launch, padding included.
    pub sequences: usize,
    /// Rows of the launch, those that nobody owns included.
    pub rows: usize,
    /// Query heads.
    pub q_heads: usize,
    /// K/V heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Leading elements of a head that are rotated; even, 0 for none.
    pub rotary: usize,
    /// Added to the mean square under the root.
    pub eps: f32,
    /// Slots of the page table.
    pub slots: usize,
    /// Pages a slot can have.
    pub max_pages: usize,
    /// Rows (tokens) of a page.
    pub page_rows: usize,
    /// Rows of the rope table.
    pub positions: usize,
}

/// Norms and rotates queries and keys, and writes keys and values into their pages.
///
/// Per head `x * rsqrt(mean(x^2) + eps) * (1 + w)` in fp32, then
/// [`rotate`](kernels_core::rope::rotate) on its first `rotary` elements with the table's row of the
/// absolute position, rounded once. The sum of squares has the order of a score (see the crate's docs);
/// lane `d % 32` also holds both elements of a rotated pair where `rotary` is 64. Values are copied. The
/// row at position `p` goes to row `p % page_rows` of page `page_table[slot][p / page_rows]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Append {
    problem: AppendProblem,
    /// Whether it was planned for a CUDA device.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // the CUDA half alone asks
    pub(crate) cuda: bool,
    pub(crate) programmatic: bool,
}

/// The operands of [`Append`].
#[derive(Debug)]
pub struct AppendArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[rows, q_heads, head_dim]`: the queries to attend with; zeros where a row is skipped.
    pub q_out: TensorMut<'a, B, A, 3>,
    /// The layer's keys and values: written at the rows' positions only.
    pub pool: KvPoolMut<'a, B, A>,
    /// `[slots + 1]`: sticky fault words, see [`kernels_core::slots::Fault`].
    pub faults: TensorMut<'a, B, u64, 1>,
    /// `[rows, q_heads, head_dim]`: raw queries; any strides, so the `[query, gate]` projection can be
    /// passed as it is.
    pub q: Tensor<'a, B, A, 3>,
    /// `[rows, kv_heads, head_dim]`: raw keys.
    pub k: Tensor<'a, B, A, 3>,
    /// `[rows, kv_heads, head_dim]`: values.
    pub v: Tensor<'a, B, A, 3>,
    /// `[head_dim]`: the query norm's weight, centred on zero.
    pub q_norm: Tensor<'a, B, A, 1>,
    /// `[head_dim]`: the key norm's weight, centred on zero.
    pub k_norm: Tensor<'a, B, A, 1>,
    /// `[positions, rotary]`: see [`kernels_core::rope::table`].
    pub rope: Tensor<'a, B, f32, 2>,
    /// `[slots, max_pages]`: the pages of each slot.
    pub page_table: PageTable<'a, B>,
    /// Which rows belong to which sequence, and where they stand.
    pub rows: Rows<'a, B>,
}

impl Append {
    pub(crate) const OP: &'static str = "attn::append";

    /// Chooses how to solve `problem` on `device`; refuses what makes no sense by name and value.
    pub fn plan(problem: AppendProblem, device: &DeviceInfo) -> Result<Self> {
        let (op, p) = (Self::OP, &problem);
        plan::at_least_one(
            op,
            &[
                ("sequences", p.sequences),
                ("rows", p.rows),
                ("head_dim", p.head_dim),
                ("slots", p.slots),
                ("max_pages", p.max_pages),
                ("page_rows", p.page_rows),
                ("positions", p.positions),
            ],
        )?;
        plan::heads(op, p.q_heads, p.kv_heads)?;
        if !p.rotary.is_multiple_of(2) || p.rotary > p.head_dim {
            let want = format!("it must be even and at most head_dim ({})", p.head_dim);
            return Err(Error::invalid(op, "rotary", p.rotary, want));
        }
        if !(p.eps >= 0.0 && p.eps.is_finite()) {
            return Err(Error::invalid(op, "eps", p.eps, "it must be finite and not negative"));
        }
        plan::addressable(op, "rows", p.rows)?;
        if let Some(arch) = device.arch {
            plan::shape_on_cuda(op, p.head_dim, p.q_heads, p.kv_heads, p.page_rows)?;
            let numbers = [
                ("sequences", p.sequences),
                ("slots", p.slots),
                ("max_pages", p.max_pages),
                ("positions", p.positions),
            ];
            numbers.into_iter().try_for_each(|(name, size)| plan::narrow(op, name, size))?;
            plan::path(op, arch, None, BUILT)?;
        }
        Ok(Append { problem, cuda: device.arch.is_some(), programmatic: false })
    }

    /// Lets the CUDA kernel begin while the one before it on the stream still runs. It waits for that one
    /// before it reads or writes anything.
    pub fn overlapping(mut self, on: bool) -> Self {
        self.programmatic = on;
        self
    }

    /// The sizes this was planned for.
    pub fn problem(&self) -> &AppendProblem {
        &self.problem
    }

    /// Enqueues the operation.
    pub fn run<B: AttnBackend, A: Activation>(
        &self,
        on: &B::Queue,
        args: AppendArgs<'_, B, A>,
    ) -> Result<()> {
        self.check(&args)?;
        B::append(self, on, args)
    }

    fn check<B: Backend, A: Activation>(&self, args: &AppendArgs<'_, B, A>) -> Result<()> {
        let (op, p) = (Self::OP, &self.problem);
        let q_rows = [p.rows, p.q_heads, p.head_dim];
        let kv_rows = [p.rows, p.kv_heads, p.head_dim];
        args.q_out.check(op, "q_out", q_rows)?;
        args.q_out.check_disjoint(op, "q_out")?;
        args.pool.check(op, "pool", p.kv_heads, p.head_dim)?;
        if args.pool.page_rows != p.page_rows {
            let want = format!("it was planned for {}", p.page_rows);
            return Err(Error::invalid(op, "page_rows", args.pool.page_rows, want));
        }
        check_pool_disjoint(op, &args.pool)?;
        args.faults.check(op, "faults", [p.slots + 1])?;
        args.q.check(op, "q", q_rows)?;
        args.k.check(op, "k", kv_rows)?;
        args.v.check(op, "v", kv_rows)?;
        args.q_norm.check(op, "q_norm", [p.head_dim])?;
        args.k_norm.check(op, "k_norm", [p.head_dim])?;
        args.rope.check(op, "rope", [p.positions, p.rotary])?;
        args.page_table.check(op, "page_table", [p.slots, p.max_pages])?;
        args.rows.check(op, p.sequences)
    }
}

/// Two tokens, heads or sides of a pool that is written never share elements.
fn check_pool_disjoint<B: Backend, A: Activation>(
    op: &'static str,
    pool: &KvPoolMut<'_, B, A>,
) -> Result<()> {
    let s = pool.strides;
    let mut axes = [(pool.pages, s.page), (2, s.kv), (pool.kv_heads, s.head), (pool.page_rows, s.row)];
    axes.sort_by_key(|(_, stride)| *stride);
    let mut inner = pool.head_dim;
    for (count, stride) in axes {
        if count > 1 && stride < inner {
            return Err(Error::Stride {
                op,
                arg: "pool",
                got: vec![s.page, s.kv, s.head, s.row],
                want: "page, kv, head and row must not overlap",
            });
        }
        inner = inner.saturating_add(count.saturating_sub(1).saturating_mul(stride));
    }
    Ok(())
}

//! Attention of the draft rows of many sequences.

use crate::{
    AttnBackend, Grid, Problem,
    grid::Deal,
    plan::{BUILT, grid_of, verify_rows},
};
use kernels_core::{
    Activation, Backend, DeviceInfo, Error, KvPool, PageTable, Result, Rows, Tensor, TensorMut, bf16,
};

pub(crate) const OP: &str = "attn::verify";

/// Lets each sequence's new rows attend to its paged keys and values.
///
/// `T` rows give the bytes of `T` single-row calls: one row is plain decoding, `k + 1` rows verify `k`
/// drafts. The keys and values of the rows themselves must already lie in the pool (see
/// [`Append`](crate::Append)).
///
/// On CUDA it follows the list that [`Work`](crate::Work) made with a plan of the same sizes and grid, and
/// keeps intermediate results in a workspace. Both may serve all layers of a round, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Verify {
    problem: Problem,
    pub(crate) deal: Deal,
    pub(crate) programmatic: bool,
}

/// The operands of [`Verify`] and [`Prefill`](crate::Prefill).
#[derive(Debug)]
pub struct Args<'a, B: Backend, A: Activation = bf16> {
    /// `[rows, q_heads, head_dim]`: written whole, zeros where a row is skipped.
    pub out: TensorMut<'a, B, A, 3>,
    /// `[slots + 1]`: sticky fault words, see [`kernels_core::slots::Fault`].
    pub faults: TensorMut<'a, B, u64, 1>,
    /// `[rows, q_heads, head_dim]`: normed and rotated queries.
    pub q: Tensor<'a, B, A, 3>,
    /// `[rows, q_heads, head_dim]`: the output is multiplied by its sigmoid; any strides, so the raw
    /// `[query, gate]` projection can be passed as it is.
    pub gate: Option<Tensor<'a, B, A, 3>>,
    /// The layer's keys and values.
    pub pool: KvPool<'a, B, A>,
    /// `[slots, max_pages]`: the pages of each slot.
    pub page_table: PageTable<'a, B>,
    /// Which rows belong to which sequence, and where they stand.
    pub rows: Rows<'a, B>,
    /// `[work]`: the round's list, which [`Verify`] on CUDA needs; nothing else looks at it.
    pub work: Option<Tensor<'a, B, i32, 1>>,
    /// `[workspace]`: [`Verify::workspace_bytes`] or [`Prefill::workspace_bytes`](crate::Prefill) on CUDA; the
    /// CPU does without. Anything before and after.
    pub workspace: Option<TensorMut<'a, B, u8, 1>>,
}

impl<B: Backend, A: Activation> Args<'_, B, A> {
    pub(crate) fn check(&self, op: &'static str, problem: &Problem, deal: &Deal) -> Result<()> {
        let rows = [problem.rows, problem.q_heads, problem.head_dim];
        self.out.check(op, "out", rows)?;
        self.out.check_disjoint(op, "out")?;
        self.faults.check(op, "faults", [problem.slots + 1])?;
        self.q.check(op, "q", rows)?;
        if let Some(gate) = &self.gate {
            gate.check(op, "gate", rows)?;
        }
        self.pool.check(op, "pool", problem.kv_heads, problem.head_dim)?;
        for (name, got, want) in
            [("pages", self.pool.pages, problem.pages), ("page_rows", self.pool.page_rows, problem.page_rows)]
        {
            if got != want {
                return Err(Error::invalid(op, name, got, format!("it was planned for {want}")));
            }
        }
        self.page_table.check(op, "page_table", [problem.slots, problem.max_pages])?;
        self.rows.check(op, problem.sequences)?;
        if let Some(work) = &self.work {
            work.check(op, "work", [deal.work])?;
        }
        if let Some(workspace) = &self.workspace {
            workspace.check(op, "workspace", [deal.workspace.bytes])?;
            workspace.check_disjoint(op, "workspace")?;
        }
        Ok(())
    }
}

impl Verify {
    /// Chooses how to solve `problem` on `device`; refuses what makes no sense by name and value.
    ///
    /// # Errors
    ///
    /// Sizes of zero, query heads that are no multiple of the K/V heads; on CUDA, by name, head sizes,
    /// groups, page sizes and row counts without a kernel, and devices that this build has no kernels for.
    pub fn plan(problem: Problem, device: &DeviceInfo) -> Result<Self> {
        Self::plan_with(problem, device, None)
    }

    /// Like [`Verify::plan`] with a grid of the caller's, for tuning and tests.
    ///
    /// # Errors
    ///
    /// Those of [`Verify::plan`], and grids that no kernel has.
    pub fn plan_with(problem: Problem, device: &DeviceInfo, grid: Option<Grid>) -> Result<Self> {
        problem.validate(OP)?;
        let choice = (grid.map(|grid| grid.path), grid.map(|grid| grid.share));
        verify_rows(OP, &problem, device)?;
        let deal = problem.deal(OP, device, choice, BUILT)?;
        Ok(Verify { problem, deal, programmatic: false })
    }

    /// Lets the CUDA kernel begin while the one before it on the stream still runs. It waits for that one
    /// before it reads or writes anything.
    pub fn overlapping(mut self, on: bool) -> Self {
        self.programmatic = on;
        self
    }

    /// The grid of the CUDA kernel; `None` if it was planned for the CPU.
    pub fn grid(&self) -> Option<Grid> {
        grid_of(&self.deal)
    }

    /// Bytes of [`Args::workspace`]; 0 on the CPU.
    pub fn workspace_bytes(&self) -> usize {
        self.deal.workspace.bytes
    }

    /// The sizes this was planned for.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Enqueues the operation.
    ///
    /// # Errors
    ///
    /// Operands whose shape, strides or size do not fit the problem, by name.
    pub fn run<B: AttnBackend, A: Activation>(&self, on: &B::Queue, args: Args<'_, B, A>) -> Result<()> {
        args.check(OP, &self.problem, &self.deal)?;
        B::verify(self, on, args)
    }
}

//! Attention of the draft rows of many sequences.

use crate::{AttnBackend, Problem};
use kernels_core::{
    Activation, Backend, DeviceInfo, KvPool, PageTable, Result, Rows, Tensor, TensorMut, bf16,
};

/// Lets each sequence's new rows attend to its paged keys and values.
///
/// `T` rows give the bytes of `T` single-row calls: one row is plain decoding, `k + 1` rows verify `k`
/// drafts. The keys and values of the rows themselves must already lie in the pool (see
/// [`Append`](crate::Append)).
#[derive(Clone, Debug, PartialEq)]
pub struct Verify {
    problem: Problem,
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
}

impl<B: Backend, A: Activation> Args<'_, B, A> {
    pub(crate) fn check(&self, op: &'static str, problem: &Problem) -> Result<()> {
        let rows = [problem.rows, problem.q_heads, problem.head_dim];
        self.out.check(op, "out", rows)?;
        self.out.check_disjoint(op, "out")?;
        self.faults.check(op, "faults", [problem.slots + 1])?;
        self.q.check(op, "q", rows)?;
        if let Some(gate) = &self.gate {
            gate.check(op, "gate", rows)?;
        }
        self.pool.check(op, "pool", problem.kv_heads, problem.head_dim)?;
        self.page_table.check(op, "page_table", [problem.slots, problem.max_pages])?;
        self.rows.check(op, problem.sequences)
    }
}

impl Verify {
    const OP: &'static str = "attn::verify";

    /// Chooses how to solve `problem` on `device`; refuses what makes no sense by name and value.
    pub fn plan(problem: Problem, device: &DeviceInfo) -> Result<Self> {
        problem.validate(Self::OP, device)?;
        Ok(Verify { problem })
    }

    /// The sizes this was planned for.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Enqueues the operation.
    pub fn run<B: AttnBackend, A: Activation>(&self, on: &B::Queue, args: Args<'_, B, A>) -> Result<()> {
        args.check(Self::OP, &self.problem)?;
        B::verify(self, on, args)
    }
}

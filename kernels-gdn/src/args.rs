//! The operands of [`Verify`](crate::Verify) and [`Prefill`](crate::Prefill), and the checks at the door.

use crate::Problem;
use kernels_core::{Activation, Backend, Result, Rows, Tensor, TensorMut, bf16};

/// The operands of [`Verify`](crate::Verify) and [`Prefill`](crate::Prefill).
///
/// No two live sequences of a launch may name the same slot.
#[derive(Debug)]
pub struct Args<'a, B: Backend, A: Activation = bf16> {
    /// `[rows, v_heads, v_dim]`: what the layer reads from its memory, before the gated norm.
    pub out: TensorMut<'a, B, A, 3>,
    /// `[slots, v_heads, v_dim, k_dim]`: the state after `folded` tokens; not read where that is zero.
    pub state: TensorMut<'a, B, f32, 4>,
    /// `[slots, journal_rows, journal_width]`: the raw k, v, a, b of position p in row `p % journal_rows`.
    pub journal: TensorMut<'a, B, A, 3>,
    /// `[slots + 1]`: sticky fault words, see [`kernels_core::slots::Fault`].
    pub faults: TensorMut<'a, B, u64, 1>,
    /// `[slots]`: tokens inside `state`. Read only: the bookkeeping after the last layer moves it.
    pub folded: Tensor<'a, B, i32, 1>,
    /// `[rows, k_heads, k_dim]`: queries, raw from the convolution.
    pub q: Tensor<'a, B, A, 3>,
    /// `[rows, k_heads, k_dim]`: keys, raw from the convolution.
    pub k: Tensor<'a, B, A, 3>,
    /// `[rows, v_heads, v_dim]`: values, from the convolution.
    pub v: Tensor<'a, B, A, 3>,
    /// `[rows, v_heads]`: the decay's input, before `dt_bias` and softplus.
    pub a: Tensor<'a, B, A, 2>,
    /// `[rows, v_heads]`: the write strength's input, before the sigmoid.
    pub b: Tensor<'a, B, A, 2>,
    /// `[v_heads]`: logarithm of the decay rate.
    pub a_log: Tensor<'a, B, f32, 1>,
    /// `[v_heads]`: added to `a`.
    pub dt_bias: Tensor<'a, B, f32, 1>,
    /// Which rows belong to which sequence, and where they stand.
    pub rows: Rows<'a, B>,
}

impl<B: Backend, A: Activation> Args<'_, B, A> {
    pub(crate) fn check(&self, op: &'static str, p: &Problem) -> Result<()> {
        self.out.check(op, "out", [p.rows, p.v_heads, p.v_dim])?;
        self.out.check_disjoint(op, "out")?;
        check_memory(op, p, &self.state, &self.journal, &self.faults)?;
        self.folded.check(op, "folded", [p.slots])?;
        self.q.check(op, "q", [p.rows, p.k_heads, p.k_dim])?;
        self.k.check(op, "k", [p.rows, p.k_heads, p.k_dim])?;
        self.v.check(op, "v", [p.rows, p.v_heads, p.v_dim])?;
        self.a.check(op, "a", [p.rows, p.v_heads])?;
        self.b.check(op, "b", [p.rows, p.v_heads])?;
        self.a_log.check(op, "a_log", [p.v_heads])?;
        self.dt_bias.check(op, "dt_bias", [p.v_heads])?;
        self.rows.check(op, p.sequences)
    }
}

/// The memory of the slots, which all three operations take.
pub(crate) fn check_memory<B: Backend, A: Activation>(
    op: &'static str,
    p: &Problem,
    state: &TensorMut<'_, B, f32, 4>,
    journal: &TensorMut<'_, B, A, 3>,
    faults: &TensorMut<'_, B, u64, 1>,
) -> Result<()> {
    state.check(op, "state", [p.slots, p.v_heads, p.v_dim, p.k_dim])?;
    state.check_disjoint(op, "state")?;
    journal.check(op, "journal", [p.slots, p.journal_rows, p.journal_width()])?;
    journal.check_disjoint(op, "journal")?;
    faults.check(op, "faults", [p.slots + 1])
}

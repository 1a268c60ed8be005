#![doc = include_str!("../README.md")]
//!
//! # What a row computes
//!
//! A row stands at absolute position `p` of its sequence. It attends to the keys
//! `max(first_key, p + 1 - window) ..= p` of that sequence (see [`Problem::keys`]), with the scale
//! `1 / sqrt(head_dim)`; query head `j` reads K/V head `j / (q_heads / kv_heads)`. The sums follow the
//! fixed tree of [`tree`], so a row's bits depend on its query and on its keys and values: not
//! on the rows beside it, the batch, the slot, the pages, their size or the pool's strides.
//!
//! # Order and rounding
//!
//! All arithmetic is fp32; `A` is the activation type. `exp2` is [`ref_math::exp2`](kernels_core::ref_math::exp2) on
//! the CPU and `ex2.approx.ftz` on CUDA: with the scores' order, what tells the two halves apart.
//!
//! | value | how |
//! |---|---|
//! | score `s` | dot product over `head_dim` in one fixed order (CPU: 32 lanes, element `d` goes to lane `d % 32`, lanes added in halves; CUDA: k16 steps ascending) |
//! | maximum `M` of a leaf after a tile | of the one before it (-inf at first) and the tile's over its visible keys, in the exponent's unit: `max(M_old, s_max * c)`, `c = log2(e) / sqrt(head_dim)` |
//! | weight `P` | `exp2(fma(s, c, -M))`, rounded to `A`; the product is never rounded by itself |
//! | tile's sum | of the **rounded** weights, those that multiply V: in each 16 keys those 8 apart first, then neighbours, then 2 and 4 apart; the eight sums of a tile likewise, neighbours first |
//! | leaf's sum `l` | `fma(l_old, shrink, tile's sum)`, `shrink = exp2(M_old - M)` |
//! | leaf's `O` | `O_old * shrink`, rounded, then weights times values added to it, the keys ascending (CUDA: in k16 steps) |
//! | fold of a leaf or group `m, l_new, o` | `M = max(M_old, m)`, `a = exp2(M_old - M)`, `b = exp2(m - M)`: `l = fma(l_old, a, l_new * b)`, `O = fma(O_old, a, o * b)`. While `l_old` is 0 the part is taken as it is |
//! | levels | [`tree`]: tiles ascending inside their leaf, leaves inside their group, groups |
//! | output | `(O + 0) / l` in fp32, times `sigmoid(gate)` where there is one, rounded to `A` once |
//!
//! Because `l` adds the rounded weights, the rounding of `P` cannot change their total: the weights used
//! sum to one, and equal values come out exactly.
//!
//! # Masked keys and stale memory
//!
//! Masked keys are exact no-ops, but for the sign of a zero in `O`, and that the output does not show (`O + 0`).
//! The CPU half never reads them. A kernel that multiplies whole tiles must do as much: scores outside the
//! row's keys become -inf, which gives `P = 0`; `-inf - -inf` is guarded (a maximum of -inf counts as 0 in the
//! exponent); and V rows of keys that *no* row of the row block may see are replaced by zeros when they are
//! loaded, for `0 * NaN` is NaN and free pages hold anything. (Values that only a later row of the block sees
//! are multiplied by 0 on CUDA, which takes finite ones.)
//! NaN in a *visible* key or value reaches the output: nothing is skipped because it weighs little.
//!
//! # Skipped rows and faults
//!
//! Rows of sequences with a negative slot, rows nobody owns, and rows of sequences with a violated
//! invariant give zeros and touch no other memory. The invariants, and the fault recorded: slot below
//! `slots` ([`FaultKind::Slot`]), positions below `max_pages * page_rows` and (append) the rope table's
//! rows ([`FaultKind::Position`]), page numbers of the pages used inside the pool ([`FaultKind::Page`]),
//! row offsets ascending, at most `rows`, at most `max_rows` a sequence ([`FaultKind::RowOffsets`]).
//!
//! [`FaultKind::Slot`]: kernels_core::slots::FaultKind::Slot
//! [`FaultKind::Position`]: kernels_core::slots::FaultKind::Position
//! [`FaultKind::Page`]: kernels_core::slots::FaultKind::Page
//! [`FaultKind::RowOffsets`]: kernels_core::slots::FaultKind::RowOffsets

mod append;
mod backend;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod grid;
mod plan;
mod prefill;
mod softmax;
#[cfg(feature = "cuda")]
mod sys;
pub mod tree;
mod verify;
mod work;

pub use append::{Append, AppendArgs, AppendProblem};
pub use backend::AttnBackend;
pub use grid::{Grid, Path, Share};
pub use plan::Problem;
pub use prefill::Prefill;
pub use verify::{Args, Verify};
pub use work::{Work, WorkArgs};

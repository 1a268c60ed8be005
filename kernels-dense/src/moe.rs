//! The mixture of experts with its router and its shared expert.

use crate::{
    DenseBackend,
    mixture::{Mixture, MoeGrid},
    plan::{self, BUILT},
};
use kernels_core::{Activation, Backend, DType, DeviceInfo, Error, Result, Tensor, TensorMut, bf16};

pub(crate) const OP: &str = "dense::moe";

/// The sizes of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MoeProblem {
    /// Rows.
    pub rows: usize,
    /// Width of a row.
    pub hidden: usize,
    /// Routed experts.
    pub experts: usize,
    /// Experts that a row goes to.
    pub top_k: usize,
    /// Inner width of a routed expert.
    pub intermediate: usize,
    /// Inner width of the shared expert.
    pub shared_intermediate: usize,
    /// Type of the weights, the router's too.
    pub weights: DType,
}

/// Operands of [`Moe`].
#[derive(Debug)]
pub struct MoeArgs<'a, B: Backend, A: Activation = bf16, W: Activation = A> {
    /// `[rows, hidden]`, read and written: the residual stream.
    pub out: TensorMut<'a, B, A, 2>,
    /// `[rows, top_k]`: the chosen experts, the most probable first.
    pub routes: Option<TensorMut<'a, B, i32, 2>>,
    /// `[rows, hidden]`
    pub x: Tensor<'a, B, A, 2>,
    /// `[experts, hidden]`
    pub router: Tensor<'a, B, W, 2>,
    /// `[experts, 2 * intermediate, hidden]`: gate rows, then up rows.
    pub gate_up: Tensor<'a, B, W, 3>,
    /// `[experts, hidden, intermediate]`
    pub down: Tensor<'a, B, W, 3>,
    /// `[2 * shared_intermediate, hidden]`: gate rows, then up rows.
    pub shared_gate_up: Tensor<'a, B, W, 2>,
    /// `[hidden, shared_intermediate]`
    pub shared_down: Tensor<'a, B, W, 2>,
    /// `[1, hidden]`
    pub shared_gate: Tensor<'a, B, W, 2>,
    /// `[workspace]`: [`Moe::workspace_bytes`]; what [`LinearArgs::workspace`](crate::LinearArgs::workspace) says goes for
    /// it too, and they may be the same. Not needed where those are 0.
    pub workspace: Option<TensorMut<'a, B, u8, 1>>,
}

/// Router, routed experts, shared expert and residual.
///
/// Per row, with `A(v)` rounding to the activation type and all else fp32:
///
/// 1. `p = softmax(router x)` over all experts; the `top_k` largest, the smallest id first among equals,
///    are its route; `w_i = p_i / Σ p` over the route, in the route's order.
/// 2. expert `e`: `y_e = A(down A(silu(A(gate x)) * A(up x)))`, as two linear layers round.
/// 3. `s = Σ w_i y_i` in the route's order, then `s += sigmoid(shared_gate x) * y_shared`.
/// 4. `out = A(out + A(s))`.
///
/// Each distinct expert is read once per call (on CUDA, of each 1,024 rows); a row's sum never depends on who else chose
/// its experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moe {
    problem: MoeProblem,
    pub(crate) mixture: Option<Mixture>,
}

impl Moe {
    /// Chooses how `device` computes `problem`.
    ///
    /// # Errors
    ///
    /// Sizes out of range; on CUDA, widths that are no multiples of 8, weights that are not bf16, more than 1,024 experts or
    /// 32 of a row, and devices that this build has no kernels for.
    pub fn plan(problem: MoeProblem, device: &DeviceInfo) -> Result<Self> {
        let MoeProblem { rows, hidden, experts, top_k, intermediate, shared_intermediate, .. } = problem;
        plan::rows(OP, rows)?;
        plan::sizes(
            OP,
            [
                ("hidden", hidden),
                ("experts", experts),
                ("intermediate", intermediate),
                ("shared_intermediate", shared_intermediate),
            ],
        )?;
        if !(1..=experts).contains(&top_k) {
            let want = format!("it must be in 1..={experts}, the number of experts");
            return Err(Error::invalid(OP, "top_k", top_k, want));
        }
        Ok(Moe { problem, mixture: Mixture::plan(OP, problem, device, BUILT)? })
    }

    /// Lets the first CUDA kernel begin while the one before it on the stream still runs, and each further one while the
    /// one before it does.
    ///
    /// Weights are loaded at once, all else after the other kernel is done: they must not have been written by a kernel
    /// that may still be running.
    pub fn overlapping(mut self, on: bool) -> Self {
        if let Some(mixture) = &mut self.mixture {
            mixture.programmatic = on;
        }
        self
    }

    /// Another grid, for tuning and tests.
    #[doc(hidden)]
    pub fn with_grid(mut self, choose: impl FnOnce(MoeGrid) -> MoeGrid) -> Self {
        self.mixture = self.mixture.map(|mixture| mixture.with(choose(mixture.grid)));
        self
    }

    /// Bytes of [`MoeArgs::workspace`]; 0 on the CPU.
    pub fn workspace_bytes(&self) -> usize {
        self.mixture.map_or(0, |mixture| mixture.workspace_bytes())
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &MoeProblem {
        &self.problem
    }

    /// Checks the operands and computes or enqueues.
    pub fn run<B: DenseBackend, A: Activation, W: Activation>(
        &self,
        on: &B::Queue,
        args: MoeArgs<'_, B, A, W>,
    ) -> Result<()> {
        let MoeProblem { rows, hidden, experts, top_k, intermediate, shared_intermediate, weights } =
            self.problem;
        if W::DTYPE != weights {
            return Err(Error::invalid(OP, "weights", weights, format!("the operands are {}", W::DTYPE)));
        }
        args.out.check(OP, "out", [rows, hidden])?;
        args.out.check_disjoint(OP, "out")?;
        if let Some(routes) = &args.routes {
            routes.check(OP, "routes", [rows, top_k])?;
            routes.check_disjoint(OP, "routes")?;
        }
        args.x.check(OP, "x", [rows, hidden])?;
        args.router.check(OP, "router", [experts, hidden])?;
        args.gate_up.check(OP, "gate_up", [experts, 2 * intermediate, hidden])?;
        args.down.check(OP, "down", [experts, hidden, intermediate])?;
        args.shared_gate_up.check(OP, "shared_gate_up", [2 * shared_intermediate, hidden])?;
        args.shared_down.check(OP, "shared_down", [hidden, shared_intermediate])?;
        args.shared_gate.check(OP, "shared_gate", [1, hidden])?;
        if let Some(workspace) = &args.workspace {
            workspace.check(OP, "workspace", [self.workspace_bytes()])?;
            workspace.check_disjoint(OP, "workspace")?;
        }
        B::moe(self, on, args)
    }
}

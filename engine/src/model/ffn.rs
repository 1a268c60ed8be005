//! Feed-forward blocks.

use super::{Context, EngineBackend, Ffn, Model, Op, Scratch, early, linear};
use crate::{Result, config};
use kernels_core::{Activation, Backend, Tensor, TensorMut};
use kernels_dense::{Epilogue, Moe, MoeArgs, MoeProblem};

/// The norm behind a feed-forward block: its weight, and who reads it.
pub(crate) enum Behind<'w, B: Backend, A: Activation> {
    /// The next layer: `scratch.normed`.
    Input(&'w B::Memory<A>),
    /// Whoever reads the target's output: `scratch.hidden`.
    Target(&'w B::Memory<A>),
    /// Whoever reads the draft head's: `scratch.drafted`.
    Draft(&'w B::Memory<A>),
}

impl<B: EngineBackend, A: Activation> Model<B, A> {
    /// `residual += ffn(entering)`, and the norm of that, which a mixture of experts computes in its last launch. Which
    /// experts the target's layer number `layer` chooses is kept.
    pub(crate) fn ffn(
        &self,
        cx: &Context<B>,
        rows: usize,
        layer: Option<usize>,
        ffn: &Ffn<B, A>,
        behind: Behind<'_, B, A>,
        scratch: &mut Scratch<B, A>,
    ) -> Result<()> {
        let hidden = self.config.hidden;
        let (norm, normed) = match behind {
            Behind::Input(weight) => (weight, &mut scratch.normed),
            Behind::Target(weight) => (weight, &mut scratch.hidden),
            Behind::Draft(weight) => (weight, &mut scratch.drafted),
        };
        let x = Tensor::of(&scratch.entering, [rows, hidden]);
        let residual = TensorMut::of(&mut scratch.residual, [rows, hidden]);
        match (ffn, &self.config.ffn) {
            (Ffn::Dense { gate_up, down }, config::FeedForward::Dense { intermediate }) => {
                let inner = TensorMut::of(&mut scratch.inner, [rows, *intermediate]);
                linear(cx, Op::GateUp, &mut scratch.workspaces, inner, x, gate_up, Epilogue::SiluMul)?;
                let inner = Tensor::of(&scratch.inner, [rows, *intermediate]);
                linear(cx, Op::Down, &mut scratch.workspaces, residual, inner, down, Epilogue::AddTo)?;
                self.norm(cx, rows, &scratch.residual, norm, normed)
            }
            (
                Ffn::Moe { router, gate_up, down, shared_gate_up, shared_down, shared_gate },
                &config::FeedForward::Moe { experts, top_k, intermediate, shared_intermediate },
            ) => {
                let problem = MoeProblem {
                    rows,
                    hidden,
                    experts,
                    top_k,
                    intermediate,
                    shared_intermediate,
                    weights: A::DTYPE,
                };
                let op = Moe::plan_with_norm(problem, self.config.eps, &cx.device)?.overlapping(early(rows));
                let routes = layer.and_then(|at| scratch.routes.get_mut(at));
                let routes = routes.filter(|routes| B::len(routes) >= rows * top_k);
                let args = MoeArgs {
                    out: residual,
                    normed: Some(TensorMut::of(normed, [rows, hidden])),
                    routes: routes.map(|routes| TensorMut::of(routes, [rows, top_k])),
                    x,
                    router: Tensor::of(router, [experts, hidden]),
                    gate_up: Tensor::of(gate_up, [experts, 2 * intermediate, hidden]),
                    down: Tensor::of(down, [experts, hidden, intermediate]),
                    shared_gate_up: Tensor::of(shared_gate_up, [2 * shared_intermediate, hidden]),
                    shared_down: Tensor::of(shared_down, [hidden, shared_intermediate]),
                    shared_gate: Tensor::of(shared_gate, [1, hidden]),
                    norm: Some(Tensor::of(norm, [hidden])),
                    workspace: scratch.workspaces.dense.lend(&cx.queue, op.workspace_bytes())?,
                };
                // What it reads is for the rows to choose.
                cx.run(Op::Moe, |on| op.run(on, args))
            }
            _ => unreachable!("the builder makes blocks of the configuration's kind"),
        }
    }
}

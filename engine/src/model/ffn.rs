//! Feed-forward blocks.

use super::{Context, EngineBackend, Ffn, Model, Op, Scratch, early, linear};
use crate::{Result, config};
use kernels_core::{Activation, Tensor, TensorMut};
use kernels_dense::{Epilogue, Moe, MoeArgs, MoeProblem};

impl<B: EngineBackend, A: Activation> Model<B, A> {
    /// `residual += ffn(normed)`. Which experts the target's layer number `layer` chooses is kept.
    pub(crate) fn ffn(
        &self,
        cx: &Context<B>,
        rows: usize,
        layer: Option<usize>,
        ffn: &Ffn<B, A>,
        scratch: &mut Scratch<B, A>,
    ) -> Result<()> {
        let hidden = self.config.hidden;
        let x = Tensor::of(&scratch.normed, [rows, hidden]);
        let residual = TensorMut::of(&mut scratch.residual, [rows, hidden]);
        match (ffn, &self.config.ffn) {
            (Ffn::Dense { gate_up, down }, config::FeedForward::Dense { intermediate }) => {
                let inner = TensorMut::of(&mut scratch.inner, [rows, *intermediate]);
                linear(cx, Op::GateUp, &mut scratch.workspaces, inner, x, gate_up, Epilogue::SiluMul)?;
                let inner = Tensor::of(&scratch.inner, [rows, *intermediate]);
                linear(cx, Op::Down, &mut scratch.workspaces, residual, inner, down, Epilogue::AddTo)
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
                let op = Moe::plan(problem, &cx.device)?.overlapping(early(rows));
                let routes = layer.and_then(|at| scratch.routes.get_mut(at));
                let routes = routes.filter(|routes| B::len(routes) >= rows * top_k);
                let args = MoeArgs {
                    out: residual,
                    routes: routes.map(|routes| TensorMut::of(routes, [rows, top_k])),
                    x,
                    router: Tensor::of(router, [experts, hidden]),
                    gate_up: Tensor::of(gate_up, [experts, 2 * intermediate, hidden]),
                    down: Tensor::of(down, [experts, hidden, intermediate]),
                    shared_gate_up: Tensor::of(shared_gate_up, [2 * shared_intermediate, hidden]),
                    shared_down: Tensor::of(shared_down, [hidden, shared_intermediate]),
                    shared_gate: Tensor::of(shared_gate, [1, hidden]),
                    workspace: scratch.workspaces.dense.lend(&cx.queue, op.workspace_bytes())?,
                };
                // What it reads is for the rows to choose.
                cx.run(Op::Moe, |on| op.run(on, args))
            }
            _ => unreachable!("the builder makes blocks of the configuration's kind"),
        }
    }
}

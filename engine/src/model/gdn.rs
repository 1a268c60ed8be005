//! The Gated Delta Net mixer: projection, conv, recurrence, gated norm, output.

use super::{Context, EngineBackend, Gdn, Kind, Model, Pass, Scratch, linear};
use crate::{
    Result,
    cache::{Recurrent, Shared},
};
use kernels_core::{Activation, Tensor, TensorMut};
use kernels_dense::{Epilogue, GatedNorm, GatedNormArgs, GatedNormProblem};

impl<B: EngineBackend, A: Activation> Model<B, A> {
    /// `residual += out(gdn(normed))`; the conv ring, the journal and the state are those of `memory`.
    pub(super) fn gdn(
        &self,
        cx: &Context<B>,
        pass: &Pass<'_, B>,
        weights: &Gdn<B, A>,
        memory: &mut Recurrent<B, A>,
        shared: &mut Shared<B>,
        scratch: &mut Scratch<B, A>,
    ) -> Result<()> {
        let (c, g, rows) = (&self.config, &self.config.gdn, pass.rows);
        let (channels, z_width) = (g.conv_channels(), g.v_width());
        let width = channels + z_width + 2 * g.v_heads;
        let normed = Tensor::of(&scratch.normed, [rows, c.hidden]);
        linear(
            cx,
            TensorMut::of(&mut scratch.projected, [rows, width]),
            normed,
            &weights.input,
            Epilogue::Store,
        )?;
        let projected = Tensor::<B, A, 2>::of(&scratch.projected, [rows, width]);
        let gates = channels + z_width;

        let problem = kernels_conv::Problem {
            sequences: pass.sequences,
            rows,
            max_rows: pass.max_rows,
            channels,
            width: g.conv_width,
            slots: shared.slots,
            ring_rows: memory.ring_rows,
            bias: false,
            silu: true,
        };
        let args = kernels_conv::Args {
            out: TensorMut::of(&mut scratch.convolved, [rows, channels]),
            ring: TensorMut::of(&mut memory.ring, [shared.slots, memory.ring_rows, channels]),
            faults: TensorMut::of(&mut shared.table.faults, [shared.slots + 1]),
            x: projected.reborrow().columns(0..channels),
            weight: Tensor::of(&weights.conv, [channels, g.conv_width]),
            bias: None,
            rows: pass.index.reborrow(),
        };
        match pass.kind {
            Kind::Decode => kernels_conv::Verify::plan(problem, &cx.device)?.run(&cx.queue, args)?,
            Kind::Prefill => kernels_conv::Prefill::plan(problem, &cx.device)?.run(&cx.queue, args)?,
        }

        let convolved = Tensor::<B, A, 2>::of(&scratch.convolved, [rows, channels]);
        let key_width = g.k_width();
        let problem = kernels_gdn::Problem {
            sequences: pass.sequences,
            rows,
            max_rows: pass.max_rows,
            k_heads: g.k_heads,
            v_heads: g.v_heads,
            k_dim: g.k_dim,
            v_dim: g.v_dim,
            slots: shared.slots,
            journal_rows: memory.journal_rows,
            flush_after: memory.flush_after,
        };
        let journal = [shared.slots, memory.journal_rows, problem.journal_width()];
        let args = kernels_gdn::Args {
            out: TensorMut::of(&mut scratch.mixed, [rows, g.v_heads, g.v_dim]),
            state: TensorMut::of(&mut memory.state, [shared.slots, g.v_heads, g.v_dim, g.k_dim]),
            journal: TensorMut::of(&mut memory.journal, journal),
            faults: TensorMut::of(&mut shared.table.faults, [shared.slots + 1]),
            folded: Tensor::of(&shared.table.folded, [shared.slots]),
            q: convolved.reborrow().columns(0..key_width).heads(g.k_heads),
            k: convolved.reborrow().columns(key_width..2 * key_width).heads(g.k_heads),
            v: convolved.reborrow().columns(2 * key_width..channels).heads(g.v_heads),
            a: projected.reborrow().columns(gates + g.v_heads..width),
            b: projected.reborrow().columns(gates..gates + g.v_heads),
            a_log: Tensor::of(&weights.a_log, [g.v_heads]),
            dt_bias: Tensor::of(&weights.dt_bias, [g.v_heads]),
            rows: pass.index.reborrow(),
        };
        match pass.kind {
            Kind::Decode => kernels_gdn::Verify::plan(problem, &cx.device)?.run(&cx.queue, args)?,
            Kind::Prefill => kernels_gdn::Prefill::plan(problem, &cx.device)?.run(&cx.queue, args)?,
        }

        let problem = GatedNormProblem { rows, heads: g.v_heads, head_dim: g.v_dim, eps: c.eps };
        let args = GatedNormArgs {
            out: TensorMut::of(&mut scratch.gated, [rows, g.v_heads, g.v_dim]),
            x: Tensor::of(&scratch.mixed, [rows, g.v_heads, g.v_dim]),
            gate: projected.reborrow().columns(channels..gates).heads(g.v_heads),
            weight: Tensor::of(&weights.norm, [g.v_dim]),
        };
        GatedNorm::plan(problem, &cx.device)?.run(&cx.queue, args)?;
        let gated = Tensor::of(&scratch.gated, [rows, z_width]);
        let residual = TensorMut::of(&mut scratch.residual, [rows, c.hidden]);
        linear(cx, residual, gated, &weights.out, Epilogue::AddTo)
    }
}

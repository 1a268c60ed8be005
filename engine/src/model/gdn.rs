//! The Gated Delta Net mixer: projection, conv, recurrence, gated norm, output.

use super::{Context, EngineBackend, Gdn, Kind, Mixer, Model, Op, Pass, Scratch, early, linear};
use crate::{
    Error, Result,
    cache::{Recurrent, Shared},
    config,
};
use kernels_core::{Activation, Tensor, TensorMut, slots::Fault};
use kernels_dense::{Epilogue, GatedNorm, GatedNormArgs, GatedNormProblem};

/// A journal as kernels see it: rows lie further apart than they are wide where that is no width for kernels.
fn journal_of<'m, B: EngineBackend, A: Activation>(
    memory: &'m mut B::Memory<A>,
    dims: [usize; 3],
    g: &config::Gdn,
) -> TensorMut<'m, B, A, 3> {
    let row = g.journal_stride();
    TensorMut::of(memory, dims).with_strides([dims[1] * row, row, 1])
}

impl<B: EngineBackend, A: Activation> Model<B, A> {
    /// The state of one slot of a GDN layer after `committed` tokens, computed in a copy.
    pub(crate) fn folded_state(
        &self,
        cx: &Context<B>,
        layer: usize,
        memory: &Recurrent<B, A>,
        slot: usize,
        [folded, committed]: [i32; 2],
    ) -> Result<Vec<f32>> {
        let Mixer::Gdn(weights) = &self.layers[layer].mixer else {
            unreachable!("the caller goes by the configuration's layer kinds")
        };
        let (on, g, rows) = (&cx.queue, &self.config.gdn, memory.journal_rows);
        let length = g.v_width() * g.k_dim;
        if committed == 0 {
            return Ok(vec![0.0; length]);
        }
        let problem = kernels_gdn::Problem {
            sequences: 1,
            rows: 1,
            max_rows: 1,
            k_heads: g.k_heads,
            v_heads: g.v_heads,
            k_dim: g.k_dim,
            v_dim: g.v_dim,
            slots: 1,
            journal_rows: rows,
            flush_after: memory.flush_after,
        };
        let journal = rows * g.journal_stride();
        let mut state = B::upload(on, &B::read(on, &memory.state, slot * length..(slot + 1) * length)?)?;
        let mut copy = B::upload(on, &B::read(on, &memory.journal, slot * journal..(slot + 1) * journal)?)?;
        let mut faults = B::zeros::<u64>(on, 2)?;
        let (folded, committed) = (B::upload(on, &[folded])?, B::upload(on, &[committed])?);
        let slots = B::upload(on, &[0])?;
        let args = kernels_gdn::FoldArgs::<B, A> {
            state: TensorMut::of(&mut state, [1, g.v_heads, g.v_dim, g.k_dim]),
            journal: journal_of(&mut copy, [1, rows, problem.journal_width()], g),
            faults: TensorMut::of(&mut faults, [2]),
            folded: Tensor::of(&folded, [1]),
            a_log: Tensor::of(&weights.a_log, [g.v_heads]),
            dt_bias: Tensor::of(&weights.dt_bias, [g.v_heads]),
            slots: Tensor::of(&slots, [1]),
            committed: Tensor::of(&committed, [1]),
        };
        kernels_gdn::Fold::plan(problem, &cx.device)?.run(on, args)?;
        if let Some(fault) = Fault::decode(B::read(on, &faults, 0..1)?[0]) {
            return Err(Error::limit("slot", slot, format!("its counters are broken: {fault}")));
        }
        Ok(B::read(on, &state, 0..length)?)
    }

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
        let width = g.projected_width();
        let normed = Tensor::of(&scratch.normed, [rows, c.hidden]);
        linear(
            cx,
            Op::GdnIn,
            &mut scratch.workspaces,
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
        cx.run(Op::Conv, |on| match pass.kind {
            Kind::Decode => {
                kernels_conv::Verify::plan(problem, &cx.device)?.overlapping(early(rows)).run(on, args)
            }
            Kind::Prefill => {
                kernels_conv::Prefill::plan(problem, &cx.device)?.overlapping(early(rows)).run(on, args)
            }
        })?;

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
            journal: journal_of(&mut memory.journal, journal, g),
            faults: TensorMut::of(&mut shared.table.faults, [shared.slots + 1]),
            folded: Tensor::of(&shared.table.folded, [shared.slots]),
            q: convolved.reborrow().columns(0..key_width).heads(g.k_heads),
            k: convolved.reborrow().columns(key_width..2 * key_width).heads(g.k_heads),
            v: convolved.reborrow().columns(2 * key_width..channels).heads(g.v_heads),
            a: projected.reborrow().columns(gates + g.v_heads..gates + 2 * g.v_heads),
            b: projected.reborrow().columns(gates..gates + g.v_heads),
            a_log: Tensor::of(&weights.a_log, [g.v_heads]),
            dt_bias: Tensor::of(&weights.dt_bias, [g.v_heads]),
            rows: pass.index.reborrow(),
        };
        // Not early: between the conv and the gated norm that took longer at all sizes but the smallest.
        cx.run(Op::Gdn, |on| match pass.kind {
            Kind::Decode => kernels_gdn::Verify::plan(problem, &cx.device)?.run(on, args),
            Kind::Prefill => kernels_gdn::Prefill::plan(problem, &cx.device)?.run(on, args),
        })?;

        let problem = GatedNormProblem { rows, heads: g.v_heads, head_dim: g.v_dim, eps: c.eps };
        let args = GatedNormArgs {
            out: TensorMut::of(&mut scratch.gated, [rows, g.v_heads, g.v_dim]),
            x: Tensor::of(&scratch.mixed, [rows, g.v_heads, g.v_dim]),
            gate: projected.reborrow().columns(channels..gates).heads(g.v_heads),
            weight: Tensor::of(&weights.norm, [g.v_dim]),
        };
        let op = GatedNorm::plan(problem, &cx.device)?.overlapping(early(rows));
        cx.run(Op::GatedNorm, |on| op.run(on, args))?;
        let gated = Tensor::of(&scratch.gated, [rows, z_width]);
        let residual = TensorMut::of(&mut scratch.residual, [rows, c.hidden]);
        linear(cx, Op::GdnOut, &mut scratch.workspaces, residual, gated, &weights.out, Epilogue::AddTo)
    }
}

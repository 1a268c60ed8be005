//! Gated full attention over paged K/V.

use super::{Attention, Context, EngineBackend, Model, Op, Pass, Scratch, early, linear};
use crate::{
    Result,
    cache::{Pool, Shared},
    model::Kind,
};
use kernels_attn::{Append, AppendArgs, AppendProblem, Args, Prefill, Problem, Verify, Work, WorkArgs};
use kernels_core::{Activation, Tensor, TensorMut};
use kernels_dense::Epilogue;

impl<B: EngineBackend, A: Activation> Model<B, A> {
    /// `residual += out(attention(normed))`; K and V of the rows are written into `pool` first.
    #[expect(clippy::too_many_arguments, reason = "operands of one fused block, each of another owner")]
    pub(crate) fn attention(
        &self,
        cx: &Context<B>,
        pass: &Pass<'_, B>,
        weights: &Attention<B, A>,
        first_key: usize,
        pool: &mut Pool<B, A>,
        shared: &mut Shared<B>,
        scratch: &mut Scratch<B, A>,
    ) -> Result<()> {
        let c = &self.config;
        let (rows, d) = (pass.rows, c.head_dim);
        let (q_width, kv_width) = (2 * c.heads * d, c.kv_heads * d);
        let width = q_width + 2 * kv_width;
        let normed = Tensor::of(&scratch.normed, [rows, c.hidden]);
        linear(
            cx,
            Op::Qkv,
            &mut scratch.workspaces,
            TensorMut::of(&mut scratch.projected, [rows, width]),
            normed,
            &weights.qkv,
            Epilogue::Store,
        )?;
        let projected = Tensor::<B, A, 2>::of(&scratch.projected, [rows, width]);
        let append = Append::plan(
            AppendProblem {
                sequences: pass.sequences,
                rows,
                q_heads: c.heads,
                kv_heads: c.kv_heads,
                head_dim: d,
                rotary: c.rotary_dim,
                eps: c.eps,
                slots: shared.slots,
                max_pages: shared.max_pages,
                page_rows: pool.view().page_rows,
                positions: shared.positions,
            },
            &cx.device,
        )?
        .overlapping(early(rows));
        let args = AppendArgs {
            q_out: TensorMut::of(&mut scratch.queries, [rows, c.heads, d]),
            pool: pool.view_mut(),
            faults: TensorMut::of(&mut shared.table.faults, [shared.slots + 1]),
            q: per_head(&projected, c.heads, d, 0),
            k: projected.reborrow().columns(q_width..q_width + kv_width).heads(c.kv_heads),
            v: projected.reborrow().columns(q_width + kv_width..width).heads(c.kv_heads),
            q_norm: Tensor::of(&weights.q_norm, [d]),
            k_norm: Tensor::of(&weights.k_norm, [d]),
            rope: Tensor::of(&shared.rope, [shared.positions, c.rotary_dim]),
            page_table: Tensor::of(&shared.page_table, [shared.slots, shared.max_pages]),
            rows: pass.index.reborrow(),
        };
        cx.run(Op::Append, |on| append.run(on, args))?;
        let problem = self.attention_problem(pass, first_key, pool, shared);
        let on = &cx.queue;
        let workspaces = &mut scratch.workspaces;
        let mut args = Args {
            out: TensorMut::of(&mut scratch.mixed, [rows, c.heads, d]),
            faults: TensorMut::of(&mut shared.table.faults, [shared.slots + 1]),
            q: Tensor::of(&scratch.queries, [rows, c.heads, d]),
            gate: Some(per_head(&projected, c.heads, d, d)),
            pool: pool.view(),
            page_table: Tensor::of(&shared.page_table, [shared.slots, shared.max_pages]),
            rows: pass.index.reborrow(),
            work: None,
            workspace: None,
        };
        match pass.kind {
            Kind::Decode => {
                let op = Verify::plan(problem, &cx.device)?.overlapping(early(rows));
                args.work = workspaces.work.left(Work::plan(problem, &cx.device)?.len());
                args.workspace = workspaces.other.lend(on, op.workspace_bytes())?;
                cx.run(Op::Attention, |on| op.run(on, args))?;
            }
            Kind::Prefill => {
                let op = Prefill::plan(problem, &cx.device)?.overlapping(early(rows));
                args.workspace = workspaces.other.lend(on, op.workspace_bytes())?;
                cx.run(Op::Attention, |on| op.run(on, args))?;
            }
        }
        let mixed = Tensor::of(&scratch.mixed, [rows, c.heads * d]);
        let residual = TensorMut::of(&mut scratch.residual, [rows, c.hidden]);
        linear(cx, Op::AttentionOut, &mut scratch.workspaces, residual, mixed, &weights.out, Epilogue::AddTo)
    }

    /// Lists what the attention layers of a decode pass with keys from `first_key` on will do.
    pub(crate) fn list_work(
        &self,
        cx: &Context<B>,
        pass: &Pass<'_, B>,
        first_key: usize,
        pool: &Pool<B, A>,
        shared: &mut Shared<B>,
        scratch: &mut Scratch<B, A>,
    ) -> Result<()> {
        let op = match pass.kind {
            Kind::Decode => Work::plan(self.attention_problem(pass, first_key, pool, shared), &cx.device)?,
            Kind::Prefill => return Ok(()),
        };
        let Some(work) = scratch.workspaces.work.lend(&cx.queue, op.len())? else { return Ok(()) };
        let args = WorkArgs {
            work,
            faults: TensorMut::of(&mut shared.table.faults, [shared.slots + 1]),
            page_table: Tensor::of(&shared.page_table, [shared.slots, shared.max_pages]),
            rows: pass.index.reborrow(),
        };
        cx.run(Op::WorkList, |on| op.overlapping(early(pass.rows)).run(on, args))
    }

    fn attention_problem(
        &self,
        pass: &Pass<'_, B>,
        first_key: usize,
        pool: &Pool<B, A>,
        shared: &Shared<B>,
    ) -> Problem {
        let (c, pages) = (&self.config, pool.view());
        Problem {
            sequences: pass.sequences,
            rows: pass.rows,
            max_rows: pass.max_rows,
            q_heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            slots: shared.slots,
            max_pages: shared.max_pages,
            pages: pages.pages,
            page_rows: pages.page_rows,
            first_key,
            window: None,
        }
    }
}

/// The queries (`at` 0) or the gates (`at` the head width) of projected rows, which hold for each head its
/// query and then its gate.
fn per_head<'a, B: EngineBackend, A: Activation>(
    projected: &'a Tensor<'_, B, A, 2>,
    heads: usize,
    width: usize,
    at: usize,
) -> Tensor<'a, B, A, 3> {
    let ([rows, _], [stride, _]) = (projected.dims, projected.strides);
    let from_here = projected.reborrow().columns(at..projected.dims[1]);
    Tensor { data: from_here.data, dims: [rows, heads, width], strides: [stride, 2 * width, 1] }
}

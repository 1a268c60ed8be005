//! The draft head by itself: its blocks composed anew, over K/V of its own.
//!
//! It shares the operators with the engine (they have proofs of their own) and nothing of what feeds them:
//! no counters, no carried rows, no refresh. So a fault in the engine's wiring is not one here.

use super::Wiring;
use crate::{
    Error, Result,
    cache::{Limits, Pool, Shared},
    model::{Context, EngineBackend, Kind, Mixer, Model, Op, Pass, Scratch, linear},
};
use kernels_core::{Activation, Tensor, TensorMut, rope, slots::Fault};
use kernels_dense::{ConcatNorm, ConcatNormArgs, Epilogue, NormProblem};
use kernels_spec::{RowTable, SlotTable};

/// Rows of one sequence that the head computes in one pass.
#[derive(Clone, Debug)]
pub(super) struct Stretch<A> {
    pub(super) slot: usize,
    /// The position of the first row.
    pub(super) start: usize,
    /// One token for each row.
    pub(super) tokens: Vec<u32>,
    /// `[rows, hidden]`
    pub(super) hidden: Vec<A>,
}

/// What the head says in the last row of a [`Stretch`].
#[derive(Clone, Debug)]
pub(super) struct Said<A> {
    /// Its output after its own norm: the hidden row of the next row of a chain.
    pub(super) hidden: Vec<A>,
    /// The best token of the logits.
    pub(super) token: u32,
}

/// The head with memory of its own for some sequences.
#[derive(Debug)]
pub(super) struct Head<'m, B: EngineBackend, A: Activation> {
    cx: &'m Context<B>,
    model: &'m Model<B, A>,
    limits: Limits,
    pool: Pool<B, A>,
    shared: Shared<B>,
    scratch: Scratch<B, A>,
    table: RowTable<B>,
    ids: B::Memory<i32>,
}

impl<'m, B: EngineBackend, A: Activation> Head<'m, B, A> {
    /// Memory for `slots` sequences of up to `positions` tokens and passes of up to `rows` rows.
    pub(super) fn new(
        cx: &'m Context<B>,
        model: &'m Model<B, A>,
        slots: usize,
        positions: usize,
        rows: usize,
    ) -> Result<Self> {
        const PAGE_ROWS: usize = 64;
        let (on, c) = (&cx.queue, model.config());
        let max_pages = positions.div_ceil(PAGE_ROWS);
        let limits = Limits {
            slots,
            positions,
            page_rows: PAGE_ROWS,
            pages: slots * max_pages,
            max_drafts: 0,
            flush_after: 0,
            prefill_rows: rows,
            draft_head: true,
        };
        limits.check()?;
        // Every sequence has its pages from the beginning, one after the other.
        let pages: Vec<i32> = (0..limits.pages as i32).collect();
        let shared = Shared {
            slots,
            max_pages,
            positions,
            rope: B::upload(on, &rope::table(c.rope_theta, c.rotary_dim, positions))?,
            page_table: B::upload(on, &pages)?,
            table: SlotTable::new(on, slots, positions)?,
        };
        Ok(Head {
            pool: Pool::new(on, c, &limits)?,
            scratch: Scratch::new(on, c, rows, slots)?,
            table: RowTable::new(on, slots)?,
            ids: B::zeros(on, rows)?,
            cx,
            model,
            limits,
            shared,
        })
    }

    /// Forgets every K/V row.
    pub(super) fn clear(&mut self) -> Result<()> {
        self.pool = Pool::new(&self.cx.queue, self.model.config(), &self.limits)?;
        Ok(())
    }

    /// Makes the rows of every stretch, and says what comes after the last one of each.
    pub(super) fn run(&mut self, stretches: &[Stretch<A>], wiring: Wiring) -> Result<Vec<Said<A>>> {
        let (on, width) = (&self.cx.queue, self.model.config().hidden);
        let mut offsets = vec![0];
        for stretch in stretches {
            offsets.push(offsets[offsets.len() - 1] + stretch.tokens.len() as i32);
        }
        let rows = offsets[stretches.len()] as usize;
        let per_stretch = |f: fn(&Stretch<A>) -> i32| stretches.iter().map(f).collect::<Vec<_>>();
        self.table.sequences = stretches.len();
        B::write(on, &mut self.table.slots, 0, &per_stretch(|s| s.slot as i32))?;
        B::write(on, &mut self.table.start, 0, &per_stretch(|s| s.start as i32))?;
        B::write(on, &mut self.table.row_offsets, 0, &offsets)?;
        let ids: Vec<i32> = stretches.iter().flat_map(|s| &s.tokens).map(|id| *id as i32).collect();
        B::write(on, &mut self.ids, 0, &ids)?;
        let hidden: Vec<A> = stretches.iter().flat_map(|s| s.hidden.iter().copied()).collect();
        B::write(on, &mut self.scratch.carried, 0, &hidden)?;
        let max_rows = stretches.iter().map(|s| s.tokens.len()).max().unwrap_or(0);
        self.forward(rows, max_rows, wiring == Wiring::Swapped)?;

        // One row of each stretch goes through the lm head.
        let drafted = B::read(on, &self.scratch.drafted, 0..rows * width)?;
        let last: Vec<&[A]> = offsets[1..]
            .iter()
            .map(|end| &drafted[(*end as usize - 1) * width..*end as usize * width])
            .collect();
        B::write(on, &mut self.scratch.picked, 0, &last.concat())?;
        let picked = Tensor::of(&self.scratch.picked, [last.len(), width]);
        self.model.logits(self.cx, picked, &mut self.scratch.logits, &mut self.scratch.workspaces)?;
        let vocab = self.model.config().vocab;
        let logits = B::read(on, &self.scratch.logits, 0..last.len() * vocab)?;
        let say = |(hidden, logits): (&&[A], &[f32])| {
            // Where every logit is NaN no token is said, which agrees with nothing.
            let token = kernels_core::argmax::argmax(logits).map_or(u32::MAX, |id| id as u32);
            Said { hidden: hidden.to_vec(), token }
        };
        Ok(last.iter().zip(logits.chunks_exact(vocab)).map(say).collect())
    }

    fn forward(&mut self, rows: usize, max_rows: usize, swapped: bool) -> Result<()> {
        let (cx, model, scratch) = (self.cx, self.model, &mut self.scratch);
        let mtp = model.mtp().expect("the doctor looks at checkpoints with a head");
        let (n, eps) = (model.config().hidden, model.config().eps);
        let ids = Tensor::of(&self.ids, [rows]);
        let pass = Pass {
            kind: Kind::Prefill,
            rows,
            sequences: self.table.sequences,
            max_rows,
            index: self.table.lend(),
            ids,
        };
        model.embed(cx, pass.ids.reborrow(), rows, &mut scratch.normed)?;
        let (embedding, hidden) =
            ((&scratch.normed, &mtp.embedding_norm), (&scratch.carried, &mtp.hidden_norm));
        let (left, right) = if swapped { (hidden, embedding) } else { (embedding, hidden) };
        let args = ConcatNormArgs::<B, A> {
            out: TensorMut::of(&mut scratch.concat, [rows, 2 * n]),
            left: Tensor::of(left.0, [rows, n]),
            left_weight: Tensor::of(left.1, [n]),
            right: Tensor::of(right.0, [rows, n]),
            right_weight: Tensor::of(right.1, [n]),
        };
        ConcatNorm::plan(NormProblem { rows, n, eps }, &cx.device)?.run(&cx.queue, args)?;
        let concat = Tensor::of(&scratch.concat, [rows, 2 * n]);
        let residual = TensorMut::of(&mut scratch.residual, [rows, n]);
        linear(cx, Op::MtpFc, &mut scratch.workspaces, residual, concat, &mtp.fc, Epilogue::Store)?;

        let layer = &mtp.layer;
        let Mixer::Attention(weights) = &layer.mixer else {
            unreachable!("the builder gives the draft head an attention layer")
        };
        model.norm(cx, rows, &scratch.residual, &layer.input_norm, &mut scratch.normed)?;
        // Row 0 has no hidden row before it: keys start at 1.
        model.attention(cx, &pass, weights, 1, &mut self.pool, &mut self.shared, scratch)?;
        model.norm(cx, rows, &scratch.residual, &layer.post_norm, &mut scratch.normed)?;
        model.ffn(cx, rows, None, &layer.ffn, scratch)?;
        model.norm(cx, rows, &scratch.residual, &mtp.norm, &mut scratch.drafted)
    }

    /// Fails if an operator found its operands wrong.
    pub(super) fn check(&self) -> Result<()> {
        let faults = B::read(&self.cx.queue, &self.shared.table.faults, 0..self.limits.slots + 1)?;
        match faults.into_iter().find_map(Fault::decode) {
            None => Ok(()),
            Some(fault) => {
                Err(Error::limit("doctor", fault, "this is a defect of lockstep; please report it"))
            }
        }
    }
}

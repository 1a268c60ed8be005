//! The target's part: compute rows, choose, accept, stop, advance.

use super::{
    Core, Outcome, Ticket, offsets_of,
    recorded::{Part, launch_sequences},
};
use crate::{
    Result,
    cache::Limits,
    config::FeedForward,
    model::{EngineBackend, Kind, Op, Side, Tap},
    request::{MAX_BIAS, MAX_EOS, MAX_STOP_LENGTH, MAX_STOPS},
};
use kernels_core::{Activation, PAD, Tensor, TensorMut};
use kernels_spec::{
    Accept, AcceptArgs, Advance, AdvanceArgs, AdvanceProblem, Emit, EmitArgs, HiddenProblem, LastRows,
    LastRowsArgs, PrefillInputs, PrefillInputsArgs, Sample, SampleArgs, SampleProblem, Settle, SettleArgs,
    SettleProblem, Stop, StopArgs, StopProblem, TakeLast, TakeLastArgs, TargetInputs, TargetInputsArgs,
};
use std::collections::BTreeSet;

impl<B: EngineBackend, A: Activation> Core<B, A> {
    /// Computes the next prompt rows of each (slot, rows), and where that ends a prompt, the first token.
    pub fn prefill(&mut self, chunks: &[(usize, usize)], tap: Option<Tap<'_, B, A>>) -> Result<Vec<Outcome>> {
        let ticket = self.enqueue_prefill(chunks, tap)?;
        Ok(self.read(ticket)?.outcomes)
    }

    /// Enqueues a [`prefill`](Self::prefill).
    pub fn enqueue_prefill(
        &mut self,
        chunks: &[(usize, usize)],
        tap: Option<Tap<'_, B, A>>,
    ) -> Result<Ticket<B>> {
        self.cx.trace.side(Side::Target);
        let started = B::mark(&self.cx.queue)?;
        let sequences = chunks.len();
        let rows: usize = chunks.iter().map(|(_, rows)| rows).sum();
        let max_rows = chunks.iter().map(|(_, rows)| *rows).max().unwrap_or(0);
        self.start(sequences, rows, max_rows, chunks.iter().map(|(slot, rows)| (*slot as i32, *rows)))?;
        let problem = self.problem(sequences, rows, max_rows);
        let op = PrefillInputs::plan(problem, &self.cx.device)?.overlapping(true);
        let args = PrefillInputsArgs {
            rows: self.pass.table.lend_mut(),
            ids: TensorMut::of(&mut self.pass.ids, [rows]),
            slots: self.caches.shared.table.lend(),
            sequences: self.wanted.of(sequences),
            lengths: self.lengths.of(sequences),
        };
        self.cx.run(Op::Inputs, |on| op.run(on, args))?;
        self.forward(Kind::Prefill, tap)?;

        // Only the last row of a sequence can end its prompt, so only that one needs logits.
        self.last.sequences = sequences;
        let args = LastRowsArgs {
            last: self.last.lend_mut(),
            slots: self.caches.shared.table.lend(),
            rows: self.pass.table.lend(),
        };
        let op = LastRows::plan(problem, &self.cx.device)?.overlapping(true);
        self.cx.run(Op::LastRows, |on| op.run(on, args))?;
        let c = self.model.config();
        let hidden = HiddenProblem {
            sequences,
            rows,
            forward_rows: rows,
            width: c.hidden,
            slots: self.limits.slots,
            ring_rows: self.limits.hidden_rows(),
        };
        let args = TakeLastArgs {
            out: TensorMut::of(&mut self.scratch.picked, [sequences, c.hidden]),
            faults: TensorMut::of(&mut self.caches.shared.table.faults, [self.limits.slots + 1]),
            hidden: Tensor::of(&self.scratch.hidden, [rows, c.hidden]),
            rows: self.pass.table.lend(),
        };
        let op = TakeLast::plan(hidden, &self.cx.device)?.overlapping(true);
        self.cx.run(Op::LastRows, |on| op.run(on, args))?;
        let picked = Tensor::of(&self.scratch.picked, [sequences, c.hidden]);
        self.model.logits(&self.cx, picked, &mut self.scratch.logits, &mut self.scratch.workspaces)?;
        self.sample(Choosing::Last, sequences)?;
        self.settle_prompts()?;
        self.ticket(Kind::Prefill, chunks.iter().map(|(slot, _)| *slot), started)
    }

    /// Computes the last known token of each (slot, drafts) and up to that many drafts beyond it, and
    /// commits what the target would have chosen itself.
    pub fn decode(&mut self, jobs: &[(usize, usize)], tap: Option<Tap<'_, B, A>>) -> Result<Vec<Outcome>> {
        let ticket = self.enqueue_decode(jobs, tap)?;
        Ok(self.read(ticket)?.outcomes)
    }

    /// Enqueues a [`decode`](Self::decode) round.
    pub fn enqueue_decode(
        &mut self,
        jobs: &[(usize, usize)],
        tap: Option<Tap<'_, B, A>>,
    ) -> Result<Ticket<B>> {
        self.cx.trace.side(Side::Target);
        let started = B::mark(&self.cx.queue)?;
        let slots = self.limits.slots;
        let padding = self.padding.min(slots.saturating_sub(jobs.len()));
        let mut sequences = jobs.len() + padding;
        if self.pace.by_bounds() {
            sequences = launch_sequences(sequences, slots);
        }
        let padding = sequences - jobs.len();
        let max_rows = 1 + jobs.iter().map(|(_, drafts)| *drafts).max().unwrap_or(0);
        let wanted = jobs.iter().map(|(slot, drafts)| (*slot as i32, *drafts));
        let wanted = wanted.chain(std::iter::repeat_n((PAD, 0), padding));
        self.start(sequences, sequences * max_rows, max_rows, wanted)?;
        match tap {
            Some(_) => self.round(tap, padding)?,
            None => self.part(Part::Target { sequences, max_rows }, |core| core.round(None, padding))?,
        }
        let ticket = self.ticket(Kind::Decode, jobs.iter().map(|(slot, _)| *slot), started)?;
        if !self.pace.by_bounds() {
            // Padding stands last, so that without it the list is the one of the jobs.
            self.pass.table.sequences = jobs.len();
        }
        Ok(ticket)
    }

    /// The operations of a decode round, from its inputs until it is settled; `padding` of its sequences are
    /// nobody's.
    fn round(&mut self, tap: Option<Tap<'_, B, A>>, padding: usize) -> Result<()> {
        let (sequences, bound, max_rows) = (self.pass.table.sequences, self.pass.rows, self.pass.max_rows);
        let op =
            TargetInputs::plan(self.problem(sequences, bound, max_rows), &self.cx.device)?.overlapping(true);
        let args = TargetInputsArgs {
            rows: self.pass.table.lend_mut(),
            ids: TensorMut::of(&mut self.pass.ids, [bound]),
            slots: self.caches.shared.table.lend(),
            sequences: self.wanted.of(sequences),
            drafts: self.lengths.of(sequences),
        };
        self.cx.run(Op::Inputs, |on| op.run(on, args))?;
        if !self.pace.by_bounds() {
            self.pass.rows = offsets_of(&self.cx.queue, &self.pass.table)?[sequences].max(1) + padding;
        }
        self.forward(Kind::Decode, tap)?;
        let rows = self.pass.rows;
        let hidden = Tensor::of(&self.scratch.hidden, [rows, self.model.config().hidden]);
        self.model.logits(&self.cx, hidden, &mut self.scratch.logits, &mut self.scratch.workspaces)?;
        self.sample(Choosing::All, rows)?;
        self.settle_round()
    }

    /// Computes the next `rows` known tokens of a slot and returns their fp32 logits, `[rows, vocab]`: what
    /// the model thinks of a given text.
    pub fn score(&mut self, slot: usize, rows: usize, tap: Option<Tap<'_, B, A>>) -> Result<Vec<f32>> {
        self.prefill(&[(slot, rows)], tap)?;
        let (width, vocab) = (self.model.config().hidden, self.model.config().vocab);
        let block = self.limits.slots * self.limits.max_rows();
        let mut all = Vec::with_capacity(rows * vocab);
        for from in (0..rows).step_by(block) {
            let n = block.min(rows - from);
            let hidden = Tensor::<B, A, 2>::of(&self.scratch.hidden, [rows, width]).rows(from..from + n);
            self.model.logits(&self.cx, hidden, &mut self.scratch.logits, &mut self.scratch.workspaces)?;
            all.extend(self.logits(n)?);
        }
        Ok(all)
    }

    /// The fp32 logits that the latest target pass or draft step chose from, `[rows, vocab]`.
    pub fn logits(&self, rows: usize) -> Result<Vec<f32>> {
        let vocab = self.model.config().vocab;
        Ok(B::read(&self.cx.queue, &self.scratch.logits, 0..rows * vocab)?)
    }

    /// The post-norm hidden rows of the latest target pass, `[rows, hidden]`.
    pub fn hidden(&self, rows: usize) -> Result<Vec<A>> {
        let width = self.model.config().hidden;
        Ok(B::read(&self.cx.queue, &self.scratch.hidden, 0..rows * width)?)
    }

    /// The residual stream before the final norm, `[rows, hidden]`, of a target pass that nothing has
    /// followed.
    pub(crate) fn residual(&self, rows: usize) -> Result<Vec<A>> {
        let width = self.model.config().hidden;
        Ok(B::read(&self.cx.queue, &self.scratch.residual, 0..rows * width)?)
    }

    /// Distinct experts that the rows of the latest round chose, on the average of the layers; `None` without
    /// experts.
    pub fn distinct_experts(&self) -> Result<Option<f64>> {
        let FeedForward::Moe { top_k, .. } = self.model.config().ffn else { return Ok(None) };
        let rows = self.row_offsets()?.last().copied().unwrap_or(0);
        let mut all = 0;
        for routes in self.scratch.routes.iter().filter(|routes| B::len(routes) >= rows * top_k) {
            let chosen = B::read(&self.cx.queue, routes, 0..rows * top_k)?;
            all += chosen.into_iter().collect::<BTreeSet<_>>().len();
        }
        Ok(Some(all as f64 / self.scratch.routes.len() as f64))
    }

    /// Where each sequence's rows of the latest target pass begin, and where the last one's end.
    pub(crate) fn row_offsets(&self) -> Result<Vec<usize>> {
        offsets_of(&self.cx.queue, &self.pass.table)
    }

    /// Sets the bounds of a target pass and writes who is wanted in it.
    fn start(
        &mut self,
        sequences: usize,
        rows: usize,
        max_rows: usize,
        wanted: impl Iterator<Item = (i32, usize)> + Clone,
    ) -> Result<()> {
        self.pass.table.sequences = sequences;
        (self.pass.rows, self.pass.max_rows) = (rows, max_rows);
        self.wanted.set(&self.cx.queue, wanted.clone().map(|(slot, _)| slot))?;
        self.lengths.set(&self.cx.queue, wanted.map(|(_, n)| n as i32))
    }

    fn forward(&mut self, kind: Kind, tap: Option<Tap<'_, B, A>>) -> Result<()> {
        let pass = self.pass.pass(kind);
        self.model.forward(&self.cx, &pass, &mut self.scratch, &mut self.caches, tap)
    }

    /// Chooses a token for every row of logits; the draft chooses from its own by the same rule and with
    /// the same noise, which is why its guesses come true.
    pub(super) fn sample(&mut self, choosing: Choosing, rows: usize) -> Result<()> {
        let table = match choosing {
            Choosing::All => &self.pass.table,
            Choosing::Last => &self.last,
            Choosing::Draft => &self.draft.table,
        };
        let Limits { slots, positions, .. } = self.limits;
        let problem = SampleProblem {
            rows,
            sequences: table.sequences,
            vocab: self.model.config().vocab,
            valid: self.model.valid_vocab(),
            slots,
            positions,
            max_bias: MAX_BIAS,
        };
        let op = Sample::plan(problem, &self.cx.device)?.overlapping(true);
        let memory = &mut self.caches.shared.table;
        let args = SampleArgs {
            choice: TensorMut::of(&mut self.scratch.choice, [rows]),
            faults: TensorMut::of(&mut memory.faults, [slots + 1]),
            logits: Tensor::of(&self.scratch.logits, [rows, problem.vocab]),
            rows: table.lend(),
            tokens: Tensor::of(&memory.tokens, [slots, positions]),
            prompt: Tensor::of(&memory.prompt, [slots]),
            sampling: self.choices.sampling.lend(),
            workspace: self.scratch.workspaces.other.lend(&self.cx.queue, op.workspace_bytes())?,
        };
        self.cx.run(Op::Sample, |on| op.run(on, args))
    }

    /// Accepts, stops, advances: with [`settle_prompts`](Self::settle_prompts) the only place where anything
    /// becomes final.
    fn settle_round(&mut self) -> Result<()> {
        let (sequences, rows, max_rows) = (self.pass.table.sequences, self.pass.rows, self.pass.max_rows);
        let stop = self.stop_problem(sequences, rows, max_rows);
        let problem = SettleProblem { stop, flush_after: self.limits.flush_after };
        let args = SettleArgs {
            accepted: TensorMut::of(&mut self.accepted, [sequences]),
            emitted: TensorMut::of(&mut self.emitted, [sequences, max_rows + 2]),
            slots: self.caches.shared.table.lend(),
            choice: Tensor::of(&self.scratch.choice, [rows]),
            stops: self.choices.stops(),
            counters: None,
            rows: self.pass.table.lend(),
        };
        let op = Settle::plan(problem, &self.cx.device)?.overlapping(true);
        self.cx.run(Op::Settle, |on| op.run(on, args))
    }

    /// The same for a pass over prompts: rows are certain, and at most one of a sequence chooses.
    fn settle_prompts(&mut self) -> Result<()> {
        let (cx, device) = (&self.cx, &self.cx.device);
        let sequences = self.pass.table.sequences;
        let problem = self.stop_problem(sequences, sequences, 1);
        let base = problem.base;
        let table = &mut self.caches.shared.table;
        let args = AcceptArgs {
            accepted: TensorMut::of(&mut self.accepted, [sequences]),
            slots: table.lend(),
            choice: Tensor::of(&self.scratch.choice, [sequences]),
            rows: self.last.lend(),
        };
        let op = Accept::plan(base, device)?.overlapping(true);
        cx.run(Op::Settle, |on| op.run(on, args))?;
        let args = StopArgs {
            accepted: TensorMut::of(&mut self.accepted, [sequences]),
            slots: table.lend(),
            stops: self.choices.stops(),
            rows: self.last.lend(),
        };
        let op = Stop::plan(problem, device)?.overlapping(true);
        cx.run(Op::Settle, |on| op.run(on, args))?;
        let pass = kernels_spec::Problem { rows: self.pass.rows, max_rows: self.pass.max_rows, ..base };
        let problem = AdvanceProblem {
            base: pass,
            flush_after: self.limits.flush_after,
            pass: kernels_spec::Pass::Prefill,
        };
        let args = AdvanceArgs {
            accepted: TensorMut::of(&mut self.accepted, [sequences]),
            slots: table.lend(),
            counters: None,
            rows: self.pass.table.lend(),
        };
        let op = Advance::plan(problem, device)?.overlapping(true);
        cx.run(Op::Settle, |on| op.run(on, args))?;
        let args = EmitArgs {
            emitted: TensorMut::of(&mut self.emitted, [sequences, 3]),
            accepted: Tensor::of(&self.accepted, [sequences]),
            slots: table.lend(),
            rows: self.last.lend(),
        };
        let op = Emit::plan(base, device)?.overlapping(true);
        cx.run(Op::Settle, |on| op.run(on, args))
    }

    fn stop_problem(&self, sequences: usize, rows: usize, max_rows: usize) -> StopProblem {
        let base = self.problem(sequences, rows, max_rows);
        StopProblem { base, max_eos: MAX_EOS, max_stops: MAX_STOPS, max_stop_length: MAX_STOP_LENGTH }
    }
}

/// Which rows a choice is made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choosing {
    /// All rows of the target's pass.
    All,
    /// The last row of each sequence.
    Last,
    /// The rows of a draft step.
    Draft,
}

//! The target's part: compute rows, choose, accept, stop, advance.

use super::{Core, offsets_of, write_all};
use crate::{
    Result,
    cache::Limits,
    model::{EngineBackend, Kind, Tap},
    request::{Finish, MAX_BIAS, MAX_EOS, MAX_STOP_LENGTH, MAX_STOPS},
};
use kernels_core::{Activation, PAD, Tensor, TensorMut};
use kernels_spec::{
    Accept, AcceptArgs, Advance, AdvanceArgs, AdvanceProblem, Emit, EmitArgs, HiddenProblem, LastRows,
    LastRowsArgs, PrefillInputs, PrefillInputsArgs, Problem, RowTable, Sample, SampleArgs, SampleProblem,
    State, Stop, StopArgs, StopProblem, TakeLast, TakeLastArgs, TargetInputs, TargetInputsArgs,
};

/// What a pass brought for one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Drafts that were verified.
    pub drafts: usize,
    /// New tokens.
    pub tokens: Vec<u32>,
    /// Set where the sequence has ended.
    pub finish: Option<Finish>,
    /// Why it failed.
    pub error: Option<String>,
}

impl<B: EngineBackend, A: Activation> Core<B, A> {
    /// Computes the next prompt rows of each (slot, rows), and where that ends a prompt, the first token.
    pub fn prefill(&mut self, chunks: &[(usize, usize)], tap: Option<Tap<'_, B, A>>) -> Result<Vec<Outcome>> {
        let sequences = chunks.len();
        let rows: usize = chunks.iter().map(|(_, rows)| rows).sum();
        let max_rows = chunks.iter().map(|(_, rows)| *rows).max().unwrap_or(0);
        self.start(sequences, rows, max_rows, chunks.iter().map(|(slot, rows)| (*slot as i32, *rows)))?;
        let problem = self.problem(sequences, rows, max_rows);
        let op = PrefillInputs::plan(problem, &self.cx.device)?;
        let args = PrefillInputsArgs {
            rows: self.pass.table.lend_mut(),
            ids: TensorMut::of(&mut self.pass.ids, [rows]),
            slots: self.caches.shared.table.lend(),
            sequences: Tensor::of(&self.wanted, [sequences]),
            lengths: Tensor::of(&self.lengths, [sequences]),
        };
        op.run(&self.cx.queue, args)?;
        self.forward(Kind::Prefill, tap)?;

        // Only the last row of a sequence can end its prompt, so only that one needs logits.
        self.last.sequences = sequences;
        let args = LastRowsArgs {
            last: self.last.lend_mut(),
            slots: self.caches.shared.table.lend(),
            rows: self.pass.table.lend(),
        };
        LastRows::plan(problem, &self.cx.device)?.run(&self.cx.queue, args)?;
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
        TakeLast::plan(hidden, &self.cx.device)?.run(&self.cx.queue, args)?;
        let picked = Tensor::of(&self.scratch.picked, [sequences, c.hidden]);
        self.model.logits(&self.cx, picked, &mut self.scratch.logits, &mut self.scratch.workspaces)?;
        self.sample(Choosing::Last, sequences)?;
        self.settle(Kind::Prefill)
    }

    /// Computes the last known token of each (slot, drafts) and up to that many drafts beyond it, and
    /// commits what the target would have chosen itself.
    pub fn decode(&mut self, jobs: &[(usize, usize)], tap: Option<Tap<'_, B, A>>) -> Result<Vec<Outcome>> {
        let padding = self.padding.min(self.limits.slots.saturating_sub(jobs.len()));
        let sequences = jobs.len() + padding;
        let max_rows = 1 + jobs.iter().map(|(_, drafts)| *drafts).max().unwrap_or(0);
        let bound = sequences * max_rows;
        let wanted = jobs.iter().map(|(slot, drafts)| (*slot as i32, *drafts));
        self.start(sequences, bound, max_rows, wanted.chain(std::iter::repeat_n((PAD, 0), padding)))?;
        let op = TargetInputs::plan(self.problem(sequences, bound, max_rows), &self.cx.device)?;
        let args = TargetInputsArgs {
            rows: self.pass.table.lend_mut(),
            ids: TensorMut::of(&mut self.pass.ids, [bound]),
            slots: self.caches.shared.table.lend(),
            sequences: Tensor::of(&self.wanted, [sequences]),
            drafts: Tensor::of(&self.lengths, [sequences]),
        };
        op.run(&self.cx.queue, args)?;
        self.pass.rows = offsets_of(&self.cx.queue, &self.pass.table)?[sequences].max(1) + padding;
        self.forward(Kind::Decode, tap)?;
        let rows = self.pass.rows;
        let hidden = Tensor::of(&self.scratch.hidden, [rows, self.model.config().hidden]);
        self.model.logits(&self.cx, hidden, &mut self.scratch.logits, &mut self.scratch.workspaces)?;
        self.sample(Choosing::All, rows)?;
        let outcomes = self.settle(Kind::Decode);
        // Padding stands last, so that without it the list is the one of the jobs.
        self.pass.table.sequences = jobs.len();
        outcomes
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
        write_all::<B>(&self.cx.queue, &mut self.wanted, wanted.clone().map(|(slot, _)| slot))?;
        write_all::<B>(&self.cx.queue, &mut self.lengths, wanted.map(|(_, n)| n as i32))
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
        let op = Sample::plan(problem, &self.cx.device)?;
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
        Ok(op.run(&self.cx.queue, args)?)
    }

    /// Accepts, stops, advances: the only place where anything becomes final.
    fn settle(&mut self, kind: Kind) -> Result<Vec<Outcome>> {
        let on = &self.cx.queue;
        let device = &self.cx.device;
        let sequences = self.pass.table.sequences;
        // A prompt pass chooses in one row of each sequence, a decode round in all.
        let (choosing, rows, max_rows, pass) = match kind {
            Kind::Decode => {
                (&self.pass.table, self.pass.rows, self.pass.max_rows, kernels_spec::Pass::Decode)
            }
            Kind::Prefill => (&self.last, sequences, 1, kernels_spec::Pass::Prefill),
        };
        let base = self.problem(sequences, rows, max_rows);
        let table = &mut self.caches.shared.table;
        let args = AcceptArgs {
            accepted: TensorMut::of(&mut self.accepted, [sequences]),
            slots: table.lend(),
            choice: Tensor::of(&self.scratch.choice, [rows]),
            rows: choosing.lend(),
        };
        Accept::plan(base, device)?.run(on, args)?;
        let problem =
            StopProblem { base, max_eos: MAX_EOS, max_stops: MAX_STOPS, max_stop_length: MAX_STOP_LENGTH };
        let args = StopArgs {
            accepted: TensorMut::of(&mut self.accepted, [sequences]),
            slots: table.lend(),
            stops: self.choices.stops(),
            rows: choosing.lend(),
        };
        Stop::plan(problem, device)?.run(on, args)?;
        let base = Problem { rows: self.pass.rows, max_rows: self.pass.max_rows, ..base };
        let problem = AdvanceProblem { base, flush_after: self.limits.flush_after, pass };
        let args = AdvanceArgs {
            accepted: TensorMut::of(&mut self.accepted, [sequences]),
            slots: table.lend(),
            counters: None,
            rows: self.pass.table.lend(),
        };
        Advance::plan(problem, device)?.run(on, args)?;
        let args = EmitArgs {
            emitted: TensorMut::of(&mut self.emitted, [sequences, max_rows + 2]),
            accepted: Tensor::of(&self.accepted, [sequences]),
            slots: table.lend(),
            rows: choosing.lend(),
        };
        Emit::plan(Problem { rows, max_rows, ..base }, device)?.run(on, args)?;
        self.outcomes(kind, max_rows + 2)
    }

    /// Reads what a pass emitted.
    fn outcomes(&self, kind: Kind, width: usize) -> Result<Vec<Outcome>> {
        let on = &self.cx.queue;
        let table: &RowTable<B> = &self.pass.table;
        let emitted = B::read(on, &self.emitted, 0..table.sequences * width)?;
        let offsets = offsets_of(on, table)?;
        let slots = B::read(on, &self.wanted, 0..table.sequences)?;
        let faults = self.faults()?;
        let outcome = |(i, row): (usize, &[i32])| {
            let tokens = row[2..2 + row[0].max(0) as usize].iter().map(|id| *id as u32).collect();
            let error = faults[slots[i] as usize].clone();
            let finish = match State::of(row[1]) {
                _ if error.is_some() => Some(Finish::Failed),
                Some(State::Eos) => Some(Finish::Eos),
                Some(State::Stop) => Some(Finish::Stop),
                Some(State::Length) => Some(Finish::Length),
                _ => None,
            };
            let drafts =
                if kind == Kind::Decode { (offsets[i + 1] - offsets[i]).saturating_sub(1) } else { 0 };
            Outcome { drafts, tokens, finish, error }
        };
        let all = emitted.chunks_exact(width).enumerate();
        Ok(all.filter(|(i, _)| slots[*i] != PAD).map(outcome).collect())
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

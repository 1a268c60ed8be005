//! The draft head's part: make its K/V true, then guess.

use super::{Core, DraftJob, offsets_of, recorded::Part, target::Choosing};
use crate::{
    Result,
    cache::{Limits, MAX_DRAFTS},
    draft::OracleTable,
    model::{EngineBackend, Kind, Op},
};
use kernels_core::{Activation, PAD, Tensor, TensorMut, fault};
use kernels_spec::{
    Carry, CarryArgs, ChainInputs, ChainInputsArgs, DraftInputs, DraftInputsArgs, DraftProblem,
    HiddenProblem, KeepHidden, KeepHiddenArgs, LastRows, LastRowsArgs, Propose, ProposeArgs, TakeLast,
    TakeLastArgs,
};

impl<B: EngineBackend, A: Activation> Core<B, A> {
    /// Whether the head must run over this sequence's rows now, because the hidden rows it needs would be
    /// overwritten by the next pass.
    pub fn catch_up_due(&self, job: &DraftJob) -> bool {
        job.behind + self.limits.max_rows() >= self.limits.hidden_rows()
    }

    /// Runs the head over every row that has become certain since it last ran, for the jobs with `refresh`
    /// set; the output for the last row of each sequence is what [`draft_step`](Self::draft_step) 0 chooses
    /// from.
    pub fn refresh(&mut self, jobs: &[DraftJob], refresh: &[bool]) -> Result<()> {
        // The jobs are the first sequences of the target's pass, which may have padding behind them.
        let sequences = self.pass.table.sequences.max(jobs.len());
        let wanted: Vec<usize> =
            jobs.iter().zip(refresh).map(|(job, due)| if *due { job.behind } else { 0 }).collect();
        let max_rows = wanted.iter().copied().max().unwrap_or(1).max(1);
        let slots = jobs.iter().zip(refresh).map(|(job, due)| if *due { job.slot as i32 } else { PAD });
        let padding = std::iter::repeat_n(PAD, sequences - jobs.len());
        self.refreshed.set(&self.cx.queue, slots.chain(padding))?;
        self.forget_rows(jobs)?;
        self.draft.table.sequences = sequences;
        self.draft.max_rows = max_rows;
        // A round's rows are few for each sequence: then the bound that goes with every such round. Behind a
        // prompt's pass it is what that one left.
        let recorded = self.pace.by_bounds() && max_rows <= self.limits.max_rows();
        if recorded {
            self.draft.rows = sequences * max_rows;
            let part = Part::Refresh { sequences, max_rows, forward_rows: self.pass.rows };
            self.part(part, Self::catch_up)
        } else {
            self.draft.rows = wanted.iter().sum::<usize>().max(1);
            self.catch_up()
        }
    }

    /// The operations of a refresh.
    fn catch_up(&mut self) -> Result<()> {
        let (sequences, bound) = (self.draft.table.sequences, self.draft.rows);
        let max_rows = self.draft.max_rows;
        let base = self.problem(sequences, bound, max_rows);
        let (forward_rows, ring_rows) = (self.pass.rows, self.limits.hidden_rows());
        let args = DraftInputsArgs {
            rows: self.draft.table.lend_mut(),
            ids: TensorMut::of(&mut self.draft.ids, [bound]),
            slots: self.caches.shared.table.lend(),
            sequences: self.refreshed.of(sequences),
            forward: self.pass.table.lend(),
        };
        let problem = DraftProblem { base, ring_rows };
        let op = DraftInputs::plan(problem, &self.cx.device)?.overlapping(true);
        self.cx.run(Op::Inputs, |on| op.run(on, args))?;
        if !self.pace.by_bounds() {
            self.draft.rows = offsets_of(&self.cx.queue, &self.draft.table)?[sequences].max(1);
        }

        let rows = self.draft.rows;
        let hidden = self.hidden_problem(sequences, rows);
        let (width, slots) = (hidden.width, hidden.slots);
        let before_norm = fault::active("engine.pre_norm_hidden");
        let target_rows = if before_norm { &self.scratch.residual } else { &self.scratch.hidden };
        let args = CarryArgs {
            out: TensorMut::of(&mut self.scratch.carried, [rows, width]),
            faults: TensorMut::of(&mut self.caches.shared.table.faults, [slots + 1]),
            hidden: Tensor::of(target_rows, [forward_rows, width]),
            ring: Tensor::of(&self.caches.hidden, [slots, ring_rows, width]),
            forward: self.pass.table.lend(),
            rows: self.draft.table.lend(),
        };
        let op = Carry::plan(hidden, &self.cx.device)?.overlapping(true);
        self.cx.run(Op::Carry, |on| op.run(on, args))?;
        // The head has no recurrence, so a kind is only a kernel of attention, and bits are the same.
        self.draft_forward(if max_rows <= MAX_DRAFTS + 1 { Kind::Decode } else { Kind::Prefill })?;
        self.propose(None)
    }

    /// With a planted fault: rows that were never made from a hidden row of the target count as made.
    fn forget_rows(&mut self, jobs: &[DraftJob]) -> Result<()> {
        let both = fault::active("engine.newest_row_only");
        let prompt = both || fault::active("engine.prompt_not_drafted");
        let chain = both || fault::active("engine.chained_rows_kept");
        for job in jobs.iter().filter(|job| if job.behind == job.committed { prompt } else { chain }) {
            let table = &mut self.caches.shared.table;
            B::write(&self.cx.queue, &mut table.drafted, job.slot, &[job.committed as i32])?;
        }
        Ok(())
    }

    /// Keeps the hidden rows of the latest target pass for later refreshes.
    pub fn keep_hidden(&mut self) -> Result<()> {
        let (sequences, rows) = (self.pass.table.sequences, self.pass.rows);
        if rows > sequences * self.limits.max_rows() {
            return self.keep();
        }
        self.part(Part::Keep { sequences, forward_rows: rows }, Self::keep)
    }

    fn keep(&mut self) -> Result<()> {
        let rows = self.pass.rows;
        let problem = self.hidden_problem(self.pass.table.sequences, rows);
        let (width, slots) = (problem.width, problem.slots);
        let table = &mut self.caches.shared.table;
        let args = KeepHiddenArgs {
            ring: TensorMut::of(&mut self.caches.hidden, [slots, problem.ring_rows, width]),
            faults: TensorMut::of(&mut table.faults, [slots + 1]),
            committed: Tensor::of(&table.committed, [slots]),
            hidden: Tensor::of(&self.scratch.hidden, [rows, width]),
            rows: self.pass.table.lend(),
        };
        let op = KeepHidden::plan(problem, &self.cx.device)?.overlapping(true);
        self.cx.run(Op::Keep, |on| op.run(on, args))
    }

    /// Makes draft number `step + 1` of every job that wants it. Step 0 follows a [`refresh`](Self::refresh).
    pub fn draft_step(&mut self, jobs: &[DraftJob], step: usize) -> Result<()> {
        let sequences = self.draft.table.sequences;
        let (rows, max_rows) = (self.draft.rows, self.draft.max_rows);
        if step == 0 {
            self.last.sequences = sequences;
        } else {
            let want = |job: &DraftJob| !job.finished && job.drafts > step;
            let slots = jobs.iter().map(|job| if want(job) { job.slot as i32 } else { PAD });
            let padding = std::iter::repeat_n(PAD, sequences - jobs.len());
            self.drafting[step].set(&self.cx.queue, slots.chain(padding))?;
            (self.draft.rows, self.draft.max_rows) = (sequences, 1);
        }
        if rows > sequences * self.limits.max_rows() {
            return self.draft_one(step, rows, max_rows);
        }
        let part = Part::Draft { sequences, step, rows, max_rows };
        self.part(part, |core| core.draft_one(step, rows, max_rows))
    }

    /// The operations of a draft, behind a pass of the head over `rows` rows.
    fn draft_one(&mut self, step: usize, rows: usize, max_rows: usize) -> Result<()> {
        let sequences = self.draft.table.sequences;
        let choosing = if step == 0 {
            let problem = self.problem(sequences, rows, max_rows);
            let args = LastRowsArgs {
                last: self.last.lend_mut(),
                slots: self.caches.shared.table.lend(),
                rows: self.draft.table.lend(),
            };
            let op = LastRows::plan(problem, &self.cx.device)?.overlapping(true);
            self.cx.run(Op::LastRows, |on| op.run(on, args))?;
            Choosing::Last
        } else {
            // In `carried` stands the head's own output for the row before, in place of the target's, and
            // the list of the pass before becomes the next one's.
            let problem = self.problem(sequences, sequences, 1);
            let args = ChainInputsArgs {
                rows: self.draft.table.lend_mut(),
                ids: TensorMut::of(&mut self.draft.ids, [sequences]),
                slots: self.caches.shared.table.lend(),
                sequences: self.drafting[step].of(sequences),
            };
            let op = ChainInputs::plan(problem, &self.cx.device)?.overlapping(true);
            self.cx.run(Op::Inputs, |on| op.run(on, args))?;
            self.draft_forward(Kind::Decode)?;
            Choosing::Draft
        };
        let drafted = self.draft.rows;
        let problem = HiddenProblem { forward_rows: drafted, ..self.hidden_problem(sequences, drafted) };
        let (width, slots) = (problem.width, problem.slots);
        let args = TakeLastArgs {
            out: TensorMut::of(&mut self.scratch.carried, [sequences, width]),
            faults: TensorMut::of(&mut self.caches.shared.table.faults, [slots + 1]),
            hidden: Tensor::of(&self.scratch.drafted, [drafted, width]),
            rows: self.draft.table.lend(),
        };
        let op = TakeLast::plan(problem, &self.cx.device)?.overlapping(true);
        self.cx.run(Op::LastRows, |on| op.run(on, args))?;
        self.choose_drafts(choosing, sequences)?;
        self.propose(Some(choosing))
    }

    /// Writes drafts that did not come from the head.
    pub fn write_drafts(&mut self, job: &DraftJob, drafts: &[u32]) -> Result<()> {
        let on = &self.cx.queue;
        let table = &mut self.caches.shared.table;
        let at = job.committed + 1;
        let room = drafts.len().min(self.limits.positions.saturating_sub(at));
        let ids: Vec<i32> = drafts[..room].iter().map(|id| *id as i32).collect();
        B::write(on, &mut table.tokens, job.slot * self.limits.positions + at, &ids)?;
        Ok(B::write(on, &mut table.proposed, job.slot, &[room as i32])?)
    }

    fn draft_forward(&mut self, kind: Kind) -> Result<()> {
        let pass = self.draft.pass(kind);
        self.model.draft(&self.cx, &pass, &mut self.scratch, &mut self.caches)
    }

    /// Marks the rows of the draft's pass as made, and stands what it chose behind the tokens.
    fn propose(&mut self, choosing: Option<Choosing>) -> Result<()> {
        let sequences = self.draft.table.sequences;
        let problem = self.problem(sequences, self.draft.rows.max(sequences), self.draft.max_rows);
        let rows = match choosing {
            Some(Choosing::Last) => &self.last,
            _ => &self.draft.table,
        };
        let args = ProposeArgs {
            slots: self.caches.shared.table.lend(),
            choice: choosing.map(|_| Tensor::of(&self.scratch.choice, [sequences])),
            rows: rows.lend(),
        };
        let op = Propose::plan(problem, &self.cx.device)?.overlapping(true);
        self.cx.run(Op::Propose, |on| op.run(on, args))
    }

    fn hidden_problem(&self, sequences: usize, rows: usize) -> HiddenProblem {
        HiddenProblem {
            sequences,
            rows,
            forward_rows: self.pass.rows,
            width: self.model.config().hidden,
            slots: self.limits.slots,
            ring_rows: self.limits.hidden_rows(),
        }
    }

    /// Stands the drafts of a script behind the tokens, over whatever stands there.
    pub fn script(&mut self, jobs: &[DraftJob], table: &mut OracleTable<B>) -> Result<()> {
        let (on, sequences) = (&self.cx.queue, jobs.len());
        let Limits { slots, positions, max_drafts, .. } = self.limits;
        let wants = |job: &DraftJob| !job.finished && job.drafts > 0;
        if !jobs.iter().any(wants) {
            return Ok(());
        }
        let list = jobs.iter().map(|job| if wants(job) { job.slot as i32 } else { PAD });
        table.sequences.set(on, list)?;
        table.drafts.set(on, jobs.iter().map(|job| job.drafts as i32))?;
        let pattern = table.pattern.as_ref().map(|(memory, rounds)| Tensor::of(memory, [*rounds]));
        let problem = kernels_spec::OracleProblem {
            sequences,
            max_drafts,
            slots,
            positions,
            valid: self.model.valid_vocab(),
            pattern: pattern.as_ref().map(|pattern| pattern.dims[0]),
            seed: table.seed,
        };
        let args = kernels_spec::OracleArgs {
            slots: self.caches.shared.table.lend(),
            rounds: TensorMut::of(&mut table.rounds, [slots]),
            truth: Tensor::of(&table.truth, [slots, positions]),
            rate: Tensor::of(&table.rate, [slots]),
            pattern,
            sequences: table.sequences.of(sequences),
            drafts: table.drafts.of(sequences),
        };
        let op = kernels_spec::Oracle::plan(problem, &self.cx.device)?.overlapping(true);
        self.cx.run(Op::Script, |on| op.run(on, args))
    }
}

//! The operations with owned results, so that a test reads like the round it is about.

use kernels_core::{Cpu, DeviceInfo, Result, Tensor, TensorMut};
use kernels_spec::*;

/// The slots of a small machine, and the bounds of its launches.
pub(crate) struct Sim {
    pub(crate) table: SlotTable<Cpu>,
    pub(crate) sampling: SamplingTable<Cpu>,
    pub(crate) max_rows: usize,
    pub(crate) flush_after: usize,
    pub(crate) eos: Vec<i32>,
    pub(crate) stops: Vec<i32>,
    pub(crate) stops_shape: [usize; 2],
    pub(crate) rounds: Vec<u64>,
    pub(crate) verified: Vec<u64>,
    pub(crate) accepted: Vec<u64>,
}

pub(crate) const MAX_EOS: usize = 2;

/// A row list with its token ids.
pub(crate) struct Inputs {
    pub(crate) rows: RowTable<Cpu>,
    pub(crate) ids: Vec<i32>,
}

pub(crate) fn cpu() -> DeviceInfo {
    DeviceInfo::cpu()
}

/// A row list from plain numbers.
pub(crate) fn rows(slots: &[i32], start: &[i32], row_offsets: &[i32]) -> RowTable<Cpu> {
    RowTable {
        sequences: slots.len(),
        slots: slots.to_vec(),
        start: start.to_vec(),
        row_offsets: row_offsets.to_vec(),
    }
}

impl Sim {
    pub(crate) fn new(slots: usize, positions: usize, max_rows: usize) -> Sim {
        let stops_shape = [2, 3];
        Sim {
            table: SlotTable::new(&(), slots, positions).unwrap(),
            sampling: SamplingTable::new(&(), slots, 2).unwrap(),
            max_rows,
            flush_after: 1,
            eos: vec![-1; slots * MAX_EOS],
            stops: vec![-1; slots * 6],
            stops_shape,
            rounds: vec![0; slots * (max_rows + 1)],
            verified: vec![0; slots * max_rows],
            accepted: vec![0; slots * max_rows],
        }
    }

    pub(crate) fn problem(&self, sequences: usize, rows: usize) -> Problem {
        let (slots, positions) = (self.table.slots, self.table.positions);
        Problem { sequences, rows, max_rows: self.max_rows, slots, positions }
    }

    pub(crate) fn tokens(&self, slot: usize) -> &[i32] {
        &self.table.tokens[slot * self.table.positions..][..self.table.positions]
    }

    pub(crate) fn state(&self, slot: usize) -> State {
        State::of(self.table.state[slot]).unwrap()
    }

    pub(crate) fn target_inputs(&mut self, list: &[i32], drafts: &[i32]) -> Inputs {
        let (n, capacity) = (list.len(), list.len() * self.max_rows);
        let op = TargetInputs::plan(self.problem(n, capacity), &cpu()).unwrap();
        let mut made = Inputs { rows: RowTable::new(&(), n).unwrap(), ids: vec![77; capacity] };
        op.run::<Cpu>(
            &(),
            TargetInputsArgs {
                rows: made.rows.lend_mut(),
                ids: TensorMut::of(&mut made.ids, [capacity]),
                slots: self.table.lend(),
                sequences: Tensor::new(list, [n]),
                drafts: Tensor::new(drafts, [n]),
            },
        )
        .unwrap();
        made
    }

    pub(crate) fn prefill_inputs(&mut self, list: &[i32], lengths: &[i32], capacity: usize) -> Inputs {
        let n = list.len();
        let problem = Problem { max_rows: capacity, ..self.problem(n, capacity) };
        let op = PrefillInputs::plan(problem, &cpu()).unwrap();
        let mut made = Inputs { rows: RowTable::new(&(), n).unwrap(), ids: vec![77; capacity] };
        op.run::<Cpu>(
            &(),
            PrefillInputsArgs {
                rows: made.rows.lend_mut(),
                ids: TensorMut::of(&mut made.ids, [capacity]),
                slots: self.table.lend(),
                sequences: Tensor::new(list, [n]),
                lengths: Tensor::new(lengths, [n]),
            },
        )
        .unwrap();
        made
    }

    pub(crate) fn draft_inputs(
        &mut self,
        list: &[i32],
        forward: &RowTable<Cpu>,
        capacity: usize,
        ring_rows: usize,
    ) -> Inputs {
        let n = list.len();
        let base = Problem { max_rows: capacity, ..self.problem(n, capacity) };
        let problem = DraftProblem { base, ring_rows };
        let op = DraftInputs::plan(problem, &cpu()).unwrap();
        let mut made = Inputs { rows: RowTable::new(&(), n).unwrap(), ids: vec![77; capacity] };
        op.run::<Cpu>(
            &(),
            DraftInputsArgs {
                rows: made.rows.lend_mut(),
                ids: TensorMut::of(&mut made.ids, [capacity]),
                slots: self.table.lend(),
                sequences: Tensor::new(list, [n]),
                forward: forward.lend(),
            },
        )
        .unwrap();
        made
    }

    pub(crate) fn chain_inputs(&mut self, list: &[i32], previous: RowTable<Cpu>) -> Inputs {
        let n = list.len();
        let op = ChainInputs::plan(self.problem(n, n), &cpu()).unwrap();
        let mut made = Inputs { rows: previous, ids: vec![77; n] };
        op.run::<Cpu>(
            &(),
            ChainInputsArgs {
                rows: made.rows.lend_mut(),
                ids: TensorMut::of(&mut made.ids, [n]),
                slots: self.table.lend(),
                sequences: Tensor::new(list, [n]),
            },
        )
        .unwrap();
        made
    }

    /// The rows that a list of `capacity` rows may have per sequence: all, where it is a prompt's.
    fn wide(&self, rows: &RowTable<Cpu>, capacity: usize) -> Problem {
        Problem { max_rows: capacity.max(self.max_rows), ..self.problem(rows.sequences, capacity) }
    }

    pub(crate) fn last_rows(&mut self, rows: &RowTable<Cpu>, capacity: usize) -> RowTable<Cpu> {
        let op = LastRows::plan(self.wide(rows, capacity), &cpu()).unwrap();
        let mut last = RowTable::new(&(), rows.sequences).unwrap();
        let args = LastRowsArgs { last: last.lend_mut(), slots: self.table.lend(), rows: rows.lend() };
        op.run::<Cpu>(&(), args).unwrap();
        last
    }

    pub(crate) fn accept(&mut self, rows: &RowTable<Cpu>, choice: &[i32]) -> Vec<i32> {
        let op = Accept::plan(self.problem(rows.sequences, choice.len()), &cpu()).unwrap();
        let mut accepted = vec![77; rows.sequences];
        op.run::<Cpu>(
            &(),
            AcceptArgs {
                accepted: TensorMut::of(&mut accepted, [rows.sequences]),
                slots: self.table.lend(),
                choice: Tensor::new(choice, [choice.len()]),
                rows: rows.lend(),
            },
        )
        .unwrap();
        accepted
    }

    pub(crate) fn stop(&mut self, rows: &RowTable<Cpu>, capacity: usize, accepted: &mut [i32]) {
        let [max_stops, max_stop_length] = self.stops_shape;
        let slots = self.table.slots;
        let problem =
            StopProblem { base: self.wide(rows, capacity), max_eos: MAX_EOS, max_stops, max_stop_length };
        let op = Stop::plan(problem, &cpu()).unwrap();
        op.run::<Cpu>(
            &(),
            StopArgs {
                accepted: TensorMut::new(accepted, [rows.sequences]),
                slots: self.table.lend(),
                stops: Stops {
                    eos: Tensor::of(&self.eos, [slots, MAX_EOS]),
                    sequences: Tensor::of(&self.stops, [slots, max_stops, max_stop_length]),
                },
                rows: rows.lend(),
            },
        )
        .unwrap();
    }

    pub(crate) fn advance(
        &mut self,
        pass: Pass,
        rows: &RowTable<Cpu>,
        capacity: usize,
        accepted: &mut [i32],
    ) {
        let base = match pass {
            Pass::Decode => self.problem(rows.sequences, capacity),
            Pass::Prefill => self.wide(rows, capacity),
        };
        let problem = AdvanceProblem { base, flush_after: self.flush_after, pass };
        let op = Advance::plan(problem, &cpu()).unwrap();
        let (slots, columns) = (self.table.slots, self.max_rows);
        let counters = (pass == Pass::Decode).then(|| Counters {
            rounds: TensorMut::of(&mut self.rounds, [slots, columns + 1]),
            verified: TensorMut::of(&mut self.verified, [slots, columns]),
            accepted: TensorMut::of(&mut self.accepted, [slots, columns]),
        });
        op.run::<Cpu>(
            &(),
            AdvanceArgs {
                accepted: TensorMut::new(accepted, [rows.sequences]),
                slots: self.table.lend(),
                counters,
                rows: rows.lend(),
            },
        )
        .unwrap();
    }

    pub(crate) fn emit(&mut self, rows: &RowTable<Cpu>, capacity: usize, accepted: &[i32]) -> Vec<Vec<i32>> {
        let op = Emit::plan(self.problem(rows.sequences, capacity), &cpu()).unwrap();
        let width = self.max_rows + 2;
        let mut emitted = vec![77; rows.sequences * width];
        op.run::<Cpu>(
            &(),
            EmitArgs {
                emitted: TensorMut::of(&mut emitted, [rows.sequences, width]),
                accepted: Tensor::new(accepted, [rows.sequences]),
                slots: self.table.lend(),
                rows: rows.lend(),
            },
        )
        .unwrap();
        emitted.chunks(width).map(<[i32]>::to_vec).collect()
    }

    pub(crate) fn propose(&mut self, rows: &RowTable<Cpu>, capacity: usize, choice: Option<&[i32]>) {
        let op = Propose::plan(self.wide(rows, capacity), &cpu()).unwrap();
        let choice = choice.map(|choice| Tensor::new(choice, [choice.len()]));
        let args = ProposeArgs { slots: self.table.lend(), choice, rows: rows.lend() };
        op.run::<Cpu>(&(), args).unwrap();
    }

    /// Two drafts at most, from a table without an unknown token.
    pub(crate) fn oracle(&mut self, list: &[i32], drafts: &[i32], pattern: &[i32]) -> Vec<u32> {
        let (n, slots, positions) = (list.len(), self.table.slots, self.table.positions);
        let pattern = (!pattern.is_empty()).then(|| Tensor::new(pattern, [pattern.len()]));
        let problem = OracleProblem {
            sequences: n,
            max_drafts: 2,
            slots,
            positions,
            valid: 5,
            pattern: pattern.as_ref().map(|pattern| pattern.dims[0]),
            seed: 1,
        };
        let (truth, rate, mut rounds) = (vec![3; slots * positions], vec![0.5; slots], vec![u32::MAX; slots]);
        let args = OracleArgs {
            slots: self.table.lend(),
            rounds: TensorMut::of(&mut rounds, [slots]),
            truth: Tensor::of(&truth, [slots, positions]),
            rate: Tensor::of(&rate, [slots]),
            pattern,
            sequences: Tensor::new(list, [n]),
            drafts: Tensor::new(drafts, [n]),
        };
        Oracle::plan(problem, &cpu()).unwrap().run::<Cpu>(&(), args).unwrap();
        rounds
    }

    pub(crate) fn sample_problem(&self, sequences: usize, rows: usize, vocab: usize) -> SampleProblem {
        let (slots, positions) = (self.table.slots, self.table.positions);
        SampleProblem { sequences, rows, vocab, valid: vocab, slots, positions, max_bias: 2 }
    }

    pub(crate) fn sample(&mut self, rows: &RowTable<Cpu>, logits: &[f32], vocab: usize) -> Vec<i32> {
        self.try_sample(rows, logits, self.sample_problem(rows.sequences, logits.len() / vocab, vocab))
            .unwrap()
    }

    pub(crate) fn try_sample(
        &mut self,
        rows: &RowTable<Cpu>,
        logits: &[f32],
        problem: SampleProblem,
    ) -> Result<Vec<i32>> {
        let op = Sample::plan(problem, &cpu())?;
        let mut choice = vec![77; problem.rows];
        op.run::<Cpu>(
            &(),
            SampleArgs {
                choice: TensorMut::of(&mut choice, [problem.rows]),
                faults: TensorMut::of(&mut self.table.faults, [problem.slots + 1]),
                logits: Tensor::new(logits, [problem.rows, problem.vocab]),
                rows: rows.lend(),
                tokens: Tensor::of(&self.table.tokens, [problem.slots, problem.positions]),
                prompt: Tensor::of(&self.table.prompt, [problem.slots]),
                sampling: self.sampling.lend(),
                workspace: None,
            },
        )?;
        Ok(choice)
    }

    pub(crate) fn draw_draft(
        &mut self,
        rows: &RowTable<Cpu>,
        logits: &[f32],
        vocab: usize,
        kept: &mut [f32],
    ) -> Vec<i32> {
        let count = logits.len() / vocab;
        let base = self.sample_problem(rows.sequences, count, vocab);
        let ring_rows = kept.len() / vocab / base.slots;
        let op = DrawDraft::plan(RejectionProblem { base, ring_rows }, &cpu()).unwrap();
        let mut choice = vec![77; count];
        op.run::<Cpu>(
            &(),
            DrawDraftArgs {
                choice: TensorMut::of(&mut choice, [count]),
                probabilities: TensorMut::new(kept, [base.slots, ring_rows, vocab]),
                faults: TensorMut::of(&mut self.table.faults, [base.slots + 1]),
                logits: Tensor::new(logits, [count, vocab]),
                rows: rows.lend(),
                tokens: Tensor::of(&self.table.tokens, [base.slots, base.positions]),
                prompt: Tensor::of(&self.table.prompt, [base.slots]),
                sampling: self.sampling.lend(),
                workspace: None,
            },
        )
        .unwrap();
        choice
    }

    pub(crate) fn rejection(
        &mut self,
        rows: &RowTable<Cpu>,
        logits: &[f32],
        vocab: usize,
        kept: &[f32],
    ) -> Vec<i32> {
        let count = logits.len() / vocab;
        let base = self.sample_problem(rows.sequences, count, vocab);
        let ring_rows = kept.len() / vocab / base.slots;
        let op = Rejection::plan(RejectionProblem { base, ring_rows }, &cpu()).unwrap();
        let mut accepted = vec![77; rows.sequences];
        op.run::<Cpu>(
            &(),
            RejectionArgs {
                accepted: TensorMut::of(&mut accepted, [rows.sequences]),
                slots: self.table.lend(),
                logits: Tensor::new(logits, [count, vocab]),
                probabilities: Tensor::new(kept, [base.slots, ring_rows, vocab]),
                rows: rows.lend(),
                sampling: self.sampling.lend(),
                workspace: None,
            },
        )
        .unwrap();
        accepted
    }

    pub(crate) fn carry(
        &mut self,
        hidden: &[f32],
        ring: &[f32],
        width: usize,
        forward: &RowTable<Cpu>,
        draft: &RowTable<Cpu>,
        capacity: usize,
    ) -> Vec<f32> {
        let problem =
            self.hidden_problem(forward.sequences, capacity, hidden.len() / width, width, ring.len());
        let op = Carry::plan(problem, &cpu()).unwrap();
        let mut out = vec![f32::NAN; capacity * width];
        op.run::<Cpu, f32>(
            &(),
            CarryArgs {
                out: TensorMut::of(&mut out, [capacity, width]),
                faults: TensorMut::of(&mut self.table.faults, [problem.slots + 1]),
                hidden: Tensor::new(hidden, [problem.forward_rows, width]),
                ring: Tensor::new(ring, [problem.slots, problem.ring_rows, width]),
                forward: forward.lend(),
                rows: draft.lend(),
            },
        )
        .unwrap();
        out
    }

    pub(crate) fn keep_hidden(
        &mut self,
        hidden: &[f32],
        ring: &mut [f32],
        width: usize,
        rows: &RowTable<Cpu>,
    ) {
        let count = hidden.len() / width;
        let problem = self.hidden_problem(rows.sequences, count, count, width, ring.len());
        let op = KeepHidden::plan(problem, &cpu()).unwrap();
        op.run::<Cpu, f32>(
            &(),
            KeepHiddenArgs {
                ring: TensorMut::new(ring, [problem.slots, problem.ring_rows, width]),
                faults: TensorMut::of(&mut self.table.faults, [problem.slots + 1]),
                committed: Tensor::of(&self.table.committed, [problem.slots]),
                hidden: Tensor::new(hidden, [count, width]),
                rows: rows.lend(),
            },
        )
        .unwrap();
    }

    pub(crate) fn take_last(&mut self, hidden: &[f32], width: usize, rows: &RowTable<Cpu>) -> Vec<f32> {
        let count = hidden.len() / width;
        let ring = self.table.slots * width;
        let problem = self.hidden_problem(rows.sequences, count, count, width, ring);
        let op = TakeLast::plan(problem, &cpu()).unwrap();
        let mut out = vec![f32::NAN; rows.sequences * width];
        op.run::<Cpu, f32>(
            &(),
            TakeLastArgs {
                out: TensorMut::of(&mut out, [rows.sequences, width]),
                faults: TensorMut::of(&mut self.table.faults, [problem.slots + 1]),
                hidden: Tensor::new(hidden, [count, width]),
                rows: rows.lend(),
            },
        )
        .unwrap();
        out
    }

    fn hidden_problem(
        &self,
        sequences: usize,
        rows: usize,
        forward_rows: usize,
        width: usize,
        ring: usize,
    ) -> HiddenProblem {
        let slots = self.table.slots;
        HiddenProblem { sequences, rows, forward_rows, width, slots, ring_rows: ring / width / slots }
    }
}

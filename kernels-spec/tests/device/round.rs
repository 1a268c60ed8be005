//! Whole rounds of a small machine: verified drafts, settled, refreshed and drafted again.

use crate::world::{Numbers, Place};
use kernels_core::{Tensor, TensorMut};
use kernels_spec::*;
use kernels_testkit::{rng::Rng, runner::stride};

pub(crate) const SLOTS: usize = 6;
const POSITIONS: usize = 128;
pub(crate) const MAX_ROWS: usize = 4;
pub(crate) const VOCAB: usize = 1500;
const WIDTH: usize = 24;
const RING: usize = 6;
/// Rows of the target's pass, and of the draft's.
const ROWS: usize = SLOTS * MAX_ROWS;
const PROMPT: usize = 3;

/// A machine whose model is a table: the same logits in each row, so that noise and penalties alone choose.
pub(crate) struct Machine<B: Place> {
    on: B::Queue,
    /// Launches may begin while those before still run.
    pub(crate) overlapping: bool,
    pub(crate) table: SlotTable<B>,
    sampling: SamplingTable<B>,
    sequences: B::Memory<i32>,
    pub(crate) drafts: B::Memory<i32>,
    logits: B::Memory<f32>,
    draft_logits: B::Memory<f32>,
    hidden: B::Memory<f32>,
    ring: B::Memory<f32>,
    carried: B::Memory<f32>,
    ids: B::Memory<i32>,
    rows: RowTable<B>,
    draft_rows: RowTable<B>,
    last: RowTable<B>,
    choice: B::Memory<i32>,
    draft_choice: B::Memory<i32>,
    accepted: B::Memory<i32>,
    emitted: B::Memory<i32>,
    eos: B::Memory<i32>,
    stops: B::Memory<i32>,
    counts: [B::Memory<u64>; 3],
    workspace: B::Memory<u8>,
}

/// What a round leaves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Left {
    pub(crate) numbers: Numbers,
    pub(crate) emitted: Vec<i32>,
    pub(crate) counts: Vec<Vec<u64>>,
    ring: Vec<f32>,
    carried: Vec<f32>,
}

impl<B: Place> Machine<B> {
    pub(crate) fn new(on: &B::Queue, drafts: usize) -> Self {
        let mut rng = Rng::new(5);
        let row: Vec<f32> = rng.normals(VOCAB, 3.0);
        let draft_row: Vec<f32> = row.iter().map(|x| x + 0.4 * rng.normal()).collect();
        let mut table = SlotTable::new(on, SLOTS, POSITIONS).unwrap();
        let mut sampling = SamplingTable::new(on, SLOTS, 2).unwrap();
        for slot in 0..SLOTS {
            let prompt: Vec<i32> = (0..=PROMPT).map(|i| (slot * 7 + i) as i32).collect();
            table.admit(on, slot, &prompt, POSITIONS, POSITIONS - 9 * slot).unwrap();
            // As after its prefill: the fourth token is the first of the answer.
            for counter in [&mut table.committed, &mut table.folded, &mut table.prompt] {
                B::write(on, counter, slot, &[PROMPT as i32]).unwrap();
            }
            B::write(on, &mut table.drafted, slot, &[PROMPT as i32]).unwrap();
            let params = SamplingParams {
                temperature: [1.0, 0.0, 0.7, 1.2, 0.8, 1.0][slot],
                top_k: [0, 0, 40, 0, 0, 0][slot],
                top_p: [1.0, 1.0, 1.0, 0.8, 0.95, 1.0][slot],
                min_p: [0.0, 0.0, 0.0, 0.0, 0.01, 0.02][slot],
                presence_penalty: [0.0, 1.5, 0.0, 0.4, 0.0, 0.0][slot],
                repetition_penalty: [1.0, 1.1, 1.0, 1.0, 1.0, 1.2][slot],
                bias: if slot == 4 { vec![(11, 3.0)] } else { vec![] },
                seed: 900 + slot as u64,
                ..SamplingParams::default()
            };
            sampling.set(on, slot, &params, VOCAB).unwrap();
        }
        let zeros = |n: usize| B::zeros::<i32>(on, n).unwrap();
        let floats = |x: &[f32]| B::upload(on, x).unwrap();
        let problem = Self::sample_problem(ROWS);
        let bytes = Sample::plan(problem, &B::device(on)).unwrap().workspace_bytes();
        Machine {
            on: on.clone(),
            overlapping: false,
            table,
            sampling,
            sequences: B::upload(on, &[4, 0, -1, 2, 5, 1]).unwrap(),
            drafts: B::upload(on, &[drafts as i32; SLOTS]).unwrap(),
            logits: floats(&row.repeat(ROWS)),
            draft_logits: floats(&draft_row.repeat(SLOTS)),
            hidden: floats(&rng.normals::<f32>(ROWS * WIDTH, 1.0)),
            ring: B::zeros(on, SLOTS * RING * WIDTH).unwrap(),
            carried: B::zeros(on, ROWS * WIDTH).unwrap(),
            ids: zeros(ROWS),
            rows: RowTable::new(on, SLOTS).unwrap(),
            draft_rows: RowTable::new(on, SLOTS).unwrap(),
            last: RowTable::new(on, SLOTS).unwrap(),
            choice: zeros(ROWS),
            draft_choice: zeros(SLOTS),
            accepted: zeros(SLOTS),
            emitted: zeros(SLOTS * (MAX_ROWS + 2)),
            eos: B::upload(on, &[-1; SLOTS]).unwrap(),
            stops: B::upload(on, &[-1; SLOTS * 2]).unwrap(),
            counts: [MAX_ROWS + 1, MAX_ROWS, MAX_ROWS].map(|n| B::zeros(on, SLOTS * n).unwrap()),
            workspace: B::upload(on, &vec![0x5au8; bytes]).unwrap(),
        }
    }

    fn sample_problem(rows: usize) -> SampleProblem {
        let (vocab, positions) = (VOCAB, POSITIONS);
        SampleProblem {
            sequences: SLOTS,
            rows,
            vocab,
            valid: VOCAB - 3,
            slots: SLOTS,
            positions,
            max_bias: 2,
        }
    }

    fn base(rows: usize, max_rows: usize) -> Problem {
        Problem { sequences: SLOTS, rows, max_rows, slots: SLOTS, positions: POSITIONS }
    }

    /// Enqueues a round: what stands behind the tokens is verified, and as much drafted again.
    pub(crate) fn round(&mut self) -> kernels_core::Result<()> {
        let device = B::device(&self.on);
        let (base, one) = (Self::base(ROWS, MAX_ROWS), Self::base(SLOTS, 1));
        let early = self.overlapping;
        TargetInputs::plan(base, &device)?.overlapping(early).run::<B>(
            &self.on,
            TargetInputsArgs {
                rows: self.rows.lend_mut(),
                ids: TensorMut::of(&mut self.ids, [ROWS]),
                slots: self.table.lend(),
                sequences: Tensor::of(&self.sequences, [SLOTS]),
                drafts: Tensor::of(&self.drafts, [SLOTS]),
            },
        )?;
        self.choose(false)?;
        let stop = StopProblem { base, max_eos: 1, max_stops: 1, max_stop_length: 2 };
        let [rounds, verified, accepted] = &mut self.counts;
        Settle::plan(SettleProblem { stop, flush_after: 2 }, &device)?.overlapping(early).run::<B>(
            &self.on,
            SettleArgs {
                accepted: TensorMut::of(&mut self.accepted, [SLOTS]),
                emitted: TensorMut::of(&mut self.emitted, [SLOTS, MAX_ROWS + 2]),
                slots: self.table.lend(),
                choice: Tensor::of(&self.choice, [ROWS]),
                stops: Stops {
                    eos: Tensor::of(&self.eos, [SLOTS, 1]),
                    sequences: Tensor::of(&self.stops, [SLOTS, 1, 2]),
                },
                counters: Some(Counters {
                    rounds: TensorMut::of(rounds, [SLOTS, MAX_ROWS + 1]),
                    verified: TensorMut::of(verified, [SLOTS, MAX_ROWS]),
                    accepted: TensorMut::of(accepted, [SLOTS, MAX_ROWS]),
                }),
                rows: self.rows.lend(),
            },
        )?;
        DraftInputs::plan(DraftProblem { base, ring_rows: RING }, &device)?.overlapping(early).run::<B>(
            &self.on,
            DraftInputsArgs {
                rows: self.draft_rows.lend_mut(),
                ids: TensorMut::of(&mut self.ids, [ROWS]),
                slots: self.table.lend(),
                sequences: Tensor::of(&self.sequences, [SLOTS]),
                forward: self.rows.lend(),
            },
        )?;
        let hidden = HiddenProblem {
            sequences: SLOTS,
            rows: ROWS,
            forward_rows: ROWS,
            width: WIDTH,
            slots: SLOTS,
            ring_rows: RING,
        };
        Carry::plan(hidden, &device)?.overlapping(early).run::<B, f32>(
            &self.on,
            CarryArgs {
                out: TensorMut::of(&mut self.carried, [ROWS, WIDTH]),
                faults: TensorMut::of(&mut self.table.faults, [SLOTS + 1]),
                hidden: Tensor::of(&self.hidden, [ROWS, WIDTH]),
                ring: Tensor::of(&self.ring, [SLOTS, RING, WIDTH]),
                forward: self.rows.lend(),
                rows: self.draft_rows.lend(),
            },
        )?;
        KeepHidden::plan(hidden, &device)?.overlapping(early).run::<B, f32>(
            &self.on,
            KeepHiddenArgs {
                ring: TensorMut::of(&mut self.ring, [SLOTS, RING, WIDTH]),
                faults: TensorMut::of(&mut self.table.faults, [SLOTS + 1]),
                committed: Tensor::of(&self.table.committed, [SLOTS]),
                hidden: Tensor::of(&self.hidden, [ROWS, WIDTH]),
                rows: self.rows.lend(),
            },
        )?;
        LastRows::plan(base, &device)?.overlapping(early).run::<B>(
            &self.on,
            LastRowsArgs {
                last: self.last.lend_mut(),
                slots: self.table.lend(),
                rows: self.draft_rows.lend(),
            },
        )?;
        self.choose(true)?;
        self.propose(Self::base(ROWS, MAX_ROWS))?;
        for _ in 2..MAX_ROWS {
            ChainInputs::plan(one, &device)?.overlapping(early).run::<B>(
                &self.on,
                ChainInputsArgs {
                    rows: self.draft_rows.lend_mut(),
                    ids: TensorMut::of(&mut self.draft_choice, [SLOTS]),
                    slots: self.table.lend(),
                    sequences: Tensor::of(&self.sequences, [SLOTS]),
                },
            )?;
            std::mem::swap(&mut self.last, &mut self.draft_rows);
            let chosen = self.choose(true);
            std::mem::swap(&mut self.last, &mut self.draft_rows);
            chosen?;
            self.propose(one)?;
        }
        Ok(())
    }

    fn choose(&mut self, draft: bool) -> kernels_core::Result<()> {
        let problem = Self::sample_problem(if draft { SLOTS } else { ROWS });
        let op = Sample::plan(problem, &B::device(&self.on))?.overlapping(self.overlapping);
        let bytes = op.workspace_bytes();
        let mut workspace = B::view_mut(&mut self.workspace);
        let (choice, logits, rows) = if draft {
            (&mut self.draft_choice, &self.draft_logits, &self.last)
        } else {
            (&mut self.choice, &self.logits, &self.rows)
        };
        let args = SampleArgs {
            choice: TensorMut::of(choice, [problem.rows]),
            faults: TensorMut::of(&mut self.table.faults, [SLOTS + 1]),
            logits: Tensor::of(logits, [problem.rows, VOCAB]),
            rows: rows.lend(),
            tokens: Tensor::of(&self.table.tokens, [SLOTS, POSITIONS]),
            prompt: Tensor::of(&self.table.prompt, [SLOTS]),
            sampling: self.sampling.lend(),
            workspace: (bytes > 0).then(|| TensorMut::new(B::slice_mut(&mut workspace, 0..bytes), [bytes])),
        };
        op.run::<B>(&self.on, args)
    }

    fn propose(&mut self, problem: Problem) -> kernels_core::Result<()> {
        Propose::plan(problem, &B::device(&self.on))?.overlapping(self.overlapping).run::<B>(
            &self.on,
            ProposeArgs {
                slots: self.table.lend(),
                choice: Some(Tensor::of(&self.draft_choice, [SLOTS])),
                rows: self.draft_rows.lend(),
            },
        )
    }

    pub(crate) fn left(&self) -> Left {
        let floats = |x: &B::Memory<f32>| B::read(&self.on, x, 0..B::len(x)).unwrap();
        Left {
            numbers: Numbers::read::<B>(&self.on, &self.table),
            emitted: B::read(&self.on, &self.emitted, 0..SLOTS * (MAX_ROWS + 2)).unwrap(),
            counts: self.counts.iter().map(|c| B::read(&self.on, c, 0..B::len(c)).unwrap()).collect(),
            ring: floats(&self.ring),
            carried: floats(&self.carried),
        }
    }
}

/// Streams with three drafts a round are those without any, and rounds do accept some.
pub(crate) fn speculation_is_plain_sampling<B: Place>(on: &B::Queue) {
    let run = |drafts: usize, rounds: usize| {
        let mut machine = Machine::<B>::new(on, drafts);
        (0..rounds).for_each(|_| machine.round().unwrap());
        machine.left()
    };
    let rounds = 40 / stride(4);
    let (plain, speculated) = (run(0, rounds), run(MAX_ROWS - 1, rounds));
    assert_eq!(plain.numbers.faults, [0; SLOTS + 1]);
    assert_eq!(speculated.numbers.faults, [0; SLOTS + 1]);
    for slot in [4, 0, 2, 5, 1] {
        let stream =
            |left: &Left, end: i32| left.numbers.tokens[slot * POSITIONS..][..end as usize + 1].to_vec();
        let end = plain.numbers.committed[slot].min(speculated.numbers.committed[slot]);
        assert!(end > 35 / stride(5) as i32, "slot {slot} came to {end} only");
        assert_eq!(stream(&plain, end), stream(&speculated, end), "slot {slot}");
    }
    let lengths: Vec<u64> = (0..=MAX_ROWS)
        .map(|a| (0..SLOTS).map(|slot| speculated.counts[0][slot * (MAX_ROWS + 1) + a]).sum())
        .collect();
    assert!(lengths[1..].iter().all(|n| *n > 0), "rounds by accept length: {lengths:?}");
}

//! Times of choosing and of bookkeeping; bytes are what must move at least once (the logits).
//!
//! Ids: `spec/argmax/MODEL/bB/tT`, `spec/sample_RULES/..`; `spec/round_RULES/..` is what a round does from the logits on
//! (row list, choice, settle: each launch may begin before the last one ended), `spec/inputs/..` the row list alone, which
//! a round has before its forward pass; `spec/carry/..` hidden rows to the draft; `spec/vectors/..` other shares of a row
//! per block; `spec/draw_draft_RULES/..` drafts with their probabilities, `spec/rejection_RULES/..` the chain alone and
//! `spec/round_rejection_RULES/..` in a round, its drafts of a flat distribution: most of them are turned down at once. On a
//! GPU every call has logits of its own, more in all than the L2 cache holds. Without a GPU the CPU backend is timed on a
//! few shapes.

use kernels_core::{Cpu, DeviceInfo, Result, Tensor, TensorMut, bf16};
use kernels_spec::*;
use kernels_testkit::{bench::Bench, rng::Rng};

const MODEL: (&str, usize) = ("qwen3.5-27b", 248_320);
const WIDTH: usize = 5120;
const RING: usize = 8;

/// Greedy first.
fn settings() -> Vec<(&'static str, SamplingParams)> {
    let sampled = SamplingParams { temperature: 1.0, seed: 7, ..SamplingParams::default() };
    vec![
        ("greedy", SamplingParams::default()),
        ("temperature", sampled.clone()),
        ("top_k", SamplingParams { top_k: 20, ..sampled.clone() }),
        ("top_p", SamplingParams { top_p: 0.95, ..sampled.clone() }),
        ("model_card", SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..sampled.clone() }),
        ("penalties", SamplingParams { presence_penalty: 1.5, top_k: 20, top_p: 0.95, ..sampled }),
    ]
}

#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // whole rounds are timed on a GPU only
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Argmax,
    Sample,
    DrawDraft,
    Rejection,
    Round,
    RoundRejection,
    Inputs,
    Carry,
}

struct Operands<B: SpecBackend> {
    op: Op,
    sequences: usize,
    count: usize,
    vocab: usize,
    positions: usize,
    vectors: Option<usize>,
    greedy: bool,
    table: SlotTable<B>,
    sampling: SamplingTable<B>,
    rows: RowTable<B>,
    list: B::Memory<i32>,
    drafts: B::Memory<i32>,
    proposed: B::Memory<i32>,
    ids: B::Memory<i32>,
    logits: B::Memory<f32>,
    choice: B::Memory<i32>,
    accepted: B::Memory<i32>,
    emitted: B::Memory<i32>,
    eos: B::Memory<i32>,
    stops: B::Memory<i32>,
    hidden: B::Memory<bf16>,
    ring: B::Memory<bf16>,
    carried: B::Memory<bf16>,
    probabilities: B::Memory<f32>,
    workspace: B::Memory<u8>,
}

impl<B: SpecBackend> Operands<B> {
    #[allow(clippy::too_many_arguments)] // the numbers of one id
    fn new(
        on: &B::Queue,
        device: &DeviceInfo,
        op: Op,
        params: &SamplingParams,
        vocab: usize,
        [sequences, count]: [usize; 2],
        copies: usize,
        vectors: Option<usize>,
    ) -> Self {
        let fits = "the bench fits into memory";
        let rows = sequences * count;
        // Rounds commit a token each time they are timed: room for a million of them.
        let rounds = matches!(op, Op::Round | Op::RoundRejection);
        let positions = if rounds && device.arch.is_some() { 1 << 20 } else { 4096 };
        let start = 1000;
        let mut table = SlotTable::new(on, sequences, positions).expect(fits);
        let mut sampling = SamplingTable::new(on, sequences, 0).expect(fits);
        let mut rng = Rng::new(1);
        for slot in 0..sequences {
            let prompt: Vec<i32> = (0..start).map(|_| rng.below(vocab) as i32).collect();
            table.admit(on, slot, &prompt, positions, positions).expect(fits);
            for counter in [&mut table.committed, &mut table.folded, &mut table.drafted] {
                B::write(on, counter, slot, &[start - 4]).expect(fits);
            }
            B::write(on, &mut table.prompt, slot, &[100]).expect(fits);
            B::write(on, &mut table.proposed, slot, &[count as i32 - 1]).expect(fits);
            sampling.set(on, slot, params, vocab).expect(fits);
        }
        let has_logits = !matches!(op, Op::Inputs | Op::Carry);
        // A megabyte of numbers over and over, in pieces: no second copy of all of them on the host.
        let pattern: Vec<f32> = rng.normals(1 << 18, 3.0);
        let count_of_logits = if has_logits { copies * rows * vocab } else { 0 };
        let mut logits = B::zeros(on, count_of_logits).expect(fits);
        for at in (0..count_of_logits).step_by(pattern.len()) {
            let part = &pattern[..pattern.len().min(count_of_logits - at)];
            B::write(on, &mut logits, at, part).expect(fits);
        }
        let zeros = |n: usize| B::zeros::<i32>(on, n).expect(fits);
        let offsets: Vec<i32> = (0..=sequences).map(|i| (i * count) as i32).collect();
        let mut made = Operands {
            op,
            sequences,
            count,
            vocab,
            positions,
            vectors,
            greedy: params.temperature == 0.0,
            table,
            sampling,
            rows: RowTable {
                sequences,
                slots: B::upload(on, &(0..sequences as i32).collect::<Vec<_>>()).expect(fits),
                start: B::upload(on, &vec![start - 4; sequences]).expect(fits),
                row_offsets: B::upload(on, &offsets).expect(fits),
            },
            list: B::upload(on, &(0..sequences as i32).collect::<Vec<_>>()).expect(fits),
            drafts: B::upload(on, &vec![count as i32 - 1; sequences]).expect(fits),
            proposed: B::upload(on, &vec![count as i32 - 1; sequences]).expect(fits),
            ids: zeros(rows),
            logits,
            choice: zeros(rows),
            accepted: zeros(sequences),
            emitted: zeros(sequences * (count + 2)),
            eos: B::upload(on, &vec![-1; sequences * 2]).expect(fits),
            stops: B::upload(on, &vec![-1; sequences * 16]).expect(fits),
            hidden: B::zeros(on, if has_logits { 0 } else { copies * rows * WIDTH }).expect(fits),
            ring: B::zeros(on, if has_logits { 0 } else { sequences * RING * WIDTH }).expect(fits),
            carried: B::zeros(on, if has_logits { 0 } else { copies * rows * WIDTH }).expect(fits),
            probabilities: B::zeros(on, 0).expect(fits),
            workspace: B::zeros(on, 0).expect(fits),
        };
        if matches!(op, Op::DrawDraft | Op::Rejection | Op::RoundRejection) {
            let flat = vec![1.0 / vocab as f32; made.ring() * vocab];
            made.probabilities = B::zeros(on, sequences * flat.len()).expect(fits);
            for slot in 0..sequences {
                B::write(on, &mut made.probabilities, slot * flat.len(), &flat).expect(fits);
            }
        }
        let chain = made.rejection(device).map_or(0, |op| op.workspace_bytes());
        let bytes = made.argmax(device).map_or(0, |op| op.1).max(made.sample(device).map_or(0, |op| op.1));
        made.workspace = B::zeros(on, bytes.max(chain)).expect(fits);
        made
    }

    fn argmax(&self, device: &DeviceInfo) -> Result<(Argmax, usize)> {
        let rows = self.sequences * self.count;
        let mut op = Argmax::plan(ArgmaxProblem { rows, vocab: self.vocab, valid: self.vocab }, device)?;
        if let Some(vectors) = self.vectors {
            op = op.with_vectors_per_thread(vectors);
        }
        let bytes = op.workspace_bytes();
        Ok((op, bytes))
    }

    /// Places of a slot's draft distributions.
    fn ring(&self) -> usize {
        self.count.saturating_sub(1).max(1)
    }

    fn sample_problem(&self) -> SampleProblem {
        SampleProblem {
            sequences: self.sequences,
            rows: self.sequences * self.count,
            vocab: self.vocab,
            valid: self.vocab,
            slots: self.sequences,
            positions: self.positions,
            max_bias: 0,
        }
    }

    /// Its workspace is also enough for a draft.
    fn rejection(&self, device: &DeviceInfo) -> Result<Rejection> {
        Rejection::plan(RejectionProblem { base: self.sample_problem(), ring_rows: self.ring() }, device)
    }

    fn sample(&self, device: &DeviceInfo) -> Result<(Sample, usize)> {
        let mut op = Sample::plan(self.sample_problem(), device)?;
        if let Some(vectors) = self.vectors {
            op = op.with_vectors_per_thread(vectors);
        }
        let bytes = op.workspace_bytes();
        Ok((op, bytes))
    }

    fn run(&mut self, on: &B::Queue, device: &DeviceInfo, copy: usize) -> Result<()> {
        match self.op {
            Op::Argmax => self.largest(on, device, copy),
            Op::Sample => self.choose(on, device, copy),
            Op::DrawDraft => self.draw(on, device, copy),
            Op::Rejection => self.reject(on, device, copy),
            Op::Inputs => self.inputs(on, device),
            Op::Carry => self.carry(on, device, copy),
            Op::Round => {
                self.inputs(on, device)?;
                if self.greedy {
                    self.largest(on, device, copy)?;
                } else {
                    self.choose(on, device, copy)?;
                }
                self.settle(on, device)
            }
            Op::RoundRejection => {
                self.inputs(on, device)?;
                self.reject(on, device, copy)?;
                self.settle_rejected(on, device)
            }
        }
    }

    fn base(&self) -> Problem {
        let Self { sequences, count, positions, .. } = *self;
        Problem { sequences, rows: sequences * count, max_rows: count, slots: sequences, positions }
    }

    fn largest(&mut self, on: &B::Queue, device: &DeviceInfo, copy: usize) -> Result<()> {
        let (op, bytes) = self.argmax(device)?;
        let rows = self.sequences * self.count;
        let all = B::len(&self.logits) / self.vocab;
        let mut workspace = B::view_mut(&mut self.workspace);
        let args = ArgmaxArgs {
            choice: TensorMut::of(&mut self.choice, [rows]),
            logits: Tensor::of(&self.logits, [all, self.vocab]).rows(copy * rows..(copy + 1) * rows),
            workspace: (bytes > 0).then(|| TensorMut::new(B::slice_mut(&mut workspace, 0..bytes), [bytes])),
        };
        op.overlapping(true).run::<B>(on, args)
    }

    fn choose(&mut self, on: &B::Queue, device: &DeviceInfo, copy: usize) -> Result<()> {
        let (op, bytes) = self.sample(device)?;
        let (sequences, rows) = (self.sequences, self.sequences * self.count);
        let all = B::len(&self.logits) / self.vocab;
        let mut workspace = B::view_mut(&mut self.workspace);
        let args = SampleArgs {
            choice: TensorMut::of(&mut self.choice, [rows]),
            faults: TensorMut::of(&mut self.table.faults, [sequences + 1]),
            logits: Tensor::of(&self.logits, [all, self.vocab]).rows(copy * rows..(copy + 1) * rows),
            rows: self.rows.lend(),
            tokens: Tensor::of(&self.table.tokens, [sequences, self.positions]),
            prompt: Tensor::of(&self.table.prompt, [sequences]),
            sampling: self.sampling.lend(),
            workspace: (bytes > 0).then(|| TensorMut::new(B::slice_mut(&mut workspace, 0..bytes), [bytes])),
        };
        op.overlapping(true).run::<B>(on, args)
    }

    fn draw(&mut self, on: &B::Queue, device: &DeviceInfo, copy: usize) -> Result<()> {
        let problem = RejectionProblem { base: self.sample_problem(), ring_rows: self.ring() };
        let op = DrawDraft::plan(problem, device)?;
        let (sequences, rows, bytes) = (self.sequences, self.sequences * self.count, op.workspace_bytes());
        let all = B::len(&self.logits) / self.vocab;
        let dims = [sequences, self.ring(), self.vocab];
        let mut workspace = B::view_mut(&mut self.workspace);
        let args = DrawDraftArgs {
            choice: TensorMut::of(&mut self.choice, [rows]),
            probabilities: TensorMut::of(&mut self.probabilities, dims),
            faults: TensorMut::of(&mut self.table.faults, [sequences + 1]),
            logits: Tensor::of(&self.logits, [all, self.vocab]).rows(copy * rows..(copy + 1) * rows),
            rows: self.rows.lend(),
            tokens: Tensor::of(&self.table.tokens, [sequences, self.positions]),
            prompt: Tensor::of(&self.table.prompt, [sequences]),
            sampling: self.sampling.lend(),
            workspace: (bytes > 0).then(|| TensorMut::new(B::slice_mut(&mut workspace, 0..bytes), [bytes])),
        };
        op.overlapping(true).run::<B>(on, args)
    }

    fn reject(&mut self, on: &B::Queue, device: &DeviceInfo, copy: usize) -> Result<()> {
        let op = self.rejection(device)?;
        let (sequences, rows, bytes) = (self.sequences, self.sequences * self.count, op.workspace_bytes());
        let all = B::len(&self.logits) / self.vocab;
        let dims = [sequences, self.ring(), self.vocab];
        let mut workspace = B::view_mut(&mut self.workspace);
        let args = RejectionArgs {
            accepted: TensorMut::of(&mut self.accepted, [sequences]),
            slots: self.table.lend(),
            logits: Tensor::of(&self.logits, [all, self.vocab]).rows(copy * rows..(copy + 1) * rows),
            probabilities: Tensor::of(&self.probabilities, dims),
            rows: self.rows.lend(),
            sampling: self.sampling.lend(),
            workspace: (bytes > 0).then(|| TensorMut::new(B::slice_mut(&mut workspace, 0..bytes), [bytes])),
        };
        op.overlapping(true).run::<B>(on, args)
    }

    /// What `Settle` does behind a choice, behind a chain: stops, commit, and what the host reads.
    fn settle_rejected(&mut self, on: &B::Queue, device: &DeviceInfo) -> Result<()> {
        let (base, n) = (self.base(), self.sequences);
        let stop = StopProblem { base, max_eos: 2, max_stops: 4, max_stop_length: 4 };
        let args = StopArgs {
            accepted: TensorMut::of(&mut self.accepted, [n]),
            slots: self.table.lend(),
            stops: Stops {
                eos: Tensor::of(&self.eos, [n, 2]),
                sequences: Tensor::of(&self.stops, [n, 4, 4]),
            },
            rows: self.rows.lend(),
        };
        Stop::plan(stop, device)?.overlapping(true).run::<B>(on, args)?;
        let args = AdvanceArgs {
            accepted: TensorMut::of(&mut self.accepted, [n]),
            slots: self.table.lend(),
            counters: None,
            rows: self.rows.lend(),
        };
        let advance = AdvanceProblem { base, flush_after: 2, pass: Pass::Decode };
        Advance::plan(advance, device)?.overlapping(true).run::<B>(on, args)?;
        let args = EmitArgs {
            emitted: TensorMut::of(&mut self.emitted, [n, self.count + 2]),
            accepted: Tensor::of(&self.accepted, [n]),
            slots: self.table.lend(),
            rows: self.rows.lend(),
        };
        Emit::plan(base, device)?.overlapping(true).run::<B>(on, args)
    }

    fn inputs(&mut self, on: &B::Queue, device: &DeviceInfo) -> Result<()> {
        let op = TargetInputs::plan(self.base(), device)?.overlapping(true);
        let args = TargetInputsArgs {
            rows: self.rows.lend_mut(),
            ids: TensorMut::of(&mut self.ids, [self.sequences * self.count]),
            // A settled round proposes nothing: the next one shall have as many drafts all the same.
            slots: Slots {
                proposed: TensorMut::of(&mut self.proposed, [self.sequences]),
                ..self.table.lend()
            },
            sequences: Tensor::of(&self.list, [self.sequences]),
            drafts: Tensor::of(&self.drafts, [self.sequences]),
        };
        op.run::<B>(on, args)
    }

    fn settle(&mut self, on: &B::Queue, device: &DeviceInfo) -> Result<()> {
        let (base, n) = (self.base(), self.sequences);
        let stop = StopProblem { base, max_eos: 2, max_stops: 4, max_stop_length: 4 };
        let op = Settle::plan(SettleProblem { stop, flush_after: 2 }, device)?.overlapping(true);
        let args = SettleArgs {
            accepted: TensorMut::of(&mut self.accepted, [n]),
            emitted: TensorMut::of(&mut self.emitted, [n, self.count + 2]),
            slots: self.table.lend(),
            choice: Tensor::of(&self.choice, [base.rows]),
            stops: Stops {
                eos: Tensor::of(&self.eos, [n, 2]),
                sequences: Tensor::of(&self.stops, [n, 4, 4]),
            },
            counters: None,
            rows: self.rows.lend(),
        };
        op.run::<B>(on, args)
    }

    fn carry(&mut self, on: &B::Queue, device: &DeviceInfo, copy: usize) -> Result<()> {
        let (n, rows) = (self.sequences, self.sequences * self.count);
        let problem =
            HiddenProblem { sequences: n, rows, forward_rows: rows, width: WIDTH, slots: n, ring_rows: RING };
        let part = copy * rows * WIDTH..(copy + 1) * rows * WIDTH;
        let mut carried = B::view_mut(&mut self.carried);
        let args = CarryArgs::<B, bf16> {
            out: TensorMut::new(B::slice_mut(&mut carried, part.clone()), [rows, WIDTH]),
            faults: TensorMut::of(&mut self.table.faults, [n + 1]),
            hidden: Tensor::new(B::slice(&B::view(&self.hidden), part), [rows, WIDTH]),
            ring: Tensor::of(&self.ring, [n, RING, WIDTH]),
            forward: self.rows.lend(),
            rows: self.rows.lend(),
        };
        Carry::plan(problem, device)?.overlapping(true).run::<B, bf16>(on, args)
    }
}

fn bytes(op: Op, vocab: usize, [sequences, count]: [usize; 2]) -> usize {
    let rows = sequences * count;
    match op {
        // With what is written.
        Op::DrawDraft => 8 * rows * vocab,
        // With the draft's distribution where it is turned down.
        Op::Rejection | Op::RoundRejection => 4 * (rows + sequences) * vocab,
        Op::Argmax | Op::Sample | Op::Round => 4 * rows * vocab,
        Op::Inputs => 8 * rows,
        Op::Carry => 4 * rows * WIDTH,
    }
}

fn main() {
    let mut bench = Bench::from_args();
    #[cfg(feature = "cuda")]
    if bench.device().is_some() {
        return cuda::all(&mut bench);
    }
    let device = DeviceInfo::cpu();
    for (model, vocab, sequences, count) in
        [("tiny", 4096, 1, 1), ("tiny", 4096, 1, 4), (MODEL.0, MODEL.1, 2, 4)]
    {
        let mut time = |name: &str, op: Op, params: &SamplingParams| {
            let id = format!("spec/{name}/{model}/b{sequences}/t{count}");
            let shape = [sequences, count];
            let mut operands = Operands::<Cpu>::new(&(), &device, op, params, vocab, shape, 1, None);
            let bytes = bytes(op, vocab, shape) as u64;
            bench.cpu(&id, bytes, || operands.run(&(), &device, 0).expect(&id));
        };
        time("argmax", Op::Argmax, &SamplingParams::default());
        time("inputs", Op::Inputs, &SamplingParams::default());
        time("carry", Op::Carry, &SamplingParams::default());
        for (name, params) in settings() {
            time(&format!("sample_{name}"), Op::Sample, &params);
            time(&format!("draw_draft_{name}"), Op::DrawDraft, &params);
            time(&format!("rejection_{name}"), Op::Rejection, &params);
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use kernels_core::Cuda;
    use kernels_testkit::timing::copies;

    const SHAPES: [[usize; 2]; 12] =
        [[1, 1], [1, 4], [1, 8], [4, 4], [8, 1], [8, 4], [8, 8], [16, 4], [32, 4], [64, 1], [64, 4], [64, 8]];

    pub(super) fn all(bench: &mut Bench) {
        for shape in SHAPES {
            time(bench, "argmax", Op::Argmax, &SamplingParams::default(), shape, None);
            time(bench, "inputs", Op::Inputs, &SamplingParams::default(), shape, None);
            time(bench, "carry", Op::Carry, &SamplingParams::default(), shape, None);
            for (name, params) in settings() {
                time(bench, &format!("sample_{name}"), Op::Sample, &params, shape, None);
                // A round's prefix grows with every one that is timed, and penalties with it.
                if name != "penalties" {
                    time(bench, &format!("round_{name}"), Op::Round, &params, shape, None);
                }
                if shape[1] > 1 {
                    time(bench, &format!("rejection_{name}"), Op::Rejection, &params, shape, None);
                    if name != "penalties" {
                        let id = format!("round_rejection_{name}");
                        time(bench, &id, Op::RoundRejection, &params, shape, None);
                    }
                } else {
                    time(bench, &format!("draw_draft_{name}"), Op::DrawDraft, &params, shape, None);
                }
            }
        }
        // Where the choice of vectors comes from.
        for shape in [[1, 1], [1, 4], [8, 4], [32, 4]] {
            for vectors in [1, 2, 4, 8] {
                let name = format!("vectors/argmax/v{vectors}");
                time(bench, &name, Op::Argmax, &SamplingParams::default(), shape, Some(vectors));
                for (rules, params) in &settings()[1..4] {
                    let name = format!("vectors/sample_{rules}/v{vectors}");
                    time(bench, &name, Op::Sample, params, shape, Some(vectors));
                }
            }
        }
    }

    fn time(
        bench: &mut Bench,
        name: &str,
        op: Op,
        params: &SamplingParams,
        shape: [usize; 2],
        vectors: Option<usize>,
    ) {
        let device = bench.device().expect("there is one");
        let (queue, info) = (device.queue.clone(), device.info.clone());
        let (model, vocab) = MODEL;
        let id = format!("spec/{name}/{model}/b{}/t{}", shape[0], shape[1]);
        let bytes = bytes(op, vocab, shape);
        let copies = copies(device, bytes);
        // Made when they are first asked for: a bench that the command line leaves out takes no time.
        let mut prepared = None;
        let new = || Operands::<Cuda>::new(&queue, &info, op, params, vocab, shape, copies, vectors);
        bench.cuda(&id, bytes as u64, copies, |copy| {
            prepared.get_or_insert_with(new).run(&queue, &info, copy)
        });
    }
}

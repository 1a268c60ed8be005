//! Speculation that draws what plain sampling draws: kernels-spec alone, on a stream and in buffers that belong to this
//! program.
//!
//! ```sh
//! cargo run -p kernels-spec --features cuda --example draw
//! ```
//!
//! Four sequences with rules and seeds of their own are decoded twice: one token a round, and with up to three drafts
//! that the target's choices verify. Draft and target draw with the same noise, each from its own logits. The streams
//! are compared token by token. The models are tables, so that nothing but this crate is needed; where a pass of a real
//! model would stand, rows are copied. Without the feature it does the same on the CPU.

use kernels_core::{Backend, DeviceInfo, Result, Tensor, TensorMut, slots::Fault};
use kernels_spec::*;
use kernels_testkit::rng::Rng;
use std::{error::Error, process::ExitCode};

const SLOTS: usize = 4; // sequence i lives in slot i
const DRAFTS: usize = 3;
const MAX_ROWS: usize = DRAFTS + 1;
const ROWS: usize = SLOTS * MAX_ROWS;
const PROMPT: usize = 3;
const LENGTH: usize = 160; // tokens of each sequence that are compared
const POSITIONS: usize = LENGTH + 2 * MAX_ROWS;
const VOCAB: usize = 20_000;
const STATES: usize = 32; // rows of a model's table: the token decides which one is next

const BASE: Problem =
    Problem { sequences: SLOTS, rows: ROWS, max_rows: MAX_ROWS, slots: SLOTS, positions: POSITIONS };

/// Plans, and all that the rounds need.
struct Rounds<B: Backend> {
    on: B::Queue,
    device: DeviceInfo,
    target: Vec<f32>, // [STATES, VOCAB]
    draft: Vec<f32>,  // likewise; about the same numbers
    table: SlotTable<B>,
    sampling: SamplingTable<B>,
    sequences: B::Memory<i32>,
    wanted: B::Memory<i32>, // drafts that each sequence may have
    rows: RowTable<B>,
    draft_rows: RowTable<B>,
    last: RowTable<B>,
    ids: B::Memory<i32>,
    logits: B::Memory<f32>,
    choice: B::Memory<i32>,
    accepted: B::Memory<i32>,
    workspace: B::Memory<u8>,
    rounds: usize,
    lengths: [usize; MAX_ROWS + 1], // how often a sequence got so many tokens in a round
}

impl<B: SpecBackend> Rounds<B> {
    fn new(on: &B::Queue, device: &DeviceInfo, drafts: usize) -> Result<Self> {
        let mut rng = Rng::new(5);
        let target: Vec<f32> = rng.normals(STATES * VOCAB, 3.0);
        let draft = target.iter().map(|logit| logit + 0.3 * rng.normal()).collect();
        let mut table = SlotTable::<B>::new(on, SLOTS, POSITIONS)?;
        let mut sampling = SamplingTable::<B>::new(on, SLOTS, 0)?;
        let plain = SamplingParams::default();
        #[rustfmt::skip]
        let rules = [
            SamplingParams { presence_penalty: 1.5, ..plain.clone() },
            SamplingParams { temperature: 1.0, seed: 11, ..plain.clone() },
            SamplingParams { temperature: 0.7, top_k: 20, top_p: 0.8, frequency_penalty: 0.3, seed: 12, ..plain.clone() },
            SamplingParams { temperature: 0.9, top_p: 0.9, min_p: 0.01, repetition_penalty: 1.1, seed: 13, ..plain },
        ];
        for (slot, rules) in rules.iter().enumerate() {
            sampling.set(on, slot, rules, VOCAB)?;
            let tokens: Vec<i32> = (0..=PROMPT).map(|i| (10 * slot + i) as i32).collect();
            table.admit(on, slot, &tokens, POSITIONS, POSITIONS)?;
            // As behind a prompt's last pass: the token behind the prompt is known, and not yet processed.
            for counter in [&mut table.prompt, &mut table.committed, &mut table.folded, &mut table.drafted] {
                B::write(on, counter, slot, &[PROMPT as i32])?;
            }
        }
        let bytes =
            |rows| Ok::<_, kernels_core::Error>(Sample::plan(Self::sample(rows), device)?.workspace_bytes());
        let workspace = bytes(ROWS)?.max(bytes(SLOTS)?);
        Ok(Rounds {
            target,
            draft,
            table,
            sampling,
            sequences: B::upload(on, &[0, 1, 2, 3])?,
            wanted: B::upload(on, &[drafts as i32; SLOTS])?,
            rows: RowTable::new(on, SLOTS)?,
            draft_rows: RowTable::new(on, SLOTS)?,
            last: RowTable::new(on, SLOTS)?,
            ids: B::zeros(on, ROWS)?,
            logits: B::upload(on, &vec![f32::NAN; ROWS * VOCAB])?,
            choice: B::zeros(on, ROWS)?,
            accepted: B::zeros(on, SLOTS)?,
            workspace: B::zeros(on, workspace)?,
            rounds: 0,
            lengths: [0; MAX_ROWS + 1],
            device: device.clone(),
            on: on.clone(),
        })
    }

    fn sample(rows: usize) -> SampleProblem {
        let (slots, positions) = (SLOTS, POSITIONS);
        SampleProblem { sequences: SLOTS, rows, vocab: VOCAB, valid: VOCAB, slots, positions, max_bias: 0 }
    }

    /// Verifies what stands behind the tokens, commits what was right, and drafts as much again.
    fn round(&mut self) -> Result<()> {
        TargetInputs::plan(BASE, &self.device)?.run::<B>(
            &self.on,
            TargetInputsArgs {
                rows: self.rows.lend_mut(),
                ids: TensorMut::of(&mut self.ids, [ROWS]),
                slots: self.table.lend(),
                sequences: Tensor::of(&self.sequences, [SLOTS]),
                drafts: Tensor::of(&self.wanted, [SLOTS]),
            },
        )?;
        self.pass(Whose::Target)?;
        // Equality is all there is to verify. `Settle` does this, the ends and the commit in one launch.
        Accept::plan(BASE, &self.device)?.run::<B>(
            &self.on,
            AcceptArgs {
                accepted: TensorMut::of(&mut self.accepted, [SLOTS]),
                slots: self.table.lend(),
                choice: Tensor::of(&self.choice, [ROWS]),
                rows: self.rows.lend(),
            },
        )?;
        let advance = AdvanceProblem { base: BASE, flush_after: 0, pass: Pass::Decode };
        Advance::plan(advance, &self.device)?.run::<B>(
            &self.on,
            AdvanceArgs {
                accepted: TensorMut::of(&mut self.accepted, [SLOTS]),
                slots: self.table.lend(),
                counters: None,
                rows: self.rows.lend(),
            },
        )?;
        for accepted in B::read(&self.on, &self.accepted, 0..SLOTS)? {
            self.lengths[accepted as usize] += 1;
        }

        DraftInputs::plan(DraftProblem { base: BASE, ring_rows: MAX_ROWS }, &self.device)?.run::<B>(
            &self.on,
            DraftInputsArgs {
                rows: self.draft_rows.lend_mut(),
                ids: TensorMut::of(&mut self.ids, [ROWS]),
                slots: self.table.lend(),
                sequences: Tensor::of(&self.sequences, [SLOTS]),
                forward: self.rows.lend(),
            },
        )?;
        LastRows::plan(BASE, &self.device)?.run::<B>(
            &self.on,
            LastRowsArgs {
                last: self.last.lend_mut(),
                slots: self.table.lend(),
                rows: self.draft_rows.lend(),
            },
        )?;
        self.pass(Whose::Draft)?;
        self.propose(BASE)?;
        let one = Problem { rows: SLOTS, max_rows: 1, ..BASE };
        for _ in 1..DRAFTS {
            ChainInputs::plan(one, &self.device)?.run::<B>(
                &self.on,
                ChainInputsArgs {
                    rows: self.draft_rows.lend_mut(),
                    ids: TensorMut::new(B::slice_mut(&mut B::view_mut(&mut self.ids), 0..SLOTS), [SLOTS]),
                    slots: self.table.lend(),
                    sequences: Tensor::of(&self.sequences, [SLOTS]),
                },
            )?;
            self.pass(Whose::Link)?;
            self.propose(one)?;
        }
        Ok(())
    }

    /// What a model makes of the rows of a list, and the token that each row chooses.
    fn pass(&mut self, whose: Whose) -> Result<()> {
        let (list, model, rows) = match whose {
            Whose::Target => (&self.rows, &self.target, ROWS),
            Whose::Draft => (&self.last, &self.draft, SLOTS),
            Whose::Link => (&self.draft_rows, &self.draft, SLOTS),
        };
        let tokens = B::read(&self.on, &self.table.tokens, 0..SLOTS * POSITIONS)?;
        let [slots, start] = [&list.slots, &list.start].map(|x| B::read(&self.on, x, 0..SLOTS));
        let (slots, start, ends) = (slots?, start?, B::read(&self.on, &list.row_offsets, 0..SLOTS + 1)?);
        // A negative slot is padding.
        for i in (0..SLOTS).filter(|i| slots[*i] >= 0) {
            for row in ends[i]..ends[i + 1] {
                let position = (start[i] + row - ends[i]) as usize;
                let state = tokens[slots[i] as usize * POSITIONS + position] as usize % STATES;
                let logits = &model[state * VOCAB..][..VOCAB];
                B::write(&self.on, &mut self.logits, row as usize * VOCAB, logits)?;
            }
        }
        let op = Sample::plan(Self::sample(rows), &self.device)?;
        let bytes = op.workspace_bytes();
        let (mut choice, mut workspace) = (B::view_mut(&mut self.choice), B::view_mut(&mut self.workspace));
        let logits = Tensor::of(&self.logits, [ROWS, VOCAB]);
        op.run::<B>(
            &self.on,
            SampleArgs {
                choice: TensorMut::new(B::slice_mut(&mut choice, 0..rows), [rows]),
                faults: TensorMut::of(&mut self.table.faults, [SLOTS + 1]),
                logits: logits.rows(0..rows),
                rows: list.lend(),
                tokens: Tensor::of(&self.table.tokens, [SLOTS, POSITIONS]),
                prompt: Tensor::of(&self.table.prompt, [SLOTS]),
                sampling: self.sampling.lend(),
                workspace: Some(TensorMut::new(B::slice_mut(&mut workspace, 0..bytes), [bytes])),
            },
        )
    }

    fn propose(&mut self, problem: Problem) -> Result<()> {
        let choice = B::view(&self.choice);
        Propose::plan(problem, &self.device)?.run::<B>(
            &self.on,
            ProposeArgs {
                slots: self.table.lend(),
                choice: Some(Tensor::new(B::slice(&choice, 0..SLOTS), [SLOTS])),
                rows: self.draft_rows.lend(),
            },
        )
    }

    /// Rounds until all sequences are long enough; their first tokens.
    fn run(&mut self) -> Result<Vec<Vec<i32>>, Box<dyn Error>> {
        while B::read(&self.on, &self.table.committed, 0..SLOTS)?.iter().any(|c| (*c as usize) < LENGTH) {
            if self.rounds == LENGTH {
                return Err("a round commits nothing".into());
            }
            self.round()?;
            self.rounds += 1;
        }
        let faults = B::read(&self.on, &self.table.faults, 0..SLOTS + 1)?;
        if let Some(fault) = faults.into_iter().find_map(Fault::decode) {
            return Err(fault.to_string().into());
        }
        let tokens = B::read(&self.on, &self.table.tokens, 0..SLOTS * POSITIONS)?;
        Ok(tokens.chunks(POSITIONS).map(|tokens| tokens[..LENGTH].to_vec()).collect())
    }
}

/// Whose pass it is: the target's over all rows, the draft's last rows, or a link of the draft's chain.
enum Whose {
    Target,
    Draft,
    Link,
}

fn compare<B: SpecBackend>(on: &B::Queue, device: &DeviceInfo) -> Result<(), Box<dyn Error>> {
    println!("{}: {SLOTS} sequences of {LENGTH} tokens, {VOCAB} ids", device.name);
    let mut plain = Rounds::<B>::new(on, device, 0)?;
    let want = plain.run()?;
    println!("plain sampling: {} rounds", plain.rounds);
    let mut drafted = Rounds::<B>::new(on, device, DRAFTS)?;
    let got = drafted.run()?;
    let lengths = &drafted.lengths[1..];
    println!(
        "{DRAFTS} drafts: {} rounds, which gave 1 to {MAX_ROWS} tokens {lengths:?} times",
        drafted.rounds
    );
    if lengths.contains(&0) {
        return Err("not every number of drafts was right once: that proves little".into());
    }
    for (slot, (got, want)) in got.iter().zip(&want).enumerate() {
        if let Some(at) = (0..LENGTH).find(|at| got[*at] != want[*at]) {
            return Err(format!("sequence {slot}: token {at} is {}, not {}", got[at], want[at]).into());
        }
    }
    println!("the same tokens");
    Ok(())
}

/// A context and a stream as any program has them.
#[cfg(feature = "cuda")]
fn run() -> Result<(), Box<dyn Error>> {
    let (context, device) = DeviceInfo::open(0)?;
    compare::<kernels_core::Cuda>(&context.new_stream()?, &device)
}

#[cfg(not(feature = "cuda"))]
fn run() -> Result<(), Box<dyn Error>> {
    compare::<kernels_core::Cpu>(&(), &DeviceInfo::cpu())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("draw: {error}");
            ExitCode::FAILURE
        }
    }
}

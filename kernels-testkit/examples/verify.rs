//! Speculative rounds through one recurrent layer: kernels-conv and kernels-gdn alone, on a stream and in buffers
//! that belong to this program.
//!
//! ```sh
//! cargo run -p kernels-testkit --features cuda --example verify
//! ```
//!
//! Each round feeds every sequence its next token and up to three drafts, accepts some of the rows, and commits
//! their number. Nothing is saved before a round and nothing is restored after it. At the end the outputs of all
//! accepted rows and the states are compared, byte for byte, with plain decoding on the same device.
//!
//! It lives here because no family of kernels depends on another.

use cudarc::driver::{CudaSlice, CudaStream};
use kernels_core::{Cuda, DeviceInfo, Result, Rows, Tensor, TensorMut, bf16, slots};
use kernels_testkit::rng::Rng;
use std::{process::ExitCode, sync::Arc};

const SEQUENCES: usize = 5;
const TOKENS: usize = 200; // of each sequence
const K_HEADS: usize = 4;
const V_HEADS: usize = 12;
const HEAD: usize = 128;
const KEYS: usize = K_HEADS * HEAD;
const VALUES: usize = V_HEADS * HEAD;
const CHANNELS: usize = 2 * KEYS + VALUES;
const TAPS: usize = 4;

/// What the projections in front of the layer would give for each token of each sequence.
struct Inputs {
    x: Vec<bf16>, // [SEQUENCES * TOKENS, CHANNELS]
    a: Vec<bf16>, // [SEQUENCES * TOKENS, V_HEADS]
    b: Vec<bf16>, // [SEQUENCES * TOKENS, V_HEADS]
}

/// A layer's parameters, and all that it remembers of the sequences; sequence i lives in slot i.
struct Layer {
    on: Arc<CudaStream>,
    conv: kernels_conv::Verify,
    gdn: kernels_gdn::Verify,
    fold: kernels_gdn::Fold,
    weight: CudaSlice<bf16>,
    a_log: CudaSlice<f32>,
    dt_bias: CudaSlice<f32>,
    ring: CudaSlice<bf16>, // raw inputs of the convolution: position p in row p % ring_rows
    state: CudaSlice<f32>, // after `folded` tokens
    journal: CudaSlice<bf16>, // raw inputs of the recurrence: position p in row p % journal_rows
    faults: CudaSlice<u64>,
    // An engine keeps these two on the device, where a kernel behind the last layer moves them.
    committed: Vec<i32>,
    folded: Vec<i32>,
}

impl Layer {
    /// Plans are made once, for bounds: how many rows a sequence has in a round is device data.
    fn new(on: &Arc<CudaStream>, max_rows: usize, flush_after: usize) -> Result<Layer> {
        let device = DeviceInfo::of(on.context())?;
        let (sequences, slots, rows) = (SEQUENCES, SEQUENCES, SEQUENCES * max_rows);
        let ring_rows = slots::conv_ring_rows(TAPS, max_rows);
        let journal_rows = slots::journal_rows(flush_after, max_rows);
        #[rustfmt::skip]
        let conv = kernels_conv::Problem {
            sequences, rows, max_rows, channels: CHANNELS, width: TAPS, slots, ring_rows, bias: false, silu: true,
        };
        #[rustfmt::skip]
        let gdn = kernels_gdn::Problem {
            sequences, rows, max_rows, k_heads: K_HEADS, v_heads: V_HEADS, k_dim: HEAD, v_dim: HEAD,
            slots, journal_rows, flush_after,
        };
        let mut rng = Rng::new(7);
        Ok(Layer {
            on: on.clone(),
            conv: kernels_conv::Verify::plan(conv, &device)?,
            // May begin while the convolution still runs; it waits before it reads anything.
            gdn: kernels_gdn::Verify::plan(gdn, &device)?.overlapping(true),
            fold: kernels_gdn::Fold::plan(gdn, &device)?,
            weight: on.clone_htod(&rng.normals::<bf16>(CHANNELS * TAPS, 0.5))?,
            a_log: on.clone_htod(&rng.uniforms::<f32>(V_HEADS, -3.0, 1.0))?,
            dt_bias: on.clone_htod(&rng.uniforms::<f32>(V_HEADS, -2.0, 1.0))?,
            // NaN instead of zeros, to show it: nothing is read that this sequence has not written.
            ring: on.clone_htod(&vec![bf16::NAN; slots * ring_rows * CHANNELS])?,
            state: on.clone_htod(&vec![f32::NAN; slots * gdn.state_len()])?,
            journal: on.clone_htod(&vec![bf16::NAN; slots * journal_rows * gdn.journal_width()])?,
            faults: on.alloc_zeros(slots + 1)?,
            committed: vec![0; slots],
            folded: vec![0; slots],
        })
    }

    /// Enqueues a round and reads its outputs `[rows, VALUES]`. Sequence i has the tokens `rows[i]` of `inputs`, from
    /// position `committed[i]` on, drafts that will turn out wrong among them.
    fn round(&mut self, inputs: &Inputs, rows: &[Vec<usize>]) -> Result<Vec<bf16>> {
        let (c, g, on) = (*self.conv.problem(), *self.gdn.problem(), &self.on);
        // Rows behind those of the last sequence belong to nobody: they are not read, and their outputs are zeros.
        let gather = |from: &[bf16], width: usize| {
            let mut all: Vec<bf16> =
                rows.iter().flatten().flat_map(|row| &from[row * width..][..width]).copied().collect();
            all.resize(g.rows * width, bf16::NAN);
            on.clone_htod(&all)
        };
        let x = gather(&inputs.x, CHANNELS)?;
        let (a, b) = (gather(&inputs.a, V_HEADS)?, gather(&inputs.b, V_HEADS)?);
        let offsets = rows.iter().scan(0, |end, rows| {
            *end += rows.len() as i32;
            Some(*end)
        });
        let offsets = on.clone_htod(&std::iter::once(0).chain(offsets).collect::<Vec<_>>())?;
        let slots = on.clone_htod(&(0..SEQUENCES as i32).collect::<Vec<_>>())?;
        let (start, folded) = (on.clone_htod(&self.committed)?, on.clone_htod(&self.folded)?);
        let mut mixed = on.alloc_zeros::<bf16>(g.rows * CHANNELS)?;
        let mut out = on.alloc_zeros::<bf16>(g.rows * VALUES)?;
        let list = Rows::<Cuda> {
            slots: Tensor::of(&slots, [SEQUENCES]),
            start: Tensor::of(&start, [SEQUENCES]),
            row_offsets: Tensor::of(&offsets, [SEQUENCES + 1]),
        };

        // Writes ring rows of the new positions only. The rows before them, which it reads, are those of accepted
        // tokens: whatever a rejected draft wrote stands at or behind `start`, and this launch writes there first.
        self.conv.run(
            on,
            kernels_conv::Args::<Cuda> {
                out: TensorMut::of(&mut mixed, [c.rows, CHANNELS]),
                ring: TensorMut::of(&mut self.ring, [c.slots, c.ring_rows, CHANNELS]),
                faults: TensorMut::of(&mut self.faults, [c.slots + 1]),
                x: Tensor::of(&x, [c.rows, CHANNELS]),
                weight: Tensor::of(&self.weight, [CHANNELS, TAPS]),
                bias: None,
                rows: list.reborrow(),
            },
        )?;
        // Brings the state from `folded` to `start` by replaying the journal, stores it there if that was more than
        // `flush_after` tokens, and goes on over the new rows in registers. So a stored state has seen accepted
        // tokens only, and a rejected draft is in the journal only, where the next round overwrites it.
        let mixed = Tensor::<Cuda, _, 2>::of(&mixed, [g.rows, CHANNELS]);
        self.gdn.run(
            on,
            kernels_gdn::Args::<Cuda> {
                out: TensorMut::of(&mut out, [g.rows, V_HEADS, HEAD]),
                state: TensorMut::of(&mut self.state, [g.slots, V_HEADS, HEAD, HEAD]),
                journal: TensorMut::of(&mut self.journal, [g.slots, g.journal_rows, g.journal_width()]),
                faults: TensorMut::of(&mut self.faults, [g.slots + 1]),
                folded: Tensor::of(&folded, [g.slots]),
                q: mixed.columns(0..KEYS).heads(K_HEADS),
                k: mixed.columns(KEYS..2 * KEYS).heads(K_HEADS),
                v: mixed.columns(2 * KEYS..CHANNELS).heads(V_HEADS),
                a: Tensor::of(&a, [g.rows, V_HEADS]),
                b: Tensor::of(&b, [g.rows, V_HEADS]),
                a_log: Tensor::of(&self.a_log, [V_HEADS]),
                dt_bias: Tensor::of(&self.dt_bias, [V_HEADS]),
                rows: list.reborrow(),
            },
        )?;
        Ok(on.clone_dtoh(&out)?)
    }

    /// The whole commit: `accepted` rows of each sequence are final. `folded` follows what the launch did by the
    /// same rule, of the same numbers; where a sequence had no rows, the launch did nothing.
    fn commit(&mut self, accepted: &[usize]) {
        for (slot, accepted) in accepted.iter().enumerate().filter(|(_, accepted)| **accepted > 0) {
            let pending = (self.committed[slot] - self.folded[slot]) as usize;
            if slots::flushes(pending, self.gdn.problem().flush_after) {
                self.folded[slot] = self.committed[slot];
            }
            self.committed[slot] += *accepted as i32;
        }
    }

    /// The states after all committed tokens.
    fn states(&mut self) -> Result<Vec<f32>> {
        let (g, on) = (*self.gdn.problem(), &self.on);
        let slots = on.clone_htod(&(0..SEQUENCES as i32).collect::<Vec<_>>())?;
        let (folded, committed) = (on.clone_htod(&self.folded)?, on.clone_htod(&self.committed)?);
        self.fold.run(
            on,
            kernels_gdn::FoldArgs::<Cuda> {
                state: TensorMut::of(&mut self.state, [g.slots, V_HEADS, HEAD, HEAD]),
                journal: TensorMut::of(&mut self.journal, [g.slots, g.journal_rows, g.journal_width()]),
                faults: TensorMut::of(&mut self.faults, [g.slots + 1]),
                folded: Tensor::of(&folded, [g.slots]),
                a_log: Tensor::of(&self.a_log, [V_HEADS]),
                dt_bias: Tensor::of(&self.dt_bias, [V_HEADS]),
                slots: Tensor::of(&slots, [SEQUENCES]),
                committed: Tensor::of(&committed, [g.slots]),
            },
        )?;
        self.folded.clone_from(&self.committed);
        Ok(on.clone_dtoh(&self.state)?)
    }
}

/// What came out of all rounds.
#[derive(Default)]
struct Run {
    out: Vec<Vec<bf16>>, // [TOKENS, VALUES] of each sequence
    states: Vec<f32>,
    faults: Vec<u64>,
    rounds: usize,
    rows: usize,
}

/// Feeds all tokens in rounds of one row and up to `drafts` more, of which a random number is right.
fn run(mut layer: Layer, inputs: &Inputs, drafts: usize) -> Result<Run> {
    let mut rng = Rng::new(3);
    let mut run = Run { out: vec![vec![]; SEQUENCES], ..Run::default() };
    while layer.committed.iter().any(|committed| (*committed as usize) < TOKENS) {
        let (mut rows, mut accepted) = (vec![], vec![]);
        for sequence in 0..SEQUENCES {
            let at = layer.committed[sequence] as usize;
            let count = (1 + rng.below(drafts + 1)).min(TOKENS - at);
            let right = count.min(1 + rng.below(drafts + 1));
            // A wrong draft is a token from elsewhere in the sequence.
            let token = |i: usize| if i < right { at + i } else { (at + i + 77) % TOKENS };
            rows.push((0..count).map(|i| sequence * TOKENS + token(i)).collect::<Vec<_>>());
            accepted.push(right);
        }
        let out = layer.round(inputs, &rows)?;
        layer.commit(&accepted);
        let mut first = 0;
        for sequence in 0..SEQUENCES {
            run.out[sequence].extend_from_slice(&out[first * VALUES..][..accepted[sequence] * VALUES]);
            first += rows[sequence].len();
        }
        (run.rounds, run.rows) = (run.rounds + 1, run.rows + first);
    }
    run.states = layer.states()?;
    run.faults = layer.on.clone_dtoh(&layer.faults)?;
    Ok(run)
}

fn compare() -> Result<(), Box<dyn std::error::Error>> {
    let (context, device) = DeviceInfo::open(0)?;
    let on = context.new_stream()?;
    let mut rng = Rng::new(1);
    let mut random = |width: usize| rng.normals::<bf16>(SEQUENCES * TOKENS * width, 1.0);
    let inputs = Inputs { x: random(CHANNELS), a: random(V_HEADS), b: random(V_HEADS) };

    // One row a round, and every token folded by the round after its own.
    let plain = run(Layer::new(&on, 1, 0)?, &inputs, 0)?;
    println!("{}: {SEQUENCES} sequences of {TOKENS} tokens", device.name);
    println!("plain decoding: {} rounds of {} rows", plain.rounds, plain.rows);
    for flush_after in [0, 2, 4] {
        let drafted = run(Layer::new(&on, 4, flush_after)?, &inputs, 3)?;
        let (rounds, rejected) = (drafted.rounds, drafted.rows - plain.rows);
        println!(
            "3 drafts, flush after {flush_after}: {rounds} rounds, {rejected} of {} rows rejected",
            drafted.rows
        );
        if let Some(fault) = plain.faults.iter().chain(&drafted.faults).find_map(|f| slots::Fault::decode(*f))
        {
            return Err(fault.to_string().into());
        }
        let bits = |states: &[f32]| states.iter().map(|s| s.to_bits()).collect::<Vec<_>>();
        let finite = drafted.states.iter().all(|s| s.is_finite());
        if !finite || drafted.out != plain.out || bits(&drafted.states) != bits(&plain.states) {
            return Err("outputs or states differ from plain decoding".into());
        }
    }
    println!("outputs of all accepted rows and final states: the same bytes every time");
    Ok(())
}

fn main() -> ExitCode {
    match compare() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verify: {error}");
            ExitCode::FAILURE
        }
    }
}

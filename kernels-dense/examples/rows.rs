//! Rows that do not know of each other: kernels-dense alone, on a stream and in buffers that belong to this program.
//!
//! ```sh
//! cargo run -p kernels-dense --features cuda --example rows
//! ```
//!
//! A linear layer whose sums are cut into segments, a head with its argmax and a mixture of experts take many rows at
//! once and one by one. The counts are such that other tiles, other grids and more than one launch come to the rows.
//! Results are compared byte for byte. Without the feature it does the same on the CPU.

use kernels_core::{Backend, DType, DeviceInfo, Result, Tensor, TensorMut, bf16};
use kernels_dense::{DenseBackend, Epilogue, Head, HeadArgs, HeadProblem, Linear, LinearArgs, LinearProblem};
use kernels_dense::{Moe, MoeArgs, MoeProblem};
use kernels_testkit::rng::Rng;
use std::{error::Error, ops::Range, process::ExitCode};

const COUNTS: [usize; 6] = [2, 4, 17, 64, 100, 300]; // rows that are computed together
const ROWS: usize = 300;
const WIDE: usize = 4096;
const HIDDEN: usize = 2048;
const VOCAB: usize = 10_000;
const VALID: usize = 9_990; // ids that the tokenizer has
const EXPERTS: usize = 32;
const TOP_K: usize = 8; // experts of a row
const INNER: usize = 128; // width of an expert

/// Results as words, row by row.
type Bits = Vec<Vec<u32>>;

/// What belongs to the caller: the queue, inputs, weights and a workspace.
struct Layers<B: Backend> {
    on: B::Queue,
    device: DeviceInfo,
    wide: B::Memory<bf16>,        // [ROWS, WIDE]
    rows: B::Memory<bf16>,        // [ROWS, HIDDEN]
    residual: Vec<bf16>,          // [ROWS, HIDDEN]
    weight: B::Memory<bf16>,      // [HIDDEN, WIDE]
    head: B::Memory<bf16>,        // [VOCAB, HIDDEN]
    router: B::Memory<bf16>,      // [EXPERTS, HIDDEN]
    gate_up: B::Memory<bf16>,     // [EXPERTS, 2 INNER, HIDDEN]
    down: B::Memory<bf16>,        // [EXPERTS, HIDDEN, INNER]
    shared_up: B::Memory<bf16>,   // [2 INNER, HIDDEN]
    shared_down: B::Memory<bf16>, // [HIDDEN, INNER]
    shared_gate: B::Memory<bf16>, // [1, HIDDEN]
    workspace: B::Memory<u8>,
}

impl<B: DenseBackend> Layers<B> {
    fn new(on: &B::Queue, device: &DeviceInfo) -> Result<Self> {
        let mut rng = Rng::new(1);
        let mut random = |len, most: f32| rng.uniforms::<bf16>(len, -most, most);
        Ok(Layers {
            wide: B::upload(on, &random(ROWS * WIDE, 2.0))?,
            rows: B::upload(on, &random(ROWS * HIDDEN, 2.0))?,
            residual: random(ROWS * HIDDEN, 2.0),
            weight: B::upload(on, &random(HIDDEN * WIDE, 0.03))?,
            head: B::upload(on, &random(VOCAB * HIDDEN, 0.05))?,
            router: B::upload(on, &random(EXPERTS * HIDDEN, 0.05))?,
            gate_up: B::upload(on, &random(EXPERTS * 2 * INNER * HIDDEN, 0.05))?,
            down: B::upload(on, &random(EXPERTS * HIDDEN * INNER, 0.1))?,
            shared_up: B::upload(on, &random(2 * INNER * HIDDEN, 0.05))?,
            shared_down: B::upload(on, &random(HIDDEN * INNER, 0.1))?,
            shared_gate: B::upload(on, &random(HIDDEN, 0.05))?,
            workspace: B::zeros(on, 0)?,
            device: device.clone(),
            on: on.clone(),
        })
    }

    /// One workspace for everything on the stream: zeros when it is new, and never touched by anything else.
    fn room(&mut self, bytes: usize) -> Result<()> {
        if B::len(&self.workspace) < bytes {
            self.workspace = B::zeros(&self.on, bytes)?;
        }
        Ok(())
    }

    fn linear(&mut self, rows: Range<usize>) -> Result<Bits> {
        let count = rows.len();
        let problem = LinearProblem { rows: count, k: WIDE, n: HIDDEN, epilogue: Epilogue::Store };
        let op = Linear::plan(problem, &self.device)?;
        let bytes = op.workspace_bytes();
        self.room(bytes)?;
        let mut out = B::zeros::<bf16>(&self.on, count * HIDDEN)?;
        let mut workspace = B::view_mut(&mut self.workspace);
        op.run(
            &self.on,
            LinearArgs::<B> {
                out: TensorMut::of(&mut out, [count, HIDDEN]),
                x: Tensor::of(&self.wide, [ROWS, WIDE]).rows(rows),
                weight: Tensor::of(&self.weight, [HIDDEN, WIDE]),
                gate: None,
                workspace: Some(TensorMut::new(B::slice_mut(&mut workspace, 0..bytes), [bytes])),
            },
        )?;
        bits::<B>(&self.on, &out)
    }

    fn head(&mut self, rows: Range<usize>) -> Result<Bits> {
        let count = rows.len();
        let problem = HeadProblem { rows: count, k: HIDDEN, vocab: VOCAB, valid: VALID, listed: None };
        let op = Head::plan(problem, &self.device)?;
        let bytes = op.workspace_bytes();
        self.room(bytes)?;
        let mut logits = B::zeros::<f32>(&self.on, count * VOCAB)?;
        let mut best = B::zeros::<i32>(&self.on, count)?;
        let mut workspace = B::view_mut(&mut self.workspace);
        op.run(
            &self.on,
            HeadArgs::<B> {
                logits: Some(TensorMut::of(&mut logits, [count, VOCAB])),
                argmax: Some(TensorMut::of(&mut best, [count])),
                x: Tensor::of(&self.rows, [ROWS, HIDDEN]).rows(rows),
                weight: Tensor::of(&self.head, [VOCAB, HIDDEN]),
                ids: None,
                workspace: Some(TensorMut::new(B::slice_mut(&mut workspace, 0..bytes), [bytes])),
            },
        )?;
        let best = B::read(&self.on, &best, 0..count)?;
        let logits = B::read(&self.on, &logits, 0..count * VOCAB)?;
        let row = |(logits, best): (&[f32], &i32)| {
            logits.iter().map(|logit| logit.to_bits()).chain([*best as u32]).collect()
        };
        Ok(logits.chunks(VOCAB).zip(&best).map(row).collect())
    }

    fn experts(&mut self, rows: Range<usize>) -> Result<Bits> {
        let count = rows.len();
        let problem = MoeProblem {
            rows: count,
            hidden: HIDDEN,
            experts: EXPERTS,
            top_k: TOP_K,
            intermediate: INNER,
            shared_intermediate: INNER,
            weights: DType::Bf16,
        };
        let op = Moe::plan(problem, &self.device)?;
        let bytes = op.workspace_bytes();
        self.room(bytes)?;
        let mut out = B::upload(&self.on, &self.residual[rows.start * HIDDEN..rows.end * HIDDEN])?;
        let mut workspace = B::view_mut(&mut self.workspace);
        op.run(
            &self.on,
            MoeArgs::<B> {
                out: TensorMut::of(&mut out, [count, HIDDEN]),
                routes: None,
                x: Tensor::of(&self.rows, [ROWS, HIDDEN]).rows(rows),
                router: Tensor::of(&self.router, [EXPERTS, HIDDEN]),
                gate_up: Tensor::of(&self.gate_up, [EXPERTS, 2 * INNER, HIDDEN]),
                down: Tensor::of(&self.down, [EXPERTS, HIDDEN, INNER]),
                shared_gate_up: Tensor::of(&self.shared_up, [2 * INNER, HIDDEN]),
                shared_down: Tensor::of(&self.shared_down, [HIDDEN, INNER]),
                shared_gate: Tensor::of(&self.shared_gate, [1, HIDDEN]),
                workspace: Some(TensorMut::new(B::slice_mut(&mut workspace, 0..bytes), [bytes])),
            },
        )?;
        bits::<B>(&self.on, &out)
    }
}

fn bits<B: Backend>(on: &B::Queue, out: &B::Memory<bf16>) -> Result<Bits> {
    let out = B::read(on, out, 0..B::len(out))?;
    Ok(out.chunks(HIDDEN).map(|row| row.iter().map(|x| x.to_bits().into()).collect()).collect())
}

fn compare<B: DenseBackend>(on: &B::Queue, device: &DeviceInfo) -> Result<(), Box<dyn Error>> {
    println!("{}: {COUNTS:?} rows together, and each of them alone", device.name);
    let mut layers = Layers::<B>::new(on, device)?;
    type Run<B> = fn(&mut Layers<B>, Range<usize>) -> Result<Bits>;
    let operators: [(String, Run<B>); 3] = [
        (format!("linear, {HIDDEN} x {WIDE}"), Layers::linear),
        (format!("head, {VOCAB} x {HIDDEN}, logits and argmax"), Layers::head),
        (format!("{EXPERTS} experts of {INNER}, {TOP_K} a row"), Layers::experts),
    ];
    for (name, run) in operators {
        let mut single = Bits::new();
        for row in 0..ROWS {
            single.append(&mut run(&mut layers, row..row + 1)?);
        }
        // A comparison of zeros or of a row with itself would prove nothing.
        if single[0] == single[1] || single.concat().iter().all(|x| *x == 0) {
            return Err(format!("{name}: rows do not differ").into());
        }
        for count in COUNTS {
            // The last ones, so that a row has another place among more than among fewer.
            let first = ROWS - count;
            let together = run(&mut layers, first..ROWS)?;
            if let Some(row) = (0..count).find(|row| together[*row] != single[first + row]) {
                return Err(format!("{name}: row {row} of {count} differs from the same row alone").into());
            }
        }
        println!("{name}: the same bytes");
    }
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
            eprintln!("rows: {error}");
            ExitCode::FAILURE
        }
    }
}

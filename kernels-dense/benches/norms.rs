//! Norms, the embedding and the gated activation at the shapes of real models.
//!
//! Ids: `dense/norm/OP/MODEL/rROWS`; `dense/norm/overlapping/..` (each launch may begin before the last one ended),
//! `dense/norm/vectors/..` (other numbers of 16-byte vectors a thread). Bytes are what must move at least once; decode
//! launches are far below what that takes: they are latency. On a GPU every call has operands of its own, more in all
//! than the L2 cache holds. Without a GPU the CPU backend is timed on a few rows.

use kernels_core::{Cpu, DeviceInfo, Result, Tensor, TensorMut, bf16};
use kernels_dense::*;
use kernels_testkit::{
    bench::{Bench, numbers},
    rng::Rng,
};

/// Hidden width and heads of the gated delta net.
const MODELS: [(&str, usize, usize); 3] =
    [("qwen3.5-27b", 5120, 48), ("qwen3.5-35b-a3b", 2048, 32), ("qwen3.5-tiny", 256, 4)];
const HEAD_DIM: usize = 128;
const VOCAB: usize = 4096;
const EPS: f32 = 1e-6;

#[derive(Clone, Copy, Debug)]
enum Op {
    Plain,
    Add,
    Concat,
    Gated,
    Embed,
    Silu,
}

const OPS: [(&str, Op); 6] = [
    ("plain", Op::Plain),
    ("add", Op::Add),
    ("concat", Op::Concat),
    ("gated", Op::Gated),
    ("embed", Op::Embed),
    ("silu_mul", Op::Silu),
];

/// One launch: `width` is that of a row, all heads of a gated norm together.
#[derive(Clone, Copy, Debug)]
struct Shape {
    op: Op,
    rows: usize,
    width: usize,
    overlapping: bool,
    vectors: Option<usize>,
}

impl Shape {
    fn new(op: Op, rows: usize, hidden: usize, heads: usize) -> Self {
        let width = if let Op::Gated = op { heads * HEAD_DIM } else { hidden };
        Shape { op, rows, width, overlapping: false, vectors: None }
    }

    /// Rows of `width` that are read or written, and the weights.
    fn bytes(&self) -> usize {
        let (moved, weights) = match self.op {
            Op::Plain => (2, self.width),
            Op::Add => (4, self.width),
            Op::Concat => (4, 2 * self.width),
            Op::Gated => (3, 2 * HEAD_DIM),
            Op::Embed => (2, 0),
            Op::Silu => (3, 0),
        };
        2 * (moved * self.rows * self.width + weights)
    }
}

/// `copies` sets of operands.
struct Operands<B: DenseBackend> {
    shape: Shape,
    x: B::Memory<bf16>,
    y: B::Memory<bf16>,
    residual: B::Memory<bf16>,
    out: B::Memory<bf16>,
    weights: B::Memory<bf16>,
    gated_weight: B::Memory<f32>,
    table: B::Memory<bf16>,
    ids: B::Memory<i32>,
}

impl<B: DenseBackend> Operands<B> {
    fn new(queue: &B::Queue, shape: Shape, copies: usize) -> Self {
        let Shape { op, rows, width, .. } = shape;
        let mut rng = Rng::new(1);
        let random = |len| numbers::<B>(queue, len, 1.0);
        let ids: Vec<i32> = (0..copies * rows).map(|_| rng.below(VOCAB) as i32).collect();
        let table = if let Op::Embed = op { VOCAB * width } else { 0 };
        Operands {
            shape,
            x: random(copies * rows * width),
            y: random(if let Op::Concat | Op::Gated | Op::Silu = op { copies * rows * width } else { 0 }),
            residual: random(if let Op::Add = op { copies * rows * width } else { 0 }),
            out: random(copies * rows * 2 * width),
            weights: random(copies * 2 * width),
            gated_weight: B::upload(queue, &vec![1.0; copies * HEAD_DIM])
                .expect("the bench fits into memory"),
            table: random(table),
            ids: B::upload(queue, &ids).expect("the bench fits into memory"),
        }
    }

    /// Runs or enqueues it on set `copy`.
    fn run(&mut self, queue: &B::Queue, device: &DeviceInfo, copy: usize) -> Result<()> {
        let Shape { op, rows, width, overlapping, vectors } = self.shape;
        let part = |len: usize| copy * len..(copy + 1) * len;
        let row_range = part(rows * width);
        let (mut out, mut residual) = (B::view_mut(&mut self.out), B::view_mut(&mut self.residual));
        let out = B::slice_mut(&mut out, part(rows * 2 * width));
        let x = Tensor::new(B::slice(&B::view(&self.x), row_range.clone()), [rows, width]);
        let weight = |i: usize| {
            let first = (2 * copy + i) * width;
            Tensor::new(B::slice(&B::view(&self.weights), first..first + width), [width])
        };
        let problem = NormProblem { rows, n: width, eps: EPS };
        let dims = [rows, width];
        macro_rules! dealt {
            ($plan:expr) => {{
                let plan = $plan.overlapping(overlapping);
                if let Some(vectors) = vectors { plan.with_vectors_per_thread(vectors) } else { plan }
            }};
        }
        match op {
            Op::Plain => {
                let args = NormArgs { out: TensorMut::new(out, dims), x, weight: weight(0) };
                dealt!(Norm::plan(problem, device)?).run::<B, bf16>(queue, args)
            }
            Op::Add => {
                let args = AddNormArgs {
                    residual: TensorMut::new(B::slice_mut(&mut residual, row_range), dims),
                    out: TensorMut::new(out, dims),
                    x,
                    weight: weight(0),
                };
                dealt!(AddNorm::plan(problem, device)?).run::<B, bf16>(queue, args)
            }
            Op::Concat => {
                let args = ConcatNormArgs {
                    out: TensorMut::new(out, [rows, 2 * width]),
                    left: x,
                    left_weight: weight(0),
                    right: Tensor::new(B::slice(&B::view(&self.y), row_range), dims),
                    right_weight: weight(1),
                };
                dealt!(ConcatNorm::plan(problem, device)?).run::<B, bf16>(queue, args)
            }
            Op::Gated => {
                let dims = [rows, width / HEAD_DIM, HEAD_DIM];
                let heads = width / HEAD_DIM;
                let gate = B::slice(&B::view(&self.y), row_range);
                let weight = B::slice(&B::view(&self.gated_weight), part(HEAD_DIM));
                let args = GatedNormArgs {
                    out: TensorMut::new(out, dims),
                    x: x.heads(heads),
                    gate: Tensor::new(gate, dims),
                    weight: Tensor::new(weight, [HEAD_DIM]),
                };
                let problem = GatedNormProblem { rows, heads, head_dim: HEAD_DIM, eps: EPS };
                GatedNorm::plan(problem, device)?.overlapping(overlapping).run::<B, bf16>(queue, args)
            }
            Op::Silu => {
                let args = SiluMulArgs {
                    out: TensorMut::new(out, dims),
                    gate: x,
                    up: Tensor::new(B::slice(&B::view(&self.y), row_range), dims),
                };
                let problem = SiluMulProblem { rows, n: width };
                SiluMul::plan(problem, device)?.overlapping(overlapping).run::<B, bf16>(queue, args)
            }
            Op::Embed => {
                let args = EmbedArgs {
                    out: TensorMut::new(out, dims),
                    ids: Tensor::new(B::slice(&B::view(&self.ids), part(rows)), [rows]),
                    table: Tensor::of(&self.table, [VOCAB, width]),
                };
                let problem = EmbedProblem { rows, n: width, vocab: VOCAB };
                Embed::plan(problem, device)?.overlapping(overlapping).run::<B, bf16, bf16>(queue, args)
            }
        }
    }
}

fn main() {
    let mut bench = Bench::from_args();
    #[cfg(feature = "cuda")]
    if bench.device().is_some() {
        return cuda::all(&mut bench);
    }
    // Asking the system for its processors takes longer than a norm.
    let device = DeviceInfo::cpu();
    for (model, hidden, heads) in MODELS {
        for (name, op) in OPS {
            for rows in [1, 3] {
                let shape = Shape::new(op, rows, hidden, heads);
                let id = format!("dense/norm/{name}/{model}/r{rows}");
                let mut operands = Operands::<Cpu>::new(&(), shape, 1);
                bench.cpu(&id, shape.bytes() as u64, || operands.run(&(), &device, 0).expect(&id));
            }
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use kernels_core::Cuda;
    use kernels_testkit::timing::copies;

    pub(super) fn all(bench: &mut Bench) {
        for (model, hidden, heads) in &MODELS[..2] {
            for (name, op) in OPS {
                for rows in [1, 2, 4, 8, 32, 128, 512, 2048] {
                    let shape = Shape::new(op, rows, *hidden, *heads);
                    run(bench, &format!("dense/norm/{name}/{model}/r{rows}"), shape);
                    if rows <= 32 {
                        let id = format!("dense/norm/overlapping/{name}/{model}/r{rows}");
                        run(bench, &id, Shape { overlapping: true, ..shape });
                    }
                }
            }
            // Where the choice of vectors comes from.
            for (name, op) in &OPS[..2] {
                for rows in [1, 4, 32, 2048] {
                    for vectors in [1, 2, 4] {
                        if vectors == 4 && *hidden <= 2048 {
                            continue;
                        }
                        let shape =
                            Shape { vectors: Some(vectors), ..Shape::new(*op, rows, *hidden, *heads) };
                        run(bench, &format!("dense/norm/vectors/{name}/{model}/r{rows}/v{vectors}"), shape);
                    }
                }
            }
        }
    }

    fn run(bench: &mut Bench, id: &str, shape: Shape) {
        let device = bench.device().expect("there is one");
        let (queue, info) = (device.queue.clone(), device.info.clone());
        let copies = copies(device, shape.bytes());
        let mut operands = Operands::<Cuda>::new(&queue, shape, copies);
        bench.cuda(id, shape.bytes() as u64, copies, |copy| operands.run(&queue, &info, copy));
    }
}

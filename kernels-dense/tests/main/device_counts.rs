//! Every number of rows that an engine can form, at the weights of real models; results are compared on the device.

use kernels_core::{Backend, Cuda, Tensor, TensorMut, bf16};
use kernels_dense::*;
use kernels_testkit::{
    cublaslt::{CublasLt, Operands},
    device::Device,
    first_difference::FirstDifference,
    runner::sanitized,
};
use std::ops::Range;

type Memory<T> = <Cuda as Backend>::Memory<T>;

/// (n, k) of 27B and 35B-A3B: each shape once.
const WEIGHTS: [(usize, usize); 13] = [
    (96, 5120),
    (5120, 6144),
    (5120, 10240),
    (5120, 17408),
    (14336, 5120),
    (16384, 5120),
    (34816, 5120),
    (256, 2048),
    (1024, 2048),
    (2048, 512),
    (2048, 4096),
    (9216, 2048),
    (12288, 2048),
];

fn random(device: &Device, len: usize, stream: u32, std: f32) -> Memory<bf16> {
    let mut memory = Cuda::zeros(&device.queue, len).unwrap();
    let problem = RandomFillProblem { len, first: 0, seed: 50, stream, mean: 0.0, std };
    let args = RandomFillArgs::<Cuda> { out: TensorMut::of(&mut memory, [len]) };
    RandomFill::plan(problem, &device.info).unwrap().run(&device.queue, args).unwrap();
    memory
}

/// Under a sanitizer: narrow weights, and few rows.
fn weights() -> impl Iterator<Item = (usize, usize)> {
    WEIGHTS.into_iter().filter(|(n, k)| !sanitized() || n * k <= 1 << 20)
}

fn counts() -> Vec<usize> {
    if sanitized() { vec![1, 2, 70] } else { (1..=1024).chain([1025, 1536, 2048, 3000, 4096]).collect() }
}

fn most() -> usize {
    *counts().last().expect("there are some")
}

/// `compute(rows, out)` leaves what it leaves for each row alone, in all numbers of rows.
fn keeps_rows(
    device: &Device,
    what: &str,
    n: usize,
    mut compute: impl FnMut(Range<usize>, &mut Memory<bf16>),
) {
    let differences = FirstDifference::new(device).unwrap();
    let (mut alone, mut out) = (random(device, most() * n, 3, 1.0), random(device, most() * n, 4, 1.0));
    for row in 0..most() {
        compute(row..row + 1, &mut alone);
    }
    for rows in counts() {
        // What the count before left must not pass for a result.
        device.queue.memset_zeros(&mut out.slice_mut(..rows * n)).unwrap();
        compute(0..rows, &mut out);
        let found = differences.of(out.slice(..rows * n), alone.slice(..rows * n)).unwrap();
        assert_eq!(found, None, "{what}, {rows} rows: the element that differs first");
    }
}

pub(crate) fn every_count_of_real_layers(device: &Device) {
    for (n, k) in weights() {
        let plan = |rows| {
            let problem = LinearProblem { rows, k, n, epilogue: Epilogue::Store };
            Linear::plan(problem, &device.info).unwrap()
        };
        let x = random(device, most() * k, 1, 1.0);
        let weight = random(device, n * k, 2, 1.0 / (k as f32).sqrt());
        let bytes = counts().into_iter().map(|rows| plan(rows).workspace_bytes()).max().unwrap();
        let mut workspace = Cuda::zeros::<u8>(&device.queue, bytes).unwrap();
        keeps_rows(device, &format!("{n} x {k}"), n, |rows, out| {
            let (op, count) = (plan(rows.len()), rows.len());
            let (mut out, mut workspace) = (Cuda::view_mut(out), Cuda::view_mut(&mut workspace));
            let bytes = op.workspace_bytes();
            let args = LinearArgs::<Cuda> {
                out: TensorMut::new(Cuda::slice_mut(&mut out, rows.start * n..rows.end * n), [count, n]),
                x: Tensor::new(x.slice(rows.start * k..rows.end * k), [count, k]),
                weight: Tensor::of(&weight, [n, k]),
                gate: None,
                workspace: Some(TensorMut::new(Cuda::slice_mut(&mut workspace, 0..bytes), [bytes])),
            };
            op.run(&device.queue, args).unwrap();
        });
    }
}

/// Logits and choices: of every number of rows that a round can have.
pub(crate) fn every_count_of_real_heads(device: &Device) {
    let differences = FirstDifference::new(device).unwrap();
    // A sanitizer has narrower heads.
    let vocab = if sanitized() { 1024 } else { 248_320 };
    let most = if sanitized() { 70 } else { 1024 };
    for k in [5120, 2048] {
        let plan = |rows| {
            let problem = HeadProblem { rows, k, vocab, valid: vocab - 243, listed: None };
            Head::plan(problem, &device.info).unwrap()
        };
        let x = random(device, most * k, 1, 1.0);
        let weight = random(device, vocab * k, 2, 1.0 / (k as f32).sqrt());
        let bytes = (1..=most).map(|rows| plan(rows).workspace_bytes()).max().unwrap();
        let mut workspace = Cuda::zeros::<u8>(&device.queue, bytes).unwrap();
        let mut run = |rows: Range<usize>, logits: &mut Memory<f32>, best: &mut Memory<i32>| {
            let (op, count) = (plan(rows.len()), rows.len());
            let (mut logits, mut best) = (Cuda::view_mut(logits), Cuda::view_mut(best));
            let mut workspace = Cuda::view_mut(&mut workspace);
            let (at, bytes) = (rows.start * vocab..rows.end * vocab, op.workspace_bytes());
            let args = HeadArgs::<Cuda> {
                logits: Some(TensorMut::new(Cuda::slice_mut(&mut logits, at), [count, vocab])),
                argmax: Some(TensorMut::new(Cuda::slice_mut(&mut best, rows.clone()), [count])),
                x: Tensor::new(x.slice(rows.start * k..rows.end * k), [count, k]),
                weight: Tensor::of(&weight, [vocab, k]),
                ids: None,
                workspace: Some(TensorMut::new(Cuda::slice_mut(&mut workspace, 0..bytes), [bytes])),
            };
            op.run(&device.queue, args).unwrap();
        };
        let results = || {
            let logits = Cuda::upload(&device.queue, &vec![f32::NAN; most * vocab]).unwrap();
            (logits, Cuda::upload(&device.queue, &vec![-2; most]).unwrap())
        };
        let ((mut alone, mut chosen), (mut logits, mut best)) = (results(), results());
        for row in 0..most {
            run(row..row + 1, &mut alone, &mut chosen);
        }
        let step = if sanitized() { 23 } else { 1 };
        for rows in (1..=most).step_by(step) {
            device.queue.memset_zeros(&mut logits.slice_mut(..rows * vocab)).unwrap();
            device.queue.memset_zeros(&mut best).unwrap();
            run(0..rows, &mut logits, &mut best);
            let found = differences.of(logits.slice(..rows * vocab), alone.slice(..rows * vocab)).unwrap();
            assert_eq!(found, None, "{vocab} x {k}, {rows} rows: the logit that differs first");
            let found = differences.of(best.slice(..rows), chosen.slice(..rows)).unwrap();
            assert_eq!(found, None, "{vocab} x {k}, {rows} rows: the row whose choice differs first");
        }
    }
}

/// The peer's products can keep rows, too: one algorithm for a weight.
pub(crate) fn a_pinned_algorithm_of_cublaslt_keeps_rows(device: &Device) {
    if sanitized() {
        return println!("the library's kernels are not ours to check");
    }
    for (n, k) in weights() {
        let (x, weight) =
            (random(device, 4096 * k, 1, 1.0), random(device, n * k, 2, 1.0 / (k as f32).sqrt()));
        let mut out = random(device, 4096 * n, 4, 1.0);
        let mut operands = Operands { x: &x, weight: Cuda::view(&weight), out: &mut out };
        let library = CublasLt::pinned(device, [n, k], &mut operands).unwrap();
        println!("{n} x {k}: {library}");
        keeps_rows(device, &format!("cublasLt, {n} x {k}"), n, |rows, out| {
            let mut operands = Operands { x: &x, weight: Cuda::view(&weight), out };
            library.run(&mut operands, rows).unwrap();
        });
    }
}

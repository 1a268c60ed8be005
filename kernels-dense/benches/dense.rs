//! The dense operators at the shapes of real models, as bytes that must move at least once per second.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernels_core::{Cpu, DeviceInfo, Tensor, TensorMut, bf16};
use kernels_dense::{
    AddNorm, AddNormArgs, Epilogue, GatedNorm, GatedNormArgs, GatedNormProblem, Head, HeadArgs, HeadProblem,
    Linear, LinearArgs, LinearProblem, Moe, MoeArgs, MoeProblem, NormProblem,
};
use kernels_testkit::rng::Rng;

/// A linear layer of a model: name, n, k, epilogue.
type Shape = (&'static str, usize, usize, Epilogue);

const TINY: [Shape; 7] = [
    ("qkv", 1024, 256, Epilogue::Store),
    ("z", 512, 256, Epilogue::Store),
    ("ba", 8, 256, Epilogue::Store),
    ("q_gate", 2048, 256, Epilogue::Store),
    ("gate_up", 512, 256, Epilogue::SiluMul),
    ("down", 256, 512, Epilogue::AddTo),
    ("o", 256, 1024, Epilogue::AddTo),
];

// One layer of the 27B that is still quick on a laptop.
const LARGE: [Shape; 1] = [("o", 5120, 6144, Epilogue::AddTo)];

fn normals(len: usize, deviation: f32) -> Vec<bf16> {
    Rng::new(len as u64).normals(len, deviation)
}

fn linear(c: &mut Criterion) {
    for (model, shapes, all_rows) in
        [("qwen3.5-tiny", &TINY[..], &[1, 2, 3, 4, 8, 64][..]), ("qwen3.5-27b", &LARGE[..], &[1, 3, 64][..])]
    {
        let mut group = c.benchmark_group(format!("dense/linear/{model}"));
        for &(name, n, k, epilogue) in shapes {
            for &rows in all_rows {
                let problem = LinearProblem { rows, k, n, epilogue };
                let op = Linear::plan(problem, &DeviceInfo::cpu()).unwrap();
                let outputs = problem.weight_rows();
                let (x, weight) = (normals(rows * k, 1.0), normals(outputs * k, 0.02));
                let mut out = vec![bf16::ZERO; rows * n];
                group.throughput(Throughput::Bytes(2 * (outputs * k + rows * k + rows * n) as u64));
                group.bench_function(BenchmarkId::new(name, format!("r{rows}")), |b| {
                    b.iter(|| {
                        let args = LinearArgs::<Cpu> {
                            out: TensorMut::of(&mut out, [rows, n]),
                            x: Tensor::of(&x, [rows, k]),
                            weight: Tensor::of(&weight, [outputs, k]),
                        };
                        op.run(&(), args).unwrap();
                    });
                });
            }
        }
        group.finish();
    }
}

fn head(c: &mut Criterion) {
    let mut group = c.benchmark_group("dense/head/qwen3.5-tiny");
    let (k, vocab) = (256, 4096);
    let weight = normals(vocab * k, 0.02);
    for rows in [1, 3] {
        let problem = HeadProblem { rows, k, vocab, valid: vocab - 3 };
        let op = Head::plan(problem, &DeviceInfo::cpu()).unwrap();
        let x = normals(rows * k, 1.0);
        let mut best = vec![0; rows];
        group.throughput(Throughput::Bytes(2 * (vocab * k + rows * k) as u64));
        group.bench_function(BenchmarkId::new("argmax", format!("r{rows}")), |b| {
            b.iter(|| {
                let args = HeadArgs::<Cpu> {
                    logits: None,
                    argmax: Some(TensorMut::of(&mut best, [rows])),
                    x: Tensor::of(&x, [rows, k]),
                    weight: Tensor::of(&weight, [vocab, k]),
                };
                op.run(&(), args).unwrap();
            });
        });
    }
    group.finish();
}

fn norms(c: &mut Criterion) {
    let mut group = c.benchmark_group("dense/norm/qwen3.5-tiny");
    let (rows, n) = (1, 256);
    let op = AddNorm::plan(NormProblem { rows, n, eps: 1e-6 }, &DeviceInfo::cpu()).unwrap();
    let (x, weight) = (normals(n, 0.1), normals(n, 0.1));
    let (mut residual, mut out) = (normals(n, 1.0), vec![bf16::ZERO; n]);
    group.throughput(Throughput::Bytes(2 * 5 * n as u64));
    group.bench_function("add/r1", |b| {
        b.iter(|| {
            let args = AddNormArgs::<Cpu> {
                residual: TensorMut::of(&mut residual, [rows, n]),
                out: TensorMut::of(&mut out, [rows, n]),
                x: Tensor::of(&x, [rows, n]),
                weight: Tensor::of(&weight, [n]),
            };
            op.run(&(), args).unwrap();
        });
    });

    let (heads, head_dim) = (4, 128);
    let problem = GatedNormProblem { rows, heads, head_dim, eps: 1e-6 };
    let op = GatedNorm::plan(problem, &DeviceInfo::cpu()).unwrap();
    let (x, gate, weight) = (normals(512, 1.0), normals(512, 2.0), vec![1.0f32; head_dim]);
    let mut out = vec![bf16::ZERO; 512];
    group.throughput(Throughput::Bytes(2 * 3 * 512));
    group.bench_function("gated/r1", |b| {
        b.iter(|| {
            let args = GatedNormArgs::<Cpu> {
                out: TensorMut::of(&mut out, [rows, heads, head_dim]),
                x: Tensor::of(&x, [rows, heads, head_dim]),
                gate: Tensor::of(&gate, [rows, heads, head_dim]),
                weight: Tensor::of(&weight, [head_dim]),
            };
            op.run(&(), args).unwrap();
        });
    });
    group.finish();
}

fn moe(c: &mut Criterion) {
    // The 35B-A3B's block with an eighth of its experts, so that it fits a laptop.
    let mut group = c.benchmark_group("dense/moe/qwen3.5-35b-a3b-32-experts");
    let (hidden, experts, top_k, inner) = (2048, 32, 8, 512);
    let (gate_up, down) =
        (normals(experts * 2 * inner * hidden, 0.02), normals(experts * inner * hidden, 0.02));
    let (router, shared_gate) = (normals(experts * hidden, 0.02), normals(hidden, 0.02));
    for rows in [1, 3] {
        let problem =
            MoeProblem { rows, hidden, experts, top_k, intermediate: inner, shared_intermediate: inner };
        let op = Moe::plan(problem, &DeviceInfo::cpu()).unwrap();
        let (x, mut out) = (normals(rows * hidden, 1.0), vec![bf16::ZERO; rows * hidden]);
        // At least: one row's experts, the shared one and the router.
        group.throughput(Throughput::Bytes(2 * ((top_k + 1) * 3 * inner * hidden + experts * hidden) as u64));
        group.bench_function(format!("r{rows}"), |b| {
            b.iter(|| {
                let args = MoeArgs::<Cpu> {
                    out: TensorMut::of(&mut out, [rows, hidden]),
                    routes: None,
                    x: Tensor::of(&x, [rows, hidden]),
                    router: Tensor::of(&router, [experts, hidden]),
                    gate_up: Tensor::of(&gate_up, [experts, 2 * inner, hidden]),
                    down: Tensor::of(&down, [experts, hidden, inner]),
                    shared_gate_up: Tensor::new(&gate_up[..2 * inner * hidden], [2 * inner, hidden]),
                    shared_down: Tensor::new(&down[..inner * hidden], [hidden, inner]),
                    shared_gate: Tensor::of(&shared_gate, [1, hidden]),
                };
                op.run(&(), args).unwrap();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, linear, head, norms, moe);
criterion_main!(benches);

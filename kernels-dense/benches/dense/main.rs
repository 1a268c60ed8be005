//! The linear layers, the head and the experts at the shapes of real models; norms: norms.rs.
//!
//! Ids: `dense/OP/MODEL/NAME/rROWS`, `dense/moe/MODEL/rROWS`. Bytes are what must move at least once. On a GPU every
//! call has a weight of its own, more in all than the L2 cache holds, and cublasLt multiplies the same operands in the
//! same run where the library is there: `dense/cublaslt/…` with its first choice for the number of rows,
//! `dense/cublaslt-pinned/…` with one algorithm for the weight. `dense/behind-norm/…` and
//! `dense/cublaslt-behind-norm/…` (pinned) are a norm and the layer that reads it, as an engine launches them;
//! `dense/moe/with-norm/…` and `dense/moe/then-norm/…` a mixture with the norm behind it, in its last launch and in one
//! of its own. The CPU backend is timed on weights that fit a laptop.

use kernels_core::{Cpu, DType, DeviceInfo, Tensor, TensorMut, bf16};
use kernels_dense::{
    Epilogue, Head, HeadArgs, HeadProblem, Linear, LinearArgs, LinearProblem, Moe, MoeArgs, MoeProblem,
};
use kernels_testkit::{bench::Bench, rng::Rng};

/// A linear layer of a model: name, n, k, epilogue.
type Shape = (&'static str, usize, usize, Epilogue);

/// Of the embedded checkpoint.
const TINY: [Shape; 7] = [
    ("qkv", 1024, 256, Epilogue::Store),
    ("z", 512, 256, Epilogue::Store),
    ("ba", 8, 256, Epilogue::Store),
    ("q_gate", 2048, 256, Epilogue::Store),
    ("gate_up", 512, 256, Epilogue::SiluMul),
    ("down", 256, 512, Epilogue::AddTo),
    ("o", 256, 1024, Epilogue::AddTo),
];

/// One layer of the 27B that is still quick.
const LARGE: [Shape; 1] = [("attn_o", 5120, 6144, Epilogue::AddTo)];

fn main() {
    let mut bench = Bench::from_args();
    #[cfg(feature = "cuda")]
    if bench.device().is_some() {
        return cuda::all(&mut bench);
    }
    for shape in TINY {
        for rows in [1, 2, 3, 4, 8, 64] {
            linear(&mut bench, "qwen3.5-tiny", shape, rows);
        }
    }
    for shape in LARGE {
        for rows in [1, 3, 64] {
            linear(&mut bench, "qwen3.5-27b", shape, rows);
        }
    }
    for rows in [1, 3] {
        head(&mut bench, rows);
        moe(&mut bench, rows);
    }
}

fn normals(len: usize, deviation: f32) -> Vec<bf16> {
    Rng::new(len as u64).normals(len, deviation)
}

fn linear(bench: &mut Bench, model: &str, (name, n, k, epilogue): Shape, rows: usize) {
    let problem = LinearProblem { rows, k, n, epilogue };
    let op = Linear::plan(problem, &DeviceInfo::cpu()).expect("the CPU takes every shape");
    let outputs = problem.weight_rows();
    let (x, weight) = (normals(rows * k, 1.0), normals(outputs * k, 0.02));
    let mut out = vec![bf16::ZERO; rows * n];
    let bytes = 2 * (outputs * k + rows * k + rows * n) as u64;
    bench.cpu(&format!("dense/linear/{model}/{name}/r{rows}"), bytes, || {
        let args = LinearArgs::<Cpu> {
            out: TensorMut::of(&mut out, [rows, n]),
            x: Tensor::of(&x, [rows, k]),
            weight: Tensor::of(&weight, [outputs, k]),
            gate: None,
            workspace: None,
        };
        op.run(&(), args).expect("the operands fit");
    });
}

fn head(bench: &mut Bench, rows: usize) {
    let (k, vocab) = (256, 4096);
    let problem = HeadProblem { rows, k, vocab, valid: vocab - 3, listed: None };
    let op = Head::plan(problem, &DeviceInfo::cpu()).expect("the CPU takes every shape");
    let (x, weight, mut best) = (normals(rows * k, 1.0), normals(vocab * k, 0.02), vec![0; rows]);
    let bytes = 2 * (vocab * k + rows * k) as u64;
    bench.cpu(&format!("dense/head/qwen3.5-tiny/argmax/r{rows}"), bytes, || {
        let args = HeadArgs::<Cpu> {
            logits: None,
            argmax: Some(TensorMut::of(&mut best, [rows])),
            x: Tensor::of(&x, [rows, k]),
            weight: Tensor::of(&weight, [vocab, k]),
            ids: None,
            workspace: None,
        };
        op.run(&(), args).expect("the operands fit");
    });
}

/// The 35B-A3B's block with an eighth of its experts.
fn moe(bench: &mut Bench, rows: usize) {
    let (hidden, experts, top_k, inner) = (2048, 32, 8, 512);
    let problem = MoeProblem {
        rows,
        hidden,
        experts,
        top_k,
        intermediate: inner,
        shared_intermediate: inner,
        weights: DType::Bf16,
    };
    let op = Moe::plan(problem, &DeviceInfo::cpu()).expect("the CPU takes every shape");
    let gate_up = normals(experts * 2 * inner * hidden, 0.02);
    let down = normals(experts * inner * hidden, 0.02);
    let (router, shared_gate) = (normals(experts * hidden, 0.02), normals(hidden, 0.02));
    let (x, mut out) = (normals(rows * hidden, 1.0), vec![bf16::ZERO; rows * hidden]);
    // One row's experts, the shared one and the router; more rows read more experts.
    let bytes = 2 * ((top_k + 1) * 3 * inner * hidden + experts * hidden) as u64;
    bench.cpu(&format!("dense/moe/qwen3.5-35b-a3b-e32/block/r{rows}"), bytes, || {
        let args = MoeArgs::<Cpu> {
            out: TensorMut::of(&mut out, [rows, hidden]),
            normed: None,
            routes: None,
            x: Tensor::of(&x, [rows, hidden]),
            router: Tensor::of(&router, [experts, hidden]),
            gate_up: Tensor::of(&gate_up, [experts, 2 * inner, hidden]),
            down: Tensor::of(&down, [experts, hidden, inner]),
            shared_gate_up: Tensor::new(&gate_up[..2 * inner * hidden], [2 * inner, hidden]),
            shared_down: Tensor::new(&down[..inner * hidden], [hidden, inner]),
            shared_gate: Tensor::of(&shared_gate, [1, hidden]),
            norm: None,
            workspace: None,
        };
        op.run(&(), args).expect("the operands fit");
    });
}

#[cfg(feature = "cuda")]
mod cuda;

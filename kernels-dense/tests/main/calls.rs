//! The operators as plain functions over packed rows, on the CPU.

use kernels_core::{Activation, Cpu, DeviceInfo, Tensor, TensorMut};
use kernels_dense::*;

pub(crate) const EPS: f32 = 1e-6;

/// A value that no output may keep.
pub(crate) fn poison<A: Activation>(len: usize) -> Vec<A> {
    vec![A::from_f32(f32::NAN); len]
}

pub(crate) fn linear<A: Activation, W: Activation>(
    problem: LinearProblem,
    before: &[A],
    x: &[A],
    weight: &[W],
) -> Vec<A> {
    let LinearProblem { rows, k, n, .. } = problem;
    let mut out = before.to_vec();
    // A row's gate belongs to the row: its first element.
    let gate: Vec<f32> = x.chunks(k).map(|x| x[0].to_f32()).collect();
    let args = LinearArgs::<Cpu, A, W> {
        out: TensorMut::new(&mut out[..], [rows, n]),
        x: Tensor::new(x, [rows, k]),
        weight: Tensor::new(weight, [problem.weight_rows(), k]),
        gate: Some(Tensor::new(&gate[..], [rows])),
        workspace: None,
    };
    Linear::plan(problem, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
    out
}

pub(crate) fn head<A: Activation, W: Activation>(
    problem: HeadProblem,
    x: &[A],
    weight: &[W],
) -> (Vec<f32>, Vec<i32>) {
    let HeadProblem { rows, k, vocab, .. } = problem;
    let (mut logits, mut best) = (poison::<f32>(rows * vocab), vec![i32::MIN; rows]);
    let args = HeadArgs::<Cpu, A, W> {
        logits: Some(TensorMut::new(&mut logits[..], [rows, vocab])),
        argmax: Some(TensorMut::new(&mut best[..], [rows])),
        x: Tensor::new(x, [rows, k]),
        weight: Tensor::new(weight, [vocab, k]),
        ids: None,
        workspace: None,
    };
    Head::plan(problem, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
    (logits, best)
}

pub(crate) fn norm<A: Activation>(rows: usize, eps: f32, x: &[A], weight: &[A]) -> Vec<A> {
    let n = weight.len();
    let mut out = poison(rows * n);
    let args = NormArgs::<Cpu, A> {
        out: TensorMut::new(&mut out[..], [rows, n]),
        x: Tensor::new(x, [rows, n]),
        weight: Tensor::new(weight, [n]),
    };
    Norm::plan(NormProblem { rows, n, eps }, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
    out
}

/// The residual and the normed rows.
pub(crate) fn add_norm<A: Activation>(
    rows: usize,
    residual: &[A],
    x: &[A],
    weight: &[A],
) -> (Vec<A>, Vec<A>) {
    let n = weight.len();
    let (mut residual, mut out) = (residual.to_vec(), poison(rows * n));
    let args = AddNormArgs::<Cpu, A> {
        residual: TensorMut::new(&mut residual[..], [rows, n]),
        out: TensorMut::new(&mut out[..], [rows, n]),
        x: Tensor::new(x, [rows, n]),
        weight: Tensor::new(weight, [n]),
    };
    AddNorm::plan(NormProblem { rows, n, eps: EPS }, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
    (residual, out)
}

pub(crate) fn gated_norm<A: Activation>(
    [rows, heads, head_dim]: [usize; 3],
    eps: f32,
    x: &[A],
    gate: &[A],
    weight: &[f32],
) -> Vec<A> {
    let mut out = poison(rows * heads * head_dim);
    let dims = [rows, heads, head_dim];
    let args = GatedNormArgs::<Cpu, A> {
        out: TensorMut::new(&mut out[..], dims),
        x: Tensor::new(x, dims),
        gate: Tensor::new(gate, dims),
        weight: Tensor::new(weight, [head_dim]),
    };
    let problem = GatedNormProblem { rows, heads, head_dim, eps };
    GatedNorm::plan(problem, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
    out
}

pub(crate) fn concat_norm<A: Activation>(rows: usize, left: (&[A], &[A]), right: (&[A], &[A])) -> Vec<A> {
    let n = left.1.len();
    let mut out = poison(rows * 2 * n);
    let args = ConcatNormArgs::<Cpu, A> {
        out: TensorMut::new(&mut out[..], [rows, 2 * n]),
        left: Tensor::new(left.0, [rows, n]),
        left_weight: Tensor::new(left.1, [n]),
        right: Tensor::new(right.0, [rows, n]),
        right_weight: Tensor::new(right.1, [n]),
    };
    let problem = NormProblem { rows, n, eps: EPS };
    ConcatNorm::plan(problem, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
    out
}

pub(crate) fn silu_mul<A: Activation>(rows: usize, gate: &[A], up: &[A]) -> Vec<A> {
    let n = gate.len() / rows;
    let mut out = poison(rows * n);
    let args = SiluMulArgs::<Cpu, A> {
        out: TensorMut::new(&mut out[..], [rows, n]),
        gate: Tensor::new(gate, [rows, n]),
        up: Tensor::new(up, [rows, n]),
    };
    SiluMul::plan(SiluMulProblem { rows, n }, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
    out
}

pub(crate) fn embed<A: Activation, W: Activation>(ids: &[i32], vocab: usize, table: &[W]) -> Vec<A> {
    let (rows, n) = (ids.len(), table.len() / vocab);
    let mut out = poison(rows * n);
    let args = EmbedArgs::<Cpu, A, W> {
        out: TensorMut::new(&mut out[..], [rows, n]),
        ids: Tensor::new(ids, [rows]),
        table: Tensor::new(table, [vocab, n]),
    };
    Embed::plan(EmbedProblem { rows, n, vocab }, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
    out
}

/// The weights of a mixture of experts.
#[derive(Clone, Debug)]
pub(crate) struct Experts<W> {
    pub(crate) router: Vec<W>,
    pub(crate) gate_up: Vec<W>,
    pub(crate) down: Vec<W>,
    pub(crate) shared_gate_up: Vec<W>,
    pub(crate) shared_down: Vec<W>,
    pub(crate) shared_gate: Vec<W>,
}

/// The residual stream and the routes.
pub(crate) fn moe<A: Activation, W: Activation>(
    problem: MoeProblem,
    before: &[A],
    x: &[A],
    weights: &Experts<W>,
) -> (Vec<A>, Vec<i32>) {
    let problem = MoeProblem { weights: W::DTYPE, ..problem };
    let MoeProblem { rows, hidden, experts, top_k, intermediate, shared_intermediate, .. } = problem;
    let (mut out, mut routes) = (before.to_vec(), vec![i32::MIN; rows * top_k]);
    let args = MoeArgs::<Cpu, A, W> {
        out: TensorMut::new(&mut out[..], [rows, hidden]),
        routes: Some(TensorMut::new(&mut routes[..], [rows, top_k])),
        x: Tensor::new(x, [rows, hidden]),
        router: Tensor::new(&weights.router[..], [experts, hidden]),
        gate_up: Tensor::new(&weights.gate_up[..], [experts, 2 * intermediate, hidden]),
        down: Tensor::new(&weights.down[..], [experts, hidden, intermediate]),
        shared_gate_up: Tensor::new(&weights.shared_gate_up[..], [2 * shared_intermediate, hidden]),
        shared_down: Tensor::new(&weights.shared_down[..], [hidden, shared_intermediate]),
        shared_gate: Tensor::new(&weights.shared_gate[..], [1, hidden]),
        workspace: None,
    };
    Moe::plan(problem, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
    (out, routes)
}

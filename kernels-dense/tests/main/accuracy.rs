//! The operators against f64, within bounds that `approx.rs` derives step by step.

use crate::{approx::*, calls::*, calm, moe::weights};
use kernels_core::{Activation, DType, bf16, f16};
use kernels_dense::*;
use kernels_testkit::rng::Rng;

/// How wide a bound may be, relative to the values: a few roundings of the type, or of long fp32 sums.
fn tightness<A: Activation>() -> f64 {
    match A::DTYPE {
        DType::Bf16 => 0.03,
        DType::F16 => 0.004,
        _ => 1e-3,
    }
}

pub(crate) fn linear_is_within_its_bound() {
    fn check<A: Activation, W: Activation>() {
        for (k, n) in [(1, 2), (20, 6), (256, 9), (2051, 4)] {
            for epilogue in crate::bits::EPILOGUES {
                let problem = LinearProblem { rows: 3, k, n, epilogue };
                let mut rng = Rng::new(k as u64);
                let x: Vec<A> = rng.normals(3 * k, 1.0);
                let scale = 1.0 / (k as f32).sqrt();
                let weight: Vec<W> = rng.normals(problem.weight_rows() * k, scale);
                let before: Vec<A> = rng.normals(3 * n, 1.0);
                let got = linear(problem, &before, &x, &weight);
                let mut want = Vec::new();
                for row in 0..3 {
                    let x = exact(&x[row * k..][..k]);
                    let sum = |j: usize| dot(&x, &exact(&weight[j * k..][..k]), 8).to::<A>();
                    want.extend((0..n).map(|j| match epilogue {
                        Epilogue::Store => sum(j),
                        Epilogue::AddTo => Approx::exact(before[row * n + j]).add(sum(j)).to::<A>(),
                        Epilogue::SiluMul => sum(j).silu().mul(sum(n + j)).to::<A>(),
                        Epilogue::SigmoidGate => x[0].sigmoid().mul(sum(j)).to::<A>(),
                    }));
                }
                assert_admitted(&format!("{epilogue:?} k {k}"), &got, &want, tightness::<A>());
            }
        }
    }
    calm(|| {
        check::<bf16, bf16>();
        check::<f16, f16>();
        check::<f32, f32>();
        check::<f32, bf16>();
    });
}

/// 1 / sqrt(mean(x²) + eps)
fn scale(x: &[Approx], eps: f32) -> Approx {
    let n = Approx::exact(x.len() as f32);
    // By halves, a square passes one addition for each; the pair's is fused.
    dot(x, x, x.len().next_power_of_two()).mul(n.recip()).add(Approx::exact(eps)).sqrt().recip()
}

pub(crate) fn norms_are_within_their_bound() {
    fn check<A: Activation>() {
        for n in [1, 40, 256, 1000] {
            let rows = 3;
            let mut rng = Rng::new(n as u64);
            let x: Vec<A> = rng.normals(rows * n, 3.0);
            let gate: Vec<A> = rng.normals(rows * n, 2.0);
            let w: Vec<A> = rng.normals(n, 0.3);
            let w32: Vec<f32> = rng.uniforms(n, 0.5, 1.5);
            let (plain, gated) = (norm(rows, EPS, &x, &w), gated_norm([rows, 1, n], EPS, &x, &gate, &w32));
            let (mut want_plain, mut want_gated) = (Vec::new(), Vec::new());
            for row in 0..rows {
                let x = exact(&x[row * n..][..n]);
                let r = scale(&x, EPS);
                for i in 0..n {
                    let one = Approx::exact(1.0f32);
                    want_plain.push(x[i].mul(r).mul(one.add(Approx::exact(w[i]))).to::<A>());
                    let gate = Approx::exact(gate[row * n + i]).silu();
                    want_gated.push(x[i].mul(r).mul(Approx::exact(w32[i])).mul(gate).to::<A>());
                }
            }
            assert_admitted(&format!("norm of {n}"), &plain, &want_plain, tightness::<A>());
            assert_admitted(&format!("gated norm of {n}"), &gated, &want_gated, tightness::<A>());
        }
    }
    calm(|| {
        check::<bf16>();
        check::<f16>();
        check::<f32>();
    });
}

/// One row of a mixture of experts, given its route; `sum`: of products.
pub(crate) fn moe_row<A: Activation>(
    problem: &MoeProblem,
    before: &[A],
    x: &[A],
    w: &Experts<A>,
    route: &[i32],
    sum: impl Fn(&[Approx], &[Approx]) -> Approx,
) -> Vec<Approx> {
    let MoeProblem { hidden, experts, intermediate, shared_intermediate, .. } = *problem;
    let x = exact(x);
    let matrix = |m: &[A], j: usize, x: &[Approx]| sum(x, &exact(&m[j * x.len()..][..x.len()]));
    let ffn = |gate_up: &[A], down: &[A], inner: usize| -> Vec<Approx> {
        let act: Vec<Approx> = (0..inner)
            .map(|i| {
                let (gate, up) = (matrix(gate_up, i, &x), matrix(gate_up, inner + i, &x));
                gate.to::<A>().silu().mul(up.to::<A>()).to::<A>()
            })
            .collect();
        (0..hidden).map(|i| matrix(down, i, &act).to::<A>()).collect()
    };
    let logits: Vec<Approx> = (0..experts).map(|e| matrix(&w.router, e, &x)).collect();
    // The factor exp(-max) / sum cancels in the weights but for the roundings of the division by the sum
    // (one each) and of the subtraction of max (whose error is an error of the exponent).
    let max = logits.iter().fold(f64::MIN, |m, l| m.max(l.value));
    let minus_max = Approx { value: -max, error: 0.0 };
    let p: Vec<Approx> = logits.iter().map(|l| l.add(minus_max).exp().mul(Approx::exact(1.0f32))).collect();
    let chosen = route[1..].iter().fold(p[route[0] as usize], |sum, e| sum.add(p[*e as usize]));
    let shared = ffn(&w.shared_gate_up, &w.shared_down, shared_intermediate);
    let shared_gate = matrix(&w.shared_gate, 0, &x).sigmoid();
    let mut total = vec![Approx { value: 0.0, error: 0.0 }; hidden];
    for &expert in route {
        let expert = expert as usize;
        let (up, down) = (2 * intermediate * hidden, hidden * intermediate);
        let y = ffn(&w.gate_up[expert * up..][..up], &w.down[expert * down..][..down], intermediate);
        let weight = p[expert].mul(chosen.recip());
        for i in 0..hidden {
            total[i] = total[i].add(weight.mul(y[i]));
        }
    }
    (0..hidden)
        .map(|i| Approx::exact(before[i]).add(total[i].add(shared_gate.mul(shared[i])).to::<A>()).to::<A>())
        .collect()
}

pub(crate) fn moe_is_within_its_bound() {
    fn check<A: Activation>() {
        let problem = MoeProblem {
            rows: 3,
            hidden: 64,
            experts: 40,
            top_k: 4,
            intermediate: 16,
            shared_intermediate: 24,
            weights: A::DTYPE,
        };
        let w = weights::<A>(&problem, 21);
        let mut rng = Rng::new(22);
        let (h, k) = (problem.hidden, problem.top_k);
        let (x, before): (Vec<A>, Vec<A>) = (rng.normals(3 * h, 0.5), rng.normals(3 * h, 1.0));
        let (got, routes) = moe(problem, &before, &x, &w);
        for row in 0..3 {
            let at = row * h..row * h + h;
            let route = &routes[row * k..][..k];
            let want = moe_row(&problem, &before[at.clone()], &x[at.clone()], &w, route, |x, w| dot(x, w, 8));
            // Two layers of rounded values and a sum with cancellation: four times one layer's width.
            assert_admitted(&format!("row {row}"), &got[at], &want, 4.0 * tightness::<A>());
        }
    }
    calm(|| {
        check::<bf16>();
        check::<f16>();
        check::<f32>();
    });
}

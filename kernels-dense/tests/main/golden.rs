//! Against somebody else's code: transformers' own modules in float32 (see golden/make.py).
//!
//! Both sides are fp32 with orders of their own, so both must lie within the bound of `approx.rs`: theirs
//! too, since that bound holds for any order of a sum of its length if every addition counts (one lane).

use crate::{accuracy::moe_row, approx::*, calls::*, calm};
use kernels_core::DType;
use kernels_dense::*;
use kernels_testkit::fixture::Fixture;

fn open() -> Fixture {
    Fixture::open("kernels-dense/tests/golden/dense.safetensors")
}

/// |ours - theirs| <= 2 bound, with the bound of a sum of `k` terms in any order, relative to its terms'
/// size; `value` are the reference's numbers.
#[track_caller]
fn assert_near(what: &str, got: &[f32], want: &[f32], bound: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for i in 0..got.len() {
        let difference = f64::from((got[i] - want[i]).abs());
        assert!(difference <= bound(i), "{what}: element {i} is {}, theirs {}", got[i], want[i]);
    }
}

pub(crate) fn norms_of_transformers() {
    calm(|| {
        let f = open();
        let (shape, x) = f.get("norm.x");
        let (_, want) = f.get("norm.out");
        // Squares add up without cancellation: relative, each side gamma(n) / 2 + 6 roundings.
        let relative = |n: usize| 2.0 * (gamma(n) / 2.0 + gamma(6));
        let got = norm(shape[0], EPS, x, f.get("norm.weight").1);
        assert_near("norm", &got, want, |i| relative(shape[1]) * f64::from(want[i].abs()));

        let (shape, x) = f.get("gated_norm.x");
        let (_, want) = f.get("gated_norm.out");
        let dims = [shape[0], shape[1], shape[2]];
        let got = gated_norm(dims, EPS, x, f.get("gated_norm.gate").1, f.get("gated_norm.weight").1);
        // Six more for silu and its product.
        let relative = relative(shape[2]) + 2.0 * gamma(6);
        assert_near("gated norm", &got, want, |i| relative * f64::from(want[i].abs()));
    });
}

pub(crate) fn feed_forward_of_transformers() {
    calm(|| {
        let f = open();
        let (shape, x) = f.get("mlp.x");
        let (rows, hidden) = (shape[0], shape[1]);
        let (gate, up, down) = (f.get("mlp.gate"), f.get("mlp.up"), f.get("mlp.down"));
        let inner = gate.0[0];
        let gate_up = [gate.1, up.1].concat();
        let first = LinearProblem { rows, k: hidden, n: inner, epilogue: Epilogue::SiluMul };
        let act = linear(first, &poison::<f32>(rows * inner), x, &gate_up);
        let second = LinearProblem { rows, k: inner, n: hidden, epilogue: Epilogue::Store };
        let got = linear(second, &poison::<f32>(rows * hidden), &act, down.1);
        let mut bounds = Vec::new();
        for row in 0..rows {
            let x = exact(&x[row * hidden..][..hidden]);
            let sum = |w: &[f32], j: usize| dot(&x, &exact(&w[j * hidden..][..hidden]), 1);
            let act: Vec<Approx> = (0..inner).map(|i| sum(gate.1, i).silu().mul(sum(up.1, i))).collect();
            bounds.extend((0..hidden).map(|i| dot(&act, &exact(&down.1[i * inner..][..inner]), 1).error));
        }
        assert_near("feed-forward", &got, f.get("mlp.out").1, |i| 2.0 * bounds[i]);
    });
}

pub(crate) fn mixture_of_experts_of_transformers() {
    calm(|| {
        let f = open();
        let (shape, x) = f.get("moe.x");
        let get = |name: &str| f.get(name).1.to_vec();
        let weights = Experts {
            router: get("moe.router"),
            gate_up: get("moe.gate_up"),
            down: get("moe.down"),
            shared_gate_up: get("moe.shared_gate_up"),
            shared_down: get("moe.shared_down"),
            shared_gate: get("moe.shared_gate"),
        };
        let (route_shape, want_routes) = f.try_integers("moe.routes").unwrap();
        let problem = MoeProblem {
            rows: shape[0],
            hidden: shape[1],
            experts: f.get("moe.router").0[0],
            top_k: route_shape[1],
            intermediate: f.get("moe.down").0[2],
            shared_intermediate: f.get("moe.shared_down").0[1],
            weights: DType::F32,
        };
        let before = vec![0.0f32; x.len()];
        let (got, routes) = moe(problem, &before, x, &weights);
        assert!(routes.iter().map(|r| i64::from(*r)).eq(want_routes.iter().copied()), "other routes");
        let (h, k) = (problem.hidden, problem.top_k);
        let mut bounds = Vec::new();
        for row in 0..problem.rows {
            let at = row * h..row * h + h;
            let route = &routes[row * k..][..k];
            bounds
                .extend(moe_row(&problem, &before[at.clone()], &x[at], &weights, route, |x, w| dot(x, w, 8)));
        }
        let want = f.get("moe.out").1;
        // The bound counts ⌈k / 8⌉ + 3 additions per sum; one lane would count k, at most 6 times as many.
        assert_near("mixture of experts", &got, want, |i| (1.0 + 6.0) * bounds[i].error);
        assert_admitted("our own part of it", &got, &bounds, 1e-3);
    });
}

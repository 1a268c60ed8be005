//! The mixture of experts against its parts, and rows against each other.

use crate::{Check, calls::*, calm, same};
use kernels_core::{Activation, DType, bf16, f16, ref_math};
use kernels_dense::*;
use kernels_testkit::rng::Rng;

pub(crate) const SMALL: MoeProblem = MoeProblem {
    rows: 6,
    hidden: 24,
    experts: 5,
    top_k: 3,
    intermediate: 10,
    shared_intermediate: 14,
    weights: DType::Bf16,
};

pub(crate) fn weights<W: Activation>(problem: &MoeProblem, seed: u64) -> Experts<W> {
    let MoeProblem { hidden: h, experts: e, intermediate: i, shared_intermediate: s, .. } = *problem;
    let mut rng = Rng::new(seed);
    Experts {
        router: rng.normals(e * h, 0.5),
        gate_up: rng.normals(e * 2 * i * h, 0.4),
        down: rng.normals(e * h * i, 0.4),
        shared_gate_up: rng.normals(2 * s * h, 0.4),
        shared_down: rng.normals(h * s, 0.4),
        shared_gate: rng.normals(h, 0.4),
    }
}

/// Any batch against rows alone, in order and permuted.
pub(crate) fn moe_rows<A: Activation>() -> Check {
    for rows in 2..=6 {
        let problem = MoeProblem { rows, ..SMALL };
        let h = problem.hidden;
        let weights = weights::<A>(&problem, 4);
        let mut rng = Rng::new(rows as u64);
        let (x, before): (Vec<A>, Vec<A>) = (rng.normals(rows * h, 1.0), rng.normals(rows * h, 1.0));
        let (out, routes) = moe(problem, &before, &x, &weights);
        let order = rng.permutation(rows);
        let pick = |all: &[A]| order.iter().flat_map(|&r| all[r * h..][..h].to_vec()).collect::<Vec<A>>();
        let permuted = moe(problem, &pick(&before), &pick(&x), &weights);
        same("permuted rows", &permuted.0, &pick(&out))?;
        for row in 0..rows {
            let at = row * h..row * h + h;
            let one = MoeProblem { rows: 1, ..problem };
            let alone = moe(one, &before[at.clone()], &x[at.clone()], &weights);
            same(&format!("row {row} of {rows}"), &out[at], &alone.0)?;
            same("routes", &routes[row * problem.top_k..][..problem.top_k], &alone.1)?;
        }
    }
    Ok(())
}

pub(crate) fn moe_rows_do_not_know_of_each_other() {
    calm(|| {
        moe_rows::<bf16>().unwrap();
        moe_rows::<f16>().unwrap();
        moe_rows::<f32>().unwrap();
    });
}

pub(crate) fn moe_is_its_parts() {
    fn check<A: Activation>() {
        let problem = SMALL;
        let MoeProblem { rows, hidden, experts, top_k, intermediate, shared_intermediate, .. } = problem;
        let w = weights::<A>(&problem, 9);
        let mut rng = Rng::new(2);
        let (x, before): (Vec<A>, Vec<A>) =
            (rng.normals(rows * hidden, 1.0), rng.normals(rows * hidden, 1.0));
        let (out, routes) = moe(problem, &before, &x, &w);

        let ffn = |x: &[A], gate_up: &[A], down: &[A], inner: usize| {
            let up = LinearProblem { rows: 1, k: hidden, n: inner, epilogue: Epilogue::SiluMul };
            let act = linear(up, &poison::<A>(inner), x, gate_up);
            let down_problem = LinearProblem { rows: 1, k: inner, n: hidden, epilogue: Epilogue::Store };
            linear(down_problem, &poison::<A>(hidden), &act, down)
        };
        for row in 0..rows {
            let x = &x[row * hidden..][..hidden];
            let logits = head(
                HeadProblem { rows: 1, k: hidden, vocab: experts, valid: experts, listed: None },
                x,
                &w.router,
            )
            .0;
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            // Fewer experts than lanes: the sum of the softmax is the tree over 32 lanes alone.
            let e: Vec<f32> = logits.iter().map(|l| ref_math::exp(l - max)).collect();
            let total = (e[0] + e[4]) + e[2] + (e[1] + e[3]);
            let p: Vec<f32> = e.iter().map(|e| e / total).collect();
            let mut ids: Vec<usize> = (0..experts).collect();
            ids.sort_by(|a, b| p[*b].total_cmp(&p[*a]).then(a.cmp(b)));
            let ids = &ids[..top_k];
            let route: Vec<i32> = ids.iter().map(|e| *e as i32).collect();
            same("route", &routes[row * top_k..][..top_k], &route).unwrap();
            let chosen: f32 = ids.iter().fold(0.0, |sum, e| sum + p[*e]);

            let mut sum = vec![0.0f32; hidden];
            for &e in ids {
                let gate_up = &w.gate_up[e * 2 * intermediate * hidden..][..2 * intermediate * hidden];
                let down = &w.down[e * hidden * intermediate..][..hidden * intermediate];
                let y = ffn(x, gate_up, down, intermediate);
                for i in 0..hidden {
                    sum[i] = (p[e] / chosen).mul_add(y[i].to_f32(), sum[i]);
                }
            }
            let y = ffn(x, &w.shared_gate_up, &w.shared_down, shared_intermediate);
            let gate =
                head(HeadProblem { rows: 1, k: hidden, vocab: 1, valid: 1, listed: None }, x, &w.shared_gate)
                    .0[0];
            let want: Vec<A> = (0..hidden)
                .map(|i| {
                    let sum = A::from_f32(ref_math::sigmoid(gate).mul_add(y[i].to_f32(), sum[i]));
                    A::from_f32(before[row * hidden + i].to_f32() + sum.to_f32())
                })
                .collect();
            same(&format!("row {row}"), &out[row * hidden..][..hidden], &want).unwrap();
        }
    }
    calm(|| {
        check::<bf16>();
        check::<f16>();
        check::<f32>();
    });
}

pub(crate) fn experts_nobody_chose_are_not_read() {
    calm(|| {
        let problem = MoeProblem { rows: 2, top_k: 2, experts: 9, ..SMALL };
        let h = problem.hidden;
        let clean = weights::<bf16>(&problem, 31);
        let x: Vec<bf16> = Rng::new(6).normals(2 * h, 1.0);
        let before = vec![bf16::ONE; 2 * h];
        let (want, routes) = moe(problem, &before, &x, &clean);
        let mut poisoned = clean.clone();
        let mut unread = 0;
        for expert in (0..9).filter(|e| !routes.contains(&(*e as i32))) {
            unread += 1;
            let (gate_up, down) = (2 * problem.intermediate * h, h * problem.intermediate);
            poisoned.gate_up[expert * gate_up..][..gate_up].fill(bf16::NAN);
            poisoned.down[expert * down..][..down].fill(bf16::NAN);
        }
        assert!(unread >= 5, "two rows of two experts leave five of nine");
        let (got, again) = moe(problem, &before, &x, &poisoned);
        same("with unread experts poisoned", &got, &want).unwrap();
        assert_eq!(routes, again);
    });
}

pub(crate) fn a_token_of_nan_keeps_to_itself() {
    calm(|| {
        let problem = MoeProblem { rows: 3, ..SMALL };
        let h = problem.hidden;
        let w = weights::<bf16>(&problem, 8);
        let mut x: Vec<bf16> = Rng::new(7).normals(3 * h, 1.0);
        let before = vec![bf16::ONE; 3 * h];
        let (clean, _) = moe(problem, &before, &x, &w);
        x[h + 3] = bf16::NAN;
        let (dirty, routes) = moe(problem, &before, &x, &w);
        same("row 0", &dirty[..h], &clean[..h]).unwrap();
        same("row 1", &dirty[h..2 * h], &vec![bf16::NAN; h]).unwrap();
        same("row 2", &dirty[2 * h..], &clean[2 * h..]).unwrap();
        // Nothing but NaN to choose from: different experts all the same, the smallest ids.
        assert_eq!(routes[3..6], [0, 1, 2]);
    });
}

//! Random shapes: any split of a batch, any companions, any order.

use crate::{bits::EPILOGUES, calls::*, calm, moe::weights, same};
use kernels_core::{Activation, DType, bf16};
use kernels_dense::*;
use kernels_testkit::{rng::Rng, runner::Suite};
use proptest::prelude::*;

fn split_linear<A: Activation, W: Activation>(problem: LinearProblem, at: usize, seed: u64) {
    let LinearProblem { rows, k, n, .. } = problem;
    let mut rng = Rng::new(seed);
    let x: Vec<A> = rng.normals(rows * k, 1.0);
    let weight: Vec<W> = rng.normals(problem.weight_rows() * k, 0.5);
    let before: Vec<A> = rng.normals(rows * n, 1.0);
    let whole = linear(problem, &before, &x, &weight);
    let (first, last) = (LinearProblem { rows: at, ..problem }, LinearProblem { rows: rows - at, ..problem });
    let mut parts = linear(first, &before[..at * n], &x[..at * k], &weight);
    parts.extend(linear(last, &before[at * n..], &x[at * k..], &weight));
    same("two parts", &parts, &whole).unwrap();
}

pub(crate) fn add(suite: &mut Suite) {
    suite.cpu("cpu::properties::linear_in_two_parts", linear_in_two_parts);
    suite.cpu("cpu::properties::head_in_two_parts", head_in_two_parts);
    suite.cpu("cpu::properties::moe_with_any_companions", moe_with_any_companions);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    fn linear_in_two_parts(
        (rows, at) in (2usize..=13).prop_flat_map(|rows| (Just(rows), 1..rows)),
        k in 1usize..=80,
        n in 1usize..=40,
        epilogue in 0usize..4,
        seed: u64,
    ) {
        calm(|| {
            let problem = LinearProblem { rows, k, n, epilogue: EPILOGUES[epilogue] };
            split_linear::<bf16, bf16>(problem, at, seed);
            split_linear::<f32, f32>(problem, at, seed);
            split_linear::<f32, bf16>(problem, at, seed);
        });
    }

    fn head_in_two_parts(
        (rows, at) in (2usize..=7).prop_flat_map(|rows| (Just(rows), 1..rows)),
        k in 1usize..=40,
        (vocab, valid) in (1usize..=60).prop_flat_map(|vocab| (Just(vocab), 1..=vocab)),
        seed: u64,
    ) {
        calm(|| {
            let mut rng = Rng::new(seed);
            let x: Vec<bf16> = rng.normals(rows * k, 1.0);
            // Coarse weights, so that ties are common.
            let weight: Vec<bf16> = (0..vocab * k).map(|_| bf16::from_f32(rng.below(3) as f32)).collect();
            let problem = HeadProblem { rows, k, vocab, valid, listed: None };
            let whole = head(problem, &x, &weight);
            let mut parts = head(HeadProblem { rows: at, ..problem }, &x[..at * k], &weight);
            let rest = head(HeadProblem { rows: rows - at, ..problem }, &x[at * k..], &weight);
            parts.0.extend(rest.0);
            parts.1.extend(rest.1);
            same("logits", &parts.0, &whole.0).unwrap();
            same("argmax", &parts.1, &whole.1).unwrap();
            for row in 0..rows {
                let logits = &whole.0[row * vocab..][..valid];
                let best = whole.1[row] as usize;
                assert!(logits.iter().all(|l| *l <= logits[best]));
                assert!(logits[..best].iter().all(|l| *l < logits[best]), "a smaller id ties");
            }
        });
    }

    fn moe_with_any_companions(
        rows in 2usize..=6,
        hidden in 1usize..=20,
        (experts, top_k) in (1usize..=9).prop_flat_map(|e| (Just(e), 1..=e)),
        intermediate in 1usize..=9,
        shared_intermediate in 1usize..=9,
        seed: u64,
    ) {
        calm(|| {
            let problem = MoeProblem {
                rows,
                hidden,
                experts,
                top_k,
                intermediate,
                shared_intermediate,
                weights: DType::Bf16,
            };
            let weights = weights::<bf16>(&problem, seed);
            let mut rng = Rng::new(seed ^ 1);
            let x: Vec<bf16> = rng.normals(rows * hidden, 1.0);
            let before: Vec<bf16> = rng.normals(rows * hidden, 1.0);
            let (out, routes) = moe(problem, &before, &x, &weights);
            for row in 0..rows {
                let at = row * hidden..row * hidden + hidden;
                let one = MoeProblem { rows: 1, ..problem };
                let alone = moe(one, &before[at.clone()], &x[at.clone()], &weights);
                same("row", &out[at], &alone.0).unwrap();
                let route = &routes[row * top_k..][..top_k];
                same("route", route, &alone.1).unwrap();
                let mut distinct = route.to_vec();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(distinct.len(), top_k, "an expert was chosen twice");
                assert!(route.iter().all(|e| (0..experts as i32).contains(e)));
            }
        });
    }
}

//! Small cases with results that anybody can work out.

use crate::{Check, calls::*, calm, same};
use kernels_core::{Cpu, DType, DeviceInfo, Tensor, TensorMut, bf16, f16};
use kernels_dense::*;

fn b(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|v| bf16::from_f32(*v)).collect()
}

pub(crate) fn linear_stores_adds_and_gates() {
    calm(|| {
        let x = [1.0f32, 2.0, 3.0, -1.0, 0.5, 4.0];
        let weight = [1.0f32, 0.0, 2.0, 0.0, -1.0, 1.0];
        let problem = LinearProblem { rows: 2, k: 3, n: 2, epilogue: Epilogue::Store };
        assert_eq!(linear(problem, &[f32::NAN; 4], &x, &weight), [7.0, 1.0, 7.0, 3.5]);
        let problem = LinearProblem { epilogue: Epilogue::AddTo, ..problem };
        assert_eq!(linear(problem, &[10.0, 20.0, 30.0, 40.0f32], &x, &weight), [17.0, 21.0, 37.0, 43.5]);
        // Gate 100 is past where e^-x matters: silu(100) = 100. Gate 0 gives 0.
        let weight = [100.0f32, 0.0, 0.5, 0.25];
        let problem = LinearProblem { rows: 1, k: 1, n: 2, epilogue: Epilogue::SiluMul };
        assert_eq!(linear(problem, &[f32::NAN; 2], &[1.0f32], &weight), [50.0, 0.0]);
        // `linear` takes a row's first element as its gate: sigmoid(0) = 1/2, and sigmoid(100) = 1.
        let problem = LinearProblem { rows: 2, k: 2, n: 1, epilogue: Epilogue::SigmoidGate };
        assert_eq!(linear(problem, &[f32::NAN; 2], &[0.0, 3.0, 100.0, 3.0f32], &[1.0, 2.0f32]), [3.0, 106.0]);
    });
}

pub(crate) fn the_sum_is_rounded_before_it_is_added_to_the_residual() {
    // bf16 steps by 2 in 256..512. The sum 257 rounds to 256; 1 + 256 = 257 rounds to 256 (ties to even).
    // Had the exact sum been added, 258 would have come out.
    calm(|| {
        let problem = LinearProblem { rows: 1, k: 2, n: 1, epilogue: Epilogue::AddTo };
        assert_eq!(linear(problem, &b(&[1.0]), &b(&[256.0, 1.0]), &b(&[1.0, 1.0])), b(&[256.0]));
    });
}

/// Elements 0 and 8 share a lane: -(1 + 2^-11), then (1 + 2^-12)² = 1 + 2^-11 + 2^-24 fused onto it.
pub(crate) fn fused() -> Check {
    let mut x = vec![0.0f32; 9];
    let mut weight = vec![0.0f32; 9];
    (x[0], weight[0]) = (-(1.0 + 2.0f32.powi(-11)), 1.0);
    (x[8], weight[8]) = (1.0 + 2.0f32.powi(-12), 1.0 + 2.0f32.powi(-12));
    let problem = LinearProblem { rows: 1, k: 9, n: 1, epilogue: Epilogue::Store };
    // Rounding the product first would lose its last bit and leave 0.
    same("a fused multiply-add", &linear(problem, &[f32::NAN], &x, &weight), &[2.0f32.powi(-24)])
}

pub(crate) fn multiply_adds_are_fused() {
    calm(|| fused().unwrap());
}

pub(crate) fn head_masks_ties_and_nan() {
    calm(|| {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        // A head of width one and x = 1: the weights are the logits. The fifth id is masked.
        for (weight, want) in [
            ([1.0, 3.0, 3.0, 2.0, 9.0], 1),
            ([-5.0, -2.0, -2.0, nan, 9.0], 1),
            ([nan, nan, nan, nan, 9.0], -1),
            ([0.0, 0.0, 0.0, -0.0, 9.0], 0),
            ([-inf, -inf, -inf, -inf, nan], 0),
        ] {
            let (logits, best) =
                head(HeadProblem { rows: 1, k: 1, vocab: 5, valid: 4, listed: None }, &[1.0f32], &weight);
            assert_eq!(best, [want], "{weight:?}");
            assert_eq!(logits[4], -inf, "{weight:?}");
            assert!(
                (0..4).all(|id| logits[id] == weight[id] || weight[id].is_nan()),
                "{weight:?}: {logits:?}"
            );
        }
    });
}

pub(crate) fn head_gives_one_output_without_the_other() {
    calm(|| {
        let op =
            Head::plan(HeadProblem { rows: 2, k: 1, vocab: 3, valid: 3, listed: None }, &DeviceInfo::cpu())
                .unwrap();
        let (x, weight) = (vec![1.0f32, -1.0], vec![1.0f32, 2.0, -3.0]);
        let (mut best, mut logits) = (vec![7i32; 2], vec![0.0f32; 6]);
        let (tx, tw) = (Tensor::of(&x, [2, 1]), Tensor::of(&weight, [3, 1]));
        op.run::<Cpu, f32, f32>(
            &(),
            HeadArgs {
                logits: None,
                argmax: Some(TensorMut::of(&mut best, [2])),
                x: tx.clone(),
                weight: tw.clone(),
                ids: None,
                workspace: None,
            },
        )
        .unwrap();
        op.run::<Cpu, f32, f32>(
            &(),
            HeadArgs {
                logits: Some(TensorMut::of(&mut logits, [2, 3])),
                argmax: None,
                x: tx,
                weight: tw,
                ids: None,
                workspace: None,
            },
        )
        .unwrap();
        assert_eq!(best, [1, 2]);
        assert_eq!(logits, [1.0, 2.0, -3.0, -1.0, -2.0, 3.0]);
    });
}

pub(crate) fn norms_scale_by_the_root_mean_square() {
    calm(|| {
        // mean(x²) + eps = 1 + 3 = 4, so rows are halved, then scaled by 1 + w.
        let x = [1.0f32, -1.0, 1.0, -1.0];
        assert_eq!(norm(1, 3.0, &x, &[0.0f32, 0.0, 1.0, -1.0]), [0.5, -0.5, 1.0, 0.0]);
        // The gated norm scales by w itself, and by silu(gate): 0 at 0, 100 at 100.
        let gated = gated_norm([1, 1, 4], 3.0, &x, &[0.0f32, 100.0, 100.0, 0.0], &[1.0f32, 1.0, 2.0, 1.0]);
        assert_eq!(gated, [0.0, -50.0, 100.0, 0.0]);
        // The residual is rounded before the norm reads it: 256 + 1 = 256 in bf16.
        let (residual, out) = add_norm(1, &b(&[256.0]), &b(&[1.0]), &b(&[0.0]));
        assert_eq!((residual, out), (b(&[256.0]), b(&[1.0])));
    });
}

pub(crate) fn a_row_of_zeros_is_normed_to_zeros() {
    calm(|| assert_eq!(norm(1, EPS, &b(&[0.0; 5]), &b(&[1.0; 5])), b(&[0.0; 5])));
}

pub(crate) fn embedding_gathers_rows_and_zeros() {
    calm(|| {
        let table = b(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let ids = [2, -1, 0, 3, 2, i32::MIN, i32::MAX];
        let want = [5.0, 6.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(embed::<f32, bf16>(&ids, 3, &table), want);
        assert_eq!(embed::<bf16, bf16>(&ids, 3, &table), b(&want));
        // Another activation type rounds: 1 + 2^-10 is no bf16.
        assert_eq!(embed::<bf16, f16>(&[0], 1, &[f16::from_f32(1.0 + 2.0f32.powi(-10))]), b(&[1.0]));
    });
}

pub(crate) fn moe_of_width_one() {
    calm(|| {
        let problem = MoeProblem {
            rows: 1,
            hidden: 1,
            experts: 3,
            top_k: 2,
            intermediate: 1,
            shared_intermediate: 1,
            weights: DType::F32,
        };
        // All probabilities are equal, so the smallest ids win with half the weight each. Gate 64 is past
        // where e^-x matters: expert e gives 64 * 1 * (e + 1), the shared one 64 * 0.5 * 1, times sigmoid(0).
        let weights = Experts {
            router: vec![0.0f32; 3],
            gate_up: vec![64.0, 1.0, 64.0, 1.0, 64.0, 1.0],
            down: vec![1.0, 2.0, 3.0],
            shared_gate_up: vec![64.0, 0.5],
            shared_down: vec![1.0],
            shared_gate: vec![0.0],
        };
        let (out, routes) = moe(problem, &[1000.0f32], &[1.0], &weights);
        assert_eq!(routes, [0, 1]);
        assert_eq!(out, [1000.0 + (64.0 + 128.0) / 2.0 + 16.0]);
        // A router that prefers expert 2 by far: it takes all the weight, and comes first.
        let router = vec![0.0f32, 0.0, 200.0];
        let (out, routes) = moe(problem, &[0.0f32], &[1.0], &Experts { router, ..weights });
        assert_eq!(routes, [2, 0]);
        assert_eq!(out, [192.0 + 16.0]);
    });
}

pub(crate) fn no_rows_do_nothing() {
    calm(|| {
        let empty: [f32; 0] = [];
        let problem = LinearProblem { rows: 0, k: 2, n: 2, epilogue: Epilogue::SiluMul };
        assert_eq!(linear(problem, &empty, &empty, &[1.0f32; 8]), empty);
        assert_eq!(norm(0, EPS, &empty, &[1.0f32; 4]), empty);
        assert_eq!(embed::<f32, f32>(&[], 2, &[1.0, 2.0]), empty);
        let problem = MoeProblem { rows: 0, ..crate::moe::SMALL };
        assert_eq!(moe(problem, &empty, &empty, &crate::moe::weights::<f32>(&problem, 1)).1, [0i32; 0]);
        let (logits, best) =
            head(HeadProblem { rows: 0, k: 1, vocab: 2, valid: 1, listed: None }, &empty, &[1.0f32, 1.0]);
        assert_eq!((logits.len(), best.len()), (0, 0));
    });
}

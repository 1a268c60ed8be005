//! Right numbers: by hand, against f64 with a derived bound, and against somebody else's code.

use crate::world::{Chunk, Kind, Place, World, parameters, problem};
use kernels_conv::Problem;
use kernels_core::{Activation, DType, bf16};
use kernels_testkit::{fixture::Fixture, for_types, rng::Rng};

fn small(width: usize, bias: bool, silu: bool) -> Problem {
    Problem { sequences: 1, rows: 8, channels: 8, width, slots: 1, ring_rows: 12, max_rows: 8, bias, silu }
}

/// Values worked out by hand; channel 1 has the opposite sign, so that channels cannot be mixed up.
pub fn values_by_hand<B: Place>(queue: &B::Queue) {
    let sign = |c: usize| if c == 1 { -1.0f32 } else { 1.0 };
    let x: Vec<bf16> =
        (1..=5).flat_map(|v| (0..8).map(move |c| bf16::from_f32(v as f32 * sign(c)))).collect();
    let run = |width: usize, bias: Option<f32>, silu: bool| -> Vec<Vec<f32>> {
        let taps: Vec<bf16> = (0..8).flat_map(|_| (1..=width).map(|j| bf16::from_f32(j as f32))).collect();
        let biases = vec![bf16::from_f32(bias.unwrap_or(f32::NAN)); 8];
        let p = small(width, bias.is_some(), silu);
        let mut world = World::<B, bf16>::new(queue, p, &(taps, biases));
        let out = world.run(Kind::Verify, &[Chunk { slot: 0, start: 0, x: x.clone() }]).remove(0);
        (0..8).map(|c| out.iter().skip(c).step_by(8).map(|y| y.to_f32()).collect()).collect()
    };
    // Taps 1, 2, 3, 4, oldest first, over 1, 2, 3, 4, 5.
    let plain = run(4, None, false);
    assert_eq!(plain[0], [4.0, 11.0, 20.0, 30.0, 40.0]);
    assert_eq!(plain[1], [-4.0, -11.0, -20.0, -30.0, -40.0]);
    assert_eq!(plain[7], plain[0]);
    assert_eq!(run(3, None, false)[0], [3.0, 8.0, 14.0, 20.0, 26.0]);
    assert_eq!(run(2, None, false)[0], [2.0, 5.0, 8.0, 11.0, 14.0]);
    assert_eq!(run(4, Some(0.5), false)[0], [4.5, 11.5, 20.5, 30.5, 40.5]);
    assert_eq!(run(4, Some(0.5), false)[1], [-3.5, -10.5, -19.5, -29.5, -39.5]);
    // 4 / (1 + e^-4) = 3.92806 -> 3.921875 and -4 / (1 + e^4) = -0.0719448 -> -0.07177734 in bf16;
    // 11 / (1 + e^-11) = 10.99982 -> 11.
    let silu = run(4, None, true);
    assert_eq!(silu[0][..2], [3.921875, 11.0]);
    assert_eq!(silu[1][0], -0.071_777_344);
}

/// Within the rounding that the definition allows, of f64.
///
/// With u = 2^-24 the W fused steps each round once, so the sum is off by at most W u S, S = |bias| + sum of
/// |w x| (partial sums are at most S; the factor 1.01 covers the growth by rounding itself). SiLU has slope
/// below 1.1 everywhere. Computing it adds 1.5 ulp for e^-x, half an ulp each for the sum and the quotient:
/// at most 2.5 ulp, 5 u relative. Rounding to the activation type adds half of its ulp, or half of its
/// smallest denormal.
pub fn within_the_derived_bound<B: Place>(queue: &B::Queue) {
    for_types!(B, queue, against_f64);
}

fn against_f64<B: Place, A: Activation>(queue: &B::Queue) {
    const U: f64 = 5.960_464_477_539_063e-8;
    let (unit, denormal) = match A::DTYPE {
        DType::Bf16 => (1.0 / 256.0, 2f64.powi(-134)),
        DType::F16 => (1.0 / 2048.0, 2f64.powi(-25)),
        _ => (U, 2f64.powi(-150)),
    };
    for seed in 0..6 {
        let mut rng = Rng::new(1000 + seed);
        let p = Problem { ring_rows: 3 + 40, max_rows: 40, rows: 40, ..problem::<B>(&mut rng, 1, 1, 4) };
        let (weight, bias) = parameters::<A>(&p, seed);
        let x: Vec<A> = rng.normals(40 * p.channels, 3.0);
        let mut world = World::<B, A>::new(queue, p, &(weight.clone(), bias.clone()));
        let out = world.run(Kind::Verify, &[Chunk { slot: 0, start: 0, x: x.clone() }]).remove(0);
        for (i, got) in out.iter().enumerate() {
            let (t, c) = (i / p.channels, i % p.channels);
            let wide = |v: &A| f64::from(v.to_f32());
            let start = if p.bias { wide(&bias[c]) } else { 0.0 };
            let (mut sum, mut size) = (start, start.abs());
            for j in 0..p.width {
                if t + j + 1 >= p.width {
                    let term =
                        wide(&weight[c * p.width + j]) * wide(&x[(t + j + 1 - p.width) * p.channels + c]);
                    (sum, size) = (sum + term, size + term.abs());
                }
            }
            let want = if p.silu { sum / (1.0 + (-sum).exp()) } else { sum };
            let sum_error = 1.01 * p.width as f64 * U * size;
            let before_rounding = if p.silu { 1.1 * sum_error + 5.0 * U * want.abs() } else { sum_error };
            let bound = before_rounding + unit * (want.abs() + before_rounding) + denormal;
            let error = (wide(got) - want).abs();
            assert!(error <= bound, "row {t}, channel {c}: {got:?} for {want}, off by {error:e} > {bound:e}");
        }
    }
}

/// Tensors from `tests/golden/make.py`, which uses SciPy's filter and logistic function in f64.
pub fn equals_scipy<B: Place>(queue: &B::Queue) {
    let golden = Fixture::open("kernels-conv/tests/golden/conv.safetensors");
    for width in [2, 3, 4] {
        let get = |name: &str| golden.get(&format!("w{width}.{name}"));
        let (shape, x) = get("x");
        let (rows, channels) = (shape[0], shape[1]);
        let round = |v: &[f32]| v.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>();
        let parameters = (round(get("weight").1), round(get("bias").1));
        for (bias, silu, name) in
            [(false, true, "out.silu"), (true, true, "out.bias_silu"), (true, false, "out.bias")]
        {
            let p = Problem {
                sequences: 1,
                rows,
                channels,
                width,
                slots: 1,
                ring_rows: width - 1 + rows,
                max_rows: rows,
                bias,
                silu,
            };
            for kind in [Kind::Verify, Kind::Prefill] {
                let mut world = World::<B, bf16>::new(queue, p, &parameters);
                let chunk = Chunk { slot: 0, start: 0, x: round(x) };
                let out = world.run(kind, &[chunk]).remove(0);
                let want = get(name).1;
                assert_eq!(out.len(), want.len());
                for (i, (got, want)) in out.iter().zip(want).enumerate() {
                    // One rounding to bf16 of a value that fp32 has to about 1e-6 of the terms, which are
                    // at most a few units here.
                    let bound = want.abs() / 256.0 + 4e-6;
                    let error = (got.to_f32() - want).abs();
                    assert!(error <= bound, "width {width} {name} element {i}: {got} instead of {want}");
                }
            }
        }
    }
}

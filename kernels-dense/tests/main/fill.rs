//! Random numbers: which ones, that any part of a stream is that part, and that streams are strangers.

use crate::{Check, calm, same, world::Place};
use kernels_core::{Activation, Cpu, DeviceInfo, Error, TensorMut, bf16, f16, philox::philox4x32_10};
use kernels_dense::*;
use kernels_testkit::{
    compare::assert_same_bits,
    guard::{Guarded, poison},
    runner::Suite,
};
use proptest::prelude::*;

const SEED: u64 = 0x0123_4567_89ab_cdef;
/// Standard deviation of a sum of four bytes: numbers are those sums, less their mean.
const OF_SUMS: f32 = 147.800_54;

pub(crate) fn problem(len: usize, first: u64, stream: u32) -> RandomFillProblem {
    RandomFillProblem { len, first, seed: SEED, stream, mean: 0.0, std: OF_SUMS }
}

/// One launch into memory between canaries.
pub(crate) fn fill<B: Place, A: Activation>(queue: &B::Queue, problem: RandomFillProblem) -> Vec<A> {
    let mut memory = Guarded::<B, A>::new(queue, &vec![poison(); problem.len], poison());
    let op = RandomFill::plan(problem, &B::device(queue)).unwrap();
    let payload = memory.payload();
    {
        let mut all = memory.whole_mut();
        let out = TensorMut::new(B::slice_mut(&mut all, payload), [problem.len]);
        op.run(queue, RandomFillArgs::<B, A> { out }).unwrap();
    }
    memory.read(queue)
}

fn cpu<A: Activation>(problem: RandomFillProblem) -> Vec<A> {
    fill::<Cpu, A>(&(), problem)
}

/// Sums worked out by another program, at the beginning of a stream and beyond 2^32 blocks.
pub(crate) fn sums_by_hand<B: Place>(queue: &B::Queue) {
    calm(|| {
        let near = [-6.0, -34.0, 70.0, 316.0, 183.0, -22.0, -227.0, -116.0, -109.0, 83.0, 235.0f32];
        let got = fill::<B, f32>(queue, problem(near.len(), 0, 42));
        assert_same_bits("near", &got, &near);
        let far = [-28.0, 158.0, -84.0, 111.0, -82.0, -120.0, 24.0, 1.0f32];
        let got = fill::<B, f32>(queue, problem(far.len(), 1 << 35, 42));
        assert_same_bits("far", &got, &far);
        // 1.75 + 316 / 4 is halfway between 80.5 and 81, whose last bit is even.
        let quarters = RandomFillProblem { mean: 1.75, std: OF_SUMS / 4.0, ..problem(4, 0, 42) };
        let want = [0.25, -6.75, 19.25, 81.0].map(bf16::from_f32);
        assert_same_bits("quarters", &fill::<B, bf16>(queue, quarters), &want);
    });
}

/// The equations, written once more, at places that 32 bits do not hold.
pub(crate) fn far_places() -> Check {
    for first in [8, (1 << 34) - 8, 1 << 34, (1 << 40) + 16] {
        let want: Vec<f32> = (first..first + 20)
            .map(|at: u64| {
                let (block, key) = (at / 4, [SEED as u32, (SEED >> 32) as u32]);
                let words = philox4x32_10([block as u32, (block >> 32) as u32, 9, 1], key);
                words[(at % 4) as usize].to_le_bytes().iter().map(|byte| f32::from(*byte)).sum::<f32>()
                    - 510.0
            })
            .collect();
        same(&format!("from {first} on"), &cpu::<f32>(problem(20, first, 9)), &want)?;
    }
    Ok(())
}

pub(crate) fn places_have_64_bits() {
    calm(|| far_places().unwrap());
}

/// Any part of a stream is that part, whatever its length, and nothing beside it is written.
pub(crate) fn parts_are_of_the_whole<B: Place>(queue: &B::Queue) {
    fn typed<B: Place, A: Activation>(queue: &B::Queue) {
        let rule = |len, first| RandomFillProblem { mean: 0.5, std: 0.37, ..problem(len, first, 3) };
        let whole = fill::<B, A>(queue, rule(40_000, 64));
        for (first, len) in
            [(64, 1), (72, 7), (64, 8), (64, 9), (104, 8191), (8256, 8192), (16_448, 8193), (64, 39_997)]
        {
            let from = (first - 64) as usize;
            let part = fill::<B, A>(queue, rule(len, first));
            assert_same_bits(&format!("{len} from {first} on"), &part, &whole[from..from + len]);
        }
        assert!(fill::<B, A>(queue, rule(0, 64)).is_empty());
    }
    calm(|| {
        typed::<B, bf16>(queue);
        typed::<B, f32>(queue);
        if B::GENERAL {
            typed::<B, f16>(queue);
        }
    });
}

/// Mean, deviation, shape and ends of the distribution; of a million numbers, within five standard errors.
pub(crate) fn moments_are_those_of_four_bytes() {
    calm(|| {
        let count = 1 << 20;
        let rule = RandomFillProblem { mean: 3.0, std: 2.0, ..problem(count, 0, 1) };
        let x: Vec<f64> = cpu::<f32>(rule).iter().map(|x| (f64::from(*x) - 3.0) / 2.0).collect();
        let moment = |power: i32| x.iter().map(|x| x.powi(power)).sum::<f64>() / count as f64;
        // Of the sum of four uniform numbers: kurtosis 3 - 6/5 / 4 = 2.7 (of bytes 2.69999). A moment's error comes from
        // that of twice its power, which is no larger than a normal number's: 15 of the sixth, 105 of the eighth.
        let error = 5.0 / (count as f64).sqrt();
        assert!(moment(1).abs() < error, "mean {}", moment(1));
        assert!((moment(2) - 1.0).abs() < error * 1.7f64.sqrt(), "variance {}", moment(2));
        assert!(moment(3).abs() < error * 15.0f64.sqrt(), "skewness {}", moment(3));
        assert!((moment(4) - 2.7).abs() < error * 105.0f64.sqrt(), "kurtosis {}", moment(4));
        let ends = x.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        assert!((3.2..3.4507).contains(&ends), "the farthest is {ends} deviations away");
        for distance in [1, 2, 3, 4, 8, 4096] {
            let products = x.iter().zip(&x[distance..]).map(|(a, b)| a * b).sum::<f64>();
            assert!(products.abs() / (count as f64) < error, "numbers {distance} apart know of each other");
        }
    });
}

pub(crate) fn plans_and_operands_are_refused() {
    let refused = |result: Result<RandomFill, Error>, want: &str| {
        assert_eq!(result.unwrap_err().to_string(), format!("dense::random_fill: {want}"));
    };
    let (plan, fine) = (|p| RandomFill::plan(p, &DeviceInfo::cpu()), problem(8, 0, 0));
    let most = 1u64 << 42;
    let want = format!("len is {}; at most {most} fit", most + 1);
    refused(plan(RandomFillProblem { len: most as usize + 1, ..fine }), &want);
    let want = format!("first is {}; at most {most} fit", most + 8);
    refused(plan(RandomFillProblem { first: most + 8, ..fine }), &want);
    refused(plan(RandomFillProblem { first: 12, ..fine }), "first is 12; it must be a multiple of 8");
    refused(plan(RandomFillProblem { mean: f32::NAN, ..fine }), "mean is NaN; it must be finite");
    for std in [-1.0, f32::INFINITY, f32::NAN] {
        let want = format!("std is {std}; it must be finite and not below zero");
        refused(plan(RandomFillProblem { std, ..fine }), &want);
    }
    let op = plan(fine).unwrap();
    assert_eq!(*op.problem(), fine);
    let mut short = vec![0.0f32; 7];
    let out = TensorMut::of(&mut short, [7]);
    let error = op.run::<Cpu, f32>(&(), RandomFillArgs { out }).unwrap_err();
    assert_eq!(error.to_string(), "dense::random_fill: `out` has shape [7], expected [8]");
}

pub(crate) fn add(suite: &mut Suite) {
    suite.cpu("cpu::fill::streams_are_strangers", streams_are_strangers);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    // Another seed, another stream or another place: numbers that agree no more often than by chance, one in 370, and
    // whose products add up to nothing.
    fn streams_are_strangers(
        seed: u64,
        other_seed: u64,
        stream: u32,
        other_stream: u32,
        first in 0u64..1 << 39,
        other_first in 0u64..1 << 39,
    ) {
        const COUNT: usize = 4096;
        prop_assume!(seed != other_seed && stream != other_stream && first.abs_diff(other_first) > COUNT as u64);
        let one = RandomFillProblem { seed, std: 1.0, ..problem(COUNT, first * 8, stream) };
        calm(|| {
            let x = cpu::<f32>(one);
            for other in [
                RandomFillProblem { seed: other_seed, ..one },
                RandomFillProblem { seed: seed ^ 1, ..one },
                RandomFillProblem { stream: other_stream, ..one },
                RandomFillProblem { stream: stream ^ 1, ..one },
                RandomFillProblem { first: other_first * 8, ..one },
            ] {
                let y = cpu::<f32>(other);
                let alike = x.iter().zip(&y).filter(|(x, y)| x == y).count();
                assert!(alike < 50, "{alike} of {COUNT} numbers are alike: {one:?}, {other:?}");
                let product = x.iter().zip(&y).map(|(x, y)| x * y).sum::<f32>() / (COUNT as f32).sqrt();
                assert!(product.abs() < 6.5, "{product} deviations: {one:?}, {other:?}");
            }
        });
    }
}

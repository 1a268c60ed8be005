//! Logits by weights of one byte an element.

use crate::{
    Check,
    approx::{Approx, assert_admitted, exact},
    calls, calm,
    fp8::{GAP, definition, quantize},
    layers::{dot_in_steps, rows_of},
    same,
    world::{Place, packed, spread, strides},
};
use kernels_core::{Activation, Cpu, DeviceInfo, Error, Tensor, TensorMut, bf16, f16};
use kernels_dense::*;
use kernels_testkit::{
    compare::assert_same_bits,
    guard::{Guarded, poison},
    rng::Rng,
    runner::{Suite, stride},
};
use proptest::prelude::*;

/// Gaps of NaN, so that a code that is read out of turn is seen.
fn spread_codes(codes: &[u8], k: usize) -> Vec<u8> {
    codes.chunks(k).flat_map(|row| row.iter().copied().chain([e4m3::NAN; GAP])).collect()
}

/// Rows of codes with their scales, and NaN between the rows.
pub(crate) struct Coded<B: Place> {
    queue: B::Queue,
    pub(crate) k: usize,
    pub(crate) codes: Vec<u8>,
    pub(crate) scales: Vec<f32>,
    weight: Guarded<B, u8>,
    scale: Guarded<B, f32>,
}

/// Ids that rows stand for, and so many columns.
pub(crate) type Listed<'a> = Option<(&'a [i32], usize)>;

impl<B: Place> Coded<B> {
    pub(crate) fn new(queue: &B::Queue, codes: Vec<u8>, scales: Vec<f32>, k: usize) -> Self {
        let weight = Guarded::new(queue, &spread_codes(&codes, k), e4m3::NAN);
        let scale = Guarded::new(queue, &scales, poison());
        Coded { queue: queue.clone(), k, codes, scales, weight, scale }
    }

    /// Any codes but NaN.
    pub(crate) fn random(queue: &B::Queue, n: usize, k: usize) -> Self {
        let mut rng = Rng::new((n + k) as u64);
        let code = |rng: &mut Rng| (rng.below(2) * 128 + rng.below(127)) as u8;
        let codes = (0..n * k).map(|_| code(&mut rng)).collect();
        let scales = rng.uniforms(n, 0.001, 0.01);
        Coded::new(queue, codes, scales, k)
    }

    pub(crate) fn n(&self) -> usize {
        self.scales.len()
    }

    /// The numbers of row `feature`, without its scale.
    pub(crate) fn numbers(&self, feature: usize) -> Vec<f32> {
        self.codes[feature * self.k..][..self.k].iter().map(|code| e4m3::decode(*code)).collect()
    }

    /// Logits into columns of poison, `[rows, columns]`.
    pub(crate) fn head(
        &self,
        x: &[bf16],
        valid: usize,
        listed: Listed<'_>,
        plan: impl FnOnce(Fp8Head) -> Fp8Head,
    ) -> Vec<f32> {
        let (n, k, rows) = (self.n(), self.k, x.len() / self.k);
        let vocab = listed.map_or(n, |(_, width)| width);
        let problem = HeadProblem { rows, k, vocab, valid, listed: listed.map(|_| n) };
        let op = plan(Fp8Head::plan(problem, &B::device(&self.queue)).unwrap());
        let named = Guarded::<B, i32>::new(&self.queue, listed.map_or(&[], |(ids, _)| ids), i32::MAX);
        let input = Guarded::<B, _>::new(&self.queue, &spread(x, 1, k), poison());
        let nothing = spread(&vec![poison::<f32>(); rows * vocab], 1, vocab);
        let mut logits = Guarded::<B, f32>::new(&self.queue, &nothing, poison());
        let at = logits.payload();
        {
            let mut all = logits.whole_mut();
            let args = Fp8HeadArgs::<B> {
                logits: TensorMut::new(B::slice_mut(&mut all, at), [rows, vocab])
                    .with_strides([strides(1, vocab)[0], 1]),
                x: Tensor::new(input.view(), [rows, k]).with_strides([strides(1, k)[0], 1]),
                weight: Tensor::new(self.weight.view(), [n, k]).with_strides([k + GAP, 1]),
                scales: Tensor::new(self.scale.view(), [n]),
                ids: listed.map(|_| Tensor::new(named.view(), [n])),
            };
            op.run(&self.queue, args).unwrap();
        }
        packed("logits", &logits.read(&self.queue), 1, vocab).concat()
    }
}

/// (n, k): less than a tile and a step, a real width, tiles of either size, more than a grid.
pub(crate) fn shapes<B: Place>() -> Vec<(usize, usize)> {
    let all: &[(usize, usize)] = if B::GENERAL {
        &[(8, 16), (67, 39), (200, 64)]
    } else {
        &[(8, 16), (72, 528), (264, 5120), (4096, 256), (17_032, 144)]
    };
    all.iter().copied().step_by(stride(2)).collect()
}

/// Each code, in every place of a k16 step: its number times the scale of its row, exactly.
pub(crate) fn numbers<B: Place>(queue: &B::Queue) -> Check {
    let codes = (0..=255u8).flat_map(|code| [code; 16]).collect();
    let scales: Vec<f32> = (0..256).map(|i| [1.0, 0.75, 2.0f32.powi(-30), -3.0][i % 4]).collect();
    let coded = Coded::<B>::new(queue, codes, scales, 16);
    let mut x = vec![bf16::ZERO; 16 * 16];
    (0..16).for_each(|i| x[17 * i] = bf16::ONE);
    for (place, logits) in coded.head(&x, 256, None, |op| op).chunks(256).enumerate() {
        for (code, (got, scale)) in (0..=255).zip(logits.iter().zip(&coded.scales)) {
            let right = match definition(code) {
                None => got.is_nan(),
                // Zeros may have either sign.
                Some(number) => f64::from(*got) == number * f64::from(*scale),
            };
            if !right {
                return Err(format!("code {code:#x} in place {place} gives {got:e}, times {scale:e}"));
            }
        }
    }
    Ok(())
}

pub(crate) fn every_code_is_its_number<B: Place>(queue: &B::Queue) {
    calm(|| numbers::<B>(queue).unwrap());
}

/// Rows of x that are one at one place each: every element of the weight comes out where it belongs.
pub(crate) fn every_element_is_where_it_is<B: Place>(queue: &B::Queue) {
    calm(|| {
        let shapes = if B::GENERAL { [(40, 37), (16, 144)] } else { [(200, 144), (8, 400)] };
        for (n, k) in shapes {
            let coded = Coded::<B>::random(queue, n, k);
            let mut x = vec![bf16::ZERO; k * k];
            (0..k).for_each(|i| x[i * k + i] = bf16::ONE);
            for (at, logits) in coded.head(&x, n, None, |op| op).chunks(n).enumerate() {
                for (feature, got) in logits.iter().enumerate() {
                    let want = coded.scales[feature] * e4m3::decode(coded.codes[feature * k + at]);
                    assert!(*got == want, "element {at} of row {feature}, {n} x {k}: {got} is not {want}");
                }
            }
        }
    });
}

/// Any number of rows, row by row.
pub(crate) fn rows_are_single_rows<B: Place>(queue: &B::Queue) {
    calm(|| {
        for (n, k) in shapes::<B>() {
            let coded = Coded::<B>::random(queue, n, k);
            let most = if B::GENERAL { 33 } else { 200 / stride(5) };
            let x = rows_of(most, k, 1);
            let alone: Vec<f32> = x.chunks(k).flat_map(|x| coded.head(x, n, None, |op| op)).collect();
            assert!(alone.iter().all(|y| y.is_finite()), "{n} x {k}: something else was read");
            let few = (1..=80).step_by(stride(9)).chain([96, 127, 128, 129, 200]);
            for count in few.filter(|count| *count <= most) {
                let got = coded.head(&x[..count * k], n, None, |op| op);
                assert_same_bits(&format!("{count} rows, {n} x {k}"), &got, &alone[..count * n]);
            }
        }
    });
}

/// What is not finite keeps to its row of x or its column.
pub(crate) fn odd_rows_keep_to_themselves<B: Place>(queue: &B::Queue) {
    calm(|| {
        for (n, k) in shapes::<B>() {
            let coded = Coded::<B>::random(queue, n, k);
            let clean = rows_of(20, k, 3);
            let want = coded.head(&clean, n, None, |op| op);
            let mut x = clean.clone();
            x[2 * k..3 * k].fill(bf16::NAN);
            x[11 * k] = bf16::INFINITY;
            x[12 * k..13 * k].fill(bf16::ZERO);
            let (mut codes, mut scales) = (coded.codes.clone(), coded.scales.clone());
            // Wherever in the row a code is NaN.
            let broken = |feature: usize| feature % 3 == 1;
            for feature in (0..n).filter(|feature| broken(*feature)) {
                codes[feature * k + feature * 7 % k] = if feature % 2 == 0 { 0x7f } else { 0xff };
            }
            scales[n - 3] = f32::NAN;
            let got = Coded::<B>::new(queue, codes, scales, k).head(&x, n, None, |op| op);
            for (row, (got, want)) in got.chunks(n).zip(want.chunks(n)).enumerate() {
                for (feature, (got, want)) in got.iter().zip(want).enumerate() {
                    let nan = broken(feature) || feature == n - 3 || row == 2;
                    let right = match row {
                        _ if nan => got.is_nan(),
                        11 => !got.is_finite(),
                        12 => *got == 0.0,
                        _ => got.to_bits() == want.to_bits(),
                    };
                    assert!(right, "row {row}, feature {feature} of {n} x {k}: {got}, {want}");
                }
            }
        }
    });
}

/// A part of the vocabulary, in any order, with rows that stand for nothing; and a vocabulary whose end does.
pub(crate) fn some_ids_and_masked_ones<B: Place>(queue: &B::Queue) {
    calm(|| {
        for (n, k) in shapes::<B>() {
            let coded = Coded::<B>::random(queue, n, k);
            let x = rows_of(19, k, 9);
            let sums = coded.head(&x, n, None, |op| op);

            let (width, valid) = (3 * n + 8, 3 * n - 5);
            let mut ids: Vec<i32> = Rng::new(6).permutation(valid)[..n].iter().map(|id| *id as i32).collect();
            (ids[3], ids[4], ids[5]) = (-1, valid as i32, i32::MAX);
            let got = coded.head(&x, valid, Some((&ids, width)), |op| op);
            for (row, sums) in sums.chunks(n).enumerate() {
                let mut want = vec![poison::<f32>(); width];
                for (id, sum) in ids.iter().zip(sums).filter(|(id, _)| (0..valid as i32).contains(*id)) {
                    want[*id as usize] = *sum;
                }
                assert_same_bits(&format!("row {row} of {n} x {k}"), &got[row * width..][..width], &want);
            }

            // Rows from `valid` on are not read: they would be NaN.
            let valid = n - 3;
            let (mut codes, mut scales) = (coded.codes.clone(), coded.scales.clone());
            codes[valid * k..].fill(e4m3::NAN);
            scales[valid..].fill(f32::NAN);
            let got = Coded::<B>::new(queue, codes, scales, k).head(&x, valid, None, |op| op);
            for (got, want) in got.chunks(n).zip(sums.chunks(n)) {
                assert_same_bits("valid ids", &got[..valid], &want[..valid]);
                assert_same_bits("masked ids", &got[valid..], &[f32::NEG_INFINITY; 3]);
            }
        }
    });
}

/// Σ x w over the exact numbers of the codes, then one product.
pub(crate) fn logits_are_within_their_bound<B: Place>(queue: &B::Queue) {
    calm(|| {
        for (n, k) in shapes::<B>() {
            let coded = Coded::<B>::random(queue, n, k);
            let x: Vec<bf16> = Rng::new(9).normals(3 * k, 1.0);
            let got = coded.head(&x, n, None, |op| op);
            let mut want = Vec::new();
            for x in x.chunks(k) {
                let x = exact(x);
                want.extend((0..n).map(|feature| {
                    let sum = dot_in_steps(&x, &exact(&coded.numbers(feature)));
                    sum.mul(Approx::exact(coded.scales[feature]))
                }));
            }
            assert_admitted(&format!("{n} x {k}"), &got, &want, 0.1);
        }
    });
}

/// A launch of no rows is legal and does nothing.
pub(crate) fn no_rows_do_nothing<B: Place>(queue: &B::Queue) {
    calm(|| {
        let coded = Coded::<B>::random(queue, 64, 128);
        assert!(coded.head(&[], 60, None, |op| op).is_empty());
        assert!(quantize::<B, bf16>(queue, &[], 16, None).1.is_empty());
    });
}

/// The head of the same numbers in a wider type, times the scales: the same sums, in the same order.
pub(crate) fn equals_the_head_of_its_numbers() {
    fn check<A: Activation>() {
        for (rows, n, k) in [(1, 64, 32), (3, 130, 61), (7, 65, 256)] {
            let coded = Coded::<Cpu>::random(&(), n, k);
            let x: Vec<A> = Rng::new(5).normals(rows * k, 1.0);
            let wide: Vec<f32> = (0..n).flat_map(|feature| coded.numbers(feature)).collect();
            let problem = HeadProblem { rows, k, vocab: n, valid: n - 2, listed: None };
            let (sums, _) = calls::head::<A, f32>(problem, &x, &wide);
            let want: Vec<f32> = sums.iter().enumerate().map(|(i, sum)| sum * coded.scales[i % n]).collect();
            same("logits", &cpu(problem, &x, &coded.codes, &coded.scales), &want).unwrap();
        }
    }
    calm(|| {
        check::<bf16>();
        check::<f16>();
        check::<f32>();
    });
}

fn cpu<A: Activation>(problem: HeadProblem, x: &[A], codes: &[u8], scales: &[f32]) -> Vec<f32> {
    let HeadProblem { rows, k, vocab, .. } = problem;
    let mut logits = calls::poison::<f32>(rows * vocab);
    let args = Fp8HeadArgs::<Cpu, A> {
        logits: TensorMut::of(&mut logits, [rows, vocab]),
        x: Tensor::new(x, [rows, k]),
        weight: Tensor::new(codes, [vocab, k]),
        scales: Tensor::new(scales, [vocab]),
        ids: None,
    };
    Fp8Head::plan(problem, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
    logits
}

/// Strips of the weight are spread over threads, whatever their number.
pub(crate) fn threads_do_not_change_bits() {
    calm(|| {
        let (rows, n, k) = (5, 1031, 260);
        let coded = Coded::<Cpu>::random(&(), n, k);
        let x = rows_of(rows, k, 2);
        let problem = HeadProblem { rows, k, vocab: n, valid: n, listed: None };
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| cpu(problem, &x, &coded.codes, &coded.scales))
        };
        let one = run(1);
        for threads in [2, 3, 7] {
            same(&format!("{threads} threads"), &run(threads), &one).unwrap();
        }
    });
}

pub(crate) fn plans_and_operands_are_refused() {
    #[track_caller]
    fn refused<T: std::fmt::Debug>(result: Result<T, Error>, want: &str) {
        assert_eq!(result.unwrap_err().to_string(), want);
    }
    const MAX: usize = (i32::MAX / 2) as usize;
    let (cpu, gpu) = (DeviceInfo::cpu(), DeviceInfo::h200());
    let (table, ids, range) = ([bf16::ONE; 12], [1; 3], format!("it must be in 1..={MAX}"));
    let fine = HeadProblem { rows: 2, k: 3, vocab: 5, valid: 5, listed: None };
    let plan = |problem| Fp8Head::plan(problem, &cpu);
    refused(plan(HeadProblem { k: 0, ..fine }), &format!("dense::fp8_head: k is 0; {range}"));
    let want = "dense::fp8_head: valid is 6; it must be in 1..=5, the vocabulary";
    refused(plan(HeadProblem { valid: 6, ..fine }), want);
    let want = "dense::fp8_head: listed is 0; it must be at least 1, or none for all ids";
    refused(plan(HeadProblem { listed: Some(0), ..fine }), want);
    let want = "dense::fp8_head: a width of 24 on CUDA (multiples of 16 are) is not supported";
    refused(Fp8Head::plan(HeadProblem { k: 24, vocab: 8, ..fine }, &gpu), want);
    let want = "dense::fp8_head: a width of 12 on CUDA (multiples of 8 are) is not supported";
    refused(Fp8Head::plan(HeadProblem { k: 32, listed: Some(12), ..fine }, &gpu), want);
    assert_eq!(*plan(fine).unwrap().problem(), fine);

    let (codes, scales) = (vec![0u8; 18], vec![1.0f32; 6]);
    let run = |listed: Option<usize>, columns, x: [usize; 2], weight, of_scales, ids: Option<&[i32]>| {
        let mut logits = vec![0.0f32; 12];
        let args = Fp8HeadArgs::<Cpu> {
            logits: TensorMut::of(&mut logits, [2, columns]),
            x: Tensor::new(&table[..x[0] * x[1]], x),
            weight: Tensor::of(&codes, [weight, 3]),
            scales: Tensor::new(&scales[..of_scales], [of_scales]),
            ids: ids.map(|ids| Tensor::new(ids, [ids.len()])),
        };
        plan(HeadProblem { listed, ..fine }).unwrap().run(&(), args)
    };
    run(None, 5, [2, 3], 5, 5, None).unwrap();
    run(Some(3), 5, [2, 3], 3, 3, Some(&ids)).unwrap();
    let shape = |arg, got, want| format!("dense::fp8_head: `{arg}` has shape {got}, expected {want}");
    refused(run(None, 6, [2, 3], 5, 5, None), &shape("logits", "[2, 6]", "[2, 5]"));
    refused(run(None, 5, [3, 2], 5, 5, None), &shape("x", "[3, 2]", "[2, 3]"));
    refused(run(None, 5, [2, 3], 6, 5, None), &shape("weight", "[6, 3]", "[5, 3]"));
    refused(run(None, 5, [2, 3], 5, 6, None), &shape("scales", "[6]", "[5]"));
    refused(run(Some(2), 5, [2, 3], 2, 2, Some(&ids)), &shape("ids", "[3]", "[2]"));
    let want =
        "dense::fp8_head: ids is none; the weight has 3 rows, and somebody must say which ids they are";
    refused(run(Some(3), 5, [2, 3], 3, 3, None), want);
    let want =
        "dense::fp8_head: ids is [3]; they go with `listed` in the problem, which says how many there are";
    refused(run(None, 5, [2, 3], 5, 5, Some(&ids)), want);
}

pub(crate) fn add(suite: &mut Suite) {
    suite.cpu("cpu::fp8_head::heads_in_two_parts", heads_in_two_parts);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    fn heads_in_two_parts(
        (rows, at) in (2usize..=13).prop_flat_map(|rows| (Just(rows), 1..rows)),
        k in 1usize..=80,
        n in 1usize..=150,
        seed: u64,
    ) {
        calm(|| {
            let mut rng = Rng::new(seed);
            let x: Vec<bf16> = rng.normals(rows * k, 1.0);
            let codes: Vec<u8> = (0..n * k).map(|_| rng.bits() as u8).collect();
            let scales: Vec<f32> = rng.uniforms(n, 0.5, 2.0);
            let problem = HeadProblem { rows, k, vocab: n, valid: n, listed: None };
            let whole = cpu(problem, &x, &codes, &scales);
            let mut parts = cpu(HeadProblem { rows: at, ..problem }, &x[..at * k], &codes, &scales);
            parts.extend(cpu(HeadProblem { rows: rows - at, ..problem }, &x[at * k..], &codes, &scales));
            same("two parts", &parts, &whole).unwrap();
        });
    }
}

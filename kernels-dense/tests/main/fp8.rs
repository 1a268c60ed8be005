//! Numbers of one byte: which ones the codes are, and which code a number gets.

use crate::{
    Check, calm, same,
    world::{Place, spread, strides},
};
use kernels_core::{Activation, Cpu, DeviceInfo, Error, Tensor, TensorMut, bf16};
use kernels_dense::*;
use kernels_testkit::{
    compare::assert_same_bits,
    guard::{Guarded, poison},
    rng::Rng,
    runner::Suite,
};
use proptest::prelude::*;

/// Codes between rows.
pub(crate) const GAP: usize = 16;

/// What a code stands for, by the format's definition; none for the two that are NaN.
pub(crate) fn definition(code: u8) -> Option<f64> {
    let sign = if code < 128 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    match code & 127 {
        0x7f => None,
        _ if exponent == 0 => Some(sign * mantissa / 8.0 * 2.0f64.powi(-6)),
        _ => Some(sign * (1.0 + mantissa / 8.0) * 2.0f64.powi(exponent - 7)),
    }
}

/// The code of the nearest number, of two the even one, by trying all of one sign.
fn nearest(x: f64) -> u8 {
    let of_sign = if x.is_sign_negative() { 128..255u8 } else { 0..127 };
    let distance = |code: u8| (definition(code).expect("not NaN") - x).abs();
    of_sign
        .min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1))))
        .expect("there are some")
}

/// Numbers at which the nearest code changes, their neighbours among `A`, and the numbers of all codes.
fn edges<A: Activation>(step: impl Fn(A, bool) -> A) -> Vec<A> {
    let mut all = Vec::new();
    for code in (0..127).chain(128..255) {
        let here = definition(code).expect("not NaN");
        all.push(A::from_f32(here as f32));
        if let Some(next) = definition(code + 1) {
            let middle = A::from_f32(((here + next) / 2.0) as f32);
            assert_eq!(f64::from(middle.to_f32()), (here + next) / 2.0, "exact");
            all.extend([middle, step(middle, true), step(middle, false)]);
        }
    }
    all
}

fn next_bf16(x: bf16, up: bool) -> bf16 {
    bf16::from_bits(if up { x.to_bits() + 1 } else { x.to_bits() - 1 })
}

pub(crate) fn numbers_and_codes_of_the_format() {
    for code in 0..=255 {
        match definition(code) {
            Some(number) => {
                assert_eq!(f64::from(e4m3::decode(code)).to_bits(), number.to_bits(), "{code:#x}");
                assert_eq!(e4m3::encode(number as f32), code);
            }
            None => assert!(e4m3::decode(code).is_nan() && [0x7f, 0xff].contains(&code), "{code:#x}"),
        }
    }
    assert_eq!((e4m3::decode(0x7e), e4m3::decode(1), e4m3::decode(0x38)), (e4m3::MAX, 1.0 / 512.0, 1.0));
    let next = |x: f32, up: bool| if up { x.next_up() } else { x.next_down() };
    for x in edges::<f32>(next) {
        assert_eq!(e4m3::encode(x), nearest(f64::from(x)), "{x:e}");
    }
    for x in [449.0, 463.9, 464.0, 1e9, f32::MAX, f32::INFINITY] {
        assert_eq!([x, -x].map(e4m3::encode), [0x7e, 0xfe], "{x}");
    }
    assert_eq!([f32::NAN, -f32::NAN].map(e4m3::encode), [e4m3::NAN; 2]);
    assert_eq!([f32::MIN_POSITIVE, -1e-45, 0.0, -0.0].map(e4m3::encode), [0, 0x80, 0, 0x80]);
}

/// Codes and scales of the rows of a table, all or those that are chosen.
pub(crate) fn quantize<B: Place, A: Activation>(
    queue: &B::Queue,
    table: &[A],
    k: usize,
    ids: Option<&[i32]>,
) -> (Vec<u8>, Vec<f32>) {
    const UNTOUCHED: u8 = 0xa5;
    let rows = ids.map_or(table.len() / k, <[i32]>::len);
    let problem = QuantizeProblem { rows, k, chosen_from: ids.map(|_| table.len() / k) };
    let op = Quantize::plan(problem, &B::device(queue)).unwrap();
    let input = Guarded::<B, A>::new(queue, &spread(table, 1, k), poison());
    let chosen = Guarded::<B, i32>::new(queue, ids.unwrap_or_default(), i32::MAX);
    let mut weight = Guarded::<B, u8>::new(queue, &vec![UNTOUCHED; rows * (k + GAP)], UNTOUCHED);
    let mut scales = Guarded::<B, f32>::new(queue, &vec![poison(); rows], poison());
    let (weight_at, scales_at) = (weight.payload(), scales.payload());
    {
        let (mut codes, mut scales) = (weight.whole_mut(), scales.whole_mut());
        let args = QuantizeArgs::<B, A> {
            weight: TensorMut::new(B::slice_mut(&mut codes, weight_at), [rows, k]).with_strides([k + GAP, 1]),
            scales: TensorMut::new(B::slice_mut(&mut scales, scales_at), [rows]),
            table: Tensor::new(input.view(), [problem.table_rows(), k]).with_strides([strides(1, k)[0], 1]),
            ids: ids.map(|_| Tensor::new(chosen.view(), [rows])),
        };
        op.run(queue, args).unwrap();
    }
    let all = weight.read(queue);
    let rows = all.chunks(k + GAP).flat_map(|row| {
        assert_eq!(row[k..], [UNTOUCHED; GAP], "the gap behind a row was written");
        &row[..k]
    });
    (rows.copied().collect(), scales.read(queue))
}

/// The equations, with the nearest code found by trying all.
fn quantized<A: Activation>(row: &[A]) -> (Vec<u8>, f32) {
    if row.iter().any(|x| !x.to_f32().is_finite()) {
        return (vec![0; row.len()], f32::NAN);
    }
    let most = row.iter().map(|x| x.to_f32().abs()).fold(0.0, f32::max);
    let scale = (most / 448.0).max(f32::MIN_POSITIVE);
    (row.iter().map(|x| nearest(f64::from(x.to_f32() / scale))).collect(), scale)
}

/// Rows at every edge between two codes, of every size, of nothing, and with something that is not finite.
fn table() -> (Vec<bf16>, usize) {
    let mut rng = Rng::new(17);
    let all = edges::<bf16>(next_bf16);
    let k = (all.len() + 1).next_multiple_of(16);
    let mut rows = Vec::new();
    // The largest is 448, so that the scale is 1 and every number its own.
    let mut row = vec![bf16::from_f32(448.0); k];
    row[k - all.len()..].copy_from_slice(&all);
    rows.push(row);
    for deviation in [1e-40, 1e-36, 0.02, 1.0, 77.0, 1e30, 6e37] {
        rows.push(rng.normals(k, deviation));
    }
    rows.push(vec![bf16::from_bits(1); k]);
    rows.push([bf16::ZERO, -bf16::ZERO].repeat(k / 2));
    for odd in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
        let mut row: Vec<bf16> = rng.normals(k, 1.0);
        row[k / 3] = odd;
        rows.push(row);
    }
    (rows.concat(), k)
}

/// The nearest code of each element, for rows of any size.
pub(crate) fn nearest_codes<B: Place>(queue: &B::Queue) -> Check {
    let (table, k) = table();
    let (codes, scales) = quantize::<B, bf16>(queue, &table, k, None);
    for (row, x) in table.chunks(k).enumerate() {
        let (want, scale) = quantized(x);
        same(&format!("the scale of row {row}"), &scales[row..row + 1], &[scale])?;
        same(&format!("row {row}"), &codes[row * k..][..k], &want)?;
    }
    Ok(())
}

pub(crate) fn quantizes_to_the_nearest<B: Place>(queue: &B::Queue) {
    calm(|| nearest_codes::<B>(queue).unwrap());
}

/// Literal values, and rows of a table in any order.
pub(crate) fn quantizes_by_hand<B: Place>(queue: &B::Queue) {
    calm(|| {
        let f = bf16::from_f32;
        let mut rows = vec![f(0.0); 5 * 16];
        // 896 / 448 = 2: 1, -2 and 27 become 0.5, -1 and 13.5, which is halfway between 13 and 14, whose code is even.
        rows[..4].copy_from_slice(&[896.0, 1.0, -2.0, 27.0].map(f));
        rows[16..18].copy_from_slice(&[bf16::from_bits(1), bf16::from_bits(0x8001)]);
        rows[32] = f(-7.0);
        rows[48] = bf16::INFINITY;
        let (codes, scales) = quantize::<B, bf16>(queue, &rows, 16, None);
        assert_eq!(codes[..5], [0x7e, 0x30, 0xb8, 0x56, 0]);
        // 2^-133 over 2^-126, the least scale: four times the least number.
        assert_eq!(codes[16..19], [4, 0x84, 0]);
        assert_eq!(codes[32..34], [0xfe, 0]);
        assert!(codes[48..].iter().all(|code| *code == 0));
        assert_same_bits(
            "scales",
            &scales,
            &[2.0, f32::MIN_POSITIVE, 7.0 / 448.0, f32::NAN, f32::MIN_POSITIVE],
        );
        let ids = [2, 0, -1, 5, 0, 1, i32::MIN, i32::MAX];
        let (chosen, of_chosen) = quantize::<B, bf16>(queue, &rows, 16, Some(&ids));
        for (at, id) in ids.into_iter().enumerate() {
            // The last row is one of zeros.
            let row = if (0..5).contains(&id) { id as usize } else { 4 };
            assert_same_bits("scale", &of_chosen[at..at + 1], &scales[row..row + 1]);
            assert_same_bits("codes", &chosen[at * 16..][..16], &codes[row * 16..][..16]);
        }
        let (nothing, none) = quantize::<B, bf16>(queue, &rows, 16, Some(&[]));
        assert!(nothing.is_empty() && none.is_empty());
    });
}

/// What a number loses: half of the last of four bits, or half of the least number; and two quotients in fp32.
pub(crate) fn quantized_rows_are_within_their_bound<B: Place>(queue: &B::Queue) {
    calm(|| {
        let k = 2048;
        let x: Vec<bf16> = Rng::new(4).normals(6 * k, 0.02);
        let (codes, scales) = quantize::<B, bf16>(queue, &x, k, None);
        let (mut lost, mut size) = (0.0, 0.0);
        for (i, (code, x)) in codes.iter().zip(&x).enumerate() {
            let (scale, x) = (f64::from(scales[i / k]), f64::from(x.to_f32()));
            let error = scale * f64::from(e4m3::decode(*code)) - x;
            let bound = x.abs() * (2.0f64.powi(-4) + 2.0f64.powi(-22)) + scale * 2.0f64.powi(-10);
            assert!(error.abs() <= bound, "element {i}: {x} is {error} off, {bound} at most");
            (lost, size) = (lost + error * error, size + x * x);
        }
        let share = (lost / size).sqrt();
        assert!((0.01..0.0625).contains(&share), "rows lose {share} of themselves");
    });
}

pub(crate) fn plans_and_operands_are_refused() {
    #[track_caller]
    fn refused<T: std::fmt::Debug>(result: Result<T, Error>, want: &str) {
        assert_eq!(result.unwrap_err().to_string(), want);
    }
    const MAX: usize = (i32::MAX / 2) as usize;
    let (cpu, gpu) = (DeviceInfo::cpu(), DeviceInfo::h200());
    let fine = QuantizeProblem { rows: 2, k: 3, chosen_from: None };
    let plan = |problem| Quantize::plan(problem, &cpu);
    let want = format!("dense::quantize: rows is {}; at most {MAX} fit", MAX + 1);
    refused(plan(QuantizeProblem { rows: MAX + 1, ..fine }), &want);
    let range = format!("it must be in 1..={MAX}");
    refused(plan(QuantizeProblem { k: 0, ..fine }), &format!("dense::quantize: k is 0; {range}"));
    let want = format!("dense::quantize: chosen_from is 0; {range}");
    refused(plan(QuantizeProblem { chosen_from: Some(0), ..fine }), &want);
    let want = "dense::quantize: a width of 24 on CUDA (multiples of 16 are) is not supported";
    refused(Quantize::plan(QuantizeProblem { k: 24, ..fine }, &gpu), want);
    assert_eq!(*plan(fine).unwrap().problem(), fine);

    let table = [bf16::ONE; 12];
    let ids = [1; 3];
    let run = |chosen_from, weight: [usize; 2], stride, scales, rows, ids: Option<&[i32]>| {
        let (mut codes, mut of_rows) = (vec![0u8; 12], vec![0.0f32; 12]);
        let args = QuantizeArgs::<Cpu> {
            weight: TensorMut::of(&mut codes, weight).with_strides([stride, 1]),
            scales: TensorMut::new(&mut of_rows[..scales], [scales]),
            table: Tensor::new(&table[..rows * 3], [rows, 3]),
            ids: ids.map(|ids| Tensor::new(ids, [ids.len()])),
        };
        plan(QuantizeProblem { chosen_from, ..fine }).unwrap().run(&(), args)
    };
    run(None, [2, 3], 3, 2, 2, None).unwrap();
    run(Some(4), [2, 3], 3, 2, 4, Some(&ids[..2])).unwrap();
    let shape = |arg, got, want| format!("dense::quantize: `{arg}` has shape {got}, expected {want}");
    refused(run(None, [3, 3], 3, 2, 2, None), &shape("weight", "[3, 3]", "[2, 3]"));
    refused(run(None, [2, 3], 3, 3, 2, None), &shape("scales", "[3]", "[2]"));
    refused(run(None, [2, 3], 3, 2, 4, None), &shape("table", "[4, 3]", "[2, 3]"));
    refused(run(Some(4), [2, 3], 3, 2, 2, Some(&ids[..2])), &shape("table", "[2, 3]", "[4, 3]"));
    refused(run(Some(4), [2, 3], 3, 2, 4, Some(&ids)), &shape("ids", "[3]", "[2]"));
    let want = "dense::quantize: `weight` has strides [2, 1]; an outer stride must span the inner axes, or rows overlap";
    refused(run(None, [2, 3], 2, 2, 2, None), want);
    let want = "dense::quantize: ids is none; the table has 4 rows, and somebody must say which are taken";
    refused(run(Some(4), [2, 3], 3, 2, 4, None), want);
    let want = "dense::quantize: ids is [2]; they go with `chosen_from` in the problem, which says what they choose among";
    refused(run(None, [2, 3], 3, 2, 2, Some(&ids[..2])), want);
}

pub(crate) fn add(suite: &mut Suite) {
    suite.cpu("cpu::fp8::rows_are_quantized_alone", rows_are_quantized_alone);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    fn rows_are_quantized_alone(
        rows in 1usize..=9,
        k in 1usize..=70,
        power in -40i32..=30,
        seed: u64,
    ) {
        calm(|| {
            let x: Vec<f32> = Rng::new(seed).normals(rows * k, 2.0f32.powi(power));
            let (codes, scales) = quantize::<Cpu, f32>(&(), &x, k, None);
            for (row, x) in x.chunks(k).enumerate() {
                let (want, scale) = quantized(x);
                assert_eq!((&codes[row * k..][..k], scales[row]), (&want[..], scale));
                // The largest of a row is the largest number.
                let most = codes[row * k..][..k].iter().map(|code| code & 0x7f).max();
                assert_eq!(most, Some(0x7e));
            }
        });
    }
}

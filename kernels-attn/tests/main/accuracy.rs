//! Against a straightforward f64 oracle, element by element, with a derived bound.

use crate::place::{Place, takes};
use crate::support::{Model, PLAIN, Sequence, attend_split};
use kernels_attn::tree;
use kernels_core::{Activation, DType, bf16, f16};

/// Unit roundoff of fp32.
pub(crate) const U: f64 = 1.0 / 16_777_216.0;

/// What may count as 0 among powers of two.
const FLUSHED: f64 = f32::MIN_POSITIVE as f64;

/// Unit roundoff of `A`, and half its smallest step, which bounds the error near zero.
pub(crate) fn roundoff<A: Activation>() -> (f64, f64) {
    match A::DTYPE {
        DType::Bf16 => (2f64.powi(-8), 2f64.powi(-134)),
        DType::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        DType::F32 => (U, 2f64.powi(-150)),
        other => panic!("{other} is no activation type"),
    }
}

/// The exact output of one row and head, and a bound on the error of each element.
///
/// First order in the roundoffs u (fp32) and r (`A`); 5 % are added for the higher ones.
///
/// * Score: `|ds_i| <= N u a_i` with N = `Place::dot`, `a_i = sum_d |q_d k_id|`.
/// * Exponent `fma(s, c, -m)`: `c ds_i`, plus u |c s_i| for the rounding of c, plus u times the result,
///   which is at most 2 t where `t = max_i c a_i`. Together `(N + 3) u t`.
/// * `exp2`: 1.5 ulp, at most X = 3 u relative; 2 ulp on CUDA, X = 4 u. Rounding P: r relative, or half a smallest step absolute.
/// * Below 2^-126 a power may be 0, a weight's own or that of a part: 2^-126 absolute.
/// * In a leaf of n tiles at most n rescalings, then at most 16 / n folds in the group and one per group. Each
///   multiplies by (1 + X + u) and shifts the exponent by 2 t u. So a weight's relative error is at most
///   `e = r + ln2 u t (N + 3 + 2 S) + X + (X + u) S`, S = n + 16 / n + groups.
/// * Weights `w_i (1 + e_i)` that are normalised by their own sum give `sum w_i e_i (v_i - o)`, so e counts
///   against the spread of the values: `e sum w_i |v_i - o|`.
/// * Sums: a leaf's keys (L = n `Place::TILE`) and S folds, in O and in l: `(L + 2 + S) u (sum w_i |v_i| + |o|)`.
/// * Division and gate: 8 u relative. Output: r relative or half a smallest step.
pub(crate) fn oracle<B: Place, A: Activation>(
    model: &Model,
    sequence: &Sequence<A>,
    row: usize,
    head: usize,
) -> (Vec<f64>, Vec<f64>) {
    let (d, hq, hkv) = (model.head_dim, model.q_heads, model.kv_heads);
    let wide = |x: &A| f64::from(x.to_f32());
    let position = sequence.start + row;
    let keys = model.first_seen(position)..position + 1;
    let q = &sequence.q[(row * hq + head) * d..][..d];
    let gate = &sequence.gate[(row * hq + head) * d..][..d];
    let at = |key: usize| (key * hkv + head / (hq / hkv)) * d;
    let c = std::f64::consts::LOG2_E / (d as f64).sqrt();

    let (mut exponents, mut t) = (Vec::new(), 0f64);
    for key in keys.clone() {
        let products = q.iter().zip(&sequence.keys[at(key)..]).map(|(q, k)| wide(q) * wide(k));
        let (s, a) = products.fold((0.0, 0.0), |(s, a), x| (s + x, a + x.abs()));
        exponents.push(c * s);
        t = t.max(c * a);
    }
    let max = exponents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = exponents.iter().map(|e| (e - max).exp2()).collect();
    let sum: f64 = weights.iter().sum();

    let (r, tiny) = roundoff::<A>();
    let leaf_tiles = tree::leaf_tiles(hkv) as f64;
    let folds = leaf_tiles + tree::GROUP_TILES as f64 / leaf_tiles + keys.end.div_ceil(2048) as f64;
    let error = r
        + std::f64::consts::LN_2 * U * t * (B::dot(d) + 3.0 + 2.0 * folds)
        + U * (B::EXP2 + (B::EXP2 + 1.0) * folds);
    let (mut out, mut bound) = (Vec::new(), Vec::new());
    for i in 0..d {
        let values = || keys.clone().map(|key| wide(&sequence.values[at(key) + i]));
        let mean = |f: &dyn Fn(f64) -> f64| values().zip(&weights).map(|(v, w)| w * f(v)).sum::<f64>() / sum;
        let o = mean(&|v| v);
        let spread = mean(&|v| (v - o).abs());
        let size = mean(&f64::abs);
        let absolute = (tiny + FLUSHED) * values().map(|v| (v - o).abs()).sum::<f64>() / sum;
        let g = if model.gated { 1.0 / (1.0 + (-wide(&gate[i])).exp()) } else { 1.0 };
        let sums = leaf_tiles * B::TILE + 2.0 + folds;
        let before = error * spread + absolute + sums * U * (size + o.abs()) + 8.0 * U * o.abs();
        out.push(o * g);
        bound.push(1.05 * (before * g + r * (o * g).abs()) + tiny);
    }
    (out, bound)
}

/// The largest error of `got`, `[rows, q_heads, head_dim]`, as a share of its bound; panics at 1.
pub(crate) fn check_outputs<B: Place, A: Activation>(
    model: &Model,
    sequence: &Sequence<A>,
    got: &[A],
) -> f64 {
    let mut worst = 0f64;
    for row in 0..sequence.rows {
        for head in 0..model.q_heads {
            let (want, bound) = oracle::<B, A>(model, sequence, row, head);
            let got = &got[(row * model.q_heads + head) * model.head_dim..];
            for i in 0..model.head_dim {
                let error = (f64::from(got[i].to_f32()) - want[i]).abs() / bound[i];
                // `max` would drop NaN.
                assert!(error < 1.0, "{model:?}, row {row}, head {head}, element {i}: {error} of the bound");
                worst = worst.max(error);
            }
        }
    }
    worst
}

fn check<B: Place, A: Activation>(on: &B::Queue, model: Model, start: usize, rows: usize, peak: f32) {
    if !takes::<B, A>() {
        return;
    }
    let sequence: Sequence<A> = model.sequence(99 + start as u64, start, rows, peak);
    let got = attend_split::<B, _>(on, &model, &PLAIN, &sequence, &[rows]);
    let worst = check_outputs::<B, A>(&model, &sequence, &got);
    println!("{:?} {model:?} at {start}, peak {peak}: {worst:.3} of the bound", A::DTYPE);
}

pub(crate) fn within_the_bound_of_f64<B: Place>(on: &B::Queue) {
    // At peak 1 the weights are nearly equal, at 4 a few keys carry most of the weight.
    for peak in [1.0, 4.0] {
        for start in [0, 63, 127, 2047, 4095] {
            let model = Model::new::<B>(2, 1, 64);
            check::<B, f32>(on, model, start, 2, peak);
            check::<B, bf16>(on, model, start, 2, peak);
        }
        check::<B, f16>(on, Model::new::<B>(2, 1, 64), 2047, 2, peak);
        for kv_heads in [2, 4] {
            let model = Model::new::<B>(kv_heads, kv_heads, 64);
            check::<B, f32>(on, model, 2050, 2, peak);
            check::<B, bf16>(on, model, 1500, 2, peak);
        }
        let real = Model::new::<B>(6, 1, 256);
        check::<B, bf16>(on, real, 700, 3, peak);
        check::<B, bf16>(on, Model { window: Some(200), first_key: 1, ..real }, 700, 2, peak);
    }
}

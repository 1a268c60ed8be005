//! The scalar functions of the contract, written out so that every backend and every machine computes
//! the same bits: no libm that differs between systems, no approximation that differs between chips.

/// e^x. At most 1.5 ulp from the true value (measured over all finite results); 0 and infinity beyond
/// the range of fp32, NaN stays NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor polynomial of degree 7 (remainder 5e-9), times
/// 2^n in two exact steps so that denormal results round once. The device header computes the same steps.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts; the high one has 9 trailing zero bits, so that n * LN2_HI is exact.
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    const FACTORIALS: [f32; 7] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0];

    // Clamped so that n stays within two exact scalings; the ends already give 0 and infinity.
    // (`max` and `min` drop NaN, so it is put back at the end.)
    let clamped = x.clamp(-104.0, 89.0);
    let shifted = clamped.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, clamped));
    let mut p = FACTORIALS[0];
    let mut i = 1;
    while i < FACTORIALS.len() {
        p = p.mul_add(r, FACTORIALS[i]);
        i += 1;
    }
    let scaled = times_pow2(p.mul_add(r, 1.0), shifted);
    if x.is_nan() { x } else { scaled }
}

/// 2^x. At most 1.5 ulp from the true value (measured as for [`exp`]); exactly 1 at 0, 0 at and below
/// -151, infinity from 128 on, NaN stays NaN.
///
/// x = n + r with |r| <= 1/2, both exact; 2^r = e^(r ln 2) by the polynomial of [`exp`] with the powers
/// of ln 2 in its coefficients (remainder 5e-9), times 2^n in two exact steps.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    // (ln 2)^i / i! for i = 7..=1.
    const COEFFICIENTS: [f32; 7] = [
        1.525_273_4e-5,
        1.540_353e-4,
        1.333_355_8e-3,
        9.618_129e-3,
        5.550_411e-2,
        2.402_265e-1,
        std::f32::consts::LN_2,
    ];

    let clamped = x.clamp(-151.0, 128.0);
    let shifted = clamped + ROUND;
    let r = clamped - (shifted - ROUND);
    let mut p = COEFFICIENTS[0];
    let mut i = 1;
    while i < COEFFICIENTS.len() {
        p = p.mul_add(r, COEFFICIENTS[i]);
        i += 1;
    }
    let scaled = times_pow2(p.mul_add(r, 1.0), shifted);
    if x.is_nan() { x } else { scaled }
}

/// 1.5 * 2^23: adding it rounds a small number to an integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;

/// `e * 2^n` for the integer n with `shifted = n + ROUND`, in two exact steps. (For NaN the result is
/// arbitrary.)
#[inline(always)]
fn times_pow2(e: f32, shifted: f32) -> f32 {
    // Read from the bits: a conversion that saturates would keep loops from vectorising.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let pow2 = |n: i32| f32::from_bits((n.wrapping_add(127) << 23) as u32);
    e * pow2(half) * pow2(n - half)
}

/// Where a sigmoid's tail is cut: below -87 e^x is denormal, which would cost a GPU extra steps, and no result
/// here is larger than 1.5e-36.
const TAIL: f32 = -87.0;

/// e = e^-|x| and 1 / (1 + e). A GPU rounds the reciprocal of a number from 1 to 2 right without a branch.
#[inline(always)]
fn logistic(x: f32) -> (f32, f32) {
    // The device's maximum drops a NaN; here the comparison does.
    let y = -x.abs();
    let e = exp(if y > TAIL { y } else { TAIL });
    (e, 1.0 / (1.0 + e))
}

/// 1 / (1 + e^-x): with e = e^-|x| it is 1 / (1 + e), or e / (1 + e) for a negative x.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let (e, r) = logistic(x);
    let y = if x < 0.0 { e * r } else { r };
    if x.is_nan() { x } else { y }
}

/// x / (1 + e^-x), as in [`sigmoid`]. At most 4 ulp from the true value down to x = -87, and its value there
/// below (at most 1.5e-36 off).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    let (e, r) = logistic(x);
    // NaN is not below zero and comes through the numerator.
    (if x < 0.0 { x.max(TAIL) * e } else { x }) * r
}

/// ln(1 + e^x) = max(x, 0) + ln(1 + e) with e = e^-|x|. At most 4 ulp from the true value.
///
/// With z = e / (2 + e), at most 1/3, ln(1 + e) is 2 artanh z: its series to z^15 (remainder 2e-9).
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    // 2 / n for n = 15, 13, ..., 1.
    const COEFFICIENTS: [f32; 8] =
        [2.0 / 15.0, 2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0, 2.0];
    let e = exp(-x.abs());
    let z = e / (2.0 + e);
    let square = z * z;
    let mut p = COEFFICIENTS[0];
    let mut i = 1;
    while i < COEFFICIENTS.len() {
        p = p.mul_add(square, COEFFICIENTS[i]);
        i += 1;
    }
    // The comparison drops a NaN; the sum brings it back.
    z.mul_add(p, if x > 0.0 { x } else { 0.0 })
}

/// ln(x) of a normal positive number, at most 3 ulp from the true value; anything else gives anything.
///
/// x = 2^k m with m in [0.7, 1.42), so that near 1 nothing cancels.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let (k, f) = near_one(x);
    ln_of(k, f)
}

/// ln(1 - u) for u in [2^-126, 1 - 2^-24], at most 3 ulp from the true value.
///
/// Small u are not subtracted from 1, which would round them away.
#[inline(always)]
pub fn ln_one_minus(u: f32) -> f32 {
    let (k, f) = if u < 0.25 { (0.0, -u) } else { near_one(1.0 - u) };
    ln_of(k, f)
}

/// k and m - 1 of x = 2^k m.
#[inline(always)]
fn near_one(x: f32) -> (f32, f32) {
    // The bits of 0.70710677: what lies below belongs to the power before.
    const ROOT: u32 = 0x3f35_04f3;
    let bits = x.to_bits().wrapping_sub(ROOT);
    let m = f32::from_bits((bits & 0x7f_ffff) + ROOT);
    (((bits as i32) >> 23) as f32, m - 1.0)
}

/// k ln 2 + ln(1 + f): with s = f / (2 + f), ln(1 + f) is 2 artanh s, by its series to s^13 (remainder 3e-11).
#[inline(always)]
fn ln_of(k: f32, f: f32) -> f32 {
    const COEFFICIENTS: [f32; 6] = [2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0];
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    let s = f / (2.0 + f);
    let square = s * s;
    let mut p = COEFFICIENTS[0];
    let mut i = 1;
    while i < COEFFICIENTS.len() {
        p = p.mul_add(square, COEFFICIENTS[i]);
        i += 1;
    }
    // ln(1 + f) = f - s (f - s^2 p): the leading term is exact, and what is taken from it small.
    let small = k.mul_add(LN2_LO, f - s * (-square).mul_add(p, f));
    k.mul_add(LN2_HI, small)
}

/// 1 / sqrt(x), both steps rounded to nearest.
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    1.0 / x.sqrt()
}

/// Runs `body` with the widest vectors this processor has.
///
/// A fused multiply-add has one right result, so the bits do not depend on what is found; without the
/// instruction each `mul_add` is a library call, twenty times slower. To profit, the closure itself and
/// what it calls in its loops must be inlined, and a closure of any size is only if it says so:
///
/// ```
/// # let (mut y, x) = ([0.0f32; 8], [1.0f32; 8]);
/// kernels_core::ref_math::vectorised(
///     #[inline(always)]
///     || y.iter_mut().zip(&x).for_each(|(y, x)| *y = x.mul_add(2.0, *y)),
/// );
/// ```
#[inline(always)]
pub fn vectorised<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            // SAFETY: both features were just detected on this processor.
            return unsafe { with_avx2(body) };
        }
    }
    body()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_its_bound() {
        let mut worst = 0.0f64;
        for bits in (0..u32::MAX).step_by(997) {
            let x = f32::from_bits(bits);
            if !x.is_finite() {
                continue;
            }
            let (got, want) = (exp(x), libm::exp(f64::from(x)));
            if want > f64::from(f32::MAX) {
                assert!(got == f32::INFINITY || got >= f32::MAX * 0.999_999, "{x}: {got}");
                continue;
            }
            let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
            worst = worst.max((f64::from(got) - want).abs() / ulp);
        }
        assert!(worst < 1.5, "{worst} ulp");
    }

    #[test]
    fn exp2_is_within_its_bound() {
        let mut worst = 0.0f64;
        for bits in (0..u32::MAX).step_by(997) {
            let x = f32::from_bits(bits);
            if !x.is_finite() {
                continue;
            }
            let (got, want) = (exp2(x), libm::exp2(f64::from(x)));
            if want > f64::from(f32::MAX) {
                assert_eq!(got, f32::INFINITY, "{x}");
                continue;
            }
            let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
            worst = worst.max((f64::from(got) - want).abs() / ulp);
        }
        assert!(worst < 1.5, "{worst} ulp");
        for n in -149..128 {
            assert_eq!(f64::from(exp2(n as f32)), libm::exp2(f64::from(n)), "2^{n} is exact");
        }
    }

    #[test]
    fn silu_is_within_its_bound() {
        for bits in (0..u32::MAX).step_by(997) {
            let x = f32::from_bits(bits);
            if !x.is_finite() {
                continue;
            }
            let want = f64::from(x) / (1.0 + libm::exp(-f64::from(x)));
            let size = want.abs() as f32;
            let ulp = f64::from(f32::from_bits(size.to_bits() + 1)) - f64::from(size);
            let error = (f64::from(silu(x)) - want).abs();
            let bound = if x < TAIL { 1.5e-36 } else { 4.0 * ulp };
            assert!(error < bound, "silu({x}) = {}, not {want}", silu(x));
        }
    }

    #[test]
    fn softplus_is_within_its_bound() {
        let mut worst = 0.0f64;
        for bits in (0..u32::MAX).step_by(997) {
            let x = f32::from_bits(bits);
            if !x.is_finite() {
                continue;
            }
            let want = f64::from(x).max(0.0) + libm::log1p(libm::exp(-f64::from(x).abs()));
            let size = want as f32;
            let ulp = f64::from(f32::from_bits(size.to_bits() + 1)) - f64::from(size);
            worst = worst.max((f64::from(softplus(x)) - want).abs() / ulp);
        }
        assert!(worst < 4.0, "{worst} ulp");
    }

    #[test]
    fn ln_is_within_its_bound() {
        let ulps = |got: f32, want: f64| {
            let size = want.abs() as f32;
            let ulp = f64::from(f32::from_bits(size.to_bits() + 1)) - f64::from(size);
            (f64::from(got) - want).abs() / ulp
        };
        let mut worst = 0.0f64;
        for bits in (0x0080_0000..0x7f80_0000u32).step_by(499).chain(0x3f70_0000..0x3f90_0000) {
            let x = f32::from_bits(bits);
            if x != 1.0 {
                worst = worst.max(ulps(ln(x), libm::log(f64::from(x))));
            }
        }
        assert!(worst < 3.0, "{worst} ulp");
        assert_eq!(ln(1.0), 0.0);
        let mut worst = 0.0f64;
        for bits in (0x0080_0000..0x3f80_0000u32).step_by(199) {
            let u = f32::from_bits(bits);
            worst = worst.max(ulps(ln_one_minus(u), libm::log1p(-f64::from(u))));
        }
        assert!(worst < 3.0, "{worst} ulp");
        assert!((ln_one_minus(1.0 - f32::EPSILON / 2.0) + 16.635_532).abs() < 1e-5);
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(exp2(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp2(128.0), f32::INFINITY);
        assert_eq!(exp2(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp2(-151.0), 0.0);
        assert_eq!(exp2(-0.0), 1.0);
        assert!(exp2(f32::NAN).is_nan());
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-200.0), 0.0);
        assert!(sigmoid(-200.0) < 2e-38);
        assert!(sigmoid(f32::NAN).is_nan() && silu(f32::NAN).is_nan());
        assert!(silu(f32::NEG_INFINITY).abs() < 1.5e-36 && silu(f32::INFINITY) == f32::INFINITY);
        assert_eq!(sigmoid(200.0), 1.0);
        assert_eq!(softplus(30.0), 30.0);
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(softplus), [f32::INFINITY, 0.0]);
        assert!(softplus(f32::NAN).is_nan());
        assert!((softplus(0.0) - std::f32::consts::LN_2).abs() < 1e-7);
    }

    #[test]
    fn vectors_do_not_change_bits() {
        let xs: Vec<f32> = (0..4096).map(|i| (i as f32 - 2048.0) * 0.037).collect();
        let wide = vectorised(|| xs.iter().map(|x| silu(*x).to_bits()).collect::<Vec<_>>());
        let plain: Vec<u32> = xs.iter().map(|x| silu(*x).to_bits()).collect();
        assert_eq!(wide, plain);
    }
}

//! Numbers with a bound on how far fp32 arithmetic may be from them.
//!
//! `value` is computed in f64, whose own error (2^-53 per step) is far below every bound here. Each step
//! adds what its rounding can do at most: `u = 2^-24` relative for one fp32 operation, `gamma(n) = n u / (1 - n u)`
//! for a term that passes n of them (Higham), `unit` relative for a rounding to the activation type.

use kernels_core::{Activation, DType};

const U: f64 = 1.0 / 16_777_216.0;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Approx {
    pub(crate) value: f64,
    pub(crate) error: f64,
}

/// n roundings in a row.
pub(crate) fn gamma(n: usize) -> f64 {
    n as f64 * U / (1.0 - n as f64 * U)
}

/// Half the distance of neighbouring numbers, relative; and where numbers become denormal, absolute.
fn unit<A: Activation>() -> (f64, f64) {
    match A::DTYPE {
        DType::Bf16 => (2.0f64.powi(-8), 2.0f64.powi(-134)),
        DType::F16 => (2.0f64.powi(-11), 2.0f64.powi(-25)),
        _ => (0.0, 0.0),
    }
}

impl Approx {
    pub(crate) fn exact(x: impl Activation) -> Approx {
        Approx { value: f64::from(x.to_f32()), error: 0.0 }
    }

    /// |computed| at most.
    pub(crate) fn size(self) -> f64 {
        self.value.abs() + self.error
    }

    /// `steps` fp32 roundings of the whole.
    fn rounded(self, steps: usize) -> Approx {
        Approx { error: self.error + gamma(steps) * self.size(), ..self }
    }

    pub(crate) fn add(self, other: Approx) -> Approx {
        Approx { value: self.value + other.value, error: self.error + other.error }.rounded(1)
    }

    pub(crate) fn mul(self, other: Approx) -> Approx {
        let error = self.size() * other.size() - self.value.abs() * other.value.abs();
        Approx { value: self.value * other.value, error }.rounded(1)
    }

    /// Rounds to the activation type.
    pub(crate) fn to<A: Activation>(self) -> Approx {
        let (relative, absolute) = unit::<A>();
        Approx { error: self.error + relative * self.size() + absolute, ..self }
    }

    /// exp: within 1.5 ulp, three times u; an error e of the argument is a factor of exp(e).
    pub(crate) fn exp(self) -> Approx {
        let value = self.value.exp();
        Approx { value, error: value * (self.error.exp() - 1.0) }.rounded(3)
    }

    /// 1 / (1 + exp(-x)): its slope is at most 1/4; exp, sum and quotient round 5 times.
    pub(crate) fn sigmoid(self) -> Approx {
        Approx { value: 1.0 / (1.0 + (-self.value).exp()), error: self.error / 4.0 }.rounded(5)
    }

    /// x / (1 + exp(-x)): its slope is below 1.1.
    pub(crate) fn silu(self) -> Approx {
        Approx { value: self.value / (1.0 + (-self.value).exp()), error: 1.1 * self.error }.rounded(5)
    }

    /// 1 / x for x > 0.
    pub(crate) fn recip(self) -> Approx {
        let low = self.value - self.error;
        assert!(low > 0.0, "the bound is of no use");
        Approx { value: 1.0 / self.value, error: 1.0 / low - 1.0 / self.value }.rounded(1)
    }

    /// sqrt(x) for x > 0.
    pub(crate) fn sqrt(self) -> Approx {
        let low = self.value - self.error;
        assert!(low > 0.0, "the bound is of no use");
        let (middle, down) = (self.value.sqrt(), low.sqrt());
        Approx { value: middle, error: middle - down }.rounded(1)
    }

    /// Whether `got` may be the computed number.
    pub(crate) fn admits(self, got: f32) -> bool {
        (f64::from(got) - self.value).abs() <= self.error
    }
}

/// Σ x w over `lanes` partial sums: each term passes the fused multiply-adds of its lane, at most
/// ⌈k / lanes⌉ roundings (the first product rounds too), and log2(lanes) additions of the tree.
pub(crate) fn dot(x: &[Approx], w: &[Approx], lanes: usize) -> Approx {
    let steps = x.len().div_ceil(lanes) + lanes.ilog2() as usize;
    let (mut value, mut error, mut size) = (0.0, 0.0, 0.0);
    for (x, w) in x.iter().zip(w) {
        value += x.value * w.value;
        error += x.size() * w.size() - x.value.abs() * w.value.abs();
        size += x.size() * w.size();
    }
    Approx { value, error: error + gamma(steps) * size }
}

/// Every element of a row.
pub(crate) fn exact<A: Activation>(row: &[A]) -> Vec<Approx> {
    row.iter().map(|x| Approx::exact(*x)).collect()
}

/// Panics unless every element may be what was computed; and if the bounds are too wide to say anything.
#[track_caller]
pub(crate) fn assert_admitted<A: Activation>(what: &str, got: &[A], want: &[Approx], tightness: f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths differ");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(want.admits(got.to_f32()), "{what}: element {i} is {got:?}, not {want:?}");
    }
    let norm = |f: fn(&Approx) -> f64| want.iter().map(|w| f(w).powi(2)).sum::<f64>().sqrt();
    let (bound, size) = (norm(|w| w.error), norm(|w| w.value));
    assert!(bound <= tightness * size, "{what}: a bound of {bound:e} says nothing of {size:e}");
}

//! Operands on which two orders of a sum would show.

use crate::{Activation, philox};

/// What the operands of a product are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Whole numbers from -8 to 8: every sum is exact, so the CPU knows the answer.
    Integers,
    /// Signs, mantissas and magnitudes over many powers of two.
    Wide,
    /// Large neighbours that cancel, small ones that must survive.
    Cancellation,
    /// Denormal operands, and products below the smallest normal number.
    Denormals,
    /// Wide, with one NaN in some rows.
    Nan,
    /// Wide, with infinities: infinite sums, and NaN from infinity minus infinity.
    Infinities,
}

impl Pattern {
    /// All but the integers.
    pub const HOSTILE: [Pattern; 5] =
        [Pattern::Wide, Pattern::Cancellation, Pattern::Denormals, Pattern::Nan, Pattern::Infinities];

    /// A `[rows, k]` operand.
    pub fn operand<A: Activation>(self, seed: u64, rows: usize, k: usize) -> Vec<A> {
        let element = |i: usize| {
            let word = |what| philox::bits(seed, what, i as u32, philox::Use::Draw);
            let (r, s) = (word(0), word(1));
            let unit = 1.0 + (r >> 9) as f32 / 8_388_608.0;
            let sign = if s & 1 == 0 { 1.0 } else { -1.0 };
            let (row, column) = (i / k, i % k);
            let wide = || sign * unit * power_of_two((s >> 1) as i32 % 21 - 10);
            match self {
                Pattern::Integers => (r % 17) as f32 - 8.0,
                Pattern::Wide => wide(),
                // Rows of both operands pair up: x, -x against equal partners, one small value in eight.
                Pattern::Cancellation => {
                    let pair = philox::bits(seed, 2, (i / 2) as u32, philox::Use::Draw);
                    let large = 1.0 + (pair >> 9) as f32 / 8_388_608.0;
                    match (s >> 8) % 8 {
                        0 => wide() * power_of_two(-8),
                        _ if row % 2 == 0 && column % 2 == 1 => -large * 64.0,
                        _ => large * 64.0,
                    }
                }
                // 2^-140 is denormal in bf16 and vanishes in f16, 2^-20 is denormal in f16.
                Pattern::Denormals => {
                    sign * unit * power_of_two([-140, -130, -70, -20, 0][s as usize / 2 % 5])
                }
                Pattern::Nan if row % 5 == 3 && column == row % k => f32::NAN,
                Pattern::Infinities if row % 7 == 2 && column % 11 == 0 => sign * f32::INFINITY,
                Pattern::Nan | Pattern::Infinities => wide(),
            }
        };
        (0..rows * k).map(|i| A::from_f32(element(i))).collect()
    }
}

fn power_of_two(n: i32) -> f32 {
    libm::ldexpf(1.0, n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bf16, f16};

    #[test]
    fn patterns_hold_what_they_are_named_for() {
        let denormals: Vec<bf16> = Pattern::Denormals.operand(1, 8, 64);
        assert!(denormals.iter().any(|x| x.to_f32() != 0.0 && x.to_f32().abs() < f32::MIN_POSITIVE));
        let half: Vec<f16> = Pattern::Denormals.operand(1, 8, 64);
        assert!(half.iter().any(|x| x.to_f32() != 0.0 && x.to_f32().abs() < 6.1e-5));
        assert!(Pattern::Nan.operand::<bf16>(1, 8, 64).iter().any(|x| x.is_nan()));
        assert!(Pattern::Infinities.operand::<f16>(1, 8, 64).iter().any(|x| x.is_infinite()));
        let wide: Vec<bf16> = Pattern::Wide.operand(1, 8, 64);
        assert!(wide.iter().all(|x| x.is_finite()) && wide[0] != wide[1]);
        let pairs: Vec<bf16> = Pattern::Cancellation.operand(1, 2, 64);
        assert!((0..32).any(|i| pairs[2 * i] == -pairs[2 * i + 1]));
    }
}

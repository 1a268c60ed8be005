//! Philox 4x32-10 (Salmon et al., SC'11) and the noise that sampling draws from it.
//!
//! Noise is a pure function of (seed, absolute position the drawn token will occupy, vocabulary id):
//! never of the round, the row or the batch. That is what makes sampled streams reproducible under
//! speculation.

use crate::ref_math;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds of Philox 4x32.
#[inline]
pub const fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = counter;
    let [mut k0, mut k1] = key;
    let mut round = 0;
    while round < 10 {
        let p0 = MULTIPLIERS[0] as u64 * a as u64;
        let p1 = MULTIPLIERS[1] as u64 * c as u64;
        (a, b, c, d) = ((p1 >> 32) as u32 ^ b ^ k0, p1 as u32, (p0 >> 32) as u32 ^ d ^ k1, p0 as u32);
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
        round += 1;
    }
    [a, b, c, d]
}

/// What a random number is for: separate uses of one (seed, position) must not share numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Use {
    /// The Gumbel noise of a token draw, shared by target and draft (coupled sampling).
    Draw = 0,
    /// The rejection sampler's own draft draw.
    Draft = 1,
    /// The rejection sampler's accept test.
    Accept = 2,
    /// The rejection sampler's draw from the residual.
    Residual = 3,
}

/// 32 random bits for a vocabulary id. Four neighbouring ids share one Philox block.
pub const fn bits(seed: u64, position: u32, id: u32, what: Use) -> u32 {
    let block = philox4x32_10([id >> 2, position, what as u32, 0], [seed as u32, (seed >> 32) as u32]);
    block[(id & 3) as usize]
}

/// 128 random bits: block `block` of stream `stream`, for memory filled with numbers that only have to look random.
/// No block is one of those that [`bits`] reads, whatever the seed.
#[inline]
pub const fn stream_block(seed: u64, stream: u32, block: u64) -> [u32; 4] {
    const NO_DRAW: u32 = 1;
    philox4x32_10([block as u32, (block >> 32) as u32, stream, NO_DRAW], [seed as u32, (seed >> 32) as u32])
}

/// A uniform number in (0, 1), never either end.
///
/// `(x + 1/2) 2^-32` in fp32 has full relative precision near 0, and is held below 1 where it would round.
pub fn uniform(bits: u32) -> f32 {
    const BELOW_ONE: f32 = 1.0 - f32::EPSILON / 2.0;
    (((f64::from(bits) + 0.5) / 4_294_967_296.0) as f32).min(BELOW_ONE)
}

/// An exponential number of mean 1.
///
/// From `-ln(1 - u)`: its small values, which decide a Gumbel-max draw, keep full relative precision.
pub fn exponential(bits: u32) -> f32 {
    -ref_math::ln_one_minus(uniform(bits))
}

/// A standard Gumbel number, the same bits on every backend: adding it to logits and taking the argmax draws from
/// their softmax.
pub fn gumbel(bits: u32) -> f32 {
    -ref_math::ln(exponential(bits))
}

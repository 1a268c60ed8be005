//! The token function: what one token does to a head's state, and what it reads from it.
//!
//! With k and q normalised, `d = exp(g)`, and S the state before the token, per row i of the value head:
//!
//! ```text
//! r = tree(S_i . k)        p = tree(S_i . q)        qk = tree(q . k)
//! u = beta * fma(-d, r, v_i)
//! o = fma(d, p, qk * u)
//! S_i' = fma(k, u, d * S_i)
//! ```
//!
//! This is decay, read, correct, write, output of the paper with the decay taken out of the two dots, so
//! that both ride on one pass over S, and the output of a block's last row does not wait for a write that
//! nobody needs. Replaying a token leaves out p and o, and changes no bit of the rest.
//!
//! `tree` is the sum over k that every backend takes: element k goes to accumulator k % 32 by fma, from
//! zero, in ascending order; then neighbours are added, and sums of neighbours, five times. On the
//! device, accumulator l belongs to thread l / 4, component l % 4 of its 16-byte loads: two additions
//! inside the thread, then a butterfly of xor 1, 2, 4 over eight threads. A `k_dim` that is no multiple
//! of 32 is filled up with zeros.

use kernels_core::{Activation, ref_math};

/// Accumulators of a dot.
pub(crate) const LANES: usize = 32;
/// Rows of the state that are worked on together; they share nothing but k and q.
pub(crate) const TILE: usize = 8;
/// The epsilon of the l2 norm, inside the root.
const NORM_EPS: f32 = 1e-6;

/// `k_dim` filled up to whole sets of accumulators.
pub(crate) const fn padded(k_dim: usize) -> usize {
    k_dim.next_multiple_of(LANES)
}

/// One token as a value head sees it, its values aside.
pub(crate) struct Step<'a> {
    /// The normalised key, padded.
    pub(crate) key: &'a [f32],
    /// The normalised and scaled query, padded, and its product with the key; `None` for a replay.
    pub(crate) query: Option<(&'a [f32], f32)>,
    /// exp(g).
    pub(crate) decay: f32,
    /// sigmoid(b).
    pub(crate) beta: f32,
    /// Whether anybody needs the state after this token.
    pub(crate) write: bool,
    /// Planted: one multiply-add of the write is fused with its other product.
    pub(crate) misfused: bool,
}

/// The accumulators of a tile's rows, kept between tokens so that nobody clears them.
pub(crate) struct Accumulators {
    reads: [f32; TILE * LANES],   // [TILE, LANES]
    outputs: [f32; TILE * LANES], // [TILE, LANES]
}

impl Accumulators {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Accumulators { reads: [0.0; TILE * LANES], outputs: [0.0; TILE * LANES] }
    }
}

/// Applies a token to the rows of a tile; returns their outputs (zeros for a replay).
#[inline(always)]
pub(crate) fn step(
    state: &mut [f32],
    token: &Step,
    values: &[f32; TILE],
    sums: &mut Accumulators,
) -> [f32; TILE] {
    let width = token.key.len();
    let reads = sums.reads.chunks_exact_mut(LANES);
    let mut out = [0.0; TILE];
    match token.query {
        Some((query, _)) => {
            let outputs = sums.outputs.chunks_exact_mut(LANES);
            for ((row, read), output) in state.chunks_exact(width).zip(reads).zip(outputs) {
                let (r, p) = accumulate_two(row, token.key, query);
                read.copy_from_slice(&r);
                output.copy_from_slice(&p);
            }
            out = trees(&sums.outputs);
        }
        None => {
            for (row, read) in state.chunks_exact(width).zip(reads) {
                read.copy_from_slice(&accumulate(row, token.key));
            }
        }
    }

    let reads = trees(&sums.reads);
    let mut corrections = [0.0; TILE];
    for i in 0..TILE {
        corrections[i] = token.beta * (-token.decay).mul_add(reads[i], values[i]);
    }
    if let Some((_, qk)) = token.query {
        for i in 0..TILE {
            out[i] = token.decay.mul_add(out[i], qk * corrections[i]);
        }
    }
    if token.write {
        for (row, u) in state.chunks_exact_mut(width).zip(corrections) {
            let first = row[0];
            for (s, k) in row.iter_mut().zip(token.key) {
                *s = k.mul_add(u, token.decay * *s);
            }
            if token.misfused {
                row[0] = token.decay.mul_add(first, token.key[0] * u);
            }
        }
    }
    out
}

#[inline(always)]
fn accumulate(x: &[f32], y: &[f32]) -> [f32; LANES] {
    let mut sums = [0.0f32; LANES];
    for (x, y) in x.chunks_exact(LANES).zip(y.chunks_exact(LANES)) {
        for l in 0..LANES {
            sums[l] = x[l].mul_add(y[l], sums[l]);
        }
    }
    sums
}

/// Two dots on one pass over `x`.
#[inline(always)]
fn accumulate_two(x: &[f32], y: &[f32], z: &[f32]) -> ([f32; LANES], [f32; LANES]) {
    let (mut first, mut second) = ([0.0f32; LANES], [0.0f32; LANES]);
    for ((x, y), z) in x.chunks_exact(LANES).zip(y.chunks_exact(LANES)).zip(z.chunks_exact(LANES)) {
        for l in 0..LANES {
            first[l] = x[l].mul_add(y[l], first[l]);
            second[l] = x[l].mul_add(z[l], second[l]);
        }
    }
    (first, second)
}

/// The sum of every `LANES` neighbours, all of them level by level.
#[inline(always)]
fn trees(sums: &[f32; TILE * LANES]) -> [f32; TILE] {
    let (mut a, mut b) = ([0.0; TILE * LANES / 2], [0.0; TILE * LANES / 4]);
    add_neighbours(sums, &mut a);
    add_neighbours(&a, &mut b);
    add_neighbours(&b, &mut a[..TILE * LANES / 8]);
    add_neighbours(&a[..TILE * LANES / 8], &mut b[..TILE * LANES / 16]);
    let mut out = [0.0; TILE];
    add_neighbours(&b[..TILE * LANES / 16], &mut out);
    out
}

#[inline(always)]
fn add_neighbours(from: &[f32], to: &mut [f32]) {
    for (sum, pair) in to.iter_mut().zip(from.chunks_exact(2)) {
        *sum = pair[0] + pair[1];
    }
}

/// The tree of one dot.
#[inline(always)]
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = accumulate(x, y);
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            sums[i] = sums[2 * i] + sums[2 * i + 1];
        }
    }
    sums[0]
}

/// Widens a head and divides it by its length, times `scale`; `to` is padded with zeros already.
#[inline(always)]
pub(crate) fn normalise<A: Activation>(raw: &[A], scale: f32, to: &mut [f32]) {
    for (to, x) in to.iter_mut().zip(raw) {
        *to = x.to_f32();
    }
    let factor = ref_math::rsqrt(dot(to, to) + NORM_EPS) * scale;
    for x in to.iter_mut() {
        *x *= factor;
    }
}

/// q . k by the tree.
#[inline(always)]
pub(crate) fn product(query: &[f32], key: &[f32]) -> f32 {
    dot(query, key)
}

/// `exp(g)` with `g = -exp(a_log) * softplus(a + dt_bias)`.
#[inline(always)]
pub(crate) fn decay(a: f32, a_log: f32, dt_bias: f32) -> f32 {
    ref_math::exp(-(ref_math::exp(a_log) * ref_math::softplus(a + dt_bias)))
}

/// `1 / sqrt(k_dim)`, rounded once; a parameter of the device's kernels, so that both have the same bits.
pub(crate) fn query_scale(k_dim: usize) -> f32 {
    (1.0 / (k_dim as f64).sqrt()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row of the state, seen by a token of one element: its output.
    fn output(state: f32, key: f32, query: f32, value: f32) -> f32 {
        let at_zero = |x: f32| {
            let mut all = [0.0; LANES];
            all[0] = x;
            all
        };
        let mut rows = [0.0; TILE * LANES];
        rows[0] = state;
        let token = Step {
            key: &at_zero(key),
            query: Some((&at_zero(query), 1.0)),
            decay: 1.0 + 1.0 / 4096.0,
            beta: 1.0,
            write: false,
            misfused: false,
        };
        step(&mut rows, &token, &[value; TILE], &mut Accumulators::new())[0]
    }

    /// Rounded twice, the decayed product of both cases would be 1 + 2^-11, and the result 0.
    #[test]
    fn decayed_reads_are_added_in_one_rounding() {
        let (near_one, square) = (1.0 + 1.0 / 4096.0, 1.0 + 1.0 / 2048.0);
        let rest = f32::from_bits((127 - 24) << 23); // 2^-24
        assert_eq!(output(near_one, 0.0, 1.0, -square), rest, "o = fma(d, p, qk u)");
        assert_eq!(output(near_one, 1.0, 0.0, square), -rest, "u = beta fma(-d, r, v)");
    }
}

//! The sums of `dots.rs` with AVX2, tiled over rows and outputs.
//!
//! Instructions are named one by one because the compiler, left to vectorise the portable loop, does so for
//! some tiles and not for their neighbours (20 and 600 µs for the same work were measured). Nothing here
//! is less exact: a lane does what the portable loop does, in the same order.

use super::{dots::LANES, settle};
use kernels_core::{Activation, Cpu, DType, Tensor};
use std::arch::x86_64::*;

/// Computes what `dots::block` does; `false` where the processor cannot.
pub(super) fn block<W: Activation>(
    sums: &mut [f32],
    x: &[f32],
    rows: usize,
    weight: &Tensor<'_, Cpu, W, 2>,
    first: usize,
) -> bool {
    if !(std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")) {
        return false;
    }
    // SAFETY: both features were just detected on this processor.
    unsafe { groups(sums, x, rows, weight, first) };
    true
}

/// Groups of outputs, so that their weights stay near while all rows pass.
#[target_feature(enable = "avx2,fma")]
fn groups<W: Activation>(
    sums: &mut [f32],
    x: &[f32],
    rows: usize,
    weight: &Tensor<'_, Cpu, W, 2>,
    first: usize,
) {
    const GROUP: usize = 24; // a multiple of every tile
    for (group, sums) in sums.chunks_mut(GROUP * rows).enumerate() {
        let first = first + group * GROUP;
        let mut row = 0;
        // Eight or nine sums at a time hide the latency of an addition. Twelve would leave no register for the
        // weights: one sum then lives in memory and sets the pace.
        while row < rows {
            match rows - row {
                1 => row += tiles::<W, 1, 8>(sums, x, rows, row, weight, first),
                2 => row += tiles::<W, 2, 4>(sums, x, rows, row, weight, first),
                4 => row += tiles::<W, 4, 2>(sums, x, rows, row, weight, first),
                _ => row += tiles::<W, 3, 3>(sums, x, rows, row, weight, first),
            }
        }
    }
}

/// `R` rows from `row` on, all outputs of `sums`; gives `R` back.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn tiles<W: Activation, const R: usize, const N: usize>(
    sums: &mut [f32],
    x: &[f32],
    rows: usize,
    row: usize,
    weight: &Tensor<'_, Cpu, W, 2>,
    first: usize,
) -> usize {
    let k = weight.dims[1];
    let mut of = [&x[..0]; R];
    for r in 0..R {
        of[r] = &x[(row + r) * k..][..k];
    }
    let n = sums.len() / rows;
    let mut j = 0;
    while j + N <= n {
        let mut w = [weight.row(&[first + j]); N];
        for i in 1..N {
            w[i] = weight.row(&[first + j + i]);
        }
        tile(&mut sums[j * rows + row..], rows, of, w);
        j += N;
    }
    while j < n {
        tile(&mut sums[j * rows + row..], rows, of, [weight.row(&[first + j])]);
        j += 1;
    }
    R
}

/// `R` rows times `N` outputs.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn tile<W: Activation, const R: usize, const N: usize>(
    to: &mut [f32],
    rows: usize,
    x: [&[f32]; R],
    w: [&[W]; N],
) {
    let (steps, rest) = (x[0].len() / LANES, x[0].len() % LANES);
    let (mut whole_x, mut whole_w) =
        ([&x[0].as_chunks::<LANES>().0[..steps]; R], [&w[0].as_chunks::<LANES>().0[..steps]; N]);
    for r in 1..R {
        whole_x[r] = &x[r].as_chunks::<LANES>().0[..steps];
    }
    for i in 1..N {
        whole_w[i] = &w[i].as_chunks::<LANES>().0[..steps];
    }

    let mut sums = [[_mm256_setzero_ps(); R]; N]; // [output][row], a lane per residue of k
    for step in 0..steps {
        for i in 0..N {
            let w = load(&whole_w[i][step]);
            for r in 0..R {
                sums[i][r] = _mm256_fmadd_ps(load(&whole_x[r][step]), w, sums[i][r]);
            }
        }
    }
    if rest > 0 {
        // -0 * 0 = -0, and adding -0 leaves every sum as it is, itself -0 included. (Filled before the sums
        // are touched: an index that is not a constant would move all sums to memory.)
        let mut last_x = [[-0.0; LANES]; R];
        let mut last_w = [[W::from_f32(0.0); LANES]; N];
        for r in 0..R {
            last_x[r][..rest].copy_from_slice(&x[r][steps * LANES..]);
        }
        for i in 0..N {
            last_w[i][..rest].copy_from_slice(&w[i][steps * LANES..]);
        }
        for i in 0..N {
            let w = load(&last_w[i]);
            for r in 0..R {
                sums[i][r] = _mm256_fmadd_ps(load(&last_x[r]), w, sums[i][r]);
            }
        }
    }
    for i in 0..N {
        for r in 0..R {
            to[i * rows + r] = tree(sums[i][r]);
        }
    }
}

/// Eight elements in fp32.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn load<W: Activation>(w: &[W; LANES]) -> __m256 {
    if W::DTYPE == DType::Bf16 {
        // The upper half of the fp32 is the bf16 itself; said like this, it is one load and one shift.
        let mut bits = [0i16; LANES];
        for lane in 0..LANES {
            bits[lane] = (w[lane].to_f32().to_bits() >> 16) as i16;
        }
        let [a, b, c, d, e, f, g, h] = bits;
        let wide = _mm256_cvtepu16_epi32(_mm_setr_epi16(a, b, c, d, e, f, g, h));
        return _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide));
    }
    let mut values = [0.0f32; LANES];
    for lane in 0..LANES {
        values[lane] = w[lane].to_f32();
    }
    let [a, b, c, d, e, f, g, h] = values;
    _mm256_setr_ps(a, b, c, d, e, f, g, h)
}

/// `super::tree` of eight lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn tree(lanes: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    let one = _mm_add_ss(two, _mm_shuffle_ps::<1>(two, two));
    settle(_mm_cvtss_f32(one))
}

#[cfg(test)]
mod tests {
    use super::super::{dots::dot, widen};
    use super::*;
    use kernels_core::{bf16, f16};
    use kernels_testkit::{compare::assert_same_bits, rng::Rng};

    fn check<W: Activation>() {
        for rows in 1..=8 {
            for (k, n) in [(1, 1), (8, 25), (61, 49), (128, 24)] {
                let mut rng = Rng::new((rows * 100 + k) as u64);
                let x: Vec<W> = rng.normals(rows * k, 1.0);
                let weight: Vec<W> = rng.normals(n * k, 1.0);
                let (mut wide, mut sums) = (vec![0.0; rows * k], vec![f32::NAN; n * rows]);
                widen(&Tensor::of(&x, [rows, k]), &mut wide);
                if !block(&mut sums, &wide, rows, &Tensor::of(&weight, [n, k]), 0) {
                    return; // no AVX2 here: the portable loop is all there is
                }
                let want: Vec<f32> = (0..n * rows)
                    .map(|i| dot(&wide[i % rows * k..][..k], &weight[i / rows * k..][..k]))
                    .collect();
                assert_same_bits("AVX2 against the definition", &sums, &want);
            }
        }
    }

    #[test]
    fn tiles_give_the_bits_of_the_definition() {
        check::<bf16>();
        check::<f16>();
        check::<f32>();
    }
}

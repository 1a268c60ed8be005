//! Known answers from the Random123 distribution's kat_vectors (philox4x32, 10 rounds).

use kernels_core::philox::{Use, bits, exponential, gumbel, philox4x32_10, uniform};

#[test]
fn known_answers() {
    let cases = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, want) in cases {
        assert_eq!(philox4x32_10(counter, key), want);
    }
}

#[test]
fn noise_depends_on_each_part_of_its_key() {
    let base = bits(1, 2, 3, Use::Draw);
    for other in [
        bits(2, 2, 3, Use::Draw),
        bits(1, 3, 3, Use::Draw),
        bits(1, 2, 4, Use::Draw),
        bits(1, 2, 3, Use::Accept),
    ] {
        assert_ne!(base, other);
    }
    assert_ne!(bits(1 << 32, 2, 3, Use::Draw), bits(0, 2, 3, Use::Draw));
}

#[test]
fn tails_are_finite() {
    for x in [0, 1, u32::MAX / 2, u32::MAX - 1, u32::MAX] {
        let u = uniform(x);
        assert!(u > 0.0 && u < 1.0, "{x}: {u}");
        assert!(exponential(x) > 0.0 && exponential(x).is_finite());
        assert!(gumbel(x).is_finite());
    }
    // The largest Gumbel number is near ln(2^33), not cut off where fp32 has no number below 1.
    assert!(gumbel(0) > 22.0);
}

#[test]
fn moments_are_those_of_a_gumbel_number() {
    let n = 200_000u32;
    let sample: Vec<f64> = (0..n).map(|i| f64::from(gumbel(bits(9, i / 64, i % 64, Use::Draw)))).collect();
    let mean = sample.iter().sum::<f64>() / f64::from(n);
    let variance = sample.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
    // Euler's constant and pi^2 / 6, at five standard errors.
    assert!((mean - 0.577_215_66).abs() < 5.0 * (1.645 / f64::from(n)).sqrt(), "{mean}");
    assert!((variance - 1.644_934).abs() < 0.05, "{variance}");
}

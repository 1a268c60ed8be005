//! Numbers worked out by hand.

use crate::world::{Launch, Stream, World, undisturbed};
use kernels_core::{Activation, bf16};
use kernels_gdn::Problem;

const ONE: Problem = Problem {
    sequences: 1,
    rows: 1,
    max_rows: 2,
    k_heads: 1,
    v_heads: 1,
    k_dim: 2,
    v_dim: 1,
    slots: 1,
    journal_rows: 8,
    flush_after: 4,
};

fn stream<A: Activation>(mixed: &[f32], b: f32) -> Stream<A> {
    let tokens = 2;
    Stream {
        mixed: mixed.iter().map(|x| A::from_f32(*x)).collect(),
        a: vec![A::from_f32(0.0); tokens],
        b: vec![A::from_f32(b); tokens],
    }
}

/// q = (1, 0), k = (3, 4) -> (0.6, 0.8), v = 2, decay e^(-ln 2) = 1/2, beta = 1/2.
///
/// Token 1: u = 1/2 (2 - 0) = 1, S = (0.6, 0.8), o = 0.6 / sqrt 2.
/// Token 2: S k / 2 = 1/2, u = 1/2 (2 - 1/2) = 3/4, S = (0.3, 0.4) + 3/4 (0.6, 0.8), o = 0.75 / sqrt 2.
#[test]
fn two_tokens() {
    undisturbed(|| {
        let mut world = World::<f32>::new(ONE);
        (world.a_log, world.dt_bias) = (vec![0.0], vec![0.0]);
        let tokens = stream(&[1.0, 0.0, 3.0, 4.0, 2.0, 1.0, 0.0, 3.0, 4.0, 2.0], 0.0);
        let out = world.verify(&Launch::one(&ONE, 0, 0, tokens.clone()));
        // The epsilons under the roots, 1e-6 and 4e-8 of the sums, are what 1e-6 leaves room for.
        assert!((out[0] - 0.424_264_07).abs() < 1e-6 && (out[1] - 0.530_330_1).abs() < 1e-6, "{out:?}");
        assert!(world.state.iter().all(|s| s.is_nan()), "nothing was pending, so nothing may be stored");
        world.committed[0] = 2;
        world.fold(&[0]);
        let s = &world.state;
        assert!((s[0] - 0.75).abs() < 1e-6 && (s[1] - 1.0).abs() < 1e-6, "{s:?}");

        let mut world = World::<bf16>::new(ONE);
        (world.a_log, world.dt_bias) = (vec![0.0], vec![0.0]);
        let tokens = stream(&[1.0, 0.0, 3.0, 4.0, 2.0, 1.0, 0.0, 3.0, 4.0, 2.0], 0.0);
        let out = world.verify(&Launch::one(&ONE, 0, 0, tokens));
        // 217 / 512 and 136 / 256: the nearest bf16.
        assert_eq!(out.map_f32(), [0.423_828_13, 0.531_25]);
        // The journal holds k, v, a, b of both tokens and nothing else.
        assert_eq!(
            world.journal[..10].to_vec().map_f32(),
            [3.0, 4.0, 2.0, 0.0, 0.0, 3.0, 4.0, 2.0, 0.0, 0.0]
        );
        assert!(world.journal[10..].iter().all(|x| x.is_nan()));
    });
}

trait MapF32 {
    fn map_f32(&self) -> Vec<f32>;
}
impl MapF32 for Vec<bf16> {
    fn map_f32(&self) -> Vec<f32> {
        self.iter().map(|x| x.to_f32()).collect()
    }
}

/// The sum over k, by cancellation: k and q all equal, so r = S.k = sum(S) / 8 in units that fp32 drops
/// beside 2^27, and the output tells which additions met first.
///
/// k = 1/8 each (64 elements, the epsilon vanishes beside 64), q = 1/64 each, decay 1, beta 1/2, v = 0:
/// u = -r / 2, o = S.q + (q.k) u = r/8 - r/16 = r/16.
#[test]
fn the_tree_over_k() {
    undisturbed(|| {
        let p = Problem { k_dim: 64, ..ONE };
        let big = (1u32 << 30) as f32;
        let output = |elements: &[(usize, f32)]| {
            let mut world = World::<f32>::new(p);
            // softplus(-200) = 0, so the decay is exactly one.
            (world.a_log, world.dt_bias) = (vec![0.0], vec![-200.0]);
            world.state.fill(0.0);
            for &(k, s) in elements {
                world.state[k] = s;
            }
            world.folded[0] = 5;
            let tokens = stream(&[[1.0; 128].to_vec(), vec![0.0]].concat().repeat(2), 0.0);
            world.verify(&Launch::one(&p, 0, 5, tokens.part(&p, 0..1)))[0]
        };
        let unit = 8.0; // becomes r = 1
        let kept = 1.0 / 16.0;
        // Elements 0 and 32 share an accumulator; the unit in another one survives.
        assert_eq!(output(&[(0, big), (1, unit), (32, -big)]), kept);
        // The unit comes into the same accumulator after the big one: lost.
        assert_eq!(output(&[(0, big), (32, unit), (2, -big)]), 0.0);
        // (0 + 1) + (2 + 3): lost beside its neighbour, kept one pair further.
        assert_eq!(output(&[(0, big), (1, unit), (2, -big)]), 0.0);
        assert_eq!(output(&[(0, big), (1, -big), (2, unit)]), kept);
        // Threads of four components: (t0 + t1) + (t2 + t3).
        assert_eq!(output(&[(0, big), (4, unit), (8, -big)]), 0.0);
        assert_eq!(output(&[(0, big), (8, unit), (4, -big)]), kept);
        // Then the two halves of the eight threads.
        assert_eq!(output(&[(0, big), (8, unit), (16, -big)]), 0.0);
        assert_eq!(output(&[(0, big), (16, unit), (8, -big)]), kept);
    });
}

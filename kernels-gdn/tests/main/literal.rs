//! Numbers worked out by hand.

use crate::place::{Place, fit};
use crate::stream::{Launch, Stream};
use crate::world::{World, same};
use kernels_core::{Activation, DType};
use kernels_gdn::Problem;
use kernels_testkit::for_types;

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

/// Two tokens with these first elements of q, k and v, zeros behind them, and a = b = 0.
fn stream<A: Activation>(p: &Problem, q: &[f32], k: &[f32], v: f32) -> Stream<A> {
    let head = |x: &[f32], dim: usize| [x, &vec![0.0; dim - x.len()]].concat();
    let token = [head(q, p.k_dim), head(k, p.k_dim), head(&[v], p.v_dim)].concat();
    Stream {
        mixed: token.repeat(2).into_iter().map(A::from_f32).collect(),
        a: vec![A::default(); 2],
        b: vec![A::default(); 2],
    }
}

/// q = (1, 0), k = (3, 4) -> (0.6, 0.8), v = 2, decay e^(-ln 2) = 1/2, beta = 1/2.
///
/// Token 1: u = 1/2 (2 - 0) = 1, S = (0.6, 0.8), o = 0.6 / sqrt 2.
/// Token 2: S k / 2 = 1/2, u = 1/2 (2 - 1/2) = 3/4, S = (0.3, 0.4) + 3/4 (0.6, 0.8), o = 0.75 / sqrt 2.
///
/// With heads of 128 zeros follow, and the outputs are an eighth of that.
pub fn two_tokens<B: Place>(on: &B::Queue) {
    for_types!(B, on, two);
}

fn two<B: Place, A: Activation>(on: &B::Queue) {
    let p = fit::<B>(ONE);
    let shrunk = (p.k_dim as f32 / 2.0).sqrt();
    let mut world = World::<B, A>::new(on, p);
    (world.a_log, world.dt_bias) = (vec![0.0], vec![0.0]);
    let out = world.verify(&Launch::one(&p, 0, 0, stream(&p, &[1.0, 0.0], &[3.0, 4.0], 2.0)));
    let [first, second] = [0, p.v_dim].map(|i| out[i].to_f32() * shrunk);
    match A::DTYPE {
        // 217 / 512 and 136 / 256: the nearest bf16.
        DType::Bf16 => assert_eq!([first, second], [0.423_828_13, 0.531_25]),
        // 869 / 2048 and 1086 / 2048: the nearest f16.
        DType::F16 => assert_eq!([first, second], [0.424_316_4, 0.530_273_44]),
        // The epsilons under the roots, 1e-6 and 4e-8 of the sums, are what 1e-6 leaves room for.
        _ => assert!((first - 0.424_264_07).abs() < 1e-6 && (second - 0.530_330_1).abs() < 1e-6, "{out:?}"),
    }
    assert!(out.iter().enumerate().all(|(i, x)| i % p.v_dim == 0 || x.to_f32() == 0.0));
    assert!(world.state().iter().all(|s| s.is_nan()), "nothing was pending, so nothing may be stored");
    // The journal holds k, v, a, b of both tokens and nothing else.
    let journal = world.journal();
    let (tokens, rest) = journal.split_at(2 * p.journal_width());
    let head = |x: &[f32], dim: usize| [x, &vec![0.0; dim - x.len()]].concat();
    let row = [head(&[3.0, 4.0], p.k_dim), head(&[2.0], p.v_dim), vec![0.0, 0.0]].concat();
    let want: Vec<A> = row.repeat(2).into_iter().map(A::from_f32).collect();
    same("journal", tokens, &want).unwrap();
    assert!(rest.iter().all(|x| x.to_f32().is_nan()));

    world.committed[0] = 2;
    world.fold(&[0]);
    let s = world.state();
    assert!((s[0] - 0.75).abs() < 1e-6 && (s[1] - 1.0).abs() < 1e-6, "{:?}", &s[..2]);
    assert!(s[2..].iter().all(|s| *s == 0.0));
}

/// The sum over k, by cancellation: k and q all equal, so r = S.k = sum(S) / 8 in units that fp32 drops
/// beside 2^27, and the output tells which additions met first.
///
/// k = 1/8 each (64 elements, the epsilon vanishes beside 64), q = k / sqrt(k_dim), decay 1, beta 1/2, v = 0:
/// u = -r / 2, o = S.q + (q.k) u = r / 2 / sqrt(k_dim). Further elements are zero.
pub fn the_tree_over_k<B: Place>(on: &B::Queue) {
    for_types!(B, on, tree);
}

fn tree<B: Place, A: Activation>(on: &B::Queue) {
    let p = fit::<B>(Problem { k_dim: 64, ..ONE });
    let big = (1u32 << 30) as f32;
    let output = |elements: &[(usize, f32)]| {
        let mut world = World::<B, A>::new(on, p);
        // softplus(-200) = 0, so the decay is exactly one.
        (world.a_log, world.dt_bias) = (vec![0.0], vec![-200.0]);
        let mut state = vec![0.0; p.state_len()];
        for &(k, s) in elements {
            state[k] = s;
        }
        world.set_state_of(0, &state);
        world.folded[0] = 5;
        let tokens = stream(&p, &[1.0; 64], &[1.0; 64], 0.0);
        world.verify(&Launch::one(&p, 0, 5, tokens.part(&p, 0..1)))[0].to_f32()
    };
    let unit = 8.0; // becomes r = 1
    let kept = A::from_f32((1.0 / (p.k_dim as f64).sqrt()) as f32 / 2.0).to_f32();
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
}

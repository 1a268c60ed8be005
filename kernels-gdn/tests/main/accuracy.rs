//! The recurrence as the paper writes it, in f64, with a bound on what fp32 may lose.

use crate::place::{Place, SMALL, fit, flushing, small};
use crate::stream::{Launch, Stream, mixed_width};
use crate::world::World;
use kernels_core::{Activation, DType, bf16};
use kernels_gdn::Problem;
use kernels_testkit::{rng::Rng, runner::stride};

/// Unit roundoff of fp32.
const EPS: f64 = 1.0 / (1u32 << 24) as f64;

/// The f64 recurrence of one sequence, and how far fp32 may be from it.
pub struct Oracle {
    pub out: Vec<f64>,         // [tokens, v_heads, v_dim]
    pub out_bound: Vec<f64>,   // the same, before the rounding to A
    pub state: Vec<f64>,       // [v_heads, v_dim, k_dim]
    pub state_bound: Vec<f64>, // [v_heads, v_dim]: on the 2-norm of a row's error
}

/// Runs the recurrence from `state`; a dot's sum passes each product through at most `chain` additions.
///
/// # The bound
///
/// First order in EPS, for one row S of the state (a vector over k) with error norm E, |k| <= 1,
/// |q| <= c = 1/sqrt(k_dim), d the decay, u the correction:
///
/// * a dot of x and y is off by chain EPS |x||y|;
/// * k and q: the sum of squares has relative error (chain + 1) EPS, its root half of that; root,
///   quotient, scale, factor and product round once each: e_n = ((chain + 1)/2 + 5) EPS;
/// * d: exp is within 1.5 ulp <= 3 EPS; g has relative error (9 + |a + dt_bias|) EPS, since softplus has
///   a condition of at most one in its derivative, exp is taken twice before, log1p is within one ulp,
///   the product rounds: e_d = (|g| (9 + |a + dt_bias|) + 3) EPS;
/// * beta: 5 EPS;
/// * u = beta (v - d r) takes d (r's error) + e_d d |S| through beta, and 7 EPS |u| for beta, the fused
///   subtraction and the product: e_u = beta d |S| (e_n + chain EPS + e_d) + 7 EPS |u|;
/// * the old error passes through (I - beta k k^T) d, whose norm is at most d;
/// * writing k u on d S: e_n |u| for k, (e_d + EPS) d |S| for the product, EPS (d |S| + |u|) for the fma.
///
/// So E' = d E + e_u + (e_n + EPS) |u| + (e_d + 2 EPS) d |S|, and the output is off by
/// c (d E + d |S| (e_n + chain EPS + e_d + EPS) + |u| (2 e_n + chain EPS + 2 EPS) + e_u).
/// One percent on top covers the second order.
pub fn oracle<A: Activation>(
    p: &Problem,
    stream: &Stream<A>,
    (a_log, dt_bias): (&[f32], &[f32]),
    mut state: Vec<f64>,
    chain: f64,
) -> Oracle {
    let (keys, width) = (p.k_heads * p.k_dim, mixed_width(p));
    let tokens = stream.tokens(p);
    let mut out = vec![0.0; tokens * p.v_heads * p.v_dim];
    let mut out_bound = out.clone();
    let mut state_bound = vec![0.0; p.v_heads * p.v_dim];
    let unit = |x: &[A]| -> Vec<f64> {
        let x: Vec<f64> = x.iter().map(|x| f64::from(x.to_f32())).collect();
        let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        x.iter().map(|x| x / length).collect()
    };
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();

    for t in 0..tokens {
        let mixed = &stream.mixed[t * width..][..width];
        for head in 0..p.v_heads {
            let key_head = head / (p.v_heads / p.k_heads);
            let c = 1.0 / (p.k_dim as f64).sqrt();
            let q: Vec<f64> = unit(&mixed[key_head * p.k_dim..][..p.k_dim]).iter().map(|q| q * c).collect();
            let k = unit(&mixed[keys + key_head * p.k_dim..][..p.k_dim]);
            let a = f64::from(stream.a[t * p.v_heads + head].to_f32());
            let b = f64::from(stream.b[t * p.v_heads + head].to_f32());
            let beta = 1.0 / (1.0 + (-b).exp());
            let x = a + f64::from(dt_bias[head]);
            let g = -f64::from(a_log[head]).exp() * x.exp().ln_1p();
            let d = g.exp();
            let e_n = ((chain + 1.0) / 2.0 + 5.0) * EPS;
            let e_d = (g.abs() * (9.0 + x.abs()) + 3.0) * EPS;
            for i in 0..p.v_dim {
                let v = f64::from(mixed[2 * keys + head * p.v_dim + i].to_f32());
                let s = &mut state[(head * p.v_dim + i) * p.k_dim..][..p.k_dim];
                let e = &mut state_bound[head * p.v_dim + i];
                // Decay, read, correct, write, output: the order of the paper.
                s.iter_mut().for_each(|s| *s *= d);
                let decayed = norm(s);
                let u = beta * (v - dot(s, &k));
                s.iter_mut().zip(&k).for_each(|(s, k)| *s += k * u);
                let at = (t * p.v_heads + head) * p.v_dim + i;
                out[at] = dot(s, &q);

                let u = u.abs();
                let e_u = beta * decayed * (e_n + chain * EPS + e_d) + 7.0 * EPS * u;
                out_bound[at] = 1.01
                    * c
                    * (d * *e
                        + decayed * (e_n + chain * EPS + e_d + EPS)
                        + u * (2.0 * e_n + chain * EPS + 2.0 * EPS)
                        + e_u);
                *e = 1.01 * (d * *e + e_u + (e_n + EPS) * u + (e_d + 2.0 * EPS) * decayed);
            }
        }
    }
    Oracle { out, out_bound, state, state_bound }
}

/// Additions that a product passes through in the tree: its accumulator's, then five levels.
pub fn tree_chain(k_dim: usize) -> f64 {
    (k_dim.div_ceil(32) + 5) as f64
}

/// Every output within its bound, plus one rounding of unit `rounding`; returns the relative errors of
/// outputs and state in the Frobenius norm.
pub fn within<A: Activation>(
    p: &Problem,
    oracle: &Oracle,
    out: &[A],
    state: &[f32],
    rounding: f64,
) -> (f64, f64) {
    assert_eq!((out.len(), state.len()), (oracle.out.len(), oracle.state.len()));
    for (i, o) in out.iter().enumerate() {
        let (got, want) = (f64::from(o.to_f32()), oracle.out[i]);
        let bound = oracle.out_bound[i] + rounding * (want.abs() + oracle.out_bound[i]);
        assert!((got - want).abs() <= bound, "output {i}: {got} instead of {want}, bound {bound:e}");
    }
    for (i, row) in state.chunks_exact(p.k_dim).enumerate() {
        let want = &oracle.state[i * p.k_dim..][..p.k_dim];
        let error = row.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum::<f64>().sqrt();
        let bound = oracle.state_bound[i];
        assert!(error <= bound, "state row {i}: off by {error:e}, bound {bound:e}");
    }
    let relative = kernels_testkit::compare::relative_error::<A>;
    (relative(out, &oracle.out), kernels_testkit::compare::relative_error(state, &oracle.state))
}

/// 600 tokens with the given decay parameters, by prefill and by rounds of four.
fn check<B: Place, A: Activation>(
    on: &B::Queue,
    p: Problem,
    (a_log, dt_bias): (f32, f32),
    tightness: f64,
) -> (f64, f64) {
    let p = flushing(Problem { slots: 1, max_rows: 4, ..p }, 3);
    let tokens = 600;
    let stream = Stream::<A>::random(&p, tokens, &mut Rng::new(5));
    let mut world = World::<B, A>::new(on, p);
    world.a_log.fill(a_log);
    world.dt_bias.fill(dt_bias);
    let gates = (&world.a_log[..], &world.dt_bias[..]);
    let want = oracle(&p, &stream, gates, vec![0.0; p.state_len()], tree_chain(p.k_dim));
    let rounding = unit_rounding::<A>();

    let mut rounds = world.duplicate();
    let mut out = vec![];
    for start in (0..tokens).step_by(4) {
        out.extend(rounds.verify(&Launch::one(&p, 0, start, stream.part(&p, start..start + 4))));
        rounds.advance(0, 4);
    }
    rounds.fold(&[0]);
    let errors = within(&p, &want, &out, &rounds.state(), rounding);

    let out = world.prefill(&Launch::one(&p, 0, 0, stream));
    assert_eq!(within(&p, &want, &out, &world.state(), rounding), errors);

    // The bound would say nothing if it were as large as what it bounds.
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let share = norm(&want.state_bound) / norm(&want.state);
    assert!(share < tightness, "the state's bound is {share:e} of the state");
    errors
}

/// The relative error of rounding an output to `A`; none for the type of the arithmetic itself.
pub fn unit_rounding<A: Activation>() -> f64 {
    if A::DTYPE == DType::Bf16 { 1.0 / 256.0 } else { 0.0 }
}

pub fn long_sequences_stay_within_the_derived_bound<B: Place>(on: &B::Queue) {
    long_sequences::<B, bf16>(on);
    if B::GENERAL {
        long_sequences::<B, f32>(on);
    }
}

fn long_sequences<B: Place, A: Activation>(on: &B::Queue) {
    let wide = fit::<B>(Problem { k_heads: 1, v_heads: 2, k_dim: 128, v_dim: 16, ..SMALL });
    // A head that forgets keeps the errors of few tokens, so that its bound is tight; one that does
    // not may gather the worst case of all 600.
    let decays = [
        ("strong", (16f32.ln(), 0.0), 1e-4),
        ("middling", (0.0, -2.0), 1e-3),
        ("weak", (-4.0, -3.0), 0.03),
        ("no", (-9.0, -9.0), 0.03),
    ];
    for (name, decay, tightness) in decays.into_iter().step_by(stride(2)) {
        for p in [wide, small::<B>()] {
            let (out, state) = check::<B, A>(on, p, decay, tightness);
            println!("{} {name} decay, k_dim {}: out {out:.2e}, state {state:.2e}", A::DTYPE, p.k_dim);
        }
    }
}

/// The same tokens with fewer values per head; rows of the state do not know each other.
fn narrowed<A: Activation>(p: &Problem, stream: &Stream<A>, values: usize) -> (Problem, Stream<A>) {
    let narrow = Problem { v_dim: values, ..*p };
    let keys = 2 * p.k_heads * p.k_dim;
    let mut mixed = vec![];
    for token in stream.mixed.chunks_exact(mixed_width(p)) {
        mixed.extend_from_slice(&token[..keys]);
        token[keys..].chunks_exact(p.v_dim).for_each(|head| mixed.extend_from_slice(&head[..values]));
    }
    (narrow, Stream { mixed, a: stream.a.clone(), b: stream.b.clone() })
}

/// A reported fault: state or gate parameters in half precision, and texts that repeat themselves after a
/// while. In 50,000 tokens with parameters that bf16 cannot hold, fp32 loses less than 1e-4.
pub fn fifty_thousand_tokens_do_not_drift<B: Place>(on: &B::Queue) {
    let decays = [0.9f64, 0.99, 0.999, 0.9999, 0.99999];
    let p = Problem { slots: 1, k_heads: 1, v_heads: decays.len(), k_dim: 32, v_dim: 4, ..SMALL };
    let p = fit::<B>(p);
    let mut stream = Stream::<bf16>::random(&p, 50_000 / stride(100), &mut Rng::new(6));
    stream.a.fill(bf16::ZERO);
    let mut world = World::<B, bf16>::new(on, p);
    // softplus(dt_bias) = 1, so that the decay is e^-e^a_log.
    world.dt_bias.fill((std::f32::consts::E - 1.0).ln());
    world.a_log = decays.map(|decay| (-decay.ln()).ln() as f32).to_vec();
    let narrow = |x: &f32| bf16::from_f32(*x).to_f32() != *x;
    assert!(world.a_log.iter().chain(&world.dt_bias).all(narrow), "bf16 holds these parameters");
    // The oracle takes its time, so it sees four rows of each head's state.
    let (few, values) = narrowed(&p, &stream, 4);
    let gates = (&world.a_log[..], &world.dt_bias[..]);
    let want = oracle(&few, &values, gates, vec![0.0; few.state_len()], tree_chain(p.k_dim));
    world.prefill(&Launch::one(&p, 0, 0, stream));
    let (state, size) = (world.state(), 4 * p.k_dim);
    for (head, decay) in decays.iter().enumerate() {
        let got = &state[head * p.v_dim * p.k_dim..][..size];
        let error = kernels_testkit::compare::relative_error(got, &want.state[head * size..][..size]);
        println!("decay {decay}: {error:.2e}");
        assert!(error < 1e-4, "decay {decay}: off by {error:e}");
    }
}

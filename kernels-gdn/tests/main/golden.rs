//! Against transformers' own recurrence (see golden/make_golden.py).

use crate::accuracy::{oracle, tree_chain, unit_rounding};
use crate::place::{Place, SMALL, flushing};
use crate::stream::{Launch, Stream};
use crate::world::World;
use kernels_core::{Activation, Cpu, bf16};
use kernels_gdn::{Problem, export_state, import_state};
use kernels_testkit::fixture::Fixture;

/// Runs one case by prefill and by rounds of up to three rows.
///
/// Both sides compute in fp32 and both stay within the bound of accuracy.rs; torch may add the products
/// of a dot in any order, so that its chain is `k_dim`.
fn compare<B: Place, A: Activation>(on: &B::Queue, case: &str, p: Problem) {
    let rounding = unit_rounding::<A>();
    let fixture = Fixture::open("kernels-gdn/tests/golden/gated_delta_rule.safetensors");
    let get = |name: &str| fixture.get(&format!("{case}.{name}")).1;
    let typed = |name: &str| get(name).iter().map(|x| A::from_f32(*x)).collect::<Vec<A>>();
    let p = flushing(Problem { slots: 2, max_rows: 3, ..p }, 2);
    let (q, k, v) = (typed("q"), typed("k"), typed("v"));
    let (keys, values) = (p.k_heads * p.k_dim, p.v_heads * p.v_dim);
    let mixed = (q.chunks(keys).zip(k.chunks(keys)).zip(v.chunks(values)))
        .flat_map(|((q, k), v)| [q, k, v].concat())
        .collect();
    let stream = Stream { mixed, a: typed("a"), b: typed("b") };
    let tokens = stream.tokens(&p);
    assert!(tokens > 1);

    let mut world = World::<B, A>::new(on, p);
    world.a_log = get("a_log").to_vec();
    world.dt_bias = get("dt_bias").to_vec();
    let slot = 1;
    let mut initial = vec![0.0; p.state_len()];
    if let Some((_, theirs)) = fixture.try_get(&format!("{case}.initial_state")) {
        initial = import_state(&p, theirs).unwrap();
        world.set_state_of(slot, &initial);
        // Any position does: the recurrence knows none.
        (world.folded[slot], world.committed[slot]) = (100, 100);
    }
    let initial: Vec<f64> = initial.iter().map(|x| f64::from(*x)).collect();
    let gates = (&world.a_log[..], &world.dt_bias[..]);
    let ours = oracle(&p, &stream, gates, initial.clone(), tree_chain(p.k_dim));
    let torchs = oracle(&p, &stream, gates, initial, p.k_dim as f64);
    let first = world.committed[slot] as usize;

    let check = |how: &str, out: &[A], state: &[f32]| {
        for (i, (got, want)) in out.iter().zip(get("out")).enumerate() {
            let (got, want) = (f64::from(got.to_f32()), f64::from(*want));
            let bound = ours.out_bound[i] + torchs.out_bound[i];
            let bound = bound + rounding * (want.abs() + bound);
            assert!((got - want).abs() <= bound, "{case}, {how}: output {i} is {got} instead of {want}");
        }
        let theirs = import_state(&p, get("state")).unwrap();
        assert_eq!(export_state(&p, &theirs).unwrap(), get("state"));
        for (i, (got, want)) in state.chunks(p.k_dim).zip(theirs.chunks(p.k_dim)).enumerate() {
            let error = got.iter().zip(want).map(|(g, w)| f64::from(g - w).powi(2)).sum::<f64>().sqrt();
            let bound = ours.state_bound[i] + torchs.state_bound[i];
            assert!(error <= bound, "{case}, {how}: state row {i} is off by {error:e}, bound {bound:e}");
        }
        assert_eq!((out.len(), state.len()), (get("out").len(), theirs.len()));
    };

    let mut prefilled = world.duplicate();
    let out = prefilled.prefill(&Launch::one(&p, slot, first, stream.clone()));
    check("prefill", &out, &prefilled.state_of(slot));

    let mut out = vec![];
    let mut at = 0;
    while at < tokens {
        let t = p.max_rows.min(tokens - at);
        out.extend(world.verify(&Launch::one(&p, slot, first + at, stream.part(&p, at..at + t))));
        world.advance(slot, t);
        at += t;
    }
    world.fold(&[slot as i32]);
    check("verify", &out, &world.state_of(slot));
}

pub fn transformers_in_f32_with_an_initial_state() {
    compare::<Cpu, f32>(&(), "small", Problem { k_heads: 2, v_heads: 4, k_dim: 40, v_dim: 20, ..SMALL });
}

pub fn transformers_on_bf16_inputs_at_real_head_sizes<B: Place>(on: &B::Queue) {
    let p = Problem { k_heads: 1, v_heads: 2, k_dim: 128, v_dim: 128, ..SMALL };
    compare::<B, bf16>(on, "qwen", p);
}

//! Against transformers' own attention module (float32, see `golden/make_golden.py`).

use crate::append::{Rope, append_rows};
use crate::place::Place;
use crate::support::{Model, PLAIN, Sequence, attend_split};
use kernels_testkit::{compare::relative_error, fixture::Fixture};

/// Where the two must differ: transformers makes its rotary angles in float32. The frequency (a power and
/// a quotient) is off by at most 4 roundoffs and the product with the position by one more, so at position
/// 139 an angle is off by `139 * 5 * 2^-24 = 4.1e-5`, and a query or key by as much, relative.
const ANGLE: f64 = 4.2e-5;

pub(crate) fn same_as_transformers<B: Place>(on: &B::Queue) {
    let fixture = Fixture::open("kernels-attn/tests/golden/attention.safetensors");
    for (name, rotary) in [("small", 8), ("real", 64)] {
        let get = |what: &str| fixture.get(&format!("{name}/{what}"));
        let (shape, q_gate) = get("q_gate");
        let [tokens, q_heads, d] = [shape[0], shape[1], shape[2] / 2];
        let (shape, k) = get("k");
        let model = Model::new::<B>(q_heads, shape[1], d);
        let v = get("v").1;
        let half = |n: usize| -> Vec<f32> {
            q_gate.chunks_exact(2 * d).flat_map(|x| &x[n * d..(n + 1) * d]).copied().collect()
        };
        let rope = Rope { theta: 1e7, rotary, q_norm: get("q_norm").1, k_norm: get("k_norm").1 };
        let (query, keys, values) =
            append_rows::<B, _>(on, &model, &PLAIN, &rope, 0, &[tokens], &half(0), k, v);
        assert_eq!(values, v, "values are copied");

        let kept: Vec<usize> = fixture
            .try_integers(&format!("{name}/rows"))
            .unwrap()
            .1
            .iter()
            .map(|row| *row as usize)
            .collect();
        let rows = |x: &[f32], width: usize| -> Vec<f32> {
            kept.iter().flat_map(|row| &x[row * width..(row + 1) * width]).copied().collect()
        };
        let wide = |what: &str| get(what).1.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let close = |what: &str, got: Vec<f32>, bound: f64| {
            let error = relative_error(&got, &wide(what));
            println!("{name}/{what}: {error:.1e}");
            assert!(error < bound, "{name}/{what}: relative error {error:e}, bound {bound:e}");
        };
        close("query", rows(&query, q_heads * d), ANGLE);
        close("key", rows(&keys, model.kv_heads * d), ANGLE);

        let sequence = Sequence { start: 0, rows: tokens, keys, values, q: query, gate: half(1) };
        let out = attend_split::<B, _>(on, &model, &PLAIN, &sequence, &[tokens]);
        // Norm weights near 1.6 make |q| |k| / sqrt(d) at most 2.6 sqrt(d) <= 42; a score is off by two angle
        // errors of its rotated quarter, `2 * 42 / 4` of them, and a weight by as much, relative, which
        // acts on the spread of the values.
        close("out", rows(&out, q_heads * d), 21.0 * ANGLE);
    }
}

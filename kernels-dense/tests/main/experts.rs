//! The mixture of experts on both backends: a row is a function of itself, and the sum of its parts.

use crate::{
    Check,
    accuracy::moe_row,
    approx::{assert_admitted, exact},
    calls::Experts,
    calm,
    layers::{Layer, dot_in_steps, rows_of},
    moe::weights,
    same,
    world::{Place, packed, spread, strides},
};
use kernels_core::{DType, Result, Tensor, TensorMut, bf16, ref_math};
use kernels_dense::*;
use kernels_testkit::{
    compare::assert_same_bits,
    guard::{Guarded, poison},
    rng::Rng,
    runner::{sanitized, stride},
};

/// Weights with poison between their rows and experts, and a workspace that all launches share.
pub(crate) struct Mix<B: Place> {
    queue: B::Queue,
    pub(crate) problem: MoeProblem,
    pub(crate) weights: Experts<bf16>,
    router: Guarded<B, bf16>,
    gate_up: Guarded<B, bf16>,
    down: Guarded<B, bf16>,
    shared_gate_up: Guarded<B, bf16>,
    shared_down: Guarded<B, bf16>,
    shared_gate: Guarded<B, bf16>,
    workspace: Guarded<B, u8>,
}

const CANARY: u8 = 0xa5;
/// Ids behind each route that nobody may touch.
const BEHIND: usize = 3;

impl<B: Place> Mix<B> {
    pub(crate) fn new(queue: &B::Queue, problem: MoeProblem, weights: Experts<bf16>) -> Self {
        let MoeProblem { hidden, intermediate, shared_intermediate, .. } = problem;
        let guarded =
            |all: &[bf16], rows: usize, n: usize| Guarded::new(queue, &spread(all, rows, n), poison());
        Mix {
            queue: queue.clone(),
            router: guarded(&weights.router, 1, hidden),
            gate_up: guarded(&weights.gate_up, 2 * intermediate, hidden),
            down: guarded(&weights.down, hidden, intermediate),
            shared_gate_up: guarded(&weights.shared_gate_up, 1, hidden),
            shared_down: guarded(&weights.shared_down, 1, shared_intermediate),
            shared_gate: guarded(&weights.shared_gate, 1, hidden),
            workspace: Guarded::new(queue, &[], CANARY),
            problem,
            weights,
        }
    }

    pub(crate) fn random(queue: &B::Queue, problem: MoeProblem) -> Self {
        let mut weights: Experts<bf16> = weights(&problem, 17);
        // Sums of products stay near one, and routes are not all the same.
        let scale = |all: &mut [bf16], k: usize| {
            let scale = 2.0 / (k as f32).sqrt();
            all.iter_mut().for_each(|w| *w = bf16::from_f32(w.to_f32() * scale));
        };
        let MoeProblem { hidden, intermediate, shared_intermediate, .. } = problem;
        scale(&mut weights.router, hidden);
        scale(&mut weights.gate_up, hidden);
        scale(&mut weights.down, intermediate);
        scale(&mut weights.shared_gate_up, hidden);
        scale(&mut weights.shared_down, shared_intermediate);
        scale(&mut weights.shared_gate, hidden);
        Mix::new(queue, problem, weights)
    }

    /// The rows of `before` become those of the result, as `plan` changes it; and their routes.
    pub(crate) fn run(
        &mut self,
        before: &[bf16],
        x: &[bf16],
        plan: impl FnOnce(Moe) -> Moe,
    ) -> (Vec<bf16>, Vec<i32>) {
        let MoeProblem { hidden, top_k, .. } = self.problem;
        let rows = x.len() / hidden;
        let problem = MoeProblem { rows, ..self.problem };
        let op = plan(Moe::plan(problem, &B::device(&self.queue)).unwrap());
        let input = Guarded::<B, _>::new(&self.queue, &spread(x, 1, hidden), poison());
        let mut output = Guarded::<B, _>::new(&self.queue, &spread(before, 1, hidden), poison());
        let mut routes = Guarded::<B, _>::new(&self.queue, &vec![-7; rows * (top_k + BEHIND)], i32::MIN);
        self.enqueue(&op, &input, &mut output, &mut routes).unwrap();
        self.workspace.read(&self.queue);
        let routes = routes.read(&self.queue);
        let routes = routes.chunks(top_k + BEHIND).flat_map(|route| {
            assert_eq!(route[top_k..], [-7; BEHIND], "something was written behind a route");
            route[..top_k].to_vec()
        });
        (packed("out", &output.read(&self.queue), 1, hidden).concat(), routes.collect())
    }

    fn enqueue(
        &mut self,
        op: &Moe,
        x: &Guarded<B, bf16>,
        out: &mut Guarded<B, bf16>,
        routes: &mut Guarded<B, i32>,
    ) -> Result<()> {
        let MoeProblem { rows, hidden, experts, top_k, intermediate, shared_intermediate, .. } =
            *op.problem();
        let bytes = op.workspace_bytes();
        // Zeros the first time and whenever more is needed; otherwise what earlier launches left.
        if self.workspace.payload().len() < bytes {
            self.workspace = Guarded::new(&self.queue, &vec![0; bytes], CANARY);
        }
        let first = self.workspace.payload().start;
        let (out_at, routes_at) = (out.payload(), routes.payload());
        let (mut out, mut ids) = (out.whole_mut(), routes.whole_mut());
        let mut workspace = self.workspace.whole_mut();
        let wide = strides(1, hidden)[0];
        let args = MoeArgs::<B> {
            out: TensorMut::new(B::slice_mut(&mut out, out_at), [rows, hidden]).with_strides([wide, 1]),
            routes: Some(
                TensorMut::new(B::slice_mut(&mut ids, routes_at), [rows, top_k])
                    .with_strides([top_k + BEHIND, 1]),
            ),
            x: Tensor::new(x.view(), [rows, hidden]).with_strides([wide, 1]),
            router: Tensor::new(self.router.view(), [experts, hidden]).with_strides([wide, 1]),
            gate_up: Tensor::new(self.gate_up.view(), [experts, 2 * intermediate, hidden])
                .with_strides(strides(2 * intermediate, hidden)),
            down: Tensor::new(self.down.view(), [experts, hidden, intermediate])
                .with_strides(strides(hidden, intermediate)),
            shared_gate_up: Tensor::new(self.shared_gate_up.view(), [2 * shared_intermediate, hidden])
                .with_strides([wide, 1]),
            shared_down: Tensor::new(self.shared_down.view(), [hidden, shared_intermediate])
                .with_strides([strides(1, shared_intermediate)[0], 1]),
            shared_gate: Tensor::new(self.shared_gate.view(), [1, hidden]).with_strides([wide, 1]),
            workspace: Some(TensorMut::new(B::slice_mut(&mut workspace, first..first + bytes), [bytes])),
        };
        op.run(&self.queue, args)
    }
}

/// `[hidden, experts, top_k, intermediate, shared_intermediate]`: one tile and step, widths of no multiple of a tile,
/// segments, more experts than the batch has routes and fewer, one expert of many and many of them.
pub(crate) fn problems<B: Place>() -> Vec<MoeProblem> {
    let sizes: &[[usize; 5]] = if B::GENERAL {
        &[[24, 5, 3, 10, 14], [40, 70, 5, 8, 16], [8, 1, 1, 8, 8]]
    } else {
        &[
            [64, 5, 3, 24, 40],
            [8, 1, 1, 8, 8],
            [520, 256, 8, 72, 136],
            [264, 301, 1, 136, 8],
            [1096, 33, 32, 40, 200],
            [192, 40, 5, 64, 320],
            [1088, 12, 6, 576, 64],
            [2048, 20, 8, 512, 512],
        ]
    };
    let problem = |[hidden, experts, top_k, intermediate, shared_intermediate]: &[usize; 5]| MoeProblem {
        rows: 0,
        hidden: *hidden,
        experts: *experts,
        top_k: *top_k,
        intermediate: *intermediate,
        shared_intermediate: *shared_intermediate,
        weights: DType::Bf16,
    };
    sizes.iter().step_by(stride(2)).map(problem).collect()
}

/// Any number of rows, in any order, row by row.
pub(crate) fn rows_are_single_rows<B: Place>(queue: &B::Queue) {
    calm(|| {
        for problem in problems::<B>() {
            let MoeProblem { hidden: h, top_k, .. } = problem;
            // Nine rows of one expert are two groups.
            let counts: &[usize] = match (B::GENERAL, sanitized()) {
                (true, _) => &[2, 3, 7, 8, 9, 12, 16, 17, 20],
                (false, true) => &[2, 9],
                _ => &[2, 3, 7, 8, 9, 12, 16, 17, 20, 31, 32, 33, 48, 64, 65, 100, 256, 300],
            };
            let most = counts[counts.len() - 1];
            let mut mix = Mix::<B>::random(queue, problem);
            let (x, before) = (rows_of(most, h, 1), rows_of(most, h, 2));
            let (mut alone, mut routes) = (Vec::new(), Vec::new());
            for row in 0..most {
                let at = row * h..(row + 1) * h;
                let (out, route) = mix.run(&before[at.clone()], &x[at], |op| op);
                alone.extend(out);
                routes.extend(route);
            }
            assert!(alone.iter().all(|y| y.is_finite()), "{problem:?}: something else was read");
            for &count in counts {
                let (got, ids) = mix.run(&before[..count * h], &x[..count * h], |op| op);
                let what = format!("{count} rows, {problem:?}");
                assert_same_bits(&what, &got, &alone[..count * h]);
                assert_eq!(ids, routes[..count * top_k], "{what}");
            }
            let order = Rng::new(3).permutation(most);
            let pick = |all: &[bf16]| -> Vec<bf16> {
                order.iter().flat_map(|row| all[row * h..(row + 1) * h].to_vec()).collect()
            };
            let (got, ids) = mix.run(&pick(&before), &pick(&x), |op| op);
            assert_same_bits(&format!("permuted rows, {problem:?}"), &got, &pick(&alone));
            let permuted: Vec<i32> =
                order.iter().flat_map(|row| routes[row * top_k..][..top_k].to_vec()).collect();
            assert_eq!(ids, permuted, "{problem:?}");
            // All rows to the same experts.
            let alike: Vec<bf16> = (0..most).flat_map(|_| x[..h].to_vec()).collect();
            let (got, _) = mix.run(&before[..h].repeat(most), &alike, |op| op);
            assert_same_bits(&format!("equal rows, {problem:?}"), &got, &alone[..h].repeat(most));
        }
    });
}

/// The route of a row of logits and its weights: the CPU's functions in the CPU's order.
fn route(logits: &[f32], top_k: usize) -> Vec<(usize, f32)> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let e: Vec<f32> = logits.iter().map(|l| ref_math::exp(l - max)).collect();
    let mut lanes = [0.0f32; 32];
    e.iter().enumerate().for_each(|(i, e)| lanes[i % 32] += e);
    for half in [16, 8, 4, 2, 1] {
        (0..half).for_each(|i| lanes[i] += lanes[i + half]);
    }
    let p: Vec<f32> = e.iter().map(|e| e / lanes[0]).collect();
    let mut ids: Vec<usize> = (0..p.len()).collect();
    ids.sort_by(|a, b| p[*b].total_cmp(&p[*a]).then(a.cmp(b)));
    ids.truncate(top_k);
    let chosen = ids.iter().fold(0.0, |sum, id| sum + p[*id]);
    ids.into_iter().map(|id| (id, p[id] / chosen)).collect()
}

/// Router, experts and shared expert as operations of their own: equal bytes.
pub(crate) fn is_its_parts<B: Place>(queue: &B::Queue) {
    calm(|| {
        for problem in problems::<B>() {
            let MoeProblem { hidden: h, experts, top_k, intermediate, shared_intermediate, .. } = problem;
            let rows = 5;
            let mut mix = Mix::<B>::random(queue, problem);
            let (x, before) = (rows_of(rows, h, 5), rows_of(rows, h, 6));
            let (out, routes) = mix.run(&before, &x, |op| op);
            // The shared expert's gate is one more row of the router.
            let width = (experts + 1).next_multiple_of(8);
            let mut router = [&mix.weights.router[..], &mix.weights.shared_gate].concat();
            router.resize(width * h, poison());
            let mut router = Layer::<B>::new(queue, router, h, Epilogue::Store);
            let logits = router.head(&x, experts + 1, true, |op| op).0.expect("they were asked for");
            let ffn = |x: &[bf16], gate_up: &[bf16], down: &[bf16]| -> Vec<bf16> {
                let inner = down.len() / h;
                let mut up = Layer::<B>::new(queue, gate_up.to_vec(), h, Epilogue::SiluMul);
                let act = up.run(&vec![poison(); x.len() / h * inner], x, |op| op);
                let mut down = Layer::<B>::new(queue, down.to_vec(), inner, Epilogue::Store);
                down.run(&vec![poison(); x.len()], &act, |op| op)
            };
            let shared = ffn(&x, &mix.weights.shared_gate_up, &mix.weights.shared_down);
            assert_eq!(mix.weights.shared_down.len(), h * shared_intermediate);
            for row in 0..rows {
                let at = row * h..(row + 1) * h;
                let logits = &logits[row * width..][..experts + 1];
                let want = route(&logits[..experts], top_k);
                let ids: Vec<i32> = want.iter().map(|(id, _)| *id as i32).collect();
                assert_eq!(routes[row * top_k..][..top_k], ids, "{problem:?}");
                let mut sum = vec![0.0f32; h];
                let mut add = |weight: f32, y: &[bf16]| {
                    sum.iter_mut().zip(y).for_each(|(sum, y)| *sum = weight.mul_add(y.to_f32(), *sum));
                };
                for (id, weight) in want {
                    let (up, down) = (2 * intermediate * h, h * intermediate);
                    let w = &mix.weights;
                    let y = ffn(&x[at.clone()], &w.gate_up[id * up..][..up], &w.down[id * down..][..down]);
                    add(weight, &y);
                }
                add(ref_math::sigmoid(logits[experts]), &shared[at.clone()]);
                let want: Vec<bf16> = before[at.clone()]
                    .iter()
                    .zip(&sum)
                    .map(|(b, s)| bf16::from_f32(b.to_f32() + bf16::from_f32(*s).to_f32()))
                    .collect();
                assert_same_bits(&format!("row {row}, {problem:?}"), &out[at], &want);
            }
        }
    });
}

/// Logits, outputs and their sum by hand: of equals the smallest ids, in this order.
pub(crate) fn ties_by_hand<B: Place>(queue: &B::Queue) {
    calm(|| ties::<B>(queue).unwrap());
}

pub(crate) fn ties<B: Place>(queue: &B::Queue) -> Check {
    let (h, inner, experts, top_k) = (16, 8, 40, 2);
    let problem = MoeProblem {
        rows: 0,
        hidden: h,
        experts,
        top_k,
        intermediate: inner,
        shared_intermediate: inner,
        weights: DType::Bf16,
    };
    let b = bf16::from_f32;
    let zeros = |len: usize| vec![bf16::ZERO; len];
    let mut w = Experts {
        router: zeros(experts * h),
        gate_up: zeros(experts * 2 * inner * h),
        down: zeros(experts * h * inner),
        shared_gate_up: zeros(2 * inner * h),
        shared_down: zeros(h * inner),
        shared_gate: zeros(h),
    };
    // x[0] says 1 to all gates: silu(64) * 1 = 64, times (id + 1) / 64.
    for id in 0..experts {
        w.gate_up[id * 2 * inner * h] = b(64.0);
        w.gate_up[(id * 2 + 1) * inner * h] = b(1.0);
        for i in 0..h {
            w.down[(id * h + i) * inner] = b((id + 1) as f32 / 64.0);
        }
    }
    // x[i] chooses column i of the router.
    for (column, logits) in [
        (1, vec![(1, 3.0), (2, 3.0), (3, 2.0)]),
        (2, vec![(39, 5.0), (7, 5.0), (33, 5.0)]),
        (3, vec![(38, 90.0), (0, -1.0)]),
    ] {
        for (id, logit) in logits {
            w.router[id * h + column] = b(logit);
        }
    }
    let mut mix = Mix::<B>::new(queue, problem, w);
    let row = |column: usize| {
        let mut row = zeros(h);
        row[0] = bf16::ONE;
        row[column] = bf16::ONE;
        row
    };
    let x = [row(0), row(1), row(2), row(3)].concat();
    let (out, routes) = mix.run(&[b(100.0)].repeat(4 * h), &x, |op| op);
    // All alike; two of three that are alike, in one lane's stride and not; one far ahead, then the first of the rest.
    same("routes", &routes, &[0, 1, 1, 2, 7, 33, 38, 1])?;
    // Halves of what both say; of the last row all from one: e^-90 is nothing beside 1.
    for (row, want) in [1.5, 2.5, 21.0, 39.0].into_iter().enumerate() {
        let want = vec![b(100.0 + b(want).to_f32()); h];
        same(&format!("row {row}"), &out[row * h..(row + 1) * h], &want)?;
    }
    Ok(())
}

/// Rows of NaN and of infinities change no other; experts that nobody chose are not read.
pub(crate) fn others_do_not_matter<B: Place>(queue: &B::Queue) {
    calm(|| {
        for problem in problems::<B>() {
            let MoeProblem { hidden: h, experts, top_k, intermediate, .. } = problem;
            let mut mix = Mix::<B>::random(queue, problem);
            let (clean, before) = (rows_of(20, h, 7), rows_of(20, h, 8));
            let mut dirty = clean.clone();
            dirty[2 * h + 3] = bf16::NAN;
            dirty[11 * h..12 * h].fill(bf16::INFINITY);
            let (want, routes) = mix.run(&before, &clean, |op| op);
            let (got, ids) = mix.run(&before, &dirty, |op| op);
            for row in (0..20).filter(|row| ![2, 11].contains(row)) {
                let at = row * h..(row + 1) * h;
                assert_same_bits(&format!("row {row}, {problem:?}"), &got[at.clone()], &want[at]);
                assert_eq!(ids[row * top_k..][..top_k], routes[row * top_k..][..top_k], "{problem:?}");
            }
            // Nothing but NaN to choose from: different experts all the same, the smallest ids.
            let first: Vec<i32> = (0..top_k as i32).collect();
            assert_eq!(ids[2 * top_k..3 * top_k], first, "{problem:?}");
            assert!(got[2 * h..3 * h].iter().all(|y| y.is_nan()), "{problem:?}");

            let (want, routes) = mix.run(&before[..2 * h], &clean[..2 * h], |op| op);
            let mut poisoned = mix.weights.clone();
            let (up, down) = (2 * intermediate * h, h * intermediate);
            for expert in (0..experts).filter(|e| !routes.contains(&(*e as i32))) {
                poisoned.gate_up[expert * up..][..up].fill(bf16::NAN);
                poisoned.down[expert * down..][..down].fill(bf16::NAN);
            }
            let mut mix = Mix::<B>::new(queue, problem, poisoned);
            let (got, again) = mix.run(&before[..2 * h], &clean[..2 * h], |op| op);
            assert_same_bits(&format!("unread experts are poison, {problem:?}"), &got, &want);
            assert_eq!(routes, again);
        }
    });
}

/// Against f64: outputs within the bound of their steps, and routes that the logits' bounds allow.
pub(crate) fn is_within_its_bound<B: Place>(queue: &B::Queue) {
    calm(|| {
        for problem in problems::<B>().into_iter().filter(|p| p.hidden <= 600) {
            let MoeProblem { hidden: h, experts, top_k, .. } = problem;
            let mut mix = Mix::<B>::random(queue, problem);
            let mut rng = Rng::new(9);
            let (x, before): (Vec<bf16>, Vec<bf16>) = (rng.normals(3 * h, 1.0), rng.normals(3 * h, 1.0));
            let (got, routes) = mix.run(&before, &x, |op| op);
            for row in 0..3 {
                let (at, route) = (row * h..(row + 1) * h, &routes[row * top_k..][..top_k]);
                let logit = |e: usize| {
                    dot_in_steps(&exact(&x[at.clone()]), &exact(&mix.weights.router[e * h..][..h]))
                };
                let is_chosen = |e: usize| route.contains(&(e as i32));
                let least = route.iter().map(|e| logit(*e as usize)).map(|l| l.value + l.error);
                let least = least.fold(f64::INFINITY, f64::min);
                for l in (0..experts).filter(|e| !is_chosen(*e)).map(logit) {
                    // exp and the division are monotonic but for their rounding.
                    assert!(l.value - l.error <= least + 1e-6, "{problem:?}: a better one was left out");
                }
                let want =
                    moe_row(&problem, &before[at.clone()], &x[at.clone()], &mix.weights, route, dot_in_steps);
                assert_admitted(&format!("row {row}, {problem:?}"), &got[at.clone()], &want, 0.2);
            }
        }
    });
}

/// A launch of no rows is legal and does nothing.
pub(crate) fn no_rows_do_nothing<B: Place>(queue: &B::Queue) {
    calm(|| {
        let mut mix = Mix::<B>::random(queue, problems::<B>()[0]);
        let (out, routes) = mix.run(&[], &[], |op| op);
        assert!(out.is_empty() && routes.is_empty());
    });
}

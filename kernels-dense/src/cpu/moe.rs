//! The mixture of experts: rows are grouped by expert to read each expert once, and each row adds its
//! experts' outputs in the order of its own route.

use super::{dots::dots, linear::result, round, rounded, scratch, tree, wide::wide, widen};
use crate::{MoeArgs, MoeProblem};
use kernels_core::{
    Activation, Cpu, Tensor, fault,
    ref_math::{exp, sigmoid, silu},
};
use std::marker::PhantomData;

/// Partial sums of the softmax over the experts.
const LANES: usize = 32;

pub(super) fn moe<A: Activation, W: Activation>(problem: &MoeProblem, args: MoeArgs<'_, Cpu, A, W>) {
    let MoeProblem { rows, hidden, experts, top_k, .. } = *problem;
    let sizes = [rows * hidden, rows * hidden, rows * top_k * hidden, rows * hidden, rows];
    scratch::with(sizes, |[x, gathered, routed, shared, shared_gate]| {
        widen(&args.x, x);
        let routes = route(x, rows, top_k, &args.router);
        if let Some(mut to) = args.routes {
            for (i, choice) in routes.iter().enumerate() {
                to.set([i / top_k, i % top_k], choice.expert as i32);
            }
        }

        let mut members = Vec::with_capacity(rows);
        for expert in 0..experts {
            members.clear();
            members.extend((0..routes.len()).filter(|&i| routes[i].expert == expert));
            if members.is_empty() {
                continue;
            }
            for (to, &i) in gathered.chunks_exact_mut(hidden).zip(&members) {
                to.copy_from_slice(&x[i / top_k * hidden..][..hidden]);
            }
            let gathered = &gathered[..members.len() * hidden];
            let (gate_up, down) = (matrix(&args.gate_up, expert), matrix(&args.down, expert));
            feed_forward::<A, W>(gathered, members.len(), &gate_up, &down, |member, y| {
                routed[members[member] * hidden..][..hidden].copy_from_slice(y);
            });
        }
        feed_forward::<A, W>(x, rows, &args.shared_gate_up, &args.shared_down, |row, y| {
            shared[row * hidden..][..hidden].copy_from_slice(y);
        });
        dots(shared_gate, x, rows, &args.shared_gate);

        let mut out = args.out;
        for row in 0..rows {
            let choices = &routes[row * top_k..][..top_k];
            let routed = &routed[row * top_k * hidden..][..top_k * hidden];
            let shared = &shared[row * hidden..][..hidden];
            let gate = sigmoid(shared_gate[row]);
            let order = order_of_sum(choices, &routes);
            // The gathered rows are not needed any more: their space holds the sum.
            let sum = &mut gathered[..hidden];
            sum.fill(0.0);
            for rank in order {
                add_scaled(sum, choices[rank].weight, &routed[rank * hidden..][..hidden]);
            }
            add_scaled(sum, gate, shared);
            add_rounded(out.row_mut(&[row]), sum);
        }
    });
}

/// One expert of a row's route.
#[derive(Clone, Copy)]
struct Choice {
    expert: usize,
    weight: f32,
}

/// The routes of all rows, `[rows, top_k]`.
fn route<W: Activation>(x: &[f32], rows: usize, top_k: usize, router: &Tensor<'_, Cpu, W, 2>) -> Vec<Choice> {
    let experts = router.dims[0];
    let mut routes = Vec::with_capacity(rows * top_k);
    scratch::with([experts * rows, experts, experts], |[sums, line, p]| {
        dots(sums, x, rows, router);
        for row in 0..rows {
            softmax(p, result(sums, rows, row, line));
            let first = routes.len();
            for _ in 0..top_k {
                let expert = best(p);
                routes.push(Choice { expert, weight: p[expert] });
                p[expert] = TAKEN;
            }
            let chosen = &mut routes[first..];
            let total: f32 = chosen.iter().fold(0.0, |sum, choice| sum + choice.weight);
            for choice in chosen {
                choice.weight /= total;
            }
        }
    });
    routes
}

/// Below every probability, and below [`LOST`].
const TAKEN: f32 = -2.0;
/// What a NaN counts as: a row with NaN still goes to `top_k` different experts.
const LOST: f32 = -1.0;

/// The most probable expert that is not taken; the smallest id among equals.
fn best(p: &[f32]) -> usize {
    let mut best = (0, TAKEN);
    for (id, &p) in p.iter().enumerate() {
        let p = if p.is_nan() { LOST } else { p };
        let last_of_equals = fault::active("dense.moe_last_of_equals") && p == best.1;
        if p > best.1 || last_of_equals {
            best = (id, p);
        }
    }
    best.0
}

wide! {
    /// exp(l - max) / sum; the sum takes element i in lane i mod [`LANES`], ascending, then [`tree`].
    fn softmax[](p: &mut [f32], logits: &[f32]) {
        let max = logits.iter().fold(f32::NEG_INFINITY, |max, &l| if l > max { l } else { max });
        for (p, l) in p.iter_mut().zip(logits) {
            *p = exp(l - max);
        }
        let mut lanes = [0.0f32; LANES];
        for p in p.chunks(LANES) {
            for (lane, p) in lanes.iter_mut().zip(p) {
                *lane += p;
            }
        }
        let total = tree(lanes);
        for p in p.iter_mut() {
            *p /= total;
        }
    }

    fn add_scaled[](sum: &mut [f32], weight: f32, y: &[f32]) {
        for (sum, y) in sum.iter_mut().zip(y) {
            *sum = weight.mul_add(*y, *sum);
        }
    }

    fn add_rounded[A: Activation](out: &mut [A], sum: &[f32]) {
        for (out, sum) in out.iter_mut().zip(sum) {
            *out = round(out.to_f32() + rounded::<A>(*sum));
        }
    }

    /// The values of `out = A(silu(A(gate)) * A(up))`, in fp32 for the next layer.
    fn activate[A: Activation](act: &mut [f32], gate: &[f32], up: &[f32], to: PhantomData<A>) {
        let _ = to;
        for ((act, gate), up) in act.iter_mut().zip(gate).zip(up) {
            *act = rounded::<A>(silu(rounded::<A>(*gate)) * rounded::<A>(*up));
        }
    }
}

/// The ranks of a row in the order in which their outputs are added.
fn order_of_sum(choices: &[Choice], routes: &[Choice]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..choices.len()).collect();
    if fault::active("dense.moe_arrival_order") {
        // What a scheduler that starts with the largest group would do.
        let load = |rank: &usize| routes.iter().filter(|r| r.expert == choices[*rank].expert).count();
        order.sort_by_key(|rank| (std::cmp::Reverse(load(rank)), choices[*rank].expert));
    }
    order
}

/// `A(down A(silu(A(gate x)) * A(up x)))` for every row of `x`; `each` gets a row and its values.
fn feed_forward<A: Activation, W: Activation>(
    x: &[f32],
    rows: usize,
    gate_up: &Tensor<'_, Cpu, W, 2>,
    down: &Tensor<'_, Cpu, W, 2>,
    mut each: impl FnMut(usize, &[f32]),
) {
    let [hidden, inner] = down.dims;
    let sizes = [2 * inner * rows, inner * rows, hidden * rows, hidden.max(2 * inner), hidden];
    scratch::with(sizes, |[sums, act, outputs, line, y]| {
        dots(sums, x, rows, gate_up);
        for row in 0..rows {
            let (gate, up) = result(sums, rows, row, &mut line[..2 * inner]).split_at(inner);
            activate(&mut act[row * inner..][..inner], gate, up, PhantomData::<A>);
        }
        dots(outputs, act, rows, down);
        for row in 0..rows {
            let sums = result(outputs, rows, row, &mut line[..hidden]);
            for (y, sum) in y.iter_mut().zip(sums) {
                *y = rounded::<A>(*sum);
            }
            each(row, y);
        }
    });
}

/// One matrix of a stack.
fn matrix<'a, W: Activation>(stack: &Tensor<'a, Cpu, W, 3>, index: usize) -> Tensor<'a, Cpu, W, 2> {
    let [_, rows, columns] = stack.dims;
    let [outer, row, column] = stack.strides;
    Tensor { data: &stack.data[index * outer..], dims: [rows, columns], strides: [row, column] }
}

//! Bad input is refused in words that name the argument and its value; nothing panics.

use kernels_core::{Cpu, DType, DeviceInfo, Error, Tensor, TensorMut, bf16};
use kernels_dense::*;

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>, want: &str) {
    assert_eq!(result.unwrap_err().to_string(), want);
}

const MAX: usize = (i32::MAX / 2) as usize;

pub(crate) fn plans_refuse_sizes_by_name_and_value() {
    let cpu = DeviceInfo::cpu();
    let linear = LinearProblem { rows: 1, k: 4, n: 4, epilogue: Epilogue::Store };
    let range = format!("it must be in 1..={MAX}");
    refused(Linear::plan(LinearProblem { k: 0, ..linear }, &cpu), &format!("dense::linear: k is 0; {range}"));
    refused(
        Linear::plan(LinearProblem { n: usize::MAX, ..linear }, &cpu),
        &format!("dense::linear: n is {}; {range}", usize::MAX),
    );
    refused(
        Linear::plan(LinearProblem { rows: MAX + 1, ..linear }, &cpu),
        &format!("dense::linear: rows is {}; at most {MAX} fit", MAX + 1),
    );
    let head = HeadProblem { rows: 1, k: 4, vocab: 10, valid: 11, listed: None };
    let want = "dense::head: valid is 11; it must be in 1..=10, the vocabulary";
    refused(Head::plan(head, &cpu), want);
    let want = "dense::head: valid is 0; it must be in 1..=10, the vocabulary";
    refused(Head::plan(HeadProblem { valid: 0, ..head }, &cpu), want);
    let want = "dense::head: listed is 0; it must be at least 1, or none for all ids";
    refused(Head::plan(HeadProblem { valid: 9, listed: Some(0), ..head }, &cpu), want);
    for eps in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let want = |op: &str| format!("dense::{op}: eps is {eps}; it must be finite and above zero");
        let norm = NormProblem { rows: 1, n: 4, eps };
        refused(Norm::plan(norm, &cpu), &want("norm"));
        refused(AddNorm::plan(norm, &cpu), &want("add_norm"));
        refused(ConcatNorm::plan(norm, &cpu), &want("concat_norm"));
        let gated = GatedNormProblem { rows: 1, heads: 1, head_dim: 4, eps };
        refused(GatedNorm::plan(gated, &cpu), &want("gated_norm"));
    }
    let gated = GatedNormProblem { rows: 1, heads: 0, head_dim: 4, eps: 1e-6 };
    refused(GatedNorm::plan(gated, &cpu), &format!("dense::gated_norm: heads is 0; {range}"));
    refused(
        Embed::plan(EmbedProblem { rows: 1, n: 4, vocab: 0 }, &cpu),
        &format!("dense::embed: vocab is 0; {range}"),
    );
    refused(
        SiluMul::plan(SiluMulProblem { rows: 1, n: 0 }, &cpu),
        &format!("dense::silu_mul: n is 0; {range}"),
    );
    let moe = MoeProblem {
        rows: 1,
        hidden: 4,
        experts: 4,
        top_k: 5,
        intermediate: 4,
        shared_intermediate: 4,
        weights: DType::Bf16,
    };
    let want = "dense::moe: top_k is 5; it must be in 1..=4, the number of experts";
    refused(Moe::plan(moe, &cpu), want);
    let want = "dense::moe: top_k is 0; it must be in 1..=4, the number of experts";
    refused(Moe::plan(MoeProblem { top_k: 0, ..moe }, &cpu), want);
    refused(
        Moe::plan(MoeProblem { top_k: 1, shared_intermediate: 0, ..moe }, &cpu),
        &format!("dense::moe: shared_intermediate is 0; {range}"),
    );
}

pub(crate) fn plans_for_a_device_want_whole_vectors() {
    for device in [DeviceInfo::h200(), DeviceInfo::a100()] {
        let want = "dense::silu_mul: a width of 12 on CUDA (multiples of 8 are) is not supported";
        refused(SiluMul::plan(SiluMulProblem { rows: 1, n: 12 }, &device), want);
    }
}

pub(crate) fn operations_give_their_problem_back() {
    let problem = LinearProblem { rows: 1, k: 4, n: 4, epilogue: Epilogue::AddTo };
    assert_eq!(*Linear::plan(problem, &DeviceInfo::cpu()).unwrap().problem(), problem);
    assert_eq!(problem.weight_rows(), 4);
    assert_eq!(LinearProblem { epilogue: Epilogue::SiluMul, ..problem }.weight_rows(), 8);
}

pub(crate) fn operands_are_checked_by_name() {
    let op =
        Linear::plan(LinearProblem { rows: 2, k: 3, n: 4, epilogue: Epilogue::SiluMul }, &DeviceInfo::cpu())
            .unwrap();
    let (x, weight) = (vec![bf16::ONE; 6], vec![bf16::ONE; 24]);
    // Dimensions and strides of `x`, dimensions of `weight`, strides of `out`.
    let run = |x_dims, x_strides, weight_dims, out_strides| {
        let mut out = vec![bf16::ZERO; 8];
        let args = LinearArgs::<Cpu> {
            out: TensorMut::of(&mut out, [2, 4]).with_strides(out_strides),
            x: Tensor::of(&x, x_dims).with_strides(x_strides),
            weight: Tensor::of(&weight, weight_dims),
            gate: None,
            workspace: None,
        };
        op.run(&(), args)
    };
    let gates = vec![0.0f32; 3];
    let gated = |gate: Option<usize>| {
        let mut out = vec![bf16::ZERO; 8];
        let problem = LinearProblem { rows: 2, k: 3, n: 4, epilogue: Epilogue::SigmoidGate };
        let args = LinearArgs::<Cpu> {
            out: TensorMut::of(&mut out, [2, 4]),
            x: Tensor::of(&x, [2, 3]),
            weight: Tensor::of(&weight, [4, 3]),
            gate: gate.map(|rows| Tensor::of(&gates, [rows])),
            workspace: None,
        };
        Linear::plan(problem, &DeviceInfo::cpu()).unwrap().run(&(), args)
    };
    refused(gated(None), "dense::linear: gate is none; this epilogue needs one");
    refused(gated(Some(3)), "dense::linear: `gate` has shape [3], expected [2]");
    gated(Some(2)).unwrap();
    let want = "dense::linear: `x` has shape [3, 2], expected [2, 3]";
    refused(run([3, 2], [2, 1], [8, 3], [4, 1]), want);
    let want = "dense::linear: `weight` has shape [4, 3], expected [8, 3]";
    refused(run([2, 3], [3, 1], [4, 3], [4, 1]), want);
    let want = "dense::linear: `x` needs 7 elements, its buffer holds 6";
    refused(run([2, 3], [4, 1], [8, 3], [4, 1]), want);
    let want =
        "dense::linear: `out` has strides [3, 1]; an outer stride must span the inner axes, or rows overlap";
    refused(run([2, 3], [3, 1], [8, 3], [3, 1]), want);
    let want = "dense::linear: `x` has strides [1, 2]; the last axis must be contiguous";
    refused(run([2, 3], [1, 2], [8, 3], [4, 1]), want);
    run([2, 3], [3, 1], [8, 3], [4, 1]).unwrap();

    let mut best = vec![0; 2];
    let ids = [5; 8];
    let mut run = |listed, outputs: bool, ids: Option<&[i32]>| {
        let problem = HeadProblem { rows: 2, k: 3, vocab: 8, valid: 8, listed };
        let args = HeadArgs::<Cpu> {
            logits: None,
            argmax: outputs.then_some(TensorMut::of(&mut best, [2])),
            x: Tensor::of(&x, [2, 3]),
            weight: Tensor::new(&weight[..3 * problem.weight_rows()], [problem.weight_rows(), 3]),
            ids: ids.map(|ids| Tensor::new(ids, [ids.len()])),
            workspace: None,
        };
        Head::plan(problem, &DeviceInfo::cpu()).unwrap().run(&(), args)
    };
    let want = "dense::head: the number of outputs is 0; one of `logits` and `argmax` must be given";
    refused(run(None, false, None), want);
    let want = "dense::head: ids is none; the weight has 5 rows, and somebody must say which ids they are";
    refused(run(Some(5), true, None), want);
    let want = "dense::head: ids is [8]; they go with `listed` in the problem, which says how many there are";
    refused(run(None, true, Some(&ids)), want);
    refused(run(Some(5), true, Some(&ids)), "dense::head: `ids` has shape [8], expected [5]");
    run(Some(5), true, Some(&ids[..5])).unwrap();
}

pub(crate) fn every_operand_of_the_mixture_is_checked() {
    let problem = MoeProblem {
        rows: 2,
        hidden: 3,
        experts: 4,
        top_k: 2,
        intermediate: 5,
        shared_intermediate: 6,
        weights: DType::Bf16,
    };
    let op = Moe::plan(problem, &DeviceInfo::cpu()).unwrap();
    let data = vec![bf16::ONE; 4 * 10 * 3];
    fn two(data: &Vec<bf16>, dims: [usize; 2]) -> Tensor<'_, Cpu, bf16, 2> {
        Tensor::of(data, dims)
    }
    for (wrong, want) in [
        ("out", "dense::moe: `out` has shape [1, 3], expected [2, 3]"),
        ("routes", "dense::moe: `routes` has shape [1, 2], expected [2, 2]"),
        ("x", "dense::moe: `x` has shape [1, 3], expected [2, 3]"),
        ("router", "dense::moe: `router` has shape [1, 3], expected [4, 3]"),
        ("gate_up", "dense::moe: `gate_up` has shape [1, 10, 3], expected [4, 10, 3]"),
        ("down", "dense::moe: `down` has shape [1, 3, 5], expected [4, 3, 5]"),
        ("shared_gate_up", "dense::moe: `shared_gate_up` has shape [1, 3], expected [12, 3]"),
        ("shared_down", "dense::moe: `shared_down` has shape [1, 6], expected [3, 6]"),
        ("shared_gate", "dense::moe: `shared_gate` has shape [2, 3], expected [1, 3]"),
    ] {
        let (mut out, mut routes) = (vec![bf16::ZERO; 6], vec![0; 4]);
        let first = |name: &str, right: usize| if name == wrong { 1 } else { right };
        let args = MoeArgs::<Cpu> {
            out: TensorMut::of(&mut out, [first("out", 2), 3]),
            routes: Some(TensorMut::of(&mut routes, [first("routes", 2), 2])),
            x: two(&data, [first("x", 2), 3]),
            router: two(&data, [first("router", 4), 3]),
            gate_up: Tensor::of(&data, [first("gate_up", 4), 10, 3]),
            down: Tensor::of(&data, [first("down", 4), 3, 5]),
            shared_gate_up: two(&data, [first("shared_gate_up", 12), 3]),
            shared_down: two(&data, [first("shared_down", 3), 6]),
            shared_gate: two(&data, [if wrong == "shared_gate" { 2 } else { 1 }, 3]),
            workspace: None,
        };
        refused(op.run(&(), args), want);
    }
}

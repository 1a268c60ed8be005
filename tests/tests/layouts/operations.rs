//! Every operation, run on the operands of the page.

use crate::{
    operands::{Operands, check},
    page::{Table, tables},
};
use kernels_core::{Cpu, DType, DeviceInfo, Result, bf16};
use std::collections::{BTreeMap, BTreeSet};

/// Sizes that are all different, so that one axis cannot pass for another.
const SIZES: [(&str, usize); 27] = [
    ("sequences", 3),
    ("rows", 23),
    ("max_rows", 4),
    ("slots", 5),
    ("positions", 32),
    ("channels", 9),
    ("width", 2),
    ("ring_rows", 11),
    ("k_heads", 2),
    ("v_heads", 4),
    ("k_dim", 6),
    ("v_dim", 10),
    ("journal_rows", 13),
    // 2 key heads of 6, 4 value heads of 10, two gates of 4.
    ("journal_width", 60),
    ("q_heads", 4),
    ("kv_heads", 2),
    ("head_dim", 8),
    ("rotary", 6),
    ("max_pages", 3),
    ("pages", 5),
    ("page_rows", 16),
    ("vocab", 33),
    ("max_bias", 12),
    ("max_eos", 14),
    ("max_stops", 15),
    ("max_stop_length", 17),
    ("forward_rows", 18),
];

struct Checks {
    page: BTreeMap<String, Table>,
    done: BTreeSet<String>,
}

impl Checks {
    fn op(&mut self, name: &str, sizes: &[(&str, usize)], run: impl Fn(&Operands<'_>) -> Result<()>) {
        let sizes = [sizes, &SIZES].concat();
        check(&self.page, name, &sizes, &run);
        self.done.insert(name.to_owned());
    }
}

#[test]
fn operations_take_what_the_page_says_and_nothing_else() {
    let mut checks = Checks { page: tables(), done: BTreeSet::new() };
    conv(&mut checks);
    gdn(&mut checks);
    attn(&mut checks);
    spec_inputs(&mut checks);
    spec_choices(&mut checks);
    spec_settling(&mut checks);
    spec_hidden(&mut checks);
    dense(&mut checks);
    let operations = checks.page.keys().filter(|name| name.ends_with("Args"));
    assert_eq!(checks.done.iter().collect::<Vec<_>>(), operations.collect::<Vec<_>>());
}

fn conv(checks: &mut Checks) {
    use kernels_conv::{Args, Prefill, Problem, Verify};
    let problem = Problem {
        sequences: 3,
        rows: 23,
        max_rows: 4,
        channels: 9,
        width: 2,
        slots: 5,
        ring_rows: 11,
        bias: true,
        silu: true,
    };
    let args = |o: &Operands<'_>| Args {
        out: o.write("out"),
        ring: o.write("ring"),
        faults: o.faults(),
        x: o.read("x"),
        weight: o.read("weight"),
        bias: Some(o.read("bias")),
        rows: o.rows("rows"),
    };
    let name = "kernels_conv::Args";
    let device = DeviceInfo::cpu();
    checks.op(name, &[], |o| Verify::plan(problem, &device)?.run::<Cpu, bf16>(&(), args(o)));
    checks.op(name, &[], |o| Prefill::plan(problem, &device)?.run::<Cpu, bf16>(&(), args(o)));
}

fn gdn(checks: &mut Checks) {
    use kernels_gdn::{Args, Fold, FoldArgs, Prefill, Problem, Verify};
    let problem = Problem {
        sequences: 3,
        rows: 23,
        max_rows: 4,
        k_heads: 2,
        v_heads: 4,
        k_dim: 6,
        v_dim: 10,
        slots: 5,
        journal_rows: 13,
        flush_after: 2,
    };
    let args = |o: &Operands<'_>| Args {
        out: o.write("out"),
        state: o.write("state"),
        journal: o.write("journal"),
        faults: o.faults(),
        folded: o.read("folded"),
        q: o.read("q"),
        k: o.read("k"),
        v: o.read("v"),
        a: o.read("a"),
        b: o.read("b"),
        a_log: o.read("a_log"),
        dt_bias: o.read("dt_bias"),
        rows: o.rows("rows"),
    };
    let fold = |o: &Operands<'_>| FoldArgs {
        state: o.write("state"),
        journal: o.write("journal"),
        faults: o.faults(),
        folded: o.read("folded"),
        a_log: o.read("a_log"),
        dt_bias: o.read("dt_bias"),
        slots: o.read("slots"),
        committed: o.read("committed"),
    };
    let device = DeviceInfo::cpu();
    let name = "kernels_gdn::Args";
    checks.op(name, &[], |o| Verify::plan(problem, &device)?.run::<Cpu, bf16>(&(), args(o)));
    checks.op(name, &[], |o| Prefill::plan(problem, &device)?.run::<Cpu, bf16>(&(), args(o)));
    let name = "kernels_gdn::FoldArgs";
    checks.op(name, &[], |o| Fold::plan(problem, &device)?.run::<Cpu, bf16>(&(), fold(o)));
}

fn attn(checks: &mut Checks) {
    use kernels_attn::{Append, AppendArgs, AppendProblem, Args, Prefill, Problem, Verify, Work, WorkArgs};
    let append = AppendProblem {
        sequences: 3,
        rows: 23,
        q_heads: 4,
        kv_heads: 2,
        head_dim: 8,
        rotary: 6,
        eps: 1e-6,
        slots: 5,
        max_pages: 3,
        page_rows: 16,
        positions: 32,
    };
    let problem = Problem {
        sequences: 3,
        rows: 23,
        max_rows: 4,
        q_heads: 4,
        kv_heads: 2,
        head_dim: 8,
        slots: 5,
        max_pages: 3,
        pages: 5,
        page_rows: 16,
        first_key: 0,
        window: None,
    };
    let append_args = |o: &Operands<'_>| AppendArgs {
        q_out: o.write("q_out"),
        pool: o.pool_mut(),
        faults: o.faults(),
        q: o.read("q"),
        k: o.read("k"),
        v: o.read("v"),
        q_norm: o.read("q_norm"),
        k_norm: o.read("k_norm"),
        rope: o.read("rope"),
        page_table: o.read("page_table"),
        rows: o.rows("rows"),
    };
    let args = |o: &Operands<'_>| Args {
        out: o.write("out"),
        faults: o.faults(),
        q: o.read("q"),
        gate: Some(o.read("gate")),
        pool: o.pool(),
        page_table: o.read("page_table"),
        rows: o.rows("rows"),
        work: Some(o.read("work")),
        workspace: Some(o.write("workspace")),
    };
    let work = |o: &Operands<'_>| WorkArgs {
        work: o.write("work"),
        faults: o.faults(),
        page_table: o.read("page_table"),
        rows: o.rows("rows"),
    };
    let device = DeviceInfo::cpu();
    let name = "kernels_attn::AppendArgs";
    checks.op(name, &[], |o| Append::plan(append, &device)?.run::<Cpu, bf16>(&(), append_args(o)));
    let name = "kernels_attn::Args";
    // A header, sequences, an item for each of two heads of three sequences and of nobody.
    let sizes = [("work", 8 + 4 * 3 + 12 * 4 * 2), ("workspace", 0)];
    checks.op(name, &sizes, |o| Verify::plan(problem, &device)?.run::<Cpu, bf16>(&(), args(o)));
    checks.op(name, &sizes, |o| Prefill::plan(problem, &device)?.run::<Cpu, bf16>(&(), args(o)));
    checks.op("kernels_attn::WorkArgs", &sizes, |o| Work::plan(problem, &device)?.run::<Cpu>(&(), work(o)));
}

const BASE: kernels_spec::Problem =
    kernels_spec::Problem { sequences: 3, rows: 23, max_rows: 4, slots: 5, positions: 32 };

fn spec_inputs(checks: &mut Checks) {
    use kernels_spec::*;
    let device = DeviceInfo::cpu();
    checks.op("kernels_spec::TargetInputsArgs", &[], |o| {
        let (rows, ids, slots) = (o.rows_mut("rows"), o.write("ids"), o.slots());
        let (sequences, drafts) = (o.read("sequences"), o.read("drafts"));
        let args = TargetInputsArgs { rows, ids, slots, sequences, drafts };
        TargetInputs::plan(BASE, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::PrefillInputsArgs", &[], |o| {
        let (rows, ids, slots) = (o.rows_mut("rows"), o.write("ids"), o.slots());
        let (sequences, lengths) = (o.read("sequences"), o.read("lengths"));
        let args = PrefillInputsArgs { rows, ids, slots, sequences, lengths };
        PrefillInputs::plan(BASE, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::LastRowsArgs", &[], |o| {
        let args = LastRowsArgs { last: o.rows_mut("last"), slots: o.slots(), rows: o.rows("rows") };
        LastRows::plan(BASE, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::DraftInputsArgs", &[], |o| {
        let (rows, ids, slots) = (o.rows_mut("rows"), o.write("ids"), o.slots());
        let (sequences, forward) = (o.read("sequences"), o.rows("forward"));
        let args = DraftInputsArgs { rows, ids, slots, sequences, forward };
        DraftInputs::plan(DraftProblem { base: BASE, ring_rows: 11 }, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::ChainInputsArgs", &[], |o| {
        let (rows, ids, slots) = (o.rows_mut("rows"), o.write("ids"), o.slots());
        let args = ChainInputsArgs { rows, ids, slots, sequences: o.read("sequences") };
        ChainInputs::plan(Problem { rows: 3, ..BASE }, &device)?.run::<Cpu>(&(), args)
    });
}

fn spec_choices(checks: &mut Checks) {
    use kernels_spec::*;
    let device = DeviceInfo::cpu();
    let base =
        SampleProblem { sequences: 3, rows: 23, vocab: 33, valid: 30, slots: 5, positions: 32, max_bias: 12 };
    let rejection = RejectionProblem { base, ring_rows: 11 };
    checks.op("kernels_spec::SampleArgs", &[("workspace", 0)], |o| {
        let (choice, faults, logits) = (o.write("choice"), o.faults(), o.read("logits"));
        let (rows, tokens, prompt) = (o.rows("rows"), o.read("tokens"), o.read("prompt"));
        let (sampling, workspace) = (o.sampling(), Some(o.write("workspace")));
        let args = SampleArgs { choice, faults, logits, rows, tokens, prompt, sampling, workspace };
        Sample::plan(base, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::DrawDraftArgs", &[("workspace", 0)], |o| {
        let (choice, probabilities, faults) = (o.write("choice"), o.write("probabilities"), o.faults());
        let (logits, rows, tokens) = (o.read("logits"), o.rows("rows"), o.read("tokens"));
        let (prompt, sampling, workspace) = (o.read("prompt"), o.sampling(), Some(o.write("workspace")));
        let args = DrawDraftArgs {
            choice,
            probabilities,
            faults,
            logits,
            rows,
            tokens,
            prompt,
            sampling,
            workspace,
        };
        DrawDraft::plan(rejection, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::RejectionArgs", &[("workspace", 0)], |o| {
        let (accepted, slots, logits) = (o.write("accepted"), o.slots(), o.read("logits"));
        let (probabilities, rows, sampling) = (o.read("probabilities"), o.rows("rows"), o.sampling());
        let workspace = Some(o.write("workspace"));
        let args = RejectionArgs { accepted, slots, logits, probabilities, rows, sampling, workspace };
        Rejection::plan(rejection, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::ArgmaxArgs", &[("workspace", 0)], |o| {
        let workspace = Some(o.write("workspace"));
        let args = ArgmaxArgs { choice: o.write("choice"), logits: o.read("logits"), workspace };
        Argmax::plan(ArgmaxProblem { rows: 23, vocab: 33, valid: 30 }, &device)?.run::<Cpu>(&(), args)
    });
}

fn spec_settling(checks: &mut Checks) {
    use kernels_spec::*;
    let device = DeviceInfo::cpu();
    checks.op("kernels_spec::AcceptArgs", &[], |o| {
        let (accepted, slots) = (o.write("accepted"), o.slots());
        let args = AcceptArgs { accepted, slots, choice: o.read("choice"), rows: o.rows("rows") };
        Accept::plan(BASE, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::StopArgs", &[], |o| {
        let (accepted, slots) = (o.write("accepted"), o.slots());
        let args = StopArgs { accepted, slots, stops: o.stops(), rows: o.rows("rows") };
        let problem = StopProblem { base: BASE, max_eos: 14, max_stops: 15, max_stop_length: 17 };
        Stop::plan(problem, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::AdvanceArgs", &[], |o| {
        let (accepted, slots) = (o.write("accepted"), o.slots());
        let args = AdvanceArgs { accepted, slots, counters: Some(o.counters()), rows: o.rows("rows") };
        let problem = AdvanceProblem { base: BASE, flush_after: 2, pass: Pass::Decode };
        Advance::plan(problem, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::EmitArgs", &[], |o| {
        let (emitted, accepted) = (o.write("emitted"), o.read("accepted"));
        let args = EmitArgs { emitted, accepted, slots: o.slots(), rows: o.rows("rows") };
        Emit::plan(BASE, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::SettleArgs", &[], |o| {
        let (accepted, emitted, slots) = (o.write("accepted"), o.write("emitted"), o.slots());
        let (choice, stops, counters) = (o.read("choice"), o.stops(), Some(o.counters()));
        let args = SettleArgs { accepted, emitted, slots, choice, stops, counters, rows: o.rows("rows") };
        let stop = StopProblem { base: BASE, max_eos: 14, max_stops: 15, max_stop_length: 17 };
        Settle::plan(SettleProblem { stop, flush_after: 2 }, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::ProposeArgs", &[], |o| {
        let args = ProposeArgs { slots: o.slots(), choice: Some(o.read("choice")), rows: o.rows("rows") };
        Propose::plan(BASE, &device)?.run::<Cpu>(&(), args)
    });
    checks.op("kernels_spec::OracleArgs", &[("pattern", 7)], |o| {
        let (slots, rounds, truth, rate) = (o.slots(), o.write("rounds"), o.read("truth"), o.read("rate"));
        let (pattern, sequences, drafts) = (Some(o.read("pattern")), o.read("sequences"), o.read("drafts"));
        let args = OracleArgs { slots, rounds, truth, rate, pattern, sequences, drafts };
        let problem = OracleProblem {
            sequences: 3,
            max_drafts: 3,
            slots: 5,
            positions: 32,
            valid: 33,
            pattern: Some(7),
            seed: 1,
        };
        Oracle::plan(problem, &device)?.run::<Cpu>(&(), args)
    });
}

fn spec_hidden(checks: &mut Checks) {
    use kernels_spec::*;
    let device = DeviceInfo::cpu();
    let problem =
        HiddenProblem { sequences: 3, rows: 23, forward_rows: 18, width: 2, slots: 5, ring_rows: 11 };
    checks.op("kernels_spec::CarryArgs", &[], |o| {
        let (out, faults, hidden) = (o.write("out"), o.faults(), o.read("hidden"));
        let (ring, forward, rows) = (o.read("ring"), o.rows("forward"), o.rows("rows"));
        let args = CarryArgs { out, faults, hidden, ring, forward, rows };
        Carry::plan(problem, &device)?.run::<Cpu, bf16>(&(), args)
    });
    checks.op("kernels_spec::KeepHiddenArgs", &[], |o| {
        let (ring, faults, committed) = (o.write("ring"), o.faults(), o.read("committed"));
        let args = KeepHiddenArgs { ring, faults, committed, hidden: o.read("hidden"), rows: o.rows("rows") };
        KeepHidden::plan(problem, &device)?.run::<Cpu, bf16>(&(), args)
    });
    checks.op("kernels_spec::TakeLastArgs", &[], |o| {
        let (out, faults) = (o.write("out"), o.faults());
        let args = TakeLastArgs { out, faults, hidden: o.read("hidden"), rows: o.rows("rows") };
        TakeLast::plan(problem, &device)?.run::<Cpu, bf16>(&(), args)
    });
}

fn dense(checks: &mut Checks) {
    use kernels_dense::*;
    let device = DeviceInfo::cpu();
    let sizes = [("k", 6), ("n", 9), ("workspace", 0)];
    for epilogue in [Epilogue::Store, Epilogue::AddTo, Epilogue::SiluMul, Epilogue::SigmoidGate] {
        let problem = LinearProblem { rows: 23, k: 6, n: 9, epilogue };
        let sizes = [&sizes[..], &[("weight_rows", problem.weight_rows())]].concat();
        checks.op("kernels_dense::LinearArgs", &sizes, |o| {
            let (x, weight, workspace) = (o.read("x"), o.read("weight"), Some(o.write("workspace")));
            let gate = Some(o.read("gate"));
            let args = LinearArgs { out: o.write("out"), x, weight, gate, workspace };
            Linear::plan(problem, &device)?.run::<Cpu, bf16, f32>(&(), args)
        });
    }
    let problem = HeadProblem { rows: 23, k: 6, vocab: 33, valid: 30, listed: Some(14) };
    checks.op("kernels_dense::HeadArgs", &[&sizes[..], &[("weight_rows", 14)]].concat(), |o| {
        let (logits, argmax) = (Some(o.write("logits")), Some(o.write("argmax")));
        let (x, weight, workspace) = (o.read("x"), o.read("weight"), Some(o.write("workspace")));
        let args = HeadArgs { logits, argmax, x, weight, ids: Some(o.read("ids")), workspace };
        Head::plan(problem, &device)?.run::<Cpu, bf16, f32>(&(), args)
    });
    checks.op("kernels_dense::Fp8HeadArgs", &[("k", 6), ("weight_rows", 14)], |o| {
        let (logits, x, ids) = (o.write("logits"), o.read("x"), Some(o.read("ids")));
        let args = Fp8HeadArgs { logits, x, weight: o.read("weight"), scales: o.read("scales"), ids };
        Fp8Head::plan(problem, &device)?.run::<Cpu, bf16>(&(), args)
    });
    checks.op("kernels_dense::QuantizeArgs", &[("k", 6), ("table_rows", 19)], |o| {
        let (weight, scales) = (o.write("weight"), o.write("scales"));
        let args = QuantizeArgs { weight, scales, table: o.read("table"), ids: Some(o.read("ids")) };
        let problem = QuantizeProblem { rows: 23, k: 6, chosen_from: Some(19) };
        Quantize::plan(problem, &device)?.run::<Cpu, bf16>(&(), args)
    });
    let norm = NormProblem { rows: 23, n: 9, eps: 1e-6 };
    checks.op("kernels_dense::NormArgs", &sizes, |o| {
        let args = NormArgs { out: o.write("out"), x: o.read("x"), weight: o.read("weight") };
        Norm::plan(norm, &device)?.run::<Cpu, bf16>(&(), args)
    });
    checks.op("kernels_dense::AddNormArgs", &sizes, |o| {
        let (residual, out) = (o.write("residual"), o.write("out"));
        let args = AddNormArgs { residual, out, x: o.read("x"), weight: o.read("weight") };
        AddNorm::plan(norm, &device)?.run::<Cpu, bf16>(&(), args)
    });
    checks.op("kernels_dense::ConcatNormArgs", &sizes, |o| {
        let (left, left_weight) = (o.read("left"), o.read("left_weight"));
        let (right, right_weight) = (o.read("right"), o.read("right_weight"));
        let args = ConcatNormArgs { out: o.write("out"), left, left_weight, right, right_weight };
        ConcatNorm::plan(norm, &device)?.run::<Cpu, bf16>(&(), args)
    });
    checks.op("kernels_dense::GatedNormArgs", &[("heads", 3)], |o| {
        let (out, x) = (o.write("out"), o.read("x"));
        let args = GatedNormArgs { out, x, gate: o.read("gate"), weight: o.read("weight") };
        let problem = GatedNormProblem { rows: 23, heads: 3, head_dim: 8, eps: 1e-6 };
        GatedNorm::plan(problem, &device)?.run::<Cpu, bf16>(&(), args)
    });
    checks.op("kernels_dense::SiluMulArgs", &sizes, |o| {
        let args = SiluMulArgs { out: o.write("out"), gate: o.read("gate"), up: o.read("up") };
        SiluMul::plan(SiluMulProblem { rows: 23, n: 9 }, &device)?.run::<Cpu, bf16>(&(), args)
    });
    checks.op("kernels_dense::RandomFillArgs", &[("len", 13)], |o| {
        let problem = RandomFillProblem { len: 13, first: 0, seed: 1, stream: 2, mean: 0.0, std: 1.0 };
        RandomFill::plan(problem, &device)?.run::<Cpu, bf16>(&(), RandomFillArgs { out: o.write("out") })
    });
    checks.op("kernels_dense::EmbedArgs", &sizes, |o| {
        let args = EmbedArgs { out: o.write("out"), ids: o.read("ids"), table: o.read("table") };
        Embed::plan(EmbedProblem { rows: 23, n: 9, vocab: 33 }, &device)?.run::<Cpu, bf16, f32>(&(), args)
    });
    let sizes = [
        ("hidden", 8),
        ("experts", 6),
        ("top_k", 2),
        ("intermediate", 5),
        ("shared_intermediate", 4),
        ("workspace", 0),
    ];
    checks.op("kernels_dense::MoeArgs", &sizes, |o| {
        let args = MoeArgs {
            out: o.write("out"),
            routes: Some(o.write("routes")),
            x: o.read("x"),
            router: o.read("router"),
            gate_up: o.read("gate_up"),
            down: o.read("down"),
            shared_gate_up: o.read("shared_gate_up"),
            shared_down: o.read("shared_down"),
            shared_gate: o.read("shared_gate"),
            workspace: Some(o.write("workspace")),
        };
        let problem = MoeProblem {
            rows: 23,
            hidden: 8,
            experts: 6,
            top_k: 2,
            intermediate: 5,
            shared_intermediate: 4,
            weights: DType::F32,
        };
        Moe::plan(problem, &device)?.run::<Cpu, bf16, f32>(&(), args)
    });
}

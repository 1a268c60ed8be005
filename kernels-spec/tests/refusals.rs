//! Bad sizes, shapes and numbers are refused by name and value, before anything runs.

use crate::sim::{Sim, cpu, rows};
use kernels_core::{Cpu, DeviceInfo, Tensor, TensorMut};
use kernels_spec::*;

fn text<T>(result: kernels_core::Result<T>) -> String {
    result.err().map_or("accepted".into(), |e| e.to_string())
}

const BASE: Problem = Problem { sequences: 2, rows: 8, max_rows: 4, slots: 3, positions: 16 };

#[test]
fn plans_refuse_sizes_that_make_no_sense() {
    let device = cpu();
    for (change, want) in [
        (Problem { sequences: 0, ..BASE }, "spec::accept: sequences is 0; must be at least 1"),
        (Problem { rows: 0, ..BASE }, "spec::accept: rows is 0; must be at least 1"),
        (Problem { max_rows: 0, ..BASE }, "spec::accept: max_rows is 0; must be at least 1"),
        (Problem { slots: 0, ..BASE }, "spec::accept: slots is 0; must be at least 1"),
        (Problem { positions: 0, ..BASE }, "spec::accept: positions is 0; must be at least 1"),
        (Problem { slots: 1 << 23, ..BASE }, "spec::accept: slots is 8388608; must be at most 8388607"),
        (
            Problem { positions: 1 << 31, ..BASE },
            "spec::accept: positions is 2147483648; must be at most 2147483647",
        ),
    ] {
        assert_eq!(text(Accept::plan(change, &device)), want);
    }
    assert_eq!(
        text(TargetInputs::plan(Problem { rows: 7, ..BASE }, &device)),
        "spec::target_inputs: rows is 7; must be at least sequences x max_rows = 2 x 4"
    );
    assert_eq!(
        text(ChainInputs::plan(BASE, &device)),
        "spec::chain_inputs: rows is 8; a chain has one row per sequence, 2"
    );
    assert_eq!(
        text(DraftInputs::plan(DraftProblem { base: BASE, ring_rows: 0 }, &device)),
        "spec::draft_inputs: ring_rows is 0; must be at least 1"
    );
    let sample =
        SampleProblem { sequences: 2, rows: 8, vocab: 10, valid: 10, slots: 3, positions: 16, max_bias: 0 };
    for (change, want) in [
        (SampleProblem { vocab: 0, ..sample }, "spec::sample: vocab is 0; must be at least 1"),
        (SampleProblem { valid: 0, ..sample }, "spec::sample: valid is 0; must be at least 1"),
        (SampleProblem { valid: 11, ..sample }, "spec::sample: valid is 11; must be at most 10"),
    ] {
        assert_eq!(text(Sample::plan(change, &device)), want);
    }
    assert_eq!(
        text(Rejection::plan(RejectionProblem { base: sample, ring_rows: 0 }, &device)),
        "spec::rejection: ring_rows is 0; must be at least 1"
    );
    assert_eq!(
        text(Argmax::plan(ArgmaxProblem { rows: 1, vocab: 4, valid: 5 }, &device)),
        "spec::argmax: valid is 5; must be at most 4"
    );
    let oracle = OracleProblem {
        sequences: 2,
        max_drafts: 3,
        slots: 3,
        positions: 16,
        valid: 9,
        pattern: None,
        seed: 0,
    };
    for (change, want) in [
        (OracleProblem { sequences: 0, ..oracle }, "spec::oracle: sequences is 0; must be at least 1"),
        (OracleProblem { max_drafts: 0, ..oracle }, "spec::oracle: max_drafts is 0; must be at least 1"),
        (OracleProblem { positions: 0, ..oracle }, "spec::oracle: positions is 0; must be at least 1"),
        (OracleProblem { valid: 0, ..oracle }, "spec::oracle: valid is 0; must be at least 1"),
        (OracleProblem { pattern: Some(0), ..oracle }, "spec::oracle: pattern is 0; must be at least 1"),
        (
            OracleProblem { max_drafts: 1 << 31, ..oracle },
            "spec::oracle: max_drafts is 2147483648; must be at most 2147483647",
        ),
    ] {
        assert_eq!(text(Oracle::plan(change, &device)), want);
    }
    let hidden = HiddenProblem { sequences: 1, rows: 1, forward_rows: 1, width: 0, slots: 1, ring_rows: 1 };
    assert_eq!(text(Carry::plan(hidden, &device)), "spec::carry: width is 0; must be at least 1");
}

#[test]
fn plans_for_a_gpu_say_that_there_is_no_kernel() {
    let base =
        SampleProblem { sequences: 1, rows: 1, vocab: 4, valid: 4, slots: 1, positions: 8, max_bias: 0 };
    let rejection = RejectionProblem { base, ring_rows: 1 };
    for device in [DeviceInfo::h200(), DeviceInfo::a100()] {
        if cfg!(kernels_built) {
            Accept::plan(BASE, &device).unwrap();
            DrawDraft::plan(rejection, &device).unwrap();
            Rejection::plan(rejection, &device).unwrap();
            continue;
        }
        for (got, op) in [
            (text(Accept::plan(BASE, &device)), "accept"),
            (text(DrawDraft::plan(rejection, &device)), "draw_draft"),
            (text(Rejection::plan(rejection, &device)), "rejection"),
        ] {
            assert!(got.starts_with(&format!("spec::{op}: built without CUDA kernels")), "{got}");
        }
    }
}

#[test]
fn a_workspace_has_the_size_that_the_plan_says() {
    let device = cpu();
    let argmax = Argmax::plan(ArgmaxProblem { rows: 3, vocab: 5, valid: 5 }, &device).unwrap();
    assert_eq!(argmax.workspace_bytes(), 0, "the CPU does without");
    let mut memory = [0u8; 4];
    let (logits, mut choice) = ([0.0; 15], [0; 3]);
    let args = ArgmaxArgs {
        choice: TensorMut::new(&mut choice[..], [3]),
        logits: Tensor::new(&logits[..], [3, 5]),
        workspace: Some(TensorMut::new(&mut memory[..], [4])),
    };
    assert_eq!(text(argmax.run::<Cpu>(&(), args)), "spec::argmax: `workspace` has shape [4], expected [0]");
    if cfg!(kernels_built) {
        let device = DeviceInfo::h200();
        let plan =
            |rows| Argmax::plan(ArgmaxProblem { rows, vocab: 248_320, valid: 248_320 }, &device).unwrap();
        // Few rows are dealt to as many blocks as there are, 32 rows to blocks of 4096 ids.
        assert_eq!(plan(1).workspace_bytes(), 8 * 243);
        assert_eq!(plan(32).workspace_bytes(), 8 * 32 * 61);
        assert_eq!(plan(32).with_vectors_per_thread(8).workspace_bytes(), 8 * 32 * 31);
        // Drafts keep two words of each row, the chain also its choice and the winner of each chunk.
        let base = SampleProblem {
            sequences: 8,
            rows: 32,
            vocab: 248_320,
            valid: 248_320,
            slots: 8,
            positions: 64,
            max_bias: 0,
        };
        let sample = Sample::plan(base, &device).unwrap().workspace_bytes();
        let draft = DrawDraft::plan(RejectionProblem { base, ring_rows: 3 }, &device).unwrap();
        let chain = Rejection::plan(RejectionProblem { base, ring_rows: 3 }, &device).unwrap();
        assert_eq!(draft.workspace_bytes() - sample, 2 * 8 * 32);
        // Every part begins at a multiple of 256 bytes, so that the 32 choices take 256 and not 128.
        assert_eq!(chain.workspace_bytes() - draft.workspace_bytes(), 256 + 8 * 8 * 61);
        // A grid has so many blocks.
        let wide = SampleProblem { sequences: 65_536, rows: 8, ..base };
        let wide = Rejection::plan(RejectionProblem { base: wide, ring_rows: 3 }, &device).unwrap();
        let mut table = SlotTable::<Cpu>::new(&(), 8, 64).unwrap();
        let sampling = SamplingTable::<Cpu>::new(&(), 8, 0).unwrap();
        let list = RowTable::<Cpu>::new(&(), 65_536).unwrap();
        let (mut accepted, kept, logits) = (vec![0; 65_536], [0.0; 1], [0.0; 1]);
        let args = RejectionArgs::<Cpu> {
            accepted: TensorMut::of(&mut accepted, [65_536]),
            slots: table.lend(),
            logits: Tensor::new(&logits[..], [8, 248_320]),
            probabilities: Tensor::new(&kept[..], [8, 3, 248_320]),
            rows: list.lend(),
            sampling: sampling.lend(),
            workspace: None,
        };
        assert_eq!(
            text(wide.run::<Cpu>(&(), args)),
            "spec::rejection: 65536 sequences on CUDA (at most 65535 are) is not supported"
        );
    }
}

#[test]
fn a_plan_gives_its_problem_back() {
    assert_eq!(*Emit::plan(BASE, &cpu()).unwrap().problem(), BASE);
}

#[test]
fn arguments_are_refused_by_name() {
    let mut sim = Sim::new(3, 16, 4);
    let list = rows(&[0, 1], &[0, 0], &[0, 1, 2]);
    let choice = [0; 8];
    let mut accepted = [0; 2];
    let op = Accept::plan(BASE, &cpu()).unwrap();
    let mut try_with = |change: &dyn Fn(&mut AcceptArgs<'_, Cpu>)| {
        let mut args = AcceptArgs {
            accepted: TensorMut::new(&mut accepted[..], [2]),
            slots: sim.table.lend(),
            choice: Tensor::new(&choice[..], [8]),
            rows: list.lend(),
        };
        change(&mut args);
        text(op.run::<Cpu>(&(), args))
    };
    assert_eq!(try_with(&|_| {}), "accepted");
    for (change, want) in [
        (
            (|a| a.accepted.dims = [3]) as fn(&mut AcceptArgs<'_, Cpu>),
            "spec::accept: `accepted` has shape [3], expected [2]",
        ),
        (|a| a.choice.dims = [7], "spec::accept: `choice` has shape [7], expected [8]"),
        (
            |a| a.choice.data = &a.choice.data[..7],
            "spec::accept: `choice` needs 8 elements, its buffer holds 7",
        ),
        (|a| a.rows.start.dims = [1], "spec::accept: `rows.start` has shape [1], expected [2]"),
        (|a| a.rows.row_offsets.dims = [2], "spec::accept: `rows.row_offsets` has shape [2], expected [3]"),
        (
            |a| a.slots.tokens.dims = [3, 15],
            "spec::accept: `slots.tokens` has shape [3, 15], expected [3, 16]",
        ),
        (
            |a| a.slots.tokens.strides = [8, 1],
            "spec::accept: `slots.tokens` has strides [8, 1]; an outer stride must span the inner axes, or rows overlap",
        ),
        (|a| a.slots.committed.dims = [2], "spec::accept: `slots.committed` has shape [2], expected [3]"),
        (|a| a.slots.faults.dims = [3], "spec::accept: `slots.faults` has shape [3], expected [4]"),
    ] {
        assert_eq!(try_with(&change), want);
    }
}

#[test]
fn a_pattern_goes_with_its_plan() {
    let (mut sim, mut rounds) = (Sim::new(1, 8, 1), [0]);
    let mut run = |planned: Option<usize>, given: Option<&[i32]>| {
        let (sequences, max_drafts, slots, positions, valid) = (1, 1, 1, 8, 9);
        let problem =
            OracleProblem { sequences, max_drafts, slots, positions, valid, pattern: planned, seed: 0 };
        let args = OracleArgs {
            slots: sim.table.lend(),
            rounds: TensorMut::new(&mut rounds[..], [1]),
            truth: Tensor::new(&[0; 8][..], [1, 8]),
            rate: Tensor::new(&[1.0][..], [1]),
            pattern: given.map(|given| Tensor::new(given, [given.len()])),
            sequences: Tensor::new(&[0][..], [1]),
            drafts: Tensor::new(&[1][..], [1]),
        };
        text(Oracle::plan(problem, &cpu()).unwrap().run::<Cpu>(&(), args))
    };
    assert_eq!(run(None, None), "accepted");
    assert_eq!(run(Some(2), Some(&[1, 0])), "accepted");
    let want = "it goes with the problem's `pattern`, which says how long it is";
    assert_eq!(run(None, Some(&[1, 0])), format!("spec::oracle: pattern is [2]; {want}"));
    assert_eq!(run(Some(2), None), format!("spec::oracle: pattern is none; {want}"));
    assert_eq!(run(Some(2), Some(&[1])), "spec::oracle: `pattern` has shape [1], expected [2]");
}

#[test]
fn sampling_shapes_are_refused_by_name() {
    let mut sim = Sim::new(2, 8, 1);
    let list = rows(&[0], &[0], &[0, 1]);
    let problem = sim.sample_problem(1, 1, 4);
    let wrong = SampleProblem { max_bias: 3, ..problem };
    assert_eq!(
        text(sim.try_sample(&list, &[0.0; 4], wrong)),
        "spec::sample: `sampling.bias_ids` has shape [2, 2], expected [2, 3]"
    );
    assert_eq!(
        text(sim.try_sample(&list, &[0.0; 3], problem)),
        "spec::sample: `logits` needs 4 elements, its buffer holds 3"
    );
}

#[test]
fn sampling_parameters_are_refused_by_name_and_value() {
    let base = SamplingParams::default;
    for (params, want) in [
        (SamplingParams { temperature: -0.5, ..base() }, "temperature is -0.5; must be between 0 and 100"),
        (SamplingParams { temperature: f32::NAN, ..base() }, "temperature is NaN; must be between 0 and 100"),
        (SamplingParams { top_p: 1.5, ..base() }, "top_p is 1.5; must be between 0 and 1"),
        (SamplingParams { min_p: -1.0, ..base() }, "min_p is -1; must be between 0 and 1"),
        (SamplingParams { top_k: u32::MAX, ..base() }, "top_k is 4294967295; must fit 31 bits; 0 is off"),
        (
            SamplingParams { repetition_penalty: 0.0, ..base() },
            "repetition_penalty is 0; must be positive; 1 is off",
        ),
        (
            SamplingParams { presence_penalty: f32::INFINITY, ..base() },
            "presence_penalty is inf; must be between -100 and 100",
        ),
        (
            SamplingParams { frequency_penalty: 101.0, ..base() },
            "frequency_penalty is 101; must be between -100 and 100",
        ),
        (SamplingParams { bias: vec![(50, 0.0)], ..base() }, "bias id is 50; the vocabulary has 50 ids"),
        (
            SamplingParams { bias: vec![(1, f32::NAN)], ..base() },
            "bias is NaN; must be a number or minus infinity",
        ),
        (
            SamplingParams { bias: vec![(1, 0.0); 3], ..base() },
            "bias entries is 3; this engine was planned for 2 at most",
        ),
    ] {
        assert_eq!(text(params.check(50, 2)), format!("spec::sampling: {want}"));
    }
    assert!(base().check(50, 0).is_ok());
    let mut table = SamplingTable::<Cpu>::new(&(), 2, 2).unwrap();
    assert_eq!(text(table.set(&(), 2, &base(), 50)), "spec::sampling: slot is 2; there are 2 slots");
}

#[test]
fn admission_refuses_what_cannot_be() {
    let mut table = SlotTable::<Cpu>::new(&(), 2, 16).unwrap();
    for (slot, prompt, limit, length_limit, want) in [
        (2, 3, 16, 16, "spec::admit: slot is 2; there are 2 slots"),
        (0, 3, 17, 16, "spec::admit: limit is 17; a slot has 16 positions"),
        (0, 3, 16, 17, "spec::admit: length_limit is 17; a slot has 16 positions"),
        (0, 0, 16, 16, "spec::admit: prompt length is 0; 1 to 15 tokens leave room for an answer"),
        (0, 16, 16, 16, "spec::admit: prompt length is 16; 1 to 15 tokens leave room for an answer"),
        (0, 1, 16, 1, "spec::admit: prompt length is 1; 1 to 0 tokens leave room for an answer"),
    ] {
        assert_eq!(text(table.admit(&(), slot, &vec![1; prompt], limit, length_limit)), want);
        assert!(table.state.iter().all(|s| *s == State::Empty as i32), "refused, and yet it runs");
    }
    let want = "spec::set_state: slot is 9; there are 2 slots";
    assert_eq!(text(table.set_state(&(), 9, State::Aborted)), want);
}

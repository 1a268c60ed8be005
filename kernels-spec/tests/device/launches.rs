//! Launches that nobody waits for: chains, graphs, and what only a GPU can refuse.

use crate::{
    round::{MAX_ROWS, Machine, SLOTS},
    world::{List, Numbers},
};
use kernels_core::{Backend, Cpu, Cuda, Tensor, TensorMut};
use kernels_spec::*;
use kernels_testkit::{device::Device, rng::Rng, runner::stride};

/// Of a sequence; under a sanitizer the first ones.
fn rounds() -> usize {
    30 / stride(6)
}

/// After every round: slots, statistics, rings and what was emitted.
pub(crate) fn rounds_equal_the_cpu(device: &Device) {
    for overlapping in [false, true] {
        let mut cpu = Machine::<Cpu>::new(&(), MAX_ROWS - 1);
        let mut cuda = Machine::<Cuda>::new(&device.queue, MAX_ROWS - 1);
        cuda.overlapping = overlapping;
        for round in 0..rounds() {
            cpu.round().unwrap();
            cuda.round().unwrap();
            assert_eq!(cuda.left(), cpu.left(), "round {round}, overlapping {overlapping}");
        }
        // And without anybody looking in between.
        let mut cuda = Machine::<Cuda>::new(&device.queue, MAX_ROWS - 1);
        cuda.overlapping = overlapping;
        (0..rounds()).for_each(|_| cuda.round().unwrap());
        assert_eq!(cuda.left(), cpu.left(), "all rounds, overlapping {overlapping}");
    }
}

/// One graph of a round, replayed while lengths, drafts and k change on the device.
pub(crate) fn replays_equal_eager_rounds(device: &Device) {
    for overlapping in [false, true] {
        let mut eager = Machine::<Cuda>::new(&device.queue, MAX_ROWS - 1);
        let mut replayed = Machine::<Cuda>::new(&device.queue, MAX_ROWS - 1);
        eager.round().unwrap();
        // Loads the module: not allowed while capturing.
        replayed.round().unwrap();
        replayed.overlapping = overlapping;
        let graph = device.capture(|| replayed.round()).unwrap();
        for round in 0..rounds() {
            let k = vec![(round * 3 % MAX_ROWS) as i32; SLOTS];
            for machine in [&mut eager, &mut replayed] {
                Cuda::write(&device.queue, &mut machine.drafts, 0, &k).unwrap();
            }
            eager.round().unwrap();
            graph.launch().unwrap();
            assert_eq!(replayed.left(), eager.left(), "round {round}, overlapping {overlapping}");
        }
    }
}

/// A pass over many logits, and an accept step that is allowed to begin before it has ended.
pub(crate) fn slow_producers_are_waited_for(device: &Device) {
    let on = &device.queue;
    let (sequences, vocab) = (64, 100_000);
    let mut rng = Rng::new(2);
    let mut numbers = Numbers::random(&mut rng, sequences, 64);
    numbers.committed = vec![20; sequences];
    numbers.folded = vec![20; sequences];
    numbers.prompt = vec![4; sequences];
    numbers.state = vec![State::Running as i32; sequences];
    let list = List {
        slots: (0..sequences as i32).collect(),
        start: vec![20; sequences],
        offsets: (0..=sequences as i32).collect(),
    };
    // Two sets of logits, so that what is left of the pass before is wrong.
    let logits: Vec<f32> = rng.normals(2 * sequences * vocab, 1.0);
    let want: Vec<Vec<i32>> = logits
        .chunks(sequences * vocab)
        .map(|logits| crate::world::argmax::<Cpu>(&(), logits, [sequences, vocab, vocab, vocab], None))
        .collect();
    let logits = Cuda::upload(on, &logits).unwrap();
    let (mut table, rows) = (numbers.upload::<Cuda>(on), list.upload::<Cuda>(on));
    let mut choice = Cuda::upload(on, &vec![-1; sequences]).unwrap();
    let mut accepted = Cuda::zeros::<i32>(on, sequences).unwrap();
    let argmax = ArgmaxProblem { rows: sequences, vocab, valid: vocab };
    let argmax = Argmax::plan(argmax, &device.info).unwrap().overlapping(true);
    let bytes = argmax.workspace_bytes();
    let mut workspace = Cuda::zeros::<u8>(on, bytes).unwrap();
    let problem = Problem { sequences, rows: sequences, max_rows: 1, slots: sequences, positions: 64 };
    let accept = Accept::plan(problem, &device.info).unwrap().overlapping(true);
    for turn in 0..40 / stride(10) {
        let which = turn % 2;
        let args = ArgmaxArgs {
            choice: TensorMut::of(&mut choice, [sequences]),
            logits: Tensor::of(&logits, [2 * sequences, vocab])
                .rows(which * sequences..(which + 1) * sequences),
            workspace: Some(TensorMut::of(&mut workspace, [bytes])),
        };
        argmax.run::<Cuda>(on, args).unwrap();
        let args = AcceptArgs {
            accepted: TensorMut::of(&mut accepted, [sequences]),
            slots: table.lend(),
            choice: Tensor::of(&choice, [sequences]),
            rows: rows.lend(),
        };
        accept.run::<Cuda>(on, args).unwrap();
        let after = Numbers::read::<Cuda>(on, &table);
        let got: Vec<i32> = (0..sequences).map(|slot| after.tokens[slot * 64 + 21]).collect();
        assert_eq!(got, want[which], "turn {turn}");
    }
}

/// Rows of logits and slots of tokens that lie beyond 2^31 elements.
pub(crate) fn offsets_are_64_bits(device: &Device) {
    let on = &device.queue;
    let (rows, vocab, far) = (3, 5000, (1usize << 30) + 12);
    let values: Vec<f32> = Rng::new(6).normals(rows * vocab, 1.0);
    let mut memory = Cuda::zeros::<f32>(on, 2 * far + vocab).unwrap();
    for row in 0..rows {
        Cuda::write(on, &mut memory, row * far, &values[row * vocab..][..vocab]).unwrap();
    }
    let op = Argmax::plan(ArgmaxProblem { rows, vocab, valid: vocab }, &device.info).unwrap();
    let bytes = op.workspace_bytes();
    let mut workspace = Cuda::zeros::<u8>(on, bytes).unwrap();
    let mut choice = Cuda::zeros::<i32>(on, rows).unwrap();
    let args = ArgmaxArgs {
        choice: TensorMut::of(&mut choice, [rows]),
        logits: Tensor::of(&memory, [rows, vocab]).with_strides([far, 1]),
        workspace: Some(TensorMut::of(&mut workspace, [bytes])),
    };
    op.run::<Cuda>(on, args).unwrap();
    let want = crate::world::argmax::<Cpu>(&(), &values, [rows, vocab, vocab, vocab], None);
    assert_eq!(Cuda::read(on, &choice, 0..rows).unwrap(), want);
}

pub(crate) fn what_only_a_gpu_needs_is_refused(device: &Device) {
    // A plan for the CPU does not run on a GPU, and one for a GPU wants its workspace.
    let logits = Cuda::zeros::<f32>(&device.queue, 8).unwrap();
    let mut choice = Cuda::zeros::<i32>(&device.queue, 1).unwrap();
    let problem = ArgmaxProblem { rows: 1, vocab: 8, valid: 8 };
    for (info, want) in [
        (&kernels_core::DeviceInfo::cpu(), "spec::argmax: device is the CPU"),
        (&device.info, "spec::argmax: workspace is none; this plan needs 8 bytes"),
    ] {
        let args = ArgmaxArgs {
            choice: TensorMut::of(&mut choice, [1]),
            logits: Tensor::of(&logits, [1, 8]),
            workspace: None,
        };
        let error = Argmax::plan(problem, info).unwrap().run::<Cuda>(&device.queue, args).unwrap_err();
        assert!(error.to_string().starts_with(want), "{error}");
    }
    let numbers = crate::chain::running(1, 9, &[0]);
    let list = List { slots: vec![0], start: vec![0], offsets: vec![0, 1] };
    let base =
        SampleProblem { sequences: 1, rows: 1, vocab: 8, valid: 8, slots: 1, positions: 9, max_bias: 0 };
    let (mut table, rows) = (numbers.upload::<Cuda>(&device.queue), list.upload::<Cuda>(&device.queue));
    let sampling = SamplingTable::<Cuda>::new(&device.queue, 1, 0).unwrap();
    let mut kept = Cuda::zeros::<f32>(&device.queue, 8).unwrap();
    for (info, want) in [
        (&kernels_core::DeviceInfo::cpu(), "device is the CPU"),
        (&device.info, "workspace is none; this plan needs"),
    ] {
        let problem = RejectionProblem { base, ring_rows: 1 };
        let args = DrawDraftArgs {
            choice: TensorMut::of(&mut choice, [1]),
            probabilities: TensorMut::of(&mut kept, [1, 1, 8]),
            faults: TensorMut::of(&mut table.faults, [2]),
            logits: Tensor::of(&logits, [1, 8]),
            rows: rows.lend(),
            tokens: Tensor::of(&table.tokens, [1, 9]),
            prompt: Tensor::of(&table.prompt, [1]),
            sampling: sampling.lend(),
            workspace: None,
        };
        let error = DrawDraft::plan(problem, info).unwrap().run::<Cuda>(&device.queue, args).unwrap_err();
        assert!(error.to_string().starts_with(&format!("spec::draw_draft: {want}")), "{error}");
        let args = RejectionArgs {
            accepted: TensorMut::of(&mut choice, [1]),
            slots: table.lend(),
            logits: Tensor::of(&logits, [1, 8]),
            probabilities: Tensor::of(&kept, [1, 1, 8]),
            rows: rows.lend(),
            sampling: sampling.lend(),
            workspace: None,
        };
        let error = Rejection::plan(problem, info).unwrap().run::<Cuda>(&device.queue, args).unwrap_err();
        assert!(error.to_string().starts_with(&format!("spec::rejection: {want}")), "{error}");
    }
}

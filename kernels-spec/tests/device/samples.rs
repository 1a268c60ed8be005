//! Random logits under random rules: the choices of the CPU.

use crate::world::{self, List, Logits, Numbers, Place};
use kernels_core::{Cpu, Cuda};
use kernels_spec::*;
use kernels_testkit::{device::Device, rng::Rng, runner};

pub(crate) fn argmax(device: &Device) {
    for (rows, vocab, valid, stride) in
        [(1, 1, 1, 1), (3, 33, 30, 33), (32, 248_320, 248_077, 248_320), (5, 100_001, 99_999, 100_003)]
    {
        let mut rng = Rng::new(rows as u64);
        let mut logits: Vec<f32> = rng.normals(rows * stride, 4.0);
        for (i, l) in logits.iter_mut().enumerate() {
            // Rows of whole numbers tie everywhere; NaN and infinities here and there.
            let row = i / stride;
            if row % 2 == 1 {
                *l = l.round();
            }
            match rng.bits() % 5000 {
                0 => *l = f32::NAN,
                1 => *l = f32::NEG_INFINITY,
                2 if row % 4 == 3 => *l = f32::INFINITY,
                _ => {}
            }
        }
        let sizes = [rows, vocab, valid, stride];
        let want = world::argmax::<Cpu>(&(), &logits, sizes, None);
        for vectors in [None, Some(1), Some(2), Some(4), Some(8)] {
            let got = world::argmax::<Cuda>(&device.queue, &logits, sizes, vectors);
            assert_eq!(got, want, "{sizes:?}, {vectors:?} vectors");
        }
    }
}

/// One row each for many slots with rules of every kind, on both backends.
fn same_samples(device: &Device, seed: u64, vocab: usize, spread: f32, coarse: bool, slots: usize) {
    let mut rng = Rng::new(seed);
    let (positions, per_slot) = (40, 2);
    let (stride, valid) = (vocab + rng.below(4), vocab - rng.below(vocab.min(3)));
    let numbers = Numbers::random(&mut rng, slots, positions);
    let rows = slots * per_slot;
    let mut logits: Vec<f32> = (0..rows * stride).map(|_| rng.normal() * spread).collect();
    for l in &mut logits {
        if coarse {
            *l = l.round();
        }
        match rng.bits() % 400 {
            0 => *l = f32::NEG_INFINITY,
            1 => *l = f32::NAN,
            _ => {}
        }
    }
    if seed.is_multiple_of(5) {
        logits[rng.below(valid)] = f32::INFINITY;
        logits[rng.below(valid)] = f32::INFINITY;
    }
    let pick = |rng: &mut Rng, of: &[f32]| of[rng.below(of.len())];
    let params: Vec<SamplingParams> = (0..slots)
        .map(|slot| SamplingParams {
            repetition_penalty: pick(&mut rng, &[1.0, 1.0, 1.3, 0.7]),
            presence_penalty: pick(&mut rng, &[0.0, 0.0, 1.5]),
            frequency_penalty: pick(&mut rng, &[0.0, 0.0, 0.4]),
            bias: if rng.below(3) == 0 {
                vec![(rng.below(valid) as u32, 1.5), (rng.below(valid) as u32, f32::NEG_INFINITY)]
            } else {
                vec![]
            },
            temperature: pick(&mut rng, &[0.0, 0.01, 0.6, 1.0, 1.0, 3.0, 100.0]),
            top_k: [0, 0, 1, 2, 20, 400, 1000, 5000][rng.below(8)],
            top_p: pick(&mut rng, &[0.0, 0.3, 0.8, 0.95, 0.999_999, 1.0, 1.0]),
            min_p: pick(&mut rng, &[0.0, 0.0, 0.05, 1.0]),
            seed: seed << 32 | slot as u64,
        })
        .collect();
    let problem = SampleProblem { sequences: slots, rows, vocab, valid, slots, positions, max_bias: 2 };
    let list = List {
        slots: rng.permutation(slots).into_iter().map(|slot| slot as i32).collect(),
        start: (0..slots).map(|_| rng.below(positions - per_slot) as i32).collect(),
        offsets: (0..=slots).map(|i| (i * per_slot) as i32).collect(),
    };
    fn run<B: Place>(
        on: &B::Queue,
        numbers: &Numbers,
        params: &[SamplingParams],
        (problem, logits, stride): (SampleProblem, &[f32], usize),
        list: &List,
        vectors: Option<usize>,
    ) -> (Vec<i32>, Numbers) {
        let mut table = numbers.upload::<B>(on);
        let mut sampling = SamplingTable::<B>::new(on, numbers.slots, 2).unwrap();
        for (slot, params) in params.iter().enumerate() {
            sampling.set(on, slot, params, problem.vocab).unwrap();
        }
        let of = Logits { problem, logits: B::upload(on, logits).unwrap(), stride };
        let choice = world::sample::<B>(on, &of, &mut table, &sampling, list, vectors);
        (choice, Numbers::read::<B>(on, &table).settled())
    }
    let of = (problem, &logits[..], stride);
    let want = run::<Cpu>(&(), &numbers, &params, of, &list, None);
    for vectors in [None, Some([1, 2, 4, 8][seed as usize % 4])] {
        let got = run::<Cuda>(&device.queue, &numbers, &params, of, &list, vectors);
        for (row, (got, want)) in got.0.iter().zip(&want.0).enumerate() {
            let slot = list.slots[row / per_slot] as usize;
            assert_eq!(
                got, want,
                "vocabulary {vocab} ({valid} valid, stride {stride}), spread {spread}, coarse {coarse}, seed {seed}, \
                 {vectors:?} vectors, row {row}: {:?}",
                params[slot]
            );
        }
        assert_eq!(got.1, want.1);
    }
}

pub(crate) fn samples(device: &Device) {
    let mut seed = 0;
    for vocab in [1, 2, 5, 33, 300, 1025, 4100, 9000, 20_000].into_iter().step_by(runner::stride(4)) {
        for spread in [0.0, 1.0, 6.0, 40.0] {
            for coarse in [false, true] {
                seed += 1;
                same_samples(device, seed, vocab, spread, coarse, 12);
            }
        }
    }
}

pub(crate) fn samples_of_a_real_vocabulary(device: &Device) {
    let cases = [(1, 1.0, false), (2, 3.0, false), (3, 3.0, true), (4, 8.0, false)];
    for (seed, spread, coarse) in cases.into_iter().step_by(runner::stride(4)) {
        same_samples(device, seed, 248_320, spread, coarse, 8);
    }
}

/// Penalties over a prefix of a hundred thousand tokens, one of them most of it.
pub(crate) fn long_histories(device: &Device) {
    let (vocab, positions) = (3000, 100_000);
    let mut rng = Rng::new(12);
    let mut numbers = Numbers::random(&mut rng, 1, positions);
    numbers.tokens = (0..positions).map(|_| (rng.below(vocab) * rng.below(2)) as i32).collect();
    numbers.prompt = vec![40_000];
    let problem =
        SampleProblem { sequences: 1, rows: 3, vocab, valid: vocab, slots: 1, positions, max_bias: 0 };
    let list = List { slots: vec![0], start: vec![99_990], offsets: vec![0, 3] };
    let logits: Vec<f32> = rng.normals(3 * vocab, 2.0);
    let params = SamplingParams {
        frequency_penalty: -0.001,
        repetition_penalty: 1.1,
        temperature: 0.9,
        seed: 4,
        ..SamplingParams::default()
    };
    fn run<B: Place>(
        on: &B::Queue,
        numbers: &Numbers,
        params: &SamplingParams,
        (problem, logits, list): (SampleProblem, &[f32], &List),
    ) -> Vec<i32> {
        let mut sampling = SamplingTable::<B>::new(on, 1, 0).unwrap();
        sampling.set(on, 0, params, problem.vocab).unwrap();
        let of = Logits { problem, logits: B::upload(on, logits).unwrap(), stride: problem.vocab };
        world::sample::<B>(on, &of, &mut numbers.upload::<B>(on), &sampling, list, None)
    }
    let of = (problem, &logits[..], &list);
    let want = run::<Cpu>(&(), &numbers, &params, of);
    assert_eq!(run::<Cuda>(&device.queue, &numbers, &params, of), want);
}

//! Random drafts and chains under random rules: the bytes of the CPU, eager, replayed and overlapping.

use crate::{
    chain::{Chain, running},
    world::{List, Numbers, Place},
};
use kernels_core::{Cpu, Cuda, Result, Tensor, TensorMut};
use kernels_spec::*;
use kernels_testkit::{compare::assert_same_bits, device::Device, rng::Rng, runner};

const POSITIONS: usize = 40;

struct Case {
    numbers: Numbers,
    params: Vec<SamplingParams>,
    list: List,
    /// Vocabulary, valid ids, places of the ring, biases.
    sizes: [usize; 4],
    stride: usize,
    draft_logits: Vec<f32>,
    logits: Vec<f32>,
}

/// Slots with rules of every kind and chains of up to three drafts; every fourth seed with impossible numbers.
fn case(seed: u64, vocab: usize, spread: f32, coarse: bool, slots: usize) -> Case {
    let mut rng = Rng::new(seed);
    let (stride, valid) = (vocab + rng.below(4), vocab - rng.below(vocab.min(3)));
    let mut numbers = Numbers::random(&mut rng, slots, POSITIONS);
    numbers.prompt.iter_mut().zip(&numbers.committed).for_each(|(prompt, at)| *prompt = (*prompt).min(*at));
    let mut list = List::random(&mut rng, &numbers, slots, 4);
    let rows = *list.offsets.last().unwrap() as usize + 2;
    if seed % 4 == 3 {
        numbers.spoil(&mut rng);
        list.spoil(&mut rng);
    }
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
    }
    if seed.is_multiple_of(7) {
        let row = rng.below(rows);
        logits[row * stride..][..vocab].fill(f32::NAN);
    }
    let away = [0.0, 0.3, 2.0][seed as usize % 3];
    let draft_logits = logits.iter().map(|l| l + away * rng.normal()).collect();
    let pick = |rng: &mut Rng, of: &[f32]| of[rng.below(of.len())];
    let params = (0..slots)
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
            top_k: [0, 0, 0, 1, 2, 20, 400, 1000, 5000][rng.below(9)],
            top_p: pick(&mut rng, &[0.0, 0.3, 0.8, 0.95, 0.999_999, 1.0, 1.0, 1.0]),
            min_p: pick(&mut rng, &[0.0, 0.0, 0.05, 1.0]),
            seed: seed << 32 | slot as u64,
        })
        .collect();
    Case { numbers, params, list, sizes: [vocab, valid, 3, 2], stride, draft_logits, logits }
}

impl Case {
    fn chain<B: Place>(&self, on: &B::Queue, kept: &[f32], vectors: Option<usize>) -> Chain<B> {
        Chain { vectors, ..Chain::new(on, &self.numbers, &self.params, self.sizes, kept) }
    }

    /// Puts the drafts of sound sequences behind their rows, but for one in eight.
    fn propose(&mut self, drafts: &[i32], rng: &mut Rng) {
        for (i, slot) in self.list.slots.iter().enumerate() {
            let (first, end) =
                (self.list.offsets[i].max(0), self.list.offsets[i + 1].min(drafts.len() as i32));
            for row in first..end {
                let at = i64::from(self.list.start[i]) + i64::from(row - first) + 1;
                if (0..self.numbers.slots as i32).contains(slot)
                    && (0..POSITIONS as i64).contains(&at)
                    && rng.below(8) > 0
                {
                    self.numbers.tokens[*slot as usize * POSITIONS + at as usize] = drafts[row as usize];
                }
            }
        }
    }
}

fn same(device: &Device, mut case: Case, seed: u64, accepted: &mut [usize; 5]) {
    let [vocab, _, ring_rows, _] = case.sizes;
    let vectors = [None, Some(1), Some(2), Some(4), Some(8)][seed as usize % 5];
    let what = format!("vocabulary {vocab}, seed {seed}, {vectors:?} vectors");
    let nothing = vec![f32::NAN; case.numbers.slots * ring_rows * vocab];
    let mut want = case.chain::<Cpu>(&(), &nothing, vectors);
    let mut got = case.chain::<Cuda>(&device.queue, &nothing, vectors);
    let drafts = want.draw(&case.list, &case.draft_logits, case.stride);
    assert_eq!(got.draw(&case.list, &case.draft_logits, case.stride), drafts, "{what}: drafts");
    assert_eq!(got.numbers().settled(), want.numbers().settled(), "{what}: drafts");
    let kept = want.kept();
    assert_same_bits(&format!("{what}: probabilities"), &got.kept(), &kept);
    case.propose(&drafts, &mut Rng::new(seed ^ 99));
    let mut want = case.chain::<Cpu>(&(), &kept, vectors);
    let mut got = case.chain::<Cuda>(&device.queue, &kept, vectors);
    let lengths = want.reject(&case.list, &case.logits, case.stride);
    assert_eq!(got.reject(&case.list, &case.logits, case.stride), lengths, "{what}: accept lengths");
    assert_eq!(got.numbers().settled(), want.numbers().settled(), "{what}: slots");
    lengths.iter().for_each(|a| accepted[*a as usize] += 1);
}

pub(crate) fn drafts_and_chains(device: &Device) {
    let (mut seed, mut accepted) = (0, [0; 5]);
    for vocab in [1, 2, 5, 33, 300, 1025, 4100, 9000, 20_000].into_iter().step_by(runner::stride(4)) {
        for spread in [0.0, 0.2, 1.0, 6.0, 40.0] {
            for coarse in [false, true] {
                seed += 1;
                same(device, case(seed, vocab, spread, coarse, 9), seed, &mut accepted);
            }
        }
    }
    assert!(accepted.iter().all(|n| *n > 0), "accept lengths {accepted:?}");
}

pub(crate) fn chains_of_a_real_vocabulary(device: &Device) {
    let cases = [(1, 3.0, false), (2, 1.0, false), (4, 3.0, true), (6, 8.0, false)];
    for (seed, spread, coarse) in cases.into_iter().step_by(runner::stride(4)) {
        same(device, case(seed, 248_320, spread, coarse, 6), seed, &mut [0; 5]);
    }
}

const SLOTS: usize = 8;
const VOCAB: usize = 100_000;
const RING: usize = 3;

/// A draft and its chain in every slot, enqueued and not waited for: two sets of logits, so that what is left of the
/// round before is wrong.
struct Rounds<B: Place> {
    on: B::Queue,
    chain: Chain<B>,
    one: RowTable<B>,
    two: RowTable<B>,
    logits: B::Memory<f32>,
    draft: B::Memory<i32>,
    accepted: B::Memory<i32>,
    workspace: B::Memory<u8>,
    overlapping: bool,
}

impl<B: Place> Rounds<B> {
    fn new(on: &B::Queue, overlapping: bool) -> Self {
        let mut rng = Rng::new(31);
        let params: Vec<SamplingParams> = (0..SLOTS)
            .map(|slot| SamplingParams {
                temperature: [1.0, 0.8, 1.0, 0.7, 1.0, 0.0, 1.3, 1.0][slot],
                top_k: [0, 20, 0, 0, 900, 0, 0, 0][slot],
                top_p: [1.0, 1.0, 0.9, 0.95, 1.0, 1.0, 1.0, 1.0][slot],
                min_p: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.0][slot],
                presence_penalty: [0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0][slot],
                seed: 70 + slot as u64,
                ..SamplingParams::default()
            })
            .collect();
        let numbers = running(SLOTS, 16, &[1, 2, 3, 4]);
        let kept = vec![0.0; SLOTS * RING * VOCAB];
        let chain = Chain::<B>::new(on, &numbers, &params, [VOCAB, VOCAB - 5, RING, 0], &kept);
        let list = |count: i32| List {
            slots: (0..SLOTS as i32).collect(),
            start: vec![3; SLOTS],
            offsets: (0..=SLOTS as i32).map(|i| i * count).collect(),
        };
        let mut made = Rounds {
            on: on.clone(),
            chain,
            one: list(1).upload::<B>(on),
            two: list(2).upload::<B>(on),
            logits: B::upload(on, &rng.normals::<f32>(2 * 3 * SLOTS * VOCAB, 2.5)).unwrap(),
            draft: B::zeros(on, SLOTS).unwrap(),
            accepted: B::zeros(on, SLOTS).unwrap(),
            workspace: B::zeros(on, 0).unwrap(),
            overlapping,
        };
        let bytes = made.ops().0.workspace_bytes().max(made.ops().1.workspace_bytes());
        made.workspace = B::upload(on, &vec![0x3cu8; bytes]).unwrap();
        made
    }

    fn ops(&self) -> (DrawDraft, Rejection) {
        let of = |rows: usize| RejectionProblem {
            base: SampleProblem { sequences: SLOTS, rows, ..self.chain.base },
            ring_rows: RING,
        };
        let device = B::device(&self.on);
        let draft = DrawDraft::plan(of(SLOTS), &device).unwrap().overlapping(self.overlapping);
        (draft, Rejection::plan(of(2 * SLOTS), &device).unwrap().overlapping(self.overlapping))
    }

    /// The draft of set `which`, put behind the rows, and judged by the target of the same set.
    fn round(&mut self, which: usize) -> Result<()> {
        let (draft, rejection) = self.ops();
        let first = 3 * SLOTS * which;
        let p = self.chain.base;
        let Chain { table, sampling, probabilities, .. } = &mut self.chain;
        let bytes = draft.workspace_bytes();
        let mut workspace = B::view_mut(&mut self.workspace);
        draft.run::<B>(
            &self.on,
            DrawDraftArgs {
                choice: TensorMut::of(&mut self.draft, [SLOTS]),
                probabilities: TensorMut::of(probabilities, [SLOTS, RING, VOCAB]),
                faults: TensorMut::of(&mut table.faults, [SLOTS + 1]),
                logits: Tensor::of(&self.logits, [6 * SLOTS, VOCAB]).rows(first..first + SLOTS),
                rows: self.one.lend(),
                tokens: Tensor::of(&table.tokens, [SLOTS, p.positions]),
                prompt: Tensor::of(&table.prompt, [SLOTS]),
                sampling: sampling.lend(),
                workspace: (bytes > 0)
                    .then(|| TensorMut::new(B::slice_mut(&mut workspace, 0..bytes), [bytes])),
            },
        )?;
        drop(workspace);
        let propose =
            Problem { sequences: SLOTS, rows: SLOTS, max_rows: 1, slots: SLOTS, positions: p.positions };
        Propose::plan(propose, &B::device(&self.on))?.overlapping(self.overlapping).run::<B>(
            &self.on,
            ProposeArgs {
                slots: table.lend(),
                choice: Some(Tensor::of(&self.draft, [SLOTS])),
                rows: self.one.lend(),
            },
        )?;
        let bytes = rejection.workspace_bytes();
        let mut workspace = B::view_mut(&mut self.workspace);
        rejection.run::<B>(
            &self.on,
            RejectionArgs {
                accepted: TensorMut::of(&mut self.accepted, [SLOTS]),
                slots: table.lend(),
                logits: Tensor::of(&self.logits, [6 * SLOTS, VOCAB]).rows(first + SLOTS..first + 3 * SLOTS),
                probabilities: Tensor::of(probabilities, [SLOTS, RING, VOCAB]),
                rows: self.two.lend(),
                sampling: sampling.lend(),
                workspace: (bytes > 0)
                    .then(|| TensorMut::new(B::slice_mut(&mut workspace, 0..bytes), [bytes])),
            },
        )
    }

    /// Makes the slots forget their drafts, so that the next round proposes again.
    fn reset(&mut self) {
        for (counter, value) in [
            (&mut self.chain.table.committed, 3),
            (&mut self.chain.table.proposed, 0),
            (&mut self.chain.table.drafted, 3),
        ] {
            B::write(&self.on, counter, 0, &[value; SLOTS]).unwrap();
        }
        for limit in [&mut self.chain.table.limit, &mut self.chain.table.length_limit] {
            B::write(&self.on, limit, 0, &[16; SLOTS]).unwrap();
        }
    }

    fn left(&self) -> (Vec<i32>, Numbers, Vec<f32>) {
        let accepted = B::read(&self.on, &self.accepted, 0..SLOTS).unwrap();
        (accepted, self.chain.numbers(), self.chain.kept())
    }
}

/// Draft, proposal and chain, each allowed to begin while the one before still runs: none sees what is not done.
pub(crate) fn slow_producers_are_waited_for(device: &Device) {
    let mut cpu = Rounds::<Cpu>::new(&(), false);
    let mut cuda = Rounds::<Cuda>::new(&device.queue, true);
    for turn in 0..24 / runner::stride(8) {
        cpu.reset();
        cuda.reset();
        cpu.round(turn % 2).unwrap();
        cuda.round(turn % 2).unwrap();
        assert!(cuda.left() == cpu.left(), "turn {turn}: {:?}, not {:?}", cuda.left().0, cpu.left().0);
    }
}

pub(crate) fn replays_equal_eager_chains(device: &Device) {
    for overlapping in [false, true] {
        let mut eager = Rounds::<Cuda>::new(&device.queue, overlapping);
        let mut replayed = Rounds::<Cuda>::new(&device.queue, overlapping);
        // Loads the module: not allowed while capturing.
        replayed.reset();
        replayed.round(0).unwrap();
        let graphs = [0, 1].map(|which| device.capture(|| replayed.round(which)).unwrap());
        for turn in 0..10 / runner::stride(5) {
            eager.reset();
            replayed.reset();
            eager.round(turn % 2).unwrap();
            graphs[turn % 2].launch().unwrap();
            assert!(replayed.left() == eager.left(), "turn {turn}, overlapping {overlapping}");
        }
    }
}

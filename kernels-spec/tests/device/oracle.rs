//! Scripted drafts: by hand, by frequency, through whole rounds, and the bytes of the CPU.

#[cfg(feature = "cuda")]
use crate::world::List;
use crate::world::{Numbers, Place};
#[cfg(feature = "cuda")]
use kernels_core::{Backend, Cpu, Cuda};
use kernels_core::{Tensor, TensorMut};
use kernels_spec::*;
#[cfg(feature = "cuda")]
use kernels_testkit::{device::Device, runner::stride};

/// What a launch gets, as plain numbers.
#[derive(Clone)]
struct Case {
    numbers: Numbers,
    rounds: Vec<u32>,
    /// `[slots, stride]`, of which the first `positions` of a row count.
    truth: Vec<i32>,
    stride: usize,
    rate: Vec<f32>,
    pattern: Option<Vec<i32>>,
    sequences: Vec<i32>,
    drafts: Vec<i32>,
    max_drafts: usize,
    valid: usize,
    seed: u64,
}

/// Slots and rounds as the operation leaves them.
fn run<B: Place>(on: &B::Queue, case: &Case) -> (Numbers, Vec<u32>) {
    let (n, slots, positions) = (case.sequences.len(), case.numbers.slots, case.numbers.positions);
    let problem = OracleProblem {
        sequences: n,
        max_drafts: case.max_drafts,
        slots,
        positions,
        valid: case.valid,
        pattern: case.pattern.as_ref().map(Vec::len),
        seed: case.seed,
    };
    let mut table = case.numbers.upload::<B>(on);
    let mut rounds = B::upload(on, &case.rounds).unwrap();
    let (truth, rate) = (B::upload(on, &case.truth).unwrap(), B::upload(on, &case.rate).unwrap());
    let pattern = case.pattern.as_ref().map(|pattern| B::upload(on, pattern).unwrap());
    let (sequences, drafts) = (B::upload(on, &case.sequences).unwrap(), B::upload(on, &case.drafts).unwrap());
    let args = OracleArgs {
        slots: table.lend(),
        rounds: TensorMut::of(&mut rounds, [slots]),
        truth: Tensor::of(&truth, [slots, positions]).with_strides([case.stride, 1]),
        rate: Tensor::of(&rate, [slots]),
        pattern: pattern.as_ref().map(|pattern| Tensor::of(pattern, [problem.pattern.unwrap()])),
        sequences: Tensor::of(&sequences, [n]),
        drafts: Tensor::of(&drafts, [n]),
    };
    Oracle::plan(problem, &B::device(on)).unwrap().run::<B>(on, args).unwrap();
    (Numbers::read::<B>(on, &table).settled(), B::read(on, &rounds, 0..slots).unwrap())
}

const POSITIONS: usize = 16;

/// Three slots that have committed 3 of 16 positions behind a prompt of 2, tokens -9; truth 20, 21, 22, ...
fn three() -> Case {
    let slots = 3;
    let numbers = Numbers {
        slots,
        positions: POSITIONS,
        tokens: vec![-9; slots * POSITIONS],
        committed: vec![3; slots],
        folded: vec![3; slots],
        drafted: vec![2; slots],
        proposed: vec![0; slots],
        limit: vec![16; slots],
        length_limit: vec![16; slots],
        prompt: vec![2; slots],
        state: vec![State::Running as i32; slots],
        faults: vec![0; slots + 1],
    };
    Case {
        numbers,
        rounds: vec![0; slots],
        truth: (20..20 + POSITIONS as i32).collect::<Vec<_>>().repeat(slots),
        stride: POSITIONS,
        rate: vec![1.0; slots],
        pattern: None,
        sequences: vec![1],
        drafts: vec![3],
        max_drafts: 4,
        valid: 100,
        seed: 7,
    }
}

pub(crate) fn by_hand<B: Place>(on: &B::Queue) {
    type Change = fn(&mut Case);
    let none: &[i32] = &[];
    let cases: [(&str, Change, &[i32], u32); 23] = [
        ("all right", |_| {}, &[24, 25, 26], 1),
        ("all wrong", |c| c.rate[1] = 0.0, &[25, 26, 27], 1),
        ("no chance at all", |c| c.rate[1] = f32::NAN, &[25, 26, 27], 1),
        ("other slots' chances", |c| c.rate = vec![0.0, 1.0, 0.0], &[24, 25, 26], 1),
        ("one draft", |c| c.drafts[0] = 1, &[24], 1),
        ("no drafts", |c| c.drafts[0] = 0, none, 0),
        ("less than none", |c| c.drafts[0] = i32::MIN, none, 0),
        ("more than there may be", |c| c.drafts[0] = i32::MAX, &[24, 25, 26, 27], 1),
        ("two pages' worth", |c| c.numbers.limit[1] = 6, &[24, 25], 1),
        ("two places", |c| c.numbers.length_limit[1] = 6, &[24, 25], 1),
        ("no place", |c| c.numbers.length_limit[1] = 4, none, 1),
        ("no page", |c| c.numbers.limit[1] = 0, none, 1),
        ("old drafts", |c| c.numbers.proposed[1] = 4, &[24, 25, 26], 1),
        ("just past its prompt", |c| c.numbers.prompt[1] = 3, &[24, 25, 26], 1),
        ("unknown is 0", |c| c.truth[POSITIONS + 5] = -1, &[24, 0, 26], 1),
        ("no such id is unknown", |c| c.truth[POSITIONS + 5] = 100, &[24, 0, 26], 1),
        ("wrong and unknown", |c| (c.truth[POSITIONS + 4], c.rate[1]) = (-5, 0.0), &[1, 26, 27], 1),
        ("the last id is followed by the first", |c| (c.rate[1], c.valid) = (0.0, 26), &[25, 0, 1], 1),
        ("a pattern's first", |c| c.pattern = Some(vec![1, 3]), &[24, 26, 27], 1),
        ("and second", |c| (c.pattern, c.rounds[1]) = (Some(vec![1, 3]), 5), &[24, 25, 26], 6),
        ("none of a pattern", |c| c.pattern = Some(vec![-4]), &[25, 26, 27], 1),
        (
            "the largest count",
            |c| (c.pattern, c.rounds[1]) = (Some(vec![0, 0, 0, 2, 0, 0, 0]), u32::MAX),
            &[24, 25, 27],
            0,
        ),
        ("a chance of a pattern", |c| (c.pattern, c.rate[1]) = (Some(vec![2]), 0.0), &[25, 26, 27], 1),
    ];
    for (what, change, drafts, rounds) in cases {
        let mut case = three();
        change(&mut case);
        let mut want = case.numbers.clone();
        want.proposed[1] = drafts.len() as i32;
        want.tokens[POSITIONS + 4..][..drafts.len()].copy_from_slice(drafts);
        let (got, counted) = run::<B>(on, &case);
        assert_eq!(got, want, "{what}");
        assert_eq!(counted, [case.rounds[0], rounds, case.rounds[2]], "{what}");
    }
}

pub(crate) fn nothing_for_those_who_do_not_decode<B: Place>(on: &B::Queue) {
    type Change = fn(&mut Case);
    let cases: [(&str, Change); 4] = [
        ("padding", |c| c.sequences[0] = -1),
        ("far below padding", |c| c.sequences[0] = i32::MIN),
        ("finished", |c| c.numbers.state[1] = State::Eos as i32),
        ("in its prompt", |c| c.numbers.prompt[1] = 4),
    ];
    for (what, change) in cases {
        let mut case = three();
        case.numbers.proposed[1] = 2;
        change(&mut case);
        assert_eq!(run::<B>(on, &case), (case.numbers.clone(), case.rounds.clone()), "{what}");
    }
    // Beside padding and in another order, everybody gets what they get alone.
    let mut case = three();
    (case.sequences, case.drafts) = (vec![2, -1, 0], vec![1, 3, 2]);
    let (got, rounds) = run::<B>(on, &case);
    assert_eq!((got.proposed, rounds), (vec![2, 0, 1], vec![1, 0, 1]));
    assert_eq!(got.tokens[4..7], [24, 25, -9]);
    assert_eq!(got.tokens[2 * POSITIONS + 4..][..2], [24, -9]);
    // Counters that cannot be, and a slot that does not exist.
    let mut case = three();
    (case.sequences, case.drafts) = (vec![3, 1], vec![1, 1]);
    case.numbers.committed[1] = POSITIONS as i32;
    let (got, rounds) = run::<B>(on, &case);
    assert!(got.faults[1] != 0 && got.faults[3] != 0, "{:?}", got.faults);
    assert_eq!((got.state[1], rounds), (State::Faulted as i32, vec![0; 3]));
    assert_eq!(got.tokens, case.numbers.tokens);
}

/// Which drafts are right at `rate`: one at a time, and all at once.
pub(crate) fn draws_are_functions_of_the_position<B: Place>(on: &B::Queue) {
    const LONG: usize = 4000;
    let of = |rate: f32, seed: u64, max_drafts: usize| {
        let mut case = three();
        let n = &mut case.numbers;
        (n.positions, n.tokens) = (LONG, vec![-9; 3 * LONG]);
        (n.limit, n.length_limit) = (vec![LONG as i32; 3], vec![LONG as i32; 3]);
        (case.truth, case.stride) = (vec![50; 3 * LONG], LONG);
        (case.rate, case.seed, case.max_drafts) = (vec![rate; 3], seed, max_drafts);
        (case.sequences, case.drafts) = (vec![0, 1, 2], vec![max_drafts as i32; 3]);
        case
    };
    let drafts = |numbers: &Numbers, slot: usize| numbers.tokens[slot * LONG + 4..][..LONG - 4].to_vec();
    for (rate, seed) in [(0.25, 1), (0.5, 2 << 40), (0.9, 3)] {
        let (all, _) = run::<B>(on, &of(rate, seed, LONG));
        let right = drafts(&all, 1).iter().filter(|id| **id == 50).count() as f32;
        let (want, wrong) =
            (rate * (LONG - 4) as f32, drafts(&all, 1).iter().filter(|id| **id == 51).count());
        // Five standard deviations.
        let off = 5.0 * (want * (1.0 - rate)).sqrt();
        assert!((right - want).abs() < off, "{right} of {} are right at {rate}", LONG - 4);
        assert_eq!(right as usize + wrong, LONG - 4);
        assert_ne!(drafts(&all, 0), drafts(&all, 1), "slots draw for themselves");
        assert_ne!(drafts(&run::<B>(on, &of(rate, seed ^ 1 << 50, LONG)).0, 1), drafts(&all, 1));
        let mut one = of(rate, seed, 1);
        for _ in 0..40 {
            (one.numbers, one.rounds) = run::<B>(on, &one);
            one.numbers.committed.iter_mut().for_each(|c| *c += 1);
            one.numbers.proposed = vec![0; 3];
        }
        for slot in 0..3 {
            assert_eq!(drafts(&one.numbers, slot)[..40], drafts(&all, slot)[..40], "slot {slot}");
        }
    }
}

const SLOTS: usize = 5;
const PLACES: usize = 200;
const MAX_ROWS: usize = 5;
/// What the target chooses everywhere.
const CHOSEN: i32 = 6;
const PATTERN: [i32; 7] = [0, 4, 1, 3, 2, 4, 0];

/// Rounds whose target always chooses the same token, and whose drafts come from a script.
struct Scripted<B: Place> {
    on: B::Queue,
    overlapping: bool,
    table: SlotTable<B>,
    rounds: B::Memory<u32>,
    truth: B::Memory<i32>,
    rate: B::Memory<f32>,
    pattern: B::Memory<i32>,
    sequences: B::Memory<i32>,
    drafts: B::Memory<i32>,
    ids: B::Memory<i32>,
    rows: RowTable<B>,
    choice: B::Memory<i32>,
    accepted: B::Memory<i32>,
    emitted: B::Memory<i32>,
    nothing: B::Memory<i32>,
    counts: [B::Memory<u64>; 3],
}

impl<B: Place> Scripted<B> {
    fn new(on: &B::Queue, overlapping: bool) -> Self {
        let mut table = SlotTable::new(on, SLOTS, PLACES).unwrap();
        for slot in 0..SLOTS {
            table.admit(on, slot, &[1, 2, 3, CHOSEN], PLACES, PLACES).unwrap();
            for counter in [&mut table.committed, &mut table.folded, &mut table.prompt] {
                B::write(on, counter, slot, &[3]).unwrap();
            }
        }
        let zeros = |n: usize| B::zeros::<i32>(on, n).unwrap();
        let rows = SLOTS * MAX_ROWS;
        Scripted {
            on: on.clone(),
            overlapping,
            table,
            rounds: B::upload(on, &[0, 1, 2, 3, 4]).unwrap(),
            truth: B::upload(on, &[CHOSEN; SLOTS * PLACES]).unwrap(),
            // The last slot's drafts are right by chance.
            rate: B::upload(on, &[1.0, 1.0, 1.0, 1.0, 0.6]).unwrap(),
            pattern: B::upload(on, &PATTERN).unwrap(),
            sequences: B::upload(on, &[3, 0, -1, 4, 1]).unwrap(),
            drafts: B::upload(on, &[MAX_ROWS as i32 - 1; SLOTS]).unwrap(),
            ids: zeros(rows),
            rows: RowTable::new(on, SLOTS).unwrap(),
            choice: B::upload(on, &vec![CHOSEN; rows]).unwrap(),
            accepted: zeros(SLOTS),
            emitted: zeros(SLOTS * (MAX_ROWS + 2)),
            nothing: B::upload(on, &[-1; SLOTS]).unwrap(),
            counts: [MAX_ROWS + 1, MAX_ROWS, MAX_ROWS].map(|n| B::zeros(on, SLOTS * n).unwrap()),
        }
    }

    /// Enqueues drafts and the round that verifies them.
    fn round(&mut self) -> kernels_core::Result<()> {
        let (device, early, rows) = (B::device(&self.on), self.overlapping, SLOTS * MAX_ROWS);
        let problem = OracleProblem {
            sequences: SLOTS,
            max_drafts: MAX_ROWS - 1,
            slots: SLOTS,
            positions: PLACES,
            valid: 9,
            pattern: Some(PATTERN.len()),
            seed: 11,
        };
        let args = OracleArgs {
            slots: self.table.lend(),
            rounds: TensorMut::of(&mut self.rounds, [SLOTS]),
            truth: Tensor::of(&self.truth, [SLOTS, PLACES]),
            rate: Tensor::of(&self.rate, [SLOTS]),
            pattern: Some(Tensor::of(&self.pattern, [PATTERN.len()])),
            sequences: Tensor::of(&self.sequences, [SLOTS]),
            drafts: Tensor::of(&self.drafts, [SLOTS]),
        };
        Oracle::plan(problem, &device)?.overlapping(early).run::<B>(&self.on, args)?;
        let base = Problem { sequences: SLOTS, rows, max_rows: MAX_ROWS, slots: SLOTS, positions: PLACES };
        let args = TargetInputsArgs {
            rows: self.rows.lend_mut(),
            ids: TensorMut::of(&mut self.ids, [rows]),
            slots: self.table.lend(),
            sequences: Tensor::of(&self.sequences, [SLOTS]),
            drafts: Tensor::of(&self.drafts, [SLOTS]),
        };
        TargetInputs::plan(base, &device)?.overlapping(early).run::<B>(&self.on, args)?;
        let stop = StopProblem { base, max_eos: 1, max_stops: 1, max_stop_length: 1 };
        let [rounds, verified, accepted] = &mut self.counts;
        let args = SettleArgs {
            accepted: TensorMut::of(&mut self.accepted, [SLOTS]),
            emitted: TensorMut::of(&mut self.emitted, [SLOTS, MAX_ROWS + 2]),
            slots: self.table.lend(),
            choice: Tensor::of(&self.choice, [rows]),
            stops: Stops {
                eos: Tensor::of(&self.nothing, [SLOTS, 1]),
                sequences: Tensor::of(&self.nothing, [SLOTS, 1, 1]),
            },
            counters: Some(Counters {
                rounds: TensorMut::of(rounds, [SLOTS, MAX_ROWS + 1]),
                verified: TensorMut::of(verified, [SLOTS, MAX_ROWS]),
                accepted: TensorMut::of(accepted, [SLOTS, MAX_ROWS]),
            }),
            rows: self.rows.lend(),
        };
        let settle = Settle::plan(SettleProblem { stop, flush_after: 2 }, &device)?;
        settle.overlapping(early).run::<B>(&self.on, args)
    }

    fn left(&self) -> (Numbers, Vec<u32>, Vec<i32>, Vec<u64>) {
        let emitted = B::read(&self.on, &self.emitted, 0..SLOTS * (MAX_ROWS + 2)).unwrap();
        let counts = B::read(&self.on, &self.counts[0], 0..SLOTS * (MAX_ROWS + 1)).unwrap();
        let rounds = B::read(&self.on, &self.rounds, 0..SLOTS).unwrap();
        (Numbers::read::<B>(&self.on, &self.table), rounds, emitted, counts)
    }
}

const ROUNDS: usize = 3 * PATTERN.len();

pub(crate) fn accept_lengths_follow_the_pattern<B: Place>(on: &B::Queue) {
    let mut machine = Scripted::<B>::new(on, false);
    for round in 0..ROUNDS {
        let before = machine.left().0.committed;
        machine.round().unwrap();
        let after = machine.left().0.committed;
        for slot in [0, 1, 3] {
            let want = 1 + PATTERN[(round + slot) % PATTERN.len()];
            assert_eq!(after[slot] - before[slot], want, "round {round} of slot {slot}");
        }
        assert_eq!(after[2], 3, "padding");
    }
    let (numbers, rounds, _, counts) = machine.left();
    assert_eq!(numbers.faults, [0; SLOTS + 1]);
    assert_eq!(rounds, [21, 22, 2, 24, 25]);
    // 0 and 4 stand twice in the pattern.
    assert_eq!(counts[..MAX_ROWS + 1], [0, 6, 3, 3, 3, 6]);
    let by_chance = &counts[4 * (MAX_ROWS + 1)..];
    assert!(by_chance.iter().sum::<u64>() == 21 && by_chance[1] > 6 && by_chance[1] < 21, "{by_chance:?}");
}

/// One graph of a round against the CPU, while the number of drafts changes on the device; and without anybody looking.
#[cfg(feature = "cuda")]
pub(crate) fn replays_equal_the_cpu(device: &Device) {
    for overlapping in [false, true] {
        let mut cpu = Scripted::<Cpu>::new(&(), false);
        let mut cuda = Scripted::<Cuda>::new(&device.queue, overlapping);
        let mut unseen = Scripted::<Cuda>::new(&device.queue, overlapping);
        // Loads the modules: not allowed while capturing.
        for machine in [&mut cuda, &mut unseen] {
            machine.round().unwrap();
        }
        cpu.round().unwrap();
        let graph = device.capture(|| cuda.round()).unwrap();
        let blind = device.capture(|| unseen.round()).unwrap();
        for round in 0..ROUNDS {
            let k = [(round * 3 % MAX_ROWS) as i32; SLOTS];
            cpu.drafts.copy_from_slice(&k);
            for machine in [&mut cuda, &mut unseen] {
                Cuda::write(&device.queue, &mut machine.drafts, 0, &k).unwrap();
            }
            cpu.round().unwrap();
            graph.launch().unwrap();
            blind.launch().unwrap();
            assert_eq!(cuda.left(), cpu.left(), "round {round}, overlapping {overlapping}");
        }
        assert_eq!(unseen.left(), cpu.left(), "{ROUNDS} rounds, overlapping {overlapping}");
    }
}

/// Random slots, sound and impossible ones.
#[cfg(feature = "cuda")]
pub(crate) fn equals_the_cpu(device: &Device) {
    use kernels_testkit::rng::Rng;
    let mut written = 0;
    for seed in (0..160).step_by(stride(11)) {
        let mut rng = Rng::new(seed as u64);
        let sequences = [1, 3, 40, 300, 700][seed % 5];
        let positions = 120;
        let mut numbers = Numbers::random(&mut rng, sequences, positions);
        // Now and then more drafts than a warp has lanes.
        let max_drafts = if seed % 7 == 0 { 40 } else { 1 + rng.below(8) };
        if max_drafts == 40 {
            (numbers.limit, numbers.length_limit) = (vec![120; sequences], vec![119; sequences]);
        }
        let mut list = List::random(&mut rng, &numbers, sequences, 3);
        if seed % 2 == 1 {
            numbers.spoil(&mut rng);
            list.spoil(&mut rng);
        }
        let stride = positions + rng.below(4);
        let words = |rng: &mut Rng, count: usize, below: usize| -> Vec<i32> {
            (0..count).map(|_| rng.below(below) as i32 - 1).collect()
        };
        let case = Case {
            rounds: (0..sequences).map(|_| rng.bits()).collect(),
            truth: words(&mut rng, sequences * stride, 9),
            stride,
            rate: (0..sequences).map(|_| [0.0, 0.3, 0.8, 1.0, f32::NAN][rng.below(5)]).collect(),
            pattern: (seed % 3 > 0).then(|| words(&mut rng, 1 + seed % 4, max_drafts + 2)),
            drafts: words(&mut rng, sequences, max_drafts + 3),
            sequences: list.slots,
            max_drafts,
            valid: 7,
            seed: u64::from(rng.bits()) << 16,
            numbers,
        };
        let (want, got) = (run::<Cpu>(&(), &case), run::<Cuda>(&device.queue, &case));
        assert_eq!(got, want, "{sequences} sequences, seed {seed}");
        written += want.0.tokens.iter().zip(&case.numbers.tokens).filter(|(a, b)| a != b).count();
    }
    assert!(written > 10_000 / stride(11), "{written} tokens were written");
}

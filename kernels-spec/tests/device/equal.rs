//! Random cases, sound and impossible ones: the bytes of the CPU.

use crate::world::{List, Numbers, Place};
use kernels_core::{Cpu, Cuda, Tensor, TensorMut, bf16};
use kernels_spec::*;
use kernels_testkit::{device::Device, guard::poison, rng::Rng, runner};

/// Sequences of a case: one, a few, more than a warp, more than a block of the list builder.
const SEQUENCES: [usize; 5] = [1, 3, 40, 300, 700];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Target,
    Prefill,
    Draft,
    Chain,
    Last,
}

struct Case {
    kind: Kind,
    numbers: Numbers,
    sequences: Vec<i32>,
    wanted: Vec<i32>,
    list: List,
    rows: usize,
    max_rows: usize,
}

fn build<B: Place>(on: &B::Queue, case: &Case) -> (Numbers, List, Vec<i32>) {
    let device = B::device(on);
    let n = case.sequences.len();
    let mut table = case.numbers.upload::<B>(on);
    let (sequences, wanted) = (B::upload(on, &case.sequences).unwrap(), B::upload(on, &case.wanted).unwrap());
    let from = case.list.upload::<B>(on);
    let rows = if case.kind == Kind::Chain { n } else { case.rows };
    let mut ids = B::upload(on, &vec![77; rows]).unwrap();
    let nothing = List { slots: vec![77; n], start: vec![77; n], offsets: vec![77; n + 1] };
    let mut made = if case.kind == Kind::Chain { &case.list } else { &nothing }.upload::<B>(on);
    let (slots, positions) = (case.numbers.slots, case.numbers.positions);
    let problem = Problem { sequences: n, rows, max_rows: case.max_rows, slots, positions };
    {
        let sequences = Tensor::of(&sequences, [n]);
        let wanted = Tensor::of(&wanted, [n]);
        match case.kind {
            Kind::Target => TargetInputs::plan(problem, &device).unwrap().run::<B>(
                on,
                TargetInputsArgs {
                    rows: made.lend_mut(),
                    ids: TensorMut::of(&mut ids, [rows]),
                    slots: table.lend(),
                    sequences,
                    drafts: wanted,
                },
            ),
            Kind::Prefill => PrefillInputs::plan(problem, &device).unwrap().run::<B>(
                on,
                PrefillInputsArgs {
                    rows: made.lend_mut(),
                    ids: TensorMut::of(&mut ids, [rows]),
                    slots: table.lend(),
                    sequences,
                    lengths: wanted,
                },
            ),
            Kind::Draft => {
                DraftInputs::plan(DraftProblem { base: problem, ring_rows: 2 }, &device).unwrap().run::<B>(
                    on,
                    DraftInputsArgs {
                        rows: made.lend_mut(),
                        ids: TensorMut::of(&mut ids, [rows]),
                        slots: table.lend(),
                        sequences,
                        forward: from.lend(),
                    },
                )
            }
            Kind::Chain => ChainInputs::plan(problem, &device).unwrap().run::<B>(
                on,
                ChainInputsArgs {
                    rows: made.lend_mut(),
                    ids: TensorMut::of(&mut ids, [rows]),
                    slots: table.lend(),
                    sequences,
                },
            ),
            Kind::Last => LastRows::plan(problem, &device)
                .unwrap()
                .run::<B>(on, LastRowsArgs { last: made.lend_mut(), slots: table.lend(), rows: from.lend() }),
        }
    }
    .unwrap();
    let ids = B::read(on, &ids, 0..rows).unwrap();
    (Numbers::read::<B>(on, &table).settled(), List::read::<B>(on, &made), ids)
}

pub(crate) fn inputs(device: &Device) {
    let mut gave_rows = 0;
    for (i, (kind, sequences)) in [Kind::Target, Kind::Prefill, Kind::Draft, Kind::Chain, Kind::Last]
        .into_iter()
        .flat_map(|kind| SEQUENCES.map(|n| (kind, n)))
        .enumerate()
    {
        for seed in (0..40).step_by(runner::stride(7)) {
            let mut rng = Rng::new((i * 1000 + seed) as u64);
            let max_rows = 1 + rng.below(7);
            let mut numbers = Numbers::random(&mut rng, sequences, 60);
            let mut list = List::random(&mut rng, &numbers, sequences, max_rows);
            let order = list.slots.clone();
            if kind == Kind::Chain {
                // Where the pass ended is where the latest draft stands, for most.
                for (i, slot) in order.iter().enumerate().filter(|(_, slot)| **slot >= 0) {
                    let latest = numbers.committed[*slot as usize] + numbers.proposed[*slot as usize];
                    list.start[i] = latest - (list.offsets[i + 1] - list.offsets[i]);
                }
            }
            if seed % 2 == 1 {
                numbers.spoil(&mut rng);
                list.spoil(&mut rng);
            }
            let wanted = (0..sequences).map(|_| rng.below(9) as i32 - 1).collect();
            // Prompts and refreshes may find no room for all; a round always has it.
            let rows = match kind {
                Kind::Prefill | Kind::Draft => 1 + rng.below(sequences * max_rows),
                _ => sequences * max_rows,
            };
            let sequences: Vec<i32> =
                order.iter().map(|s| if rng.below(20) == 0 { i32::MAX } else { *s }).collect();
            let case = Case { kind, numbers, sequences, wanted, list, rows, max_rows };
            let want = build::<Cpu>(&(), &case);
            let got = build::<Cuda>(&device.queue, &case);
            let what = format!("{kind:?}, {} sequences, seed {seed}", case.sequences.len());
            assert_eq!(got.1, want.1, "{what}: list");
            assert_eq!(got.2, want.2, "{what}: ids");
            assert_eq!(got.0, want.0, "{what}: slots");
            gave_rows += want.1.slots.iter().filter(|slot| **slot >= 0).count();
        }
    }
    assert!(gave_rows > 10_000 / runner::stride(10), "{gave_rows} sequences got rows");
}

/// Every step by itself, then all in one launch.
type Steps = (Numbers, Vec<i32>, Vec<i32>, Vec<Vec<u64>>);

struct Round {
    numbers: Numbers,
    list: List,
    choice: Vec<i32>,
    accepted: Vec<i32>,
    draft_choice: Option<Vec<i32>>,
    rows: usize,
    max_rows: usize,
    pass: Pass,
}

const EOS: usize = 3;
const STOPS: [usize; 2] = [5, 4];

fn settle<B: Place>(on: &B::Queue, case: &Round, step: &str) -> Steps {
    let device = B::device(on);
    let (n, slots) = (case.list.slots.len(), case.numbers.slots);
    let Round { rows, max_rows, .. } = *case;
    let base = Problem { sequences: n, rows, max_rows, slots, positions: case.numbers.positions };
    let mut table = case.numbers.upload::<B>(on);
    let list = case.list.upload::<B>(on);
    let choice = B::upload(on, &case.choice).unwrap();
    let draft_choice = case.draft_choice.as_ref().map(|c| B::upload(on, c).unwrap());
    let mut accepted = B::upload(on, &case.accepted).unwrap();
    let mut emitted = B::upload(on, &vec![77; n * (max_rows + 2)]).unwrap();
    let mut rng = Rng::new(1);
    let eos: Vec<i32> = (0..slots * EOS).map(|_| rng.below(30) as i32 - 1).collect();
    // Few tokens, so that they match now and then; some empty, some with an end in the middle.
    let stops: Vec<i32> = (0..slots * STOPS[0] * STOPS[1]).map(|_| rng.below(9) as i32 - 3).collect();
    let (eos, stops) = (B::upload(on, &eos).unwrap(), B::upload(on, &stops).unwrap());
    let mut counts =
        [max_rows + 1, max_rows, max_rows].map(|c| B::upload(on, &vec![5u64; slots * c]).unwrap());
    {
        let [r, v, a] = &mut counts;
        let counters = Some(Counters {
            rounds: TensorMut::of(r, [slots, max_rows + 1]),
            verified: TensorMut::of(v, [slots, max_rows]),
            accepted: TensorMut::of(a, [slots, max_rows]),
        });
        let stop = StopProblem { base, max_eos: EOS, max_stops: STOPS[0], max_stop_length: STOPS[1] };
        let ends = Stops {
            eos: Tensor::of(&eos, [slots, EOS]),
            sequences: Tensor::of(&stops, [slots, STOPS[0], STOPS[1]]),
        };
        let (rows, slots_) = (list.lend(), table.lend());
        match step {
            "accept" => Accept::plan(base, &device).unwrap().run::<B>(
                on,
                AcceptArgs {
                    accepted: TensorMut::of(&mut accepted, [n]),
                    slots: slots_,
                    choice: Tensor::of(&choice, [base.rows]),
                    rows,
                },
            ),
            "stop" => Stop::plan(stop, &device).unwrap().run::<B>(
                on,
                StopArgs { accepted: TensorMut::of(&mut accepted, [n]), slots: slots_, stops: ends, rows },
            ),
            "advance" => {
                let problem = AdvanceProblem { base, flush_after: 1, pass: case.pass };
                let accepted = TensorMut::of(&mut accepted, [n]);
                let args = AdvanceArgs { accepted, slots: slots_, counters, rows };
                Advance::plan(problem, &device).unwrap().run::<B>(on, args)
            }
            "emit" => Emit::plan(base, &device).unwrap().run::<B>(
                on,
                EmitArgs {
                    emitted: TensorMut::of(&mut emitted, [n, max_rows + 2]),
                    accepted: Tensor::of(&accepted, [n]),
                    slots: slots_,
                    rows,
                },
            ),
            "propose" => {
                let choice = draft_choice.as_ref().map(|c| Tensor::of(c, [n]));
                let args = ProposeArgs { slots: slots_, choice, rows };
                Propose::plan(base, &device).unwrap().run::<B>(on, args)
            }
            _ => Settle::plan(SettleProblem { stop, flush_after: 1 }, &device).unwrap().run::<B>(
                on,
                SettleArgs {
                    accepted: TensorMut::of(&mut accepted, [n]),
                    emitted: TensorMut::of(&mut emitted, [n, max_rows + 2]),
                    slots: slots_,
                    choice: Tensor::of(&choice, [base.rows]),
                    stops: ends,
                    counters,
                    rows,
                },
            ),
        }
    }
    .unwrap();
    let counts = counts.iter().map(|c| B::read(on, c, 0..B::len(c)).unwrap()).collect();
    let emitted = B::read(on, &emitted, 0..n * (max_rows + 2)).unwrap();
    let numbers = Numbers::read::<B>(on, &table).settled();
    (numbers, B::read(on, &accepted, 0..n).unwrap(), emitted, counts)
}

pub(crate) fn settling(device: &Device) {
    let (mut moved, mut ended) = (0, 0);
    for (i, step) in ["accept", "stop", "advance", "emit", "propose", "all"].into_iter().enumerate() {
        for seed in (0..120).step_by(runner::stride(11)) {
            let mut rng = Rng::new((i * 1000 + seed) as u64);
            let sequences = SEQUENCES[seed % SEQUENCES.len()];
            // One case in a few has more rows than a warp has lanes.
            let max_rows = if seed % 7 == 0 { 40 } else { 1 + rng.below(8) };
            let mut numbers = Numbers::random(&mut rng, sequences, 120);
            let mut list = List::random(&mut rng, &numbers, sequences, max_rows);
            let rows = *list.offsets.last().unwrap() as usize + 3;
            if seed % 2 == 1 {
                numbers.spoil(&mut rng);
                list.spoil(&mut rng);
            }
            // The drafts' own tokens for most rows, so that chains are accepted.
            let mut choice: Vec<i32> = (0..rows).map(|_| rng.below(7) as i32 - 1).collect();
            for i in 0..list.slots.len() {
                let (slot, start) = (list.slots[i], list.start[i]);
                let (first, end) = (list.offsets[i], list.offsets[i + 1]);
                for row in first.max(0)..end.min(rows as i32) {
                    let at = i64::from(start) + i64::from(row - first) + 1;
                    if (0..numbers.slots as i32).contains(&slot) && (0..120).contains(&at) && rng.below(6) > 0
                    {
                        choice[row as usize] = numbers.tokens[slot as usize * 120 + at as usize];
                    }
                }
            }
            let accepted = (0..list.slots.len()).map(|_| rng.below(max_rows + 3) as i32 - 1).collect();
            let draft_choice =
                (seed % 5 > 0).then(|| (0..list.slots.len()).map(|_| rng.below(9) as i32 - 1).collect());
            let pass = if step == "advance" && seed % 3 == 0 { Pass::Prefill } else { Pass::Decode };
            let case = Round { numbers, list, choice, accepted, draft_choice, rows, max_rows, pass };
            let want = settle::<Cpu>(&(), &case, step);
            let got = settle::<Cuda>(&device.queue, &case, step);
            let what = format!("{step}, {} sequences, seed {seed}, {pass:?}", case.list.slots.len());
            assert_eq!(got.1, want.1, "{what}: accept lengths");
            assert_eq!(got.2, want.2, "{what}: emitted");
            assert_eq!(got.3, want.3, "{what}: statistics");
            assert_eq!(got.0, want.0, "{what}: slots");
            moved += want.1.iter().filter(|a| **a > 1).count();
            let stops = [State::Eos, State::Stop, State::Length].map(|s| s as i32);
            ended += want
                .0
                .state
                .iter()
                .zip(&case.numbers.state)
                .filter(|(a, b)| a != b && stops.contains(a))
                .count();
        }
    }
    assert!(
        moved > 10_000 / runner::stride(20) && ended > 500 / runner::stride(20),
        "{moved} accepted drafts, {ended} ends"
    );
}

/// Guards `[rows, width]` between gaps, and reads it back with them.
fn copies<B: Place, A: kernels_core::Activation>(
    on: &B::Queue,
    numbers: &Numbers,
    lists: [&List; 2],
    [rows, forward_rows, width, stride]: [usize; 4],
) -> (Vec<A>, Vec<A>, Vec<A>, Numbers) {
    let device = B::device(on);
    let (n, slots, ring_rows) = (lists[0].slots.len(), numbers.slots, 5);
    let mut rng = Rng::new(3);
    let hidden = B::upload(on, &rng.normals::<A>(rows.max(forward_rows) * stride, 1.0)).unwrap();
    let mut ring = B::upload(on, &rng.normals::<A>(slots * ring_rows * stride, 1.0)).unwrap();
    let mut out = B::upload(on, &vec![poison::<A>(); rows * stride]).unwrap();
    let mut last = B::upload(on, &vec![poison::<A>(); n * stride]).unwrap();
    let mut table = numbers.upload::<B>(on);
    let [list, forward] = lists.map(|list| list.upload::<B>(on));
    let p = HiddenProblem { sequences: n, rows, forward_rows, width, slots, ring_rows };
    let (ring_dims, ring_strides) = ([slots, ring_rows, width], [ring_rows * stride, stride, 1]);
    let carry = CarryArgs::<B, A> {
        out: TensorMut::of(&mut out, [rows, width]).with_strides([stride, 1]),
        faults: TensorMut::of(&mut table.faults, [slots + 1]),
        hidden: Tensor::of(&hidden, [forward_rows, width]).with_strides([stride, 1]),
        ring: Tensor::of(&ring, ring_dims).with_strides(ring_strides),
        forward: forward.lend(),
        rows: list.lend(),
    };
    Carry::plan(p, &device).unwrap().run::<B, A>(on, carry).unwrap();
    let take = TakeLastArgs::<B, A> {
        out: TensorMut::of(&mut last, [n, width]).with_strides([stride, 1]),
        faults: TensorMut::of(&mut table.faults, [slots + 1]),
        hidden: Tensor::of(&hidden, [rows, width]).with_strides([stride, 1]),
        rows: list.lend(),
    };
    TakeLast::plan(p, &device).unwrap().run::<B, A>(on, take).unwrap();
    let keep = KeepHiddenArgs::<B, A> {
        ring: TensorMut::of(&mut ring, ring_dims).with_strides(ring_strides),
        faults: TensorMut::of(&mut table.faults, [slots + 1]),
        committed: Tensor::of(&table.committed, [slots]),
        hidden: Tensor::of(&hidden, [rows, width]).with_strides([stride, 1]),
        rows: list.lend(),
    };
    KeepHidden::plan(p, &device).unwrap().run::<B, A>(on, keep).unwrap();
    let read = |x: &B::Memory<A>| B::read(on, x, 0..B::len(x)).unwrap();
    (read(&out), read(&last), read(&ring), Numbers::read::<B>(on, &table).settled())
}

fn same_copies<A: kernels_core::Activation>(device: &Device, width: usize, stride: usize) {
    for seed in (0..30).step_by(runner::stride(7)) {
        let mut rng = Rng::new(seed);
        let sequences = [1, 4, 33][seed as usize % 3];
        let mut numbers = Numbers::random(&mut rng, sequences, 80);
        let forward = List::random(&mut rng, &numbers, sequences, 6);
        let forward_rows = *forward.offsets.last().unwrap() as usize + 1;
        let mut list = List { start: vec![], ..forward.clone() };
        let mut at = 0;
        for i in 0..sequences {
            list.start.push((forward.start[i] + rng.below(4) as i32 - 1).max(0));
            at += rng.below(4) as i32;
            list.offsets[i + 1] = at;
        }
        if seed % 3 == 2 {
            numbers.spoil(&mut rng);
            list.spoil(&mut rng);
        }
        // Every list is one of the same pass in TakeLast and KeepHidden.
        let rows = (at as usize + 2).max(forward_rows);
        let sizes = [rows, forward_rows, width, stride];
        let want = copies::<Cpu, A>(&(), &numbers, [&list, &forward], sizes);
        let got = copies::<Cuda, A>(&device.queue, &numbers, [&list, &forward], sizes);
        let what = format!("width {width}, stride {stride}, seed {seed}");
        let same = |name: &str, got: &[A], want: &[A]| {
            kernels_testkit::compare::assert_same_bits(&format!("{what}: {name}"), got, want);
        };
        same("carried", &got.0, &want.0);
        same("last rows", &got.1, &want.1);
        same("ring", &got.2, &want.2);
        assert_eq!(got.3, want.3, "{what}");
    }
}

pub(crate) fn hidden_rows(device: &Device) {
    same_copies::<bf16>(device, 5120, 5120);
    same_copies::<bf16>(device, 136, 144);
    same_copies::<bf16>(device, 33, 35);
    same_copies::<f32>(device, 64, 64);
    same_copies::<f32>(device, 7, 9);
}

//! Literal cases, on each backend.

use crate::world::{List, Logits, Numbers, Place, argmax, sample};
use kernels_core::{
    Tensor, TensorMut,
    slots::{Fault, FaultKind},
};
use kernels_spec::*;
use kernels_testkit::{rng::Rng, runner::stride};

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

pub(crate) fn argmax_edges<B: Place>(on: &B::Queue) {
    for (logits, want) in [
        (vec![1.0, 3.0, 3.0, 2.0, 9.0], 1),
        (vec![NAN, 2.0, NAN, 5.0, INF], 3),
        (vec![-INF, -INF, -INF, -INF, 0.0], 0),
        (vec![NAN, -INF, NAN, -INF, 0.0], 1),
        (vec![0.0, -0.0, -1.0, -0.0, 1.0], 0),
        (vec![-0.0, 0.0, -1.0, 0.0, 1.0], 0),
        (vec![-1.0, 1e-45, 0.0, 1e-45, 1.0], 1),
        (vec![INF, INF, 0.0, 1.0, 1.0], 0),
        (vec![f32::MIN, f32::MIN, -INF, -INF, 1.0], 0),
        (vec![NAN, NAN, NAN, NAN, 1.0], -1),
    ] {
        // The fifth id does not exist.
        assert_eq!(argmax::<B>(on, &logits, [1, 5, 4, 5], None), [want], "{logits:?}");
    }
}

/// One large value at each kind of place: ends of threads, steps, chunks and of the row; twice, the first wins.
pub(crate) fn an_argmax_in_every_place<B: Place>(on: &B::Queue) {
    for (valid, stride) in [(1, 3), (1023, 1024), (8193, 8200), (20_001, 20_003)] {
        let vocab = valid + 1;
        let places: Vec<usize> = [0, 1, 3, 4, 31, 127, 128, 1023, 1024, 4095, 8191, 8192, valid - 1]
            .into_iter()
            .filter(|place| *place < valid)
            .collect();
        let rows = places.len();
        let mut logits = vec![NAN; rows * stride];
        for (row, place) in places.iter().enumerate() {
            logits[row * stride..][..valid].fill(-3.0);
            logits[row * stride + valid] = INF;
            logits[row * stride + place] = 7.0;
            logits[row * stride + valid - 1] = 7.0;
        }
        let want: Vec<i32> = places.iter().map(|place| *place as i32).collect();
        for vectors in [1, 2, 4, 8].map(Some).into_iter().chain([None]) {
            let got = argmax::<B>(on, &logits, [rows, vocab, valid, stride], vectors);
            assert_eq!(got, want, "{valid} ids, stride {stride}, {vectors:?} vectors");
        }
    }
}

/// One slot with a prompt and an answer; the last row of `rows` chooses.
fn choose<B: Place>(
    on: &B::Queue,
    params: &SamplingParams,
    (prompt, answer): (&[i32], &[i32]),
    logits: &[f32],
    valid: usize,
) -> i32 {
    let mut n = Numbers::random(&mut Rng::new(1), 1, 64);
    let tokens = [prompt, answer].concat();
    n.tokens[..tokens.len()].copy_from_slice(&tokens);
    n.prompt[0] = prompt.len() as i32;
    let mut table = n.upload::<B>(on);
    let mut sampling = SamplingTable::<B>::new(on, 1, 3).unwrap();
    let vocab = logits.len();
    sampling.set(on, 0, params, vocab).unwrap();
    let problem = SampleProblem { sequences: 1, rows: 1, vocab, valid, slots: 1, positions: 64, max_bias: 3 };
    let of = Logits { problem, logits: B::upload(on, logits).unwrap(), stride: vocab };
    let list = List { slots: vec![0], start: vec![tokens.len() as i32 - 1], offsets: vec![0, 1] };
    sample::<B>(on, &of, &mut table, &sampling, &list, None)[0]
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() }
}

pub(crate) fn greedy_edges<B: Place>(on: &B::Queue) {
    for (logits, want) in [
        (vec![1.0, 3.0, 3.0], 1),
        (vec![NAN, 2.0, NAN, 5.0], 3),
        (vec![-INF, -1e30], 1),
        (vec![-0.0, 0.0], 0),
        (vec![INF, INF], 0),
        (vec![NAN, -INF], -1),
        (vec![-INF; 5], -1),
        (vec![f32::MIN, -INF], 0),
    ] {
        for params in [
            SamplingParams::default(),
            SamplingParams { top_k: 1, ..sampled(3) },
            SamplingParams { top_p: 0.0, ..sampled(3) },
            SamplingParams { temperature: 0.5 * GREEDY_BELOW, ..sampled(3) },
        ] {
            let got = choose::<B>(on, &params, (&[0], &[]), &logits, logits.len());
            assert_eq!(got, want, "{logits:?} {params:?}");
        }
    }
}

pub(crate) fn penalties_count_the_drafts_of_the_block<B: Place>(on: &B::Queue) {
    let mut n = Numbers::random(&mut Rng::new(1), 1, 16);
    n.tokens[..6].copy_from_slice(&[3, 1, 1, 1, 2, 9]);
    n.prompt[0] = 1;
    let mut table = n.upload::<B>(on);
    let mut sampling = SamplingTable::<B>::new(on, 1, 3).unwrap();
    let params = SamplingParams { frequency_penalty: 1.0, ..SamplingParams::default() };
    sampling.set(on, 0, &params, 4).unwrap();
    let problem =
        SampleProblem { sequences: 1, rows: 4, vocab: 4, valid: 4, slots: 1, positions: 16, max_bias: 3 };
    let logits = [0.9, 3.5, 1.4, 0.0].repeat(4);
    let of = Logits { problem, logits: B::upload(on, &logits).unwrap(), stride: 4 };
    let list = List { slots: vec![0], start: vec![1], offsets: vec![0, 4] };
    assert_eq!(sample::<B>(on, &of, &mut table, &sampling, &list, None), [1, 1, 2, 0]);

    // Repetition reaches the prompt, presence and frequency the answer only; all three in their order.
    let of = |repetition_penalty, presence_penalty, frequency_penalty| SamplingParams {
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        ..SamplingParams::default()
    };
    for (params, logits, want) in [
        (of(2.0, 0.0, 0.0), [4.0, 5.0, 3.0, 2.6], 3),
        (of(2.0, 0.0, 0.0), [-1.0, -1.0, -2.0, -1.5], 3),
        (of(1.0, 1.5, 0.0), [4.0, 5.0, 4.5, 2.0], 0),
        (of(1.0, 0.0, 1.0), [3.2, 5.0, 4.5, 2.0], 2),
        (of(2.0, 0.5, 0.25), [0.0, 5.0, 0.0, 1.6], 3),
        (of(2.0, 0.5, 0.25), [0.0, 5.0, 0.0, 1.4], 1),
    ] {
        assert_eq!(
            choose::<B>(on, &params, (&[0, 0], &[1, 1, 2]), &logits, 4),
            want,
            "{params:?} {logits:?}"
        );
    }
    assert_eq!(choose::<B>(on, &of(0.5, -9.0, 0.0), (&[1], &[1, 99, -1]), &[0.0, -INF], 2), 0);
}

pub(crate) fn biases_of_one_id_add_up<B: Place>(on: &B::Queue) {
    let with = |bias: &[(u32, f32)]| SamplingParams { bias: bias.to_vec(), ..SamplingParams::default() };
    let logits = [1.0, 2.0, 3.0];
    for (bias, want) in [
        (vec![(0, 2.5)], 0),
        (vec![(2, -INF), (1, -1.5)], 0),
        (vec![(0, 1.25), (1, 0.5), (0, 1.0)], 0),
        (vec![(0, -INF), (1, -INF), (2, -INF)], -1),
    ] {
        assert_eq!(choose::<B>(on, &with(&bias), (&[0], &[]), &logits, 3), want, "{bias:?}");
    }
    // After the penalties: 4 / 2 + 1 = 3 beats 2.9.
    let params = SamplingParams { repetition_penalty: 2.0, ..with(&[(0, 1.0)]) };
    assert_eq!(choose::<B>(on, &params, (&[0], &[]), &[4.0, 2.9], 2), 0);
}

pub(crate) fn filters_by_hand<B: Place>(on: &B::Queue) {
    // Shares 0.4, 0.3, 0.2, 0.1; and the same with ties.
    let logits: Vec<f32> = [0.2f32, 0.4, 0.1, 0.3].map(f32::ln).to_vec();
    let seen = |params: SamplingParams, logits: &[f32]| -> Vec<bool> {
        let mut seen = vec![false; logits.len()];
        for seed in (0..200).step_by(stride(3)) {
            let params = SamplingParams { seed, ..params.clone() };
            seen[choose::<B>(on, &params, (&[0], &[]), logits, logits.len()) as usize] = true;
        }
        seen
    };
    for (top_k, top_p, min_p, want) in [
        (0, 1.0, 0.0, [true; 4]),
        (3, 1.0, 0.0, [true, true, false, true]),
        (1, 1.0, 0.0, [false, true, false, false]),
        (0, 0.69, 0.0, [false, true, false, true]),
        (0, 0.71, 0.0, [true, true, false, true]),
        (0, 1.0, 0.6, [false, true, false, true]),
        // Of the two that top-k leaves, 0.4 is more than half.
        (2, 0.5, 0.0, [false, true, false, false]),
    ] {
        let params = SamplingParams { top_k, top_p, min_p, ..sampled(0) };
        assert_eq!(seen(params.clone(), &logits), want, "{params:?}");
    }
    // Ties keep the smallest ids.
    let params = SamplingParams { top_k: 2, ..sampled(0) };
    assert_eq!(seen(params, &[1.0; 4]), [true, true, false, false]);
    let params = SamplingParams { top_p: 0.5, ..sampled(0) };
    assert_eq!(seen(params, &[1.0; 4]), [true, true, false, false]);
}

pub(crate) fn ids_beyond_the_tokenizer_are_never_chosen<B: Place>(on: &B::Queue) {
    let logits = [1.0, 2.0, 0.0, 99.0, INF];
    for (params, valid, want) in [
        (SamplingParams::default(), 3, 1),
        (sampled(9), 1, 0),
        (SamplingParams { top_k: 1, ..sampled(1) }, 3, 1),
        (SamplingParams { bias: vec![(4, 9.0), (3, 9.0)], ..SamplingParams::default() }, 3, 1),
    ] {
        assert_eq!(choose::<B>(on, &params, (&[4], &[3]), &logits, valid), want, "{params:?}");
    }
}

pub(crate) fn infinite_logits_leave_only_each_other<B: Place>(on: &B::Queue) {
    let logits = [INF, 5.0, INF, -INF, NAN];
    for base in
        [sampled(0), SamplingParams { top_k: 4, ..sampled(0) }, SamplingParams { top_p: 0.99, ..sampled(0) }]
    {
        let mut seen = [0; 5];
        for seed in 0..64 {
            let params = SamplingParams { seed, ..base.clone() };
            seen[choose::<B>(on, &params, (&[0], &[]), &logits, 5) as usize] += 1;
        }
        assert!(seen[0] > 10 && seen[2] > 10 && seen[0] + seen[2] == 64, "{seen:?} {base:?}");
    }
    assert_eq!(choose::<B>(on, &sampled(1), (&[0], &[]), &[f32::MIN, f32::MAX], 2), 1);
}

/// Five slots that draw differently: each row by itself, then all at once in other orders with padding between, rows of
/// nobody behind, and NaN in both.
pub(crate) fn rows_alone_are_rows_in_a_batch<B: Place>(on: &B::Queue) {
    const VOCAB: usize = 5003;
    let (slots, positions) = (5, 32);
    let mut rng = Rng::new(8);
    let mut n = Numbers::random(&mut rng, slots, positions);
    n.prompt = vec![3; slots];
    let mut table = n.upload::<B>(on);
    let mut sampling = SamplingTable::<B>::new(on, slots, 3).unwrap();
    for slot in 0..slots {
        let params = SamplingParams {
            temperature: [0.7, 0.0, 1.3, 1.0, 0.9][slot],
            top_k: [0, 0, 40, 0, 4500][slot],
            top_p: [0.9, 1.0, 1.0, 1.0, 0.999][slot],
            frequency_penalty: [0.0, 0.5, 0.0, 0.3, 0.0][slot],
            bias: [vec![], vec![], vec![(17, 2.0)], vec![(5, 1.0), (5, 1.0)], vec![]][slot].clone(),
            seed: 77 + slot as u64,
            ..SamplingParams::default()
        };
        sampling.set(on, slot, &params, VOCAB).unwrap();
    }
    let mut pick = |logits: &[f32], list: &List, vectors| {
        let rows = logits.len() / VOCAB;
        let sequences = list.slots.len();
        let problem =
            SampleProblem { sequences, rows, vocab: VOCAB, valid: VOCAB, slots, positions, max_bias: 3 };
        let of = Logits { problem, logits: B::upload(on, logits).unwrap(), stride: VOCAB };
        sample::<B>(on, &of, &mut table, &sampling, list, vectors)
    };
    let logits: Vec<Vec<f32>> = (0..slots * 4).map(|_| rng.normals(VOCAB, 2.0)).collect();
    let start = |slot: usize| 5 + 3 * slot as i32;
    let mut alone = vec![];
    for slot in 0..slots {
        for row in 0..4 {
            let list =
                List { slots: vec![slot as i32], start: vec![start(slot) + row as i32], offsets: vec![0, 1] };
            alone.push(pick(&logits[slot * 4 + row], &list, None)[0]);
        }
    }
    for order in [[4, 0, 2, 1, 3], [1, 3, 4, 0, 2]] {
        let mut list = List { slots: vec![-1], start: vec![9], offsets: vec![0, 2] };
        let (mut all, mut want) = (vec![NAN; 2 * VOCAB], vec![-1, -1]);
        for slot in order {
            list.slots.push(slot as i32);
            list.start.push(start(slot));
            for row in 0..4 {
                all.extend(&logits[slot * 4 + row]);
                want.push(alone[slot * 4 + row]);
            }
            list.offsets.push(want.len() as i32);
        }
        all.extend(vec![NAN; 3 * VOCAB]);
        want.extend([-1; 3]);
        for vectors in [None, Some(1), Some(2), Some(4), Some(8)] {
            assert_eq!(pick(&all, &list, vectors), want, "{order:?} {vectors:?}");
        }
    }
    let after = Numbers::read::<B>(on, &table);
    assert_eq!(after.faults, vec![0; slots + 1]);
}

/// Chi-squared on fixed seeds, plain and filtered.
pub(crate) fn draws_follow_the_softmax<B: Place>(on: &B::Queue) {
    const VOCAB: usize = 8;
    const SLOTS: usize = 100;
    let count = 200 / stride(10);
    let logits: [f32; VOCAB] = [0.3, -1.0, 2.0, 1.1, 0.0, 1.9, 0.7, 1.4];
    for (params, kept) in [
        (sampled(0), VOCAB),
        (SamplingParams { temperature: 1.7, ..sampled(0) }, VOCAB),
        (SamplingParams { top_k: 5, ..sampled(0) }, 5),
    ] {
        let mut table = Numbers::random(&mut Rng::new(1), SLOTS, count + 8).upload::<B>(on);
        let mut sampling = SamplingTable::<B>::new(on, SLOTS, 3).unwrap();
        for slot in 0..SLOTS {
            let params = SamplingParams { seed: 0x5eed + slot as u64 * 0x1_0000_0001, ..params.clone() };
            sampling.set(on, slot, &params, VOCAB).unwrap();
        }
        let rows = SLOTS * count;
        let problem = SampleProblem {
            sequences: SLOTS,
            rows,
            vocab: VOCAB,
            valid: VOCAB,
            slots: SLOTS,
            positions: count + 8,
            max_bias: 3,
        };
        let of = Logits { problem, logits: B::upload(on, &logits.repeat(rows)).unwrap(), stride: VOCAB };
        let list = List {
            slots: (0..SLOTS as i32).collect(),
            start: vec![0; SLOTS],
            offsets: (0..=SLOTS).map(|i| (i * count) as i32).collect(),
        };
        let mut seen = [0usize; VOCAB];
        for choice in sample::<B>(on, &of, &mut table, &sampling, &list, None) {
            seen[choice as usize] += 1;
        }
        let mut order: Vec<usize> = (0..VOCAB).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let weight = |id: usize| (f64::from(logits[id]) / f64::from(params.temperature)).exp();
        let total: f64 = order[..kept].iter().map(|id| weight(*id)).sum();
        let mut chi = 0.0;
        for (rank, id) in order.iter().enumerate() {
            let want = if rank < kept { weight(*id) / total * rows as f64 } else { 0.0 };
            if rank < kept {
                chi += (seen[*id] as f64 - want).powi(2) / want;
            } else {
                assert_eq!(seen[*id], 0);
            }
        }
        // One in ten thousand at 7 degrees of freedom.
        assert!(chi < 29.9, "chi squared {chi}, {seen:?}, {params:?}");
    }
}

struct Settled {
    after: Numbers,
    accepted: Vec<i32>,
    emitted: Vec<i32>,
    rounds: Vec<u64>,
}

/// [`Settle`] with end-of-sequence id 9 and the stop sequence 4 5.
fn settle<B: Place>(on: &B::Queue, n: &Numbers, list: &List, choice: &[i32], max_rows: usize) -> Settled {
    let (slots, sequences) = (n.slots, list.slots.len());
    let base = Problem { sequences, rows: choice.len(), max_rows, slots, positions: n.positions };
    let stop = StopProblem { base, max_eos: 1, max_stops: 1, max_stop_length: 3 };
    let op = Settle::plan(SettleProblem { stop, flush_after: 1 }, &B::device(on)).unwrap();
    let (mut table, rows) = (n.upload::<B>(on), list.upload::<B>(on));
    let choice = B::upload(on, choice).unwrap();
    let eos = B::upload(on, &vec![9; slots]).unwrap();
    let stops = B::upload(on, &[4, 5, -1].repeat(slots)).unwrap();
    let mut accepted = B::upload(on, &vec![77; sequences]).unwrap();
    let mut emitted = B::upload(on, &vec![77; sequences * (max_rows + 2)]).unwrap();
    let mut counts = [max_rows + 1, max_rows, max_rows].map(|n| B::zeros::<u64>(on, slots * n).unwrap());
    let [r, v, a] = &mut counts;
    let args = SettleArgs {
        accepted: TensorMut::of(&mut accepted, [sequences]),
        emitted: TensorMut::of(&mut emitted, [sequences, max_rows + 2]),
        slots: table.lend(),
        choice: Tensor::of(&choice, [base.rows]),
        stops: Stops { eos: Tensor::of(&eos, [slots, 1]), sequences: Tensor::of(&stops, [slots, 1, 3]) },
        counters: Some(Counters {
            rounds: TensorMut::of(r, [slots, max_rows + 1]),
            verified: TensorMut::of(v, [slots, max_rows]),
            accepted: TensorMut::of(a, [slots, max_rows]),
        }),
        rows: rows.lend(),
    };
    op.run::<B>(on, args).unwrap();
    Settled {
        after: Numbers::read::<B>(on, &table),
        accepted: B::read(on, &accepted, 0..sequences).unwrap(),
        emitted: B::read(on, &emitted, 0..sequences * (max_rows + 2)).unwrap(),
        rounds: B::read(on, &counts[0], 0..slots * (max_rows + 1)).unwrap(),
    }
}

/// `slots` slots that have committed 3 of 16 positions, tokens 0, 1, 2, ...
fn three_committed(slots: usize) -> Numbers {
    let mut n = Numbers::random(&mut Rng::new(1), slots, 16);
    n.tokens = (0..16).collect::<Vec<i32>>().repeat(slots);
    n.committed = vec![3; slots];
    n.folded = vec![1; slots];
    n.proposed = vec![2; slots];
    n.limit = vec![16; slots];
    n.length_limit = vec![16; slots];
    n.prompt = vec![2; slots];
    n.state = vec![State::Running as i32; slots];
    n
}

pub(crate) fn a_round_by_hand<B: Place>(on: &B::Queue) {
    let n = three_committed(4);
    // All right, the first wrong, one right, padding; in another order than the slots'.
    let list = List { slots: vec![2, 0, -1, 1], start: vec![3, 3, 0, 3], offsets: vec![0, 3, 6, 7, 10] };
    let got = settle::<B>(on, &n, &list, &[4, 5, 6, 8, 1, 1, 1, 4, 8, 1, -1, -1], 3);
    // 4 5 is a stop sequence: the first one ends there, though its third row was right too.
    assert_eq!(got.accepted, [2, 1, 0, 2]);
    assert_eq!(got.after.committed, [4, 5, 5, 3]);
    assert_eq!(got.after.folded, [3, 3, 3, 1], "two pending rows are more than one");
    assert_eq!(got.after.proposed, [0, 0, 0, 2]);
    assert_eq!(got.emitted[..5], [2, State::Stop as i32, 4, 5, -1]);
    assert_eq!(got.emitted[5..10], [1, State::Running as i32, 8, -1, -1]);
    assert_eq!(got.emitted[10..15], [0, -1, -1, -1, -1]);
    assert_eq!(got.emitted[15..], [2, State::Running as i32, 4, 8, -1]);
    assert_eq!(got.after.tokens[4..7], [8, 5, 6], "slot 0");
}

pub(crate) fn stops_by_hand<B: Place>(on: &B::Queue) {
    let mut n = three_committed(3);
    n.length_limit[2] = 6;
    let list = List { slots: vec![0, 1, 2], start: vec![3; 3], offsets: vec![0, 3, 6, 9] };
    n.tokens[16 + 4] = 9;
    let got = settle::<B>(on, &n, &list, &[4, 5, 6, 9, 5, 6, -1, 0, 0], 3);
    assert_eq!(got.after.faults[2], Fault { kind: FaultKind::Logits, slot: 2, value: 4 }.encode());
    assert_eq!(got.accepted, [2, 1, 0]);
    assert_eq!(got.after.state, [State::Stop as i32, State::Eos as i32, State::Faulted as i32]);
    assert_eq!(got.rounds[..12], [0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
}

//! The rejection chain and its drafts: literal cases and chances, on each backend.

use crate::world::{List, Numbers, Place};
use kernels_core::{
    Tensor, TensorMut,
    slots::{Fault, FaultKind},
};
use kernels_spec::*;
use kernels_testkit::{rng::Rng, runner::stride};

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

/// Slots, their rules, and what drafts are drawn from.
pub(crate) struct Chain<B: Place> {
    pub(crate) on: B::Queue,
    pub(crate) base: SampleProblem,
    pub(crate) ring_rows: usize,
    pub(crate) table: SlotTable<B>,
    pub(crate) sampling: SamplingTable<B>,
    /// `[slots, ring_rows, vocab]`.
    pub(crate) probabilities: B::Memory<f32>,
    pub(crate) vectors: Option<usize>,
}

impl<B: Place> Chain<B> {
    pub(crate) fn new(
        on: &B::Queue,
        numbers: &Numbers,
        params: &[SamplingParams],
        [vocab, valid, ring_rows, max_bias]: [usize; 4],
        probabilities: &[f32],
    ) -> Self {
        let (slots, positions) = (numbers.slots, numbers.positions);
        let mut sampling = SamplingTable::<B>::new(on, slots, max_bias).unwrap();
        for (slot, params) in params.iter().enumerate() {
            sampling.set(on, slot, params, vocab).unwrap();
        }
        Chain {
            on: on.clone(),
            base: SampleProblem { sequences: 0, rows: 0, vocab, valid, slots, positions, max_bias },
            ring_rows,
            table: numbers.upload::<B>(on),
            sampling,
            probabilities: B::upload(on, probabilities).unwrap(),
            vectors: None,
        }
    }

    fn problem(&self, list: &List, rows: usize) -> RejectionProblem {
        let base = SampleProblem { sequences: list.slots.len(), rows, ..self.base };
        RejectionProblem { base, ring_rows: self.ring_rows }
    }

    /// Draws in every row; rows of `logits` are `stride` elements apart.
    pub(crate) fn draw(&mut self, list: &List, logits: &[f32], stride: usize) -> Vec<i32> {
        let (on, RejectionProblem { base: p, ring_rows }) =
            (&self.on, self.problem(list, logits.len() / stride));
        let mut op = DrawDraft::plan(RejectionProblem { base: p, ring_rows }, &B::device(on)).unwrap();
        if let Some(vectors) = self.vectors {
            op = op.with_vectors_per_thread(vectors);
        }
        let (rows, logits) = (list.upload::<B>(on), B::upload(on, logits).unwrap());
        let mut choice = B::upload(on, &vec![77; p.rows]).unwrap();
        let bytes = op.workspace_bytes();
        let mut workspace = B::upload(on, &vec![0xa5u8; bytes]).unwrap();
        let args = DrawDraftArgs {
            choice: TensorMut::of(&mut choice, [p.rows]),
            probabilities: TensorMut::of(&mut self.probabilities, [p.slots, ring_rows, p.vocab]),
            faults: TensorMut::of(&mut self.table.faults, [p.slots + 1]),
            logits: Tensor::of(&logits, [p.rows, p.vocab]).with_strides([stride, 1]),
            rows: rows.lend(),
            tokens: Tensor::of(&self.table.tokens, [p.slots, p.positions]),
            prompt: Tensor::of(&self.table.prompt, [p.slots]),
            sampling: self.sampling.lend(),
            workspace: (bytes > 0).then(|| TensorMut::of(&mut workspace, [bytes])),
        };
        op.run::<B>(on, args).unwrap();
        B::read(on, &choice, 0..p.rows).unwrap()
    }

    /// Accept lengths.
    pub(crate) fn reject(&mut self, list: &List, logits: &[f32], stride: usize) -> Vec<i32> {
        let (on, RejectionProblem { base: p, ring_rows }) =
            (&self.on, self.problem(list, logits.len() / stride));
        let mut op = Rejection::plan(RejectionProblem { base: p, ring_rows }, &B::device(on)).unwrap();
        if let Some(vectors) = self.vectors {
            op = op.with_vectors_per_thread(vectors);
        }
        let (rows, logits) = (list.upload::<B>(on), B::upload(on, logits).unwrap());
        let mut accepted = B::upload(on, &vec![77; p.sequences]).unwrap();
        let bytes = op.workspace_bytes();
        let mut workspace = B::upload(on, &vec![0xa5u8; bytes]).unwrap();
        let args = RejectionArgs {
            accepted: TensorMut::of(&mut accepted, [p.sequences]),
            slots: self.table.lend(),
            logits: Tensor::of(&logits, [p.rows, p.vocab]).with_strides([stride, 1]),
            probabilities: Tensor::of(&self.probabilities, [p.slots, ring_rows, p.vocab]),
            rows: rows.lend(),
            sampling: self.sampling.lend(),
            workspace: (bytes > 0).then(|| TensorMut::of(&mut workspace, [bytes])),
        };
        op.run::<B>(on, args).unwrap();
        B::read(on, &accepted, 0..p.sequences).unwrap()
    }

    pub(crate) fn kept(&self) -> Vec<f32> {
        B::read(&self.on, &self.probabilities, 0..B::len(&self.probabilities)).unwrap()
    }

    pub(crate) fn numbers(&self) -> Numbers {
        Numbers::read::<B>(&self.on, &self.table)
    }
}

/// Running slots at position 0, with an empty prompt and `tokens` from position 0 on.
pub(crate) fn running(slots: usize, positions: usize, tokens: &[i32]) -> Numbers {
    let mut n = Numbers::random(&mut Rng::new(1), slots, positions.max(9));
    n.state = vec![State::Running as i32; slots];
    (n.committed, n.prompt) = (vec![0; slots], vec![0; slots]);
    for slot in 0..slots {
        n.tokens[slot * n.positions..][..tokens.len()].copy_from_slice(tokens);
    }
    n
}

fn unit(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() }
}

fn ln<const N: usize>(p: [f32; N]) -> [f32; N] {
    p.map(f32::ln)
}

pub(crate) fn drafts_by_hand<B: Place>(on: &B::Queue) {
    const VOCAB: usize = 6;
    // The last id does not exist.
    let logits = [ln([0.2, 0.4, 0.1, 0.3]).as_slice(), &[NAN, INF]].concat();
    for (params, want) in [
        (unit(3), [0.2, 0.4, 0.1, 0.3]),
        (SamplingParams { top_k: 2, ..unit(3) }, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]),
        (SamplingParams { top_p: 0.71, ..unit(3) }, [2.0 / 9.0, 4.0 / 9.0, 0.0, 3.0 / 9.0]),
        (SamplingParams { min_p: 0.6, ..unit(3) }, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]),
        (SamplingParams { temperature: 0.5, ..unit(3) }, [4.0 / 30.0, 16.0 / 30.0, 1.0 / 30.0, 9.0 / 30.0]),
        (SamplingParams::default(), [0.0, 1.0, 0.0, 0.0]),
        (SamplingParams { bias: vec![(1, -INF), (3, -INF)], ..unit(3) }, [2.0 / 3.0, 0.0, 1.0 / 3.0, 0.0]),
    ] {
        let mut chain = Chain::<B>::new(
            on,
            &running(2, 12, &[0; 8]),
            &[unit(0), params.clone()],
            [VOCAB, 5, 3, 2],
            &[NAN; 36],
        );
        // The row at position 4 chooses for 5, whose place is 5 % 3 = 2.
        let list = List { slots: vec![1], start: vec![4], offsets: vec![0, 1] };
        let choice = chain.draw(&list, &logits, VOCAB)[0];
        let kept = chain.kept();
        let (before, here) = kept.split_at(5 * VOCAB);
        assert!(before.iter().all(|p| p.is_nan()), "{params:?}: {kept:?}");
        for (id, want) in want.into_iter().chain([0.0, 0.0]).enumerate() {
            let exact = want == 0.0 || want == 1.0;
            let off = (here[id] - want).abs();
            assert!(if exact { here[id] == want } else { off < 1e-6 }, "{params:?}: {here:?}");
        }
        assert!(here[choice as usize] > 0.0, "{params:?} chose {choice}");
    }
    // Nothing to draw from: zeros. More rows than places: the last ones stay.
    let mut chain = Chain::<B>::new(on, &running(1, 12, &[0; 8]), &[unit(1)], [2, 2, 2, 0], &[NAN; 4]);
    let list = List { slots: vec![0], start: vec![0], offsets: vec![0, 3] };
    let rows = [[0.0, -INF], [-INF, 0.0], [NAN, -INF]].concat();
    assert_eq!(chain.draw(&list, &rows, 2), [0, 1, -1]);
    assert_eq!(chain.kept(), [0.0, 1.0, 0.0, 0.0]);
    // Infinite logits share all.
    let rows = [[INF, INF], [INF, 0.0], [INF, NAN]].concat();
    chain.draw(&list, &rows, 2);
    assert_eq!(chain.kept(), [1.0, 0.0, 1.0, 0.0]);
}

/// One draft, id `draft`, against rows of the target; the accept length, the token written, and the fault.
fn judge<B: Place>(
    on: &B::Queue,
    params: &SamplingParams,
    draft: i32,
    q: [f32; 4],
    rows: [[f32; 4]; 2],
) -> (i32, Vec<i32>, Option<FaultKind>) {
    let numbers = running(1, 12, &[0, draft, 99]);
    let probabilities = [[NAN; 4], q].concat();
    let mut chain = Chain::<B>::new(on, &numbers, std::slice::from_ref(params), [4, 3, 2, 0], &probabilities);
    let list = List { slots: vec![0], start: vec![0], offsets: vec![0, 2] };
    let a = chain.reject(&list, &rows.concat(), 4)[0];
    let after = chain.numbers();
    (a, after.tokens[1..3].to_vec(), Fault::decode(after.faults[0]).map(|fault| fault.kind))
}

pub(crate) fn chains_by_hand<B: Place>(on: &B::Queue) {
    let flat = [0.0, 0.0, 0.0, INF];
    let only = |id: usize| {
        let mut row = [-INF; 4];
        row[id] = 0.0;
        row
    };
    let third = 1.0 / 3.0;
    for seed in (0..40).step_by(stride(8)) {
        let params = unit(seed);
        // P = Q: accepted whatever the noise.
        let got = judge::<B>(on, &params, 1, [third, third, third, 0.0], [flat, only(2)]);
        assert_eq!(got, (2, vec![1, 2], None), "seed {seed}");
        // Q = 0 where it is drafted, and the target may want it: accepted.
        let got = judge::<B>(on, &params, 1, [0.0; 4], [flat, only(0)]);
        assert_eq!(got, (2, vec![1, 0], None), "seed {seed}");
        // P = 0 where it is drafted: the other two, as Q has nothing of them.
        let got = judge::<B>(on, &params, 1, [0.0, 1.0, 0.0, 0.0], [[0.0, -INF, 0.0, INF], flat]);
        assert!(got.0 == 1 && got.1[0] != 1 && got.1[0] < 3 && got.1[1] == 99, "seed {seed}: {got:?}");
        // Both 0: not accepted.
        let got = judge::<B>(on, &params, 1, [1.0, 0.0, 0.0, 0.0], [only(2), flat]);
        assert_eq!(got, (1, vec![2, 99], None), "seed {seed}");
        // An id beyond the tokenizer, beyond the vocabulary, none at all: what is there is drawn.
        for draft in [3, 4, -1, i32::MAX] {
            let got = judge::<B>(on, &params, draft, [0.0, 0.0, 0.0, 1.0], [only(1), flat]);
            assert_eq!(got, (1, vec![1, 99], None), "seed {seed}, draft {draft}");
        }
        // Q is above P everywhere, and the draft is turned down: drawn from P.
        let got = judge::<B>(on, &params, 1, [2.0, INF, 2.0, 2.0], [[0.0, 0.0, -INF, INF], flat]);
        assert!(got.0 == 1 && (got.1[0] == 0 || got.1[0] == 1), "seed {seed}: {got:?}");
        // A distribution that is none: NaN takes no part, and accepts nothing.
        let got = judge::<B>(on, &params, 1, [NAN; 4], [[-INF, 0.0, -INF, 0.0], flat]);
        assert_eq!(got, (1, vec![1, 99], None), "seed {seed}");
        // The largest logit is infinite: it has everything.
        let got = judge::<B>(on, &params, 1, [0.0, 1.0, 0.0, 0.0], [[0.0, INF, 5.0, INF], only(2)]);
        assert_eq!(got, (2, vec![1, 2], None), "seed {seed}");
    }
    // Nothing to choose from, in the first row and in the last one.
    let masked = [NAN, -INF, NAN, 7.0];
    let logits = Some(FaultKind::Logits);
    assert_eq!(judge::<B>(on, &unit(1), 1, [0.0, 1.0, 0.0, 0.0], [masked, flat]), (0, vec![1, 99], logits));
    assert_eq!(
        judge::<B>(on, &unit(1), 1, [0.0, 1.0, 0.0, 0.0], [only(1), masked]),
        (0, vec![1, 99], logits)
    );
    // ... which nobody asks for behind a draft that is turned down.
    let got = judge::<B>(on, &unit(1), 1, [0.0, 1.0, 0.0, 0.0], [only(0), masked]);
    assert_eq!(got, (1, vec![0, 99], None));
    // Greedy: the draft is the largest, or the largest takes its place.
    let greedy = SamplingParams::default();
    let rows = [[1.0, 3.0, 3.0, INF], [5.0, 0.0, 0.0, 0.0]];
    assert_eq!(judge::<B>(on, &greedy, 1, [0.0, 1.0, 0.0, 0.0], rows), (2, vec![1, 0], None));
    assert_eq!(judge::<B>(on, &greedy, 2, [0.0, 0.0, 1.0, 0.0], rows), (1, vec![1, 99], None));
    // A penalty counts the draft before it: twice 1 in the second row.
    let params = SamplingParams { presence_penalty: 2.0, ..SamplingParams::default() };
    let rows = [[0.0, 3.0, 0.5, 0.0], [0.0, 1.5, 0.5, 0.0]];
    assert_eq!(judge::<B>(on, &params, 1, [0.0, 1.0, 0.0, 0.0], rows), (2, vec![1, 2], None));
}

/// What a chain may not touch: padding, finished slots, prompts, more rows than the ring has drafts for.
pub(crate) fn chains_at_the_door<B: Place>(on: &B::Queue) {
    let mut numbers = running(5, 12, &[1, 0, 0, 0]);
    numbers.state[1] = State::Stop as i32;
    numbers.prompt[2] = 5;
    numbers.faults[3] = Fault { kind: FaultKind::Page, slot: 3, value: 1 }.encode();
    let params = vec![SamplingParams::default(); 5];
    let mut chain = Chain::<B>::new(on, &numbers, &params, [2, 2, 2, 0], &[0.5; 20]);
    let list =
        List { slots: vec![-1, 1, 2, 3, 4, 0], start: vec![0; 6], offsets: vec![0, 2, 4, 6, 8, 12, 14] };
    assert_eq!(chain.reject(&list, &[1.0, 0.0].repeat(15), 2), [0, 0, 0, 0, 0, 2]);
    let after = chain.numbers();
    assert_eq!(after.tokens[2], 0);
    let kind = |slot: usize| Fault::decode(after.faults[slot]).map(|fault| (fault.kind, fault.value));
    assert_eq!(
        [kind(0), kind(1), kind(2), kind(4)],
        [None, None, Some((FaultKind::Position, 0)), Some((FaultKind::RowOffsets, 4))]
    );
    assert_eq!(after.state[3], State::Faulted as i32);
    assert_eq!(after.tokens[12..], numbers.tokens[12..], "nobody else's tokens");
    // The last place has none behind it.
    let mut chain = Chain::<B>::new(on, &numbers, &params, [2, 2, 2, 0], &[0.5; 20]);
    let list = List { slots: vec![0], start: vec![11], offsets: vec![0, 1] };
    assert_eq!(chain.reject(&list, &[1.0, 0.0], 2), [0]);
    assert_eq!(Fault::decode(chain.numbers().faults[0]).map(|f| f.kind), Some(FaultKind::Position));
}

/// A chain by itself, then in a batch with others before and behind it, dealt to blocks in every way.
pub(crate) fn chains_alone_are_chains_in_a_batch<B: Place>(on: &B::Queue) {
    const VOCAB: usize = 3001;
    const RING: usize = 3;
    let slots = 6;
    let mut rng = Rng::new(21);
    let mut numbers = running(slots, 16, &[]);
    let params: Vec<SamplingParams> = (0..slots)
        .map(|slot| SamplingParams {
            temperature: [0.7, 0.0, 1.3, 1.0, 0.9, 1.0][slot],
            top_k: [0, 0, 20, 0, 900, 0][slot],
            top_p: [0.9, 1.0, 1.0, 1.0, 0.99, 1.0][slot],
            min_p: [0.0, 0.0, 0.0, 0.02, 0.0, 0.0][slot],
            frequency_penalty: [0.0, 0.5, 0.0, 0.3, 0.0, 0.0][slot],
            ..unit(50 + slot as u64)
        })
        .collect();
    let target: Vec<Vec<f32>> = (0..slots).map(|_| rng.normals(4 * VOCAB, 2.0)).collect();
    let draft: Vec<Vec<f32>> =
        target.iter().map(|row| row[..3 * VOCAB].iter().map(|x| x + 0.3 * rng.normal()).collect()).collect();
    let list_of = |slots: &[i32], count: i32| List {
        slots: slots.to_vec(),
        start: vec![2; slots.len()],
        offsets: (0..=slots.len() as i32).map(|i| i * count).collect(),
    };
    let nothing = vec![0.0; slots * RING * VOCAB];
    let sizes = [VOCAB, VOCAB, RING, 0];
    let (mut drafts, mut alone, mut kept) = (vec![], vec![], vec![]);
    for slot in 0..slots {
        let mut chain = Chain::<B>::new(on, &numbers, &params, sizes, &nothing);
        let drawn = chain.draw(&list_of(&[slot as i32], 3), &draft[slot], VOCAB);
        numbers.tokens[slot * numbers.positions + 3..][..3].copy_from_slice(&drawn);
        let mut chain = Chain::<B>::new(on, &numbers, &params, sizes, &chain.kept());
        let a = chain.reject(&list_of(&[slot as i32], 4), &target[slot], VOCAB)[0];
        let tokens = chain.numbers().tokens[slot * numbers.positions..][..numbers.positions].to_vec();
        kept.extend(chain.kept()[slot * RING * VOCAB..][..RING * VOCAB].to_vec());
        drafts.extend(drawn);
        alone.push((a, tokens));
    }
    assert!(alone.iter().any(|(a, _)| *a > 1) && alone.iter().any(|(a, _)| *a < 4), "{alone:?}");
    let order = [4, 0, -1, 2, 5, 1, 3];
    let rows = |of: &[Vec<f32>], count: usize| -> Vec<f32> {
        order
            .iter()
            .flat_map(|s| if *s < 0 { vec![NAN; count * VOCAB] } else { of[*s as usize].clone() })
            .collect()
    };
    for vectors in [None, Some(1), Some(2), Some(4), Some(8)] {
        let mut chain = Chain::<B>::new(on, &numbers, &params, sizes, &nothing);
        chain.vectors = vectors;
        let drawn = chain.draw(&list_of(&order, 3), &rows(&draft, 3), VOCAB);
        for (place, slot) in order.into_iter().enumerate() {
            let want = if slot < 0 { &[-1; 3][..] } else { &drafts[slot as usize * 3..][..3] };
            // The first of them alone: the others follow tokens that were not there yet.
            assert_eq!(drawn[place * 3], want[0], "slot {slot}, {vectors:?} vectors");
        }
        let mut chain = Chain::<B>::new(on, &numbers, &params, sizes, &kept);
        chain.vectors = vectors;
        let got = chain.reject(&list_of(&order, 4), &rows(&target, 4), VOCAB);
        let after = chain.numbers();
        for (place, slot) in order.into_iter().enumerate().filter(|(_, slot)| *slot >= 0) {
            let tokens = &after.tokens[slot as usize * numbers.positions..][..numbers.positions];
            assert_eq!(
                (got[place], tokens.to_vec()),
                alone[slot as usize],
                "slot {slot}, {vectors:?} vectors"
            );
        }
    }
}

/// Chi-squared on fixed seeds: whatever the draft, tokens are drawn from the target; drafts are accepted with 1 - TV.
pub(crate) fn chains_follow_the_target<B: Place>(on: &B::Queue) {
    const VOCAB: usize = 8;
    const SLOTS: usize = 400;
    let rounds = 50 / stride(10);
    let p: [f32; VOCAB] = [0.30, 0.25, 0.15, 0.10, 0.08, 0.06, 0.04, 0.02];
    let q: [f32; VOCAB] = [0.05, 0.40, 0.05, 0.20, 0.10, 0.10, 0.05, 0.05];
    let kept = |p: [f32; VOCAB], count: usize| {
        let mut order: Vec<usize> = (0..VOCAB).collect();
        order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
        let total: f64 = order[..count].iter().map(|id| f64::from(p[*id])).sum();
        let mut of = [0.0; VOCAB];
        order[..count].iter().for_each(|id| of[*id] = f64::from(p[*id]) / total);
        of
    };
    for (top_k, count, bound) in [(0, VOCAB, 29.9), (5, 5, 23.6)] {
        let params: Vec<SamplingParams> = (0..SLOTS)
            .map(|slot| SamplingParams { top_k, ..unit(0x5eed + slot as u64 * 0x1_0000_0001) })
            .collect();
        let numbers = running(SLOTS, rounds + 8, &[0]);
        let mut chain =
            Chain::<B>::new(on, &numbers, &params, [VOCAB, VOCAB, 2, 0], &vec![0.0; SLOTS * 2 * VOCAB]);
        let at = |start: usize, count: i32| List {
            slots: (0..SLOTS as i32).collect(),
            start: vec![start as i32; SLOTS],
            offsets: (0..=SLOTS as i32).map(|i| i * count).collect(),
        };
        let (mut seen, mut second, mut rate) = ([0usize; VOCAB], [0usize; VOCAB], 0usize);
        let mut tokens = numbers.tokens.clone();
        for start in 0..rounds {
            let drafts = chain.draw(&at(start, 1), &ln(q).repeat(SLOTS), VOCAB);
            for (slot, draft) in drafts.into_iter().enumerate() {
                tokens[slot * numbers.positions + start + 1] = draft;
            }
            B::write(on, &mut chain.table.tokens, 0, &tokens).unwrap();
            let accepted = chain.reject(&at(start, 2), &[ln(p), ln(q)].concat().repeat(SLOTS), VOCAB);
            tokens = chain.numbers().tokens;
            for (slot, a) in accepted.into_iter().enumerate() {
                let new = &tokens[slot * numbers.positions + start + 1..];
                seen[new[0] as usize] += 1;
                if a == 2 {
                    rate += 1;
                    second[new[1] as usize] += 1;
                }
            }
        }
        let chi = |seen: &[usize; VOCAB], of: &[f64; VOCAB]| -> f64 {
            let n: usize = seen.iter().sum();
            let part = |id: usize| (seen[id] as f64 - of[id] * n as f64).powi(2) / (of[id] * n as f64);
            (0..VOCAB).filter(|id| of[*id] > 0.0 || seen[*id] > 0).map(part).sum()
        };
        let (p64, q64) = (kept(p, count), kept(q, count));
        // One in ten thousand at 7 or 4 degrees of freedom.
        assert!(chi(&seen, &p64) < bound, "top-k {top_k}: {seen:?}");
        assert!(chi(&second, &q64) < bound, "top-k {top_k}, behind an accepted draft: {second:?}");
        let tv: f64 = p64.iter().zip(&q64).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
        let (n, rate) = ((SLOTS * rounds) as f64, rate as f64);
        assert!((rate / n - (1.0 - tv)).abs() < 2.0 / n.sqrt(), "top-k {top_k}: {rate} of {n}, TV {tv}");
        assert!(chain.numbers().faults.iter().all(|f| *f == 0));
    }
}

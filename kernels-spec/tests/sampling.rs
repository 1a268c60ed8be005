//! The rules of choosing a token: literal cases, edges, an independent statement of them, and bits that
//! depend on nothing but the row.

use crate::sim::{Sim, cpu, rows};
use kernels_core::{
    Cpu, PAD, Tensor, TensorMut,
    philox::{Use, bits, gumbel},
    ref_math::exp,
    slots::{Fault, FaultKind},
};
use kernels_spec::*;
use kernels_testkit::rng::Rng;
use proptest::prelude::*;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

fn greedy() -> SamplingParams {
    SamplingParams::default()
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.0, seed, ..greedy() }
}

/// One slot with the given prompt and answer; the row at the last token chooses.
fn choose(params: &SamplingParams, prompt: &[i32], answer: &[i32], logits: &[f32]) -> i32 {
    let mut sim = Sim::new(1, 64, 1);
    sim.sampling.set(&(), 0, params, logits.len()).unwrap();
    let tokens = [prompt, answer].concat();
    sim.table.tokens[..tokens.len()].copy_from_slice(&tokens);
    sim.table.prompt[0] = prompt.len() as i32;
    sim.sample(&rows(&[0], &[tokens.len() as i32 - 1], &[0, 1]), logits, logits.len())[0]
}

#[test]
fn greedy_edges() {
    for (logits, want) in [
        (vec![1.0, 3.0, 3.0], 1),
        (vec![NAN, 2.0, NAN, 5.0], 3),
        (vec![-INF, -1e30], 1),
        (vec![0.0, -0.0], 0),
        (vec![-0.0, 0.0], 0),
        (vec![INF, INF], 0),
        (vec![NAN, -INF], -1),
        (vec![-INF; 5], -1),
        (vec![f32::MIN, -INF], 0),
    ] {
        assert_eq!(choose(&greedy(), &[0], &[], &logits), want, "{logits:?}");
        // Whatever is drawn from, the likeliest id alone gives the same.
        let one = SamplingParams { top_k: 1, ..sampled(3) };
        assert_eq!(choose(&one, &[0], &[], &logits), want, "top_k 1: {logits:?}");
        let none = SamplingParams { top_p: 0.0, ..sampled(3) };
        assert_eq!(choose(&none, &[0], &[], &logits), want, "top_p 0: {logits:?}");
        let cold = SamplingParams { temperature: 0.5 * GREEDY_BELOW, ..sampled(3) };
        assert_eq!(choose(&cold, &[0], &[], &logits), want, "temperature {GREEDY_BELOW}/2: {logits:?}");
    }
}

#[test]
fn top_k_1_is_greedy_even_where_temperature_rounds_logits_together() {
    // (l - max) / 100 of the two neighbours is below the smallest number: z is 0 for both.
    let logits = [f32::from_bits(1), f32::from_bits(2)];
    let hot = SamplingParams { temperature: 100.0, top_k: 1, ..sampled(0) };
    assert_eq!(choose(&hot, &[0], &[], &logits), 1);
    let hot = SamplingParams { temperature: 100.0, top_p: 0.0, ..sampled(0) };
    assert_eq!(choose(&hot, &[0], &[], &logits), 1);
}

#[test]
fn unusual_numbers_on_the_device_do_what_the_rules_say() {
    // The host refuses these; the device must still be defined.
    let logits = [1.0, 3.0, 2.0];
    for (temperature, top_k, top_p, min_p) in
        [(NAN, 0, 1.0, 0.0), (-1.0, 0, 1.0, 0.0), (1.0, 1, NAN, NAN), (1.0, 0, -1.0, 0.0), (1.0, 0, 1.0, 7.0)]
    {
        let mut sim = Sim::new(1, 8, 1);
        sim.sampling.set(&(), 0, &sampled(1), 3).unwrap();
        let (t, k, p, m) = ([temperature], [top_k], [top_p], [min_p]);
        let problem = sim.sample_problem(1, 1, 3);
        let mut choice = [7];
        let list = rows(&[0], &[0], &[0, 1]);
        let sampling = Sampling {
            temperature: Tensor::new(&t[..], [1]),
            top_k: Tensor::new(&k[..], [1]),
            top_p: Tensor::new(&p[..], [1]),
            min_p: Tensor::new(&m[..], [1]),
            ..sim.sampling.lend()
        };
        let args = SampleArgs {
            choice: TensorMut::new(&mut choice[..], [1]),
            faults: TensorMut::of(&mut sim.table.faults, [2]),
            logits: Tensor::new(&logits[..], [1, 3]),
            rows: list.lend(),
            tokens: Tensor::of(&sim.table.tokens, [1, 8]),
            prompt: Tensor::of(&sim.table.prompt, [1]),
            sampling,
            workspace: None,
        };
        Sample::plan(problem, &cpu()).unwrap().run::<Cpu>(&(), args).unwrap();
        assert_eq!(choice, [1], "{temperature} {top_k} {top_p} {min_p}");
    }
}

#[test]
fn ids_beyond_the_tokenizer_are_never_chosen() {
    let mut sim = Sim::new(1, 8, 1);
    for (params, valid, want) in
        [(greedy(), 3, 1), (sampled(9), 1, 0), (SamplingParams { top_k: 1, ..sampled(1) }, 3, 1)]
    {
        sim.sampling.set(&(), 0, &params, 5).unwrap();
        let problem = SampleProblem { valid, ..sim.sample_problem(1, 1, 5) };
        let list = rows(&[0], &[0], &[0, 1]);
        assert_eq!(sim.try_sample(&list, &[1.0, 2.0, 0.0, 99.0, INF], problem).unwrap(), [want]);
    }
}

#[test]
fn infinite_logits_leave_only_each_other() {
    let logits = [INF, 5.0, INF, -INF, NAN];
    let mut seen = [0; 5];
    for seed in 0..64 {
        seen[choose(&sampled(seed), &[0], &[], &logits) as usize] += 1;
    }
    assert!(seen[0] > 10 && seen[2] > 10 && seen[0] + seen[2] == 64, "{seen:?}");
    // Finite numbers whose difference is not.
    assert_eq!(choose(&sampled(1), &[0], &[], &[f32::MIN, f32::MAX]), 1);
}

#[test]
fn penalties_by_hand() {
    let of = |repetition, presence, frequency| SamplingParams {
        repetition_penalty: repetition,
        presence_penalty: presence,
        frequency_penalty: frequency,
        ..greedy()
    };
    // Prompt 0 0, answer 1 1 2. Each case: penalties, logits, the largest after them.
    for (params, logits, want) in [
        (of(1.0, 0.0, 0.0), [4.0, 5.0, 3.0, 2.0], 1),
        // Repetition reaches the prompt: 2.0, 2.5, 1.5 | 2.0 untouched.
        (of(2.0, 0.0, 0.0), [4.0, 5.0, 3.0, 2.6], 3),
        (of(2.0, 0.0, 0.0), [4.0, 5.0, 3.0, 2.4], 1),
        // A negative logit is multiplied: -2, -2, -4 | -1.5.
        (of(2.0, 0.0, 0.0), [-1.0, -1.0, -2.0, -1.5], 3),
        // Presence leaves the prompt alone and does not count: 4.0 | 5 - 1.5, 4.5 - 1.5.
        (of(1.0, 1.5, 0.0), [4.0, 5.0, 4.5, 2.0], 0),
        // Frequency counts: 5 - 2, 4.5 - 1.
        (of(1.0, 0.0, 1.0), [3.2, 5.0, 4.5, 2.0], 2),
        (of(1.0, 0.0, 1.0), [3.2, 5.0, 3.9, 2.0], 0),
        // Repetition first, then the others: 5 / 2 - 0.5 - 2 * 0.25 = 1.5 against 1.6.
        (of(2.0, 0.5, 0.25), [0.0, 5.0, 0.0, 1.6], 3),
        (of(2.0, 0.5, 0.25), [0.0, 5.0, 0.0, 1.4], 1),
        // Negative penalties reward.
        (of(1.0, -3.0, 0.0), [4.0, 1.0, 2.0, 2.0], 2),
    ] {
        assert_eq!(choose(&params, &[0, 0], &[1, 1, 2], &logits), want, "{params:?} {logits:?}");
    }
    // A masked logit stays masked, and ids outside the vocabulary are nobody's.
    assert_eq!(choose(&of(0.5, -9.0, 0.0), &[1], &[1, 99, -1], &[0.0, -INF]), 0);
}

#[test]
fn the_prefix_of_a_row_includes_the_drafts_before_it() {
    let mut sim = Sim::new(1, 16, 4);
    let params = SamplingParams { frequency_penalty: 1.0, ..greedy() };
    sim.sampling.set(&(), 0, &params, 4).unwrap();
    sim.table.tokens[..6].copy_from_slice(&[3, 1, 1, 1, 2, 9]);
    sim.table.prompt[0] = 1;
    // The same logits in each row; id 1 occurs once, twice, three times, three times; then id 2 once.
    let logits = [0.9, 3.5, 1.4, 0.0].repeat(4);
    assert_eq!(sim.sample(&rows(&[0], &[1], &[0, 4]), &logits, 4), [1, 1, 2, 0]);
}

#[test]
fn bias_by_hand() {
    let with = |bias: &[(u32, f32)]| SamplingParams { bias: bias.to_vec(), ..greedy() };
    let logits = [1.0, 2.0, 3.0];
    assert_eq!(choose(&with(&[(0, 2.5)]), &[0], &[], &logits), 0);
    assert_eq!(choose(&with(&[(2, -INF), (1, -1.5)]), &[0], &[], &logits), 0);
    assert_eq!(choose(&with(&[(0, 1.25), (0, 1.0)]), &[0], &[], &logits), 0, "twice is the sum");
    assert_eq!(choose(&with(&[(0, -INF)]), &[0], &[], &[NAN, NAN, -INF]), -1);
    assert_eq!(choose(&with(&[(0, -INF)]), &[0], &[], &[INF, NAN, -INF]), -1);
    // After the penalties: 4 / 2 + 1 = 3 beats 2.9; (4 + 1) / 2 would not.
    let params = SamplingParams { repetition_penalty: 2.0, ..with(&[(0, 1.0)]) };
    assert_eq!(choose(&params, &[0], &[], &[4.0, 2.9]), 0);
}

/// The rules once more, by sorting everything. Panics rather than being quick.
fn stated(params: &SamplingParams, prompt: usize, tokens: &[i32], logits: &[f32]) -> i32 {
    let position = tokens.len() as u32;
    let mut l: Vec<f32> = logits.to_vec();
    for (id, l) in l.iter_mut().enumerate() {
        let here = |t: &&i32| **t == id as i32;
        if tokens.iter().any(|t| t == &(id as i32)) {
            *l = if *l > 0.0 { *l / params.repetition_penalty } else { *l * params.repetition_penalty };
        }
        let count = tokens[prompt..].iter().filter(here).count();
        if count > 0 {
            *l = (-params.frequency_penalty).mul_add(count as f32, *l - params.presence_penalty);
        }
        for (biased, value) in &params.bias {
            if *biased as usize == id {
                *l += value;
            }
        }
    }
    // Descending by logit, ties to the smallest id; masked ids are not there.
    let mut order: Vec<usize> = (0..l.len()).filter(|id| l[*id] > -INF).collect();
    order.sort_by(|a, b| l[*b].partial_cmp(&l[*a]).unwrap().then(a.cmp(b)));
    let Some(&first) = order.first() else { return -1 };
    if params.temperature < GREEDY_BELOW {
        return first as i32;
    }
    let z: Vec<f32> = l.iter().map(|x| (x - l[first]) / params.temperature).collect();
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let mass = |ids: &[usize]| ids.iter().map(|id| (exp(z[*id]) * 2.0f32.powi(40)) as u64).sum::<u64>();
    if params.top_p < 1.0 {
        let wanted = (f64::from(params.top_p) * mass(&order) as f64).ceil() as u64;
        let enough = (1..order.len()).find(|n| mass(&order[..*n]) >= wanted);
        order.truncate(enough.unwrap_or(order.len()));
    }
    order.retain(|id| params.min_p <= 0.0 || exp(z[*id]) >= params.min_p);
    let score = |id: usize| z[id] + gumbel(bits(params.seed, position, id as u32, Use::Draw));
    order.sort();
    let mut best = order[0];
    for &id in &order {
        if score(id) > score(best) {
            best = id;
        }
    }
    best as i32
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]
    #[test]
    fn choices_follow_the_stated_rules(
        seed in any::<u64>(),
        vocab in prop::sample::select(vec![1usize, 2, 7, 33, 300, 1025, 2100]),
        spread in prop::sample::select(vec![0.0f32, 1.0, 6.0, 40.0]),
        coarse in any::<bool>(),
        temperature in prop::sample::select(vec![0.0f32, 0.01, 0.6, 1.0, 3.0]),
        top_k in prop::sample::select(vec![0u32, 1, 2, 20, 5000]),
        top_p in prop::sample::select(vec![0.0f32, 0.3, 0.95, 0.999_999, 1.0]),
        min_p in prop::sample::select(vec![0.0f32, 0.05, 1.0]),
        repetition_penalty in prop::sample::select(vec![1.0f32, 1.3, 0.7]),
        presence_penalty in prop::sample::select(vec![0.0f32, 1.5]),
        frequency_penalty in prop::sample::select(vec![0.0f32, 0.4]),
        count in 2usize..5,
    ) {
        let mut rng = Rng::new(seed);
        let bias = vec![(rng.below(vocab) as u32, 1.5), (rng.below(vocab) as u32, -INF)];
        let params = SamplingParams {
            repetition_penalty, presence_penalty, frequency_penalty, bias,
            temperature, top_k, top_p, min_p, seed,
        };
        let (prompt, known) = (1 + rng.below(6), 8);
        let tokens: Vec<i32> = (0..known + count).map(|_| rng.below(vocab) as i32).collect();
        let mut logits: Vec<f32> = (0..vocab * count).map(|_| rng.normal() * spread).collect();
        for l in &mut logits {
            // Coarse values tie everywhere.
            if coarse { *l = l.round(); }
            if rng.below(50) == 0 { *l = -INF; }
        }
        let mut sim = Sim::new(2, 16, 4);
        sim.sampling.set(&(), 1, &params, vocab).unwrap();
        sim.table.tokens[16..16 + tokens.len()].copy_from_slice(&tokens);
        sim.table.prompt[1] = prompt as i32;
        let list = rows(&[1], &[known as i32 - 1], &[0, count as i32]);
        let got = sim.sample(&list, &logits, vocab);
        for row in 0..count {
            let want = stated(&params, prompt, &tokens[..known + row], &logits[row * vocab..][..vocab]);
            prop_assert_eq!(got[row], want, "row {} of {}", row, count);
        }
    }
}

#[test]
fn a_row_depends_on_nothing_but_itself() {
    const VOCAB: usize = 1300;
    let (slots, positions) = (5, 32);
    let mut rng = Rng::new(8);
    let mut sim = Sim::new(slots, positions, 8);
    for slot in 0..slots {
        let params = SamplingParams {
            temperature: [0.7, 0.0, 1.3, 1.0, 0.9][slot],
            top_k: [0, 0, 40, 0, 7][slot],
            top_p: [0.9, 1.0, 1.0, 0.5, 0.8][slot],
            frequency_penalty: [0.0, 0.5, 0.0, 0.3, 0.0][slot],
            seed: 77 + slot as u64,
            ..greedy()
        };
        sim.sampling.set(&(), slot, &params, VOCAB).unwrap();
        sim.table.prompt[slot] = 3;
        for position in 0..positions {
            sim.table.tokens[slot * positions + position] = rng.below(VOCAB) as i32;
        }
    }
    // One row at a time.
    let logits: Vec<Vec<f32>> = (0..slots * 4).map(|_| rng.normals(VOCAB, 2.0)).collect();
    let start = |slot: usize| 5 + 3 * slot as i32;
    let mut alone = vec![];
    for slot in 0..slots {
        for row in 0..4 {
            let list = rows(&[slot as i32], &[start(slot) + row as i32], &[0, 1]);
            alone.push(sim.sample(&list, &logits[slot * 4 + row], VOCAB)[0]);
        }
    }
    // All at once, in other orders, with padding between, rows of nobody behind, and NaN in both.
    for order in [[4, 0, 2, 1, 3], [1, 3, 4, 0, 2]] {
        let (mut list, mut starts, mut offsets) = (vec![PAD], vec![9], vec![0, 2]);
        let (mut all, mut want) = (vec![NAN; 2 * VOCAB], vec![-1, -1]);
        for slot in order {
            list.push(slot as i32);
            starts.push(start(slot));
            for row in 0..4 {
                all.extend(&logits[slot * 4 + row]);
                want.push(alone[slot * 4 + row]);
            }
            offsets.push(want.len() as i32);
        }
        all.extend(vec![NAN; 3 * VOCAB]);
        want.extend([-1; 3]);
        assert_eq!(sim.sample(&rows(&list, &starts, &offsets), &all, VOCAB), want);
        assert_eq!(sim.table.faults, vec![0; slots + 1]);
    }
}

#[test]
fn sampling_records_no_fault_for_what_may_not_be_needed() {
    let mut sim = Sim::new(1, 8, 4);
    assert_eq!(sim.sample(&rows(&[0], &[0], &[0, 2]), &[NAN, NAN, 1.0, 0.0], 2), [-1, 0]);
    assert_eq!(sim.table.faults, [0, 0]);
    // Rows that reach beyond the token memory are another matter.
    assert_eq!(sim.sample(&rows(&[0], &[7], &[0, 2]), &[0.0; 4], 2), [-1, -1]);
    let fault = Fault { kind: FaultKind::Position, slot: 0, value: 7 };
    assert_eq!(Fault::decode(sim.table.faults[0]), Some(fault));
}

#[test]
fn argmax_is_that_of_the_core() {
    let op = Argmax::plan(ArgmaxProblem { rows: 4, vocab: 5, valid: 4 }, &cpu()).unwrap();
    let logits =
        [[1.0, 3.0, 3.0, 0.0, 9.0], [NAN, NAN, -INF, NAN, 9.0], [NAN; 5], [-1.0, -2.0, NAN, -0.5, 9.0]]
            .concat();
    let mut choice = [7; 4];
    let args = ArgmaxArgs {
        choice: TensorMut::new(&mut choice[..], [4]),
        logits: Tensor::new(&logits[..], [4, 5]),
        workspace: None,
    };
    op.run::<Cpu>(&(), args).unwrap();
    assert_eq!(choice, [1, 2, -1, 3]);
}

#[test]
fn kept_draft_distributions_are_those_drawn_from() {
    let mut sim = Sim::new(2, 16, 4);
    let logits = [0.0, 1.0, 2.0, 3.0];
    let e: Vec<f64> = logits.iter().map(|l| f64::from(*l).exp()).collect();
    for (params, want) in [
        (sampled(5), e.iter().map(|x| x / e.iter().sum::<f64>()).collect::<Vec<_>>()),
        (
            SamplingParams { top_k: 2, ..sampled(5) },
            vec![0.0, 0.0, e[2] / (e[2] + e[3]), e[3] / (e[2] + e[3])],
        ),
        (greedy(), vec![0.0, 0.0, 0.0, 1.0]),
    ] {
        sim.sampling.set(&(), 1, &params, 4).unwrap();
        let mut kept = [NAN; 2 * 3 * 4];
        let list = rows(&[1], &[7], &[0, 1]);
        let choice = sim.draw_draft(&list, &logits, 4, &mut kept)[0];
        // The draft stands at position 8, so its distribution is in row 8 % 3 of slot 1.
        let (at, rest) = (12 + 2 * 4, kept.iter().filter(|x| x.is_nan()).count());
        assert_eq!(rest, 20);
        for (id, want) in want.iter().enumerate() {
            // Four weights of at most 1.5 ulp, a sum of at most 3 roundings, one division.
            let (got, bound) = (f64::from(kept[at + id]), 10.0 * f64::from(f32::EPSILON));
            assert!((got - want).abs() <= bound * want, "{got} {want}");
        }
        assert!(kept[at + choice as usize] > 0.0);
    }
}

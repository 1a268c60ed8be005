//! Times of choosing and of bookkeeping; bytes are what must move at least once (the logits).

use criterion::{Criterion, Throughput};
use kernels_core::{Cpu, DeviceInfo, Tensor, TensorMut};
use kernels_spec::*;
use kernels_testkit::rng::Rng;
use std::hint::black_box;

const POSITIONS: usize = 4096;

fn rows(sequences: usize, count: usize, start: usize) -> RowTable<Cpu> {
    RowTable {
        sequences,
        slots: (0..sequences as i32).collect(),
        start: vec![start as i32; sequences],
        row_offsets: (0..=sequences).map(|i| (i * count) as i32).collect(),
    }
}

/// Running slots with 1000 tokens, 900 of them their answer.
fn slots(sequences: usize, vocab: usize, rng: &mut Rng) -> SlotTable<Cpu> {
    let mut table = SlotTable::<Cpu>::new(&(), sequences, POSITIONS).unwrap();
    for slot in 0..sequences {
        let prompt: Vec<i32> = (0..1000).map(|_| rng.below(vocab) as i32).collect();
        table.admit(&(), slot, &prompt, POSITIONS, POSITIONS).unwrap();
        (table.prompt[slot], table.committed[slot], table.folded[slot]) = (100, 996, 996);
    }
    table
}

fn settings() -> [(&'static str, SamplingParams); 6] {
    let sampled = SamplingParams { temperature: 1.0, seed: 7, ..SamplingParams::default() };
    [
        ("greedy", SamplingParams::default()),
        ("temperature", sampled.clone()),
        ("top_k", SamplingParams { top_k: 20, ..sampled.clone() }),
        ("top_p", SamplingParams { top_p: 0.95, ..sampled.clone() }),
        ("model_card", SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..sampled.clone() }),
        ("penalties", SamplingParams { presence_penalty: 1.5, top_k: 20, top_p: 0.95, ..sampled }),
    ]
}

const SHAPES: [(&str, usize, usize, usize); 3] =
    [("tiny", 4096, 1, 1), ("tiny", 4096, 1, 4), ("qwen3.5-27b", 248_320, 8, 4)];

fn choosing(c: &mut Criterion) {
    for (model, vocab, sequences, count) in SHAPES {
        let mut rng = Rng::new(1);
        let total = sequences * count;
        let logits: Vec<f32> = rng.normals(total * vocab, 3.0);
        let list = rows(sequences, count, 996);
        let mut table = slots(sequences, vocab, &mut rng);
        let (mut choice, device) = (vec![0; total], DeviceInfo::cpu());
        let bytes = Throughput::Bytes((logits.len() * size_of::<f32>()) as u64);

        let mut group = c.benchmark_group("spec");
        group.throughput(bytes).sample_size(10);
        let op = Argmax::plan(ArgmaxProblem { rows: total, vocab, valid: vocab }, &device).unwrap();
        group.bench_function(format!("argmax/{model}/b{sequences}/t{count}"), |b| {
            b.iter(|| {
                let args = ArgmaxArgs {
                    choice: TensorMut::of(&mut choice, [total]),
                    logits: Tensor::new(black_box(&logits[..]), [total, vocab]),
                };
                op.run::<Cpu>(&(), args).unwrap();
            });
        });
        for (name, params) in settings() {
            let mut sampling = SamplingTable::<Cpu>::new(&(), sequences, 0).unwrap();
            (0..sequences).for_each(|slot| sampling.set(&(), slot, &params, vocab).unwrap());
            let problem = SampleProblem {
                sequences,
                rows: total,
                vocab,
                valid: vocab,
                slots: sequences,
                positions: POSITIONS,
                max_bias: 0,
            };
            let op = Sample::plan(problem, &device).unwrap();
            group.bench_function(format!("sample_{name}/{model}/b{sequences}/t{count}"), |b| {
                b.iter(|| {
                    let args = SampleArgs {
                        choice: TensorMut::of(&mut choice, [total]),
                        faults: TensorMut::of(&mut table.faults, [sequences + 1]),
                        logits: Tensor::new(black_box(&logits[..]), [total, vocab]),
                        rows: list.lend(),
                        tokens: Tensor::of(&table.tokens, [sequences, POSITIONS]),
                        prompt: Tensor::of(&table.prompt, [sequences]),
                        sampling: sampling.lend(),
                    };
                    op.run::<Cpu>(&(), args).unwrap();
                });
            });
        }
    }
}

/// Accept and advance as one round does them; no bytes to speak of.
fn settling(c: &mut Criterion) {
    let (sequences, count) = (8, 4);
    let mut table = slots(sequences, 4096, &mut Rng::new(2));
    let rows = rows(sequences, count, 996);
    let choice = vec![5; sequences * count];
    let problem =
        Problem { sequences, rows: choice.len(), max_rows: count, slots: sequences, positions: POSITIONS };
    let device = DeviceInfo::cpu();
    let accept = Accept::plan(problem, &device).unwrap();
    let pass = AdvanceProblem { base: problem, flush_after: 2, pass: Pass::Decode };
    let advance = Advance::plan(pass, &device).unwrap();
    let mut accepted = vec![0; sequences];
    c.bench_function("spec/settle/b8/t4", |b| {
        b.iter(|| {
            let args = AcceptArgs {
                accepted: TensorMut::of(&mut accepted, [sequences]),
                slots: table.lend(),
                choice: Tensor::of(&choice, [choice.len()]),
                rows: rows.lend(),
            };
            accept.run::<Cpu>(&(), args).unwrap();
            let args = AdvanceArgs {
                accepted: TensorMut::of(&mut accepted, [sequences]),
                slots: table.lend(),
                counters: None,
                rows: rows.lend(),
            };
            advance.run::<Cpu>(&(), args).unwrap();
            table.committed.fill(996);
            table.folded.fill(996);
        });
    });
}

mod groups {
    #![allow(missing_docs)] // what the macro makes has none
    use super::{choosing, settling};
    criterion::criterion_group!(benches, choosing, settling);
}
criterion::criterion_main!(groups::benches);

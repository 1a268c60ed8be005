//! Times of the family at real geometries; throughput in bytes that must move at least once.
//!
//! The counters of a launch are never advanced, so every iteration replays the same pending tokens and
//! stores the state where the flush rule says so: a round of the steady state, again and again.

#![allow(missing_docs)] // criterion's macros make public functions without any

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernels_core::{Cpu, DeviceInfo, Rows, Tensor, TensorMut, bf16, slots};
use kernels_gdn::{Args, Prefill, Problem, Verify};
use kernels_testkit::rng::Rng;

/// Name, key heads, value heads; all of 128 x 128.
const MODELS: [(&str, usize, usize); 3] =
    [("tiny", 2, 4), ("qwen3.5-35b-a3b", 16, 32), ("qwen3.5-27b", 16, 48)];
const FLUSH_AFTER: usize = 4;

struct Memory {
    problem: Problem,
    out: Vec<bf16>,
    state: Vec<f32>,
    journal: Vec<bf16>,
    faults: Vec<u64>,
    folded: Vec<i32>,
    mixed: Vec<bf16>,
    gates: Vec<bf16>,
    heads: Vec<f32>,
    slots: Vec<i32>,
    start: Vec<i32>,
    offsets: Vec<i32>,
}

impl Memory {
    fn new(p: Problem, pending: usize) -> Self {
        let mut rng = Rng::new(1);
        let width = 2 * p.k_heads * p.k_dim + p.v_heads * p.v_dim;
        let each = p.rows / p.sequences;
        Memory {
            out: vec![bf16::ZERO; p.rows * p.v_heads * p.v_dim],
            state: rng.normals(p.slots * p.state_len(), 0.1),
            journal: rng.normals(p.slots * p.journal_rows * p.journal_width(), 1.0),
            faults: vec![0; p.slots + 1],
            folded: vec![1000; p.slots],
            mixed: rng.normals(p.rows * width, 1.0),
            gates: rng.normals(p.rows * p.v_heads, 1.0),
            heads: vec![0.0; p.v_heads],
            slots: (0..p.sequences as i32).collect(),
            start: vec![1000 + pending as i32; p.sequences],
            offsets: (0..=p.sequences).map(|i| (i * each) as i32).collect(),
            problem: p,
        }
    }

    fn args(&mut self) -> Args<'_, Cpu, bf16> {
        let p = self.problem;
        let keys = p.k_heads * p.k_dim;
        let mixed = Tensor::<Cpu, bf16, 2>::new(&self.mixed[..], [p.rows, 2 * keys + p.v_heads * p.v_dim]);
        Args {
            out: TensorMut::new(&mut self.out[..], [p.rows, p.v_heads, p.v_dim]),
            state: TensorMut::new(&mut self.state[..], [p.slots, p.v_heads, p.v_dim, p.k_dim]),
            journal: TensorMut::new(&mut self.journal[..], [p.slots, p.journal_rows, p.journal_width()]),
            faults: TensorMut::new(&mut self.faults[..], [p.slots + 1]),
            folded: Tensor::new(&self.folded[..], [p.slots]),
            q: mixed.columns(0..keys).heads(p.k_heads),
            k: mixed.columns(keys..2 * keys).heads(p.k_heads),
            v: mixed.columns(2 * keys..2 * keys + p.v_heads * p.v_dim).heads(p.v_heads),
            a: Tensor::new(&self.gates[..], [p.rows, p.v_heads]),
            b: Tensor::new(&self.gates[..], [p.rows, p.v_heads]),
            a_log: Tensor::new(&self.heads[..], [p.v_heads]),
            dt_bias: Tensor::new(&self.heads[..], [p.v_heads]),
            rows: Rows {
                slots: Tensor::new(&self.slots[..], [p.sequences]),
                start: Tensor::new(&self.start[..], [p.sequences]),
                row_offsets: Tensor::new(&self.offsets[..], [p.sequences + 1]),
            },
        }
    }
}

/// State read, and written where it is stored; rows read, journalled and written; journal rows replayed.
fn bytes(p: &Problem, pending: usize, stores: bool, journals: bool) -> u64 {
    let state = p.state_len() * 4 * (1 + usize::from(stores));
    let (q, out) = (p.k_heads * p.k_dim, p.v_heads * p.v_dim);
    let row = 2 * (q + p.journal_width() * (1 + usize::from(journals)) + out);
    (p.sequences * (state + pending * p.journal_width() * 2) + p.rows * row) as u64
}

fn problem(k_heads: usize, v_heads: usize, sequences: usize, t: usize) -> Problem {
    let journal_rows = slots::journal_rows(FLUSH_AFTER, t);
    Problem {
        sequences,
        rows: sequences * t,
        max_rows: t,
        k_heads,
        v_heads,
        k_dim: 128,
        v_dim: 128,
        slots: sequences,
        journal_rows,
        flush_after: FLUSH_AFTER,
    }
}

fn verify(c: &mut Criterion) {
    let mut group = c.benchmark_group("gdn/verify");
    for (model, k_heads, v_heads) in MODELS {
        for (b, t) in [(1, 1), (1, 4), (8, 1), (8, 4)] {
            // Once without and once with a store; in between lie the rounds of any acceptance.
            for (name, pending) in [("keep", FLUSH_AFTER / 2), ("flush", FLUSH_AFTER + 1)] {
                let p = problem(k_heads, v_heads, b, t);
                let op = Verify::plan(p, &DeviceInfo::cpu()).unwrap();
                let stores = slots::flushes(pending, FLUSH_AFTER);
                group.throughput(Throughput::Bytes(bytes(&p, pending, stores, true)));
                group.bench_function(BenchmarkId::from_parameter(format!("{model}/b{b}/t{t}/{name}")), |x| {
                    let mut memory = Memory::new(p, pending);
                    x.iter(|| op.run::<Cpu, bf16>(&(), memory.args()).unwrap());
                });
            }
        }
    }
}

fn prefill(c: &mut Criterion) {
    let mut group = c.benchmark_group("gdn/prefill");
    for (model, k_heads, v_heads) in MODELS {
        let p = Problem { journal_rows: 12, ..problem(k_heads, v_heads, 1, 256) };
        let op = Prefill::plan(p, &DeviceInfo::cpu()).unwrap();
        group.throughput(Throughput::Bytes(bytes(&p, 0, true, false)));
        group.bench_function(BenchmarkId::from_parameter(format!("{model}/b1/t256")), |x| {
            let mut memory = Memory::new(p, 0);
            x.iter(|| op.run::<Cpu, bf16>(&(), memory.args()).unwrap());
        });
    }
}

criterion_group! {
    name = gdn;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(300));
    targets = verify, prefill
}
criterion_main!(gdn);

//! Times the operations on the CPU backend; throughput in the bytes that must move at least once.

use kernels_attn::{Append, AppendArgs, AppendProblem, Args, Prefill, Problem, Verify};
use kernels_core::{Cpu, DeviceInfo, KvPool, KvPoolMut, Rows, Tensor, TensorMut, bf16, rope};
use kernels_testkit::{bench::Bench, rng::Rng};

/// Model, query heads, K/V heads; head size 256 with 64 rotary elements.
const MODELS: [(&str, usize, usize); 3] =
    [("tiny", 4, 2), ("qwen3.5-27b", 24, 4), ("qwen3.5-35b-a3b", 16, 2)];
const D: usize = 256;
const ROTARY: usize = 64;
const PAGE_ROWS: usize = 64;

struct Launch {
    slots: Vec<i32>,
    start: Vec<i32>,
    offsets: Vec<i32>,
    table: Vec<i32>,
    max_pages: usize,
    faults: Vec<u64>,
}

impl Launch {
    /// `sequences` sequences of `rows` rows each, which end at position `context`.
    fn new(sequences: usize, rows: usize, context: usize) -> Self {
        let max_pages = context.div_ceil(PAGE_ROWS);
        let pages = Rng::new(1).permutation(sequences * max_pages);
        Launch {
            slots: (0..sequences as i32).collect(),
            start: vec![(context - rows) as i32; sequences],
            offsets: (0..=sequences).map(|i| (i * rows) as i32).collect(),
            table: pages.into_iter().map(|page| page as i32).collect(),
            max_pages,
            faults: vec![0; sequences + 1],
        }
    }

    fn rows(&self) -> Rows<'_, Cpu> {
        Rows {
            slots: Tensor::of(&self.slots, [self.slots.len()]),
            start: Tensor::of(&self.start, [self.start.len()]),
            row_offsets: Tensor::of(&self.offsets, [self.offsets.len()]),
        }
    }
}

fn attend(bench: &mut Bench, prefill: bool, shapes: &[(usize, usize, usize)]) {
    for (model, q_heads, kv_heads) in MODELS {
        for &(sequences, rows, context) in shapes {
            let mut launch = Launch::new(sequences, rows, context);
            let (pages, total) = (launch.table.len(), sequences * rows);
            let mut rng = Rng::new(2);
            let pool: Vec<bf16> = rng.normals(pages * 2 * kv_heads * PAGE_ROWS * D, 1.0);
            let q: Vec<bf16> = rng.normals(total * q_heads * D, 1.0);
            let mut out = vec![bf16::ZERO; q.len()];
            let problem = Problem {
                sequences,
                rows: total,
                max_rows: rows,
                q_heads,
                kv_heads,
                head_dim: D,
                slots: sequences,
                max_pages: launch.max_pages,
                first_key: 0,
                window: None,
            };
            let verify = Verify::plan(problem, &DeviceInfo::cpu()).expect("a sound problem");
            let prefill_op = Prefill::plan(problem, &DeviceInfo::cpu()).expect("a sound problem");
            let mut faults = std::mem::take(&mut launch.faults);
            // Keys and values once; query, gate and output.
            let elements = sequences * context * 2 * kv_heads * D + 3 * q.len();
            let name = if prefill { "prefill" } else { "verify" };
            let id = format!("attn/{name}/{model}/b{sequences}/t{rows}/c{context}");
            bench.cpu(&id, 2 * elements as u64, || {
                let dims = [total, q_heads, D];
                let args = Args::<Cpu> {
                    out: TensorMut::of(&mut out, dims),
                    faults: TensorMut::of(&mut faults, [sequences + 1]),
                    q: Tensor::of(&q, dims),
                    gate: Some(Tensor::of(&q, dims)),
                    pool: KvPool::packed(&pool[..], pages, kv_heads, PAGE_ROWS, D),
                    page_table: Tensor::of(&launch.table, [sequences, launch.max_pages]),
                    rows: launch.rows(),
                };
                let ran = if prefill { prefill_op.run(&(), args) } else { verify.run(&(), args) };
                ran.expect("sound operands");
            });
        }
    }
}

fn append(bench: &mut Bench) {
    for (model, q_heads, kv_heads) in MODELS {
        for (sequences, rows) in [(1, 1), (1, 4), (8, 4)] {
            let mut launch = Launch::new(sequences, rows, 1024);
            let (pages, total) = (launch.table.len(), sequences * rows);
            let mut rng = Rng::new(3);
            let mut pool = vec![bf16::ZERO; pages * 2 * kv_heads * PAGE_ROWS * D];
            let q: Vec<bf16> = rng.normals(total * q_heads * D, 1.0);
            let kv: Vec<bf16> = rng.normals(total * kv_heads * D, 1.0);
            let norm: Vec<bf16> = rng.normals(D, 0.3);
            let table = rope::table(1e7, ROTARY, 1024);
            let mut out = vec![bf16::ZERO; q.len()];
            let problem = AppendProblem {
                sequences,
                rows: total,
                q_heads,
                kv_heads,
                head_dim: D,
                rotary: ROTARY,
                eps: 1e-6,
                slots: sequences,
                max_pages: launch.max_pages,
                positions: 1024,
            };
            let op = Append::plan(problem, &DeviceInfo::cpu()).expect("a sound problem");
            let mut faults = std::mem::take(&mut launch.faults);
            let id = format!("attn/append/{model}/b{sequences}/t{rows}");
            bench.cpu(&id, 2 * (2 * q.len() + 4 * kv.len()) as u64, || {
                let args = AppendArgs::<Cpu> {
                    q_out: TensorMut::of(&mut out, [total, q_heads, D]),
                    pool: KvPoolMut::packed(&mut pool[..], pages, kv_heads, PAGE_ROWS, D),
                    faults: TensorMut::of(&mut faults, [sequences + 1]),
                    q: Tensor::of(&q, [total, q_heads, D]),
                    k: Tensor::of(&kv, [total, kv_heads, D]),
                    v: Tensor::of(&kv, [total, kv_heads, D]),
                    q_norm: Tensor::of(&norm, [D]),
                    k_norm: Tensor::of(&norm, [D]),
                    rope: Tensor::of(&table, [1024, ROTARY]),
                    page_table: Tensor::of(&launch.table, [sequences, launch.max_pages]),
                    rows: launch.rows(),
                };
                op.run(&(), args).expect("sound operands");
            });
        }
    }
}

fn main() {
    let mut bench = Bench::from_args();
    attend(&mut bench, false, &[(1, 1, 1024), (1, 4, 1024), (1, 1, 4096), (8, 4, 1024)]);
    attend(&mut bench, true, &[(1, 64, 512)]);
    append(&mut bench);
}

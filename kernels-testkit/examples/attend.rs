//! Verification of drafts by paged attention: kernels-attn alone, on a stream and in buffers that belong to this
//! program.
//!
//! ```sh
//! cargo run -p kernels-testkit --features cuda --example attend
//! ```
//!
//! Three sequences of unequal length get three new rows each, once in one launch and once in three launches of one
//! row. The second pass has plans of its own, and its pages lie elsewhere. The rows are compared byte for byte.

use cudarc::driver::{CudaSlice, CudaStream, sys::CUevent_flags::CU_EVENT_DEFAULT};
use kernels_attn::{Append, AppendArgs, AppendProblem, Args, Problem, Verify, Work, WorkArgs};
use kernels_core::{Backend, Cuda, DeviceInfo, KvPool, KvPoolMut, Result, Rows, Tensor, TensorMut};
use kernels_core::{bf16, rope, slots::Fault};
use kernels_testkit::rng::Rng;
use std::{error::Error, ops::Range, process::ExitCode, sync::Arc};

const CONTEXTS: [usize; 3] = [30_000, 5000, 300]; // tokens before the new rows; sequence i lives in slot i
const SEQUENCES: usize = CONTEXTS.len();
const NEW: usize = 3; // rows of each sequence
const Q_HEADS: usize = 24;
const KV_HEADS: usize = 4;
const HEAD: usize = 256;
const Q: usize = Q_HEADS * HEAD; // of a row
const KV: usize = KV_HEADS * HEAD;
const PAGE_ROWS: usize = 64;
const MAX_PAGES: usize = 512; // of a sequence
const PAGES: usize = 600; // of the pool
const ROTARY: usize = 64;

/// What the projections and the norms' weights would give: row i of sequence s is number `s * NEW + i`.
struct Inputs {
    q: Vec<bf16>,    // [SEQUENCES * NEW, Q]
    gate: Vec<bf16>, // [SEQUENCES * NEW, Q]
    k: Vec<bf16>,    // [SEQUENCES * NEW, KV]
    v: Vec<bf16>,    // [SEQUENCES * NEW, KV]
    past: Vec<bf16>, // keys and values of earlier tokens are cut from it
    norm: Vec<bf16>, // [HEAD]
}

/// A layer's pages, and all that its launches need.
struct Layer {
    on: Arc<CudaStream>,
    append: Append,
    work: Work,
    verify: Verify,
    pool: CudaSlice<bf16>, // [PAGES, 2 (k, v), KV_HEADS, PAGE_ROWS, HEAD]
    table: CudaSlice<i32>, // [SEQUENCES, MAX_PAGES]
    rope: CudaSlice<f32>,
    norm: CudaSlice<bf16>,
    list: CudaSlice<i32>,     // one for all layers of a round
    workspace: CudaSlice<u8>, // one for all layers
    faults: CudaSlice<u64>,
}

impl Layer {
    /// Plans are made once, for bounds: rows, lengths and pages of a round are device data.
    fn new(on: &Arc<CudaStream>, max_rows: usize, inputs: &Inputs, seed: u64) -> Result<Layer> {
        let device = DeviceInfo::of(on.context())?;
        let (sequences, slots, rows) = (SEQUENCES, SEQUENCES, SEQUENCES * max_rows);
        #[rustfmt::skip]
        let append = AppendProblem {
            sequences, rows, q_heads: Q_HEADS, kv_heads: KV_HEADS, head_dim: HEAD, rotary: ROTARY, eps: 1e-6,
            slots, max_pages: MAX_PAGES, page_rows: PAGE_ROWS, positions: MAX_PAGES * PAGE_ROWS,
        };
        #[rustfmt::skip]
        let attend = Problem {
            sequences, rows, max_rows, q_heads: Q_HEADS, kv_heads: KV_HEADS, head_dim: HEAD,
            slots, max_pages: MAX_PAGES, pages: PAGES, page_rows: PAGE_ROWS, first_key: 0, window: None,
        };
        let (work, verify) = (Work::plan(attend, &device)?, Verify::plan(attend, &device)?);
        // Pages in any order. NaN instead of zeros, to show it: what no row sees may hold anything.
        let mut pages = Rng::new(seed).permutation(PAGES).into_iter();
        let mut table = vec![0; SEQUENCES * MAX_PAGES];
        let mut pool = vec![bf16::NAN; PAGES * 2 * PAGE_ROWS * KV];
        for (sequence, context) in CONTEXTS.iter().enumerate() {
            for i in 0..(context + NEW).div_ceil(PAGE_ROWS) {
                let page = pages.next().expect("PAGES are enough");
                table[sequence * MAX_PAGES + i] = page as i32;
                let rows = PAGE_ROWS.min(context.saturating_sub(i * PAGE_ROWS));
                for side_and_head in 0..2 * KV_HEADS {
                    let to = (page * 2 * KV_HEADS + side_and_head) * PAGE_ROWS * HEAD;
                    let from = (sequence + 5 * i + 7 * side_and_head) * 1031 % (inputs.past.len() / 2);
                    pool[to..][..rows * HEAD].copy_from_slice(&inputs.past[from..][..rows * HEAD]);
                }
            }
        }
        Ok(Layer {
            on: on.clone(),
            append: Append::plan(append, &device)?,
            pool: on.clone_htod(&pool)?,
            table: on.clone_htod(&table)?,
            rope: on.clone_htod(&rope::table(1e7, ROTARY, append.positions))?,
            norm: on.clone_htod(&inputs.norm)?,
            list: on.alloc_zeros(work.len())?,
            workspace: on.alloc_zeros(verify.workspace_bytes())?,
            faults: on.alloc_zeros(SEQUENCES + 1)?,
            work,
            verify,
        })
    }

    /// Enqueues a round for the rows `new` of each sequence and reads its outputs `[rows, Q]`. The verification
    /// runs `times` times, as it would for each layer of a model; returns µs of one run, too.
    fn round(&mut self, inputs: &Inputs, new: Range<usize>, times: usize) -> Result<(Vec<bf16>, f32)> {
        let (p, on) = (*self.verify.problem(), &self.on);
        let gather = |from: &[bf16], width: usize| {
            let row = |s: usize| &from[(s * NEW + new.start) * width..(s * NEW + new.end) * width];
            on.clone_htod(&(0..SEQUENCES).flat_map(row).copied().collect::<Vec<_>>())
        };
        let (raw_q, gate) = (gather(&inputs.q, Q)?, gather(&inputs.gate, Q)?);
        let (k, v) = (gather(&inputs.k, KV)?, gather(&inputs.v, KV)?);
        let slots = on.clone_htod(&[0, 1, 2])?;
        let start = on.clone_htod(&CONTEXTS.map(|context| (context + new.start) as i32))?;
        let offsets = on.clone_htod(&[0, 1, 2, 3].map(|s| s * new.len() as i32))?;
        let mut q = on.alloc_zeros::<bf16>(p.rows * Q)?;
        let mut out = on.alloc_zeros::<bf16>(p.rows * Q)?;
        let list = Rows::<Cuda> {
            slots: Tensor::of(&slots, [SEQUENCES]),
            start: Tensor::of(&start, [SEQUENCES]),
            row_offsets: Tensor::of(&offsets, [SEQUENCES + 1]),
        };

        // Writes the pages at the new positions only. A rejected draft's row stays behind the end, where nobody looks,
        // until the next round writes there first.
        self.append.run(
            on,
            AppendArgs::<Cuda> {
                q_out: TensorMut::of(&mut q, [p.rows, Q_HEADS, HEAD]),
                pool: KvPoolMut::packed(Cuda::view_mut(&mut self.pool), PAGES, KV_HEADS, PAGE_ROWS, HEAD),
                faults: TensorMut::of(&mut self.faults, [SEQUENCES + 1]),
                q: Tensor::of(&raw_q, [p.rows, Q_HEADS, HEAD]),
                k: Tensor::of(&k, [p.rows, KV_HEADS, HEAD]),
                v: Tensor::of(&v, [p.rows, KV_HEADS, HEAD]),
                q_norm: Tensor::of(&self.norm, [HEAD]),
                k_norm: Tensor::of(&self.norm, [HEAD]),
                rope: Tensor::of(&self.rope, [MAX_PAGES * PAGE_ROWS, ROTARY]),
                page_table: Tensor::of(&self.table, [SEQUENCES, MAX_PAGES]),
                rows: list.reborrow(),
            },
        )?;
        // Once a round: checks the sequences, and deals their keys to thread blocks by their lengths.
        self.work.run(
            on,
            WorkArgs::<Cuda> {
                work: TensorMut::of(&mut self.list, [self.work.len()]),
                faults: TensorMut::of(&mut self.faults, [SEQUENCES + 1]),
                page_table: Tensor::of(&self.table, [SEQUENCES, MAX_PAGES]),
                rows: list.reborrow(),
            },
        )?;
        let begin = on.record_event(Some(CU_EVENT_DEFAULT))?;
        for _ in 0..times {
            self.verify.run(
                on,
                Args::<Cuda> {
                    out: TensorMut::of(&mut out, [p.rows, Q_HEADS, HEAD]),
                    faults: TensorMut::of(&mut self.faults, [SEQUENCES + 1]),
                    q: Tensor::of(&q, [p.rows, Q_HEADS, HEAD]),
                    gate: Some(Tensor::of(&gate, [p.rows, Q_HEADS, HEAD])),
                    pool: KvPool::packed(Cuda::view(&self.pool), PAGES, KV_HEADS, PAGE_ROWS, HEAD),
                    page_table: Tensor::of(&self.table, [SEQUENCES, MAX_PAGES]),
                    rows: list.reborrow(),
                    work: Some(Tensor::of(&self.list, [self.work.len()])),
                    workspace: Some(TensorMut::of(&mut self.workspace, [self.verify.workspace_bytes()])),
                },
            )?;
        }
        let end = on.record_event(Some(CU_EVENT_DEFAULT))?;
        let us = begin.elapsed_ms(&end)? * 1e3 / times as f32;
        Ok((on.clone_dtoh(&out)?, us))
    }
}

fn compare() -> Result<(), Box<dyn Error>> {
    let (context, device) = DeviceInfo::open(0)?;
    let on = context.new_stream()?;
    let mut rng = Rng::new(1);
    let mut random = |len: usize| rng.normals::<bf16>(len, 1.0);
    let rows = SEQUENCES * NEW;
    #[rustfmt::skip]
    let inputs = Inputs {
        q: random(rows * Q), gate: random(rows * Q), k: random(rows * KV), v: random(rows * KV),
        past: random(1 << 20), norm: random(HEAD),
    };

    let mut layer = Layer::new(&on, NEW, &inputs, 2)?;
    layer.round(&inputs, 0..NEW, 1)?; // loads the kernels; the same round again writes the same rows
    let (verified, us) = layer.round(&inputs, 0..NEW, 100)?;
    let bytes = CONTEXTS.iter().map(|context| (context + NEW) * 2 * KV * 2).sum::<usize>(); // thrice the L2 cache
    println!("{}: {SEQUENCES} sequences with {CONTEXTS:?} tokens, {NEW} new rows each", device.name);
    println!("{:?}, workspace of {} MB", layer.verify.grid(), layer.workspace.len() / 1_000_000);
    println!("{us:.1} µs, {:.2} TB/s of {} MB", bytes as f32 / us / 1e6, bytes / 1_000_000);

    let bits = |rows: &[bf16]| rows.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let mut plain = Layer::new(&on, 1, &inputs, 3)?;
    for row in 0..NEW {
        let (single, _) = plain.round(&inputs, row..row + 1, 1)?;
        for sequence in 0..SEQUENCES {
            let (a, b) = (&verified[(sequence * NEW + row) * Q..][..Q], &single[sequence * Q..][..Q]);
            if bits(a) != bits(b) || b.iter().any(|x| !x.is_finite()) {
                return Err(format!("row {row} of sequence {sequence} differs from a single row").into());
            }
        }
    }
    for layer in [&layer, &plain] {
        if let Some(fault) = on.clone_dtoh(&layer.faults)?.into_iter().find_map(Fault::decode) {
            return Err(fault.to_string().into());
        }
    }
    println!("{NEW} rows verified together and one by one: the same bytes");
    Ok(())
}

fn main() -> ExitCode {
    match compare() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attend: {error}");
            ExitCode::FAILURE
        }
    }
}

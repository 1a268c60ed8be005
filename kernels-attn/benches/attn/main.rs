//! Attention at real geometries: time, bytes, TB/s.
//!
//! Ids: `attn/verify/MODEL/bB/cCTX/tT` (B sequences of T rows that end at position CTX, pages of 64 rows, the list made
//! once before, as a round's layers share it), `attn/overlapping/..` (each launch may begin before the last one
//! ended), `attn/grid/../PATH-SHARE`, `attn/list/..`, `attn/append/MODEL/bB/tT`,
//! `attn/prefill/MODEL/cCTX/nROWS`. Calls take pools in turn, so that none finds its own in the L2 cache. Without a
//! GPU or kernels the CPU backend is timed on a few shapes.

mod operands;

use kernels_attn::{Append, Prefill, Problem, Verify, Work};
use kernels_core::{Cpu, DeviceInfo};
use kernels_testkit::bench::Bench;
use operands::{Operands, Shape, append_problem};

/// Name, query heads, K/V heads; all of 256 elements, 64 of them rotated.
type Model = (&'static str, usize, usize);
const MODELS: [Model; 2] = [("qwen3.5-27b", 24, 4), ("qwen3.5-35b-a3b", 16, 2)];
const D: usize = 256;
const PAGE_ROWS: usize = 64;

fn problem((_, q_heads, kv_heads): Model, shape: Shape) -> Problem {
    let Shape { sequences, rows, context } = shape;
    let max_pages = context.div_ceil(PAGE_ROWS);
    Problem {
        sequences,
        rows: sequences * rows,
        max_rows: rows,
        q_heads,
        kv_heads,
        head_dim: D,
        slots: sequences,
        max_pages,
        pages: sequences * max_pages,
        page_rows: PAGE_ROWS,
        first_key: 0,
        window: None,
    }
}

/// Keys and values once; query, gate and output.
fn attention_bytes(p: &Problem, context: usize) -> u64 {
    let pool = p.sequences * context * 2 * p.kv_heads * p.head_dim;
    2 * (pool + 3 * p.rows * p.q_heads * p.head_dim) as u64
}

/// Queries read and written, keys and values read and written.
fn append_bytes(p: &Problem) -> u64 {
    2 * (2 * p.rows * (p.q_heads + 2 * p.kv_heads) * p.head_dim) as u64
}

fn main() {
    let mut bench = Bench::from_args();
    #[cfg(feature = "cuda")]
    if cfg!(kernels_built) && bench.device().is_some() {
        return cuda::all(&mut bench);
    }
    let cpu = DeviceInfo::cpu();
    for model in [("tiny", 4, 2), MODELS[0], MODELS[1]] {
        for (sequences, rows, context) in [(1, 1, 1024), (1, 4, 1024), (1, 1, 4096), (8, 4, 1024)] {
            let shape = Shape { sequences, rows, context };
            let p = problem(model, shape);
            let verify = Verify::plan(p, &cpu).expect("a sound problem");
            let list = Work::plan(p, &cpu).expect("a sound problem");
            let mut operands = Operands::<Cpu>::new(&(), p, shape, 1, (list.len(), 0), None);
            operands.list(|args| list.run(&(), args)).expect("sound operands");
            let id = format!("attn/verify/{}/b{sequences}/c{context}/t{rows}", model.0);
            bench.cpu(&id, attention_bytes(&p, context), || {
                operands.attend(0, |args| verify.run(&(), args)).expect("sound operands");
            });
            assert!(!operands.faulted(&()), "{id}: a round's numbers are wrong");
        }
        let shape = Shape { sequences: 1, rows: 64, context: 512 };
        let p = problem(model, shape);
        let prefill = Prefill::plan(p, &cpu).expect("a sound problem");
        let mut operands = Operands::<Cpu>::new(&(), p, shape, 1, (0, 0), None);
        bench.cpu(&format!("attn/prefill/{}/c512/n64", model.0), attention_bytes(&p, 512), || {
            operands.attend(0, |args| prefill.run(&(), args)).expect("sound operands");
        });
        for (sequences, rows) in [(1, 1), (1, 4), (8, 4)] {
            let shape = Shape { sequences, rows, context: 1024 };
            let p = problem(model, shape);
            let append = Append::plan(append_problem(&p), &cpu).expect("a sound problem");
            let mut operands = Operands::<Cpu>::new(&(), p, shape, 1, (0, 0), None);
            let id = format!("attn/append/{}/b{sequences}/t{rows}", model.0);
            bench.cpu(&id, append_bytes(&p), || {
                operands.append(0, |args| append.run(&(), args)).expect("sound operands");
            });
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use crate::operands::pool_len;
    use kernels_attn::{Args, Grid, Path, Share};
    use kernels_core::{Backend, Cuda, Result, bf16};
    use kernels_testkit::timing::copies;

    type Pool = <Cuda as Backend>::Memory<bf16>;

    const BATCHES: [usize; 4] = [32, 8, 4, 1];
    const CONTEXTS: [usize; 5] = [131_072, 65_536, 16_384, 4096, 1024];

    /// Bytes of pools. A call with more in its pool than this has one pool: it turns the cache over by itself.
    const POOLS: u64 = 8 << 30;
    /// A call with more is left out.
    const MOST: u64 = 100 << 30;

    pub(super) fn all(bench: &mut Bench) {
        // The largest pool first, which then serves all others.
        let mut runner = Runner { bench, pool: None };
        for model in MODELS {
            for context in CONTEXTS {
                for sequences in BATCHES {
                    for rows in [1, 2, 3, 4, 8] {
                        let shape = Shape { sequences, rows, context };
                        runner.verify("verify", "", model, shape, None, false);
                    }
                }
            }
        }
        let model = MODELS[0];
        for (sequences, context) in [(1, 4096), (1, 16_384), (8, 16_384), (32, 4096)] {
            for rows in [1, 4] {
                let shape = Shape { sequences, rows, context };
                runner.verify("overlapping", "", model, shape, None, true);
                let paths = [("sm80", Path::Sm80), ("sm90", Path::Sm90)];
                let shares = [("leaf", Share::Leaf), ("group", Share::Group), ("sequence", Share::Sequence)];
                for (path, share) in
                    paths.iter().flat_map(|path| shares.iter().map(move |share| (path, share)))
                {
                    let tail = format!("/{}-{}", path.0, share.0);
                    let grid = Some(Grid { path: path.1, share: share.1 });
                    runner.verify("grid", &tail, model, shape, grid, false);
                }
            }
        }
        for (sequences, context) in [(1, 4096), (32, 4096), (32, 131_072)] {
            runner.list(model, Shape { sequences, rows: 4, context });
        }
        for model in MODELS {
            for sequences in BATCHES {
                for rows in [1, 4] {
                    runner.append(model, Shape { sequences, rows, context: 1024 });
                }
            }
            for (context, rows) in [(512, 512), (2048, 2048), (8192, 2048), (32_768, 2048)] {
                runner.prefill(model, Shape { sequences: 1, rows, context });
            }
        }
    }

    struct Runner<'a> {
        bench: &'a mut Bench,
        pool: Option<Pool>,
    }

    impl Runner<'_> {
        /// The queue, and the device's figures.
        fn on(&self) -> (<Cuda as Backend>::Queue, DeviceInfo) {
            let device = self.bench.device().expect("there is one");
            (device.queue.clone(), device.info.clone())
        }

        /// Sets of operands that the L2 cache does not hold; `None` if not even one fits into memory.
        fn sets(&self, bytes: u64) -> Option<usize> {
            let device = self.bench.device().expect("there is one");
            let fits = bytes <= MOST.min(device.info.memory as u64 / 4 * 3);
            let few = (POOLS / bytes.max(1)).max(1) as usize;
            fits.then(|| copies(device, bytes as usize).min(few))
        }

        /// Times `run` on operands with room for a list and a workspace; the list is made before.
        fn attend(
            &mut self,
            id: &str,
            (p, shape): (Problem, Shape),
            list: Option<&Work>,
            workspace: usize,
            run: impl Fn(&<Cuda as Backend>::Queue, Args<'_, Cuda>) -> Result<()>,
        ) {
            let (queue, _) = self.on();
            let bytes = attention_bytes(&p, shape.context);
            let Some(count) = self.sets(2 * pool_len(&p) as u64) else { return };
            let (mut operands, pool) = (None, &mut self.pool);
            self.bench.cuda(id, bytes, count, |call| {
                let operands = operands.get_or_insert_with(|| {
                    let sizes = (list.map_or(0, Work::len), workspace);
                    let mut operands = Operands::<Cuda>::new(&queue, p, shape, count, sizes, pool.take());
                    if let Some(list) = list {
                        operands.list(|args| list.run(&queue, args)).expect("a list");
                    }
                    operands
                });
                operands.attend(call, |args| run(&queue, args))
            });
            let Some(operands) = operands else { return };
            assert!(!operands.faulted(&queue), "{id}: a round's numbers are wrong");
            self.pool = Some(operands.into_pool());
        }

        fn verify(
            &mut self,
            name: &str,
            tail: &str,
            model: Model,
            shape: Shape,
            grid: Option<Grid>,
            overlapping: bool,
        ) {
            let (_, info) = self.on();
            let p = problem(model, shape);
            // Not every chip and build has every grid.
            let Ok(op) = Verify::plan_with(p, &info, grid) else { return };
            let op = op.overlapping(overlapping);
            let list = Work::plan_with(p, &info, grid.map(|grid| grid.share)).expect("as the verification");
            let Shape { sequences, rows, context } = shape;
            let id = format!("attn/{name}/{}/b{sequences}/c{context}/t{rows}{tail}", model.0);
            let bytes = op.workspace_bytes();
            self.attend(&id, (p, shape), Some(&list), bytes, |queue, args| op.run(queue, args));
        }

        fn prefill(&mut self, model: Model, shape: Shape) {
            let (_, info) = self.on();
            let p = problem(model, shape);
            let op = Prefill::plan(p, &info).expect("a sound problem");
            let id = format!("attn/prefill/{}/c{}/n{}", model.0, shape.context, shape.rows);
            let bytes = op.workspace_bytes();
            self.attend(&id, (p, shape), None, bytes, |queue, args| op.run(queue, args));
        }

        fn list(&mut self, model: Model, shape: Shape) {
            let (queue, info) = self.on();
            let p = problem(model, shape);
            let op = Work::plan(p, &info).expect("a sound problem");
            let id = format!("attn/list/{}/b{}/c{}/t{}", model.0, shape.sequences, shape.context, shape.rows);
            let bytes = 4 * (op.len() + p.slots * p.max_pages) as u64;
            let (mut operands, pool) = (None, &mut self.pool);
            self.bench.cuda(&id, bytes, 16, |_| {
                let new = || Operands::<Cuda>::new(&queue, p, shape, 1, (op.len(), 0), pool.take());
                operands.get_or_insert_with(new).list(|args| op.run(&queue, args))
            });
            self.pool = operands.map(Operands::into_pool).or(self.pool.take());
        }

        fn append(&mut self, model: Model, shape: Shape) {
            let (queue, info) = self.on();
            let p = problem(model, shape);
            let op = Append::plan(append_problem(&p), &info).expect("a sound problem");
            let id = format!("attn/append/{}/b{}/t{}", model.0, shape.sequences, shape.rows);
            let bytes = append_bytes(&p);
            let Some(count) = self.sets(bytes) else { return };
            // Each with a pool of its own, of which it writes little.
            let count = count.min(64);
            let (mut operands, pool) = (None, &mut self.pool);
            self.bench.cuda(&id, bytes, count, |call| {
                let new = || Operands::<Cuda>::new(&queue, p, shape, count, (0, 0), pool.take());
                operands.get_or_insert_with(new).append(call, |args| op.run(&queue, args))
            });
            self.pool = operands.map(Operands::into_pool).or(self.pool.take());
        }
    }
}

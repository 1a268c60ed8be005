//! Conv rounds and prefill chunks at real geometries: time, bytes, TB/s, and what the same loads and stores
//! cost without the arithmetic.
//!
//! Ids: `conv/verify/MODEL/bB/tT` (B sequences of T rows), `conv/traffic/..` (the same grid without
//! arithmetic), `conv/overlapping/..` (each launch may begin before the last one ended), `conv/grid/..`
//! (other grids), `conv/prefill/MODEL/nROWS`. On a GPU every call has operands of its own, more in all than
//! the L2 cache holds. Without a GPU the CPU backend is timed on a few shapes.

use kernels_conv::{Args, ConvBackend, Prefill, Problem, Verify};
use kernels_core::{Cpu, DeviceInfo, Rows, Tensor, TensorMut, bf16};
use kernels_testkit::{
    bench::{Bench, numbers},
    rng::Rng,
};

/// Channels of a GDN layer's conv: q, k and v heads of 128.
const MODELS: [(&str, usize); 2] =
    [("qwen3.5-27b", (2 * 16 + 48) * 128), ("qwen3.5-35b-a3b", (2 * 16 + 32) * 128)];

fn problem(channels: usize, sequences: usize, rows: usize) -> Problem {
    let (width, slots) = (4, sequences);
    Problem {
        sequences,
        rows: sequences * rows,
        channels,
        width,
        slots,
        ring_rows: width - 1 + rows.min(8),
        max_rows: rows,
        bias: false,
        silu: true,
    }
}

/// Inputs, outputs, the new rows' ring cells, the history, and the taps: each moves once.
fn bytes(p: &Problem) -> usize {
    let stored = p.rows.min(p.sequences * p.ring_rows);
    2 * p.channels * (2 * p.rows + stored + (p.width - 1) * p.sequences + p.width)
}

/// `copies` sets of operands.
struct Operands<B: ConvBackend> {
    problem: Problem,
    x: B::Memory<bf16>,
    out: B::Memory<bf16>,
    ring: B::Memory<bf16>,
    weight: B::Memory<bf16>,
    faults: B::Memory<u64>,
    slots: B::Memory<i32>,
    start: B::Memory<i32>,
    offsets: B::Memory<i32>,
}

impl<B: ConvBackend> Operands<B> {
    fn new(queue: &B::Queue, problem: Problem, copies: usize) -> Self {
        let p = problem;
        let mut rng = Rng::new(1);
        let random = |len| numbers::<B>(queue, len, 1.0);
        let per_sequence = (p.rows / p.sequences) as i32;
        let slots: Vec<i32> = rng.permutation(p.slots).into_iter().map(|s| s as i32).collect();
        let start: Vec<i32> = (0..p.sequences).map(|i| 1000 + 37 * i as i32).collect();
        let offsets: Vec<i32> = (0..=p.sequences as i32).map(|i| i * per_sequence).collect();
        Operands {
            problem,
            x: random(copies * p.rows * p.channels),
            out: random(copies * p.rows * p.channels),
            ring: random(copies * p.slots * p.ring_rows * p.channels),
            weight: random(copies * p.channels * p.width),
            faults: B::zeros(queue, p.slots + 1).expect("the bench fits into memory"),
            slots: B::upload(queue, &slots).expect("the bench fits into memory"),
            start: B::upload(queue, &start).expect("the bench fits into memory"),
            offsets: B::upload(queue, &offsets).expect("the bench fits into memory"),
        }
    }

    /// Lends set `copy` to `body`.
    fn with<R>(&mut self, copy: usize, body: impl FnOnce(Args<'_, B>) -> R) -> R {
        let p = self.problem;
        let part = |len: usize| copy * len..(copy + 1) * len;
        let (rows, ring) = (p.rows * p.channels, p.slots * p.ring_rows * p.channels);
        let mut outs = B::view_mut(&mut self.out);
        let mut rings = B::view_mut(&mut self.ring);
        body(Args {
            out: TensorMut::new(B::slice_mut(&mut outs, part(rows)), [p.rows, p.channels]),
            ring: TensorMut::new(B::slice_mut(&mut rings, part(ring)), [p.slots, p.ring_rows, p.channels]),
            faults: TensorMut::of(&mut self.faults, [p.slots + 1]),
            x: Tensor::new(B::slice(&B::view(&self.x), part(rows)), [p.rows, p.channels]),
            weight: Tensor::new(
                B::slice(&B::view(&self.weight), part(p.channels * p.width)),
                [p.channels, p.width],
            ),
            bias: None,
            rows: Rows {
                slots: Tensor::of(&self.slots, [p.sequences]),
                start: Tensor::of(&self.start, [p.sequences]),
                row_offsets: Tensor::of(&self.offsets, [p.sequences + 1]),
            },
        })
    }
}

fn main() {
    let mut bench = Bench::from_args();
    #[cfg(feature = "cuda")]
    if bench.device().is_some() {
        return cuda::all(&mut bench);
    }
    for (model, channels) in MODELS {
        for (sequences, rows) in [(1, 1), (1, 4), (8, 4)] {
            let p = problem(channels, sequences, rows);
            let verify = Verify::plan(p, &DeviceInfo::cpu()).expect("a valid problem");
            let mut operands = Operands::<Cpu>::new(&(), p, 1);
            let id = format!("conv/verify/{model}/b{sequences}/t{rows}");
            bench.cpu(&id, bytes(&p) as u64, || operands.with(0, |args| verify.run(&(), args).expect(&id)));
        }
        let p = problem(channels, 1, 256);
        let prefill = Prefill::plan(p, &DeviceInfo::cpu()).expect("a valid problem");
        let mut operands = Operands::<Cpu>::new(&(), p, 1);
        let id = format!("conv/prefill/{model}/n256");
        bench.cpu(&id, bytes(&p) as u64, || operands.with(0, |args| prefill.run(&(), args).expect(&id)));
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use kernels_conv::Grid;
    use kernels_core::Cuda;
    use kernels_testkit::{bench::Measured, timing::copies};

    pub(super) fn all(bench: &mut Bench) {
        let mut ratios = Vec::new();
        for (model, channels) in MODELS {
            for rows in [1, 2, 3, 4, 8] {
                for sequences in [1, 2, 4, 8, 16, 32, 64, 128] {
                    ratios.extend(verify(bench, model, channels, sequences, rows));
                }
            }
            for rows in [512, 2048] {
                let p = problem(channels, 1, rows);
                let prefill = Prefill::plan(p, &info(bench)).expect("a valid problem");
                run(bench, &format!("conv/prefill/{model}/n{rows}"), p, |queue, args| {
                    prefill.run(queue, args)
                });
            }
        }
        grids(bench);
        println!("conv/verify over conv/traffic on the same grid:");
        ratios.iter().for_each(|(id, ratio)| println!("  {id}: {ratio:.2}"));
    }

    fn info(bench: &Bench) -> DeviceInfo {
        bench.device().expect("there is one").info.clone()
    }

    type Queue = <Cuda as kernels_core::Backend>::Queue;

    /// Times one launch over rotated operands.
    fn run(
        bench: &mut Bench,
        id: &str,
        p: Problem,
        mut launch: impl FnMut(&Queue, Args<'_, Cuda>) -> kernels_core::Result<()>,
    ) -> Measured {
        let device = bench.device().expect("there is one");
        let (queue, copies) = (device.queue.clone(), copies(device, bytes(&p)));
        // None for what the command line leaves out.
        let mut operands = None;
        bench.cuda(id, bytes(&p) as u64, copies, |copy| {
            let operands = operands.get_or_insert_with(|| Operands::<Cuda>::new(&queue, p, copies));
            operands.with(copy, |args| launch(&queue, args))
        })
    }

    /// The kernel, its traffic alone, and overlapped; gives the ratio of the first two.
    fn verify(
        bench: &mut Bench,
        model: &str,
        channels: usize,
        sequences: usize,
        rows: usize,
    ) -> Option<(String, f64)> {
        let p = problem(channels, sequences, rows);
        let op = Verify::plan(p, &info(bench)).expect("a valid problem");
        let tail = format!("{model}/b{sequences}/t{rows}");
        let full = run(bench, &format!("conv/verify/{tail}"), p, |queue, args| op.run(queue, args));
        let bare = run(bench, &format!("conv/traffic/{tail}"), p, |queue, args| op.run_traffic(queue, args));
        if rows == 4 {
            let early = op.clone().overlapping(true);
            run(bench, &format!("conv/overlapping/{tail}"), p, |queue, args| early.run(queue, args));
        }
        Some((tail, full.time?.as_secs_f64() / bare.time?.as_secs_f64()))
    }

    /// Where the choice of `Grid` comes from.
    fn grids(bench: &mut Bench) {
        let (model, channels) = MODELS[0];
        for (sequences, rows) in
            [(1, 1), (8, 1), (32, 1), (64, 1), (1, 4), (8, 4), (16, 4), (32, 4), (64, 4), (64, 8)]
        {
            for rows_per_thread in [1, 2, 4].into_iter().filter(|r| *r <= rows) {
                for channels_per_thread in [2, 4, 8] {
                    for lanes in [32, 64, 128] {
                        let p = problem(channels, sequences, rows);
                        let grid = Grid { rows_per_thread, channels_per_thread, lanes };
                        let op = Verify::plan_with(p, &info(bench), Some(grid)).expect("a valid grid");
                        let choice = format!("r{rows_per_thread}-c{channels_per_thread}-l{lanes}");
                        let id = format!("conv/grid/{model}/b{sequences}/t{rows}/{choice}");
                        run(bench, &id, p, |queue, args| op.run(queue, args));
                    }
                }
            }
        }
    }
}

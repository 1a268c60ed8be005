//! The convolution, the recurrence and the gated norm of a layer, one after the other: what a round pays for all
//! three.
//!
//! It lives here because no family depends on another. Operands and counters are those of kernels-gdn's own
//! bench; the convolution writes the rows that the recurrence then reads, and the norm reads what that wrote.
//!
//! Ids: `gdn/chain/MODEL/bB/tT`, and `gdn/chain-overlapping/..` (each launch may begin before the last one
//! ended). Bytes are those of all launches, though what lies between them need not leave the L2 cache.

#[path = "../../kernels-gdn/benches/gdn/operands.rs"]
mod operands;
#[path = "../../kernels-gdn/benches/gdn/rounds.rs"]
#[allow(dead_code, reason = "it also knows prefill, which has no chain here")]
mod rounds;

use kernels_conv::ConvBackend;
use kernels_core::{Backend, Cpu, DeviceInfo, Result, Rows, Tensor, TensorMut, bf16, slots};
use kernels_dense::{DenseBackend, GatedNorm, GatedNormArgs, GatedNormProblem};
use kernels_gdn::GdnBackend;
use kernels_testkit::bench::Bench;
use operands::{Operands, Pool, grow};
use rounds::Rounds;

/// With their value heads.
const MODELS: [(&str, usize); 2] = [("qwen3.5-27b", 48), ("qwen3.5-35b-a3b", 32)];
const K_HEADS: usize = 16;
const TAPS: usize = 4;
const FLUSH_AFTER: usize = 4;

/// The operations in their order.
struct Plans {
    conv: kernels_conv::Verify,
    gdn: kernels_gdn::Verify,
    norm: GatedNorm,
}

impl Plans {
    fn new(v_heads: usize, sequences: usize, rows: usize, device: &DeviceInfo) -> Self {
        let conv = kernels_conv::Problem {
            sequences,
            rows: sequences * rows,
            channels: (2 * K_HEADS + v_heads) * 128,
            width: TAPS,
            slots: sequences,
            ring_rows: slots::conv_ring_rows(TAPS, rows),
            max_rows: rows,
            bias: false,
            silu: true,
        };
        let gdn = kernels_gdn::Problem {
            sequences,
            rows: sequences * rows,
            max_rows: rows,
            k_heads: K_HEADS,
            v_heads,
            k_dim: 128,
            v_dim: 128,
            slots: sequences,
            journal_rows: slots::journal_rows(FLUSH_AFTER, rows),
            flush_after: FLUSH_AFTER,
        };
        let norm = GatedNormProblem { rows: sequences * rows, heads: v_heads, head_dim: 128, eps: 1e-6 };
        Plans {
            conv: kernels_conv::Verify::plan(conv, device).expect("a valid problem"),
            gdn: kernels_gdn::Verify::plan(gdn, device).expect("a valid problem"),
            norm: GatedNorm::plan(norm, device).expect("a valid problem"),
        }
    }

    /// The recurrence's bytes; the convolution's inputs, outputs, new ring rows, history and taps; the norm's
    /// inputs, gates, outputs and weights.
    fn bytes(&self, rounds: &Rounds) -> u64 {
        let (p, channels) = (self.gdn.problem(), self.conv.problem().channels);
        let conv = 2 * channels * (3 * p.rows + (TAPS - 1) * p.sequences + TAPS);
        let norm = 2 * 3 * p.rows * p.v_heads * 128 + 4 * 128;
        rounds.verify_bytes(p) + (conv + norm) as u64
    }
}

/// The large buffers of all.
struct Memory<B: Backend> {
    gdn: Pool<B>,
    x: B::Memory<bf16>,
    ring: B::Memory<bf16>,
    weight: B::Memory<bf16>,
    gate: B::Memory<bf16>,
}

impl<B: Backend> Memory<B> {
    fn new(queue: &B::Queue) -> Self {
        let empty = || B::zeros(queue, 0).expect("nothing fits");
        Memory { gdn: Pool::new(queue), x: empty(), ring: empty(), weight: empty(), gate: empty() }
    }
}

/// What one bench works on.
struct Chain<B: Backend> {
    gdn: Operands<B>,
    faults: B::Memory<u64>,
    normed: B::Memory<bf16>,
    norm_weight: B::Memory<f32>,
}

impl<B: GdnBackend + ConvBackend + DenseBackend> Chain<B> {
    fn new(queue: &B::Queue, memory: &mut Memory<B>, plans: &Plans, copies: usize, rounds: &Rounds) -> Self {
        let (p, v_width) = (plans.conv.problem(), plans.gdn.problem().v_heads * 128);
        grow::<B, bf16>(queue, &mut memory.x, copies * p.rows * p.channels);
        grow::<B, bf16>(queue, &mut memory.ring, copies * p.slots * p.ring_rows * p.channels);
        grow::<B, bf16>(queue, &mut memory.weight, copies * p.channels * TAPS);
        grow::<B, bf16>(queue, &mut memory.gate, copies * p.rows * v_width);
        Chain {
            gdn: Operands::new(queue, &mut memory.gdn, *plans.gdn.problem(), copies, rounds),
            faults: B::zeros(queue, p.slots + 1).expect("a few numbers"),
            normed: B::zeros(queue, p.rows * v_width).expect("rows of one call"),
            norm_weight: B::upload(queue, &[1.0; 128]).expect("a few numbers"),
        }
    }

    /// Enqueues call number `call` of all.
    fn run(&mut self, queue: &B::Queue, memory: &mut Memory<B>, plans: &Plans, call: usize) -> Result<()> {
        let (p, v_heads) = (plans.conv.problem(), plans.gdn.problem().v_heads);
        let (copy, round) = (call % self.gdn.copies, call % self.gdn.rounds);
        let part = |len: usize| copy * len..(copy + 1) * len;
        let (rows, ring) = (p.rows * p.channels, p.slots * p.ring_rows * p.channels);
        let start = round * p.sequences..(round + 1) * p.sequences;
        let mut mixed = B::view_mut(&mut memory.gdn.mixed);
        let mut rings = B::view_mut(&mut memory.ring);
        plans.conv.run(
            queue,
            kernels_conv::Args::<B> {
                out: TensorMut::new(B::slice_mut(&mut mixed, part(rows)), [p.rows, p.channels]),
                ring: TensorMut::new(
                    B::slice_mut(&mut rings, part(ring)),
                    [p.slots, p.ring_rows, p.channels],
                ),
                faults: TensorMut::of(&mut self.faults, [p.slots + 1]),
                x: Tensor::new(B::slice(&B::view(&memory.x), part(rows)), [p.rows, p.channels]),
                weight: Tensor::new(
                    B::slice(&B::view(&memory.weight), part(p.channels * TAPS)),
                    [p.channels, TAPS],
                ),
                bias: None,
                rows: Rows {
                    slots: Tensor::of(&self.gdn.slots, [p.sequences]),
                    start: Tensor::new(B::slice(&B::view(&self.gdn.start), start), [p.sequences]),
                    row_offsets: Tensor::of(&self.gdn.offsets, [p.sequences + 1]),
                },
            },
        )?;
        drop((mixed, rings));
        self.gdn.with(&mut memory.gdn, call, |args| plans.gdn.run(queue, args))?;
        let heads = [p.rows, v_heads, 128];
        let part = part(p.rows * v_heads * 128);
        plans.norm.run(
            queue,
            GatedNormArgs::<B> {
                out: TensorMut::of(&mut self.normed, heads),
                x: Tensor::new(B::slice(&B::view(&memory.gdn.out), part.clone()), heads),
                gate: Tensor::new(B::slice(&B::view(&memory.gate), part), heads),
                weight: Tensor::of(&self.norm_weight, [128]),
            },
        )
    }
}

fn main() {
    let mut bench = Bench::from_args();
    #[cfg(feature = "cuda")]
    if bench.device().is_some() {
        return cuda(&mut bench);
    }
    let mut memory = Memory::<Cpu>::new(&());
    let (model, v_heads) = MODELS[0];
    let plans = Plans::new(v_heads, 1, 4, &DeviceInfo::cpu());
    let rounds = Rounds::simulate(1, 4, FLUSH_AFTER, 64);
    let mut chain = Chain::new(&(), &mut memory, &plans, 1, &rounds);
    let id = format!("gdn/chain/{model}/b1/t4");
    let mut call = 0..;
    bench.cpu(&id, plans.bytes(&rounds), || {
        let call = call.next().expect("it has no end");
        chain.run(&(), &mut memory, &plans, call).expect(&id);
    });
    assert!(!chain.gdn.faulted(&()), "{id}: a round's counters are wrong");
}

#[cfg(feature = "cuda")]
fn cuda(bench: &mut Bench) {
    use kernels_core::Cuda;
    use kernels_testkit::timing::copies;
    let device = bench.device().expect("there is one");
    let (queue, info) = (device.queue.clone(), device.info.clone());
    let mut memory = Memory::<Cuda>::new(&queue);
    for (model, v_heads) in MODELS {
        for (sequences, rows) in
            [1, 2, 4, 8, 16, 32, 64, 128].into_iter().flat_map(|b| [1, 2, 3, 4, 8].map(|t| (b, t)))
        {
            let plans = Plans::new(v_heads, sequences, rows, &info);
            let one = plans.bytes(&Rounds::settled(sequences)) as usize;
            let needed = copies(bench.device().expect("there is one"), one);
            let count = needed.max(16).max(256 / sequences);
            let rounds = Rounds::simulate(sequences, rows, FLUSH_AFTER, count);
            let early = Plans {
                conv: plans.conv.clone().overlapping(true),
                gdn: plans.gdn.clone().overlapping(true),
                norm: plans.norm.clone().overlapping(true),
            };
            for (op, plans) in [("chain", &plans), ("chain-overlapping", &early)] {
                let id = format!("gdn/{op}/{model}/b{sequences}/t{rows}");
                // Made at the first call: an id that the command line leaves out has none.
                let mut chain = None;
                bench.cuda(&id, plans.bytes(&rounds), count, |call| {
                    chain.get_or_insert_with(|| Chain::new(&queue, &mut memory, plans, count, &rounds)).run(
                        &queue,
                        &mut memory,
                        plans,
                        call,
                    )
                });
                let faulted = chain.is_some_and(|chain| chain.gdn.faulted(&queue));
                assert!(!faulted, "{id}: a round's counters are wrong");
            }
        }
    }
}

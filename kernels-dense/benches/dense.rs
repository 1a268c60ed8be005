//! The linear layers, the head and the experts at the shapes of real models; norms: norms.rs.
//!
//! Ids: `dense/OP/MODEL/NAME/rROWS`, `dense/moe/MODEL/rROWS`. Bytes are what must move at least once. On a GPU every
//! call has a weight of its own, more in all than the L2 cache holds, and cublasLt multiplies the same operands in the
//! same run where the library is there: `dense/cublaslt/…` with its first choice for the number of rows,
//! `dense/cublaslt-pinned/…` with one algorithm for the weight. `dense/behind-norm/…` and
//! `dense/cublaslt-behind-norm/…` (pinned) are a norm and the layer that reads it, as an engine launches them. The CPU
//! backend is timed on weights that fit a laptop.

use kernels_core::{Cpu, DType, DeviceInfo, Tensor, TensorMut, bf16};
use kernels_dense::{
    Epilogue, Head, HeadArgs, HeadProblem, Linear, LinearArgs, LinearProblem, Moe, MoeArgs, MoeProblem,
};
use kernels_testkit::{bench::Bench, rng::Rng};

/// A linear layer of a model: name, n, k, epilogue.
type Shape = (&'static str, usize, usize, Epilogue);

/// Of the embedded checkpoint.
const TINY: [Shape; 7] = [
    ("qkv", 1024, 256, Epilogue::Store),
    ("z", 512, 256, Epilogue::Store),
    ("ba", 8, 256, Epilogue::Store),
    ("q_gate", 2048, 256, Epilogue::Store),
    ("gate_up", 512, 256, Epilogue::SiluMul),
    ("down", 256, 512, Epilogue::AddTo),
    ("o", 256, 1024, Epilogue::AddTo),
];

/// One layer of the 27B that is still quick.
const LARGE: [Shape; 1] = [("attn_o", 5120, 6144, Epilogue::AddTo)];

fn main() {
    let mut bench = Bench::from_args();
    #[cfg(feature = "cuda")]
    if bench.device().is_some() {
        return cuda::all(&mut bench);
    }
    for shape in TINY {
        for rows in [1, 2, 3, 4, 8, 64] {
            linear(&mut bench, "qwen3.5-tiny", shape, rows);
        }
    }
    for shape in LARGE {
        for rows in [1, 3, 64] {
            linear(&mut bench, "qwen3.5-27b", shape, rows);
        }
    }
    for rows in [1, 3] {
        head(&mut bench, rows);
        moe(&mut bench, rows);
    }
}

fn normals(len: usize, deviation: f32) -> Vec<bf16> {
    Rng::new(len as u64).normals(len, deviation)
}

fn linear(bench: &mut Bench, model: &str, (name, n, k, epilogue): Shape, rows: usize) {
    let problem = LinearProblem { rows, k, n, epilogue };
    let op = Linear::plan(problem, &DeviceInfo::cpu()).expect("the CPU takes every shape");
    let outputs = problem.weight_rows();
    let (x, weight) = (normals(rows * k, 1.0), normals(outputs * k, 0.02));
    let mut out = vec![bf16::ZERO; rows * n];
    let bytes = 2 * (outputs * k + rows * k + rows * n) as u64;
    bench.cpu(&format!("dense/linear/{model}/{name}/r{rows}"), bytes, || {
        let args = LinearArgs::<Cpu> {
            out: TensorMut::of(&mut out, [rows, n]),
            x: Tensor::of(&x, [rows, k]),
            weight: Tensor::of(&weight, [outputs, k]),
            gate: None,
            workspace: None,
        };
        op.run(&(), args).expect("the operands fit");
    });
}

fn head(bench: &mut Bench, rows: usize) {
    let (k, vocab) = (256, 4096);
    let problem = HeadProblem { rows, k, vocab, valid: vocab - 3, listed: None };
    let op = Head::plan(problem, &DeviceInfo::cpu()).expect("the CPU takes every shape");
    let (x, weight, mut best) = (normals(rows * k, 1.0), normals(vocab * k, 0.02), vec![0; rows]);
    let bytes = 2 * (vocab * k + rows * k) as u64;
    bench.cpu(&format!("dense/head/qwen3.5-tiny/argmax/r{rows}"), bytes, || {
        let args = HeadArgs::<Cpu> {
            logits: None,
            argmax: Some(TensorMut::of(&mut best, [rows])),
            x: Tensor::of(&x, [rows, k]),
            weight: Tensor::of(&weight, [vocab, k]),
            ids: None,
            workspace: None,
        };
        op.run(&(), args).expect("the operands fit");
    });
}

/// The 35B-A3B's block with an eighth of its experts.
fn moe(bench: &mut Bench, rows: usize) {
    let (hidden, experts, top_k, inner) = (2048, 32, 8, 512);
    let problem = MoeProblem {
        rows,
        hidden,
        experts,
        top_k,
        intermediate: inner,
        shared_intermediate: inner,
        weights: DType::Bf16,
    };
    let op = Moe::plan(problem, &DeviceInfo::cpu()).expect("the CPU takes every shape");
    let gate_up = normals(experts * 2 * inner * hidden, 0.02);
    let down = normals(experts * inner * hidden, 0.02);
    let (router, shared_gate) = (normals(experts * hidden, 0.02), normals(hidden, 0.02));
    let (x, mut out) = (normals(rows * hidden, 1.0), vec![bf16::ZERO; rows * hidden]);
    // One row's experts, the shared one and the router; more rows read more experts.
    let bytes = 2 * ((top_k + 1) * 3 * inner * hidden + experts * hidden) as u64;
    bench.cpu(&format!("dense/moe/qwen3.5-35b-a3b-e32/block/r{rows}"), bytes, || {
        let args = MoeArgs::<Cpu> {
            out: TensorMut::of(&mut out, [rows, hidden]),
            routes: None,
            x: Tensor::of(&x, [rows, hidden]),
            router: Tensor::of(&router, [experts, hidden]),
            gate_up: Tensor::of(&gate_up, [experts, 2 * inner, hidden]),
            down: Tensor::of(&down, [experts, hidden, inner]),
            shared_gate_up: Tensor::new(&gate_up[..2 * inner * hidden], [2 * inner, hidden]),
            shared_down: Tensor::new(&down[..inner * hidden], [hidden, inner]),
            shared_gate: Tensor::of(&shared_gate, [1, hidden]),
            workspace: None,
        };
        op.run(&(), args).expect("the operands fit");
    });
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use kernels_core::{Backend, Cuda};
    use kernels_dense::{AddNorm, AddNormArgs, NormProblem};
    use kernels_testkit::{
        bench::numbers,
        cublaslt::{CublasLt, Operands},
        device::Device,
        timing::copies,
    };
    use std::{cell::OnceCell, rc::Rc};

    /// The weights of a model, as they are read in a step.
    const MODELS: [(&str, &[Shape]); 2] = [
        (
            "qwen3.5-27b",
            &[
                ("attn_o", 5120, 6144, Epilogue::Store),
                ("attn_qkv_gate", 14336, 5120, Epilogue::Store),
                ("down", 5120, 17408, Epilogue::Store),
                ("gate_up", 34816, 5120, Epilogue::Store),
                ("gdn_ba", 96, 5120, Epilogue::Store),
                ("gdn_out", 5120, 6144, Epilogue::Store),
                ("gdn_qkvz", 16384, 5120, Epilogue::Store),
                ("lm_head", 248_320, 5120, Epilogue::Store),
                ("mtp_fc", 5120, 10240, Epilogue::Store),
                ("attn_o_add", 5120, 6144, Epilogue::AddTo),
                ("down_add", 5120, 17408, Epilogue::AddTo),
                ("gate_up_silu", 17408, 5120, Epilogue::SiluMul),
            ],
        ),
        (
            "qwen3.5-35b-a3b",
            &[
                ("attn_o", 2048, 4096, Epilogue::Store),
                ("attn_qkv_gate", 9216, 2048, Epilogue::Store),
                ("gdn_out", 2048, 4096, Epilogue::Store),
                ("gdn_qkvz", 12288, 2048, Epilogue::Store),
                ("lm_head", 248_320, 2048, Epilogue::Store),
                ("mtp_fc", 2048, 4096, Epilogue::Store),
                ("router", 256, 2048, Epilogue::Store),
                ("shared_down", 2048, 512, Epilogue::Store),
                ("shared_gate_up", 1024, 2048, Epilogue::Store),
                ("shared_gate_up_silu", 512, 2048, Epilogue::SiluMul),
            ],
        ),
    ];

    /// Ids of the tokenizer.
    const VALID: usize = 248_077;

    pub(super) fn all(bench: &mut Bench) {
        for (model, shapes) in MODELS {
            for shape in shapes {
                for rows in [1, 2, 3, 4, 8, 16, 32, 64, 96, 128, 192, 256, 1024, 4096] {
                    linear(bench, model, *shape, rows, Way::Plain);
                    cublaslt(bench, model, *shape, rows, Peer::Free);
                }
                for rows in [1, 4, 32] {
                    linear(bench, model, *shape, rows, Way::Overlapping);
                }
                let pinned = Pinned::new();
                for rows in [1, 3, 8, 32, 64, 128, 256] {
                    cublaslt(bench, model, *shape, rows, Peer::Pinned(&pinned));
                    cublaslt(bench, model, *shape, rows, Peer::BehindNorm(&pinned));
                    linear(bench, model, *shape, rows, Way::BehindNorm);
                }
            }
            let k = if model.ends_with("27b") { 5120 } else { 2048 };
            for rows in [1, 4, 8, 32, 64, 96, 128, 256] {
                head(bench, model, k, rows, false);
                head(bench, model, k, rows, true);
            }
        }
        let mut experts = None;
        for rows in [1, 2, 3, 4, 8, 16, 32, 64] {
            moe(bench, &mut experts, rows, false);
        }
        for rows in [1, 4, 32] {
            moe(bench, &mut experts, rows, true);
        }
    }

    type Memory = <Cuda as Backend>::Memory<bf16>;

    /// The 35B-A3B's.
    const MIXTURE: MoeProblem = MoeProblem {
        rows: 1,
        hidden: 2048,
        experts: 256,
        top_k: 8,
        intermediate: 512,
        shared_intermediate: 512,
        weights: DType::Bf16,
    };

    /// How many experts each `rows` rows of `x` choose together, on average.
    fn distinct(x: &[bf16], router: &[bf16], rows: usize) -> f64 {
        let MoeProblem { hidden, experts, top_k, .. } = MIXTURE;
        let route = |x: &[bf16]| -> Vec<usize> {
            let logit = |e: usize| -> f32 {
                x.iter().zip(&router[e * hidden..]).map(|(x, w)| x.to_f32() * w.to_f32()).sum()
            };
            let logits: Vec<f32> = (0..experts).map(logit).collect();
            let mut ids: Vec<usize> = (0..experts).collect();
            ids.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            ids.truncate(top_k);
            ids
        };
        let parts = x.chunks(rows * hidden);
        let count = parts.len() as f64;
        let of_part = |part: &[bf16]| -> usize {
            let mut ids: Vec<usize> = part.chunks(hidden).flat_map(route).collect();
            ids.sort_unstable();
            ids.dedup();
            ids.len()
        };
        parts.map(of_part).sum::<usize>() as f64 / count
    }

    fn part(all: &Memory, first: usize, len: usize) -> <Cuda as Backend>::View<'_, bf16> {
        Cuda::slice(&Cuda::view(all), first..first + len)
    }

    /// All experts are there once; every call has rows, and so experts, of its own.
    fn moe(bench: &mut Bench, experts_there: &mut Option<(Memory, Memory)>, rows: usize, overlapping: bool) {
        let device = bench.device().expect("there is one");
        let (queue, info) = (device.queue.clone(), device.info.clone());
        let problem = MoeProblem { rows, ..MIXTURE };
        let MoeProblem { hidden, experts, top_k, intermediate: inner, .. } = problem;
        let op = Moe::plan(problem, &info).expect("there is a kernel").overlapping(overlapping);
        let expert = 3 * inner * hidden;
        let copies = copies(device, 2 * expert * (top_k + 1)).max(2);
        let (x, router) = (normals(copies * rows * hidden, 1.0), normals(experts * hidden, 0.02));
        let read = distinct(&x, &router, rows) + 1.0;
        let bytes = 2 * (read * expert as f64) as usize + 2 * (experts * hidden + 2 * rows * hidden);
        let mut prepared = None;
        let way = if overlapping { "dense/moe/overlapping" } else { "dense/moe" };
        bench.cuda(&format!("{way}/qwen3.5-35b-a3b/r{rows}"), bytes as u64, copies, |copy| {
            let (gate_up, down) = experts_there.get_or_insert_with(|| {
                (random(&queue, experts * 2 * inner * hidden), random(&queue, experts * inner * hidden))
            });
            let (x, router, shared, shared_gate, out, workspace) = prepared.get_or_insert_with(|| {
                (
                    Cuda::upload(&queue, &x).expect("the bench fits into memory"),
                    Cuda::upload(&queue, &router.repeat(copies)).expect("the bench fits into memory"),
                    random(&queue, copies * expert),
                    random(&queue, hidden),
                    random(&queue, rows * hidden),
                    Cuda::zeros::<u8>(&queue, op.workspace_bytes()).expect("the bench fits into memory"),
                )
            });
            let shared_at = copy * expert;
            let args = MoeArgs::<Cuda> {
                out: TensorMut::of(out, [rows, hidden]),
                routes: None,
                x: Tensor::new(part(x, copy * rows * hidden, rows * hidden), [rows, hidden]),
                router: Tensor::new(
                    part(router, copy * experts * hidden, experts * hidden),
                    [experts, hidden],
                ),
                gate_up: Tensor::of(gate_up, [experts, 2 * inner, hidden]),
                down: Tensor::of(down, [experts, hidden, inner]),
                shared_gate_up: Tensor::new(part(shared, shared_at, 2 * inner * hidden), [2 * inner, hidden]),
                shared_down: Tensor::new(
                    part(shared, shared_at + 2 * inner * hidden, inner * hidden),
                    [hidden, inner],
                ),
                shared_gate: Tensor::of(shared_gate, [1, hidden]),
                workspace: Some(TensorMut::of(workspace, [op.workspace_bytes()])),
            };
            op.run(&queue, args)
        });
    }

    fn random(queue: &<Cuda as Backend>::Queue, len: usize) -> <Cuda as Backend>::Memory<bf16> {
        numbers::<Cuda>(queue, len, 0.02)
    }

    /// How a layer is launched.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Way {
        Plain,
        /// So that it may begin before the launch in front, one of the same, has ended.
        Overlapping,
        /// Behind the norm that computes its rows, both so that they may begin early.
        BehindNorm,
    }

    /// Norms are no wider.
    const WIDEST_NORM: usize = 8192;

    /// The norm in front of a layer.
    struct InFront {
        op: AddNorm,
        residual: Memory,
        delta: Memory,
        weight: Memory,
    }

    impl InFront {
        fn new(device: &Device, rows: usize, k: usize) -> Self {
            let problem = NormProblem { rows, n: k, eps: 1e-6 };
            InFront {
                op: AddNorm::plan(problem, &device.info).expect("there is a kernel").overlapping(true),
                residual: random(&device.queue, rows * k),
                delta: random(&device.queue, rows * k),
                weight: random(&device.queue, k),
            }
        }

        fn run(&mut self, queue: &<Cuda as Backend>::Queue, out: &mut Memory) -> kernels_core::Result<()> {
            let NormProblem { rows, n, .. } = *self.op.problem();
            let args = AddNormArgs::<Cuda> {
                residual: TensorMut::of(&mut self.residual, [rows, n]),
                out: TensorMut::of(out, [rows, n]),
                x: Tensor::of(&self.delta, [rows, n]),
                weight: Tensor::of(&self.weight, [n]),
            };
            self.op.run(queue, args)
        }
    }

    /// Bytes of a layer, and how many copies of its weight there are: two large ones throw each other out.
    fn rotation(bench: &Bench, (n, k): (usize, usize), rows: usize, weight_rows: usize) -> (u64, usize) {
        let device = bench.device().expect("there is one");
        let bytes = 2 * (weight_rows * k + rows * k + rows * n);
        (bytes as u64, if bytes > 2 * device.info.l2_bytes { 2 } else { copies(device, bytes) })
    }

    fn linear(bench: &mut Bench, model: &str, shape: Shape, rows: usize, way: Way) {
        let (name, n, k, epilogue) = shape;
        if way == Way::BehindNorm && k > WIDEST_NORM {
            return;
        }
        let device = bench.shared_device().expect("there is one");
        let queue = device.queue.clone();
        let problem = LinearProblem { rows, k, n, epilogue };
        let op = Linear::plan(problem, &device.info).expect("there is one").overlapping(way != Way::Plain);
        let outputs = problem.weight_rows();
        let (bytes, copies) = rotation(bench, (n, k), rows, outputs);
        let mut prepared = None;
        let id = match way {
            Way::Plain => "dense/linear",
            Way::Overlapping => "dense/linear/overlapping",
            Way::BehindNorm => "dense/behind-norm",
        };
        bench.cuda(&format!("{id}/{model}/{name}/r{rows}"), bytes, copies, |copy| {
            let (in_front, x, weight, out, workspace) = prepared.get_or_insert_with(|| {
                (
                    (way == Way::BehindNorm).then(|| InFront::new(&device, rows, k)),
                    random(&queue, rows * k),
                    random(&queue, copies * outputs * k),
                    random(&queue, rows * n),
                    Cuda::zeros::<u8>(&queue, op.workspace_bytes()).expect("the bench fits into memory"),
                )
            });
            if let Some(norm) = in_front {
                norm.run(&queue, x)?;
            }
            let first = copy * outputs * k;
            let weight = Cuda::slice(&Cuda::view(weight), first..first + outputs * k);
            let args = LinearArgs::<Cuda> {
                out: TensorMut::of(out, [rows, n]),
                x: Tensor::of(x, [rows, k]),
                weight: Tensor::new(weight, [outputs, k]),
                gate: None,
                workspace: Some(TensorMut::of(workspace, [op.workspace_bytes()])),
            };
            op.run(&queue, args)
        });
    }

    /// The peer, on operands like those of [`linear`]: with an algorithm for the weight, which is looked for when one is
    /// first wanted, or with its first choice for the number of rows.
    fn cublaslt(bench: &mut Bench, model: &str, (name, n, k, epilogue): Shape, rows: usize, way: Peer<'_>) {
        let too_wide = matches!(way, Peer::BehindNorm(_)) && k > WIDEST_NORM;
        if epilogue != Epilogue::Store || too_wide || !CublasLt::is_there() {
            return;
        }
        let (bytes, copies) = rotation(bench, (n, k), rows, n);
        let device = bench.shared_device().expect("there is one");
        let (id, pinned, behind_norm) = match way {
            Peer::Free => ("dense/cublaslt", None, false),
            Peer::Pinned(pinned) => ("dense/cublaslt-pinned", Some(pinned), false),
            Peer::BehindNorm(pinned) => ("dense/cublaslt-behind-norm", Some(pinned), true),
        };
        let mut prepared = None;
        bench.cuda(&format!("{id}/{model}/{name}/r{rows}"), bytes, copies, |copy| {
            let (library, in_front, x, weight, out) = prepared.get_or_insert_with(|| {
                let library = match &pinned {
                    Some(pinned) => pinned.get_or_init(|| look_for(&device, model, name, [n, k])).clone(),
                    None => Rc::new(CublasLt::free(&device, [n, k]).unwrap_or_else(|e| panic!("{e}"))),
                };
                let in_front = behind_norm.then(|| InFront::new(&device, rows, k));
                let random = |len| random(&device.queue, len);
                (library, in_front, random(rows * k), random(copies * n * k), random(rows * n))
            });
            if let Some(norm) = in_front {
                norm.run(&device.queue, x)?;
            }
            let weight = Cuda::slice(&Cuda::view(weight), copy * n * k..(copy + 1) * n * k);
            library.run(&mut Operands { x, weight, out }, 0..rows).unwrap_or_else(|e| panic!("{e}"));
            Ok(())
        });
    }

    type Pinned = OnceCell<Rc<CublasLt>>;

    /// How the peer is launched.
    #[derive(Clone, Copy)]
    enum Peer<'a> {
        Free,
        Pinned(&'a Pinned),
        BehindNorm(&'a Pinned),
    }

    fn look_for(device: &Device, model: &str, name: &str, [n, k]: [usize; 2]) -> Rc<CublasLt> {
        let (x, weight) = (random(&device.queue, 256 * k), random(&device.queue, n * k));
        let mut out = random(&device.queue, 256 * n);
        let mut operands = Operands { x: &x, weight: Cuda::view(&weight), out: &mut out };
        let library = CublasLt::pinned(device, [n, k], &mut operands).unwrap_or_else(|e| panic!("{e}"));
        println!("{model}/{name}: {library}");
        Rc::new(library)
    }

    fn head(bench: &mut Bench, model: &str, k: usize, rows: usize, with_logits: bool) {
        let device = bench.device().expect("there is one");
        let (queue, info) = (device.queue.clone(), device.info.clone());
        let vocab = 248_320;
        let op = Head::plan(HeadProblem { rows, k, vocab, valid: VALID, listed: None }, &info)
            .expect("there is a kernel");
        let written = if with_logits { 4 * rows * vocab } else { 0 };
        let (bytes, copies) = (2 * (VALID * k + rows * k) + written, 2);
        let mut prepared = None;
        let name = if with_logits { "logits" } else { "argmax" };
        bench.cuda(&format!("dense/head/{model}/{name}/r{rows}"), bytes as u64, copies, |copy| {
            let (x, weight, logits, best, workspace) = prepared.get_or_insert_with(|| {
                (
                    random(&queue, rows * k),
                    random(&queue, copies * vocab * k),
                    Cuda::zeros::<f32>(&queue, rows * vocab).expect("the bench fits into memory"),
                    Cuda::zeros::<i32>(&queue, rows).expect("the bench fits into memory"),
                    Cuda::zeros::<u8>(&queue, op.workspace_bytes()).expect("the bench fits into memory"),
                )
            });
            let first = copy * vocab * k;
            let weight = Cuda::slice(&Cuda::view(weight), first..first + vocab * k);
            let args = HeadArgs::<Cuda> {
                logits: with_logits.then_some(TensorMut::of(logits, [rows, vocab])),
                argmax: Some(TensorMut::of(best, [rows])),
                x: Tensor::of(x, [rows, k]),
                weight: Tensor::new(weight, [vocab, k]),
                ids: None,
                workspace: Some(TensorMut::of(workspace, [op.workspace_bytes()])),
            };
            op.run(&queue, args)
        });
    }
}

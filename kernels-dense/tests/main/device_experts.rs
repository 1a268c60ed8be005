//! What only a GPU can show of the mixture of experts.

use crate::{
    calls::EPS,
    experts::{Mix, problems},
    layers::rows_of,
};
use kernels_core::{Backend, Cuda, DType, DeviceInfo, Result, Tensor, TensorMut, bf16};
use kernels_dense::*;
use kernels_testkit::{compare::assert_same_bits, device::Device, guard::poison, rng::Rng, runner::stride};

type Memory<T> = <Cuda as Backend>::Memory<T>;

/// Either path, any number of columns, rows in parts of any size, overlapping or not: the same bytes.
pub(crate) fn grids_share_their_bits(device: &Device) {
    let mut plans = 0;
    for problem in problems::<Cuda>() {
        let h = problem.hidden;
        let mut mix = Mix::<Cuda>::random(&device.queue, problem);
        for rows in [8, 1, 5, 40, 130].into_iter().step_by(stride(5)) {
            let (x, before) = (rows_of(rows, h, 11), rows_of(rows, h, 12));
            let early = |grid: MoeGrid| MoeGrid { path: Path::Sm80, ..grid };
            let want = mix.run(&before, &x, |op| op.with_grid(early));
            for path in [Path::Sm80, Path::Sm90] {
                for columns in [8, 16, 32] {
                    for rows_at_once in [7, 1, 64, 130].into_iter().step_by(stride(4)) {
                        let tile_rows = [32, 64][plans % 3 % 2];
                        let grid = MoeGrid { path, columns, rows_at_once, tile_rows };
                        let got = mix.run(&before, &x, |op| {
                            let op = op.with_grid(|_| grid).overlapping(plans % 2 == 0);
                            plans += 1;
                            op
                        });
                        let what = format!("{grid:?}, {rows} rows, {problem:?}");
                        assert_same_bits(&what, &got.0, &want.0);
                        assert_eq!(got.1, want.1, "{what}");
                    }
                }
            }
        }
    }
    // More rows than are computed at once by the plan.
    let problem = problems::<Cuda>()[0];
    let h = problem.hidden;
    let mut mix = Mix::<Cuda>::random(&device.queue, problem);
    let (rows, at_once) = (2500 / stride(62), 300 / stride(18));
    let (x, before) = (rows_of(rows, h, 13), rows_of(rows, h, 14));
    let want = mix.run(&before, &x, |op| op.with_grid(|grid| MoeGrid { rows_at_once: at_once, ..grid }));
    let got = mix.run(&before, &x, |op| op);
    assert_same_bits("many rows", &got.0, &want.0);
    assert_eq!(got.1, want.1);
}

/// Device memory of one mixture, for launches that are captured or follow each other.
struct Chain {
    x: Memory<bf16>,
    router: Memory<bf16>,
    gate_up: Memory<bf16>,
    down: Memory<bf16>,
    shared_gate_up: Memory<bf16>,
    shared_down: Memory<bf16>,
    shared_gate: Memory<bf16>,
    out: Memory<bf16>,
    workspace: Memory<u8>,
    op: Moe,
    /// Elements from one expert's gate and up to the next one's.
    apart: usize,
}

const CHAIN: MoeProblem = MoeProblem {
    rows: 1,
    hidden: 1024,
    experts: 24,
    top_k: 4,
    intermediate: 256,
    shared_intermediate: 512,
    weights: DType::Bf16,
};

impl Chain {
    fn new(device: &Device, problem: MoeProblem, seed: u64) -> Self {
        let queue = &device.queue;
        let MoeProblem { rows, hidden, experts, intermediate, shared_intermediate, .. } = problem;
        let mut rng = Rng::new(seed);
        let mut random = |count: usize, k: usize| {
            let weight: Vec<bf16> = rng.normals(count * k, 2.0 / (k as f32).sqrt());
            Cuda::upload(queue, &weight).unwrap()
        };
        let op = Moe::plan(problem, &device.info).unwrap();
        Chain {
            router: random(experts, hidden),
            gate_up: random(experts * 2 * intermediate, hidden),
            down: random(experts * hidden, intermediate),
            shared_gate_up: random(2 * shared_intermediate, hidden),
            shared_down: random(hidden, shared_intermediate),
            shared_gate: random(1, hidden),
            x: Cuda::upload(queue, &rows_of(rows, hidden, seed)).unwrap(),
            out: Cuda::upload(queue, &rows_of(rows, hidden, seed + 1)).unwrap(),
            workspace: Cuda::zeros(queue, op.workspace_bytes()).unwrap(),
            op,
            apart: 2 * intermediate * hidden,
        }
    }

    /// `x`: other rows than its own, and which one is the first.
    fn enqueue_from(
        &mut self,
        device: &Device,
        x: Option<(&Memory<bf16>, usize)>,
        with_workspace: bool,
    ) -> Result<()> {
        let MoeProblem { rows, hidden, experts, intermediate, shared_intermediate, .. } = *self.op.problem();
        let bytes = self.op.workspace_bytes();
        let (x, first) = x.unwrap_or((&self.x, 0));
        let args = MoeArgs::<Cuda> {
            out: TensorMut::of(&mut self.out, [rows, hidden]),
            routes: None,
            x: Tensor::new(x.slice(first * hidden..(first + rows) * hidden), [rows, hidden]),
            router: Tensor::of(&self.router, [experts, hidden]),
            gate_up: Tensor::of(&self.gate_up, [experts, 2 * intermediate, hidden])
                .with_strides([self.apart, hidden, 1]),
            down: Tensor::of(&self.down, [experts, hidden, intermediate]),
            shared_gate_up: Tensor::of(&self.shared_gate_up, [2 * shared_intermediate, hidden]),
            shared_down: Tensor::of(&self.shared_down, [hidden, shared_intermediate]),
            shared_gate: Tensor::of(&self.shared_gate, [1, hidden]),
            workspace: with_workspace.then_some(TensorMut::of(&mut self.workspace, [bytes])),
        };
        self.op.run(&device.queue, args)
    }

    fn enqueue(&mut self, device: &Device) -> Result<()> {
        self.enqueue_from(device, None, true)
    }

    fn write_out(&mut self, device: &Device, seed: u64) {
        let MoeProblem { rows, hidden, .. } = *self.op.problem();
        Cuda::write(&device.queue, &mut self.out, 0, &rows_of(rows, hidden, seed)).unwrap();
    }

    fn read(&self, device: &Device) -> Vec<bf16> {
        let MoeProblem { rows, hidden, .. } = *self.op.problem();
        Cuda::read(&device.queue, &self.out, 0..rows * hidden).unwrap()
    }
}

/// One captured run, replayed with other rows, and so other routes: five nodes, the bytes of an eager run.
pub(crate) fn experts_replay(device: &Device) {
    for rows in [1, 4, 30] {
        let mut chain = Chain::new(device, MoeProblem { rows, ..CHAIN }, 20);
        chain.op = chain.op.overlapping(true);
        chain.enqueue(device).unwrap();
        let graph = device.capture(|| chain.enqueue(device)).unwrap();
        assert_eq!(Device::nodes(&graph).unwrap(), 5);
        for seed in 30..36 {
            Cuda::write(&device.queue, &mut chain.x, 0, &rows_of(rows, CHAIN.hidden, seed)).unwrap();
            chain.write_out(device, seed + 1);
            chain.enqueue(device).unwrap();
            let want = chain.read(device);
            for _ in 0..2 {
                chain.write_out(device, seed + 1);
                graph.launch().unwrap();
                assert_same_bits(&format!("replay of {rows} rows"), &chain.read(device), &want);
            }
        }
    }
}

/// A producer that takes long: the router must wait for its rows, and everything else for what comes before it. Then a
/// run that follows with the same workspace, while the one before it may still add its outputs up.
pub(crate) fn experts_wait_for_a_slow_producer(device: &Device) {
    let queue = &device.queue;
    let (many, k) = (8192 / stride(16), CHAIN.hidden);
    let mut rng = Rng::new(40);
    let before = Cuda::upload(queue, &rng.normals::<bf16>(many * k, 1.0)).unwrap();
    let scale = Cuda::upload(queue, &rng.normals::<bf16>(k, 0.3)).unwrap();
    let mut normed = Cuda::zeros::<bf16>(queue, many * k).unwrap();
    let nothing = vec![poison::<bf16>(); many * k];
    for rows in [1, 8, 64, 200, 1000].into_iter().filter(|rows| *rows <= 1000 / stride(5)) {
        let mut chain = Chain::new(device, MoeProblem { rows, ..CHAIN }, 41);
        let mut run = |overlapping: bool| {
            Cuda::write(queue, &mut normed, 0, &nothing).unwrap();
            chain.write_out(device, 42);
            let norm = Norm::plan(NormProblem { rows: many, n: k, eps: EPS }, &device.info).unwrap();
            let args = NormArgs::<Cuda> {
                out: TensorMut::of(&mut normed, [many, k]),
                x: Tensor::of(&before, [many, k]),
                weight: Tensor::of(&scale, [k]),
            };
            norm.overlapping(overlapping).run(queue, args).unwrap();
            chain.op = chain.op.clone().overlapping(overlapping);
            // The last rows that the norm writes, then others: routes and lists of one run are not those of the next.
            for first in [many - rows, 0, many / 2] {
                chain.enqueue_from(device, Some((&normed, first)), true).unwrap();
            }
            chain.read(device)
        };
        let want = run(false);
        assert!(want.iter().all(|y| y.is_finite()));
        for _ in 0..5 / stride(5) {
            assert_same_bits(&format!("{rows} rows"), &run(true), &want);
        }
    }
}

/// A workspace that linear layers and experts share, one after the other.
pub(crate) fn experts_share_a_workspace(device: &Device) {
    let queue = &device.queue;
    let rows = 12;
    let mut chain = Chain::new(device, MoeProblem { rows, ..CHAIN }, 50);
    chain.write_out(device, 51);
    chain.enqueue(device).unwrap();
    let want = chain.read(device);
    let problem = LinearProblem { rows, k: CHAIN.hidden, n: 96, epilogue: Epilogue::Store };
    let linear = Linear::plan(problem, &device.info).unwrap();
    let bytes = linear.workspace_bytes();
    let all = bytes.max(chain.op.workspace_bytes());
    chain.workspace = Cuda::zeros(queue, all).unwrap();
    let weight = Cuda::upload(queue, &Rng::new(52).normals::<bf16>(96 * CHAIN.hidden, 0.03)).unwrap();
    let mut sums = Cuda::zeros::<bf16>(queue, rows * 96).unwrap();
    let mut first: Option<Vec<bf16>> = None;
    for _ in 0..3 {
        {
            let mut workspace = Cuda::view_mut(&mut chain.workspace);
            let args = LinearArgs::<Cuda> {
                out: TensorMut::of(&mut sums, [rows, 96]),
                x: Tensor::of(&chain.x, [rows, CHAIN.hidden]),
                weight: Tensor::of(&weight, [96, CHAIN.hidden]),
                gate: None,
                workspace: Some(TensorMut::new(Cuda::slice_mut(&mut workspace, 0..bytes), [bytes])),
            };
            linear.run(queue, args).unwrap();
        }
        let got = Cuda::read(queue, &sums, 0..rows * 96).unwrap();
        assert_same_bits("the layer", &got, first.get_or_insert(got.clone()));
        chain.write_out(device, 51);
        chain.enqueue(device).unwrap();
        assert_same_bits("the experts", &chain.read(device), &want);
    }
}

/// Experts beyond 2^31 elements.
pub(crate) fn experts_lie_far_apart(device: &Device) {
    let queue = &device.queue;
    let far = (1usize << 30) + 64;
    let problem = MoeProblem { rows: 9, hidden: 64, experts: 3, top_k: 3, intermediate: 16, ..CHAIN };
    let mut chain = Chain::new(device, problem, 60);
    chain.enqueue(device).unwrap();
    let want = chain.read(device);
    let size = 2 * problem.intermediate * problem.hidden;
    let near = Cuda::read(queue, &chain.gate_up, 0..3 * size).unwrap();
    chain.gate_up = Cuda::zeros(queue, 2 * far + size).unwrap();
    for expert in 0..3 {
        Cuda::write(queue, &mut chain.gate_up, expert * far, &near[expert * size..][..size]).unwrap();
    }
    chain.apart = far;
    chain.write_out(device, 61);
    chain.enqueue(device).unwrap();
    assert_same_bits("far experts", &chain.read(device), &want);
}

/// Sizes, types, alignment and a missing workspace, by their words.
pub(crate) fn experts_refuse_by_name(device: &Device) {
    let plan = |problem| Moe::plan(problem, &device.info).unwrap_err().to_string();
    assert_eq!(
        plan(MoeProblem { hidden: 20, ..CHAIN }),
        "dense::moe: a width of 20 on CUDA (multiples of 8 are) is not supported"
    );
    assert_eq!(
        plan(MoeProblem { weights: DType::F32, ..CHAIN }),
        "dense::moe: weights of f32 on CUDA (bf16 are) is not supported"
    );
    assert_eq!(
        plan(MoeProblem { experts: 2000, ..CHAIN }),
        "dense::moe: 2000 experts on CUDA (up to 1024 are) is not supported"
    );
    let mut chain = Chain::new(device, CHAIN, 70);
    let text = chain.enqueue_from(device, None, false).unwrap_err().to_string();
    let need = chain.op.workspace_bytes();
    assert_eq!(text, format!("dense::moe: workspace is none; this plan needs {need} bytes"));
    chain.apart -= 4;
    let text = chain.enqueue(device).unwrap_err().to_string();
    assert_eq!(text, "dense::moe: `gate_up` must be aligned to 16 bytes");
    chain.apart += 4;
    let here = std::mem::replace(&mut chain.op, Moe::plan(CHAIN, &DeviceInfo::cpu()).unwrap());
    let text = chain.enqueue_from(device, None, false).unwrap_err().to_string();
    assert_eq!(text, "dense::moe: device is the CPU; plan it for the CUDA device it runs on");
    chain.op = here;
    chain.enqueue(device).unwrap();
}

//! What only a GPU can show of linear layers and the head.

use crate::{
    device_chain::{Launch, SlowNorm, replays},
    layers::{Layer, rows_of, shapes},
};
use kernels_core::{Arch, Backend, Cuda, DeviceInfo, Tensor, TensorMut, bf16};
use kernels_dense::*;
use kernels_testkit::{compare::assert_same_bits, device::Device, guard::poison, rng::Rng, runner::stride};

/// Both paths, tiles of either size and any number of blocks: the same bytes.
pub(crate) fn grids_share_their_bits(device: &Device) {
    let hopper = device.info.arch == Some(Arch::SM90);
    let mut ran = 0;
    for epilogue in crate::bits::EPILOGUES {
        for (n, k) in shapes::<Cuda>(epilogue) {
            let mut layer = Layer::<Cuda>::random(&device.queue, n, k, epilogue);
            for rows in [1, 5, 16, 23, 40, 64, 100].into_iter().step_by(stride(6)) {
                let (x, before) = (rows_of(rows, k, 11), rows_of(rows, n, 12));
                let early = |grid: Grid| Grid { path: Path::Sm80, ..grid };
                let want = layer.run(&before, &x, |op| op.with_grid(early));
                let mut compare = |what: String, choose: &dyn Fn(Grid) -> Grid| {
                    let got = layer.run(&before, &x, |op| op.with_grid(choose));
                    assert_same_bits(&format!("{what}, {rows} rows, {n} x {k}, {epilogue:?}"), &got, &want);
                    ran += 1;
                };
                compare("the plan's".into(), &|grid| grid);
                for tile_rows in [64, 128] {
                    for blocks in [1, 2, 3, 7, 19, 64, 113, 132].into_iter().step_by(stride(4)) {
                        if hopper {
                            let what = format!("tiles of {tile_rows}, {blocks} blocks");
                            compare(what, &|grid| Grid { tile_rows, blocks, ..grid });
                        }
                    }
                }
            }
        }
    }
    assert!(ran > 100 / stride(3));
    for (vocab, k) in [(4096, 256), (20008, 520)] {
        let mut layer = Layer::<Cuda>::random(&device.queue, vocab, k, Epilogue::Store);
        let x = rows_of(40, k, 13);
        let early = |grid: Grid| Grid { path: Path::Sm80, ..grid };
        let want = layer.head(&x, vocab - 9, true, |op| op.with_grid(early));
        for blocks in [1, 3, 17, 131, 132] {
            let got = layer.head(&x, vocab - 9, true, |op| op.with_grid(|grid| Grid { blocks, ..grid }));
            assert_same_bits(&format!("{blocks} blocks"), &got.0.unwrap(), want.0.as_ref().unwrap());
            assert_eq!(got.1, want.1, "{blocks} blocks");
        }
    }
}

/// Every number of rows that has a kernel of its own, by weights of one segment and of several.
pub(crate) fn widths_share_their_bits(device: &Device) {
    let early = |grid: Grid| Grid { path: Path::Sm80, ..grid };
    let widths = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256];
    for epilogue in crate::bits::EPILOGUES {
        for (n, k) in [(264, 136), (136, 1096)] {
            let mut layer = Layer::<Cuda>::random(&device.queue, n, k, epilogue);
            for rows in widths {
                let (x, before) = (rows_of(rows, k, 21), rows_of(rows, n, 22));
                let want = layer.run(&before, &x, |op| op.with_grid(early));
                for tile_rows in [64, 128] {
                    let got = layer.run(&before, &x, |op| op.with_grid(|grid| Grid { tile_rows, ..grid }));
                    let what = format!("{rows} rows, tiles of {tile_rows}, {n} x {k}, {epilogue:?}");
                    assert_same_bits(&what, &got, &want);
                }
            }
        }
    }
    let (vocab, k) = (1032, 136);
    let mut layer = Layer::<Cuda>::random(&device.queue, vocab, k, Epilogue::Store);
    for rows in widths {
        let x = rows_of(rows, k, 23);
        let want = layer.head(&x, vocab - 9, true, |op| op.with_grid(early));
        let got = layer.head(&x, vocab - 9, true, |op| op);
        assert_same_bits(&format!("logits of {rows} rows"), &got.0.unwrap(), &want.0.unwrap());
        assert_eq!(got.1, want.1, "{rows} rows");
    }
}

/// Many rows, a few at a time: groups of blocks beside each other in one launch, or launch behind launch.
pub(crate) fn rows_beside_rows_share_their_bits(device: &Device) {
    let early = |grid: Grid| Grid { path: Path::Sm80, ..grid };
    for epilogue in crate::bits::EPILOGUES {
        // One segment, three and eight.
        for (n, k) in [(264, 136), (136, 1096), (72, 4104)] {
            let mut layer = Layer::<Cuda>::random(&device.queue, n, k, epilogue);
            for rows in [65, 100, 129, 256, 520].into_iter().step_by(stride(3)) {
                let (x, before) = (rows_of(rows, k, 26), rows_of(rows, n, 27));
                let want = layer.run(&before, &x, |op| op.with_grid(early));
                for (columns, tile_rows, blocks, groups) in [
                    (8, 64, usize::MAX, usize::MAX),
                    (24, 128, usize::MAX, usize::MAX),
                    (24, 64, usize::MAX, 3),
                    (64, 64, usize::MAX, usize::MAX),
                    (64, 128, usize::MAX, usize::MAX),
                    (48, 64, 2, usize::MAX),
                    (48, 64, 2, 1),
                    (64, 128, 1, usize::MAX),
                    (96, 128, usize::MAX, usize::MAX),
                    (96, 128, 2, usize::MAX),
                    (96, 128, 3, 2),
                    (128, 128, 1, usize::MAX),
                    (192, 128, usize::MAX, 1),
                    (256, 128, 2, usize::MAX),
                ] {
                    let choose = |grid| Grid { columns, tile_rows, blocks, groups, ..grid };
                    let got = layer.run(&before, &x, |op| op.with_grid(choose));
                    let what = format!(
                        "{rows} rows, {columns} at a time, tiles of {tile_rows}, {blocks} blocks, {groups} groups"
                    );
                    assert_same_bits(&format!("{what}, {n} x {k}, {epilogue:?}"), &got, &want);
                }
            }
        }
    }
}

/// What blocks chose lies behind all sums: a block that is done must not write where others still have to read.
pub(crate) fn choices_lie_behind_sums(device: &Device) {
    let queue = &device.queue;
    let (vocab, k) = (1024, 1096); // three segments
    for rows in [8, 16, 24, 32, 48, 64, 96, 128] {
        let mut grid = None;
        let problem = HeadProblem { rows, k, vocab, valid: vocab, listed: None };
        let op = Head::plan(problem, &device.info).unwrap().with_grid(|own| *grid.insert(own));
        let Some(Grid { path: Path::Sm90, blocks, .. }) = grid else { continue };
        let bytes = op.workspace_bytes();
        // A logit and its id of each row, for each block: the end of the workspace.
        let untouched = [0xa5u8; 8];
        let choices = bytes - untouched.len() * blocks * rows;
        let before = [vec![0; choices], untouched.repeat(blocks * rows)].concat();
        let mut workspace = Cuda::upload(queue, &before).unwrap();
        let mut best = Cuda::zeros::<i32>(queue, rows).unwrap();
        let x = Cuda::upload(queue, &rows_of(rows, k, 24)).unwrap();
        let weight = Cuda::upload(queue, &rows_of(vocab, k, 25)).unwrap();
        let args = HeadArgs::<Cuda> {
            logits: None,
            argmax: Some(TensorMut::of(&mut best, [rows])),
            x: Tensor::of(&x, [rows, k]),
            weight: Tensor::of(&weight, [vocab, k]),
            ids: None,
            workspace: Some(TensorMut::of(&mut workspace, [bytes])),
        };
        op.run(queue, args).unwrap();
        let after = Cuda::read(queue, &workspace, choices..bytes).unwrap();
        let left = after.chunks(untouched.len()).filter(|choice| *choice == untouched).count();
        assert_eq!(left, 0, "{rows} rows: choices that are elsewhere");
    }
}

/// Device memory of one layer, for launches that are captured or follow each other.
struct Chain {
    x: <Cuda as Backend>::Memory<bf16>,
    weight: <Cuda as Backend>::Memory<bf16>,
    out: <Cuda as Backend>::Memory<bf16>,
    workspace: <Cuda as Backend>::Memory<u8>,
    op: Linear,
}

impl Chain {
    fn new(device: &Device, problem: LinearProblem, seed: u64) -> Self {
        let queue = &device.queue;
        let LinearProblem { rows, k, n, .. } = problem;
        let mut rng = Rng::new(seed);
        let weight: Vec<bf16> = rng.normals(problem.weight_rows() * k, 1.0 / (k as f32).sqrt());
        let op = Linear::plan(problem, &device.info).unwrap();
        Chain {
            x: Cuda::upload(queue, &rows_of(rows, k, seed)).unwrap(),
            weight: Cuda::upload(queue, &weight).unwrap(),
            out: Cuda::upload(queue, &vec![poison::<bf16>(); rows * n]).unwrap(),
            workspace: Cuda::zeros(queue, op.workspace_bytes().max(1)).unwrap(),
            op,
        }
    }
}

impl Launch for Chain {
    type Out = bf16;
    fn x(&mut self) -> &mut <Cuda as Backend>::Memory<bf16> {
        &mut self.x
    }
    fn out(&mut self) -> &mut <Cuda as Backend>::Memory<bf16> {
        &mut self.out
    }
    fn enqueue(&mut self, device: &Device) -> kernels_core::Result<()> {
        let LinearProblem { rows, k, n, .. } = *self.op.problem();
        let bytes = self.op.workspace_bytes();
        let mut workspace = Cuda::view_mut(&mut self.workspace);
        let args = LinearArgs::<Cuda> {
            out: TensorMut::of(&mut self.out, [rows, n]),
            x: Tensor::of(&self.x, [rows, k]),
            weight: Tensor::of(&self.weight, [self.op.problem().weight_rows(), k]),
            gate: None,
            workspace: Some(TensorMut::new(Cuda::slice_mut(&mut workspace, 0..bytes), [bytes])),
        };
        self.op.run(&device.queue, args)
    }
}

pub(crate) fn layers_replay(device: &Device) {
    for (n, k, epilogue) in [
        (96, 5120, Epilogue::Store),
        (5120, 1024, Epilogue::Store),
        (17408, 256, Epilogue::SiluMul),
        (200, 1032, Epilogue::Store),
    ] {
        for rows in [1, 4, 30] {
            let mut chain = Chain::new(device, LinearProblem { rows, k, n, epilogue }, 20);
            chain.op = chain.op.overlapping(true);
            replays(device, &mut chain, [rows, k], &format!("{rows} rows, {n} x {k}"));
        }
    }
}

/// A layer that has its weights by then must wait for the rows. And layers in a row, whose workspace is the same.
pub(crate) fn layers_wait_for_a_slow_producer(device: &Device) {
    let (mut slow, k) = (SlowNorm::new(device), SlowNorm::K);
    for (n, rows) in [(96, 3), (5120, 1), (5120, 64), (5120, 200), (16384, 8)] {
        let problem = LinearProblem { rows, k, n, epilogue: Epilogue::Store };
        let mut first = Chain::new(device, problem, 41);
        slow.is_waited_for(device, &format!("{rows} rows, {n} features"), |slow, overlapping| {
            let op = first.op.clone().overlapping(overlapping);
            let bytes = op.workspace_bytes();
            for _ in 0..3 {
                let mut workspace = Cuda::view_mut(&mut first.workspace);
                let args = LinearArgs::<Cuda> {
                    out: TensorMut::of(&mut first.out, [rows, n]),
                    x: slow.last(rows),
                    weight: Tensor::of(&first.weight, [n, k]),
                    gate: None,
                    workspace: Some(TensorMut::new(Cuda::slice_mut(&mut workspace, 0..bytes), [bytes])),
                };
                op.run(&device.queue, args).unwrap();
            }
            first.read(device)
        });
    }
}

/// Widths, types, alignment and a missing workspace, by their words.
pub(crate) fn layers_refuse_by_name(device: &Device) {
    let queue = &device.queue;
    let plan = |k, n| Linear::plan(LinearProblem { rows: 2, k, n, epilogue: Epilogue::Store }, &device.info);
    let text = plan(12, 8).unwrap_err().to_string();
    assert_eq!(text, "dense::linear: a width of 12 on CUDA (multiples of 8 are) is not supported");
    let text = plan(16, 9).unwrap_err().to_string();
    assert_eq!(text, "dense::linear: a width of 9 on CUDA (multiples of 8 are) is not supported");
    let x = Cuda::zeros::<bf16>(queue, 200).unwrap();
    let wide = Cuda::zeros::<f32>(queue, 200).unwrap();
    let mut out = Cuda::zeros::<bf16>(queue, 200).unwrap();
    let op = plan(16, 8).unwrap();
    let refusal = |op: &Linear, stride: usize, out: &mut <Cuda as Backend>::Memory<bf16>| {
        let args = LinearArgs::<Cuda> {
            out: TensorMut::of(out, [2, 8]),
            x: Tensor::of(&x, [2, 16]).with_strides([stride, 1]),
            weight: Tensor::of(&x, [8, 16]),
            gate: None,
            workspace: None,
        };
        op.run(queue, args).map_err(|e| e.to_string())
    };
    assert_eq!(refusal(&op, 20, &mut out).unwrap_err(), "dense::linear: `x` must be aligned to 16 bytes");
    let need = op.workspace_bytes();
    // None is needed where machine code is for sm_80.
    if need > 0 {
        let want = format!("dense::linear: workspace is none; this plan needs {need} bytes");
        assert_eq!(refusal(&op, 16, &mut out).unwrap_err(), want);
    }
    let early = op.with_grid(|grid| Grid { path: Path::Sm80, ..grid });
    refusal(&early, 16, &mut out).unwrap();
    let args = LinearArgs::<Cuda, bf16, f32> {
        out: TensorMut::of(&mut out, [2, 8]),
        x: Tensor::of(&x, [2, 16]),
        weight: Tensor::of(&wide, [8, 16]),
        gate: None,
        workspace: None,
    };
    let text = early.run(queue, args).unwrap_err().to_string();
    assert_eq!(text, "dense::linear: a weight of f32 on CUDA (bf16 is) is not supported");
    let elsewhere = LinearProblem { rows: 2, k: 16, n: 8, epilogue: Epilogue::Store };
    let elsewhere = Linear::plan(elsewhere, &DeviceInfo::cpu()).unwrap();
    let want = "dense::linear: device is the CPU; plan it for the CUDA device it runs on";
    assert_eq!(refusal(&elsewhere, 16, &mut out).unwrap_err(), want);
}

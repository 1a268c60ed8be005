//! What only a GPU can show of weights of one byte an element.

use crate::{
    device_chain::{Launch, SlowNorm, replays},
    fp8::quantize,
    fp8_head::{Coded, shapes},
    layers::{Layer, rows_of},
};
use kernels_core::{Backend, Cpu, Cuda, DeviceInfo, Tensor, TensorMut, bf16, f16};
use kernels_dense::*;
use kernels_testkit::{compare::assert_same_bits, device::Device, guard::poison, rng::Rng, runner::stride};

/// Codes and scales of all bf16 values there are, in rows of a few, and of rows of real widths: the bytes of the CPU.
pub(crate) fn equals_the_cpu(device: &Device) {
    let every: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let real: Vec<bf16> = Rng::new(3).normals(5 * 5120, 0.02);
    let mixed = rows_of(40, 2048, 4);
    for (table, k) in [(&every, 16), (&every, 64), (&every, 4096), (&real, 5120), (&mixed, 2048)] {
        let got = quantize::<Cuda, bf16>(&device.queue, table, k, None);
        let want = quantize::<Cpu, bf16>(&(), table, k, None);
        assert_same_bits(&format!("scales of rows of {k}"), &got.1, &want.1);
        assert_same_bits(&format!("codes of rows of {k}"), &got.0, &want.0);
    }
    let ids: Vec<i32> = (0..500).map(|i| (i * 37) % 300 - 20).collect();
    let got = quantize::<Cuda, bf16>(&device.queue, &every, 256, Some(&ids));
    let want = quantize::<Cpu, bf16>(&(), &every, 256, Some(&ids));
    assert_same_bits("scales of chosen rows", &got.1, &want.1);
    assert_same_bits("codes of chosen rows", &got.0, &want.0);
}

/// Blocks of either size, for each number of columns: the same bytes.
pub(crate) fn tiles_share_their_bits(device: &Device) {
    for (n, k) in shapes::<Cuda>() {
        let coded = Coded::<Cuda>::random(&device.queue, n, k);
        let ids: Vec<i32> = Rng::new(5).permutation(2 * n)[..n].iter().map(|id| *id as i32).collect();
        for rows in [1, 8, 9, 17, 33, 64, 100].into_iter().step_by(stride(2)) {
            let x = rows_of(rows, k, 11);
            let small = |op: Fp8Head| op.with_tile_rows(64);
            let large = |op: Fp8Head| op.with_tile_rows(128);
            let what = format!("{rows} rows, {n} x {k}");
            let want = coded.head(&x, n - 1, None, small);
            assert_same_bits(&what, &coded.head(&x, n - 1, None, large), &want);
            let listed = Some((&ids[..], 2 * n));
            let want = coded.head(&x, 2 * n - 3, listed, small);
            assert_same_bits(&format!("{what}, listed"), &coded.head(&x, 2 * n - 3, listed, large), &want);
        }
    }
}

/// Elements in the order in which a k16 step has them: positions 2t, 2t + 1, 2t + 8, 2t + 9 are elements 4t to 4t + 3.
fn in_order_of_steps(all: &[bf16]) -> Vec<bf16> {
    let step = |step: &[bf16]| -> [bf16; 16] {
        std::array::from_fn(|position| {
            let (half, rest) = (position / 8, position % 8);
            step[4 * (rest / 2) + 2 * half + rest % 2]
        })
    };
    all.chunks(16).flat_map(step).collect()
}

/// The head of the same numbers in bf16, in the order of the steps, times the scales: the same sums.
pub(crate) fn equals_the_head_of_its_numbers(device: &Device) {
    // Weights of one segment each: at most 512 elements of k, or more than 64 tiles of 128 rows.
    for (n, k) in [(72, 512), (264, 256), (8, 16), (8328, 1040)] {
        let coded = Coded::<Cuda>::random(&device.queue, n, k);
        let wide: Vec<bf16> = (0..n).flat_map(|feature| coded.numbers(feature)).map(bf16::from_f32).collect();
        let mut layer = Layer::<Cuda>::new(&device.queue, in_order_of_steps(&wide), k, Epilogue::Store);
        for rows in [1, 7, 24, 64, 70] {
            let x = rows_of(rows, k, 12);
            let early = |grid: Grid| Grid { path: Path::Sm80, ..grid };
            let (sums, _) = layer.head(&in_order_of_steps(&x), n, true, |op| op.with_grid(early));
            let sums = sums.expect("they were asked for");
            let want: Vec<f32> = sums.iter().enumerate().map(|(i, sum)| sum * coded.scales[i % n]).collect();
            let got = coded.head(&x, n, None, |op| op);
            assert_same_bits(&format!("{rows} rows, {n} x {k}"), &got, &want);
        }
    }
}

/// Device memory of a head, for launches that are captured or follow each other.
struct Chain {
    x: <Cuda as Backend>::Memory<bf16>,
    weight: <Cuda as Backend>::Memory<u8>,
    scales: <Cuda as Backend>::Memory<f32>,
    logits: <Cuda as Backend>::Memory<f32>,
    op: Fp8Head,
}

impl Chain {
    fn new(device: &Device, rows: usize, n: usize, k: usize) -> Self {
        let queue = &device.queue;
        let problem = HeadProblem { rows, k, vocab: n, valid: n, listed: None };
        let coded = Coded::<Cuda>::random(queue, n, k);
        Chain {
            x: Cuda::upload(queue, &rows_of(rows, k, 1)).unwrap(),
            weight: Cuda::upload(queue, &coded.codes).unwrap(),
            scales: Cuda::upload(queue, &coded.scales).unwrap(),
            logits: Cuda::upload(queue, &vec![poison::<f32>(); rows * n]).unwrap(),
            op: Fp8Head::plan(problem, &device.info).unwrap().overlapping(true),
        }
    }
}

impl Launch for Chain {
    type Out = f32;
    fn x(&mut self) -> &mut <Cuda as Backend>::Memory<bf16> {
        &mut self.x
    }
    fn out(&mut self) -> &mut <Cuda as Backend>::Memory<f32> {
        &mut self.logits
    }
    fn enqueue(&mut self, device: &Device) -> kernels_core::Result<()> {
        let HeadProblem { rows, k, vocab, .. } = *self.op.problem();
        let args = Fp8HeadArgs::<Cuda> {
            logits: TensorMut::of(&mut self.logits, [rows, vocab]),
            x: Tensor::of(&self.x, [rows, k]),
            weight: Tensor::of(&self.weight, [vocab, k]),
            scales: Tensor::of(&self.scales, [vocab]),
            ids: None,
        };
        self.op.run(&device.queue, args)
    }
}

pub(crate) fn heads_replay(device: &Device) {
    for (rows, n, k) in [(1, 264, 1024), (5, 17_032, 144), (40, 4096, 256)] {
        let mut chain = Chain::new(device, rows, n, k);
        replays(device, &mut chain, [rows, k], &format!("{rows} rows, {n} x {k}"));
    }
}

/// A head that has its codes by then must wait for the rows.
pub(crate) fn heads_wait_for_a_slow_producer(device: &Device) {
    let (mut slow, k) = (SlowNorm::new(device), SlowNorm::K);
    for (n, rows) in [(96, 3), (5120, 1), (5120, 64), (17_032, 8)].into_iter().step_by(stride(2)) {
        let mut chain = Chain::new(device, rows, n, k);
        slow.is_waited_for(device, &format!("{rows} rows, {n} features"), |slow, overlapping| {
            let op = chain.op.clone().overlapping(overlapping);
            for _ in 0..3 {
                let args = Fp8HeadArgs::<Cuda> {
                    logits: TensorMut::of(&mut chain.logits, [rows, n]),
                    x: slow.last(rows),
                    weight: Tensor::of(&chain.weight, [n, k]),
                    scales: Tensor::of(&chain.scales, [n]),
                    ids: None,
                };
                op.run(&device.queue, args).unwrap();
            }
            chain.read(device)
        });
    }
}

/// Rows of codes so far apart that 32 bits do not count the bytes, written and read.
pub(crate) fn rows_lie_far_apart(device: &Device) {
    let queue = &device.queue;
    let (n, k, far) = (264, 256, 1 << 24);
    let x = rows_of(3, k, 1);
    let table: Vec<bf16> = Rng::new(8).normals(n * k, 0.05);
    let (codes, scales) = quantize::<Cpu, bf16>(&(), &table, k, None);
    let problem = HeadProblem { rows: 3, k, vocab: n, valid: n, listed: None };
    let want = Coded::<Cuda>::new(queue, codes.clone(), scales.clone(), k).head(&x, n, None, |op| op);

    let on_device = Cuda::upload(queue, &table).unwrap();
    let rows = Cuda::upload(queue, &x).unwrap();
    let mut weight = Cuda::zeros::<u8>(queue, (n - 1) * far + k).unwrap();
    let mut of_rows = Cuda::zeros::<f32>(queue, n).unwrap();
    let args = QuantizeArgs::<Cuda> {
        weight: TensorMut::of(&mut weight, [n, k]).with_strides([far, 1]),
        scales: TensorMut::of(&mut of_rows, [n]),
        table: Tensor::of(&on_device, [n, k]),
        ids: None,
    };
    let op = Quantize::plan(QuantizeProblem { rows: n, k, chosen_from: None }, &device.info).unwrap();
    op.run(queue, args).unwrap();
    assert_same_bits("scales", &Cuda::read(queue, &of_rows, 0..n).unwrap(), &scales);
    for row in [0, 1, 127, 128, 256, n - 1] {
        let got = Cuda::read(queue, &weight, row * far..row * far + k).unwrap();
        assert_same_bits(&format!("row {row}"), &got, &codes[row * k..][..k]);
    }
    let mut logits = Cuda::zeros::<f32>(queue, 3 * n).unwrap();
    let args = Fp8HeadArgs::<Cuda> {
        logits: TensorMut::of(&mut logits, [3, n]),
        x: Tensor::of(&rows, [3, k]),
        weight: Tensor::of(&weight, [n, k]).with_strides([far, 1]),
        scales: Tensor::of(&of_rows, [n]),
        ids: None,
    };
    Fp8Head::plan(problem, &device.info).unwrap().run(queue, args).unwrap();
    assert_same_bits("logits", &Cuda::read(queue, &logits, 0..3 * n).unwrap(), &want);
}

/// Types, alignment and a plan for elsewhere, by their words.
pub(crate) fn what_has_no_kernel_is_refused(device: &Device) {
    let queue = &device.queue;
    let half = Cuda::zeros::<f16>(queue, 64).unwrap();
    let x = Cuda::zeros::<bf16>(queue, 64).unwrap();
    let mut codes = Cuda::zeros::<u8>(queue, 400).unwrap();
    let mut scales = Cuda::zeros::<f32>(queue, 16).unwrap();
    let problem = QuantizeProblem { rows: 2, k: 16, chosen_from: None };
    let mut quantize = |info: &DeviceInfo, skip: usize, stride: usize| {
        let args = QuantizeArgs::<Cuda> {
            weight: TensorMut::new(codes.slice_mut(skip..), [2, 16]).with_strides([stride, 1]),
            scales: TensorMut::new(scales.slice_mut(..2), [2]),
            table: Tensor::new(x.slice(..32), [2, 16]),
            ids: None,
        };
        Quantize::plan(problem, info).unwrap().run(queue, args).map_err(|e| e.to_string())
    };
    quantize(&device.info, 16, 32).unwrap();
    let elsewhere = "device is the CPU; plan it for the CUDA device it runs on";
    assert_eq!(quantize(&DeviceInfo::cpu(), 0, 16), Err(format!("dense::quantize: {elsewhere}")));
    let unaligned = Err("dense::quantize: `weight` must be aligned to 16 bytes".to_owned());
    assert_eq!(quantize(&device.info, 8, 16), unaligned);
    assert_eq!(quantize(&device.info, 0, 24), unaligned);
    let args = QuantizeArgs::<Cuda, f16> {
        weight: TensorMut::new(codes.slice_mut(..32), [2, 16]),
        scales: TensorMut::new(scales.slice_mut(..2), [2]),
        table: Tensor::new(half.slice(..32), [2, 16]),
        ids: None,
    };
    let text = Quantize::plan(problem, &device.info).unwrap().run(queue, args).unwrap_err().to_string();
    assert_eq!(text, "dense::quantize: activation type f16 on CUDA (bf16 is) is not supported");

    let mut logits = Cuda::zeros::<f32>(queue, 64).unwrap();
    let problem = HeadProblem { rows: 2, k: 16, vocab: 8, valid: 8, listed: None };
    let mut head = |info: &DeviceInfo, skip: usize, stride: usize, x_stride: usize| {
        let args = Fp8HeadArgs::<Cuda> {
            logits: TensorMut::new(logits.slice_mut(..16), [2, 8]),
            x: Tensor::new(x.slice(..), [2, 16]).with_strides([x_stride, 1]),
            weight: Tensor::new(codes.slice(skip..), [8, 16]).with_strides([stride, 1]),
            scales: Tensor::new(scales.slice(..8), [8]),
            ids: None,
        };
        Fp8Head::plan(problem, info).unwrap().run(queue, args).map_err(|e| e.to_string())
    };
    head(&device.info, 16, 48, 24).unwrap();
    assert_eq!(head(&DeviceInfo::cpu(), 0, 16, 16), Err(format!("dense::fp8_head: {elsewhere}")));
    let unaligned = |arg| Err(format!("dense::fp8_head: `{arg}` must be aligned to 16 bytes"));
    assert_eq!(head(&device.info, 4, 16, 16), unaligned("weight"));
    assert_eq!(head(&device.info, 0, 40, 16), unaligned("weight"));
    assert_eq!(head(&device.info, 0, 16, 20), unaligned("x"));
    let args = Fp8HeadArgs::<Cuda, f16> {
        logits: TensorMut::new(logits.slice_mut(..16), [2, 8]),
        x: Tensor::new(half.slice(..32), [2, 16]),
        weight: Tensor::new(codes.slice(..128), [8, 16]),
        scales: Tensor::new(scales.slice(..8), [8]),
        ids: None,
    };
    let text = Fp8Head::plan(problem, &device.info).unwrap().run(queue, args).unwrap_err().to_string();
    assert_eq!(text, "dense::fp8_head: activation type f16 on CUDA (bf16 is) is not supported");
}

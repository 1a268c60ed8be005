//! The draft head of one byte an element beside the one of bf16, and what makes its weight.
//!
//! Ids: `dense/fp8_head/MODEL/IDS/rROWS`, `dense/bf16_head/MODEL/IDS/rROWS`, `dense/quantize/MODEL/IDS`. Bytes are what must
//! move at least once. On a GPU two large weights take turns, or so many that the L2 cache does not hold them all.

use kernels_core::{Cpu, DeviceInfo, Tensor, TensorMut, bf16};
use kernels_dense::{Fp8Head, Fp8HeadArgs, HeadProblem, Quantize, QuantizeArgs, QuantizeProblem};
use kernels_testkit::{bench::Bench, rng::Rng};

fn main() {
    let mut bench = Bench::from_args();
    #[cfg(feature = "cuda")]
    if bench.device().is_some() {
        return cuda::all(&mut bench);
    }
    for rows in [1, 3] {
        fp8_head(&mut bench, rows);
    }
}

fn normals(len: usize, deviation: f32) -> Vec<bf16> {
    Rng::new(len as u64).normals(len, deviation)
}

fn fp8_head(bench: &mut Bench, rows: usize) {
    let (k, vocab) = (256, 4096);
    let quantize = QuantizeProblem { rows: vocab, k, chosen_from: None };
    let quantize = Quantize::plan(quantize, &DeviceInfo::cpu()).expect("the CPU takes every shape");
    let problem = HeadProblem { rows, k, vocab, valid: vocab - 3, listed: None };
    let op = Fp8Head::plan(problem, &DeviceInfo::cpu()).expect("the CPU takes every shape");
    let (x, table) = (normals(rows * k, 1.0), normals(vocab * k, 0.02));
    let (mut codes, mut scales, mut logits) = (vec![0; vocab * k], vec![0.0; vocab], vec![0.0; rows * vocab]);
    let args = QuantizeArgs::<Cpu> {
        weight: TensorMut::of(&mut codes, [vocab, k]),
        scales: TensorMut::of(&mut scales, [vocab]),
        table: Tensor::of(&table, [vocab, k]),
        ids: None,
    };
    quantize.run(&(), args).expect("the operands fit");
    let bytes = (vocab * (k + 4) + 2 * rows * k + 4 * rows * vocab) as u64;
    bench.cpu(&format!("dense/fp8_head/qwen3.5-tiny/logits/r{rows}"), bytes, || {
        let args = Fp8HeadArgs::<Cpu> {
            logits: TensorMut::of(&mut logits, [rows, vocab]),
            x: Tensor::of(&x, [rows, k]),
            weight: Tensor::of(&codes, [vocab, k]),
            scales: Tensor::of(&scales, [vocab]),
            ids: None,
        };
        op.run(&(), args).expect("the operands fit");
    });
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use kernels_core::{Backend, Cuda};
    use kernels_dense::{Head, HeadArgs};
    use kernels_testkit::{bench::numbers, timing::copies};

    pub(super) fn all(bench: &mut Bench) {
        for (model, k) in [("qwen3.5-27b", 5120), ("qwen3.5-35b-a3b", 2048)] {
            for (name, ids) in [("32k", 32_768), ("all", 248_320)] {
                quantize(bench, model, name, ids, k);
                for rows in [1, 2, 4, 8, 16, 32, 64] {
                    fp8_head(bench, model, name, ids, k, rows);
                    bf16_head(bench, model, name, ids, k, rows);
                }
            }
        }
    }

    fn random(queue: &<Cuda as Backend>::Queue, len: usize) -> <Cuda as Backend>::Memory<bf16> {
        numbers::<Cuda>(queue, len, 0.02)
    }

    type Codes = <Cuda as Backend>::Memory<u8>;
    type Scales = <Cuda as Backend>::Memory<f32>;

    /// Codes and scales of random rows.
    fn coded(queue: &<Cuda as Backend>::Queue, info: &DeviceInfo, rows: usize, k: usize) -> (Codes, Scales) {
        let table = random(queue, rows * k);
        let mut codes = Cuda::zeros::<u8>(queue, rows * k).expect("the bench fits into memory");
        let mut scales = Cuda::zeros::<f32>(queue, rows).expect("the bench fits into memory");
        let problem = QuantizeProblem { rows, k, chosen_from: None };
        let args = QuantizeArgs::<Cuda> {
            weight: TensorMut::of(&mut codes, [rows, k]),
            scales: TensorMut::of(&mut scales, [rows]),
            table: Tensor::of(&table, [rows, k]),
            ids: None,
        };
        let op = Quantize::plan(problem, info).expect("there is a kernel");
        op.run(queue, args).expect("the operands fit");
        (codes, scales)
    }

    /// Codes of a draft head with so many ids: all of the vocabulary, or a list.
    fn fp8_head(bench: &mut Bench, model: &str, name: &str, ids: usize, k: usize, rows: usize) {
        let device = bench.device().expect("there is one");
        let (queue, info) = (device.queue.clone(), device.info.clone());
        let problem = HeadProblem { rows, k, vocab: ids, valid: ids, listed: None };
        let op = Fp8Head::plan(problem, &info).expect("there is a kernel");
        let bytes = ids * (k + 4) + 2 * rows * k + 4 * rows * ids;
        // Two large weights throw each other out.
        let copies = if bytes > 2 * info.l2_bytes { 2 } else { copies(device, bytes) };
        let mut prepared = None;
        bench.cuda(&format!("dense/fp8_head/{model}/{name}/r{rows}"), bytes as u64, copies, |copy| {
            let (x, (codes, scales), logits) = prepared.get_or_insert_with(|| {
                let weight = coded(&queue, &info, copies * ids, k);
                let logits = Cuda::zeros::<f32>(&queue, rows * ids).expect("the bench fits into memory");
                (random(&queue, rows * k), weight, logits)
            });
            let all = Tensor::<Cuda, u8, 2>::of(codes, [copies * ids, k]);
            let args = Fp8HeadArgs::<Cuda> {
                logits: TensorMut::of(logits, [rows, ids]),
                x: Tensor::of(x, [rows, k]),
                weight: all.rows(copy * ids..(copy + 1) * ids),
                scales: Tensor::new(Cuda::slice(&Cuda::view(scales), copy * ids..(copy + 1) * ids), [ids]),
                ids: None,
            };
            op.run(&queue, args)
        });
    }

    /// The bf16 head of as many ids.
    fn bf16_head(bench: &mut Bench, model: &str, name: &str, ids: usize, k: usize, rows: usize) {
        let device = bench.device().expect("there is one");
        let (queue, info) = (device.queue.clone(), device.info.clone());
        let problem = HeadProblem { rows, k, vocab: ids, valid: ids, listed: None };
        let op = Head::plan(problem, &info).expect("there is a kernel");
        let (bytes, copies) = (2 * (ids * k + rows * k) + 4 * rows * ids, 2);
        let mut prepared = None;
        bench.cuda(&format!("dense/bf16_head/{model}/{name}/r{rows}"), bytes as u64, copies, |copy| {
            let (x, weight, logits, workspace) = prepared.get_or_insert_with(|| {
                (
                    random(&queue, rows * k),
                    random(&queue, copies * ids * k),
                    Cuda::zeros::<f32>(&queue, rows * ids).expect("the bench fits into memory"),
                    Cuda::zeros::<u8>(&queue, op.workspace_bytes()).expect("the bench fits into memory"),
                )
            });
            let all = Tensor::<Cuda, bf16, 2>::of(weight, [copies * ids, k]);
            let args = HeadArgs::<Cuda> {
                logits: Some(TensorMut::of(logits, [rows, ids])),
                argmax: None,
                x: Tensor::of(x, [rows, k]),
                weight: all.rows(copy * ids..(copy + 1) * ids),
                ids: None,
                workspace: Some(TensorMut::of(workspace, [op.workspace_bytes()])),
            };
            op.run(&queue, args)
        });
    }

    fn quantize(bench: &mut Bench, model: &str, name: &str, ids: usize, k: usize) {
        let device = bench.device().expect("there is one");
        let (queue, info) = (device.queue.clone(), device.info.clone());
        let problem = QuantizeProblem { rows: ids, k, chosen_from: None };
        let op = Quantize::plan(problem, &info).expect("there is a kernel");
        let (bytes, copies) = (ids * (3 * k + 4), 2);
        let mut prepared = None;
        bench.cuda(&format!("dense/quantize/{model}/{name}"), bytes as u64, copies, |copy| {
            let (table, codes, scales) = prepared.get_or_insert_with(|| {
                (
                    random(&queue, copies * ids * k),
                    Cuda::zeros::<u8>(&queue, ids * k).expect("the bench fits into memory"),
                    Cuda::zeros::<f32>(&queue, ids).expect("the bench fits into memory"),
                )
            });
            let all = Tensor::<Cuda, bf16, 2>::of(table, [copies * ids, k]);
            let args = QuantizeArgs::<Cuda> {
                weight: TensorMut::of(codes, [ids, k]),
                scales: TensorMut::of(scales, [ids]),
                table: all.rows(copy * ids..(copy + 1) * ids),
                ids: None,
            };
            op.run(&queue, args)
        });
    }
}

//! What only a GPU can show.

use crate::{
    calls::EPS,
    world::{Case, Data, OPS, Op, World, cases, run},
};
use kernels_core::{Activation, Backend, Cpu, Cuda, DeviceInfo, Error, Tensor, TensorMut, bf16, f16};
use kernels_dense::*;
use kernels_testkit::{compare::assert_same_bits, device::Device, guard::poison, rng::Rng, runner::stride};

fn assert_equal(device: &Device, what: &str, case: Case, data: &Data<bf16>) {
    let want = run::<Cpu, bf16>(&(), case, data);
    let got = run::<Cuda, bf16>(&device.queue, case, data);
    for (row, (got, want)) in got.iter().zip(&want).enumerate() {
        assert_same_bits(&format!("{what}, row {row}, {case:?}"), got, want);
    }
}

/// Every operation at every width and row count: the bytes of the CPU.
pub(crate) fn equals_the_cpu(device: &Device) {
    let more = [384, 512, 768, 1024, 2000, 3072, 4096, 4104, 5112, 5128, 6144, 8184, 8192];
    let more = OPS.iter().flat_map(|op| more.map(|n| Case { op: *op, parts: 1, n }));
    let more = more.filter(|case| case.op != Op::GatedNorm);
    for (i, case) in cases::<Cuda>().into_iter().chain(more).enumerate().step_by(stride(5)) {
        for rows in [1, 2, 4, 33, 150].into_iter().step_by(stride(4)) {
            let mut data = Data::random(case, rows, (1000 * i + rows) as u64);
            assert_equal(device, "normal rows", case, &data);
            // Rows of very different size, the values of each within a few powers of two.
            let width = case.parts * case.n;
            for (row, x) in data.x.chunks_mut(width).enumerate() {
                let scale = 2.0f32.powi(row as i32 * 8 % 120 - 60);
                x.iter_mut().for_each(|x| *x = bf16::from_f32(x.to_f32() * scale));
            }
            assert_equal(device, "scaled rows", case, &data);
            // One square of 2^24, which swallows what is added to it one by one: another order of the sum would be
            // off by more than bf16 hides.
            data = Data::random(case, rows, (1000 * i + rows) as u64);
            for (row, x) in data.x.chunks_mut(width).enumerate() {
                x[row * 37 % width] = bf16::from_f32(4096.0);
            }
            assert_equal(device, "one large value", case, &data);
        }
    }
}

/// All finite bf16, denormals and the edge of overflow included, as rows, residuals and gates.
pub(crate) fn every_finite_value_equals_the_cpu(device: &Device) {
    let finite: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).filter(|x| x.is_finite()).collect();
    for op in [Op::Norm, Op::AddNorm, Op::ConcatNorm, Op::GatedNorm] {
        let case = Case { op, parts: 1, n: 128 };
        let rows = finite.len().div_ceil(128);
        let mut data = Data::random(case, rows, 3);
        let mut values = finite.clone();
        values.resize(rows * 128, bf16::ZERO);
        data.x.copy_from_slice(&values);
        assert_equal(device, "x is every value, neighbours alike", case, &data);
        let order = Rng::new(4).permutation(values.len());
        data.x = order.iter().map(|i| values[*i]).collect();
        assert_equal(device, "x is every value, any order", case, &data);
        data.x = Data::random(case, rows, 5).x;
        data.y = order.iter().map(|i| values[*i]).collect();
        assert_equal(device, "y is every value", case, &data);
    }
}

/// However many vectors a thread has, the bytes are the same.
pub(crate) fn threads_share_their_bits(device: &Device) {
    let mut ran = 0;
    for op in [Op::Norm, Op::AddNorm, Op::ConcatNorm] {
        for n in [1032, 2048, 2056, 4096, 5120, 6144, 8192] {
            let case = Case { op, parts: 1, n };
            let data = Data::<bf16>::random(case, 5, n as u64);
            let want = run::<Cpu, bf16>(&(), case, &data);
            for vectors in [1, 2, 4] {
                let mut world = World::<Cuda, bf16>::new(&device.queue, case, &data);
                world.vectors = Some(vectors);
                if vectors == 4 && n <= 2048 {
                    assert!(matches!(world.enqueue(), Err(Error::Unsupported { .. })));
                    continue;
                }
                world.enqueue().unwrap();
                assert_same_bits(
                    &format!("{vectors} vectors, {case:?}"),
                    &world.collect().concat(),
                    &want.concat(),
                );
                ran += 1;
            }
        }
    }
    assert_eq!(ran, 3 * (2 * 2 + 5 * 3));
}

/// One captured graph, replayed while its inputs change on the device.
pub(crate) fn replays_equal_eager_runs(device: &Device) {
    for case in cases::<Cuda>() {
        let first = Data::random(case, 6, 1);
        let mut world = World::<Cuda, bf16>::new(&device.queue, case, &first);
        world.overlapping = true;
        // Loads the module: not allowed while capturing.
        world.enqueue().unwrap();
        let graph = device.capture(|| world.enqueue()).unwrap();
        assert_eq!(Device::nodes(&graph).unwrap(), 1, "{case:?}");
        for seed in 2..5 {
            // The weights stay those of the first.
            let Data { x, y, ids, .. } = Data::random(case, 6, seed);
            let data = Data { x, y, ids, ..first.clone() };
            world.stage(&data);
            graph.launch().unwrap();
            let want = run::<Cpu, bf16>(&(), case, &data);
            assert_same_bits(&format!("replay of {case:?}"), &world.collect().concat(), &want.concat());
        }
    }
}

/// A chain in which each launch reads what the one before writes, each allowed to begin early: a launch that did not
/// wait would read poison, or what an earlier round left.
pub(crate) fn overlapping_launches_wait(device: &Device) {
    let queue = &device.queue;
    let (rows, n, vocab) = (512, 5120, 1000);
    let mut rng = Rng::new(11);
    let table = Cuda::upload(queue, &rng.normals::<bf16>(vocab * n, 1.0)).unwrap();
    let weight = Cuda::upload(queue, &rng.normals::<bf16>(n, 0.3)).unwrap();
    let gated_weight = Cuda::upload(queue, &rng.uniforms::<f32>(128, 0.5, 1.5)).unwrap();
    let ids: Vec<Vec<i32>> = (0..8).map(|_| (0..rows).map(|_| rng.below(vocab) as i32).collect()).collect();
    let ids: Vec<_> = ids.iter().map(|ids| Cuda::upload(queue, ids).unwrap()).collect();
    let chain = |overlapping: bool| -> Vec<bf16> {
        let problem = NormProblem { rows, n, eps: EPS };
        let embed =
            Embed::plan(EmbedProblem { rows, n, vocab }, &device.info).unwrap().overlapping(overlapping);
        let add = AddNorm::plan(problem, &device.info).unwrap().overlapping(overlapping);
        let plain = Norm::plan(problem, &device.info).unwrap().overlapping(overlapping);
        let silu = SiluMul::plan(SiluMulProblem { rows, n }, &device.info).unwrap().overlapping(overlapping);
        let concat = ConcatNorm::plan(problem, &device.info).unwrap().overlapping(overlapping);
        let heads = GatedNormProblem { rows, heads: n / 128, head_dim: 128, eps: EPS };
        let gated = GatedNorm::plan(heads, &device.info).unwrap().overlapping(overlapping);
        let nan = |width: usize| Cuda::upload(queue, &vec![poison::<bf16>(); rows * width]).unwrap();
        let mut residual = Cuda::zeros::<bf16>(queue, rows * n).unwrap();
        let (mut a, mut b, mut c, mut d, mut both) = (nan(n), nan(n), nan(n), nan(n), nan(2 * n));
        device.queue.synchronize().unwrap();
        let (dims, three) = ([rows, n], [rows, n / 128, 128]);
        for ids in &ids {
            let args = EmbedArgs::<Cuda> {
                out: TensorMut::of(&mut a, dims),
                ids: Tensor::of(ids, [rows]),
                table: Tensor::of(&table, [vocab, n]),
            };
            embed.run(queue, args).unwrap();
            let args = AddNormArgs::<Cuda> {
                residual: TensorMut::of(&mut residual, dims),
                out: TensorMut::of(&mut b, dims),
                x: Tensor::of(&a, dims),
                weight: Tensor::of(&weight, [n]),
            };
            add.run(queue, args).unwrap();
            let args = GatedNormArgs::<Cuda> {
                out: TensorMut::of(&mut c, three),
                x: Tensor::of(&b, three),
                gate: Tensor::of(&a, three),
                weight: Tensor::of(&gated_weight, [128]),
            };
            gated.run(queue, args).unwrap();
            let args = SiluMulArgs::<Cuda> {
                out: TensorMut::of(&mut d, dims),
                gate: Tensor::of(&c, dims),
                up: Tensor::of(&b, dims),
            };
            silu.run(queue, args).unwrap();
            let args = ConcatNormArgs::<Cuda> {
                out: TensorMut::of(&mut both, [rows, 2 * n]),
                left: Tensor::of(&d, dims),
                left_weight: Tensor::of(&weight, [n]),
                right: Tensor::of(&b, dims),
                right_weight: Tensor::of(&weight, [n]),
            };
            concat.run(queue, args).unwrap();
            let args = NormArgs::<Cuda> {
                out: TensorMut::of(&mut a, dims),
                x: Tensor::of(&both, [rows, 2 * n]).columns(0..n),
                weight: Tensor::of(&weight, [n]),
            };
            plain.run(queue, args).unwrap();
            let args = AddNormArgs::<Cuda> {
                residual: TensorMut::of(&mut residual, dims),
                out: TensorMut::of(&mut b, dims),
                x: Tensor::of(&a, dims),
                weight: Tensor::of(&weight, [n]),
            };
            add.run(queue, args).unwrap();
        }
        let parts = [(&residual, n), (&a, n), (&b, n), (&c, n), (&d, n), (&both, 2 * n)];
        parts.map(|(x, width)| Cuda::read(queue, x, 0..rows * width).unwrap()).concat()
    };
    let want = chain(false);
    assert!(want.iter().all(|x| x.is_finite()));
    for _ in 0..3 {
        assert_same_bits("chain", &chain(true), &want);
    }
}

/// Rows whose last one lies beyond 2^31 elements.
pub(crate) fn offsets_are_64_bits(device: &Device) {
    let queue = &device.queue;
    let (rows, n, far) = (3, 256, (1usize << 30) + 64);
    let values: Vec<bf16> = Rng::new(6).normals(rows * n, 1.0);
    let mut memory = Cuda::zeros::<bf16>(queue, 2 * far + n).unwrap();
    let weight = Cuda::upload(queue, &vec![bf16::ZERO; n]).unwrap();
    let mut out = Cuda::zeros::<bf16>(queue, rows * n).unwrap();
    for row in 0..rows {
        Cuda::write(queue, &mut memory, row * far, &values[row * n..][..n]).unwrap();
    }
    let ids = Cuda::upload(queue, &[2, 0, 1]).unwrap();
    let args = EmbedArgs::<Cuda> {
        out: TensorMut::of(&mut out, [rows, n]),
        ids: Tensor::of(&ids, [rows]),
        table: Tensor::of(&memory, [rows, n]).with_strides([far, 1]),
    };
    Embed::plan(EmbedProblem { rows, n, vocab: rows }, &device.info).unwrap().run(queue, args).unwrap();
    let want = [&values[2 * n..], &values[..n], &values[n..2 * n]].concat();
    assert_same_bits("far table", &Cuda::read(queue, &out, 0..rows * n).unwrap(), &want);

    let problem = NormProblem { rows, n, eps: EPS };
    let want = crate::calls::norm(rows, EPS, &values, &vec![bf16::ZERO; n]);
    let args = NormArgs::<Cuda> {
        out: TensorMut::of(&mut out, [rows, n]),
        x: Tensor::of(&memory, [rows, n]).with_strides([far, 1]),
        weight: Tensor::of(&weight, [n]),
    };
    Norm::plan(problem, &device.info).unwrap().run(queue, args).unwrap();
    assert_same_bits("far rows", &Cuda::read(queue, &out, 0..rows * n).unwrap(), &want);

    let zeros = Cuda::zeros::<bf16>(queue, rows * n).unwrap();
    let args = AddNormArgs::<Cuda> {
        residual: TensorMut::of(&mut memory, [rows, n]).with_strides([far, 1]),
        out: TensorMut::of(&mut out, [rows, n]),
        x: Tensor::of(&zeros, [rows, n]),
        weight: Tensor::of(&weight, [n]),
    };
    AddNorm::plan(problem, &device.info).unwrap().run(queue, args).unwrap();
    assert_same_bits("far residual", &Cuda::read(queue, &out, 0..rows * n).unwrap(), &want);
    let residual = Cuda::read(queue, &memory, 2 * far..2 * far + n).unwrap();
    assert_same_bits("the last residual", &residual, &values[2 * n..]);
}

/// CUDA has bf16 only, and what is planned for the CPU does not run there.
pub(crate) fn what_has_no_kernel_is_refused(device: &Device) {
    let queue = &device.queue;
    let name = |op| match op {
        Op::Norm => "norm",
        Op::AddNorm => "add_norm",
        Op::ConcatNorm => "concat_norm",
        Op::GatedNorm => "gated_norm",
        Op::Embed => "embed",
        Op::SiluMul => "silu_mul",
    };
    for op in OPS {
        let (case, name) = (Case { op, parts: 1, n: 128 }, name(op));
        let mut half = World::<Cuda, f16>::new(queue, case, &Data::random(case, 2, 1));
        let text = half.enqueue().unwrap_err().to_string();
        assert_eq!(text, format!("dense::{name}: activation type f16 on CUDA (bf16 is) is not supported"));
        let mut elsewhere = World::<Cuda, bf16>::new(queue, case, &Data::random(case, 2, 1));
        let text = elsewhere.enqueue_planned_for(&DeviceInfo::cpu()).unwrap_err().to_string();
        assert_eq!(text, format!("dense::{name}: device is the CPU; plan it for the CUDA device it runs on"));
    }
    fn shifted<A: Activation>(memory: &<Cuda as Backend>::Memory<A>) -> Tensor<'_, Cuda, A, 2> {
        Tensor::new(memory.slice(1..), [2, 16])
    }
    let x = Cuda::zeros::<bf16>(queue, 2 * 16 + 1).unwrap();
    let (mut out, weight) =
        (Cuda::zeros::<bf16>(queue, 40).unwrap(), Cuda::zeros::<bf16>(queue, 16).unwrap());
    let norm = Norm::plan(NormProblem { rows: 2, n: 16, eps: EPS }, &device.info).unwrap();
    let args = NormArgs::<Cuda> {
        out: TensorMut::of(&mut out, [2, 16]),
        x: shifted(&x),
        weight: Tensor::of(&weight, [16]),
    };
    let text = norm.run(queue, args).unwrap_err().to_string();
    assert_eq!(text, "dense::norm: `x` must be aligned to 16 bytes");
    let args = NormArgs::<Cuda> {
        out: TensorMut::of(&mut out, [2, 16]).with_strides([20, 1]),
        x: Tensor::of(&x, [2, 16]),
        weight: Tensor::of(&weight, [16]),
    };
    let text = norm.run(queue, args).unwrap_err().to_string();
    assert_eq!(text, "dense::norm: `out` must be aligned to 16 bytes");
    // The table of another type.
    let table = Cuda::zeros::<f32>(queue, 32).unwrap();
    let ids = Cuda::upload(queue, &[0, 1]).unwrap();
    let args = EmbedArgs::<Cuda, bf16, f32> {
        out: TensorMut::of(&mut out, [2, 16]),
        ids: Tensor::of(&ids, [2]),
        table: Tensor::of(&table, [2, 16]),
    };
    let embed = Embed::plan(EmbedProblem { rows: 2, n: 16, vocab: 2 }, &device.info).unwrap();
    let text = embed.run(queue, args).unwrap_err().to_string();
    assert_eq!(text, "dense::embed: a table of f32 on CUDA (bf16 is) is not supported");
}

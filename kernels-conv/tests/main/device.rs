//! What only a GPU can show.

use crate::world::{Chunk, Kind, World, parameters, problem};
use kernels_conv::{Args, Grid, Problem, Verify};
use kernels_core::{Backend, Cpu, Cuda, PAD, Rows, Tensor, TensorMut, bf16, f16};
use kernels_testkit::{compare::assert_same_bits, device::Device, rng::Rng};

/// Random launches of `sequences` sequences in changing order: the same script for two worlds.
fn script(rng: &mut Rng, p: &Problem, rounds: usize) -> Vec<Vec<Chunk<bf16>>> {
    let mut positions = vec![0; p.slots];
    (0..rounds)
        .map(|_| {
            let mut slots = rng.permutation(p.slots);
            slots.truncate(p.sequences);
            slots
                .into_iter()
                .map(|slot| {
                    let rows = rng.below(p.max_rows + 1);
                    let x = rng.normals(rows * p.channels, 3.0);
                    let start = positions[slot];
                    if rng.below(6) == 0 {
                        // Padding writes no ring rows, so the sequence does not move past them.
                        return Chunk { slot: PAD, start, x };
                    }
                    // A rejected tail: the next launch begins before this one ended.
                    positions[slot] += rng.below(rows + 1);
                    Chunk { slot: slot as i32, start, x }
                })
                .collect()
        })
        .collect()
}

/// Every width, with and without bias and SiLU, both operations: the bytes of the CPU.
pub fn equals_the_cpu(device: &Device) {
    let (mut compared, mut longest) = (0, 0);
    for seed in 0..24 {
        let mut rng = Rng::new(500 + seed);
        let p = problem::<Cuda>(&mut rng, 6, 8, 7);
        let p = Problem { width: 2 + seed as usize % 3, ring_rows: 10 + rng.below(3), ..p };
        let parameters = parameters::<bf16>(&p, seed);
        let mut cpu = World::<Cpu, bf16>::new(&(), p, &parameters);
        let mut cuda = World::<Cuda, bf16>::new(&device.queue, p, &parameters);
        for (i, chunks) in script(&mut rng, &p, 12).into_iter().enumerate() {
            let kind = if i % 4 == 3 { Kind::Prefill } else { Kind::Verify };
            let (want, got) = (cpu.run(kind, &chunks), cuda.run(kind, &chunks));
            assert_same_bits(&format!("{kind:?} {p:?}"), &got.concat(), &want.concat());
            compared += got.concat().len();
            longest = chunks.iter().map(|c| c.x.len() / p.channels).fold(longest, usize::max);
        }
        for slot in 0..p.slots {
            assert_same_bits("ring", &cuda.ring(slot).concat(), &cpu.ring(slot).concat());
        }
    }
    assert!(longest > 1 && compared > 100_000, "{compared} elements, rows up to {longest}");
    // Magnitudes from denormal to the edge of overflow, where SiLU has its corners.
    let p = Problem {
        sequences: 1,
        rows: 64,
        channels: 1024,
        width: 4,
        slots: 1,
        ring_rows: 70,
        max_rows: 64,
        bias: false,
        silu: true,
    };
    let mut taps = vec![bf16::ZERO; 4 * 1024];
    (0..1024).for_each(|c| taps[4 * c + 3] = bf16::ONE);
    let finite = (0..=u16::MAX).map(bf16::from_bits).filter(|x| x.is_finite());
    let mut x: Vec<bf16> = finite.collect();
    x.resize(64 * 1024, bf16::ZERO);
    let parameters = (taps, vec![bf16::ZERO; 1024]);
    let chunk = [Chunk { slot: 0, start: 0, x }];
    let want = World::<Cpu, bf16>::new(&(), p, &parameters).run(Kind::Verify, &chunk);
    let got = World::<Cuda, bf16>::new(&device.queue, p, &parameters).run(Kind::Verify, &chunk);
    assert_same_bits("every finite bf16", &got[0], &want[0]);
}

/// One captured graph, replayed while counters, slots, offsets and inputs change on the device.
pub fn replays_equal_eager_runs(device: &Device) {
    for (seed, kind) in [(1, Kind::Verify), (2, Kind::Prefill)] {
        let mut rng = Rng::new(seed);
        let p = problem::<Cuda>(&mut rng, 4, 5, 6);
        let parameters = parameters::<bf16>(&p, seed);
        let mut eager = World::<Cuda, bf16>::new(&device.queue, p, &parameters);
        let mut replayed = World::<Cuda, bf16>::new(&device.queue, p, &parameters);
        let rounds = script(&mut rng, &p, 20);
        // Loads the module: not allowed while capturing.
        eager.run(kind, &rounds[0]);
        replayed.run(kind, &rounds[0]);
        let graph = device.capture(|| replayed.enqueue(kind)).unwrap();
        for chunks in &rounds[1..] {
            let want = eager.run(kind, chunks);
            replayed.stage(chunks);
            graph.launch().unwrap();
            let got = replayed.collect(chunks);
            assert_same_bits(&format!("{kind:?} {p:?}"), &got.concat(), &want.concat());
        }
        for slot in 0..p.slots {
            assert_same_bits("ring", &replayed.ring(slot).concat(), &eager.ring(slot).concat());
        }
    }
}

/// Every grid that can be planned gives the same bytes.
pub fn grids_share_their_bits(device: &Device) {
    let mut rng = Rng::new(31);
    for max_rows in [1, 3, 8] {
        let p = problem::<Cuda>(&mut rng, 5, 6, max_rows);
        let parameters = parameters::<bf16>(&p, 31);
        let rounds = script(&mut rng, &p, 6);
        let mut reference = World::<Cpu, bf16>::new(&(), p, &parameters);
        let want: Vec<_> = rounds.iter().map(|chunks| reference.run(Kind::Verify, chunks).concat()).collect();
        for rows_per_thread in [1, 2, 4] {
            for channels_per_thread in [2, 4, 8] {
                for lanes in [32, 64, 128, 256] {
                    let grid = Grid { rows_per_thread, channels_per_thread, lanes };
                    let mut world = World::<Cuda, bf16>::new(&device.queue, p, &parameters).with_grid(grid);
                    assert_eq!(world.verify.as_ref().unwrap().grid(), Some(grid));
                    for (chunks, want) in rounds.iter().zip(&want) {
                        let got = world.run(Kind::Verify, chunks);
                        assert_same_bits(&format!("{grid:?}"), &got.concat(), want);
                    }
                    for slot in 0..p.slots {
                        assert_same_bits("ring", &world.ring(slot).concat(), &reference.ring(slot).concat());
                    }
                }
            }
        }
    }
}

/// A chain in which each launch reads what the one before writes, each allowed to begin early: a launch that
/// did not wait would read poison. The producer is as slow as the consumer, which begins at once.
pub fn overlapping_launches_wait(device: &Device) {
    let queue = &device.queue;
    let p = Problem {
        sequences: 64,
        rows: 64 * 8,
        channels: 8192,
        width: 4,
        slots: 64,
        ring_rows: 11,
        max_rows: 8,
        bias: true,
        silu: true,
    };
    let (weight, bias) = parameters::<bf16>(&p, 5);
    let (weight, bias) = (Cuda::upload(queue, &weight).unwrap(), Cuda::upload(queue, &bias).unwrap());
    let first: Vec<bf16> = Rng::new(5).normals(p.rows * p.channels, 1.0);
    let slots = Cuda::upload(queue, &(0..64).collect::<Vec<i32>>()).unwrap();
    let offsets = Cuda::upload(queue, &(0..=64).map(|i| 8 * i).collect::<Vec<i32>>()).unwrap();
    let starts: Vec<_> = (0..24).map(|round| Cuda::upload(queue, &[8 * round; 64]).unwrap()).collect();
    let chain = |overlapping: bool| -> Vec<bf16> {
        let verify = Verify::plan(p, &device.info).unwrap().overlapping(overlapping);
        let nan = vec![kernels_testkit::guard::poison::<bf16>(); p.rows * p.channels];
        let mut ring = Cuda::zeros::<bf16>(queue, p.slots * p.ring_rows * p.channels).unwrap();
        let mut faults = Cuda::zeros::<u64>(queue, p.slots + 1).unwrap();
        let mut buffers = [Cuda::upload(queue, &first).unwrap(), Cuda::upload(queue, &nan).unwrap()];
        device.queue.synchronize().unwrap();
        for start in &starts {
            let [from, to] = &mut buffers;
            let args = Args::<Cuda> {
                out: TensorMut::of(to, [p.rows, p.channels]),
                ring: TensorMut::of(&mut ring, [p.slots, p.ring_rows, p.channels]),
                faults: TensorMut::of(&mut faults, [p.slots + 1]),
                x: Tensor::of(from, [p.rows, p.channels]),
                weight: Tensor::of(&weight, [p.channels, p.width]),
                bias: Some(Tensor::of(&bias, [p.channels])),
                rows: Rows {
                    slots: Tensor::of(&slots, [64]),
                    start: Tensor::of(start, [64]),
                    row_offsets: Tensor::of(&offsets, [65]),
                },
            };
            verify.run(queue, args).unwrap();
            buffers.swap(0, 1);
        }
        Cuda::read(queue, &buffers[0], 0..p.rows * p.channels).unwrap()
    };
    let want = chain(false);
    assert!(want.iter().all(|x| x.is_finite()));
    for _ in 0..3 {
        assert_same_bits("chain", &chain(true), &want);
    }
}

/// A ring whose second slot lies beyond 2^31 elements.
pub fn offsets_are_64_bits(device: &Device) {
    let queue = &device.queue;
    let p = Problem {
        sequences: 1,
        rows: 4,
        channels: 64,
        width: 4,
        slots: 2,
        ring_rows: 8,
        max_rows: 4,
        bias: false,
        silu: true,
    };
    let parameters = parameters::<bf16>(&p, 6);
    let x: Vec<bf16> = Rng::new(6).normals(3 * 4 * p.channels, 1.0);
    let far = (1usize << 31) + 64;
    let mut ring = Cuda::zeros::<bf16>(queue, far + p.ring_rows * p.channels).unwrap();
    let mut out = Cuda::zeros::<bf16>(queue, 4 * p.channels).unwrap();
    let mut faults = Cuda::zeros::<u64>(queue, 3).unwrap();
    let weight = Cuda::upload(queue, &parameters.0).unwrap();
    let (slots, offsets) = (Cuda::upload(queue, &[1]).unwrap(), Cuda::upload(queue, &[0, 4]).unwrap());
    let verify = Verify::plan(p, &device.info).unwrap();
    let mut reference = World::<Cpu, bf16>::new(&(), p, &parameters);
    for (round, x) in x.chunks_exact(4 * p.channels).enumerate() {
        let on_device = Cuda::upload(queue, x).unwrap();
        let start = Cuda::upload(queue, &[4 * round as i32]).unwrap();
        let args = Args::<Cuda> {
            out: TensorMut::of(&mut out, [4, p.channels]),
            ring: TensorMut::of(&mut ring, [2, p.ring_rows, p.channels]).with_strides([far, p.channels, 1]),
            faults: TensorMut::of(&mut faults, [3]),
            x: Tensor::of(&on_device, [4, p.channels]),
            weight: Tensor::of(&weight, [p.channels, 4]),
            bias: None,
            rows: Rows {
                slots: Tensor::of(&slots, [1]),
                start: Tensor::of(&start, [1]),
                row_offsets: Tensor::of(&offsets, [2]),
            },
        };
        verify.run(queue, args).unwrap();
        let chunk = Chunk { slot: 1, start: 4 * round, x: x.to_vec() };
        let want = reference.run(Kind::Verify, &[chunk]).remove(0);
        assert_same_bits("far slot", &Cuda::read(queue, &out, 0..4 * p.channels).unwrap(), &want);
    }
    let stored = Cuda::read(queue, &ring, far..far + p.ring_rows * p.channels).unwrap();
    assert_same_bits("far ring", &stored, &reference.ring(1).concat());
}

/// CUDA has bf16 only, and an operation planned for the CPU does not run there.
pub fn other_types_are_refused(device: &Device) {
    let p = Problem { rows: 4, ..problem::<Cuda>(&mut Rng::new(8), 1, 1, 4) };
    let mut half = World::<Cuda, f16>::new(&device.queue, p, &parameters(&p, 1));
    let text = half.enqueue(Kind::Verify).unwrap_err().to_string();
    assert_eq!(text, "conv::verify: activation type f16 on CUDA (bf16 is) is not supported");
    let mut planned_elsewhere = World::<Cuda, bf16>::new(&device.queue, p, &parameters(&p, 1));
    planned_elsewhere.verify = Some(Verify::plan(p, &kernels_core::DeviceInfo::cpu()).unwrap());
    let text = planned_elsewhere.enqueue(Kind::Verify).unwrap_err().to_string();
    assert_eq!(text, "conv::verify: device is the CPU; plan it for the CUDA device it runs on");
}

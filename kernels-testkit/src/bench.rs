//! Criterion with bytes, TB/s and the share of the read ceiling measured in the same run.
//!
//! Ids read `family/op/model/b8/t4`. On a GPU the operation is captured into one graph over rotated
//! operands, and criterion is fed the device's own clock; without one the CPU backend is timed, so that the
//! bench runs everywhere.

use crate::rng::Rng;
#[cfg(feature = "cuda")]
use crate::{device::Device, timing::Timer};
use criterion::{Criterion, Throughput};
use kernels_core::{Backend, bf16};
#[cfg(feature = "cuda")]
use std::rc::Rc;
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// Runs benches and prints one line for each.
pub struct Bench {
    criterion: Criterion,
    ceiling: Option<f64>,
    #[cfg(feature = "cuda")]
    device: Option<Rc<Device>>,
}

/// The median time of one call, and what it moved.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The median over criterion's samples; `None` if the command line filtered the bench out.
    pub time: Option<Duration>,
    /// The shortest of them.
    pub best: Option<Duration>,
    /// Bytes that must move at least once.
    pub bytes: u64,
}

impl Measured {
    /// TB/s, if it ran.
    pub fn terabytes_per_second(&self) -> Option<f64> {
        self.time.map(|t| self.bytes as f64 / t.as_secs_f64() / 1e12)
    }
}

impl Bench {
    /// Takes criterion's command line; opens device 0 where there is one and measures its read ceiling.
    pub fn from_args() -> Self {
        let criterion = Criterion::default()
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(300))
            .sample_size(20)
            .without_plots()
            .configure_from_args();
        let mut bench = Bench {
            criterion,
            ceiling: None,
            #[cfg(feature = "cuda")]
            device: open(),
        };
        bench.measure_ceiling();
        bench
    }

    /// Bytes per second of a streaming read, if there is a device.
    pub fn ceiling(&self) -> Option<f64> {
        self.ceiling
    }

    /// The device that is measured, if there is one.
    #[cfg(feature = "cuda")]
    pub fn device(&self) -> Option<&Device> {
        self.device.as_deref()
    }

    /// The same for what is prepared inside of a bench.
    #[cfg(feature = "cuda")]
    pub fn shared_device(&self) -> Option<Rc<Device>> {
        self.device.clone()
    }

    #[cfg(not(feature = "cuda"))]
    fn measure_ceiling(&mut self) {}

    /// `ceiling/read`: 16-byte loads over 8 GiB (or half of the memory, if that is less), and
    /// `ceiling/copy`: one half of them copied to the other, read and write counted. The best of several
    /// probes, of two passes each for the reads.
    #[cfg(feature = "cuda")]
    fn measure_ceiling(&mut self) {
        use kernels_core::{Cuda, selftest};
        const PASSES: usize = 2;
        let Some(device) = self.device.clone() else { return };
        let queue = device.queue.clone();
        let bytes = (device.info.memory / 2).min(8 << 30) / 32 * 32;
        let blocks = 4 * device.info.multiprocessors;
        let mut memory = Cuda::zeros::<u8>(&queue, bytes).expect("half of the memory is free");
        let mut sink = Cuda::zeros::<u32>(&queue, 1).expect("four bytes");
        let mut read = |_| selftest::read(&queue, Cuda::view(&memory), Cuda::view_mut(&mut sink), blocks);
        let mut best = self.cuda("ceiling/read", bytes as u64, PASSES, &mut read).best;
        if best.is_none() {
            // The command line left it out; the others still want their share of it.
            best = self.device().and_then(|device| {
                let mut timer = Timer::new(device).ok()?;
                let graph = device.capture(|| (0..PASSES).try_for_each(&mut read)).ok()?;
                (0..20).filter_map(|_| timer.rotated(&graph, PASSES, 1).ok()).min()
            });
        }
        self.measure_copy(&device, &mut memory);
        self.ceiling = best.map(|t| bytes as f64 / t.as_secs_f64());
    }

    /// By the driver, and outside of a graph: there it copies by a kernel, inside by the copy engine, at little over
    /// half the speed. It is how the peers' ceiling was measured.
    #[cfg(feature = "cuda")]
    fn measure_copy(&mut self, device: &Device, memory: &mut cudarc::driver::CudaSlice<u8>) {
        let bytes = memory.len();
        self.measure("ceiling/copy", bytes as u64, |iterations| {
            let mut copies = || {
                (0..iterations).try_for_each(|_| {
                    let (from, mut to) = memory.split_at_mut(bytes / 2);
                    Ok(device.queue.memcpy_dtod(&from, &mut to)?)
                })
            };
            let mut timer = Timer::new(device).expect("two events");
            timer.time(&mut copies).unwrap_or_else(|e| panic!("ceiling/copy: {e}"))
        });
    }

    /// Times `body` on the host's clock.
    pub fn cpu(&mut self, id: &str, bytes: u64, mut body: impl FnMut()) -> Measured {
        self.measure(id, bytes, |iterations| {
            let start = Instant::now();
            for _ in 0..iterations {
                body();
            }
            black_box(start.elapsed())
        })
    }

    /// Times `body(copy)` on the device's clock; it is called once for each of `copies` sets of operands,
    /// while a graph is captured, and must only enqueue. Before that it is called once outside of the
    /// capture, with 0; and not at all if the command line leaves the id out.
    #[cfg(feature = "cuda")]
    pub fn cuda(
        &mut self,
        id: &str,
        bytes: u64,
        copies: usize,
        mut body: impl FnMut(usize) -> kernels_core::Result<()>,
    ) -> Measured {
        let device = self.device.clone().expect("`cuda` is called only where `device` gives one");
        let mut prepared = None;
        self.measure(id, bytes, |iterations| {
            let failed = |e: kernels_core::Error| -> ! { panic!("{id}: {e}") };
            let (graph, timer) = prepared.get_or_insert_with(|| {
                // Once outside the capture: the first launch of a kernel loads its module.
                body(0).and_then(|()| Ok(device.queue.synchronize()?)).unwrap_or_else(|e| failed(e));
                let graph = device.capture(|| (0..copies).try_for_each(&mut body));
                let timer = Timer::new(&device).expect("two events");
                (graph.unwrap_or_else(|e| failed(e)), timer)
            });
            let replays = (iterations as usize).div_ceil(copies);
            let one = timer.rotated(graph, copies, replays).unwrap_or_else(|e| failed(e));
            Duration::from_secs_f64(one.as_secs_f64() * iterations as f64)
        })
    }

    fn measure(&mut self, id: &str, bytes: u64, mut run: impl FnMut(u64) -> Duration) -> Measured {
        let mut samples: Vec<f64> = Vec::new();
        let (group, name) = id.split_once('/').unwrap_or(("", id));
        let mut group = self.criterion.benchmark_group(group);
        group.throughput(Throughput::Bytes(bytes));
        group.bench_function(name, |b| {
            b.iter_custom(|iterations| {
                let time = run(iterations);
                samples.push(time.as_secs_f64() / iterations as f64);
                time
            })
        });
        group.finish();
        samples.sort_by(f64::total_cmp);
        let time = samples.get(samples.len() / 2).copied().map(Duration::from_secs_f64);
        let best = samples.first().copied().map(Duration::from_secs_f64);
        let measured = Measured { time, best, bytes };
        if let (Some(time), Some(speed)) = (time, measured.terabytes_per_second()) {
            let share = self.ceiling.map(|c| format!("  {:.0} % of ceiling/read", speed * 1e14 / c));
            let (micros, megabytes) = (time.as_secs_f64() * 1e6, bytes as f64 / 1e6);
            let (speed, unit) = if speed < 0.05 { (speed * 1e3, "GB/s") } else { (speed, "TB/s") };
            println!(
                "{id}: {micros:.2} µs  {megabytes:.3} MB  {speed:.3} {unit}{}",
                share.unwrap_or_default()
            );
        }
        measured
    }
}

/// Memory for what is timed: one megabyte of normal numbers, repeated. The time does not depend on them, only on their
/// not being zero.
pub fn numbers<B: Backend>(on: &B::Queue, len: usize, deviation: f32) -> B::Memory<bf16> {
    let pattern: Vec<bf16> = Rng::new(1).normals(1 << 19, deviation);
    let mut memory = B::zeros(on, len).expect("the bench fits into memory");
    for at in (0..len).step_by(pattern.len()) {
        let part = &pattern[..pattern.len().min(len - at)];
        B::write(on, &mut memory, at, part).expect("the memory is there");
    }
    memory
}

#[cfg(feature = "cuda")]
fn open() -> Option<Rc<Device>> {
    match Device::open() {
        Ok(device) => {
            println!("device: {}", device.info.name);
            Some(Rc::new(device))
        }
        Err(reason) if std::env::var("LOCKSTEP_REQUIRE_GPU").is_ok_and(|v| v == "1") => {
            panic!("LOCKSTEP_REQUIRE_GPU=1, but {reason}")
        }
        Err(reason) => {
            println!("CPU backend: {reason}");
            None
        }
    }
}

//! Memory full of random numbers: what building a model without a checkpoint takes.
//!
//! Ids: `dense/random_fill/TYPE/SIZE`. Bytes are those written. Without a GPU the CPU backend is timed on few of them.

use kernels_core::{Activation, Backend, Cpu, DeviceInfo, TensorMut, bf16};
use kernels_dense::{DenseBackend, RandomFill, RandomFillArgs, RandomFillProblem};
use kernels_testkit::bench::Bench;

fn problem(len: usize) -> RandomFillProblem {
    RandomFillProblem { len, first: 0, seed: 1, stream: 1, mean: 0.0, std: 0.02 }
}

fn fill<B: DenseBackend, A: Activation>(
    queue: &B::Queue,
    op: &RandomFill,
    memory: &mut B::Memory<A>,
) -> kernels_core::Result<()> {
    op.run(queue, RandomFillArgs::<B, A> { out: TensorMut::of(memory, [op.problem().len]) })
}

fn main() {
    let mut bench = Bench::from_args();
    #[cfg(feature = "cuda")]
    if bench.device().is_some() {
        cuda::run::<bf16>(&mut bench);
        return cuda::run::<f32>(&mut bench);
    }
    cpu::<bf16>(&mut bench);
    cpu::<f32>(&mut bench);
}

fn cpu<A: Activation>(bench: &mut Bench) {
    let bytes: usize = 4 << 20;
    let op = RandomFill::plan(problem(bytes / size_of::<A>()), &DeviceInfo::cpu()).expect("sizes are sane");
    let mut memory = Cpu::zeros::<A>(&(), op.problem().len).expect("the bench fits into memory");
    let id = format!("dense/random_fill/{}/4MiB", A::DTYPE);
    bench.cpu(&id, bytes as u64, || fill::<Cpu, A>(&(), &op, &mut memory).expect(&id));
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use kernels_core::Cuda;

    pub(super) fn run<A: Activation>(bench: &mut Bench) {
        let device = bench.device().expect("there is one");
        let (queue, info) = (device.queue.clone(), device.info.clone());
        for (name, bytes) in [("1MiB", 1 << 20), ("64MiB", 64 << 20), ("1GiB", 1usize << 30)] {
            let op = RandomFill::plan(problem(bytes / size_of::<A>()), &info).expect("sizes are sane");
            // Stores of a launch that fits into the L2 cache have left it when the same memory's turn comes again.
            let copies = (2 * info.l2_bytes).div_ceil(bytes).max(1);
            let memory = || Cuda::zeros::<A>(&queue, op.problem().len).expect("the bench fits into memory");
            let mut memories: Vec<_> = (0..copies).map(|_| memory()).collect();
            let id = format!("dense/random_fill/{}/{name}", A::DTYPE);
            bench.cuda(&id, bytes as u64, copies, |copy| fill::<Cuda, A>(&queue, &op, &mut memories[copy]));
        }
    }
}

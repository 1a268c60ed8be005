//! Random numbers on a GPU.

use crate::fill::{fill, problem};
use kernels_core::{Activation, Backend, Cpu, Cuda, DeviceInfo, Error, TensorMut, bf16, f16};
use kernels_dense::*;
use kernels_testkit::{compare::assert_same_bits, device::Device};

/// The bytes of the CPU: any length, any size of the numbers, to where they are denormal or too large.
pub(crate) fn equals_the_cpu(device: &Device) {
    fn typed<A: Activation>(device: &Device) {
        for (i, len) in [1, 3, 8, 9, 1023, 8191, 8192, 8193, 100_003].into_iter().enumerate() {
            for (mean, std) in
                [(0.0, 0.02), (1.0, 0.1), (-3.25, 1.5), (0.0, 1e-39), (1e-40, 3e-41), (0.0, 2e38), (0.7, 0.0)]
            {
                for first in [0, 8 * i as u64, (1 << 34) - 4096, 1 << 41] {
                    let rule = RandomFillProblem { mean, std, ..problem(len, first, i as u32) };
                    let (got, want) = (fill::<Cuda, A>(&device.queue, rule), fill::<Cpu, A>(&(), rule));
                    assert_same_bits(&format!("{rule:?}"), &got, &want);
                }
            }
        }
    }
    typed::<bf16>(device);
    typed::<f32>(device);
}

/// More elements than 32 bits count, and more bytes: windows of the whole equal the CPU's parts.
pub(crate) fn large_memory_is_filled_to_its_end(device: &Device) {
    fn typed<A: Activation>(device: &Device, len: usize) {
        const CANARIES: usize = 64;
        let (queue, rule) = (&device.queue, RandomFillProblem { std: 0.02, ..problem(len, 24, 5) });
        let mut memory = Cuda::zeros::<A>(queue, len + CANARIES).unwrap();
        let out = TensorMut::new(memory.slice_mut(..len), [len]);
        let op = RandomFill::plan(rule, &device.info).unwrap();
        op.run(queue, RandomFillArgs::<Cuda, A> { out }).unwrap();
        let windows = [0, (1 << 29) - 512, (1 << 30) - 512, (1 << 31) - 512, len / 8 * 8 - 1024];
        for at in windows.into_iter().filter(|at| at + 1024 <= len) {
            let count = (len - at).min(2048);
            let part = RandomFillProblem { len: count, first: rule.first + at as u64, ..rule };
            let got = Cuda::read(queue, &memory, at..at + count).unwrap();
            assert_same_bits(&format!("element {at} of {len}"), &got, &fill::<Cpu, A>(&(), part));
        }
        let behind = Cuda::read(queue, &memory, len..len + CANARIES).unwrap();
        assert_same_bits("behind the last", &behind, &[A::default(); CANARIES]);
    }
    typed::<bf16>(device, (1 << 31) + 1027);
    typed::<f32>(device, (1 << 30) + 1027);
}

/// A type without a kernel, a plan for elsewhere, an operand that vectors cannot be stored to.
pub(crate) fn what_has_no_kernel_is_refused(device: &Device) {
    let queue = &device.queue;
    fn run<A: Activation>(device: &Device, info: &DeviceInfo, skip: usize) -> Error {
        let mut memory = Cuda::zeros::<A>(&device.queue, 8 + skip).unwrap();
        let out = TensorMut::new(memory.slice_mut(skip..), [8]);
        let op = RandomFill::plan(problem(8, 0, 1), info).unwrap();
        op.run(&device.queue, RandomFillArgs::<Cuda, A> { out }).unwrap_err()
    }
    let text = run::<f16>(device, &device.info, 0).to_string();
    assert_eq!(text, "dense::random_fill: activation type f16 on CUDA (bf16 and f32 are) is not supported");
    let text = run::<bf16>(device, &DeviceInfo::cpu(), 0).to_string();
    assert_eq!(text, "dense::random_fill: device is the CPU; plan it for the CUDA device it runs on");
    let text = run::<bf16>(device, &device.info, 1).to_string();
    assert_eq!(text, "dense::random_fill: `out` must be aligned to 16 bytes");
    queue.synchronize().unwrap();
}

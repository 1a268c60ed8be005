//! The fact that the exactness contract stands on: the same k16 steps give the same accumulators, whatever
//! the instruction, the tile, the operand's side or the column.

use kernels_testkit::{gpu, runner::Suite};

#[cfg(feature = "cuda")]
use {
    kernels_core::selftest::{self, Fact, Instruction},
    kernels_testkit::runner::sanitized,
};

fn main() {
    let mut suite = Suite::new();
    gpu!(suite, "mma_equals_wgmma", |device| {
        let (facts, depths) = if sanitized() {
            (selftest::mma_equals_wgmma_of(&device.queue, &[16, 64]).unwrap(), 2)
        } else {
            (selftest::mma_equals_wgmma(&device.queue).unwrap(), 5)
        };
        if cfg!(kernels_sm90) && device.info.arch == Some(kernels_core::Arch::SM90) {
            let wgmma = facts.iter().filter(|f| f.name.contains("Wgmma")).count();
            assert!(wgmma >= 2 * depths * 6 * 10 * 3, "only {wgmma} comparisons with wgmma");
        }
        summary("mma_equals_wgmma", &facts);
    });
    gpu!(suite, "zero_columns_change_nothing", |device| {
        summary("zero_columns", &selftest::zero_columns(&device.queue).unwrap());
    });
    gpu!(suite, "zero_times_infinity_is_nan", |device| {
        let results = selftest::zero_times_infinity(&device.queue).unwrap();
        for (instruction, bits) in &results {
            assert!(f32::from_bits(*bits).is_nan(), "{instruction:?}: 0 x Inf gave {bits:#x}");
        }
        let mma = results.iter().find(|(i, _)| *i == Instruction::Mma).unwrap().1;
        println!("zero_times_infinity: P = 0 against V = Inf gives {mma:#x}, so masked V must be finite");
    });
    gpu!(suite, "device_functions_equal_the_cpu", |device| {
        summary("cpu_equals_cuda", &selftest::cpu_equals_cuda(&device.queue).unwrap());
    });
    gpu!(suite, "products_refuse_by_name", |device| refusals(&device.queue));
    suite.run()
}

/// One line with the counts; fails on any fact that does not hold.
#[cfg(feature = "cuda")]
fn summary(what: &str, facts: &[Fact]) {
    let compared: usize = facts.iter().map(|f| f.compared).sum();
    let broken: Vec<String> = facts.iter().filter(|f| !f.holds()).map(Fact::to_string).collect();
    println!("{what}: {} comparisons, {compared} elements, {} broken", facts.len(), broken.len());
    assert!(broken.is_empty(), "{} facts do not hold on this chip:\n{}", broken.len(), broken.join("\n"));
}

#[cfg(feature = "cuda")]
fn refusals(queue: &std::sync::Arc<cudarc::driver::CudaStream>) {
    use kernels_core::{Backend, Cuda, Tensor, TensorMut, bf16};
    let a = Cuda::zeros::<bf16>(queue, 64 * 16).unwrap();
    let mut out = Cuda::zeros::<f32>(queue, 64 * 64).unwrap();
    let mut text = |columns, n, k| {
        let (a, b) = (Tensor::of(&a, [64, k]), Tensor::of(&a, [n, k]));
        let out = TensorMut::of(&mut out, [64, n]);
        selftest::product::<bf16>(queue, Instruction::Wgmma { columns }, out, a, b).unwrap_err().to_string()
    };
    assert_eq!(text(40, 40, 16), "selftest::product: an instruction of 40 columns is not supported");
    assert_eq!(text(16, 24, 16), "selftest::product: n is 24; it must be a multiple of 16");
    assert_eq!(text(16, 16, 8), "selftest::product: k is 8; it must be a multiple of 16");
    assert_eq!(text(16, 128, 16), "selftest::product: `b` needs 2048 elements, its buffer holds 1024");
}

//! Which backend a command computes on, and in which type.

use super::Dtype;
use anyhow::{Result, bail};
use clap::ValueEnum;
use engine::{
    machine::SelfTest,
    model::{Context, EngineBackend},
};
use kernels_core::{Activation, Cpu, DeviceInfo, bf16};

/// Backends of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceName {
    /// The reference, on every machine
    Cpu,
    /// The first NVIDIA GPU, compute capability 8.0 or later
    Cuda,
}

/// What a command does on any backend.
pub(crate) trait Job {
    /// What comes of it.
    type Output;
    fn run<B: EngineBackend, A: Activation>(self, context: Context<B>) -> Result<Self::Output>;
}

impl DeviceName {
    /// Opens the device and does `job` on it.
    pub(crate) fn run<J: Job>(self, dtype: Dtype, job: J) -> Result<J::Output> {
        match (self, dtype) {
            (DeviceName::Cpu, Dtype::Bf16) => job.run::<Cpu, bf16>(cpu()),
            (DeviceName::Cpu, Dtype::F32) => job.run::<Cpu, f32>(cpu()),
            (DeviceName::Cuda, Dtype::F32) => {
                bail!("--dtype is f32, but the CUDA kernels compute in bf16; use bf16 or --device cpu")
            }
            (DeviceName::Cuda, Dtype::Bf16) => cuda(job),
        }
    }
}

/// Tries what equal bits stand on, where that is a chip, and says on standard error what came of it.
pub(super) fn self_test<B: EngineBackend>(context: &Context<B>) -> Result<Option<SelfTest>> {
    let test = B::self_test(&context.queue)?;
    if let Some(test) = &test {
        eprintln!("{test}");
    }
    Ok(test)
}

/// Whether nothing takes the promise of equal bits back.
pub(super) fn promised(test: Option<&SelfTest>) -> bool {
    test.is_none_or(SelfTest::holds)
}

/// Said below results where something does.
pub(super) const NOT_PROMISED: &str = "this chip's self-test failed: equal bits are not promised on it, whatever came out equal here; `lockstep \
     doctor` says what is tried";

fn cpu() -> Context<Cpu> {
    Context::new((), DeviceInfo::cpu())
}

#[cfg(feature = "cuda")]
fn cuda<J: Job>(job: J) -> Result<J::Output> {
    let (cuda, device) = DeviceInfo::open(0)?;
    // SAFETY: everything is used on the one stream below, which orders the accesses; and nothing has been allocated in
    // this context yet.
    unsafe { cuda.disable_event_tracking() };
    let queue = cuda.new_stream()?;
    eprintln!("on {}", device.name);
    job.run::<kernels_core::Cuda, bf16>(Context::new(queue, device))
}

#[cfg(not(feature = "cuda"))]
fn cuda<J: Job>(_: J) -> Result<J::Output> {
    bail!(
        "--device is cuda, but lockstep was built without it; build with `--features cuda` or use --device cpu"
    )
}

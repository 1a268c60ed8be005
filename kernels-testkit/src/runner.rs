//! A test executable whose GPU cases say why they did not run.
//!
//! With the standard harness a GPU test on a machine without a GPU either passes without having tested
//! anything or is hidden behind `#[ignore]`. Here it is listed as *ignored* with the reason, and with
//! `LOCKSTEP_REQUIRE_GPU=1` a missing GPU is a failure.
//!
//! ```no_run
//! use kernels_core::{Backend, Cpu};
//! use kernels_testkit::{both, runner::Suite};
//!
//! fn copies<B: Backend>(queue: &B::Queue) {
//!     let memory = B::upload(queue, &[1.0f32, 2.0]).unwrap();
//!     assert_eq!(B::read(queue, &memory, 0..2).unwrap(), [1.0, 2.0]);
//! }
//!
//! fn main() {
//!     let mut suite = Suite::new();
//!     both!(suite, copies);
//!     suite.run()
//! }
//! ```

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// The tests of one executable (`harness = false`).
#[derive(Debug, Default)]
pub struct Suite {
    trials: Vec<Trial>,
    one_thread: bool,
}

impl Suite {
    /// No tests yet.
    pub fn new() -> Self {
        Suite::default()
    }

    /// Runs the tests one after the other: needed where planted faults are active process-wide.
    pub fn one_thread(&mut self) {
        self.one_thread = true;
    }

    /// A test that needs no GPU.
    pub fn cpu(&mut self, name: impl Into<String>, body: impl FnOnce() + Send + 'static) {
        let run = move || {
            body();
            Ok(())
        };
        self.trials.push(Trial::test(name, run).with_kind("cpu"));
    }

    /// A test that needs a GPU.
    #[cfg(feature = "cuda")]
    pub fn gpu(
        &mut self,
        name: impl Into<String>,
        body: impl FnOnce(&crate::device::Device) + Send + 'static,
    ) {
        let run = move || match crate::device::Device::open() {
            Ok(device) => {
                body(&device);
                Ok(Completion::Completed)
            }
            Err(reason) => missing(&reason),
        };
        self.trials.push(Trial::ignorable_test(name, run).with_kind("cuda"));
    }

    /// A GPU test of an executable that was built without CUDA.
    pub fn gpu_not_built(&mut self, name: impl Into<String>) {
        let run = || missing("built without the feature `cuda`");
        self.trials.push(Trial::ignorable_test(name, run).with_kind("cuda"));
    }

    /// Runs what the command line selects and ends the process.
    pub fn run(self) -> ! {
        let mut arguments = Arguments::from_args();
        if self.one_thread {
            arguments.test_threads = Some(1);
        }
        libtest_mimic::run(&arguments, self.trials).exit()
    }
}

/// Whether a sanitizer watches, as `pack/run.sh sanitize` says by `LOCKSTEP_SANITIZED=1`.
pub fn sanitized() -> bool {
    std::env::var("LOCKSTEP_SANITIZED").is_ok_and(|v| v == "1")
}

/// `every` under a sanitizer, where a launch takes a hundred times as long; else 1. Tests of many rounds or tokens
/// take steps of this size through them.
pub fn stride(every: usize) -> usize {
    if sanitized() { every } else { 1 }
}

fn missing(reason: &str) -> Result<Completion, Failed> {
    if std::env::var("LOCKSTEP_REQUIRE_GPU").is_ok_and(|v| v == "1") {
        return Err(format!("LOCKSTEP_REQUIRE_GPU=1, but {reason}").into());
    }
    Ok(Completion::ignored_with(reason))
}

/// Adds one generic test function `fn name<B: …>(queue: &B::Queue)` for the CPU and for CUDA.
///
/// The crate under test needs a feature `cuda`.
#[macro_export]
macro_rules! both {
    ($suite:expr, $($function:ident)::+) => {{
        let path = stringify!($($function)::+).replace(' ', "");
        $suite.cpu(format!("cpu::{path}"), || $($function)::+::<kernels_core::Cpu>(&()));
        $crate::gpu!($suite, format!("cuda::{path}"), |device| $($function)::+::<kernels_core::Cuda>(&device.queue));
    }};
}

/// Adds one GPU test; without the feature `cuda` its body is not compiled and the test shows as ignored.
#[macro_export]
macro_rules! gpu {
    ($suite:expr, $name:expr, |$device:ident| $body:expr) => {{
        #[cfg(feature = "cuda")]
        $suite.gpu($name, |$device| $body);
        #[cfg(not(feature = "cuda"))]
        $suite.gpu_not_built($name);
    }};
}

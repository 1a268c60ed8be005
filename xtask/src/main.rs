//! The project's tasks: `cargo xtask <task>`.

use clap::{Parser, Subcommand};
use std::process::ExitCode;

mod bench_engine;
mod bench_kernels;
mod bindings;
mod chart;
mod ci;
mod pack;
mod sass;
mod tidy;
mod toolkit;
mod workspace;

#[derive(Parser)]
#[command(name = "xtask", about = "The project's tasks")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Installs nvcc, cuobjdump and libclang into a per-user cache, where build scripts find them.
    Toolkit(toolkit::Options),
    /// Writes each crate's `src/sys.rs` from its C header.
    Bindings(bindings::Options),
    /// Runs everything that a change must pass: .ci/run.
    Ci,
    /// Stages test and bench executables for a GPU host without Rust.
    Pack(pack::Options),
    /// Shows what each kernel's machine code uses; `--check` holds it against xtask/sass.toml.
    Sass(sass::Options),
    /// Checks the workspace's rules: dependencies, includes, file lengths, flags.
    Tidy,
    /// Runs every crate's benches and prints one table.
    BenchKernels(bench_kernels::Options),
    /// Draws what `lockstep bench --json` has measured: how many times as fast as plain decoding, over the batch.
    BenchEngine(bench_engine::Options),
}

fn main() -> ExitCode {
    let task = Arguments::parse().task;
    let done = match task {
        Task::BenchKernels(options) => bench_kernels::run(options),
        Task::BenchEngine(options) => bench_engine::run(options),
        Task::Bindings(options) => bindings::run(options),
        Task::Ci => ci::run(),
        Task::Pack(options) => pack::run(options),
        Task::Sass(options) => sass::run(options),
        Task::Tidy => tidy::run(),
        Task::Toolkit(options) => toolkit::run(options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

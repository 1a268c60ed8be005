//! The project's tasks: `cargo xtask <task>`.

use clap::{Parser, Subcommand};
use std::process::ExitCode;

mod bindings;
mod pack;
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
    /// Stages test and bench executables for a GPU host without Rust.
    Pack(pack::Options),
}

fn main() -> ExitCode {
    let task = Arguments::parse().task;
    let done = match task {
        Task::Bindings(options) => bindings::run(options),
        Task::Pack(options) => pack::run(options),
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

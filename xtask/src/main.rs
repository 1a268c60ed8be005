//! The project's tasks: `cargo xtask <task>`.

use clap::{Parser, Subcommand};

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
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Toolkit(options) => toolkit::run(options),
    }
}

//! `lockstep`: decode a Qwen3.5 checkpoint with its MTP head.

mod cli;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(name = "lockstep", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Stream text from prompts
    Generate(cli::generate::Generate),
    /// Show a checkpoint's configuration, tensors and memory plan, without loading it
    Inspect(cli::inspect::Inspect),
    /// Prove that speculation changes no bit: compare every way to decode with plain decoding
    Parity(cli::parity::Parity),
    /// Measure rounds: plain and with drafts, one after the other in one run
    Bench(cli::bench::Bench),
    /// Try the facts about a GPU that equal bits stand on, and tell a weak draft head from one that is wired wrongly
    Doctor(cli::doctor::Doctor),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Generate(command) => command.run().map(|()| ExitCode::SUCCESS),
        Command::Inspect(command) => command.run().map(|()| ExitCode::SUCCESS),
        Command::Parity(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Doctor(command) => command.run(),
    };
    match result {
        Ok(code) => code,
        Err(error) if cli::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

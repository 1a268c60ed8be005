//! `lockstep parity`: the proof, on this machine.

use super::{
    Dtype,
    device::{DeviceName, Job},
};
use anyhow::{Result, bail};
use clap::Args;
use engine::{
    model::{self, Context, EngineBackend},
    parity::{self, Plan, Proposer, Report},
    text::Tokenizer,
    weights::Checkpoint,
};
use kernels_core::Activation;
use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
};

/// Arguments of `parity`.
#[derive(Debug, Args)]
pub(crate) struct Parity {
    /// Checkpoint directory [default: the embedded tiny-qwen35-mtp]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// What computes
    #[arg(long, value_enum, default_value_t = DeviceName::Cpu)]
    device: DeviceName,
    /// Activation type; weights are rounded or widened to it
    #[arg(long, value_enum, default_value_t = Dtype::Bf16)]
    dtype: Dtype,
    /// Every value of every option at least once: a minute or less
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Every combination of all options instead of every pair: many hours
    #[arg(long)]
    full: bool,
    /// Word problems to decode and score [default: all 200 with the embedded checkpoint, none with another]
    #[arg(long, value_name = "COUNT")]
    words: Option<usize>,
    /// The table as JSON
    #[arg(long)]
    json: bool,
}

impl Parity {
    /// Success, or failure where anything differs or a row proves nothing.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let report = self.device.run(self.dtype, self)?;
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &report)?;
            writeln!(out)?;
        } else {
            write!(out, "{report}")?;
        }
        Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Job for &Parity {
    type Output = Report;

    fn run<B: EngineBackend, A: Activation>(self, context: Context<B>) -> Result<Report> {
        let mut plan = match (self.quick, self.full) {
            (true, _) => Plan::quick(),
            (_, true) => Plan::full(),
            _ => Plan::pairs(),
        };
        let dir = match &self.model {
            Some(dir) => {
                // The problems are of the kind that the embedded checkpoint was trained on.
                plan.words = 0;
                dir.clone()
            }
            None => super::embedded()?,
        };
        plan.words = self.words.unwrap_or(plan.words);
        if plan.words > parity::WORDS {
            bail!("--words is {}, but there are {} word problems; lower it", plan.words, parity::WORDS);
        }
        let checkpoint = Checkpoint::open(&dir)?;
        eprintln!("{}", checkpoint.verdict());
        if checkpoint.mtp().is_none() {
            eprintln!("without an MTP head, rows that draft with it are left out");
            plan.rows.retain(|row| row.proposer != Proposer::Mtp);
            plan.words = 0;
        }
        let tokenizer = Tokenizer::open(&dir)?;
        tokenizer.check(checkpoint.config())?;
        let model = model::build::<B, A>(&context.queue, &checkpoint, tokenizer.valid_vocab())?;
        drop(checkpoint);
        let progress = Progress::new();
        Ok(parity::run(context, model, &tokenizer, &plan, |what, done, of| progress.show(what, done, of))?)
    }
}

/// One line that says what is being done, where somebody is looking.
struct Progress {
    bar: indicatif::ProgressBar,
}

impl Progress {
    fn new() -> Self {
        let bar = if std::io::stderr().is_terminal() {
            indicatif::ProgressBar::new(0)
        } else {
            indicatif::ProgressBar::hidden()
        };
        let style = indicatif::ProgressStyle::with_template("{pos}/{len} rows, {elapsed}: {msg}");
        Progress { bar: bar.with_style(style.expect("the template is a constant")) }
    }

    fn show(&self, what: &str, done: usize, of: usize) {
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(what.split_whitespace().collect::<Vec<_>>().join(" "));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

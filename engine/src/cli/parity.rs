//! `lockstep parity`: the proof, on this machine.

use super::{
    Dtype,
    device::{self, DeviceName, Job},
    plan_memory,
    source::{Source, SourceArgs},
    vocab::VocabArgs,
};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use engine::{
    machine::SelfTest,
    model::{Context, EngineBackend},
    parity::{self, Across, Plan, Proposer, Report},
    text::Tokenizer,
    weights::{MtpFrom, required_tensors},
};
use kernels_core::{Activation, Cpu, DeviceInfo};
use serde::Serialize;
use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
};

/// Arguments of `parity`.
#[derive(Debug, Args)]
pub(crate) struct Parity {
    #[command(flatten)]
    source: SourceArgs,
    /// Seed of random weights
    #[arg(long, default_value_t = 0, requires = "random_weights")]
    seed: u64,
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
    #[arg(long, value_name = "COUNT", conflicts_with = "random_weights")]
    words: Option<usize>,
    #[command(flatten)]
    vocab: VocabArgs,
    /// The table as JSON
    #[arg(long)]
    json: bool,
}

impl Parity {
    /// Success, or failure where anything differs, a row proves nothing, or the chip breaks a fact that bits stand on.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let report = self.device.run(self.dtype, self)?;
        let promised = device::promised(report.self_test.as_ref());
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &report)?;
            writeln!(out)?;
        } else {
            write!(out, "{}", report.rows)?;
            if let Some(across) = &report.across {
                write!(out, "{across}")?;
            }
            if !promised {
                writeln!(out, "{}", device::NOT_PROMISED)?;
            }
        }
        let passed = promised && report.rows.passed() && report.across.is_none_or(|across| across.passed());
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// What is printed.
#[derive(Serialize)]
pub(crate) struct Output {
    /// What the chip said; nothing where there is none.
    self_test: Option<SelfTest>,
    #[serde(flatten)]
    rows: Report,
    /// The CPU and the device beside each other.
    across: Option<Across>,
}

/// Weights up to which the CPU decodes in a time that somebody will wait.
const SMALL: usize = 256 << 20;

impl Job for &Parity {
    type Output = Output;

    fn run<B: EngineBackend, A: Activation>(self, context: Context<B>) -> Result<Output> {
        let mut plan = match (self.quick, self.full) {
            (true, _) => Plan::quick(),
            (_, true) => Plan::full(),
            _ if self.source.random_weights.is_some() => Plan::geometry(),
            _ => Plan::pairs(),
        };
        if !self.source.is_embedded() {
            // The problems are of the kind that the embedded checkpoint was trained on.
            plan.words = 0;
        }
        plan.words = self.words.unwrap_or(plan.words);
        if plan.words > parity::WORDS {
            bail!("--words is {}, but there are {} word problems; lower it", plan.words, parity::WORDS);
        }
        if self.vocab.learns() {
            bail!(
                "--draft-vocab learns, but a row that drafts with the head counts by what the head said once and for \
                 all; give N or FILE alone"
            );
        }
        let source = self.source.open(MtpFrom::Checkpoint, self.seed)?;
        eprintln!("{}", source.verdict());
        if let Some(option) = self.vocab.given() {
            source.require_head().with_context(|| format!("{option} changes the draft head"))?;
        }
        if !source.has_head() {
            eprintln!("without an MTP head, rows that draft with it are left out");
            plan.rows.retain(|row| row.proposer != Proposer::Mtp);
            plan.words = 0;
        }
        let tokenizer = match &source {
            Source::Checkpoint { tokenizer, .. } => tokenizer.clone(),
            // Of its prompts only the ids matter.
            Source::Random { config, .. } => {
                let tokenizer = Tokenizer::open(super::embedded()?)?;
                let (need, have) = (tokenizer.valid_vocab(), config.vocab);
                if need > have {
                    bail!("its vocab_size is {have}; parity's prompts have token ids up to {}", need - 1);
                }
                tokenizer
            }
        };
        let say = context.device.arch.is_some();
        let by = self.vocab.rows(&source)?;
        plan_memory(&context, source.config(), &parity::limits(&plan, &tokenizer)?, self.dtype, by, say)?;
        let self_test = device::self_test(&context)?;
        let mut model = source.build::<B, A>(&context)?;
        self.vocab.apply(&context, &mut model, &source)?;
        let progress = Progress::new();
        let again = Context::new(context.queue.clone(), context.device.clone());
        let rows =
            parity::run(context, model, &tokenizer, &plan, |what, done, of| progress.show(what, done, of))?;
        let weights: usize = required_tensors(source.config()).map(|t| t.elements()).sum::<usize>() * 2;
        if again.device.arch.is_none() || weights > SMALL {
            return Ok(Output { self_test, rows, across: None });
        }
        progress.show("the CPU beside the device", plan.rows.len(), plan.rows.len());
        let cpu = Context::new((), DeviceInfo::cpu());
        let (here, there) = (source.build::<B, A>(&again)?, source.build::<Cpu, A>(&cpu)?);
        let texts = parity::prompts();
        let prompts: Vec<Vec<u32>> =
            texts.iter().take(plan.prompts).map(|text| tokenizer.encode(text)).collect::<Result<_, _>>()?;
        let across = parity::across((again, here), (cpu, there), &prompts, plan.tokens)?;
        Ok(Output { self_test, rows, across: Some(across) })
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

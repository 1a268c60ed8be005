//! `lockstep bench`: how fast rounds are, on this machine.

use super::{
    Dtype, PaceName,
    device::{self, DeviceName, Job},
    plan_memory,
    source::SourceArgs,
    vocab::VocabArgs,
};
use anyhow::{Result, bail};
use clap::Args;
use engine::{
    Pace,
    bench::{self, Plan, Report},
    draft::DraftLength,
    machine::SelfTest,
    model::{Context, EngineBackend},
    weights::MtpFrom,
};
use kernels_core::Activation;
use serde::Serialize;
use std::{io::Write, process::ExitCode, time::Instant};

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    source: SourceArgs,
    /// Activation type; weights are rounded or widened to it
    #[arg(long, value_enum, default_value_t = Dtype::Bf16)]
    dtype: Dtype,
    /// What computes
    #[arg(long, value_enum, default_value_t = DeviceName::Cpu)]
    device: DeviceName,
    /// Sequences at once
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_name = "COUNTS")]
    batch: Vec<usize>,
    /// Tokens of each sequence before the first measured round
    #[arg(long, default_value_t = 1024, value_name = "TOKENS")]
    filled: usize,
    /// Drafts of a round, numbers or `auto`; plain decoding is measured in any case
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,auto", value_name = "LIST", value_parser = super::draft_length)]
    draft: Vec<DraftLength>,
    #[command(flatten)]
    vocab: VocabArgs,
    /// Only plain decoding
    #[arg(long, conflicts_with = "draft")]
    plain: bool,
    /// Measured rounds of each kind
    #[arg(long, default_value_t = 24)]
    rounds: usize,
    /// Make drafts right as often as gives this many tokens a round at two drafts; the head runs all the same
    #[arg(long, value_name = "TOKENS")]
    simulate_accept: Option<f64>,
    /// How the host keeps up with the device [default: recorded on a GPU, wait on the CPU]
    #[arg(long, value_enum)]
    pace: Option<PaceName>,
    /// Prompt tokens of a pass
    #[arg(long, default_value_t = 4096, value_name = "TOKENS")]
    prefill: usize,
    /// Tokens that may be pending in the GDN journal before the state is written
    #[arg(long, default_value_t = 3, value_name = "TOKENS")]
    flush_after: usize,
    /// Of prompts, draws and random weights
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also where a round goes: the time of each kind of operation, plain and with each fixed number of drafts
    #[arg(long)]
    timeline: bool,
    /// The table as JSON
    #[arg(long)]
    json: bool,
}

impl Bench {
    /// Success, or failure where a stream differed from plain decoding or none can be promised not to.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let output = self.device.run(self.dtype, self)?;
        let promised = device::promised(output.self_test.as_ref());
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &output)?;
            writeln!(out)?;
        } else {
            write!(out, "{}", output.report)?;
            if !promised {
                writeln!(out, "{}", device::NOT_PROMISED)?;
            }
        }
        Ok(if output.report.identical() && promised { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// What is printed.
#[derive(Serialize)]
pub(crate) struct Output {
    /// What the chip said; nothing where there is none.
    self_test: Option<SelfTest>,
    #[serde(flatten)]
    report: Report,
}

impl Job for &Bench {
    type Output = Output;

    fn run<B: EngineBackend, A: Activation>(self, context: Context<B>) -> Result<Output> {
        let plan = Plan {
            batches: self.batch.clone(),
            context: self.filled,
            drafts: if self.plain { Vec::new() } else { self.draft.clone() },
            rounds: self.rounds,
            accept: self.simulate_accept,
            pace: self.pace.map_or_else(Pace::of::<B>, Pace::from),
            prefill_rows: self.prefill,
            flush_after: self.flush_after,
            seed: self.seed,
            timeline: self.timeline,
        };
        let mtp = if plan.drafts.is_empty() { MtpFrom::Nowhere } else { MtpFrom::Checkpoint };
        let source = self.source.open(mtp, self.seed)?;
        if let Some(option) = self.vocab.given().filter(|_| plan.drafts.is_empty()) {
            bail!("{option} changes the draft head, but with --plain nothing is drafted; drop one of them");
        }
        eprintln!("{}", source.verdict());
        let by = self.vocab.rows(&source)?;
        for limits in plan.limits() {
            plan_memory(&context, source.config(), &limits, self.dtype, by, false)?;
        }
        let self_test = device::self_test(&context)?;
        let started = Instant::now();
        let mut model = source.build::<B, A>(&context)?;
        self.vocab.apply(&context, &mut model, &source)?;
        B::synchronize(&context.queue)?;
        eprintln!("weights are there after {:.1} s", started.elapsed().as_secs_f64());
        drop(source);
        let report = bench::run(context, model, &plan, |what| eprintln!("{what}"))?;
        Ok(Output { self_test, report })
    }
}

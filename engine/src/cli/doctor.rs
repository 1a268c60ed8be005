//! `lockstep doctor`: does the chip keep the facts that bits stand on; is the draft head weak, or is its wiring wrong?

use super::{
    Dtype,
    device::{self, DeviceName, Job},
    source::with_progress,
};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use engine::{
    doctor::{self, Options, Rate, Report, Wiring},
    machine::SelfTest,
    model::{self, Context, EngineBackend},
    text::Tokenizer,
    weights::{self, Checkpoint, MtpFrom},
};
use kernels_core::Activation;
use serde::Serialize;
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Checkpoint directory [default: the embedded tiny-qwen35-mtp]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// What computes
    #[arg(long, value_enum, default_value_t = DeviceName::Cpu)]
    device: DeviceName,
    /// Activation type; weights are rounded or widened to it
    #[arg(long, value_enum, default_value_t = Dtype::Bf16)]
    dtype: Dtype,
    /// Take the MTP head from this safetensors file or directory instead of the checkpoint
    #[arg(long, value_name = "PATH")]
    mtp: Option<PathBuf>,
    /// A text whose pieces serve as prompts [default: stories, code, documentation and word problems]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Drafts per round, and depths of the head to look at, 1 to 15
    #[arg(long, default_value_t = 3, value_name = "K")]
    draft: usize,
    /// Tokens that the target writes after each prompt, at most
    #[arg(long, default_value_t = 48)]
    tokens: usize,
    /// Prompts at most
    #[arg(long, default_value_t = 24)]
    prompts: usize,
    /// The numbers and the verdict as JSON
    #[arg(long)]
    json: bool,
}

/// Tokens of a piece of --text.
const PIECE: usize = 48;

impl Doctor {
    /// Success, or failure where something is wired wrongly or the chip breaks a fact that bits stand on.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let output = self.device.run(self.dtype, self)?;
        let promised = device::promised(output.self_test.as_ref());
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&output)?)?;
        } else {
            print(&mut out, &output.report)?;
            if !promised {
                writeln!(out, "{}", device::NOT_PROMISED)?;
            }
        }
        Ok(if output.report.verdict.is_fault() || !promised { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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

/// What a self-test tries.
const TRIED: &str = "  tried: the matrix instructions against each other and against exact sums, with operands exchanged and columns \
     moved, bf16 and f16, cancelling, denormal and infinite numbers among them; columns of zeros; exp, sigmoid, silu, \
     softplus, rsqrt and the noise of sampling against the CPU's\n  \
     every kernel here is lockstep's own, so there is no library whose choice of algorithm would have to be pinned\n";

impl Job for &Doctor {
    type Output = Output;

    fn run<B: EngineBackend, A: Activation>(self, context: Context<B>) -> Result<Output> {
        if self.tokens == 0 {
            bail!("--tokens is 0; the target has to write something for the head to guess");
        }
        if self.prompts == 0 {
            bail!("--prompts is 0; give at least 1");
        }
        let self_test = B::self_test(&context.queue)?;
        if let Some(test) = self_test.as_ref().filter(|_| !self.json) {
            writeln!(std::io::stdout(), "{test}\n{TRIED}")?;
        }
        let dir = match &self.model {
            Some(dir) => dir.clone(),
            None => super::embedded()?,
        };
        let from = self.mtp.clone().map_or(MtpFrom::Checkpoint, MtpFrom::Path);
        let checkpoint = with_progress(Checkpoint::open_with(&dir, &weights::Options { mtp: from })?);
        checkpoint.require_mtp()?;
        eprintln!("{}", checkpoint.verdict());
        let tokenizer = Tokenizer::open(&dir)?;
        tokenizer.check(checkpoint.config())?;
        let mut prompts = match &self.text {
            Some(path) => pieces(&tokenizer, path, self.prompts)?,
            None => doctor::prompts().iter().map(|p| tokenizer.encode(p)).collect::<Result<_, _>>()?,
        };
        prompts.truncate(self.prompts);
        let model = model::build::<B, A>(&context.queue, &checkpoint, tokenizer.valid_vocab())?;
        drop(checkpoint);
        let options = Options { drafts: self.draft, tokens: self.tokens };
        let report = doctor::examine(context, model, &prompts, &options)?;
        Ok(Output { self_test, report })
    }
}

/// Up to `most` pieces of a file, spread over all of it.
fn pieces(tokenizer: &Tokenizer, path: &Path, most: usize) -> Result<Vec<Vec<u32>>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{}: cannot be read; --text wants a UTF-8 file", path.display()))?;
    let tokens = tokenizer.encode(&text)?;
    if tokens.is_empty() {
        bail!("{}: is empty; --text wants a file with some text in it", path.display());
    }
    let pieces: Vec<Vec<u32>> = tokens.chunks(PIECE).map(<[u32]>::to_vec).collect();
    let count = pieces.len().min(most);
    Ok((0..count).map(|i| pieces[i * pieces.len() / count].clone()).collect())
}

fn print(out: &mut impl Write, report: &Report) -> Result<()> {
    let m = &report.measures;
    let depths = |out: &mut dyn Write, what: &str, rates: &[Rate]| -> std::io::Result<()> {
        write!(out, "{what:44}")?;
        (0..m.depth).try_for_each(|d| {
            let rate = rates.get(d).map_or_else(|| "-".to_owned(), Rate::to_string);
            write!(out, " {rate:>8}")
        })
    };
    writeln!(
        out,
        "{} texts, {} places to draft from, {} rounds of {} drafts\n",
        m.texts, report.places, report.rounds, m.depth
    )?;
    write!(out, "{:44}", "depth")?;
    (1..=m.depth).try_for_each(|d| write!(out, " {d:>8}"))?;
    writeln!(out)?;
    for (what, rates) in [
        ("teacher-forced: the head agrees", m.agreement()),
        ("in the engine's rounds: the head by itself", &m.expected),
        ("                        the engine accepts", &m.accepted),
    ] {
        depths(out, what, rates)?;
        writeln!(out)?;
    }

    writeln!(out, "\n{:44}{:>w$}   the engine's", "controls: the head agrees,", "", w = 9 * m.depth)?;
    writeln!(out, "{:44}{:>w$}   drafts are its", "teacher-forced, when fed", "", w = 9 * m.depth)?;
    for w in &m.wirings {
        depths(out, &format!("  {}", w.wiring), &w.agreement)?;
        writeln!(out, "   {:>8}", Rate::sum(&w.same).to_string())?;
        if w.wiring == Wiring::Published {
            for (what, rates) in [
                ("  and compared with the token before", &m.target_earlier),
                ("  and compared with the token after", &m.target_later),
            ] {
                depths(out, what, rates)?;
                writeln!(out)?;
            }
        }
    }
    writeln!(out, "\nverdict: {}", report.line)?;
    Ok(())
}

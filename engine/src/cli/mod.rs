//! The commands, and the options they share.

pub(crate) mod bench;
mod device;
pub(crate) mod doctor;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod parity;
mod reply;
mod requests;
mod source;
mod vocab;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use engine::{
    Pace,
    cache::{Limits, MAX_DRAFTS},
    config::Config,
    draft::DraftLength,
    memory,
    model::{Context, DraftRows, EngineBackend},
};
use source::SourceArgs;
use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// Where the weights come from and how much the engine may hold.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Activation type; weights are rounded or widened to it
    #[arg(long, value_enum, default_value_t = Dtype::Bf16)]
    pub(crate) dtype: Dtype,
    /// Longest sequence in tokens, prompt included [default: the model's, at most 4096]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) context: Option<usize>,
    /// Sequences that can be live at once
    #[arg(long, default_value_t = 8)]
    pub(crate) slots: usize,
    /// Tokens of a K/V page
    #[arg(long, default_value_t = 64, value_name = "TOKENS")]
    pub(crate) page_rows: usize,
    /// K/V pages [default: enough for every slot's whole context]
    #[arg(long)]
    pub(crate) pages: Option<usize>,
    /// Prompt tokens computed between two decode rounds
    #[arg(long, default_value_t = 512, value_name = "TOKENS")]
    pub(crate) prefill: usize,
    /// Tokens that may be pending in the GDN journal before the state is written
    #[arg(long, default_value_t = 3, value_name = "TOKENS")]
    pub(crate) flush_after: usize,
}

/// An activation type of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dtype {
    /// bfloat16, as checkpoints are published
    Bf16,
    /// float32
    F32,
}

impl Dtype {
    fn bytes(self) -> usize {
        match self {
            Dtype::Bf16 => 2,
            Dtype::F32 => 4,
        }
    }
}

/// How the host keeps up with the device, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PaceName {
    /// Every pass is read before the next is enqueued
    Wait,
    /// A pass is enqueued before the one before is read
    Ahead,
    /// The same, with rounds recorded as graphs
    Recorded,
}

impl From<PaceName> for Pace {
    fn from(name: PaceName) -> Pace {
        match name {
            PaceName::Wait => Pace::Wait,
            PaceName::Ahead => Pace::Ahead,
            PaceName::Recorded => Pace::Recorded,
        }
    }
}

/// A number of drafts of the command line.
pub(crate) fn draft_length(text: &str) -> Result<DraftLength, String> {
    match text {
        "auto" => Ok(DraftLength::Auto),
        _ => text.parse().map(DraftLength::Fixed).map_err(|_| "give a number or `auto`".into()),
    }
}

/// Without --context no more than this is reserved; published models allow 262,144.
const DEFAULT_CONTEXT: usize = 4096;

impl ModelArgs {
    /// What the engine will hold for `config`.
    pub(crate) fn limits(&self, config: &Config, max_drafts: usize, draft_head: bool) -> Result<Limits> {
        let positions = self.context.unwrap_or(config.max_positions.min(DEFAULT_CONTEXT));
        if positions > config.max_positions {
            bail!(
                "--context is {positions}, but the model was made for at most {} positions; lower it",
                config.max_positions
            );
        }
        if max_drafts > MAX_DRAFTS {
            bail!("--draft is {max_drafts}; a round verifies at most {MAX_DRAFTS} drafts, lower it");
        }
        let page_rows = self.page_rows;
        if page_rows == 0 {
            bail!("--page-rows is 0; a page holds at least one token");
        }
        // One more page is the trash page that unused page-table entries name.
        let all = self.slots.saturating_mul(positions.div_ceil(page_rows)).saturating_add(1);
        let limits = Limits {
            slots: self.slots,
            positions,
            page_rows,
            pages: self.pages.unwrap_or(all),
            max_drafts,
            flush_after: self.flush_after,
            prefill_rows: self.prefill,
            draft_head,
        };
        limits.check()?;
        Ok(limits)
    }
}

/// Finds the checkpoint that comes with the repository.
fn embedded() -> Result<PathBuf> {
    const NAME: &str = "assets/tiny-qwen35-mtp";
    let mut roots = vec![PathBuf::from("."), Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
    // target/release/lockstep lies three levels below the root.
    if let Ok(exe) = std::env::current_exe() {
        roots.extend(exe.ancestors().skip(1).take(3).map(Path::to_path_buf));
    }
    roots
        .iter()
        .map(|root| root.join(NAME))
        .find(|dir| dir.join("config.json").is_file())
        .with_context(|| format!("the embedded checkpoint {NAME} was not found; name one with --model DIR"))
}

/// Whether an error is only that the reader of our output has gone.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|e| e.downcast_ref::<std::io::Error>())
        .any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Says what a model and its memories will take, if asked to, and refuses what the device has no room for.
fn plan_memory<B: EngineBackend>(
    context: &Context<B>,
    config: &Config,
    limits: &Limits,
    dtype: Dtype,
    drafts_by: Option<DraftRows>,
    say: bool,
) -> Result<()> {
    let plan = memory::Plan::of(config, limits, dtype.bytes(), drafts_by, &context.device)?;
    if say {
        write_plan(&mut std::io::stderr().lock(), limits, &plan)?;
    }
    Ok(plan.check(B::free_memory(&context.queue)?)?)
}

/// The plan as a table.
fn write_plan(out: &mut impl Write, limits: &Limits, plan: &memory::Plan) -> Result<()> {
    writeln!(
        out,
        "memory for {} sequences of up to {} tokens, {} drafts, {} pages of {}:",
        limits.slots, limits.positions, limits.max_drafts, limits.pages, limits.page_rows
    )?;
    for (name, bytes) in plan.parts().chain([("total", plan.total())]) {
        writeln!(out, "  {name:26} {:>12}", memory::human(bytes))?;
    }
    Ok(())
}

//! `lockstep inspect`: what a checkpoint is and what running it would take, before anything is loaded.

use super::{ModelArgs, human};
use anyhow::{Result, bail};
use clap::Args;
use engine::{
    cache::{MAX_DRAFTS, MemoryPlan},
    config::{Config, FeedForward, LayerKind, PRESETS},
    weights::{Checkpoint, required_tensors},
};
use std::io::Write;

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    model: ModelArgs,
    /// A published geometry instead of a checkpoint, such as qwen3.5-27b
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    preset: Option<String>,
    /// Drafts per round to plan memory for
    #[arg(long, default_value_t = 2, value_name = "K")]
    draft: usize,
    /// List every tensor with its shape
    #[arg(long)]
    tensors: bool,
}

impl Inspect {
    pub(crate) fn run(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let config = match &self.preset {
            Some(name) => match Config::preset(name) {
                Some(config) => config,
                None => bail!("--preset is {name}; known are {}", PRESETS.join(", ")),
            },
            None => {
                let checkpoint = Checkpoint::open(self.model.dir()?)?;
                writeln!(out, "{}", checkpoint.verdict())?;
                checkpoint.config().clone()
            }
        };
        self.describe(&mut out, &config)?;
        if self.tensors {
            for tensor in required_tensors(&config) {
                writeln!(out, "  {:?} {}", tensor.shape, tensor.name)?;
            }
        }
        Ok(())
    }

    fn describe(&self, out: &mut impl Write, c: &Config) -> Result<()> {
        let (full, linear) = (c.count(LayerKind::Full), c.count(LayerKind::Linear));
        writeln!(
            out,
            "hidden {}, {} layers: {linear} gated delta net, {full} full attention",
            c.hidden,
            c.layers.len()
        )?;
        writeln!(
            out,
            "attention: {} query and {} key/value heads of {}, rotary {}, theta {:e}",
            c.heads, c.kv_heads, c.head_dim, c.rotary_dim, c.rope_theta
        )?;
        let g = &c.gdn;
        writeln!(
            out,
            "gated delta net: {} key heads of {}, {} value heads of {}, conv width {}",
            g.k_heads, g.k_dim, g.v_heads, g.v_dim, g.conv_width
        )?;
        match c.ffn {
            FeedForward::Dense { intermediate } => writeln!(out, "feed-forward: {intermediate}")?,
            FeedForward::Moe { experts, top_k, intermediate, shared_intermediate } => writeln!(
                out,
                "feed-forward: {experts} experts of {intermediate}, {top_k} chosen, shared expert of {shared_intermediate}"
            )?,
        }
        writeln!(
            out,
            "vocabulary {}{}, up to {} positions, end of sequence {:?}, MTP layers {}",
            c.vocab,
            if c.tied { " (tied)" } else { "" },
            c.max_positions,
            c.eos,
            c.mtp_layers
        )?;
        let drafts = if c.mtp_layers == 0 { 0 } else { self.draft.min(MAX_DRAFTS) };
        let limits = self.model.limits(c, drafts, c.mtp_layers > 0 && drafts > 0)?;
        let element = self.model.dtype.bytes();
        let weights: usize = required_tensors(c).map(|t| t.elements()).sum::<usize>() * element;
        let plan = MemoryPlan::of(c, &limits, element);
        writeln!(
            out,
            "memory for {} sequences of up to {} tokens, {drafts} drafts, {} pages of {}:",
            limits.slots, limits.positions, limits.pages, limits.page_rows
        )?;
        for (name, bytes) in [
            ("weights", weights),
            ("keys and values", plan.kv),
            ("recurrent states", plan.state),
            ("journals", plan.journal),
            ("conv rings", plan.conv),
            ("hidden rows for the draft", plan.hidden),
            ("tables", plan.tables),
        ] {
            writeln!(out, "  {name:26} {:>12}", human(bytes))?;
        }
        writeln!(out, "  {:26} {:>12}", "total", human(weights.saturating_add(plan.total())))?;
        Ok(())
    }
}

//! `lockstep inspect`: what a checkpoint is and what running it would take, before anything is loaded.

use super::{ModelArgs, source::geometry, write_plan};
use anyhow::{Result, bail};
use clap::Args;
use engine::{
    cache::MAX_DRAFTS,
    config::{Config, FeedForward, LayerKind, PRESETS},
    memory,
    weights::{Checkpoint, required_tensors},
};
use kernels_core::DeviceInfo;
use std::io::Write;

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    model: ModelArgs,
    /// A published geometry instead of a checkpoint, such as qwen3.5-27b
    #[arg(long, value_name = "NAME", conflicts_with_all = ["model", "random_weights"])]
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
        let config = match (&self.preset, &self.model.source.random_weights) {
            (Some(name), _) => match Config::preset(name) {
                Some(config) => config,
                None => bail!("--preset is {name}; known are {}", PRESETS.join(", ")),
            },
            (None, Some(name)) => geometry(name)?,
            (None, None) => {
                let checkpoint = Checkpoint::open(self.model.source.dir()?)?;
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
        let plan = memory::Plan::of(c, &limits, self.model.dtype.bytes(), None, &DeviceInfo::cpu())?;
        write_plan(out, &limits, &plan)?;
        Ok(())
    }
}

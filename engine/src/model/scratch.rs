//! Memory that lives no longer than a forward pass.

use super::workspace::Workspaces;
use crate::{Result, config::Config, config::FeedForward};
use kernels_core::{Activation, Backend};

/// Buffers for the largest pass an engine makes; a smaller one uses their first rows.
#[derive(Debug)]
pub struct Scratch<B: Backend, A: Activation> {
    /// `[rows, hidden]`: the residual stream.
    pub residual: B::Memory<A>,
    /// `[rows, hidden]`: what the next block reads.
    pub normed: B::Memory<A>,
    /// `[rows, widest projection]`
    pub projected: B::Memory<A>,
    /// `[rows, channels]`
    pub convolved: B::Memory<A>,
    /// `[rows, heads, head_dim]`
    pub queries: B::Memory<A>,
    /// `[rows, widest mixer output]`
    pub mixed: B::Memory<A>,
    /// `[rows, v_heads, v_dim]`
    pub gated: B::Memory<A>,
    /// `[rows, intermediate]`
    pub inner: B::Memory<A>,
    /// `[rows, hidden]`: the target's output after its final norm.
    pub hidden: B::Memory<A>,
    /// `[rows, hidden]`: hidden rows handed to the draft head.
    pub carried: B::Memory<A>,
    /// `[rows, hidden]`: the draft head's output after its norm.
    pub drafted: B::Memory<A>,
    /// `[rows, 2 hidden]`
    pub concat: B::Memory<A>,
    /// `[logit rows, hidden]`: rows picked for the lm head.
    pub picked: B::Memory<A>,
    /// `[logit rows, vocab]`
    pub logits: B::Memory<f32>,
    /// `[logit rows]`: chosen ids.
    pub choice: B::Memory<i32>,
    /// What operations need while they run.
    pub workspaces: Workspaces<B>,
}

impl<B: Backend, A: Activation> Scratch<B, A> {
    /// Buffers for passes of up to `rows` rows, of which `logit_rows` need logits.
    pub fn new(on: &B::Queue, c: &Config, rows: usize, logit_rows: usize) -> Result<Self> {
        let g = &c.gdn;
        let attention_width = 2 * (c.heads + c.kv_heads) * c.head_dim;
        let gdn_width = g.conv_channels() + g.v_width() + 2 * g.v_heads;
        let mixed = (c.heads * c.head_dim).max(g.v_width());
        let inner = match c.ffn {
            FeedForward::Dense { intermediate } => intermediate,
            FeedForward::Moe { .. } => 0,
        };
        let a = |width: usize| B::zeros::<A>(on, rows * width);
        Ok(Self {
            residual: a(c.hidden)?,
            normed: a(c.hidden)?,
            projected: a(attention_width.max(gdn_width))?,
            convolved: a(g.conv_channels())?,
            queries: a(c.heads * c.head_dim)?,
            mixed: a(mixed)?,
            gated: a(g.v_width())?,
            inner: a(inner)?,
            hidden: a(c.hidden)?,
            carried: a(c.hidden)?,
            drafted: a(c.hidden)?,
            concat: a(2 * c.hidden)?,
            picked: B::zeros(on, logit_rows * c.hidden)?,
            logits: B::zeros(on, logit_rows * c.vocab)?,
            choice: B::zeros(on, logit_rows)?,
            workspaces: Workspaces::default(),
        })
    }
}

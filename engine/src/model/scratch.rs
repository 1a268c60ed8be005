//! Memory that lives no longer than a forward pass.

use super::workspace::Workspaces;
use crate::{
    Result,
    cache::{product, sum},
    config::{Config, FeedForward},
};
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
    /// For each layer with experts `[logit rows, chosen experts]`: which ones, in passes of up to so many rows.
    pub routes: Vec<B::Memory<i32>>,
    /// What operations need while they run.
    pub workspaces: Workspaces<B>,
}

impl<B: Backend, A: Activation> Scratch<B, A> {
    /// Buffers for passes of up to `rows` rows, of which `logit_rows` need logits.
    pub fn new(on: &B::Queue, c: &Config, rows: usize, logit_rows: usize) -> Result<Self> {
        let a = |width: usize| B::zeros::<A>(on, rows * width);
        let Widths { projected, convolved, queries, mixed, gated, inner } = Widths::of(c);
        Ok(Self {
            residual: a(c.hidden)?,
            normed: a(c.hidden)?,
            projected: a(projected)?,
            convolved: a(convolved)?,
            queries: a(queries)?,
            mixed: a(mixed)?,
            gated: a(gated)?,
            inner: a(inner)?,
            hidden: a(c.hidden)?,
            carried: a(c.hidden)?,
            drafted: a(c.hidden)?,
            concat: a(2 * c.hidden)?,
            picked: B::zeros(on, logit_rows * c.hidden)?,
            logits: B::zeros(on, logit_rows * c.vocab)?,
            choice: B::zeros(on, logit_rows)?,
            routes: match c.ffn {
                FeedForward::Dense { .. } => Vec::new(),
                FeedForward::Moe { top_k, .. } => {
                    c.layers.iter().map(|_| B::zeros(on, logit_rows * top_k)).collect::<Result<_, _>>()?
                }
            },
            workspaces: Workspaces::default(),
        })
    }
}

/// Widths of rows that are not the hidden one.
struct Widths {
    projected: usize,
    convolved: usize,
    queries: usize,
    mixed: usize,
    gated: usize,
    inner: usize,
}

impl Widths {
    fn of(c: &Config) -> Self {
        let g = &c.gdn;
        let queries = c.heads * c.head_dim;
        Widths {
            projected: (2 * queries + 2 * c.kv_heads * c.head_dim).max(g.projected_width()),
            convolved: g.conv_channels(),
            queries,
            mixed: queries.max(g.v_width()),
            gated: g.v_width(),
            inner: match c.ffn {
                FeedForward::Dense { intermediate } => intermediate,
                FeedForward::Moe { .. } => 0,
            },
        }
    }
}

/// Bytes of [`Scratch`], with activations of `element` bytes: everything but logits, and logits. Workspaces are not in
/// it.
pub(crate) fn bytes(c: &Config, rows: usize, logit_rows: usize, element: usize) -> [usize; 2] {
    let Widths { projected, convolved, queries, mixed, gated, inner } = Widths::of(c);
    let width = projected + convolved + queries + mixed + gated + inner + 7 * c.hidden;
    let picked = product(&[logit_rows, c.hidden, element]);
    let rest = sum(&[product(&[rows, width, element]), picked, product(&[logit_rows, 4])]);
    [rest, product(&[logit_rows, c.vocab, 4])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_core::{Cpu, bf16};

    #[test]
    fn bytes_are_those_allocated() {
        for (preset, vocab) in [("qwen3.5-0.8b", 300), ("qwen3.5-35b-a3b", 200)] {
            let config = Config { vocab, ..Config::preset(preset).expect("a preset") };
            let s = Scratch::<Cpu, bf16>::new(&(), &config, 7, 3).unwrap();
            let halves = [
                &s.residual,
                &s.normed,
                &s.projected,
                &s.convolved,
                &s.queries,
                &s.mixed,
                &s.gated,
                &s.inner,
                &s.hidden,
                &s.carried,
                &s.drafted,
                &s.concat,
                &s.picked,
            ];
            let rest = 2 * halves.iter().map(|x| x.len()).sum::<usize>() + 4 * s.choice.len();
            assert_eq!(bytes(&config, 7, 3, 2), [rest, 4 * s.logits.len()]);
        }
    }
}

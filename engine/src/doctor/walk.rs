//! The head walked along known texts, wired in any of the ways of [`Wiring`].

use super::{
    Wiring,
    head::{Head, Stretch},
};
use crate::{Result, model::EngineBackend};
use kernels_core::Activation;

/// A text with what the target thinks of it.
#[derive(Clone, Debug)]
pub(super) struct Text<A> {
    /// Prompt, then what the target continues it with.
    pub(super) tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Elements of a hidden row.
    pub(super) width: usize,
    /// `[tokens - 1, width]`: the target's rows after its final norm.
    pub(super) hidden: Vec<A>,
    /// `[tokens - 1, width]`: the same before it.
    pub(super) residual: Vec<A>,
}

impl<A: Activation> Text<A> {
    fn row(&self, position: usize) -> &[A] {
        &self.hidden[position * self.width..][..self.width]
    }
}

/// A place to draft from: the token at `at` is the last known one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Anchor<A> {
    pub(super) at: usize,
    /// The target's hidden row of a draft that was rejected at `at`, if one was.
    pub(super) rejected: Option<Vec<A>>,
}

/// Every place of a text whose next token is known, from the end of its prompt on.
pub(super) fn everywhere<A>(text: &Text<A>) -> Vec<Anchor<A>> {
    (text.prompt..text.tokens.len().saturating_sub(1)).map(|at| Anchor { at, rejected: None }).collect()
}

/// What the head drafts at each anchor of each text, `depth` tokens or up to the text's end.
///
/// Teacher-forced: whatever it says, its next row gets the text's own token. So a draft is comparable with
/// an engine's where all drafts before it were right.
pub(super) fn walk<B: EngineBackend, A: Activation>(
    head: &mut Head<'_, B, A>,
    texts: &[Text<A>],
    anchors: &[Vec<Anchor<A>>],
    wiring: Wiring,
    depth: usize,
) -> Result<Vec<Vec<Vec<u32>>>> {
    head.clear()?;
    let mut drafts: Vec<Vec<Vec<u32>>> = vec![Vec::new(); texts.len()];
    let most = anchors.iter().map(Vec::len).max().unwrap_or(0);
    for i in 0..most {
        let mut live: Vec<usize> = (0..texts.len()).filter(|&t| i < anchors[t].len()).collect();
        // Rows below this were made at earlier anchors.
        let made = |t: usize| if i == 0 { 1 } else { anchors[t][i - 1].at + 1 };
        let first = |&t: &usize| certain_rows(texts, t, &anchors[t][i], made(t), i == 0, wiring);
        let mut stretches: Vec<Stretch<A>> = live.iter().map(first).collect();
        for d in 1..=depth {
            let said = head.run(&stretches, wiring)?;
            let mut next = Vec::new();
            for ((&t, stretch), said) in live.iter().zip(&stretches).zip(said) {
                if d == 1 {
                    drafts[t].push(Vec::new());
                }
                drafts[t][i].push(said.token);
                let (text, at) = (&texts[t], anchors[t][i].at + d);
                // One more draft is of use while there is a token to compare it with.
                if at + 1 < text.tokens.len() {
                    let start = stretch.start + stretch.tokens.len();
                    let tokens = vec![text.tokens[at]];
                    next.push((t, Stretch { slot: t, start, tokens, hidden: said.hidden }));
                }
            }
            if next.is_empty() {
                break;
            }
            (live, stretches) = next.into_iter().unzip();
        }
    }
    head.check()?;
    Ok(drafts)
}

/// The rows made from certain tokens at an anchor, the last of which yields the first draft.
fn certain_rows<A: Activation>(
    texts: &[Text<A>],
    t: usize,
    anchor: &Anchor<A>,
    made: usize,
    first_anchor: bool,
    wiring: Wiring,
) -> Stretch<A> {
    let (text, newest) = (&texts[t], anchor.at);
    let from = match wiring {
        Wiring::NoHistory | Wiring::NewestOnly => newest,
        Wiring::ChainKept if !first_anchor => newest,
        Wiring::PromptUnseen => made.max(text.prompt),
        _ => made,
    };
    let mut stretch = Stretch { slot: t, start: from, tokens: Vec::new(), hidden: Vec::new() };
    if wiring == Wiring::NoHistory {
        // The first row there is: rotary positions are relative, so that hides all rows before it.
        stretch.start = 1;
    }
    for p in from..=newest {
        stretch.tokens.push(text.tokens[if wiring == Wiring::TokenUnshifted { p - 1 } else { p }]);
        stretch.hidden.extend_from_slice(match wiring {
            Wiring::PreNorm => &text.residual[(p - 1) * text.width..][..text.width],
            Wiring::HiddenEarly => text.row(p.saturating_sub(2)),
            Wiring::HiddenLate if p < newest => text.row(p),
            Wiring::HiddenLate => anchor.rejected.as_deref().unwrap_or(text.row(p - 1)),
            Wiring::Shuffled => stranger(texts, t, p - 1),
            _ => text.row(p - 1),
        });
    }
    stretch
}

/// A hidden row that has nothing to do with a position: the same one each time, of the next text, or where
/// there is only one of its other half.
fn stranger<A: Activation>(texts: &[Text<A>], t: usize, position: usize) -> &[A] {
    let other = &texts[(t + 1) % texts.len()];
    let rows = other.tokens.len() - 1;
    // A prime factor scatters neighbours.
    other.row((position * 7919 + rows / 2) % rows)
}

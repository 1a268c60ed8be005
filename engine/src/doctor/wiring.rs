//! Ways to wire a draft head: the published one, and the ones that engines get wrong.

use serde::Serialize;

/// How a draft head is fed. Every wrong way is a fault that was seen in an engine, or a control.
///
/// Row `p` of the head is made from the token at `p` and the target's hidden row of `p - 1`; the newest row's
/// output is the first draft, and each further draft comes from one more row, fed with the head's own output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wiring {
    /// As the checkpoint's makers wired it.
    Published,
    /// The hidden row is another text's, of another position.
    Shuffled,
    /// The hidden row is the residual stream, taken before the target's final norm.
    PreNorm,
    /// The hidden half comes first in the concatenation.
    Swapped,
    /// The newest row sees no row before it.
    NoHistory,
    /// The hidden row is that of `p - 2`.
    HiddenEarly,
    /// The token is that of `p - 1`: the token row was not shifted against the hidden row.
    TokenUnshifted,
    /// The prompt's rows were never made.
    PromptUnseen,
    /// The hidden row is that of `p`: for the newest row that of a rejected draft, where one was rejected.
    HiddenLate,
    /// Rows of accepted drafts stay as drafting made them, from the head's own output.
    ChainKept,
    /// Only the newest row is ever made: the prompt is unseen and the rows of accepted drafts stay.
    NewestOnly,
}

impl Wiring {
    /// All of them; the published one first.
    pub const ALL: [Wiring; 11] = [
        Wiring::Published,
        Wiring::Shuffled,
        Wiring::PreNorm,
        Wiring::Swapped,
        Wiring::NoHistory,
        Wiring::HiddenEarly,
        Wiring::TokenUnshifted,
        Wiring::PromptUnseen,
        Wiring::HiddenLate,
        Wiring::ChainKept,
        Wiring::NewestOnly,
    ];

    /// Whether its drafts depend on where rounds began and what they rejected, and not on the text alone.
    pub fn follows_rounds(self) -> bool {
        matches!(self, Wiring::HiddenLate | Wiring::ChainKept | Wiring::NewestOnly)
    }

    /// A few words for a table.
    pub fn name(self) -> &'static str {
        match self {
            Wiring::Published => "as published",
            Wiring::Shuffled => "hidden rows shuffled",
            Wiring::PreNorm => "hidden before the final norm",
            Wiring::Swapped => "embedding and hidden swapped",
            Wiring::NoHistory => "no K/V history",
            Wiring::HiddenEarly => "hidden one row too early",
            Wiring::TokenUnshifted => "token one row too early",
            Wiring::PromptUnseen => "prompt's K/V never made",
            Wiring::HiddenLate => "hidden one row too late",
            Wiring::ChainKept => "draft K/V not refreshed",
            Wiring::NewestOnly => "only the newest K/V row made",
        }
    }

    /// What is wrong in an engine that drafts like this, and where to look.
    pub fn meaning(self) -> &'static str {
        match self {
            Wiring::Published => "the head is fed as its makers fed it",
            Wiring::Shuffled => {
                "the head gets hidden rows of another sequence or position; look at how rows are \
                                 attributed to slots between the target's pass and the head's"
            }
            Wiring::PreNorm => {
                "the head gets the residual stream from before the target's final norm; it wants the \
                                row that the lm head reads"
            }
            Wiring::Swapped => {
                "the hidden half stands first in the head's concatenation; the embedding belongs there"
            }
            Wiring::NoHistory => {
                "the head's newest row sees no K/V before it; look at the head's page table, start \
                                  position and key range"
            }
            Wiring::HiddenEarly => "row p of the head gets the hidden row of p - 2; it wants that of p - 1",
            Wiring::TokenUnshifted => {
                "row p of the head embeds the token of p - 1; tokens stand one ahead of hidden rows"
            }
            Wiring::PromptUnseen => {
                "the head never ran over the prompt; it has to, right after the target's prefill"
            }
            Wiring::HiddenLate => {
                "row p of the head gets the hidden row of p, which after a rejection belongs to the \
                                   rejected draft; it wants that of p - 1, the last accepted row"
            }
            Wiring::ChainKept => {
                "the head's K/V of accepted drafts stays as drafting made it; it has to be made again \
                                  from the target's hidden rows"
            }
            Wiring::NewestOnly => {
                "only the newest row of the head's K/V is made from a hidden row of the target: the \
                                   prompt is unseen and accepted drafts are not refreshed"
            }
        }
    }
}

impl std::fmt::Display for Wiring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

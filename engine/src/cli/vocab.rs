//! `--draft-vocab` and `--draft-fp8`: a head that drafts alone are chosen by.

use super::source::Source;
use anyhow::{Context as _, Result};
use clap::Args;
use engine::{
    draft::DraftVocab,
    model::{Context, DraftRows, EngineBackend, Model},
};
use kernels_core::Activation;
use std::path::Path;

/// Which ids may be drafted, and by what.
#[derive(Clone, Debug, Args)]
pub(crate) struct VocabArgs {
    /// Choose drafts among some ids, by a head that has their rows only: the first N and all special ones, or those in
    /// FILE, as a JSON array or one a line; `learn:` in front lets them follow what is emitted. Never changes the text
    #[arg(long, value_name = "[learn:]N|FILE")]
    draft_vocab: Option<String>,
    /// Choose drafts by a head in fp8, which reads half as many bytes: of all ids, or of those that --draft-vocab names.
    /// Never changes the text
    #[arg(long)]
    draft_fp8: bool,
}

impl VocabArgs {
    /// The option that asks for a draft head of another kind, if one does.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let fp8 = self.draft_fp8.then_some("--draft-fp8");
        self.draft_vocab.as_ref().map(|_| "--draft-vocab").or(fp8)
    }

    pub(crate) fn learns(&self) -> bool {
        self.parts().is_some_and(|(learns, _)| learns)
    }

    fn parts(&self) -> Option<(bool, &str)> {
        let text = self.draft_vocab.as_deref()?;
        Some(text.strip_prefix("learn:").map_or((false, text), |list| (true, list)))
    }

    /// The ids that were asked for.
    fn vocab(&self, source: &Source) -> Result<Option<DraftVocab>> {
        let Some((learns, list)) = self.parts() else { return Ok(None) };
        let (always, valid) = (always(source), source.valid_vocab());
        let vocab = match list.parse() {
            Ok(count) => DraftVocab::first(count, &always, valid),
            Err(_) => DraftVocab::read(Path::new(list), valid),
        };
        let vocab = vocab.context("--draft-vocab")?;
        Ok(Some(if learns { vocab.learning(&always) } else { vocab }))
    }

    /// The head that was asked for, for a plan of memory.
    pub(crate) fn rows(&self, source: &Source) -> Result<Option<DraftRows>> {
        let listed = self.vocab(source)?.map(|vocab| vocab.ids().len());
        Ok(self.given().map(|_| DraftRows { listed, fp8: self.draft_fp8 }))
    }

    /// Gives `model` the draft head that was asked for.
    pub(crate) fn apply<B: EngineBackend, A: Activation>(
        &self,
        context: &Context<B>,
        model: &mut Model<B, A>,
        source: &Source,
    ) -> Result<()> {
        if let Some(vocab) = self.vocab(source)? {
            model.trim_drafts(context, vocab)?;
        }
        if self.draft_fp8 {
            model.quantize_drafts(context)?;
        }
        if self.given().is_some() {
            eprintln!("drafts are chosen {}", among(model));
        }
        Ok(())
    }
}

/// What drafts are chosen from and by, where it is not what tokens are.
pub(crate) fn among<B: EngineBackend, A: Activation>(model: &Model<B, A>) -> String {
    let valid = model.valid_vocab();
    let listed = model.draft_vocab().map_or(valid, |vocab| vocab.ids().len());
    let by = if model.drafts_in_fp8() { " by a head in fp8" } else { "" };
    format!("among {listed} of {valid} ids{by}")
}

/// Ids that no list of frequent ones would have: of turns, tools and ends.
fn always(source: &Source) -> Vec<u32> {
    let added = match source {
        Source::Checkpoint { tokenizer, .. } => tokenizer.added(),
        Source::Random { .. } => Vec::new(),
    };
    added.into_iter().chain(source.config().eos.iter().copied()).collect()
}

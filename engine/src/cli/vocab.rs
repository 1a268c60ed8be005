//! `--draft-vocab`: drafts out of a part of the vocabulary.

use super::source::Source;
use anyhow::{Context as _, Result};
use clap::Args;
use engine::{
    config::Config,
    draft::DraftVocab,
    model::{Context, EngineBackend, Model},
};
use kernels_core::Activation;
use std::path::Path;

/// Which ids may be drafted.
#[derive(Clone, Debug, Args)]
pub(crate) struct VocabArgs {
    /// Choose drafts among some ids, by a head that has their rows only: the first N and all special ones, or those in
    /// FILE, as a JSON array or one a line; `learn:` in front lets them follow what is emitted. Never changes the text
    #[arg(long, value_name = "[learn:]N|FILE")]
    draft_vocab: Option<String>,
}

impl VocabArgs {
    pub(crate) fn given(&self) -> bool {
        self.draft_vocab.is_some()
    }

    pub(crate) fn learns(&self) -> bool {
        self.parts().is_some_and(|(learns, _)| learns)
    }

    fn parts(&self) -> Option<(bool, &str)> {
        let text = self.draft_vocab.as_deref()?;
        Some(text.strip_prefix("learn:").map_or((false, text), |list| (true, list)))
    }

    /// Gives `model` the draft head that was asked for.
    pub(crate) fn trim<B: EngineBackend, A: Activation>(
        &self,
        context: &Context<B>,
        model: &mut Model<B, A>,
        source: &Source,
    ) -> Result<()> {
        let Some((learns, list)) = self.parts() else { return Ok(()) };
        let always = always(source, model.config());
        let valid = model.valid_vocab();
        let vocab = match list.parse() {
            Ok(count) => DraftVocab::first(count, &always, valid),
            Err(_) => DraftVocab::read(Path::new(list), valid),
        };
        let vocab = vocab.context("--draft-vocab")?;
        let vocab = if learns { vocab.learning(&always) } else { vocab };
        eprintln!("drafts are chosen among {} of {valid} ids", vocab.ids().len());
        Ok(model.trim_drafts(context, vocab)?)
    }
}

/// Ids that no list of frequent ones would have: of turns, tools and ends.
fn always(source: &Source, config: &Config) -> Vec<u32> {
    let added = match source {
        Source::Checkpoint { tokenizer, .. } => tokenizer.added(),
        Source::Random { .. } => Vec::new(),
    };
    added.into_iter().chain(config.eos.iter().copied()).collect()
}

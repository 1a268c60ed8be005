//! `lockstep generate`: text from prompts, as it is decoded.

use super::{
    ModelArgs,
    device::{DeviceName, Job},
    reply::Reply,
    requests::{Maker, SamplingArgs, TextRequest, check_stops},
};
use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use engine::{
    End, Engine, Finish, Options, Request, RequestId,
    draft::{DraftLength, Drafter, Mtp, Plain},
    model::{self, Context, EngineBackend},
    stats::{Stats, Times},
    text::{Message, Tokenizer},
    weights::{self, Checkpoint, MtpFrom},
};
use kernels_core::Activation;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    io::{IsTerminal, Read, Write},
    path::PathBuf,
    time::Instant,
};

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub(crate) struct Generate {
    #[command(flatten)]
    model: ModelArgs,
    /// What computes
    #[arg(long, value_enum, default_value_t = DeviceName::Cpu)]
    device: DeviceName,
    /// The prompt; without it and without --requests it is read from standard input
    #[arg(long, conflicts_with = "requests")]
    prompt: Option<String>,
    /// Put the prompt into the checkpoint's chat template, as the user's message
    #[arg(long, conflicts_with = "requests")]
    chat: bool,
    /// A file with one JSON request a line (`prompt` or `messages`, `max_tokens`, sampling, `draft`)
    #[arg(long, value_name = "JSONL")]
    requests: Option<PathBuf>,
    /// Tokens to generate at most
    #[arg(long, default_value_t = 128)]
    max_tokens: usize,
    /// Drafts per round, 0 to 15 [default: 2 where the checkpoint has an MTP head]
    #[arg(long, value_name = "K")]
    draft: Option<usize>,
    /// What proposes drafts
    #[arg(long, value_enum)]
    drafter: Option<DrafterName>,
    /// Take the MTP head from this directory or safetensors file instead of the checkpoint
    #[arg(long, value_name = "PATH")]
    mtp: Option<PathBuf>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Text that ends the reply and is not part of it; may be given several times
    #[arg(long)]
    stop: Vec<String>,
    /// Go on past the model's end-of-sequence tokens
    #[arg(long)]
    ignore_eos: bool,
    /// Statistics after the text, on standard error
    #[arg(long, value_enum, default_value_t = StatsFormat::Text)]
    stats: StatsFormat,
}

/// Drafters of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DrafterName {
    /// The checkpoint's MTP head
    Mtp,
    /// Plain decoding
    None,
}

/// How statistics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StatsFormat {
    /// For people
    Text,
    /// For programs
    Json,
    /// Not at all
    None,
}

impl Generate {
    pub(crate) fn run(&self) -> Result<()> {
        self.device.run(self.model.dtype, self)
    }

    fn requests(&self, checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Vec<TextRequest>> {
        check_stops(&self.stop)?;
        let request = Request {
            prompt: Vec::new(),
            max_tokens: self.max_tokens,
            sampling: self.sampling.sampling(&checkpoint.config().sampling),
            stop: Vec::new(),
            ignore_eos: self.ignore_eos,
            drafts: None,
        };
        let template = TextRequest { request, stops: self.stop.clone() };
        let maker = Maker { tokenizer, dir: checkpoint.path(), template };
        if let Some(path) = &self.requests {
            let text = std::fs::read_to_string(path).with_context(|| {
                format!(
                    "{}: cannot be read; --requests wants a file with one JSON object a line",
                    path.display()
                )
            })?;
            return maker.jsonl(&text, path);
        }
        let prompt = match &self.prompt {
            Some(prompt) => prompt.clone(),
            None => {
                if std::io::stdin().is_terminal() {
                    eprintln!("(reading the prompt from standard input; end it with Ctrl-D)");
                }
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).context("standard input is no UTF-8 text")?;
                text
            }
        };
        let made =
            if self.chat { maker.chat(&[Message::new("user", prompt)])? } else { maker.prompt(&prompt)? };
        Ok(vec![made])
    }

    /// One request: text as it comes.
    fn stream<B: EngineBackend, A: Activation>(
        &self,
        engine: &mut Engine<B, A>,
        tokenizer: &Tokenizer,
        requests: Vec<TextRequest>,
        loaded: f64,
    ) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let started = Instant::now();
        let mut failed = None;
        let total = serve(engine, tokenizer, requests, |_, text, end| {
            out.write_all(text.as_bytes())?;
            out.flush()?;
            failed = end.and_then(|(end, _)| end.error.clone()).or(failed.take());
            Ok(())
        })?;
        writeln!(out)?;
        self.report(&total, engine.times(), started.elapsed().as_secs_f64(), loaded)?;
        match failed {
            None => Ok(()),
            Some(error) => bail!("{error}"),
        }
    }

    /// Many requests: one line of JSON for each, when it is done, in the order of the file.
    fn batch<B: EngineBackend, A: Activation>(
        &self,
        engine: &mut Engine<B, A>,
        tokenizer: &Tokenizer,
        requests: Vec<TextRequest>,
        loaded: f64,
    ) -> Result<()> {
        let started = Instant::now();
        let mut texts = vec![String::new(); requests.len()];
        let mut done: Vec<Option<String>> = vec![None; requests.len()];
        let mut next = 0;
        let mut failures = 0;
        let mut out = std::io::stdout().lock();
        let total = serve(engine, tokenizer, requests, |index, text, end| {
            texts[index].push_str(text);
            let Some((end, stopped)) = end else { return Ok(()) };
            failures += usize::from(end.error.is_some());
            let line = ReplyLine {
                index,
                text: &texts[index],
                finish: finish_name(end.finish, stopped),
                error: end.error.as_deref(),
                stats: &end.stats,
            };
            done[index] = Some(serde_json::to_string(&line)? + "\n");
            while let Some(Some(line)) = done.get(next) {
                // In one piece: whoever kills us sees whole lines.
                out.write_all(line.as_bytes())?;
                next += 1;
            }
            Ok(())
        })?;
        self.report(&total, engine.times(), started.elapsed().as_secs_f64(), loaded)?;
        if failures > 0 {
            bail!("{failures} of {} requests failed; see `error` in their lines", texts.len());
        }
        Ok(())
    }

    fn report(&self, stats: &Stats, times: Times, seconds: f64, loaded: f64) -> Result<()> {
        let tokens_per_second = stats.generated as f64 / seconds;
        match self.stats {
            StatsFormat::None => {}
            StatsFormat::Json => {
                let report = StatsReport {
                    loaded,
                    seconds,
                    tokens_per_second,
                    accept_length: stats.accept_length(),
                    stats,
                    times,
                };
                eprintln!("{}", serde_json::to_string(&report)?);
            }
            StatsFormat::Text => {
                let percent = |x: f64| format!("{:.0} %", 100.0 * x);
                let acceptance: Vec<_> = stats.acceptance().into_iter().map(percent).collect();
                let drafts = if acceptance.is_empty() {
                    "no drafts".into()
                } else {
                    format!(
                        "accept length {:.2}, by position {}",
                        stats.accept_length(),
                        acceptance.join(" / ")
                    )
                };
                let share = |d: std::time::Duration| percent(d.as_secs_f64() / seconds);
                eprintln!(
                    "{} tokens in {seconds:.2} s, {tokens_per_second:.1} tokens/s; {} rounds, {drafts}; \
                     prompt {} tokens, time: prefill {}, target {}, draft {}; loaded in {loaded:.2} s",
                    stats.generated,
                    stats.rounds,
                    stats.prefilled,
                    share(times.prefill),
                    share(times.target),
                    share(times.draft),
                );
            }
        }
        Ok(())
    }
}

impl Job for &Generate {
    type Output = ();

    fn run<B: EngineBackend, A: Activation>(self, context: Context<B>) -> Result<()> {
        let dir = self.model.dir()?;
        let plain = self.draft == Some(0) || self.drafter == Some(DrafterName::None);
        if self.drafter == Some(DrafterName::None) && self.draft.is_some_and(|k| k > 0) {
            bail!(
                "--drafter none proposes nothing, but --draft asks for {}; drop one of them",
                self.draft.unwrap_or(0)
            );
        }
        let started = Instant::now();
        let from = match &self.mtp {
            _ if plain => MtpFrom::Nowhere,
            Some(path) => MtpFrom::Path(path.clone()),
            None => MtpFrom::Checkpoint,
        };
        let checkpoint = Checkpoint::open_with(&dir, &weights::Options { mtp: from })?;
        let asked = self.draft.is_some_and(|k| k > 0) || self.drafter == Some(DrafterName::Mtp);
        if asked && !plain {
            checkpoint.require_mtp()?;
        }
        let checkpoint = with_progress(checkpoint);
        eprintln!("{}", checkpoint.verdict());

        let tokenizer = Tokenizer::open(&dir)?;
        tokenizer.check(checkpoint.config())?;
        let requests = self.requests(&checkpoint, &tokenizer)?;
        let has_head = checkpoint.mtp().is_some();
        let drafts = self.draft.unwrap_or(2);
        let drafts = if has_head && !plain { drafts } else { 0 };
        let most = requests.iter().filter_map(|r| r.request.drafts).max().unwrap_or(0).max(drafts);
        if most > 0 && !has_head {
            checkpoint.require_mtp().context("a request asks for drafts")?;
        }
        let use_head = most > 0;
        let mut model_args = self.model.clone();
        // Slots that nobody will use would only cost memory.
        model_args.slots = model_args.slots.min(requests.len());
        let limits = model_args.limits(checkpoint.config(), most, use_head)?;
        let drafter: Box<dyn Drafter<B, A>> = if use_head { Box::new(Mtp) } else { Box::new(Plain) };

        let model = model::build::<B, A>(&context.queue, &checkpoint, tokenizer.valid_vocab())?;
        drop(checkpoint);
        let options = Options { limits, drafts: DraftLength::Fixed(drafts) };
        let mut engine = Engine::new(context, model, options, drafter)?;
        let loaded = started.elapsed().as_secs_f64();
        if self.requests.is_some() {
            self.batch(&mut engine, &tokenizer, requests, loaded)
        } else {
            self.stream(&mut engine, &tokenizer, requests, loaded)
        }
    }
}

#[derive(Serialize)]
struct ReplyLine<'a> {
    index: usize,
    text: &'a str,
    finish: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    stats: &'a Stats,
}

#[derive(Serialize)]
struct StatsReport<'a> {
    loaded: f64,
    seconds: f64,
    tokens_per_second: f64,
    accept_length: f64,
    #[serde(flatten)]
    stats: &'a Stats,
    times: Times,
}

/// `stopped`: a stop text came, so the request was ended by us.
fn finish_name(finish: Finish, stopped: bool) -> &'static str {
    match finish {
        _ if stopped => "stop",
        Finish::Eos => "eos",
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Aborted => "aborted",
        Finish::Failed => "failed",
    }
}

/// Runs all requests; `report` gets each one's index, new text, and at its end how it ended and whether by
/// a stop text. Returns the counts of all.
fn serve<B: EngineBackend, A: Activation>(
    engine: &mut Engine<B, A>,
    tokenizer: &Tokenizer,
    requests: Vec<TextRequest>,
    mut report: impl FnMut(usize, &str, Option<(&End, bool)>) -> Result<()>,
) -> Result<Stats> {
    let mut live: BTreeMap<RequestId, (usize, Reply)> = BTreeMap::new();
    for (index, made) in requests.into_iter().enumerate() {
        let id = engine.submit(made.request).with_context(|| format!("request {index}"))?;
        live.insert(id, (index, Reply::new(tokenizer.detokenizer(true), made.stops)));
    }
    while !engine.is_idle() {
        for event in engine.step()? {
            let (index, reply) = live.get_mut(&event.request).expect("events name submitted requests");
            let was_stopped = reply.stopped();
            let mut text = reply.push(&event.tokens);
            if event.end.is_some() {
                text.push_str(&reply.finish());
            } else if reply.stopped() && !was_stopped {
                engine.abort(event.request)?;
            }
            let end = event.end.as_ref().map(|end| (end, reply.stopped()));
            report(*index, &text, end)?;
        }
    }
    Ok(engine.stats().clone())
}

/// A bar while weights are read, where somebody watches and there is enough to watch.
fn with_progress(checkpoint: Checkpoint) -> Checkpoint {
    const WORTH_A_BAR: u64 = 256 << 20;
    if checkpoint.total_bytes() < WORTH_A_BAR {
        return checkpoint;
    }
    let style =
        indicatif::ProgressStyle::with_template("loading {bar:40} {bytes}/{total_bytes} {bytes_per_sec}")
            .expect("the template is ours");
    let bar = indicatif::ProgressBar::new(checkpoint.total_bytes()).with_style(style);
    checkpoint.with_progress(move |done, total| {
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    })
}

//! `lockstep generate`: text from prompts, as it is decoded.

use super::{
    ModelArgs,
    device::{DeviceName, Job},
    plan_memory,
    reply::Reply,
    requests::{Maker, SamplingArgs, TextRequest, check_stops},
    source::Words,
    vocab::{VocabArgs, among},
};
use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use engine::{
    End, Engine, Finish, Options, Pace, Request, RequestId,
    config::Config,
    draft::{DraftLength, Drafter, Mtp, Plain},
    model::{Context, EngineBackend},
    stats::{Rates, Stats, Times},
    text::Message,
    weights::MtpFrom,
};
use kernels_core::Activation;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fmt,
    io::{IsTerminal, Read, Write},
    path::PathBuf,
    time::{Duration, Instant},
};

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub(crate) struct Generate {
    #[command(flatten)]
    model: ModelArgs,
    /// What computes
    #[arg(long, value_enum, default_value_t = DeviceName::Cpu)]
    device: DeviceName,
    /// The prompt: text, or token ids for random weights; without it and without --requests it is read from standard input
    #[arg(long, conflicts_with = "requests")]
    prompt: Option<String>,
    /// Put the prompt into the checkpoint's chat template, as the user's message
    #[arg(long, conflicts_with_all = ["requests", "random_weights"])]
    chat: bool,
    /// A file with one JSON request a line (`prompt` or `messages`, `max_tokens`, sampling, `draft`)
    #[arg(long, value_name = "JSONL")]
    requests: Option<PathBuf>,
    /// Tokens to generate at most
    #[arg(long, default_value_t = 128)]
    max_tokens: usize,
    /// Drafts per round: 0 to 15, or `auto`, as many as pay up to 4 [default where the checkpoint has an MTP head: auto
    /// on a GPU, 2 on the CPU]
    #[arg(long, value_name = "K|auto", value_parser = super::draft_length)]
    draft: Option<DraftLength>,
    /// What proposes drafts
    #[arg(long, value_enum)]
    drafter: Option<DrafterName>,
    /// Take the MTP head from this directory or safetensors file instead of the checkpoint
    #[arg(long, value_name = "PATH", conflicts_with = "random_weights")]
    mtp: Option<PathBuf>,
    #[command(flatten)]
    vocab: VocabArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Text that ends the reply and is not part of it; may be given several times
    #[arg(long, conflicts_with = "random_weights")]
    stop: Vec<String>,
    /// Go on past the model's end-of-sequence tokens
    #[arg(long)]
    ignore_eos: bool,
    /// Statistics after the text (given as text, of each request of a file too; in its line they are anyway), and the memory
    /// plan before it, on standard error. Where the time went is known of all requests together, as they share passes
    /// [default: text, and the plan on a GPU]
    #[arg(long, value_enum)]
    stats: Option<StatsFormat>,
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

    fn requests(&self, config: &Config, words: &Words) -> Result<Vec<TextRequest>> {
        check_stops(&self.stop)?;
        let request = Request {
            prompt: Vec::new(),
            max_tokens: self.max_tokens,
            sampling: self.sampling.sampling(&config.sampling),
            stop: Vec::new(),
            ignore_eos: self.ignore_eos,
            drafts: None,
        };
        let template = TextRequest { request, stops: self.stop.clone() };
        let maker = Maker { words, template };
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
        words: &Words,
        requests: Vec<TextRequest>,
        loaded: f64,
    ) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let started = Instant::now();
        let mut failed = None;
        let total = serve(engine, words, requests, |_, text, end| {
            out.write_all(text.as_bytes())?;
            out.flush()?;
            failed = end.and_then(|done| done.end.error.clone()).or(failed.take());
            Ok(())
        })?;
        writeln!(out)?;
        self.report(engine, &total, started.elapsed().as_secs_f64(), loaded)?;
        match failed {
            None => Ok(()),
            Some(error) => bail!("{error}"),
        }
    }

    /// Many requests: one line of JSON for each, when it is done, in the order of the file.
    fn batch<B: EngineBackend, A: Activation>(
        &self,
        engine: &mut Engine<B, A>,
        words: &Words,
        requests: Vec<TextRequest>,
        loaded: f64,
    ) -> Result<()> {
        let started = Instant::now();
        let mut texts = vec![String::new(); requests.len()];
        let mut lines: Vec<Option<String>> = vec![None; requests.len()];
        let mut next = 0;
        let mut failures = 0;
        let mut out = std::io::stdout().lock();
        let total = serve(engine, words, requests, |index, text, end| {
            texts[index].push_str(text);
            let Some(done) = end else { return Ok(()) };
            let (end, stats) = (done.end, RequestStats::of(done));
            failures += usize::from(end.error.is_some());
            if self.stats == Some(StatsFormat::Text) {
                eprintln!("request {index}: {stats}");
            }
            let line = ReplyLine {
                index,
                text: &texts[index],
                finish: finish_name(end.finish, done.stopped),
                error: end.error.as_deref(),
                stats,
            };
            lines[index] = Some(serde_json::to_string(&line)? + "\n");
            while let Some(Some(line)) = lines.get(next) {
                // In one piece: whoever kills us sees whole lines.
                out.write_all(line.as_bytes())?;
                next += 1;
            }
            Ok(())
        })?;
        self.report(engine, &total, started.elapsed().as_secs_f64(), loaded)?;
        if failures > 0 {
            bail!("{failures} of {} requests failed; see `error` in their lines", texts.len());
        }
        Ok(())
    }

    fn report<B: EngineBackend, A: Activation>(
        &self,
        engine: &Engine<B, A>,
        stats: &Stats,
        seconds: f64,
        loaded: f64,
    ) -> Result<()> {
        let (times, model) = (engine.times(), engine.model());
        let draft_vocab = model.draft_vocab().map(|vocab| vocab.ids().len());
        let tokens_per_second = stats.generated as f64 / seconds;
        match self.stats.unwrap_or(StatsFormat::Text) {
            StatsFormat::None => {}
            StatsFormat::Json => {
                let counts = Rates::from(stats);
                let draft_fp8 = model.drafts_in_fp8();
                let report =
                    StatsReport { loaded, seconds, tokens_per_second, draft_vocab, draft_fp8, counts, times };
                eprintln!("{}", serde_json::to_string(&report)?);
            }
            StatsFormat::Text => {
                let among = self.vocab.given().map(|_| format!(", with drafts {}", among(model)));
                let among = among.filter(|_| !stats.drafted.is_empty()).unwrap_or_default();
                let share = |d: Duration| format!("{:.0} %", 100.0 * d.as_secs_f64() / seconds);
                let all = if self.requests.is_some() { " of all requests together" } else { "" };
                eprintln!(
                    "{} tokens in {seconds:.2} s, {tokens_per_second:.1} tokens/s; {stats}{among}; prompt {} tokens, \
                     time{all}: prefill {}, target {}, draft {}; loaded in {loaded:.2} s",
                    stats.generated,
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
        let (none, wanted) = (DraftLength::Fixed(0), self.draft.as_ref());
        let plain = wanted == Some(&none) || self.drafter == Some(DrafterName::None);
        let asked = wanted.is_some_and(|drafts| *drafts != none);
        if let Some(drafts) = wanted.filter(|_| asked && self.drafter == Some(DrafterName::None)) {
            bail!("--drafter none proposes nothing, but --draft asks for {drafts}; drop one of them");
        }
        let started = Instant::now();
        let from = match &self.mtp {
            _ if plain => MtpFrom::Nowhere,
            Some(path) => MtpFrom::Path(path.clone()),
            None => MtpFrom::Checkpoint,
        };
        let source = self.model.source.open(from, self.sampling.seed)?;
        if (asked || self.drafter == Some(DrafterName::Mtp)) && !plain {
            source.require_head()?;
        }
        eprintln!("{}", source.verdict());
        let (config, words) = (source.config(), source.words());
        let requests = self.requests(config, &words)?;
        let has_head = source.has_head();
        // Where a round of more rows costs as much more, no number pays, and speculation would not be seen.
        let usual = if B::DEFERRED { DraftLength::Auto } else { DraftLength::Fixed(2) };
        let drafts = if has_head && !plain { self.draft.clone().unwrap_or(usual) } else { none };
        let most = requests.iter().filter_map(|r| r.request.drafts).max().unwrap_or(0).max(drafts.most());
        if most > 0 && !has_head {
            source.require_head().context("a request asks for drafts")?;
        }
        let use_head = most > 0;
        if let Some(option) = self.vocab.given().filter(|_| !use_head) {
            bail!("{option} is given, but nothing is drafted; drop it, or ask for drafts with --draft K");
        }
        let mut model_args = self.model.clone();
        // Slots that nobody will use would only cost memory.
        model_args.slots = model_args.slots.min(requests.len());
        let limits = model_args.limits(config, most, use_head)?;
        let drafter: Box<dyn Drafter<B, A>> = if use_head { Box::new(Mtp) } else { Box::new(Plain) };

        let say = self.stats.map_or(context.device.arch.is_some(), |stats| stats != StatsFormat::None);
        plan_memory(&context, config, &limits, self.model.dtype, self.vocab.rows(&source)?, say)?;
        let mut model = source.build::<B, A>(&context)?;
        self.vocab.apply(&context, &mut model, &source)?;
        drop(source);
        let options = Options { limits, drafts, pace: Pace::of::<B>() };
        let mut engine = Engine::new(context, model, options, drafter)?;
        let loaded = started.elapsed().as_secs_f64();
        if self.requests.is_some() {
            self.batch(&mut engine, &words, requests, loaded)
        } else {
            self.stream(&mut engine, &words, requests, loaded)
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
    stats: RequestStats<'a>,
}

/// What is said of one request. How much of a pass's time was its own nobody can tell.
#[derive(Serialize)]
struct RequestStats<'a> {
    /// From the start to its first token, and to its end, waiting for a slot included.
    first_token: Option<f64>,
    seconds: f64,
    tokens_per_second: f64,
    #[serde(flatten)]
    counts: Rates<'a>,
}

impl<'a> RequestStats<'a> {
    fn of(done: Done<'a>) -> Self {
        let stats = &done.end.stats;
        let seconds = done.took.as_secs_f64();
        RequestStats {
            first_token: done.first.map(|first| first.as_secs_f64()),
            seconds,
            tokens_per_second: stats.generated as f64 / seconds,
            counts: stats.into(),
        }
    }
}

impl fmt::Display for RequestStats<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RequestStats { first_token, seconds, tokens_per_second, counts: Rates { stats, .. } } = self;
        write!(f, "{} tokens in {seconds:.2} s", stats.generated)?;
        if let Some(first) = first_token {
            write!(f, ", the first after {first:.2} s")?;
        }
        write!(f, ", {tokens_per_second:.1} tokens/s; {stats}; prompt {} tokens", stats.prefilled)
    }
}

#[derive(Serialize)]
struct StatsReport<'a> {
    loaded: f64,
    seconds: f64,
    tokens_per_second: f64,
    /// Ids that drafts were chosen from, where not from all.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_vocab: Option<usize>,
    /// Whether drafts were chosen by a head in fp8.
    draft_fp8: bool,
    #[serde(flatten)]
    counts: Rates<'a>,
    /// Of all requests together.
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

/// A request at its end.
#[derive(Clone, Copy)]
struct Done<'a> {
    end: &'a End,
    /// By a stop text.
    stopped: bool,
    /// From the start to its first token.
    first: Option<Duration>,
    /// From the start to now.
    took: Duration,
}

/// Runs all requests; `report` gets each one's index, new text, and at its end how it ended. Returns the counts of all.
fn serve<B: EngineBackend, A: Activation>(
    engine: &mut Engine<B, A>,
    words: &Words,
    requests: Vec<TextRequest>,
    mut report: impl FnMut(usize, &str, Option<Done<'_>>) -> Result<()>,
) -> Result<Stats> {
    let started = Instant::now();
    let mut live: BTreeMap<RequestId, (usize, Reply, Option<Duration>)> = BTreeMap::new();
    for (index, made) in requests.into_iter().enumerate() {
        let id = engine.submit(made.request).with_context(|| format!("request {index}"))?;
        live.insert(id, (index, Reply::new(words.speller(), made.stops), None));
    }
    while !engine.is_idle() {
        for event in engine.step()? {
            let (index, reply, first) = live.get_mut(&event.request).expect("events name submitted requests");
            let took = started.elapsed();
            if !event.tokens.is_empty() {
                first.get_or_insert(took);
            }
            let was_stopped = reply.stopped();
            let mut text = reply.push(&event.tokens);
            if event.end.is_some() {
                text.push_str(&reply.finish());
            } else if reply.stopped() && !was_stopped {
                engine.abort(event.request)?;
            }
            let done = |end| Done { end, stopped: reply.stopped(), first: *first, took };
            let end = event.end.as_ref().map(done);
            report(*index, &text, end)?;
        }
    }
    Ok(engine.stats().clone())
}

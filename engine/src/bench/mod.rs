//! How fast rounds are: the same sequences decoded plainly, and then with each number of drafts, in one run.
//!
//! Accept lengths are simulated where asked: an [`Oracle`] that knows what plain decoding said makes drafts that
//! are right as often as wished, after the real head has made its own. So a round costs what it costs, and
//! whether both runs said the same is seen by the way.

mod report;
mod timeline;

pub use report::{Floor, Point, Report};
pub use timeline::{Operations, Timeline};

use crate::{
    Engine, Error, Event, Options, Pace, Request, RequestId, Result,
    cache::{Limits, MAX_DRAFTS},
    draft::{DraftLength, Drafter, Mtp, Oracle, Plain, Right},
    model::{Context, EngineBackend, Model},
    stats::Stats,
};
use kernels_core::{Activation, philox};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use timeline::{Rounds, mixture_bytes};

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Sequences at once, one after the other.
    pub batches: Vec<usize>,
    /// Tokens of each sequence before the first measured round.
    pub context: usize,
    /// Drafts of a round, one after the other; plain decoding is measured in any case.
    pub drafts: Vec<DraftLength>,
    /// Measured rounds of each number of drafts.
    pub rounds: usize,
    /// The accept length to simulate at two drafts: every draft is then right with one chance, whatever their
    /// number. `None`: the head's own.
    pub accept: Option<f64>,
    /// How the host keeps up with the device.
    pub pace: Pace,
    /// Prompt tokens of a pass.
    pub prefill_rows: usize,
    /// See [`Limits::flush_after`].
    pub flush_after: usize,
    /// Of all prompts and draws.
    pub seed: u64,
    /// Whether to measure each operation too, in rounds of their own.
    pub timeline: bool,
}

/// Rounds after a change of k that are not measured: every part runs once, is recorded, and is replayed once.
const WARM: usize = 4;
/// Tokens of a K/V page.
const PAGE_ROWS: usize = 64;
/// Rounds that [`DraftLength::Auto`] has to find its way.
const LEARNING: usize = 30;
/// Rounds of a timeline: a few times as many as it takes until a journal is folded.
const TRACED: usize = 12;
/// Rounds before them, in which the host gets ahead of the device.
const AHEAD: usize = 2;

impl Plan {
    fn most(&self) -> usize {
        self.drafts.iter().map(DraftLength::most).max().unwrap_or(0)
    }

    fn warm(length: &DraftLength) -> usize {
        if *length == DraftLength::Auto { LEARNING } else { WARM }
    }

    /// Tokens that a sequence may generate, at most.
    fn tokens(&self) -> usize {
        let most = |length: &DraftLength| match length {
            // It picks from all that there is memory for.
            DraftLength::Auto => self.most(),
            _ => length.most(),
        };
        let traced = if self.timeline { AHEAD + TRACED } else { 0 };
        let drafted = |length| (Self::warm(length) + self.rounds + traced + 4) * (1 + most(length));
        let all: usize = self.drafts.iter().map(drafted).sum();
        // While the last prompts are computed, the first sequences decode already.
        all + 2 * (WARM + self.rounds + traced)
            + self.batches.iter().max().unwrap_or(&1) * self.context / self.prefill_rows
            + 8
    }

    /// What its engines hold, one after the other.
    pub fn limits(&self) -> Vec<Limits> {
        self.batches.iter().map(|batch| limits(self, *batch, self.most())).collect()
    }

    fn check(&self) -> Result<()> {
        for (name, value) in [
            ("batch", self.batches.iter().copied().min().unwrap_or(0)),
            ("rounds", self.rounds),
            ("context", self.context),
        ] {
            if value == 0 {
                return Err(Error::limit(name, 0, "give at least 1"));
            }
        }
        if self.most() > MAX_DRAFTS {
            return Err(Error::limit("drafts", self.most(), format!("give at most {MAX_DRAFTS}")));
        }
        match self.accept {
            Some(length) if !(1.0..=3.0).contains(&length) => {
                let remedy = "two drafts give 1 to 3 tokens a round";
                Err(Error::limit("accept length at two drafts", length, remedy))
            }
            _ => Ok(()),
        }
    }

    /// The chance of one draft to be right.
    fn rate(&self) -> Option<f32> {
        // 1 + r + r^2 = the accept length.
        self.accept.map(|length| (((4.0 * length - 3.0).max(0.0).sqrt() - 1.0) / 2.0) as f32)
    }

    /// Tokens of a round in the long run, with drafts as in these rounds: one counts if all before it are right, too.
    fn expected(&self, stats: &Stats) -> Option<f64> {
        let rate = f64::from(self.rate()?);
        let likely =
            stats.drafted.iter().zip(1..).map(|(rounds, position)| *rounds as f64 * rate.powi(position));
        Some(1.0 + likely.sum::<f64>() / stats.rounds as f64)
    }

    fn prompts(&self, batch: usize, vocab: usize) -> Vec<Request> {
        let id = |sequence: usize, at: usize| {
            let bits = philox::bits(self.seed, at as u32, sequence as u32, philox::Use::Draft);
            (bits as usize % vocab) as u32
        };
        let prompt = |sequence| (0..self.context).map(|at| id(sequence, at)).collect();
        let request =
            |sequence| Request { ignore_eos: true, ..Request::greedy(prompt(sequence), self.tokens()) };
        (0..batch).map(request).collect()
    }
}

/// Measures; `progress` hears what is being done, and what came out.
pub fn run<B: EngineBackend, A: Activation>(
    context: Context<B>,
    model: Model<B, A>,
    plan: &Plan,
    mut progress: impl FnMut(&str),
) -> Result<Report> {
    plan.check()?;
    if !model.has_mtp() && plan.most() > 0 {
        let remedy = "this model has no MTP head; measure plain decoding, with no drafts";
        return Err(Error::limit("drafts", plan.most(), remedy));
    }
    progress("the read ceiling");
    let ceiling = B::read_ceiling(&context.queue)?;
    let mut report = Report::new(model.config(), plan, ceiling, size_of::<A>());
    let mut idle = Some((context, model));
    for &batch in &plan.batches {
        let (context, model) = idle.take().expect("an engine that failed ends the whole run");
        let requests = plan.prompts(batch, model.valid_vocab());
        progress(&format!("batch {batch}, plain"));
        let options = |max_drafts| Options {
            limits: limits(plan, batch, max_drafts),
            drafts: DraftLength::Fixed(0),
            pace: plan.pace,
        };
        let mut engine = Engine::new(context, model, options(0), Box::new(Plain))?;
        let mut run = Run::start(&mut engine, &requests)?;
        report.prefilled(batch * plan.context, run.prefill);
        let plain = run.measure(&mut engine, plan, batch, &DraftLength::Fixed(0))?;
        progress(&plain.to_string());
        report.points.push(plain);
        if plan.timeline {
            report.timelines.push(run.trace(&mut engine, batch, 0)?);
        }
        if plan.drafts.is_empty() {
            idle = Some(engine.into_core().into_model());
            continue;
        }
        run.finish(&mut engine, plan.tokens())?;
        let truth: Vec<Vec<u32>> = run.tokens();

        let (context, model) = engine.into_core().into_model();
        let mut engine = Engine::new(context, model, options(plan.most()), drafter(plan, &requests, &truth))?;
        let mut run = Run::start(&mut engine, &requests)?;
        for length in &plan.drafts {
            progress(&format!("batch {batch}, {length} drafts"));
            let point = run.measure(&mut engine, plan, batch, length)?;
            progress(&point.to_string());
            report.points.push(point);
            if let (true, DraftLength::Fixed(drafts)) = (plan.timeline, length) {
                report.timelines.push(run.trace(&mut engine, batch, *drafts)?);
            }
        }
        report.compared(batch, &truth, &run.tokens());
        idle = Some(engine.into_core().into_model());
    }
    Ok(report)
}

fn limits(plan: &Plan, batch: usize, max_drafts: usize) -> Limits {
    let positions = plan.context + plan.tokens() + 1;
    Limits {
        slots: batch,
        positions,
        page_rows: PAGE_ROWS,
        pages: 1 + batch * positions.div_ceil(PAGE_ROWS),
        max_drafts,
        flush_after: plan.flush_after,
        prefill_rows: plan.prefill_rows.min(batch * plan.context),
        draft_head: max_drafts > 0,
    }
}

fn drafter<B: EngineBackend, A: Activation>(
    plan: &Plan,
    requests: &[Request],
    truth: &[Vec<u32>],
) -> Box<dyn Drafter<B, A>> {
    let Some(rate) = plan.rate() else { return Box::new(Mtp) };
    // Ids ascend from 0 in order of submission.
    let streams: BTreeMap<RequestId, Vec<u32>> = requests
        .iter()
        .zip(truth)
        .enumerate()
        .map(|(i, (request, tokens))| (RequestId(i as u64), [&request.prompt[..], tokens].concat()))
        .collect();
    Box::new(Oracle::new(Right::Rate(rate), plan.seed, streams).over(Mtp))
}

/// Sequences that decode together.
struct Run {
    streams: BTreeMap<RequestId, Vec<u32>>,
    /// The target's time for all prompts.
    prefill: Duration,
}

impl Run {
    /// Computes the prompts, without drafts.
    fn start<B: EngineBackend, A: Activation>(
        engine: &mut Engine<B, A>,
        requests: &[Request],
    ) -> Result<Self> {
        engine.set_drafts(DraftLength::Fixed(0))?;
        let mut run = Run { streams: BTreeMap::new(), prefill: Duration::ZERO };
        for request in requests {
            run.streams.insert(engine.submit(request.clone())?, Vec::new());
        }
        while run.streams.values().any(Vec::is_empty) {
            let events = engine.step()?;
            run.take(events)?;
        }
        let events = engine.settle()?;
        run.take(events)?;
        run.prefill = engine.times().prefill;
        Ok(run)
    }

    /// Adds up what came; a sequence that ends is one that was measured for too long, or failed.
    fn take(&mut self, events: Vec<Event>) -> Result<usize> {
        let mut count = 0;
        for event in events {
            count += event.tokens.len();
            self.streams.entry(event.request).or_default().extend(event.tokens);
            if let Some(error) = event.end.and_then(|end| end.error) {
                return Err(Error::request(
                    "measured sequence",
                    error,
                    "this is a defect of lockstep; please report it",
                ));
            }
        }
        Ok(count)
    }

    /// Rounds with so many drafts.
    fn measure<B: EngineBackend, A: Activation>(
        &mut self,
        engine: &mut Engine<B, A>,
        plan: &Plan,
        batch: usize,
        length: &DraftLength,
    ) -> Result<Point> {
        engine.set_drafts(length.clone())?;
        for _ in 0..Plan::warm(length) {
            let events = engine.step()?;
            self.take(events)?;
        }
        let events = engine.settle()?;
        self.take(events)?;
        let (before, counted, started) = (engine.times(), engine.stats_so_far(), Instant::now());
        let mut tokens = 0;
        for _ in 0..plan.rounds {
            let events = engine.step()?;
            tokens += self.take(events)?;
        }
        let events = engine.settle()?;
        tokens += self.take(events)?;
        let wall = started.elapsed();
        let (after, counted) = (engine.times(), engine.stats_so_far().since(&counted));
        Ok(Point {
            batch,
            drafts: length.clone(),
            rounds: plan.rounds,
            tokens,
            draft_length: counted.draft_length(),
            expected: plan.expected(&counted),
            wall,
            target: after.target - before.target,
            draft: after.draft - before.draft,
            experts: engine.distinct_experts()?,
        })
    }

    /// More rounds like those just measured, their operations enqueued one by one.
    fn trace<B: EngineBackend, A: Activation>(
        &mut self,
        engine: &mut Engine<B, A>,
        batch: usize,
        drafts: usize,
    ) -> Result<Timeline> {
        engine.trace().start();
        for round in 0..AHEAD + TRACED {
            if round == AHEAD {
                engine.trace().take();
            }
            let events = engine.step()?;
            self.take(events)?;
        }
        engine.trace().stop();
        let events = engine.settle()?;
        self.take(events)?;
        let config = engine.model().config();
        let experts = engine.distinct_experts()?;
        let mixture = experts.and_then(|distinct| mixture_bytes(config, size_of::<A>(), distinct));
        Timeline::of(&engine.trace().take(), Rounds { batch, drafts, rounds: TRACED, mixture })
    }

    /// Plain decoding up to a number of tokens for each.
    fn finish<B: EngineBackend, A: Activation>(
        &mut self,
        engine: &mut Engine<B, A>,
        tokens: usize,
    ) -> Result<()> {
        while !engine.is_idle() && self.streams.values().any(|stream| stream.len() < tokens) {
            let events = engine.step()?;
            self.take(events)?;
        }
        Ok(())
    }

    fn tokens(&self) -> Vec<Vec<u32>> {
        self.streams.values().cloned().collect()
    }
}

//! Requests in, tokens out: continuous batching around the speculative round.

use crate::{
    Error, Result,
    cache::{Limits, Pages, Slots},
    draft::{self, DraftLength, Drafter},
    model::{Context, EngineBackend, Model},
    request::{End, Event, Finish, Request, RequestId},
    round::{Core, Digest, DraftJob, Outcome},
    stats::{Stats, Times},
};
use kernels_core::Activation;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

/// How an engine is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What it may hold.
    pub limits: Limits,
    /// Drafts per round, for requests that do not say.
    pub drafts: DraftLength,
}

/// Decodes many requests at once on one model.
///
/// A request is *waiting*, or it is *live* in a slot. A live request first has its prompt computed in
/// prefill passes (after a pause its own output too), which yields a first token, and then takes part in
/// decode rounds, which compute the last known token and the drafts beyond it. Output does not depend on
/// what else is live, on drafts, or on how the prompt was cut.
#[derive(Debug)]
pub struct Engine<B: EngineBackend, A: Activation> {
    core: Core<B, A>,
    drafter: Box<dyn Drafter<B, A>>,
    drafts: DraftLength,
    pages: Pages,
    slots: Slots,
    waiting: VecDeque<Job>,
    /// In order of admission: the last one is the youngest.
    live: Vec<Live>,
    next_id: u64,
    pending: Vec<Event>,
    total: Stats,
    times: Times,
    digests: bool,
}

/// A request with what it has produced so far.
#[derive(Debug)]
struct Job {
    id: RequestId,
    request: Request,
    /// Prompt and output.
    tokens: Vec<u32>,
    stats: Stats,
}

#[derive(Debug)]
struct Live {
    job: Job,
    slot: usize,
    pages: Vec<u32>,
    /// Tokens computed and final.
    committed: usize,
    /// Rows of the draft head's K/V that are made.
    drafted: usize,
    /// Drafts that stand beyond the last token, at most.
    proposed: usize,
    /// It was paused with output: tokens that were already chosen are being computed again.
    resuming: bool,
}

impl Live {
    /// Rows to compute before decode rounds: the prompt, or after a pause all tokens but the last.
    fn prefill_rows(&self) -> usize {
        let target = self.job.request.prompt.len().max(self.job.tokens.len() - 1);
        target.saturating_sub(self.committed)
    }

    fn prefilling(&self) -> bool {
        self.prefill_rows() > 0
    }
}

impl<B: EngineBackend, A: Activation> Engine<B, A> {
    /// Allocates everything an engine will ever use.
    pub fn new(
        context: Context<B>,
        model: Model<B, A>,
        options: Options,
        drafter: Box<dyn Drafter<B, A>>,
    ) -> Result<Self> {
        draft::check(&*drafter, &model, &options.limits)?;
        options.drafts.check(options.limits.max_drafts)?;
        let limits = &options.limits;
        Ok(Engine {
            pages: Pages::new(limits.pages),
            slots: Slots::new(limits.slots),
            core: Core::new(context, model, options.limits)?,
            drafter,
            drafts: options.drafts,
            waiting: VecDeque::new(),
            live: Vec::new(),
            next_id: 0,
            pending: Vec::new(),
            total: Stats::default(),
            times: Times::default(),
            digests: false,
        })
    }

    /// The model.
    pub fn model(&self) -> &Model<B, A> {
        self.core.model()
    }

    /// The model with its memories, for tools that look at them after the last request.
    pub(crate) fn into_core(self) -> Core<B, A> {
        self.core
    }

    /// What it may hold.
    pub fn limits(&self) -> &Limits {
        self.core.limits()
    }

    /// Queues a request, or says why it can never be served.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        let limits = self.core.limits();
        let vocab = self.core.model().valid_vocab();
        request.check(vocab, limits.positions, limits.max_drafts)?;
        let length = length_limit(&request, limits);
        let (need, have) = (limits.pages_for(length), self.pages.total());
        if need > have {
            let what = format!(
                "{} prompt and {} new tokens long",
                request.prompt.len(),
                length - request.prompt.len()
            );
            let remedy = format!(
                "that takes {need} pages of {} tokens and the pool has {have}: shorten it, lower max_tokens or raise --pages",
                limits.page_rows
            );
            return Err(Error::request("request", what, remedy));
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let tokens = request.prompt.clone();
        self.waiting.push_back(Job { id, request, tokens, stats: Stats::default() });
        Ok(id)
    }

    /// Ends a request now; its last event comes with the next step. Unknown or finished ids are ignored.
    pub fn abort(&mut self, id: RequestId) -> Result<()> {
        if let Some(at) = self.waiting.iter().position(|job| job.id == id) {
            let job = self.waiting.remove(at).expect("found just now");
            self.finish(job, Finish::Aborted, Vec::new(), None, None);
        } else if let Some(at) = self.live.iter().position(|live| live.job.id == id) {
            let live = self.live.remove(at);
            let job = self.release(live)?;
            self.finish(job, Finish::Aborted, Vec::new(), None, None);
        }
        Ok(())
    }

    /// Whether there is nothing left to do or to report.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.live.is_empty() && self.pending.is_empty()
    }

    /// From now on, whether the last event of a request that ended by itself brings a digest of what its
    /// memories held.
    pub fn keep_digests(&mut self, keep: bool) {
        self.digests = keep;
    }

    /// Adds padding to every decode round (see [`Core::pad_rounds`]).
    pub fn pad_rounds(&mut self, sequences: usize) {
        self.core.pad_rounds(sequences);
    }

    /// A digest of what a live request's memories hold; `None` for a request that is not live.
    pub fn digest(&self, id: RequestId) -> Result<Option<Digest>> {
        let live = self.live.iter().find(|live| live.job.id == id);
        live.map(|live| self.core.digest(live.slot)).transpose()
    }

    /// Requests waiting and live.
    pub fn load(&self) -> (usize, usize) {
        (self.waiting.len(), self.live.len())
    }

    /// Free pages and free slots: equal to the totals when nothing is live.
    pub fn free(&self) -> (usize, usize) {
        (self.pages.available(), self.slots.available())
    }

    /// Counts of all finished requests together.
    pub fn stats(&self) -> &Stats {
        &self.total
    }

    /// Where the time went.
    pub fn times(&self) -> Times {
        self.times
    }

    /// Admits what fits, computes one prefill pass and one decode round, and returns what came of it.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        self.admit()?;
        self.prefill()?;
        self.decode()?;
        Ok(std::mem::take(&mut self.pending))
    }

    /// Steps until idle, and returns every request's tokens and finish.
    pub fn run(&mut self) -> Result<BTreeMap<RequestId, (Vec<u32>, Finish)>> {
        let mut streams: BTreeMap<RequestId, (Vec<u32>, Finish)> = BTreeMap::new();
        while !self.is_idle() {
            for event in self.step()? {
                let entry = streams.entry(event.request).or_insert((Vec::new(), Finish::Length));
                entry.0.extend(event.tokens);
                if let Some(end) = event.end {
                    entry.1 = end.finish;
                }
            }
        }
        Ok(streams)
    }

    /// Oldest first, all or nothing: a slot, and pages for the known tokens and one round beyond them.
    fn admit(&mut self) -> Result<()> {
        while let Some(job) = self.waiting.front() {
            let limits = self.core.limits();
            let ahead = job.tokens.len() + limits.max_rows();
            let need = limits.pages_for(ahead.min(length_limit(&job.request, limits)));
            if self.slots.available() == 0 {
                return Ok(());
            }
            let Some(pages) = self.pages.take(need) else {
                return Ok(());
            };
            let job = self.waiting.pop_front().expect("looked at just now");
            let slot = self.slots.take().expect("counted just now");
            let length = length_limit(&job.request, self.core.limits());
            self.core.open(slot, &job.tokens, &job.request, length)?;
            self.core.lend_pages(slot, &pages)?;
            let resuming = job.tokens.len() > job.request.prompt.len();
            self.live.push(Live { job, slot, pages, committed: 0, drafted: 0, proposed: 0, resuming });
        }
        Ok(())
    }

    /// One pass over prompt tokens, oldest sequences first, within the row budget.
    fn prefill(&mut self) -> Result<()> {
        let mut budget = self.core.limits().prefill_rows;
        let mut chunks = Vec::new();
        for (at, live) in self.live.iter().enumerate() {
            let rows = live.prefill_rows().min(budget);
            if rows > 0 {
                budget -= rows;
                chunks.push((at, rows));
            }
        }
        if chunks.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let rows: Vec<_> = chunks.iter().map(|&(at, rows)| (self.live[at].slot, rows)).collect();
        let outcomes = self.core.prefill(&rows, None)?;
        self.times.prefill += started.elapsed();
        let at: Vec<usize> = chunks.iter().map(|(at, _)| *at).collect();
        for (&(at, rows), outcome) in chunks.iter().zip(&outcomes) {
            let live = &mut self.live[at];
            live.committed += rows;
            live.job.stats.prefilled += rows;
            live.job.stats.generated += outcome.tokens.len();
            live.job.tokens.extend(&outcome.tokens);
            if live.resuming && !live.prefilling() {
                live.resuming = false;
                self.core.resume(live.slot, live.job.request.prompt.len())?;
            }
        }
        self.propose(&at, &outcomes)?;
        self.report(&at, outcomes)
    }

    /// One decode round over every sequence whose known tokens are computed.
    fn decode(&mut self) -> Result<()> {
        self.make_room()?;
        let ready: Vec<usize> = (0..self.live.len()).filter(|&at| !self.live[at].prefilling()).collect();
        if ready.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let rows: Vec<_> = ready.iter().map(|&at| (self.live[at].slot, self.live[at].proposed)).collect();
        let outcomes = self.core.decode(&rows, None)?;
        self.times.target += started.elapsed();
        for (&at, outcome) in ready.iter().zip(&outcomes) {
            let live = &mut self.live[at];
            live.job.stats.round(outcome.drafts, outcome.tokens.len());
            live.committed += outcome.tokens.len();
            live.job.tokens.extend(&outcome.tokens);
        }
        self.propose(&ready, &outcomes)?;
        self.report(&ready, outcomes)
    }

    /// Has the drafter look at the pass that these live sequences just took part in.
    fn propose(&mut self, at: &[usize], outcomes: &[Outcome]) -> Result<()> {
        let started = Instant::now();
        let jobs: Vec<DraftJob> = at
            .iter()
            .zip(outcomes)
            .map(|(&at, outcome)| draft_job(&self.drafts, &self.live[at], outcome))
            .collect();
        let made = self.drafter.observe(&mut self.core, &jobs)?;
        for ((&at, job), made) in at.iter().zip(&jobs).zip(made) {
            let live = &mut self.live[at];
            live.proposed = made.proposed;
            if made.refreshed {
                live.drafted = job.committed + 1;
            }
        }
        self.times.draft += started.elapsed();
        Ok(())
    }

    /// Turns outcomes into events and releases what has ended; `ready` are ascending indices into `live`.
    fn report(&mut self, ready: &[usize], outcomes: Vec<Outcome>) -> Result<()> {
        let mut ended = Vec::new();
        for (&at, outcome) in ready.iter().zip(outcomes) {
            match outcome.finish {
                None if outcome.tokens.is_empty() => {}
                None => {
                    let request = self.live[at].job.id;
                    self.pending.push(Event { request, tokens: outcome.tokens, end: None });
                }
                Some(finish) => ended.push((at, finish, outcome)),
            }
        }
        // From the back, so that indices stay true while entries leave.
        for (at, finish, outcome) in ended.into_iter().rev() {
            let live = self.live.remove(at);
            let whole = self.digests && finish != Finish::Failed;
            let digest = whole.then(|| self.core.digest(live.slot)).transpose()?;
            let job = self.release(live)?;
            self.finish(job, finish, outcome.tokens, outcome.error, digest);
        }
        Ok(())
    }

    /// Every decoding sequence gets pages for its next round; where the pool is empty the youngest live
    /// sequence is paused: its pages go back, and it will be recomputed, bit for bit, when there is room.
    fn make_room(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.live.len() {
            if self.live[at].prefilling() {
                at += 1;
                continue;
            }
            let limits = self.core.limits();
            let live = &self.live[at];
            let length = length_limit(&live.job.request, limits);
            // Drafts use pages where there are some; one more token must have one.
            let wish = limits.pages_for((live.committed + 2 * limits.max_rows()).min(length));
            let must = limits.pages_for(live.committed + 1);
            let short = wish.saturating_sub(live.pages.len()).min(self.pages.available());
            if live.pages.len() + short >= must {
                if short > 0 {
                    let more = self.pages.take(short).expect("counted just now");
                    let live = &mut self.live[at];
                    live.pages.extend(more);
                    self.core.lend_pages(live.slot, &live.pages)?;
                }
                at += 1;
                continue;
            }
            let youngest = self.live.pop().expect("this sequence is live");
            let job = self.release(youngest)?;
            self.waiting.push_front(job);
        }
        Ok(())
    }

    /// Takes a sequence out of its slot.
    fn release(&mut self, live: Live) -> Result<Job> {
        self.core.close(live.slot)?;
        self.pages.give(live.pages);
        self.slots.give(live.slot);
        Ok(live.job)
    }

    fn finish(
        &mut self,
        job: Job,
        finish: Finish,
        tokens: Vec<u32>,
        error: Option<String>,
        digest: Option<Digest>,
    ) {
        self.total.add(&job.stats);
        let end = End { finish, error, stats: job.stats, digest };
        self.pending.push(Event { request: job.id, tokens, end: Some(end) });
    }
}

/// Tokens of a sequence at most, prompt included.
fn length_limit(request: &Request, limits: &Limits) -> usize {
    request.prompt.len().saturating_add(request.max_tokens).min(limits.positions)
}

fn draft_job(length: &DraftLength, live: &Live, outcome: &Outcome) -> DraftJob {
    let request = &live.job.request;
    let finished = outcome.finish.is_some();
    let drafts = request.drafts.unwrap_or_else(|| length.of_round(live.job.stats.rounds));
    DraftJob {
        request: live.job.id,
        slot: live.slot,
        committed: live.committed,
        drafted: live.drafted,
        drafts: if finished || live.prefilling() { 0 } else { drafts },
        never: request.drafts == Some(0),
        finished,
    }
}

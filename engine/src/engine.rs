//! Requests in, tokens out: continuous batching around the speculative round.

pub use crate::round::Pace;
use crate::{
    Error, Result,
    auto::{Auto, Round},
    cache::{Limits, Pages, Slots},
    draft::{self, DraftLength, Drafter},
    model::{Context, EngineBackend, Model},
    request::{End, Event, Finish, Request, RequestId},
    round::{Core, Digest, DraftJob, Outcome, Passed, Ticket},
    stats::{Stats, Times},
};
use kernels_core::Activation;
use std::collections::{BTreeMap, VecDeque};

/// How an engine is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What it may hold.
    pub limits: Limits,
    /// Drafts per round, for requests that do not say.
    pub drafts: DraftLength,
    /// How the host keeps up with the device; [`Pace::of`] names the fastest.
    pub pace: Pace,
}

/// Decodes many requests at once on one model.
///
/// A request is *waiting*, or it is *live* in a slot. A live request first has its prompt computed in
/// prefill passes (after a pause its own output too), which yields a first token, and then takes part in
/// decode rounds, which compute the last known token and the drafts beyond it. Output does not depend on
/// what else is live, on drafts, or on how the prompt was cut.
///
/// Counters and tokens live on the device, and the host may enqueue a round before it has read the one
/// before ([`Pace`]). It then knows bounds: what a sequence has *at least* is what was read, what it has *at
/// most* also counts all rows that are unread. Everything is enqueued in one order, so that pages and slots
/// are free for others as soon as the host says so, whatever still stands before.
#[derive(Debug)]
pub struct Engine<B: EngineBackend, A: Activation> {
    core: Core<B, A>,
    drafter: Box<dyn Drafter<B, A>>,
    drafts: DraftLength,
    /// Where [`DraftLength::Auto`] comes from.
    auto: Auto,
    /// See [`Core::fresh_parts`]; after the latest round.
    fresh_parts: u64,
    pages: Pages,
    slots: Slots,
    waiting: VecDeque<Job>,
    /// In order of admission: the last one is the youngest.
    live: Vec<Live>,
    /// Passes that are enqueued and unread, the oldest first.
    unread: VecDeque<Unread<B>>,
    /// Spans of passes that were read, whose drafts may still be made.
    spans: VecDeque<Span<B>>,
    pace: Pace,
    next_id: u64,
    pending: Vec<Event>,
    total: Stats,
    times: Times,
    digests: bool,
    /// Passes read since the draft vocabulary was renewed.
    unlearned: usize,
}

/// Passes between two renewals of a draft vocabulary that learns: a renewed list is copied whole.
const RENEW_EVERY: usize = 32;

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
    /// Tokens computed and final: of prompts what is enqueued, of rounds what was read.
    committed: usize,
    /// Rows of decode rounds that are unread: more may be committed, by this much.
    ahead: usize,
    /// Those rounds. Each commits at least one token, or the sequence has ended.
    rounds: usize,
    /// Rows of the draft head's K/V that are not made and could be, at most.
    behind: usize,
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

    /// The most tokens that can be final.
    fn most(&self) -> usize {
        self.committed + self.ahead
    }
}

/// A pass that nobody has read.
#[derive(Debug)]
struct Unread<B: EngineBackend> {
    ticket: Ticket<B>,
    /// Who was in it, with the rows that it may commit, in a decode round.
    of: Vec<(RequestId, usize)>,
    prompts: bool,
    round: Option<Round>,
    /// Behind the drafts that follow it.
    drafted: B::Mark,
}

/// When a pass began, when the target was through, when the drafts were made.
#[derive(Debug)]
struct Span<B: EngineBackend> {
    prompts: bool,
    round: Option<Round>,
    started: B::Mark,
    computed: B::Mark,
    drafted: B::Mark,
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
        let (pages, slots) = (Pages::new(limits.pages), Slots::new(limits.slots));
        let mut core = Core::new(context, model, options.limits)?;
        core.set_pace(options.pace);
        Ok(Engine {
            auto: Auto::new(core.limits().max_drafts),
            fresh_parts: 0,
            pages,
            slots,
            core,
            drafter,
            drafts: options.drafts,
            waiting: VecDeque::new(),
            live: Vec::new(),
            unread: VecDeque::new(),
            spans: VecDeque::new(),
            pace: options.pace,
            next_id: 0,
            pending: Vec::new(),
            total: Stats::default(),
            times: Times::default(),
            digests: false,
            unlearned: 0,
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
        self.waiting.is_empty() && self.live.is_empty() && self.unread.is_empty() && self.pending.is_empty()
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

    /// From the next drafts on, how many a round verifies, for requests that do not say.
    pub fn set_drafts(&mut self, drafts: DraftLength) -> Result<()> {
        drafts.check(self.core.limits().max_drafts)?;
        self.drafts = drafts;
        Ok(())
    }

    /// Reads every pass that is enqueued, and returns what came of them.
    pub fn settle(&mut self) -> Result<Vec<Event>> {
        self.read_until(0)?;
        Ok(std::mem::take(&mut self.pending))
    }

    /// A digest of what a live request's memories hold; `None` for a request that is not live. All passes
    /// are read before.
    pub fn digest(&mut self, id: RequestId) -> Result<Option<Digest>> {
        self.read_until(0)?;
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

    /// See [`Core::distinct_experts`].
    pub fn distinct_experts(&self) -> Result<Option<f64>> {
        self.core.distinct_experts()
    }

    /// Where the time went.
    pub fn times(&self) -> Times {
        self.times
    }

    /// Admits what fits, enqueues one prefill pass and one decode round, and returns what has come: of these
    /// two, or of passes before them.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        self.admit()?;
        let enqueued = self.prefill()? | self.decode()?;
        self.read_until(if enqueued { self.pace.passes() - 1 } else { 0 })?;
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
            if let Some(vocab) = self.core.draft_vocab_mut() {
                vocab.observe(&job.request.prompt);
            }
            self.core.open(slot, &job.tokens, &job.request, length)?;
            self.core.lend_pages(slot, &pages)?;
            let resuming = job.tokens.len() > job.request.prompt.len();
            self.live.push(Live {
                job,
                slot,
                pages,
                committed: 0,
                ahead: 0,
                rounds: 0,
                behind: 0,
                proposed: 0,
                resuming,
            });
        }
        Ok(())
    }

    /// One pass over prompt tokens, oldest sequences first, within the row budget; whether there was any.
    fn prefill(&mut self) -> Result<bool> {
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
            return Ok(false);
        }
        let rows: Vec<_> = chunks.iter().map(|&(at, rows)| (self.live[at].slot, rows)).collect();
        let ticket = self.core.enqueue_prefill(&rows, None)?;
        for &(at, rows) in &chunks {
            let live = &mut self.live[at];
            live.committed += rows;
            live.behind += rows;
            live.job.stats.prefilled += rows;
            if live.resuming && !live.prefilling() {
                live.resuming = false;
                self.core.resume(live.slot, live.job.request.prompt.len())?;
            }
        }
        let at: Vec<usize> = chunks.iter().map(|(at, _)| *at).collect();
        self.follow(ticket, &at, true)?;
        Ok(true)
    }

    /// One decode round over every sequence whose known tokens are computed; whether there was any.
    fn decode(&mut self) -> Result<bool> {
        self.make_room()?;
        let limits = self.core.limits();
        let ready: Vec<usize> = (0..self.live.len())
            .filter(|&at| {
                let live = &self.live[at];
                // Where unread rounds are sure to reach its end, another one would find nothing to do.
                let sure = live.committed + live.rounds;
                !live.prefilling() && sure + 1 < length_limit(&live.job.request, limits)
            })
            .collect();
        if ready.is_empty() {
            return Ok(false);
        }
        let rows: Vec<_> = ready.iter().map(|&at| (self.live[at].slot, self.live[at].proposed)).collect();
        let ticket = self.core.enqueue_decode(&rows, None)?;
        for &at in &ready {
            let live = &mut self.live[at];
            let rows = 1 + live.proposed;
            live.ahead += rows;
            live.rounds += 1;
            live.behind += rows;
        }
        self.follow(ticket, &ready, false)?;
        Ok(true)
    }

    /// Has the drafter look at the pass that these live sequences just took part in, and leaves it to be
    /// read; or reads it at once, where nothing is gained by running ahead, or where the drafter has to know.
    fn follow(&mut self, ticket: Ticket<B>, at: &[usize], prompts: bool) -> Result<()> {
        let rows = |live: &Live| if prompts { 0 } else { 1 + live.proposed };
        let of: Vec<(RequestId, usize)> =
            at.iter().map(|&at| (self.live[at].job.id, rows(&self.live[at]))).collect();
        let drafts = self.equal_drafts(at);
        if !prompts {
            self.auto.pick(at.len());
        }
        if self.pace == Pace::Wait || self.drafter.looks_back() {
            let Passed { outcomes, started, computed } = self.core.read(ticket)?;
            self.take_in(&of, &outcomes, prompts)?;
            self.propose(at, Some(&outcomes))?;
            let drafted = B::mark(self.core.queue())?;
            let round = self.round(prompts, at, drafts);
            self.report(&of, Span { prompts, round, started, computed, drafted }, outcomes)?;
            return self.clock();
        }
        self.propose(at, None)?;
        let drafted = B::mark(self.core.queue())?;
        let round = self.round(prompts, at, drafts);
        self.unread.push_back(Unread { ticket, of, prompts, round, drafted });
        Ok(())
    }

    /// The number of drafts that stand for each of these, if it is the same.
    fn equal_drafts(&self, at: &[usize]) -> Option<usize> {
        let first = self.live[*at.first()?].proposed;
        at.iter().all(|&at| self.live[at].proposed == first).then_some(first)
    }

    /// What the policy may learn from: rounds whose cost is that of one k.
    fn round(&mut self, prompts: bool, at: &[usize], drafts: Option<usize>) -> Option<Round> {
        let fresh = self.core.fresh_parts();
        let steady = std::mem::replace(&mut self.fresh_parts, fresh) == fresh;
        let (drafts, next) = (drafts?, self.equal_drafts(at)?);
        (!prompts).then(|| Round::new(at.len(), drafts, next, steady))
    }

    fn find(&self, id: RequestId) -> Option<usize> {
        self.live.iter().position(|live| live.job.id == id)
    }

    /// Reads passes, the oldest first, until no more than `most` are unread.
    fn read_until(&mut self, most: usize) -> Result<()> {
        while self.unread.len() > most {
            let Some(Unread { ticket, of, prompts, round, drafted }) = self.unread.pop_front() else { break };
            let Passed { outcomes, started, computed } = self.core.read(ticket)?;
            self.take_in(&of, &outcomes, prompts)?;
            // The drafts behind this pass may not be made yet; before it, all are.
            self.clock()?;
            self.report(&of, Span { prompts, round, started, computed, drafted }, outcomes)?;
        }
        if self.unread.is_empty() {
            self.clock()?;
        }
        Ok(())
    }

    /// Adds up where the time went, of passes whose drafts are made.
    fn clock(&mut self) -> Result<()> {
        for span in self.spans.drain(..) {
            let target = B::between(&span.started, &span.computed)?;
            let draft = B::between(&span.computed, &span.drafted)?;
            if span.prompts {
                self.times.prefill += target;
            } else {
                self.times.target += target;
            }
            self.times.draft += draft;
            if let Some(round) = &span.round {
                self.auto.learn(round, target, draft);
            }
        }
        Ok(())
    }

    /// Counts what a pass brought. Who has left meanwhile, or had ended before, gets nothing.
    fn take_in(&mut self, of: &[(RequestId, usize)], outcomes: &[Outcome], prompts: bool) -> Result<()> {
        for (&(id, rows), outcome) in of.iter().zip(outcomes) {
            let Some(at) = self.find(id) else { continue };
            let live = &mut self.live[at];
            live.job.tokens.extend(&outcome.tokens);
            if prompts {
                live.job.stats.generated += outcome.tokens.len();
                continue;
            }
            live.committed += outcome.tokens.len();
            live.ahead -= rows;
            live.rounds -= 1;
            live.job.stats.round(outcome.drafts, outcome.tokens.len());
        }
        let Some(vocab) = self.core.draft_vocab_mut().filter(|vocab| vocab.learns()) else { return Ok(()) };
        outcomes.iter().for_each(|outcome| vocab.observe(&outcome.tokens));
        self.unlearned += 1;
        if self.unlearned == RENEW_EVERY {
            self.unlearned = 0;
            self.core.refresh_draft_vocab()?;
        }
        Ok(())
    }

    /// Has the drafter look at the pass that these live sequences just took part in.
    fn propose(&mut self, at: &[usize], outcomes: Option<&[Outcome]>) -> Result<()> {
        let finished = |i: usize| outcomes.is_some_and(|all| all[i].finish.is_some());
        let jobs: Vec<DraftJob> = at
            .iter()
            .enumerate()
            .map(|(i, &at)| draft_job(&self.drafts, &self.auto, &self.live[at], finished(i)))
            .collect();
        let made = self.drafter.observe(&mut self.core, &jobs)?;
        for (&at, made) in at.iter().zip(made) {
            let live = &mut self.live[at];
            live.proposed = made.proposed;
            if made.refreshed {
                live.behind = 0;
            }
        }
        Ok(())
    }

    /// Turns outcomes into events, releases what has ended, and keeps when it was.
    fn report(&mut self, of: &[(RequestId, usize)], mut span: Span<B>, outcomes: Vec<Outcome>) -> Result<()> {
        for (&(request, _), outcome) in of.iter().zip(outcomes) {
            // It may have left, or have ended in a pass before this one.
            let Some(at) = self.find(request) else { continue };
            if let Some(round) = &mut span.round {
                round.add(&outcome);
            }
            match outcome.finish {
                None if outcome.tokens.is_empty() => {}
                None => self.pending.push(Event { request, tokens: outcome.tokens, end: None }),
                Some(finish) => {
                    let live = self.live.remove(at);
                    let whole = self.digests && finish != Finish::Failed;
                    let digest = whole.then(|| self.core.digest(live.slot)).transpose()?;
                    let job = self.release(live)?;
                    self.finish(job, finish, outcome.tokens, outcome.error, digest);
                }
            }
        }
        self.spans.push_back(span);
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
            let wish = limits.pages_for((live.most() + 2 * limits.max_rows()).min(length));
            let must = limits.pages_for((live.most() + 1).min(length));
            let short = wish.saturating_sub(live.pages.len()).min(self.pages.available());
            if live.pages.len() + short >= must {
                if short > 0 {
                    let more = self.pages.take(short).expect("counted just now");
                    let live = &mut self.live[at];
                    live.pages.extend(more);
                    self.core.lend_pages(live.slot, &live.pages)?;
                }
                at += 1;
            } else if !self.unread.is_empty() {
                // What is unread may have ended somebody, and a paused sequence must be known to its end.
                self.read_until(0)?;
                at = 0;
            } else {
                let youngest = self.live.pop().expect("this sequence is live");
                let job = self.release(youngest)?;
                self.waiting.push_front(job);
            }
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

fn draft_job(length: &DraftLength, auto: &Auto, live: &Live, finished: bool) -> DraftJob {
    let request = &live.job.request;
    let fixed = || length.of_round(live.job.stats.rounds + live.rounds);
    let drafts = request.drafts.or_else(fixed).unwrap_or_else(|| auto.drafts());
    DraftJob {
        request: live.job.id,
        slot: live.slot,
        committed: live.most(),
        behind: live.behind,
        drafts: if finished || live.prefilling() { 0 } else { drafts },
        never: request.drafts == Some(0),
        finished,
    }
}

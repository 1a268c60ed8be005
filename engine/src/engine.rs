//! Requests in, tokens out: continuous batching around the speculative round.

mod auto;
mod passes;
mod schedule;

pub use crate::round::Pace;
use crate::{
    Error, Result,
    cache::{Limits, Pages, Slots},
    draft::{self, DraftLength, Drafter},
    model::{Context, EngineBackend, Model, Trace},
    request::{Event, Finish, Request, RequestId},
    round::{Core, Digest},
    stats::{Stats, Times},
};
use auto::Auto;
use kernels_core::Activation;
use passes::{Span, Unread};
use schedule::length_limit;
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

    /// The same with what was read so far of requests that are not finished.
    pub fn stats_so_far(&self) -> Stats {
        let mut all = self.total.clone();
        let jobs = self.waiting.iter().chain(self.live.iter().map(|live| &live.job));
        jobs.for_each(|job| all.add(&job.stats));
        all
    }

    /// See [`Core::distinct_experts`].
    pub fn distinct_experts(&self) -> Result<Option<f64>> {
        self.core.distinct_experts()
    }

    /// Of its operations.
    pub fn trace(&self) -> &Trace<B> {
        &self.core.context().trace
    }

    /// See [`Core::recorded`].
    pub fn recorded(&self) -> usize {
        self.core.recorded()
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
}

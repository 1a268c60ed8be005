//! What every memory of a sequence must hold: a function of the tokens before it, and of nothing else.

use engine::{
    cache::{Caches, Pool, Recurrent},
    draft::{Drafter, Made},
    round::{Core, DraftJob},
};
use kernels_core::{Activation, Cpu};
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

/// Where something stands: in which memory and layer, behind which tokens.
type Place = (&'static str, usize, u64);

#[derive(Debug, Default)]
struct Entries {
    held: HashMap<Place, u64>,
    compared: BTreeMap<&'static str, usize>,
    differences: Vec<String>,
}

/// A book of committed state, shared by all runs of one model.
///
/// A [`witness`](Self::witness) looks at every memory after every pass. Whoever comes to a token prefix
/// first enters what the memories hold there; anybody else who comes to the same prefix, by whatever
/// drafts, chunks, batches, slots and pages, must find the same bytes.
///
/// What is looked at: K/V rows below `committed`; the conv inputs that later rows read; the recurrent state
/// (after `folded` tokens) and the journal rows from there on; K/V rows of the draft head, and its drafts.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Rc<RefCell<Entries>>);

impl Ledger {
    /// An empty book.
    pub fn new() -> Self {
        Self::default()
    }

    /// A drafter that does what `inner` does, and looks. `drafts`: proposals are a function of the tokens
    /// too, as those of a greedy draft head are.
    pub fn witness<A: Activation>(
        &self,
        inner: Box<dyn Drafter<Cpu, A>>,
        drafts: bool,
    ) -> Box<dyn Drafter<Cpu, A>> {
        Box::new(Witness { ledger: self.clone(), inner, drafts })
    }

    /// Fails with the first differences, if there are any, or if fewer than `least` entries of each of
    /// `memories` were met again.
    #[track_caller]
    pub fn assert_agreed(&self, memories: &[&str], least: usize) {
        let entries = self.0.borrow();
        if let Some(first) = entries.differences.first() {
            panic!("{} differences, the first: {first}", entries.differences.len());
        }
        for memory in memories {
            let compared = entries.compared.get(memory).copied().unwrap_or(0);
            assert!(compared >= least, "only {compared} entries of {memory} were compared");
        }
    }

    fn enter(&self, place: Place, value: u64, what: impl FnOnce() -> String) {
        let mut entries = self.0.borrow_mut();
        match entries.held.get(&place) {
            None => drop(entries.held.insert(place, value)),
            Some(held) => {
                let same = *held == value;
                *entries.compared.entry(place.0).or_default() += 1;
                if !same {
                    let text = format!("{}, layer {}: {}", place.0, place.1, what());
                    entries.differences.push(text);
                }
            }
        }
    }
}

/// All target memories that [`Ledger::assert_agreed`] can be asked about.
pub const TARGET: [&str; 4] = ["K/V", "conv ring", "state", "journal"];
/// And those of the draft head.
pub const DRAFT: [&str; 2] = ["draft K/V", "draft"];

#[derive(Debug)]
struct Witness<A: Activation> {
    ledger: Ledger,
    inner: Box<dyn Drafter<Cpu, A>>,
    drafts: bool,
}

impl<A: Activation> Drafter<Cpu, A> for Witness<A> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn needs_head(&self) -> bool {
        self.inner.needs_head()
    }

    fn observe(&mut self, core: &mut Core<Cpu, A>, jobs: &[DraftJob]) -> engine::Result<Vec<Made>> {
        // A slot with a fault is given up as it is.
        let faults = core.faults()?;
        let sound: Vec<_> = jobs.iter().filter(|job| faults[job.slot].is_none()).collect();
        for job in &sound {
            Looker::new(core, &self.ledger, job).target(core);
        }
        let made = self.inner.observe(core, jobs)?;
        for job in sound.iter().filter(|job| !job.finished) {
            Looker::new(core, &self.ledger, job).draft(core, self.drafts && self.inner.needs_head());
        }
        Ok(made)
    }
}

/// One sequence, looked at once.
struct Looker<'l> {
    ledger: &'l Ledger,
    slot: usize,
    committed: usize,
    tokens: Vec<i32>,
    /// Of the first n tokens.
    prefix: Vec<u64>,
}

impl<'l> Looker<'l> {
    fn new<A: Activation>(core: &Core<Cpu, A>, ledger: &'l Ledger, job: &DraftJob) -> Self {
        let table = &core.caches().shared.table;
        let tokens = table.tokens[job.slot * table.positions..][..table.positions].to_vec();
        let mut prefix = vec![1];
        for token in &tokens {
            prefix.push(mix(prefix[prefix.len() - 1], *token as u32));
        }
        assert_eq!(table.committed[job.slot] as usize, job.committed, "the engine's count and the table's");
        Looker { ledger, slot: job.slot, committed: job.committed, tokens, prefix }
    }

    fn target<A: Activation>(&self, core: &Core<Cpu, A>) {
        let caches = core.caches();
        for (layer, pool) in caches.pools.iter().enumerate() {
            self.kv("K/V", layer, caches, pool, 0..self.committed);
        }
        let folded = caches.shared.table.folded[self.slot] as usize;
        let width = core.model().config().gdn.conv_width;
        for (layer, memory) in caches.recurrent.iter().enumerate() {
            self.recurrent(layer, memory, caches.shared.slots, width, folded);
        }
    }

    fn draft<A: Activation>(&self, core: &Core<Cpu, A>, drafts: bool) {
        let caches = core.caches();
        let table = &caches.shared.table;
        if let Some(pool) = &caches.draft_pool {
            // Row 0 has no predecessor and is never made.
            self.kv("draft K/V", 0, caches, pool, 1..(table.drafted[self.slot] as usize).max(1));
        }
        let proposed = table.proposed[self.slot] as usize;
        if !drafts {
            return;
        }
        let (drafted, known) = (table.drafted[self.slot] as usize, self.committed + 1);
        assert!(proposed == 0 || drafted == known, "{proposed} drafts from {drafted} rows of {known} tokens");
        for draft in 0..proposed {
            let token = self.tokens[self.committed + 1 + draft];
            let what = || format!("draft {draft} behind {} tokens is {token}", self.committed + 1);
            self.ledger.enter(("draft", draft, self.prefix[self.committed + 1]), token as u64, what);
        }
    }

    fn kv<A: Activation>(
        &self,
        name: &'static str,
        layer: usize,
        caches: &Caches<Cpu, A>,
        pool: &Pool<Cpu, A>,
        positions: std::ops::Range<usize>,
    ) {
        let shared = &caches.shared;
        let pages = &shared.page_table[self.slot * shared.max_pages..][..shared.max_pages];
        let view = pool.view();
        for position in positions {
            let (page, row) = (pages[position / view.page_rows] as usize, position % view.page_rows);
            assert_ne!(page, 0, "{name} at {position} lies on the trash page");
            let mut value = 1;
            for head in 0..view.kv_heads {
                value = hash(value, view.key(page, head, row));
                value = hash(value, view.value(page, head, row));
            }
            let what = || format!("row {position} of {}, slot {}, page {page}", self.committed, self.slot);
            self.ledger.enter((name, layer, self.prefix[position + 1]), value, what);
        }
    }

    fn recurrent<A: Activation>(
        &self,
        layer: usize,
        memory: &Recurrent<Cpu, A>,
        slots: usize,
        width: usize,
        folded: usize,
    ) {
        let ring = |memory: &[A], rows: usize, position: usize| {
            let row = memory.len() / slots / rows;
            hash(1, &memory[(self.slot * rows + position % rows) * row..][..row])
        };
        let what = |position| format!("position {position} of {}, slot {}", self.committed, self.slot);
        for position in self.committed.saturating_sub(width - 1)..self.committed {
            let value = ring(&memory.ring, memory.ring_rows, position);
            self.ledger.enter(("conv ring", layer, self.prefix[position + 1]), value, || what(position));
        }
        for position in folded..self.committed {
            let value = ring(&memory.journal, memory.journal_rows, position);
            self.ledger.enter(("journal", layer, self.prefix[position + 1]), value, || what(position));
        }
        // Without folded tokens the state is zero by definition, whatever lies there.
        if folded > 0 {
            let state = &memory.state[self.slot * memory.state.len() / slots..][..memory.state.len() / slots];
            self.ledger.enter(("state", layer, self.prefix[folded]), hash(1, state), || what(folded));
        }
    }
}

fn hash<A: Activation>(start: u64, values: &[A]) -> u64 {
    values.iter().fold(start, |h, x| mix(h, x.to_f32().to_bits()))
}

fn mix(h: u64, word: u32) -> u64 {
    // Multiplication spreads upwards only, the rotation brings high bits down again.
    (h.rotate_left(23) ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

//! A toy engine around all operations: every memory of a real one is modelled, and checked when read.
//!
//! The toy target's logits are a hash of the whole prefix, so one wrong, missing or stale token anywhere
//! changes the stream. Its K/V, recurrent state and journal, the hidden ring and the draft's K/V hold
//! what they were given, by the rules of absolute positions, and a read that finds anything but the
//! truth is an error. The streams must equal those of decoding token by token.

use crate::sim::{Inputs, MAX_EOS, Sim, rows};
use kernels_core::{
    PAD,
    slots::{Fault, flushes, journal_rows},
};
use kernels_spec::*;
use kernels_testkit::rng::Rng;

pub(crate) const VOCAB: usize = 24;
const WIDTH: usize = 2;
const POSITIONS: usize = 64;
const RING_ROWS: usize = 16;

/// What varies from run to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) slots: usize,
    pub(crate) max_rows: usize,
    pub(crate) flush_after: usize,
    /// How far the draft's logits are from the target's; 0 = a perfect draft.
    pub(crate) draft_noise: f32,
    pub(crate) requests: usize,
    /// The share of passes after which the draft is skipped.
    pub(crate) skip_draft: f32,
}

/// What happened, so that a test can see that it tested something.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Decode rounds by accept length.
    pub(crate) lengths: Vec<u64>,
    /// Finished requests by state.
    pub(crate) finished: [usize; 7],
    /// Refreshes of more than one round's rows.
    pub(crate) caught_up: usize,
    /// Rounds in which rows were cut by missing pages.
    pub(crate) waited: usize,
}

struct Request {
    prompt: Vec<i32>,
    out: Vec<i32>,
    want: Vec<i32>,
    end: State,
    committed: i32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct DraftEntry {
    token: i32,
    hidden: [f32; WIDTH],
}

struct Machine {
    options: Options,
    rng: Rng,
    sim: Sim,
    kv: Vec<Vec<i32>>,
    state: Vec<u64>,
    journal: Vec<Vec<(usize, i32)>>,
    ring: Vec<f32>,
    draft_kv: Vec<Vec<Option<DraftEntry>>>,
    requests: Vec<Option<Request>>,
    report: Report,
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

fn fold(hash: u64, token: i32) -> u64 {
    (hash ^ (token as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
}

fn hash(tokens: &[i32]) -> u64 {
    tokens.iter().fold(0x51ed, |h, t| fold(h, *t))
}

fn logits_of(hash: u64) -> Vec<f32> {
    Rng::new(hash).uniforms(VOCAB, -3.0, 3.0)
}

/// The hidden row of a prefix: its last position, and a fingerprint of it.
fn hidden_of(prefix: &[i32]) -> [f32; WIDTH] {
    [prefix.len() as f32 - 1.0, (hash(prefix) & 0xff_ffff) as f32]
}

/// Runs requests to their end; an error says which invariant broke.
pub(crate) fn check(options: Options) -> Result<Report, String> {
    let slots = options.slots;
    let mut machine = Machine {
        rng: Rng::new(options.seed),
        sim: Sim { flush_after: options.flush_after, ..Sim::new(slots, POSITIONS, options.max_rows) },
        kv: vec![vec![-99; POSITIONS]; slots],
        state: vec![0xdead; slots],
        journal: vec![vec![(usize::MAX, -99); journal_rows(options.flush_after, options.max_rows)]; slots],
        ring: vec![f32::NAN; slots * RING_ROWS * WIDTH],
        draft_kv: vec![vec![None; POSITIONS]; slots],
        requests: (0..slots).map(|_| None).collect(),
        report: Report { lengths: vec![0; options.max_rows + 1], ..Report::default() },
        options,
    };
    let (mut admitted, mut passes) = (0, 0);
    while admitted < options.requests || machine.requests.iter().any(Option::is_some) {
        passes += 1;
        ensure(passes < 4000, || "no progress".into())?;
        for slot in 0..slots {
            if machine.requests[slot].is_none() && admitted < options.requests {
                machine.admit(slot);
                admitted += 1;
            }
        }
        machine.edit();
        let list = machine.list();
        machine.pass(Pass::Prefill, &list)?;
        machine.invariants()?;
        let list = machine.list();
        machine.pass(Pass::Decode, &list)?;
        machine.invariants()?;
        machine.collect()?;
    }
    Ok(machine.report)
}

impl Machine {
    fn admit(&mut self, slot: usize) {
        let rng = &mut self.rng;
        let prompt: Vec<i32> = (0..1 + rng.below(20)).map(|_| rng.below(VOCAB) as i32).collect();
        let length_limit = (prompt.len() + 1 + rng.below(40)).min(POSITIONS);
        let sampled = rng.below(3) > 0;
        let params = SamplingParams {
            temperature: if sampled { rng.uniform(0.3, 1.5) } else { 0.0 },
            top_k: [0, 0, 5][rng.below(3)],
            top_p: [1.0, 0.8][rng.below(2)],
            presence_penalty: [0.0, 0.7][rng.below(2)],
            repetition_penalty: [1.0, 1.2][rng.below(2)],
            seed: u64::from(rng.bits()) << 32 | u64::from(rng.bits()),
            ..SamplingParams::default()
        };
        let eos = [rng.below(VOCAB) as i32, -1];
        let stop = [rng.below(VOCAB) as i32, rng.below(VOCAB) as i32, -1];
        let limit = rng.below(length_limit + 1);
        self.sim.eos[slot * MAX_EOS..][..MAX_EOS].copy_from_slice(&eos);
        self.sim.stops[slot * 6..][..3].copy_from_slice(&stop);
        self.sim.sampling.set(&(), slot, &params, VOCAB).unwrap();
        self.sim.table.admit(&(), slot, &prompt, limit, length_limit).unwrap();
        let (want, end) = plain(&prompt, &params, eos[0], &stop[..2], length_limit);
        self.requests[slot] = Some(Request { prompt, out: Vec::new(), want, end, committed: 0 });
    }

    /// What the host does between rounds: pages arrive, somebody gives up.
    fn edit(&mut self) {
        for slot in 0..self.options.slots {
            if self.rng.below(2) == 0 {
                let limit = &mut self.sim.table.limit[slot];
                *limit = (*limit + self.rng.below(8) as i32).min(POSITIONS as i32);
            }
            if self.rng.below(150) == 0 && self.sim.state(slot) == State::Running {
                self.sim.table.set_state(&(), slot, State::Aborted).unwrap();
            }
        }
    }

    /// Slots in random order, some left out, with padding between them.
    fn list(&mut self) -> Vec<i32> {
        let order = self.rng.permutation(self.options.slots + 1);
        let slot = |n: usize| if n < self.options.slots { n as i32 } else { PAD };
        order.into_iter().map(slot).map(|s| if self.rng.below(6) == 0 { PAD } else { s }).collect()
    }

    fn pass(&mut self, pass: Pass, list: &[i32]) -> Result<(), String> {
        let inputs = match pass {
            Pass::Prefill => {
                let lengths: Vec<i32> = list.iter().map(|_| self.rng.below(9) as i32).collect();
                self.sim.prefill_inputs(list, &lengths, 13)
            }
            Pass::Decode => {
                let k: Vec<i32> =
                    list.iter().map(|_| self.rng.below(self.options.max_rows + 1) as i32).collect();
                self.sim.target_inputs(list, &k)
            }
        };
        let capacity = inputs.ids.len();
        let (hidden, logits) = self.target(pass, &inputs)?;

        // A prompt chooses in its last row only, and only at its end.
        let (from, logits) = match pass {
            Pass::Decode => (rows(&inputs.rows.slots, &inputs.rows.start, &inputs.rows.row_offsets), logits),
            Pass::Prefill => {
                (self.sim.last_rows(&inputs.rows, capacity), self.take_last(&logits, &inputs.rows))
            }
        };
        let choice = self.sim.sample(&from, &logits, VOCAB);
        let mut accepted = self.sim.accept(&from, &choice);
        let before = accepted.clone();
        self.sim.stop(&from, choice.len(), &mut accepted);
        self.sim.advance(pass, &inputs.rows, capacity, &mut accepted);
        let emitted = self.sim.emit(&from, choice.len(), &accepted);
        for (index, row) in emitted.iter().enumerate() {
            let Ok(slot) = usize::try_from(from.slots[index]) else {
                ensure(row[0] == 0, || format!("padding emitted {row:?}"))?;
                continue;
            };
            let a = row[0] as usize;
            let count = (from.row_offsets[index + 1] - from.row_offsets[index]) as usize;
            if pass == Pass::Decode && a > 0 {
                self.report.lengths[a] += 1;
                let all = self.options.draft_noise > 0.0 || before[index] as usize == count;
                ensure(all, || format!("slot {slot}: a perfect draft was rejected, {before:?} of {count}"))?;
            }
            let request = self.requests[slot].as_mut().ok_or("rows for an empty slot")?;
            request.out.extend(&row[2..2 + a]);
        }
        self.draft(list, &inputs, &hidden)?;
        Ok(())
    }

    fn target(&mut self, pass: Pass, inputs: &Inputs) -> Result<(Vec<f32>, Vec<f32>), String> {
        let capacity = inputs.ids.len();
        let (mut hidden, mut logits) = (vec![f32::NAN; capacity * WIDTH], vec![f32::NAN; capacity * VOCAB]);
        for (slot, start, range) in sequences(&inputs.rows) {
            let tokens = self.sim.tokens(slot).to_vec();
            let folded = self.sim.table.folded[slot] as usize;
            let limit = self.sim.table.limit[slot] as usize;
            ensure(start + range.len() <= limit, || format!("slot {slot}: rows without pages at {start}"))?;
            self.report.waited += usize::from(start + range.len() == limit);
            let journal = self.journal[slot].len();
            let new = if pass == Pass::Decode { range.len() } else { 0 };
            ensure(start - folded + new <= journal, || format!("slot {slot}: the journal overflows"))?;
            // State of zero tokens is defined, never read.
            let mut h = if folded == 0 { hash(&[]) } else { self.state[slot] };
            for position in folded..start {
                let (at, token) = self.journal[slot][position % journal];
                ensure(at == position, || format!("slot {slot}: journal row {position} is that of {at}"))?;
                h = fold(h, token);
            }
            if pass == Pass::Decode && flushes(start - folded, self.options.flush_after) {
                self.state[slot] = h;
            }
            for (i, row) in range.clone().enumerate() {
                let position = start + i;
                let id = inputs.ids[row];
                h = fold(h, id);
                self.kv[slot][position] = id;
                if pass == Pass::Decode {
                    self.journal[slot][position % journal] = (position, id);
                }
                let prefix = &tokens[..=position];
                ensure(self.kv[slot][..=position] == *prefix, || {
                    format!("slot {slot}: stale K/V at {position}")
                })?;
                ensure(h == hash(prefix), || format!("slot {slot}: the state is wrong at {position}"))?;
                hidden[row * WIDTH..][..WIDTH].copy_from_slice(&hidden_of(prefix));
                logits[row * VOCAB..][..VOCAB].copy_from_slice(&logits_of(h));
            }
            if pass == Pass::Prefill {
                self.state[slot] = h;
            }
        }
        Ok((hidden, logits))
    }

    /// Rows of logits of the last row of each sequence.
    fn take_last(&mut self, logits: &[f32], rows: &RowTable<kernels_core::Cpu>) -> Vec<f32> {
        self.sim.take_last(logits, VOCAB, rows)
    }

    fn draft(&mut self, list: &[i32], forward: &Inputs, hidden: &[f32]) -> Result<(), String> {
        if self.rng.uniform(0.0, 1.0) >= self.options.skip_draft {
            let inputs = self.sim.draft_inputs(list, &forward.rows, 11, RING_ROWS);
            let carried = {
                let ring = self.ring.clone();
                self.sim.carry(hidden, &ring, WIDTH, &forward.rows, &inputs.rows, 11)
            };
            let (outputs, logits) = self.refresh(&inputs, &carried)?;
            let last = self.sim.last_rows(&inputs.rows, 11);
            let logits = self.take_last(&logits, &inputs.rows);
            let choice = self.sim.sample(&last, &logits, VOCAB);
            self.sim.propose(&inputs.rows, 11, Some(&choice));
            let mut outputs = self.sim.take_last(&outputs, WIDTH, &inputs.rows);
            let mut previous = inputs.rows;
            for _ in 0..self.rng.below(self.options.max_rows) {
                let chained = self.sim.chain_inputs(list, previous);
                let (next, logits) = self.chain(&chained, &outputs)?;
                let choice = self.sim.sample(&chained.rows, &logits, VOCAB);
                self.sim.propose(&chained.rows, list.len(), Some(&choice));
                (outputs, previous) = (next, chained.rows);
            }
        }
        self.sim.keep_hidden(hidden, &mut self.ring, WIDTH, &forward.rows);
        Ok(())
    }

    fn refresh(&mut self, inputs: &Inputs, carried: &[f32]) -> Result<(Vec<f32>, Vec<f32>), String> {
        let capacity = inputs.ids.len();
        let (mut outputs, mut logits) = (vec![f32::NAN; capacity * WIDTH], vec![f32::NAN; capacity * VOCAB]);
        for (slot, start, range) in sequences(&inputs.rows) {
            self.report.caught_up += usize::from(range.len() > self.options.max_rows);
            for (i, row) in range.enumerate() {
                let position = start + i;
                let hidden = [carried[row * WIDTH], carried[row * WIDTH + 1]];
                let want = hidden_of(&self.sim.tokens(slot)[..position]);
                ensure(hidden == want, || {
                    format!("slot {slot}: draft row {position} has hidden row {hidden:?}, not {want:?}")
                })?;
                self.draft_kv[slot][position] = Some(DraftEntry { token: inputs.ids[row], hidden });
                self.draft_row(slot, position, row, &mut outputs, &mut logits)?;
            }
        }
        Ok((outputs, logits))
    }

    fn chain(&mut self, inputs: &Inputs, outputs: &[f32]) -> Result<(Vec<f32>, Vec<f32>), String> {
        let capacity = inputs.ids.len();
        let (mut next, mut logits) = (vec![f32::NAN; capacity * WIDTH], vec![f32::NAN; capacity * VOCAB]);
        for (slot, position, range) in sequences(&inputs.rows) {
            let row = range.start;
            let hidden = [outputs[row * WIDTH], outputs[row * WIDTH + 1]];
            ensure(hidden[0] == 1.0 - position as f32, || {
                format!("slot {slot}: chain row {position} continues from {hidden:?}")
            })?;
            self.draft_kv[slot][position] = Some(DraftEntry { token: inputs.ids[row], hidden });
            self.draft_row(slot, position, row, &mut next, &mut logits)?;
        }
        Ok((next, logits))
    }

    /// The draft's row at `position` attends to all its K/V, which must be whole and true.
    fn draft_row(
        &mut self,
        slot: usize,
        position: usize,
        row: usize,
        outputs: &mut [f32],
        logits: &mut [f32],
    ) -> Result<(), String> {
        let tokens = &self.sim.tokens(slot)[..=position];
        let committed = self.sim.table.committed[slot] as usize;
        for at in 1..=position {
            // Up to `committed` from the target's hidden rows, beyond it from the draft's own.
            let hidden = if at <= committed { hidden_of(&tokens[..at]) } else { [1.0 - at as f32, 0.0] };
            let want = Some(DraftEntry { token: tokens[at], hidden });
            ensure(self.draft_kv[slot][at] == want, || {
                format!("slot {slot}: draft K/V at {at} is {:?}, not {want:?}", self.draft_kv[slot][at])
            })?;
        }
        outputs[row * WIDTH..][..WIDTH].copy_from_slice(&[-(position as f32), 0.0]);
        let mut noise = Rng::new(hash(tokens) ^ 0xd4af7);
        for (out, l) in logits[row * VOCAB..][..VOCAB].iter_mut().zip(logits_of(hash(tokens))) {
            *out = l + self.options.draft_noise * noise.normal();
        }
        Ok(())
    }

    fn invariants(&mut self) -> Result<(), String> {
        let table = &self.sim.table;
        for word in &table.faults {
            ensure(*word == 0, || format!("fault: {:?}", Fault::decode(*word)))?;
        }
        for slot in 0..self.options.slots {
            let Some(request) = &mut self.requests[slot] else {
                continue;
            };
            let (committed, folded) = (table.committed[slot], table.folded[slot]);
            let (drafted, proposed) = (table.drafted[slot], table.proposed[slot]);
            let pending = (committed - folded) as usize;
            let most = self.options.flush_after + self.options.max_rows;
            ensure(committed >= request.committed, || format!("slot {slot}: committed fell to {committed}"))?;
            ensure(0 <= folded && folded <= committed && pending <= most, || {
                format!("slot {slot}: {pending} pending rows")
            })?;
            ensure(0 <= drafted && drafted <= committed + 1, || format!("slot {slot}: drafted {drafted}"))?;
            let room = table.limit[slot].min(table.length_limit[slot]) - committed - 1;
            ensure(0 <= proposed && proposed <= room.max(0), || format!("slot {slot}: proposed {proposed}"))?;
            ensure(proposed == 0 || drafted == committed + 1, || {
                format!("slot {slot}: {proposed} drafts from draft K/V of {drafted} rows")
            })?;
            // Everything known so far: the prompt, and the answer as it was emitted.
            let known: Vec<i32> = request.prompt.iter().chain(&request.out).copied().collect();
            if self.sim.state(slot) != State::Aborted && !request.out.is_empty() {
                ensure(committed as usize + 1 == known.len(), || {
                    format!("slot {slot}: {committed} committed, {} tokens known", known.len())
                })?;
            }
            ensure(self.sim.tokens(slot)[..known.len()] == known, || format!("slot {slot}: tokens changed"))?;
            let enough = request.out.len() <= request.want.len();
            ensure(enough && request.out == request.want[..request.out.len()], || {
                format!("slot {slot}: emitted {:?}, plain decoding gives {:?}", request.out, request.want)
            })?;
            request.committed = committed;
        }
        Ok(())
    }

    /// Takes finished sequences out.
    fn collect(&mut self) -> Result<(), String> {
        for slot in 0..self.options.slots {
            let state = self.sim.state(slot);
            // Finished slots stay for a while: rounds queued behind must do nothing for them.
            if !state.finished() || self.rng.below(3) > 0 {
                continue;
            }
            let Some(request) = self.requests[slot].take() else { continue };
            self.report.finished[state as usize] += 1;
            if state != State::Aborted {
                ensure(request.out == request.want && state == request.end, || {
                    format!(
                        "slot {slot}: ended {state:?} with {:?}, not {:?} with {:?}",
                        request.out, request.end, request.want
                    )
                })?;
            }
        }
        Ok(())
    }
}

/// The live sequences of a list: slot, first position, rows.
fn sequences(rows: &RowTable<kernels_core::Cpu>) -> Vec<(usize, usize, std::ops::Range<usize>)> {
    (0..rows.sequences)
        .filter(|i| rows.slots[*i] >= 0 && rows.row_offsets[*i] < rows.row_offsets[*i + 1])
        .map(|i| {
            let range = rows.row_offsets[i] as usize..rows.row_offsets[i + 1] as usize;
            (rows.slots[i] as usize, rows.start[i] as usize, range)
        })
        .collect()
}

/// Decodes token by token, and why it ended.
fn plain(prompt: &[i32], params: &SamplingParams, eos: i32, stop: &[i32], limit: usize) -> (Vec<i32>, State) {
    let mut sim = Sim::new(1, POSITIONS, 1);
    sim.sampling.set(&(), 0, params, VOCAB).unwrap();
    sim.table.admit(&(), 0, prompt, POSITIONS, POSITIONS).unwrap();
    let mut tokens = prompt.to_vec();
    loop {
        sim.table.tokens[..tokens.len()].copy_from_slice(&tokens);
        let at = rows(&[0], &[tokens.len() as i32 - 1], &[0, 1]);
        tokens.push(sim.sample(&at, &logits_of(hash(&tokens)), VOCAB)[0]);
        let answer = &tokens[prompt.len()..];
        let state = if answer.ends_with(&[eos]) {
            State::Eos
        } else if answer.ends_with(stop) {
            State::Stop
        } else if tokens.len() == limit {
            State::Length
        } else {
            continue;
        };
        return (answer.to_vec(), state);
    }
}

/// The runs that every bite check must break too.
pub(crate) fn standard() -> Vec<Options> {
    let base = Options {
        seed: 1,
        slots: 4,
        max_rows: 4,
        flush_after: 2,
        draft_noise: 0.0,
        requests: 24,
        skip_draft: 0.1,
    };
    vec![
        base,
        Options { seed: 2, draft_noise: 0.7, ..base },
        Options { seed: 3, draft_noise: 0.7, flush_after: 0, slots: 3, ..base },
        Options { seed: 4, draft_noise: 3.0, max_rows: 6, flush_after: 5, ..base },
        Options { seed: 5, draft_noise: 0.3, max_rows: 2, skip_draft: 0.6, ..base },
        Options { seed: 6, draft_noise: 0.3, max_rows: 1, skip_draft: 0.9, slots: 1, ..base },
    ]
}

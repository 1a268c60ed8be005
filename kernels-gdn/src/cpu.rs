//! The CPU half: the specification of what a launch reads, computes and writes.

use crate::token::{self, Accumulators, Step, TILE};
use crate::{Args, FoldArgs, Problem};
use kernels_core::slots::{self, Bounds, Fault, FaultKind};
use kernels_core::{Activation, Cpu, Tensor, TensorMut, fault, ref_math};
use std::ops::Range;

/// Tokens of a prefill whose keys and queries are kept normalised at a time.
const BLOCK: usize = 64;

pub(crate) fn verify<A: Activation>(p: &Problem, mut args: Args<'_, Cpu, A>) {
    let planted = Planted::now();
    let ring = p.journal_rows - usize::from(planted.short_journal);
    let mut scratch = Scratch::new(p, p.journal_rows + 1);
    for index in 0..p.sequences {
        let Some(mut live) = admit(p, index, &mut args, true) else { continue };
        // On a device, heads and tiles append and replay in any order. Appending first is the order that
        // needs the most journal, so a journal too short for any order fails here as well.
        append(p, &mut args, &live, ring);

        let flush = slots::flushes(live.pending.len(), p.flush_after);
        let empty = live.pending.start == 0;
        planted.disturb(&mut live.pending);
        let (pending, total) = (live.pending.len(), live.pending.len() + live.rows.len());
        let stored = if planted.store_rejected { total } else { pending };

        let (journal, fresh) = (shared(&args.journal), Fresh::of(&args));
        let inputs = Inputs { journal, ring, fresh, live: &live };
        let gates = Gates { a_log: args.a_log.row(&[]), dt_bias: args.dt_bias.row(&[]) };
        let mode = Mode {
            empty,
            store_after: flush.then_some(stored),
            untreed: planted.block_arithmetic && live.rows.len() > 1,
            misfused: planted.contract_in_blocks && live.rows.len() > 1,
        };
        block(p, gates, &inputs, 0..total, mode, &mut args.state, &mut args.out, &mut scratch);
    }
    zero(&mut args.out, args.rows.unowned(p.rows));
}

pub(crate) fn prefill<A: Activation>(p: &Problem, mut args: Args<'_, Cpu, A>) {
    let mut scratch = Scratch::new(p, BLOCK);
    for index in 0..p.sequences {
        let Some(live) = admit(p, index, &mut args, false) else { continue };
        let (journal, fresh) = (shared(&args.journal), Fresh::of(&args));
        let inputs = Inputs { journal, ring: p.journal_rows, fresh, live: &live };
        let gates = Gates { a_log: args.a_log.row(&[]), dt_bias: args.dt_bias.row(&[]) };
        advance(p, gates, &inputs, &mut args.state, &mut args.out, &mut scratch);
    }
    zero(&mut args.out, args.rows.unowned(p.rows));
}

pub(crate) fn fold<A: Activation>(p: &Problem, mut args: FoldArgs<'_, Cpu, A>) {
    let mut scratch = Scratch::new(p, BLOCK);
    let mut no_out = TensorMut::new(&mut [][..], [0, 0, 0]);
    for index in 0..p.sequences {
        let slot = args.slots.at([index]);
        if slot < 0 {
            continue;
        }
        if slot as usize >= p.slots {
            Fault { kind: FaultKind::Slot, slot, value: slot }.record(&mut args.faults);
            continue;
        }
        let (folded, committed) = (args.folded.at([slot as usize]), args.committed.at([slot as usize]));
        let pending = i64::from(committed) - i64::from(folded);
        if !fits(slot, folded, pending, p.journal_rows, &mut args.faults) || pending == 0 {
            continue;
        }
        let live = Live { slot: slot as usize, pending: folded as usize..committed as usize, rows: 0..0 };
        let (journal, fresh) = (shared(&args.journal), Fresh::none());
        let inputs = Inputs { journal, ring: p.journal_rows, fresh, live: &live };
        let gates = Gates { a_log: args.a_log.row(&[]), dt_bias: args.dt_bias.row(&[]) };
        advance(p, gates, &inputs, &mut args.state, &mut no_out, &mut scratch);
    }
}

/// What a launch does for one sequence.
struct Live {
    slot: usize,
    /// Positions to replay from the journal.
    pending: Range<usize>,
    /// New rows of the launch.
    rows: Range<usize>,
}

/// Reads and checks the counters of a sequence; one that is skipped has its outputs zeroed.
fn admit<A: Activation>(
    p: &Problem,
    index: usize,
    args: &mut Args<'_, Cpu, A>,
    appends: bool,
) -> Option<Live> {
    let bounds = Bounds { rows: p.rows, slots: p.slots, positions: i32::MAX as usize };
    let sequence = args.rows.sequence(index, bounds, &mut args.faults);
    let (rows, start) = (sequence.rows.clone(), sequence.start);
    let live = sequence.slot.and_then(|slot| {
        let name = slot as i32;
        if rows.len() > p.max_rows {
            let fault = Fault { kind: FaultKind::RowOffsets, slot: name, value: rows.len() as i32 };
            fault.record(&mut args.faults);
            return None;
        }
        let folded = args.folded.at([slot]);
        // The plan of an operation that appends holds journal_rows >= 2 max_rows.
        let room = p.journal_rows - if appends { rows.len() } else { 0 };
        let pending = start as i64 - i64::from(folded);
        fits(name, folded, pending, room, &mut args.faults).then(|| Live {
            slot,
            pending: folded as usize..start,
            rows: rows.clone(),
        })
    });
    if live.is_none() {
        zero(&mut args.out, rows);
    }
    live
}

/// The load check: 0 <= pending <= room, and counters that make sense.
fn fits(slot: i32, folded: i32, pending: i64, room: usize, faults: &mut TensorMut<'_, Cpu, u64, 1>) -> bool {
    let fits = folded >= 0 && 0 <= pending && pending <= room as i64;
    if !fits {
        let value = pending.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        Fault { kind: FaultKind::Pending, slot, value }.record(faults);
    }
    fits
}

fn zero<A: Activation>(out: &mut TensorMut<'_, Cpu, A, 3>, rows: Range<usize>) {
    for row in rows {
        for head in 0..out.dims[1] {
            out.row_mut(&[row, head]).fill(A::default());
        }
    }
}

/// Writes the raw inputs of the new rows into the journal: k of all heads, v of all heads, a, b.
fn append<A: Activation>(p: &Problem, args: &mut Args<'_, Cpu, A>, live: &Live, ring: usize) {
    for (i, row) in live.rows.clone().enumerate() {
        let cell = args.journal.row_mut(&[live.slot, (live.pending.end + i) % ring]);
        let (k, rest) = cell.split_at_mut(p.k_heads * p.k_dim);
        let (v, rest) = rest.split_at_mut(p.v_heads * p.v_dim);
        let (a, b) = rest.split_at_mut(p.v_heads);
        for head in 0..p.k_heads {
            k[head * p.k_dim..][..p.k_dim].copy_from_slice(args.k.row(&[row, head]));
        }
        for head in 0..p.v_heads {
            v[head * p.v_dim..][..p.v_dim].copy_from_slice(args.v.row(&[row, head]));
        }
        a.copy_from_slice(args.a.row(&[row]));
        b.copy_from_slice(args.b.row(&[row]));
    }
}

/// The new rows of a launch.
struct Fresh<'a, A: Activation> {
    q: Tensor<'a, Cpu, A, 3>,
    k: Tensor<'a, Cpu, A, 3>,
    v: Tensor<'a, Cpu, A, 3>,
    a: Tensor<'a, Cpu, A, 2>,
    b: Tensor<'a, Cpu, A, 2>,
}

impl<'a, A: Activation> Fresh<'a, A> {
    fn of(args: &Args<'a, Cpu, A>) -> Self {
        let (q, k, v) = (args.q.clone(), args.k.clone(), args.v.clone());
        Fresh { q, k, v, a: args.a.clone(), b: args.b.clone() }
    }

    fn none() -> Self {
        let three = || Tensor::new(&[][..], [0; 3]);
        let two = || Tensor::new(&[][..], [0; 2]);
        Fresh { q: three(), k: three(), v: three(), a: two(), b: two() }
    }
}

/// The raw inputs of one sequence's tokens: first the pending ones, then the new rows.
struct Inputs<'j, 'f, A: Activation> {
    journal: Tensor<'j, Cpu, A, 3>,
    /// Rows of the journal in use.
    ring: usize,
    fresh: Fresh<'f, A>,
    live: &'j Live,
}

/// The raw inputs of one token, all heads.
struct Raw<'a, A> {
    q: Option<(&'a [A], usize)>,
    k: (&'a [A], usize),
    v: (&'a [A], usize),
    a: &'a [A],
    b: &'a [A],
}

/// A head of a token, given the elements from head zero on and the stride between heads.
#[inline(always)]
fn head<A>((data, stride): (&[A], usize), head: usize, dim: usize) -> &[A] {
    &data[head * stride..][..dim]
}

impl<A: Activation> Inputs<'_, '_, A> {
    fn len(&self) -> usize {
        self.live.pending.len() + self.live.rows.len()
    }

    /// The launch row of token `t`; `None` for a replayed one.
    #[inline(always)]
    fn row(&self, t: usize) -> Option<usize> {
        t.checked_sub(self.live.pending.len()).map(|i| self.live.rows.start + i)
    }

    #[inline(always)]
    fn raw(&self, p: &Problem, t: usize) -> Raw<'_, A> {
        let Some(row) = self.row(t) else {
            let cell = self.journal.row(&[self.live.slot, (self.live.pending.start + t) % self.ring]);
            let (k, rest) = cell.split_at(p.k_heads * p.k_dim);
            let (v, rest) = rest.split_at(p.v_heads * p.v_dim);
            let (a, b) = rest.split_at(p.v_heads);
            return Raw { q: None, k: (k, p.k_dim), v: (v, p.v_dim), a, b };
        };
        let Fresh { q, k, v, a, b } = &self.fresh;
        Raw {
            q: Some((&q.data[row * q.strides[0]..], q.strides[1])),
            k: (&k.data[row * k.strides[0]..], k.strides[1]),
            v: (&v.data[row * v.strides[0]..], v.strides[1]),
            a: a.row(&[row]),
            b: b.row(&[row]),
        }
    }
}

/// What turns a and b into decay and write strength.
#[derive(Clone, Copy)]
struct Gates<'a> {
    a_log: &'a [f32],
    dt_bias: &'a [f32],
}

/// How a block of tokens treats the state.
#[derive(Clone, Copy)]
struct Mode {
    /// The state is zero by definition and is not read.
    empty: bool,
    /// Store the state after this many tokens of the block.
    store_after: Option<usize>,
    /// Planted: another sum order.
    untreed: bool,
    /// Planted: one multiply-add is fused otherwise.
    misfused: bool,
}

/// Working memory of a launch.
struct Scratch {
    keys: Vec<f32>,    // [tokens, padded k_dim]
    queries: Vec<f32>, // [tokens, padded k_dim]
    products: Vec<f32>,
    decays: Vec<f32>,
    betas: Vec<f32>,
    tile: Vec<f32>, // [TILE, padded k_dim]
}

impl Scratch {
    fn new(p: &Problem, tokens: usize) -> Self {
        let width = token::padded(p.k_dim);
        let per_token = || vec![0.0; tokens];
        Scratch {
            keys: vec![0.0; tokens * width],
            queries: vec![0.0; tokens * width],
            products: per_token(),
            decays: per_token(),
            betas: per_token(),
            tile: vec![0.0; TILE * width],
        }
    }
}

/// Runs all tokens and stores the state behind them.
fn advance<A: Activation>(
    p: &Problem,
    gates: Gates,
    inputs: &Inputs<'_, '_, A>,
    state: &mut TensorMut<'_, Cpu, f32, 4>,
    out: &mut TensorMut<'_, Cpu, A, 3>,
    scratch: &mut Scratch,
) {
    let mut from = 0;
    while from < inputs.len() {
        let to = inputs.len().min(from + BLOCK);
        let empty = inputs.live.pending.start == 0 && from == 0;
        let mode = Mode { empty, store_after: Some(to - from), untreed: false, misfused: false };
        block(p, gates, inputs, from..to, mode, state, out, scratch);
        from = to;
    }
}

/// Runs some tokens of a sequence over all heads.
#[allow(clippy::too_many_arguments)] // the borrows of one Args, taken apart
fn block<A: Activation>(
    p: &Problem,
    gates: Gates,
    inputs: &Inputs<'_, '_, A>,
    tokens: Range<usize>,
    mode: Mode,
    state: &mut TensorMut<'_, Cpu, f32, 4>,
    out: &mut TensorMut<'_, Cpu, A, 3>,
    scratch: &mut Scratch,
) {
    for key_head in 0..p.k_heads {
        ref_math::vectorised(
            #[inline(always)]
            || prologue(p, inputs, tokens.clone(), key_head, mode, scratch),
        );
        for value_head in key_head * p.group()..(key_head + 1) * p.group() {
            let (a_log, dt_bias) = (gates.a_log[value_head], gates.dt_bias[value_head]);
            for (i, t) in tokens.clone().enumerate() {
                let raw = inputs.raw(p, t);
                scratch.decays[i] = token::decay(raw.a[value_head].to_f32(), a_log, dt_bias);
                scratch.betas[i] = ref_math::sigmoid(raw.b[value_head].to_f32());
            }
            for from in (0..p.v_dim).step_by(TILE) {
                let values = from..p.v_dim.min(from + TILE);
                let at = TileAt { slot: inputs.live.slot, value_head, values };
                ref_math::vectorised(
                    #[inline(always)]
                    || tile(p, inputs, tokens.clone(), &at, mode, state, out, scratch),
                );
            }
        }
    }
}

/// Normalises the keys and queries of some tokens.
#[inline(always)]
fn prologue<A: Activation>(
    p: &Problem,
    inputs: &Inputs<'_, '_, A>,
    tokens: Range<usize>,
    key_head: usize,
    mode: Mode,
    scratch: &mut Scratch,
) {
    let width = token::padded(p.k_dim);
    let scale = token::query_scale(p.k_dim);
    for (i, t) in tokens.enumerate() {
        let raw = inputs.raw(p, t);
        let key = &mut scratch.keys[i * width..][..width];
        token::normalise(head(raw.k, key_head, p.k_dim), 1.0, key);
        if let Some(q) = raw.q {
            let query = &mut scratch.queries[i * width..][..width];
            token::normalise(head(q, key_head, p.k_dim), scale, query);
            scratch.products[i] = token::product(query, key);
            if mode.untreed {
                scratch.products[i] = query.iter().zip(key.iter()).map(|(q, k)| q * k).sum();
            }
        }
    }
}

/// Some rows of the state of one value head.
struct TileAt {
    slot: usize,
    value_head: usize,
    values: Range<usize>,
}

/// Loads a tile of the state, runs the tokens over it, stores it where the mode says.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // the borrows of one Args, taken apart
fn tile<A: Activation>(
    p: &Problem,
    inputs: &Inputs<'_, '_, A>,
    tokens: Range<usize>,
    at: &TileAt,
    mode: Mode,
    state: &mut TensorMut<'_, Cpu, f32, 4>,
    out: &mut TensorMut<'_, Cpu, A, 3>,
    scratch: &mut Scratch,
) {
    let width = token::padded(p.k_dim);
    let rows = &mut scratch.tile[..];
    rows.fill(0.0);
    if !mode.empty {
        for (row, v) in rows.chunks_exact_mut(width).zip(at.values.clone()) {
            row[..p.k_dim].copy_from_slice(state.row(&[at.slot, at.value_head, v]));
        }
    }
    let len = tokens.len();
    let mut sums = Accumulators::new();
    for (i, t) in tokens.enumerate() {
        if mode.store_after == Some(i) {
            store(p, rows, at, state);
        }
        let raw = inputs.raw(p, t);
        let mut values = [0.0; TILE];
        let raw_values = head(raw.v, at.value_head, p.v_dim);
        for (value, v) in values.iter_mut().zip(&raw_values[at.values.clone()]) {
            *value = v.to_f32();
        }
        let query = &scratch.queries[i * width..][..width];
        let step = Step {
            key: &scratch.keys[i * width..][..width],
            query: raw.q.is_some().then_some((query, scratch.products[i])),
            decay: scratch.decays[i],
            beta: scratch.betas[i],
            // The state behind a block's last row is needed by nobody, unless it is stored.
            write: i + 1 < len || mode.store_after == Some(len),
            misfused: mode.misfused,
        };
        let outputs = token::step(rows, &step, &values, &mut sums);
        if let Some(row) = inputs.row(t) {
            let out = &mut out.row_mut(&[row, at.value_head])[at.values.clone()];
            for (out, o) in out.iter_mut().zip(outputs) {
                *out = A::from_f32(o);
            }
        }
    }
    if mode.store_after == Some(len) {
        store(p, rows, at, state);
    }
}

#[inline(always)]
fn store(p: &Problem, rows: &[f32], at: &TileAt, state: &mut TensorMut<'_, Cpu, f32, 4>) {
    for (row, v) in rows.chunks_exact(token::padded(p.k_dim)).zip(at.values.clone()) {
        state.row_mut(&[at.slot, at.value_head, v]).copy_from_slice(&row[..p.k_dim]);
    }
}

fn shared<'a, A: Activation>(t: &'a TensorMut<'_, Cpu, A, 3>) -> Tensor<'a, Cpu, A, 3> {
    Tensor { data: &*t.data, dims: t.dims, strides: t.strides }
}

/// Faults of the bite checks; all false outside them.
struct Planted {
    skip_replay: bool,
    replay_rejected_row: bool,
    short_journal: bool,
    stale_counter: bool,
    store_rejected: bool,
    block_arithmetic: bool,
    contract_in_blocks: bool,
}

impl Planted {
    #[inline(always)]
    fn now() -> Self {
        Planted {
            skip_replay: fault::active("gdn.skip_replay"),
            replay_rejected_row: fault::active("gdn.replay_rejected_row"),
            short_journal: fault::active("gdn.short_journal"),
            stale_counter: fault::active("gdn.stale_counter"),
            store_rejected: fault::active("gdn.store_rejected"),
            block_arithmetic: fault::active("gdn.block_arithmetic"),
            contract_in_blocks: fault::active("gdn.contract_in_blocks"),
        }
    }

    /// Replays other rows than the pending ones.
    #[inline(always)]
    fn disturb(&self, pending: &mut Range<usize>) {
        if self.skip_replay {
            pending.start = pending.end;
        }
        if self.replay_rejected_row {
            pending.end += 1;
        }
        if self.stale_counter {
            pending.start = pending.start.saturating_sub(1);
        }
    }
}

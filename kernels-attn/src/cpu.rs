//! The CPU half: the specification.

use crate::{
    AppendArgs, AppendProblem, Args, Problem, WorkArgs,
    grid::Deal,
    softmax,
    softmax::Parts,
    tree,
    work::{Entry, list},
};
use kernels_core::{
    Activation, Cpu, KvPool, TensorMut, fault, ref_math, rope,
    slots::{Bounds, Fault, FaultKind, Sequence},
};
use std::ops::Range;

/// Rows of a sequence that share one pass over its keys; the bits do not depend on it.
const PASS_ROWS: usize = 8;

pub(crate) fn append<A: Activation>(problem: &AppendProblem, mut args: AppendArgs<'_, Cpu, A>) {
    let p = problem;
    let positions = p.max_pages.saturating_mul(p.page_rows).min(p.positions);
    let bounds = Bounds { rows: p.rows, slots: p.slots, positions };
    let mut head = vec![0.0; softmax::padded(p.head_dim)];
    for index in 0..p.sequences {
        let mut sequence = args.rows.sequence(index, bounds, &mut args.faults);
        zero(&mut args.q_out, sequence.rows.clone());
        if fault::active("attn.padding_row_written") && sequence.slot.is_none() {
            sequence.slot = Some(0);
            if sequence.rows.is_empty() {
                let unowned = args.rows.unowned(p.rows);
                sequence.rows = unowned.start..unowned.end.min(unowned.start + 1);
            }
        }
        let Some(slot) = sequence.slot else { continue };
        let span = sequence.start..sequence.start + sequence.rows.len();
        let paging = Paging { pages: args.page_table.row(&[slot]), page_rows: p.page_rows };
        if let Err(fault) = paging.check(slot, span, args.pool.pages) {
            fault.record(&mut args.faults);
            continue;
        }
        ref_math::vectorised(
            #[inline(always)]
            || append_sequence(p, &mut args, &sequence, &paging, &mut head),
        );
    }
    zero(&mut args.q_out, args.rows.unowned(p.rows));
}

#[inline(always)]
fn append_sequence<A: Activation>(
    p: &AppendProblem,
    args: &mut AppendArgs<'_, Cpu, A>,
    sequence: &Sequence,
    paging: &Paging<'_>,
    head: &mut [f32],
) {
    for (i, row) in sequence.rows.clone().enumerate() {
        let position = sequence.start + i;
        let angle = if fault::active("attn.rope_shift") { i } else { position };
        let angles = args.rope.row(&[angle]);
        for h in 0..p.q_heads {
            norm_and_rotate(args.q.row(&[row, h]), args.q_norm.row(&[]), angles, p.eps, head);
            round(head, args.q_out.row_mut(&[row, h]));
        }
        let (page, at) = paging.locate(position);
        for h in 0..p.kv_heads {
            norm_and_rotate(args.k.row(&[row, h]), args.k_norm.row(&[]), angles, p.eps, head);
            round(head, args.pool.key_mut(page, h, at));
            args.pool.value_mut(page, h, at).copy_from_slice(args.v.row(&[row, h]));
        }
    }
}

#[inline(always)]
fn norm_and_rotate<A: Activation>(x: &[A], weight: &[A], angles: &[f32], eps: f32, out: &mut [f32]) {
    // Beyond the head `out` holds the zeros that pad it.
    widen(x, out);
    let mean = softmax::dot(out, out) / x.len() as f32;
    let scale = ref_math::rsqrt(mean + eps);
    for d in 0..x.len() {
        out[d] = out[d] * scale * (1.0 + weight[d].to_f32());
    }
    rope::rotate(&mut out[..angles.len()], angles);
}

pub(crate) fn attend<A: Activation>(problem: &Problem, mut args: Args<'_, Cpu, A>) {
    let p = problem;
    let (page_rows, positions) = (p.page_rows, p.positions());
    let bounds = Bounds { rows: p.rows, slots: p.slots, positions };
    let mut scratch = Scratch::new(p);
    for index in 0..p.sequences {
        let sequence = args.rows.sequence(index, bounds, &mut args.faults);
        zero(&mut args.out, sequence.rows.clone());
        let Some(slot) = sequence.slot else { continue };
        let paging = Paging { pages: args.page_table.row(&[slot]), page_rows };
        let rows = sequence.rows.len();
        if let Err(fault) = check(p, slot, sequence.start, rows, &paging, args.pool.pages) {
            fault.record(&mut args.faults);
            continue;
        }
        for first in (0..rows).step_by(PASS_ROWS) {
            let part = first..(first + PASS_ROWS).min(rows);
            let block = Block {
                rows: sequence.rows.start + part.start..sequence.rows.start + part.end,
                start: sequence.start + part.start,
                paging,
            };
            for kv_head in 0..p.kv_heads {
                ref_math::vectorised(
                    #[inline(always)]
                    || attend_block(p, &mut args, &block, kv_head, positions, &mut scratch),
                );
            }
        }
    }
    zero(&mut args.out, args.rows.unowned(p.rows));
}

/// Everything that a sequence can get wrong beside its own numbers.
fn check(
    p: &Problem,
    slot: usize,
    start: usize,
    rows: usize,
    paging: &Paging<'_>,
    pages: usize,
) -> Result<(), Fault> {
    if rows > p.max_rows {
        let (kind, value) = (FaultKind::RowOffsets, rows as i32);
        return Err(Fault { kind, slot: slot as i32, value });
    }
    let visible = Visible { problem: p, positions: p.positions() };
    paging.check(slot, visible.span(start..start + rows), pages)
}

pub(crate) fn work(problem: &Problem, deal: &Deal, mut args: WorkArgs<'_, Cpu>) {
    let p = problem;
    let bounds = Bounds { rows: p.rows, slots: p.slots, positions: p.positions() };
    let mut entries = vec![];
    for index in 0..p.sequences {
        let Sequence { slot, start, rows, .. } = args.rows.sequence(index, bounds, &mut args.faults);
        let Some(slot) = slot else {
            entries.push(Entry::Zeros(rows));
            continue;
        };
        let paging = Paging { pages: args.page_table.row(&[slot]), page_rows: p.page_rows };
        entries.push(match check(p, slot, start, rows.len(), &paging, p.pages) {
            Ok(()) => Entry::Attends { slot, start, rows },
            Err(fault) => {
                fault.record(&mut args.faults);
                Entry::Zeros(rows)
            }
        });
    }
    list(p, deal, &entries, args.rows.unowned(p.rows), args.work.row_mut(&[]));
}

/// Some rows of one sequence, which read its keys together.
struct Block<'a> {
    rows: Range<usize>,
    start: usize,
    paging: Paging<'a>,
}

/// What one block needs: `[rows * group]` parts of each level, and a tile's keys and values in fp32. Queries,
/// keys and values are padded with zeros.
struct Scratch {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    leaf: Parts,
    group: Parts,
    total: Parts,
}

impl Scratch {
    fn new(p: &Problem) -> Self {
        let heads = p.rows.min(p.max_rows).min(PASS_ROWS) * p.group();
        let parts = || Parts::new(heads, p.head_dim);
        let width = softmax::padded(p.head_dim);
        Scratch {
            queries: vec![0.0; heads * width],
            keys: vec![0.0; tree::TILE_KEYS * width],
            values: vec![0.0; tree::TILE_KEYS * width],
            leaf: parts(),
            group: parts(),
            total: parts(),
        }
    }
}

#[inline(always)]
fn attend_block<A: Activation>(
    p: &Problem,
    args: &mut Args<'_, Cpu, A>,
    block: &Block<'_>,
    kv_head: usize,
    positions: usize,
    scratch: &mut Scratch,
) {
    let (width, group) = (softmax::padded(p.head_dim), p.group());
    let rows = block.rows.len();
    let visible = Visible { problem: p, positions };
    let keys = visible.span(block.start..block.start + rows);
    let scale = softmax::exponent_scale(p.head_dim);

    for (i, row) in block.rows.clone().enumerate() {
        for j in 0..group {
            let query = args.q.row(&[row, kv_head * group + j]);
            widen(query, &mut scratch.queries[(i * group + j) * width..]);
        }
    }
    for level in [&mut scratch.leaf, &mut scratch.group, &mut scratch.total] {
        level.clear();
    }
    let (tiles, leaf_tiles) = (tree::tiles(keys.clone()), tree::leaf_tiles(p.kv_heads));
    for tile in tiles.clone() {
        let (first, end) = (tile * tree::TILE_KEYS, (tile + 1) * tree::TILE_KEYS);
        load(&args.pool, &block.paging, kv_head, first, keys.start.max(first)..keys.end.min(end), scratch);
        let skipped = fault::active("attn.tile_skipped") && tile % tree::GROUP_TILES == 1;
        for i in 0..rows {
            let seen = visible.keys(block.start + i);
            let seen = seen.start.max(first)..seen.end.min(end);
            if seen.is_empty() || skipped {
                continue;
            }
            let seen = seen.start - first..seen.end - first;
            for j in i * group..(i + 1) * group {
                let (part, query) = (scratch.leaf.get(j), &scratch.queries[j * width..][..width]);
                softmax::tile::<A>(part, query, &scratch.keys, &scratch.values, seen.clone(), scale);
            }
        }
        let last = tile + 1 == tiles.end;
        if tree::ends_leaf(tile, leaf_tiles) || last {
            scratch.group.fold(&mut scratch.leaf);
        }
        if tree::ends_group(tile) || last {
            scratch.total.fold(&mut scratch.group);
        }
    }
    for (i, row) in block.rows.clone().enumerate() {
        for j in 0..group {
            let head = kv_head * group + j;
            let gate = args.gate.as_ref().map(|gate| gate.row(&[row, head]));
            let out = args.out.row_mut(&[row, head]);
            softmax::finish(scratch.total.get(i * group + j), gate, out);
        }
    }
}

/// Reads the keys and values at positions `part` into their places of the tile that begins at `first`.
#[inline(always)]
fn load<A: Activation>(
    pool: &KvPool<'_, Cpu, A>,
    paging: &Paging<'_>,
    head: usize,
    first: usize,
    part: Range<usize>,
    scratch: &mut Scratch,
) {
    let width = softmax::padded(pool.head_dim);
    let stale = fault::active("attn.page_stale");
    for position in part {
        let (mut page, row) = paging.locate(position);
        if stale {
            page = paging.locate(first).0;
        }
        let at = (position - first) * width;
        widen(pool.key(page, head, row), &mut scratch.keys[at..]);
        widen(pool.value(page, head, row), &mut scratch.values[at..]);
    }
}

/// Which keys a row sees.
struct Visible<'a> {
    problem: &'a Problem,
    positions: usize,
}

impl Visible<'_> {
    #[inline(always)]
    fn keys(&self, position: usize) -> Range<usize> {
        self.shown(self.problem.keys(position))
    }

    #[inline(always)]
    fn span(&self, rows: Range<usize>) -> Range<usize> {
        self.shown(self.problem.span(rows))
    }

    #[inline(always)]
    fn shown(&self, keys: Range<usize>) -> Range<usize> {
        if fault::active("attn.mask_off_by_one") {
            return keys.start..(keys.end + 1).min(self.positions);
        }
        keys
    }
}

/// Where a slot's positions lie.
#[derive(Clone, Copy)]
struct Paging<'a> {
    /// The slot's row of the page table.
    pages: &'a [i32],
    page_rows: usize,
}

impl Paging<'_> {
    /// The page and the row of it that hold a position.
    #[inline(always)]
    fn locate(&self, position: usize) -> (usize, usize) {
        (self.pages[position / self.page_rows] as usize, position % self.page_rows)
    }

    /// Refuses page numbers outside the pool among the pages of `positions`.
    fn check(&self, slot: usize, positions: Range<usize>, pages: usize) -> Result<(), Fault> {
        if positions.is_empty() {
            return Ok(());
        }
        let entries = positions.start / self.page_rows..positions.end.div_ceil(self.page_rows);
        for &page in &self.pages[entries] {
            if page < 0 || page as usize >= pages {
                return Err(Fault { kind: FaultKind::Page, slot: slot as i32, value: page });
            }
        }
        Ok(())
    }
}

fn zero<A: Activation>(out: &mut TensorMut<'_, Cpu, A, 3>, rows: Range<usize>) {
    for row in rows {
        for head in 0..out.dims[1] {
            out.row_mut(&[row, head]).fill(A::default());
        }
    }
}

/// Widens `x` into the front of `out`.
#[inline(always)]
fn widen<A: Activation>(x: &[A], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = x.to_f32();
    }
}

#[inline(always)]
fn round<A: Activation>(x: &[f32], out: &mut [A]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = A::from_f32(*x);
    }
}

//! Sequences as a model sees them, and launches that place them in memory in many ways.

use kernels_attn::{Args, Prefill, Problem, Verify};
use kernels_core::{Activation, Cpu, DeviceInfo, KvPool, KvPoolMut, KvStrides, PAD, Rows, Tensor, TensorMut};
use kernels_testkit::rng::Rng;
use std::ops::Range;

/// What all sequences of a launch share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub(crate) q_heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) first_key: usize,
    pub(crate) window: Option<usize>,
    pub(crate) gated: bool,
}

impl Model {
    pub(crate) fn new(q_heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Model { q_heads, kv_heads, head_dim, first_key: 0, window: None, gated: true }
    }

    /// The first key that a row at `position` or later may see.
    pub(crate) fn first_seen(&self, position: usize) -> usize {
        let window = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        self.first_key.max(window)
    }

    /// A sequence with `rows` new rows at positions `start..`; `peak` scales the queries, and with them
    /// how unequal the weights are.
    pub(crate) fn sequence<A: Activation>(
        &self,
        seed: u64,
        start: usize,
        rows: usize,
        peak: f32,
    ) -> Sequence<A> {
        let mut rng = Rng::new(seed);
        let kv = (start + rows) * self.kv_heads * self.head_dim;
        let q = rows * self.q_heads * self.head_dim;
        Sequence {
            start,
            rows,
            keys: rng.normals(kv, 1.0),
            values: rng.normals(kv, 1.0),
            q: rng.normals(q, peak),
            gate: rng.normals(q, 2.0),
        }
    }
}

/// One sequence, everything in the order of positions: `[start + rows, kv_heads, head_dim]` and
/// `[rows, q_heads, head_dim]`.
#[derive(Clone, Debug)]
pub(crate) struct Sequence<A> {
    pub(crate) start: usize,
    pub(crate) rows: usize,
    pub(crate) keys: Vec<A>,
    pub(crate) values: Vec<A>,
    pub(crate) q: Vec<A>,
    pub(crate) gate: Vec<A>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Layout {
    /// `[pages, 2, kv_heads, page_rows, head_dim]`
    Packed,
    /// `[pages, page_rows, kv_heads, 2, head_dim]`
    TokenMajor,
    /// `[2, pages, kv_heads, page_rows, head_dim]` with gaps
    Gapped,
}

pub(crate) const LAYOUTS: [Layout; 3] = [Layout::Packed, Layout::TokenMajor, Layout::Gapped];

/// Where a launch puts things; none of it may change a bit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) page_rows: usize,
    pub(crate) layout: Layout,
    /// Shuffles slots, pages and the order in the launch; 0 = everything in order.
    pub(crate) seed: u64,
    /// Adds padding sequences and rows that nobody owns.
    pub(crate) padding: bool,
    pub(crate) prefill: bool,
}

pub(crate) const PLAIN: Placement =
    Placement { page_rows: 16, layout: Layout::Packed, seed: 0, padding: false, prefill: false };

/// One launch's memory: slots, pages and rows handed out.
pub(crate) struct Memory {
    pub(crate) page_rows: usize,
    pub(crate) slots: usize,
    pub(crate) max_pages: usize,
    pub(crate) pages: usize,
    pub(crate) table: Vec<i32>,
    pub(crate) strides: KvStrides,
    pub(crate) pool_len: usize,
    /// Per sequence of the launch: index of the caller's sequence (`None` = padding) and rows.
    pub(crate) launch: Vec<(Option<usize>, usize)>,
    pub(crate) slot_of: Vec<usize>,
    pub(crate) row_slots: Vec<i32>,
    pub(crate) offsets: Vec<i32>,
    pub(crate) rows: usize,
}

impl Memory {
    /// Room for sequences of the given rows that reach `positions`.
    pub(crate) fn new(model: &Model, placement: &Placement, rows: &[usize], positions: usize) -> Memory {
        let mut rng = Rng::new(placement.seed);
        let mut order = |n: usize| match placement.seed {
            0 => (0..n).collect(),
            _ => rng.permutation(n),
        };
        // Two slots more than sequences, so that some are free.
        let (slots, page_rows) = (rows.len() + 2, placement.page_rows);
        let max_pages = positions.div_ceil(page_rows) + 1;
        let pages = slots * max_pages + 3;
        let table = order(pages)[..slots * max_pages].iter().map(|p| *p as i32).collect();
        let mut launch: Vec<_> = rows.iter().enumerate().map(|(i, n)| (Some(i), *n)).collect();
        if placement.padding {
            launch.extend([(None, 2), (None, 0), (None, 1)]);
        }
        launch = order(launch.len()).into_iter().map(|i| launch[i]).collect();
        let slot_of = order(slots);
        let row_slots = launch.iter().map(|(i, _)| i.map_or(PAD, |i| slot_of[i] as i32)).collect();
        let mut offsets = vec![0];
        for (_, rows) in &launch {
            offsets.push(offsets[offsets.len() - 1] + *rows as i32);
        }
        let total = offsets[offsets.len() - 1] as usize + if placement.padding { 2 } else { 0 };
        let (d, h) = (model.head_dim, model.kv_heads);
        let strides = match placement.layout {
            Layout::Packed => KvPool::<Cpu, f32>::packed(&[], pages, h, page_rows, d).strides,
            Layout::TokenMajor => {
                KvStrides { page: page_rows * h * 2 * d, kv: d, head: 2 * d, row: h * 2 * d }
            }
            Layout::Gapped => {
                let (row, head) = (d + 3, page_rows * (d + 3) + 1);
                let page = h * head + 7;
                KvStrides { page, kv: pages * page + 11, head, row }
            }
        };
        let s = strides;
        let pool_len = (pages - 1) * s.page + s.kv + (h - 1) * s.head + (page_rows - 1) * s.row + d;
        Memory {
            page_rows,
            slots,
            max_pages,
            pages,
            table,
            strides,
            pool_len,
            launch,
            slot_of,
            row_slots,
            offsets,
            rows: total,
        }
    }

    pub(crate) fn pool<'a, A: Activation>(&self, model: &Model, data: &'a [A]) -> KvPool<'a, Cpu, A> {
        KvPool {
            data,
            pages: self.pages,
            kv_heads: model.kv_heads,
            page_rows: self.page_rows,
            head_dim: model.head_dim,
            strides: self.strides,
        }
    }

    pub(crate) fn pool_mut<'a, A: Activation>(
        &self,
        model: &Model,
        data: &'a mut [A],
    ) -> KvPoolMut<'a, Cpu, A> {
        KvPoolMut {
            data,
            pages: self.pages,
            kv_heads: model.kv_heads,
            page_rows: self.page_rows,
            head_dim: model.head_dim,
            strides: self.strides,
        }
    }

    pub(crate) fn page(&self, sequence: usize, position: usize) -> (usize, usize) {
        let entry = self.slot_of[sequence] * self.max_pages + position / self.page_rows;
        (self.table[entry] as usize, position % self.page_rows)
    }
}

/// Runs one launch over some rows of each sequence and returns their outputs, `[rows, q_heads, head_dim]`
/// each.
///
/// Only the keys that some row of the part may see are in memory; everything else (earlier and later
/// positions, free pages, padding rows, outputs, gaps) is NaN. Checks that nothing was written besides the
/// rows, that padding gives zeros and that no fault was recorded.
pub(crate) fn attend<A: Activation>(
    model: &Model,
    placement: &Placement,
    parts: &[(&Sequence<A>, Range<usize>)],
) -> Vec<Vec<A>> {
    let nan = A::from_f32(f32::NAN);
    let (d, hq, hkv) = (model.head_dim, model.q_heads, model.kv_heads);
    let counts: Vec<usize> = parts.iter().map(|(_, rows)| rows.len()).collect();
    let positions = parts.iter().map(|(s, rows)| s.start + rows.end).max().unwrap_or(0);
    let memory = Memory::new(model, placement, &counts, positions);

    let mut data = vec![nan; memory.pool_len];
    let mut pool = memory.pool_mut(model, &mut data);
    for (i, (sequence, rows)) in parts.iter().enumerate() {
        for position in model.first_seen(sequence.start + rows.start)..sequence.start + rows.end {
            let (page, row) = memory.page(i, position);
            for head in 0..hkv {
                let at = (position * hkv + head) * d;
                pool.key_mut(page, head, row).copy_from_slice(&sequence.keys[at..at + d]);
                pool.value_mut(page, head, row).copy_from_slice(&sequence.values[at..at + d]);
            }
        }
    }
    // Query and gate interleaved per head, as the projection leaves them.
    let mut q_gate = vec![nan; memory.rows * hq * 2 * d];
    let mut start = vec![0; memory.launch.len()];
    for (index, (owner, _)) in memory.launch.iter().enumerate() {
        let Some(owner) = *owner else { continue };
        let (sequence, rows) = &parts[owner];
        start[index] = (sequence.start + rows.start) as i32;
        let first = memory.offsets[index] as usize;
        for head in 0..rows.len() * hq {
            let (from, to) = ((rows.start * hq + head) * d, (first * hq + head) * 2 * d);
            q_gate[to..to + d].copy_from_slice(&sequence.q[from..from + d]);
            q_gate[to + d..to + 2 * d].copy_from_slice(&sequence.gate[from..from + d]);
        }
    }
    let gap = if placement.layout == Layout::Gapped { 5 } else { 0 };
    let out_stride = hq * d + gap;
    let mut out = vec![nan; memory.rows * out_stride];
    let mut faults = vec![0u64; memory.slots + 1];
    let problem = Problem {
        sequences: memory.launch.len(),
        rows: memory.rows,
        max_rows: counts.iter().copied().max().unwrap_or(1).max(1),
        q_heads: hq,
        kv_heads: hkv,
        head_dim: d,
        slots: memory.slots,
        max_pages: memory.max_pages,
        first_key: model.first_key,
        window: model.window,
    };
    let dims = [memory.rows, hq, d];
    let strided = |data| Tensor::new(data, dims).with_strides([hq * 2 * d, 2 * d, 1]);
    let args = Args::<Cpu, A> {
        out: TensorMut::new(&mut out[..], dims).with_strides([out_stride, d, 1]),
        faults: TensorMut::new(&mut faults[..], [memory.slots + 1]),
        q: strided(&q_gate[..]),
        gate: model.gated.then(|| strided(&q_gate[d..])),
        pool: memory.pool(model, &data),
        page_table: Tensor::new(&memory.table[..], [memory.slots, memory.max_pages]),
        rows: Rows {
            slots: Tensor::new(&memory.row_slots[..], [memory.launch.len()]),
            start: Tensor::new(&start[..], [memory.launch.len()]),
            row_offsets: Tensor::new(&memory.offsets[..], [memory.launch.len() + 1]),
        },
    };
    if placement.prefill {
        Prefill::plan(problem, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
    } else {
        Verify::plan(problem, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
    }
    assert!(faults.iter().all(|word| *word == 0), "faults {faults:x?}");
    read_rows(&memory, &out, out_stride, hq * d, parts.len())
}

/// The rows of each sequence; padding must be zeros, gaps still NaN.
pub(crate) fn read_rows<A: Activation>(
    memory: &Memory,
    out: &[A],
    stride: usize,
    width: usize,
    sequences: usize,
) -> Vec<Vec<A>> {
    let mut result = vec![Vec::new(); sequences];
    let mut owner_of = vec![None; memory.rows];
    for (index, (owner, rows)) in memory.launch.iter().enumerate() {
        let first = memory.offsets[index] as usize;
        owner_of[first..first + rows].fill(*owner);
    }
    for (row, owner) in owner_of.into_iter().enumerate() {
        let (values, gap) = out[row * stride..(row + 1) * stride].split_at(width);
        assert!(gap.iter().all(|x| x.to_f32().is_nan()), "row {row}: written beyond the row");
        match owner {
            Some(owner) => result[owner].extend_from_slice(values),
            None => assert!(values.iter().all(|x| *x == A::default()), "padding row {row}"),
        }
    }
    result
}

/// The outputs of one sequence, its rows split into launches of the given lengths.
pub(crate) fn attend_split<A: Activation>(
    model: &Model,
    placement: &Placement,
    sequence: &Sequence<A>,
    lengths: &[usize],
) -> Vec<A> {
    assert_eq!(lengths.iter().sum::<usize>(), sequence.rows);
    let mut first = 0;
    let mut out = Vec::new();
    for length in lengths {
        out.extend(attend(model, placement, &[(sequence, first..first + length)]).remove(0));
        first += length;
    }
    out
}

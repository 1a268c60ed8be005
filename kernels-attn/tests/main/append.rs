//! Norm, rotary and the write into pages: equal bytes, f64, literal values.

use crate::accuracy::{U, roundoff};
use crate::place::{Place, takes};
use crate::support::{LAYOUTS, Memory, Model, PLAIN, Placement, read_rows};
use kernels_attn::{Append, AppendArgs, AppendProblem};
use kernels_core::{Activation, Cpu, DeviceInfo, KvPoolMut, Rows, Tensor, TensorMut, bf16, f16, rope};
use kernels_testkit::{
    compare::assert_same_bits,
    guard::{Guarded, poison},
    rng::Rng,
};
use std::ops::Range;

const EPS: f32 = 1e-6;

pub(crate) struct Rope<'a, A> {
    pub(crate) theta: f64,
    pub(crate) rotary: usize,
    pub(crate) q_norm: &'a [A],
    pub(crate) k_norm: &'a [A],
}

/// Raw projections of one sequence's rows.
#[derive(Clone, Debug)]
struct Raw<A> {
    start: usize,
    q: Vec<A>,
    k: Vec<A>,
    v: Vec<A>,
}

fn raw<A: Activation>(model: &Model, seed: u64, start: usize, rows: usize) -> Raw<A> {
    let mut rng = Rng::new(seed);
    let (q, kv) = (rows * model.q_heads * model.head_dim, rows * model.kv_heads * model.head_dim);
    Raw { start, q: rng.normals(q, 2.0), k: rng.normals(kv, 0.5), v: rng.normals(kv, 1.0) }
}

/// Queries, keys and values of some rows, in the order of positions.
type Done<A> = (Vec<A>, Vec<A>, Vec<A>);

/// Runs one launch over some rows of each sequence. All memory is NaN before it, and must be so after it
/// except for the rows' own places.
fn append<B: Place, A: Activation>(
    on: &B::Queue,
    model: &Model,
    placement: &Placement,
    rope: &Rope<'_, A>,
    parts: &[(&Raw<A>, Range<usize>)],
) -> Vec<Done<A>> {
    let nan = poison::<A>();
    let (d, hq, hkv) = (model.head_dim, model.q_heads, model.kv_heads);
    let counts: Vec<usize> = parts.iter().map(|(_, rows)| rows.len()).collect();
    let positions = parts.iter().map(|(s, rows)| s.start + rows.end).max().unwrap_or(0);
    let memory = Memory::new::<B>(model, placement, &counts, positions);
    let positions = memory.max_pages * memory.page_rows;
    let table = rope::table(rope.theta, rope.rotary, positions);

    let mut q_gate = vec![nan; memory.rows * hq * 2 * d];
    let mut k = vec![nan; memory.rows * hkv * d];
    let mut v = k.clone();
    // Padding names a free page's position: nothing may come to stand there.
    let mut start = vec![(positions - memory.page_rows) as i32; memory.launch.len()];
    for (index, (owner, _)) in memory.launch.iter().enumerate() {
        let Some(owner) = *owner else { continue };
        let (sequence, rows) = &parts[owner];
        start[index] = (sequence.start + rows.start) as i32;
        let first = memory.offsets[index] as usize;
        for head in 0..rows.len() * hq {
            let (from, to) = ((rows.start * hq + head) * d, (first * hq + head) * 2 * d);
            q_gate[to..to + d].copy_from_slice(&sequence.q[from..from + d]);
        }
        let (from, to) = (rows.start * hkv * d..rows.end * hkv * d, first * hkv * d);
        k[to..to + from.len()].copy_from_slice(&sequence.k[from.clone()]);
        v[to..to + from.len()].copy_from_slice(&sequence.v[from]);
    }
    let problem = AppendProblem {
        sequences: memory.launch.len(),
        rows: memory.rows,
        q_heads: hq,
        kv_heads: hkv,
        head_dim: d,
        rotary: rope.rotary,
        eps: EPS,
        slots: memory.slots,
        max_pages: memory.max_pages,
        page_rows: memory.page_rows,
        positions,
    };
    let guarded = |data: &[A]| Guarded::<B, A>::new(on, data, nan);
    let integers = |data: &[i32]| Guarded::<B, i32>::new(on, data, i32::MIN);
    let (q_gate, k, v) = (guarded(&q_gate), guarded(&k), guarded(&v));
    let (q_norm, k_norm) = (guarded(rope.q_norm), guarded(rope.k_norm));
    let angles = Guarded::<B, f32>::new(on, &table, f32::NAN);
    let (table, start) = (integers(&memory.table), integers(&start));
    let (row_slots, offsets) = (integers(&memory.row_slots), integers(&memory.offsets));
    let mut pool = guarded(&vec![nan; memory.pool_len]);
    let mut q_out = guarded(&vec![nan; memory.rows * hq * d]);
    let mut faults = Guarded::<B, u64>::new(on, &vec![0; memory.slots + 1], u64::MAX);
    {
        let (pool_at, q_out_at, faults_at) = (pool.payload(), q_out.payload(), faults.payload());
        let (mut pool_there, mut q_out_there) = (pool.whole_mut(), q_out.whole_mut());
        let mut faults_there = faults.whole_mut();
        let args = AppendArgs::<B, A> {
            q_out: TensorMut::new(B::slice_mut(&mut q_out_there, q_out_at), [memory.rows, hq, d]),
            pool: KvPoolMut {
                data: B::slice_mut(&mut pool_there, pool_at),
                pages: memory.pages,
                kv_heads: hkv,
                page_rows: memory.page_rows,
                head_dim: d,
                strides: memory.strides,
            },
            faults: TensorMut::new(B::slice_mut(&mut faults_there, faults_at), [memory.slots + 1]),
            q: Tensor::new(q_gate.view(), [memory.rows, hq, d]).with_strides([hq * 2 * d, 2 * d, 1]),
            k: Tensor::new(k.view(), [memory.rows, hkv, d]),
            v: Tensor::new(v.view(), [memory.rows, hkv, d]),
            q_norm: Tensor::new(q_norm.view(), [d]),
            k_norm: Tensor::new(k_norm.view(), [d]),
            rope: Tensor::new(angles.view(), [positions, rope.rotary]),
            page_table: Tensor::new(table.view(), [memory.slots, memory.max_pages]),
            rows: Rows {
                slots: Tensor::new(row_slots.view(), [memory.launch.len()]),
                start: Tensor::new(start.view(), [memory.launch.len()]),
                row_offsets: Tensor::new(offsets.view(), [memory.launch.len() + 1]),
            },
        };
        let op = Append::plan(problem, &B::device(on)).unwrap();
        op.overlapping(placement.overlapping).run(on, args).unwrap();
    }
    let faults = faults.read(on);
    assert!(faults.iter().all(|word| *word == 0), "faults {faults:x?}");
    let mut data = pool.read(on);

    let queries = read_rows(&memory, &q_out.read(on), hq * d, hq * d, parts.len());
    let mut pool = memory.pool_mut(model, &mut data);
    let mut done = Vec::new();
    for (i, ((sequence, rows), queries)) in parts.iter().zip(queries).enumerate() {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for position in sequence.start + rows.start..sequence.start + rows.end {
            let (page, row) = memory.page(i, position);
            for head in 0..hkv {
                let key = pool.key_mut(page, head, row);
                keys.extend_from_slice(key);
                key.fill(nan);
                let value = pool.value_mut(page, head, row);
                values.extend_from_slice(value);
                value.fill(nan);
            }
        }
        done.push((queries, keys, values));
    }
    let strays = data.iter().filter(|x| !x.to_f32().is_nan()).count();
    assert_eq!(strays, 0, "elements written beside the rows' own places");
    done
}

/// One sequence, its rows split into launches of the given lengths.
#[expect(clippy::too_many_arguments, reason = "three tensors, four settings")]
pub(crate) fn append_rows<B: Place, A: Activation>(
    on: &B::Queue,
    model: &Model,
    placement: &Placement,
    rope: &Rope<'_, A>,
    start: usize,
    lengths: &[usize],
    q: &[A],
    k: &[A],
    v: &[A],
) -> Done<A> {
    let raw = Raw { start, q: q.to_vec(), k: k.to_vec(), v: v.to_vec() };
    append_split::<B, _>(on, model, placement, rope, &raw, lengths)
}

fn append_split<B: Place, A: Activation>(
    on: &B::Queue,
    model: &Model,
    placement: &Placement,
    rope: &Rope<'_, A>,
    raw: &Raw<A>,
    lengths: &[usize],
) -> Done<A> {
    let mut done: Done<A> = Default::default();
    let mut first = 0;
    for length in lengths {
        let (q, k, v) = append::<B, _>(on, model, placement, rope, &[(raw, first..first + length)]).remove(0);
        done.0.extend(q);
        done.1.extend(k);
        done.2.extend(v);
        first += length;
    }
    done
}

fn assert_same<A: Activation>(what: &str, got: &Done<A>, want: &Done<A>) {
    assert_same_bits(&format!("{what}: queries"), &got.0, &want.0);
    assert_same_bits(&format!("{what}: keys"), &got.1, &want.1);
    assert_same_bits(&format!("{what}: values"), &got.2, &want.2);
}

fn same_everywhere<B: Place, A: Activation>(on: &B::Queue, model: Model, rotary: usize, start: usize) {
    if !takes::<B, A>() {
        return;
    }
    let mut rng = Rng::new(2);
    let (q_norm, k_norm) = (rng.normals::<A>(model.head_dim, 0.3), rng.normals::<A>(model.head_dim, 0.3));
    let rope = Rope { theta: 1e7, rotary, q_norm: &q_norm, k_norm: &k_norm };
    let first: Raw<A> = raw(&model, 3, start, 5);
    let second: Raw<A> = raw(&model, 4, 17, 3);
    let want = append_split::<B, _>(on, &model, &PLAIN, &rope, &first, &[1; 5]);
    assert_same_bits("values are copied", &want.2, &first.v);
    for lengths in [&[5][..], &[2, 3], &[4, 1]] {
        let got = append_split::<B, _>(on, &model, &PLAIN, &rope, &first, lengths);
        assert_same(&format!("{model:?} at {start}, split {lengths:?}"), &got, &want);
    }
    let other = append_split::<B, _>(on, &model, &PLAIN, &rope, &second, &[1; 3]);
    for (seed, page_rows) in [(1, 1), (2, 3), (3, 16), (4, 64), (5, 128), (6, 16), (7, 16)] {
        let layout = LAYOUTS[seed as usize % 3];
        let placement = Placement { seed, page_rows, layout, padding: true, ..PLAIN };
        let both = append::<B, _>(on, &model, &placement, &rope, &[(&first, 0..5), (&second, 0..3)]);
        assert_same(&format!("{model:?}, {placement:?}"), &both[0], &want);
        assert_same(&format!("{model:?}, {placement:?}"), &both[1], &other);
    }
}

pub(crate) fn rows_batch_and_placement_do_not_matter<B: Place>(on: &B::Queue) {
    for start in [0, 13, 127, 2046] {
        same_everywhere::<B, bf16>(on, Model::new::<B>(4, 2, 32), 8, start);
        same_everywhere::<B, f32>(on, Model::new::<B>(3, 1, 20), 20, start);
    }
    same_everywhere::<B, bf16>(on, Model::new::<B>(24, 4, 256), 64, 30);
    same_everywhere::<B, f16>(on, Model::new::<B>(2, 2, 128), 0, 30);
}

/// The bytes of the CPU, by rows and at once.
#[cfg(feature = "cuda")]
pub(crate) fn same_on_both<B: Place>(on: &B::Queue, model: &Model, rotary: usize, start: usize) {
    let mut rng = Rng::new(7);
    let [q_norm, k_norm] = [(); 2].map(|()| rng.normals::<bf16>(model.head_dim, 0.3));
    let rope = Rope { theta: 1e7, rotary, q_norm: &q_norm, k_norm: &k_norm };
    let raw: Raw<bf16> = raw(model, 8, start, 9);
    let want = append_split::<Cpu, _>(&(), model, &PLAIN, &rope, &raw, &[9]);
    for (page_rows, layout, lengths) in
        [(16, LAYOUTS[0], &[9][..]), (64, LAYOUTS[1], &[1, 8]), (128, LAYOUTS[2], &[4, 5])]
    {
        let placement = Placement { page_rows, layout, seed: 9, padding: true, ..PLAIN };
        let got = append_split::<B, _>(on, model, &placement, &rope, &raw, lengths);
        assert_same(&format!("{model:?}, rotary {rotary}, {placement:?}"), &got, &want);
    }
}

/// f64 with the errors' derivation: the sum of squares has `N + 1` roundings (N of `Place::dot` on the CPU, whose order append has everywhere), the
/// root halves that and adds 2, mean, eps, scale and weight 5: a normed element is off by
/// `e = ((N + 1) / 2 + 7) u`, relative. A rotated one is `a cos -+ b sin` with two roundings and a table
/// rounded once: `(e + 3 u) (|a cos| + |b sin|)`. Then `A` rounds, relative or half a smallest step.
fn check_against_f64<B: Place, A: Activation>(on: &B::Queue, model: Model, rotary: usize, start: usize) {
    if !takes::<B, A>() {
        return;
    }
    let (d, theta) = (model.head_dim, 1e7);
    let mut rng = Rng::new(5);
    let (q_norm, k_norm) = (rng.normals::<A>(d, 0.3), rng.normals::<A>(d, 0.3));
    let rope = Rope { theta, rotary, q_norm: &q_norm, k_norm: &k_norm };
    let raw: Raw<A> = raw(&model, 6, start, 2);
    let (queries, keys, _) = append_split::<B, _>(on, &model, &PLAIN, &rope, &raw, &[2]);
    let (r, tiny) = roundoff::<A>();
    let e = ((<Cpu as Place>::dot(d) + 1.0) / 2.0 + 7.0) * U;
    let wide = |x: A| f64::from(x.to_f32());
    for (x, got, weight, heads) in
        [(&raw.q, queries, &q_norm, model.q_heads), (&raw.k, keys, &k_norm, model.kv_heads)]
    {
        for (head, (x, got)) in x.chunks(d).zip(got.chunks(d)).enumerate() {
            let position = (start + head / heads) as f64;
            let mean = x.iter().map(|x| wide(*x).powi(2)).sum::<f64>() / d as f64;
            let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
            let y: Vec<f64> = (0..d).map(|i| wide(x[i]) * scale * (1.0 + wide(weight[i]))).collect();
            let half = rotary / 2;
            for i in 0..d {
                let (want, size) = if i < rotary {
                    let j = i % half;
                    let angle = position * theta.powf(-2.0 * j as f64 / rotary as f64);
                    let (a, b) = (y[j], y[j + half]);
                    if i < half {
                        let (x, y) = (a * angle.cos(), b * angle.sin());
                        (x - y, x.abs() + y.abs())
                    } else {
                        let (x, y) = (b * angle.cos(), a * angle.sin());
                        (x + y, x.abs() + y.abs())
                    }
                } else {
                    (y[i], y[i].abs())
                };
                let bound = 1.05 * ((e + 3.0 * U) * size + r * want.abs()) + tiny;
                let error = (wide(got[i]) - want).abs();
                assert!(error <= bound, "{model:?} head {head}, {i}: {error:e} > {bound:e}");
            }
        }
    }
}

pub(crate) fn within_the_bound_of_f64<B: Place>(on: &B::Queue) {
    for start in [0, 1, 1000, 30_000] {
        check_against_f64::<B, f32>(on, Model::new::<B>(2, 1, 256), 64, start);
        check_against_f64::<B, bf16>(on, Model::new::<B>(2, 1, 256), 64, start);
        check_against_f64::<B, f16>(on, Model::new::<B>(4, 2, 32), 8, start);
        check_against_f64::<B, f32>(on, Model::new::<B>(2, 2, 24), 0, start);
    }
}

/// Two elements rotated by a quarter turn, computed by hand.
pub(crate) fn literal() {
    let problem = AppendProblem {
        sequences: 1,
        rows: 1,
        q_heads: 1,
        kv_heads: 1,
        head_dim: 4,
        rotary: 2,
        eps: 0.0,
        slots: 1,
        max_pages: 2,
        page_rows: 2,
        positions: 3,
    };
    // Position 2 turns by 90 degrees: (a, b) becomes (-b, a).
    let rope = [1.0f32, 0.0, 1.0, 0.0, 0.0, 1.0];
    let (mut q_out, mut faults) = ([f32::NAN; 4], [0u64; 2]);
    // One page of two rows: position 2 is row 0 of the slot's second page, page 0 of the pool.
    let mut pool = [f32::NAN; 2 * 2 * 4];
    let op = Append::plan(problem, &DeviceInfo::cpu()).unwrap();
    let args = AppendArgs::<Cpu, f32> {
        q_out: TensorMut::new(&mut q_out[..], [1, 1, 4]),
        pool: KvPoolMut::packed(&mut pool[..], 1, 1, 2, 4),
        faults: TensorMut::new(&mut faults[..], [2]),
        // Mean squares 4 and 1/4.
        q: Tensor::new(&[2.0, 2.0, -2.0, 2.0][..], [1, 1, 4]),
        k: Tensor::new(&[0.5, -0.5, 0.5, 0.5][..], [1, 1, 4]),
        v: Tensor::new(&[5.0, 6.0, 7.0, 8.0][..], [1, 1, 4]),
        q_norm: Tensor::new(&[0.0, 1.0, 2.0, -1.0][..], [4]),
        k_norm: Tensor::new(&[0.0, 0.5, 0.25, 0.0][..], [4]),
        rope: Tensor::new(&rope[..], [3, 2]),
        page_table: Tensor::new(&[7, 0][..], [1, 2]),
        rows: Rows {
            slots: Tensor::new(&[0][..], [1]),
            start: Tensor::new(&[2][..], [1]),
            row_offsets: Tensor::new(&[0, 1][..], [2]),
        },
    };
    op.run(&(), args).unwrap();
    assert_eq!(faults, [0, 0]);
    assert_eq!(q_out, [-2.0, 1.0, -3.0, 0.0]);
    assert_eq!(pool[..4], [1.5, 1.0, 1.25, 1.0]);
    assert_eq!(pool[8..12], [5.0, 6.0, 7.0, 8.0]);
    assert!(pool[4..8].iter().chain(&pool[12..]).all(|x| x.is_nan()));
}

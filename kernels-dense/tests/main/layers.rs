//! Linear layers and the head on both backends: a row is a function of itself.

use crate::{
    approx::{Approx, assert_admitted, dot, exact},
    calm,
    world::{GAP, Place, packed, spread, strides},
};
use kernels_core::{
    Tensor, TensorMut,
    argmax::argmax,
    bf16,
    ref_math::{sigmoid, silu},
};
use kernels_dense::*;
use kernels_testkit::{
    compare::assert_same_bits,
    guard::{Guarded, poison},
    rng::Rng,
    runner::{sanitized, stride},
};

/// A weight, with poison between its rows, and a workspace that all launches share.
pub(crate) struct Layer<B: Place> {
    queue: B::Queue,
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) epilogue: Epilogue,
    pub(crate) weights: Vec<bf16>,
    weight: Guarded<B, bf16>,
    workspace: Guarded<B, u8>,
}

const CANARY: u8 = 0xa5;

impl<B: Place> Layer<B> {
    pub(crate) fn new(queue: &B::Queue, weights: Vec<bf16>, k: usize, epilogue: Epilogue) -> Self {
        let weight_rows = weights.len() / k;
        let n = if epilogue == Epilogue::SiluMul { weight_rows / 2 } else { weight_rows };
        let weight = Guarded::new(queue, &spread(&weights, 1, k), poison());
        let workspace = Guarded::new(queue, &[], CANARY);
        Layer { queue: queue.clone(), k, n, epilogue, weights, weight, workspace }
    }

    pub(crate) fn random(queue: &B::Queue, n: usize, k: usize, epilogue: Epilogue) -> Self {
        let weight_rows = if epilogue == Epilogue::SiluMul { 2 * n } else { n };
        let weights = Rng::new((n + k) as u64).normals(weight_rows * k, 1.0 / (k as f32).sqrt());
        Layer::new(queue, weights, k, epilogue)
    }

    /// Zeros the first time and whenever more is needed; otherwise what earlier launches left.
    fn room(&mut self, bytes: usize) {
        if self.workspace.payload().len() < bytes {
            self.workspace = Guarded::new(&self.queue, &vec![0; bytes], CANARY);
        }
    }

    /// The rows of `before` become those of the result, as `plan` changes it.
    pub(crate) fn run(
        &mut self,
        before: &[bf16],
        x: &[bf16],
        plan: impl FnOnce(Linear) -> Linear,
    ) -> Vec<bf16> {
        let Layer { k, n, epilogue, .. } = *self;
        let rows = x.len() / k;
        let problem = LinearProblem { rows, k, n, epilogue };
        let op = plan(Linear::plan(problem, &B::device(&self.queue)).unwrap());
        let bytes = op.workspace_bytes();
        self.room(bytes);
        let first = self.workspace.payload().start;
        let input = Guarded::<B, _>::new(&self.queue, &spread(x, 1, k), poison());
        // A row's gate belongs to the row: its first element.
        let gate: Vec<f32> = x.chunks(k).map(|x| x[0].to_f32()).collect();
        let gate = Guarded::<B, f32>::new(&self.queue, &gate, poison());
        let mut output = Guarded::<B, _>::new(&self.queue, &spread(before, 1, n), poison());
        let at = output.payload();
        {
            let (mut out, mut workspace) = (output.whole_mut(), self.workspace.whole_mut());
            let args = LinearArgs::<B> {
                out: TensorMut::new(B::slice_mut(&mut out, at), [rows, n])
                    .with_strides([strides(1, n)[0], 1]),
                x: Tensor::new(input.view(), [rows, k]).with_strides([strides(1, k)[0], 1]),
                weight: Tensor::new(self.weight.view(), [problem.weight_rows(), k])
                    .with_strides([strides(1, k)[0], 1]),
                gate: Some(Tensor::new(gate.view(), [rows])),
                workspace: Some(TensorMut::new(B::slice_mut(&mut workspace, first..first + bytes), [bytes])),
            };
            op.run(&self.queue, args).unwrap();
        }
        self.workspace.read(&self.queue);
        packed("out", &output.read(&self.queue), 1, n).concat()
    }

    /// Logits, if they are asked for, and the best ids. Ids from `valid` on stand for none.
    pub(crate) fn head(
        &mut self,
        x: &[bf16],
        valid: usize,
        logits: bool,
        plan: impl FnOnce(Head) -> Head,
    ) -> (Option<Vec<f32>>, Vec<i32>) {
        self.listed_head(x, valid, logits, None, plan)
    }

    /// The same of some ids, with so many columns of logits, poison before.
    pub(crate) fn listed_head(
        &mut self,
        x: &[bf16],
        valid: usize,
        logits: bool,
        listed: Option<(&[i32], usize)>,
        plan: impl FnOnce(Head) -> Head,
    ) -> (Option<Vec<f32>>, Vec<i32>) {
        let Layer { k, n: vocab, .. } = *self;
        let width = listed.map_or(vocab, |(_, width)| width);
        let named = Guarded::<B, i32>::new(&self.queue, listed.map_or(&[], |(ids, _)| ids), i32::MAX);
        let rows = x.len() / k;
        let problem = HeadProblem { rows, k, vocab: width, valid, listed: listed.map(|(ids, _)| ids.len()) };
        let op = plan(Head::plan(problem, &B::device(&self.queue)).unwrap());
        let bytes = op.workspace_bytes();
        self.room(bytes);
        let first = self.workspace.payload().start;
        let input = Guarded::<B, _>::new(&self.queue, &spread(x, 1, k), poison());
        let nothing = spread(&vec![poison::<f32>(); rows * width], 1, width);
        let mut all = Guarded::<B, f32>::new(&self.queue, &nothing, poison());
        let mut best = Guarded::<B, i32>::new(&self.queue, &vec![i32::MIN; rows], i32::MAX);
        let (all_at, best_at) = (all.payload(), best.payload());
        {
            let (mut out, mut ids) = (all.whole_mut(), best.whole_mut());
            let mut workspace = self.workspace.whole_mut();
            let out = TensorMut::new(B::slice_mut(&mut out, all_at), [rows, width])
                .with_strides([strides(1, width)[0], 1]);
            let args = HeadArgs::<B> {
                logits: logits.then_some(out),
                argmax: Some(TensorMut::new(B::slice_mut(&mut ids, best_at), [rows])),
                x: Tensor::new(input.view(), [rows, k]).with_strides([strides(1, k)[0], 1]),
                weight: Tensor::new(self.weight.view(), [vocab, k]).with_strides([strides(1, k)[0], 1]),
                ids: listed.map(|_| Tensor::new(named.view(), [vocab])),
                workspace: Some(TensorMut::new(B::slice_mut(&mut workspace, first..first + bytes), [bytes])),
            };
            op.run(&self.queue, args).unwrap();
        }
        self.workspace.read(&self.queue);
        let all = packed("logits", &all.read(&self.queue), 1, width).concat();
        (logits.then_some(all), best.read(&self.queue))
    }
}

/// Rows of very different size: an order of summation shows.
pub(crate) fn rows_of(count: usize, k: usize, seed: u64) -> Vec<bf16> {
    let mut rng = Rng::new(seed);
    let mut x: Vec<bf16> = rng.normals(count * k, 1.0);
    for x in &mut x {
        let power = [0, 0, 0, 3, -4, 6][rng.below(6)];
        *x = bf16::from_f32(x.to_f32() * 2.0f32.powi(power));
    }
    x
}

/// (n, k): one tile and step, whole weights, weights cut along k, shares that cut a unit, sizes of no multiple.
pub(crate) fn shapes<B: Place>(epilogue: Epilogue) -> Vec<(usize, usize)> {
    let all: &[(usize, usize)] = match (B::GENERAL, epilogue) {
        (true, _) => &[(8, 16), (96, 520), (200, 64)],
        (_, Epilogue::Store) => {
            &[(8, 8), (64, 64), (96, 5120), (256, 2048), (200, 1032), (9216, 520), (16440, 200)]
        }
        (_, Epilogue::AddTo) => &[(72, 136), (2048, 512), (1000, 1096)],
        (_, Epilogue::SigmoidGate) => &[(136, 72), (2048, 512), (1000, 1160)],
        (_, Epilogue::SiluMul) => &[(8, 64), (512, 2048), (264, 1416), (1040, 3000), (8200, 128)],
    };
    all.iter().copied().step_by(stride(2)).collect()
}

fn counts<B: Place>(n: usize) -> Vec<usize> {
    if B::GENERAL {
        return (1..=12).chain([17, 33]).collect();
    }
    if sanitized() {
        return vec![1, 9, 17];
    }
    // A narrow weight has every number of rows and a prompt's; the columns go by that number alone.
    if n <= 136 {
        return (1..=1024).chain([4096]).collect();
    }
    let more = [96, 97, 127, 128, 129, 192, 193, 255, 256, 257, 300, 512, 513, 777, 1000, 1024];
    let most = ((1 << 21) / n).min(1024);
    (1..=80).chain(more.into_iter().filter(|count| *count <= most)).collect()
}

/// Any number of rows, row by row.
pub(crate) fn rows_are_single_rows<B: Place>(queue: &B::Queue) {
    calm(|| {
        for epilogue in crate::bits::EPILOGUES {
            for (n, k) in shapes::<B>(epilogue) {
                let counts = counts::<B>(n);
                let most = counts[counts.len() - 1];
                let mut layer = Layer::<B>::random(queue, n, k, epilogue);
                let (x, before) = (rows_of(most, k, 1), rows_of(most, n, 2));
                let one = |row: usize, layer: &mut Layer<B>| {
                    layer.run(&before[row * n..][..n], &x[row * k..][..k], |op| op)
                };
                let alone: Vec<bf16> = (0..most).flat_map(|row| one(row, &mut layer)).collect();
                assert!(alone.iter().all(|y| y.is_finite()), "{n} x {k}: something else was read");
                for count in counts {
                    let got = layer.run(&before[..count * n], &x[..count * k], |op| op);
                    let what = format!("{count} rows, {n} x {k}, {epilogue:?}");
                    assert_same_bits(&what, &got, &alone[..count * n]);
                }
            }
        }
    });
}

/// A row of NaN gives NaN, one of infinities NaN or infinities; no other row changes. Columns of zeros add nothing.
pub(crate) fn odd_rows_keep_to_themselves<B: Place>(queue: &B::Queue) {
    calm(|| {
        for epilogue in crate::bits::EPILOGUES {
            for (n, k) in shapes::<B>(epilogue) {
                let mut layer = Layer::<B>::random(queue, n, k, epilogue);
                let (clean, before) = (rows_of(20, k, 3), rows_of(20, n, 4));
                let mut dirty = clean.clone();
                dirty[2 * k..3 * k].fill(bf16::NAN);
                dirty[11 * k..12 * k].fill(bf16::INFINITY);
                dirty[12 * k..13 * k].fill(bf16::ZERO);
                let got = layer.run(&before, &dirty, |op| op);
                let want = layer.run(&before, &clean, |op| op);
                for row in (0..20).filter(|row| ![2, 11, 12].contains(row)) {
                    let at = row * n..(row + 1) * n;
                    assert_same_bits(&format!("row {row}, {n} x {k}"), &got[at.clone()], &want[at]);
                }
                assert!(got[2 * n..3 * n].iter().all(|y| y.is_nan()), "{n} x {k}");
                assert!(got[11 * n..12 * n].iter().all(|y| !y.is_finite() || *y == bf16::ZERO), "{n} x {k}");
                let zero = &got[12 * n..13 * n];
                if epilogue == Epilogue::AddTo {
                    assert_same_bits("nothing was added", zero, &before[12 * n..13 * n]);
                } else {
                    assert!(zero.iter().all(|y| *y == bf16::ZERO), "{n} x {k}");
                }
            }
        }
    });
}

/// What an epilogue gives is what its steps give, one after the other.
pub(crate) fn epilogues_are_their_parts<B: Place>(queue: &B::Queue) {
    calm(|| {
        let f = |x: bf16| x.to_f32();
        for rows in [1, 3, 8, 20] {
            for (n, k) in shapes::<B>(Epilogue::SiluMul) {
                let mut gated = Layer::<B>::random(queue, n, k, Epilogue::SiluMul);
                let mut store = Layer::<B>::new(queue, gated.weights.clone(), k, Epilogue::Store);
                let x = rows_of(rows, k, 5);
                let sums = store.run(&vec![poison(); rows * 2 * n], &x, |op| op);
                let part = |sums: &[bf16]| -> Vec<bf16> {
                    (0..n).map(|i| bf16::from_f32(silu(f(sums[i])) * f(sums[n + i]))).collect()
                };
                let want: Vec<bf16> = sums.chunks(2 * n).flat_map(part).collect();
                let got = gated.run(&vec![poison(); rows * n], &x, |op| op);
                assert_same_bits(&format!("SiluMul of {rows} rows, {n} x {k}"), &got, &want);
            }
            for (n, k) in shapes::<B>(Epilogue::AddTo) {
                let mut add = Layer::<B>::random(queue, n, k, Epilogue::AddTo);
                let mut store = Layer::<B>::new(queue, add.weights.clone(), k, Epilogue::Store);
                let (x, before) = (rows_of(rows, k, 6), rows_of(rows, n, 7));
                let sums = store.run(&vec![poison(); rows * n], &x, |op| op);
                let want: Vec<bf16> =
                    before.iter().zip(&sums).map(|(b, s)| bf16::from_f32(f(*b) + f(*s))).collect();
                let got = add.run(&before, &x, |op| op);
                assert_same_bits(&format!("AddTo of {rows} rows, {n} x {k}"), &got, &want);
            }
            for (n, k) in shapes::<B>(Epilogue::SigmoidGate) {
                let mut gated = Layer::<B>::random(queue, n, k, Epilogue::SigmoidGate);
                let mut store = Layer::<B>::new(queue, gated.weights.clone(), k, Epilogue::Store);
                let x = rows_of(rows, k, 6);
                let sums = store.run(&vec![poison(); rows * n], &x, |op| op);
                let of_row = |(sums, x): (&[bf16], &[bf16])| -> Vec<bf16> {
                    sums.iter().map(|s| bf16::from_f32(sigmoid(f(x[0])) * f(*s))).collect()
                };
                let want: Vec<bf16> = sums.chunks(n).zip(x.chunks(k)).flat_map(of_row).collect();
                let got = gated.run(&vec![poison(); rows * n], &x, |op| op);
                assert_same_bits(&format!("SigmoidGate of {rows} rows, {n} x {k}"), &got, &want);
            }
        }
    });
}

/// The best id is that of the logits, whether they are written or not, however many rows there are.
pub(crate) fn heads_choose_among_their_logits<B: Place>(queue: &B::Queue) {
    calm(|| {
        let shapes =
            if B::GENERAL { vec![(72, 40)] } else { vec![(8, 64), (1024, 1096), (4096, 256), (20008, 520)] };
        for (vocab, k) in shapes {
            let valid = vocab - 3;
            let mut layer = Layer::<B>::random(queue, vocab, k, Epilogue::Store);
            // Ties, also with an id that stands for nothing, and an id that is NaN for every row.
            let copy = layer.weights[k..2 * k].to_vec();
            for id in [2, vocab / 2, vocab - 1] {
                layer.weights[id * k..(id + 1) * k].copy_from_slice(&copy);
            }
            layer.weights[4 * k..5 * k].fill(bf16::NAN);
            let mut layer = Layer::<B>::new(queue, layer.weights, k, Epilogue::Store);
            let most = if B::GENERAL { 20 } else { 130 };
            let mut x = rows_of(most, k, 8);
            // Rows for which the ties are the best, one of NaN, one of zeros.
            for row in [0, 5, 19] {
                for (x, w) in x[row * k..(row + 1) * k].iter_mut().zip(&copy) {
                    *x = bf16::from_f32(40.0 * w.to_f32());
                }
            }
            x[3 * k..4 * k].fill(bf16::NAN);
            x[4 * k..5 * k].fill(bf16::ZERO);
            let (logits, best) = layer.head(&x, valid, true, |op| op);
            let logits = logits.expect("they were asked for");
            for (row, logits) in logits.chunks(vocab).enumerate() {
                let want = argmax(&logits[..valid]).map_or(-1, |id| id as i32);
                assert_eq!(best[row], want, "row {row}, {vocab} x {k}");
                assert!(logits[valid..].iter().all(|x| *x == f32::NEG_INFINITY), "row {row}");
            }
            assert_eq!((best[0], best[3], best[4], best[5]), (1, -1, 0, 1), "{vocab} x {k}");
            for count in [1, 2, 7, 8, 9, 16, 20, 33, 48, 64, 65, 97, 130].into_iter().filter(|c| *c <= most) {
                let (some, ids) = layer.head(&x[..count * k], valid, count % 2 == 1, |op| op);
                assert_eq!(ids, best[..count], "{count} rows, {vocab} x {k}");
                if let Some(some) = some {
                    assert_same_bits("logits", &some, &logits[..count * vocab]);
                }
            }
            // The sums are those of a layer.
            let sums = layer.run(&vec![poison(); most * vocab], &x, |op| op);
            let want: Vec<bf16> = logits.iter().map(|x| bf16::from_f32(*x)).collect();
            for (row, (sums, want)) in sums.chunks(vocab).zip(want.chunks(vocab)).enumerate() {
                if row != 3 {
                    let at = [0..4, 5..valid];
                    for at in at.into_iter().filter(|at| !at.is_empty()) {
                        assert_same_bits("sums and logits", &sums[at.clone()], &want[at]);
                    }
                }
            }
        }
    });
}

/// A trimmed head: ids in any order, some without a column, ties between them, rows that are not read.
pub(crate) fn heads_of_some_ids<B: Place>(queue: &B::Queue) {
    calm(|| {
        let shapes = if B::GENERAL { vec![(24, 40)] } else { vec![(8, 64), (72, 520), (4096, 256)] };
        for (listed, k) in shapes {
            let (width, valid) = (3 * listed, 3 * listed - 5);
            let chosen = &Rng::new(6).permutation(valid)[..listed];
            let mut ids: Vec<i32> = chosen.iter().map(|id| *id as i32).collect();
            (ids[3], ids[4]) = (-1, valid as i32);
            let mut layer = Layer::<B>::random(queue, listed, k, Epilogue::Store);
            // The same row of the weight for three ids, and for two that stand for no token.
            for at in [1, 2, 3, 4] {
                layer.weights.copy_within(..k, at * k);
            }
            let mut layer = Layer::<B>::new(queue, layer.weights, k, Epilogue::Store);
            let mut x = rows_of(20, k, 9);
            for (x, w) in x[..k].iter_mut().zip(&layer.weights[..k]) {
                *x = bf16::from_f32(40.0 * w.to_f32());
            }
            x[3 * k..4 * k].fill(bf16::NAN);
            let sums = layer.head(&x, listed, true, |op| op).0.expect("they were asked for");
            for logits in [true, false] {
                let (some, best) = layer.listed_head(&x, valid, logits, Some((&ids, width)), |op| op);
                for (row, sums) in sums.chunks(listed).enumerate() {
                    let mut want = vec![poison::<f32>(); width];
                    let mut winner: Option<(f32, i32)> = None;
                    for (&id, &sum) in ids.iter().zip(sums).filter(|(id, _)| (0..valid as i32).contains(*id))
                    {
                        want[id as usize] = sum;
                        let wins = winner.is_none_or(|(best, of)| sum > best || sum == best && id < of);
                        if wins && !sum.is_nan() {
                            winner = Some((sum, id));
                        }
                    }
                    assert_eq!(best[row], winner.map_or(-1, |(_, id)| id), "row {row} of {listed} x {k}");
                    if let Some(some) = &some {
                        assert_same_bits("logits", &some[row * width..(row + 1) * width], &want);
                    }
                }
                let tied = ids[..3].iter().min();
                assert_eq!((Some(&best[0]), best[3]), (tied, -1), "{listed} x {k}");
            }
        }
    });
}

/// Σ x w by tensor cores: a step adds 16 products to a sum, each of the 17 cut off below 2^-23 of the largest, which
/// is at most Σ |x w|. Segments round once each, and are fewer than steps.
pub(crate) fn dot_in_steps(x: &[Approx], w: &[Approx]) -> Approx {
    let size: f64 = x.iter().zip(w).map(|(x, w)| x.size() * w.size()).sum();
    let (steps, plain) = (x.len().div_ceil(16) as f64, dot(x, w, 8));
    Approx { error: plain.error + 18.0 * steps * 2.0f64.powi(-23) * size, ..plain }
}

pub(crate) fn sums_are_within_their_bound<B: Place>(queue: &B::Queue) {
    calm(|| {
        for epilogue in crate::bits::EPILOGUES {
            for (n, k) in shapes::<B>(epilogue) {
                let mut layer = Layer::<B>::random(queue, n, k, epilogue);
                let mut rng = Rng::new(9);
                let (x, before): (Vec<bf16>, Vec<bf16>) = (rng.normals(3 * k, 1.0), rng.normals(3 * n, 1.0));
                let got = layer.run(&before, &x, |op| op);
                let mut want = Vec::new();
                for row in 0..3 {
                    let x = exact(&x[row * k..][..k]);
                    let sum = |j: usize| dot_in_steps(&x, &exact(&layer.weights[j * k..][..k])).to::<bf16>();
                    want.extend((0..n).map(|j| match epilogue {
                        Epilogue::Store => sum(j),
                        Epilogue::AddTo => Approx::exact(before[row * n + j]).add(sum(j)).to::<bf16>(),
                        Epilogue::SiluMul => sum(j).silu().mul(sum(n + j)).to::<bf16>(),
                        Epilogue::SigmoidGate => x[0].sigmoid().mul(sum(j)).to::<bf16>(),
                    }));
                }
                assert_admitted(&format!("{epilogue:?} {n} x {k}"), &got, &want, 0.1);
            }
        }
    });
}

/// A launch of no rows is legal and does nothing.
pub(crate) fn no_rows_do_nothing<B: Place>(queue: &B::Queue) {
    calm(|| {
        for epilogue in crate::bits::EPILOGUES {
            let mut layer = Layer::<B>::random(queue, 64, 128, epilogue);
            assert!(layer.run(&[], &[], |op| op).is_empty());
        }
        let mut layer = Layer::<B>::random(queue, 64, 128, Epilogue::Store);
        assert!(layer.head(&[], 60, true, |op| op).1.is_empty());
        assert_eq!(GAP % 8, 0, "vectors stay aligned");
    });
}

//! Operands of a norm, an embedding or a gated activation, with poison wherever nothing may be read and canaries wherever nothing may be
//! written.

use crate::calls::EPS;
use kernels_core::{Activation, DeviceInfo, Result, Tensor, TensorMut};
use kernels_dense::*;
use kernels_testkit::{
    compare::assert_same_bits,
    guard::{Guarded, poison},
    place,
    rng::Rng,
};

/// Takes every activation type and any width if it is general.
pub(crate) trait Place: place::Place + DenseBackend {}
impl<B: place::Place + DenseBackend> Place for B {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Norm,
    AddNorm,
    ConcatNorm,
    GatedNorm,
    Embed,
    SiluMul,
}

pub(crate) const OPS: [Op; 6] =
    [Op::Norm, Op::AddNorm, Op::ConcatNorm, Op::GatedNorm, Op::Embed, Op::SiluMul];

/// What is computed: `parts` is the heads of a gated norm, 1 elsewhere; `n` the width of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) op: Op,
    pub(crate) parts: usize,
    pub(crate) n: usize,
}

/// Rows of an embedding's table.
pub(crate) const VOCAB: usize = 50;

/// The weights of a case, and the rows that go in.
#[derive(Clone, Debug)]
pub(crate) struct Data<A> {
    pub(crate) left_weight: Vec<A>,
    pub(crate) right_weight: Vec<A>,
    pub(crate) gated_weight: Vec<f32>,
    pub(crate) table: Vec<A>,
    pub(crate) ids: Vec<i32>,
    /// `[rows, parts, n]`
    pub(crate) x: Vec<A>,
    /// `[rows, parts, n]`: residual, right rows, gate or up.
    pub(crate) y: Vec<A>,
}

impl<A: Activation> Data<A> {
    pub(crate) fn random(case: Case, rows: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let Case { parts, n, .. } = case;
        Data {
            left_weight: rng.normals(n, 0.3),
            right_weight: rng.normals(n, 0.3),
            gated_weight: rng.uniforms(n, 0.5, 1.5),
            table: rng.normals(VOCAB * n, 1.0),
            // Beyond both ends of the table too.
            ids: (0..rows).map(|_| rng.below(VOCAB + 4) as i32 - 2).collect(),
            x: rng.normals(rows * parts * n, 2.0),
            y: rng.normals(rows * parts * n, 2.0),
        }
    }

    /// The same with only some of the rows.
    pub(crate) fn rows(&self, range: std::ops::Range<usize>) -> Self {
        let width = self.x.len() / self.ids.len();
        let part = |all: &[A]| all[range.start * width..range.end * width].to_vec();
        Data { x: part(&self.x), y: part(&self.y), ids: self.ids[range.clone()].to_vec(), ..self.clone() }
    }
}

/// Elements of poison behind each part, and once more behind each row: 16 bytes of bf16, so that vectors stay
/// aligned.
pub(crate) const GAP: usize = 8;

pub(crate) struct World<B: Place, A: Activation> {
    queue: B::Queue,
    pub(crate) case: Case,
    rows: usize,
    /// Vectors of a thread, where they are not the plan's.
    pub(crate) vectors: Option<usize>,
    pub(crate) overlapping: bool,
    left_weight: Guarded<B, A>,
    right_weight: Guarded<B, A>,
    gated_weight: Guarded<B, f32>,
    table: Guarded<B, A>,
    ids: Guarded<B, i32>,
    x: Guarded<B, A>,
    y: Guarded<B, A>,
    out: Guarded<B, A>,
}

/// Elements from one part to the next, and from one row to the next.
pub(crate) fn strides(parts: usize, n: usize) -> [usize; 3] {
    [parts * (n + GAP) + GAP, n + GAP, 1]
}

pub(crate) fn spread<A: Activation>(packed: &[A], parts: usize, n: usize) -> Vec<A> {
    let mut all = Vec::new();
    for row in packed.chunks(parts * n) {
        for part in row.chunks(n) {
            all.extend_from_slice(part);
            all.extend([poison::<A>(); GAP]);
        }
        all.extend([poison::<A>(); GAP]);
    }
    all
}

pub(crate) fn packed<A: Activation>(what: &str, all: &[A], parts: usize, n: usize) -> Vec<Vec<A>> {
    let [row, part, _] = strides(parts, n);
    let rows = all.chunks(row).map(|row| {
        assert_same_bits(&format!("gap between rows of {what}"), &row[parts * part..], &[poison(); GAP]);
        let parts = row[..parts * part].chunks(part).map(|part| {
            assert_same_bits(&format!("gap between parts of {what}"), &part[n..], &[poison(); GAP]);
            &part[..n]
        });
        parts.collect::<Vec<_>>().concat()
    });
    rows.collect()
}

impl<B: Place, A: Activation> World<B, A> {
    pub(crate) fn new(queue: &B::Queue, case: Case, data: &Data<A>) -> Self {
        let (rows, Case { parts, n, .. }) = (data.ids.len(), case);
        let guarded = |data: &[A]| Guarded::new(queue, data, poison::<A>());
        let nothing = |parts: usize, n: usize| vec![poison::<A>(); rows * strides(parts, n)[0]];
        let mut world = World {
            queue: queue.clone(),
            case,
            rows,
            vectors: None,
            overlapping: false,
            left_weight: guarded(&data.left_weight),
            right_weight: guarded(&data.right_weight),
            gated_weight: Guarded::new(queue, &data.gated_weight, f32::NAN),
            table: guarded(&spread(&data.table, 1, n)),
            ids: Guarded::new(queue, &data.ids, i32::MIN),
            x: guarded(&nothing(parts, n)),
            y: guarded(&nothing(parts, n)),
            out: guarded(&nothing(parts, world_out(case))),
        };
        world.stage(data);
        world
    }

    /// Writes the rows of `data`, as many as the world has; the outputs become poison.
    pub(crate) fn stage(&mut self, data: &Data<A>) {
        let Case { parts, n, .. } = self.case;
        self.ids.write(&self.queue, 0, &data.ids);
        self.x.write(&self.queue, 0, &spread(&data.x, parts, n));
        self.y.write(&self.queue, 0, &spread(&data.y, parts, n));
        let nothing = vec![poison::<A>(); self.rows * strides(parts, world_out(self.case))[0]];
        self.out.write(&self.queue, 0, &nothing);
    }

    pub(crate) fn enqueue(&mut self) -> Result<()> {
        let device = B::device(&self.queue);
        self.enqueue_planned_for(&device)
    }

    pub(crate) fn enqueue_planned_for(&mut self, device: &DeviceInfo) -> Result<()> {
        let (rows, Case { op, parts, n }, on) = (self.rows, self.case, &self.queue);
        let [row, part, _] = strides(parts, n);
        let width = world_out(self.case);
        let out_row = strides(parts, width)[0];
        let (out_at, y_at) = (self.out.payload(), self.y.payload());
        let mut out = self.out.whole_mut();
        let out = B::slice_mut(&mut out, out_at.clone());
        let problem = NormProblem { rows, n, eps: EPS };
        macro_rules! dealt {
            ($plan:expr) => {{
                let plan = $plan.overlapping(self.overlapping);
                if let Some(vectors) = self.vectors { plan.with_vectors_per_thread(vectors) } else { plan }
            }};
        }
        match op {
            Op::Norm => dealt!(Norm::plan(problem, device)?).run::<B, A>(
                on,
                NormArgs {
                    out: TensorMut::new(out, [rows, n]).with_strides([out_row, 1]),
                    x: Tensor::new(self.x.view(), [rows, n]).with_strides([row, 1]),
                    weight: Tensor::new(self.left_weight.view(), [n]),
                },
            ),
            Op::AddNorm => {
                // Both views must be as short-lived as the other.
                let (mut out, mut residual) = (out, self.y.whole_mut());
                let out = B::slice_mut(&mut out, 0..out_at.len());
                let residual = B::slice_mut(&mut residual, y_at);
                dealt!(AddNorm::plan(problem, device)?).run::<B, A>(
                    on,
                    AddNormArgs {
                        residual: TensorMut::new(residual, [rows, n]).with_strides([row, 1]),
                        out: TensorMut::new(out, [rows, n]).with_strides([out_row, 1]),
                        x: Tensor::new(self.x.view(), [rows, n]).with_strides([row, 1]),
                        weight: Tensor::new(self.left_weight.view(), [n]),
                    },
                )
            }
            Op::ConcatNorm => dealt!(ConcatNorm::plan(problem, device)?).run::<B, A>(
                on,
                ConcatNormArgs {
                    out: TensorMut::new(out, [rows, 2 * n]).with_strides([out_row, 1]),
                    left: Tensor::new(self.x.view(), [rows, n]).with_strides([row, 1]),
                    left_weight: Tensor::new(self.left_weight.view(), [n]),
                    right: Tensor::new(self.y.view(), [rows, n]).with_strides([row, 1]),
                    right_weight: Tensor::new(self.right_weight.view(), [n]),
                },
            ),
            Op::GatedNorm => {
                let problem = GatedNormProblem { rows, heads: parts, head_dim: n, eps: EPS };
                let dims = [rows, parts, n];
                GatedNorm::plan(problem, device)?.overlapping(self.overlapping).run::<B, A>(
                    on,
                    GatedNormArgs {
                        out: TensorMut::new(out, dims).with_strides([row, part, 1]),
                        x: Tensor::new(self.x.view(), dims).with_strides([row, part, 1]),
                        gate: Tensor::new(self.y.view(), dims).with_strides([row, part, 1]),
                        weight: Tensor::new(self.gated_weight.view(), [n]),
                    },
                )
            }
            Op::Embed => {
                let problem = EmbedProblem { rows, n, vocab: VOCAB };
                Embed::plan(problem, device)?.overlapping(self.overlapping).run::<B, A, A>(
                    on,
                    EmbedArgs {
                        out: TensorMut::new(out, [rows, n]).with_strides([out_row, 1]),
                        ids: Tensor::new(self.ids.view(), [rows]),
                        table: Tensor::new(self.table.view(), [VOCAB, n]).with_strides([row, 1]),
                    },
                )
            }
            Op::SiluMul => {
                SiluMul::plan(SiluMulProblem { rows, n }, device)?.overlapping(self.overlapping).run::<B, A>(
                    on,
                    SiluMulArgs {
                        out: TensorMut::new(out, [rows, n]).with_strides([out_row, 1]),
                        gate: Tensor::new(self.x.view(), [rows, n]).with_strides([row, 1]),
                        up: Tensor::new(self.y.view(), [rows, n]).with_strides([row, 1]),
                    },
                )
            }
        }
    }

    /// What became of each row: its output, behind the new residual if there is one. Asserts that everything else
    /// is as it was.
    pub(crate) fn collect(&self) -> Vec<Vec<A>> {
        let Case { op, parts, n } = self.case;
        let out = packed("out", &self.out.read(&self.queue), parts, world_out(self.case));
        let y = packed("y", &self.y.read(&self.queue), parts, n);
        self.x.read(&self.queue);
        if op != Op::AddNorm {
            return out;
        }
        y.into_iter().zip(out).map(|(residual, out)| [residual, out].concat()).collect()
    }
}

/// Width of a part of the output.
fn world_out(case: Case) -> usize {
    if case.op == Op::ConcatNorm { 2 * case.n } else { case.n }
}

/// One launch over all rows of `data`.
pub(crate) fn run<B: Place, A: Activation>(queue: &B::Queue, case: Case, data: &Data<A>) -> Vec<Vec<A>> {
    let mut world = World::<B, A>::new(queue, case, data);
    world.enqueue().unwrap();
    world.collect()
}

/// Cases of every operation: whole blocks, the rows of real models, and awkward widths where the backend takes any.
pub(crate) fn cases<B: Place>() -> Vec<Case> {
    let mut widths = vec![8, 128, 248, 256, 264, 520, 1032, 2048, 2056, 5120];
    if B::GENERAL {
        widths.extend([1, 7, 31, 129, 300]);
    }
    let mut cases = Vec::new();
    for op in OPS {
        if op == Op::GatedNorm {
            cases.extend([1, 3, 4, 5, 48].map(|parts| Case { op, parts, n: 128 }));
            if B::GENERAL {
                cases.extend([1, 40, 256].map(|n| Case { op, parts: 3, n }));
            }
        } else {
            cases.extend(widths.iter().map(|n| Case { op, parts: 1, n: *n }));
        }
    }
    cases
}

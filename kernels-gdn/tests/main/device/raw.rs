//! Device memory that a test lays out itself: for chains of launches that the host does not look into.

use crate::stream::mixed_width;
use kernels_core::{Backend, Cuda, Rows, Tensor, TensorMut, bf16};
use kernels_gdn::{Args, FoldArgs, Problem};
use kernels_testkit::{device::Device, rng::Rng};

pub type Slice<T> = <Cuda as Backend>::Memory<T>;

/// State, journal and gate parameters.
pub struct Memory {
    problem: Problem,
    pub state: Slice<f32>,
    pub journal: Slice<bf16>,
    pub faults: Slice<u64>,
    a_log: Slice<f32>,
    dt_bias: Slice<f32>,
    /// From one slot to the next.
    pub state_stride: usize,
    pub journal_stride: usize,
}

/// What changes from launch to launch.
pub struct Rest<'a> {
    pub out: TensorMut<'a, Cuda, bf16, 3>,
    pub q: Tensor<'a, Cuda, bf16, 3>,
    pub k: Tensor<'a, Cuda, bf16, 3>,
    pub v: Tensor<'a, Cuda, bf16, 3>,
    pub a: Tensor<'a, Cuda, bf16, 2>,
    pub b: Tensor<'a, Cuda, bf16, 2>,
    pub folded: Tensor<'a, Cuda, i32, 1>,
    pub rows: Rows<'a, Cuda>,
}

/// The gate parameters of `heads` heads, from such that forget fast to such that hardly do.
pub fn gate_parameters(heads: usize) -> [Vec<f32>; 2] {
    let head = |h: usize| (h % 4) as f32;
    [(0..heads).map(|h| head(h) * 1.3 - 2.0).collect(), (0..heads).map(|h| 0.5 - head(h) * 0.9).collect()]
}

impl Memory {
    /// Slots next to each other.
    pub fn new(device: &Device, problem: Problem) -> Self {
        let journal = problem.journal_rows * problem.journal_width();
        Self::with_strides(device, problem, problem.state_len(), journal)
    }

    pub fn with_strides(
        device: &Device,
        problem: Problem,
        state_stride: usize,
        journal_stride: usize,
    ) -> Self {
        let on = &device.queue;
        let (last, journal) = (problem.slots - 1, problem.journal_rows * problem.journal_width());
        let [a_log, dt_bias] = gate_parameters(problem.v_heads);
        Memory {
            problem,
            state: Cuda::zeros(on, last * state_stride + problem.state_len()).unwrap(),
            journal: Cuda::zeros(on, last * journal_stride + journal).unwrap(),
            faults: Cuda::zeros(on, problem.slots + 1).unwrap(),
            a_log: Cuda::upload(on, &a_log).unwrap(),
            dt_bias: Cuda::upload(on, &dt_bias).unwrap(),
            state_stride,
            journal_stride,
        }
    }

    pub fn args<'a>(&'a mut self, rest: Rest<'a>) -> Args<'a, Cuda, bf16> {
        let p = self.problem;
        let Rest { out, q, k, v, a, b, folded, rows } = rest;
        Args {
            out,
            state: TensorMut::of(&mut self.state, [p.slots, p.v_heads, p.v_dim, p.k_dim]).with_strides([
                self.state_stride,
                p.v_dim * p.k_dim,
                p.k_dim,
                1,
            ]),
            journal: TensorMut::of(&mut self.journal, [p.slots, p.journal_rows, p.journal_width()])
                .with_strides([self.journal_stride, p.journal_width(), 1]),
            faults: TensorMut::of(&mut self.faults, [p.slots + 1]),
            folded,
            q,
            k,
            v,
            a,
            b,
            a_log: Tensor::of(&self.a_log, [p.v_heads]),
            dt_bias: Tensor::of(&self.dt_bias, [p.v_heads]),
            rows,
        }
    }

    pub fn fold_args<'a>(
        &'a mut self,
        folded: &'a Slice<i32>,
        committed: &'a Slice<i32>,
        slots: Tensor<'a, Cuda, i32, 1>,
    ) -> FoldArgs<'a, Cuda, bf16> {
        let p = self.problem;
        FoldArgs {
            state: TensorMut::of(&mut self.state, [p.slots, p.v_heads, p.v_dim, p.k_dim]).with_strides([
                self.state_stride,
                p.v_dim * p.k_dim,
                p.k_dim,
                1,
            ]),
            journal: TensorMut::of(&mut self.journal, [p.slots, p.journal_rows, p.journal_width()])
                .with_strides([self.journal_stride, p.journal_width(), 1]),
            faults: TensorMut::of(&mut self.faults, [p.slots + 1]),
            folded: Tensor::of(folded, [p.slots]),
            a_log: Tensor::of(&self.a_log, [p.v_heads]),
            dt_bias: Tensor::of(&self.dt_bias, [p.v_heads]),
            slots,
            committed: Tensor::of(committed, [p.slots]),
        }
    }

    /// The state and the journal of one slot; panics if a fault was recorded.
    pub fn read(&self, device: &Device, slot: usize) -> (Vec<f32>, Vec<bf16>) {
        let (p, on) = (self.problem, &device.queue);
        let faults = Cuda::read(on, &self.faults, 0..p.slots + 1).unwrap();
        assert_eq!(faults, vec![0; p.slots + 1]);
        let (state, journal) = (slot * self.state_stride, slot * self.journal_stride);
        (
            Cuda::read(on, &self.state, state..state + p.state_len()).unwrap(),
            Cuda::read(on, &self.journal, journal..journal + p.journal_rows * p.journal_width()).unwrap(),
        )
    }
}

/// Raw inputs of many rows on the device.
pub struct Inputs {
    pub rows: usize,
    mixed: Slice<bf16>,
    a: Slice<bf16>,
    b: Slice<bf16>,
}

impl Inputs {
    pub fn random(device: &Device, p: &Problem, rows: usize, rng: &mut Rng) -> Self {
        let mixed = rng.normals(rows * mixed_width(p), 1.0);
        let [a, b] = [(); 2].map(|()| rng.normals(rows * p.v_heads, 1.5));
        Self::upload(device, p, &mixed, &a, &b)
    }

    pub fn upload(device: &Device, p: &Problem, mixed: &[bf16], a: &[bf16], b: &[bf16]) -> Self {
        let on = &device.queue;
        Inputs {
            rows: a.len() / p.v_heads,
            mixed: Cuda::upload(on, mixed).unwrap(),
            a: Cuda::upload(on, a).unwrap(),
            b: Cuda::upload(on, b).unwrap(),
        }
    }

    /// Some of the rows, to be run by a launch into `out`.
    pub fn rest<'a>(
        &'a self,
        p: &Problem,
        range: std::ops::Range<usize>,
        out: TensorMut<'a, Cuda, bf16, 3>,
        folded: Tensor<'a, Cuda, i32, 1>,
        rows: Rows<'a, Cuda>,
    ) -> Rest<'a> {
        let keys = p.k_heads * p.k_dim;
        let mixed = Tensor::of(&self.mixed, [self.rows, mixed_width(p)]).rows(range.clone());
        Rest {
            out,
            q: mixed.columns(0..keys).heads(p.k_heads),
            k: mixed.columns(keys..2 * keys).heads(p.k_heads),
            v: mixed.columns(2 * keys..mixed_width(p)).heads(p.v_heads),
            a: Tensor::of(&self.a, [self.rows, p.v_heads]).rows(range.clone()),
            b: Tensor::of(&self.b, [self.rows, p.v_heads]).rows(range),
            folded,
            rows,
        }
    }
}

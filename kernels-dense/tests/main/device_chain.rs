//! What tests of linear layers and of heads on a GPU do alike: launches that are replayed, and launches whose rows come
//! late.

use crate::{calls::EPS, layers::rows_of};
use kernels_core::{Activation, Backend, Cuda, Result, Tensor, TensorMut, bf16};
use kernels_dense::{Norm, NormArgs, NormProblem};
use kernels_testkit::{compare::assert_same_bits, device::Device, guard::poison, rng::Rng, runner::stride};

type Memory<T> = <Cuda as Backend>::Memory<T>;

/// A launch with device memory of its own.
pub(crate) trait Launch {
    /// Of its results.
    type Out: Activation;
    /// `[rows, k]`
    fn x(&mut self) -> &mut Memory<bf16>;
    fn out(&mut self) -> &mut Memory<Self::Out>;
    fn enqueue(&mut self, device: &Device) -> Result<()>;

    fn read(&mut self, device: &Device) -> Vec<Self::Out> {
        let out = self.out();
        Cuda::read(&device.queue, out, 0..Cuda::len(out)).unwrap()
    }
}

/// One captured launch, replayed with other rows: one node, the bytes of an eager run.
pub(crate) fn replays(device: &Device, launch: &mut impl Launch, [rows, k]: [usize; 2], what: &str) {
    launch.enqueue(device).unwrap();
    let graph = device.capture(|| launch.enqueue(device)).unwrap();
    assert_eq!(Device::nodes(&graph).unwrap(), 1);
    for seed in 30..34 {
        Cuda::write(&device.queue, launch.x(), 0, &rows_of(rows, k, seed)).unwrap();
        launch.enqueue(device).unwrap();
        let want = launch.read(device);
        Cuda::write(&device.queue, launch.out(), 0, &vec![poison(); want.len()]).unwrap();
        for _ in 0..3 {
            graph.launch().unwrap();
        }
        assert_same_bits(&format!("replay of {what}"), &launch.read(device), &want);
    }
}

/// A norm that takes long.
pub(crate) struct SlowNorm {
    before: Memory<bf16>,
    scale: Memory<bf16>,
    normed: Memory<bf16>,
}

impl SlowNorm {
    /// Width of its rows.
    pub(crate) const K: usize = 5120;

    fn rows() -> usize {
        8192 / stride(32)
    }

    pub(crate) fn new(device: &Device) -> Self {
        let (queue, mut rng) = (&device.queue, Rng::new(40));
        SlowNorm {
            before: Cuda::upload(queue, &rng.normals::<bf16>(Self::rows() * Self::K, 1.0)).unwrap(),
            scale: Cuda::upload(queue, &rng.normals::<bf16>(Self::K, 0.3)).unwrap(),
            normed: Cuda::zeros(queue, Self::rows() * Self::K).unwrap(),
        }
    }

    /// The rows that it writes last.
    pub(crate) fn last(&self, rows: usize) -> Tensor<'_, Cuda, bf16, 2> {
        Tensor::of(&self.normed, [Self::rows(), Self::K]).rows(Self::rows() - rows..Self::rows())
    }

    /// What `launch` makes of rows that come late is what it makes of them one launch after the other.
    pub(crate) fn is_waited_for<T: Activation>(
        &mut self,
        device: &Device,
        what: &str,
        mut launch: impl FnMut(&Self, bool) -> Vec<T>,
    ) {
        let queue = &device.queue;
        let nothing = vec![poison::<bf16>(); Self::rows() * Self::K];
        let mut run = |overlapping: bool| {
            Cuda::write(queue, &mut self.normed, 0, &nothing).unwrap();
            let problem = NormProblem { rows: Self::rows(), n: Self::K, eps: EPS };
            let norm = Norm::plan(problem, &device.info).unwrap().overlapping(overlapping);
            let dims = [Self::rows(), Self::K];
            let args = NormArgs::<Cuda> {
                out: TensorMut::of(&mut self.normed, dims),
                x: Tensor::of(&self.before, dims),
                weight: Tensor::of(&self.scale, [Self::K]),
            };
            norm.run(queue, args).unwrap();
            launch(self, overlapping)
        };
        let want = run(false);
        assert!(want.iter().all(|y| y.to_f32().is_finite()));
        for _ in 0..5 / stride(5) {
            assert_same_bits(what, &run(true), &want);
        }
    }
}

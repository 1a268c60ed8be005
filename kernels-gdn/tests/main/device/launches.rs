//! Launches that nobody waits for: graphs, and kernels that may begin before the one in front has ended.

use super::grids;
use super::raw::{Inputs, Memory, Slice};
use super::script::{Author, LONGEST_CHUNK, Step};
use crate::place::{flushing, generic, small};
use crate::world::{Kind, World, same};
use kernels_core::{Backend, Cuda, Result, Rows, Tensor, TensorMut, bf16, slots};
use kernels_gdn::{Fold, Grid, Prefill, Problem, Verify};
use kernels_testkit::{compare::assert_same_bits, device::Device, guard::poison, rng::Rng, runner::stride};
use std::time::{Duration, Instant};

/// One captured graph, replayed while counters, slots, offsets and inputs change on the device.
pub fn replays_equal_eager_runs(device: &Device) {
    let slots = [6, 2, 0, 5, 3];
    let p = flushing(Problem { max_rows: 8, ..small::<Cuda>() }, 2);
    for grid in grids(device) {
        for (kind, longest) in [(Kind::Verify, p.max_rows), (Kind::Prefill, LONGEST_CHUNK)] {
            let mut author = Author::new(41, p, &slots);
            let mut eager = World::<Cuda, bf16>::new(&device.queue, p);
            eager.grid = Some(grid);
            let mut replayed = eager.duplicate();
            let rows = slots.len() * longest + 2;
            let mut graph = None;
            for round in 0..24 {
                let Step::Rows { launch, kept, .. } = author.rows(kind) else { unreachable!() };
                let want = eager.run(kind, &launch);
                eager.keep(kind, &kept);
                replayed.stage(&launch.filled(&p, slots.len() + 1, rows));
                // Captured once, after the eager run has loaded the module.
                let graph = graph.get_or_insert_with(|| device.capture(|| replayed.enqueue(kind)).unwrap());
                assert_eq!(Device::nodes(graph).unwrap(), 1, "one launch does it all");
                graph.launch().unwrap();
                replayed.keep(kind, &kept);
                let what = format!("{kind:?} {round}, {grid:?}");
                let out = replayed.collect();
                let (out, rest) = out.split_at(want.len());
                same(format!("{what}: outputs"), out, &want).unwrap();
                same(format!("{what}: rows of nobody"), rest, &vec![bf16::ZERO; rest.len()]).unwrap();
                same(format!("{what}: state"), &replayed.state(), &eager.state()).unwrap();
                same(format!("{what}: journal"), &replayed.journal(), &eager.journal()).unwrap();
                assert_eq!(replayed.faults(), vec![0; p.slots + 1]);
            }
            let moved = eager.folded.iter().filter(|folded| **folded > 0).count();
            assert_eq!(moved, slots.len(), "the counters hardly changed");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Ordered,
    Overlapping,
    /// Overlapping inside a graph.
    Captured,
}

/// A link of the chain, with the counters of all slots.
struct Link {
    operation: Operation,
    start: Slice<i32>,
    folded: Slice<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Verify,
    Prefill,
    Fold,
}

/// A chain of launches on the same sequences.
struct Chain<'a> {
    device: &'a Device,
    problem: Problem,
    inputs: Inputs,
    first: Vec<bf16>, // the values of the first launch
    slots: Slice<i32>,
    offsets: Slice<i32>,
    links: Vec<Link>,
}

const ROWS: usize = 8;

impl<'a> Chain<'a> {
    fn new(device: &'a Device, sequences: usize) -> Self {
        let on = &device.queue;
        let p = Problem {
            sequences,
            rows: sequences * ROWS,
            max_rows: ROWS,
            slots: sequences,
            ..small::<Cuda>()
        };
        let p = flushing(p, 3);
        let mut rng = Rng::new(80);
        let order: Vec<i32> = rng.permutation(sequences).into_iter().map(|slot| slot as i32).collect();
        let offsets: Vec<i32> = (0..=sequences).map(|i| (i * ROWS) as i32).collect();
        let (mut links, mut start, mut folded) = (vec![], 0, 0);
        let mut stores = 0;
        for i in 0..15 {
            let mut link = |operation, folded| {
                let all = |n: usize| Cuda::upload(on, &vec![n as i32; sequences]).unwrap();
                links.push(Link { operation, start: all(start), folded: all(folded) });
            };
            if i % 5 == 2 {
                link(Operation::Fold, folded);
                folded = start;
            }
            if i % 5 == 4 {
                link(Operation::Prefill, folded);
                folded = start + ROWS;
            } else {
                link(Operation::Verify, folded);
                if slots::flushes(start - folded, p.flush_after) {
                    folded = start;
                    stores += 1;
                }
            }
            start += ROWS;
        }
        assert!(stores > 3, "{stores} verifications store");
        Chain {
            device,
            problem: p,
            inputs: Inputs::random(device, &p, p.rows, &mut rng),
            first: rng.normals(p.rows * p.v_heads * p.v_dim, 1.0),
            slots: Cuda::upload(on, &order).unwrap(),
            offsets: Cuda::upload(on, &offsets).unwrap(),
            links,
        }
    }

    fn enqueue(
        &self,
        grid: Grid,
        overlapping: bool,
        memory: &mut Memory,
        buffers: &mut [Slice<bf16>; 2],
    ) -> Result<()> {
        let (p, info, on) = (self.problem, &self.device.info, &self.device.queue);
        let generic = Some(generic(grid));
        let verify = Verify::plan_with(p, info, Some(grid))?.overlapping(overlapping);
        let prefill = Prefill::plan_with(p, info, generic)?.overlapping(overlapping);
        let fold = Fold::plan_with(p, info, generic)?.overlapping(overlapping);
        assert_eq!(verify.grid(), Some(grid));
        let values = [p.rows, p.v_heads, p.v_dim];
        for Link { operation, start, folded } in &self.links {
            let slots = Tensor::of(&self.slots, [p.sequences]);
            if *operation == Operation::Fold {
                fold.run(on, memory.fold_args(folded, start, slots))?;
                continue;
            }
            // Each launch reads as values what the one before wrote as outputs.
            let [from, to] = &mut *buffers;
            let rows = Rows {
                slots,
                start: Tensor::of(start, [p.sequences]),
                row_offsets: Tensor::of(&self.offsets, [p.sequences + 1]),
            };
            let out = TensorMut::of(to, values);
            let mut rest = self.inputs.rest(&p, 0..p.rows, out, Tensor::of(folded, [p.slots]), rows);
            rest.v = Tensor::of(from, values);
            match operation {
                Operation::Verify => verify.run(on, memory.args(rest))?,
                _ => prefill.run(on, memory.args(rest))?,
            }
            buffers.swap(0, 1);
        }
        Ok(())
    }

    /// The last outputs, all states and all journals.
    fn run(&self, grid: Grid, how: How) -> (Vec<bf16>, Vec<f32>, Vec<bf16>) {
        let on = &self.device.queue;
        let mut memory = Memory::new(self.device, self.problem);
        let nothing = vec![poison(); self.first.len()];
        let mut buffers = [&self.first, &nothing].map(|x| Cuda::upload(on, x).unwrap());
        Cuda::synchronize(on).unwrap();
        if how == How::Captured {
            let enqueue = || self.enqueue(grid, true, &mut memory, &mut buffers);
            self.device.capture(enqueue).unwrap().launch().unwrap();
        } else {
            self.enqueue(grid, how == How::Overlapping, &mut memory, &mut buffers).unwrap();
        }
        let out = Cuda::read(on, &buffers[0], 0..self.first.len()).unwrap();
        let slots = (0..self.problem.slots).map(|slot| memory.read(self.device, slot));
        let (states, journals): (Vec<_>, Vec<_>) = slots.unzip();
        (out, states.concat(), journals.concat())
    }
}

/// A chain in which each launch reads what the one before wrote: outputs, states and journals.
pub fn overlapping_launches_wait(device: &Device) {
    // Once with room for the next launch beside the one before, once with more blocks than fit.
    for sequences in [6, 64].into_iter().step_by(stride(2)) {
        let chain = Chain::new(device, sequences);
        for grid in grids(device) {
            let want = chain.run(grid, How::Ordered);
            assert!(want.0.iter().all(|x| x.is_finite()) && want.0.iter().any(|x| *x != bf16::ZERO));
            for how in [How::Overlapping, How::Overlapping, How::Overlapping, How::Captured] {
                let got = chain.run(grid, how);
                let what = format!("{how:?}, {sequences} sequences, {grid:?}");
                assert_same_bits(&format!("outputs, {what}"), &got.0, &want.0);
                assert_same_bits(&format!("states, {what}"), &got.1, &want.1);
                assert_same_bits(&format!("journals, {what}"), &got.2, &want.2);
            }
        }
    }
}

/// A launch that takes long and leaves most of the chip free writes what the next one reads: its values, and
/// the state of one of its two sequences.
pub fn slow_producers_are_waited_for(device: &Device) {
    let on = &device.queue;
    let many_rows = 6000 / stride(6);
    let p = flushing(Problem { max_rows: ROWS, slots: 2, ..small::<Cuda>() }, 3);
    let mut rng = Rng::new(81);
    let inputs = Inputs::random(device, &p, many_rows, &mut rng);
    let integers = |x: &[i32]| Cuda::upload(on, x).unwrap();
    let (zero, end, many) =
        (integers(&[0]), integers(&[many_rows as i32, 0]), integers(&[0, many_rows as i32]));
    let (one, both) = (integers(&[1]), integers(&[1, 0]));
    let offsets = integers(&[0, ROWS as i32, 2 * ROWS as i32]);
    // Slot 1 goes on where the slow launch ends, slot 0 is fresh.
    let (none, moved) = (integers(&[0, 0]), integers(&[0, many_rows as i32]));
    let slow = Problem { sequences: 1, rows: many_rows, max_rows: many_rows, ..p };
    let slow = Prefill::plan(slow, &device.info).unwrap();
    let quick = Problem { sequences: 2, rows: 2 * ROWS, ..p };
    let values = p.v_heads * p.v_dim;
    let run = |kind: Kind, grid: Grid, overlapping: bool| {
        let mut memory = Memory::new(device, p);
        let nothing = vec![poison::<bf16>(); many_rows * values];
        let mut produced = Cuda::upload(on, &nothing).unwrap();
        let mut out = Cuda::upload(on, &nothing[..2 * ROWS * values]).unwrap();
        Cuda::synchronize(on).unwrap();
        let began = Instant::now();
        let rows = Rows {
            slots: Tensor::of(&one, [1]),
            start: Tensor::of(&zero, [1]),
            row_offsets: Tensor::of(&many, [2]),
        };
        let to = TensorMut::of(&mut produced, [many_rows, p.v_heads, p.v_dim]);
        let rest = inputs.rest(&p, 0..many_rows, to, Tensor::of(&none, [2]), rows);
        slow.run(on, memory.args(rest)).unwrap();
        if !overlapping {
            Cuda::synchronize(on).unwrap();
            let took = began.elapsed();
            assert!(took > Duration::from_micros(500), "{took:?} is no slow launch");
        }
        let rows = Rows {
            slots: Tensor::of(&both, [2]),
            start: Tensor::of(&end, [2]),
            row_offsets: Tensor::of(&offsets, [3]),
        };
        let to = TensorMut::of(&mut out, [2 * ROWS, p.v_heads, p.v_dim]);
        let mut rest = inputs.rest(&p, 0..2 * ROWS, to, Tensor::of(&moved, [2]), rows);
        let tail =
            Tensor::<Cuda, bf16, 2>::of(&produced, [many_rows, values]).rows(many_rows - 2 * ROWS..many_rows);
        rest.v = tail.heads(p.v_heads);
        match kind {
            Kind::Verify => {
                let op = Verify::plan_with(quick, &device.info, Some(grid)).unwrap();
                op.overlapping(overlapping).run(on, memory.args(rest)).unwrap();
            }
            Kind::Prefill => {
                let generic = generic(grid);
                let op = Prefill::plan_with(quick, &device.info, Some(generic)).unwrap();
                op.overlapping(overlapping).run(on, memory.args(rest)).unwrap();
            }
        }
        let out = Cuda::read(on, &out, 0..2 * ROWS * values).unwrap();
        (out, memory.read(device, 0), memory.read(device, 1))
    };
    for grid in grids(device) {
        for kind in [Kind::Verify, Kind::Prefill] {
            let want = run(kind, grid, false);
            assert!(want.0.iter().all(|x| x.is_finite()));
            for _ in (0..3).step_by(stride(3)) {
                let got = run(kind, grid, true);
                let what = format!("{kind:?}, {grid:?}");
                assert_same_bits(&format!("outputs, {what}"), &got.0, &want.0);
                for (got, want) in [(&got.1, &want.1), (&got.2, &want.2)] {
                    assert_same_bits(&format!("state, {what}"), &got.0, &want.0);
                    assert_same_bits(&format!("journal, {what}"), &got.1, &want.1);
                }
            }
        }
    }
}

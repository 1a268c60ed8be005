//! Which block meets which state, when, and beside what: sequences listed in many orders, on a chip that another
//! stream keeps busy.

use super::grids;
use super::raw::{Inputs, Memory, Slice};
use crate::place::{flushing, small};
use crate::stream::{Launch, Stream};
use crate::world::{Kind, World, same};
use cudarc::driver::{CudaEvent, CudaStream};
use kernels_core::{Backend, Cuda, Rows, Tensor, TensorMut, bf16};
use kernels_gdn::{Grid, Problem, Verify};
use kernels_testkit::{
    device::Device,
    rng::Rng,
    runner::{sanitized, stride},
};
use std::sync::Arc;

const ROUNDS: usize = 4;

/// A round of all slots: their rows, and how many of them are kept.
struct Round {
    rows: Vec<Stream<bf16>>,
    accepted: Vec<usize>,
}

/// The same rounds with the sequences in other orders, alone and beside another stream's launches: outputs, states
/// and journals. A persistent block has more than one head here, and which ones depends on the order.
pub fn blocks_may_meet_states_in_any_order(device: &Device) {
    let heads = small::<Cuda>().v_heads;
    // Not quite three heads for each of two blocks of a multiprocessor.
    let sequences = 2 * 3 * device.info.multiprocessors / heads - 1;
    let p = flushing(Problem { sequences, max_rows: 6, slots: sequences, ..small::<Cuda>() }, 2);
    let mut rng = Rng::new(110);
    let rounds: Vec<Round> = (0..ROUNDS)
        .map(|_| {
            let counts: Vec<usize> = (0..sequences).map(|_| 1 + rng.below(p.max_rows)).collect();
            Round {
                rows: counts.iter().map(|rows| Stream::random(&p, *rows, &mut rng)).collect(),
                accepted: counts.iter().map(|rows| rng.below(rows + 1)).collect(),
            }
        })
        .collect();
    let listed: Vec<usize> = (0..sequences).collect();
    let reversed: Vec<usize> = listed.iter().rev().copied().collect();
    let mut orders = vec![listed.clone(), reversed];
    orders.extend((0..3).map(|_| rng.permutation(sequences)));

    let want = play(device, p, Grid::Generic { tile: 64 }, &rounds, |_| &listed, None);
    assert!(want.out.iter().all(|x| x.is_finite()) && want.stored > sequences / 2);
    let mut load = Load::new(device);
    let (mut busy, mut beside) = (0, 0);
    for grid in grids(device) {
        for first in (0..orders.len()).step_by(stride(5)) {
            let order = |round: usize| &orders[(first + round) % orders.len()];
            // Alone, where nothing could be beside it.
            for loaded in [false, true].into_iter().step_by(stride(2)) {
                let got = play(device, p, grid, &rounds, order, loaded.then_some(&mut load));
                let what = format!("order {first}, {grid:?}, loaded: {loaded}");
                same(format!("outputs, {what}"), &got.out, &want.out).unwrap();
                same(format!("states, {what}"), &got.state, &want.state).unwrap();
                same(format!("journals, {what}"), &got.journal, &want.journal).unwrap();
                (busy, beside) = (busy + got.busy, beside + got.beside);
            }
        }
    }
    // A sanitizer runs one launch at a time, so that nothing can be beside another.
    let alone = busy == 0 || sanitized();
    assert!(beside > 0 || alone, "the other stream was always done first");
}

struct Outcome {
    out: Vec<bf16>, // by round and slot, not by row
    state: Vec<f32>,
    journal: Vec<bf16>,
    stored: usize,
    /// Launches that were enqueued while the other stream was at work.
    busy: usize,
    /// Those of them that ended while it still was.
    beside: usize,
}

fn play<'a>(
    device: &Device,
    p: Problem,
    grid: Grid,
    rounds: &[Round],
    order: impl Fn(usize) -> &'a Vec<usize>,
    mut load: Option<&mut Load>,
) -> Outcome {
    let mut world = World::<Cuda, bf16>::new(&device.queue, p);
    world.grid = Some(grid);
    let width = p.v_heads * p.v_dim;
    let (mut out, mut stored, mut busy, mut beside) = (vec![], 0, 0, 0);
    for (i, round) in rounds.iter().enumerate() {
        let mut launch = Launch::new();
        let mut first = vec![0; p.slots];
        for slot in order(i).iter().copied() {
            first[slot] = launch.count(&p);
            launch.push(&p, slot as i32, world.committed[slot] as usize, &round.rows[slot]);
        }
        world.stage(&launch);
        let end = load.as_mut().map(|load| load.enqueue());
        busy += usize::from(end.as_ref().is_some_and(|end| !end.is_complete()));
        world.enqueue(Kind::Verify).unwrap();
        let rows = world.collect();
        if let Some(end) = end {
            beside += usize::from(!end.is_complete());
            end.synchronize().unwrap();
        }
        for slot in 0..p.slots {
            out.extend_from_slice(&rows[first[slot] * width..][..round.rows[slot].tokens(&p) * width]);
            let folded = world.folded[slot];
            world.advance(slot, round.accepted[slot]);
            stored += usize::from(world.folded[slot] > folded);
        }
    }
    assert_eq!(world.faults(), vec![0; p.slots + 1]);
    Outcome { out, state: world.state(), journal: world.journal(), stored, busy, beside }
}

/// Launches of a second stream, on memory of their own.
struct Load {
    stream: Arc<CudaStream>,
    verify: Verify,
    memory: Memory,
    inputs: Inputs,
    out: Slice<bf16>,
    slots: Slice<i32>,
    zeros: Slice<i32>,
    offsets: Slice<i32>,
}

impl Load {
    fn new(device: &Device) -> Self {
        const SEQUENCES: usize = 96;
        let p = Problem {
            sequences: SEQUENCES,
            rows: 6 * SEQUENCES,
            max_rows: 6,
            slots: SEQUENCES,
            ..small::<Cuda>()
        };
        let p = flushing(p, 2);
        let on = &device.queue;
        let up_to = |n: usize, step: usize| (0..n).map(|i| (i * step) as i32).collect::<Vec<_>>();
        let load = Load {
            stream: device.context.new_stream().unwrap(),
            verify: Verify::plan(p, &device.info).unwrap(),
            memory: Memory::new(device, p),
            inputs: Inputs::random(device, &p, p.rows, &mut Rng::new(111)),
            out: Cuda::zeros(on, p.rows * p.v_heads * p.v_dim).unwrap(),
            slots: Cuda::upload(on, &up_to(SEQUENCES, 1)).unwrap(),
            zeros: Cuda::zeros(on, SEQUENCES).unwrap(),
            offsets: Cuda::upload(on, &up_to(SEQUENCES + 1, 6)).unwrap(),
        };
        // The other stream does not wait for this one's uploads by itself.
        Cuda::synchronize(on).unwrap();
        load
    }

    /// Most of a millisecond's work; the event stands behind it.
    fn enqueue(&mut self) -> CudaEvent {
        let p = *self.verify.problem();
        for _ in 0..60 {
            let rows = Rows {
                slots: Tensor::of(&self.slots, [p.sequences]),
                start: Tensor::of(&self.zeros, [p.sequences]),
                row_offsets: Tensor::of(&self.offsets, [p.sequences + 1]),
            };
            let out = TensorMut::of(&mut self.out, [p.rows, p.v_heads, p.v_dim]);
            let rest = self.inputs.rest(&p, 0..p.rows, out, Tensor::of(&self.zeros, [p.slots]), rows);
            self.verify.run(&self.stream, self.memory.args(rest)).unwrap();
        }
        self.stream.record_event(None).unwrap()
    }
}

//! What memory a launch touches: far away, only where the rule says, and not at all where something is wrong.

use super::grids;
use super::raw::{Inputs, Memory};
use crate::place::{Place, flushing, generic, small};
use crate::stream::{Launch, Stream, mixed_width};
use crate::world::{Kind, World, decode, same};
use kernels_core::slots::{Fault, FaultKind};
use kernels_core::{Backend, Cpu, Cuda, Rows, Tensor, TensorMut, bf16};
use kernels_gdn::{Fold, Prefill, Problem, Verify};
use kernels_testkit::{compare::assert_same_bits, device::Device, rng::Rng};

/// A second slot whose state and journal lie beyond 2^31 elements, and so beyond 2^31 bytes.
const FAR: usize = (1 << 31) + 1024;

/// Rounds, a prefill and a fold in a slot that 32-bit offsets do not reach.
pub fn offsets_are_64_bits(device: &Device) {
    let on = &device.queue;
    let p = flushing(Problem { slots: 2, ..small::<Cuda>() }, 1);
    let mut rng = Rng::new(50);
    let stream = Stream::<bf16>::random(&p, 17, &mut rng);
    let inputs = Inputs::upload(device, &p, &stream.mixed, &stream.a, &stream.b);
    // Four rows of which all, two and four are kept, then five of a prefill, then two.
    let steps = [
        (Kind::Verify, 0, 4, 4),
        (Kind::Verify, 4, 4, 2),
        (Kind::Verify, 6, 4, 4),
        (Kind::Prefill, 10, 5, 5),
        (Kind::Verify, 15, 2, 2),
    ];
    let mut memory = Memory::with_strides(device, p, FAR, FAR);
    let integers = |x: &[i32]| Cuda::upload(on, x).unwrap();
    for grid in grids(device) {
        let generic = Some(generic(grid));
        let mut cpu = World::<Cpu, bf16>::new(&(), p);
        let slots = integers(&[1]);
        for (kind, start, t, kept) in steps {
            let sized = Problem { rows: t, max_rows: t.max(p.max_rows), ..p };
            let mut out = Cuda::zeros::<bf16>(on, t * p.v_heads * p.v_dim).unwrap();
            let (start_there, offsets) = (integers(&[start as i32]), integers(&[0, t as i32]));
            let folded = integers(&cpu.folded);
            let rows = Rows {
                slots: Tensor::of(&slots, [1]),
                start: Tensor::of(&start_there, [1]),
                row_offsets: Tensor::of(&offsets, [2]),
            };
            let to = TensorMut::of(&mut out, [t, p.v_heads, p.v_dim]);
            let rest = inputs.rest(&p, start..start + t, to, Tensor::of(&folded, [2]), rows);
            let launch = Launch::one(&p, 1, start, stream.part(&p, start..start + t));
            let want = cpu.run(kind, &launch);
            match kind {
                Kind::Verify => {
                    let op = Verify::plan_with(sized, &device.info, Some(grid)).unwrap();
                    op.run(on, memory.args(rest)).unwrap();
                    cpu.advance(1, kept);
                }
                Kind::Prefill => {
                    let op = Prefill::plan_with(sized, &device.info, generic).unwrap();
                    op.run(on, memory.args(rest)).unwrap();
                    cpu.advance_prefilled(1, kept);
                }
            }
            let got = Cuda::read(on, &out, 0..want.len()).unwrap();
            assert_same_bits(&format!("outputs from {start}, {grid:?}"), &got, &want);
        }
        let (folded, committed) = (integers(&cpu.folded), integers(&cpu.committed));
        let op = Fold::plan_with(p, &device.info, generic).unwrap();
        op.run(on, memory.fold_args(&folded, &committed, Tensor::of(&slots, [1]))).unwrap();
        cpu.fold(&[1]);
        let (state, journal) = memory.read(device, 1);
        assert_same_bits(&format!("state, {grid:?}"), &state, &cpu.state_of(1));
        let want = cpu.journal().split_off(p.journal_rows * p.journal_width());
        // All of the ring was written: by positions 0..10 and 15, 16.
        assert!(want.iter().all(|x| x.is_finite()));
        assert_same_bits(&format!("journal, {grid:?}"), &journal, &want);
        let (state, journal) = memory.read(device, 0);
        assert!(state.iter().all(|x| *x == 0.0) && journal.iter().all(|x| *x == bf16::ZERO));
    }
}

/// A launch with no more than F tokens pending changes no byte of the states; with more, exactly those of the
/// slots whose tokens they are. The states of slots without folded tokens are NaN and never read.
pub fn states_are_stored_by_the_rule_only(device: &Device) {
    let on = &device.queue;
    let p = flushing(small::<Cuda>(), 3);
    let mut rng = Rng::new(51);
    let streams = [6, 0, 3].map(|slot| (slot, Stream::<bf16>::random(&p, 40, &mut rng)));
    let decoded = [0, 1, 2].map(|i| decode::<Cuda, bf16>(on, &p, &streams[i].1));
    for grid in grids(device) {
        let mut world = World::<Cuda, bf16>::new(on, p);
        world.grid = Some(grid);
        let (mut stores, mut quiet) = (0, 0);
        for round in 0..14 {
            let mut launch = Launch::new();
            launch.push_padding(&p, 1);
            let mut expected = vec![];
            for (i, (slot, stream)) in streams.iter().enumerate() {
                let start = world.committed[*slot] as usize;
                launch.push(&p, *slot as i32, start, &stream.part(&p, start..start + 4));
                expected.push((i, start));
            }
            let before = world.state();
            let out = world.verify(&launch);
            let after = world.state();
            let width = p.v_heads * p.v_dim;
            for (nth, (i, start)) in expected.into_iter().enumerate() {
                let got = &out[(1 + 4 * nth) * width..][..4 * width];
                same(format!("round {round}"), got, &decoded[i].out[start * width..][..4 * width]).unwrap();
            }
            for slot in 0..p.slots {
                let here = slot * p.state_len()..(slot + 1) * p.state_len();
                let (before, after) = (&before[here.clone()], &after[here]);
                let pending = world.committed[slot] - world.folded[slot];
                let what = format!("round {round}, slot {slot}, {pending} pending, {grid:?}");
                if pending > 3 {
                    let changed =
                        before.iter().zip(after).filter(|(b, a)| b.to_bits() != a.to_bits()).count();
                    assert!(changed > p.state_len() / 2 && after.iter().all(|s| s.is_finite()), "{what}");
                    stores += 1;
                } else {
                    same(&what, after, before).unwrap();
                    quiet += 1;
                }
            }
            // One, two and three of the rows are kept, so that the slots flush in different rounds.
            for (i, (slot, _)) in streams.iter().enumerate() {
                world.advance(*slot, 1 + (i + round) % 3);
            }
        }
        assert!(stores > 10 && quiet > 14 * 4, "{stores} stores, {quiet} without");
    }
}

/// One number of a launch is wrong: fault words, outputs and all memory are the CPU's.
pub fn faults_equal_the_cpus(device: &Device) {
    let p = flushing(small::<Cuda>(), 2);
    let mut rng = Rng::new(52);
    let mut seen = std::collections::BTreeMap::<u8, usize>::new();
    let grids = grids(device);
    for case in 0..96 {
        let kind = if case % 3 == 2 { Kind::Prefill } else { Kind::Verify };
        let mut cpu = World::<Cpu, bf16>::new(&(), p);
        let mut cuda = World::<Cuda, bf16>::new(&device.queue, p);
        cuda.grid = Some(grids[case % grids.len()]);
        furnish(&mut cpu, case as u64);
        furnish(&mut cuda, case as u64);
        let (launch, folded) = faulty(&p, &mut rng);
        (cpu.folded, cuda.folded) = (folded.clone(), folded);
        let (want, got) = (cpu.run(kind, &launch), cuda.run(kind, &launch));
        let what = format!("{kind:?} of {:?} from {:?}, {:?}", launch.slots, launch.start, launch.offsets);
        same(format!("faults of {what}"), &cuda.faults(), &cpu.faults()).unwrap();
        same(format!("outputs of {what}"), &got, &want).unwrap();
        same(format!("state of {what}"), &cuda.state(), &cpu.state()).unwrap();
        same(format!("journal of {what}"), &cuda.journal(), &cpu.journal()).unwrap();
        for fault in cpu.faults().into_iter().filter_map(Fault::decode) {
            *seen.entry(fault.kind as u8).or_default() += 1;
        }

        // The same counters as a fold of five slots, one of which may not exist.
        let slots = [6, 0, rng.below(12) as i32 + 1, -1];
        let slots = if slots[2] == 6 { [6, 0, 9, -1] } else { slots };
        for world_slot in 0..p.slots {
            cpu.committed[world_slot] = 16 + rng.below(24) as i32;
        }
        cuda.committed = cpu.committed.clone();
        cpu.fold_only(&slots);
        cuda.fold_only(&slots);
        same(format!("faults of folding {slots:?}"), &cuda.faults(), &cpu.faults()).unwrap();
        same(format!("state of folding {slots:?}"), &cuda.state(), &cpu.state()).unwrap();
        same(format!("journal of folding {slots:?}"), &cuda.journal(), &cpu.journal()).unwrap();
    }
    use FaultKind::{Pending, Position, RowOffsets, Slot};
    for kind in [RowOffsets, Slot, Position, Pending] {
        assert!(seen.get(&(kind as u8)).is_some_and(|n| *n > 2), "{kind:?} among {seen:?}");
    }
}

/// Something to read everywhere.
fn furnish<B: Place>(world: &mut World<B, bf16>, seed: u64) {
    let (p, mut rng) = (world.problem, Rng::new(seed));
    for slot in 0..p.slots {
        let state: Vec<f32> = (0..p.state_len()).map(|_| rng.uniform(-1.0, 1.0)).collect();
        world.set_state_of(slot, &state);
    }
    world.set_journal(&rng.uniforms(p.slots * p.journal_rows * p.journal_width(), -1.0, 1.0));
}

/// Three sequences with 20 folded tokens each, and one number among them wrong; and what is folded.
fn faulty(p: &Problem, rng: &mut Rng) -> (Launch<bf16>, Vec<i32>) {
    let mut launch = Launch::new();
    for slot in [6, 0, 3] {
        let rows = Stream::random(p, 1 + rng.below(p.max_rows), rng);
        launch.push(p, slot, 20 + rng.below(p.flush_after + 1), &rows);
    }
    let mut folded = vec![20; p.slots];
    let (which, total) = (rng.below(3), launch.count(p) as i32);
    match rng.below(8) {
        0 => launch.slots[which] = [7, 8, 1 << 20, i32::MAX][rng.below(4)],
        1 => launch.start[which] = [-1, i32::MIN, i32::MAX][rng.below(3)],
        2 => launch.start[which] = rng.below(20) as i32,
        3 => launch.start[which] = 20 + rng.below(2 * p.journal_rows) as i32,
        4 => folded[launch.slots[which] as usize] = [-1, i32::MIN, i32::MAX, 24][rng.below(4)],
        // Inside the launch only the last one: another below its predecessor would give rows to two sequences.
        5 => launch.offsets[3] = [0, -1, total + 2, i32::MAX][rng.below(4)],
        6 => launch.offsets[which] = [-1, total + 2, i32::MIN, i32::MAX][rng.below(4)],
        _ => {
            // More rows than planned for.
            launch = Launch::new();
            for (i, slot) in [6, 0, 3].into_iter().enumerate() {
                let rows = if i == which { p.max_rows + 1 } else { 2 };
                launch.push(p, slot, 20, &Stream::random(p, rows, rng));
            }
        }
    }
    launch.add_unowned(p, 1);
    assert_eq!(launch.rows.mixed.len(), launch.count(p) * mixed_width(p));
    (launch, folded)
}

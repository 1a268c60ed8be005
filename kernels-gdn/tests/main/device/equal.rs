//! The CPU and every grid, launch by launch: all memory, byte for byte.

use super::grids;
use super::script::{Author, Seen};
use crate::place::{flushing, small};
use crate::world::{World, same};
use kernels_core::{Cpu, Cuda, bf16};
use kernels_gdn::Problem;
use kernels_testkit::{device::Device, runner::stride};

/// Plays a script on the CPU, on the grid that `plan` chooses and on every other one.
fn play(device: &Device, p: Problem, slots: &[usize], seed: u64, steps: usize) -> Seen {
    let mut cpu = World::<Cpu, bf16>::new(&(), p);
    let chosen = std::iter::once(None);
    let mut worlds: Vec<World<Cuda, bf16>> = chosen
        .chain(grids(device).into_iter().map(Some))
        .map(|grid| {
            let mut world = World::new(&device.queue, p);
            world.grid = grid;
            world
        })
        .collect();
    let mut author = Author::new(seed, p, slots);
    let mut seen = Seen::default();
    for i in 0..steps {
        let step = author.step();
        seen.note(&cpu, &step);
        let want = (cpu.play(&step), cpu.state(), cpu.journal());
        assert_eq!(cpu.faults(), vec![0; p.slots + 1]);
        for world in &mut worlds {
            let what = format!("step {i}, F = {}, grid {:?}", p.flush_after, world.grid);
            // Every other launch may begin while its predecessor runs.
            world.overlapping = i % 2 == 1;
            let out = world.play(&step);
            same(format!("{what}: outputs"), &out, &want.0).unwrap();
            same(format!("{what}: state"), &world.state(), &want.1).unwrap();
            same(format!("{what}: journal"), &world.journal(), &want.2).unwrap();
            same(format!("{what}: faults"), &world.faults(), &vec![0; p.slots + 1]).unwrap();
        }
    }
    let folded = cpu.folded.iter().filter(|folded| **folded > 0).count();
    assert_eq!(folded, slots.len(), "some sequence was never stored");
    seen
}

/// Rounds, prefills and folds in turn, at every flush policy.
pub fn rounds_equal_the_cpu(device: &Device) {
    for flush_after in [3, 0, 1, 2, 4, 5, 6].into_iter().step_by(stride(7)) {
        let p = flushing(Problem { max_rows: 8, ..small::<Cuda>() }, flush_after);
        // Five of seven slots, the first and the last among them, in an order that is not theirs.
        let seen = play(device, p, &[6, 2, 0, 5, 3], 500 + flush_after as u64, 100);
        seen.check(&p, 64);
    }
}

/// The heads of a real layer.
pub fn real_heads_equal_the_cpu(device: &Device) {
    let p = Problem { max_rows: 4, k_heads: 16, v_heads: 48, slots: 4, ..small::<Cuda>() };
    let p = flushing(p, 3);
    let seen = play(device, p, &[3, 0, 1], 600, 24);
    seen.check_some(12);
}

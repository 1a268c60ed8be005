//! Launches that nobody waits for: graphs, and kernels that may begin before the one in front has ended.

use super::raw::{Raw, packed};
use super::{SMALL, grids};
use kernels_attn::{Grid, Problem, Share};
use kernels_core::{Backend, Cuda, PAD, Result, bf16};
use kernels_testkit::{
    compare::assert_same_bits,
    device::Device,
    rng::Rng,
    runner::{sanitized, stride},
};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const P: Problem = Problem {
    sequences: 5,
    rows: 24,
    max_rows: 4,
    q_heads: 12,
    kv_heads: 2,
    head_dim: 256,
    slots: 6,
    max_pages: 100,
    pages: 600,
    page_rows: 64,
    ..SMALL
};

/// Pages, and numbers in all of them.
fn furnish(device: &Device, raw: &mut Raw, rng: &mut Rng) {
    let (on, p) = (&device.queue, raw.problem);
    let table: Vec<i32> =
        rng.permutation(p.pages)[..p.slots * p.max_pages].iter().map(|x| *x as i32).collect();
    Cuda::write(on, &mut raw.table, 0, &table).unwrap();
    let pattern: Vec<bf16> = Rng::new(1).normals(1 << 20, 1.0);
    let len = Cuda::len(&raw.pool);
    for at in (0..len).step_by(pattern.len()) {
        Cuda::write(on, &mut raw.pool, at, &pattern[..pattern.len().min(len - at)]).unwrap();
    }
}

/// A round: slots, positions, row offsets and queries, other ones each time.
fn stage(device: &Device, all: &mut [&mut Raw], round: usize, rng: &mut Rng) {
    let on = &device.queue;
    let p = all[0].problem;
    let order = rng.permutation(p.slots);
    let longest = [100, 6000, 1, 3000][round % 4];
    let (mut slots, mut start, mut offsets) = (vec![], vec![], vec![0]);
    for i in 0..p.sequences {
        slots.push(if rng.below(6) == 0 { PAD } else { order[i] as i32 });
        start.push(rng.below(longest) as i32);
        offsets.push(offsets[i] + rng.below(p.max_rows + 1) as i32);
    }
    let queries: Vec<bf16> = rng.normals(p.rows * p.q_heads * p.head_dim, 3.0);
    for raw in all {
        Cuda::write(on, &mut raw.slots, 0, &slots).unwrap();
        Cuda::write(on, &mut raw.start, 0, &start).unwrap();
        Cuda::write(on, &mut raw.offsets, 0, &offsets).unwrap();
        Cuda::write(on, &mut raw.rows[0], 0, &queries).unwrap();
    }
}

/// One captured graph of a list and a verification, replayed while slots, lengths, offsets and queries change on
/// the device; and one of a prefill.
pub fn replays_equal_eager_runs(device: &Device) {
    for grid in grids(device).into_iter().step_by(stride(3)) {
        let mut rng = Rng::new(40);
        let [mut eager, mut replayed] = [(); 2].map(|()| Raw::new(device, P, packed(&P), grid));
        furnish(device, &mut eager, &mut Rng::new(41));
        furnish(device, &mut replayed, &mut Rng::new(41));
        let (mut graph, mut prefill, mut shares) = (None, None, BTreeSet::new());
        for round in 0..24 / stride(8) {
            stage(device, &mut [&mut eager, &mut replayed], round, &mut rng);
            eager.list(device).unwrap();
            eager.verify(device).unwrap();
            let want = eager.read(device);
            shares.insert(Cuda::read(&device.queue, &eager.work, 2..3).unwrap()[0]);
            // Captured once, after the eager run has loaded the module.
            let graph = graph.get_or_insert_with(|| {
                let both = || replayed.list(device).and_then(|()| replayed.verify(device));
                device.capture(both).unwrap()
            });
            // A list, a verification, and a merge unless no list could ask for one.
            let merges = usize::from(grid.share != Share::Sequence);
            assert_eq!(Device::nodes(graph).unwrap(), 2 + merges, "{grid:?}");
            graph.launch().unwrap();
            assert_same_bits(&format!("round {round}, {grid:?}"), &replayed.read(device), &want);
            let [work, listed] = [&replayed, &eager].map(|raw| raw.listed(device));
            assert_same_bits(&format!("the list of round {round}, {grid:?}"), &work, &listed);

            eager.prefill(device).unwrap();
            assert_same_bits(&format!("prefill {round}, {grid:?}"), &eager.read(device), &want);
            let prefill = prefill.get_or_insert_with(|| device.capture(|| replayed.prefill(device)).unwrap());
            assert_eq!(Device::nodes(prefill).unwrap(), 2, "a list and a verification");
            prefill.launch().unwrap();
            assert_same_bits(&format!("replayed prefill {round}, {grid:?}"), &replayed.read(device), &want);
        }
        let by_lengths = grid.share == Share::ByLengths;
        assert!(sanitized() || (shares.len() > 1) == by_lengths, "{grid:?}: {shares:?}");
        assert!(!shares.contains(&4), "a list names the share that was chosen");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Ordered,
    Overlapping,
    /// Overlapping inside a graph.
    Captured,
}

/// Layers that read what the one before wrote: keys and values of the rows, then outputs as queries.
fn chain(device: &Device, p: Problem, grid: Grid, how: How) -> Vec<bf16> {
    let mut raw = Raw::new(device, p, packed(&p), grid);
    furnish(device, &mut raw, &mut Rng::new(43));
    stage(device, &mut [&mut raw], 1, &mut Rng::new(44));
    raw.overlapping = how != How::Ordered;
    Cuda::synchronize(&device.queue).unwrap();
    let mut enqueue = || -> Result<()> {
        raw.append(device)?;
        raw.list(device)?;
        for layer in 0..9 {
            if layer % 3 == 2 {
                raw.prefill(device)?
            } else {
                raw.verify(device)?
            }
            raw.rows.swap(0, 1);
        }
        Ok(())
    };
    if how == How::Captured {
        device.capture(enqueue).unwrap().launch().unwrap();
    } else {
        enqueue().unwrap();
    }
    raw.rows.swap(0, 1);
    raw.read(device)
}

/// Append, list, verifications and prefills that may each begin while the one before still runs.
pub fn overlapping_launches_wait(device: &Device) {
    // Once with room for the next launch beside the one before, once with more work than fits.
    for sequences in [2, 40].into_iter().step_by(stride(2)) {
        let p = Problem { sequences, rows: 4 * sequences + 2, slots: sequences + 1, pages: 4200, ..P };
        for grid in grids(device).into_iter().step_by(stride(3)) {
            let want = chain(device, p, grid, How::Ordered);
            assert!(want.iter().all(|x| x.is_finite()) && want.iter().any(|x| *x != bf16::ZERO));
            let all = [How::Overlapping, How::Captured, How::Overlapping, How::Overlapping];
            for how in all.into_iter().take(4 / stride(2)) {
                let got = chain(device, p, grid, how);
                assert_same_bits(&format!("{how:?}, {sequences} sequences, {grid:?}"), &got, &want);
            }
        }
    }
}

/// What may begin while a slow verification still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Reads its outputs as queries.
    Verify,
    /// The same, but with a launch between them that does not.
    ListAndVerify,
    /// Reads them too.
    Prefill,
    /// Overwrites the queries and the last keys that it reads.
    Append,
}

/// One row block with all of a long context: one thread block works on it.
const SLOW: Problem = Problem {
    sequences: 1,
    rows: 4,
    q_heads: 6,
    kv_heads: 1,
    head_dim: 256,
    slots: 1,
    max_pages: 2048,
    pages: 2048,
    page_rows: 64,
    ..SMALL
};

/// Outputs of the slow verification and of what follows.
fn after_a_slow_one(device: &Device, grid: Grid, next: Next, overlapping: bool) -> [Vec<bf16>; 2] {
    let on = &device.queue;
    let alone = Grid { share: Share::Sequence, ..grid };
    let quick = Problem { max_pages: 20, pages: 20, ..SLOW };
    let mut slow = Raw::new(device, SLOW, packed(&SLOW), alone);
    let mut quick = Raw::new(device, quick, packed(&quick), grid);
    for (raw, start) in [(&mut slow, 131_000 / stride(40) as i32), (&mut quick, 1000)] {
        furnish(device, raw, &mut Rng::new(45));
        Cuda::write(on, &mut raw.offsets, 0, &[0, 4]).unwrap();
        Cuda::write(on, &mut raw.start, 0, &[start]).unwrap();
        raw.list(device).unwrap();
        // Each module is loaded, each kernel has run.
        raw.verify(device).unwrap();
        raw.prefill(device).unwrap();
    }
    Cuda::synchronize(on).unwrap();
    let began = Instant::now();
    slow.verify(device).unwrap();
    if !overlapping {
        Cuda::synchronize(on).unwrap();
        let took = began.elapsed();
        assert!(sanitized() || took > Duration::from_micros(300), "{took:?} is no slow launch");
    }
    (slow.overlapping, quick.overlapping) = (overlapping, overlapping);
    std::mem::swap(&mut slow.rows[1], &mut quick.rows[0]);
    match next {
        Next::Verify => quick.verify(device).unwrap(),
        Next::ListAndVerify => {
            quick.list(device).unwrap();
            quick.verify(device).unwrap();
        }
        Next::Prefill => quick.prefill(device).unwrap(),
        Next::Append => slow.append(device).unwrap(),
    }
    let read = |rows| Cuda::read(on, rows, 0..SLOW.rows * SLOW.q_heads * SLOW.head_dim).unwrap();
    [read(&quick.rows[0]), quick.read(device)]
}

/// A launch behind one that takes a while: it reads and writes nothing before that one is done.
pub fn slow_producers_are_waited_for(device: &Device) {
    for grid in grids(device).into_iter().step_by(stride(3)) {
        for next in [Next::Verify, Next::ListAndVerify, Next::Prefill, Next::Append] {
            if next == Next::Append && grid.share != Share::Sequence {
                continue;
            }
            let want = after_a_slow_one(device, grid, next, false);
            assert!(want[0] != want[1] && want.iter().flatten().all(|x| x.is_finite()));
            let got = after_a_slow_one(device, grid, next, true);
            for (what, (got, want)) in ["the slow one", "the next"].iter().zip(got.iter().zip(&want)) {
                assert_same_bits(&format!("{what}, {next:?}, {grid:?}"), got, want);
            }
        }
    }
}

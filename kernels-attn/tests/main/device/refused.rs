//! What CUDA refuses and in which words; lists and fault words, which equal those of the CPU.

use super::raw::{Raw, list_words, packed};
use super::{SMALL, grids};
use kernels_attn::{
    Append, AppendProblem, Args, Grid, Path, Prefill, Problem, Share, Verify, Work, WorkArgs,
};
use kernels_core::slots::{Fault, FaultKind};
use kernels_core::{Arch, Backend, Cpu, Cuda, DeviceInfo, PAD, Rows, Tensor, TensorMut, bf16};
use kernels_testkit::{
    compare::assert_same_bits,
    device::Device,
    rng::Rng,
    runner::{sanitized, stride},
};
use std::collections::{BTreeMap, BTreeSet};

/// The numbers of a launch.
struct Lists {
    slots: Vec<i32>,
    start: Vec<i32>,
    offsets: Vec<i32>,
    table: Vec<i32>,
}

/// The list and the fault words by the CPU half of the same plan.
fn on_the_cpu(op: &Work, lists: &Lists) -> (Vec<i32>, Vec<u64>) {
    let p = op.problem();
    let (mut work, mut faults) = (vec![-7; op.len()], vec![0; p.slots + 1]);
    let args = WorkArgs::<Cpu> {
        work: TensorMut::of(&mut work, [op.len()]),
        faults: TensorMut::of(&mut faults, [p.slots + 1]),
        page_table: Tensor::of(&lists.table, [p.slots, p.max_pages]),
        rows: Rows {
            slots: Tensor::of(&lists.slots, [p.sequences]),
            start: Tensor::of(&lists.start, [p.sequences]),
            row_offsets: Tensor::of(&lists.offsets, [p.sequences + 1]),
        },
    };
    op.run(&(), args).unwrap();
    work.truncate(list_words(p, &work));
    (work, faults)
}

/// Writes a launch's numbers, and takes back the faults of the one before.
fn put(device: &Device, raw: &mut Raw, lists: &Lists) {
    let on = &device.queue;
    Cuda::write(on, &mut raw.slots, 0, &lists.slots).unwrap();
    Cuda::write(on, &mut raw.start, 0, &lists.start).unwrap();
    Cuda::write(on, &mut raw.offsets, 0, &lists.offsets).unwrap();
    Cuda::write(on, &mut raw.table, 0, &lists.table).unwrap();
    Cuda::write(on, &mut raw.faults, 0, &vec![0; raw.problem.slots + 1]).unwrap();
    let nothing = vec![-7; Cuda::len(&raw.work)];
    Cuda::write(on, &mut raw.work, 0, &nothing).unwrap();
}

fn sound(p: &Problem, rng: &mut Rng) -> Lists {
    let order = rng.permutation(p.slots);
    let mut lists = Lists { slots: vec![], start: vec![], offsets: vec![0], table: vec![] };
    let longest = [1, 200, 3000, p.positions() - p.max_rows][rng.below(4)];
    for i in 0..p.sequences {
        lists.slots.push(if rng.below(8) == 0 { PAD } else { order[i] as i32 });
        lists.start.push(rng.below(longest) as i32);
        lists.offsets.push(lists.offsets[i] + rng.below(p.max_rows + 1) as i32);
    }
    lists.table = (0..p.slots * p.max_pages).map(|_| rng.below(p.pages) as i32).collect();
    lists
}

const P: Problem = Problem {
    sequences: 6,
    rows: 30,
    slots: 6,
    max_pages: 200,
    pages: 64,
    page_rows: 32,
    first_key: 1,
    ..SMALL
};

/// Lists of random rounds, word for word, with every share.
pub fn lists_equal_the_cpu(device: &Device) {
    let mut chosen = BTreeSet::new();
    // One row block of a sequence and two; then contexts with more leaves than there is room for.
    for (sequences, max_rows, q_heads, max_pages) in [(6, 4, 4, 200), (6, 6, 32, 200), (40, 4, 4, 800)] {
        let (rows, slots) = (sequences * max_rows + 2, sequences);
        for window in [None, Some(100), Some(2500)].into_iter().step_by(stride(3)) {
            let p = Problem { sequences, max_rows, rows, slots, q_heads, max_pages, window, ..P };
            for grid in grids(device).into_iter().step_by(stride(3)) {
                chosen.extend(listed_alike(device, p, grid));
            }
        }
    }
    assert!(sanitized() || chosen.len() > 1, "what is chosen by lengths: {chosen:?}");
}

/// The shares that were chosen where the lengths decide.
fn listed_alike(device: &Device, p: Problem, grid: Grid) -> BTreeSet<i32> {
    let mut rng = Rng::new(30);
    let mut raw = Raw::new(device, p, packed(&p), grid);
    let op = Work::plan_with(p, &device.info, Some(grid.share)).unwrap();
    let mut chosen = BTreeSet::new();
    for round in 0..20 / stride(10) {
        let lists = sound(&p, &mut rng);
        put(device, &mut raw, &lists);
        raw.list(device).unwrap();
        let (want, faults) = on_the_cpu(&op, &lists);
        let what = format!("round {round}, {grid:?}, {p:?}");
        assert_same_bits(&what, &raw.listed(device), &want);
        assert!(faults.iter().all(|word| *word == 0));
        raw.verify(device).unwrap();
        assert_same_bits(&format!("after {what}"), &raw.listed(device), &want);
        raw.read(device);
        if grid.share == Share::ByLengths {
            chosen.insert(want[2]);
        }
    }
    chosen
}

/// One wrong number: its fault word, zeros for its rows, and the bytes that the others have without it.
pub fn faults_equal_the_cpus(device: &Device) {
    let mut seen = BTreeMap::<u8, usize>::new();
    for grid in grids(device).into_iter().step_by(stride(3)) {
        let mut rng = Rng::new(31);
        let mut raw = Raw::new(device, P, packed(&P), grid);
        let op = Work::plan_with(P, &device.info, Some(grid.share)).unwrap();
        let width = P.q_heads * P.head_dim;
        for round in 0..60 / stride(12) {
            let mut lists = sound(&P, &mut rng);
            for i in 0..P.sequences {
                lists.slots[i] = i as i32;
                (lists.start[i], lists.offsets[i + 1]) = (500 + i as i32, 3 * (i as i32 + 1));
            }
            put(device, &mut raw, &lists);
            raw.list(device).unwrap();
            raw.verify(device).unwrap();
            let good = raw.read(device);
            let which = rng.below(P.sequences);
            let entry = which * P.max_pages + rng.below(15);
            match round % 5 {
                0 => lists.slots[which] = [6, 99, i32::MAX][rng.below(3)],
                1 => lists.start[which] = [-1, i32::MIN, i32::MAX, P.positions() as i32 - 2][rng.below(4)],
                2 => lists.table[entry] = [-1, P.pages as i32, i32::MIN, i32::MAX][rng.below(4)],
                3 => lists.offsets[P.sequences] = [-1, 31, i32::MAX][rng.below(3)],
                // Five rows where four are planned for.
                _ => (which + 1..=P.sequences).for_each(|i| lists.offsets[i] += 2),
            }
            put(device, &mut raw, &lists);
            for prefill in [false, true] {
                Cuda::write(&device.queue, &mut raw.faults, 0, &[0; P.slots + 1]).unwrap();
                if prefill {
                    raw.prefill(device).unwrap();
                } else {
                    raw.list(device).unwrap();
                    raw.verify(device).unwrap();
                }
                let (_, want) = on_the_cpu(&op, &lists);
                let what = format!("round {round}, {grid:?}, prefill: {prefill}");
                let faults = Cuda::read(&device.queue, &raw.faults, 0..P.slots + 1).unwrap();
                assert_same_bits(&what, &faults, &want);
                let kinds = want.into_iter().filter_map(Fault::decode).map(|fault| fault.kind as u8);
                kinds.for_each(|kind| *seen.entry(kind).or_default() += 1);
                let out = Cuda::read(&device.queue, &raw.rows[1], 0..P.rows * width).unwrap();
                if round % 5 == 4 {
                    continue; // Rows have moved.
                }
                for i in 0..P.sequences {
                    let rows = 3 * i * width..3 * (i + 1) * width;
                    let zeros = out[rows.clone()].iter().all(|x| x.to_bits() == 0);
                    let gone = if round % 5 == 3 { i + 1 == P.sequences } else { i == which };
                    if gone && round % 5 != 3 {
                        assert!(zeros, "{what}: sequence {i}");
                    } else if !gone {
                        assert_same_bits(&format!("{what}: sequence {i}"), &out[rows.clone()], &good[rows]);
                    }
                }
            }
        }
    }
    use FaultKind::{Page, Position, RowOffsets, Slot};
    for kind in [RowOffsets, Slot, Position, Page] {
        assert!(seen.get(&(kind as u8)).is_some_and(|n| *n > 2), "{kind:?} among {seen:?}");
    }
}

pub fn what_has_no_kernel_is_refused(device: &Device) {
    let info = &device.info;
    let text = |p: Problem| Verify::plan(p, info).unwrap_err().to_string();
    assert_eq!(
        text(Problem { head_dim: 64, ..SMALL }),
        "attn::verify: head_dim = 64 on CUDA (128 and 256 are) is not supported"
    );
    assert_eq!(
        text(Problem { q_heads: 10, ..SMALL }),
        "attn::verify: q_heads / kv_heads = 5 on CUDA (1, 2, 3, 4, 6, 8, 12 and 16 are) is not supported"
    );
    assert_eq!(
        text(Problem { page_rows: 48, ..SMALL }),
        "attn::verify: page_rows = 48 on CUDA (16, 32, 64 and 128 are) is not supported"
    );
    assert_eq!(
        text(Problem { max_rows: 17, ..SMALL }),
        "attn::verify: max_rows = 17 on CUDA (1 to 16 are) is not supported"
    );
    Prefill::plan(Problem { max_rows: 5000, ..SMALL }, info).unwrap();
    let other = DeviceInfo { arch: Some(Arch { major: 10, minor: 0 }), ..info.clone() };
    let hopper = Grid { path: Path::Sm90, share: Share::Leaf };
    let newer = Verify::plan_with(SMALL, &other, Some(hopper)).unwrap_err().to_string();
    assert!(newer.contains("the WGMMA path on sm_100") || newer.contains("this build has"), "{newer}");
    let append = AppendProblem {
        sequences: 1,
        rows: 1,
        q_heads: 4,
        kv_heads: 2,
        head_dim: 64,
        rotary: 64,
        eps: 1e-6,
        slots: 1,
        max_pages: 1,
        page_rows: 16,
        positions: 16,
    };
    let text = Append::plan(append, info).unwrap_err().to_string();
    assert_eq!(text, "attn::append: head_dim = 64 on CUDA (128 and 256 are) is not supported");

    let mut raw = Raw::new(device, SMALL, packed(&SMALL), grids(device)[0]);
    let verify = Verify::plan_with(SMALL, info, Some(raw.grid)).unwrap();
    let refused = |raw: &mut Raw, op: &Verify, change: &dyn Fn(&mut Args<'_, Cuda>)| {
        raw.with(0, |mut args| {
            change(&mut args);
            op.run(&device.queue, args).unwrap_err().to_string()
        })
    };
    let host = Verify::plan(SMALL, &DeviceInfo::cpu()).unwrap();
    assert_eq!(
        refused(&mut raw, &host, &|args| (args.work, args.workspace) = (None, None)),
        "attn::verify: device is the CPU; plan it for the CUDA device it runs on"
    );
    assert_eq!(
        refused(&mut raw, &verify, &|args| args.work = None),
        "attn::verify: work is none; CUDA needs the round's list"
    );
    let want = format!("attn::verify: workspace is none; this plan needs {} bytes", verify.workspace_bytes());
    assert_eq!(refused(&mut raw, &verify, &|args| args.workspace = None), want);
    let prefill = Prefill::plan_with(SMALL, info, Some(raw.grid.path)).unwrap();
    let text = raw.with(1, |args| {
        prefill.run(&device.queue, Args { work: None, workspace: None, ..args }).unwrap_err().to_string()
    });
    let want =
        format!("attn::prefill: workspace is none; this plan needs {} bytes", prefill.workspace_bytes());
    assert_eq!(text, want);
    type Change = fn(&mut Args<'_, Cuda>);
    let aligned: [(&str, Change); 3] = [
        ("q", |a| a.q.strides[0] -= 4),
        ("gate", |a| a.gate.as_mut().unwrap().strides[0] -= 4),
        ("pool", |a| a.pool.strides.page -= 4),
    ];
    for (name, change) in aligned {
        assert_eq!(
            refused(&mut raw, &verify, &change),
            format!("attn::verify: `{name}` must be aligned to 16 bytes")
        );
    }
    let out = Cuda::read(&device.queue, &raw.rows[1], 0..SMALL.q_heads * SMALL.head_dim).unwrap();
    assert!(out.iter().all(|x: &bf16| x.is_nan()), "a refused launch wrote something");
}

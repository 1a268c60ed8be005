//! Every bad input is refused by name and value; nothing panics, nothing else is disturbed.

use crate::place::{Place, SMALL, flushing, small};
use crate::stream::{Launch, Stream};
use crate::world::{Kind, World, same};
use kernels_core::slots::{Fault, FaultKind};
use kernels_core::{Activation, Buffer, DeviceInfo, Error, bf16};
use kernels_gdn::{Args, Fold, FoldArgs, Prefill, Problem, Verify, export_state, import_state};
use kernels_testkit::{for_types, rng::Rng};

fn texts(p: Problem, device: &DeviceInfo) -> [Option<String>; 3] {
    let text = |e: Error| e.to_string();
    [
        Verify::plan(p, device).err().map(text),
        Prefill::plan(p, device).err().map(text),
        Fold::plan(p, device).err().map(text),
    ]
}

pub fn plans_refuse_sizes_by_name() {
    let cpu = DeviceInfo::cpu();
    let good = Problem { sequences: 2, rows: 8, ..flushing(SMALL, 4) };
    assert_eq!(texts(good, &cpu), [None, None, None]);
    type Change = fn(&mut Problem);
    let zeros: [(&str, Change); 9] = [
        ("sequences", |p| p.sequences = 0),
        ("rows", |p| p.rows = 0),
        ("max_rows", |p| p.max_rows = 0),
        ("k_heads", |p| p.k_heads = 0),
        ("v_heads", |p| p.v_heads = 0),
        ("k_dim", |p| p.k_dim = 0),
        ("v_dim", |p| p.v_dim = 0),
        ("slots", |p| p.slots = 0),
        ("journal_rows", |p| p.journal_rows = 0),
    ];
    for (name, change) in zeros {
        let mut p = good;
        change(&mut p);
        for (text, op) in texts(p, &cpu).into_iter().zip(["verify", "prefill", "fold"]) {
            assert_eq!(text.unwrap(), format!("gdn::{op}: {name} is 0; it must be at least 1"));
        }
    }
    let text = texts(Problem { v_heads: 5, ..good }, &cpu)[0].clone().unwrap();
    assert_eq!(text, "gdn::verify: v_heads is 5; it must be a multiple of k_heads = 2");
    for short in [1, good.journal_rows - 1] {
        let [verify, prefill, fold] = texts(Problem { journal_rows: short, ..good }, &cpu);
        let want = "it must be at least 12: flush_after = 4 plus twice max_rows = 4";
        assert_eq!(verify.unwrap(), format!("gdn::verify: journal_rows is {short}; {want}"));
        assert_eq!((prefill, fold), (None, None));
    }
    let huge = [
        Problem { k_dim: usize::MAX / 8, ..good },
        Problem { v_dim: usize::MAX, ..good },
        Problem { max_rows: usize::MAX, ..good },
        Problem { flush_after: usize::MAX, ..good },
        Problem { slots: usize::MAX / 2, ..good },
        Problem { rows: usize::MAX, ..good },
        Problem { journal_rows: usize::MAX / 64, ..good },
    ];
    for p in huge {
        assert!(texts(p, &cpu)[0].is_some(), "{p:?}");
    }
    for device in [DeviceInfo::h200(), DeviceInfo::a100()] {
        let heads = [("k_dim", Problem { v_dim: 128, ..good }), ("v_dim", Problem { k_dim: 128, ..good })];
        for (name, p) in heads {
            let got = if name == "k_dim" { p.k_dim } else { p.v_dim };
            for (text, op) in texts(p, &device).into_iter().zip(["verify", "prefill", "fold"]) {
                let want = format!("gdn::{op}: {name} = {got} on CUDA (128 is) is not supported");
                assert_eq!(text.unwrap(), want);
            }
        }
        #[cfg(not(feature = "cuda"))]
        for text in texts(Problem { k_dim: 128, v_dim: 128, ..good }, &device) {
            assert!(text.unwrap().contains("built without CUDA kernels"));
        }
    }
}

/// A world in which a launch of two rows is staged.
fn staged<B: Place>(on: &B::Queue) -> World<B, bf16> {
    let p = flushing(small::<B>(), 1);
    let mut world = World::packed(on, p);
    world.stage(&Launch::one(&p, 0, 0, Stream::random(&p, 2, &mut Rng::new(1))));
    world
}

pub fn operands_are_refused_by_name<B: Place>(on: &B::Queue) {
    let mut world = staged::<B>(on);
    let p = world.sized();
    let verify = Verify::plan(p, &B::device(on)).unwrap();
    let prefill = Prefill::plan(p, &B::device(on)).unwrap();
    let mut refused = |change: &dyn Fn(&mut Args<'_, B, bf16>)| {
        let text = world.with(|on, mut args| {
            change(&mut args);
            verify.run(on, args).unwrap_err().to_string()
        });
        let other = world.with(|on, mut args| {
            change(&mut args);
            prefill.run(on, args).unwrap_err().to_string()
        });
        assert_eq!(text.replace("verify", "prefill"), other);
        text
    };
    let (k, v, width, state) = (p.k_dim, p.v_dim, p.journal_width(), p.slots * p.state_len());
    assert_eq!(
        refused(&|a| a.out.dims[2] -= 1),
        format!("gdn::verify: `out` has shape [2, 4, {}], expected [2, 4, {v}]", v - 1)
    );
    assert_eq!(
        refused(&|a| a.out.strides[0] = v),
        format!(
            "gdn::verify: `out` has strides [{v}, {v}, 1]; an outer stride must span the inner axes, or rows overlap"
        )
    );
    assert_eq!(
        refused(&|a| a.state.dims[0] = 6),
        format!("gdn::verify: `state` has shape [6, 4, {v}, {k}], expected [7, 4, {v}, {k}]")
    );
    assert_eq!(
        refused(&|a| a.state.strides[0] += 1),
        format!("gdn::verify: `state` needs {} elements, its buffer holds {state}", state + 6)
    );
    assert_eq!(
        refused(&|a| a.journal.dims[1] = 8),
        format!("gdn::verify: `journal` has shape [7, 8, {width}], expected [7, 9, {width}]")
    );
    assert_eq!(refused(&|a| a.faults.dims = [7]), "gdn::verify: `faults` has shape [7], expected [8]");
    type Change<B> = fn(&mut Args<'_, B, bf16>);
    let named: [(&str, Change<B>); 11] = [
        ("folded", |a| a.folded.dims = [8]),
        ("q", |a| a.q.dims[1] = 3),
        ("k", |a| a.k.strides[2] = 2),
        ("v", |a| a.v.strides[0] *= 2),
        ("a", |a| a.a.dims = [2, 2]),
        ("b", |a| a.b.dims = [1, 4]),
        ("a_log", |a| a.a_log.dims = [3]),
        ("dt_bias", |a| a.dt_bias.dims = [5]),
        ("rows.slots", |a| a.rows.slots.dims = [2]),
        ("rows.start", |a| a.rows.start.dims = [0]),
        ("rows.row_offsets", |a| a.rows.row_offsets.dims = [1]),
    ];
    for (name, change) in named {
        let text = refused(&change);
        assert!(text.starts_with(&format!("gdn::verify: `{name}` ")), "{name}: {text}");
    }
    if B::GENERAL {
        return;
    }
    // Inside the buffers, but not where vectors may begin.
    let aligned: [(&str, Change<B>); 4] = [
        ("q", |a| a.q.data = B::slice(&a.q.data, 2..a.q.data.len())),
        ("k", |a| a.k.data = B::slice(&a.k.data, 2..a.k.data.len())),
        ("q", |a| a.q.strides[0] -= 2),
        ("v", |a| a.v.strides[0] -= 2),
    ];
    for (name, change) in aligned {
        assert_eq!(refused(&change), format!("gdn::verify: `{name}` must be aligned to 16 bytes"));
    }
}

pub fn fold_refuses_operands_by_name<B: Place>(on: &B::Queue) {
    let p = small::<B>();
    let mut world = World::<B, bf16>::packed(on, p);
    let op = Fold::plan(p, &B::device(on)).unwrap();
    let mut refused = |change: fn(&mut FoldArgs<'_, B, bf16>)| {
        world.with_fold(&[0], |on, mut args| {
            change(&mut args);
            op.run(on, args).unwrap_err().to_string()
        })
    };
    assert_eq!(refused(|a| a.committed.dims = [6]), "gdn::fold: `committed` has shape [6], expected [7]");
    type Change<B> = fn(&mut FoldArgs<'_, B, bf16>);
    let named: [(&str, Change<B>); 7] = [
        ("state", |a| a.state.dims[3] = 1),
        ("journal", |a| a.journal.dims[2] = 1),
        ("faults", |a| a.faults.dims = [0]),
        ("folded", |a| a.folded.dims = [0]),
        ("a_log", |a| a.a_log.dims = [0]),
        ("dt_bias", |a| a.dt_bias.dims = [0]),
        ("slots", |a| a.slots.dims = [0]),
    ];
    for (name, change) in named {
        let text = refused(change);
        assert!(text.starts_with(&format!("gdn::fold: `{name}` ")), "{name}: {text}");
    }
}

pub fn states_of_another_size() {
    let [import, export] = [import_state(&SMALL, &[0.0; 7]), export_state(&SMALL, &[0.0; 7])];
    let want = "gdn::import_state: `state` has shape [7], expected [4, 40, 12]";
    assert_eq!(import.unwrap_err().to_string(), want);
    let want = "gdn::export_state: `state` has shape [7], expected [4, 12, 40]";
    assert_eq!(export.unwrap_err().to_string(), want);
}

/// Bad counters of one sequence: its word, its zeros, and nothing else.
pub fn violated_counters_are_faults<B: Place>(on: &B::Queue) {
    for_types!(B, on, violated_counters);
}

fn violated_counters<B: Place, A: Activation>(on: &B::Queue) {
    let p = flushing(small::<B>(), 2);
    let j = p.journal_rows as i32;
    let rows = Stream::<A>::random(&p, 5, &mut Rng::new(9));
    let good = Stream::random(&p, 3, &mut Rng::new(10));
    let width = p.v_heads * p.v_dim;
    // Slot, start, folded, rows of the sequence, then the fault.
    let pending = |value| (FaultKind::Pending, value);
    let cases = [
        (3, 5, 6, 1, pending(-1)),
        (3, 5, -1, 1, pending(6)),
        (3, 20 + j, 20, 1, pending(j)),
        (3, 20 + j - 3, 20, 4, pending(j - 3)),
        (3, i32::MAX - 8, 0, 2, pending(i32::MAX - 8)),
        (3, i32::MAX - 8, i32::MIN, 2, pending(i32::MAX)),
        (3, 0, i32::MAX, 2, pending(-i32::MAX)),
        (3, 0, 0, 5, (FaultKind::RowOffsets, 5)),
        (3, -4, 0, 2, (FaultKind::Position, -4)),
        (3, i32::MAX - 1, i32::MAX - 1, 2, (FaultKind::Position, i32::MAX - 1)),
        (7, 0, 0, 2, (FaultKind::Slot, 7)),
        (i32::MAX, 0, 0, 2, (FaultKind::Slot, i32::MAX)),
    ];
    for (slot, start, folded, t, (kind, value)) in cases {
        let mut launch = Launch::new();
        launch.push(&p, slot, 0, &rows.part(&p, 0..t));
        launch.start[0] = start;
        launch.push(&p, 6, 0, &good);
        let mut world = World::<B, A>::new(on, p);
        world.folded[3] = folded;
        let mut alone = world.duplicate();
        let want = alone.verify(&Launch::one(&p, 6, 0, good.clone()));

        let out = world.verify(&launch);
        let what = format!("slot {slot}, start {start}, folded {folded}, {t} rows");
        same(&what, &out, &[vec![A::default(); t * width], want].concat()).unwrap();
        same(&what, &world.state(), &alone.state()).unwrap();
        same(&what, &world.journal(), &alone.journal()).unwrap();
        let word = usize::try_from(slot).unwrap().min(p.slots);
        let faults = world.faults();
        let fault = Fault::decode(faults[word]).expect(&what);
        assert_eq!((fault.kind, fault.value), (kind, value), "{what}");
        assert_eq!(faults.iter().filter(|f| **f != 0).count(), 1, "{what}");
    }
    // The last counters that fit.
    let mut world = World::<B, A>::new(on, p);
    world.folded[3] = 20;
    world.set_state_of(3, &vec![0.0; p.state_len()]);
    world.set_journal(&vec![A::default(); p.slots * p.journal_rows * p.journal_width()]);
    world.verify(&Launch::one(&p, 3, 20 + j as usize - 4, rows.part(&p, 0..4)));
    assert_eq!(world.faults(), vec![0; p.slots + 1]);
    // A prefill needs room only for what is pending.
    let out = world.prefill(&Launch::one(&p, 3, 20 + j as usize, rows.clone()));
    assert!(out.iter().any(|o| o.to_f32() != 0.0));
    assert_eq!(world.faults(), vec![0; p.slots + 1]);
    let out = world.prefill(&Launch::one(&p, 3, 21 + j as usize, rows.clone()));
    assert!(out.iter().all(|o| o.to_f32() == 0.0));
    assert_eq!(Fault::decode(world.faults()[3]).unwrap().value, j + 1);
}

pub fn fold_faults<B: Place>(on: &B::Queue) {
    for_types!(B, on, faulty_fold);
}

fn faulty_fold<B: Place, A: Activation>(on: &B::Queue) {
    let p = small::<B>();
    let mut world = World::<B, A>::new(on, p);
    (world.folded[2], world.committed[2]) = (3, 2);
    (world.folded[4], world.committed[4]) = (0, p.journal_rows as i32 + 1);
    (world.folded[5], world.committed[5]) = (-1, 0);
    // Slot 9 is unknown; the counters of the rest are wrong.
    let (state, journal) = (world.state(), world.journal());
    world.fold_only(&[2, 4, 5, 9]);
    same("state", &world.state(), &state).unwrap();
    same("journal", &world.journal(), &journal).unwrap();
    let faults: Vec<_> =
        world.faults().iter().map(|f| Fault::decode(*f).map(|f| (f.kind, f.value))).collect();
    let pending = |value| Some((FaultKind::Pending, value));
    let slot = Some((FaultKind::Slot, 9));
    assert_eq!(faults, [None, None, pending(-1), None, pending(9), pending(1), None, slot]);
}

pub fn bad_row_offsets_write_nothing_through_them<B: Place>(on: &B::Queue) {
    for_types!(B, on, bad_row_offsets);
}

/// A last offset that is not sound does not give the rows of sound sequences to nobody.
pub fn a_last_offset_below_the_others_zeroes_none_of_theirs<B: Place>(on: &B::Queue) {
    for_types!(B, on, descending_end);
}

fn descending_end<B: Place, A: Activation>(on: &B::Queue) {
    let p = flushing(small::<B>(), 2);
    let (width, heads) = (p.v_heads * p.v_dim, p.v_heads);
    let rows = Stream::<A>::random(&p, 6, &mut Rng::new(9));
    let want = World::<B, A>::new(on, p).verify(&Launch::one(&p, 1, 0, rows.part(&p, 0..3)));
    assert!(want.chunks(width / heads).all(|head| head.iter().any(|o| o.to_f32() != 0.0)));
    for last in [2, 0, -1, 7, i32::MIN, i32::MAX] {
        for kind in [Kind::Verify, Kind::Prefill] {
            let mut launch = Launch::new();
            launch.push(&p, 1, 0, &rows.part(&p, 0..3));
            launch.push(&p, 6, 0, &rows.part(&p, 3..6));
            launch.offsets[2] = last;
            let mut world = World::<B, A>::new(on, p);
            let out = world.run(kind, &launch);
            let what = format!("{kind:?} that ends at {last}");
            same(&what, &out[..3 * width], &want).unwrap();
            same(&what, &out[3 * width..], &vec![A::default(); 3 * width]).unwrap();
            let faults = world.faults();
            let fault = Fault::decode(faults[6]).expect(&what);
            assert_eq!((fault.kind, fault.value), (FaultKind::RowOffsets, last), "{what}");
            assert_eq!(faults.iter().filter(|f| **f != 0).count(), 1, "{what}");
        }
    }
}

fn bad_row_offsets<B: Place, A: Activation>(on: &B::Queue) {
    let p = flushing(small::<B>(), 2);
    let rows = Stream::<A>::random(&p, 4, &mut Rng::new(9));
    for (offsets, bad) in [([0, 9, 4], 9), ([0, -1, 4], -1), ([3, 2, 4], 2), ([0, i32::MAX, 4], i32::MAX)] {
        for kind in [Kind::Verify, Kind::Prefill] {
            let mut launch = Launch::new();
            launch.push(&p, 1, 0, &rows.part(&p, 0..2));
            launch.push(&p, 6, 0, &rows.part(&p, 2..4));
            launch.offsets = offsets.to_vec();
            let mut world = World::<B, A>::new(on, p);
            // The canaries around the outputs are looked after by every launch.
            let _ = world.run(kind, &launch);
            // The second sequence is sound where the first one ends below it.
            let sound = usize::from((0..=4).contains(&bad));
            let stored = usize::from(kind == Kind::Prefill) * sound * p.state_len();
            assert_eq!(world.state().iter().filter(|s| !s.is_nan()).count(), stored);
            let journaled = usize::from(kind == Kind::Verify) * sound * 2;
            let written = world.journal().iter().filter(|x| !x.to_f32().is_nan()).count();
            assert_eq!(written, journaled * p.journal_width());
            let fault = Fault::decode(world.faults()[1]).unwrap();
            assert_eq!((fault.kind, fault.value), (FaultKind::RowOffsets, bad));
        }
    }
}

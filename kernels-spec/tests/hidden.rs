//! Literal tables for the operations on hidden rows.

use crate::sim::{Sim, cpu, rows};
use kernels_core::{
    Activation, Cpu, PAD, Tensor, TensorMut, bf16, f16,
    slots::{Fault, FaultKind},
};
use kernels_spec::*;
use kernels_testkit::compare::assert_same_bits;

const NAN: f32 = f32::NAN;

#[test]
fn carry_takes_the_row_before_from_the_pass_or_the_ring() {
    let mut sim = Sim::new(2, 32, 4);
    // The ring of slot 1 has 4 rows: positions 6..=9 at 2, 3, 0, 1. The pass holds 10, 11, 12.
    let ring = [NAN, NAN, NAN, NAN, 8.0, 9.0, 6.0, 7.0];
    let hidden = [NAN, 10.0, 11.0, 12.0, NAN];
    let forward = rows(&[PAD, 1], &[0, 10], &[0, 1, 4]);
    for (start, count, want) in [
        (11, 3, vec![10.0, 11.0, 12.0]),
        (12, 1, vec![11.0]),
        (8, 4, vec![7.0, 8.0, 9.0, 10.0]),
        (7, 1, vec![6.0]),
    ] {
        let draft = rows(&[PAD, 1], &[0, start], &[0, 1, 1 + count]);
        let out = sim.carry(&hidden, &ring, 1, &forward, &draft, 6);
        let n = want.len();
        assert_eq!(out[1..1 + n], want, "rows {start}..");
        assert_eq!((out[0], &out[1 + n..]), (0.0, &vec![0.0; 5 - n][..]), "padding and nobody's rows");
        assert_eq!(sim.table.faults, [0; 3]);
    }
    // A sequence that sat the pass out has the ring only.
    let out = sim.carry(&hidden, &ring, 1, &rows(&[PAD], &[0], &[0, 0]), &rows(&[1], &[9], &[0, 2]), 2);
    assert_eq!(out, [8.0, 9.0]);
    // Row 0 has nothing before it, and nothing is there beyond the pass.
    for (start, value) in [(0, 0), (13, 14)] {
        sim.table.faults.fill(0);
        let out = sim.carry(&hidden, &ring, 1, &forward, &rows(&[PAD, 1], &[0, start], &[0, 0, 2]), 2);
        assert_eq!(out, [0.0, 0.0]);
        assert_eq!(
            Fault::decode(sim.table.faults[1]).map(|f| (f.kind, f.value)),
            Some((FaultKind::Position, value))
        );
    }
}

#[test]
fn kept_hidden_rows_are_the_committed_ones() {
    let mut sim = Sim::new(2, 32, 8);
    let hidden = [NAN, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0];
    let list = rows(&[PAD, 1], &[0, 5], &[0, 1, 7]);
    for (committed, want) in [
        (11, [8.0, 9.0, 10.0]), // 9, 10, 8 by position % 3: see below
        (7, [6.0, 0.5, 5.0]),
        (6, [0.5, 0.5, 5.0]),
        (5, [0.5; 3]),
        (0, [0.5; 3]),
        (30, [8.0, 9.0, 10.0]),
    ] {
        sim.table.committed[1] = committed;
        let mut ring = [0.5; 6];
        sim.keep_hidden(&hidden, &mut ring, 1, &list);
        let by_position = [9.0, 10.0, 8.0];
        let want = if committed > 10 { by_position } else { want };
        assert_eq!(ring[..3], [0.5; 3], "another slot");
        assert_eq!(ring[3..], want, "committed {committed}");
    }
}

#[test]
fn take_last_gathers_by_sequence() {
    let mut sim = Sim::new(3, 32, 4);
    let hidden = [1.0, -1.0, 2.0, -2.0, 3.0, -3.0, NAN, NAN];
    let list = rows(&[2, PAD, 0], &[4, 0, 9], &[0, 2, 2, 3]);
    assert_eq!(sim.take_last(&hidden, 2, &list), [2.0, -2.0, 0.0, 0.0, 3.0, -3.0]);
}

/// The hidden rows of any activation type are copied, never computed with.
fn moves<A: Activation>() {
    let value = A::from_f32;
    let hidden: Vec<A> = [1.5, f32::NAN, -2.0, 0.0].map(value).to_vec();
    let problem = HiddenProblem { sequences: 1, rows: 2, forward_rows: 2, width: 2, slots: 1, ring_rows: 2 };
    let list = rows(&[0], &[4], &[0, 2]);
    let (mut faults, committed) = ([0; 2], [6]);
    let mut ring = vec![A::default(); 4];
    let keep = KeepHiddenArgs {
        ring: TensorMut::new(&mut ring[..], [1, 2, 2]),
        faults: TensorMut::new(&mut faults[..], [2]),
        committed: Tensor::new(&committed[..], [1]),
        hidden: Tensor::new(&hidden[..], [2, 2]),
        rows: list.lend(),
    };
    KeepHidden::plan(problem, &cpu()).unwrap().run::<Cpu, A>(&(), keep).unwrap();
    assert_same_bits("ring", &ring, &hidden);
    let mut out = vec![value(9.0); 4];
    let draft = rows(&[0], &[5], &[0, 2]);
    let carry = CarryArgs {
        out: TensorMut::new(&mut out[..], [2, 2]),
        faults: TensorMut::new(&mut faults[..], [2]),
        hidden: Tensor::new(&hidden[..], [2, 2]),
        ring: Tensor::new(&ring[..], [1, 2, 2]),
        forward: list.lend(),
        rows: draft.lend(),
    };
    Carry::plan(problem, &cpu()).unwrap().run::<Cpu, A>(&(), carry).unwrap();
    assert_same_bits("carried", &out, &hidden);
    let mut last = vec![value(9.0); 2];
    let take = TakeLastArgs {
        out: TensorMut::new(&mut last[..], [1, 2]),
        faults: TensorMut::new(&mut faults[..], [2]),
        hidden: Tensor::new(&hidden[..], [2, 2]),
        rows: list.lend(),
    };
    TakeLast::plan(problem, &cpu()).unwrap().run::<Cpu, A>(&(), take).unwrap();
    assert_same_bits("last", &last, &hidden[2..]);
}

#[test]
fn hidden_rows_of_every_type_are_moved_bit_for_bit() {
    moves::<bf16>();
    moves::<f16>();
    moves::<f32>();
}

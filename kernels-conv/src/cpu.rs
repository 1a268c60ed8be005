//! The specification: every output from its own `width` inputs, in the order of the equation.

use crate::{Args, ConvBackend, Prefill, Problem, Verify, plan::POSITIONS, sealed};
use kernels_core::{
    Activation, Cpu, Result, Tensor, TensorMut, fault, ref_math,
    slots::{Bounds, Fault, FaultKind, Sequence},
};

impl sealed::Sealed for Cpu {}

impl ConvBackend for Cpu {
    fn verify<A: Activation>(op: &Verify, (): &(), args: Args<'_, Cpu, A>) -> Result<()> {
        conv(op.problem(), args);
        Ok(())
    }

    fn prefill<A: Activation>(op: &Prefill, (): &(), args: Args<'_, Cpu, A>) -> Result<()> {
        conv(op.problem(), args);
        Ok(())
    }
}

/// A chunk and a round are the same thing: all outputs first, then the last inputs go into the ring. On the
/// device the two differ in who may touch the ring when.
fn conv<A: Activation>(problem: &Problem, mut args: Args<'_, Cpu, A>) {
    for index in 0..problem.sequences {
        let mut s = sequence(problem, index, &mut args);
        if fault::active("conv.batch_index_as_slot") {
            s.slot = s.slot.map(|_| index % problem.slots);
        }
        let Some(slot) = s.slot else {
            zero(&mut args.out, s.rows);
            continue;
        };
        if fault::active("conv.ring_before_outputs") {
            keep(problem, &mut args.ring, &args.x, slot, &s);
        }
        ref_math::vectorised(
            #[inline(always)]
            || match problem.width {
                2 => outputs::<A, 2>(problem, &mut args, slot, &s),
                3 => outputs::<A, 3>(problem, &mut args, slot, &s),
                4 => outputs::<A, 4>(problem, &mut args, slot, &s),
                _ => unreachable!("plan admits only widths 2 to 4"),
            },
        );
        keep(problem, &mut args.ring, &args.x, slot, &s);
    }
    let unowned = args.rows.unowned(problem.rows);
    zero(&mut args.out, unowned);
}

/// The sequence's numbers, checked; one that has too many rows is skipped like any other faulty one.
fn sequence<A: Activation>(problem: &Problem, index: usize, args: &mut Args<'_, Cpu, A>) -> Sequence {
    let bounds = Bounds { rows: problem.rows, slots: problem.slots, positions: POSITIONS };
    let mut s = args.rows.sequence(index, bounds, &mut args.faults);
    if let Some(slot) = s.slot
        && s.rows.len() > problem.max_rows
    {
        let value = s.rows.len() as i32;
        Fault { kind: FaultKind::RowOffsets, slot: slot as i32, value }.record(&mut args.faults);
        s.slot = None;
    }
    s
}

fn zero<A: Activation>(out: &mut TensorMut<'_, Cpu, A, 2>, rows: std::ops::Range<usize>) {
    if fault::active("conv.padding_not_zeroed") {
        return;
    }
    for row in rows {
        out.row_mut(&[row]).fill(A::default());
    }
}

/// Channels whose taps and sums are at hand at a time.
const BLOCK: usize = 64;

/// y[p] = silu(bias + sum over j of w[j] u[p - W + 1 + j]), oldest tap first, rounded once.
///
/// Inputs before position 0 are zeros that go through the sum like any others.
#[inline(always)]
fn outputs<A: Activation, const W: usize>(
    problem: &Problem,
    args: &mut Args<'_, Cpu, A>,
    slot: usize,
    s: &Sequence,
) {
    for from in (0..problem.channels).step_by(BLOCK) {
        let block = from..problem.channels.min(from + BLOCK);
        let mut start = [0.0f32; BLOCK];
        if let Some(bias) = &args.bias {
            for (start, b) in start.iter_mut().zip(&bias.data[block.clone()]) {
                *start = b.to_f32();
            }
        }
        let mut taps = [[0.0f32; BLOCK]; W];
        for (c, w) in args.weight.data[block.start * W..block.end * W].chunks_exact(W).enumerate() {
            for j in 0..W {
                let from = if fault::active("conv.taps_reversed") { W - 1 - j } else { j };
                taps[j][c] = w[from].to_f32();
            }
        }
        for t in 0..s.rows.len() {
            let mut sums = start;
            for (j, taps) in taps.iter().enumerate() {
                let mut inputs = [0.0f32; BLOCK];
                if let Some(row) = input(problem, args, slot, s, t, W - 1 - j) {
                    for (input, u) in inputs.iter_mut().zip(&row[block.clone()]) {
                        *input = u.to_f32();
                    }
                }
                for ((sum, w), u) in sums.iter_mut().zip(taps).zip(&inputs) {
                    *sum = w.mul_add(*u, *sum);
                }
                if fault::active("conv.rounds_each_tap") {
                    sums.iter_mut().for_each(|sum| *sum = A::from_f32(*sum).to_f32());
                }
            }
            if problem.silu {
                sums.iter_mut().for_each(|sum| *sum = ref_math::silu(*sum));
            }
            for (y, sum) in args.out.row_mut(&[s.rows.start + t])[block.clone()].iter_mut().zip(&sums) {
                *y = A::from_f32(*sum);
            }
        }
    }
}

/// The input `back` positions before row `t`: from this launch, from the ring, or none at all.
#[inline(always)]
fn input<'r, A: Activation>(
    problem: &Problem,
    args: &'r Args<'_, Cpu, A>,
    slot: usize,
    s: &Sequence,
    t: usize,
    back: usize,
) -> Option<&'r [A]> {
    let position = s.start + t;
    let ring = |position: usize| Some(args.ring.row(&[slot, position % problem.ring_rows]));
    if back <= t {
        Some(args.x.row(&[s.rows.start + t - back]))
    } else if back <= position {
        ring(position - back + usize::from(fault::active("conv.ring_row_off_by_one")))
    } else if fault::active("conv.reads_before_start") {
        ring(position + problem.ring_rows * problem.width - back)
    } else {
        None
    }
}

/// Puts the raw inputs of the last rows, as many as the ring holds, where their positions say.
fn keep<A: Activation>(
    problem: &Problem,
    ring: &mut TensorMut<'_, Cpu, A, 3>,
    x: &Tensor<'_, Cpu, A, 2>,
    slot: usize,
    s: &Sequence,
) {
    let count = s.rows.len();
    let first =
        if fault::active("conv.keeps_first_rows") { 0 } else { count.saturating_sub(problem.ring_rows) };
    for t in first..count.min(first + problem.ring_rows) {
        let row = (s.start + t) % problem.ring_rows;
        ring.row_mut(&[slot, row]).copy_from_slice(x.row(&[s.rows.start + t]));
    }
}

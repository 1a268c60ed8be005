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
        ref_math::vectorised(|| match problem.width {
            2 => outputs::<A, 2>(problem, &mut args, slot, &s),
            3 => outputs::<A, 3>(problem, &mut args, slot, &s),
            4 => outputs::<A, 4>(problem, &mut args, slot, &s),
            _ => unreachable!("plan admits only widths 2 to 4"),
        });
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
    /// Channels whose sums are kept at a time.
    const BLOCK: usize = 64;
    let channels = problem.channels;
    for t in 0..s.rows.len() {
        let position = s.start + t;
        let out = args.out.row_mut(&[s.rows.start + t]);
        for from in (0..channels).step_by(BLOCK) {
            let block = from..channels.min(from + BLOCK);
            let mut sums = [0.0f32; BLOCK];
            if let Some(bias) = &args.bias {
                for (sum, b) in sums.iter_mut().zip(&bias.data[block.clone()]) {
                    *sum = b.to_f32();
                }
            }
            let taps = &args.weight.data[block.start * W..block.end * W];
            for j in 0..W {
                let tap = if fault::active("conv.taps_reversed") { W - 1 - j } else { j };
                let back = W - 1 - j;
                let input: Option<&[A]> = if back <= t {
                    Some(args.x.row(&[s.rows.start + t - back]))
                } else if back <= position {
                    let shift = usize::from(fault::active("conv.ring_row_off_by_one"));
                    Some(args.ring.row(&[slot, (position - back + shift) % problem.ring_rows]))
                } else if fault::active("conv.reads_before_start") {
                    Some(args.ring.row(&[slot, (position + problem.ring_rows * W - back) % problem.ring_rows]))
                } else {
                    None
                };
                match input {
                    Some(row) => {
                        for ((sum, w), u) in sums.iter_mut().zip(taps.chunks_exact(W)).zip(&row[block.clone()]) {
                            *sum = w[tap].to_f32().mul_add(u.to_f32(), *sum);
                        }
                    }
                    None => {
                        for (sum, w) in sums.iter_mut().zip(taps.chunks_exact(W)) {
                            *sum = w[tap].to_f32().mul_add(0.0, *sum);
                        }
                    }
                }
                if fault::active("conv.rounds_each_tap") {
                    sums.iter_mut().for_each(|sum| *sum = A::from_f32(*sum).to_f32());
                }
            }
            let out = &mut out[block];
            if problem.silu {
                for (y, sum) in out.iter_mut().zip(&sums) {
                    *y = A::from_f32(ref_math::silu(*sum));
                }
            } else {
                for (y, sum) in out.iter_mut().zip(&sums) {
                    *y = A::from_f32(*sum);
                }
            }
        }
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
    let first = if fault::active("conv.keeps_first_rows") { 0 } else { count.saturating_sub(problem.ring_rows) };
    for t in first..count.min(first + problem.ring_rows) {
        let row = (s.start + t) % problem.ring_rows;
        ring.row_mut(&[slot, row]).copy_from_slice(x.row(&[s.rows.start + t]));
    }
}

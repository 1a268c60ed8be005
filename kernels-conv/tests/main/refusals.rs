//! Every bad input is refused by name and value, on the host; wrong device data ends in a fault word.

use crate::world::{Chunk, Kind, Place, World, decode, parameters};
use kernels_conv::{Args, Prefill, Problem, Verify};
use kernels_core::{
    DeviceInfo, PAD, Rows, Tensor, TensorMut, bf16,
    slots::{Fault, FaultKind},
};
use kernels_testkit::{compare::assert_same_bits, rng::Rng};

fn good() -> Problem {
    Problem {
        sequences: 3,
        rows: 12,
        channels: 16,
        width: 4,
        slots: 3,
        ring_rows: 7,
        max_rows: 4,
        bias: true,
        silu: true,
    }
}

pub fn wrong_problems_are_named() {
    let verify = |p| Verify::plan(p, &DeviceInfo::cpu()).unwrap_err().to_string();
    let prefill = |p| Prefill::plan(p, &DeviceInfo::cpu()).unwrap_err().to_string();
    let p = good();
    assert_eq!(verify(Problem { width: 5, ..p }), "conv::verify: width 5 (2, 3 and 4 are) is not supported");
    assert_eq!(
        prefill(Problem { width: 0, ..p }),
        "conv::prefill: width 0 (2, 3 and 4 are) is not supported"
    );
    assert_eq!(
        verify(Problem { ring_rows: 6, ..p }),
        "conv::verify: ring_rows is 6; width 4 and max_rows 4 need at least 7"
    );
    assert!(Prefill::plan(Problem { ring_rows: 3, ..p }, &DeviceInfo::cpu()).is_ok());
    assert_eq!(
        prefill(Problem { ring_rows: 2, ..p }),
        "conv::prefill: ring_rows is 2; width 4 and max_rows 4 need at least 3"
    );
    assert_eq!(verify(Problem { channels: 0, ..p }), "conv::verify: channels is 0; it must be at least 1");
    assert_eq!(verify(Problem { max_rows: 0, ..p }), "conv::verify: max_rows is 0; it must be at least 1");
    assert_eq!(verify(Problem { slots: 0, ..p }), "conv::verify: slots is 0; it must be at least 1");
    assert_eq!(
        verify(Problem { slots: 1 << 23, ..p }),
        "conv::verify: slots is 8388608; a fault word holds slots below 8388608"
    );
    assert_eq!(
        verify(Problem { rows: 1 << 31, ..p }),
        "conv::verify: rows is 2147483648; it must fit an i32"
    );
    assert_eq!(*Verify::plan(p, &DeviceInfo::cpu()).unwrap().problem(), p);
    // A device that this build has no kernels for, or no device code at all.
    let text = Verify::plan(Problem { channels: 12, ..p }, &DeviceInfo::h200()).unwrap_err().to_string();
    assert_eq!(text, "conv::verify: 12 channels on CUDA (multiples of 8 are) is not supported");
    #[cfg(not(feature = "cuda"))]
    assert!(Verify::plan(p, &DeviceInfo::h200()).unwrap_err().to_string().contains("built without CUDA"));
}

/// Operands of the right shapes, of which each case makes one wrong.
pub fn wrong_operands_are_named<B: Place>(queue: &B::Queue) {
    let p = good();
    let verify = Verify::plan(p, &B::device(queue)).unwrap();
    let new = |n: usize| B::zeros::<bf16>(queue, n).unwrap();
    let integers = |data: &[i32]| B::upload(queue, data).unwrap();
    let (mut out, mut ring, x, weight, bias) =
        (new(12 * 16), new(3 * 7 * 16), new(12 * 16), new(64), new(16));
    let mut faults = B::zeros::<u64>(queue, 4).unwrap();
    let (slots, start, offsets) = (integers(&[0, 1, 2]), integers(&[0; 3]), integers(&[0; 4]));
    let mut refused = |change: &dyn Fn(&mut Args<'_, B, bf16>)| {
        let mut args = Args::<B, bf16> {
            out: TensorMut::of(&mut out, [12, 16]),
            ring: TensorMut::of(&mut ring, [3, 7, 16]),
            faults: TensorMut::of(&mut faults, [4]),
            x: Tensor::of(&x, [12, 16]),
            weight: Tensor::of(&weight, [16, 4]),
            bias: Some(Tensor::of(&bias, [16])),
            rows: Rows {
                slots: Tensor::of(&slots, [3]),
                start: Tensor::of(&start, [3]),
                row_offsets: Tensor::of(&offsets, [4]),
            },
        };
        change(&mut args);
        verify.run(queue, args).err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert_eq!(refused(&|_| {}), "");
    assert_eq!(
        refused(&|a| a.out.dims = [11, 16]),
        "conv::verify: `out` has shape [11, 16], expected [12, 16]"
    );
    assert_eq!(
        refused(&|a| a.x.strides = [24, 1]),
        "conv::verify: `x` needs 280 elements, its buffer holds 192"
    );
    assert!(refused(&|a| a.out.strides = [8, 1]).contains("`out` has strides [8, 1]"));
    assert!(refused(&|a| a.ring.strides = [16, 16, 1]).contains("`ring` has strides [16, 16, 1]"));
    assert_eq!(
        refused(&|a| a.ring.dims[1] = 8),
        "conv::verify: `ring` has shape [3, 8, 16], expected [3, 7, 16]"
    );
    assert_eq!(refused(&|a| a.faults.dims = [3]), "conv::verify: `faults` has shape [3], expected [4]");
    assert_eq!(
        refused(&|a| a.weight.dims = [4, 16]),
        "conv::verify: `weight` has shape [4, 16], expected [16, 4]"
    );
    assert!(
        refused(&|a| a.weight.strides = [3, 1]).contains("`weight` has strides [3, 1]; taps must be packed")
    );
    assert_eq!(refused(&|a| a.bias = None), "conv::verify: bias is missing; the problem has a bias");
    assert_eq!(
        refused(&|a| a.rows.row_offsets.dims = [3]),
        "conv::verify: `rows.row_offsets` has shape [3], expected [4]"
    );
    if !B::GENERAL {
        // Half a vector further on: inside the buffer, but not where a 16-byte access may begin.
        let text = refused(&|a| {
            a.x.data = B::slice(&a.x.data, 4..12 * 16);
            a.x.strides = [8, 1];
        });
        assert_eq!(text, "conv::verify: `x` must be aligned to 16 bytes");
        let odd = refused(&|a| a.x.strides = [12, 1]);
        assert_eq!(odd, "conv::verify: `x` must be aligned to 16 bytes");
    }
}

/// A sequence with wrong numbers is skipped, its slot's word says why, and its neighbours do not notice.
pub fn wrong_device_data_is_recorded<B: Place>(queue: &B::Queue) {
    let p = good();
    let parameters = parameters::<bf16>(&p, 3);
    let x: Vec<bf16> = Rng::new(3).normals(2 * p.channels, 1.0);
    let (want, _) = decode::<B, bf16>(queue, p, &parameters, 0, &x);
    let healthy = Chunk { slot: 2, start: 0, x: x.clone() };
    let fault = |kind, slot, value| Some(Fault { kind, slot, value });
    for (bad, word, expected) in [
        (Chunk { slot: 3, start: 0, x: x.clone() }, 3, fault(FaultKind::Slot, 3, 3)),
        (Chunk { slot: 1, start: (1 << 31) - 1, x: x.clone() }, 1, fault(FaultKind::Position, 1, i32::MAX)),
        (Chunk { slot: 1, start: usize::MAX, x: x.clone() }, 1, fault(FaultKind::Position, 1, -1)),
        (
            Chunk { slot: 0, start: 0, x: x.repeat(3)[..5 * 16].to_vec() },
            0,
            fault(FaultKind::RowOffsets, 0, 5),
        ),
    ] {
        for kind in [Kind::Verify, Kind::Prefill] {
            let mut world = World::<B, bf16>::new(queue, p, &parameters);
            world.stage(&[bad.clone(), healthy.clone()]);
            world.enqueue(kind).unwrap();
            let (rows, bad_rows) = (world.out(), bad.x.len() / p.channels);
            assert_same_bits("bad", &rows[..bad_rows].concat(), &vec![bf16::ZERO; bad.x.len()]);
            assert_same_bits("healthy", &rows[bad_rows..][..2].concat(), &want);
            let mut expectation = vec![None; 4];
            expectation[word] = expected;
            assert_eq!(world.faults(), expectation, "{kind:?}");
            for slot in [0, 1] {
                let ring = world.ring(slot).concat();
                assert_same_bits("ring", &ring, &vec![kernels_testkit::guard::poison(); ring.len()]);
            }
        }
    }
    offsets_out_of_range::<B>(queue, p, &parameters);
    offsets_that_end_below::<B>(queue, p, &parameters, &healthy, &want);
}

/// A last offset that is not sound does not give the rows of sound sequences to nobody.
fn offsets_that_end_below<B: Place>(
    queue: &B::Queue,
    p: Problem,
    parameters: &(Vec<bf16>, Vec<bf16>),
    healthy: &Chunk<bf16>,
    want: &[bf16],
) {
    for last in [1, 0, -1, 13, i32::MIN, i32::MAX] {
        for kind in [Kind::Verify, Kind::Prefill] {
            let mut world = World::<B, bf16>::new(queue, p, parameters);
            let empty = |slot| Chunk { slot, start: 0, x: vec![] };
            world.stage(&[healthy.clone(), empty(PAD), empty(1)]);
            world.set_offsets(&[0, 2, 2, last]);
            world.enqueue(kind).unwrap();
            let (out, what) = (world.out(), format!("{kind:?} that ends at {last}"));
            assert_same_bits(&what, &out[..2].concat(), want);
            assert_same_bits(&what, &out[2..].concat(), &vec![bf16::ZERO; (p.rows - 2) * p.channels]);
            let fault = Fault { kind: FaultKind::RowOffsets, slot: 1, value: last };
            assert_eq!(world.faults(), [None, Some(fault), None, None], "{what}");
        }
    }
}

/// Offsets that descend or reach past the launch own no rows; nothing is written through them.
fn offsets_out_of_range<B: Place>(queue: &B::Queue, p: Problem, parameters: &(Vec<bf16>, Vec<bf16>)) {
    for offsets in [[0, -1, 2, 2], [0, 13, 13, 13], [5, 4, 4, 4], [0, i32::MAX, 1, 1]] {
        let mut world = World::<B, bf16>::new(queue, p, parameters);
        world.stage_raw(&[1, PAD, PAD], &[0; 3], &offsets, &[]);
        world.enqueue(Kind::Verify).unwrap();
        // `out` also looks after the canaries.
        let _ = world.out();
        let value = offsets[1];
        let got = world.faults()[1];
        assert_eq!(got, Some(Fault { kind: FaultKind::RowOffsets, slot: 1, value }), "{offsets:?}");
    }
}

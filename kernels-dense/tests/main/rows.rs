//! Norms and the embedding on both backends: a row is a function of itself.

use crate::{
    calm,
    world::{Case, Data, Op, Place, VOCAB, cases, run},
};
use kernels_core::{Activation, bf16};
use kernels_testkit::{compare::assert_same_bits, for_types};

/// T rows of a launch equal T launches of one row, with poison between rows and around them.
pub(crate) fn rows_are_single_rows<B: Place>(queue: &B::Queue) {
    for_types!(B, queue, any_rows);
}

fn any_rows<B: Place, A: Activation>(queue: &B::Queue) {
    calm(|| {
        for (i, case) in cases::<B>().into_iter().enumerate() {
            let rows = [2, 3, 5, 9, 17][i % 5];
            let data = Data::<A>::random(case, rows, i as u64);
            let together = run::<B, A>(queue, case, &data);
            assert_eq!(together.len(), rows);
            for (row, got) in together.iter().enumerate() {
                assert!(got.iter().all(|y| y.to_f32().is_finite()), "{case:?}: something else was read");
                let alone = run::<B, A>(queue, case, &data.rows(row..row + 1));
                assert_same_bits(&format!("row {row} of {rows}, {case:?}"), got, &alone[0]);
            }
        }
    });
}

/// A row of NaN gives NaN and changes no other row.
pub(crate) fn a_row_of_nan_keeps_to_itself<B: Place>(queue: &B::Queue) {
    calm(|| {
        for case in cases::<B>().into_iter().filter(|case| case.op != Op::Embed) {
            let clean = Data::<bf16>::random(case, 4, 7);
            let mut dirty = clean.clone();
            let width = case.parts * case.n;
            dirty.x[2 * width..3 * width].fill(bf16::NAN);
            dirty.y[2 * width..3 * width].fill(bf16::NAN);
            let (clean, dirty) = (run::<B, bf16>(queue, case, &clean), run::<B, bf16>(queue, case, &dirty));
            for row in [0, 1, 3] {
                assert_same_bits(&format!("row {row}, {case:?}"), &dirty[row], &clean[row]);
            }
            assert!(dirty[2].iter().all(|y| y.is_nan()), "{case:?}");
        }
    });
}

/// The residual is rounded before the norm reads it, and two norms side by side are two norms.
pub(crate) fn fused_norms_are_their_parts<B: Place>(queue: &B::Queue) {
    for_types!(B, queue, parts_of_fused);
}

fn parts_of_fused<B: Place, A: Activation>(queue: &B::Queue) {
    calm(|| {
        for n in [128, 256, 2048, 2056, 5120] {
            let case = |op| Case { op, parts: 1, n };
            let data = Data::<A>::random(case(Op::Norm), 3, n as u64);
            let add = |x: &A, y: &A| A::from_f32(x.to_f32() + y.to_f32());
            let sum: Vec<A> = data.x.iter().zip(&data.y).map(|(x, y)| add(x, y)).collect();
            let normed = run::<B, A>(queue, case(Op::Norm), &Data { x: sum.clone(), ..data.clone() });
            let fused = run::<B, A>(queue, case(Op::AddNorm), &data);
            for row in 0..3 {
                assert_same_bits("residual", &fused[row][..n], &sum[row * n..][..n]);
                assert_same_bits("norm of the residual", &fused[row][n..], &normed[row]);
            }
            let left = run::<B, A>(queue, case(Op::Norm), &data);
            let (x, left_weight) = (data.y.clone(), data.right_weight.clone());
            let right = run::<B, A>(queue, case(Op::Norm), &Data { x, left_weight, ..data.clone() });
            let both = run::<B, A>(queue, case(Op::ConcatNorm), &data);
            for row in 0..3 {
                assert_same_bits("left half", &both[row][..n], &left[row]);
                assert_same_bits("right half", &both[row][n..], &right[row]);
            }
        }
    });
}

/// Rows whose root mean square is a power of two, eps far below it.
pub(crate) fn norms_by_hand<B: Place>(queue: &B::Queue) {
    calm(|| {
        let b = bf16::from_f32;
        for n in [128, 2048, 5120] {
            let case = |op| Case { op, parts: 1, n };
            let mut data = Data::<bf16>::random(case(Op::Norm), 1, 1);
            data.x = (0..n).map(|i| b(if i.is_multiple_of(3) { -4.0 } else { 4.0 })).collect();
            data.left_weight = (0..n).map(|i| b(if i.is_multiple_of(2) { 0.0 } else { 1.0 })).collect();
            let sign = |i: usize| if i.is_multiple_of(3) { -1.0 } else { 1.0 };
            let want: Vec<bf16> =
                (0..n).map(|i| b(sign(i) * if i.is_multiple_of(2) { 1.0 } else { 2.0 })).collect();
            assert_same_bits("norm", &run::<B, bf16>(queue, case(Op::Norm), &data)[0], &want);
            // 256 + 1 is 256 in bf16, whose mean square is 65536.
            data.x = vec![b(1.0); n];
            data.y = vec![b(256.0); n];
            data.left_weight = vec![b(0.0); n];
            let want = [vec![b(256.0); n], vec![b(1.0); n]].concat();
            assert_same_bits("add and norm", &run::<B, bf16>(queue, case(Op::AddNorm), &data)[0], &want);
        }
        // The gated norm scales by w itself, and by silu(gate): 0 at 0, 100 at 100.
        let case = Case { op: Op::GatedNorm, parts: 2, n: 128 };
        let mut data = Data::<bf16>::random(case, 1, 1);
        data.x = vec![b(-8.0); 256];
        data.y = (0..256usize).map(|i| b(if i.is_multiple_of(2) { 0.0 } else { 100.0 })).collect();
        data.gated_weight = vec![2.0; 128];
        let want: Vec<bf16> =
            (0..256usize).map(|i| b(if i.is_multiple_of(2) { -0.0 } else { -200.0 })).collect();
        assert_same_bits("gated norm", &run::<B, bf16>(queue, case, &data)[0], &want);
    });
}

/// Zeros for ids below and above the table; its last row is there.
pub(crate) fn ids_outside_the_table_give_zeros<B: Place>(queue: &B::Queue) {
    calm(|| {
        for n in [8, 128, 1032, 5120] {
            let case = Case { op: Op::Embed, parts: 1, n };
            let last = VOCAB as i32 - 1;
            let ids = vec![3, -1, last, last + 1, 0, i32::MIN, i32::MAX, 3];
            let data = Data { ids: ids.clone(), ..Data::<bf16>::random(case, ids.len(), 5) };
            let got = run::<B, bf16>(queue, case, &data);
            for (id, got) in ids.iter().zip(&got) {
                let want = match usize::try_from(*id) {
                    Ok(id) if id < VOCAB => data.table[id * n..][..n].to_vec(),
                    _ => vec![bf16::ZERO; n],
                };
                assert_same_bits(&format!("id {id}"), got, &want);
            }
        }
    });
}

/// A launch of no rows is legal and does nothing.
pub(crate) fn no_rows_do_nothing<B: Place>(queue: &B::Queue) {
    calm(|| {
        for case in cases::<B>() {
            let data = Data::<bf16> { ids: Vec::new(), ..Data::random(case, 0, 1) };
            assert!(run::<B, bf16>(queue, case, &data).is_empty());
        }
    });
}

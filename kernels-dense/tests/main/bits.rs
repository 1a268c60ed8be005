//! Equal bytes: rows alone and together, fused and one after the other, one thread and several.

use crate::{Check, calls::*, calm, same};
use kernels_core::{Activation, Cpu, DeviceInfo, Tensor, TensorMut, bf16, f16};
use kernels_dense::*;
use kernels_testkit::rng::Rng;

pub(crate) const EPILOGUES: [Epilogue; 4] =
    [Epilogue::Store, Epilogue::AddTo, Epilogue::SiluMul, Epilogue::SigmoidGate];

/// Makes the second half of every sum cancel the first, but for rounding: what is left of it depends on the
/// order in every bit, and shows after rounding to bf16 too.
fn cancel<A: Activation, W: Activation>(x: &mut [A], weight: &mut [W], k: usize) {
    let half = k / 2;
    for x in x.chunks_mut(k) {
        x.copy_within(..half, half);
    }
    for w in weight.chunks_mut(k) {
        for i in 0..half {
            w[half + i] = W::from_f32(-w[i].to_f32());
        }
    }
}

/// Every row count up to nine (all tiles and their remainders) against one row at a time.
pub(crate) fn linear_rows<A: Activation, W: Activation>() -> Check {
    for (k, n) in [(1, 1), (7, 3), (8, 8), (67, 21), (256, 40)] {
        for (epilogue, cancelling) in EPILOGUES.into_iter().flat_map(|e| [(e, false), (e, true)]) {
            for rows in 2..=9 {
                let problem = LinearProblem { rows, k, n, epilogue };
                let mut rng = Rng::new((rows * 1000 + k) as u64);
                let mut x: Vec<A> = rng.normals(rows * k, 1.0);
                let mut weight: Vec<W> = rng.normals(problem.weight_rows() * k, 0.3);
                let mut before: Vec<A> = rng.normals(rows * n, 1.0);
                if cancelling {
                    cancel(&mut x, &mut weight, k);
                    before.fill(A::from_f32(0.0));
                }
                let together = linear(problem, &before, &x, &weight);
                for row in 0..rows {
                    let one = LinearProblem { rows: 1, ..problem };
                    let alone = linear(one, &before[row * n..][..n], &x[row * k..][..k], &weight);
                    let what = format!("linear {epilogue:?} k {k} n {n}, row {row} of {rows}");
                    same(&what, &together[row * n..][..n], &alone)?;
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn linear_rows_do_not_know_of_each_other() {
    calm(|| {
        linear_rows::<bf16, bf16>().unwrap();
        linear_rows::<f16, f16>().unwrap();
        linear_rows::<f32, f32>().unwrap();
        linear_rows::<f32, bf16>().unwrap();
        linear_rows::<bf16, f32>().unwrap();
    });
}

/// The documented order, written down once more: lane k mod 8, fused, ascending; halves added.
pub(crate) fn linear_order<W: Activation>() -> Check {
    for k in [1, 5, 8, 9, 16, 17, 100, 256, 1027] {
        let (rows, n) = (3, 11);
        let mut rng = Rng::new(k as u64);
        let x: Vec<f32> = rng.normals(rows * k, 1.0);
        let weight: Vec<W> = rng.normals(n * k, 1.0);
        let problem = LinearProblem { rows, k, n, epilogue: Epilogue::Store };
        let got = linear(problem, &poison::<f32>(rows * n), &x, &weight);
        let mut want = Vec::new();
        for row in 0..rows {
            for j in 0..n {
                let mut l = [0.0f32; 8];
                for i in 0..k {
                    l[i % 8] = x[row * k + i].mul_add(weight[j * k + i].to_f32(), l[i % 8]);
                }
                let [a, b, c, d] = [l[0] + l[4], l[1] + l[5], l[2] + l[6], l[3] + l[7]];
                want.push((a + c) + (b + d));
            }
        }
        same(&format!("the order of the sum, k {k}"), &got, &want)?;
    }
    Ok(())
}

pub(crate) fn linear_sums_in_the_documented_order() {
    calm(|| {
        linear_order::<f32>().unwrap();
        linear_order::<bf16>().unwrap();
        linear_order::<f16>().unwrap();
    });
}

pub(crate) fn negative_zeros_and_the_last_partial_vector() {
    // Every product is -0, so every lane stays what it was: padding a vector must not turn -0 to +0.
    calm(|| {
        for k in 1..20 {
            let problem = LinearProblem { rows: 1, k, n: 1, epilogue: Epilogue::Store };
            let got = linear(problem, &[1.0f32], &vec![-0.0f32; k], &vec![1.0f32; k]);
            // Lanes start at +0, and +0 + -0 = +0.
            assert_eq!(got[0].to_bits(), 0.0f32.to_bits(), "k {k}");
        }
    });
}

pub(crate) fn epilogues_round_where_separate_steps_do() {
    fn check<A: Activation>() {
        let (rows, k, n) = (5, 96, 33);
        let mut rng = Rng::new(3);
        let x: Vec<A> = rng.normals(rows * k, 1.0);
        let weight: Vec<A> = rng.normals(2 * n * k, 0.2);
        let before: Vec<A> = rng.normals(rows * n, 4.0);

        let store = LinearProblem { rows, k, n, epilogue: Epilogue::Store };
        let gate = linear(store, &poison::<A>(rows * n), &x, &weight[..n * k]);
        let up = linear(store, &poison::<A>(rows * n), &x, &weight[n * k..]);
        let fused = linear(
            LinearProblem { epilogue: Epilogue::SiluMul, ..store },
            &poison::<A>(rows * n),
            &x,
            &weight,
        );
        same("silu(gate) * up", &fused, &silu_mul(rows, &gate, &up)).unwrap();

        let add_to = LinearProblem { epilogue: Epilogue::AddTo, ..store };
        let fused = linear(add_to, &before, &x, &weight[..n * k]);
        let added: Vec<A> =
            before.iter().zip(&gate).map(|(b, y)| A::from_f32(b.to_f32() + y.to_f32())).collect();
        same("residual", &fused, &added).unwrap();

        let w: Vec<A> = rng.normals(n, 0.1);
        let (residual, normed) = add_norm(rows, &before, &gate, &w);
        same("add of add + norm", &residual, &added).unwrap();
        same("norm of add + norm", &normed, &norm(rows, EPS, &added, &w)).unwrap();

        let v: Vec<A> = rng.normals(n, 0.1);
        let both = concat_norm(rows, (&gate, &w), (&up, &v));
        let (left, right) = (norm(rows, EPS, &gate, &w), norm(rows, EPS, &up, &v));
        for row in 0..rows {
            let both = &both[row * 2 * n..][..2 * n];
            same("left half", &both[..n], &left[row * n..][..n]).unwrap();
            same("right half", &both[n..], &right[row * n..][..n]).unwrap();
        }
    }
    calm(|| {
        check::<bf16>();
        check::<f16>();
        check::<f32>();
    });
}

/// The documented order of a norm's sum, written down once more, recursively.
pub(crate) fn norms_sum_in_the_documented_order() {
    fn halves(x: &[f32]) -> f32 {
        match x {
            [even, odd] => odd.mul_add(*odd, even * even),
            _ => {
                let (first, second) = x.split_at(x.len() / 2);
                halves(first) + halves(second)
            }
        }
    }
    calm(|| {
        for n in [1, 2, 3, 8, 100, 128, 129, 256, 384, 1000, 2048, 5120, 6144] {
            let x: Vec<f32> = Rng::new(n as u64).normals(n, 1.0);
            let mut filled = x.clone();
            filled.resize(n.next_power_of_two().max(2), 0.0);
            let scale = 1.0 / halves(&filled).mul_add(1.0 / n as f32, EPS).sqrt();
            let want: Vec<f32> = x.iter().map(|x| x * scale).collect();
            same(&format!("the sum of {n} squares"), &norm(1, EPS, &x, &vec![0.0; n]), &want).unwrap();
        }
    });
}

pub(crate) fn norm_rows_do_not_know_of_each_other() {
    fn check<A: Activation>() {
        for n in [1, 31, 32, 33, 128, 256, 300] {
            let rows = 7;
            let mut rng = Rng::new(n as u64);
            let (x, y): (Vec<A>, Vec<A>) = (rng.normals(rows * n, 1.0), rng.normals(rows * n, 2.0));
            let w: Vec<A> = rng.normals(n, 0.2);
            let w32: Vec<f32> = rng.uniforms(n, 0.5, 1.5);
            let together = norm(rows, EPS, &x, &w);
            let added = add_norm(rows, &x, &y, &w);
            let gated = gated_norm([rows, 1, n], EPS, &x, &y, &w32);
            let both = concat_norm(rows, (&x, &w), (&y, &w));
            // Rows as heads: a head is normed like a row.
            same("heads", &gated_norm([1, rows, n], EPS, &x, &y, &w32), &gated).unwrap();
            for row in 0..rows {
                let at = row * n..row * n + n;
                let (x, y) = (&x[at.clone()], &y[at.clone()]);
                same("norm", &together[at.clone()], &norm(1, EPS, x, &w)).unwrap();
                let alone = add_norm(1, x, y, &w);
                same("residual", &added.0[at.clone()], &alone.0).unwrap();
                same("add + norm", &added.1[at.clone()], &alone.1).unwrap();
                same("gated", &gated[at], &gated_norm([1, 1, n], EPS, x, y, &w32)).unwrap();
                same("concat", &both[row * 2 * n..][..2 * n], &concat_norm(1, (x, &w), (y, &w))).unwrap();
            }
        }
    }
    calm(|| {
        check::<bf16>();
        check::<f16>();
        check::<f32>();
    });
}

pub(crate) fn a_row_of_nan_stays_alone() {
    calm(|| {
        let (rows, k, n) = (6, 40, 13);
        let mut rng = Rng::new(8);
        let clean: Vec<bf16> = rng.normals(rows * k, 1.0);
        let weight: Vec<bf16> = rng.normals(n * k, 1.0);
        let mut dirty = clean.clone();
        dirty[3 * k..4 * k].fill(bf16::NAN);
        let problem = LinearProblem { rows, k, n, epilogue: Epilogue::Store };
        let (a, b) = (
            linear(problem, &poison::<bf16>(rows * n), &clean, &weight),
            linear(problem, &poison::<bf16>(rows * n), &dirty, &weight),
        );
        for row in 0..rows {
            let b = &b[row * n..][..n];
            if row == 3 {
                // One NaN only, so that bytes can be compared.
                same("the row of NaN", b, &vec![bf16::NAN; n]).unwrap();
            } else {
                same("its neighbours", b, &a[row * n..][..n]).unwrap();
            }
        }
    });
}

pub(crate) fn strided_operands_and_their_gaps() {
    // Rows inside wider rows of NaN: nothing may be read from or written to the gaps.
    calm(|| {
        let (rows, k, n) = (3, 20, 9);
        let (x_stride, w_stride, out_stride) = (k + 5, k + 3, n + 4);
        let mut rng = Rng::new(12);
        let x: Vec<bf16> = rng.normals(rows * k, 1.0);
        let weight: Vec<bf16> = rng.normals(n * k, 1.0);
        let spread = |packed: &[bf16], width: usize, stride: usize| {
            let mut all = vec![bf16::NAN; packed.len() / width * stride];
            for (row, values) in packed.chunks(width).enumerate() {
                all[row * stride..][..width].copy_from_slice(values);
            }
            all
        };
        let (wide_x, wide_w) = (spread(&x, k, x_stride), spread(&weight, k, w_stride));
        let mut wide_out = vec![bf16::NAN; rows * out_stride];
        let problem = LinearProblem { rows, k, n, epilogue: Epilogue::Store };
        let args = LinearArgs::<Cpu> {
            out: TensorMut::of(&mut wide_out, [rows, n]).with_strides([out_stride, 1]),
            x: Tensor::of(&wide_x, [rows, k]).with_strides([x_stride, 1]),
            weight: Tensor::of(&wide_w, [n, k]).with_strides([w_stride, 1]),
            gate: None,
            workspace: None,
        };
        Linear::plan(problem, &DeviceInfo::cpu()).unwrap().run(&(), args).unwrap();
        let packed = linear(problem, &poison::<bf16>(rows * n), &x, &weight);
        for row in 0..rows {
            let (out, gap) = wide_out[row * out_stride..][..out_stride].split_at(n);
            same("strided rows", out, &packed[row * n..][..n]).unwrap();
            assert!(gap.iter().all(|g| g.is_nan()), "row {row}: the gap was written");
        }
    });
}

pub(crate) fn threads_do_not_change_bits() {
    // Large enough that the outputs are spread over threads, and not a multiple of anything.
    calm(|| {
        let (rows, k, n) = (5, 520, 1031);
        let mut rng = Rng::new(77);
        let x: Vec<bf16> = rng.normals(rows * k, 1.0);
        let weight: Vec<bf16> = rng.normals(n * k, 1.0);
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let problem = LinearProblem { rows, k, n, epilogue: Epilogue::Store };
                let (logits, best) =
                    head(HeadProblem { rows, k, vocab: n, valid: n - 2, listed: None }, &x, &weight);
                (linear(problem, &poison::<bf16>(rows * n), &x, &weight), logits, best)
            })
        };
        let one = run(1);
        for threads in [2, 3, 7] {
            let many = run(threads);
            same(&format!("{threads} threads"), &many.0, &one.0).unwrap();
            same(&format!("{threads} threads, logits"), &many.1, &one.1).unwrap();
            assert_eq!(many.2, one.2);
        }
    });
}

pub(crate) fn calls_from_many_threads_at_once() {
    // While a thread waits for its share it may be given another call: buffers must not be mixed up.
    calm(|| {
        use rayon::prelude::*;
        let (k, n) = (260, 4100);
        let mut rng = Rng::new(5);
        let weight: Vec<bf16> = rng.normals(n * k, 1.0);
        let xs: Vec<Vec<bf16>> = (0..6).map(|_| rng.normals(k, 1.0)).collect();
        let problem = LinearProblem { rows: 1, k, n, epilogue: Epilogue::Store };
        let call = |x: &Vec<bf16>| linear(problem, &poison::<bf16>(n), x, &weight);
        let one_by_one: Vec<_> = xs.iter().map(call).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let at_once: Vec<_> = pool.install(|| xs.par_iter().map(call).collect());
        for (got, want) in at_once.iter().zip(&one_by_one) {
            same("calls at once", got, want).unwrap();
        }
    });
}

pub(crate) fn head_and_linear_share_their_sums() {
    calm(|| {
        let (rows, k, vocab) = (4, 72, 50);
        let mut rng = Rng::new(1);
        let x: Vec<f32> = rng.normals(rows * k, 1.0);
        let weight: Vec<bf16> = rng.normals(vocab * k, 1.0);
        let (logits, best) = head(HeadProblem { rows, k, vocab, valid: vocab, listed: None }, &x, &weight);
        let problem = LinearProblem { rows, k, n: vocab, epilogue: Epilogue::Store };
        same("logits", &logits, &linear(problem, &poison::<f32>(rows * vocab), &x, &weight)).unwrap();
        for row in 0..rows {
            let want = kernels_core::argmax::argmax(&logits[row * vocab..][..vocab]);
            assert_eq!(best[row], want.unwrap() as i32);
        }
    });
}

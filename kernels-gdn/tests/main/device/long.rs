//! A sequence of 100,000 tokens.

use super::grids;
use super::raw::{Inputs, Memory};
use crate::place::{flushing, small};
use crate::stream::mixed_width;
use kernels_core::{Backend, Cuda, Rows, Tensor, TensorMut, bf16, slots};
use kernels_gdn::{Fold, Grid, Problem, Verify};
use kernels_testkit::{compare::assert_same_bits, device::Device, rng::Rng, runner::stride};

fn tokens() -> usize {
    100_000 / stride(200)
}

/// A round: `rows` rows from `start`, of which `accepted` are tokens of the sequence.
#[derive(Clone, Copy)]
struct Round {
    start: usize,
    folded: usize,
    rows: usize,
    accepted: usize,
}

/// Rounds of random lengths with random accept counts, back to back, against one row at a time: the outputs of
/// accepted rows and the state at the end.
pub fn a_hundred_thousand_tokens_equal_decoding(device: &Device) {
    let p = Problem { k_heads: 1, v_heads: 2, slots: 1, sequences: 1, max_rows: 8, ..small::<Cuda>() };
    let p = flushing(p, 3);
    let mut rng = Rng::new(90);
    let (width, heads) = (mixed_width(&p), p.v_heads);
    let mixed: Vec<bf16> = rng.uniforms(tokens() * width, -2.0, 2.0);
    let [a, b]: [Vec<bf16>; 2] = [(); 2].map(|()| rng.uniforms(tokens() * heads, -3.0, 3.0));

    let single = flushing(Problem { max_rows: 1, ..p }, 0);
    // Every token is folded by the launch after its own.
    let singles: Vec<Round> = (0..tokens())
        .map(|start| Round { start, folded: start.saturating_sub(1), rows: 1, accepted: 1 })
        .collect();
    let inputs = Inputs::upload(device, &p, &mixed, &a, &b);
    let generic = Grid::Generic { tile: 16 };
    let want = play(device, single, generic, &inputs, &singles, tokens() - 1);
    assert!(want.0.iter().all(|x| x.is_finite()));

    let (rounds, folded) = random_rounds(&p, &mut rng);
    let gather = |x: &[bf16], width: usize| -> Vec<bf16> {
        let mut rows = vec![];
        for round in &rounds {
            for i in 0..round.rows {
                // A rejected row is a token from elsewhere.
                let token = round.start + i + if i < round.accepted { 0 } else { tokens() / 2 };
                rows.extend_from_slice(&x[token % tokens() * width..][..width]);
            }
        }
        rows
    };
    let inputs = Inputs::upload(device, &p, &gather(&mixed, width), &gather(&a, heads), &gather(&b, heads));
    for grid in grids(device) {
        let (out, state) = play(device, p, grid, &inputs, &rounds, folded);
        assert_same_bits(&format!("outputs, {grid:?}"), &out, &want.0);
        assert_same_bits(&format!("state, {grid:?}"), &state, &want.1);
    }
}

/// Rounds up to the last token, and what is folded then.
fn random_rounds(p: &Problem, rng: &mut Rng) -> (Vec<Round>, usize) {
    let (mut rounds, mut start, mut folded) = (vec![], 0, 0);
    let (mut drafted, mut rejected, mut stored, mut retained, mut wrapped) = (0, 0, 0, 0, 0);
    while start < tokens() {
        let rows = (1 + rng.below(p.max_rows)).min(tokens() - start);
        let accepted = if rng.below(3) == 0 { rows } else { 1 + rng.below(rows) };
        rounds.push(Round { start, folded, rows, accepted });
        drafted += rows - 1;
        rejected += rows - accepted;
        wrapped += usize::from(start % p.journal_rows + rows > p.journal_rows);
        if slots::flushes(start - folded, p.flush_after) {
            folded = start;
            stored += 1;
        } else {
            retained += usize::from(start > folded);
        }
        start += accepted;
    }
    for count in [drafted, rejected, stored, retained, wrapped] {
        assert!(count > tokens() / 100, "{:?}", [drafted, rejected, stored, retained, wrapped]);
    }
    (rounds, folded)
}

/// The outputs of all accepted rows, and the state once everything is folded.
fn play(
    device: &Device,
    p: Problem,
    grid: Grid,
    inputs: &Inputs,
    rounds: &[Round],
    folded_at_the_end: usize,
) -> (Vec<bf16>, Vec<f32>) {
    let on = &device.queue;
    let column = |x: fn(&Round) -> usize| {
        let column: Vec<i32> = rounds.iter().map(|round| x(round) as i32).collect();
        Cuda::upload(on, &column).unwrap()
    };
    let (start, folded) = (column(|round| round.start), column(|round| round.folded));
    let slots = Cuda::upload(on, &[0]).unwrap();
    // A plan and its offsets for every number of rows.
    let plans: Vec<_> = (1..=p.max_rows)
        .map(|rows| {
            let op = Verify::plan_with(Problem { rows, ..p }, &device.info, Some(grid)).unwrap();
            (op, Cuda::upload(on, &[0, rows as i32]).unwrap())
        })
        .collect();
    let values = p.v_heads * p.v_dim;
    let mut memory = Memory::new(device, p);
    let mut out = Cuda::zeros::<bf16>(on, inputs.rows * values).unwrap();
    let mut first = 0;
    for (i, round) in rounds.iter().enumerate() {
        let (op, offsets) = &plans[round.rows - 1];
        let number = |x| Tensor::<Cuda, i32, 1>::new(Cuda::slice(&Cuda::view(x), i..i + 1), [1]);
        let rows = Rows {
            slots: Tensor::of(&slots, [1]),
            start: number(&start),
            row_offsets: Tensor::of(offsets, [2]),
        };
        let mut all = Cuda::view_mut(&mut out);
        let here = first..first + round.rows;
        let part = Cuda::slice_mut(&mut all, here.start * values..here.end * values);
        let to = TensorMut::new(part, [round.rows, p.v_heads, p.v_dim]);
        let rest = inputs.rest(&p, here.clone(), to, number(&folded), rows);
        op.run(on, memory.args(rest)).unwrap();
        first = here.end;
    }
    assert_eq!(first, inputs.rows);
    let [folded, committed] = [folded_at_the_end, tokens()].map(|n| Cuda::upload(on, &[n as i32]).unwrap());
    let fold = Fold::plan(p, &device.info).unwrap();
    fold.run(on, memory.fold_args(&folded, &committed, Tensor::of(&slots, [1]))).unwrap();

    let all = Cuda::read(on, &out, 0..inputs.rows * values).unwrap();
    let (mut accepted, mut first) = (Vec::with_capacity(tokens() * values), 0);
    for round in rounds {
        accepted.extend_from_slice(&all[first * values..][..round.accepted * values]);
        first += round.rows;
    }
    (accepted, memory.read(device, 0).0)
}

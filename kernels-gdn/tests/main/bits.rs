//! What memory a launch touches, and that strided operands give the bits of packed ones.

use crate::world::{Launch, SMALL, Stream, World, decode, flushing, mixed_width, same, undisturbed};
use kernels_core::{Cpu, DeviceInfo, Rows, Tensor, TensorMut, bf16};
use kernels_gdn::{Args, Problem, Verify};
use kernels_testkit::rng::Rng;

/// With nothing folded the state is zero by definition: NaN in its memory is never read.
#[test]
fn a_fresh_slot_is_never_read() {
    undisturbed(|| {
        let p = flushing(SMALL, 1);
        let stream = Stream::<f32>::random(&p, 4, &mut Rng::new(1));
        let mut world = World::new(p);
        let out = world.verify(&Launch::one(&p, 6, 0, stream.part(&p, 0..2)));
        assert!(world.state.iter().all(|s| s.is_nan()), "nothing to fold, yet stored");
        world.advance(6, 2);
        // Two pending exceed F = 1: replayed on zero, stored.
        let more = world.verify(&Launch::one(&p, 6, 2, stream.part(&p, 2..4)));
        let want = decode(&p, &stream);
        same("outputs", &[out, more].concat(), &want.out).unwrap();
        assert_eq!(world.state.iter().filter(|s| !s.is_nan()).count(), p.state_len());
        same("state", world.state_of(6), &decode(&p, &stream.part(&p, 0..2)).state).unwrap();
    });
}

/// A slot used again: counters at zero, everything else left over from somebody else.
#[test]
fn a_reset_is_two_zeros() {
    undisturbed(|| {
        let p = flushing(SMALL, 3);
        let mut rng = Rng::new(2);
        let mut world = World::<bf16>::new(p);
        for tokens in [30, 23] {
            let stream = Stream::random(&p, tokens, &mut rng);
            let want = decode(&p, &stream);
            (world.folded[0], world.committed[0]) = (0, 0);
            let mut out = vec![];
            for at in (0..tokens).step_by(4) {
                let t = 4.min(tokens - at);
                out.extend(world.verify(&Launch::one(&p, 0, at, stream.part(&p, at..at + t))));
                world.advance(0, t);
            }
            world.fold(&[0]);
            same("outputs", &out, &want.out).unwrap();
            same("state", world.state_of(0), &want.state).unwrap();
        }
    });
}

/// Fold leaves slots alone that have nothing pending, and writes no journal.
#[test]
fn fold_touches_only_what_is_pending() {
    undisturbed(|| {
        let p = flushing(SMALL, 6);
        let mut rng = Rng::new(3);
        let mut world = World::<f32>::new(p);
        let stream = Stream::random(&p, 3, &mut rng);
        world.verify(&Launch::one(&p, 2, 0, stream.clone()));
        world.advance(2, 3);
        let journal = world.journal.clone();
        world.fold(&[5, -1, 2, 0]);
        same("journal", &world.journal, &journal).unwrap();
        same("state", world.state_of(2), &decode(&p, &stream).state).unwrap();
        assert_eq!(world.state.iter().filter(|s| !s.is_nan()).count(), p.state_len());
        let state = world.state.clone();
        world.fold(&[2, 5]);
        same("state", &world.state, &state).unwrap();
        assert_eq!(world.faults, vec![0; p.slots + 1]);
    });
}

/// State, journal and outputs inside larger memories, as an engine with many layers keeps them.
#[test]
fn strided_memories_give_the_same_bits() {
    undisturbed(|| {
        let p = flushing(Problem { slots: 3, rows: 4, ..SMALL }, 0);
        let mut rng = Rng::new(4);
        let mut packed = World::<f32>::new(p);
        let history = Stream::random(&p, 3, &mut rng);
        packed.prefill(&Launch::one(&p, 2, 0, history.part(&p, 0..2)));
        packed.advance_prefilled(2, 2);
        packed.verify(&Launch::one(&p, 2, 2, history.part(&p, 2..3)));
        packed.advance(2, 1);

        let (state_gap, journal_gap, out_gap, nan) = (13, 5, 3, f32::NAN);
        let spread = |x: &[f32], row: usize, gap: usize| -> Vec<f32> {
            x.chunks(row).flat_map(|c| [c.to_vec(), vec![nan; gap]].concat()).collect()
        };
        let mut state = spread(&packed.state, p.state_len(), state_gap);
        let mut journal = spread(&packed.journal, p.journal_width(), journal_gap);
        let row = p.v_heads * p.v_dim + out_gap;
        let mut out = vec![nan; 4 * row];

        let rows = Stream::random(&p, 4, &mut rng);
        let launch = Launch::one(&p, 2, 3, rows.clone());
        let op = Verify::plan(p, &DeviceInfo::cpu()).unwrap();
        let folded = packed.folded.clone();
        let want = packed.verify(&launch);
        let keys = p.k_heads * p.k_dim;
        let mixed = Tensor::<Cpu, f32, 2>::new(&rows.mixed[..], [4, mixed_width(&p)]);
        let journal_row = p.journal_width() + journal_gap;
        let mut faults = [0; 4];
        let args =
            Args {
                out: TensorMut::new(&mut out[..], [4, p.v_heads, p.v_dim]).with_strides([row, p.v_dim, 1]),
                state: TensorMut::new(&mut state[..], [3, p.v_heads, p.v_dim, p.k_dim]).with_strides([
                    p.state_len() + state_gap,
                    p.v_dim * p.k_dim,
                    p.k_dim,
                    1,
                ]),
                journal: TensorMut::new(&mut journal[..], [3, p.journal_rows, p.journal_width()])
                    .with_strides([p.journal_rows * journal_row, journal_row, 1]),
                faults: TensorMut::new(&mut faults[..], [4]),
                folded: Tensor::new(&folded[..], [3]),
                q: mixed.columns(0..keys).heads(p.k_heads),
                k: mixed.columns(keys..2 * keys).heads(p.k_heads),
                v: mixed.columns(2 * keys..mixed_width(&p)).heads(p.v_heads),
                a: Tensor::new(&rows.a[..], [4, p.v_heads]),
                b: Tensor::new(&rows.b[..], [4, p.v_heads]),
                a_log: Tensor::new(&packed.a_log[..], [p.v_heads]),
                dt_bias: Tensor::new(&packed.dt_bias[..], [p.v_heads]),
                rows: Rows {
                    slots: Tensor::new(&launch.slots[..], [1]),
                    start: Tensor::new(&launch.start[..], [1]),
                    row_offsets: Tensor::new(&launch.offsets[..], [2]),
                },
            };
        op.run::<Cpu, f32>(&(), args).unwrap();
        same("outputs", &out, &spread(&want, p.v_heads * p.v_dim, out_gap)).unwrap();
        same("state", &state, &spread(&packed.state, p.state_len(), state_gap)).unwrap();
        same("journal", &journal, &spread(&packed.journal, p.journal_width(), journal_gap)).unwrap();
    });
}

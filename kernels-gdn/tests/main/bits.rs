//! What memory a launch touches, and that strided operands give the bits of packed ones.

use crate::place::{Place, flushing, small};
use crate::stream::{Launch, Stream};
use crate::world::{World, decode, same};
use kernels_core::Activation;
use kernels_gdn::Problem;
use kernels_testkit::{for_types, rng::Rng};

/// With nothing folded the state is zero by definition: NaN in its memory is never read.
pub fn a_fresh_slot_is_never_read<B: Place>(on: &B::Queue) {
    for_types!(B, on, fresh_slot);
}

fn fresh_slot<B: Place, A: Activation>(on: &B::Queue) {
    let p = flushing(small::<B>(), 1);
    let stream = Stream::<A>::random(&p, 4, &mut Rng::new(1));
    let mut world = World::<B, A>::new(on, p);
    let out = world.verify(&Launch::one(&p, 6, 0, stream.part(&p, 0..2)));
    assert!(world.state().iter().all(|s| s.is_nan()), "nothing to fold, yet stored");
    world.advance(6, 2);
    // Two pending exceed F = 1: replayed on zero, stored.
    let more = world.verify(&Launch::one(&p, 6, 2, stream.part(&p, 2..4)));
    let want = decode::<B, A>(on, &p, &stream);
    same("outputs", &[out, more].concat(), &want.out).unwrap();
    assert_eq!(world.state().iter().filter(|s| !s.is_nan()).count(), p.state_len());
    let two = decode::<B, A>(on, &p, &stream.part(&p, 0..2));
    same("state", &world.state_of(6), &two.state).unwrap();
}

/// A slot used again: counters at zero, everything else left over from somebody else.
pub fn a_reset_is_two_zeros<B: Place>(on: &B::Queue) {
    for_types!(B, on, reset);
}

fn reset<B: Place, A: Activation>(on: &B::Queue) {
    let p = flushing(small::<B>(), 3);
    let mut rng = Rng::new(2);
    let mut world = World::<B, A>::new(on, p);
    for tokens in [30, 23] {
        let stream = Stream::random(&p, tokens, &mut rng);
        let want = decode::<B, A>(on, &p, &stream);
        (world.folded[0], world.committed[0]) = (0, 0);
        let mut out = vec![];
        for at in (0..tokens).step_by(4) {
            let t = 4.min(tokens - at);
            out.extend(world.verify(&Launch::one(&p, 0, at, stream.part(&p, at..at + t))));
            world.advance(0, t);
        }
        world.fold(&[0]);
        same("outputs", &out, &want.out).unwrap();
        same("state", &world.state_of(0), &want.state).unwrap();
    }
}

/// Fold leaves slots alone that have nothing pending, and writes no journal.
pub fn fold_touches_only_what_is_pending<B: Place>(on: &B::Queue) {
    for_types!(B, on, fold);
}

fn fold<B: Place, A: Activation>(on: &B::Queue) {
    let p = flushing(small::<B>(), 6);
    let mut world = World::<B, A>::new(on, p);
    let stream = Stream::random(&p, 3, &mut Rng::new(3));
    world.verify(&Launch::one(&p, 2, 0, stream.clone()));
    world.advance(2, 3);
    let journal = world.journal();
    world.fold(&[5, -1, 2, 0]);
    same("journal", &world.journal(), &journal).unwrap();
    same("state", &world.state_of(2), &decode::<B, A>(on, &p, &stream).state).unwrap();
    assert_eq!(world.state().iter().filter(|s| !s.is_nan()).count(), p.state_len());
    let state = world.state();
    world.fold(&[2, 5]);
    same("state", &world.state(), &state).unwrap();
    assert_eq!(world.faults(), vec![0; p.slots + 1]);
}

/// State, journal, inputs and outputs inside larger memories, as an engine with many layers keeps them; that
/// nothing between their rows is written, every launch of these tests asserts.
pub fn strided_memories_give_the_same_bits<B: Place>(on: &B::Queue) {
    for_types!(B, on, strided);
}

fn strided<B: Place, A: Activation>(on: &B::Queue) {
    let p = flushing(Problem { slots: 3, ..small::<B>() }, 0);
    let history = Stream::<A>::random(&p, 7, &mut Rng::new(4));
    let run = |mut world: World<B, A>| {
        let mut out = world.prefill(&Launch::one(&p, 2, 0, history.part(&p, 0..2)));
        world.advance_prefilled(2, 2);
        out.extend(world.verify(&Launch::one(&p, 2, 2, history.part(&p, 2..3))));
        world.advance(2, 1);
        out.extend(world.verify(&Launch::one(&p, 2, 3, history.part(&p, 3..7))));
        (out, world.state(), world.journal())
    };
    let (packed, spread) = (run(World::packed(on, p)), run(World::new(on, p)));
    same("outputs", &spread.0, &packed.0).unwrap();
    same("state", &spread.1, &packed.1).unwrap();
    same("journal", &spread.2, &packed.2).unwrap();
    assert!(packed.0.iter().all(|x| x.to_f32().is_finite()));
}

use crate::book::request;
use engine::{Engine, Finish, Request, cache::Limits};
use kernels_core::{Activation, Cpu, bf16};
use workspace_tests::{EMBEDDED, HOSTILE, engine, limits, streams};

fn requests() -> Vec<Request> {
    (0..3).map(|i| request(110 + i, 5 + 4 * i as usize, 16)).collect()
}

fn alone<A: Activation>(name: &str, limits: Limits, drafts: usize) -> Vec<(Vec<u32>, Finish)> {
    streams(&mut engine::<A>(name, limits, drafts), &requests())
}

fn step<A: Activation>(engine: &mut Engine<Cpu, A>, got: &mut Vec<(u64, Vec<u32>)>) {
    got.extend(engine.step().unwrap().into_iter().map(|event| (event.request.0, event.tokens)));
}

fn sorted(got: Vec<(u64, Vec<u32>)>) -> Vec<Vec<u32>> {
    let mut all = vec![Vec::new(); 3];
    got.into_iter().for_each(|(id, tokens)| all[id as usize].extend(tokens));
    all
}

/// B-033: loading a second model broke the first, for state that belonged to the process.
#[test]
fn two_engines_in_one_process() {
    let (a, b) = (|| limits(3, 2), || Limits { page_rows: 8, flush_after: 0, ..limits(2, 4) });
    let want_a = alone::<bf16>(HOSTILE, a(), 2);
    let want_b = alone::<f32>("fixtures/tiny-moe", b(), 4);
    let tokens = |all: &[(Vec<u32>, Finish)]| all.iter().map(|(t, _)| t.clone()).collect::<Vec<_>>();

    // Step by step in turn; the first is dropped halfway through another's work.
    let mut first = engine::<bf16>(HOSTILE, a(), 2);
    let mut second = engine::<f32>("fixtures/tiny-moe", b(), 4);
    let (mut got_a, mut got_b) = (Vec::new(), Vec::new());
    for request in requests() {
        first.submit(request.clone()).unwrap();
        second.submit(request).unwrap();
    }
    while !first.is_idle() {
        step(&mut first, &mut got_a);
        step(&mut second, &mut got_b);
    }
    drop(first);
    let third = engine::<bf16>(EMBEDDED, limits(1, 1), 1);
    while !second.is_idle() {
        step(&mut second, &mut got_b);
    }
    drop(third);
    assert_eq!(sorted(got_a), tokens(&want_a));
    assert_eq!(sorted(got_b), tokens(&want_b));

    // At the same time, on two threads.
    std::thread::scope(|scope| {
        let left = scope.spawn(|| (0..3).for_each(|_| assert_eq!(alone::<bf16>(HOSTILE, a(), 2), want_a)));
        let right = scope
            .spawn(|| (0..3).for_each(|_| assert_eq!(alone::<f32>("fixtures/tiny-moe", b(), 4), want_b)));
        left.join().and(right.join()).expect("both engines agree with themselves");
    });
}

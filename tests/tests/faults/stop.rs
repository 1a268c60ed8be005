use crate::{
    book::{How, request},
    drafters::{Among, Overruled},
};
use engine::{
    Finish, Request, RequestId, Sampling,
    draft::{DraftLength, Drafter, Mtp, Script, Scripted},
};
use kernels_core::{Cpu, bf16};
use kernels_testkit::rng::Rng;
use std::collections::BTreeMap;
use workspace_tests::{Edited, HOSTILE, engine, engine_with, limits, streams};

type Stream = (Vec<u32>, Finish);

/// The request with `k` drafts a round, all right or the head's.
fn speculate(name: &str, request: &Request, k: usize, how: &How, known: &[u32]) -> Stream {
    let drafter: Box<dyn Drafter<Cpu, bf16>> = match how {
        How::Script(script) => {
            let known = BTreeMap::from([(RequestId(0), [&request.prompt[..], known].concat())]);
            Box::new(Overruled {
                head: Box::new(Mtp),
                by: Box::new(Scripted::new(script.clone(), known, 490)),
            })
        }
        _ => Box::new(Mtp),
    };
    let mut engine = engine_with::<bf16>(name, limits(1, k), DraftLength::Fixed(k), drafter);
    let stream = streams(&mut engine, std::slice::from_ref(request)).remove(0);
    assert_eq!(engine.free(), (16, 1), "slot and pages go back with the end");
    stream
}

/// B-044: text went on after an end token in the middle of a block, or the drafter's own end token ended
/// what the target would have continued.
#[test]
fn an_end_token_in_any_row() {
    let open = request(180, 6, 40);
    let (whole, _) =
        streams(&mut engine::<bf16>(HOSTILE, limits(1, 0), 0), std::slice::from_ref(&open)).remove(0);
    for at in 5..=12 {
        let eos = whole[at];
        let first = whole.iter().position(|id| *id == eos).unwrap();
        let checkpoint = Edited::of(HOSTILE).eos(&[eos]);
        let request = Request { ignore_eos: false, ..open.clone() };
        let want = (whole[..=first].to_vec(), Finish::Eos);
        assert_eq!(
            streams(&mut engine::<bf16>(checkpoint.name(), limits(1, 0), 0), std::slice::from_ref(&request))
                [0],
            want
        );
        for k in 1..=4 {
            for how in [How::Head, How::Script(Script::AllRight)] {
                let got = speculate(checkpoint.name(), &request, k, &how, &whole);
                assert_eq!(got, want, "end token {at}, k = {k}, {how:?}");
            }
        }
    }
    // An end token that is only ever proposed.
    let eos = (0..490).find(|id| !whole.contains(id)).unwrap();
    let checkpoint = Edited::of(HOSTILE).eos(&[eos]);
    let drafter = Box::new(Among { ids: vec![eos], rng: Rng::new(0) });
    let mut engine = engine_with::<bf16>(checkpoint.name(), limits(1, 4), DraftLength::Fixed(4), drafter);
    let request = Request { ignore_eos: false, ..open };
    assert_eq!(streams(&mut engine, &[request])[0], (whole, Finish::Length));
    assert!(engine.stats().drafted[3] > 20);
}

/// B-047: a stop sequence that spans rounds was found late or not at all.
#[test]
fn a_stop_sequence_across_rounds() {
    // Only three tokens are likely, so that sequences of them, overlapping ones too, come up by themselves.
    let base = Request {
        sampling: Sampling {
            temperature: 1.0,
            bias: vec![(7, 90.0), (8, 90.0), (9, 90.0)],
            ..Sampling::default()
        },
        ..request(190, 3, 60)
    };
    let mut plain = engine::<bf16>(HOSTILE, limits(1, 0), 0);
    let mut ends = Vec::new();
    for seed in 0..6 {
        let mut request = base.clone();
        request.sampling.seed = seed;
        let (whole, _) = streams(&mut plain, std::slice::from_ref(&request)).remove(0);
        for stop in [vec![7, 8, 9], vec![7, 8, 7, 8, 9], vec![9, 9, 7]] {
            let found = (0..whole.len()).find(|at| whole[..=*at].ends_with(&stop));
            let want = match found {
                Some(at) => (whole[..=at].to_vec(), Finish::Stop),
                None => (whole.clone(), Finish::Length),
            };
            ends.extend(found);
            request.stop = vec![stop];
            assert_eq!(streams(&mut plain, std::slice::from_ref(&request))[0], want);
            for k in 1..=4 {
                for how in [How::Head, How::Script(Script::AllRight)] {
                    let got = speculate(HOSTILE, &request, k, &how, &whole);
                    assert_eq!(got, want, "{:?}, seed {seed}, k = {k}, {how:?}", request.stop);
                }
            }
        }
    }
    ends.sort_unstable();
    ends.dedup();
    assert!(ends.len() > 8, "stops fell on {ends:?} only");
}

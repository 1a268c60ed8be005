//! The whole model against Hugging Face transformers: fixtures with random weights (every layer, state and
//! draft) and the embedded checkpoint. All in float32; tolerances are those of assets/fixtures/README.md.

use engine::{Request, request::RequestId, round::DraftJob};
use kernels_core::{Backend, Cpu};
use kernels_testkit::{compare::max_difference, fixture::Fixture};
use workspace_tests::{EMBEDDED, core, engine, ids, json, limits, streams};

/// fp32 engines agree with HF to 1e-3 on logits of standard deviation 2 (their own spread is 1.4e-4).
const LOGITS: f64 = 1e-3;
/// States and hidden rows are of the same size or smaller.
const STATES: f64 = 1e-3;

const PROMPTS: [&str; 6] = ["p1", "p3", "p9eos", "p17", "p40", "p130"];

#[track_caller]
fn close(what: &str, got: &[f32], want: &[f32], bound: f64) {
    let difference = max_difference(got, want);
    assert!(difference < bound, "{what}: differs by {difference}, bound {bound}");
}

/// Logits of ids that exist; the padding rows of the matrices are masked here and not there.
fn close_logits(what: &str, got: &[f32], want: &[f32], vocab: usize, valid: usize) {
    for (got, want) in got.chunks_exact(vocab).zip(want.chunks_exact(vocab)) {
        close(what, &got[..valid], &want[..valid], LOGITS);
        assert!(got[valid..].iter().all(|x| *x == f32::NEG_INFINITY), "{what}: padding ids are not masked");
    }
    assert_eq!(got.len(), want.len(), "{what}");
}

fn check_prompts(name: &str, reference: &str) {
    let fixture = Fixture::open(&format!("assets/fixtures/{reference}/reference.safetensors"));
    let meta = json(&format!("fixtures/{reference}/reference.json"));
    let mut compared = 0;
    for prompt in PROMPTS {
        let info = &meta["prompts"][prompt];
        let tokens = ids(&info["ids"]);
        let greedy = ids(&info["greedy"]);
        let known: Vec<u32> = tokens.iter().chain(&greedy).copied().collect();
        let mut core = core::<f32>(&format!("fixtures/{name}"), limits(3, 4));
        let slot = 1;
        core.open(slot, &known, &Request::greedy(known.clone(), 1), 256).unwrap();
        core.lend_pages(slot, &(1..17).collect::<Vec<_>>()).unwrap();

        let n = tokens.len();
        let (hidden, vocab) = (core.model().config().hidden, core.model().config().vocab);
        let valid = core.model().valid_vocab();
        let mut layers = Vec::new();
        let mut tap = |_: usize, rows: kernels_core::Tensor<'_, Cpu, f32, 2>| {
            layers.extend_from_slice(&rows.data[..n * hidden]);
        };
        // One pass only, so that the tap sees all rows: 130 tokens are more than one chunk elsewhere.
        let logits = core.score(slot, n, Some(&mut tap)).unwrap();
        let rows = core.hidden(n).unwrap();
        let mut check = |key: &str, got: &[f32]| {
            let key = format!("{prompt}/{key}");
            let Some((_, want)) = fixture.try_get(&key) else { return };
            let what = format!("{reference}: {key}");
            if key.ends_with("logits") {
                close_logits(&what, got, want, vocab, valid);
            } else {
                close(&what, got, want, STATES);
            }
            compared += 1;
        };
        check("last_logits", &logits[(n - 1) * vocab..]);
        check("last_hidden", &rows[(n - 1) * hidden..]);
        check("logits", &logits);
        check("hidden", &rows);
        check("layers", &layers);
        check("gdn_state", &states(&core, slot));
        if let Some((shape, want)) = fixture.try_get(&format!("{prompt}/conv_state")) {
            let (got, want) = conv_inputs(&core, slot, n, shape, want);
            close(&format!("{reference}: {prompt}/conv_state"), &got, &want, STATES);
        }

        // The tokens generated, one by one: all but the last are fed.
        let mut all = logits[(n - 1) * vocab..].to_vec();
        for _ in 1..greedy.len() {
            all.extend(core.score(slot, 1, None).unwrap());
        }
        check("greedy_logits", &all);
        check("gdn_state_after_greedy", &states(&core, slot));
        for (i, (row, want)) in all.chunks_exact(vocab).zip(&greedy).enumerate() {
            let best = kernels_core::argmax::argmax(row).unwrap() as u32;
            assert_eq!(best, *want, "{reference}: {prompt}, generated token {i}");
        }
    }
    assert!(compared >= 15, "only {compared} reference tensors were found for {reference}");
}

/// The states of all GDN layers as HF keeps them, `[layers, v_heads, k_dim, v_dim]`.
fn states(core: &engine::round::Core<Cpu, f32>, slot: usize) -> Vec<f32> {
    let g = core.model().config().gdn;
    let mut all = Vec::new();
    for layer in &core.caches().recurrent {
        let len = g.v_width() * g.k_dim;
        let state = Cpu::read(&(), &layer.state, slot * len..(slot + 1) * len).unwrap();
        for head in state.chunks_exact(g.v_dim * g.k_dim) {
            all.extend((0..g.k_dim * g.v_dim).map(|i| head[(i % g.v_dim) * g.k_dim + i / g.v_dim]));
        }
    }
    all
}

/// The last three conv inputs of every layer and channel, `[layers, channels, 3]`: from our ring, and from
/// HF's four columns. Inputs before the first token are zero there and not kept here.
fn conv_inputs(
    core: &engine::round::Core<Cpu, f32>,
    slot: usize,
    n: usize,
    shape: &[usize],
    want: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    let channels = shape[1];
    let mut got = Vec::new();
    for layer in &core.caches().recurrent {
        for channel in 0..channels {
            for back in (1..=3).rev() {
                got.push(match n.checked_sub(back) {
                    None => 0.0,
                    Some(p) => {
                        layer.ring[(slot * layer.ring_rows + p % layer.ring_rows) * channels + channel]
                    }
                });
            }
        }
    }
    (got, want.chunks_exact(4).flat_map(|columns| columns[1..].iter().copied()).collect())
}

/// Drafts of depth 1 to 4 that follow each generated token, and how many of k drafts a greedy
/// speculative run accepts in each round: the sequence of accept lengths of somebody else's loop.
fn check_drafts(name: &str) {
    let fixture = Fixture::open(&format!("assets/fixtures/{name}/reference.safetensors"));
    let meta = json(&format!("fixtures/{name}/reference.json"));
    for prompt in PROMPTS {
        let info = &meta["prompts"][prompt];
        let tokens = ids(&info["ids"]);
        let greedy = ids(&info["greedy"]);
        let mut core = core::<f32>(&format!("fixtures/{name}"), limits(2, 4));
        let (vocab, valid) = (core.model().config().vocab, core.model().valid_vocab());
        let request = Request::greedy(tokens.clone(), 64);
        // Room beyond the reference, so that drafts near its end are not cut.
        core.open(0, &tokens, &request, tokens.len() + 100).unwrap();
        core.lend_pages(0, &(1..17).collect::<Vec<_>>()).unwrap();
        let mut outcomes = core.prefill(&[(0, tokens.len())], None).unwrap();
        let mut job = DraftJob {
            request: RequestId(0),
            slot: 0,
            committed: tokens.len(),
            behind: tokens.len(),
            drafts: 4,
            never: false,
            finished: false,
        };
        let (shape, want) = fixture.get(&format!("{prompt}/mtp_logits"));
        let drafts = info["mtp_drafts"].as_array().unwrap();
        for position in 0..drafts.len() {
            assert_eq!(outcomes[0].tokens, greedy[position..position + 1], "{name}: {prompt}");
            if outcomes[0].finish.is_some() {
                break;
            }
            core.refresh(std::slice::from_ref(&job), &[true]).unwrap();
            core.keep_hidden().unwrap();
            let expected = ids(&drafts[position]);
            for depth in 0..4 {
                core.draft_step(std::slice::from_ref(&job), depth).unwrap();
                let logits = core.logits(1).unwrap();
                if position < shape[0] {
                    let at = (position * 4 + depth) * vocab;
                    let what = format!("{name}: {prompt}, drafts after token {position}, depth {depth}");
                    close_logits(&what, &logits, &want[at..at + vocab], vocab, valid);
                }
                if expected[depth] as usize >= valid {
                    // The reference drafted a padding id, which is masked here: its chain goes elsewhere.
                    break;
                }
                let best = kernels_core::argmax::argmax(&logits).unwrap() as u32;
                assert_eq!(best, expected[depth], "{name}: {prompt}, after {position}, depth {depth}");
            }
            // Verify none of them: the walk goes on one token at a time.
            outcomes = core.decode(&[(0, 0)], None).unwrap();
            (job.committed, job.behind) = (job.committed + 1, 1);
        }
    }
}

fn check_accept_lengths(name: &str) {
    let meta = json(&format!("fixtures/{name}/reference.json"));
    for prompt in PROMPTS {
        let info = &meta["prompts"][prompt];
        for k in 1..=4 {
            let mut engine = engine::<f32>(&format!("fixtures/{name}"), limits(1, k), k);
            engine.submit(Request::greedy(ids(&info["ids"]), 64)).unwrap();
            let mut stream = Vec::new();
            let mut rounds = Vec::new();
            while !engine.is_idle() {
                for event in engine.step().unwrap() {
                    rounds.push(event.tokens.len() as u32);
                    stream.extend(event.tokens);
                }
            }
            assert_eq!(stream, ids(&info["greedy"]), "{name}: {prompt}, k = {k}");
            // A step runs a prompt pass and then a round: the first event of each kind is its own.
            let accepted: Vec<u32> = rounds[1..].iter().map(|tokens| tokens - 1).collect();
            let want = ids(&info["spec"][k.to_string()]);
            // Where the stream ends inside a block, the reference counts the drafts that matched beyond
            // the end, and the engine those it emitted.
            let last = want.len() - 1;
            assert_eq!(accepted[..last], want[..last], "{name}: {prompt}, k = {k}");
            assert_eq!(accepted.len(), want.len(), "{name}: {prompt}, k = {k}");
            assert!(accepted[last] <= want[last], "{name}: {prompt}, k = {k}");
        }
    }
}

macro_rules! fixture {
    ($($test:ident: $name:literal from $reference:literal;)*) => { $(
        mod $test {
            #[test]
            fn layers_states_and_logits() {
                super::check_prompts($name, $reference);
            }
        }
    )* };
}
fixture! {
    tiny_dense: "tiny-dense" from "tiny-dense";
    tiny_moe: "tiny-moe" from "tiny-moe";
    tiny_moe_per_expert: "tiny-moe-per-expert" from "tiny-moe";
    mini_dense: "mini-dense" from "mini-dense";
    mini_moe: "mini-moe" from "mini-moe";
}

#[test]
fn draft_chains() {
    for name in ["tiny-dense", "tiny-moe", "mini-dense", "mini-moe"] {
        check_drafts(name);
    }
}

#[test]
fn accept_lengths_of_greedy_speculation() {
    for name in ["tiny-dense", "tiny-moe", "mini-dense", "mini-moe"] {
        check_accept_lengths(name);
    }
}

#[test]
fn embedded_checkpoint() {
    let golden = Fixture::open("assets/tiny-qwen35-mtp/golden.safetensors");
    let meta = json("tiny-qwen35-mtp/golden.json");
    let cases = meta["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 24);
    let tokenizer = engine::text::Tokenizer::open(workspace_tests::assets(EMBEDDED)).unwrap();
    let mut requests = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        let prompt = ids(&case["prompt_ids"]);
        assert_eq!(tokenizer.encode(case["prompt"].as_str().unwrap()).unwrap(), prompt);
        let greedy = ids(&case["greedy"]);
        let known: Vec<u32> = prompt.iter().chain(&greedy).copied().collect();
        // One token more than is fed: logits after the last one are wanted as well.
        let mut padded = known.clone();
        padded.push(0);
        let mut core = core::<f32>(EMBEDDED, limits(1, 0));
        let vocab = core.model().config().vocab;
        core.open(0, &padded, &Request::greedy(padded.clone(), 1), 256).unwrap();
        core.lend_pages(0, &(1..17).collect::<Vec<_>>()).unwrap();
        let logits = core.score(0, prompt.len(), None).unwrap();
        let (_, want) = golden.get(&format!("{i}.prompt_last_logits"));
        close(&format!("case {i}, prompt"), &logits[logits.len() - vocab..], want, LOGITS);
        // The reference stops feeding at the end-of-sequence token.
        let fed = greedy.len() - usize::from(greedy.last() == Some(&4094));
        let logits = core.score(0, fed, None).unwrap();
        let (_, want) = golden.get(&format!("{i}.last_logits"));
        close(&format!("case {i}, end"), &logits[logits.len() - vocab..], want, LOGITS);
        requests.push(Request::greedy(prompt, 48));
    }
    let got = streams(&mut engine::<f32>(EMBEDDED, limits(8, 3), 3), &requests);
    for (i, (case, (stream, _))) in cases.iter().zip(&got).enumerate() {
        let want = ids(&case["greedy"]);
        let margins = case["top2_margin"].as_array().unwrap();
        let sure = margins.iter().position(|m| m.as_f64().unwrap() < 0.02).unwrap_or(want.len());
        let sure = sure.min(want.len());
        assert_eq!(stream[..sure.min(stream.len())], want[..sure], "case {i}");
    }
}

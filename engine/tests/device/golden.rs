//! The fixtures with real head dims beside Hugging Face transformers: how far bf16 is from its float32, on
//! either backend. Both round at the same places, so their distances are two draws from one distribution.

use engine::{
    Request, RequestId,
    cache::Limits,
    model::{self, Context, EngineBackend},
    round::{Core, DraftJob},
    text::Tokenizer,
    weights::Checkpoint,
};
use kernels_core::bf16;
use kernels_testkit::{
    fixture::{self, Fixture},
    place::Place,
};

/// Distances of one kind of logits.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    squares: f64,
    count: usize,
    /// The same of the logits themselves.
    size: f64,
}

impl Sums {
    fn add(&mut self, got: &[f32], want: &[f32]) {
        for (got, want) in got.iter().zip(want) {
            self.squares += f64::from(got - want).powi(2);
            self.size += f64::from(*want).powi(2);
            self.count += 1;
        }
    }
    fn rms(&self) -> f64 {
        (self.squares / self.count as f64).sqrt()
    }
    fn size(&self) -> f64 {
        (self.size / self.count as f64).sqrt()
    }
}

/// How far a backend is from the reference, by the target's logits and by the draft head's first ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Distance {
    target: Sums,
    draft: Sums,
    /// Rows in which the best two of the reference are far enough apart to be told, and those that were.
    told: usize,
    right: usize,
}

impl Distance {
    pub(crate) fn of<B: EngineBackend + Place>(on: &B::Queue, name: &str) -> Distance {
        let dir = fixture::root().join("assets/fixtures").join(name);
        let fixture = Fixture::open(&format!("assets/fixtures/{name}/reference.safetensors"));
        let text = std::fs::read_to_string(dir.join("reference.json")).expect("it is in the repository");
        let meta: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        let ids = |value: &serde_json::Value| -> Vec<u32> {
            let list = value.as_array().expect("a list of ids").iter();
            list.map(|id| id.as_u64().expect("an id") as u32).collect()
        };
        let mut all = Distance::default();
        for prompt in ["p1", "p3", "p17", "p40", "p130"] {
            let info = &meta["prompts"][prompt];
            let (tokens, greedy) = (ids(&info["ids"]), ids(&info["greedy"]));
            let checkpoint = Checkpoint::open(&dir).expect("the checkpoint is complete");
            let tokenizer = Tokenizer::open(&dir).expect("the tokenizer is there");
            let model = model::build::<B, bf16>(on, &checkpoint, tokenizer.valid_vocab()).expect("it fits");
            let limits = Limits {
                slots: 2,
                positions: 256,
                page_rows: 64,
                pages: 9,
                max_drafts: 4,
                flush_after: 2,
                prefill_rows: 160,
                draft_head: true,
            };
            let (vocab, valid) = (model.config().vocab, model.valid_vocab());
            let cx = Context::new(on.clone(), B::device(on));
            let mut core = Core::new(cx, model, limits).expect("the limits are sane");
            let known: Vec<u32> = tokens.iter().chain(&greedy).copied().collect();
            core.open(1, &known, &Request::greedy(known.clone(), 1), 256).expect("a slot");
            core.lend_pages(1, &[3, 1, 4, 2]).expect("pages");
            // What was generated there is fed here, whatever bf16 would have said.
            let mut rows = core.score(1, tokens.len(), None).expect("it runs");
            rows.drain(..(tokens.len() - 1) * vocab);
            // The eight best of every row, best first.
            let (_, want) = fixture.get(&format!("{prompt}/greedy_top8_values"));
            let best = fixture.try_integers(&format!("{prompt}/greedy_top8_ids"));
            let (_, best) = best.expect("ids come with values");
            let drafts = fixture.try_get(&format!("{prompt}/mtp_logits"));
            let mut behind = tokens.len();
            for at in 0..greedy.len() {
                if at > 0 {
                    rows = core.score(1, 1, None).expect("it runs");
                    behind += 1;
                }
                let want = &want[8 * at..][..8];
                let best = &best[8 * at..][..8];
                for (id, want) in best.iter().zip(want).filter(|(id, _)| **id < valid as i64) {
                    all.target.add(&[rows[*id as usize]], &[*want]);
                }
                all.tell(&rows[..valid], best[0], want[0] - want[1]);
                if let Some((_, want)) = drafts.filter(|(shape, _)| at < shape[0]) {
                    let job = DraftJob {
                        request: RequestId(0),
                        slot: 1,
                        committed: tokens.len() + at,
                        behind,
                        drafts: 1,
                        never: false,
                        finished: false,
                    };
                    core.refresh(std::slice::from_ref(&job), &[true]).expect("it runs");
                    core.keep_hidden().expect("it runs");
                    core.draft_step(std::slice::from_ref(&job), 0).expect("it runs");
                    behind = 0;
                    let logits = core.logits(1).expect("there are some");
                    all.draft.add(&logits[..valid], &want[at * 4 * vocab..][..valid]);
                }
            }
        }
        all
    }

    /// Whether the best id is the reference's, where its margin leaves no doubt.
    fn tell(&mut self, got: &[f32], best: i64, margin: f32) {
        // Each of the two may be off by six of the deviations found here.
        const DOUBT: f32 = 0.35;
        if margin > DOUBT {
            self.told += 1;
            self.right += usize::from(kernels_core::argmax::argmax(got) == usize::try_from(best).ok());
        }
    }
}

/// CUDA's distance is no larger than the CPU's.
#[cfg(feature = "cuda")]
pub(crate) fn check(device: &kernels_testkit::device::Device, name: &str) {
    use kernels_core::{Cpu, Cuda};
    let (ours, theirs) = (Distance::of::<Cuda>(&device.queue, name), Distance::of::<Cpu>(&(), name));
    for (what, ours, theirs) in [("target", ours.target, theirs.target), ("draft", ours.draft, theirs.draft)]
    {
        println!(
            "{name}, {what}: rms of logits {:.3}; from transformers' fp32: CUDA bf16 {:.5}, CPU bf16 {:.5}",
            theirs.size(),
            ours.rms(),
            theirs.rms()
        );
        assert!(ours.count == theirs.count && ours.count > 0, "{what}: nothing was compared");
        assert!(
            ours.rms() < 1.25 * theirs.rms(),
            "{what}: CUDA is {} off, the CPU {}",
            ours.rms(),
            theirs.rms()
        );
    }
    assert!(ours.told > 10, "only {} rows leave no doubt", ours.told);
    assert_eq!(ours.right, ours.told, "where the reference leaves no doubt");
}

/// The same with the CPU alone, so that the walk itself is tried everywhere.
pub(crate) fn walk<B: EngineBackend + Place>(on: &B::Queue) {
    for (name, share) in [("mini-dense", 0.02), ("mini-moe", 0.08)] {
        let d = Distance::of::<B>(on, name);
        println!(
            "{name}: {d:?}, target {:.5} of {:.3}, draft {:.5} of {:.3}",
            d.target.rms(),
            d.target.size(),
            d.draft.rms(),
            d.draft.size()
        );
        assert!(d.target.rms() < share * d.target.size(), "{name}: {d:?}");
        assert!(d.draft.rms() < share * d.draft.size(), "{name}: {d:?}");
        assert!(d.told > 10 && d.right == d.told, "{name}: {d:?}");
    }
}

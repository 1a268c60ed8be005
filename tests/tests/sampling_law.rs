//! Coupled sampling with a trained head: how often a draft comes true is bounded by how far the head's
//! distribution is from the target's, both taken from the engine's own logits.

use engine::{
    Request, Sampling,
    draft::{DraftLength, Drafter, Made, Mtp},
    round::{Core, DraftJob},
    text::Tokenizer,
};
use kernels_core::{Cpu, bf16};
use std::{cell::RefCell, collections::BTreeMap, rc::Rc};
use workspace_tests::{EMBEDDED, assets, engine, engine_with, json, limits, streams};

/// Sums over the rounds that verified a draft.
#[derive(Clone, Debug, Default)]
struct Sums {
    rounds: f64,
    accepted: f64,
    /// Of (1 - TV) / (1 + TV), the least that coupling promises.
    least: f64,
    /// Of 1 - TV, the most that any rule can reach.
    most: f64,
}

/// One draft a round for one sequence; keeps the head's distribution until the target has spoken.
#[derive(Debug, Default)]
struct Measure {
    /// By position of the last known token.
    drafted: BTreeMap<usize, Vec<f64>>,
    committed: usize,
    sums: Rc<RefCell<Sums>>,
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|l| f64::from(l - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

impl Drafter<Cpu, bf16> for Measure {
    fn name(&self) -> &'static str {
        "measured"
    }

    fn needs_head(&self) -> bool {
        true
    }

    fn observe(&mut self, core: &mut Core<Cpu, bf16>, jobs: &[DraftJob]) -> engine::Result<Vec<Made>> {
        let job = &jobs[0];
        // The round that just ended began where the one before it had ended.
        if let Some(q) = self.drafted.remove(&self.committed)
            && job.committed > self.committed
        {
            let p = softmax(&core.logits(1)?);
            let tv = p.iter().zip(&q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
            let mut sums = self.sums.borrow_mut();
            sums.rounds += 1.0;
            sums.accepted += (job.committed - self.committed - 1) as f64;
            sums.least += (1.0 - tv) / (1.0 + tv);
            sums.most += 1.0 - tv;
        }
        let made = Mtp.observe(core, jobs)?;
        self.committed = job.committed;
        self.drafted.clear();
        if job.drafts > 0 && core.caches().shared.table.proposed[job.slot] > 0 {
            self.drafted.insert(job.committed, softmax(&core.logits(1)?));
        }
        Ok(made)
    }
}

#[test]
fn coupled_acceptance_is_at_least_what_it_promises() {
    let tokenizer = Tokenizer::open(assets(EMBEDDED)).unwrap();
    let prompts = json("tiny-qwen35-mtp/prompts.json");
    let requests: Vec<_> = prompts.as_array().unwrap()[..12]
        .iter()
        .enumerate()
        .map(|(i, prompt)| Request {
            sampling: Sampling { temperature: 1.0, seed: 1000 + i as u64, ..Sampling::default() },
            ignore_eos: true,
            // An odd number: where a draft of the last round has no room, none is verified.
            ..Request::greedy(tokenizer.encode(prompt.as_str().unwrap()).unwrap(), 61)
        })
        .collect();
    let measure = Measure::default();
    let sums = measure.sums.clone();
    let mut spec = engine_with::<bf16>(EMBEDDED, limits(1, 1), DraftLength::Fixed(1), Box::new(measure));
    let got = streams(&mut spec, &requests);
    let mut plain = engine::<bf16>(EMBEDDED, limits(1, 0), 0);
    assert_eq!(got, streams(&mut plain, &requests), "the coupled stream is the plain one");

    let sums = sums.borrow().clone();
    assert!(sums.rounds > 300.0, "{sums:?}");
    let (rate, least, most) =
        (sums.accepted / sums.rounds, sums.least / sums.rounds, sums.most / sums.rounds);
    println!("{} drafts: accepted {rate:.3}, promised {least:.3}, at most {most:.3}", sums.rounds);
    // Four deviations of a mean of as many coins.
    let error = 4.0 * 0.5 / sums.rounds.sqrt();
    assert!(least < most - 0.02, "the two bounds say something");
    assert!(rate > least - error && rate < most + error, "accepted {rate}, between {least} and {most}");
}

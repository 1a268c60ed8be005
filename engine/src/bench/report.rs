//! What was measured, as a table and as JSON.

use super::{Plan, Timeline};
use crate::{
    config::{Config, FeedForward, LayerKind},
    draft::DraftLength,
    weights::required_tensors,
};
use serde::{Serialize, Serializer, ser::SerializeStruct};
use std::{fmt, time::Duration};

/// Bytes that a round cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Floor {
    /// Weights of all layers and of the lm head, without routed experts and the draft head.
    pub weights: usize,
    /// One routed expert, in all layers.
    pub expert: usize,
    /// Experts that a token chooses.
    pub top_k: usize,
    /// Recurrent states of a sequence.
    pub state: usize,
    /// Keys and values of a token.
    pub kv: usize,
    /// Products of weights that a token of a prompt takes, two operations each; only the last one needs the head.
    pub products: usize,
}

impl Floor {
    fn of(c: &Config, element: usize) -> Self {
        let (mut weights, mut expert, mut top_k, mut products) = (0, 0, 0, 0);
        for tensor in required_tensors(c) {
            let bytes = tensor.elements() * element;
            let ends = ["embed_tokens.weight", "lm_head.weight"].map(|end| tensor.name.ends_with(end));
            match c.ffn {
                _ if tensor.name.starts_with("mtp.") || ends[0] && !c.tied => {}
                _ if ends.contains(&true) => weights += bytes,
                FeedForward::Moe { experts, top_k: k, .. } if tensor.name.contains(".experts.") => {
                    expert += bytes / experts;
                    top_k = k;
                    products += k * tensor.elements() / experts;
                }
                _ => {
                    weights += bytes;
                    products += tensor.elements();
                }
            }
        }
        let (full, linear) = (c.count(LayerKind::Full), c.count(LayerKind::Linear));
        Floor {
            weights,
            expert,
            top_k,
            state: linear * c.gdn.v_width() * c.gdn.k_dim * 4,
            kv: full * 2 * c.kv_heads * c.head_dim * element,
            products,
        }
    }

    /// Of a round of the target: every weight once, every state and every key and value once.
    fn bytes(&self, batch: usize, context: usize, experts: Option<f64>) -> f64 {
        let experts = experts.unwrap_or(self.top_k as f64);
        self.weights as f64 + experts * self.expert as f64 + (batch * (self.state + context * self.kv)) as f64
    }
}

/// Rounds of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Sequences.
    pub batch: usize,
    /// Drafts of a round.
    pub drafts: DraftLength,
    /// How many rounds.
    pub rounds: usize,
    /// Tokens that they brought, of all sequences.
    pub tokens: usize,
    /// Drafts of a sequence and round, on the average.
    pub draft_length: f64,
    /// Tokens of a sequence and round in the long run, where acceptance is simulated.
    pub expected: Option<f64>,
    /// On the host's clock.
    pub wall: Duration,
    /// The device's time for the target, choice and acceptance included.
    pub target: Duration,
    /// The device's time for drafts.
    pub draft: Duration,
    /// Distinct experts that the last round read, on the average of the layers.
    pub experts: Option<f64>,
}

impl Point {
    fn ms(&self, time: Duration) -> f64 {
        1e3 * time.as_secs_f64() / self.rounds as f64
    }

    /// Tokens a second, of all sequences.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.wall.as_secs_f64()
    }

    /// `auto` says what it picked.
    fn drafts_in_words(&self) -> String {
        match self.drafts {
            DraftLength::Fixed(drafts) => drafts.to_string(),
            _ => format!("{} {:.1}", self.drafts, self.draft_length),
        }
    }

    /// Tokens of a sequence and round.
    pub fn accept_length(&self) -> f64 {
        self.tokens as f64 / (self.rounds * self.batch) as f64
    }
}

/// What was measured, in a line: whoever cuts a long run off has what there was until then.
impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [wall, target, draft] = [self.wall, self.target, self.draft].map(|time| self.ms(time));
        write!(f, "batch {}, {} drafts: {wall:.3} ms a round ", self.batch, self.drafts_in_words())?;
        write!(
            f,
            "(target {target:.3}, draft {draft:.3}), {:.2} tokens of a sequence",
            self.accept_length()
        )?;
        write!(f, ", {:.1} tokens/s", self.tokens_per_second())
    }
}

impl Serialize for Point {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut fields = s.serialize_struct("Point", 12)?;
        fields.serialize_field("batch", &self.batch)?;
        fields.serialize_field("drafts", &self.drafts.to_string())?;
        fields.serialize_field("rounds", &self.rounds)?;
        fields.serialize_field("tokens", &self.tokens)?;
        fields.serialize_field("ms_per_round", &self.ms(self.wall))?;
        fields.serialize_field("target_ms", &self.ms(self.target))?;
        fields.serialize_field("draft_ms", &self.ms(self.draft))?;
        fields.serialize_field("accept_length", &self.accept_length())?;
        fields.serialize_field("draft_length", &self.draft_length)?;
        fields.serialize_field("expected_accept_length", &self.expected)?;
        fields.serialize_field("tokens_per_second", &self.tokens_per_second())?;
        fields.serialize_field("distinct_experts", &self.experts)?;
        fields.end()
    }
}

/// All points of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Tokens before the first measured round.
    pub context: usize,
    /// The accept length that was simulated at two drafts.
    pub accept: Option<f64>,
    /// What a round cannot do without.
    pub floor: Floor,
    /// Bytes a second of a long read in this run.
    pub ceiling: Option<f64>,
    /// Prompt tokens a second, of the largest batch.
    pub prefill: f64,
    /// The measurements; the plain one comes first in each batch.
    pub points: Vec<Point>,
    /// Where the time of rounds goes, if asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timelines: Vec<Timeline>,
    /// Sequences compared with plain decoding.
    pub compared: usize,
    /// Those of them that are not a beginning of it.
    pub different: usize,
}

impl Report {
    pub(super) fn new(c: &Config, plan: &Plan, ceiling: Option<f64>, element: usize) -> Self {
        Report {
            context: plan.context,
            accept: plan.accept,
            floor: Floor::of(c, element),
            ceiling,
            prefill: 0.0,
            points: Vec::new(),
            timelines: Vec::new(),
            compared: 0,
            different: 0,
        }
    }

    pub(super) fn prefilled(&mut self, tokens: usize, time: Duration) {
        self.prefill = tokens as f64 / time.as_secs_f64();
    }

    pub(super) fn compared(&mut self, batch: usize, plain: &[Vec<u32>], here: &[Vec<u32>]) {
        self.compared += batch;
        self.different += plain.iter().zip(here).filter(|(plain, here)| !plain.starts_with(here)).count();
    }

    /// Plain decoding beside a point.
    fn plain(&self, point: &Point) -> Option<&Point> {
        self.points.iter().find(|p| p.batch == point.batch && p.drafts == DraftLength::Fixed(0))
    }

    /// How much faster than plain decoding.
    pub fn speed_up(&self, point: &Point) -> Option<f64> {
        Some(point.tokens_per_second() / self.plain(point)?.tokens_per_second())
    }

    /// The same in the long run: rounds as long as these, with as many tokens as the simulated chance gives.
    pub fn expected_speed_up(&self, point: &Point) -> Option<f64> {
        let plain = self.plain(point)?;
        Some(point.expected? * plain.ms(plain.wall) / point.ms(point.wall))
    }

    /// The share of a round's time that its bytes take at the ceiling.
    pub fn share(&self, point: &Point) -> Option<f64> {
        let floor = self.floor.bytes(point.batch, self.context, point.experts) / self.ceiling?;
        Some(floor / (point.wall.as_secs_f64() / point.rounds as f64))
    }

    /// Whether drafts changed no token.
    pub fn identical(&self) -> bool {
        self.different == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |bytes: usize| bytes as f64 / 1e9;
        write!(f, "context {}; a round reads {:.2} GB of weights", self.context, gb(self.floor.weights))?;
        if self.floor.expert > 0 {
            write!(f, ", {:.4} GB for each expert", gb(self.floor.expert))?;
        }
        write!(f, " and {:.3} GB of state a sequence", gb(self.floor.state))?;
        if let Some(ceiling) = self.ceiling {
            write!(f, "; read ceiling {:.2} TB/s", ceiling / 1e12)?;
        }
        let tera = 2.0 * self.floor.products as f64 * self.prefill / 1e12;
        writeln!(f, "; prompts {:.0} tokens/s, {tera:.1} TFLOP/s of weights", self.prefill)?;
        writeln!(
            f,
            "{:>5}  {:>8}  {:>8}  {:>8}  {:>8}  {:>8}  {:>6}  {:>9}  {:>8}  {:>8}  {:>8}  {:>7}  {:>7}",
            "batch",
            "drafts",
            "ms/round",
            "target",
            "draft",
            "rest",
            "tokens",
            "tokens/s",
            "speed-up",
            "expected",
            "speed-up",
            "experts",
            "floor"
        )?;
        for p in &self.points {
            let rest = p.wall.saturating_sub(p.target + p.draft);
            let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".into());
            writeln!(
                f,
                "{:>5}  {:>8}  {:>8.3}  {:>8.3}  {:>8.3}  {:>8.3}  {:>6.2}  {:>9.1}  {:>8}  {:>8}  {:>8}  {:>7}  {:>7}",
                p.batch,
                p.drafts_in_words(),
                p.ms(p.wall),
                p.ms(p.target),
                p.ms(p.draft),
                p.ms(rest),
                p.accept_length(),
                p.tokens_per_second(),
                or_none(self.speed_up(p).map(|x| format!("{x:.2} x"))),
                or_none(p.expected.map(|tokens| format!("{tokens:.2}"))),
                or_none(self.expected_speed_up(p).map(|x| format!("{x:.2} x"))),
                or_none(p.experts.map(|n| format!("{n:.1}"))),
                or_none(self.share(p).map(|x| format!("{:.0} %", 100.0 * x))),
            )?;
        }
        for timeline in &self.timelines {
            write!(f, "\n{timeline}")?;
        }
        if !self.timelines.is_empty() {
            writeln!(
                f,
                "\nThese operations are enqueued one by one, with marks around each, so launches that overlap in a graph do not \
                 here; rounds of the table above have no marks.\n"
            )?;
        }
        match (self.compared, self.different) {
            (0, _) => Ok(()),
            (all, 0) => writeln!(f, "{all} streams compared with plain decoding: identical"),
            (all, n) => writeln!(f, "{all} streams compared with plain decoding: {n} DIFFER"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Stats;

    /// The published 27B: 51.24 GB a step, 144 MiB of state; 35B-A3B reads 8 of 256 experts.
    #[test]
    fn floors_of_published_models() {
        let floor = |name| Floor::of(&Config::preset(name).expect("a preset"), 2);
        let dense = floor("27b");
        assert!((dense.weights as f64 / 1e9 - 51.24).abs() < 0.05, "{dense:?}");
        assert_eq!((dense.state, dense.expert, dense.top_k), (144 << 20, 0, 0));
        // All but the head.
        assert_eq!(2 * dense.products, dense.weights - 2 * 248_320 * 5120);
        assert_eq!(dense.bytes(2, 10, None), (dense.weights + 2 * (dense.state + 10 * dense.kv)) as f64);
        let experts = floor("35b-a3b");
        assert_eq!((experts.expert, experts.top_k), (40 * 3 * 512 * 2048 * 2, 8));
        let more = experts.bytes(1, 0, Some(23.0)) - experts.bytes(1, 0, None);
        assert_eq!(more, 15.0 * experts.expert as f64);
    }

    /// 3 rounds of 2 sequences brought 12 tokens where the chance gives 2.5 a round; a plain round takes 10 ms.
    #[test]
    fn speed_ups_seen_and_in_the_long_run() {
        let point = |drafts, tokens, ms: u64, expected| Point {
            batch: 2,
            drafts: DraftLength::Fixed(drafts),
            rounds: 3,
            tokens,
            draft_length: drafts as f64,
            expected,
            wall: Duration::from_millis(3 * ms),
            target: Duration::ZERO,
            draft: Duration::ZERO,
            experts: None,
        };
        let plan = Plan {
            batches: vec![2],
            context: 8,
            drafts: vec![DraftLength::Fixed(2)],
            rounds: 3,
            accept: Some(2.5),
            pace: crate::Pace::Wait,
            prefill_rows: 8,
            flush_after: 3,
            seed: 1,
            timeline: false,
        };
        let mut report = Report::new(&Config::preset("27b").expect("a preset"), &plan, None, 2);
        report.points = vec![point(0, 6, 10, Some(1.0)), point(2, 12, 16, Some(2.5))];
        let drafted = &report.points[1];
        assert_eq!((drafted.accept_length(), report.speed_up(drafted)), (2.0, Some(1.25)));
        assert_eq!(report.expected_speed_up(drafted), Some(2.5 * 10.0 / 16.0));
        assert_eq!(report.expected_speed_up(&report.points[0]), Some(1.0));
        let json = serde_json::to_value(drafted).expect("a point");
        assert_eq!((&json["expected_accept_length"], &json["accept_length"]), (&2.5.into(), &2.0.into()));
        // Its chance is 0.8229: 1 + r + r^2 = 2.5. The last of these took two drafts in every other round.
        let drafted: [(&[usize], _); 5] =
            [(&[], 1.0), (&[6], 1.8229), (&[6, 6], 2.5), (&[6, 6, 6], 3.0572), (&[6, 3], 2.1614)];
        let rounds = |drafted: &[usize]| Stats { rounds: 6, drafted: drafted.to_vec(), ..Stats::default() };
        for (drafted, tokens) in drafted {
            let long = plan.expected(&rounds(drafted)).expect("it is simulated");
            assert!((long - tokens).abs() < 1e-4, "{drafted:?}: {long}");
        }
        // An unknown chance has no long run.
        assert_eq!(Plan { accept: None, ..plan }.expected(&rounds(&[6, 6])), None);
        assert_eq!(report.expected_speed_up(&point(2, 12, 16, None)), None);
    }
}

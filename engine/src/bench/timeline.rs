//! Where a round's time goes: each operation's own, and what lies between them.

use crate::{
    Result,
    config::{Config, FeedForward},
    machine::Machine,
    model::{Op, Side, Span},
};
use serde::Serialize;
use std::{collections::BTreeMap, fmt, time::Duration};

/// Operations of one kind, of a round on the average.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Operations {
    /// For whom.
    pub side: Side,
    /// What.
    pub op: Op,
    /// How many of them. Each is one launch or a few.
    pub count: f64,
    /// Microseconds that they take.
    pub us: f64,
    /// Of the round.
    pub share: f64,
    /// Bytes of weights that they read, where they do and that is known.
    pub weights: Option<f64>,
    /// So many of these bytes, in 10^12, a second.
    pub terabytes_per_second: Option<f64>,
}

/// A round on the average of several, its operations enqueued one by one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// Sequences.
    pub batch: usize,
    /// Drafts of a round.
    pub drafts: usize,
    /// How many rounds.
    pub rounds: usize,
    /// Microseconds of a round, with what lies between its operations.
    pub us: f64,
    /// Those of them in which none of the operations ran.
    pub between_us: f64,
    /// Everything else, in the order of a round.
    pub operations: Vec<Operations>,
}

/// What is measured beside the spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    pub(super) batch: usize,
    pub(super) drafts: usize,
    pub(super) rounds: usize,
    /// Bytes of weights that one of the target's mixtures reads.
    pub(super) mixture: Option<f64>,
}

#[derive(Default)]
struct Sum {
    count: usize,
    time: Duration,
    /// `None` where it is of one unknown.
    weights: Option<f64>,
}

impl Timeline {
    /// Of the operations of so many rounds; waits for the last.
    pub(super) fn of<B: Machine>(spans: &[Span<B>], of: Rounds) -> Result<Self> {
        let Rounds { batch, drafts, rounds, mixture } = of;
        let whole = match spans {
            [] => Duration::ZERO,
            [first, .., last] => first.until(last)?,
            [only] => only.time()?,
        };
        let mut sums: BTreeMap<(Side, Op), Sum> = BTreeMap::new();
        for span in spans {
            let experts = mixture.filter(|_| (span.side, span.op) == (Side::Target, Op::Moe));
            let weights = span.weights.map(|bytes| bytes as f64).or(experts);
            let sum =
                sums.entry((span.side, span.op)).or_insert(Sum { weights: Some(0.0), ..Sum::default() });
            sum.count += 1;
            sum.time += span.time()?;
            sum.weights = sum.weights.zip(weights).map(|(sum, bytes)| sum + bytes);
        }
        let us = |time: Duration| 1e6 * time.as_secs_f64() / rounds as f64;
        let operations: Vec<Operations> = sums
            .into_iter()
            .map(|((side, op), sum)| Operations {
                side,
                op,
                count: sum.count as f64 / rounds as f64,
                us: us(sum.time),
                share: sum.time.as_secs_f64() / whole.as_secs_f64(),
                weights: sum.weights.map(|bytes| bytes / rounds as f64),
                terabytes_per_second: sum.weights.map(|bytes| bytes / sum.time.as_secs_f64() / 1e12),
            })
            .collect();
        let between_us = us(whole) - operations.iter().map(|o| o.us).sum::<f64>();
        Ok(Timeline { batch, drafts, rounds, us: us(whole), between_us, operations })
    }

    /// Microseconds of one side's operations.
    pub fn side_us(&self, side: Side) -> f64 {
        self.operations.iter().filter(|o| o.side == side).fold(0.0, |sum, o| sum + o.us)
    }
}

/// Bytes of weights that a mixture reads whose rows chose so many distinct experts; `None` for a model without.
pub(super) fn mixture_bytes(c: &Config, element: usize, distinct: f64) -> Option<f64> {
    let FeedForward::Moe { experts, intermediate, shared_intermediate, .. } = c.ffn else { return None };
    let row = (c.hidden * element) as f64;
    // The router, the shared expert and its gate are read by all.
    let always = (experts + 3 * shared_intermediate + 1) as f64;
    Some((always + distinct * (3 * intermediate) as f64) * row)
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: f64| us / 1e3;
        let plural = if self.drafts == 1 { "" } else { "s" };
        writeln!(
            f,
            "batch {}, {} draft{plural}, one by one: {:.3} ms a round; target {:.3}, draft {:.3}, between operations {:.3}",
            self.batch,
            self.drafts,
            ms(self.us),
            ms(self.side_us(Side::Target)),
            ms(self.side_us(Side::Draft)),
            ms(self.between_us),
        )?;
        let [count, us, share, weights, speed] = ["count", "µs", "share", "MB", "TB/s"];
        writeln!(f, "  {:31}{count:>7}{us:>11}{share:>9}{weights:>10}{speed:>8}", "")?;
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let decimals = |count: f64| if count.fract() == 0.0 { 0 } else { 2 };
        for o in &self.operations {
            writeln!(
                f,
                "  {:6}  {:23}{:>7.*}{:>11.1}{:>9}{:>10}{:>8}",
                o.side,
                o.op.name(),
                decimals(o.count),
                o.count,
                o.us,
                percent(o.share),
                or_none(o.weights.map(|bytes| format!("{:.1}", bytes / 1e6))),
                or_none(o.terabytes_per_second.map(|speed| format!("{speed:.3}"))),
            )?;
        }
        let count = self.operations.iter().map(|o| o.count).sum::<f64>();
        let share = percent(self.between_us / self.us);
        writeln!(f, "  {:38}{:>11.1}{share:>9}", "between operations", self.between_us)?;
        writeln!(f, "  {:31}{count:>7.*}{:>11.1}{:>9}", "a round", decimals(count), self.us, percent(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Pace,
        bench::{self, Plan, Report},
        config::LayerKind,
        draft::DraftLength,
        model::{self, Context},
        text::Tokenizer,
        weights::Checkpoint,
    };
    use kernels_core::{Cpu, DeviceInfo, bf16};
    use kernels_testkit::fixture;
    use std::time::Instant;

    const ROUNDS: usize = 3;

    /// The plain round and one of two drafts, of two sequences, and how long everything took.
    fn measure(name: &str, pace: Pace) -> (Config, Report, Duration) {
        let dir = fixture::root().join("assets").join(name);
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let valid = Tokenizer::open(&dir).map_or(usize::MAX, |tokenizer| tokenizer.valid_vocab());
        let context = Context::<Cpu>::new((), DeviceInfo::cpu());
        let model = model::build::<Cpu, bf16>(&(), &checkpoint, valid).unwrap();
        let config = model.config().clone();
        let plan = Plan {
            batches: vec![2],
            context: 9,
            drafts: vec![DraftLength::Fixed(2)],
            rounds: ROUNDS,
            accept: None,
            pace,
            prefill_rows: 32,
            flush_after: 3,
            seed: 1,
            timeline: true,
        };
        let started = Instant::now();
        let mut told = Vec::new();
        let report = bench::run(context, model, &plan, |line| told.push(line.to_owned())).unwrap();
        for point in &report.points {
            assert!(told.contains(&point.to_string()), "{point} in {told:?}");
        }
        (config, report, started.elapsed())
    }

    fn counts(timeline: &Timeline, side: Side) -> Vec<(Op, usize)> {
        let of_side = timeline.operations.iter().filter(|o| o.side == side);
        of_side.map(|o| (o.op, o.count as usize)).filter(|(_, count)| *count > 0).collect()
    }

    fn target(c: &Config) -> Vec<(Op, usize)> {
        let (layers, gdn, full) = (c.layers.len(), c.count(LayerKind::Linear), c.count(LayerKind::Full));
        let ffn = match c.ffn {
            FeedForward::Dense { .. } => vec![(Op::GateUp, layers), (Op::Down, layers)],
            FeedForward::Moe { .. } => vec![(Op::Moe, layers)],
        };
        let mut all = vec![(Op::Inputs, 1), (Op::Embed, 1), (Op::WorkList, 1), (Op::Norm, 2 * layers + 1)];
        all.extend([Op::GdnIn, Op::Conv, Op::Gdn, Op::GatedNorm, Op::GdnOut].map(|op| (op, gdn)));
        all.extend([Op::Qkv, Op::Append, Op::Attention, Op::AttentionOut].map(|op| (op, full)));
        all.extend(ffn);
        all.extend([Op::Head, Op::Sample, Op::Settle, Op::Fetch].map(|op| (op, 1)));
        all
    }

    /// A catch-up, which yields the first draft, and one step of the chain.
    fn two_drafts(c: &Config) -> Vec<(Op, usize)> {
        let ffn = match c.ffn {
            FeedForward::Dense { .. } => vec![(Op::GateUp, 2), (Op::Down, 2)],
            FeedForward::Moe { .. } => vec![(Op::Moe, 2)],
        };
        let mut all = vec![(Op::Inputs, 2), (Op::Carry, 1), (Op::Embed, 2), (Op::ConcatNorm, 2)];
        all.extend([(Op::MtpFc, 2), (Op::WorkList, 2), (Op::Norm, 6)]);
        all.extend([Op::Qkv, Op::Append, Op::Attention, Op::AttentionOut].map(|op| (op, 2)));
        all.extend(ffn);
        all.extend([(Op::LastRows, 3), (Op::Head, 2), (Op::Sample, 2), (Op::Keep, 1), (Op::Propose, 3)]);
        all
    }

    fn check(name: &str, pace: Pace) -> (Config, Report) {
        let (config, report, wall) = measure(name, pace);
        let [plain, drafted] = &report.timelines[..] else { panic!("{report:?}") };
        assert_eq!((plain.batch, plain.drafts, drafted.drafts), (2, 0, 2));
        for (timeline, draft) in [(plain, Vec::new()), (drafted, two_drafts(&config))] {
            assert_eq!(counts(timeline, Side::Target), target(&config), "{name} {pace:?}");
            assert_eq!(counts(timeline, Side::Draft), draft, "{name} {pace:?}");
            let all = timeline.side_us(Side::Target) + timeline.side_us(Side::Draft) + timeline.between_us;
            assert!((all - timeline.us).abs() < 1e-6 * timeline.us, "{timeline:?}");
            assert!(timeline.between_us > 0.0, "{timeline:?}");
            assert!(timeline.operations.iter().all(|o| o.us > 0.0), "{timeline:?}");
        }
        let traced = report.timelines.iter().map(|t| t.us * t.rounds as f64).sum::<f64>() / 1e6;
        assert!(traced < wall.as_secs_f64(), "{traced} s of {wall:?}");
        (config, report)
    }

    fn row(timeline: &Timeline, side: Side, op: Op) -> &Operations {
        timeline.operations.iter().find(|o| (o.side, o.op) == (side, op)).unwrap()
    }

    #[test]
    fn a_round_has_the_operations_of_its_configuration() {
        for pace in [Pace::Wait, Pace::Ahead, Pace::Recorded] {
            let (config, report) = check("tiny-qwen35-mtp", pace);
            let FeedForward::Dense { intermediate } = config.ffn else { panic!("{config:?}") };
            let block = (2 * config.hidden * intermediate) as f64;
            for (timeline, side, layers) in [
                (&report.timelines[0], Side::Target, config.layers.len()),
                (&report.timelines[1], Side::Draft, 2),
            ] {
                let weights = |op| row(timeline, side, op).weights;
                assert_eq!(weights(Op::GateUp), Some(2.0 * block * layers as f64));
                assert_eq!(weights(Op::Down), Some(block * layers as f64));
                assert_eq!(weights(Op::Norm), None);
            }
            let head = (2 * config.vocab * config.hidden) as f64;
            assert_eq!(row(&report.timelines[0], Side::Target, Op::Head).weights, Some(head));
            let text = report.to_string();
            assert!(text.contains("target  gate_up") && text.contains("draft   mtp fc"), "{text}");
            assert!(text.contains("launches that overlap in a graph do not here"), "{text}");
        }
    }

    #[test]
    fn of_a_mixture_the_experts_that_were_read_count() {
        let (config, report) = check("fixtures/tiny-moe", Pace::Ahead);
        let plain = &report.timelines[0];
        let FeedForward::Moe { experts, top_k, .. } = config.ffn else { panic!("{config:?}") };
        let read = row(plain, Side::Target, Op::Moe).weights.unwrap();
        let bytes = |distinct: usize| {
            mixture_bytes(&config, 2, distinct as f64).unwrap() * config.layers.len() as f64
        };
        assert!((bytes(top_k)..=bytes(experts.min(2 * top_k))).contains(&read), "{read}");
        assert_eq!(
            row(&report.timelines[1], Side::Draft, Op::Moe).weights,
            None,
            "nobody counts its experts"
        );
    }
}

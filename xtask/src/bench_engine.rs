//! The chart of `lockstep bench`.

use crate::chart::{Lines, Words, drawn};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;
use std::{collections::BTreeMap, fs, path::PathBuf};

#[derive(Args)]
pub(crate) struct Options {
    /// What `lockstep bench --json` printed
    #[arg(long)]
    from: PathBuf,
    /// The model, as it is to stand on the chart and in its file's name
    #[arg(long)]
    name: String,
    /// The folder for the chart
    #[arg(long)]
    svg: PathBuf,
}

/// The parts of a report that are drawn.
#[derive(Deserialize)]
struct Report {
    context: usize,
    accept: Option<f64>,
    points: Vec<Point>,
}

#[derive(Deserialize)]
struct Point {
    batch: u32,
    /// A number or a word.
    drafts: String,
    ms_per_round: f64,
    tokens_per_second: f64,
    /// Tokens of a round in the long run, where it is known.
    expected_accept_length: Option<f64>,
}

impl Point {
    /// How much faster than plain decoding: in the long run, or as seen.
    fn speed_up(&self, plain: &Point) -> f64 {
        match self.expected_accept_length {
            Some(tokens) => tokens * plain.ms_per_round / self.ms_per_round,
            None => self.tokens_per_second / plain.tokens_per_second,
        }
    }
}

pub(crate) fn run(options: Options) -> Result<()> {
    let Options { from, name, svg } = options;
    let text = fs::read_to_string(&from).with_context(|| format!("reading {}", from.display()))?;
    let report: Report = serde_json::from_str(&text)
        .with_context(|| format!("{} is not what `lockstep bench --json` prints", from.display()))?;
    let Some(drawing) = chart(&name, &report) else {
        bail!("{} has one batch size; two make a line", from.display())
    };
    let path = svg.join(format!("engine-{name}.svg"));
    fs::write(&path, drawing).with_context(|| format!("writing {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

fn chart(name: &str, report: &Report) -> Option<String> {
    let plain: BTreeMap<u32, &Point> =
        report.points.iter().filter(|p| p.drafts == "0").map(|p| (p.batch, p)).collect();
    let mut lines = Lines::new();
    for point in report.points.iter().filter(|point| point.drafts != "0") {
        let order = point.drafts.parse().unwrap_or(u32::MAX);
        let name = match order {
            1 => "1 draft".to_owned(),
            u32::MAX => point.drafts.clone(),
            n => format!("{n} drafts"),
        };
        let speed_up = point.speed_up(plain.get(&point.batch)?);
        lines.entry((order, name)).or_default().push((point.batch, speed_up, None));
    }
    lines.values_mut().for_each(|points| points.sort_by_key(|(at, ..)| *at));
    let accept = report.accept.map(|length| format!(", {length} tokens a round at 2")).unwrap_or_default();
    let title = format!("{name}, context {}{accept}", report.context);
    drawn(&Words { title, axis: "sequences", legend: "times as fast as plain" }, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(batch: u32, drafts: &str, tokens_per_second: f64) -> Point {
        Point {
            batch,
            drafts: drafts.into(),
            ms_per_round: 10.0,
            tokens_per_second,
            expected_accept_length: None,
        }
    }

    /// Three tokens were seen in a round that takes half as long again as a plain one; 2.43 come in the long run.
    #[test]
    fn what_the_chance_gives_counts_where_it_is_known() {
        let plain = point(1, "0", 100.0);
        let mut drafted = Point { ms_per_round: 15.0, ..point(1, "2", 200.0) };
        assert_eq!(drafted.speed_up(&plain), 2.0);
        drafted.expected_accept_length = Some(2.43);
        assert!((drafted.speed_up(&plain) - 1.62).abs() < 1e-12);
    }

    #[test]
    fn lines_are_ratios_to_plain() {
        let points = vec![
            point(1, "0", 70.0),
            point(1, "2", 140.0),
            point(1, "auto", 210.0),
            point(8, "0", 500.0),
            point(8, "2", 500.0),
            point(8, "auto", 750.0),
        ];
        let mut report = Report { context: 1024, accept: Some(2.43), points };
        let svg = chart("27b", &report).unwrap();
        assert_eq!(svg.matches("class=\"ours\"").count(), 2);
        assert!(
            svg.contains(">2 drafts<") && svg.contains(">auto<") && svg.contains("27b, context 1024, 2.43")
        );
        // Ticks at 1, 1.5, 2, 2.5 and 3; a line for each, and one for each batch.
        assert!(svg.contains(">1.5<") && svg.contains(">3<"));
        assert_eq!(svg.matches("class=\"grid\"").count(), 5 + 2);
        report.points.truncate(3);
        assert!(chart("27b", &report).is_none(), "one batch makes no line");
    }
}

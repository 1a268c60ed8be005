//! Charts of measurements over the number of sequences or of rows.

use crate::bench_kernels::Row;
use std::{collections::BTreeMap, fmt::Write};

/// Sequences or rows, our figure, and the peer's where there is one.
type Point = (u32, f64, Option<f64>);
/// Points by the line's number and name.
pub(crate) type Lines = BTreeMap<(u32, String), Vec<Point>>;

/// Where a bench belongs.
struct Place {
    chart: String,
    /// What the chart goes over.
    axis: &'static str,
    /// Lines are in this order, and then by name.
    order: u32,
    line: String,
    at: u32,
}

impl Place {
    fn of(row: &Row) -> Option<Self> {
        let number = |part: &str, letter| part.strip_prefix(letter)?.parse::<u32>().ok();
        let parts: Vec<&str> = row.id.split('/').collect();
        let (chart, axis, order, line, at) = match parts[..] {
            [family, "verify", model, batch, ref context @ .., rows] if context.len() < 2 => {
                let model = [&[model], context].concat().join("-");
                let rows = number(rows, 't')?;
                (
                    format!("{family}-verify-{model}"),
                    "sequences",
                    rows,
                    format!("T = {rows}"),
                    number(batch, 'b')?,
                )
            }
            ["dense", "linear", model, name, rows] if row.to_peer.is_some() => {
                (format!("dense-linear-{model}"), "rows", 0, name.to_owned(), number(rows, 'r')?)
            }
            ["dense", "moe", model, rows] => {
                (format!("dense-moe-{model}"), "rows", 0, "block".to_owned(), number(rows, 'r')?)
            }
            ["spec", op, model, batch, "t4"] if !op.contains("rejection") => {
                let rules = op.strip_prefix("round_")?.replace('_', " ");
                (format!("spec-round-{model}-t4"), "sequences", 0, rules, number(batch, 'b')?)
            }
            _ => return None,
        };
        (at > 0 && row.us > 0.0).then_some(Place { chart, axis, order, line, at })
    }
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
/// The plot's edges: left, right, top, bottom. The right margin holds the lines' names.
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 112.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = HEIGHT - 52.0;
/// Names of lines keep this distance.
const LABEL: f64 = 15.0;
/// Told apart without red and green, and of a lightness that shows on white and on black.
const COLORS: [&str; 6] = ["#0a7ccf", "#d98200", "#00946a", "#c85a9e", "#8068d8", "#7a8288"];

/// A file name and a drawing for each operation that takes drafts, its model and its context (if ids have one), for
/// linear layers beside their peer, mixtures of experts, and whole rounds of sampling; two points or more make a line.
pub(crate) fn charts(rows: &[Row]) -> Vec<(String, String)> {
    let mut all: BTreeMap<(String, &str), Lines> = BTreeMap::new();
    for row in rows {
        let Some(place) = Place::of(row) else { continue };
        let lines = all.entry((place.chart, place.axis)).or_default();
        let peer = row.to_peer.map(|ratio| row.us / ratio);
        lines.entry((place.order, place.line)).or_default().push((place.at, row.us, peer));
    }
    all.iter_mut()
        .filter_map(|((chart, axis), lines)| {
            lines.values_mut().for_each(|points| points.sort_by_key(|(at, ..)| *at));
            let [family, op, model] = chart.splitn(3, '-').collect::<Vec<_>>()[..] else { return None };
            let peers = lines.values().flatten().any(|(.., peer)| peer.is_some());
            let legend = if peers { "µs per call; dashed: the best peer" } else { "µs per call" };
            let title = format!("{family} {op}, {model}");
            Some((format!("{chart}.svg"), drawn(&Words { title, axis, legend }, lines)?))
        })
        .collect()
}

/// What stands on a chart.
pub(crate) struct Words<'w> {
    pub(crate) title: String,
    pub(crate) axis: &'w str,
    pub(crate) legend: &'w str,
}

/// The drawing; `None` where there is nothing to draw a line between.
pub(crate) fn drawn(words: &Words<'_>, lines: &Lines) -> Option<String> {
    Some(draw(words, lines, &Axes::of(lines)?))
}

/// Where numbers lie; both axes are logarithmic.
struct Axes {
    /// Sequences or rows that there are points at.
    counts: Vec<u32>,
    low: f64,
    high: f64,
}

impl Axes {
    /// `None` where there is nothing to draw a line between.
    fn of(lines: &Lines) -> Option<Self> {
        let mut counts: Vec<u32> = lines.values().flatten().map(|(at, ..)| *at).collect();
        counts.sort_unstable();
        counts.dedup();
        let times = lines.values().flatten().flat_map(|(_, us, peer)| [Some(*us), *peer]).flatten();
        let (low, high) = times.fold((f64::INFINITY, 0.0_f64), |(low, high), us| (low.min(us), high.max(us)));
        (counts.len() > 1).then_some(Axes { counts, low: low / 1.15, high: high * 1.15 })
    }

    fn x(&self, at: u32) -> f64 {
        let log = |n: u32| f64::from(n).ln();
        let (first, last) = (self.counts[0], self.counts[self.counts.len() - 1]);
        LEFT + 12.0 + (RIGHT - LEFT - 24.0) * (log(at) - log(first)) / (log(last) - log(first))
    }

    fn y(&self, us: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * (us / self.low).ln() / (self.high / self.low).ln()
    }

    /// 1, 2 and 5 times the powers of ten inside; halves where those are few.
    fn ticks(&self) -> Vec<f64> {
        let inside = |figure: &f64| (self.low..=self.high).contains(figure);
        let decades = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
        let all = decades.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
        let ticks: Vec<f64> = all.filter(inside).collect();
        if ticks.len() > 2 {
            return ticks;
        }
        (1..=(2.0 * self.high) as u32).map(|halves| f64::from(halves) / 2.0).filter(inside).collect()
    }
}

const STYLE: &str = "\
  text { font: 13px system-ui, sans-serif; fill: #24292f; } .title { font-size: 15px; font-weight: 600; }\n  \
  .muted { fill: #57606a; } .back { fill: #ffffff; } .grid { stroke: #d8dee4; }\n  \
  .name { font-weight: 600; } path { fill: none; stroke-width: 2; } .peer { stroke-dasharray: 5 4; }\n  \
  @media (prefers-color-scheme: dark) {\n    \
    text { fill: #e6edf3; } .muted { fill: #9198a1; } .back { fill: #0d1117; } .grid { stroke: #30363d; }\n  }\n";

const MUTED: &str = "class=\"muted\"";

fn draw(words: &Words<'_>, lines: &Lines, axes: &Axes) -> String {
    let Words { title, axis, legend } = words;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>{title}: {legend}, over {axis}</title>\n<style>\n{STYLE}</style>\n\
         <rect class=\"back\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n"
    );
    text(&mut svg, "class=\"title\"", LEFT, 28.0, "start", title);
    text(&mut svg, MUTED, WIDTH - 16.0, 28.0, "end", legend);
    for us in axes.ticks() {
        let y = axes.y(us);
        rule(&mut svg, [LEFT, y, RIGHT, y]);
        text(&mut svg, MUTED, LEFT - 8.0, y + 4.5, "end", &us.to_string());
    }
    for count in &axes.counts {
        let x = axes.x(*count);
        rule(&mut svg, [x, TOP, x, BOTTOM]);
        text(&mut svg, MUTED, x, BOTTOM + 20.0, "middle", &count.to_string());
    }
    text(&mut svg, MUTED, (LEFT + RIGHT) / 2.0, HEIGHT - 12.0, "middle", axis);

    let colors = || COLORS.iter().cycle();
    for (points, color) in lines.values().zip(colors()) {
        let peer: Vec<(u32, f64)> = points.iter().filter_map(|(at, _, us)| Some((*at, (*us)?))).collect();
        let ours: Vec<(u32, f64)> = points.iter().map(|(at, us, _)| (*at, *us)).collect();
        line(&mut svg, axes, &peer, color, "peer");
        line(&mut svg, axes, &ours, color, "ours");
    }
    let ends: Vec<f64> = lines.values().filter_map(|p| p.last()).map(|(_, us, _)| axes.y(*us)).collect();
    for (((key, color), end), y) in lines.keys().zip(colors()).zip(&ends).zip(apart(&ends)) {
        let look = format!("class=\"name\" style=\"fill: {color}\"");
        let last = lines[key].last().map_or(RIGHT, |(at, ..)| axes.x(*at));
        let _ = writeln!(
            svg,
            "<path d=\"M{last:.1} {end:.1} L{:.1} {y:.1}\" stroke=\"{color}\" style=\"stroke-width: 1\"/>",
            RIGHT + 4.0
        );
        text(&mut svg, &look, RIGHT + 8.0, y + 4.5, "start", &key.1);
    }
    svg + "</svg>\n"
}

fn text(svg: &mut String, look: &str, x: f64, y: f64, anchor: &str, content: &str) {
    let _ = writeln!(svg, "<text {look} x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}

fn rule(svg: &mut String, [x1, y1, x2, y2]: [f64; 4]) {
    let _ =
        writeln!(svg, "<line class=\"grid\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

/// A line with a dot at every point; a peer's dots are hollow.
fn line(svg: &mut String, axes: &Axes, points: &[(u32, f64)], color: &str, class: &str) {
    let at: Vec<(f64, f64)> = points.iter().map(|(at, us)| (axes.x(*at), axes.y(*us))).collect();
    let path: Vec<String> = at.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    if at.len() > 1 {
        let _ = writeln!(svg, "<path class=\"{class}\" d=\"M{}\" stroke=\"{color}\"/>", path.join(" L"));
    }
    let fill = if class == "peer" { "none" } else { color };
    for (x, y) in at {
        let _ =
            writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{fill}\" stroke=\"{color}\"/>");
    }
}

/// The same heights, moved upwards until none covers another.
fn apart(heights: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..heights.len()).collect();
    order.sort_by(|a, b| heights[*b].total_cmp(&heights[*a]));
    let mut moved = heights.to_vec();
    for pair in order.windows(2) {
        moved[pair[1]] = moved[pair[1]].min(moved[pair[0]] - LABEL);
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, us: f64, to_peer: Option<f64>) -> Row {
        serde_json::from_value(serde_json::json!({
            "id": id, "us": us, "us_low": us, "us_high": us, "to_peer": to_peer,
        }))
        .unwrap()
    }

    #[test]
    fn a_chart_for_each_family_and_model() {
        let rows = [
            row("ceiling/read", 1900.0, None),
            row("gdn/grid/27b/b8/t4/g32", 20.0, None),
            row("gdn/verify/27b/b8/t1", 10.0, Some(0.5)),
            row("gdn/verify/27b/b1/t1", 5.0, Some(1.0)),
            row("gdn/verify/27b/b1/t4", 6.0, None),
            row("gdn/verify/35b/b1/t1", 4.0, None),
            row("conv/verify/27b/b1/t1", 2.0, None),
            row("conv/verify/27b/b2/t1", 3.0, None),
            row("attn/verify/27b/b1/c4096/t1", 12.0, None),
            row("attn/verify/27b/b8/c4096/t1", 37.0, None),
            row("attn/verify/27b/b1/c16384/t1", 26.0, None),
            row("dense/linear/27b/o/r1", 19.0, Some(1.0)),
            row("dense/linear/27b/o/r64", 20.0, Some(1.0)),
            row("dense/linear/27b/o_add/r1", 19.0, None),
            row("spec/round_model_card/27b/b1/t4", 30.0, None),
            row("spec/round_model_card/27b/b8/t4", 40.0, None),
            row("spec/round_rejection_greedy/27b/b1/t4", 30.0, None),
        ];
        let drawn = charts(&rows);
        let names: Vec<&str> = drawn.iter().map(|(name, _)| name.as_str()).collect();
        let want = [
            "attn-verify-27b-c4096.svg",
            "conv-verify-27b.svg",
            "dense-linear-27b.svg",
            "gdn-verify-27b.svg",
            "spec-round-27b-t4.svg",
        ];
        assert_eq!(names, want, "one batch size makes no line");
        assert!(drawn[2].1.contains(">rows<") && drawn[2].1.contains(">o<") && !drawn[2].1.contains("o_add"));
        assert!(drawn[4].1.contains(">model card<") && drawn[4].1.matches("class=\"ours\"").count() == 1);
        let svg = &drawn[3].1;
        assert_eq!(svg.matches("class=\"ours\"").count(), 1, "one point makes no line");
        assert_eq!(svg.matches("class=\"peer\"").count(), 1);
        assert_eq!(svg.matches("<circle").count(), 5);
        assert!(svg.contains("T = 1<") && svg.contains("T = 4<") && svg.contains("dashed"));
        assert!(!drawn[1].1.contains("dashed"));
        // Time grows upwards, sequences to the right: 5 µs at 1, 10 at 8.
        let path = svg.lines().find(|line| line.contains("class=\"ours\"")).unwrap();
        let numbers: Vec<f64> = path.split(['M', ' ', 'L', '"']).filter_map(|n| n.parse().ok()).collect();
        assert!(numbers[0] < numbers[2] && numbers[1] > numbers[3], "{path}");
    }

    #[test]
    fn axes_are_logarithmic() {
        let lines = Lines::from([(
            (1, "T = 1".into()),
            vec![(1, 1.0, None), (4, 100.0, None), (16, 10.0, Some(1000.0))],
        )]);
        let axes = Axes::of(&lines).unwrap();
        assert!((axes.x(4) - (axes.x(1) + axes.x(16)) / 2.0).abs() < 1e-9);
        assert!((axes.y(10.0) - (axes.y(1.0) + axes.y(100.0)) / 2.0).abs() < 1e-9);
        assert_eq!(axes.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert!(axes.y(1000.0) > TOP && axes.y(1.0) < BOTTOM);
    }

    #[test]
    fn names_do_not_cover_each_other() {
        assert_eq!(apart(&[100.0, 98.0, 200.0, 90.0]), [100.0, 85.0, 200.0, 70.0]);
    }
}

//! `xtask bench-kernels`: every crate's benches, gathered into one table.
//!
//! Bench ids read `family/op/model/b8/t4`; throughput is bytes that must move. `ceiling/read` of the same
//! run, where there is one, is what shares are shares of; `ceiling/copy` says whether the chip is as fast
//! as the one that the peers were measured on.

use crate::chart;
use crate::workspace::{cargo, packages, root, run as run_command};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::SystemTime,
};

const CEILING: &str = "ceiling/read";
const COPY: &str = "ceiling/copy";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only benches whose id contains this, or one of several with `|` between them.
    #[arg(long)]
    filter: Option<String>,
    /// Also write the rows here.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Rows of an earlier run, to compare with.
    #[arg(long)]
    baseline: Option<PathBuf>,
    /// Run nothing; read criterion's results from this folder, or the rows of an earlier `--json`.
    #[arg(long)]
    from: Option<PathBuf>,
    /// Also draw a chart of each family and model into this folder.
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// One bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) id: String,
    /// Median (of a ceiling: the best), and the bounds of its 95 % interval.
    pub(crate) us: f64,
    us_low: f64,
    us_high: f64,
    bytes: Option<u64>,
    terabytes_per_second: Option<f64>,
    /// Share of this run's read ceiling.
    of_ceiling: Option<f64>,
    pub(crate) peer: Option<String>,
    /// Our time over the peer's: below 1 is faster.
    pub(crate) to_peer: Option<f64>,
}

/// xtask/peers.toml.
#[derive(Debug, Default, Deserialize)]
struct Peers {
    /// The speed of a large copy, read and write counted, in the run that gave the times.
    copy_terabytes_per_second: f64,
    #[serde(flatten)]
    times: BTreeMap<String, Peer>,
}

/// Somebody else's time for the same operation.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Peer {
    us: f64,
    name: String,
}

pub(crate) fn run(options: Options) -> Result<()> {
    let root = root();
    let peers = peers(&root)?;
    let baseline = options.baseline.as_deref().map(earlier).transpose()?.unwrap_or_default();
    let mut rows = vec![];
    let folder = match &options.from {
        Some(from) => from.clone(),
        None => {
            let target =
                std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
            target.join("criterion")
        }
    };
    if folder.is_file() {
        rows = earlier(&folder)?;
    } else {
        let mut since = SystemTime::UNIX_EPOCH;
        if options.from.is_none() {
            since = SystemTime::now();
            bench(&root, options.filter.as_deref())?;
        }
        gather(&folder, since, &mut rows).with_context(|| format!("reading {}", folder.display()))?;
    }
    let ceiling = rows.iter().find(|r| r.id == CEILING).and_then(|r| r.terabytes_per_second);
    let copy = rows.iter().find(|r| r.id == COPY).and_then(|r| r.terabytes_per_second);
    let wanted = |id: &str| options.filter.as_ref().is_none_or(|f| f.split('|').any(|f| id.contains(f)));
    rows.retain(|r| wanted(&r.id) || [CEILING, COPY].contains(&r.id.as_str()));
    rows.sort_by(|a, b| a.id.cmp(&b.id));
    let beside = beside(&rows);
    for row in &mut rows {
        row.of_ceiling = row.terabytes_per_second.zip(ceiling).map(|(speed, most)| speed / most);
        if let Some(peer) = beside.get(&row.id).or_else(|| peers.times.get(&row.id)) {
            row.peer = Some(peer.name.clone());
            row.to_peer = Some(row.us / peer.us);
        }
    }
    if rows.is_empty() {
        bail!("no bench reported in {}", folder.display());
    }
    print!("{}", table(&rows, &baseline));
    if rows.iter().any(|r| r.to_peer.is_some()) {
        println!("{}", comparable(copy, peers.copy_terabytes_per_second));
    }
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_string_pretty(&rows)? + "\n")
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(folder) = &options.svg {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        for (name, svg) in chart::charts(&rows) {
            let path = folder.join(name);
            fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))?;
            println!("{}", path.display());
        }
    }
    Ok(())
}

/// Peers that were timed in the same run, which is better than a recorded time, by the id of what they stand beside.
fn beside(rows: &[Row]) -> BTreeMap<String, Peer> {
    let peer = |row: &Row| {
        let (way, rest) = row.id.strip_prefix("dense/cublaslt")?.split_once('/')?;
        let (ours, choice) = match way {
            "" => ("linear", "its first choice"),
            "-behind-norm" => ("behind-norm", "pinned"),
            _ => return None,
        };
        let name = format!("cublasLt, {choice}, in the same run");
        Some((format!("dense/{ours}/{rest}"), Peer { us: row.us, name }))
    };
    rows.iter().filter_map(peer).collect()
}

/// Whether ratios to the peers mean anything: only on a chip as fast as theirs.
fn comparable(copy: Option<f64>, peers: f64) -> String {
    let Some(copy) = copy else {
        return format!("no {COPY} in this run: its ratios to peers do not count");
    };
    let off = copy / peers - 1.0;
    let verdict = if off.abs() > 0.03 { "its ratios to peers do not count" } else { "ratios to peers count" };
    format!("{COPY} {copy:.3} TB/s, {:+.1} % from the peers' run ({peers:.3}): {verdict}", off * 100.0)
}

/// The rows that an earlier `--json` wrote.
fn earlier(path: &Path) -> Result<Vec<Row>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not an earlier --json", path.display()))
}

fn bench(root: &Path, filter: Option<&str>) -> Result<()> {
    let gpu = Command::new("nvidia-smi").arg("-L").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let gpu = gpu.is_ok_and(|status| status.success());
    if !gpu {
        println!("no GPU here: the CPU backends are timed");
    }
    let mut command = cargo(root);
    command.arg("bench");
    for package in packages(root)?.iter().filter(|p| p.name.starts_with("kernels-")) {
        for target in &package.benches {
            command.args(["--package", &package.name, "--bench", target]);
        }
        if gpu && !package.benches.is_empty() && package.features.contains_key("cuda") {
            command.args(["--features", &format!("{}/cuda", package.name)]);
        }
    }
    command.args(["--", "--warm-up-time", "0.1", "--measurement-time", "0.3"]).args(
        // Criterion takes a regular expression; the ceilings belong to every run.
        filter.map(|f| format!("^ceiling/|{f}")),
    );
    run_command(&mut command)
}

/// Recorded times by bench id, from xtask/peers.toml.
fn peers(root: &Path) -> Result<Peers> {
    let path = root.join("xtask/peers.toml");
    match fs::read_to_string(&path) {
        Ok(text) => toml::from_str(&text).with_context(|| format!("{}", path.display())),
        Err(_) => Ok(Peers::default()),
    }
}

/// Every `new/estimates.json` below `folder` that was written since.
fn gather(folder: &Path, since: SystemTime, rows: &mut Vec<Row>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        let estimates = path.join("estimates.json");
        if !path.ends_with("new") {
            gather(&path, since, rows)?;
        } else if fs::metadata(&estimates).and_then(|m| m.modified()).is_ok_and(|written| written >= since) {
            let json = |name: &str| -> Result<Value> {
                let path = path.join(name);
                let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
                serde_json::from_slice(&text).with_context(|| format!("{} is no JSON", path.display()))
            };
            let mut row = row(&json("benchmark.json")?, &json("estimates.json")?)
                .with_context(|| format!("{}", path.display()))?;
            if [CEILING, COPY].contains(&row.id.as_str()) {
                best(&mut row, &json("sample.json")?).with_context(|| format!("{}", path.display()))?;
            }
            rows.push(row);
        }
    }
    Ok(())
}

fn row(benchmark: &Value, estimates: &Value) -> Result<Row> {
    let median = &estimates["median"];
    let us = |value: &Value| value.as_f64().map(|ns| ns / 1e3).context("estimates.json holds no median");
    let interval = &median["confidence_interval"];
    let time = us(&median["point_estimate"])?;
    let bytes = benchmark["throughput"]["Bytes"].as_u64();
    Ok(Row {
        id: benchmark["full_id"].as_str().context("benchmark.json holds no full_id")?.to_owned(),
        us: time,
        us_low: us(&interval["lower_bound"])?,
        us_high: us(&interval["upper_bound"])?,
        bytes,
        terabytes_per_second: bytes.map(|b| b as f64 / time / 1e6),
        of_ceiling: None,
        peer: None,
        to_peer: None,
    })
}

/// Takes the best of the samples: a ceiling is what the memory can do, not what it mostly does.
fn best(row: &mut Row, sample: &Value) -> Result<()> {
    let numbers = |name: &str| sample[name].as_array().into_iter().flatten().filter_map(Value::as_f64);
    let per_call = numbers("times").zip(numbers("iters")).map(|(ns, calls)| ns / calls / 1e3);
    row.us = per_call.min_by(f64::total_cmp).context("sample.json holds no samples")?;
    row.terabytes_per_second = row.bytes.map(|b| b as f64 / row.us / 1e6);
    Ok(())
}

fn table(rows: &[Row], baseline: &[Row]) -> String {
    let mut text = format!(
        "{:<16} {:<28} {:>10} {:>8} {:>10} {:>7} {:>8} {:>7}",
        "op", "shape", "µs", "spread", "MB", "TB/s", "ceiling", "peer"
    );
    text += if baseline.is_empty() { "\n" } else { "  before\n" };
    let share = |value: Option<f64>| value.map_or("-".into(), |v| format!("{:.0} %", v * 100.0));
    let ratio = |value: Option<f64>| value.map_or("-".into(), |v| format!("{v:.2}"));
    for row in rows {
        // The first two parts are the operation, the rest its shape.
        let cut = row.id.match_indices('/').nth(1).map_or(row.id.len(), |(at, _)| at);
        let (op, shape) = (&row.id[..cut], row.id[cut..].trim_start_matches('/'));
        let spread = (row.us_high - row.us_low) / 2.0 / row.us;
        text += &format!(
            "{op:<16} {shape:<28} {:>10.2} {:>8} {:>10} {:>7} {:>8} {:>7}",
            row.us,
            format!("±{:.1} %", spread * 100.0),
            row.bytes.map_or("-".into(), |b| format!("{:.3}", b as f64 / 1e6)),
            row.terabytes_per_second.map_or("-".into(), |v| format!("{v:.*}", if v < 0.1 { 5 } else { 3 })),
            share(row.of_ceiling),
            ratio(row.to_peer),
        );
        if !baseline.is_empty() {
            let before = baseline.iter().find(|b| b.id == row.id).map(|b| row.us / b.us);
            text += &format!("  {}", ratio(before));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn example(id: &str, ns: f64) -> Row {
        let interval = json!({ "lower_bound": ns * 0.98, "upper_bound": ns * 1.02 });
        let benchmark = json!({ "full_id": id, "throughput": { "Bytes": 4_000_000 } });
        row(&benchmark, &json!({ "median": { "point_estimate": ns, "confidence_interval": interval } }))
            .unwrap()
    }

    #[test]
    fn a_row_is_bytes_over_time() {
        let row = example("conv/verify/27b/b8/t4", 1000.0);
        assert_eq!((row.us, row.bytes), (1.0, Some(4_000_000)));
        assert!((row.terabytes_per_second.unwrap() - 4.0).abs() < 1e-9);
        let text = table(std::slice::from_ref(&row), &[example("conv/verify/27b/b8/t4", 2000.0)]);
        let line = text.lines().nth(1).unwrap();
        for part in ["conv/verify ", " 27b/b8/t4 ", "±2.0 %", "4.000", " - ", "  0.50"] {
            assert!(line.contains(part), "`{part}` in {line}");
        }
        assert!(row.to_peer.is_none());
    }

    #[test]
    fn a_peer_of_the_same_run_stands_beside_its_layer() {
        let rows = [
            ("dense/cublaslt/27b/o/r8", 2000.0),
            ("dense/cublaslt-pinned/27b/o/r8", 3000.0),
            ("dense/cublaslt-behind-norm/27b/o/r8", 4000.0),
            ("dense/linear/27b/down/r8", 1000.0),
        ];
        let beside = beside(&rows.map(|(id, ns)| example(id, ns)));
        let times: Vec<_> = beside.iter().map(|(id, peer)| (id.as_str(), peer.us)).collect();
        assert_eq!(times, [("dense/behind-norm/27b/o/r8", 4.0), ("dense/linear/27b/o/r8", 2.0)]);
    }

    #[test]
    fn a_ceiling_is_the_best_sample() {
        let mut row = example("ceiling/copy", 2000.0);
        best(&mut row, &json!({ "times": [2000.0, 3600.0, 8000.0], "iters": [1.0, 2.0, 3.0] })).unwrap();
        assert_eq!(row.us, 1.8);
        assert!(best(&mut row, &json!({})).is_err());
    }

    #[test]
    fn peers_count_on_an_equal_chip() {
        assert!(comparable(None, 4.2).contains("do not count"));
        assert!(
            comparable(Some(4.3), 4.2).contains("+2.4 % from the peers' run (4.200): ratios to peers count")
        );
        assert!(
            comparable(Some(4.0), 4.2).contains("-4.8 %") && comparable(Some(4.0), 4.2).contains("not count")
        );
        let recorded = peers(&root()).unwrap();
        assert!(recorded.copy_terabytes_per_second > 0.0 && !recorded.times.is_empty());
    }

    #[test]
    fn results_are_found_and_broken_ones_named() {
        let root = tempfile::tempdir().unwrap();
        let new = root.path().join("conv/verify_x/new");
        fs::create_dir_all(&new).unwrap();
        fs::write(new.join("estimates.json"), "{}").unwrap();
        let mut rows = vec![];
        let failure = gather(root.path(), SystemTime::UNIX_EPOCH, &mut rows).unwrap_err();
        assert!(format!("{failure:#}").contains("benchmark.json"));
        gather(root.path(), SystemTime::now() + std::time::Duration::from_secs(60), &mut rows).unwrap();
        assert!(rows.is_empty(), "too old");
    }
}

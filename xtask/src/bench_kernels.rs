//! `xtask bench-kernels`: every crate's benches, gathered into one table.
//!
//! Bench ids read `family/op/model/b8/t4`; throughput is bytes that must move. `ceiling/read` of the same
//! run, where there is one, is what shares are shares of.

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

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only benches whose id contains this.
    #[arg(long)]
    filter: Option<String>,
    /// Also write the rows here.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Rows of an earlier run, to compare with.
    #[arg(long)]
    baseline: Option<PathBuf>,
    /// Run nothing; read criterion's results from this folder.
    #[arg(long)]
    from: Option<PathBuf>,
}

/// One bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Row {
    id: String,
    /// Median, and the bounds of its 95 % interval.
    us: f64,
    us_low: f64,
    us_high: f64,
    bytes: Option<u64>,
    terabytes_per_second: Option<f64>,
    /// Share of this run's read ceiling.
    of_ceiling: Option<f64>,
    peer: Option<String>,
    /// Our time over the peer's: below 1 is faster.
    to_peer: Option<f64>,
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
    let baseline: Vec<Row> = match &options.baseline {
        Some(path) => {
            let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
            serde_json::from_str(&text)
                .with_context(|| format!("{} is not an earlier --json", path.display()))?
        }
        None => vec![],
    };
    let (folder, since) = match &options.from {
        Some(folder) => (folder.clone(), SystemTime::UNIX_EPOCH),
        None => {
            let since = SystemTime::now();
            bench(&root, options.filter.as_deref())?;
            let target =
                std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
            (target.join("criterion"), since)
        }
    };
    let mut rows = vec![];
    gather(&folder, since, &mut rows).with_context(|| format!("reading {}", folder.display()))?;
    let ceiling = rows.iter().find(|r| r.id == CEILING).and_then(|r| r.terabytes_per_second);
    rows.retain(|r| options.filter.as_ref().is_none_or(|f| r.id.contains(f)) || r.id == CEILING);
    rows.sort_by(|a, b| a.id.cmp(&b.id));
    for row in &mut rows {
        row.of_ceiling = row.terabytes_per_second.zip(ceiling).map(|(speed, most)| speed / most);
        if let Some(peer) = peers.get(&row.id) {
            row.peer = Some(peer.name.clone());
            row.to_peer = Some(row.us / peer.us);
        }
    }
    if rows.is_empty() {
        bail!("no bench reported in {}", folder.display());
    }
    print!("{}", table(&rows, &baseline));
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_string_pretty(&rows)? + "\n")
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
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
    command.args(["--", "--warm-up-time", "0.1", "--measurement-time", "0.3"]).args(filter);
    run_command(&mut command)
}

/// Recorded times by bench id, from xtask/peers.toml.
fn peers(root: &Path) -> Result<BTreeMap<String, Peer>> {
    let path = root.join("xtask/peers.toml");
    match fs::read_to_string(&path) {
        Ok(text) => toml::from_str(&text).with_context(|| format!("{}", path.display())),
        Err(_) => Ok(BTreeMap::new()),
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
            rows.push(
                row(&json("benchmark.json")?, &json("estimates.json")?)
                    .context(format!("{}", path.display()))?,
            );
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

//! `xtask pack`: programs, benches, examples and tests with cases for a GPU, for a GPU host that has no Rust.

use crate::workspace::{Package, capture, cargo, packages, root, run as run_command};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What travels beside it leaves this much.
const BUDGET: u64 = 30 << 20;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these packages; otherwise every one with a feature `cuda`.
    #[arg(long, short)]
    package: Vec<String>,
    /// Build with the release profile: slower to build, for programs whose own speed is measured.
    #[arg(long)]
    release: bool,
    /// Where to put it.
    #[arg(long, default_value = "pack")]
    into: PathBuf,
}

pub(crate) fn run(options: Options) -> Result<()> {
    let root = root();
    let chosen: Vec<Package> = packages(&root)?
        .into_iter()
        .filter(|p| p.features.contains_key("cuda"))
        .filter(|p| options.package.is_empty() || options.package.contains(&p.name))
        .collect();
    if let Some(unknown) = options.package.iter().find(|name| chosen.iter().all(|p| p.name != **name)) {
        bail!("package `{unknown}` does not exist or has no feature `cuda`");
    }
    let executables = build(&root, &chosen, options.release)?;

    let pack = root.join(&options.into);
    let staging = pack.join("staging");
    let _ = fs::remove_dir_all(&staging);
    for (name, from) in &executables {
        stage(from, &staging.join(name))?;
    }
    stage(&env::current_exe().context("xtask does not know its own path")?, &staging.join("xtask"))?;

    let archive = pack.join("bin.tar.xz");
    let mut tar = Command::new("tar");
    // Programs have most of their bytes in common, far apart.
    tar.env("XZ_OPT", "-T1 --lzma2=preset=6,dict=256MiB")
        .arg("-cJf")
        .arg(&archive)
        .args(["--sort=name", "-C"])
        .arg(&staging)
        .arg(".");
    run_command(&mut tar)?;
    fs::remove_dir_all(&staging).with_context(|| format!("removing {}", staging.display()))?;
    let script = pack.join("run.sh");
    fs::write(&script, include_str!("pack/run.sh"))
        .with_context(|| format!("writing {}", script.display()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    fs::write(pack.join("commit.txt"), commit(&root))?;

    let bytes = fs::metadata(&archive)?.len();
    let into = options.into.display();
    println!("{into}: {} executables, {:.1} MiB", executables.len() + 1, bytes as f64 / (1 << 20) as f64);
    for name in executables.keys() {
        println!("  {name}");
    }
    println!(
        "on the GPU host, in the repository's folder: {into}/run.sh [tests|benches|examples|sanitize|all] [FILTER]"
    );
    if bytes > BUDGET {
        bail!("{into}/bin.tar.xz has {bytes} bytes, its budget is {BUDGET}; pack fewer with --package");
    }
    Ok(())
}

/// Name in the pack → executable.
fn build(root: &Path, packages: &[Package], release: bool) -> Result<BTreeMap<String, PathBuf>> {
    let mut command = cargo(root);
    command.args(["build", "--benches", "--examples", "--bins", "--message-format=json-render-diagnostics"]);
    for suite in packages.iter().flat_map(|p| &p.suites).collect::<BTreeSet<_>>() {
        command.args(["--test", suite]);
    }
    if release {
        command.arg("--release");
    }
    for package in packages {
        command.args(["--package", &package.name, "--features", &format!("{}/cuda", package.name)]);
    }
    command.stderr(Stdio::inherit());
    let output = capture(&mut command)?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(messages.filter_map(|m| executable(&m, packages)).collect())
}

/// What one of cargo's messages says about an executable of ours.
fn executable(message: &Value, packages: &[Package]) -> Option<(String, PathBuf)> {
    let path = PathBuf::from(message["executable"].as_str()?);
    let package = packages.iter().find(|p| message["package_id"].as_str() == Some(p.id.as_str()))?;
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str()?;
    let name = &package.name;
    let tested = message["profile"]["test"].as_bool() == Some(true);
    Some(match kind {
        "bench" => (format!("benches/{name}--{target}"), path),
        "example" if !tested => (format!("examples/{name}--{target}"), path),
        // Another package's suite may have the same name.
        "test" if package.suites.iter().any(|suite| suite == target) => {
            (format!("tests/{name}--{target}"), path)
        }
        "bin" if !tested => (target.to_owned(), path),
        _ => return None,
    })
}

fn stage(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a staged file has a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    run_command(Command::new("strip").arg("-o").arg(to).arg(from)).context("strip comes with binutils")
}

/// Which commit the pack is of; says so if files differ from it.
fn commit(root: &Path) -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(root).args(arguments).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let hash = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|s| !s.is_empty());
    format!("commit {hash}{}\n", if changed { " with local changes" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn executables_are_named_by_package_and_target() {
        let packages = [Package {
            id: "kernels-conv 0.1.0".into(),
            name: "kernels-conv".into(),
            suites: vec!["main".into()],
            ..Default::default()
        }];
        let message = |kind: &str, name: &str, test: bool| {
            json!({ "package_id": "kernels-conv 0.1.0", "executable": "/t/x", "profile": { "test": test },
                "target": { "kind": [kind], "name": name } })
        };
        let name = |kind, target, test| executable(&message(kind, target, test), &packages).unwrap().0;
        assert_eq!(name("test", "main", true), "tests/kernels-conv--main");
        let dropped = |kind, target, test| executable(&message(kind, target, test), &packages).is_none();
        assert!(dropped("lib", "kernels_conv", true), "unit tests have nothing for a GPU");
        assert!(dropped("test", "plain", true), "nor do tests with the standard harness");
        assert_eq!(name("bench", "conv", false), "benches/kernels-conv--conv");
        assert_eq!(name("example", "verify", false), "examples/kernels-conv--verify");
        assert_eq!(name("bin", "lockstep", false), "lockstep");
        let mut foreign = message("test", "main", true);
        foreign["package_id"] = json!("other");
        assert!(executable(&foreign, &packages).is_none());
    }
}

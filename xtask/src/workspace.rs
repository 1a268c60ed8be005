//! Where things are in the repository, and starting other programs.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// The crates with kernels, in the order in which reports list them.
pub(crate) const FAMILIES: [&str; 5] =
    ["kernels-conv", "kernels-gdn", "kernels-attn", "kernels-spec", "kernels-dense"];

/// The repository's root: `LOCKSTEP_ROOT` where xtask runs from a pack, else above its own manifest, else
/// the current folder.
pub(crate) fn root() -> PathBuf {
    let is_root = |p: &PathBuf| p.join("kernels-core").is_dir();
    let from_env = std::env::var_os("LOCKSTEP_ROOT").map(PathBuf::from);
    let from_manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(|d| PathBuf::from(d).join(".."));
    let root = from_env.or(from_manifest).filter(is_root).unwrap_or_else(|| PathBuf::from("."));
    root.canonicalize().unwrap_or(root)
}

/// A command as a user would type it, for messages.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs to the end; its output goes where ours goes.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("`{}` does not start", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs to the end and returns what it printed; a failure shows what it complained of.
pub(crate) fn capture(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("`{}` does not start", shown(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed: {}\n{}", shown(command), output.status, said.trim_end());
    }
    Ok(output)
}

/// A `cargo` of the repository.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    // What `cargo run` set for xtask itself must not leak into the build scripts of others.
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST") || name.starts_with("DEP_") {
            command.env_remove(&key);
        }
    }
    command
}

/// A package of the workspace, as `cargo metadata` tells it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) features: BTreeMap<String, Vec<String>>,
    pub(crate) dependencies: Vec<Dependency>,
    /// Names of its bench targets.
    pub(crate) benches: Vec<String>,
    /// Names of its tests with a harness of their own: those that have cases for a GPU.
    pub(crate) suites: Vec<String>,
}

/// What a package says it depends on.
#[derive(Debug, Default, Clone)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `normal`, `dev` or `build`.
    pub(crate) kind: String,
    /// Where it comes from: a registry, a git repository; empty for a path.
    pub(crate) source: String,
    pub(crate) optional: bool,
    pub(crate) features: Vec<String>,
}

/// The packages of the workspace.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>> {
    let output = capture(cargo(root).args(["metadata", "--no-deps", "--offline", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let package = |p: &Value| Package {
        id: text(&p["id"]),
        name: text(&p["name"]),
        features: serde_json::from_value(p["features"].clone()).unwrap_or_default(),
        dependencies: list(&p["dependencies"])
            .iter()
            .map(|d| Dependency {
                name: text(&d["name"]),
                kind: d["kind"].as_str().unwrap_or("normal").to_owned(),
                source: text(&d["source"]),
                optional: d["optional"].as_bool().unwrap_or(false),
                features: list(&d["features"]).iter().map(text).collect(),
            })
            .collect(),
        benches: list(&p["targets"])
            .iter()
            .filter(|t| t["kind"][0] == "bench")
            .map(|t| text(&t["name"]))
            .collect(),
        suites: Vec::new(),
    };
    let mut packages: Vec<Package> = list(&metadata["packages"]).iter().map(package).collect();
    for (package, p) in packages.iter_mut().zip(list(&metadata["packages"])) {
        package.suites = suites(Path::new(&text(&p["manifest_path"])))?;
    }
    Ok(packages)
}

/// Names of the manifest's tests with `harness = false`, which cargo's metadata does not tell.
fn suites(manifest: &Path) -> Result<Vec<String>> {
    let shown = || format!("reading {}", manifest.display());
    let manifest: toml::Table =
        std::fs::read_to_string(manifest).with_context(shown)?.parse().with_context(shown)?;
    let tests = manifest.get("test").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    let own = tests.iter().filter(|test| test.get("harness").and_then(toml::Value::as_bool) == Some(false));
    Ok(own.filter_map(|test| Some(test.get("name")?.as_str()?.to_owned())).collect())
}

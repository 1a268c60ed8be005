//! `xtask tidy`: the rules of the workspace that neither rustc nor clippy knows.

use crate::workspace::{FAMILIES, Package, capture, packages, root};
use anyhow::{Result, bail};
use std::{fs, path::Path, process::Command};

/// What a family may depend on at run time.
const FAMILY_DEPENDENCIES: [&str; 4] = ["kernels-core", "cudarc", "half", "thiserror"];
/// The crate whose CPU half spreads rows over threads.
const THREADED: &str = "kernels-dense";
const LONG: usize = 500;
const TOO_LONG: usize = 800;

pub(crate) fn run() -> Result<()> {
    let root = root();
    let mut faults = dependency_faults(&packages(&root)?);
    let lock = fs::read_to_string(root.join("Cargo.lock")).unwrap_or_default();
    faults.extend(lock.lines().filter(|l| l.contains("\"git+")).map(|l| format!("Cargo.lock: {}", l.trim())));

    let machine = [Some(root.display().to_string()), std::env::var("HOME").ok().map(|home| home + "/")];
    let machine: Vec<String> = machine.into_iter().flatten().filter(|p| p.len() > 2).collect();
    let mut files = Command::new("git");
    files.current_dir(&root).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let output = capture(&mut files)?;
    let mut seen = 0;
    for name in String::from_utf8_lossy(&output.stdout).lines() {
        // Binary files, and files that are removed but not yet committed, are none of ours.
        let Ok(text) = fs::read_to_string(root.join(name)) else { continue };
        faults.extend(file_faults(name, &text, &machine));
        seen += 1;
    }
    if !faults.is_empty() {
        bail!("{} faults:\n  {}", faults.len(), faults.join("\n  "));
    }
    println!("{seen} files are tidy");
    Ok(())
}

fn dependency_faults(packages: &[Package]) -> Vec<String> {
    let mut faults = vec![];
    let is_family = |name: &str| FAMILIES.contains(&name);
    for package in packages {
        let name = package.name.as_str();
        for dependency in &package.dependencies {
            let on = dependency.name.as_str();
            if dependency.source.starts_with("git+") {
                faults.push(format!("{name} depends on {on} by git; publish it or write it"));
            }
            if is_family(on)
                && (is_family(name) || ["kernels-core", "kernels-build", "xtask"].contains(&name))
            {
                faults
                    .push(format!("{name} depends on {on}; what two families need belongs in kernels-core"));
            }
            let allowed = FAMILY_DEPENDENCIES.contains(&on) || (name == THREADED && on == "rayon");
            if is_family(name) && dependency.kind == "normal" && !allowed && !is_family(on) {
                faults
                    .push(format!("{name} depends on {on}; a family has {}", FAMILY_DEPENDENCIES.join(", ")));
            }
            if is_family(name) && on == "cudarc" && !dependency.optional {
                faults.push(format!("{name}: cudarc must be optional"));
            }
            if dependency.kind == "normal" && dependency.features.iter().any(|f| f == "planted-faults") {
                faults.push(format!("{name} turns on planted-faults of {on} in product builds"));
            }
        }
        if enabled_by("default", package).iter().any(|f| f.ends_with("planted-faults")) {
            faults.push(format!("{name}: planted-faults is on by default"));
        }
    }
    faults
}

/// Everything that a feature turns on, itself included.
fn enabled_by(feature: &str, package: &Package) -> Vec<String> {
    let mut enabled = vec![feature.to_owned()];
    let mut at = 0;
    while at < enabled.len() {
        for next in package.features.get(&enabled[at]).into_iter().flatten() {
            if !enabled.contains(next) {
                enabled.push(next.clone());
            }
        }
        at += 1;
    }
    enabled
}

fn file_faults(name: &str, text: &str, machine: &[String]) -> Vec<String> {
    let mut faults = vec![];
    let extension = Path::new(name).extension().and_then(|e| e.to_str()).unwrap_or_default();
    let device = ["cu", "cuh", "h"].contains(&extension);
    let code = device || extension == "rs";
    // Spelled in two halves, or this file would break its own rule.
    let fast_math = [concat!("use_fast", "_math"), concat!("-ffast", "-math"), concat!("-fmad=", "true")];
    for (number, line) in text.lines().enumerate() {
        let mut fault = |what: &str| faults.push(format!("{name}:{}: {what}", number + 1));
        if device && line.trim_start().starts_with("#include") && line.contains("../") {
            fault("includes are written from the include root, without ../");
        }
        if extension != "md" && fast_math.iter().any(|flag| line.contains(flag)) {
            fault("fast math changes bits that tests promise; write the intrinsic where it is meant");
        }
        if machine.iter().any(|path| line.contains(path.as_str())) {
            fault("names a folder of this machine");
        }
    }
    let lines = text.lines().count();
    let generated = text.starts_with("// Generated by ");
    let reason = || text.lines().take(40).any(|l| l.trim_start().starts_with("// Long because "));
    if code && !generated && lines > TOO_LONG {
        faults.push(format!("{name}: {lines} lines, {TOO_LONG} at most; split it"));
    } else if code && !generated && lines > LONG && !reason() {
        faults.push(format!("{name}: {lines} lines; over {LONG} it says `// Long because …` near its top"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn package(name: &str, on: &str, kind: &str) -> Package {
        let dependency = Dependency { name: on.into(), kind: kind.into(), ..Default::default() };
        Package { name: name.into(), dependencies: vec![dependency], ..Default::default() }
    }

    #[test]
    fn families_stand_alone() {
        let faults = |name, on, kind| dependency_faults(&[package(name, on, kind)]).len();
        assert_eq!(faults("kernels-gdn", "kernels-core", "normal"), 0);
        assert_eq!(faults("kernels-gdn", "kernels-conv", "normal"), 1);
        assert_eq!(faults("kernels-gdn", "kernels-conv", "dev"), 1);
        assert_eq!(faults("kernels-core", "kernels-conv", "dev"), 1);
        assert_eq!(faults("engine", "kernels-conv", "normal"), 0);
        assert_eq!(faults("kernels-gdn", "rayon", "normal"), 1);
        assert_eq!(faults("kernels-dense", "rayon", "normal"), 0);
        assert_eq!(faults("kernels-gdn", "proptest", "dev"), 0);
        assert_eq!(faults("kernels-gdn", "cudarc", "normal"), 1, "not optional");
    }

    #[test]
    fn git_and_planted_faults_are_found() {
        let mut git = package("engine", "x", "normal");
        git.dependencies[0].source = "git+https://example.org/x".into();
        assert_eq!(dependency_faults(&[git]).len(), 1);
        let mut planted = package("engine", "x", "normal");
        planted.dependencies[0].features = vec!["planted-faults".into()];
        planted.features.insert("default".into(), vec!["checks".into()]);
        planted.features.insert("checks".into(), vec!["x/planted-faults".into()]);
        assert_eq!(dependency_faults(&[planted]).len(), 2);
    }

    #[test]
    fn lines_are_read() {
        let machine = ["/somewhere/else".to_owned()];
        let faults = |name: &str, text: &str| file_faults(name, text, &machine).len();
        assert_eq!(faults("a.cu", "#include \"../b.cuh\""), 1);
        assert_eq!(faults("a.cu", "#include \"lockstep/b.cuh\" // not ../b"), 1);
        assert_eq!(faults("a.rs", concat!("let flag = \"--use_fast", "_math\";")), 1);
        assert_eq!(faults("a.md", "see /somewhere/else/x"), 1);
        assert_eq!(faults("a.rs", "#include \"../x\""), 0);
    }

    #[test]
    fn long_files_say_why() {
        let text = |lines: usize, first: &str| format!("{first}\n{}", "x\n".repeat(lines - 1));
        let faults = |name: &str, text: String| file_faults(name, &text, &[]).len();
        assert_eq!(faults("a.rs", text(500, "//")), 0);
        assert_eq!(faults("a.rs", text(501, "//")), 1);
        assert_eq!(faults("a.rs", text(501, "// Long because the table is one.")), 0);
        assert_eq!(faults("a.cuh", text(801, "// Long because the table is one.")), 1);
        assert_eq!(faults("a.rs", text(900, "// Generated by `cargo xtask bindings`")), 0);
        assert_eq!(faults("a.json", text(9000, "{")), 0);
    }
}

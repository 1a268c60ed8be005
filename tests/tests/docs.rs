//! What the articles name exists: the files they link to, the tests that show what they claim, the planted faults.

use kernels_testkit::fixture::root;
use std::{fs, path::PathBuf};

/// The articles, with their text.
fn articles() -> Vec<(PathBuf, String)> {
    let mut found: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|f| root().join(f)).into();
    for folder in ["docs", "docs/kernels"] {
        let docs = fs::read_dir(root().join(folder)).expect(folder);
        found.extend(docs.map(|entry| entry.expect("an entry").path()));
    }
    found.retain(|path| path.extension().is_some_and(|e| e == "md"));
    assert!(found.len() >= 12, "{found:?}");
    found.into_iter().map(|path| (path.clone(), fs::read_to_string(path).expect("UTF-8"))).collect()
}

/// Every Rust source of the repository's crates.
fn sources() -> String {
    let mut text = String::new();
    let mut folders: Vec<PathBuf> =
        ["tests", "engine/src", "engine/tests", "kernels-build/src"].map(|f| root().join(f)).into();
    for krate in ["core", "conv", "gdn", "attn", "spec", "dense"] {
        folders.extend(["src", "tests"].map(|f| root().join(format!("kernels-{krate}")).join(f)));
    }
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                text += &fs::read_to_string(path).expect("UTF-8");
            }
        }
    }
    text
}

/// The texts between backquotes, outside of code blocks.
fn quoted(article: &str) -> Vec<String> {
    let prose: String = article.split("```").step_by(2).collect();
    prose.split('`').skip(1).step_by(2).map(|code| code.replace('\n', " ")).collect()
}

#[test]
fn links_lead_somewhere() {
    for (path, text) in articles() {
        for link in text.split("](").skip(1).map(|rest| rest.split([')', '#']).next().expect("a part")) {
            if !link.is_empty() && !link.starts_with("http") {
                let target = path.parent().expect("a folder").join(link);
                assert!(target.exists(), "{}: {link}", path.display());
            }
        }
    }
}

#[test]
fn tests_and_planted_faults_exist() {
    let sources = sources();
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let (mut tests, mut faults) = (0, 0);
    let checked = [
        "exactness.md",
        "caches.md",
        "adding-a-kernel.md",
        "reported-faults.md",
        "kernels/gdn-verify.md",
        "kernels/attn-verify.md",
        "kernels/row-invariant-linear.md",
        "kernels/coupled-sampling.md",
    ];
    for (path, text) in articles().iter().filter(|(path, _)| checked.iter().any(|name| path.ends_with(name)))
    {
        for code in quoted(text) {
            let missing = || format!("{}: `{code}` does not exist", path.display());
            // A test's name is a sentence; other functions have shorter ones.
            let name = code.rsplit([':', ' ']).next().expect("a part");
            let intrinsic = name.starts_with('_');
            if is_name(name) && name.matches('_').count() >= 3 && !intrinsic {
                assert!(
                    sources.contains(&format!("fn {name}")) || sources.contains(&format!("\"{name}\"")),
                    "{}",
                    missing()
                );
                tests += 1;
            }
            let family = code.split_once('.').filter(|(_, name)| is_name(name) && name.contains('_'));
            if let Some((family, _)) = family
                && ["conv", "gdn", "attn", "spec", "dense", "engine"].contains(&family)
            {
                assert!(sources.contains(&format!("active(\"{code}\")")), "{}", missing());
                faults += 1;
            }
        }
    }
    assert!(tests > 30 && faults > 15, "{tests} tests and {faults} faults were looked for");
}

//! Projects outside of the workspace: they build against one kernel crate, and against the build helper with
//! a kernel of their own, as docs/depending.md says.
//!
//! Each is copied with the workspace's lock file, so that no network is needed, and built in a folder that
//! stays between runs.

use kernels_build::toolkit::Toolkit;
use kernels_testkit::fixture::root;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

/// They share one target folder, so that kernels-core is compiled once.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Dependent {
    dir: PathBuf,
}

impl Dependent {
    /// Copies `tests/NAME`; its paths to the workspace become absolute ones.
    fn copy(name: &str) -> Self {
        let root = root().canonicalize().expect("the repository is there");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dependents").join(name);
        copy(&root.join("tests").join(name), &dir, &format!("\"{}/", root.display()));
        fs::copy(root.join("Cargo.lock"), dir.join("Cargo.lock")).expect("a lock file to copy");
        Dependent { dir }
    }

    /// What `cargo run` prints.
    fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) -> String {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(&self.dir).args(["run", "--offline", "--quiet"]).args(arguments);
        // What cargo set for this test must not reach the other build.
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy();
            let leaks =
                ["CARGO_PKG_", "CARGO_MANIFEST", "CARGO_PRIMARY", "CARGO_BIN_", "DEP_", "LOCKSTEP_STUB"];
            if leaks.iter().any(|prefix| name.starts_with(prefix)) {
                cargo.env_remove(&key);
            }
        }
        cargo.env("CARGO_TARGET_DIR", self.dir.join("../target")).env("CARGO_PROFILE_DEV_DEBUG", "0");
        cargo.envs(environment.iter().copied());
        let output = cargo.output().expect("cargo starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", self.dir.display());
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

/// Copies a folder, with `root` for `../../` in its manifest. What is the same already keeps its time, so
/// that nothing is rebuilt for it.
fn copy(from: &Path, to: &Path, root: &str) {
    fs::create_dir_all(to).expect("a folder to write to");
    for entry in fs::read_dir(from).expect("a folder to read") {
        let (from, to) = entry.map(|e| (e.path(), to.join(e.file_name()))).expect("an entry");
        if from.is_dir() {
            copy(&from, &to, root);
            continue;
        }
        let mut text = fs::read_to_string(&from).expect("a file to read");
        if from.ends_with("Cargo.toml") {
            assert!(text.contains("\"../../kernels-"), "{} names lockstep by its path", from.display());
            text = text.replace("\"../../", root);
        }
        if fs::read_to_string(&to).ok().as_ref() != Some(&text) {
            fs::write(&to, text).expect("a file to write");
        }
    }
}

#[test]
fn a_project_of_its_own_runs_a_kernel_crate_on_the_cpu() {
    let said = Dependent::copy("dependent-cpu").run(&[], &[]);
    assert_eq!(said, "[1.0, 21.0, 320.0] [1.0, 21.0, 320.0]\n");
}

#[test]
fn a_project_of_its_own_builds_its_kernel_or_does_without() {
    let dependent = Dependent::copy("dependent-cuda");
    let cuda = ["--features", "cuda"];
    let without = "cpu: 33.0\ncuda: dependent::relu: built without CUDA kernels; rebuild with a CUDA toolkit and \
                   without LOCKSTEP_STUB\n";
    assert_eq!(dependent.run(&[], &[]), without);
    assert_eq!(dependent.run(&cuda, &[("LOCKSTEP_STUB", "1")]), without);
    if Toolkit::find().is_err() {
        println!("no nvcc: the kernel itself was not built");
        return;
    }
    // Compiled and linked, and run where there is a GPU.
    let said = dependent.run(&cuda, &[("LOCKSTEP_CUDA_ARCHS", "80")]);
    let want = if Path::new("/dev/nvidia0").exists() { "cuda: equal" } else { "CUDA driver" };
    assert!(said.contains(want), "{said}");
}

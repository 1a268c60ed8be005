//! `xtask ci`: what every change must pass.

use crate::workspace::{cargo, root, run as run_command};
use anyhow::Result;
use std::process::Command;

pub(crate) fn run() -> Result<()> {
    let root = root();
    let mut script = Command::new("bash");
    script.current_dir(&root).arg(".ci/run");
    // The environment that `cargo run` made for us is not the script's.
    for (key, value) in cargo(&root).get_envs() {
        match value {
            Some(value) => script.env(key, value),
            None => script.env_remove(key),
        };
    }
    run_command(&mut script)
}

//! What a build script says to cargo.

use std::env;

/// Why there are no kernels; one line of cargo's output for each line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(String);

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Failure(text)
    }
}
impl From<&str> for Failure {
    fn from(text: &str) -> Self {
        Failure(text.into())
    }
}
impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Failure {}

impl Failure {
    pub(crate) fn print(&self) {
        for line in self.0.lines() {
            println!("cargo::error={line}");
        }
    }
}

/// The value of a variable that the build depends on; an empty one counts as unset.
pub(crate) fn variable(key: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={key}");
    env::var(key).ok().filter(|v| !v.is_empty())
}

/// Whether a switch is on; `0` is off.
pub(crate) fn switch(key: &str) -> bool {
    variable(key).is_some_and(|v| v != "0")
}

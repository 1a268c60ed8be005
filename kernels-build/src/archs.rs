//! Which architectures a build has code for.

use crate::{Failure, message};
use std::{fmt, process::Command};

const VARIABLE: &str = "LOCKSTEP_CUDA_ARCHS";
const DEFAULT: &str = "80;90a";

/// A list such as `80;90a`: sorted, without repeats, never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Archs(Vec<Arch>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Arch {
    number: u32,
    /// The `a` of `90a`: instructions that only this very architecture has.
    specific: bool,
}

impl Archs {
    pub(crate) fn from_env() -> Result<Self, Failure> {
        let list = message::variable(VARIABLE).unwrap_or_else(|| DEFAULT.into());
        Archs::parse(&list, native)
    }

    fn parse(list: &str, native: impl Fn() -> Result<String, Failure>) -> Result<Self, Failure> {
        let mut archs = vec![];
        for item in list.split([';', ',']).map(str::trim).filter(|item| !item.is_empty()) {
            if item == "native" {
                for capability in native()?.lines().filter(|l| !l.trim().is_empty()) {
                    let number = capability.trim().replace('.', "");
                    let name = if number == "90" { "90a" } else { &number };
                    archs.push(Arch::parse(name)?);
                }
            } else {
                archs.push(Arch::parse(item)?);
            }
        }
        archs.sort();
        archs.dedup();
        if archs.is_empty() {
            return Err(
                format!("{VARIABLE}: `{list}` names no architecture; the default is `{DEFAULT}`").into()
            );
        }
        Ok(Archs(archs))
    }

    /// Whether there is code for compute capability 8.0 on, with the PTX that later devices compile.
    pub(crate) fn portable(&self) -> bool {
        self.0.iter().any(|a| !a.specific)
    }

    /// Whether there is code with Hopper's own instructions.
    pub(crate) fn hopper(&self) -> bool {
        self.0.iter().any(|a| a.number == 90 && a.specific)
    }

    /// The values of `-gencode` for the files of a folder under `cuda/`; `None` if this build leaves them
    /// out.
    pub(crate) fn gencode(&self, folder: Folder) -> Option<Vec<String>> {
        match folder {
            // This spelling: `-arch=sm_90a` also runs a plain pass.
            Folder::Sm90 => self.hopper().then(|| vec!["arch=compute_90a,code=sm_90a".into()]),
            Folder::Portable => {
                let mut early = vec![];
                let mut hopper = vec![];
                for arch in &self.0 {
                    let group = if arch.number < 90 { &mut early } else { &mut hopper };
                    group.push(format!("sm_{}", arch.number));
                }
                if self.portable() {
                    early.push("compute_80".into());
                }
                hopper.dedup();
                let passes = [("compute_80", early), ("compute_90", hopper)];
                let passes = passes.into_iter().filter(|(_, code)| !code.is_empty());
                Some(passes.map(|(arch, code)| format!("arch={arch},code={}", bracket(&code))).collect())
            }
        }
    }
}

fn bracket(code: &[String]) -> String {
    match code {
        [one] => one.clone(),
        many => format!("[{}]", many.join(",")),
    }
}

impl fmt::Display for Archs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, arch) in self.0.iter().enumerate() {
            let (separator, suffix) = (if i > 0 { ";" } else { "" }, if arch.specific { "a" } else { "" });
            write!(f, "{separator}{}{suffix}", arch.number)?;
        }
        Ok(())
    }
}

impl Arch {
    fn parse(item: &str) -> Result<Self, Failure> {
        let (digits, specific) = item.strip_suffix('a').map_or((item, false), |digits| (digits, true));
        let number: u32 = digits.parse().map_err(|_| {
            format!("{VARIABLE}: `{item}` is no architecture; write numbers such as `{DEFAULT}`, or `native`")
        })?;
        if number < 80 {
            return Err(
                format!("{VARIABLE}: `{item}` is before 80, the first with bfloat16 matrix units").into()
            );
        }
        if specific && number != 90 {
            return Err(format!("{VARIABLE}: `{item}`: only 90 has code of its own; write `{number}`").into());
        }
        Ok(Arch { number, specific })
    }
}

fn native() -> Result<String, Failure> {
    let query = ["--query-gpu=compute_cap", "--format=csv,noheader"];
    match Command::new("nvidia-smi").args(query).output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        _ => {
            Err(format!("{VARIABLE}=native: nvidia-smi shows no device here; name the architectures instead")
                .into())
        }
    }
}

/// What the folder of a `.cu` file says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Folder {
    /// `smxx`, `sm80`: compute capability 8.0 and everything after it.
    Portable,
    /// `sm90`: Hopper's own instructions.
    Sm90,
}

impl Folder {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "smxx" | "sm80" => Some(Folder::Portable),
            "sm90" => Some(Folder::Sm90),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Archs, Failure> {
        Archs::parse(list, || Ok("9.0\n9.0\n".into()))
    }

    #[test]
    fn the_default_builds_what_the_architecture_page_says() {
        let archs = parse(DEFAULT).unwrap();
        assert!(archs.portable() && archs.hopper());
        let portable = ["arch=compute_80,code=[sm_80,compute_80]", "arch=compute_90,code=sm_90"];
        assert_eq!(archs.gencode(Folder::Portable).unwrap(), portable);
        assert_eq!(archs.gencode(Folder::Sm90).unwrap(), ["arch=compute_90a,code=sm_90a"]);
        assert_eq!(archs.to_string(), "80;90a");
    }

    #[test]
    fn lists_are_sorted_and_take_either_separator() {
        assert_eq!(parse(" 90a, 80 ;80").unwrap().to_string(), "80;90a");
        assert_eq!(parse("native").unwrap().to_string(), "90a");
    }

    #[test]
    fn portable_files_of_a_hopper_build_have_no_ptx() {
        let archs = parse("90a").unwrap();
        assert!(!archs.portable() && archs.hopper());
        assert_eq!(archs.gencode(Folder::Portable).unwrap(), ["arch=compute_90,code=sm_90"]);
    }

    #[test]
    fn other_devices_get_code_of_their_own_beside_the_ptx() {
        let archs = parse("89;100").unwrap();
        assert!(archs.portable() && !archs.hopper());
        let portable = ["arch=compute_80,code=[sm_89,compute_80]", "arch=compute_90,code=sm_100"];
        assert_eq!(archs.gencode(Folder::Portable).unwrap(), portable);
        assert_eq!(archs.gencode(Folder::Sm90), None);
    }

    #[test]
    fn ninety_and_ninety_a_are_one_portable_target() {
        let portable = parse("90;90a").unwrap().gencode(Folder::Portable).unwrap();
        assert_eq!(portable, ["arch=compute_80,code=compute_80", "arch=compute_90,code=sm_90"]);
    }

    #[test]
    fn refusals_name_the_variable_and_the_item() {
        for (list, word) in [("sm_80", "`sm_80`"), ("75", "`75`"), (";", "`;`"), ("100a", "`100a`")] {
            let failure = parse(list).unwrap_err().to_string();
            assert!(failure.contains(VARIABLE) && failure.contains(word), "{failure}");
        }
    }

    #[test]
    fn folders() {
        assert_eq!(Folder::parse("smxx"), Some(Folder::Portable));
        assert_eq!(Folder::parse("sm80"), Some(Folder::Portable));
        assert_eq!(Folder::parse("sm90"), Some(Folder::Sm90));
        assert_eq!(Folder::parse("sm100"), None);
    }
}

//! `xtask sass`: registers, stack, shared memory and instructions of every kernel, without a GPU.

use crate::{
    toolkit,
    workspace::{Package, capture, cargo, packages, root},
};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Opcodes that say how a kernel works; the table shows how often each occurs.
const EVIDENCE: [&str; 9] = ["HGMMA", "HMMA", "UTMALDG", "UBLKCP", "LDGSTS", "LDSM", "ACQBULK", "LDL", "STL"];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fail if a kernel breaks a rule of xtask/sass.toml.
    #[arg(long)]
    check: bool,
    /// Only kernels of these packages; otherwise every one with a feature `cuda`.
    #[arg(long, short)]
    package: Vec<String>,
    /// Only kernels whose object or name contains this.
    #[arg(long)]
    filter: Option<String>,
}

pub(crate) fn run(options: Options) -> Result<()> {
    let root = root();
    let mut kernels = vec![];
    for (object, path) in objects(&root, &options.package)? {
        kernels.extend(read(&object, &path).with_context(|| format!("{object}: {}", path.display()))?);
    }
    if kernels.is_empty() {
        bail!("no kernels were built; LOCKSTEP_STUB must not be set");
    }
    demangle(&mut kernels);
    let wanted =
        |k: &&Kernel| options.filter.as_ref().is_none_or(|f| k.object.contains(f) || k.name.contains(f));
    print(kernels.iter().filter(wanted));
    if options.check {
        let path = root.join("xtask/sass.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let rules: Rules = toml::from_str(&text).with_context(|| format!("{}", path.display()))?;
        let broken = rules.check(&kernels, options.package.is_empty());
        if !broken.is_empty() {
            bail!("{} kernels break rules of xtask/sass.toml:\n{}", broken.len(), broken.join("\n"));
        }
        println!("{} kernels keep {} rules", kernels.len(), rules.rule.len());
    }
    Ok(())
}

/// `crate/folder_file` → object, of the build that is current now.
fn objects(root: &Path, only: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let packages: Vec<Package> = packages(root)?
        .into_iter()
        .filter(|p| p.name.starts_with("kernels-") && p.features.contains_key("cuda"))
        .filter(|p| only.is_empty() || only.contains(&p.name))
        .collect();
    let mut build = cargo(root);
    build.args(["build", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    for package in &packages {
        build.args(["--package", &package.name, "--features", &format!("{}/cuda", package.name)]);
    }
    let output = capture(&mut build)?;
    let mut found = vec![];
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let Some(out) = message["out_dir"].as_str() else { continue };
        let Some(package) = packages.iter().find(|p| message["package_id"] == p.id.as_str()) else {
            continue;
        };
        // Only what this build archived: folders of removed sources stay behind.
        let built = fs::read_to_string(Path::new(out).join("kernels/objects")).unwrap_or_default();
        for path in built.lines().map(PathBuf::from) {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            found.push((format!("{}/{stem}", package.name), path));
        }
    }
    found.sort();
    Ok(found)
}

/// One kernel for one architecture.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Kernel {
    object: String,
    arch: String,
    name: String,
    registers: u32,
    stack: u32,
    shared: u32,
    local: u32,
    opcodes: BTreeMap<String, usize>,
}

impl Kernel {
    /// How often an opcode occurs.
    fn count(&self, word: &str) -> usize {
        self.opcodes.iter().filter(|(opcode, _)| means(word, opcode)).map(|(_, n)| n).sum()
    }
}

fn read(object: &str, path: &Path) -> Result<Vec<Kernel>> {
    let dump = |what: &str| -> Result<String> {
        let mut command = toolkit::tool("cuobjdump")?;
        let output =
            capture(command.arg(what).arg(path)).context("`cargo xtask toolkit` brings cuobjdump")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let mut kernels = parse_usage(object, &dump("-res-usage")?);
    let opcodes = parse_sass(&dump("-sass")?);
    for kernel in &mut kernels {
        let key = (kernel.arch.clone(), kernel.name.clone());
        kernel.opcodes =
            opcodes.get(&key).cloned().with_context(|| format!("no machine code of {}", key.1))?;
    }
    Ok(kernels)
}

fn parse_usage(object: &str, text: &str) -> Vec<Kernel> {
    let (mut kernels, mut arch, mut name) = (vec![], "", "");
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("arch = ") {
            arch = rest;
        } else if let Some(rest) = line.strip_prefix("Function ") {
            name = rest.trim_end_matches(':');
        } else if line.starts_with("REG:") {
            let number = |key: &str| {
                let word = line.split_whitespace().find_map(|word| word.strip_prefix(key));
                word.and_then(|n| n.parse().ok()).unwrap_or(0)
            };
            kernels.push(Kernel {
                object: object.to_owned(),
                arch: arch.to_owned(),
                name: name.to_owned(),
                registers: number("REG:"),
                stack: number("STACK:"),
                shared: number("SHARED:"),
                local: number("LOCAL:"),
                opcodes: BTreeMap::new(),
            });
        }
    }
    kernels
}

/// How often each opcode occurs, by architecture and function.
fn parse_sass(text: &str) -> BTreeMap<(String, String), BTreeMap<String, usize>> {
    let mut found = BTreeMap::new();
    let (mut arch, mut name) = (String::new(), String::new());
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("code for ") {
            arch = rest.to_owned();
        } else if let Some(rest) = line.strip_prefix("Function : ") {
            name = rest.to_owned();
            found.entry((arch.clone(), name.clone())).or_default();
        } else if let Some(opcode) = opcode(line) {
            let opcodes: &mut BTreeMap<String, usize> =
                found.entry((arch.clone(), name.clone())).or_default();
            *opcodes.entry(opcode.to_owned()).or_default() += 1;
        }
    }
    found
}

/// `HGMMA.64x256x16.F32.BF16` of `/*1f40*/  @P0 HGMMA.64x256x16.F32.BF16 R24, …`.
fn opcode(line: &str) -> Option<&str> {
    let (_, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    let words = rest.split_whitespace().find(|word| !word.starts_with(['@', '{']))?;
    words.split(';').next().filter(|o| o.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Whether an opcode is the one that a rule means: `LDG.CONSTANT` means `LDG.E.128.CONSTANT` too.
fn means(word: &str, opcode: &str) -> bool {
    let mut parts = word.split('.');
    let mut of_opcode = opcode.split('.');
    parts.next() == of_opcode.next() && parts.all(|part| opcode.split('.').any(|p| p == part))
}

/// Names as written in the source, where binutils are installed.
fn demangle(kernels: &mut [Kernel]) {
    let child = Command::new("c++filt").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = child else { return };
    let names: String = kernels.iter().map(|k| format!("{}\n", k.name)).collect();
    let Some(mut input) = child.stdin.take() else { return };
    let writer = std::thread::spawn(move || drop(input.write_all(names.as_bytes())));
    let output = child.wait_with_output();
    let _ = writer.join();
    let Ok(output) = output else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    if text.lines().count() == kernels.len() {
        for (kernel, name) in kernels.iter_mut().zip(text.lines()) {
            kernel.name = short(name);
        }
    }
}

/// `sm90::product<bf16, 256>` of `void lockstep::core::sm90::product<__nv_bfloat16, 256>(params)`.
fn short(name: &str) -> String {
    let mut depth = 0;
    let end = name.char_indices().find(|&(_, c)| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        c == '(' && depth == 0
    });
    let name = &name[..end.map_or(name.len(), |(at, _)| at)];
    name.trim_start_matches("void ").replace("lockstep::", "").replace("__nv_bfloat16", "bf16")
}

fn print<'a>(kernels: impl Iterator<Item = &'a Kernel>) {
    println!("{:>4} {:>6} {:>7} {:>6} {:>7}  kernel", "regs", "stack", "shared", "local", "arch");
    let mut object = "";
    for k in kernels {
        if k.object != object {
            object = &k.object;
            println!("{object}");
        }
        let counts = EVIDENCE.map(|o| (o, k.count(o))).into_iter().filter(|&(_, n)| n > 0);
        let evidence: Vec<String> = counts.map(|(o, n)| format!("{o} {n}")).collect();
        println!(
            "{:>4} {:>6} {:>7} {:>6} {:>7}  {}  {}",
            k.registers,
            k.stack,
            k.shared,
            k.local,
            k.arch,
            k.name,
            evidence.join(", ")
        );
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    #[serde(default)]
    rule: Vec<Rule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Rule {
    object: String,
    kernel: String,
    arch: String,
    require: Vec<String>,
    forbid: Vec<String>,
    max_registers: Option<u32>,
    allow_stack: u32,
    why: String,
}

impl Rule {
    fn applies(&self, kernel: &Kernel) -> bool {
        kernel.object.contains(&self.object)
            && kernel.name.contains(&self.kernel)
            && kernel.arch.contains(&self.arch)
    }

    fn broken(&self, kernel: &Kernel) -> Vec<String> {
        let has = |word: &&String| kernel.count(word) > 0;
        let missing = self.require.iter().filter(|o| !has(o)).map(|o| format!("has no {o}"));
        let present = self.forbid.iter().filter(has).map(|o| format!("has {o}"));
        let over = self.max_registers.filter(|&most| kernel.registers > most);
        let over = over.map(|most| format!("uses {} registers of {most}", kernel.registers));
        let because = |what| if self.why.is_empty() { what } else { format!("{what} ({})", self.why) };
        missing.chain(present).chain(over).map(because).collect()
    }
}

impl Rules {
    fn check(&self, kernels: &[Kernel], all: bool) -> Vec<String> {
        let mut broken = vec![];
        for kernel in kernels {
            let rules = || self.rule.iter().filter(|r| r.applies(kernel));
            let mut said: Vec<String> = rules().flat_map(|r| r.broken(kernel)).collect();
            let allowed = rules().map(|r| r.allow_stack).max().unwrap_or(0);
            let spills = kernel.count("LDL") + kernel.count("STL") > 0;
            if kernel.stack.max(kernel.local) > allowed || (spills && allowed == 0) {
                said.push(format!(
                    "keeps {} bytes on the stack, {allowed} allowed",
                    kernel.stack.max(kernel.local)
                ));
            }
            let place = format!("{} {} {}", kernel.object, kernel.arch, kernel.name);
            broken.extend(said.into_iter().map(|what| format!("  {place}: {what}")));
        }
        // A rule that guards nothing any more is noticed, unless its kernel was left out.
        for rule in self.rule.iter().filter(|r| all && !kernels.iter().any(|k| r.applies(k))) {
            let Rule { object, kernel, arch, .. } = rule;
            broken.push(format!(
                "  no kernel matches the rule object `{object}`, kernel `{kernel}`, arch `{arch}`"
            ));
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: &str =
        "arch = sm_90a\n Common:\n  GLOBAL:0\n Function _Z1fv:\n  REG:208 STACK:8 SHARED:11264 LOCAL:0";
    const SASS: &str = "\tcode for sm_90a\n\t\tFunction : _Z1fv\n\t.headerflags\t@\"EF\"
        /*0000*/                   MOV R1, c[0x0][0x28] ;  /* 0x0 */
                                                           /* 0x000fe400078e00ff */
        /*0010*/              @!P0 HGMMA.64x256x16.F32 R24, gdesc[UR4], R24, gsb0 ;  /* 0x03 */
        /*0020*/                   EXIT ;";

    fn kernel() -> Kernel {
        let mut kernel = parse_usage("kernels-x/sm90_f", USAGE).remove(0);
        kernel.opcodes = parse_sass(SASS).remove(&("sm_90a".into(), "_Z1fv".into())).unwrap();
        kernel
    }

    #[test]
    fn dumps_are_read() {
        let kernel = kernel();
        assert_eq!((kernel.registers, kernel.stack, kernel.shared, kernel.local), (208, 8, 11264, 0));
        let opcodes: Vec<_> = kernel.opcodes.iter().map(|(o, n)| (o.as_str(), *n)).collect();
        assert_eq!(opcodes, [("EXIT", 1), ("HGMMA.64x256x16.F32", 1), ("MOV", 1)]);
        assert_eq!((kernel.count("HGMMA"), kernel.count("HGMMA.F32"), kernel.count("HGMMA.F16")), (1, 1, 0));
        let name = "void lockstep::core::sm90::f<__nv_bfloat16, (int)4>(params, void (*)(int))";
        assert_eq!(short(name), "core::sm90::f<bf16, (int)4>");
    }

    #[test]
    fn rules_bite() {
        let check = |text: &str| toml::from_str::<Rules>(text).unwrap().check(&[kernel()], true);
        assert!(check("")[0].contains("keeps 8 bytes"));
        assert!(check("[[rule]]\nobject = \"/sm90_\"\nallow_stack = 8\nrequire = [\"HGMMA\"]").is_empty());
        let broken =
            check("[[rule]]\nallow_stack = 8\nrequire = [\"LDSM\"]\nforbid = [\"MOV\"]\nmax_registers = 168");
        assert_eq!(broken.len(), 3, "{broken:?}");
        let stale = check("[[rule]]\nallow_stack = 8\n[[rule]]\nkernel = \"gone\"");
        assert!(stale.len() == 1 && stale[0].contains("`gone`"), "{stale:?}");
    }

    #[test]
    fn the_rules_in_the_repository_parse() {
        toml::from_str::<Rules>(include_str!("../sass.toml")).unwrap();
    }
}

//! One `.cu` file: its command line, its inputs and the key under which its object is kept.

use crate::{
    Failure, Package,
    archs::{Archs, Folder},
    message, read,
    toolkit::Toolkit,
};
use std::{
    collections::HashMap,
    env, fmt, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

/// Numbers promise bits: nothing is contracted, and fast math is written where it is meant.
const FLAGS: [&str; 9] = [
    "-c",
    "-O3",
    "-std=c++17",
    "-lineinfo",
    "--expt-relaxed-constexpr",
    "-fmad=false",
    "-Xptxas=-v,--warn-on-spills",
    "-Xcompiler=-fPIC",
    // Without it, nvcc's process id ends up among the object's symbols.
    "--objdir-as-tempdir",
];

/// A `.cu` file in a folder that names its architecture.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    path: PathBuf,
    folder: Folder,
    name: String,
}

/// The `.cu` files under `cuda/`, sorted.
pub(crate) fn sources(cuda: &Path) -> Result<Vec<Source>, Failure> {
    let mut found = vec![];
    for folder in entries(cuda)?.into_iter().filter(|p| p.is_dir()) {
        let folder_name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for path in entries(&folder)?.into_iter().filter(|p| p.extension().is_some_and(|e| e == "cu")) {
            let Some(folder) = Folder::parse(&folder_name) else {
                let path = path.display();
                return Err(
                    format!("{path}: its folder names no architecture; use smxx, sm80 or sm90").into()
                );
            };
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let name = format!("{folder_name}_{stem}");
            found.push(Source { path, folder, name });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |e| Failure::from(format!("reading {}: {e}", folder.display()));
    fs::read_dir(folder).map_err(failed)?.map(|entry| entry.map(|e| e.path()).map_err(failed)).collect()
}

impl Source {
    /// What to compile for `archs`, if anything.
    pub(crate) fn for_archs(self, archs: &Archs) -> Option<Unit> {
        let gencode = archs.gencode(self.folder)?;
        Some(Unit { source: self.path, name: self.name, gencode })
    }
}

/// A source and the passes it is compiled in.
#[derive(Debug)]
pub(crate) struct Unit {
    source: PathBuf,
    /// Folder and stem: unique in the crate.
    name: String,
    gencode: Vec<String>,
}

/// A compiled unit.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) object: PathBuf,
    /// Every file that went into it, the source first.
    pub(crate) inputs: Vec<PathBuf>,
}

/// Compiles units, or finds that they need not be compiled.
#[derive(Debug)]
pub(crate) struct Compiler<'a> {
    toolkit: &'a Toolkit,
    package: &'a Package,
    flags: Vec<String>,
    /// Of variables that nvcc itself reads.
    environment: Vec<String>,
    /// Beside OUT_DIR, which is the first place to look.
    shared: Option<PathBuf>,
    /// Digests of files seen, as most units include the same headers.
    seen: Mutex<HashMap<PathBuf, Digest>>,
    strict: bool,
}

impl<'a> Compiler<'a> {
    pub(crate) fn new(toolkit: &'a Toolkit, package: &'a Package) -> Result<Self, Failure> {
        let mut flags: Vec<String> = FLAGS.map(String::from).to_vec();
        let strict = message::switch("LOCKSTEP_STRICT");
        if strict {
            flags.extend(["--Werror", "all-warnings"].map(String::from));
        }
        if message::switch("LOCKSTEP_CHECKED") {
            flags.push("-DLS_CHECKED".into());
        }
        if let Some(host) = message::variable("CXX") {
            flags.push(format!("-ccbin={host}"));
        }
        let nvcc_reads = ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"];
        let environment = nvcc_reads.map(|key| message::variable(key).unwrap_or_default()).to_vec();
        // No rerun-if: where an object came from does not change it.
        let shared = env::var_os("LOCKSTEP_CACHE_DIR").filter(|v| !v.is_empty()).map(PathBuf::from);
        Ok(Compiler { toolkit, package, flags, environment, shared, seen: Mutex::default(), strict })
    }

    /// The object of `unit`: this checkout's last one, one from the shared cache, or a new one.
    pub(crate) fn object(&self, unit: &Unit) -> Result<Object, Failure> {
        let folder = self.package.out.join("kernels").join(&unit.name);
        fs::create_dir_all(&folder).map_err(|e| format!("creating {}: {e}", folder.display()))?;
        let file = |extension: &str| folder.join(format!("{}.{extension}", unit.name));
        let (object, inputs_file, key_file, log_file) = (file("o"), file("inputs"), file("key"), file("log"));

        // The source and the command decide which inputs to look at; inputs decide the object.
        let stem = self.stem(unit)?;
        let known = || Some(self.parse_inputs(&fs::read_to_string(&inputs_file).ok()?));
        if let Some(inputs) = known().filter(|_| object.is_file()) {
            let key = self.key(&stem, &inputs);
            if key.is_some() && fs::read_to_string(&key_file).ok() == key {
                self.replay(&log_file);
                return Ok(Object { object, inputs });
            }
        }
        if let Some(shared) = &self.shared {
            let found = fs::read_to_string(shared.join(format!("{stem}.inputs"))).ok();
            let inputs = found.map(|text| self.parse_inputs(&text)).unwrap_or_default();
            if let Some(key) = self.key(&stem, &inputs).filter(|_| !inputs.is_empty()) {
                let (kept, log) = (shared.join(format!("{key}.o")), shared.join(format!("{key}.log")));
                if fs::copy(&log, &log_file).is_ok() && fs::copy(&kept, &object).is_ok() {
                    self.write(&inputs_file, &self.format_inputs(&inputs))?;
                    self.write(&key_file, &key)?;
                    self.replay(&log_file);
                    return Ok(Object { object, inputs });
                }
            }
        }

        let depfile = file("d");
        let log = self.compile(unit, &object, &depfile)?;
        let inputs = parse_depfile(&String::from_utf8_lossy(&read(&depfile)?));
        let key = self.key(&stem, &inputs).ok_or_else(|| {
            Failure::from(format!(
                "{}: an included file vanished while it was compiled",
                unit.source.display()
            ))
        })?;
        self.write(&log_file, &log)?;
        self.write(&inputs_file, &self.format_inputs(&inputs))?;
        self.write(&key_file, &key)?;
        if let Some(shared) = &self.shared {
            // A cache that cannot be written (full, read-only) costs time, not the build.
            let _ = fs::create_dir_all(shared);
            publish(&log_file, &shared.join(format!("{key}.log")));
            publish(&object, &shared.join(format!("{key}.o")));
            publish(&inputs_file, &shared.join(format!("{stem}.inputs")));
        }
        self.replay(&log_file);
        Ok(Object { object, inputs })
    }

    fn command(&self, unit: &Unit) -> Vec<String> {
        let mut arguments = self.flags.clone();
        arguments.extend(unit.gencode.iter().flat_map(|code| ["-gencode".into(), code.clone()]));
        arguments
    }

    fn compile(&self, unit: &Unit, object: &Path, depfile: &Path) -> Result<String, Failure> {
        // A cut-short compile must not leave an object that the old key vouches for.
        let _ = fs::remove_file(object.with_extension("key"));
        let mut command = Command::new(&self.toolkit.nvcc);
        command.args(self.command(unit));
        for (root, _) in self.package.include_roots() {
            command.arg("-I").arg(root);
        }
        command.arg("-MD").arg("-MF").arg(depfile).arg("-o").arg(object).arg(&unit.source);
        let nvcc = self.toolkit.nvcc.display();
        let output = command.output().map_err(|e| format!("{nvcc} does not start: {e}"))?;
        let log =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() {
            return Ok(log);
        }
        let source = unit.source.display();
        let noise = |line: &&str| !line.starts_with("ptxas info") && !line.starts_with("    0 bytes stack");
        let said: Vec<&str> = log.lines().filter(noise).collect();
        let hint = if self.strict { " (LOCKSTEP_STRICT=1 makes warnings errors)" } else { "" };
        Err(format!("nvcc failed on {source}{hint}: {}\n{}", output.status, said.join("\n")).into())
    }

    /// Shows what nvcc said: everything in the build script's output, warnings to the user.
    fn replay(&self, log: &Path) {
        let log = fs::read_to_string(log).unwrap_or_default();
        eprint!("{log}");
        for warning in log.lines().filter(|line| line.contains("warning")) {
            println!("cargo::warning={warning}");
        }
    }

    /// Digest of what is known before anything is compiled: version, command and source.
    fn stem(&self, unit: &Unit) -> Result<String, Failure> {
        let mut digest = Digest::default();
        digest.part(self.toolkit.version.as_bytes());
        for argument in self.command(unit) {
            digest.part(argument.as_bytes());
        }
        for value in &self.environment {
            digest.part(value.as_bytes());
        }
        digest.part(self.portable(&unit.source).as_bytes());
        digest.part(&read(&unit.source)?);
        Ok(digest.to_string())
    }

    /// `stem` and the contents of all inputs; `None` if one of them is gone.
    fn key(&self, stem: &str, inputs: &[PathBuf]) -> Option<String> {
        let mut digest = Digest::default();
        digest.part(stem.as_bytes());
        for input in inputs {
            let seen = self.seen.lock().expect("no job panics here").get(input).copied();
            let contents = match seen {
                Some(contents) => contents,
                None => {
                    let mut contents = Digest::default();
                    contents.update(&fs::read(input).ok()?);
                    self.seen.lock().expect("no job panics here").insert(input.clone(), contents);
                    contents
                }
            };
            digest.part(self.portable(input).as_bytes());
            digest.part(contents.to_string().as_bytes());
        }
        Some(digest.to_string())
    }

    /// A path as other checkouts may write it.
    fn portable(&self, path: &Path) -> String {
        for (root, name) in self.package.include_roots() {
            if let Ok(rest) = path.strip_prefix(&root) {
                return format!("{name}/{}", rest.display());
            }
        }
        path.display().to_string()
    }

    fn format_inputs(&self, inputs: &[PathBuf]) -> String {
        inputs.iter().map(|p| self.portable(p) + "\n").collect()
    }

    fn parse_inputs(&self, text: &str) -> Vec<PathBuf> {
        let roots = self.package.include_roots();
        let path = |line: &str| {
            let within = roots.iter().find_map(|(root, name)| Some((root, line.strip_prefix(name)?)));
            within.map_or_else(|| line.into(), |(root, rest)| root.join(rest.trim_start_matches('/')))
        };
        text.lines().map(path).collect()
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), Failure> {
        fs::write(path, text).map_err(|e| format!("writing {}: {e}", path.display()).into())
    }
}

/// Copies a file into a folder that other builds read and write at the same time.
fn publish(from: &Path, to: &Path) {
    let temporary = to.with_extension(format!("tmp{}", std::process::id()));
    if fs::copy(from, &temporary).and_then(|_| fs::rename(&temporary, to)).is_err() {
        let _ = fs::remove_file(&temporary);
    }
}

/// The prerequisites of a make rule; a space in a name is written `\ `.
fn parse_depfile(text: &str) -> Vec<PathBuf> {
    let text = text.replace("\\\r\n", " ").replace("\\\n", " ");
    // The target ends at a colon before white space, so that a colon inside a name does not count.
    let rule = text.split_once(": ").map_or("", |(_, prerequisites)| prerequisites);
    let mut inputs = vec![];
    let mut name = String::new();
    let mut characters = rule.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\\' if matches!(characters.peek(), Some(' ' | '#' | '\\')) => name.extend(characters.next()),
            '$' if characters.peek() == Some(&'$') => name.extend(characters.next()),
            c if c.is_whitespace() => {
                if !name.is_empty() {
                    inputs.push(PathBuf::from(std::mem::take(&mut name)));
                }
            }
            c => name.push(c),
        }
    }
    if !name.is_empty() {
        inputs.push(name.into());
    }
    inputs
}

/// FNV-1a of 128 bits: the same on every machine and release of Rust, which std's hasher is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest(u128);

impl Default for Digest {
    fn default() -> Self {
        Digest(0x6c62272e07bb014262b821756295c58d)
    }
}

impl Digest {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0000000001000000000000000000013b);
        }
    }

    /// Adds one of several parts: where it ends counts too.
    fn part(&mut self, bytes: &[u8]) {
        self.update(&(bytes.len() as u64).to_le_bytes());
        self.update(bytes);
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests;

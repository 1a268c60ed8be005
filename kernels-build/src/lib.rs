//! Compiles the `.cu` files of a crate with nvcc, from its build script.
//!
//! ```no_run
//! // build.rs
//! kernels_build::Kernels::new("kernels_conv").build();
//! ```
//!
//! The folder says what a file needs: `cuda/smxx` and `cuda/sm80` hold code for compute capability 8.0 and
//! everything after it, `cuda/sm90` holds code that uses Hopper's own instructions. `include/` is the crate's
//! public C interface; it is published as cargo metadata, so that a crate with a `links` key shows it to its
//! direct dependents. Sources include from the roots `include/`, `cuda/` and kernels-core's `include/`.
//!
//! # What it hands to the crate
//!
//! | name | meaning |
//! | --- | --- |
//! | `cfg(kernels_built)` | the crate's `.cu` files were compiled; without it there are no symbols to link |
//! | `cfg(kernels_sm80)` | portable code, with PTX of compute_80, is in the build |
//! | `cfg(kernels_sm90)` | Hopper code (`90a`) is in the build |
//! | `env!("LOCKSTEP_BUILT_ARCHS")` | the list, `80;90a`; empty without kernels |
//!
//! Lib, tests, benches and examples of the crate all see them. Nothing is compiled, and no toolkit is looked
//! for, unless the crate's feature `cuda` is on and it has a `.cu` file.
//!
//! # Environment
//!
//! | variable | effect |
//! | --- | --- |
//! | `NVCC`, `CUDA_HOME`, `CUDA_PATH` | where nvcc is; else `PATH`, `/usr/local/cuda`, what `cargo xtask toolkit` installed |
//! | `CXX` | the host compiler, handed to nvcc as `-ccbin` |
//! | `LOCKSTEP_CUDA_ARCHS` | `80;90a` by default; `native` asks the device of this machine |
//! | `LOCKSTEP_STUB=1` (and `DOCS_RS`) | the whole interface without kernels, on any machine |
//! | `LOCKSTEP_STRICT=1` | every nvcc warning is an error, a register spill among them |
//! | `LOCKSTEP_CHECKED=1` | defines `LS_CHECKED`: device asserts, and barriers in a form that racecheck can follow |
//! | `LOCKSTEP_CACHE_DIR` | a folder where checkouts and profiles share compiled objects |

use std::{
    env, fs,
    path::{Path, PathBuf},
};

mod archs;
mod message;
mod pool;
pub mod toolkit;
mod unit;

use archs::Archs;
use message::Failure;
use toolkit::Toolkit;
use unit::{Compiler, Unit};

/// The kernels of one crate.
#[derive(Clone, Debug)]
pub struct Kernels {
    name: String,
}

impl Kernels {
    /// The kernels of the crate that is being built; `name` becomes part of the archive's name.
    pub fn new(name: impl Into<String>) -> Self {
        Kernels { name: name.into() }
    }

    /// Compiles, archives, and tells cargo. Ends the build script with one message when it cannot.
    pub fn build(self) {
        if let Err(failure) = self.try_build() {
            failure.print();
            std::process::exit(1);
        }
    }

    fn try_build(&self) -> Result<(), Failure> {
        let package = Package::from_env()?;
        for cfg in ["kernels_built", "kernels_sm80", "kernels_sm90"] {
            println!("cargo::rustc-check-cfg=cfg({cfg})");
        }
        if let Some(include) = &package.include {
            println!("cargo::metadata=include={}", include.display());
        }

        let cuda = package.root.join("cuda");
        if !cuda.is_dir() {
            // No rerun-if line at all: cargo then watches the whole package, and sees the folder appear.
            println!("cargo::rustc-env=LOCKSTEP_BUILT_ARCHS=");
            return Ok(());
        }
        println!("cargo::rerun-if-changed=build.rs");
        println!("cargo::rerun-if-changed={}", cuda.display());
        let stub = message::switch("LOCKSTEP_STUB") | message::switch("DOCS_RS");
        let sources = unit::sources(&cuda)?;
        if env::var_os("CARGO_FEATURE_CUDA").is_none() || stub || sources.is_empty() {
            println!("cargo::rustc-env=LOCKSTEP_BUILT_ARCHS=");
            return Ok(());
        }
        if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os != "linux") {
            return Err(
                "feature `cuda` builds kernels on Linux only; LOCKSTEP_STUB=1 builds without them".into()
            );
        }

        let toolkit = Toolkit::find()?;
        println!("cargo::rerun-if-changed={}", toolkit.nvcc.display());
        let archs = Archs::from_env()?;
        let units: Vec<Unit> = sources.into_iter().filter_map(|s| s.for_archs(&archs)).collect();
        if units.is_empty() {
            // Every file is for an architecture that this build leaves out.
            println!("cargo::rustc-env=LOCKSTEP_BUILT_ARCHS=");
            return Ok(());
        }
        let compiler = Compiler::new(&toolkit, &package)?;
        let objects = pool::run(&units, |unit| compiler.object(unit))?;
        for header in objects.iter().flat_map(|o| &o.inputs).filter(|p| !toolkit.owns(p)) {
            println!("cargo::rerun-if-changed={}", header.display());
        }

        // For `xtask sass`: what is in the archive now, and not what a removed source left behind.
        let list: String = objects.iter().map(|o| format!("{}\n", o.object.display())).collect();
        let list_file = package.out.join("kernels/objects");
        fs::write(&list_file, list).map_err(|e| format!("writing {}: {e}", list_file.display()))?;

        // `pool::run` keeps the order of `units`, which is sorted: the archive does not depend on timing.
        cc::Build::new()
            .cpp(true)
            .objects(objects.iter().map(|o| &o.object))
            .try_compile(&format!("{}_cuda", self.name))
            .map_err(|e| Failure::from(format!("archiving the objects of {}: {e}", self.name)))?;
        println!("cargo::rustc-link-search=native={}", toolkit.library_dir()?.display());
        // Not bundled: one copy of the runtime for the program, not one for each kernel crate.
        println!("cargo::rustc-link-lib=static:-bundle=cudart_static");
        for library in ["rt", "pthread", "dl"] {
            println!("cargo::rustc-link-lib=dylib={library}");
        }

        println!("cargo::rustc-cfg=kernels_built");
        if archs.portable() {
            println!("cargo::rustc-cfg=kernels_sm80");
        }
        if archs.hopper() {
            println!("cargo::rustc-cfg=kernels_sm90");
        }
        println!("cargo::rustc-env=LOCKSTEP_BUILT_ARCHS={archs}");
        Ok(())
    }
}

/// Where the crate that is being built keeps its things.
#[derive(Debug)]
struct Package {
    root: PathBuf,
    out: PathBuf,
    include: Option<PathBuf>,
    /// The shared device headers; `None` for kernels-core itself, and for crates that do without.
    core_include: Option<PathBuf>,
}

impl Package {
    fn from_env() -> Result<Self, Failure> {
        let folder = |key: &str| {
            env::var_os(key).map(PathBuf::from).ok_or_else(|| {
                Failure::from(format!("{key} is not set: kernels-build runs in a build script"))
            })
        };
        let root = folder("CARGO_MANIFEST_DIR")?;
        let include = Some(root.join("include")).filter(|p| p.is_dir());
        let core_include = env::var_os("DEP_KERNELS_CORE_INCLUDE").map(PathBuf::from);
        Ok(Package { out: folder("OUT_DIR")?, include, core_include, root })
    }

    /// The include roots, and what stands for each in a key that checkouts share.
    fn include_roots(&self) -> Vec<(PathBuf, &'static str)> {
        let mut roots = vec![(self.root.join("cuda"), "<cuda>")];
        roots.extend(self.include.clone().map(|p| (p, "<include>")));
        roots.extend(self.core_include.clone().map(|p| (p, "<core>")));
        roots
    }
}

/// Reads a file; the error names it.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|e| format!("reading {}: {e}", path.display()).into())
}

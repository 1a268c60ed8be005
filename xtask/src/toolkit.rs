//! `xtask toolkit`: an nvcc for a machine that has none, without root.

use crate::workspace::{capture, run as run_command};
use anyhow::{Context, Result, bail};
use kernels_build::toolkit::{WHEELS, cached, cached_cuda_home};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Print the environment only; fail if nothing is installed.
    #[arg(long)]
    env: bool,
}

pub(crate) fn run(options: Options) -> Result<()> {
    let home = home()?;
    if !home.join("bin/nvcc").is_file() {
        if options.env {
            bail!("no toolkit at {}; run `cargo xtask toolkit`", home.display());
        }
        install()?;
        check(&home)?;
    }
    // Build scripts look here by themselves; this is for everything else.
    println!("export CUDA_HOME='{}'", home.display());
    println!("export LIBCLANG_PATH='{}'", libclang()?.display());
    println!("export PATH=\"$CUDA_HOME/bin:$PATH\"");
    Ok(())
}

/// The CUDA folder of the installed toolkit, whether or not it exists.
pub(crate) fn home() -> Result<PathBuf> {
    cached_cuda_home().context("no cache folder: set XDG_CACHE_HOME or HOME")
}

/// The folder of the installed libclang, whether or not it exists.
pub(crate) fn libclang() -> Result<PathBuf> {
    Ok(cached().context("no cache folder: set XDG_CACHE_HOME or HOME")?.join("clang/native"))
}

/// A program of the toolkit: the installed one, else one on PATH.
pub(crate) fn tool(name: &str) -> Result<Command> {
    let folder = home()?.join("bin");
    let mut command =
        if folder.join(name).is_file() { Command::new(folder.join(name)) } else { Command::new(name) };
    // cuobjdump starts nvdisasm by name.
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(env::split_paths(&path));
    command.env("PATH", env::join_paths(folders).context("PATH holds a name that cannot be joined")?);
    Ok(command)
}

/// Fills a folder of our own, then gives it its name in one step: others see all of it or nothing.
fn install() -> Result<()> {
    let target = cached().context("no cache folder: set XDG_CACHE_HOME or HOME")?;
    let parent = target.parent().context("the cache folder has no parent")?;
    fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    let staging = parent.join(format!(".toolkit-{}", std::process::id()));
    let _ = fs::remove_dir_all(&staging);
    eprintln!("installing {} wheels into {}", WHEELS.len(), target.display());
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"])
        .env("PIP_ROOT_USER_ACTION", "ignore")
        .arg("--target")
        .arg(&staging)
        .args(WHEELS)
        // Our standard output is for `eval`.
        .stdout(std::io::stderr());
    let installed =
        run_command(&mut pip).context("the toolkit comes from pip: it needs python3, pip and the network");
    if let Err(e) = installed {
        let _ = fs::remove_dir_all(&staging);
        return Err(e);
    }
    let complete = || target.join("nvidia/cu13/bin/nvcc").is_file();
    if !complete() {
        // What is left of a folder that somebody cleaned by halves.
        let _ = fs::remove_dir_all(&target);
    }
    if let Err(e) = fs::rename(&staging, &target) {
        let _ = fs::remove_dir_all(&staging);
        // Another process was quicker, and its folder is as good as ours.
        if !complete() {
            return Err(e).with_context(|| format!("naming {}", target.display()));
        }
    }
    Ok(())
}

/// Compiles an empty kernel for each architecture, so that a broken install is found here.
fn check(home: &Path) -> Result<()> {
    let folder = env::temp_dir().join(format!("lockstep-toolkit-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let source = folder.join("check.cu");
    fs::write(
        &source,
        "#include <cuda_bf16.h>\n__global__ void check(__nv_bfloat16* x) { x[0] += x[1]; }\n",
    )?;
    let mut nvcc = Command::new(home.join("bin/nvcc"));
    nvcc.args(["-c", "-std=c++17", "-gencode", "arch=compute_80,code=[sm_80,compute_80]"])
        .args(["-gencode", "arch=compute_90a,code=sm_90a", "-o"])
        .arg(folder.join("check.o"))
        .arg(&source);
    let compiled = capture(&mut nvcc).context("nvcc is installed but does not compile; is g++ installed?");
    let _ = fs::remove_dir_all(&folder);
    compiled.map(drop)
}

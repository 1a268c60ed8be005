//! Where nvcc is.

use crate::{Failure, message};
use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

/// The first release that knew compute_90a.
const FLOOR: (u32, u32) = (12, 0);

/// What `cargo xtask toolkit` installs, as pip names it.
///
/// cuobjdump's first wheel is 13.2; it reads objects of 13.0.
pub const WHEELS: [&str; 8] = [
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
    "nvidia-nvvm==13.0.*",
    "nvidia-cuda-cuobjdump==13.2.*",
    "nvidia-cuda-nvdisasm==13.*",
    "libclang==18.1.1",
];

/// The folder of the user's cache that holds [`WHEELS`], whether or not it exists yet.
///
/// Its name is a digest of the list, so that a checkout never picks up what another one asked for.
pub fn cached() -> Option<PathBuf> {
    let root = env::var_os("XDG_CACHE_HOME")
        .filter(|v| !v.is_empty())
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    let mut digest = crate::unit::Digest::default();
    for wheel in WHEELS {
        digest.update(wheel.as_bytes());
    }
    let digest = digest.to_string();
    Some(root.join("lockstep").join(format!("toolkit-{}", &digest[..12])))
}

/// The CUDA folder (`bin`, `include`, `lib`) inside [`cached`].
pub fn cached_cuda_home() -> Option<PathBuf> {
    cached().map(|cache| cache.join("nvidia/cu13"))
}

/// An nvcc of a usable version.
#[derive(Debug, Clone)]
pub struct Toolkit {
    /// The compiler.
    pub nvcc: PathBuf,
    /// What it says about itself; part of every object's key.
    pub version: String,
}

impl Toolkit {
    /// The first nvcc of `NVCC`, `CUDA_HOME`, `CUDA_PATH`, `PATH`, `/usr/local/cuda` and the user's cache.
    pub fn find() -> Result<Self, Failure> {
        let places = Places {
            nvcc: message::variable("NVCC").map(PathBuf::from),
            homes: ["CUDA_HOME", "CUDA_PATH"].map(|k| (k, message::variable(k).map(PathBuf::from))),
            // No rerun-if for PATH: it differs from shell to shell, and the file found is watched.
            path: env::var_os("PATH"),
            system: "/usr/local/cuda".into(),
            cached: cached_cuda_home(),
        };
        let nvcc = places.nvcc()?;
        let output = Command::new(&nvcc)
            .arg("--version")
            .output()
            .map_err(|e| format!("{} does not start: {e}; point NVCC at a working nvcc", nvcc.display()))?;
        let version = String::from_utf8_lossy(&output.stdout).into_owned();
        match parse_version(&version) {
            None => {
                Err(format!("{} --version names no release; point NVCC at nvcc itself", nvcc.display())
                    .into())
            }
            Some(found) if found < FLOOR => Err(format!(
                "{} is release {}.{}, kernels need {}.{}; {WAYS_OUT}",
                nvcc.display(),
                found.0,
                found.1,
                FLOOR.0,
                FLOOR.1
            )
            .into()),
            Some(_) => Ok(Toolkit { nvcc, version }),
        }
    }

    /// The folder of libcudart_static.a.
    pub fn library_dir(&self) -> Result<PathBuf, Failure> {
        let real = self.nvcc.canonicalize().unwrap_or_else(|_| self.nvcc.clone());
        let roots = [&self.nvcc, &real].into_iter().filter_map(|nvcc| nvcc.parent()?.parent());
        let target = format!("targets/{}-linux/lib", env::consts::ARCH);
        let system = format!("lib/{}-linux-gnu", env::consts::ARCH);
        let folders = ["lib64", "lib", &target, &system];
        let mut folders = roots.flat_map(|root| folders.map(|folder| root.join(folder)));
        folders.find(|folder| folder.join("libcudart_static.a").exists()).ok_or_else(|| {
            let nvcc = self.nvcc.display();
            format!("no libcudart_static.a beside {nvcc}; install the CUDA runtime's development files")
                .into()
        })
    }

    /// Whether a file came with the toolkit or with the system: its changes are not watched.
    pub(crate) fn owns(&self, file: &Path) -> bool {
        let root = self.nvcc.parent().and_then(Path::parent);
        file.starts_with("/usr") || root.is_some_and(|root| file.starts_with(root))
    }
}

const WAYS_OUT: &str = "either install a CUDA toolkit and point CUDA_HOME or NVCC at it, \
    or run `cargo xtask toolkit` (installs one for you, without root), \
    or set LOCKSTEP_STUB=1 to build without kernels";

/// Where to look, in this order.
#[derive(Debug, Default)]
struct Places {
    nvcc: Option<PathBuf>,
    homes: [(&'static str, Option<PathBuf>); 2],
    path: Option<OsString>,
    system: PathBuf,
    cached: Option<PathBuf>,
}

impl Places {
    fn nvcc(&self) -> Result<PathBuf, Failure> {
        if let Some(nvcc) = &self.nvcc {
            // A name without a folder is for PATH to resolve, as in `NVCC=nvcc-12.8`.
            if nvcc.components().count() == 1 {
                let found = self.on_path().map(|folder| folder.join(nvcc)).find(|p| p.is_file());
                return found
                    .ok_or_else(|| format!("NVCC={}: not on PATH; {WAYS_OUT}", nvcc.display()).into());
            }
            let missing = || format!("NVCC={}: no such file; {WAYS_OUT}", nvcc.display()).into();
            return Some(nvcc.clone()).filter(|p| p.is_file()).ok_or_else(missing);
        }
        let homes = self.homes.iter().filter_map(|(_, home)| home.as_ref()).map(|home| home.join("bin"));
        let last = [Some(self.system.join("bin")), self.cached.as_ref().map(|home| home.join("bin"))];
        let mut folders = homes.chain(self.on_path()).chain(last.into_iter().flatten());
        folders.find_map(|folder| Some(folder.join("nvcc")).filter(|p| p.is_file())).ok_or_else(|| {
            let unset = |(key, home): &(&str, Option<PathBuf>)| match home {
                Some(home) => format!("{key}={} has no bin/nvcc", home.display()),
                None => format!("{key} is not set"),
            };
            let homes: Vec<String> = self.homes.iter().map(unset).collect();
            format!("feature `cuda` needs nvcc, and there is none ({}): {WAYS_OUT}", homes.join(", ")).into()
        })
    }

    fn on_path(&self) -> impl Iterator<Item = PathBuf> {
        self.path.iter().flat_map(|path| env::split_paths(path).collect::<Vec<_>>())
    }
}

/// The release in nvcc's `release 13.0, V13.0.88`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (_, rest) = text.split_once("release ")?;
    let (major, rest) = rest.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn fake(root: &Path, name: &str) -> PathBuf {
        let home = root.join(name);
        fs::create_dir_all(home.join("bin")).unwrap();
        fs::write(home.join("bin/nvcc"), "").unwrap();
        home
    }

    #[test]
    fn places_are_searched_in_order() {
        let root = tempfile::tempdir().unwrap();
        let [own, home, path, system, cached] =
            ["own", "home", "path", "system", "cached"].map(|name| fake(root.path(), name));
        let mut places = Places {
            nvcc: Some(own.join("bin/nvcc")),
            homes: [("CUDA_HOME", Some(home.clone())), ("CUDA_PATH", None)],
            path: Some(path.join("bin").into()),
            system: system.clone(),
            cached: Some(cached.clone()),
        };
        assert_eq!(places.nvcc().unwrap(), own.join("bin/nvcc"));
        places.nvcc = None;
        assert_eq!(places.nvcc().unwrap(), home.join("bin/nvcc"));
        places.homes = [("CUDA_HOME", None), ("CUDA_PATH", Some(home.clone()))];
        assert_eq!(places.nvcc().unwrap(), home.join("bin/nvcc"));
        places.homes = Default::default();
        assert_eq!(places.nvcc().unwrap(), path.join("bin/nvcc"));
        places.path = None;
        assert_eq!(places.nvcc().unwrap(), system.join("bin/nvcc"));
        places.system = "/nonexistent".into();
        assert_eq!(places.nvcc().unwrap(), cached.join("bin/nvcc"));
    }

    #[test]
    fn a_bare_name_is_looked_up_on_path() {
        let root = tempfile::tempdir().unwrap();
        let bin = fake(root.path(), "cuda").join("bin");
        let places =
            Places { nvcc: Some("nvcc".into()), path: Some(bin.clone().into()), ..Places::default() };
        assert_eq!(places.nvcc().unwrap(), bin.join("nvcc"));
        let places = Places { nvcc: Some("nvcc-9".into()), path: Some(bin.into()), ..Places::default() };
        assert!(places.nvcc().unwrap_err().to_string().contains("NVCC=nvcc-9"));
    }

    #[test]
    fn without_a_toolkit_one_message_names_three_ways_out() {
        let homes = [("CUDA_HOME", Some("/nonexistent".into())), ("CUDA_PATH", None)];
        let failure = Places { homes, ..Places::default() }.nvcc().unwrap_err().to_string();
        for way in
            ["CUDA_HOME=/nonexistent has no bin/nvcc", "NVCC", "cargo xtask toolkit", "LOCKSTEP_STUB=1"]
        {
            assert!(failure.contains(way), "{failure}");
        }
        assert_eq!(failure.lines().count(), 1);
    }

    #[test]
    fn versions() {
        let text =
            "Cuda compilation tools, release 12.8, V12.8.93\nBuild cuda_12.8.r12.8/compiler.35583870_0";
        assert_eq!(parse_version(text), Some((12, 8)));
        assert_eq!(parse_version("clang version 18"), None);
        assert!((11, 8) < FLOOR && (12, 0) >= FLOOR && (13, 0) >= FLOOR);
    }

    #[test]
    fn the_runtime_is_found_in_either_library_folder() {
        let root = tempfile::tempdir().unwrap();
        let home = fake(root.path(), "cuda");
        let toolkit = Toolkit { nvcc: home.join("bin/nvcc"), version: String::new() };
        assert!(toolkit.library_dir().unwrap_err().to_string().contains("libcudart_static.a"));
        for folder in ["lib", "lib64"] {
            fs::create_dir_all(home.join(folder)).unwrap();
            fs::write(home.join(folder).join("libcudart_static.a"), "").unwrap();
            assert_eq!(toolkit.library_dir().unwrap(), home.join(folder));
        }
    }
}

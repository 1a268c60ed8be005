use super::*;
use std::os::unix::fs::PermissionsExt;

/// A crate with one source and one header, and an nvcc that counts its runs.
struct Crate {
    package: Package,
    toolkit: Toolkit,
}

impl Crate {
    fn new(root: &Path) -> Self {
        for folder in ["crate/cuda/smxx", "crate/cuda/sm90", "crate/include", "out", "cuda/bin"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("crate/cuda/smxx/add.cu"), "#include \"smxx/add.cuh\"").unwrap();
        fs::write(root.join("crate/cuda/smxx/add.cuh"), "int one;").unwrap();
        let nvcc = root.join("cuda/bin/nvcc");
        let script = "#!/bin/sh
            while [ $# -gt 0 ]; do case $1 in -MF) dep=$2;; -o) out=$2;; *.cu) src=$1;; esac; shift; done
            echo run >> $(dirname $0)/runs
            echo \"ptxas warning : spills\" >&2
            cat $src ${src}h > $out
            printf '%s : %s \\\\\\n  %sh\\n' $out $src $src > $dep\n";
        fs::write(&nvcc, script).unwrap();
        fs::set_permissions(&nvcc, fs::Permissions::from_mode(0o755)).unwrap();
        let package = Package {
            root: root.join("crate"),
            out: root.join("out"),
            include: Some(root.join("crate/include")),
            core_include: None,
        };
        Crate { package, toolkit: Toolkit { nvcc, version: "13.0".into() } }
    }

    fn build(&self, shared: Option<&Path>, flag: &str) -> Object {
        let unit = Unit {
            source: self.package.root.join("cuda/smxx/add.cu"),
            name: "smxx_add".into(),
            gencode: vec!["arch=compute_80,code=sm_80".into()],
        };
        let compiler = Compiler {
            toolkit: &self.toolkit,
            package: &self.package,
            flags: vec![flag.into()],
            environment: vec![],
            shared: shared.map(Path::to_owned),
            seen: Mutex::default(),
            strict: false,
        };
        compiler.object(&unit).unwrap()
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.toolkit.nvcc.with_file_name("runs")).unwrap_or_default().lines().count()
    }
}

#[test]
fn an_object_is_made_anew_when_a_header_or_a_flag_changes() {
    let root = tempfile::tempdir().unwrap();
    let mut a = Crate::new(root.path());
    let object = a.build(None, "-O3");
    assert_eq!(object.inputs.len(), 2);
    assert_eq!(a.runs(), 1);
    a.build(None, "-O3");
    assert_eq!(a.runs(), 1, "nothing changed");
    fs::write(root.path().join("crate/cuda/smxx/add.cuh"), "int two;").unwrap();
    a.build(None, "-O3");
    assert_eq!(a.runs(), 2, "a header changed");
    assert!(fs::read_to_string(object.object).unwrap().contains("int two;"));
    a.build(None, "-O2");
    assert_eq!(a.runs(), 3, "a flag changed");
    a.toolkit.version = "13.1".into();
    a.build(None, "-O2");
    assert_eq!(a.runs(), 4, "the compiler changed");
    fs::remove_file(root.path().join("out/kernels/smxx_add/smxx_add.o")).unwrap();
    a.build(None, "-O2");
    assert_eq!(a.runs(), 5, "the object is gone");
}

#[test]
fn checkouts_share_objects_when_contents_agree() {
    let (first, second, shared) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, b) = (Crate::new(first.path()), Crate::new(second.path()));
    a.build(Some(shared.path()), "-O3");
    let object = b.build(Some(shared.path()), "-O3");
    assert_eq!((a.runs(), b.runs()), (1, 0));
    assert!(object.inputs[1].starts_with(second.path()), "inputs are this checkout's own");
    fs::write(second.path().join("crate/cuda/smxx/add.cuh"), "int other;").unwrap();
    b.build(Some(shared.path()), "-O3");
    assert_eq!(b.runs(), 1, "contents differ");
}

#[test]
fn depfiles() {
    let text = "out/a.o : a.cu \\\n    /usr/include/x.h \\\n  with\\ space.h c++/12/b.h\n";
    let names = ["a.cu", "/usr/include/x.h", "with space.h", "c++/12/b.h"];
    assert_eq!(parse_depfile(text), names.map(PathBuf::from));
    assert!(parse_depfile("").is_empty());
}

#[test]
fn folders_without_files_and_files_without_folders() {
    let root = tempfile::tempdir().unwrap();
    let a = Crate::new(root.path());
    let cuda = a.package.root.join("cuda");
    let found = sources(&cuda).unwrap();
    assert_eq!(found.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["smxx_add"]);
    fs::create_dir(cuda.join("sm12")).unwrap();
    fs::write(cuda.join("sm12/x.cu"), "").unwrap();
    assert!(sources(&cuda).unwrap_err().to_string().contains("sm12/x.cu"));
}

#[test]
fn the_digest_is_fnv_1a() {
    let mut digest = Digest::default();
    digest.update(b"a");
    assert_eq!(digest.to_string(), "d228cb696f1a8caf78912b704e4a8964");
}

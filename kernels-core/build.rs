//! Compiles the crate's kernels where the feature `cuda` asks for them.

fn main() {
    kernels_build::Kernels::new("kernels_core").build();
}

//! Compiles `cuda/` where the feature `cuda` asks for it.

fn main() {
    kernels_build::Kernels::new("dependent").build();
}

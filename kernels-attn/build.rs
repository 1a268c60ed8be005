//! Compiles the CUDA half where the feature `cuda` asks for it.

fn main() {
    kernels_build::Kernels::new("kernels_attn").build();
}

fn main() {
    kernels_build::Kernels::new("kernels_core").build();
}

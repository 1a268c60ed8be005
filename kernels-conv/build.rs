fn main() {
    kernels_build::Kernels::new("kernels_conv").build();
}

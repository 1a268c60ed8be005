//! What only a GPU can show.
//!
//! Norm, rotary, the list of work and fault words are the bytes of the CPU. Attention is not: tensor cores add in
//! another order. It is compared with f64 and the bound of `accuracy::oracle`, whose figures for CUDA are in
//! `place.rs`: a score is off by at most `36 * head_dim / 16` roundoffs of fp32 (576 at 256) times `sum |q k|`, a
//! tile's sums by 288. Everything else is equality of bytes on the device alone: between paths, shares,
//! launches, batches and placements.

mod equal;
mod launches;
mod long;
mod raw;
mod refused;

pub use equal::{
    appended_bytes_equal_the_cpu, every_boundary_gives_the_bits_of_single_rows,
    every_grid_gives_the_same_bits, every_shape_runs_on_every_path, outputs_stay_within_the_derived_bound,
    probes_move_with_the_mask_on_every_grid, verified_rows_equal_prefilled_ones,
};
pub use launches::{overlapping_launches_wait, replays_equal_eager_runs, slow_producers_are_waited_for};
pub use long::{a_quarter_of_a_million_tokens, offsets_are_64_bits};
pub use refused::{faults_equal_the_cpus, lists_equal_the_cpu, what_has_no_kernel_is_refused};

use kernels_attn::{Grid, Path, Problem, Share, Verify};
use kernels_core::Arch;
use kernels_testkit::device::Device;

/// Sizes that every grid takes.
pub const SMALL: Problem = Problem {
    sequences: 1,
    rows: 1,
    max_rows: 4,
    q_heads: 4,
    kv_heads: 2,
    head_dim: 128,
    slots: 3,
    max_pages: 8,
    pages: 24,
    page_rows: 16,
    first_key: 0,
    window: None,
};

/// The paths that this build has on the device.
pub fn paths(device: &Device) -> Vec<Path> {
    let there = |path: &Path| {
        let grid = Grid { path: *path, share: Share::Sequence };
        Verify::plan_with(SMALL, &device.info, Some(grid)).is_ok()
    };
    let paths: Vec<Path> = [Path::Sm80, Path::Sm90].into_iter().filter(there).collect();
    let hopper = cfg!(kernels_sm90) && device.info.arch == Some(Arch::SM90);
    assert_eq!(paths.len(), if hopper { 2 } else { 1 }, "{paths:?}");
    paths
}

/// Every path with every share.
pub fn grids(device: &Device) -> Vec<Grid> {
    let shares = [Share::Leaf, Share::Group, Share::Sequence, Share::ByLengths];
    paths(device).into_iter().flat_map(|path| shares.map(|share| Grid { path, share })).collect()
}

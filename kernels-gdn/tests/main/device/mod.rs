//! What only a GPU can show.
//!
//! No operation differs between the backends: outputs, states, journals and fault words of CUDA are the bytes
//! of the CPU, whatever the grid. The arithmetic is specified to the bit, transcendental functions included,
//! so these comparisons have no tolerance.

mod division;
mod equal;
mod launches;
mod long;
mod memory;
mod order;
mod raw;
mod refused;
mod script;

pub use division::any_division_of_a_sequence_gives_the_same_bits;
pub use equal::{real_heads_equal_the_cpu, rounds_equal_the_cpu};
pub use launches::{overlapping_launches_wait, replays_equal_eager_runs, slow_producers_are_waited_for};
pub use long::a_hundred_thousand_tokens_equal_decoding;
pub use memory::{faults_equal_the_cpus, offsets_are_64_bits, states_are_stored_by_the_rule_only};
pub use order::blocks_may_meet_states_in_any_order;
pub use refused::what_has_no_kernel_is_refused;

use crate::place::{flushing, small};
use kernels_core::{Arch, Cuda};
use kernels_gdn::{Grid, Verify};
use kernels_testkit::device::Device;

/// Every grid that this build has on the device.
fn grids(device: &Device) -> Vec<Grid> {
    let p = flushing(small::<Cuda>(), 0);
    let all = [16, 32, 64].map(|tile| Grid::Generic { tile }).into_iter().chain([Grid::Hopper]);
    let grids: Vec<Grid> =
        all.filter(|grid| Verify::plan_with(p, &device.info, Some(*grid)).is_ok()).collect();
    let hopper = cfg!(kernels_sm90) && device.info.arch == Some(Arch::SM90);
    assert_eq!(grids.len(), if hopper { 4 } else { 3 }, "{grids:?}");
    grids
}

//! The fixed two-level tree over absolute key positions.
//!
//! Keys `0..TILE_KEYS` form tile 0, and so on; two tiles make a leaf, [`GROUP_LEAVES`] leaves a group.
//! Inside a leaf the tiles update one accumulator in ascending order (online softmax). Leaves are merged
//! into their group in ascending order, groups into the result in ascending order, all by the same
//! function. Where a tile, leaf or group begins depends on nothing but the position of its keys, so one
//! worker may own a leaf, a run of groups or everything: the bits are the same. A part without a visible
//! key changes nothing, so whoever starts at the first visible leaf gets the same bits too.

use std::ops::Range;

/// Keys of a tile: one step of the online softmax.
pub const TILE_KEYS: usize = 64;
/// Keys of a leaf: the smallest piece of work.
pub const LEAF_KEYS: usize = 128;
/// Leaves of a group.
pub const GROUP_LEAVES: usize = 16;
/// Keys of an MMA step, the unit in which weights are added.
pub const STEP_KEYS: usize = 16;

/// The leaves that hold some of `keys`.
pub fn leaves(keys: Range<usize>) -> Range<usize> {
    if keys.is_empty() { 0..0 } else { keys.start / LEAF_KEYS..keys.end.div_ceil(LEAF_KEYS) }
}

/// The tiles of a leaf: the positions of their first keys.
pub fn tiles(leaf: usize) -> impl Iterator<Item = usize> {
    (leaf * LEAF_KEYS..(leaf + 1) * LEAF_KEYS).step_by(TILE_KEYS)
}

/// Whether `leaf` is the last one of its group.
pub fn ends_group(leaf: usize) -> bool {
    (leaf + 1).is_multiple_of(GROUP_LEAVES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges() {
        assert_eq!(leaves(0..1), 0..1);
        assert_eq!(leaves(0..128), 0..1);
        assert_eq!(leaves(0..129), 0..2);
        assert_eq!(leaves(127..128), 0..1);
        assert_eq!(leaves(128..129), 1..2);
        assert_eq!(leaves(300..4097), 2..33);
        assert_eq!(leaves(5..5), 0..0);
        assert_eq!(tiles(3).collect::<Vec<_>>(), [384, 448]);
        assert!(ends_group(15) && !ends_group(16) && ends_group(31));
    }
}

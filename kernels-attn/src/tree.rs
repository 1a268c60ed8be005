//! The fixed tree over absolute key positions.
//!
//! Keys `0..TILE_KEYS` form tile 0, and so on; [`leaf_tiles`] tiles make a leaf, [`GROUP_TILES`] a group. A leaf
//! is an online softmax over its tiles: one accumulator, made smaller whenever the maximum grows. Leaves are
//! folded into their group and groups into the result, in ascending order and by the same rule. Where a tile,
//! leaf or group begins depends on nothing but the position of its keys and the number of K/V heads, so one
//! worker may own a leaf, a group or everything: the bits are the same. A tile without a visible key changes
//! nothing but the sign of a zero, which no output shows, so whoever starts at the first visible tile gets the
//! same bits too.

use std::ops::Range;

/// Keys of a tile: one step of the online softmax.
pub const TILE_KEYS: usize = 128;
/// Tiles of a group.
pub const GROUP_TILES: usize = 16;
/// Keys of an MMA step, the unit in which weights are added.
pub const STEP_KEYS: usize = 16;

/// Tiles of a leaf, the smallest piece of work. Fewer K/V heads make fewer pieces of a context, hence smaller
/// ones; it is no choice of a launch, for the bits depend on it.
pub const fn leaf_tiles(kv_heads: usize) -> usize {
    match kv_heads {
        0 | 1 => 1,
        2 | 3 => 2,
        _ => 4,
    }
}

/// The tiles that hold some of `keys`.
pub fn tiles(keys: Range<usize>) -> Range<usize> {
    if keys.is_empty() { 0..0 } else { keys.start / TILE_KEYS..keys.end.div_ceil(TILE_KEYS) }
}

/// Whether `tile` is the last one of its leaf of `leaf_tiles`.
pub fn ends_leaf(tile: usize, leaf_tiles: usize) -> bool {
    (tile + 1).is_multiple_of(leaf_tiles)
}

/// Whether `tile` is the last one of its group.
pub fn ends_group(tile: usize) -> bool {
    (tile + 1).is_multiple_of(GROUP_TILES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges() {
        assert_eq!(tiles(0..1), 0..1);
        assert_eq!(tiles(0..128), 0..1);
        assert_eq!(tiles(0..129), 0..2);
        assert_eq!(tiles(127..128), 0..1);
        assert_eq!(tiles(128..129), 1..2);
        assert_eq!(tiles(300..4097), 2..33);
        assert_eq!(tiles(5..5), 0..0);
        assert_eq!([1, 2, 3, 4, 5, 8, 64].map(leaf_tiles), [1, 2, 2, 4, 4, 4, 4]);
        assert!(ends_leaf(3, 4) && !ends_leaf(4, 4) && ends_leaf(5, 2) && ends_leaf(4, 1));
        assert!(ends_group(15) && !ends_group(16) && ends_group(31));
        for size in [1, 2, 4].map(leaf_tiles) {
            assert!((0..999).all(|tile| ends_leaf(tile, size) || !ends_group(tile)));
        }
    }
}

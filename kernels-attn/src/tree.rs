//! The fixed three-level tree over absolute key positions.
//!
//! Keys `0..LEAF_KEYS` form leaf 0, and so on; [`QUAD_LEAVES`] leaves make a quad, [`GROUP_LEAVES`] a group.
//! A leaf is one step: one maximum, the weights relative to it, their sum and the weighted sum of the values.
//! Leaves are folded into their quad, quads into their group and groups into the result, in ascending order
//! and all by the same rule. Where a leaf, quad or group begins depends on nothing but the position of its
//! keys, so one worker may own a leaf, a quad, a group or everything: the bits are the same. A part without a
//! visible key changes nothing, so whoever starts at the first visible leaf gets the same bits too.

use std::ops::Range;

/// Keys of a leaf: one step of the softmax, and the smallest piece of work.
pub const LEAF_KEYS: usize = 128;
/// Leaves of a quad.
pub const QUAD_LEAVES: usize = 4;
/// Leaves of a group.
pub const GROUP_LEAVES: usize = 16;
/// Keys of an MMA step, the unit in which weights are added.
pub const STEP_KEYS: usize = 16;

/// The leaves that hold some of `keys`.
pub fn leaves(keys: Range<usize>) -> Range<usize> {
    if keys.is_empty() { 0..0 } else { keys.start / LEAF_KEYS..keys.end.div_ceil(LEAF_KEYS) }
}

/// Whether `leaf` is the last one of its quad.
pub fn ends_quad(leaf: usize) -> bool {
    (leaf + 1).is_multiple_of(QUAD_LEAVES)
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
        assert!(ends_quad(3) && !ends_quad(4) && ends_quad(15));
        assert!(ends_group(15) && !ends_group(16) && ends_group(31));
        assert!((0..999).all(|leaf| ends_quad(leaf) || !ends_group(leaf)));
    }
}

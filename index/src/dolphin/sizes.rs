//! Sizes of Dolphin's nodes: which are chosen, and what they take. Pure.

use super::config::{Geometry, Types};
use crate::layout::range_leaf::RangeLayout;
use crate::layout::{Bytes, LayoutError, MAX_NODE_BYTES};
use crate::shell::algorithm::{self, Limits, Nodes};

/// The paper's leaves.
const LEAF_BYTES: usize = 1024;
/// A leaf that users have holds at least so many entries.
const SLOTS_MIN: usize = 8;
/// The first bytes that keys can have, and the empty key: none shares a leaf with another.
const FIRST_BYTES: u64 = 257;
/// Bytes of inner nodes for each leaf, from above: a slot, the share of a node that it may be alone in, and what was
/// left behind when nodes grew.
const INNER_BYTES_PER_LEAF: u64 = 192;
/// The root and the directory of lanes.
const ROOT_BYTES: u64 = 4096;

impl algorithm::Geometry for Geometry {
    /// Every entry takes room for the longest key and value.
    const USUAL_LIMITS: Limits = Limits { max_key: 32, max_value: 32 };

    /// Chooses the paper's 1 KiB for users, or larger leaves where few entries would fit.
    fn new(Limits { max_key, max_value }: Limits, nodes: Nodes) -> Self {
        let of = |types| Geometry { max_key, max_value, leaf_bytes: LEAF_BYTES, types };
        let (wanted, slots) = match nodes {
            Nodes::Least => (of(Types::Tiny), 2),
            Nodes::Tiny => (of(Types::Tiny), 4),
            Nodes::Usual => (of(Types::Lines), SLOTS_MIN),
        };
        let is_enough = |(_, leaf): (_, RangeLayout)| leaf.slots() >= slots;
        if nodes == Nodes::Usual && wanted.formats().is_ok_and(is_enough) {
            return wanted;
        }
        wanted.with_slots(slots).unwrap_or(Geometry { leaf_bytes: MAX_NODE_BYTES, ..wanted })
    }

    fn draw(mut choose: impl FnMut(usize) -> usize) -> Self {
        let max_key = [4, 8, 8, 12, 30, 70][choose(6)];
        let max_value = [8, 8, 8, 40, 100][choose(5)];
        let types = [Types::Tiny, Types::Tiny, Types::Lines][choose(3)];
        let usual = Geometry { max_key, max_value, leaf_bytes: LEAF_BYTES, types };
        let small = usual.with_slots(2 + choose(7)).expect("few slots fit into a leaf");
        if choose(4) == 0 && usual.formats().is_ok() { usual } else { small }
    }

    fn check(&self) -> Result<(), LayoutError> {
        self.formats().map(drop)
    }

    #[inline]
    fn limits(&self) -> Limits {
        Limits { max_key: self.max_key, max_value: self.max_value }
    }

    fn leaf_bytes(&self) -> usize {
        self.leaf_bytes
    }

    fn leaves(&self, keys: u64, fill: f64) -> u64 {
        let slots = self.formats().expect("sizes are asked of a geometry that was checked").1.slots();
        (keys as f64 / per_leaf(slots, fill)).ceil() as u64
    }

    fn bytes_for(&self, keys: u64, fill: f64) -> u64 {
        let leaves = self.leaves(keys, fill).saturating_add(FIRST_BYTES.min(keys));
        leaves.saturating_mul(self.leaf_bytes as u64 + INNER_BYTES_PER_LEAF).saturating_add(ROOT_BYTES)
    }

    fn bytes_in_hand(&self) -> u64 {
        let (types, _) = self.formats().expect("sizes are asked of a geometry that was checked");
        // The root is the largest inner node, and has a directory of lanes behind it. A separator may take inner nodes
        // for all its bytes.
        (ROOT_BYTES as usize + types.node_bytes(types.largest()) + self.max_key * types.node_bytes(1))
            .max(self.leaf_bytes) as u64
    }

    fn touching(&self, keys: &[Bytes]) -> Vec<Bytes> {
        keys.to_vec()
    }
}

/// Computes the entries of a leaf of so many slots.
pub(super) fn per_leaf(slots: usize, fill: f64) -> f64 {
    (slots as f64 * fill).floor().max(1.0)
}

#[cfg(test)]
mod tests {
    use crate::shell::algorithm::Geometry as _;

    use super::*;

    fn usual(max_key: usize, max_value: usize) -> Geometry {
        Geometry::new(Limits { max_key, max_value }, Nodes::Usual)
    }

    #[test]
    fn leaves_are_the_papers_where_enough_entries_fit() {
        assert_eq!((usual(8, 8).leaf_bytes(), usual(32, 32).leaf_bytes()), (1024, 1152));
        assert!(usual(255, 1024).leaf_bytes() > 8 * 1279);
        assert_eq!((usual(8, 8).leaves(100, 1.0), usual(8, 8).leaves(100, 0.5)), (2, 4));
        assert!((29_000_000..40_000_000).contains(&usual(8, 8).bytes_for(1_000_000, 0.8)));
    }

    #[test]
    fn sizes_that_make_no_leaf_are_refused() {
        for (max_key, max_value) in [(256, 8), (0, 8), (8, 1 << 20)] {
            assert!(usual(max_key, max_value).check().is_err(), "{max_key} {max_value}");
        }
        assert_eq!(Geometry::new(Geometry::USUAL_LIMITS, Nodes::Usual).check(), Ok(()));
    }

    #[test]
    fn what_is_drawn_makes_nodes() {
        for seed in 0..1000_usize {
            let mut rest = seed;
            let geometry = Geometry::draw(|n| {
                let choice = rest % n;
                rest /= n;
                choice
            });
            assert_eq!(geometry.check(), Ok(()), "{geometry:?}");
        }
    }
}

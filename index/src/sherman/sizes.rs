//! Sizes of Sherman's nodes: which are chosen, and what they take. Pure.

use super::config::{Geometry, NodeSize};
use crate::layout::{Bytes, InnerLayout, LayoutError, LeafLayout, MAX_NODE_BYTES};
use crate::shell::algorithm::{self, Limits, Nodes};

/// The paper's nodes.
const NODE_BYTES: usize = 1024;
const NODE_STEP: usize = 64;
/// A node that users have holds at least so many entries: with fewer, a tree is mostly nodes.
const SLOTS_MIN: usize = 8;
/// Fewer keys than an inner node has below it, where nodes are large.
const KEYS_PER_INNER_NODE: usize = 500;

impl algorithm::Geometry for Geometry {
    /// Every entry takes room for the longest key and value.
    const USUAL_LIMITS: Limits = Limits { max_key: 32, max_value: 32 };

    /// Chooses the paper's 1 KiB for users, or larger nodes where few entries would fit.
    fn new(Limits { max_key, max_value }: Limits, nodes: Nodes) -> Self {
        let of = |size| Geometry { max_key, max_value, size };
        match nodes {
            Nodes::Least => of(NodeSize::Slots { leaf: 2, inner: 3 }),
            Nodes::Tiny => of(NodeSize::Slots { leaf: 4, inner: 4 }),
            Nodes::Usual => {
                let sizes = (NODE_BYTES..=MAX_NODE_BYTES).step_by(NODE_STEP);
                let roomy = |geometry: &Geometry| {
                    geometry
                        .layouts()
                        .is_ok_and(|(leaf, inner)| leaf.slots() >= SLOTS_MIN && inner.slots() >= SLOTS_MIN)
                };
                let chosen = sizes.map(|bytes| of(NodeSize::Bytes(bytes))).find(roomy);
                chosen.unwrap_or_else(|| of(NodeSize::Bytes(MAX_NODE_BYTES)))
            }
        }
    }

    fn draw(mut choose: impl FnMut(usize) -> usize) -> Self {
        let max_key = [8, 8, 12, 30][choose(4)];
        let max_value = [8, 8, 40, 100][choose(4)];
        let slots = NodeSize::Slots { leaf: 2 + choose(7), inner: 3 + choose(6) };
        let bytes = NodeSize::Bytes([256, 1024][choose(2)]);
        let sized = Geometry { max_key, max_value, size: bytes };
        if choose(4) == 0 && sized.layouts().is_ok() { sized } else { Geometry { size: slots, ..sized } }
    }

    fn check(&self) -> Result<(), LayoutError> {
        self.layouts().map(drop)
    }

    #[inline]
    fn limits(&self) -> Limits {
        Limits { max_key: self.max_key, max_value: self.max_value }
    }

    fn leaf_bytes(&self) -> usize {
        checked(self).0.node_bytes()
    }

    fn leaves(&self, keys: u64, fill: f64) -> u64 {
        let slots = checked(self).0.slots();
        (keys as f64 / per_node(slots, fill)).ceil() as u64
    }

    fn bytes_for(&self, keys: u64, fill: f64) -> u64 {
        let (leaf, inner) = checked(self);
        let (slots, bytes) = (inner.slots(), leaf.node_bytes().max(inner.node_bytes()));
        // The levels above shrink by a factor each: a geometric series.
        let levels = 1.0 + 1.0 / (per_node(slots, fill) - 1.0).max(1.0);
        let nodes = (self.leaves(keys, fill) as f64 * levels).ceil() as u64 + 1;
        nodes.saturating_mul(bytes as u64)
    }

    fn bytes_in_hand(&self) -> u64 {
        let (leaf, inner) = checked(self);
        leaf.node_bytes().max(inner.node_bytes()) as u64
    }

    fn touching(&self, keys: &[Bytes]) -> Vec<Bytes> {
        let (leaf, inner) = checked(self);
        let below = leaf.slots() * inner.slots();
        keys.iter().step_by((below / 4).clamp(1, KEYS_PER_INNER_NODE)).cloned().collect()
    }
}

/// Yields the layouts of a geometry that was checked.
fn checked(geometry: &Geometry) -> (LeafLayout, InnerLayout) {
    geometry.layouts().expect("sizes are asked of a geometry that was checked")
}

/// Computes the entries of a node of so many slots.
fn per_node(slots: usize, fill: f64) -> f64 {
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
    fn nodes_grow_with_their_entries() {
        let bytes = |max_key, max_value| usual(max_key, max_value).leaf_bytes();
        assert_eq!((bytes(8, 8), bytes(8, 64)), (1024, 1024));
        let largest = bytes(1024, 4096);
        assert!(largest.is_multiple_of(64) && largest > 8 * 5120 && largest <= MAX_NODE_BYTES);
        assert_eq!(usual(8, 8), Geometry::default());
    }

    #[test]
    fn estimates_follow_the_fill() {
        let (full, half) = (usual(8, 8).bytes_for(1_000_000, 1.0), usual(8, 8).bytes_for(1_000_000, 0.5));
        assert!(full > 16_000_000 && half > full * 18 / 10 && half < full * 22 / 10, "{full} {half}");
    }

    #[test]
    fn sizes_that_make_no_node_are_refused() {
        for (max_key, max_value) in [(1 << 20, 8), (8, 1 << 20), (usize::MAX, 8)] {
            assert!(usual(max_key, max_value).check().is_err(), "{max_key} {max_value}");
        }
        assert_eq!(Geometry::new(Geometry::USUAL_LIMITS, Nodes::Usual).check(), Ok(()));
    }
}

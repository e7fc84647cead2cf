//! Sizes of SMART's nodes: which are chosen, and what they take. Pure.

use super::config::{Geometry, Types};
use crate::layout::radix::{LeafFormat, MAX_RADIX_KEY_BYTES, PREFIX_BYTES_MAX};
use crate::layout::{Bytes, LayoutError};
use crate::shell::algorithm::{self, Limits, Nodes};

/// Bytes of inner nodes per key. Every inner node has two children or more, so that n keys have at most n - 1 nodes of
/// two children, of 64 bytes; a node with more children takes less for each child beyond the first, even with the
/// smaller ones that it was before and that lie idle now. Random numbers come to about half of that. Not in it: nodes
/// that carry the rest of a common prefix of more than six bytes, which are few unless keys are long and alike.
const INNER_BYTES_PER_KEY: u64 = 64;

impl algorithm::Geometry for Geometry {
    /// Each entry takes its own room.
    const USUAL_LIMITS: Limits = Limits { max_key: MAX_RADIX_KEY_BYTES, max_value: 1024 };
    const LEAVES_DIFFER: bool = true;

    fn new(Limits { max_key, max_value }: Limits, nodes: Nodes) -> Self {
        let types = match nodes {
            Nodes::Least | Nodes::Tiny => Types::Tiny,
            Nodes::Usual => Types::Lines,
        };
        Geometry { max_key, max_value, types }
    }

    fn draw(mut choose: impl FnMut(usize) -> usize) -> Self {
        Geometry {
            max_key: [4, 8, 8, 12, 30, 255][choose(6)],
            max_value: [8, 40, 100, 300, 300][choose(5)],
            types: [Types::Tiny, Types::Tiny, Types::Tiny, Types::Lines][choose(4)],
        }
    }

    fn check(&self) -> Result<(), LayoutError> {
        self.formats().map(drop)
    }

    #[inline]
    fn limits(&self) -> Limits {
        Limits { max_key: self.max_key, max_value: self.max_value }
    }

    fn leaf_bytes(&self) -> usize {
        leaf(self).largest_bytes()
    }

    fn get_bytes(&self) -> usize {
        let leaf = leaf(self);
        leaf.lookup_bytes(leaf.class_for(self.max_key, self.max_value), self.max_key)
    }

    fn leaves(&self, keys: u64, _: f64) -> u64 {
        keys
    }

    fn bytes_for(&self, keys: u64, _: f64) -> u64 {
        keys.saturating_mul(self.leaf_bytes() as u64 + INNER_BYTES_PER_KEY)
    }

    fn bytes_in_hand(&self) -> u64 {
        let (types, leaf) = self.formats().expect("sizes are asked of a geometry that was checked");
        // A long common prefix takes nodes of its own.
        let nodes = self.max_key.div_ceil(PREFIX_BYTES_MAX + 1) + 1;
        (nodes * types.node_bytes(1) + leaf.largest_bytes()).max(types.node_bytes(types.largest())) as u64
    }

    fn touching(&self, keys: &[Bytes]) -> Vec<Bytes> {
        one_per_lowest_node(keys)
    }
}

/// Yields the leaf format of a geometry that was checked.
fn leaf(geometry: &Geometry) -> LeafFormat {
    geometry.formats().expect("sizes are asked of a geometry that was checked").1
}

/// Chooses one of the ascending `keys` for each lowest inner node.
fn one_per_lowest_node(keys: &[Bytes]) -> Vec<Bytes> {
    let shared = |a: &[u8], b: &[u8]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let mut chosen: Vec<Bytes> = Vec::new();
    let mut left = 0;
    let mut node: Option<&[u8]> = None;
    for (at, key) in keys.iter().enumerate() {
        let right = keys.get(at + 1).map_or(0, |next| shared(key, next));
        // A leaf hangs at the inner node where its key leaves the nearer of its neighbours.
        let lowest = &key[..left.max(right)];
        if node != Some(lowest) {
            chosen.push(key.clone());
            node = Some(lowest);
        }
        left = right;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use crate::shell::algorithm::Geometry as _;

    use super::*;

    fn usual(max_key: usize, max_value: usize) -> Geometry {
        Geometry::new(Limits { max_key, max_value }, Nodes::Usual)
    }

    #[test]
    fn leaves_hold_one_pair() {
        let sizes = |max_key, max_value| {
            let geometry = usual(max_key, max_value);
            (geometry.leaf_bytes(), geometry.get_bytes())
        };
        assert_eq!(sizes(8, 8), (64, 32));
        assert_eq!(sizes(32, 64), (128, 112));
        assert_eq!(sizes(8, 0), (64, 24));
        assert_eq!((usual(8, 8).leaves(1000, 0.8), usual(8, 8).bytes_for(1000, 0.8)), (1000, 128_000));
    }

    #[test]
    fn sizes_that_make_no_leaf_are_refused() {
        for (max_key, max_value) in [(256, 8), (0, 8), (8, 1 << 20)] {
            assert!(usual(max_key, max_value).check().is_err(), "{max_key} {max_value}");
        }
        assert_eq!(Geometry::new(Geometry::USUAL_LIMITS, Nodes::Usual).check(), Ok(()));
    }

    #[test]
    fn every_lowest_node_is_met_once() {
        let keys: Vec<Bytes> = ["aaa", "aab", "ab", "b", "cccx", "cccy", "cd"]
            .iter()
            .map(|key| Bytes::from_slice(key.as_bytes()))
            .collect();
        let chosen = one_per_lowest_node(&keys);
        // Below "aa", "a", the root, "ccc" and "c".
        let expected = ["aaa", "ab", "b", "cccx", "cd"].map(|key| Bytes::from_slice(key.as_bytes()));
        assert_eq!(chosen, expected);
        assert!(one_per_lowest_node(&[]).is_empty());
    }
}

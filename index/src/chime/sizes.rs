//! Sizes of CHIME's nodes: which are chosen, and what they take. Pure.

use super::config::{Geometry, PersistedConfig, Techniques};
use crate::layout::hopscotch::HopLayout;
use crate::layout::{Bytes, InnerLayout, LayoutError};
use crate::shell::algorithm::{self, Limits, Nodes};

/// The paper's leaves.
const SPAN: usize = 64;
const NEIGHBOURHOOD: usize = 8;
const DRAWN_BYTES_MAX: usize = 2048;
/// Fewer keys than an inner node has below it, where nodes are large.
const KEYS_PER_INNER_NODE: usize = 500;
/// The longest pair, in bytes of key and value, that lies in its leaf if the creator of a tree does not say: a get of
/// one that is longer would read more than Sherman's, a leaf of 1 KiB.
const INLINE_MAX: usize = 128;
/// The part of a leaf's slots that take keys before one finds no room, about (section 3.1.2): loads do not fill more.
const FILLED: f64 = 0.85;

impl algorithm::Geometry for Geometry {
    /// Every entry takes room for the longest key and value, up to 128 bytes of both.
    const USUAL_LIMITS: Limits = Limits { max_key: 32, max_value: 32 };

    /// Chooses the paper's 64 entries for users, or fewer where they would make a leaf too large.
    fn new(Limits { max_key, max_value }: Limits, nodes: Nodes) -> Self {
        let indirect = max_key.saturating_add(max_value) > INLINE_MAX;
        let of = |span, neighbourhood, inner| Geometry {
            max_key,
            max_value,
            span,
            neighbourhood,
            inner,
            indirect,
        };
        match nodes {
            Nodes::Least => of(2, 2, 3),
            Nodes::Tiny => of(4, 2, 4),
            Nodes::Usual => of(SPAN, NEIGHBOURHOOD, SPAN).that_fits(),
        }
    }

    fn draw(mut choose: impl FnMut(usize) -> usize) -> Self {
        let max_key = [8, 8, 12, 30][choose(4)];
        let max_value = [8, 8, 40, 100][choose(4)];
        let neighbourhood = [2, 2, 3, 4, 8][choose(5)];
        let span = neighbourhood * (1 + choose(4));
        let inner = 3 + choose(6);
        let drawn = Geometry { max_key, max_value, span, neighbourhood, inner, indirect: false };
        // Clusters of a swarm have chunks of a few nodes.
        if drawn.leaf_bytes() > DRAWN_BYTES_MAX { Geometry { span: neighbourhood, ..drawn } } else { drawn }
    }

    fn switches(&self) -> Vec<(&'static str, bool)> {
        vec![("indirect", self.indirect)]
    }

    fn set_switch(&mut self, name: &str, on: bool) -> bool {
        if name != "indirect" {
            return false;
        }
        if on != self.indirect {
            *self = Geometry { indirect: on, ..*self }.that_fits();
        }
        true
    }

    fn check(&self) -> Result<(), LayoutError> {
        if self.neighbourhood > HopLayout::REACH_MAX {
            return Err(LayoutError::Neighbourhood { entries: self.neighbourhood });
        }
        // The switches choose among formats, all of which have to be possible.
        for techniques in [Techniques::ALL, Techniques { hopscotch: false, ..Techniques::NONE }] {
            PersistedConfig::new(*self, techniques).layouts()?;
        }
        PersistedConfig::new(*self, Techniques { sibling_validation: false, ..Techniques::ALL })
            .layouts()
            .map(drop)
    }

    #[inline]
    fn limits(&self) -> Limits {
        Limits { max_key: self.max_key, max_value: self.max_value }
    }

    fn leaf_bytes(&self) -> usize {
        checked(self).0.node_bytes()
    }

    /// Yields those of a neighbourhood within the table, and of a block.
    fn get_bytes(&self) -> usize {
        let leaf = checked(self).0;
        let bytes = |home| leaf.neighbourhood(home).iter().map(|range| range.len()).sum();
        let neighbourhood: usize = (0..self.span).map(bytes).max().unwrap_or_default();
        neighbourhood + leaf.blocks().map_or(0, |blocks| blocks.value_part_max())
    }

    fn leaves(&self, keys: u64, fill: f64) -> u64 {
        (keys as f64 / per_node(self.span, fill.min(FILLED))).ceil() as u64
    }

    fn bytes_for(&self, keys: u64, fill: f64) -> u64 {
        let (leaf, inner) = checked(self);
        let bytes = leaf.node_bytes().max(inner.node_bytes());
        // The levels above shrink by a factor each: a geometric series.
        let levels = 1.0 + 1.0 / (per_node(self.inner, fill) - 1.0).max(1.0);
        let nodes = (self.leaves(keys, fill) as f64 * levels).ceil() as u64 + 1;
        let blocks = leaf.blocks().map_or(0, |blocks| keys.saturating_mul(blocks.largest_bytes() as u64));
        nodes.saturating_mul(bytes as u64).saturating_add(blocks)
    }

    fn bytes_in_hand(&self) -> u64 {
        let (leaf, inner) = checked(self);
        let block = leaf.blocks().map_or(0, |blocks| blocks.largest_bytes());
        leaf.node_bytes().max(inner.node_bytes()).max(block) as u64
    }

    fn touching(&self, keys: &[Bytes]) -> Vec<Bytes> {
        let below = self.span * self.inner;
        keys.iter().step_by((below / 4).clamp(1, KEYS_PER_INNER_NODE)).cloned().collect()
    }
}

impl Geometry {
    /// Yields the first of it and smaller ones that makes nodes: it itself if none does.
    fn that_fits(self) -> Self {
        let halves = |most: usize| (0..3).map(move |n| most >> n);
        let least = self.neighbourhood;
        let spans = halves(self.span).filter(move |span| span.is_multiple_of(least)).chain([least]);
        let inners = halves(self.inner);
        let mut all =
            spans.flat_map(|span| inners.clone().map(move |inner| Geometry { span, inner, ..self }));
        all.find(|geometry| algorithm::Geometry::check(geometry).is_ok()).unwrap_or(self)
    }
}

/// Yields the layouts of a geometry that was checked, with the default techniques.
fn checked(geometry: &Geometry) -> (HopLayout, InnerLayout) {
    let persisted = PersistedConfig::new(*geometry, Techniques::default());
    persisted.layouts().expect("sizes are asked of a geometry that was checked")
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
    fn leaves_have_fewer_entries_where_these_are_large() {
        assert_eq!(usual(8, 8), Geometry::default());
        assert_eq!((usual(8, 8).leaf_bytes(), usual(8, 8).get_bytes()), (1408, 184));
        let inline = |max_key, max_value| {
            let mut geometry = usual(max_key, max_value);
            assert!(geometry.set_switch("indirect", false) && !geometry.indirect);
            geometry
        };
        assert_eq!(inline(32, 256).span, 64);
        let largest = inline(1024, 4096);
        assert_eq!((largest.span, largest.check()), (8, Ok(())));
    }

    #[test]
    fn long_pairs_lie_outside_of_leaves() {
        for (max_key, max_value, indirect) in
            [(8, 8, false), (32, 96, false), (32, 97, true), (1024, 4096, true)]
        {
            let geometry = usual(max_key, max_value);
            assert_eq!((geometry.indirect, geometry.check()), (indirect, Ok(())), "{max_key} {max_value}");
        }
        // Of a leaf as for pairs of 8 + 8, but for the fences; and of a block.
        let long = usual(32, 256);
        assert_eq!((long.span, long.leaf_bytes(), long.get_bytes()), (64, 1472, 184 + 8 + 32 + 256));
        let mut inline = long;
        assert!(inline.set_switch("indirect", false) && inline.get_bytes() > 2000);
        assert!(long.bytes_for(1000, 0.8) < inline.bytes_for(1000, 0.8));
        assert!(usual(1024, 4096).get_bytes() < 5400);
    }

    #[test]
    fn estimates_follow_the_fill() {
        let (full, half) = (usual(8, 8).bytes_for(1_000_000, 1.0), usual(8, 8).bytes_for(1_000_000, 0.5));
        assert!(full > 16_000_000 && half > full * 15 / 10 && half < full * 20 / 10, "{full} {half}");
    }

    #[test]
    fn sizes_that_make_no_node_are_refused() {
        for (max_key, max_value) in [(1 << 20, 8), (8, 1 << 20), (usize::MAX, 8)] {
            assert!(usual(max_key, max_value).check().is_err(), "{max_key} {max_value}");
        }
        let neighbourhood = Geometry { neighbourhood: 17, span: 34, ..Geometry::default() };
        assert!(neighbourhood.check().is_err());
        assert!(Geometry { span: 17, ..neighbourhood }.check().is_err());
        assert!(Geometry { span: 60, ..Geometry::default() }.check().is_err());
    }
}

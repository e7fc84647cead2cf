//! What an index is made with: its kind, the sizes of its nodes, its switches. Of each kind, how much memory so many
//! keys take: an estimate from above, since it is better to ask for a little more than to fail after a minute of
//! loading. Knows no cluster.

use farwood::Switches;
use farwood::index::layout::radix::{LeafFormat, MAX_RADIX_KEY_BYTES};
use farwood::index::layout::{LayoutError, MAX_NODE_BYTES};
use farwood::index::sherman::{self, NodeSize};
use farwood::index::smart::{self, Types};
use farwood::lock::LockConfig;

use crate::error::CliError;
use crate::kind::Kind;

/// The paper's nodes of Sherman.
const NODE_BYTES: usize = 1024;
const NODE_STEP: usize = 64;
/// A node of Sherman holds at least so many entries: with fewer, a tree is mostly nodes.
const SLOTS_MIN: usize = 8;
/// Bytes of inner nodes of SMART per key. Every inner node has two children or more, so that n keys have at most n - 1
/// nodes of two children, of 64 bytes; a node with more children takes less for each child beyond the first, even with
/// the smaller ones that it was before and that lie idle now. Random numbers come to about half of that. Not in it:
/// nodes that carry the rest of a common prefix of more than six bytes, which are few unless keys are long and alike.
const INNER_BYTES_PER_KEY: u64 = 64;

/// What an index is made with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Recipe {
    Sherman(sherman::Geometry, sherman::Techniques),
    Smart(smart::Geometry, smart::Techniques),
}

/// What an index takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of its longest key.
    pub(crate) max_key: usize,
    /// Bytes of its longest value.
    pub(crate) max_value: usize,
}

impl From<sherman::Geometry> for Limits {
    fn from(sherman::Geometry { max_key, max_value, .. }: sherman::Geometry) -> Self {
        Limits { max_key, max_value }
    }
}

impl From<smart::Geometry> for Limits {
    fn from(smart::Geometry { max_key, max_value, .. }: smart::Geometry) -> Self {
        Limits { max_key, max_value }
    }
}

impl Limits {
    /// What a new index takes if nothing is said. With Sherman every entry takes room for the longest key and value,
    /// with SMART each entry takes its own.
    pub(crate) fn usual(kind: Kind) -> Self {
        match kind {
            Kind::Sherman => Limits { max_key: 32, max_value: 32 },
            Kind::Smart => Limits { max_key: MAX_RADIX_KEY_BYTES, max_value: 1024 },
        }
    }
}

impl Recipe {
    /// A recipe for keys and values up to these sizes, with the techniques that a kind has by itself.
    ///
    /// # Errors
    /// If no node is large enough.
    pub(crate) fn new(kind: Kind, limits: Limits) -> Result<Self, CliError> {
        let Limits { max_key, max_value } = limits;
        match kind {
            Kind::Sherman => Ok(Recipe::Sherman(sherman_geometry(limits)?, sherman::Techniques::default())),
            Kind::Smart => {
                let geometry = smart::Geometry { max_key, max_value, types: Types::Lines };
                leaf_format(&geometry).map_err(CliError::usage)?;
                Ok(Recipe::Smart(geometry, smart::Techniques::default()))
            }
        }
    }

    /// Sets the switches that `words` name.
    ///
    /// # Errors
    /// If one of them is no switch of the kind.
    pub(crate) fn switched(mut self, words: &[String]) -> Result<Self, CliError> {
        for (name, on) in self.kind().switches(words)? {
            let known = match &mut self {
                Recipe::Sherman(_, techniques) => techniques.set(name, on),
                Recipe::Smart(_, techniques) => techniques.set(name, on),
            };
            assert!(known, "{name} is a name of the kind's own");
        }
        Ok(self)
    }

    /// What remains of it where locks can be in on-chip memory, or cannot.
    pub(crate) fn effective(self, on_chip_possible: bool) -> Self {
        match self {
            Recipe::Sherman(geometry, techniques) => {
                Recipe::Sherman(geometry, techniques.effective(on_chip_possible))
            }
            Recipe::Smart(geometry, techniques) => Recipe::Smart(geometry, techniques.effective()),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Recipe::Sherman(..) => Kind::Sherman,
            Recipe::Smart(..) => Kind::Smart,
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        match *self {
            Recipe::Sherman(geometry, _) => geometry.into(),
            Recipe::Smart(geometry, _) => geometry.into(),
        }
    }

    /// The switches by name.
    pub(crate) fn techniques(&self) -> Vec<(&'static str, bool)> {
        match self {
            Recipe::Sherman(_, techniques) => techniques.list(),
            Recipe::Smart(_, techniques) => techniques.list(),
        }
    }

    /// Whether locks are to be in on-chip memory.
    pub(crate) fn wants_on_chip(&self) -> bool {
        matches!(self, Recipe::Sherman(_, sherman::Techniques { on_chip: true, .. }))
    }

    /// The locks that the index uses, and whether it releases them together with its last WRITE. For SMART those that
    /// stand in for locks in leaves.
    pub(crate) fn locks(&self) -> (LockConfig, bool) {
        match self {
            Recipe::Sherman(_, techniques) => {
                let config = LockConfig {
                    hierarchical: techniques.hierarchical,
                    handover: techniques.handover,
                    on_chip: techniques.on_chip,
                    ..LockConfig::default()
                };
                (config, techniques.combine)
            }
            Recipe::Smart(..) => (LockConfig { on_chip: false, ..LockConfig::default() }, true),
        }
    }

    /// Bytes of a leaf on a memory server; with SMART of a leaf with the longest key and value.
    pub(crate) fn leaf_bytes(&self) -> usize {
        match self {
            Recipe::Sherman(geometry, _) => node_bytes(geometry),
            Recipe::Smart(geometry, _) => checked_format(geometry).largest_bytes(),
        }
    }

    /// Bytes that a get reads, of a key of the longest there are.
    pub(crate) fn get_bytes(&self) -> usize {
        match self {
            Recipe::Sherman(geometry, _) => node_bytes(geometry),
            Recipe::Smart(geometry, _) => {
                let format = checked_format(geometry);
                format.lookup_bytes(format.class_for(geometry.max_key, geometry.max_value), geometry.max_key)
            }
        }
    }

    /// Leaves for so many keys, in which Sherman's are that full.
    pub(crate) fn leaves(&self, keys: u64, fill: f64) -> u64 {
        match self {
            Recipe::Sherman(geometry, _) => {
                let slots = geometry.layouts().map_or(0, |(leaf, _)| leaf.slots());
                (keys as f64 / per_node(slots, fill)).ceil() as u64
            }
            Recipe::Smart(..) => keys,
        }
    }

    /// Bytes on the memory servers for so many keys, from above.
    pub(crate) fn bytes_for(&self, keys: u64, fill: f64) -> u64 {
        let leaves = self.leaves(keys, fill);
        match self {
            Recipe::Sherman(geometry, _) => {
                let slots = geometry.layouts().map_or(0, |(_, inner)| inner.slots());
                // The levels above shrink by a factor each: a geometric series.
                let levels = 1.0 + 1.0 / (per_node(slots, fill) - 1.0).max(1.0);
                let nodes = (leaves as f64 * levels).ceil() as u64 + 1;
                nodes.saturating_mul(node_bytes(geometry) as u64)
            }
            Recipe::Smart(..) => leaves.saturating_mul(self.leaf_bytes() as u64 + INNER_BYTES_PER_KEY),
        }
    }
}

/// Entries of a node of so many slots.
fn per_node(slots: usize, fill: f64) -> f64 {
    (slots as f64 * fill).floor().max(1.0)
}

fn node_bytes(geometry: &sherman::Geometry) -> usize {
    match geometry.size {
        NodeSize::Bytes(bytes) => bytes,
        NodeSize::Slots { .. } => unreachable!("recipes choose bytes"),
    }
}

fn leaf_format(geometry: &smart::Geometry) -> Result<LeafFormat, LayoutError> {
    LeafFormat::new(geometry.max_key, geometry.max_value)
}

fn checked_format(geometry: &smart::Geometry) -> LeafFormat {
    leaf_format(geometry).expect("recipes are made of sizes that were checked")
}

/// Sherman's nodes of 1 KiB, or larger ones where few entries would fit.
fn sherman_geometry(Limits { max_key, max_value }: Limits) -> Result<sherman::Geometry, CliError> {
    let of = |bytes| sherman::Geometry { max_key, max_value, size: NodeSize::Bytes(bytes) };
    let roomy = |geometry: &sherman::Geometry| {
        geometry.layouts().is_ok_and(|(leaf, inner)| leaf.slots() >= SLOTS_MIN && inner.slots() >= SLOTS_MIN)
    };
    let sizes = (NODE_BYTES..=MAX_NODE_BYTES).step_by(NODE_STEP);
    let chosen = sizes.map(of).find(roomy).unwrap_or_else(|| of(MAX_NODE_BYTES));
    match chosen.layouts() {
        Ok(_) => Ok(chosen),
        Err(error) => Err(CliError::usage(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(kind: Kind, max_key: usize, max_value: usize) -> Recipe {
        Recipe::new(kind, Limits { max_key, max_value }).unwrap()
    }

    #[test]
    fn nodes_of_sherman_grow_with_their_entries() {
        let bytes = |max_key, max_value| recipe(Kind::Sherman, max_key, max_value).leaf_bytes();
        assert_eq!((bytes(8, 8), bytes(8, 64)), (1024, 1024));
        let largest = bytes(1024, 4096);
        assert!(largest.is_multiple_of(64) && largest > 8 * 5120 && largest <= MAX_NODE_BYTES);
        assert_eq!(recipe(Kind::Sherman, 8, 8), Recipe::Sherman(Default::default(), Default::default()));
    }

    #[test]
    fn leaves_of_smart_hold_one_pair() {
        let sizes = |max_key, max_value| {
            let recipe = recipe(Kind::Smart, max_key, max_value);
            (recipe.leaf_bytes(), recipe.get_bytes())
        };
        assert_eq!(sizes(8, 8), (64, 32));
        assert_eq!(sizes(32, 64), (128, 112));
        assert_eq!(sizes(8, 0), (64, 24));
        let smart = recipe(Kind::Smart, 8, 8);
        assert_eq!((smart.leaves(1000, 0.8), smart.bytes_for(1000, 0.8)), (1000, 128_000));
    }

    #[test]
    fn estimates_of_sherman_follow_the_fill() {
        let sherman = recipe(Kind::Sherman, 8, 8);
        let (full, half) = (sherman.bytes_for(1_000_000, 1.0), sherman.bytes_for(1_000_000, 0.5));
        assert!(full > 16_000_000 && half > full * 18 / 10 && half < full * 22 / 10, "{full} {half}");
    }

    #[test]
    fn sizes_that_make_no_node_are_refused() {
        for (kind, max_key, max_value) in [
            (Kind::Sherman, 1 << 20, 8),
            (Kind::Sherman, 8, 1 << 20),
            (Kind::Sherman, usize::MAX, 8),
            (Kind::Smart, 256, 8),
            (Kind::Smart, 0, 8),
            (Kind::Smart, 8, 1 << 20),
        ] {
            let error = Recipe::new(kind, Limits { max_key, max_value }).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{kind:?} {max_key} {max_value}");
        }
        for kind in Kind::ALL {
            assert!(Recipe::new(kind, Limits::usual(kind)).is_ok());
        }
    }

    #[test]
    fn switches_are_set_by_name() {
        let words = ["fused=off".to_owned(), "combining=on".to_owned()];
        for kind in Kind::ALL {
            let switched = recipe(kind, 8, 8).switched(&words).unwrap();
            let of = |name| switched.techniques().into_iter().find(|(known, _)| *known == name).unwrap().1;
            assert!(!of("fused") && of("combining"), "{kind:?}");
        }
        assert!(recipe(Kind::Smart, 8, 8).switched(&["two_level=on".to_owned()]).is_err());
    }
}

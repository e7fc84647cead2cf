//! Settings of a Dolphin tree: those that all compute nodes agree on, which the catalog keeps, and the switches of one
//! of them.

use serde::{Deserialize, Serialize};

use crate::layout::radix::{MAX_RADIX_KEY_BYTES, NodeTypes};
use crate::layout::range_leaf::RangeLayout;
use crate::layout::{LINE_BYTES, LayoutError};
pub use crate::smart::Types;
use crate::techniques;

techniques! {
    /// The techniques of the paper (section III), ours, and two of SMART's, as switches.
    ///
    /// Each compute node chooses for itself, but for `deep_special`, which says what a leaf may hold: it is decided
    /// when a tree is created and kept in the catalog. Opening the tree with another value is no error and changes
    /// nothing.
    pub struct Techniques {
        /// Updates share a leaf's lock. Off: a client has it alone while it updates.
        pub shared_updates: bool = true,
        /// An operation that came to a leaf which ends before its key, since it was split, goes on from there (section
        /// III-B): over the leaf's link to the right, which the paper's reverse pointer to the parent is with us, and
        /// the second time from the deepest cached node that has not led there. Off: it begins at the root, by READs.
        pub backtracking: bool = true,
        /// The paper's leaves: the keys of one share all but their last bytes, so only the last inner nodes, its
        /// "special" ones, lead several bytes to one leaf (section III-A). Off, as by default: a leaf has whatever keys
        /// are in its range. For research, and dense integers: of 64-bit keys at random each would have a leaf of
        /// its own.
        pub deep_special: bool = false,
        /// The CAS that takes a lock alone and the READ of its node in one chain. Off: one after the other, so that an
        /// insert takes three round trips, as in the paper. (What shares a lock is one chain in the paper, too.)
        pub fused: bool = true,
        /// Read delegation, which is SMART's (its section 4.2): gets of one key that wait for each other share one
        /// READ.
        pub delegation: bool = false,
        /// Write combining, likewise: puts, or updates, of one key that wait for each other become one.
        pub combining: bool = false,
    }
}

impl Techniques {
    /// Yields what is in effect on a tree with this configuration.
    pub(super) fn on(self, persisted: &PersistedConfig) -> Self {
        Techniques { deep_special: persisted.deep_special, ..self }
    }
}

/// Settings that all compute nodes that work on a tree have to agree on: decided when it is created, kept in the
/// catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PersistedConfig {
    pub(super) geometry: Geometry,
    /// True if the keys of a leaf share all but their last bytes. Not written if not, as before there was a choice.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) deep_special: bool,
}

/// Sizes of a tree's nodes, kept in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Geometry {
    /// The longest key, in bytes: 255 at most, since nodes keep key positions in one byte.
    pub max_key: usize,
    /// The longest value, in bytes.
    pub max_value: usize,
    /// Bytes of a leaf, a multiple of 64. The paper has 1024.
    pub leaf_bytes: usize,
    /// The types of inner nodes that there are: here only those that fill their room.
    pub types: Types,
}

impl Geometry {
    /// Presence words of a leaf's lock: bits for so many shards times 64 ([`farwood_lock::shared`]).
    const PRESENCE_WORDS: usize = 1;

    /// Makes the geometry whose leaves are the smallest with that many slots, if there is one.
    pub(super) fn with_slots(self, slots: usize) -> Option<Self> {
        let sizes = (LINE_BYTES..=crate::layout::MAX_NODE_BYTES).step_by(LINE_BYTES);
        let mut geometries = sizes.map(|leaf_bytes| Geometry { leaf_bytes, ..self });
        geometries.find(|geometry| geometry.formats().is_ok_and(|(_, leaf)| leaf.slots() >= slots))
    }

    /// Yields the formats of inner nodes and leaves.
    ///
    /// # Errors
    /// [`LayoutError`] says which size to change.
    pub(super) fn formats(&self) -> Result<(&'static NodeTypes, RangeLayout), LayoutError> {
        if self.max_key > MAX_RADIX_KEY_BYTES {
            return Err(LayoutError::RadixKeyBytes { max_key: self.max_key });
        }
        let types = match self.types {
            Types::Lines => &NodeTypes::LINES,
            Types::Tiny => &NodeTypes::TINY,
        };
        let leaf = RangeLayout::new(self.leaf_bytes, Self::PRESENCE_WORDS, self.max_key, self.max_value)?;
        Ok((types, leaf))
    }
}

impl Default for Geometry {
    fn default() -> Self {
        Geometry { max_key: 8, max_value: 8, leaf_bytes: 1024, types: Types::Lines }
    }
}

#[cfg(test)]
mod tests {
    use super::super::DolphinAlgorithm;
    use super::*;
    use crate::shell::handle::persisted_of;

    #[test]
    fn what_is_agreed_survives_the_catalog() {
        let geometry = Geometry { max_key: 200, max_value: 64, leaf_bytes: 4096, types: Types::Tiny };
        for (deep_special, more) in [(false, ""), (true, r#","deep_special":true"#)] {
            let persisted = PersistedConfig { geometry, deep_special };
            let geometry = r#"{"max_key":200,"max_value":64,"leaf_bytes":4096,"types":"Tiny"}"#;
            let bytes = format!(r#"{{"geometry":{geometry}{more}}}"#);
            assert_eq!(serde_json::to_string(&persisted).unwrap(), bytes);
            assert_eq!(persisted_of::<DolphinAlgorithm>(bytes.as_bytes()), Ok(persisted));
        }
    }

    #[test]
    fn the_recorded_decision_wins_over_the_switches() {
        for deep_special in [false, true] {
            let persisted = PersistedConfig { geometry: Geometry::default(), deep_special };
            let asked = Techniques { deep_special: !deep_special, ..Techniques::NONE };
            assert_eq!(asked.on(&persisted), Techniques { deep_special, ..Techniques::NONE });
        }
    }

    #[test]
    fn a_configuration_that_makes_no_sense_is_an_error() {
        let geometry_only = serde_json::to_vec(&Geometry::default()).unwrap();
        for (bytes, part) in [(&b"{"[..], "EOF"), (&geometry_only, "missing field")] {
            let error = persisted_of::<DolphinAlgorithm>(bytes).unwrap_err().to_string();
            assert!(error.contains("unreadable") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn leaves_are_as_small_as_slots_allow() {
        let sizes = |slots| Geometry::default().with_slots(slots).map(|geometry| geometry.leaf_bytes);
        assert_eq!((sizes(2), sizes(50), sizes(10_000)), (Some(192), Some(1024), None));
    }
}

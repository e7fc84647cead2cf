//! Settings of a SMART tree: those that all compute nodes agree on, which the catalog keeps, and the switches of one of
//! them.

use serde::{Deserialize, Serialize};

use crate::layout::LayoutError;
use crate::layout::radix::{LeafFormat, NodeTypes};
use crate::techniques;

techniques! {
    /// The techniques of the paper (section 4), and ours, as switches. All off is the paper's baseline: ART with node
    /// locks and leaves that are replaced.
    ///
    /// Each compute node chooses for itself, but for `in_place_leaves` and `rear_lock`: they say what protects a leaf,
    /// so all have to agree. They are decided when a tree is created and kept in the catalog; opening the tree with
    /// other values is no error and changes nothing.
    pub struct Techniques {
        /// Lock-free inner nodes (section 4.1.1). Off: a client locks an inner node before it changes it (ROWEX).
        pub lock_free_nodes: bool = true,
        /// Leaves that are updated in place, under a lock (section 4.1.1). Off: every update writes a new leaf.
        pub in_place_leaves: bool = true,
        /// The lock in the leaf itself, released by the WRITE that updates it (section 4.1.1). Off: the lock is one of
        /// the global lock table and released in a round trip of its own. Needs `in_place_leaves`.
        pub rear_lock: bool = true,
        /// Read delegation (section 4.2): gets of one key that wait for each other share one READ.
        pub delegation: bool = true,
        /// Write combining (section 4.2): puts, or updates, of one key that wait for each other become one.
        pub combining: bool = true,
        /// The lock's CAS and the leaf's READ in one chain, a new leaf and the CAS that publishes it likewise. Not in
        /// the paper.
        pub fused: bool = true,
    }
}

impl Techniques {
    /// Yields what is in effect when all these are asked for: a lock in a leaf needs leaves that stay.
    ///
    /// ```
    /// # use farwood_index::smart::Techniques;
    /// let techniques = Techniques { in_place_leaves: false, ..Techniques::ALL }.effective();
    /// assert!(!techniques.rear_lock);
    /// ```
    pub fn effective(mut self) -> Self {
        self.rear_lock &= self.in_place_leaves;
        self
    }

    /// Yields what is in effect on a tree whose leaves are as `persisted` says.
    pub(super) fn on(self, persisted: &PersistedConfig) -> Self {
        Techniques { in_place_leaves: persisted.in_place_leaves, rear_lock: persisted.rear_lock, ..self }
    }
}

/// Settings that all compute nodes that work on a tree have to agree on: decided when it is created, kept in the
/// catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PersistedConfig {
    pub(super) geometry: Geometry,
    /// True if leaves are updated in place.
    pub(super) in_place_leaves: bool,
    /// True if the lock of a leaf is in the leaf.
    pub(super) rear_lock: bool,
}

impl PersistedConfig {
    /// Decides what a tree records that is created with these techniques.
    pub(super) fn new(geometry: Geometry, techniques: Techniques) -> Self {
        let Techniques { in_place_leaves, rear_lock, .. } = techniques.effective();
        PersistedConfig { geometry, in_place_leaves, rear_lock }
    }
}

/// Sizes of a tree's nodes, kept in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Geometry {
    /// The longest key, in bytes: 255 at most, since nodes keep key positions in one byte.
    pub max_key: usize,
    /// The longest value, in bytes.
    pub max_value: usize,
    /// The types of inner nodes that there are.
    pub types: Types,
}

/// The types of inner nodes that a tree has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Types {
    /// By lines of 64 bytes: from 6 slots to 262, of which a node needs 257.
    Lines,
    /// From 2 slots on, in small steps, so that in tests nodes switch type and move all the time.
    Tiny,
}

impl Geometry {
    /// Yields the formats of inner nodes and leaves.
    ///
    /// # Errors
    /// [`LayoutError`] says which size to change.
    pub(super) fn formats(&self) -> Result<(&'static NodeTypes, LeafFormat), LayoutError> {
        let types = match self.types {
            Types::Lines => &NodeTypes::LINES,
            Types::Tiny => &NodeTypes::TINY,
        };
        Ok((types, LeafFormat::new(self.max_key, self.max_value)?))
    }
}

impl Default for Geometry {
    fn default() -> Self {
        Geometry { max_key: 8, max_value: 8, types: Types::Lines }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SmartAlgorithm;
    use super::*;
    use crate::shell::handle::persisted_of;

    #[test]
    fn what_is_agreed_survives_the_catalog() {
        let geometry = Geometry { max_key: 200, max_value: 64, types: Types::Tiny };
        for (techniques, on) in [(Techniques::ALL, true), (Techniques::NONE, false)] {
            let persisted = PersistedConfig::new(geometry, techniques);
            let geometry = r#"{"max_key":200,"max_value":64,"types":"Tiny"}"#;
            let bytes = format!(r#"{{"geometry":{geometry},"in_place_leaves":{on},"rear_lock":{on}}}"#);
            assert_eq!(serde_json::to_string(&persisted).unwrap(), bytes);
            assert_eq!(persisted_of::<SmartAlgorithm>(bytes.as_bytes()), Ok(persisted));
        }
    }

    #[test]
    fn the_recorded_decision_wins_over_the_switches() {
        let persisted = PersistedConfig::new(Geometry::default(), Techniques::NONE);
        let techniques = Techniques::ALL.on(&persisted);
        assert_eq!(
            (techniques.in_place_leaves, techniques.rear_lock, techniques.fused),
            (false, false, true)
        );
        let only_rear = Techniques { rear_lock: true, ..Techniques::NONE };
        assert!(!PersistedConfig::new(Geometry::default(), only_rear).rear_lock);
    }

    #[test]
    fn a_configuration_that_makes_no_sense_is_an_error() {
        let locked =
            PersistedConfig { geometry: Geometry::default(), in_place_leaves: false, rear_lock: true };
        for (bytes, part) in [
            (&b"{"[..], "EOF"),
            (&serde_json::to_vec(&Geometry::default()).unwrap(), "missing field"),
            (&serde_json::to_vec(&locked).unwrap(), "not updated in place"),
        ] {
            let error = persisted_of::<SmartAlgorithm>(bytes).unwrap_err().to_string();
            assert!(error.contains("unreadable") && error.contains(part), "{error}");
        }
    }
}

//! What a SMART tree is made with: what all compute nodes agree on, which the catalog keeps, and how one of them works
//! on it.

use farwood_cache::Policy;
use farwood_lock::LockConfig;
use serde::{Deserialize, Serialize};

use crate::error::IndexError;
use crate::layout::LayoutError;
use crate::layout::radix::{LeafFormat, NodeTypes};

/// The techniques of the paper (section 4), and ours, as switches. All off is the paper's baseline: ART with node locks
/// and leaves that are replaced.
///
/// Each compute node chooses for itself, but for `in_place_leaves` and `rear_lock`: they say what protects a leaf, so
/// all have to agree. They are decided when a tree is created and kept in the catalog; opening the tree with other
/// values is no error and changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Techniques {
    /// Lock-free inner nodes (section 4.1.1). Off: whoever changes an inner node locks it first (ROWEX).
    pub lock_free_nodes: bool,
    /// Leaves that are updated in place, under a lock (section 4.1.1). Off: every update writes a new leaf.
    pub in_place_leaves: bool,
    /// The lock in the leaf itself, released by the WRITE that updates it (section 4.1.1). Off: the lock is one of the
    /// global lock table and released in a round trip of its own. Needs `in_place_leaves`.
    pub rear_lock: bool,
    /// Read delegation (section 4.2): gets of one key that wait for each other share one READ.
    pub delegation: bool,
    /// Write combining (section 4.2): puts, or updates, of one key that wait for each other become one.
    pub combining: bool,
    /// The lock's CAS and the leaf's READ in one chain, a new leaf and the CAS that shows it likewise. Not in the
    /// paper.
    pub fused: bool,
}

impl Techniques {
    /// The names of the switches, as the command line spells them.
    pub const NAMES: [&'static str; 6] =
        ["lock_free_nodes", "in_place_leaves", "rear_lock", "delegation", "combining", "fused"];

    /// Everything on.
    pub const ALL: Techniques = Techniques {
        lock_free_nodes: true,
        in_place_leaves: true,
        rear_lock: true,
        delegation: true,
        combining: true,
        fused: true,
    };

    /// Everything off: the paper's ART.
    pub const NONE: Techniques = Techniques {
        lock_free_nodes: false,
        in_place_leaves: false,
        rear_lock: false,
        delegation: false,
        combining: false,
        fused: false,
    };

    /// Sets the switch with that name; false if there is none.
    pub fn set(&mut self, name: &str, on: bool) -> bool {
        let switch = match name {
            "lock_free_nodes" => &mut self.lock_free_nodes,
            "in_place_leaves" => &mut self.in_place_leaves,
            "rear_lock" => &mut self.rear_lock,
            "delegation" => &mut self.delegation,
            "combining" => &mut self.combining,
            "fused" => &mut self.fused,
            _ => return false,
        };
        *switch = on;
        true
    }

    /// The switches by name, in the order of [`Techniques::NAMES`].
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let values = [
            self.lock_free_nodes,
            self.in_place_leaves,
            self.rear_lock,
            self.delegation,
            self.combining,
            self.fused,
        ];
        Self::NAMES.into_iter().zip(values)
    }

    /// What is in effect when all these are asked for: a lock in a leaf needs leaves that stay.
    pub fn effective(mut self) -> Self {
        self.rear_lock &= self.in_place_leaves;
        self
    }

    /// What is in effect on a tree whose leaves are as `agreed` says.
    pub(super) fn on(self, agreed: &Agreed) -> Self {
        Techniques { in_place_leaves: agreed.in_place_leaves, rear_lock: agreed.rear_lock, ..self }
    }
}

impl Default for Techniques {
    fn default() -> Self {
        Techniques::ALL
    }
}

/// What all compute nodes that work on a tree have to agree on: decided when it is created, kept in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Agreed {
    pub(super) geometry: Geometry,
    /// Whether leaves are updated in place.
    pub(super) in_place_leaves: bool,
    /// Whether the lock of a leaf is in the leaf.
    pub(super) rear_lock: bool,
}

impl Agreed {
    /// For a tree that somebody creates who wants these techniques.
    pub(super) fn new(geometry: Geometry, techniques: Techniques) -> Self {
        let Techniques { in_place_leaves, rear_lock, .. } = techniques.effective();
        Agreed { geometry, in_place_leaves, rear_lock }
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("numbers are always representable")
    }

    /// What the catalog keeps of the tree `name`.
    pub(super) fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self, IndexError> {
        let error = |cause| IndexError::Config { name: name.into(), cause };
        let agreed: Agreed = serde_json::from_slice(bytes).map_err(|cause| error(cause.to_string()))?;
        if agreed.rear_lock && !agreed.in_place_leaves {
            return Err(error("its leaves have locks, but are not updated in place".into()));
        }
        Ok(agreed)
    }
}

/// Sizes of a tree's nodes, kept in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Geometry {
    /// The longest key, in bytes: 255 at most, since nodes keep key positions in one byte.
    pub max_key: usize,
    /// The longest value, in bytes.
    pub max_value: usize,
    /// Which types of inner nodes there are.
    pub types: Types,
}

/// Which types of inner nodes a tree has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Types {
    /// By lines of 64 bytes: from 6 slots to 257.
    Lines,
    /// From 2 slots on, in small steps, so that in tests nodes switch type and move all the time.
    Tiny,
}

impl Geometry {
    /// The formats of inner nodes and leaves.
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

/// How one compute node works on a tree. Compute nodes with different options work on the same tree.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Which techniques are used. `in_place_leaves` and `rear_lock` count when the tree is created; who opens it gets
    /// what its creator chose ([`Techniques`]; `SmartIndex::techniques` tells what is in effect).
    pub techniques: Techniques,
    /// Byte budget of the cache of inner nodes; it counts everything.
    pub cache_bytes: usize,
    /// Which cached node leaves when the budget is full.
    pub eviction: Policy,
    /// Retries that one operation may spend on torn reads, moved nodes, lost races and stale cache entries.
    pub retries_max: u32,
    /// How long a writer pauses, in ns, when it finds a lock taken: at first, and at most; it doubles in between, and a
    /// part of it is chance.
    pub backoff_ns: (u64, u64),
    /// The longest time in ns that an operation waits for a lock, or for another client that works for it: after that a
    /// lock is an error that names its owner ([`farwood_lock::LockError::Contended`]). `u64::MAX`: it waits for ever.
    pub lock_wait_ns_max: u64,
    /// How often an operation finds a lock taken before it gives up with the same error. At least 1.
    pub lock_attempts_max: u32,
    /// Nodes that a scan reads in parallel at most.
    pub scan_window: usize,
}

impl Options {
    /// What lock tables are told. Hand-over is Sherman's; here a leaf's lock passes on by itself, with the WRITE that
    /// releases it, and combining does the rest.
    pub(super) fn locks(&self) -> LockConfig {
        LockConfig {
            hierarchical: true,
            handover: true,
            on_chip: false,
            wait_ns_max: self.lock_wait_ns_max,
            attempts_max: self.lock_attempts_max,
            backoff_ns_min: self.backoff_ns.0,
            backoff_ns_max: self.backoff_ns.1,
            ..LockConfig::default()
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        let locks = LockConfig::default();
        Options {
            techniques: Techniques::ALL,
            cache_bytes: 512 << 20,
            eviction: Policy::TwoChoices,
            retries_max: 100_000,
            backoff_ns: (locks.backoff_ns_min, locks.backoff_ns_max),
            lock_wait_ns_max: locks.wait_ns_max,
            lock_attempts_max: locks.attempts_max,
            scan_window: 64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_have_names() {
        let mut techniques = Techniques::NONE;
        for name in Techniques::NAMES {
            assert!(techniques.set(name, true));
        }
        assert_eq!(techniques, Techniques::ALL);
        assert!(!techniques.set("warp", true));
        assert!(techniques.iter().all(|(_, on)| on));
    }

    #[test]
    fn what_is_agreed_survives_the_catalog() {
        let geometry = Geometry { max_key: 200, max_value: 64, types: Types::Tiny };
        for techniques in [Techniques::ALL, Techniques::NONE] {
            let agreed = Agreed::new(geometry, techniques);
            assert_eq!(Agreed::from_bytes("x", &agreed.to_bytes()), Ok(agreed));
        }
    }

    #[test]
    fn the_recorded_decision_wins_over_the_switches() {
        let agreed = Agreed::new(Geometry::default(), Techniques::NONE);
        let techniques = Techniques::ALL.on(&agreed);
        assert_eq!(
            (techniques.in_place_leaves, techniques.rear_lock, techniques.fused),
            (false, false, true)
        );
        let only_rear = Techniques { rear_lock: true, ..Techniques::NONE };
        assert!(!Agreed::new(Geometry::default(), only_rear).rear_lock);
    }

    #[test]
    fn a_configuration_that_makes_no_sense_is_an_error() {
        let locked = Agreed { geometry: Geometry::default(), in_place_leaves: false, rear_lock: true };
        for (bytes, part) in [
            (&b"{"[..], "EOF"),
            (&serde_json::to_vec(&Geometry::default()).unwrap(), "missing field"),
            (&locked.to_bytes(), "not updated in place"),
        ] {
            let error = Agreed::from_bytes("x", bytes).unwrap_err().to_string();
            assert!(error.contains("unreadable") && error.contains(part), "{error}");
        }
    }
}

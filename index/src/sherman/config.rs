//! What a Sherman tree is made with: what all compute nodes agree on, which the catalog keeps, and how one of them
//! works on it.

use farwood_cache::Policy;
use farwood_lock::LockConfig;
use serde::{Deserialize, Serialize};

use crate::error::IndexError;
use crate::layout::{InnerLayout, LayoutError, LeafLayout};

/// The techniques of the paper (section 4), ours, and two of SMART's, as switches. All off is the paper's baseline FG+.
///
/// Each compute node chooses for itself, but for `on_chip`: two compute nodes that looked for the same lock in
/// different memory would not exclude each other. It is decided when a tree is created and kept in the catalog;
/// opening the tree with another value is no error and changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Techniques {
    /// Command combination (section 4.5): dependent WRITEs and the unlock in one chain.
    pub combine: bool,
    /// Locks in the on-chip memory of the memory servers' NICs (section 4.3), if the tree was created so. Where not all
    /// servers have such memory, locks are in host memory and the switch reads as off.
    pub on_chip: bool,
    /// Local lock tables in front of the global ones (section 4.3).
    pub hierarchical: bool,
    /// Handing a global lock over to the next local waiter (section 4.3). Needs `hierarchical`.
    pub handover: bool,
    /// Entry-level versions (section 4.4): an entry write sends the entry. Off: it sends the whole leaf.
    pub two_level: bool,
    /// The lock's CAS and the node's READ in one chain. Not in the paper.
    pub fused: bool,
    /// Read delegation, which is SMART's (its section 4.2): gets of one key that wait for each other share one READ.
    pub delegation: bool,
    /// Write combining, likewise: puts, or updates, of one key that wait for each other become one.
    pub combining: bool,
}

impl Techniques {
    /// The names of the switches, as the command line spells them.
    pub const NAMES: [&'static str; 8] =
        ["combine", "on_chip", "hierarchical", "handover", "two_level", "fused", "delegation", "combining"];

    /// Everything of the paper on, and `fused`; not what is another index's.
    pub const ALL: Techniques = Techniques {
        combine: true,
        on_chip: true,
        hierarchical: true,
        handover: true,
        two_level: true,
        fused: true,
        delegation: false,
        combining: false,
    };

    /// Everything off: the paper's FG+.
    pub const NONE: Techniques = Techniques {
        combine: false,
        on_chip: false,
        hierarchical: false,
        handover: false,
        two_level: false,
        fused: false,
        delegation: false,
        combining: false,
    };

    /// Sets the switch with that name; false if there is none.
    pub fn set(&mut self, name: &str, on: bool) -> bool {
        let switch = match name {
            "combine" => &mut self.combine,
            "on_chip" => &mut self.on_chip,
            "hierarchical" => &mut self.hierarchical,
            "handover" => &mut self.handover,
            "two_level" => &mut self.two_level,
            "fused" => &mut self.fused,
            "delegation" => &mut self.delegation,
            "combining" => &mut self.combining,
            _ => return false,
        };
        *switch = on;
        true
    }

    /// The switches by name, in the order of [`Techniques::NAMES`].
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let values = [
            self.combine,
            self.on_chip,
            self.hierarchical,
            self.handover,
            self.two_level,
            self.fused,
            self.delegation,
            self.combining,
        ];
        Self::NAMES.into_iter().zip(values)
    }

    /// What remains of the switches of who creates a tree, where locks can be in on-chip memory
    /// ([`farwood_lock::on_chip_possible`]) or cannot.
    pub fn effective(mut self, on_chip_possible: bool) -> Self {
        self.on_chip &= on_chip_possible;
        self.handover &= self.hierarchical;
        self
    }

    /// What is in effect on a tree whose locks are where `agreed` says.
    pub(super) fn on(self, agreed: &Agreed) -> Self {
        Techniques { on_chip: agreed.on_chip, ..self }.effective(true)
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
    /// Whether locks are in the servers' on-chip memory.
    pub(super) on_chip: bool,
}

impl Agreed {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("numbers are always representable")
    }

    /// What the catalog keeps of the tree `name`, on a cluster where locks can be in on-chip memory or cannot.
    pub(super) fn from_bytes(name: &str, bytes: &[u8], on_chip_possible: bool) -> Result<Self, IndexError> {
        let error = |cause| IndexError::Config { name: name.into(), cause };
        let agreed: Agreed = serde_json::from_slice(bytes).map_err(|cause| error(cause.to_string()))?;
        if agreed.on_chip && !on_chip_possible {
            return Err(error("its locks are in on-chip memory, which not all memory servers have".into()));
        }
        Ok(agreed)
    }
}

/// Sizes that all nodes of a tree share, kept in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Geometry {
    /// The longest key, in bytes.
    pub max_key: usize,
    /// The longest value, in bytes.
    pub max_value: usize,
    /// How large nodes are.
    pub size: NodeSize,
}

/// How large nodes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeSize {
    /// As many bytes per leaf and per inner node; a multiple of 64. The paper has 1024.
    Bytes(usize),
    /// As many slots, whatever bytes they take. Tests use tiny ones, so that rare paths become common.
    #[expect(missing_docs, reason = "slots of either kind of node")]
    Slots { leaf: usize, inner: usize },
}

impl Geometry {
    /// The layouts of leaves and inner nodes.
    ///
    /// # Errors
    /// [`LayoutError`] says which size to change.
    pub fn layouts(&self) -> Result<(LeafLayout, InnerLayout), LayoutError> {
        Ok(match self.size {
            NodeSize::Bytes(bytes) => (
                LeafLayout::for_node(bytes, self.max_key, self.max_value)?,
                InnerLayout::for_node(bytes, self.max_key)?,
            ),
            NodeSize::Slots { leaf, inner } => (
                LeafLayout::for_slots(leaf, self.max_key, self.max_value)?,
                InnerLayout::for_slots(inner, self.max_key)?,
            ),
        })
    }
}

impl Default for Geometry {
    fn default() -> Self {
        Geometry { max_key: 8, max_value: 8, size: NodeSize::Bytes(1024) }
    }
}

/// How one compute node works on a tree. Compute nodes with different options work on the same tree.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Which techniques are used. `on_chip` counts when the tree is created; who opens it gets what its creator chose,
    /// whatever stands here ([`Techniques`]; `ShermanIndex::techniques` tells what is in effect).
    pub techniques: Techniques,
    /// Byte budget of the cache of internal nodes; it counts everything.
    pub cache_bytes: usize,
    /// Which cached node leaves when the budget is full.
    pub eviction: Policy,
    /// Retries that one operation may spend on torn reads, moved nodes and stale cache entries.
    pub retries_max: u32,
    /// How long a writer pauses, in ns, when it finds a global lock taken: at first, and at most; it doubles in
    /// between, and a part of it is chance. (0, 0) tries again at once, as FG+ does in the paper.
    pub backoff_ns: (u64, u64),
    /// The longest time in ns that an operation waits for a lock, or for another client that works for it: after that a
    /// lock is an error that names its owner ([`farwood_lock::LockError::Contended`]). `u64::MAX`: it waits for ever.
    pub lock_wait_ns_max: u64,
    /// How often an operation finds a lock taken before it gives up with the same error. At least 1.
    pub lock_attempts_max: u32,
    /// Leaves that a scan reads in parallel at most.
    pub scan_window: usize,
}

impl Options {
    /// What lock tables are told when these techniques are in effect.
    pub(super) fn locks(&self, techniques: Techniques) -> LockConfig {
        LockConfig {
            hierarchical: techniques.hierarchical,
            handover: techniques.handover,
            on_chip: techniques.on_chip,
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
            scan_window: 32,
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
        assert_eq!(techniques, Techniques { delegation: true, combining: true, ..Techniques::ALL });
        assert!(!techniques.set("warp", true));
        assert!(techniques.iter().all(|(_, on)| on));
    }

    #[test]
    fn what_is_agreed_survives_the_catalog() {
        let geometry = Geometry { max_key: 200, max_value: 64, size: NodeSize::Slots { leaf: 4, inner: 4 } };
        for on_chip in [false, true] {
            let agreed = Agreed { geometry, on_chip };
            assert_eq!(Agreed::from_bytes("x", &agreed.to_bytes(), true), Ok(agreed));
        }
    }

    #[test]
    fn a_configuration_that_makes_no_sense_is_an_error() {
        let on_chip = Agreed { geometry: Geometry::default(), on_chip: true }.to_bytes();
        let geometry_only = serde_json::to_vec(&Geometry::default()).unwrap();
        for (bytes, part) in [
            (&b"{"[..], "EOF"),
            (b"", "EOF"),
            (b"\xff\xfe", "expected value"),
            (&geometry_only, "missing field"),
            (&on_chip, "not all memory servers"),
        ] {
            let error = Agreed::from_bytes("x", bytes, false).unwrap_err().to_string();
            assert!(error.contains("unreadable") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_recorded_decision_wins_over_the_switch() {
        for (on_chip, wanted) in [(false, false), (false, true), (true, false), (true, true)] {
            let agreed = Agreed { geometry: Geometry::default(), on_chip };
            let techniques =
                Techniques { on_chip: wanted, hierarchical: false, ..Techniques::ALL }.on(&agreed);
            assert_eq!((techniques.on_chip, techniques.handover, techniques.fused), (on_chip, false, true));
        }
        assert!(Techniques::ALL.effective(true).on_chip && !Techniques::ALL.effective(false).on_chip);
        assert!(!Techniques::NONE.effective(true).on_chip);
    }

    #[test]
    fn lock_tables_are_told_what_the_options_say() {
        let options = Options { backoff_ns: (0, 7), lock_attempts_max: 3, ..Options::default() };
        let locks = options.locks(Techniques::NONE);
        assert_eq!((locks.backoff_ns_min, locks.backoff_ns_max, locks.attempts_max), (0, 7, 3));
        assert_eq!(
            Options::default().locks(Techniques::ALL),
            LockConfig { on_chip: true, ..Default::default() }
        );
    }
}

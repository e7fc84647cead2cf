//! Settings of a Sherman tree: those that all compute nodes agree on, which the catalog keeps, and the switches of one
//! of them.

use serde::{Deserialize, Serialize};

use crate::layout::{InnerLayout, LayoutError, LeafLayout};
use crate::techniques;

techniques! {
    /// The techniques of the paper (section 4), ours, and two of SMART's, as switches. All off is the paper's baseline
    /// FG+.
    ///
    /// Each compute node chooses for itself, but for `on_chip`: two compute nodes that looked for the same lock in
    /// different memory would not exclude each other. It is decided when a tree is created and kept in the catalog;
    /// opening the tree with another value is no error and changes nothing.
    pub struct Techniques {
        /// Command combination (section 4.5): dependent WRITEs and the unlock in one chain.
        pub combine: bool = true,
        /// Locks in the on-chip memory of the memory servers' NICs (section 4.3), if the tree was created so. Where not
        /// all servers have such memory, locks are in host memory and the switch reads as off.
        pub on_chip: bool = true,
        /// Local lock tables in front of the global ones (section 4.3).
        pub hierarchical: bool = true,
        /// Handing a global lock over to the next local waiter (section 4.3). Needs `hierarchical`.
        pub handover: bool = true,
        /// Handing the leaf's image over with its lock, so that the next writer reads nothing. Needs `handover`. Not in
        /// the paper.
        pub image_handover: bool = true,
        /// Entry-level versions (section 4.4): an entry write sends the entry. Off: it sends the whole leaf.
        pub two_level: bool = true,
        /// The lock's CAS and the node's READ in one chain. Not in the paper.
        pub fused: bool = true,
        /// Read delegation, which is SMART's (its section 4.2): gets of one key that wait for each other share one
        /// READ.
        pub delegation: bool = false,
        /// Write combining, likewise: puts, or updates, of one key that wait for each other become one.
        pub combining: bool = false,
    }
}

impl Techniques {
    /// Yields what remains of the switches when a tree is created, where locks can be in on-chip memory
    /// ([`farwood_lock::on_chip_possible`]) or cannot.
    ///
    /// ```
    /// # use farwood_index::sherman::Techniques;
    /// let techniques = Techniques { hierarchical: false, ..Techniques::ALL }.effective(false);
    /// assert!(!techniques.on_chip && !techniques.handover && !techniques.image_handover);
    /// ```
    pub fn effective(mut self, on_chip_possible: bool) -> Self {
        self.on_chip &= on_chip_possible;
        self.handover &= self.hierarchical;
        self.image_handover &= self.handover;
        self
    }

    /// Yields what is in effect on a tree whose locks are where `persisted` says.
    pub(super) fn on(self, persisted: &PersistedConfig) -> Self {
        Techniques { on_chip: persisted.on_chip, ..self }.effective(true)
    }
}

/// Settings that all compute nodes that work on a tree have to agree on: decided when it is created, kept in the
/// catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PersistedConfig {
    pub(super) geometry: Geometry,
    /// True if locks are in the servers' on-chip memory.
    pub(super) on_chip: bool,
}

/// Sizes that all nodes of a tree share, kept in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Geometry {
    /// The longest key, in bytes.
    pub max_key: usize,
    /// The longest value, in bytes.
    pub max_value: usize,
    /// The size of nodes.
    pub size: NodeSize,
}

/// The size of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeSize {
    /// Bytes per leaf and per inner node; a multiple of 64. The paper has 1024.
    Bytes(usize),
    /// Slots per node, whatever bytes they take. Tests use tiny ones, so that rare paths become common.
    #[expect(missing_docs, reason = "slots of either kind of node")]
    Slots { leaf: usize, inner: usize },
}

impl Geometry {
    /// Yields the layouts of leaves and inner nodes.
    ///
    /// ```
    /// # use farwood_index::sherman::{Geometry, NodeSize};
    /// let (leaf, inner) = Geometry { size: NodeSize::Slots { leaf: 4, inner: 8 }, ..Geometry::default() }.layouts()?;
    /// assert_eq!((leaf.slots(), inner.slots()), (4, 8));
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farwood_lock::{Backoff, LockConfig};
    use farwood_runtime::control::LockRegion;
    use farwood_runtime::{RemotePtr, ServerId, ServerInfo};

    use super::super::{Options, ShermanAlgorithm};
    use super::*;
    use crate::shell::algorithm::Algorithm;
    use crate::shell::handle::persisted_of;

    #[test]
    fn what_is_agreed_survives_the_catalog() {
        let geometry = Geometry { max_key: 200, max_value: 64, size: NodeSize::Slots { leaf: 4, inner: 4 } };
        for on_chip in [false, true] {
            let persisted = PersistedConfig { geometry, on_chip };
            let size = r#"{"Slots":{"leaf":4,"inner":4}}"#;
            let bytes = format!(
                r#"{{"geometry":{{"max_key":200,"max_value":64,"size":{size}}},"on_chip":{on_chip}}}"#
            );
            assert_eq!(serde_json::to_string(&persisted).unwrap(), bytes);
            assert_eq!(persisted_of::<ShermanAlgorithm>(bytes.as_bytes()), Ok(persisted));
        }
    }

    #[test]
    fn a_configuration_that_makes_no_sense_is_an_error() {
        let geometry_only = serde_json::to_vec(&Geometry::default()).unwrap();
        for (bytes, part) in [
            (&b"{"[..], "EOF"),
            (b"", "EOF"),
            (b"\xff\xfe", "expected value"),
            (&geometry_only, "missing field"),
        ] {
            let error = persisted_of::<ShermanAlgorithm>(bytes).unwrap_err().to_string();
            assert!(error.contains("unreadable") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn locks_in_on_chip_memory_need_it() {
        let persisted = PersistedConfig { geometry: Geometry::default(), on_chip: true };
        let words = LockRegion { base: RemotePtr::new(ServerId(0), 64), count: 1 };
        let server = |device_locks| ServerInfo {
            id: ServerId(0),
            region_bytes: 1 << 20,
            locks: words,
            device_locks,
            chunk_bytes: 4096,
        };
        let check = |persisted, device_locks| {
            ShermanAlgorithm::check_cluster("x", persisted, &[server(device_locks)])
        };
        let error = check(&persisted, None).unwrap_err().to_string();
        assert!(error.contains("not all memory servers"), "{error}");
        assert_eq!(check(&persisted, Some(words)), Ok(()));
        assert_eq!(check(&PersistedConfig { on_chip: false, ..persisted }, None), Ok(()));
    }

    #[test]
    fn the_recorded_decision_wins_over_the_switch() {
        for (on_chip, wanted) in [(false, false), (false, true), (true, false), (true, true)] {
            let persisted = PersistedConfig { geometry: Geometry::default(), on_chip };
            let techniques =
                Techniques { on_chip: wanted, hierarchical: false, ..Techniques::ALL }.on(&persisted);
            assert_eq!((techniques.on_chip, techniques.handover, techniques.fused), (on_chip, false, true));
        }
        assert!(Techniques::ALL.effective(true).on_chip && !Techniques::ALL.effective(false).on_chip);
        assert!(!Techniques::NONE.effective(true).on_chip);
    }

    #[test]
    fn lock_tables_are_told_what_the_options_say() {
        let options = Options {
            backoff: Backoff { min: Duration::ZERO, max: Duration::from_nanos(7) },
            lock_attempts_max: 3,
            ..Options::default()
        };
        let locks = ShermanAlgorithm::meet(Techniques::NONE, options.locks()).0;
        assert_eq!((locks.backoff, locks.attempts_max), (options.backoff, 3));
        assert!(!locks.hierarchical && !locks.handover && !locks.on_chip);
        assert_eq!(
            ShermanAlgorithm::meet(Techniques::ALL, Options::default().locks()).0,
            LockConfig { on_chip: true, ..Default::default() }
        );
    }
}

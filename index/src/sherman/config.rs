//! What a Sherman tree is made with: its geometry, which the catalog keeps, and how one compute node works on it.

use farwood_cache::Policy;
use farwood_runtime::Capabilities;
use serde::{Deserialize, Serialize};

use crate::error::IndexError;
use crate::layout::{InnerLayout, LayoutError, LeafLayout};

/// The techniques of the paper (section 4), and ours, as switches. All off is the paper's baseline FG+.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Techniques {
    /// Command combination (section 4.5): dependent WRITEs and the unlock in one chain.
    pub combine: bool,
    /// Locks in the NIC's on-chip memory (section 4.3). Where the fabric has none ([`Capabilities::device_memory`]),
    /// they stay in host memory and the switch reads as off ([`Techniques::effective`]).
    pub on_chip: bool,
    /// Local lock tables in front of the global ones (section 4.3).
    pub hierarchical: bool,
    /// Handing a global lock over to the next local waiter (section 4.3). Needs `hierarchical`.
    pub handover: bool,
    /// Entry-level versions (section 4.4): an entry write sends the entry. Off: it sends the whole leaf.
    pub two_level: bool,
    /// The lock's CAS and the node's READ in one chain. Not in the paper.
    pub fused: bool,
}

impl Techniques {
    /// The names of the switches, as the command line spells them.
    pub const NAMES: [&'static str; 6] =
        ["combine", "on_chip", "hierarchical", "handover", "two_level", "fused"];

    /// Everything on.
    pub const ALL: Techniques = Techniques {
        combine: true,
        on_chip: true,
        hierarchical: true,
        handover: true,
        two_level: true,
        fused: true,
    };

    /// Everything off: the paper's FG+.
    pub const NONE: Techniques = Techniques {
        combine: false,
        on_chip: false,
        hierarchical: false,
        handover: false,
        two_level: false,
        fused: false,
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
            _ => return false,
        };
        *switch = on;
        true
    }

    /// The switches by name, in the order of [`Techniques::NAMES`].
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let values =
            [self.combine, self.on_chip, self.hierarchical, self.handover, self.two_level, self.fused];
        Self::NAMES.into_iter().zip(values)
    }

    /// What remains of the switches on a fabric with these capabilities.
    pub fn effective(mut self, capabilities: &Capabilities) -> Self {
        self.on_chip &= capabilities.device_memory > 0;
        self.handover &= self.hierarchical;
        self
    }
}

impl Default for Techniques {
    fn default() -> Self {
        Techniques::ALL
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

    pub(super) fn to_bytes(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("numbers are always representable")
    }

    pub(super) fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self, IndexError> {
        serde_json::from_slice(bytes)
            .map_err(|cause| IndexError::Config { name: name.into(), cause: cause.to_string() })
    }
}

impl Default for Geometry {
    fn default() -> Self {
        Geometry { max_key: 8, max_value: 8, size: NodeSize::Bytes(1024) }
    }
}

/// How one compute node works on a tree. Nodes with different options work on the same tree.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Which techniques are used.
    pub techniques: Techniques,
    /// Byte budget of the cache of internal nodes; it counts everything.
    pub cache_bytes: usize,
    /// Which cached node leaves when the budget is full.
    pub eviction: Policy,
    /// Retries that one operation may spend on torn reads, moved nodes and stale cache entries.
    pub retries_max: u32,
    /// Leaves that a scan reads in parallel at most.
    pub scan_window: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            techniques: Techniques::ALL,
            cache_bytes: 512 << 20,
            eviction: Policy::TwoChoices,
            retries_max: 100_000,
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
        assert_eq!(techniques, Techniques::ALL);
        assert!(!techniques.set("warp", true));
        assert!(techniques.iter().all(|(_, on)| on));
    }

    #[test]
    fn a_geometry_survives_the_catalog() {
        let geometry = Geometry { max_key: 200, max_value: 64, size: NodeSize::Slots { leaf: 4, inner: 4 } };
        assert_eq!(Geometry::from_bytes("x", &geometry.to_bytes()), Ok(geometry));
        let error = Geometry::from_bytes("x", b"{").unwrap_err().to_string();
        assert!(error.contains("unreadable"), "{error}");
    }
}

//! Settings of a CHIME tree: those that all compute nodes agree on, which the catalog keeps, and the switches of one of
//! them.

use serde::{Deserialize, Serialize};

use crate::layout::hopscotch::{HopLayout, Ring};
use crate::layout::{InnerLayout, LayoutError};
use crate::techniques;

techniques! {
    /// The techniques of the paper (section 4), ours, and two of SMART's, as switches. All off is the paper's baseline:
    /// Sherman, with a version in each line and locks in leaves.
    ///
    /// Each compute node chooses for itself, but for `hopscotch` and `sibling_validation`, which say what is in a leaf:
    /// they are decided when a tree is created and kept in the catalog. Opening it with other values is no error and
    /// changes nothing.
    pub struct Techniques {
        /// Leaves are hopscotch tables: a reader of one key reads its neighbourhood (section 4.1). Off: a key may be
        /// anywhere in its leaf, which is read whole.
        pub hopscotch: bool = true,
        /// The word behind the lock's says where a leaf has vacancies, and comes with the lock (section 4.2.1). Off: an
        /// insert reads the whole leaf.
        pub piggyback: bool = true,
        /// Readers use the replica of the leaf's metadata beside the neighbourhood (section 4.2.2). Off: they read the
        /// header too, with a READ of its own.
        pub replicas: bool = true,
        /// Readers compare a leaf's sibling with the child that their parent has behind it (section 4.2.3). Off:
        /// replicas have fences, and are longer by two keys.
        pub sibling_validation: bool = true,
        /// Keys that are read often are read alone, where they were met last (section 4.3).
        pub speculative: bool = true,
        /// Handing what is known of a leaf over with its lock, so that the next writer reads nothing if it wants no
        /// more. Not in the paper.
        pub image_handover: bool = true,
        /// The lock's CAS and the READ of words and neighbourhood in one chain. Not in the paper.
        pub fused: bool = true,
        /// Read delegation, which is SMART's (its section 4.2) and on in the paper's evaluation: gets of one key that
        /// wait for each other share one READ.
        pub delegation: bool = true,
        /// Write combining, likewise: puts, or updates, of one key that wait for each other become one.
        pub combining: bool = true,
    }
}

impl Techniques {
    /// Yields what is in effect on a tree with this configuration.
    pub(super) fn on(self, persisted: &PersistedConfig) -> Self {
        let PersistedConfig { geometry, hopscotch, sibling_validation } = *persisted;
        // A hotspot is a slot, and a slot says nothing of the block.
        let speculative = self.speculative && !geometry.indirect;
        Techniques { hopscotch, sibling_validation, speculative, ..self }
    }
}

/// Settings that all compute nodes that work on a tree have to agree on: decided when it is created, kept in the
/// catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PersistedConfig {
    pub(super) geometry: Geometry,
    /// True if leaves are hopscotch tables.
    pub(super) hopscotch: bool,
    /// True if replicas have no fences.
    pub(super) sibling_validation: bool,
}

impl PersistedConfig {
    /// Decides what a tree records that is created with these techniques.
    pub(super) fn new(geometry: Geometry, techniques: Techniques) -> Self {
        let Techniques { hopscotch, sibling_validation, .. } = techniques;
        PersistedConfig { geometry, hopscotch, sibling_validation }
    }

    /// Yields the layouts of leaves and inner nodes.
    ///
    /// # Errors
    /// [`LayoutError`] says which size to change.
    pub(super) fn layouts(&self) -> Result<(HopLayout, InnerLayout), LayoutError> {
        let Geometry { max_key, max_value, span, neighbourhood, inner, indirect } = self.geometry;
        let ring = Ring { slots: span, reach: if self.hopscotch { neighbourhood } else { span } };
        let make = if indirect { HopLayout::indirect } else { HopLayout::new };
        let leaf = make(ring, max_key, max_value, !self.sibling_validation)?;
        Ok((leaf, InnerLayout::for_slots(inner, max_key)?))
    }
}

/// Sizes that all nodes of a tree share, kept in the catalog.
///
/// ```
/// # use farwood_index::{chime::Geometry, shell::algorithm::Geometry as _};
/// let (usual, wide) = (Geometry::default(), Geometry { neighbourhood: 16, ..Geometry::default() });
/// assert!(wide.get_bytes() > usual.get_bytes() && wide.check().is_ok());
/// assert!(Geometry { span: 60, ..usual }.check().is_err(), "no multiple of the neighbourhood");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Geometry {
    /// The longest key, in bytes.
    pub max_key: usize,
    /// The longest value, in bytes.
    pub max_value: usize,
    /// Entries of a leaf: a multiple of the neighbourhood. The paper has 64.
    pub span: usize,
    /// Entries of a neighbourhood, 2 to 16: what a get reads. More of them fill leaves better. The paper has 8.
    pub neighbourhood: usize,
    /// Entries of an inner node.
    pub inner: usize,
    /// True if pairs lie outside of the leaves, in blocks, to which entries lead (section 4.5): a get takes a round
    /// trip more, and its bytes do not grow with the neighbourhood. [`Geometry::new`] chooses it for long pairs.
    ///
    /// [`Geometry::new`]: crate::shell::algorithm::Geometry::new
    pub indirect: bool,
}

impl Default for Geometry {
    fn default() -> Self {
        Geometry { max_key: 8, max_value: 8, span: 64, neighbourhood: 8, inner: 64, indirect: false }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ChimeAlgorithm;
    use super::*;
    use crate::shell::handle::persisted_of;

    #[test]
    fn what_is_agreed_survives_the_catalog() {
        let geometry =
            Geometry { max_key: 200, max_value: 64, span: 16, neighbourhood: 4, inner: 8, indirect: true };
        for (techniques, on) in [(Techniques::ALL, true), (Techniques::NONE, false)] {
            let persisted = PersistedConfig::new(geometry, techniques);
            let geometry =
                r#"{"max_key":200,"max_value":64,"span":16,"neighbourhood":4,"inner":8,"indirect":true}"#;
            let bytes = format!(r#"{{"geometry":{geometry},"hopscotch":{on},"sibling_validation":{on}}}"#);
            assert_eq!(serde_json::to_string(&persisted).unwrap(), bytes);
            assert_eq!(persisted_of::<ChimeAlgorithm>(bytes.as_bytes()), Ok(persisted));
        }
    }

    #[test]
    fn the_recorded_decision_wins_over_the_switches() {
        let persisted = PersistedConfig::new(Geometry::default(), Techniques::NONE);
        let techniques = Techniques::ALL.on(&persisted);
        let Techniques { hopscotch, sibling_validation, fused, .. } = techniques;
        assert_eq!((hopscotch, sibling_validation, fused), (false, false, true));
        let geometry = Geometry { indirect: true, ..Geometry::default() };
        let techniques = Techniques::ALL.on(&PersistedConfig::new(geometry, Techniques::ALL));
        assert_eq!(techniques, Techniques { speculative: false, ..Techniques::ALL });
    }
}

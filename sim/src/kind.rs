//! The kinds of indexes that scenarios are about: what one kind is made of, what of it a seed draws, and how its trees
//! are created, opened and attached to. What a kind adds to scenarios is here alone.

use std::fmt;
use std::ops::RangeInclusive;

use farwood_index::Switches;
use farwood_index::layout::LayoutError;
use farwood_index::layout::radix::LeafFormat;
use farwood_index::smart::Types;
use farwood_index::{AnyIndex, IndexError, NodeSize, Sherman, Smart, sherman, smart};
use farwood_runtime::Verbs;
use farwood_runtime::alloc::Books;
use farwood_runtime::node::Host;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use crate::scenario::NodeOptions;

/// The switches of Sherman that plain seeds draw. Others are off there, unless somebody wishes for them.
const SHERMAN_PLAIN: [&str; 6] = ["combine", "on_chip", "hierarchical", "handover", "two_level", "fused"];

/// A kind of index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The B+tree.
    #[default]
    Sherman,
    /// The radix tree.
    Smart,
}

impl Kind {
    /// All there are.
    pub const ALL: [Kind; 2] = [Kind::Sherman, Kind::Smart];

    /// The kind with that name, as catalogs and command lines spell it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sherman => sherman::KIND,
            Kind::Smart => smart::KIND,
        }
    }

    /// Memory of each server: enough for the largest scenario that is drawn.
    pub(crate) fn bytes_per_server(self) -> u64 {
        match self {
            // Too small for a huge page, which would take longer to zero than a scenario to run.
            Kind::Sherman => 1 << 20,
            // Leaves that are replaced are not reused.
            Kind::Smart => 16 << 20,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The geometry of a tree of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyGeometry {
    /// A Sherman tree's.
    Sherman(sherman::Geometry),
    /// A SMART tree's.
    Smart(smart::Geometry),
}

impl AnyGeometry {
    /// The kind of the tree.
    pub fn kind(self) -> Kind {
        match self {
            AnyGeometry::Sherman(_) => Kind::Sherman,
            AnyGeometry::Smart(_) => Kind::Smart,
        }
    }

    /// The longest key, in bytes.
    pub fn max_key(self) -> usize {
        match self {
            AnyGeometry::Sherman(geometry) => geometry.max_key,
            AnyGeometry::Smart(geometry) => geometry.max_key,
        }
    }

    /// The longest value, in bytes.
    pub fn max_value(self) -> usize {
        match self {
            AnyGeometry::Sherman(geometry) => geometry.max_value,
            AnyGeometry::Smart(geometry) => geometry.max_value,
        }
    }

    /// The size in bytes of the largest node, if all that are allocated are in the tree or go back. Radix trees leave
    /// nodes behind that were replaced or emptied.
    pub(crate) fn bytes_of_kept_nodes(self) -> Option<u64> {
        match self {
            AnyGeometry::Sherman(geometry) => {
                let (leaf, inner) = geometry.layouts().expect("there is such a tree");
                Some(leaf.node_bytes().max(inner.node_bytes()) as u64)
            }
            AnyGeometry::Smart(_) => None,
        }
    }

    /// Whether there can be such a tree.
    ///
    /// # Errors
    /// [`LayoutError`] says which size to change.
    pub fn can_be(self) -> Result<(), LayoutError> {
        match self {
            AnyGeometry::Sherman(geometry) => geometry.layouts().map(drop),
            AnyGeometry::Smart(geometry) => LeafFormat::new(geometry.max_key, geometry.max_value).map(drop),
        }
    }

    pub(crate) fn draw(kind: Kind, rng: &mut SmallRng) -> Self {
        match kind {
            Kind::Sherman => AnyGeometry::Sherman(draw_sherman(rng)),
            Kind::Smart => AnyGeometry::Smart(draw_smart(rng)),
        }
    }
}

impl From<sherman::Geometry> for AnyGeometry {
    fn from(geometry: sherman::Geometry) -> Self {
        AnyGeometry::Sherman(geometry)
    }
}

impl From<smart::Geometry> for AnyGeometry {
    fn from(geometry: smart::Geometry) -> Self {
        AnyGeometry::Smart(geometry)
    }
}

/// The techniques of an index of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyTechniques {
    /// Sherman's.
    Sherman(sherman::Techniques),
    /// SMART's.
    Smart(smart::Techniques),
}

impl AnyTechniques {
    /// The kind of the index.
    pub fn kind(self) -> Kind {
        match self {
            AnyTechniques::Sherman(_) => Kind::Sherman,
            AnyTechniques::Smart(_) => Kind::Smart,
        }
    }

    /// Sets the switch with that name; false if there is none.
    pub fn set(&mut self, name: &str, on: bool) -> bool {
        match self {
            AnyTechniques::Sherman(techniques) => techniques.set(name, on),
            AnyTechniques::Smart(techniques) => techniques.set(name, on),
        }
    }

    /// Whether the switch with that name is on, if there is one.
    pub fn is_on(self, name: &str) -> Option<bool> {
        let switches: Vec<_> = match self {
            AnyTechniques::Sherman(techniques) => techniques.list(),
            AnyTechniques::Smart(techniques) => techniques.list(),
        };
        switches.into_iter().find(|(switch, _)| *switch == name).map(|(_, on)| on)
    }

    /// Round trips of a get, and of an update of a present key that has room, as the tables of the indexes have them.
    pub(crate) fn round_trips(self) -> (RangeInclusive<u64>, RangeInclusive<u64>) {
        let without = |switch: bool| u64::from(!switch);
        match self {
            AnyTechniques::Sherman(sherman::Techniques { fused, combine, .. }) => {
                let update = 2 + without(fused) + without(combine);
                (1..=1, update..=update)
            }
            AnyTechniques::Smart(smart::Techniques { fused, rear_lock, in_place_leaves: true, .. }) => {
                let update = 2 + without(fused) + without(rear_lock);
                (1..=1, update..=update)
            }
            // A leaf in memory that was used before takes one more.
            AnyTechniques::Smart(_) => (1..=1, 2..=3),
        }
    }

    /// The names of the switches of that kind.
    #[cfg(test)]
    pub(crate) fn names(kind: Kind) -> &'static [&'static str] {
        match kind {
            Kind::Sherman => sherman::Techniques::NAMES,
            Kind::Smart => smart::Techniques::NAMES,
        }
    }

    /// A third has what users get, which is what is used most. `all`: whether all switches are drawn.
    pub(crate) fn draw(kind: Kind, rng: &mut SmallRng, all: bool) -> Self {
        let (mut techniques, names): (_, &[&str]) = match kind {
            Kind::Sherman if all => (sherman::Techniques::ALL.into(), sherman::Techniques::NAMES),
            Kind::Sherman => (AnyTechniques::Sherman(sherman::Techniques::ALL), &SHERMAN_PLAIN),
            Kind::Smart => (AnyTechniques::Smart(smart::Techniques::ALL), smart::Techniques::NAMES),
        };
        if rng.random_range(0..3) > 0 {
            for name in names {
                techniques.set(name, rng.random());
            }
        }
        techniques
    }
}

impl From<sherman::Techniques> for AnyTechniques {
    fn from(techniques: sherman::Techniques) -> Self {
        AnyTechniques::Sherman(techniques)
    }
}

impl From<smart::Techniques> for AnyTechniques {
    fn from(techniques: smart::Techniques) -> Self {
        AnyTechniques::Smart(techniques)
    }
}

/// What one compute node creates or opens a tree with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe {
    pub(crate) geometry: AnyGeometry,
    pub(crate) node: NodeOptions,
    pub(crate) retries_max: u32,
}

/// What goes wrong if techniques and geometry of one scenario are of different kinds.
const KINDS_DIFFER: &str = "a scenario's nodes have techniques of the kind of its tree";

impl Recipe {
    pub(crate) async fn create(self, host: &impl Host, name: &str) -> Result<AnyTree, IndexError> {
        match self.geometry {
            AnyGeometry::Sherman(geometry) => {
                Sherman::create(host, name, geometry, self.sherman()).await.map(AnyTree::Sherman)
            }
            AnyGeometry::Smart(geometry) => {
                Smart::create(host, name, geometry, self.smart()).await.map(AnyTree::Smart)
            }
        }
    }

    pub(crate) async fn open(self, host: &impl Host, name: &str) -> Result<AnyTree, IndexError> {
        match self.geometry {
            AnyGeometry::Sherman(_) => Sherman::open(host, name, self.sherman()).await.map(AnyTree::Sherman),
            AnyGeometry::Smart(_) => Smart::open(host, name, self.smart()).await.map(AnyTree::Smart),
        }
    }

    fn sherman(self) -> sherman::Options {
        let Recipe { node, retries_max, .. } = self;
        let AnyTechniques::Sherman(techniques) = node.techniques else { panic!("{KINDS_DIFFER}") };
        sherman::Options {
            techniques,
            cache_bytes: node.cache_bytes,
            backoff_ns: node.backoff_ns,
            lock_wait_ns_max: node.lock_wait_ns_max,
            scan_window: node.scan_window,
            retries_max,
            ..sherman::Options::default()
        }
    }

    fn smart(self) -> smart::Options {
        let Recipe { node, retries_max, .. } = self;
        let AnyTechniques::Smart(techniques) = node.techniques else { panic!("{KINDS_DIFFER}") };
        smart::Options {
            techniques,
            cache_bytes: node.cache_bytes,
            backoff_ns: node.backoff_ns,
            lock_wait_ns_max: node.lock_wait_ns_max,
            scan_window: node.scan_window,
            retries_max,
            ..smart::Options::default()
        }
    }
}

/// A tree of any kind, as a whole compute node sees it.
pub(crate) enum AnyTree {
    Sherman(Sherman),
    Smart(Smart),
}

impl AnyTree {
    pub(crate) fn attach<V: Verbs>(&self, verbs: V) -> AnyIndex<V> {
        match self {
            AnyTree::Sherman(tree) => tree.attach(verbs).into(),
            AnyTree::Smart(tree) => tree.attach(verbs).into(),
        }
    }
}

/// Local locks that are held or waited for.
pub(crate) fn locks_in_use<V: Verbs>(index: &AnyIndex<V>) -> usize {
    match index {
        AnyIndex::Sherman(index) => index.locks_in_use(),
        AnyIndex::Smart(index) => index.locks_in_use(),
        _ => unreachable!("a kind of index that scenarios have not been told of"),
    }
}

/// What became of the memory that the shard has taken.
pub(crate) fn books<V: Verbs>(index: &AnyIndex<V>) -> Books {
    match index {
        AnyIndex::Sherman(index) => index.books(),
        AnyIndex::Smart(index) => index.books(),
        _ => unreachable!("a kind of index that scenarios have not been told of"),
    }
}

fn draw_sherman(rng: &mut SmallRng) -> sherman::Geometry {
    let max_key = *[8, 8, 12, 30].choose(rng).expect("not empty");
    let max_value = *[8, 8, 40, 100].choose(rng).expect("not empty");
    let slots = NodeSize::Slots { leaf: rng.random_range(2..=8), inner: rng.random_range(3..=8) };
    let bytes = NodeSize::Bytes(*[256, 1024].choose(rng).expect("not empty"));
    let sized = sherman::Geometry { max_key, max_value, size: bytes };
    if rng.random_range(0..4) == 0 && sized.layouts().is_ok() {
        sized
    } else {
        sherman::Geometry { size: slots, ..sized }
    }
}

fn draw_smart(rng: &mut SmallRng) -> smart::Geometry {
    smart::Geometry {
        max_key: *[4, 8, 8, 12, 30, 255].choose(rng).expect("not empty"),
        max_value: *[8, 40, 100, 300, 300].choose(rng).expect("not empty"),
        types: *[Types::Tiny, Types::Tiny, Types::Tiny, Types::Lines].choose(rng).expect("not empty"),
    }
}

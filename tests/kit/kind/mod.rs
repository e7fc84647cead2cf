//! The kinds of indexes that tests run on, and in which words they ask for one. Tests of what every index does know no
//! kind; what they need to know of one is asked here.

mod sherman;
mod smart;

use farwood::{AnyIndex, IndexStats, Verbs};

use super::recipe::Recipe;

/// A kind of index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sherman,
    Smart,
}

/// What a test wants an index to be like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The longest key, in bytes.
    pub(crate) max_key: usize,
    /// The longest value, in bytes.
    pub(crate) max_value: usize,
    pub(crate) nodes: Nodes,
}

/// How large nodes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// As small as the kind makes them.
    Least,
    /// Small enough that whatever is rare happens all the time.
    Tiny,
    /// As users have them.
    Usual,
}

/// How one kind of index works: its options, without what is agreed on by [`Shape`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mix {
    Sherman(farwood::Options),
    Smart(farwood::smart::Options),
}

impl Shape {
    /// Keys and values of 8 bytes in tiny nodes.
    pub(crate) const TINY: Shape = Shape { max_key: 8, max_value: 8, nodes: Nodes::Tiny };
    /// Keys and values of 8 bytes in usual nodes.
    pub(crate) const USUAL: Shape = Shape { nodes: Nodes::Usual, ..Shape::TINY };
}

impl Kind {
    /// All there are.
    pub(crate) const ALL: [Kind; 2] = [Kind::Sherman, Kind::Smart];

    /// What kind of index it is.
    pub(crate) fn of<V: Verbs>(index: &AnyIndex<V>) -> Self {
        match index {
            AnyIndex::Sherman(_) => Kind::Sherman,
            AnyIndex::Smart(_) => Kind::Smart,
            _ => unreachable!("a kind of index that the kit has not been told of"),
        }
    }

    /// Whether a change that was dropped may take effect after a read that came later: soon, or never.
    pub(crate) fn finishes_what_was_dropped(self) -> bool {
        match self {
            Kind::Sherman => false,
            // What shows a new leaf may be in flight on another queue pair than the leaf that a read goes to.
            Kind::Smart => true,
        }
    }

    pub(crate) fn recipe(self, shape: Shape, mix: Mix) -> Recipe {
        match mix {
            Mix::Sherman(options) => Recipe::Sherman(sherman::geometry(shape), options),
            Mix::Smart(options) => Recipe::Smart(smart::geometry(shape), options),
        }
    }

    /// What users get.
    pub(crate) fn usual(self, shape: Shape) -> Recipe {
        self.recipe(shape, self.default_mix())
    }

    /// The same, where nodes that nothing leads to yet are written in a chain of their own.
    pub(crate) fn unfused(self, shape: Shape) -> Recipe {
        match self.usual(shape) {
            Recipe::Smart(geometry, mut options) => {
                options.techniques.fused = false;
                Recipe::Smart(geometry, options)
            }
            usual => usual,
        }
    }

    /// Keys of this length are long, and the kind takes them.
    pub(crate) fn long_key(self) -> usize {
        match self {
            // More than a byte can count.
            Kind::Sherman => 300,
            Kind::Smart => 255,
        }
    }

    /// Levels that a tree of the least nodes has with hundreds of keys of 8 bytes, wherever they are.
    pub(crate) fn high(self) -> u8 {
        match self {
            Kind::Sherman => 5,
            // What keys have in common is in headers, six bytes each: a tree is as high as its keys differ in bytes.
            Kind::Smart => 3,
        }
    }

    /// How full its nodes are at least, when keys came in any order ([`farwood::Survey::load_factor`]).
    pub(crate) fn least_load_factor(self) -> f64 {
        match self {
            Kind::Sherman => 0.5,
            Kind::Smart => 0.25,
        }
    }

    /// What clients of one compute node did for each other, of what was counted: it tells whether they met.
    pub(crate) fn shared(self, stats: &IndexStats) -> u64 {
        match self {
            Kind::Sherman => stats.locks.handed_over,
            Kind::Smart => {
                stats.locks.handed_over + stats.sharing.reads_delegated + stats.sharing.writes_combined
            }
        }
    }

    /// The mix that users get, and the one that is furthest from it.
    pub(crate) fn extremes(self) -> [Mix; 2] {
        match self {
            Kind::Sherman => sherman::extremes().map(Mix::Sherman),
            Kind::Smart => smart::extremes().map(Mix::Smart),
        }
    }

    /// What users get.
    pub(crate) fn default_mix(self) -> Mix {
        self.extremes()[0]
    }

    /// The extremes first, each switch alone as it is not by default, and a cache that holds nothing.
    pub(crate) fn mixes(self) -> Vec<Mix> {
        match self {
            Kind::Sherman => sherman::mixes().into_iter().map(Mix::Sherman).collect(),
            Kind::Smart => smart::mixes().into_iter().map(Mix::Smart).collect(),
        }
    }

    /// Every combination of the switches that make a difference to a client that is alone.
    pub(crate) fn every_mix(self) -> Vec<Mix> {
        match self {
            Kind::Sherman => sherman::every_mix().into_iter().map(Mix::Sherman).collect(),
            Kind::Smart => smart::every_mix().into_iter().map(Mix::Smart).collect(),
        }
    }

    /// All ways to scan.
    pub(crate) fn scan_mixes(self) -> Vec<Mix> {
        match self {
            Kind::Sherman => sherman::scan_mixes().into_iter().map(Mix::Sherman).collect(),
            Kind::Smart => smart::scan_mixes().into_iter().map(Mix::Smart).collect(),
        }
    }

    /// The default mix with a cache of so many bytes.
    pub(crate) fn with_cache(self, cache_bytes: usize) -> Mix {
        match self.default_mix() {
            Mix::Sherman(options) => Mix::Sherman(farwood::Options { cache_bytes, ..options }),
            Mix::Smart(options) => Mix::Smart(farwood::smart::Options { cache_bytes, ..options }),
        }
    }
}

//! The kinds of indexes that the body is run on, and in which words it asks for one. Parts of the body know no kind;
//! what they need to know of one is asked here.

use super::counts::{Cost, Work};
use super::sherman;
use crate::kit::recipe::Recipe;

/// A kind of index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sherman,
}

/// What a part of the body wants an index to be like.
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
}

impl Shape {
    /// Keys and values of 8 bytes in tiny nodes.
    pub(crate) const TINY: Shape = Shape { max_key: 8, max_value: 8, nodes: Nodes::Tiny };
    /// Keys and values of 8 bytes in usual nodes.
    pub(crate) const USUAL: Shape = Shape { nodes: Nodes::Usual, ..Shape::TINY };
}

impl Kind {
    pub(crate) fn recipe(self, shape: Shape, mix: Mix) -> Recipe {
        let Mix::Sherman(options) = mix;
        match self {
            Kind::Sherman => Recipe::Sherman(sherman::geometry(shape), options),
        }
    }

    /// The mix that users get, and the one that is furthest from it.
    pub(crate) fn extremes(self) -> [Mix; 2] {
        match self {
            Kind::Sherman => sherman::extremes().map(Mix::Sherman),
        }
    }

    /// What users get.
    pub(crate) fn default_mix(self) -> Mix {
        self.extremes()[0]
    }

    /// Each switch off alone, all of them off, and a cache that holds nothing. The extremes come first.
    pub(crate) fn mixes(self) -> Vec<Mix> {
        match self {
            Kind::Sherman => sherman::mixes().into_iter().map(Mix::Sherman).collect(),
        }
    }

    /// Every combination of the switches.
    pub(crate) fn every_mix(self) -> Vec<Mix> {
        match self {
            Kind::Sherman => sherman::every_mix().into_iter().map(Mix::Sherman).collect(),
        }
    }

    /// All ways to scan.
    pub(crate) fn scan_mixes(self) -> Vec<Mix> {
        match self {
            Kind::Sherman => sherman::scan_mixes().into_iter().map(Mix::Sherman).collect(),
        }
    }

    /// The default mix with a cache of so many bytes.
    pub(crate) fn with_cache(self, cache_bytes: usize) -> Mix {
        let Mix::Sherman(options) = self.default_mix();
        Mix::Sherman(farwood::Options { cache_bytes, ..options })
    }

    /// What `work` may cost on an index of shape [`Shape::USUAL`] with a warm cache: one of these.
    pub(crate) fn costs(self, mix: Mix, work: Work) -> Vec<Cost> {
        let Mix::Sherman(options) = mix;
        match self {
            Kind::Sherman => sherman::costs(options.techniques, work),
        }
    }
}

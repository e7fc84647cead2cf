//! The words in which tests ask for an index of a kind. Tests of what every index does know no kind, and nor does this.

use std::time::Duration;

use farwood::{IndexKind, IndexSpec, IndexStats, Limits, Nodes};

/// The shape of an index that a test wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The longest key, in bytes.
    pub(crate) max_key: usize,
    /// The longest value, in bytes.
    pub(crate) max_value: usize,
    pub(crate) nodes: Nodes,
}

impl Shape {
    /// Keys and values of 8 bytes in tiny nodes.
    pub(crate) const TINY: Shape = Shape { max_key: 8, max_value: 8, nodes: Nodes::Tiny };
    /// Keys and values of 8 bytes in usual nodes.
    pub(crate) const USUAL: Shape = Shape { nodes: Nodes::Usual, ..Shape::TINY };

    /// Yields the index that users get, in this shape.
    pub(crate) fn usual(self, kind: IndexKind) -> IndexSpec {
        self.of(kind.default_mix())
    }

    /// Makes an index in this shape, with the options of `mix`.
    pub(crate) fn of(self, mix: IndexSpec) -> IndexSpec {
        mix.sized(Limits { max_key: self.max_key, max_value: self.max_value }, self.nodes)
    }
}

/// Mixes of options, each in a shape that does not matter ([`Shape::of`]).
pub(crate) trait Mixes: Copy {
    /// Yields the options that users get.
    fn default_mix(self) -> IndexSpec;

    /// Yields the mix that users get, and the one that is furthest from it.
    fn extremes(self) -> [IndexSpec; 2];

    /// Yields the extremes first, each switch alone as it is not by default, a cache that holds nothing, and intents.
    fn mixes(self) -> Vec<IndexSpec>;

    /// Yields every combination of the switches that are on by default, but for most that come to the same as another.
    fn every_mix(self) -> Vec<IndexSpec>;

    /// Yields the mix that users get, and it with each switch on that is off by default.
    fn with_each_on(self) -> Vec<IndexSpec>;

    /// Windows of one node and of many, caches that hold nothing, little and everything, leaves that are replaced.
    fn scan_mixes(self) -> Vec<IndexSpec>;
}

impl Mixes for IndexKind {
    fn default_mix(self) -> IndexSpec {
        self.spec(Limits { max_key: 8, max_value: 8 }, Nodes::Tiny)
    }

    fn extremes(self) -> [IndexSpec; 2] {
        [self.default_mix(), self.default_mix().without_techniques()]
    }

    fn mixes(self) -> Vec<IndexSpec> {
        let mut mixes = self.extremes().to_vec();
        for (name, on) in self.default_mix().techniques() {
            mixes.push(switched(self.default_mix(), name, !on));
        }
        mixes.push(self.default_mix().with_options(|options| options.cache_bytes = 1));
        mixes.push(self.default_mix().with_options(|options| options.intent_log = false));
        mixes
    }

    fn every_mix(self) -> Vec<IndexSpec> {
        let switches: Vec<_> = self.default_mix().techniques().into_iter().filter(|(_, on)| *on).collect();
        let mixes = (0..1u32 << switches.len()).rev().map(|bits| {
            let on = switches.iter().enumerate().map(|(i, (name, _))| (*name, bits >> i & 1 == 1));
            on.fold(self.default_mix(), |mix, (name, on)| switched(mix, name, on))
        });
        // One that comes to the same as another stays, for attaching has to make that of it.
        let (mut kept, repeated): (Vec<_>, Vec<_>) = mixes.partition(|mix| *mix == mix.effective(true));
        kept.extend(repeated.into_iter().find(|mix| mix.effective(true).technique("fused") == Some(true)));
        kept
    }

    fn with_each_on(self) -> Vec<IndexSpec> {
        let off = self.default_mix().techniques().into_iter().filter(|(_, on)| !on);
        let each = off.map(|(name, _)| switched(self.default_mix(), name, true));
        [self.default_mix()].into_iter().chain(each).collect()
    }

    fn scan_mixes(self) -> Vec<IndexSpec> {
        let mixes = [32, 2, 1].into_iter().flat_map(|window| {
            [1 << 20, 1, 2000].map(|bytes| {
                self.default_mix().with_options(|options| {
                    options.scan_window = Some(window);
                    options.cache_bytes = bytes;
                })
            })
        });
        let each = self.techniques().into_iter().map(|(name, on)| switched(self.default_mix(), name, !on));
        let replaced = each.filter(|mix| self.default_mix().updates_in_place() && !mix.updates_in_place());
        mixes.chain(replaced.map(|mix| mix.effective(true))).collect()
    }
}

/// Yields `mix` with one switch on or off.
pub(crate) fn switched(mut mix: IndexSpec, name: &str, on: bool) -> IndexSpec {
    assert!(mix.set_technique(name, on), "{name}");
    mix
}

/// Counts what clients of one compute node did for each other: it tells whether they met.
pub(crate) fn shared(stats: &IndexStats) -> u64 {
    let locks = stats.locks.handed_over + stats.shared_locks.joined;
    locks + stats.sharing.reads_delegated + stats.sharing.writes_combined
}

/// Makes an index fit for a fabric of any speed: no client gives up on a lock that others hold in turn. In an emulated
/// guest each of them takes some 50 ms.
pub(crate) fn patient(spec: IndexSpec) -> IndexSpec {
    spec.with_options(|options| options.lock_wait_max = Duration::from_secs(600))
}

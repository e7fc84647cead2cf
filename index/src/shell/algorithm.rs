//! The part of an index that differs from kind to kind, for the shell that all share (`handle.rs`): formats,
//! techniques, and operations. A shell, not a generic tree: each algorithm keeps its own control flow.
//!
//! An algorithm knows neither how operations of clients are coalesced, nor how an index is created and opened.

use std::fmt::Debug;
use std::ops::{Bound, RangeInclusive};
use std::rc::Rc;

use farwood_cache::CacheStats;
use farwood_lock::window::WindowConfig;
use farwood_lock::{LockConfig, Mending};
use farwood_runtime::control::Chunk;
use farwood_runtime::{Extents, Meter, ServerInfo, Verbs};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::check::{AtRest, CheckReport};
use crate::error::{AccessError, LoadError, OpenError, WriteError};
use crate::layout::{Bytes, LayoutError};
use crate::memory::Marks;
use crate::range_index::Scan;
use crate::shell::handle::Local;
use crate::shell::options::Options;
use crate::shell::techniques::Switches;
use crate::value::Value;
use crate::write_op::WriteOp;

/// Sizes of nodes to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// The smallest that the algorithm makes.
    Least,
    /// Small enough that rare events happen all the time.
    Tiny,
    /// Those that users have.
    Usual,
}

/// Limits of the lengths of keys and values of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of its longest key.
    pub max_key: usize,
    /// Bytes of its longest value.
    pub max_value: usize,
}

/// Nodes that have room for more, to which a survey's load factor refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// Leaves of several entries.
    Leaves,
    /// Inner nodes, above leaves of one pair.
    InnerNodes,
}

impl Filled {
    /// Names the nodes, as tables do.
    ///
    /// ```
    /// # use farwood_index::IndexKind;
    /// assert_eq!(IndexKind::Sherman.filled().name(), "leaves");
    /// assert_eq!(IndexKind::Smart.filled().name(), "inner nodes");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Filled::Leaves => "leaves",
            Filled::InnerNodes => "inner nodes",
        }
    }
}

/// The sizes that an index is created with. What a geometry says of bytes holds for one that [`Geometry::check`] has
/// found good.
pub trait Geometry: Copy + PartialEq + Debug + Send + Sync + 'static {
    /// Limits of an index whose creator names none.
    const USUAL_LIMITS: Limits;
    /// True if a leaf is as large as its entry needs; false, as by default, if all leaves have one size.
    const LEAVES_DIFFER: bool = false;

    /// Chooses a geometry for keys and values up to those limits. It may turn out to make no node.
    ///
    /// ```
    /// # use farwood_index::shell::Geometry as _;
    /// # use farwood_index::{Limits, Nodes, sherman};
    /// let geometry = sherman::Geometry::new(Limits { max_key: 8, max_value: 8 }, Nodes::Usual);
    /// assert_eq!(geometry, sherman::Geometry::default());
    /// ```
    fn new(limits: Limits, nodes: Nodes) -> Self;

    /// Draws a geometry for a simulated cluster, most of them tiny. `choose(n)` yields a number below n.
    ///
    /// ```
    /// # use farwood_index::shell::Geometry as _;
    /// # use farwood_index::sherman;
    /// let geometry = sherman::Geometry::draw(|n| n - 1);
    /// assert_eq!(geometry.check(), Ok(()));
    /// ```
    fn draw(choose: impl FnMut(usize) -> usize) -> Self;

    /// Lists choices of formats that go by the sizes if the creator of an index does not say, as switches with names:
    /// each as it is. By default there are none.
    ///
    /// ```
    /// # use farwood_index::shell::Geometry as _;
    /// # use farwood_index::{Limits, Nodes, chime};
    /// let of = |max_value| chime::Geometry::new(Limits { max_key: 8, max_value }, Nodes::Usual);
    /// assert_eq!((of(8).switches(), of(1024).switches()), (vec![("indirect", false)], vec![("indirect", true)]));
    /// ```
    fn switches(&self) -> Vec<(&'static str, bool)> {
        Vec::new()
    }

    /// Sets the switch with that name; yields false if there is none.
    ///
    /// ```
    /// # use farwood_index::shell::Geometry as _;
    /// # use farwood_index::chime;
    /// let mut geometry = chime::Geometry::default();
    /// assert!(geometry.set_switch("indirect", true) && geometry.indirect);
    /// assert!(!geometry.set_switch("warp", true));
    /// ```
    fn set_switch(&mut self, _name: &str, _on: bool) -> bool {
        false
    }

    /// Checks whether the geometry makes a node.
    ///
    /// ```
    /// # use farwood_index::shell::Geometry as _;
    /// # use farwood_index::smart;
    /// let geometry = smart::Geometry { max_key: 1000, ..smart::Geometry::default() };
    /// let error = geometry.check().unwrap_err().to_string();
    /// assert!(error.contains("keys of up to 255 bytes"));
    /// ```
    ///
    /// # Errors
    /// [`LayoutError`] says which size to change.
    fn check(&self) -> Result<(), LayoutError>;

    /// Yields the limits of keys and values.
    ///
    /// ```
    /// # use farwood_index::shell::Geometry as _;
    /// # use farwood_index::{Limits, Nodes, smart};
    /// let limits = Limits { max_key: 200, max_value: 16 };
    /// assert_eq!(smart::Geometry::new(limits, Nodes::Tiny).limits(), limits);
    /// ```
    fn limits(&self) -> Limits;

    /// Counts the bytes of a leaf on a memory server: of the largest, where they differ.
    ///
    /// ```
    /// # use farwood_index::shell::Geometry as _;
    /// # use farwood_index::{sherman, smart};
    /// assert_eq!(sherman::Geometry::default().leaf_bytes(), 1024);
    /// assert_eq!(smart::Geometry::default().leaf_bytes(), 64);
    /// ```
    fn leaf_bytes(&self) -> usize;

    /// Yields the bytes that a get of a key of the longest reads; by default those of a leaf.
    ///
    /// ```
    /// # use farwood_index::shell::Geometry as _;
    /// # use farwood_index::{sherman, smart};
    /// assert_eq!(sherman::Geometry::default().get_bytes(), 1024);
    /// assert_eq!(smart::Geometry::default().get_bytes(), 32);
    /// ```
    fn get_bytes(&self) -> usize {
        self.leaf_bytes()
    }

    /// Counts the leaves for so many keys, whose nodes are filled to `fill`.
    ///
    /// ```
    /// # use farwood_index::shell::Geometry as _;
    /// # use farwood_index::{Limits, Nodes, sherman};
    /// let geometry = sherman::Geometry::new(Limits { max_key: 8, max_value: 8 }, Nodes::Tiny);
    /// assert_eq!((geometry.leaves(100, 1.0), geometry.leaves(100, 0.5)), (25, 50));
    /// ```
    fn leaves(&self, keys: u64, fill: f64) -> u64;

    /// Estimates the bytes on the memory servers for so many keys from above: it is better to ask for a little more
    /// than to fail after a minute of loading. By default those of the leaves.
    ///
    /// ```
    /// # use farwood_index::shell::Geometry as _;
    /// # use farwood_index::sherman;
    /// let bytes = sherman::Geometry::default().bytes_for(1_000_000, 0.8);
    /// assert!((16_000_000..40_000_000).contains(&bytes));
    /// ```
    fn bytes_for(&self, keys: u64, fill: f64) -> u64 {
        self.leaves(keys, fill).saturating_mul(self.leaf_bytes() as u64)
    }

    /// Bounds the bytes of nodes that one operation has taken for itself, or out of the index, without having noted it:
    /// what is lost at most if its client stops. By default a leaf's.
    ///
    /// ```
    /// # use farwood_index::shell::Geometry as _;
    /// # use farwood_index::{sherman, smart};
    /// assert_eq!(sherman::Geometry::default().bytes_in_hand(), 1024);
    /// assert_eq!(smart::Geometry::default().bytes_in_hand(), 2112, "the largest inner node");
    /// ```
    fn bytes_in_hand(&self) -> u64 {
        self.leaf_bytes() as u64
    }

    /// Chooses so many of the ascending `keys` that gets of them meet every inner node of an index that holds them; by
    /// default all of them.
    ///
    /// ```
    /// # use farwood_index::shell::Geometry as _;
    /// # use farwood_index::{Bytes, smart};
    /// let keys = ["aaa", "aab", "b"].map(|key| Bytes::from_slice(key.as_bytes()));
    /// let chosen = smart::Geometry::default().touching(&keys);
    /// assert_eq!(chosen, [keys[0].clone(), keys[2].clone()]);
    /// ```
    fn touching(&self, keys: &[Bytes]) -> Vec<Bytes> {
        keys.to_vec()
    }
}

/// Properties of an algorithm that tests and swarms need to know.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// Events of `tracing` that name the rare paths of this algorithm: a swarm has to reach each.
    pub rare_paths: &'static [&'static str],
    /// Memory of each server, in bytes: enough for the largest cluster that a swarm draws.
    pub bytes_per_server: u64,
    /// Budgets of caches, in bytes, among which a swarm draws: most of them are too small for all nodes.
    pub cache_bytes: &'static [usize],
    /// True if the shape follows from the bytes of the keys, as in radix trees.
    pub is_radix: bool,
    /// True if a key that was removed can be inserted again at once without memory.
    pub inserts_in_place: bool,
    /// True if a change that was dropped may take effect after a read that came later: soon, or never.
    pub finishes_what_was_dropped: bool,
    /// True if a change whose queue pair breaks may fail, with an unknown outcome: it is not made again where other
    /// clients may have overwritten it.
    pub fails_with_queue_pairs: bool,
    /// Events that name its own rare paths of takeovers ([`Options::intent_log`]).
    pub takeover_paths: &'static [&'static str],
    /// Bytes of a key that is long, and legal.
    pub long_key: usize,
    /// Levels that an index of the least nodes has with hundreds of keys of 8 bytes, wherever they are.
    pub height_min: u8,
    /// The least load factor, 0 to 1, after keys came in any order ([`load_factor`](crate::TreeShape::load_factor)).
    pub load_factor_min: f64,
}

impl Trial {
    /// Properties of most kinds: sorted leaves of several entries, updated in place.
    pub const COMMON: Trial = Trial {
        rare_paths: &[],
        // Too small for a huge page, which would take longer to zero than a scenario to run.
        bytes_per_server: 1 << 20,
        cache_bytes: &[1 << 20],
        is_radix: false,
        inserts_in_place: true,
        finishes_what_was_dropped: false,
        fails_with_queue_pairs: false,
        takeover_paths: &[],
        // More than a byte can count.
        long_key: 300,
        height_min: 1,
        load_factor_min: 0.5,
    };
}

/// A kind of index.
///
/// An operation is given the shard's [`Local`] part of the index, which has the fabric, the locks and the allocator.
/// Keys and values of lookups and writes have been checked against the limits, and what these do on the fabric they
/// enter into the meter that they are given. A scan meters and records itself, since its stream outlives the call.
pub trait Algorithm: Copy + PartialEq + Debug + 'static {
    /// The name in catalogs and on the command line.
    const KIND: &'static str;
    /// Nodes to which a survey's load factor refers; by default leaves.
    const FILLED: Filled = Filled::Leaves;
    /// Properties of this algorithm that tests and swarms need to know.
    const TRIAL: Trial;
    /// The most nodes that a scan reads in parallel, if [`Options::scan_window`] does not say; by default one.
    const SCAN_WINDOW: usize = 1;

    /// Sizes, which are decided when an index is created.
    type Geometry: Geometry;
    /// The switches.
    type Techniques: Switches + Copy + PartialEq + Debug + Default + Send + Sync + 'static;
    /// Settings that all compute nodes of an index have to agree on: decided when it is created, kept in the catalog
    /// as JSON. A geometry, and those switches that say where locks are or what protects a node.
    type PersistedConfig: Copy + Debug + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// State that the shards of a compute node share: formats, caches.
    type NodeState: Send + Sync + 'static;
    /// State of one shard, beside its locks and its allocator.
    type ShardState: 'static;

    /// Decides the persisted configuration of an index that is created with these settings on these memory servers. The
    /// geometry has been checked.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::sherman::{Geometry, ShermanAlgorithm, Techniques};
    /// let persisted = ShermanAlgorithm::agree(Geometry::default(), Techniques::ALL, &[])?;
    /// assert_eq!(ShermanAlgorithm::geometry(&persisted), Geometry::default());
    /// # Ok::<_, farwood_index::OpenError>(())
    /// ```
    ///
    /// # Errors
    /// If there can be no such index on such a cluster.
    fn agree(
        geometry: Self::Geometry,
        techniques: Self::Techniques,
        servers: &[ServerInfo],
    ) -> Result<Self::PersistedConfig, OpenError>;

    /// Checks the configuration that a catalog holds. By default all that can be read is good.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::sherman::{Geometry, ShermanAlgorithm, Techniques};
    /// let persisted = ShermanAlgorithm::agree(Geometry::default(), Techniques::ALL, &[])?;
    /// assert_eq!(ShermanAlgorithm::check_persisted(&persisted), Ok(()));
    /// # Ok::<_, farwood_index::OpenError>(())
    /// ```
    ///
    /// # Errors
    /// The end of a sentence that says what does not go together.
    fn check_persisted(_persisted: &Self::PersistedConfig) -> Result<(), String> {
        Ok(())
    }

    /// Checks whether the index `name` can be on these memory servers. By default it can be on any.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::sherman::{Geometry, ShermanAlgorithm, Techniques};
    /// # farwood_doctest::run(async |node, _| {
    /// # use farwood_runtime::NodeContext;
    /// let (control, techniques) = (node.control(), Techniques::ALL);
    /// let persisted = ShermanAlgorithm::agree(Geometry::default(), techniques, control.servers())?;
    /// assert_eq!(ShermanAlgorithm::check_cluster("users", &persisted, control.servers()), Ok(()));
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Why it cannot.
    fn check_cluster(
        _name: &str,
        _persisted: &Self::PersistedConfig,
        _servers: &[ServerInfo],
    ) -> Result<(), OpenError> {
        Ok(())
    }

    /// Yields the sizes in the persisted configuration.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::sherman::{Geometry, ShermanAlgorithm, Techniques};
    /// let persisted = ShermanAlgorithm::agree(Geometry::default(), Techniques::ALL, &[])?;
    /// assert_eq!(ShermanAlgorithm::geometry(&persisted), Geometry::default());
    /// # Ok::<_, farwood_index::OpenError>(())
    /// ```
    fn geometry(persisted: &Self::PersistedConfig) -> Self::Geometry;

    /// Yields what remains of the switches that a compute node asks for, on an index with this configuration: by
    /// default all.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::smart::{Geometry, SmartAlgorithm, Techniques};
    /// let persisted = SmartAlgorithm::agree(Geometry::default(), Techniques::NONE, &[])?;
    /// let techniques = SmartAlgorithm::in_effect(Techniques::ALL, &persisted);
    /// assert!(techniques.fused && !techniques.in_place_leaves);
    /// # Ok::<_, farwood_index::OpenError>(())
    /// ```
    fn in_effect(techniques: Self::Techniques, _persisted: &Self::PersistedConfig) -> Self::Techniques {
        techniques
    }

    /// Yields what remains of the switches that an index is created with, where locks can be in on-chip memory
    /// ([`farwood_lock::on_chip_possible`]) or cannot: by default all, as they depend on nothing.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::sherman::{ShermanAlgorithm, Techniques};
    /// let techniques = <ShermanAlgorithm as Algorithm>::effective(Techniques::ALL, false);
    /// assert!(!techniques.on_chip);
    /// ```
    fn effective(techniques: Self::Techniques, _on_chip_possible: bool) -> Self::Techniques {
        techniques
    }

    /// Yields the round trips of a get, and those of an update of a present key that has room, on an index of that
    /// geometry: caches warm, no conflict.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::sherman::{Geometry, ShermanAlgorithm, Techniques};
    /// let (get, update) = ShermanAlgorithm::round_trips(Geometry::default(), Techniques::ALL);
    /// assert_eq!((get, update), (1..=1, 2..=2));
    /// ```
    fn round_trips(
        geometry: Self::Geometry,
        techniques: Self::Techniques,
    ) -> (RangeInclusive<u64>, RangeInclusive<u64>);

    /// Tells whether a change of a value, which keeps its length, takes no memory of an index of that geometry; by
    /// default it takes none.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::smart::{Geometry, SmartAlgorithm, Techniques};
    /// assert!(SmartAlgorithm::updates_in_place(Geometry::default(), Techniques::ALL));
    /// assert!(!SmartAlgorithm::updates_in_place(Geometry::default(), Techniques::NONE));
    /// ```
    fn updates_in_place(_geometry: Self::Geometry, _techniques: Self::Techniques) -> bool {
        true
    }

    /// Chooses locks and windows for the switches in effect; by default locks in host memory, and windows in which
    /// clients share reads and writes. `locks` has the options' limits of waits already.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::sherman::{ShermanAlgorithm, Techniques};
    /// let (locks, _windows) = ShermanAlgorithm::meet(Techniques::NONE, Default::default());
    /// assert!(!locks.hierarchical && !locks.handover);
    /// ```
    fn meet(_techniques: Self::Techniques, locks: LockConfig) -> (LockConfig, WindowConfig) {
        (LockConfig { on_chip: false, ..locks }, WindowConfig::default())
    }

    /// Makes the state that a compute node's shards share, for a geometry that has been checked. Random choices of
    /// caches follow `seed`.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::sherman::{Geometry, Options, ShermanAlgorithm, Techniques};
    /// let persisted = ShermanAlgorithm::agree(Geometry::default(), Techniques::ALL, &[])?;
    /// let node = ShermanAlgorithm::node_state(&persisted, &Options::default(), 7)?;
    /// assert!(ShermanAlgorithm::cache_bytes(&node) < 1 << 20, "it is empty yet");
    /// # Ok::<_, farwood_index::OpenError>(())
    /// ```
    ///
    /// # Errors
    /// If the geometry makes no node.
    fn node_state(
        persisted: &Self::PersistedConfig,
        options: &Options<Self::Techniques>,
        seed: u64,
    ) -> Result<Self::NodeState, OpenError>;

    /// Counts the bytes of the largest node that is written under a lock: a compute node with intents records what it
    /// is about to write there. By default it is a leaf.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::sherman::{Geometry, Options, ShermanAlgorithm, Techniques};
    /// let persisted = ShermanAlgorithm::agree(Geometry::default(), Techniques::ALL, &[])?;
    /// let node = ShermanAlgorithm::node_state(&persisted, &Options::default(), 7)?;
    /// assert_eq!(ShermanAlgorithm::locked_bytes(&persisted, &node), 1024);
    /// # Ok::<_, farwood_index::OpenError>(())
    /// ```
    fn locked_bytes(persisted: &Self::PersistedConfig, _node: &Self::NodeState) -> usize {
        Self::geometry(persisted).leaf_bytes()
    }

    /// Yields how a compute node makes a node whole which a dead one has left half written without an intent
    /// ([`Held::with_mending`](farwood_lock::Held::with_mending)). By default it does not.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::chime::{ChimeAlgorithm, Geometry, Options, Techniques};
    /// let persisted = ChimeAlgorithm::agree(Geometry::default(), Techniques::ALL, &[])?;
    /// let node = ChimeAlgorithm::node_state(&persisted, &Options::default(), 7)?;
    /// assert!(ChimeAlgorithm::mending(&node).is_some_and(|mending| mending.node_bytes == 1408));
    /// # Ok::<_, farwood_index::OpenError>(())
    /// ```
    fn mending(_node: &Self::NodeState) -> Option<Mending> {
        None
    }

    /// Makes the state of one shard.
    fn shard_state(node: &Self::NodeState) -> Self::ShardState;

    /// Counts the bytes that the compute node's cache takes now.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::sherman::{Geometry, Options, ShermanAlgorithm, Techniques};
    /// # let persisted = ShermanAlgorithm::agree(Geometry::default(), Techniques::ALL, &[])?;
    /// let node = ShermanAlgorithm::node_state(&persisted, &Options::default(), 7)?;
    /// assert!(ShermanAlgorithm::cache_bytes(&node) < 1 << 20, "it is empty yet");
    /// # Ok::<_, farwood_index::OpenError>(())
    /// ```
    fn cache_bytes(node: &Self::NodeState) -> usize;

    /// Forgets all addresses that the compute node keeps from one operation to the next: what is there may be used
    /// again, for anything. No operation is under way.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::sherman::{Geometry, Options, ShermanAlgorithm, Techniques};
    /// # let persisted = ShermanAlgorithm::agree(Geometry::default(), Techniques::ALL, &[])?;
    /// # let node = ShermanAlgorithm::node_state(&persisted, &Options::default(), 7)?;
    /// ShermanAlgorithm::empty_caches(&node);
    /// let shard = ShermanAlgorithm::shard_state(&node);
    /// assert_eq!(ShermanAlgorithm::cache_stats(&node, &shard).nodes, 0);
    /// # Ok::<_, farwood_index::OpenError>(())
    /// ```
    fn empty_caches(node: &Self::NodeState);

    /// Yields the counters of caches; by default only their size.
    ///
    /// ```
    /// # use farwood_index::Algorithm;
    /// # use farwood_index::sherman::{Geometry, Options, ShermanAlgorithm, Techniques};
    /// # let persisted = ShermanAlgorithm::agree(Geometry::default(), Techniques::ALL, &[])?;
    /// let node = ShermanAlgorithm::node_state(&persisted, &Options::default(), 7)?;
    /// let shard = ShermanAlgorithm::shard_state(&node);
    /// assert_eq!(ShermanAlgorithm::cache_stats(&node, &shard).lookups, 0);
    /// # Ok::<_, farwood_index::OpenError>(())
    /// ```
    fn cache_stats(node: &Self::NodeState, _shard: &Self::ShardState) -> CacheStats {
        CacheStats { bytes: Self::cache_bytes(node) as u64, ..CacheStats::default() }
    }

    /// Has the janitor see to memory that waits for more than an epoch: an operation needs it that found none. By
    /// default there is none such.
    fn look_after_memory<V: Verbs>(_local: &Local<Self, V>) {}

    /// Has the janitor see to memory that waits for more than an epoch: this shard drops its last handle to the index.
    /// By default there is none such.
    fn leave<V: Verbs>(_local: &Local<Self, V>) {}

    /// Yields the value of `key`.
    fn lookup<V: Verbs>(
        local: &Rc<Local<Self, V>>,
        meter: &Meter,
        key: &[u8],
    ) -> impl Future<Output = Result<Option<Value>, AccessError>>;

    /// Applies `op` to `key`; yields whether that had an effect.
    fn write<V: Verbs>(
        local: &Rc<Local<Self, V>>,
        meter: &Meter,
        key: &[u8],
        op: WriteOp<'_>,
    ) -> impl Future<Output = Result<bool, WriteError>>;

    /// Yields the pairs between two bounds ([`crate::RangeIndex::scan`]). The stream has a meter of its own, and enters
    /// itself into the statistics when it ends ([`Local::record`]).
    fn scan<V: Verbs>(
        local: Rc<Local<Self, V>>,
        range: (Bound<Bytes>, Bound<Bytes>),
        limit: Option<usize>,
    ) -> Scan;

    /// Fills the index, which nothing was written to ([`crate::RangeIndex::bulk_load`]). Keys ascend, and they and
    /// values have been checked against the limits; a pair that was refused is the end. `fill` is above 0 and at most
    /// 1.
    fn bulk_load<V: Verbs, K: AsRef<[u8]>, U: AsRef<[u8]>>(
        local: &Rc<Local<Self, V>>,
        pairs: &mut dyn Iterator<Item = Result<(K, U), LoadError>>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, LoadError>>;

    /// Walks over all nodes: adds the shape of the index to the report, and what is wrong with it, and shows `visit`
    /// every key with its value, ascending. If the index is at rest it takes no lock. If not it is for a survey
    /// ([`crate::RangeIndex::survey`]), and writers may be at work.
    ///
    /// # Errors
    /// If a memory server cannot be read; and [`AccessError::Corrupt`] if a node is such that the walk cannot go on. Of
    /// an index at rest that is one more finding.
    fn walk<V: Verbs>(
        local: &Rc<Local<Self, V>>,
        meter: &Meter,
        at_rest: Option<AtRest<'_>>,
        report: &mut CheckReport,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> impl Future<Output = Result<(), AccessError>>;

    /// Notes all memory of the index that something leads to, while clients work: each node that is in the index from
    /// the beginning to the end, and what led to memory of no node all the while. It may note more. Yields false if
    /// this kind of index cannot be walked so, as by default: lost memory is given back by a check at rest alone.
    ///
    /// # Errors
    /// If a memory server cannot be read, or a node is such that the walk cannot go on.
    fn mark<V: Verbs>(
        _local: &Rc<Local<Self, V>>,
        _meter: &Meter,
        _marks: &mut Marks,
    ) -> impl Future<Output = Result<bool, AccessError>> {
        async { Ok(false) }
    }

    /// Yields what of a lost piece stays as it is: something may lead there that cannot be told of nodes of the index.
    /// By default nothing.
    ///
    /// # Errors
    /// If a memory server cannot be read.
    fn kept_of<V: Verbs>(
        _local: &Local<Self, V>,
        _meter: &Meter,
        _piece: Chunk,
    ) -> impl Future<Output = Result<Extents, AccessError>> {
        async { Ok(Extents::default()) }
    }
}

//! What tells one kind of index from another, for the shell that all share (`handle.rs`): formats, techniques, and what
//! an operation does. A shell, not a generic tree: each algorithm keeps its own control flow.
//!
//! An algorithm knows neither metering nor the sharing of operations between clients, nor how it is created and opened.

use std::fmt::Debug;
use std::ops::Bound;
use std::rc::Rc;

use farwood_lock::LockConfig;
use farwood_lock::window::WindowConfig;
use farwood_runtime::{Meter, ServerInfo, Verbs};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::check::{CheckOptions, CheckReport};
use crate::error::IndexError;
use crate::handle::Local;
use crate::intent::Intent;
use crate::layout::Bytes;
use crate::options::Options;
use crate::range_index::{Scan, Survey};
use crate::stats::CacheCounters;
use crate::techniques::Switches;
use crate::value::Value;

/// The sizes that an index is created with.
pub trait Geometry: Copy + PartialEq + Debug + Default + Send + Sync + 'static {
    /// The longest key, in bytes.
    fn max_key(&self) -> usize;

    /// The longest value, in bytes.
    fn max_value(&self) -> usize;
}

/// A kind of index.
///
/// An operation is given the shard's [`Local`] part of the index, which has the fabric, the locks and the allocator.
/// Keys and values have been checked against the geometry. What an operation does on the fabric it enters into the
/// meter that it is given.
pub trait Algorithm: Copy + PartialEq + Debug + 'static {
    /// The name in catalogs and on the command line.
    const KIND: &'static str;
    /// [`Options::scan_window`] by default.
    const SCAN_WINDOW: usize;

    /// Sizes, which are decided when an index is created.
    type Geometry: Geometry;
    /// The switches.
    type Techniques: Switches;
    /// What all compute nodes that work on an index have to agree on: decided when it is created, kept in the catalog
    /// as JSON. A geometry, and those switches that say where locks are or what protects a node.
    type Agreed: Copy + Debug + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// What the shards of a compute node share: formats, caches.
    type NodeState: Send + Sync + 'static;
    /// What a shard has for itself, beside its locks and its allocator.
    type ShardState: 'static;

    /// Decides what all will agree on, of an index that is created with these on these memory servers.
    ///
    /// # Errors
    /// If the geometry makes no node, or there can be no such index on such a cluster.
    fn agree(
        geometry: Self::Geometry,
        techniques: Self::Techniques,
        servers: &[ServerInfo],
    ) -> Result<Self::Agreed, IndexError>;

    /// Checks what a catalog holds.
    ///
    /// # Errors
    /// What does not go together, as the end of a sentence.
    fn check_agreed(agreed: &Self::Agreed) -> Result<(), String>;

    /// Checks whether the index `name` can be on these memory servers.
    ///
    /// # Errors
    /// Why it cannot.
    fn check_cluster(name: &str, agreed: &Self::Agreed, servers: &[ServerInfo]) -> Result<(), IndexError>;

    /// Yields the sizes among what was agreed on.
    fn geometry(agreed: &Self::Agreed) -> Self::Geometry;

    /// Yields what remains of the switches that a compute node asks for, on an index with which this was agreed on.
    fn in_effect(techniques: Self::Techniques, agreed: &Self::Agreed) -> Self::Techniques;

    /// Chooses locks and windows for the switches in effect. What the options say of waits is in `locks` already.
    fn meet(techniques: Self::Techniques, locks: LockConfig) -> (LockConfig, WindowConfig);

    /// Makes what a compute node's shards share. Draws of caches follow `seed`.
    ///
    /// # Errors
    /// If the geometry makes no node.
    fn node_state(
        agreed: &Self::Agreed,
        options: &Options<Self>,
        seed: u64,
    ) -> Result<Self::NodeState, IndexError>;

    /// Makes what one shard has for itself.
    fn shard_state(node: &Self::NodeState) -> Self::ShardState;

    /// Bytes that the compute node's cache takes now.
    fn cache_bytes(node: &Self::NodeState) -> usize;

    /// Yields what caches have counted.
    fn cache_counters(node: &Self::NodeState, shard: &Self::ShardState) -> CacheCounters;

    /// Yields the value of `key`.
    fn lookup<V: Verbs>(
        local: &Rc<Local<Self, V>>,
        meter: &Meter,
        key: &[u8],
    ) -> impl Future<Output = Result<Option<Value>, IndexError>>;

    /// Changes `key` as `intent` has it; yields whether that had an effect.
    fn write<V: Verbs>(
        local: &Rc<Local<Self, V>>,
        meter: &Meter,
        key: &[u8],
        intent: Intent<'_>,
    ) -> impl Future<Output = Result<bool, IndexError>>;

    /// Yields the pairs between two bounds ([`crate::RangeIndex::scan`]). The stream records itself.
    fn scan<V: Verbs>(
        local: Rc<Local<Self, V>>,
        range: (Bound<Bytes>, Bound<Bytes>),
        limit: Option<usize>,
    ) -> Scan;

    /// Fills the index, which nothing was written to ([`crate::RangeIndex::bulk_load`]).
    fn bulk_load<V: Verbs, K: AsRef<[u8]>, U: AsRef<[u8]>>(
        local: &Rc<Local<Self, V>>,
        pairs: impl IntoIterator<Item = (K, U)>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, IndexError>>;

    /// Reports the shape ([`crate::RangeIndex::survey`]).
    fn survey<V: Verbs>(local: &Rc<Local<Self, V>>) -> impl Future<Output = Result<Survey, IndexError>>;

    /// Checks the index, which is at rest, shows `visit` every key with its value, and reports what is wrong.
    ///
    /// # Errors
    /// Only if a memory server cannot be read.
    fn check<V: Verbs>(
        local: &Rc<Local<Self, V>>,
        options: &CheckOptions,
        visit: impl FnMut(&[u8], &[u8]),
    ) -> impl Future<Output = Result<CheckReport, IndexError>>;
}

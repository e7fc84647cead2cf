//! The locks and windows in which the clients of an index of any kind meet. One for each compute node that works on the
//! index; each shard gets tables of its own, which are connected by it. Knows no tree.

use std::sync::Arc;

use farwood_lock::window::WindowConfig;
use farwood_lock::{Images, IntentLog, LockConfig, LockTable, tag_of};
use farwood_runtime::node::NodeContext;
use farwood_runtime::{CatalogEntry, PortLease, Verbs};

use crate::shell::coalescing::{Coalescing, InFlightSketch};
use crate::stats::IndexStats;

/// The common part of the tables of all shards of a compute node.
pub(crate) struct Meeting {
    name: Arc<str>,
    tag: u16,
    dead_owners: Arc<[u16]>,
    lock_port: PortLease,
    window_port: PortLease,
    sketch: InFlightSketch,
    images: Arc<Images>,
    /// Seed of the hashes of keys.
    seed: u64,
}

impl Meeting {
    /// Prepares the meeting for the index of that catalog entry, on the compute node `node`.
    pub(crate) fn new(node: &impl NodeContext, entry: &CatalogEntry) -> Self {
        Meeting {
            name: entry.name.as_str().into(),
            tag: tag_of(entry.id),
            dead_owners: Arc::clone(&entry.dead_owners),
            lock_port: node.allocate_port(),
            window_port: node.allocate_port(),
            sketch: InFlightSketch::new(),
            images: Arc::default(),
            seed: node.seed(),
        }
    }

    /// Makes the tables of one shard, as `locks` and `windows` say, and with intents if there is memory for them; on
    /// all shards of a compute node they say the same. The rest of their configuration is filled in here: clients wait
    /// for windows as long as for locks.
    ///
    /// # Panics
    /// If the shard has them already.
    pub(crate) fn attach<V: Verbs>(
        &self,
        verbs: &V,
        locks: LockConfig,
        windows: WindowConfig,
        intents: Option<IntentLog>,
    ) -> (LockTable<V>, Coalescing<V>) {
        let windows = WindowConfig { wait_max: locks.wait_max, seed: self.seed, ..windows };
        let (name, dead_owners) = (Arc::clone(&self.name), Arc::clone(&self.dead_owners));
        let locks = LockConfig { name, tag: self.tag, dead_owners, ..locks };
        let (port, images) = (self.lock_port.port(), Arc::clone(&self.images));
        let locks = LockTable::attach_with_intents(verbs.clone(), port, locks, images, intents);
        let coalescing = Coalescing::attach(verbs.clone(), self.window_port.port(), windows, &self.sketch);
        (locks, coalescing)
    }

    /// Adds the counters of these tables, of one of so many `shards`, to `stats`.
    pub(crate) fn count<V: Verbs>(
        &self,
        locks: &LockTable<V>,
        coalescing: &Coalescing<V>,
        shards: usize,
        stats: &mut IndexStats,
    ) {
        stats.locks = locks.stats();
        stats.sharing = coalescing.stats();
        // These belong to the whole compute node: each shard reports its share of them.
        let common = self.sketch.bytes() + self.images.bytes();
        stats.lock_table_bytes = (locks.bytes() + coalescing.bytes() + common / shards) as u64;
    }
}

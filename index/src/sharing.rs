//! Read delegation and write combining (SMART section 4.2) for any index: an operation on one key, done by its client
//! or by another one for it. Knows no tree; the windows are `farwood_lock`'s.
//!
//! An operation whose key nobody else of the compute node is at works alone, without a window, and most do: a window
//! whose home is another shard takes two messages (measured: uniform gets on two shards 0.49 -> 0.28 Mops/s each if
//! all came to windows). Whether somebody is there, counters tell, by a hash of the key. It is only advice: whoever
//! works alone is right anyway, and the second one to come leads a window for the third.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farwood_lock::window::{Access, Entered, Outcome, WindowConfig, WindowTable};
use farwood_runtime::{Meter, Port, Verbs};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::IndexError;
use crate::intent::Intent;
use crate::stats::SharingCounters;
use crate::value::Value;

/// Writes that may be combined: each with its own kind.
const PUT: u8 = 0;
const UPDATE: u8 = 1;

/// How many operations of a compute node are at which keys, by their hashes. Shared by its shards.
#[derive(Clone)]
pub(crate) struct Crowd(Arc<[AtomicU32]>);

impl Crowd {
    /// 64 KiB: of some hundred clients few meet by chance.
    const COUNTERS: usize = 1 << 14;

    pub(crate) fn new() -> Self {
        Crowd((0..Self::COUNTERS).map(|_| AtomicU32::new(0)).collect())
    }

    /// Adds an operation on `key`.
    #[inline]
    fn join(&self, key: &[u8]) -> Presence<'_> {
        let counter = &self.0[xxh3_64_with_seed(key, 0) as usize % Self::COUNTERS];
        let met = counter.fetch_add(1, Ordering::Relaxed) > 0;
        Presence { counter, met }
    }

    /// Memory of the counters.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// An operation that is counted, until it is dropped.
struct Presence<'c> {
    counter: &'c AtomicU32,
    /// Whether another one was there.
    met: bool,
}

impl Drop for Presence<'_> {
    #[inline]
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The windows of one shard, unless both switches are off.
pub(crate) struct Sharing<V: Verbs>(Option<Windows<V>>);

struct Windows<V: Verbs> {
    table: WindowTable<V>,
    crowd: Crowd,
    delegation: bool,
    combining: bool,
}

impl<V: Verbs> Sharing<V> {
    /// Once per shard, with the same configuration and the same crowd on all shards of a compute node.
    pub(crate) fn attach(verbs: V, port: Port, config: WindowConfig, crowd: &Crowd) -> Self {
        let WindowConfig { delegation, combining, .. } = config;
        Sharing((delegation || combining).then(|| Windows {
            table: WindowTable::attach(verbs, port, config),
            crowd: crowd.clone(),
            delegation,
            combining,
        }))
    }

    /// The value of `key`: what `read` finds, or what somebody else has found or written since this was called.
    #[inline]
    pub(crate) async fn get(
        &self,
        meter: &Meter,
        key: &[u8],
        read: impl Future<Output = Result<Option<Value>, IndexError>>,
    ) -> Result<Option<Value>, IndexError> {
        let Some(windows) = self.0.as_ref().filter(|windows| windows.delegation) else { return read.await };
        let presence = windows.crowd.join(key);
        if !presence.met {
            return read.await;
        }
        match windows.table.enter(meter, key, Access::Read).await {
            Entered::Led(lead) => {
                let value = read.await?;
                lead.finish(Outcome::read(value.as_deref()));
                Ok(value)
            }
            Entered::Read(value) => Ok(value.map(Value::shared)),
            Entered::Alone => read.await,
            Entered::Written { .. } => unreachable!("readers are not told that they have written"),
        }
    }

    /// What `write` does, as `intent` has it; or somebody else's write that overwrites it.
    #[inline]
    pub(crate) async fn write(
        &self,
        meter: &Meter,
        key: &[u8],
        intent: Intent<'_>,
        write: impl Future<Output = Result<bool, IndexError>>,
    ) -> Result<bool, IndexError> {
        let kind = match intent {
            Intent::Put(_) => PUT,
            Intent::Update(_) => UPDATE,
            // Of several inserts one has an effect, and of several removes: they are no matter of the last one.
            Intent::Insert(_) | Intent::Remove => return write.await,
        };
        let Some(windows) = self.0.as_ref().filter(|windows| windows.combining) else { return write.await };
        let presence = windows.crowd.join(key);
        if !presence.met {
            return write.await;
        }
        match windows.table.enter(meter, key, Access::Write(kind)).await {
            Entered::Led(lead) => {
                let applied = write.await?;
                lead.finish(Outcome::written(applied, intent.value()));
                Ok(applied)
            }
            Entered::Written { applied } => Ok(applied),
            Entered::Alone => write.await,
            Entered::Read(_) => unreachable!("writers are not told what was read"),
        }
    }

    /// What was shared so far.
    pub(crate) fn counters(&self) -> SharingCounters {
        let stats = self.0.as_ref().map(|windows| windows.table.stats()).unwrap_or_default();
        SharingCounters { reads_delegated: stats.reads_delegated, writes_combined: stats.writes_combined }
    }

    /// Memory of this shard's windows.
    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |windows| windows.table.bytes())
    }

    /// Clients that wait and windows that are open: 0 at rest.
    pub(crate) fn in_use(&self) -> usize {
        self.0.as_ref().map_or(0, |windows| {
            let (waiting, open) = windows.table.in_use();
            waiting + open
        })
    }
}

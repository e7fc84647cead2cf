//! A memory server's side: its region, registered whole, and the queue pairs of compute nodes' shards. Its CPU takes
//! no part in what comes over them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};

use super::context::{Port, VerbsConfig};
use super::cq::CompletionQueue;
use super::error::VerbsError;
use super::loopback::measure_write;
use super::memory::{Registration, register_region};
use super::qp::{QueuePair, Side};
use crate::clock::Clock;
use crate::control::queue_pair::{Answer, Endpoint, PeerId, Responder};
use crate::mapped::region::Region;
use crate::message::ShardId;

/// Completions of a queue that gets none: the fewest that libibverbs lets one ask for.
const COMPLETIONS: u32 = 1;

/// Queue pairs of one peer at most: one for each shard of all nodes of its process. They take memory of the device.
const PER_PEER_MAX: usize = 1024;

/// Lets compute nodes reach a region by RDMA.
pub struct VerbsResponder {
    /// By peer and shard. Locked for a look only: to connect a queue pair can take a second. Destroyed before
    /// the region is deregistered.
    queue_pairs: Mutex<BTreeMap<(u64, u16), QueuePair>>,
    region: Registration<Arc<Region>>,
    cq: Arc<CompletionQueue>,
    port: Arc<Port>,
    clock: Clock,
    write_ns: u32,
}

impl VerbsResponder {
    /// Opens the device, registers the region, and measures how long a WRITE takes at least.
    ///
    /// # Errors
    /// If there is no device, port or address that can be used, or the region cannot be registered.
    pub fn new(region: Arc<Region>, config: &VerbsConfig) -> Result<Arc<Self>, VerbsError> {
        let port = Arc::new(Port::open(config)?);
        let clock = Clock::new();
        Ok(Arc::new(VerbsResponder {
            queue_pairs: Mutex::default(),
            write_ns: measure_write(&port, &clock)?,
            region: register_region(port.protection(), region)?,
            cq: Arc::new(CompletionQueue::new(port.context(), COMPLETIONS, false)?),
            port,
            clock,
        }))
    }

    fn queue_pairs(&self) -> MutexGuard<'_, BTreeMap<(u64, u16), QueuePair>> {
        self.queue_pairs.lock().expect("nothing panics while it looks at the queue pairs")
    }

    /// Destroys a queue pair, and keeps it if that fails: as long as it is there, what comes over it may take effect.
    fn retire(&self, key: (u64, u16), qp: QueuePair) -> Result<(), String> {
        qp.retire().map_err(|qp| {
            self.queue_pairs().insert(key, qp);
            let (peer, shard) = key;
            tracing::error!(peer, shard, "a queue pair can be neither stopped nor destroyed");
            "its RDMA device can neither stop nor destroy the queue pair before (see dmesg there)".into()
        })
    }

    fn connect(&self, theirs: &Endpoint) -> Result<QueuePair, VerbsError> {
        // It sends acknowledgements only, which have the numbers of what they acknowledge.
        let qp = QueuePair::new(&self.port, &self.cq, Side::Responder, self.clock.now() as u32)?;
        qp.connect(theirs)?;
        Ok(qp)
    }
}

impl Responder for VerbsResponder {
    fn answer(&self, peer: PeerId, shard: ShardId, theirs: Endpoint) -> Result<Answer, String> {
        let key = (peer.0, shard.0);
        let before = self.queue_pairs().remove(&key);
        before.map_or(Ok(()), |qp| self.retire(key, qp))?;
        if self.queue_pairs().range(of_peer(peer)).count() >= PER_PEER_MAX {
            return Err(format!(
                "a process may have {PER_PEER_MAX} queue pairs to a memory server, not more"
            ));
        }
        let qp = self.connect(&theirs).map_err(|error| error.to_string())?;
        let endpoint = qp.endpoint();
        let displaced = self.queue_pairs().insert(key, qp);
        // The calls for a peer come one after another.
        debug_assert!(displaced.is_none(), "a shard has one queue pair");
        Ok(Answer {
            endpoint,
            region_address: self.region.owner().start().as_ptr().addr() as u64,
            region_key: self.region.remote_key(),
            write_ns: self.write_ns,
        })
    }

    fn forget(&self, peer: PeerId) {
        let keys: Vec<_> = self.queue_pairs().range(of_peer(peer)).map(|(&key, _)| key).collect();
        for key in keys {
            let removed = self.queue_pairs().remove(&key);
            if let Some(qp) = removed {
                // If it fails, that is logged, and it is kept.
                let _kept = self.retire(key, qp);
            }
        }
    }
}

/// Returns the keys of all queue pairs of a peer.
fn of_peer(peer: PeerId) -> RangeInclusive<(u64, u16)> {
    (peer.0, 0)..=(peer.0, u16::MAX)
}

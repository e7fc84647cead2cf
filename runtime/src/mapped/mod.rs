//! The device behind the embedded and the shm fabric: chains are executed by the shard's own poller, in batches, on
//! memory that is mapped into this process.
//!
//! A batch is prefetched whole before its first verb is executed, so that its misses overlap: with tens of clients per
//! shard that is what makes the embedded index faster than ordinary in-process ones.
//!
//! Order: one thread executes a shard's chains in posting order, which is the order of one queue pair; between shards
//! nothing is ordered. The one reordering that x86 allows, a READ that overtakes an earlier WRITE inside the store
//! buffer, is closed by a fence before the first READ that follows a WRITE. Weakly ordered CPUs use `Sequence` mode,
//! whose accesses acquire and release.

pub mod access;
pub mod error;
mod file;
mod header;
mod journal;
pub mod line;
mod mapping;
mod order;
pub mod prefetch;
mod process_state;
mod range_lock;
pub mod region;
mod stalled;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use smallvec::SmallVec;

use self::region::{AccessError, Region};
use self::stalled::{Rest, Stalls, Stop};
use crate::chain::{Chain, Op};
use crate::clock::Clock;
use crate::engine::{Device, SlotKey, Slots};
use crate::pointer::ServerId;
use crate::verbs::{Capabilities, FabricError};

/// Chains executed between two looks at the clients: enough to overlap their misses, few enough to stay in the cache.
const BATCH_CHAINS: usize = 16;
/// Chains, and bytes of payload, between two readings of the clock, which bound [`crate::verbs::Completion::span_ns`].
/// A reading costs as much as two lines.
const STAMP_CHAINS: usize = 4;
const STAMP_BYTES: u64 = 4096;
/// Prefetched of one access. Beyond, the CPU's own prefetcher has noticed.
const PREFETCH_BYTES_MAX: u64 = 2048;

/// A memory server's region in this process, and whether the server is still there.
pub struct MappedServer {
    region: Arc<Region>,
    /// Set when the server is found to be gone. Its memory outlives it while it is mapped, but no other process will
    /// see it.
    gone: Arc<AtomicBool>,
}

impl MappedServer {
    /// Makes the server of a region, which is gone as soon as `gone` says so.
    pub fn new(region: Arc<Region>, gone: Arc<AtomicBool>) -> Self {
        MappedServer { region, gone }
    }
}

/// Executes chains on memory servers whose regions are mapped here.
pub struct MappedDevice {
    servers: Arc<[MappedServer]>,
    capabilities: Capabilities,
    posted: VecDeque<SlotKey>,
    clock: Clock,
    /// Set if a store was executed that a later READ could overtake.
    store_pending: bool,
    /// Chains that wait for a writer that is stopped.
    stalls: Stalls,
    /// They fail when it has been waited for so long.
    patience: Duration,
}

impl MappedDevice {
    /// Capabilities of the embedded fabric.
    pub const EMBEDDED: Capabilities = Capabilities {
        fabric: "embedded",
        // Lines are stored in address order by one thread; x86 keeps stores in order, `Sequence` mode releases each.
        in_order_write: true,
        atomic_writes: true,
        masked_atomic: false,
        device_memory: 0,
        write_interval_ns: 150,
    };

    /// Capabilities of the shm fabric.
    pub const SHM: Capabilities = Capabilities { fabric: "shm", ..Self::EMBEDDED };

    /// Makes a device without work.
    pub fn new(servers: Arc<[MappedServer]>, capabilities: Capabilities, clock: Clock) -> Self {
        let (posted, stalls) = (VecDeque::new(), Stalls::default());
        let (store_pending, patience) = (false, stalled::PATIENCE);
        MappedDevice { servers, capabilities, posted, clock, store_pending, stalls, patience }
    }

    fn prefetch(&self, chain: &Chain) {
        let Some(server) = self.servers.get(chain.server().0 as usize) else { return };
        for verb in chain.verbs() {
            match verb.op {
                Op::Read { at, len, .. } | Op::Write { at, len, .. } => {
                    server.region.prefetch(at, u64::from(len).min(PREFETCH_BYTES_MAX))
                }
                Op::WriteWord { at, .. }
                | Op::Cas { at, .. }
                | Op::MaskedCas { at, .. }
                | Op::Faa { at, .. } => server.region.prefetch(at, 8),
            }
        }
    }

    /// Executes the rest of a chain. What is written for one that has not begun costs it nothing: `rest` is known then
    /// where this is inlined.
    #[inline(always)]
    fn execute_from(
        &mut self,
        rest: Rest,
        chain: &mut Chain,
        atomics: &mut SmallVec<[u64; 2]>,
    ) -> Result<(), Stop> {
        let server = chain.server();
        let Some(memory) = self.servers.get(server.0 as usize) else {
            return Err(FabricError::NoSuchServer { server, servers: self.servers.len() }.into());
        };
        if memory.gone.load(Ordering::Relaxed) {
            return Err(FabricError::ServerGone { server }.into());
        }
        let region = &memory.region;
        for i in rest.verb..chain.verbs().len() {
            let op = rest.of(i, chain.verbs()[i].op);
            let done = match op {
                Op::Read { .. } if self.store_pending => {
                    fence(Ordering::SeqCst);
                    self.store_pending = false;
                    execute_one(region, chain, op)
                }
                Op::MaskedCas { .. } => {
                    return Err(FabricError::NoMaskedCas { fabric: self.capabilities.fabric }.into());
                }
                _ => execute_one(region, chain, op),
            };
            match (op, done) {
                (_, Err(AccessError::WriterStopped(writer))) => {
                    return Err(Stop::Stalled(rest.after(i, writer.done), writer));
                }
                (_, Err(AccessError::OutOfRegion)) => return Err(outside(server, op, region).into()),
                (Op::Write { .. } | Op::WriteWord { .. }, Ok(_)) => self.store_pending = true,
                (Op::Read { .. }, Ok(_)) => {}
                (_, Ok(found)) => {
                    atomics.push(found);
                    self.store_pending = false;
                }
            }
        }
        Ok(())
    }
}

impl Device for MappedDevice {
    type Host = Clock;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn post(&mut self, key: SlotKey, _chain: &Chain) {
        self.posted.push_back(key);
    }

    fn poll(&mut self, slots: &mut Slots) -> usize {
        let mut completed = if self.stalls.is_empty() { 0 } else { self.look_after_stalled(slots) };
        let batch = self.posted.len().min(BATCH_CHAINS);
        if batch == 0 {
            return completed;
        }
        if batch > 1 {
            for &key in self.posted.iter().take(batch) {
                self.prefetch(slots.chain_mut(key));
            }
        }
        let mut begun = self.clock.now();
        let mut left = batch;
        while left > 0 {
            let mut group: SmallVec<[SlotKey; STAMP_CHAINS]> = SmallVec::new();
            let mut bytes = 0;
            while left > 0 && group.len() < STAMP_CHAINS && bytes < STAMP_BYTES {
                let key = self.posted.pop_front().expect("the batch was counted");
                let (chain, atomics) = slots.parts(key);
                bytes += chain.buffer().map_or(0, |buf| buf.len() as u64);
                let outcome = self.execute_from(Rest::default(), chain, atomics);
                left -= 1;
                if let Err(stop) = outcome
                    && self.stall(slots, key, stop, begun)
                {
                    // Chains may have to wait behind it.
                    left = left.min(self.posted.len());
                    continue;
                }
                group.push(key);
            }
            completed += group.len();
            let ended = self.clock.now();
            let span_ns = span_ns(begun, ended);
            for key in group {
                slots.announce(key, span_ns);
            }
            begun = ended;
        }
        completed
    }

    /// True while all chains wait for writers that are stopped: that takes long, and the shard looks now and then.
    fn arm(&mut self) -> bool {
        self.posted.is_empty() && !self.stalls.is_empty()
    }
}

/// Bounds the time in ns that chains took which were executed between two readings of the clock.
///
/// A clock that is read on two cores may be behind itself. Nor are the readings serialised (that costs more than 2 % of
/// a get): the core may load before the first and after the second, by what it holds in flight. That is some 100 ns;
/// versions take microseconds to wrap around.
#[inline]
fn span_ns(begun: u64, ended: u64) -> u32 {
    ended.saturating_sub(begun).min(u64::from(u32::MAX)) as u32
}

#[inline]
fn execute_one(region: &Region, chain: &mut Chain, op: Op) -> Result<u64, AccessError> {
    let local = |to: u32, len: u32| to as usize..(to + len) as usize;
    match op {
        Op::Read { at, to, len } => {
            let buf = chain.buffer_mut().expect("chains check their ranges against their buffer");
            region.read(at, &mut buf[local(to, len)]).map(|()| 0)
        }
        Op::Write { at, from, len } => {
            let buf = chain.buffer().expect("chains check their ranges against their buffer");
            region.write(at, &buf[local(from, len)]).map(|()| 0)
        }
        Op::WriteWord { at, word } => region.write_word(at, word).map(|()| 0),
        Op::Cas { at, expected, desired } => region.cas(at, expected, desired),
        Op::Faa { at, add } => region.faa(at, add),
        Op::MaskedCas { .. } => unreachable!("it is refused"),
    }
}

#[cold]
fn outside(server: ServerId, op: Op, region: &Region) -> FabricError {
    let (offset, len) = match op {
        Op::Read { at, len, .. } | Op::Write { at, len, .. } => (at, u64::from(len)),
        Op::WriteWord { at, .. } | Op::Cas { at, .. } | Op::MaskedCas { at, .. } | Op::Faa { at, .. } => {
            (at, 8)
        }
    };
    FabricError::OutOfBounds { server, offset, len, region_bytes: region.bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_behind_itself_makes_no_span() {
        assert_eq!(span_ns(100, 130), 30);
        assert_eq!(span_ns(100, 99), 0);
        assert_eq!(span_ns(0, 1 << 40), u32::MAX);
    }
}

//! Places of locks: the word of its server's lock region that locks a node, and the shard of a compute node that is its
//! home. Pure. Every compute node of a cluster computes the same word; homes are a compute node's own business.

use farwood_runtime::{LockRegion, RemotePtr, ServerInfo, ShardId};

const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
const WORD_BYTES: u64 = 8;

/// Tells whether locks can be in on-chip memory: every one of the servers has some. One answer for all of them, because
/// an index has one lock table and nodes everywhere.
///
/// ```
/// # use farwood_runtime::NodeContext;
/// # farwood_doctest::run(async |node, _| {
/// let in_host_memory_only = node.control();
/// assert!(!farwood_lock::on_chip_possible(in_host_memory_only.servers()));
/// # Ok(()) });
/// ```
pub fn on_chip_possible(servers: &[ServerInfo]) -> bool {
    servers.iter().all(|server| server.device_locks.is_some())
}

/// The lock regions of a cluster, by server id.
pub(crate) struct Places(Box<[LockRegion]>);

impl Places {
    /// Chooses the lock regions in the servers' on-chip memory, or in their host memory.
    pub(crate) fn new(servers: &[ServerInfo], on_chip: bool) -> Self {
        let region = |info: &ServerInfo| {
            let region = if on_chip { info.device_locks } else { Some(info.locks) };
            let region = region.filter(|region| region.count > 0);
            region.unwrap_or_else(|| panic!("memory server {} has no such lock words", info.id.0))
        };
        Places(servers.iter().map(region).collect())
    }

    /// Yields the word that locks `node`, on the node's own server.
    ///
    /// A corrupt address may name a server that does not exist. Its lock is then a word there too, so that the first
    /// chain to it fails with the fabric's own message instead of a panic here.
    #[inline]
    pub(crate) fn lock_of(&self, node: RemotePtr) -> RemotePtr {
        match self.0.get(usize::from(node.server().0)) {
            Some(region) => region.base.add(scale(mix(node.offset()), region.count) * WORD_BYTES),
            None => RemotePtr::new(node.server(), 0),
        }
    }

    /// Tells whether `lock` is one of these words.
    pub(crate) fn contain(&self, lock: RemotePtr) -> bool {
        self.0.get(usize::from(lock.server().0)).is_some_and(|region| region.contains(lock))
    }

    /// Yields the regions that locks are in, by server id.
    pub(crate) fn regions(&self) -> &[LockRegion] {
        &self.0
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// Yields the shard that keeps a lock's queue.
#[inline]
pub(crate) fn home_of(lock: RemotePtr, shards: usize) -> ShardId {
    // Words of a region are dense and were chosen by a good hash already, embedded ones are as regular as an allocator
    // is: one multiplication by the golden ratio spreads both over shards.
    ShardId(scale((lock.to_bits() / WORD_BYTES).wrapping_mul(SPREAD), shards as u64) as u16)
}

/// Hashes `value` so that each of its bits affects the high bits.
#[inline]
pub(crate) fn mix(value: u64) -> u64 {
    let product = u128::from(value ^ SPREAD.rotate_left(31)) * u128::from(SPREAD);
    ((product as u64) ^ (product >> 64) as u64).wrapping_mul(SPREAD)
}

/// Scales `hash` to `0..count`: a remainder without the division.
#[inline]
pub(crate) fn scale(hash: u64, count: u64) -> u64 {
    ((u128::from(hash) * u128::from(count)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;

    /// Describes two servers with `count` locks in host memory, and half as many in device memory.
    fn servers(count: u64) -> [ServerInfo; 2] {
        [0, 1].map(|id| {
            let region = |offset, count| LockRegion { base: RemotePtr::new(ServerId(id), offset), count };
            ServerInfo {
                id: ServerId(id),
                region_bytes: 1 << 30,
                locks: region(4096, count),
                device_locks: Some(region(1 << 20, count / 2)),
                chunk_bytes: 8 << 20,
            }
        })
    }

    fn places(count: u64) -> Places {
        Places::new(&servers(count), false)
    }

    #[test]
    fn a_lock_is_an_aligned_word_of_the_chosen_region_of_the_nodes_own_server() {
        let servers = servers(10);
        for on_chip in [false, true] {
            let places = Places::new(&servers, on_chip);
            let mut words = std::collections::BTreeSet::new();
            for i in 0..1000 {
                let lock = places.lock_of(RemotePtr::new(ServerId(1), i * 1024));
                assert_eq!(servers[1].locks.contains(lock), !on_chip, "{lock}");
                assert_eq!(servers[1].device_locks.unwrap().contains(lock), on_chip, "{lock}");
                assert!(lock.offset().is_multiple_of(8));
                words.insert(lock.to_bits());
            }
            assert_eq!(words.len(), if on_chip { 5 } else { 10 }, "every word is used");
        }
    }

    #[test]
    fn locks_can_be_on_chip_if_all_servers_have_device_memory() {
        let mut servers = servers(10);
        assert!(on_chip_possible(&servers));
        servers[1].device_locks = None;
        assert!(!on_chip_possible(&servers));
        Places::new(&servers, false);
    }

    #[test]
    #[should_panic(expected = "memory server 1 has no such lock words")]
    fn on_chip_locks_without_device_memory_are_a_mistake_of_the_caller() {
        let mut servers = servers(10);
        servers[1].device_locks = None;
        Places::new(&servers, true);
    }

    #[test]
    fn a_server_that_does_not_exist_is_left_to_the_fabric() {
        let node = RemotePtr::new(ServerId(9), 64);
        assert_eq!(places(10).lock_of(node).server(), ServerId(9));
    }

    #[test]
    fn embedded_words_spread_over_homes() {
        for node_bytes in [24, 40, 64, 128, 1 << 10, 1 << 12, 1 << 16, 8 << 20] {
            for shards in [2, 3, 7, 8] {
                let mut homes = [0u32; 8];
                for i in 1..=4096 {
                    let word = RemotePtr::new(ServerId(0), (8 << 20) + i * node_bytes - 8);
                    homes[usize::from(home_of(word, shards).0)] += 1;
                }
                let expected = 4096 / shards as u32;
                let homes = &homes[..shards];
                let even = homes.iter().all(|&n| (expected * 3 / 4..expected * 5 / 4).contains(&n));
                assert!(even, "{node_bytes} bytes, {shards} shards: {homes:?}");
            }
        }
    }

    #[test]
    fn nodes_spread_over_words_and_words_over_homes() {
        let places = places(1024);
        let (mut words, mut homes) = ([0u32; 1024], [0u32; 7]);
        for i in 0..64 * 1024 {
            let lock = places.lock_of(RemotePtr::new(ServerId(0), (8 << 20) + i * 1088));
            words[(lock.offset() as usize - 4096) / 8] += 1;
            homes[usize::from(home_of(lock, 7).0)] += 1;
        }
        // 64 and 9362 expected: random placement stays well inside these bounds.
        assert!(words.iter().all(|&n| (20..130).contains(&n)), "{words:?}");
        assert!(homes.iter().all(|&n| (7500..11500).contains(&n)), "{homes:?}");
    }
}

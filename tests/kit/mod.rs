//! What the scenarios share: tiny clusters, a Sherman tree on some shards or compute nodes, and what has to
//! be true when nothing runs any more.
#![allow(clippy::allow_attributes, dead_code, reason = "every scenario uses a part of it")]

pub(crate) mod cancel;
pub(crate) mod history;
pub(crate) mod lab;
pub(crate) mod tree;

use std::future::Future;
use std::io::Write;
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use farwood::runtime::{Chain, Meter};
use farwood::{
    Cluster, ComputeNode, EmbeddedConfig, Geometry, NodeConfig, NodeSize, Options, RangeIndex, Shard,
    Sherman, ShermanIndex, Techniques, Verbs,
};
use futures::executor::block_on;
use futures::future::join_all;

/// Nodes of four slots, so that splits and moved nodes happen all the time.
pub(crate) const TINY: Geometry =
    Geometry { max_key: 8, max_value: 8, size: NodeSize::Slots { leaf: 4, inner: 4 } };

/// The name of the tree in its cluster's catalog.
pub(crate) const NAME: &str = "test";

/// Two servers with chunks small enough that both are used.
pub(crate) fn cluster() -> Arc<Cluster> {
    cluster_of(256 << 20)
}

pub(crate) fn cluster_of(bytes_per_server: u64) -> Arc<Cluster> {
    Cluster::embedded(EmbeddedConfig {
        servers: 2,
        bytes_per_server,
        chunk_bytes: 64 << 10,
        locks_per_server: 1024,
        ..EmbeddedConfig::default()
    })
    .unwrap()
}

pub(crate) fn node(cluster: &Arc<Cluster>, shards: usize) -> Arc<ComputeNode> {
    ComputeNode::new(Arc::clone(cluster), NodeConfig { shards, ..NodeConfig::default() })
}

/// Runs `main` on every shard of a fresh node with a fresh tree.
pub(crate) fn with_tree<F, R, T>(shards: usize, geometry: Geometry, options: Options, main: F) -> Vec<T>
where
    F: Fn(Shard, ShermanIndex<Shard>) -> R + Clone + Send + 'static,
    R: Future<Output = T> + 'static,
    T: Send + 'static,
{
    exit_on_panic();
    let node = node(&cluster(), shards);
    let tree = block_on(Sherman::create(&node, NAME, geometry, options)).unwrap();
    node.run(move |shard| {
        let index = tree.attach(shard.clone());
        main(shard, index)
    })
    .unwrap()
}

/// Who works on one tree at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parties {
    /// So many shards of one compute node: they share a cache and local lock tables.
    Shards(usize),
    /// So many compute nodes of one shard each: they share nothing but the memory servers.
    Nodes(usize),
}

impl Parties {
    pub(crate) const BOTH: [Parties; 2] = [Parties::Shards(2), Parties::Nodes(2)];

    fn count(self) -> usize {
        match self {
            Parties::Shards(count) | Parties::Nodes(count) => count,
        }
    }
}

/// One shard that works on the tree.
#[derive(Clone)]
pub(crate) struct Party {
    pub(crate) shard: Shard,
    pub(crate) index: ShermanIndex<Shard>,
    /// Its number among the parties.
    pub(crate) place: usize,
    barrier: Arc<Barrier>,
}

struct Barrier {
    parties: usize,
    arrived: AtomicUsize,
}

impl Party {
    /// Waits until all parties are here.
    pub(crate) async fn meet(&self) {
        let Barrier { parties, arrived } = &*self.barrier;
        let ticket = arrived.fetch_add(1, Ordering::SeqCst);
        let round_ends = (ticket / parties + 1) * parties;
        while arrived.load(Ordering::SeqCst) < round_ends {
            self.shard.pause(20_000).await;
        }
    }

    /// Runs `count` clients in the shard's pool and waits for all.
    pub(crate) async fn clients<R, T>(&self, count: usize, client: impl Fn(usize) -> R) -> Vec<T>
    where
        R: Future<Output = T> + 'static,
        T: 'static,
    {
        join_all((0..count).map(|i| self.shard.spawn(client(i)))).await
    }

    /// Lets everything else of this shard go first.
    pub(crate) async fn shard_pause(&self) {
        self.shard.pause(500_000).await;
    }

    /// Waits until nothing runs on any party any more (the janitors' tasks included), and checks that nothing
    /// was left behind: no chain, no buffer, no local lock, no lock word.
    pub(crate) async fn rest(&self) {
        self.meet().await;
        at_rest(&self.shard, &self.index).await;
        self.meet().await;
        // Another party's janitor may have spoken to this shard since.
        at_rest(&self.shard, &self.index).await;
        assert_eq!(lock_words_set(&self.shard).await, 0, "lock words are still set");
        self.meet().await;
    }
}

/// Runs `main` for every party on a fresh tree of a fresh cluster; results in the order of places.
pub(crate) fn with_parties<F, R, T>(parties: Parties, geometry: Geometry, options: Options, main: F) -> Vec<T>
where
    F: Fn(Party) -> R + Clone + Send + 'static,
    R: Future<Output = T> + 'static,
    T: Send + 'static,
{
    with_parties_on(&cluster(), parties, geometry, options, main)
}

/// The same on a given cluster.
pub(crate) fn with_parties_on<F, R, T>(
    cluster: &Arc<Cluster>,
    parties: Parties,
    geometry: Geometry,
    options: Options,
    main: F,
) -> Vec<T>
where
    F: Fn(Party) -> R + Clone + Send + 'static,
    R: Future<Output = T> + 'static,
    T: Send + 'static,
{
    with_parties_in(cluster, NodeConfig::default(), parties, geometry, options, main)
}

/// The same with compute nodes of a given configuration (but for the number of their shards).
pub(crate) fn with_parties_in<F, R, T>(
    cluster: &Arc<Cluster>,
    config: NodeConfig,
    parties: Parties,
    geometry: Geometry,
    options: Options,
    main: F,
) -> Vec<T>
where
    F: Fn(Party) -> R + Clone + Send + 'static,
    R: Future<Output = T> + 'static,
    T: Send + 'static,
{
    exit_on_panic();
    let node = |shards| ComputeNode::new(Arc::clone(cluster), NodeConfig { shards, ..config.clone() });
    let barrier = Arc::new(Barrier { parties: parties.count(), arrived: AtomicUsize::new(0) });
    let start = |node: &Arc<ComputeNode>, tree: Sherman, first: usize| {
        let (node, barrier, main) = (Arc::clone(node), Arc::clone(&barrier), main.clone());
        move || {
            node.run(move |shard| {
                let index = tree.attach(shard.clone());
                let place = first + usize::from(shard.id().0);
                main(Party { shard, index, place, barrier: Arc::clone(&barrier) })
            })
            .unwrap()
        }
    };
    match parties {
        Parties::Shards(shards) => {
            let node = node(shards);
            let tree = block_on(Sherman::create(&node, NAME, geometry, options)).unwrap();
            start(&node, tree, 0)()
        }
        Parties::Nodes(nodes) => {
            let starts: Vec<_> = (0..nodes)
                .map(|place| {
                    let node = node(1);
                    let tree = match place {
                        0 => block_on(Sherman::create(&node, NAME, geometry, options)),
                        _ => block_on(Sherman::open(&node, NAME, options)),
                    };
                    start(&node, tree.unwrap(), place)
                })
                .collect();
            let threads: Vec<_> = starts.into_iter().map(std::thread::spawn).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        }
    }
}

/// Everything on, everything off, and each technique off alone (but on-chip locks, which the embedded fabric
/// lacks).
pub(crate) fn technique_mixes() -> Vec<Techniques> {
    let mut mixes = vec![Techniques::ALL, Techniques::NONE];
    for name in Techniques::NAMES.into_iter().filter(|name| *name != "on_chip") {
        let mut techniques = Techniques::ALL;
        assert!(techniques.set(name, false));
        mixes.push(techniques);
    }
    mixes
}

/// The mixes as options, and one with a cache that holds nothing.
pub(crate) fn option_mixes() -> Vec<Options> {
    let mut mixes: Vec<Options> = technique_mixes()
        .into_iter()
        .map(|techniques| Options { techniques, ..Options::default() })
        .collect();
    mixes.push(Options { cache_bytes: 1, ..Options::default() });
    mixes
}

/// Waits until this shard has nothing to do, and checks that no buffer and no local lock is in use.
pub(crate) async fn at_rest(shard: &Shard, index: &ShermanIndex<Shard>) {
    // A bound on patience, not on time: what is left to do takes a handful of turns.
    for _ in 0..20_000 {
        if shard.clients_alive() == 0 && shard.chains_in_flight() == 0 && index.locks_in_use() == 0 {
            break;
        }
        shard.pause(50_000).await;
    }
    assert_eq!(shard.clients_alive(), 0, "clients or janitors that never end");
    assert_eq!(shard.chains_in_flight(), 0, "chains that are never executed");
    assert_eq!(index.locks_in_use(), 0, "local locks that nobody gives back");
    assert_eq!(shard.buffers_leased(), 0, "buffers that never came back");
}

/// How many words of all servers' lock regions are not free.
pub(crate) async fn lock_words_set(shard: &Shard) -> usize {
    const WORDS: u64 = 512;
    let mut set = 0;
    let regions =
        shard.control().servers().iter().flat_map(|server| [Some(server.locks), server.device_locks]);
    for region in regions.flatten().collect::<Vec<_>>() {
        for first in (0..region.count).step_by(WORDS as usize) {
            let bytes = (WORDS.min(region.count - first) * 8) as usize;
            let mut chain = Chain::with_buffer(region.base.server(), shard.lease(bytes));
            chain.read(region.base.add(first * 8), 0..bytes);
            let words = shard.submit(&Meter::default(), chain).await.unwrap().into_buf();
            set += words.chunks(8).filter(|word| word.iter().any(|&byte| byte != 0)).count();
        }
    }
    set
}

/// All pairs of the tree, by a scan.
pub(crate) async fn all_pairs(index: &ShermanIndex<Shard>) -> Vec<(Vec<u8>, Vec<u8>)> {
    use futures::TryStreamExt;
    let pairs: Vec<_> = index.scan(.., None).try_collect().await.unwrap();
    pairs.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// An 8-byte key that keeps the order of `n`.
pub(crate) fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// The number that [`key`] made a key of (or a value).
pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

/// Spreads consecutive numbers over all 64-bit numbers, each onto another one.
pub(crate) fn scatter(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A shard that panics takes its part of the local lock tables with it, so that other shards would wait for
/// ever: end the test process at once instead, with the message on the real stderr.
pub(crate) fn exit_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            if std::thread::current().name().is_some_and(|name| name.starts_with("farwood")) {
                let _ = writeln!(std::io::stderr(), "a shard panicked: {info}");
                std::process::exit(101);
            }
        }));
    });
}

//! A verbs fabric when something breaks: queue pairs that fail with chains in flight, servers that are gone, nodes that
//! are dropped, queues that are full. Needs an RDMA device; Soft-RoCE does.
#![cfg(feature = "verbs")]

mod kit;
#[path = "kit/verbs.rs"]
mod verbs;

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use farwood_runtime::ibverbs::{VerbsConfig, VerbsDevice, VerbsResponder};
use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{
    Chain, ClientPool, Completion, ComputeNode, FabricError, Failed, Meter, NodeConfig, RemotePtr, ServerId,
    Shard, Verbs, run_executor,
};
use futures::future::join_all;

use self::verbs::{Outcomes, Servers};

type V = Shard<VerbsDevice>;
type Post = fn(&V, RemotePtr, u64) -> <V as Verbs>::Submission;

/// Runs `body` on a node of one shard, and checks that it left nothing behind.
fn on_one_shard<R>(servers: &Servers, spin: Duration, body: impl Fn(V) -> R + Clone + Send + 'static)
where
    R: Future<Output = ()> + 'static,
{
    let _watchdog = kit::Watchdog::new("a scenario on one shard", 120);
    let config = NodeConfig { shards: 1, spin, ..NodeConfig::default() };
    let node = ComputeNode::new(Arc::clone(&servers.fabric), config).unwrap();
    let main = move |shard: V| {
        let body = body(shard.clone());
        async move {
            body.await;
            while shard.chains_in_flight() > 0 {
                shard.pause(10_000).await;
            }
            assert_eq!(shard.buffers_leased(), 0);
        }
    };
    node.run(main).unwrap();
}

fn faa(v: &V, at: RemotePtr) -> <V as Verbs>::Submission {
    let mut chain = Chain::new(at.server());
    chain.faa(at, 1);
    v.submit(&Meter::default(), chain)
}

async fn word(v: &V, at: RemotePtr) -> u64 {
    let mut chain = Chain::with_buffer(at.server(), v.lease(8));
    chain.read(at, 0..8);
    let buf = v.submit(&Meter::default(), chain).await.unwrap().into_buf();
    u64::from_le_bytes(buf[..].try_into().unwrap())
}

/// Posts a chain of an atomic, a READ and a WRITE, every other one fenced: where the device does not keep fences, it is
/// posted in parts.
fn half_fenced(v: &V, at: RemotePtr, n: u64) -> <V as Verbs>::Submission {
    three_verbs(v, at, n, n.is_multiple_of(2))
}

/// Posts a chain of an atomic, a READ and a WRITE without fences.
fn mixed(v: &V, at: RemotePtr, n: u64) -> <V as Verbs>::Submission {
    three_verbs(v, at, n, false)
}

fn three_verbs(v: &V, at: RemotePtr, n: u64, is_fenced: bool) -> <V as Verbs>::Submission {
    let mut buf = v.lease(256);
    buf.fill(n as u8);
    let mut chain = Chain::with_buffer(at.server(), buf);
    chain.faa(at, 1).read(at.add(64), 128..256);
    if is_fenced {
        chain.fence();
    }
    chain.write(at.add(256 + n * 256), 0..128);
    v.submit(&Meter::default(), chain)
}

fn count(outcomes: &[Result<Completion, Failed>], expected: &FabricError) -> (u64, u64) {
    for failed in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        assert_eq!(failed, expected);
        assert!(failed.chain().verbs().len() == 3 && failed.chain().buffer().is_some_and(|b| b.len() == 256));
    }
    let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    ((outcomes.len() - failed) as u64, failed as u64)
}

/// The server loses its side: chains in flight come back typed and whole, their atomics are executed at most once,
/// nothing of them takes effect afterwards, and later chains go over a new queue pair.
#[test]
fn a_broken_queue_pair_is_replaced() {
    const CHAINS: u64 = 300;
    for (spin_us, post) in [(50, mixed as Post), (0, mixed), (50, half_fenced), (0, half_fenced)] {
        let servers = Servers::start();
        let at = kit::area(&servers.memory, 0);
        let wire = Arc::clone(&servers.wire);
        on_one_shard(&servers, Duration::from_micros(spin_us), move |v| {
            let wire = Arc::clone(&wire);
            async move {
                let broken = FabricError::QueuePair { server: ServerId(0) };
                let outcomes = Outcomes::default();
                for round in 1..=3 {
                    assert_eq!(wire.asked(), 1 + round);
                    let mut posted: Vec<_> = (0..CHAINS).map(|n| post(&v, at, n)).collect();
                    // Some have been executed.
                    let first: Vec<_> = join_all(posted.drain(..20)).await;
                    wire.cut(0);
                    // These are posted on a queue pair whose other side is gone.
                    posted.extend((0..CHAINS).map(|n| post(&v, at, n)));
                    let (done, failed) = count(&join_all(posted).await, &broken);
                    assert!(first.iter().all(Result::is_ok) && failed > 0);
                    outcomes.done.fetch_add(done + 20, Ordering::Relaxed);
                    outcomes.failed.fetch_add(failed, Ordering::Relaxed);
                    let executed = word(&v, at).await;
                    let (done, failed) =
                        (outcomes.done.load(Ordering::Relaxed), outcomes.failed.load(Ordering::Relaxed));
                    assert!(
                        (done..=done + failed).contains(&executed),
                        "{done} <= {executed} <= {done} + {failed}"
                    );
                    v.pause(20_000_000).await;
                    assert_eq!(
                        word(&v, at).await,
                        executed,
                        "a chain took effect after its failure was reported"
                    );
                    assert!(faa(&v, at).await.is_ok());
                    outcomes.done.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
}

/// While the new queue pair is not connected, chains that failed are not reported, and chains that come wait; chains to
/// the other server do not notice.
#[test]
fn failures_are_reported_when_the_old_side_is_destroyed() {
    let servers = Servers::start();
    let (at, other) = (kit::area(&servers.memory, 0), kit::area(&servers.memory, 1));
    let wire = Arc::clone(&servers.wire);
    on_one_shard(&servers, Duration::from_micros(50), move |v| {
        let wire = Arc::clone(&wire);
        async move {
            wire.cut(0);
            wire.keep();
            let lost = faa(&v, at);
            while wire.kept() == 0 {
                assert!(faa(&v, other).await.is_ok());
            }
            let waiting: Vec<_> = (0..50).map(|_| faa(&v, at)).collect();
            for _ in 0..20 {
                assert!(faa(&v, other).await.is_ok());
            }
            assert_eq!(v.chains_in_flight(), 51, "neither reported nor posted");
            wire.deliver();
            assert_eq!(lost.await.unwrap_err(), FabricError::QueuePair { server: ServerId(0) });
            for (n, outcome) in (0..).zip(join_all(waiting).await) {
                assert_eq!(outcome.unwrap().atomics[..], [n], "what waited is posted in its order");
            }
        }
    });
}

/// A server that refuses an access breaks the queue pair: the same recovery, without a silence before.
#[test]
fn a_refused_access_is_a_typed_error() {
    let servers = Servers::start();
    let at = kit::area(&servers.memory, 0);
    // The first queue pair to server 0 gets a key that opens nothing.
    servers.wire.spoil_next(|answer| answer.region_key ^= 0x5a5a_5a00);
    let wire = Arc::clone(&servers.wire);
    on_one_shard(&servers, Duration::from_micros(50), move |v| {
        let wire = Arc::clone(&wire);
        async move {
            let refused = join_all((0..40).map(|n| mixed(&v, at, n))).await;
            let broken = FabricError::QueuePair { server: ServerId(0) };
            assert_eq!(count(&refused, &broken), (0, 40));
            assert_eq!((wire.asked(), word(&v, at).await), (3, 0), "nothing took effect");
            let done = join_all((0..40).map(|n| mixed(&v, at, n))).await;
            assert_eq!((count(&done, &broken), word(&v, at).await), ((40, 0), 40));
        }
    });
}

/// A server that is gone: chains in flight fail without a hang, later ones at once; the other server goes on.
#[test]
fn a_server_that_is_gone_is_a_typed_error() {
    for refuses_only in [false, true] {
        let servers = Servers::start();
        let (at, other) = (kit::area(&servers.memory, 0), kit::area(&servers.memory, 1));
        let wire = Arc::clone(&servers.wire);
        on_one_shard(&servers, Duration::ZERO, move |v| {
            let wire = Arc::clone(&wire);
            async move {
                let gone = FabricError::ServerGone { server: ServerId(0) };
                assert!(faa(&v, at).await.is_ok());
                if refuses_only {
                    wire.refuse();
                    wire.cut(0);
                } else {
                    wire.kill(0);
                }
                let in_flight = join_all((0..100).map(|n| mixed(&v, at, n))).await;
                assert_eq!(count(&in_flight, &gone), (0, 100));
                for n in 0..100 {
                    assert_eq!(mixed(&v, at, n).await.unwrap_err(), gone);
                    assert!(mixed(&v, other, n).await.is_ok());
                }
                // One that only refuses is asked again and again before it is given up.
                assert!(if refuses_only { wire.asked() > 3 } else { wire.asked() == 2 }, "{}", wire.asked());
            }
        });
    }
}

/// A server that does not connect a queue pair at once, or names a region that cannot be, is asked again.
#[test]
fn a_queue_pair_is_connected_at_another_try() {
    let servers = Servers::start();
    let (at, other) = (kit::area(&servers.memory, 0), kit::area(&servers.memory, 1));
    let wire = Arc::clone(&servers.wire);
    on_one_shard(&servers, Duration::from_micros(50), move |v| {
        let wire = Arc::clone(&wire);
        async move {
            let broken = FabricError::QueuePair { server: ServerId(0) };
            wire.refuse();
            wire.cut(0);
            let (lost, mut waiting) = (faa(&v, at), None);
            while wire.asked() < 2 + 3 {
                assert!(faa(&v, other).await.is_ok());
                if wire.asked() == 2 + 1 {
                    waiting.get_or_insert_with(|| faa(&v, at));
                }
            }
            wire.relent();
            assert_eq!(lost.await.unwrap_err(), broken);
            assert!(waiting.expect("it came between two tries").await.is_ok());
            assert_eq!(word(&v, at).await, 1);
            let asked = wire.asked();
            wire.spoil_next(|answer| answer.region_address = u64::MAX - 8);
            wire.cut(0);
            assert_eq!(faa(&v, at).await.unwrap_err(), broken);
            assert!(faa(&v, at).await.is_ok());
            assert_eq!((wire.asked(), word(&v, at).await), (asked + 2, 2));
        }
    });
}

/// Two compute nodes of one process share its control connection, and each has a shard 0: they have queue pairs of
/// their own.
#[test]
fn two_nodes_share_a_cluster() {
    let servers = Servers::start();
    let at = kit::area(&servers.memory, 0);
    let _watchdog = kit::Watchdog::new("two nodes on one cluster", 120);
    for round in 1..=2u32 {
        let both = Barrier::new(2);
        std::thread::scope(|threads| {
            for node in 0..2u64 {
                let (both, servers) = (&both, &servers);
                threads.spawn(move || {
                    let config = NodeConfig { shards: 1, ..NodeConfig::default() };
                    let node_of = ComputeNode::new(Arc::clone(&servers.fabric), config).unwrap();
                    let executor = glommio::LocalExecutorBuilder::default().make().unwrap();
                    run_executor(&executor, async {
                        let v = node_of.attach().await.unwrap();
                        assert_eq!(v.shard().0, 0);
                        // Both have their queue pairs before either uses one.
                        both.wait();
                        let at = at.add(node * 64);
                        for n in 0..200 {
                            let found = faa(&v, at).await.unwrap().atomics[..].to_vec();
                            assert_eq!(found, [u64::from(round - 1) * 200 + n]);
                        }
                    });
                });
            }
        });
        assert_eq!(servers.wire.asked(), 4 * round, "no queue pair was replaced");
    }
}

/// A server that counts as gone although its NIC still answers is not used any more.
#[test]
fn a_server_that_is_gone_is_noticed_without_traffic() {
    let servers = Servers::start();
    let at = kit::area(&servers.memory, 0);
    let wire = Arc::clone(&servers.wire);
    on_one_shard(&servers, Duration::from_micros(50), move |v| {
        let wire = Arc::clone(&wire);
        async move {
            assert!(faa(&v, at).await.is_ok());
            wire.kill(0);
            assert_eq!(faa(&v, at).await.unwrap_err(), FabricError::ServerGone { server: ServerId(0) });
        }
    });
}

/// More work requests than a send queue holds: they wait in line, nothing is lost or reordered.
#[test]
fn a_full_send_queue_is_waited_for() {
    let servers = Servers::start();
    let at = kit::area(&servers.memory, 1);
    on_one_shard(&servers, Duration::from_micros(50), move |v| async move {
        let posted: Vec<_> = (0..2000u64)
            .map(|_| {
                let mut chain = Chain::with_buffer(at.server(), v.lease(128));
                chain.fence().faa(at, 1).read(at, 0..8).read(at, 8..16).read(at.add(8), 16..128);
                chain.fence().faa(at.add(8), 2).fence().faa(at.add(16), 3);
                v.submit(&Meter::default(), chain)
            })
            .collect();
        for (n, outcome) in (0..).zip(join_all(posted).await) {
            let done = outcome.unwrap();
            assert_eq!(done.atomics[..], [n, n * 2, n * 3]);
            assert_eq!(done.into_buf()[..8], (n + 1).to_le_bytes());
        }
        let mut long = Chain::new(at.server());
        for _ in 0..5000 {
            long.write_word(at, 1);
        }
        let refused = v.submit(&Meter::default(), long).await.unwrap_err();
        assert_eq!(refused, FabricError::ChainTooLong { verbs: 5000, verbs_max: 4096 });
        assert!(refused.cause().is_refusal());
        assert_eq!(word(&v, at).await, 2000);
    });
}

/// An executor that ends with chains in flight: queue pairs are destroyed before the buffers that they use are freed,
/// and the next node finds the fabric as if nothing had been.
#[test]
fn a_node_can_be_dropped_with_chains_in_flight() {
    let servers = Servers::start();
    let at = kit::area(&servers.memory, 0);
    for round in 0..10 {
        let _watchdog = kit::Watchdog::new("dropping a node", 120);
        let config = NodeConfig { shards: 1, ..NodeConfig::default() };
        let node = ComputeNode::new(Arc::clone(&servers.fabric), config).unwrap();
        let executor = glommio::LocalExecutorBuilder::default().make().unwrap();
        run_executor(&executor, async move {
            let v = node.attach().await.unwrap();
            let posted: Vec<_> = (0..500).map(|n| mixed(&v, at, n)).collect();
            if round % 2 == 0 {
                assert!(faa(&v, at).await.is_ok());
            }
            drop(posted);
        });
        drop(executor);
    }
    on_one_shard(&servers, Duration::from_micros(50), move |v| async move {
        let before = word(&v, at).await;
        assert!(faa(&v, at).await.is_ok());
        assert_eq!(word(&v, at).await, before + 1);
    });
}

/// A shard that goes to sleep with a chain in flight is woken by its completion.
#[test]
fn completions_wake_a_sleeping_shard() {
    let servers = Servers::start();
    let at = kit::area(&servers.memory, 0);
    let _watchdog = kit::Watchdog::new("sleeping shards", 120);
    let config = NodeConfig { shards: 2, spin: Duration::ZERO, ..NodeConfig::default() };
    let node = ComputeNode::new(Arc::clone(&servers.fabric), config).unwrap();
    let main = move |v: V| async move {
        let at = at.add(u64::from(v.shard().0) * 64);
        for n in 0..500 {
            assert_eq!(faa(&v, at).await.unwrap().atomics[..], [n]);
        }
    };
    node.run(main).unwrap();
}

/// Each mistake in the choice of a device has a message of its own.
#[test]
fn a_wrong_choice_is_told() {
    let memory = kit::cluster(LineMode::Plain);
    let refused = |config: VerbsConfig| {
        let region = Arc::clone(memory.mapped()[0].region());
        VerbsResponder::new(region, &config).map(drop).unwrap_err().to_string()
    };
    let device = refused(VerbsConfig { device: Some("mlx9_7".into()), ..VerbsConfig::default() });
    assert!(device.starts_with("there is no RDMA device named \"mlx9_7\"; this host has: "), "{device}");
    for port in [0, 200] {
        let port = refused(VerbsConfig { port: Some(port), ..VerbsConfig::default() });
        assert!(port.contains("its ports are 1 to "), "{port}");
    }
    let gid = refused(VerbsConfig { gid_index: Some(250), ..VerbsConfig::default() });
    assert!(gid.contains("no GID at index 250; it has 0"), "{gid}");
}

/// A device with room for less inline data than is wanted, or for none, works all the same: what does not fit is
/// fetched from memory. 1 MiB is more than any device has room for.
#[test]
fn a_device_may_have_little_room_within_work_requests() {
    const CHAINS: u64 = 600;
    for inline_bytes in [0, 8, 1 << 20] {
        let config = VerbsConfig { inline_bytes: Some(inline_bytes), ..VerbsConfig::default() };
        let servers = Servers::start_with(&config);
        let at = kit::area(&servers.memory, 0);
        on_one_shard(&servers, Duration::from_micros(50), move |v| async move {
            // More than the send queue has room for: words are used again.
            let posted: Vec<_> = (1..=CHAINS).map(|n| words_and_bytes(&v, at, n)).collect();
            for (n, done) in (1..).zip(join_all(posted).await) {
                assert_eq!(done.unwrap().atomics[..], [n - 1, 0], "with {inline_bytes} bytes");
            }
            for n in 1..=CHAINS {
                let place = at.add(64 + n * 64);
                assert_eq!([word(&v, place).await, word(&v, place.add(8)).await], [!n, n]);
                assert_eq!(word(&v, place.add(16)).await, u64::from_le_bytes([n as u8; 8]));
            }
        });
    }
}

/// Writes two words, one as a word, eight bytes, and counts.
fn words_and_bytes(v: &V, at: RemotePtr, n: u64) -> <V as Verbs>::Submission {
    let mut buf = v.lease(16);
    buf[..8].copy_from_slice(&(!n).to_le_bytes());
    buf[8..].fill(n as u8);
    let place = at.add(64 + n * 64);
    let mut chain = Chain::with_buffer(at.server(), buf);
    chain.write(place, 0..8).faa(at, 1).write_word(place.add(8), n).write(place.add(16), 8..16);
    chain.cas(place.add(24), 0, n);
    v.submit(&Meter::default(), chain)
}

/// The fabric reports the capabilities that it measured.
#[test]
fn capabilities_are_measured() {
    let servers = Servers::start();
    servers.wire.spoil_next(|answer| answer.write_ns = 700);
    on_one_shard(&servers, Duration::from_micros(50), move |v| async move {
        let capabilities = v.capabilities();
        assert_eq!((capabilities.fabric, capabilities.device_memory), ("verbs", 0));
        assert!(!capabilities.in_order_write && !capabilities.masked_atomic);
        assert!(!capabilities.atomic_writes, "this is Soft-RoCE");
        assert_eq!(capabilities.write_interval_ns, 700, "the shortest of all servers");
        assert_eq!(v.control().servers().len(), 2);
    });
    let servers = Servers::start();
    on_one_shard(&servers, Duration::from_micros(50), move |v| async move {
        assert!((500..1_000_000_000).contains(&v.capabilities().write_interval_ns));
    });
}

//! Drives shards by hand: no executor, no timer, and a clock that moves when a test says so.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use futures::FutureExt;
use futures::executor::block_on;
use quanta::Mock;

use super::super::ClientPool;
use super::*;
use crate::chain::Chain;
use crate::clock::Clock;
use crate::control::{Control, IndexId};
use crate::epoch::NodeEpochs;
use crate::fabric::embedded::{Cluster, EmbeddedConfig};
use crate::fabric::{DeviceContext, Fabric};
use crate::mapped::MappedDevice;
use crate::message::{Message, Port};
use crate::meter::Meter;
use crate::pointer::{RemotePtr, ServerId};
use crate::shard::{Abandoned, PortBook, RING_MESSAGES, Roster, Shard, ShardParts, Taken, mesh};
use crate::verbs::Verbs;

const SPIN_NS: u64 = 50_000;
const CLOSE_NS: u64 = 20_000_000;
const CREDITS: NonZero<usize> = NonZero::new(16).unwrap();

type OwnShard = Shard<MappedDevice>;
type OwnDriver = Driver<MappedDevice>;

/// A compute node over memory of this process.
struct Node {
    cluster: Arc<Cluster>,
    roster: Arc<Roster>,
    ports: Arc<PortBook>,
    clock: Clock,
    time: Arc<Mock>,
    epochs: Arc<NodeEpochs>,
}

impl Node {
    fn new(shards: usize) -> (Self, Vec<Taken>) {
        let config = EmbeddedConfig { bytes_per_server: 16 << 20, ..EmbeddedConfig::default() };
        let cluster = Cluster::embedded(config).unwrap();
        let ends = mesh(shards, RING_MESSAGES);
        let ports = PortBook::new(ends.iter().map(|ends| ends.unpark()).collect());
        let roster = Roster::new(ends, || {});
        let places: Vec<Taken> = (0..shards).map(|_| roster.take().unwrap()).collect();
        places.iter().for_each(Taken::attach);
        let (clock, time) = Clock::by_hand();
        let epochs = Arc::new(NodeEpochs::new(shards));
        cluster.join_epochs(1, &epochs);
        (Node { cluster, roster, ports, clock, time, epochs }, places)
    }

    fn with_one_shard() -> (Self, OwnShard, OwnDriver) {
        let (node, mut places) = Node::new(1);
        let (shard, driver) = node.shard(places.remove(0));
        (node, shard, driver)
    }

    fn shard(&self, place: Taken) -> (OwnShard, OwnDriver) {
        let id = place.ends().shard();
        let unpark = place.ends().unpark();
        let context =
            DeviceContext { shard: id, node_id: 1, credits: CREDITS, clock: self.clock.clone(), unpark };
        let device = self.cluster.device(&context).unwrap();
        let (membership, mesh) = place.join().unwrap();
        Shard::new(ShardParts {
            id,
            node_id: 1,
            control: self.cluster.control(),
            epochs: Arc::clone(&self.epochs),
            device,
            credits: CREDITS,
            mesh,
            ports: Arc::clone(&self.ports),
            membership,
            host: self.clock.clone(),
            seed: 1,
            spin_ns: SPIN_NS,
            close_ns: CLOSE_NS,
        })
    }

    /// Yields an address where nothing has been written.
    fn place(&self) -> RemotePtr {
        block_on(self.cluster.chunk(ServerId(0), IndexId(1))).unwrap().start
    }

    fn pass(&self, ns: u64) {
        self.time.increment(ns);
    }

    /// Takes turns until the shard may sleep.
    fn rest(&self, driver: &mut OwnDriver) -> Option<u64> {
        loop {
            match driver.turn() {
                Turn::Busy => {}
                Turn::Idle => self.pass(SPIN_NS),
                Turn::Sleep { until_ns } => return until_ns,
                Turn::Over => panic!("the shard has handles"),
            }
        }
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wakes {
    fn new() -> (Arc<Self>, Waker) {
        let wakes = Arc::new(Wakes::default());
        (Arc::clone(&wakes), Waker::from(wakes))
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

async fn add(shard: OwnShard, at: RemotePtr, add: u64) -> u64 {
    let mut chain = Chain::new(at.server());
    chain.faa(at, add);
    shard.submit(&Meter::default(), chain).await.unwrap().atomics[0]
}

#[test]
fn a_turn_posts_and_the_next_one_completes() {
    let (node, shard, mut driver) = Node::with_one_shard();
    let at = node.place();
    assert_eq!(driver.turn(), Turn::Idle);
    for found in [0, 7, 14] {
        let client = shard.spawn(add(shard.clone(), at, 7));
        assert_eq!(shard.chains_in_flight(), 0);
        assert_eq!(driver.turn(), Turn::Busy);
        assert_eq!((shard.chains_in_flight(), shard.clients_alive()), (1, 1));
        assert_eq!(driver.turn(), Turn::Busy);
        assert_eq!((shard.chains_in_flight(), shard.clients_alive()), (0, 0));
        assert_eq!(client.now_or_never(), Some(found));
        assert_eq!(driver.turn(), Turn::Idle);
    }
}

/// Regression: a pause of a client whose thread was held up before the first poll was over at once, so that the others
/// did not run: three readers of one window led one each.
#[test]
fn a_pause_lasts_a_turn_also_if_its_time_is_over() {
    let (node, shard, mut driver) = Node::with_one_shard();
    let pause = shard.pause(1_000);
    node.pass(1_000);
    let client = shard.spawn(pause);
    assert_eq!(driver.turn(), Turn::Busy);
    assert_eq!(shard.clients_alive(), 1);
    assert_eq!(driver.turn(), Turn::Busy);
    assert_eq!(client.now_or_never(), Some(()));
}

#[test]
fn sleeps_after_it_has_spun_until_shortly_before_a_pause_ends() {
    let (node, shard, mut driver) = Node::with_one_shard();
    let client = shard.spawn(shard.pause(10_000_000));
    assert_eq!(driver.turn(), Turn::Busy);
    assert_eq!(driver.turn(), Turn::Idle);
    node.pass(SPIN_NS - 1);
    assert_eq!(driver.turn(), Turn::Idle);
    node.pass(1);
    let until_ns = 10_000_000 - WAKE_EARLY_NS;
    assert_eq!(driver.turn(), Turn::Sleep { until_ns: Some(until_ns) });
    let (wakes, waker) = Wakes::new();
    assert!(driver.fall_asleep(&waker));
    node.pass(until_ns - SPIN_NS);
    driver.awaken();
    assert_eq!((driver.turn(), wakes.count()), (Turn::Idle, 0));
    // Too late to sleep once more.
    node.pass(WAKE_EARLY_NS - 1);
    assert_eq!(driver.turn(), Turn::Idle);
    node.pass(1);
    assert_eq!(driver.turn(), Turn::Busy);
    assert_eq!((client.now_or_never(), node.clock.now()), (Some(()), 10_000_000));
    assert_eq!(node.rest(&mut driver), None);
}

#[test]
fn does_not_fall_asleep_over_work() {
    let (node, shard, mut driver) = Node::with_one_shard();
    let (wakes, waker) = Wakes::new();
    let at = node.place();
    let client: &dyn Fn() = &|| drop(shard.spawn(async {}));
    let message = &|| shard.send(shard.id(), Port(0), Message::default());
    // The device of mapped memory makes progress only when it is polled.
    let chain = &|| assert_eq!(add(shard.clone(), at, 1).now_or_never(), None);
    for bring in [client, message, chain] {
        node.rest(&mut driver);
        bring();
        assert!(!driver.fall_asleep(&waker));
        driver.awaken();
        assert_eq!(driver.turn(), Turn::Busy);
    }
    node.rest(&mut driver);
    assert!(driver.fall_asleep(&waker));
    assert_eq!(wakes.count(), 0);
}

#[test]
fn work_of_its_own_thread_wakes_it_once() {
    let (node, shard, mut driver) = Node::with_one_shard();
    let (wakes, waker) = Wakes::new();
    node.rest(&mut driver);
    assert!(driver.fall_asleep(&waker));
    let clients = [1, 2].map(|n| shard.spawn(async move { n }));
    assert_eq!(wakes.count(), 1);
    driver.awaken();
    assert_eq!(driver.turn(), Turn::Busy);
    assert_eq!(clients.map(FutureExt::now_or_never), [Some(1), Some(2)]);
}

#[test]
fn a_message_of_another_thread_wakes_it() {
    let (node, mut places) = Node::new(2);
    let (there, here) = (places.pop().unwrap(), places.pop().unwrap());
    let (shard, mut driver) = node.shard(here);
    let (wakes, waker) = Wakes::new();
    let heard = Arc::new(AtomicUsize::new(0));
    let hearing = Arc::clone(&heard);
    shard.listen(Port(0), Rc::new(move |_, message| hearing.store(message.0[0] as usize, Ordering::Relaxed)));
    node.rest(&mut driver);
    assert!(driver.fall_asleep(&waker));
    std::thread::scope(|scope| {
        let sending = || {
            let (other, _driver) = node.shard(there);
            other.send(ShardId(0), Port(0), Message([5, 0, 0]));
        };
        scope.spawn(sending).join().unwrap();
    });
    assert_eq!((wakes.count(), heard.load(Ordering::Relaxed)), (1, 0));
    driver.awaken();
    assert_eq!((driver.turn(), heard.load(Ordering::Relaxed)), (Turn::Busy, 5));
}

#[test]
fn is_over_when_nothing_holds_it_and_all_clients_have_ended() {
    let (node, shard, mut driver) = Node::with_one_shard();
    drop(shard.spawn(shard.pause(100_000)));
    drop(shard);
    assert_eq!((driver.turn(), driver.is_held()), (Turn::Busy, true));
    assert_eq!(driver.turn(), Turn::Idle);
    node.pass(100_000);
    assert_eq!((driver.turn(), driver.is_held()), (Turn::Busy, false));
    assert_eq!(driver.turn(), Turn::Over);
}

#[test]
fn closes_when_its_clients_had_their_time_and_the_driver_is_back() {
    let (node, shard, mut driver) = Node::with_one_shard();
    drop(shard.spawn(std::future::pending::<()>()));
    // This test takes turns all the same: closing waits by pauses.
    driver.step_aside();
    let mut closing = Box::pin(shard.close());
    while node.clock.now() < 2 * CLOSE_NS {
        assert_eq!((&mut closing).now_or_never(), None, "the driver is away");
        driver.turn();
        let clients = usize::from(node.clock.now() < CLOSE_NS);
        assert_eq!(driver.core.clients.alive(), clients, "at {} ns", node.clock.now());
        node.pass(1_000_000);
    }
    driver.come_back();
    let abandoned = (&mut closing).now_or_never();
    assert_eq!(abandoned, Some(Abandoned { clients: 1, ..Abandoned::default() }));
    drop(closing);
    assert_eq!(driver.turn(), Turn::Over);
    assert_eq!(Some(node.roster.abandoned()), abandoned);
}

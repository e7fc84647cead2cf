//! Ports that are leased and given back: their actors are removed from all shards once they rest, and a late message
//! does not reach the actor that has the place then.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{ComputeNode, Message, NodeContext, Port, PortLease, Shard, ShardId, Verbs};

use crate::kit;

const SHARDS: usize = 3;
/// Number of rounds; more are for runs by hand: shards that share cores wait for each other's time slices.
const OPENS: usize = 20;

fn opens() -> usize {
    std::env::var("FARWOOD_TEST_OPENS").map_or(OPENS, |opens| opens.parse().expect("a number of opens"))
}

/// Waits until all shards of the node have come to this point for the `round`th time.
async fn meet(shard: &Shard, met: &AtomicUsize, round: usize) {
    met.fetch_add(1, Ordering::AcqRel);
    while met.load(Ordering::Acquire) < SHARDS * round {
        shard.pause(10_000).await;
    }
}

/// Listens with an actor that counts its messages.
fn listen(shard: &Shard, port: Port, at_rest: Rc<Cell<bool>>) -> Rc<Cell<u32>> {
    let heard: Rc<Cell<u32>> = Rc::default();
    let counting = Rc::clone(&heard);
    let handler = Rc::new(move |_, _| counting.set(counting.get() + 1));
    shard.listen_while_leased(port, handler, Rc::new(move || at_rest.get()));
    heard
}

/// Waits until this shard has `count` actors.
async fn actors(shard: &Shard, count: usize) {
    while shard.actors() != count {
        shard.pause(10_000).await;
    }
}

#[test]
fn actors_are_removed_when_their_port_is_given_back() {
    let _watchdog = kit::Watchdog::new("ports that are given back", 3_600);
    let cluster = kit::cluster(LineMode::Auto);
    let node = kit::node(&cluster, SHARDS, 50);
    let (met, leasing) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&node));
    let ports: Arc<std::sync::Mutex<Option<PortLease>>> = Arc::default();
    let main = move |shard: Shard| {
        let (met, leasing, ports) = (Arc::clone(&met), Arc::clone(&leasing), Arc::clone(&ports));
        async move {
            for round in 0..opens() {
                if shard.id().0 == 0 {
                    *ports.lock().unwrap() = Some(leasing.allocate_port());
                }
                meet(&shard, &met, 3 * round + 1).await;
                let lease = ports.lock().unwrap().clone().unwrap();
                let heard = listen(&shard, lease.port(), Rc::new(Cell::new(true)));
                meet(&shard, &met, 3 * round + 2).await;
                // Every shard has a lease of its own by now: the actors go with the last.
                if shard.id().0 == 0 {
                    ports.lock().unwrap().take();
                }
                shard.send(ShardId(1), lease.port(), Message::default());
                drop(lease);
                actors(&shard, 0).await;
                meet(&shard, &met, 3 * round + 3).await;
                assert_eq!(Rc::strong_count(&heard), 1, "an actor is left");
            }
        }
    };
    node.run(main).unwrap();
    assert_eq!(node.ports_in_use(), 0);
}

/// An actor that is at work on one shard keeps the actors of the others.
#[test]
fn actors_stay_until_all_of_them_rest() {
    let _watchdog = kit::Watchdog::new("an actor at work", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let node = kit::node(&cluster, SHARDS, 50);
    let lease = node.allocate_port();
    let port = lease.port();
    let lease = Arc::new(std::sync::Mutex::new(Some(lease)));
    let (met, released) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let heard = node.run(move |shard: Shard| {
        let (met, released, lease) = (Arc::clone(&met), Arc::clone(&released), Arc::clone(&lease));
        async move {
            let at_rest = Rc::new(Cell::new(shard.id().0 != 2));
            let heard = listen(&shard, port, Rc::clone(&at_rest));
            meet(&shard, &met, 1).await;
            lease.lock().unwrap().take();
            // They have time to go too early.
            shard.pause(20_000_000).await;
            assert_eq!(shard.actors(), 1);
            meet(&shard, &met, 2).await;
            if shard.id().0 == 2 {
                shard.send(ShardId(0), port, Message::default());
                shard.pause(1_000_000).await;
                released.store(true, Ordering::Release);
                at_rest.set(true);
            }
            actors(&shard, 0).await;
            assert!(released.load(Ordering::Acquire));
            heard.get()
        }
    });
    assert_eq!((heard.unwrap(), node.ports_in_use()), (vec![1, 0, 0], 0));
}

/// Without an actor there is nothing to wait for, and neither before any shard is attached.
#[test]
fn ports_without_listeners_are_free_at_once() {
    let cluster = kit::cluster(LineMode::Auto);
    let node: Arc<ComputeNode> = kit::node(&cluster, SHARDS, 50);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..1000 {
        let leases = [node.allocate_port(), node.allocate_port()];
        assert_eq!(node.ports_in_use(), 2);
        assert!(leases.iter().all(|lease| seen.insert(lease.port())), "a port was given twice");
    }
    assert_eq!(node.ports_in_use(), 0);
}

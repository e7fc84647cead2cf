//! Compute nodes that die at any verb of what they do under locks that can be shared: others take the word over, or the
//! bit away, and go on.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use farwood_lock::{LockConfig, LockError, LockWord, OnceDead};
use farwood_runtime::{Chain, Meter, Verbs};

use crate::clients::{DATA_BYTES, NODE_BYTES};
use crate::fake::{Fault, World, embedded, node};
use crate::shared::{Client, Cluster, WORDS, Way, lanes};

const WAYS: [Way; 4] = [Way::Shares, Way::Swaps, Way::Alone, Way::AloneInTurn];

fn config() -> LockConfig {
    LockConfig { wait_max: Duration::from_millis(20), ..LockConfig::default() }
}

type Outcomes = Rc<RefCell<Vec<Result<(), LockError>>>>;

/// Lets each of `clients` add one so many times, one after the other.
fn add(cluster: &Cluster, clients: &[Client], times: usize) -> Outcomes {
    let outcomes = Outcomes::default();
    for client in clients {
        let (client, outcomes) = (client.clone(), Rc::clone(&outcomes));
        cluster.world.spawn(async move {
            for _ in 0..times {
                let done = client.add_one(&Meter::default(), 0).await;
                outcomes.borrow_mut().push(done);
            }
        });
    }
    cluster.world.run_with_the_dead();
    outcomes
}

/// A client dies in the `number`-th chain of its operation, and others of two compute nodes go on: yields how many
/// locks they took over, and how many bits they took away.
fn a_death(way: Way, number: usize, fault: Fault) -> (u64, u64) {
    let cluster = Cluster::with_intents(World::new(3, 3, 1), config(), lanes(64));
    let dead = cluster.client(0, 0, way);
    add(&cluster, std::slice::from_ref(&dead), 1);
    cluster.world.die(number, fault);
    add(&cluster, std::slice::from_ref(&dead), 1);
    cluster.world.spare();
    cluster.world.set_dead(&[1]);
    let others = [(1, 1, Way::Shares), (1, 2, Way::Alone), (2, 3, Way::Swaps), (2, 4, Way::AloneInTurn)];
    let others = others.map(|(shard, word, way)| cluster.client(shard, word, way));
    let outcomes = add(&cluster, &others, 2);
    let what = format!("{way:?}, chain {number}, {fault:?}");
    assert!(outcomes.borrow().iter().all(Result::is_ok), "{what}: {outcomes:?}");
    assert_eq!(cluster.world.word(embedded(0).offset()), 0, "{what}: the lock stays taken");
    assert_eq!(cluster.world.word(embedded(0).offset() + 8), 0, "{what}: a bit stays set");
    for client in others.iter().chain([&dead]) {
        assert_eq!(client.lost(&cluster.world), 0, "{what}: an update is lost, or the node was torn");
    }
    (cluster.recovered(), cluster.stats().recovered)
}

#[test]
fn a_client_may_die_in_any_verb() {
    for way in WAYS {
        let mut sum = (0, 0);
        let faults = (0..5).flat_map(|verbs| [0, 0b1, 0b10].map(|lines| Fault { verbs, lines, gone: false }));
        for fault in faults {
            for number in 0..3 {
                let (locks, bits) = a_death(way, number, fault);
                assert!(locks + bits <= 1, "what is left is taken over once");
                sum = (sum.0 + locks, sum.1 + bits);
            }
        }
        let shares = matches!(way, Way::Shares | Way::Swaps);
        assert_eq!((sum.0 > 0, sum.1 > 0), (!shares, shares), "{way:?}: {sum:?}");
    }
}

/// A bit is taken away of one that is known to be dead, and of no other; also when no client wants the lock.
#[test]
fn bits_of_the_living_stay() {
    let cluster = Cluster::with_intents(World::new(4, 3, 1), config(), lanes(64));
    let dead = cluster.client(0, 0, Way::Shares);
    cluster.world.die(0, Fault { verbs: 1, lines: 0, gone: false });
    add(&cluster, &[dead], 1);
    cluster.world.spare();
    let bit = cluster.world.word(embedded(0).offset() + 8);
    assert_eq!(bit.count_ones(), 1, "it has died with its bit set");
    let waits = add(&cluster, &[cluster.client(1, 1, Way::Alone)], 1);
    let is_named = matches!(
        waits.borrow()[0],
        Err(LockError::Contended { owner: 1, once_dead: OnceDead::Recovered, .. })
    );
    assert!(is_named, "{waits:?}");
    let lane = lanes(64).directory.add(u64::from(bit.trailing_zeros()) * 8);
    let owner = LockWord::from_bits(cluster.world.word(lane.offset())).expect("it has a lane");
    assert_eq!(owner.owner(), 1);
    for (is_dead, left) in [(false, bit), (true, 0)] {
        cluster.world.set_dead(if is_dead { &[1] } else { &[9] });
        let (locks, taken) = (cluster.locks[1].clone(), Rc::new(RefCell::new(None)));
        let told = Rc::clone(&taken);
        cluster
            .world
            .spawn(async move { *told.borrow_mut() = Some(locks.take_over(embedded(0), owner).await) });
        cluster.world.run_with_the_dead();
        assert_eq!(*taken.borrow(), Some(Ok(is_dead)));
        assert_eq!(cluster.world.word(embedded(0).offset() + 8), left);
    }
}

/// Beside the bit of a dead node those of the living stay, and are waited for.
#[test]
fn a_living_sharer_is_waited_for() {
    let cluster = Cluster::with_intents(World::new(5, 3, 1), config(), lanes(64));
    cluster.world.die(0, Fault { verbs: 1, lines: 0, gone: false });
    add(&cluster, &[cluster.client(0, 0, Way::Shares)], 1);
    cluster.world.spare();
    cluster.world.set_dead(&[1]);
    let (sharer, alone) = (cluster.client(1, 1, Way::Shares), cluster.client(2, 2, Way::Alone));
    let log = Rc::new(RefCell::new(Vec::new()));
    let (told, world) = (Rc::clone(&log), cluster.world.clone());
    cluster.world.spawn(async move {
        let (buf, parts) = (sharer.fake.lease(NODE_BYTES), [WORDS, 0..DATA_BYTES]);
        let meter = Meter::default();
        let shared = sharer.locks.share_and_read(&meter, node(0), embedded(0), buf, &parts).await;
        let (shared, _) = shared.expect("no client has it alone");
        let then = Rc::clone(&told);
        world.spawn(async move {
            alone.have_alone(&Meter::default(), 0).await.expect("it comes free");
            then.borrow_mut().push("one has it alone");
        });
        sharer.fake.pause(5_000_000).await;
        told.borrow_mut().push("the sharer leaves");
        shared.release(&meter, Chain::new(node(0).server())).await.expect("the fabric does not fail");
    });
    cluster.world.run_with_the_dead();
    assert_eq!(*log.borrow(), ["the sharer leaves", "one has it alone"]);
    assert_eq!(cluster.stats().recovered, 1);
    assert_eq!(cluster.world.word(embedded(0).offset() + 8), 0);
}

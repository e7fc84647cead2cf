//! Images that go with a leaf's lock where that is handed over: what they save a writer of CHIME's leaves, which knows
//! a part of a leaf only, and that writers with images are as far apart as readers believe. What they save Sherman's is
//! in `round_trips.rs`.

use std::sync::{Arc, Mutex};

use farwood::runtime::sim::SimConfig;
use farwood::{OpKind, RangeIndex, Verbs};

use crate::kit::cluster::{Parties, TestCluster};
use crate::kit::kind::{Shape, switched};
use crate::kit::simulated::{calm, simulate_parties};
use crate::kit::{self, IndexKind, IndexSpec, key};

const CLIENTS: u64 = 20;
const UPDATES: u64 = 30;

/// Each client writes for itself.
fn alone(kind: IndexKind) -> IndexSpec {
    ["delegation", "combining"].iter().fold(Shape::USUAL.usual(kind), |mix, name| switched(mix, name, false))
}

/// Lets clients update one of so many keys of one leaf each; yields the hand-overs, and those with an image.
async fn update(cluster: &TestCluster, keys: u64) -> (u64, u64) {
    let before = cluster.index.stats();
    let client = |client: usize| {
        let index = cluster.index.clone();
        async move {
            let own = key(client as u64 % keys);
            for n in 0..UPDATES {
                assert!(index.update(&own, &key(n)).await.unwrap());
            }
        }
    };
    cluster.clients(CLIENTS as usize, client).await;
    let mut stats = cluster.index.stats();
    stats -= &before;
    let (updates, locks) = (stats.kind(OpKind::Update), stats.locks);
    assert_eq!((updates.ops, updates.retries), (CLIENTS * UPDATES, 0));
    assert_eq!(updates.cas, updates.ops - locks.handed_over);
    assert_eq!(updates.round_trips, 2 * updates.ops - locks.images);
    for own in 0..keys {
        assert_eq!(cluster.index.get(&key(own)).await.unwrap().as_deref(), Some(&key(UPDATES - 1)[..]));
    }
    (locks.handed_over, locks.images)
}

#[test]
fn a_writer_of_chime_reads_what_the_one_before_did_not_know() {
    kit::with_parties(Parties::ONE, alone(IndexKind::Chime), |cluster| async move {
        for n in 0..40 {
            cluster.index.put(&key(n), b"").await.unwrap();
        }
        let (handed_over, images) = update(&cluster, 1).await;
        assert!(
            images == handed_over && handed_over >= CLIENTS * UPDATES * 3 / 4,
            "{images} of {handed_over}"
        );
        // Of one in eight homes the same neighbourhood is read, and of none a larger one.
        let (handed_over, images) = update(&cluster, CLIENTS).await;
        assert!(images < handed_over / 2, "{images} of {handed_over}");
        cluster.rest().await;
    });
}

/// Yields the least time in ns between two writes of one entry, by clients on the machine that has it.
fn least_interval_ns(write_interval_ns: u32) -> u64 {
    let parties = Parties::Shards(4);
    let mut config = SimConfig { colocated: true, servers: 1, ..calm(parties) };
    config.profile.write_interval_ns = write_interval_ns;
    let written_ns = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&written_ns);
    simulate_parties(&config, parties, alone(IndexKind::Sherman), move |cluster| {
        let noted = Arc::clone(&noted);
        async move {
            cluster.index.put(&key(1), b"").await.unwrap();
            let client = |_| {
                let (index, shard, noted) =
                    (cluster.index.clone(), cluster.shard.clone(), Arc::clone(&noted));
                async move {
                    for n in 0..50 {
                        index.put(&key(1), &key(n)).await.unwrap();
                        noted.lock().unwrap().push(shard.now());
                    }
                }
            };
            cluster.clients(3, client).await;
            cluster.meet().await;
            assert!(cluster.index.stats().locks.images > 50);
        }
    });
    let mut written_ns = std::mem::take(&mut *written_ns.lock().unwrap());
    assert_eq!(written_ns.len(), 4 * 3 * 50);
    written_ns.sort_unstable();
    written_ns.windows(2).map(|two| two[1] - two[0]).min().expect("there are many")
}

/// Readers believe versions for as long as so many writes take at least, each a READ and a WRITE. The negative control
/// is a fabric that says less than is true of it: then holders with images do not wait.
#[test]
fn writers_with_images_are_as_far_apart_as_readers_believe() {
    const INTERVAL_NS: u32 = 2_000;
    // A nanosecond for each line of the leaf.
    let believed_ns = u64::from(INTERVAL_NS) + 1024 / 64;
    let least_ns = least_interval_ns(INTERVAL_NS);
    assert!(least_ns >= believed_ns, "{least_ns}");
    let unkept_ns = least_interval_ns(INTERVAL_NS / 20);
    assert!(unkept_ns < believed_ns, "versions hold without a wait: {unkept_ns}");
}

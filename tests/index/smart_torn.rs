//! Leaves of a radix tree that stay torn: their writer has stopped in the middle, for a while or for good, or their
//! bytes are damaged. Gets and scans end, with the value or with an error that says what is wrong.

use std::future::Future;

use farwood::index::layout::radix::Slot;
use farwood::lock::LockError;
use farwood::runtime::{Chain, Meter, RemotePtr};
use farwood::smart::{Geometry, Options, Techniques, Types};
use farwood::{AccessError, OpKind, RangeIndex, ReadError, Verbs};
use futures::TryStreamExt;

use crate::kit::cluster::{as_main, at_index};
use crate::kit::simulated::{calm, simulate};
use crate::kit::{IndexSpec, NAME, Parties, TestCluster};

const GEOMETRY: Geometry = Geometry { max_key: 8, max_value: 200, types: Types::Lines };
const VALUE: [u8; 200] = [7; 200];
/// In the third line.
const TORN_AT: u64 = 150;
/// The word of a client that is gone: its node is none of the cluster's.
const DEAD: u64 = 0x004d_0001_0000_0001;

/// A tree of one leaf.
struct TornLeaf {
    cluster: TestCluster,
    leaf: RemotePtr,
    lock: RemotePtr,
}

impl TornLeaf {
    async fn word(&self, at: RemotePtr) -> u64 {
        let read = self.cluster.shard.read(&Meter::default(), at, 8).await.unwrap().into_buf();
        u64::from_le_bytes(read[..8].try_into().unwrap())
    }

    async fn set(&self, at: RemotePtr, word: u64) {
        let mut chain = Chain::new(at.server());
        chain.write_word(at, word);
        self.cluster.shard.submit(&Meter::default(), chain).await.unwrap();
    }

    /// Changes a word of the value; yields what it was.
    async fn tear(&self) -> u64 {
        let at = self.leaf.add(TORN_AT / 8 * 8);
        let word = self.word(at).await;
        self.set(at, !word).await;
        word
    }

    async fn get(&self) -> Result<(), ReadError> {
        let found = self.cluster.index.get(b"key").await?;
        assert_eq!(found.as_deref(), Some(&VALUE[..]));
        Ok(())
    }

    async fn scan(&self) -> Result<(), ReadError> {
        let pairs: Vec<_> = self.cluster.index.scan(.., None).try_collect().await?;
        assert_eq!(pairs.len(), 1);
        assert_eq!((&pairs[0].0[..], &pairs[0].1[..]), (&b"key"[..], &VALUE[..]));
        Ok(())
    }

    fn round_trips(&self) -> u64 {
        let stats = self.cluster.index.stats();
        stats.kind(OpKind::Get).round_trips + stats.kind(OpKind::Scan).round_trips
    }
}

fn with_torn_leaf<R: Future<Output = ()> + 'static>(techniques: Techniques, main: fn(TornLeaf) -> R) {
    let options = Options { techniques, lock_attempts_max: 50, ..Options::default() };
    let recipe = IndexSpec::Smart { geometry: GEOMETRY, options };
    let main = as_main(move |cluster: TestCluster| async move {
        cluster.index.put(b"key", &VALUE).await.unwrap();
        let root = cluster.host.control().open(NAME).await.unwrap().root;
        let mut torn = TornLeaf { cluster, leaf: root, lock: root };
        let slot = Slot::from_bits(torn.word(root).await);
        torn.leaf = slot.child().unwrap().ptr();
        torn.lock = torn.leaf.add(u64::from(slot.class()) * 64 - 8);
        torn.get().await.unwrap();
        torn.scan().await.unwrap();
        main(torn).await;
    });
    simulate(&calm(Parties::ONE), Parties::ONE, &at_index(Parties::ONE, recipe, main));
}

/// Scans used to read it for ever.
#[test]
fn a_writer_that_stopped_for_good() {
    with_torn_leaf(Techniques::ALL, |torn| async move {
        torn.tear().await;
        torn.set(torn.lock, DEAD).await;
        let is_named = |error| {
            matches!(error, ReadError::Access(AccessError::Lock(LockError::Contended { owner: 77, .. })))
        };
        assert!(is_named(torn.get().await.unwrap_err()));
        assert!(is_named(torn.scan().await.unwrap_err()));
        assert!(torn.round_trips() < 1000);
    });
}

#[test]
fn a_writer_that_stopped_for_a_while() {
    with_torn_leaf(Techniques::ALL, |torn| async move {
        let word = torn.tear().await;
        torn.set(torn.lock, DEAD).await;
        let goes_on = async {
            torn.cluster.shard.pause(1_100_000).await;
            torn.set(torn.leaf.add(TORN_AT / 8 * 8), word).await;
            torn.set(torn.lock, 0).await;
        };
        let (got, scanned, ()) = futures::join!(torn.get(), torn.scan(), goes_on);
        got.unwrap();
        scanned.unwrap();
    });
}

#[test]
fn damaged_bytes() {
    let replaced = Techniques { in_place_leaves: false, rear_lock: false, ..Techniques::ALL };
    for techniques in [Techniques::ALL, replaced] {
        with_torn_leaf(techniques, |torn| async move {
            torn.tear().await;
            for error in [torn.get().await.unwrap_err(), torn.scan().await.unwrap_err()] {
                assert!(error.to_string().contains("checksum"), "{error}");
                let ReadError::Access(AccessError::Corrupt { node, .. }) = error else { panic!("{error:?}") };
                assert_eq!(node, torn.leaf);
            }
            assert!(torn.round_trips() < 1000);
            assert_eq!(torn.word(torn.lock).await, 0);
        });
    }
}

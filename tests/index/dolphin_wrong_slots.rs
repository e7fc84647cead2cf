//! Memory of Dolphin's leaves that were merged, where another leaf is by now: far to the left of the keys of a slot
//! that still leads there, or of another first byte. What operations around there cost, and how the two leaves differ.
//!
//! ```text
//!   node "k":  a -> (node "ka")   b -> R2   c -> R3       node "ka":  End -> L   8 -> R
//!   R takes R2 in, L takes R in:  b -> R, which is freed, and End, 8 -> L
//!   a leaf of others' keys is split into R's memory: b -> R'
//! ```
//!
//! The slot for b is put back by hand: a janitor that dies before it makes it lead on leaves it so.

use farwood::dolphin::{Geometry, Options, Types};
use farwood::index::layout::radix::{InnerView, NodeTypes, Slot, Symbol, slot_at};
use farwood::runtime::{Chain, Meter, RemotePtr};
use farwood::{CheckOptions, IndexSpec, OpKind, RangeIndex, Verbs};

use crate::kit::{NAME, Parties, TestCluster, TestShard, with_parties};

/// Leaves of eight slots.
const PAIRS: usize = 8;
const LEAF_BYTES: usize = 704;
/// Leaves far away, more than an operation has retries.
const FAR: usize = 120;
const RETRIES_MAX: u32 = 100;

fn spec() -> IndexSpec {
    let geometry = Geometry { max_key: 8, max_value: 40, leaf_bytes: LEAF_BYTES, types: Types::Tiny };
    IndexSpec::Dolphin { geometry, options: Options { retries_max: RETRIES_MAX, ..Options::default() } }
}

/// The keys of full leaves: many that begin with "a", and with "k0", and L, R, R2 and R3 of the picture with two more.
fn keys() -> Vec<String> {
    let far = |begin: &'static str| (0..FAR * PAIRS).map(move |n| format!("{begin}{n:04}"));
    let near = ["ka0", "ka8", "kb", "kc", "kd", "ke"].into_iter().flat_map(|begin| {
        let (begin, first) = if begin.len() == 3 { begin.split_at(2) } else { (begin, "0") };
        let first = if first == "8" { PAIRS } else { 0 };
        (first..first + PAIRS).map(move |n| format!("{begin}{n:x}"))
    });
    far("a").chain(far("k0")).chain(near).collect()
}

async fn remove(cluster: &TestCluster, keys: impl IntoIterator<Item = &str>) {
    for key in keys {
        assert!(cluster.index.remove(key.as_bytes()).await.unwrap(), "{key}");
    }
    cluster.rest().await;
    // For as long as a leaf is left alone that had found no room.
    cluster.shard.pause(2_000_000).await;
}

async fn leaves(cluster: &TestCluster) -> u64 {
    let report = cluster.index.check(&CheckOptions::default()).await.unwrap();
    assert!(report.is_intact(), "{:?}", report.violations);
    report.survey.leaves
}

/// Finds the slot for a path, and where it is.
async fn slot_for(shard: &TestShard, path: &[u8]) -> (RemotePtr, Slot) {
    let read = async |at, bytes| shard.read(&Meter::default(), at, bytes).await.unwrap().into_buf();
    let root_word = shard.control().open(NAME).await.unwrap().root;
    let mut slot = Slot::from_bits(u64::from_le_bytes(read(root_word, 8).await[..8].try_into().unwrap()));
    let mut at = root_word;
    for byte in path {
        let node = slot.child().unwrap().ptr();
        let image = read(node, NodeTypes::TINY.node_bytes(slot.class())).await;
        let mut slots = InnerView::new(&image, &NodeTypes::TINY).unwrap().claimed();
        let (index, found) = slots.find(|(_, slot)| slot.is_of(Symbol::Byte(*byte))).unwrap();
        (at, slot) = (node.add(slot_at(index)), found);
    }
    (at, slot)
}

/// Has a slot for "kb" lead to a freed leaf whose memory may be used again.
async fn merge(cluster: &TestCluster) {
    let (index, keys) = (&cluster.index, keys());
    let pairs = keys.iter().map(|key| (key.as_bytes(), key.as_bytes()));
    index.bulk_load(pairs, 1.0).await.unwrap();
    let full = leaves(cluster).await;
    assert_eq!(full, (keys.len() / PAIRS) as u64);
    let right = slot_for(&cluster.shard, b"ka8").await.1.child().unwrap();
    remove(cluster, ["kb1", "kb2", "kb3", "kb4", "kb5", "kb6", "kb7"]).await;
    remove(cluster, ["ka9", "kaa", "kab", "kac", "kad", "kae"]).await;
    assert_eq!(leaves(cluster).await, full - 1, "R has taken R2 in");
    remove(cluster, ["kaf"]).await;
    remove(cluster, ["ka1", "ka2", "ka3", "ka4", "ka5", "ka6"]).await;
    assert_eq!(leaves(cluster).await, full - 2, "L has taken R in");
    let (at, slot) = slot_for(&cluster.shard, b"kb").await;
    assert_eq!(slot.child(), slot_for(&cluster.shard, b"ka").await.1.child(), "it leads to L");
    let mut chain = Chain::new(at.server());
    chain.write_word(at, Slot::leaf(Symbol::Byte(b'b'), right, slot.class()).bits());
    cluster.shard.submit(&Meter::default(), chain).await.unwrap();
    let (pins, control) = (cluster.shard.pins(), cluster.shard.control());
    let since = pins.retired_now();
    // No copy says otherwise.
    while pins.flushed_since(since).is_none_or(|since| !pins.is_over(since)) {
        control.want_flush(since);
        cluster.shard.pause(1_000).await;
    }
}

/// Splits the leaf of a key into that memory.
async fn split(cluster: &TestCluster, key: &str) {
    let (index, before) = (&cluster.index, leaves(cluster).await);
    let reused = index.books().reused_bytes;
    index.insert(format!("{key}+").as_bytes(), b"more").await.unwrap();
    cluster.rest().await;
    assert!(index.books().reused_bytes > reused, "the new leaf is where R was");
    assert_eq!(leaves(cluster).await, before + 1);
}

/// Counts the round trips of a get that comes over the wrong slot.
async fn get(cluster: &TestCluster) -> u64 {
    let trips = || cluster.index.stats().kind(OpKind::Get).round_trips;
    let before = trips();
    assert_eq!(cluster.index.get(b"kb0").await.unwrap().as_deref(), Some(&b"kb0"[..]));
    trips() - before
}

#[test]
fn who_is_led_far_to_the_left_does_not_go_there_leaf_by_leaf() {
    with_parties(Parties::ONE, spec(), |cluster| async move {
        merge(&cluster).await;
        split(&cluster, "k00012").await;
        let trips = get(&cluster).await;
        assert!((9..40).contains(&trips), "{trips} round trips");
        cluster.rest().await;
        let trips = get(&cluster).await;
        assert!(trips < 5, "the slot leads on: {trips} round trips");
        cluster.finish().await;
    });
}

#[test]
fn leaves_of_another_first_byte_are_not_gone_through() {
    with_parties(Parties::ONE, spec(), |cluster| async move {
        merge(&cluster).await;
        split(&cluster, "a0012").await;
        let full = leaves(&cluster).await;
        // The left neighbour of an empty leaf is found past the slot, and takes it in.
        for removed in [&["kc0", "kc1", "kc2", "kc3", "kc4", "kc5"][..], &["kc6"], &["kc7"]] {
            remove(&cluster, removed.iter().copied()).await;
        }
        assert_eq!(leaves(&cluster).await, full - 1);
        let trips = get(&cluster).await;
        assert!(trips < 18, "{trips} round trips");
        cluster.finish().await;
    });
}

/// A READ that comes over an old slot may bring lines of the leaf that was there, and of the one that is made there
/// meanwhile: only their versions tell.
#[test]
fn a_leaf_has_a_version_behind_those_of_the_one_that_was_there() {
    with_parties(Parties::ONE, spec(), |cluster| async move {
        merge(&cluster).await;
        let (shard, index) = (&cluster.shard, &cluster.index);
        let free = index.free_extents().into_iter().filter(|(_, bytes)| *bytes == LEAF_BYTES as u64);
        let mut before = Vec::new();
        for (at, _) in free {
            before.push((at, versions(shard, at).await));
        }
        assert_eq!(before.len(), 2, "R2 and R");
        split(&cluster, "k00012").await;
        let still_free = index.free_extents();
        before.retain(|(at, _)| still_free.iter().all(|(free, _)| free != at));
        let [(at, before)] = &before[..] else { panic!("one of them is used again") };
        let newest = before.iter().max().unwrap();
        assert_eq!(versions(shard, *at).await, vec![newest + 1; before.len()]);
        cluster.finish().await;
    });
}

/// Reads the version of each line.
async fn versions(shard: &TestShard, at: RemotePtr) -> Vec<u16> {
    let image = shard.read(&Meter::default(), at, LEAF_BYTES).await.unwrap().into_buf();
    image.chunks(64).map(|line| u16::from_le_bytes([line[0], line[1]])).collect()
}

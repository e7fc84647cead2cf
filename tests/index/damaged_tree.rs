//! Any bytes in the nodes of a tree: operations end with a result or an error. No panic, no endless loop, no lock that
//! stays taken.

use std::sync::Arc;
use std::time::Duration;

use farwood::index::layout::{Malformed, Rejection};
use farwood::runtime::RemotePtr;
use farwood::sherman::Options;
use farwood::{
    AccessError, Backoff, ComputeNode, IndexError, RangeIndex, ReadError, Sherman, ShermanIndex, WriteError,
};
use futures::TryStreamExt;
use futures::executor::block_on;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::kit;
use crate::kit::TestShard;
use crate::kit::cluster::{Seat, as_main};
use crate::kit::damaged_tree::{CHILD, DamagedTree, HIGH, HIGH_LEN, LOW, SEPARATOR, SIBLING};
use crate::kit::{NAME, TINY, key};

const FEW: Options = Options {
    techniques: farwood::sherman::Techniques::ALL,
    cache_bytes: 1 << 20,
    eviction: farwood::cache::Policy::TwoChoices,
    retries_max: 200,
    backoff: Backoff { min: Duration::from_nanos(100), max: Duration::from_micros(1) },
    lock_wait_max: Duration::from_secs(5),
    lock_attempts_max: 100,
    scan_window: Some(4),
    intent_log: false,
};

/// Runs `main` with a tree, and with the node, on which more handles to it can be opened.
fn on_a_tree<R: Future<Output = ()> + 'static>(main: fn(Arc<ComputeNode>, DamagedTree) -> R) {
    let node = kit::node(&kit::cluster(), 1);
    let tree = block_on(Sherman::create(&node, NAME, TINY, FEW)).unwrap();
    let host = Arc::clone(&node);
    let body = as_main(move |Seat { shard, .. }: Seat<TestShard>| {
        let (host, index) = (Arc::clone(&host), tree.attach(shard.clone()));
        async move {
            main(host, DamagedTree::new(shard.clone(), index.clone()).await).await;
            kit::at_rest(&shard, &index).await;
        }
    });
    kit::run_nodes(vec![node], &kit::on_node(&body));
}

/// Yields a handle whose cache is cold, so that it reads what is damaged.
async fn cold(host: &Arc<ComputeNode>, shard: &TestShard) -> ShermanIndex<TestShard> {
    Sherman::open(host, NAME, FEW).await.unwrap().attach(shard.clone())
}

/// Yields all nodes, and the root word.
async fn images(tree: &DamagedTree) -> Vec<(RemotePtr, Vec<u8>)> {
    let mut images = vec![(tree.root_word, tree.read(tree.root_word, 8).await)];
    for node in tree.levels.iter().flatten() {
        images.push((*node, tree.read(*node, tree.bytes(*node)).await));
    }
    images
}

/// Gets, scans and changes all over the tree; yields how many of them failed.
async fn use_up(index: &ShermanIndex<TestShard>, rng: &mut SmallRng) -> usize {
    let mut errors = Vec::new();
    for _ in 0..12 {
        // Some keys are there, most others are next to one.
        let any = key(kit::scatter(rng.random_range(0..150)).wrapping_add(rng.random_range(0..2)));
        errors.extend(index.get(&any).await.err().map(IndexError::from));
        errors.extend(index.put(&any, &key(7)).await.err().map(IndexError::from));
        errors.extend(index.remove(&any).await.err().map(IndexError::from));
        let some = index.scan(&any[..].., Some(20)).try_collect::<Vec<_>>().await;
        errors.extend(some.err().map(IndexError::from));
    }
    let all = index.scan(.., None).try_collect::<Vec<_>>().await;
    errors.extend(all.err().map(IndexError::from));
    assert!(errors.iter().all(|error| error.access().is_some()), "{errors:?}");
    errors.len()
}

async fn rest(shard: &TestShard, index: &ShermanIndex<TestShard>) {
    kit::at_rest(shard, index).await;
    assert_eq!(kit::lock_words_set(shard).await, 0, "locks are still taken");
}

#[test]
fn random_bytes_anywhere() {
    on_a_tree(|host, tree| async move {
        let healthy = images(&tree).await;
        let mut rng = SmallRng::seed_from_u64(1);
        let mut failed = 0;
        // What is merged becomes healthy again: a handle that is dropped would give its memory away.
        let mut handles = Vec::new();
        for round in 0..400 {
            for _ in 0..=round % 4 {
                let (node, image) = &healthy[rng.random_range(0..healthy.len())];
                let mut other = image.clone();
                for _ in 0..rng.random_range(1..6) {
                    // Mostly behind the control words, or all that shows is a torn node.
                    let at = rng.random_range(0..other.len());
                    if other.len() == 8 || at % 64 > 1 || rng.random_bool(0.1) {
                        other[at] = if rng.random_bool(0.5) { rng.random() } else { other[at] ^ 1 };
                    }
                }
                tree.write(*node, &other).await;
            }
            let index = cold(&host, &tree.shard).await;
            failed += use_up(&index, &mut rng).await;
            rest(&tree.shard, &index).await;
            handles.push(index);
            for (node, image) in &healthy {
                tree.write(*node, image).await;
            }
        }
        assert!(failed > 1000, "only {failed} operations noticed");
        tree.is_healthy().await;
    });
}

/// A chain takes no address that is not aligned: they used to panic.
#[test]
fn pointers_that_are_not_aligned() {
    on_a_tree(|host, tree| async move {
        let mut rng = SmallRng::seed_from_u64(2);
        for node in [tree.root(), tree.inner(0), tree.inner(1), tree.leaf(0), tree.leaf(3)] {
            let healthy = images(&tree).await;
            let fields = if tree.levels[0].contains(&node) { &[SIBLING][..] } else { &[SIBLING, CHILD] };
            for (field, offset) in fields.iter().flat_map(|field| [1, 4, 8, 32].map(|o| (*field, o))) {
                let mut image = tree.read(node, tree.bytes(node)).await;
                image[field] |= offset;
                // So that keys go to the right.
                image.copy_within(LOW..LOW + 7, HIGH);
                image[HIGH + 7] = 1;
                image[HIGH_LEN..][..2].copy_from_slice(&[8, 0]);
                tree.write(node, &image).await;
                let index = cold(&host, &tree.shard).await;
                let errors = use_up(&index, &mut rng).await;
                let key = key(u64::MAX);
                let last = index.get(&key).await;
                if node == tree.root() && field == SIBLING {
                    let Err(ReadError::Access(AccessError::RetriesExhausted { last, .. })) = last else {
                        panic!("{last:?}");
                    };
                    assert_eq!(last, Some(Rejection::Malformed(Malformed::MisalignedSibling)));
                    assert!(errors > 0);
                }
                rest(&tree.shard, &index).await;
                for (node, image) in &healthy {
                    tree.write(*node, image).await;
                }
            }
        }
        tree.is_healthy().await;
    });
}

#[test]
fn root_words_that_lead_nowhere() {
    on_a_tree(|host, tree| async move {
        let word = tree.word(tree.root_word).await;
        let mut rng = SmallRng::seed_from_u64(3);
        for root in [7, 64, u64::MAX, word ^ 1, word | 0x3f, word & !0x3f, word + 64] {
            tree.write(tree.root_word, &root.to_le_bytes()).await;
            let index = cold(&host, &tree.shard).await;
            assert!(use_up(&index, &mut rng).await > 0);
            rest(&tree.shard, &index).await;
        }
        tree.write(tree.root_word, &word.to_le_bytes()).await;
        tree.is_healthy().await;
    });
}

/// Splits nodes whose entries are out of order: that used to panic over the new nodes' fences.
#[test]
fn full_nodes_that_are_out_of_order_are_not_split() {
    on_a_tree(|host, tree| async move {
        let healthy = images(&tree).await;
        let mut rng = SmallRng::seed_from_u64(4);
        for node in tree.levels.concat() {
            let mut image = tree.read(node, tree.bytes(node)).await;
            // A separator above the others, or the leaf's keys outside of its fences.
            let at = if tree.levels[0].contains(&node) { LOW } else { SEPARATOR };
            image[at] = image[at].wrapping_add(0x70);
            image[HIGH] = 0xff;
            tree.write(node, &image).await;
        }
        let index = cold(&host, &tree.shard).await;
        for n in 0..2000 {
            let put = index.put(&key(kit::scatter(n + 1000)), &key(n)).await;
            assert!(matches!(put, Ok(()) | Err(WriteError::Access(_))), "{put:?}");
        }
        use_up(&index, &mut rng).await;
        rest(&tree.shard, &index).await;
        for (node, image) in &healthy {
            tree.write(*node, image).await;
        }
        tree.is_healthy().await;
    });
}

//! Memory that one shard has freed is used again by others: a compute node that ends loses none.

use std::sync::Arc;

use farwood::{CheckOptions, Cluster, ComputeNode, NodeConfig, RangeIndex, Shard, Verbs};

use crate::kit::{IndexKind, IndexSpec, Shape, TestShard, cluster, key};

const KEYS: u64 = 2000;
const CHUNK_BYTES: u64 = 64 << 10;

/// Counts the bytes of all chunks.
async fn handed_out(shard: &impl Verbs) -> u64 {
    shard.control().usage().await.unwrap().iter().map(|server| server.chunk_bytes).sum()
}

/// Lets a compute node work on the index, which it creates or opens, and ends it.
fn on_node<R: Future<Output = T> + 'static, T: Send + 'static>(
    cluster: &Arc<Cluster>,
    spec: IndexSpec,
    main: impl Fn(TestShard, farwood::AnyIndex<TestShard>) -> R + Send + Sync + 'static,
) -> T {
    let node =
        ComputeNode::new(Arc::clone(cluster), NodeConfig { shards: 1, ..NodeConfig::default() }).unwrap();
    let (host, main) = (Arc::clone(&node), Arc::new(main));
    let ran = node.run(move |shard: Shard| {
        let (host, main) = (Arc::clone(&host), Arc::clone(&main));
        async move {
            let tree = match spec.create(&host, "t").await {
                Ok(tree) => tree,
                Err(_) => spec.open(&host, "t").await.unwrap(),
            };
            let shard = TestShard::Node(shard);
            let index = tree.attach(shard.clone());
            main(shard, index).await
        }
    });
    ran.unwrap().pop().expect("one shard")
}

async fn insert_all(index: &impl RangeIndex) {
    for key in (0..KEYS).map(key) {
        assert!(index.insert(&key, &key).await.unwrap());
    }
}

#[test]
fn a_compute_node_that_has_removed_all_and_ends_leaves_its_memory_to_the_next() {
    for &kind in IndexKind::ALL {
        let (cluster, spec) = (cluster(), Shape::USUAL.usual(kind));
        let first = on_node(&cluster, spec, async |shard: TestShard, index| {
            insert_all(&index).await;
            for key in (0..KEYS).map(key) {
                assert!(index.remove(&key).await.unwrap());
            }
            handed_out(&shard).await
        });
        let lost = on_node(&cluster, spec, async |_, index| {
            let report = index.check(&CheckOptions::default()).await.unwrap();
            assert!(report.is_intact());
            report.memory.unwrap().unreached_bytes
        });
        assert_eq!(lost, 0, "{kind}: of {first} bytes");
        let second = on_node(&cluster, spec, async |shard, index| {
            insert_all(&index).await;
            handed_out(&shard).await
        });
        assert!(second <= first + 2 * CHUNK_BYTES, "{kind}: {first} bytes, and {second} bytes");
        let lost_again = on_node(&cluster, spec, async |_, index| {
            let report = index.check(&CheckOptions::default()).await.unwrap();
            assert!(report.is_intact());
            report.memory.unwrap().unreached_bytes
        });
        assert_eq!(lost_again, 0, "{kind}: of {second} bytes");
    }
}

//! An index of one's own, outside of Farwood's crates: what `docs/own-index.md` builds. `index/` is the index; here it
//! is created, filled by several clients, read, scanned and checked, on the memory of this process.
//!
//! ```text
//! cargo run --example own_index
//! ```

pub mod index;

use std::error::Error;

use farwood::index::shell::{Geometry as _, Nodes, Options, Tree};
use farwood::index::sherman::Geometry;
use farwood::{Cluster, ComputeNode, EmbeddedConfig, IndexError, NodeConfig, RangeIndex, Shard};
use futures::TryStreamExt;
use futures::executor::block_on;
use futures::future::try_join_all;

use crate::index::OwnIndex;

type Index = farwood::index::shell::Index<OwnIndex, Shard>;

const CLIENTS: u64 = 16;
const KEYS: u64 = 2_000;

fn main() -> Result<(), Box<dyn Error>> {
    let config = EmbeddedConfig { bytes_per_server: 64 << 20, ..EmbeddedConfig::default() };
    let node =
        ComputeNode::new(Cluster::embedded(config)?, NodeConfig { shards: 2, ..NodeConfig::default() })?;
    let sizes = Geometry::new(Geometry::USUAL_LIMITS, Nodes::Usual);
    let tree = Tree::<OwnIndex>::create(&node, "own", sizes, Options::default());
    let tree = block_on(tree)?;
    let outcomes = node.run(move |shard| {
        let (place, index) = (u64::from(farwood::Verbs::shard(&shard).0), tree.attach(shard));
        async move { tour(&index, place).await }
    })?;
    for outcome in outcomes {
        println!("{}", outcome?);
    }
    Ok(())
}

/// Fills every second number, with many clients at once, and looks at what is there.
async fn tour(index: &Index, place: u64) -> Result<String, IndexError> {
    let client = |client: u64| async move {
        for n in (0..KEYS).filter(|n| n % CLIENTS == client) {
            let key = (2 * n + place).to_be_bytes();
            index.put(&key, b"first").await?;
            assert!(index.update(&key, &n.to_be_bytes()).await?, "it was there");
        }
        Ok::<_, IndexError>(())
    };
    try_join_all((0..CLIENTS).map(client)).await?;
    let ten = place.to_be_bytes();
    let pairs: Vec<_> = index.scan(&ten[..].., Some(10)).try_collect().await?;
    assert!(pairs.is_sorted() && pairs.len() == 10, "{pairs:?}");
    for n in 0..KEYS {
        let value = index.get(&(2 * n + place).to_be_bytes()).await?;
        assert_eq!(value.as_deref(), Some(&n.to_be_bytes()[..]));
    }
    // Keys of its own, of which the first and the last stay: a scan goes on behind buckets that are empty.
    let own = |n: u64| ((place + 1) << 40 | n).to_be_bytes();
    for n in 0..KEYS {
        assert!(index.insert(&own(n), b"own").await?);
    }
    for n in 1..KEYS - 1 {
        assert!(index.remove(&own(n)).await?);
    }
    let left: Vec<_> = index.scan(&own(0)[..]..&own(KEYS)[..], None).try_collect().await?;
    assert_eq!(left.len(), 2);
    let stats = index.stats();
    let [get, put] = [farwood::index::OpKind::Get, farwood::index::OpKind::Put].map(|kind| *stats.kind(kind));
    Ok(format!(
        "shard {place}: {} puts in {} round trips, {} gets in {}",
        put.ops, put.round_trips, get.ops, get.round_trips
    ))
}

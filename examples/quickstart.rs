//! Ten operations and a scan, as a first look at Farwood. It needs no NIC and no other machine: the
//! memory server is a part of this process (the *embedded* fabric).
//!
//! ```text
//! cargo run --example quickstart
//! ```

use std::error::Error;

use farwood::sherman::{Geometry, Options};
use farwood::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, RangeIndex, Shard, Sherman, ShermanIndex};
use futures::TryStreamExt;
use futures::executor::block_on;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    // Memory servers hold the data. This one has 64 MiB.
    let cluster =
        Cluster::embedded(EmbeddedConfig { bytes_per_server: 64 << 20, ..EmbeddedConfig::default() })?;

    // A compute node works on it. It consists of shards, one per core; one is enough here.
    let node = ComputeNode::new(cluster, NodeConfig { shards: 1, ..NodeConfig::default() })?;

    // An index has a name in the cluster's catalog, and limits on its keys and values: both are byte strings.
    let geometry = Geometry { max_key: 16, max_value: 32, ..Geometry::default() };
    let fruit = block_on(Sherman::create(&node, "fruit", geometry, Options::default()))?;

    // `try_run` starts an executor per shard and runs this function on each, until one of them fails. `attach` makes
    // the index usable there; what it returns is cheap to clone, so that hundreds of tasks of the shard can work at
    // the same time.
    node.try_run(move |shard| {
        let index = fruit.attach(shard);
        async move { tour(&index).await }
    })?;
    Ok(())
}

/// Shows the operations. Each is a future: it posts verbs to the memory server and yields until they are done.
async fn tour(index: &ShermanIndex<Shard>) -> Result<(), Failure> {
    index.put(b"apple", b"red").await?;
    index.put(b"banana", b"yellow").await?;
    println!(" 1,2. put apple = red, banana = yellow");

    let inserted = index.insert(b"cherry", b"dark red").await?;
    println!("   3. insert cherry, which is new: {inserted}");
    let inserted = index.insert(b"apple", b"blue").await?;
    println!("   4. insert apple, which is there: {inserted}, and nothing changes");

    let updated = index.update(b"apple", b"green").await?;
    println!("   5. update apple to green: {updated}");
    let updated = index.update(b"durian", b"spiky").await?;
    println!("   6. update durian, which is not there: {updated}");

    println!("   7. get apple: {}", text(index.get(b"apple").await?));
    println!("   8. get durian: {}", text(index.get(b"durian").await?));

    // Several keys in parallel: the round trips overlap.
    let values = index.multi_get(&["banana", "cherry", "durian"]).await?;
    println!(
        "   9. banana, cherry and durian at once: {}",
        values.into_iter().map(text).collect::<Vec<_>>().join(", ")
    );

    let removed = index.remove(b"banana").await?;
    println!("  10. remove banana: {removed}");

    // Any range of keys, in ascending order, as a stream.
    println!("scan from apple on, at most ten pairs:");
    let mut pairs = index.scan("apple".., Some(10));
    while let Some((key, value)) = pairs.try_next().await? {
        println!("      {} = {}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value));
    }
    Ok(())
}

/// Yields a value, or a dash if there is none.
fn text(value: Option<farwood::Value>) -> String {
    value.map_or_else(|| "-".into(), |value| String::from_utf8_lossy(&value).into_owned())
}

//! Measures what an index adds to the network: gets, and bare READs of a leaf's size over as much memory, in turn by
//! one client on one shard.
//!
//! ```sh
//! cargo run --release --example latency                                    # memory of this process
//! cargo run --release --example latency -- shm:demo                        # a running `farwood memory-server`
//! cargo run --release --example latency --features verbs -- verbs:10.0.0.1:7077
//! ```

use std::error::Error;
use std::sync::Arc;

use farwood::runtime::{Chain, FabricError, Meter, RemotePtr, ServerId};
use farwood::sherman::{Geometry, Options};
use farwood::{ClusterName, ComputeNode, Fabric, NodeConfig, OnCluster, RangeIndex, Sherman, Verbs};
use futures::executor::block_on;

type Failure = Box<dyn Error + Send + Sync>;

const KEYS: u64 = 10_000;
/// Of each kind, between two changes to the other kind: what else the machine does strikes both.
const BATCH: usize = 50;

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let fabric = words.next().unwrap_or_else(|| "embedded".to_owned());
    let batches: usize = words.next().map_or(Ok(100), |count| count.parse())?;
    fabric.parse::<ClusterName>()?.open(Compare { batches })?
}

/// The measurement, to be made on any cluster.
struct Compare {
    batches: usize,
}

impl OnCluster for Compare {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, cluster: Arc<F>) -> Result<(), Failure> {
        compare(cluster, self.batches)
    }
}

fn compare<F: Fabric>(cluster: Arc<F>, batches: usize) -> Result<(), Failure> {
    let node = ComputeNode::new(Arc::clone(&cluster), NodeConfig { shards: 1, ..NodeConfig::default() })?;
    let name = format!("latency-{}", std::process::id());
    let tree = block_on(Sherman::create(&node, &name, Geometry::default(), Options::default()))?;
    let leaf_bytes = tree.leaf_bytes();
    let reads_name = format!("{name}-reads");
    let memory = reads_name.clone();
    let measured = node.try_run(move |shard| {
        let (index, reads_name) = (tree.attach(shard.clone()), reads_name.clone());
        async move {
            let pairs = (0..KEYS).map(|n| (n.to_be_bytes(), n.to_le_bytes()));
            index.bulk_load(pairs, 0.8).await?;
            let leaves = index.survey().await?.leaves;
            let places = places(&shard, &reads_name, leaves, leaf_bytes).await?;
            let (mut gets, mut reads) = (Vec::new(), Vec::new());
            for batch in 0..=batches {
                for _ in 0..BATCH {
                    let key = (shard.random() % KEYS).to_be_bytes();
                    let begun = shard.now();
                    let got = index.get(&key).await?;
                    gets.push(shard.now() - begun);
                    assert!(got.is_some(), "every key was loaded");
                }
                for _ in 0..BATCH {
                    let at = places[(shard.random() % places.len() as u64) as usize];
                    let meter = Meter::default();
                    let begun = shard.now();
                    shard.read(&meter, at, leaf_bytes).await.map_err(FabricError::from)?;
                    reads.push(shard.now() - begun);
                }
                if batch == 0 {
                    // The cache of internal nodes is filled from here on.
                    gets.clear();
                    reads.clear();
                }
            }
            Ok::<_, Failure>((gets, reads))
        }
    })?;
    for (mut gets, mut reads) in measured {
        println!("{} gets and {} READs of {leaf_bytes} bytes, in us", gets.len(), reads.len());
        for (name, part) in [("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
            let (get, read) = (percentile(&mut gets, part), percentile(&mut reads, part));
            println!("{name}: get {get:.2}, READ {read:.2}, ratio {:.2}", get / read);
        }
    }
    block_on(cluster.control().drop_index(&name))?;
    block_on(cluster.control().drop_index(&memory))?;
    Ok(())
}

/// Allocates as many places as the tree has leaves, written once, in memory of their own: READs that roamed all the
/// memory would miss every cache of this machine, which gets of a small tree do not.
async fn places<V: Verbs>(
    shard: &V,
    name: &str,
    leaves: u64,
    leaf_bytes: usize,
) -> Result<Vec<RemotePtr>, Failure> {
    let control = Arc::clone(shard.control());
    let index = control.create(name, "raw", &[]).await?.id;
    let mut places = Vec::new();
    while (places.len() as u64) < leaves {
        let chunk = control.chunk(ServerId(0), index).await?;
        let all = (0..chunk.bytes / leaf_bytes as u64).map(|n| chunk.start.add(n * leaf_bytes as u64));
        places.extend(all.take(leaves as usize - places.len()));
    }
    for &place in &places {
        let mut chain = Chain::with_buffer(place.server(), shard.lease(leaf_bytes));
        chain.write(place, 0..leaf_bytes);
        shard.submit(&Meter::default(), chain).await.map_err(FabricError::from)?;
    }
    Ok(places)
}

/// Yields a percentile in us.
fn percentile(times_ns: &mut [u64], part: f64) -> f64 {
    times_ns.sort_unstable();
    let place = (times_ns.len() as f64 * part) as usize;
    times_ns[place.min(times_ns.len() - 1)] as f64 / 1000.0
}

//! What an index adds to the network: gets, and bare READs of a leaf's size, in turn by one client on one shard.
//!
//! ```sh
//! cargo run --release --example latency                                    # memory of this process
//! cargo run --release --example latency -- shm:demo                        # a running `farwood memory-server`
//! cargo run --release --example latency --features verbs -- verbs:10.0.0.1:7077
//! ```

use std::error::Error;
use std::sync::Arc;

use farwood::runtime::{Fabric, Meter, RemotePtr};
use farwood::{
    Cluster, ComputeNode, EmbeddedConfig, Geometry, NodeConfig, Options, RangeIndex, Sherman, ShmCluster,
    Verbs,
};
use futures::executor::block_on;

const KEYS: u64 = 10_000;
/// Of each kind, between two changes to the other kind: what else the machine does strikes both.
const BATCH: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let fabric = words.next().unwrap_or_else(|| "embedded".to_owned());
    let batches: usize = words.next().map_or(Ok(100), |count| count.parse())?;
    match fabric.split_once(':') {
        None if fabric == "embedded" => compare(Cluster::embedded(EmbeddedConfig::default())?, batches),
        Some(("shm", name)) => compare(ShmCluster::connect(&[name])?, batches),
        #[cfg(feature = "verbs")]
        Some(("verbs", address)) => {
            use farwood::{VerbsCluster, VerbsConfig};
            compare(VerbsCluster::connect(&[address], &VerbsConfig::default())?, batches)
        }
        _ => {
            Err(format!("{fabric}: write embedded, shm:NAME or (with --features verbs) verbs:HOST:PORT")
                .into())
        }
    }
}

fn compare<F: Fabric>(cluster: Arc<F>, batches: usize) -> Result<(), Box<dyn Error>> {
    let node = ComputeNode::new(Arc::clone(&cluster), NodeConfig { shards: 1, ..NodeConfig::default() });
    let name = format!("latency-{}", std::process::id());
    let tree = block_on(Sherman::create(&node, &name, Geometry::default(), Options::default()))?;
    let leaf_bytes = tree.leaf_bytes();
    let measured = node.run(move |shard| {
        let index = tree.attach(shard.clone());
        async move {
            let pairs = (0..KEYS).map(|n| (n.to_be_bytes(), n.to_le_bytes()));
            index.bulk_load(pairs, 0.8).await.map_err(|error| error.to_string())?;
            let server = shard.control().servers()[0].clone();
            let (mut gets, mut reads) = (Vec::new(), Vec::new());
            for batch in 0..=batches {
                for _ in 0..BATCH {
                    let key = (shard.random() % KEYS).to_be_bytes();
                    let begun = shard.now();
                    let got = index.get(&key).await.map_err(|error| error.to_string())?;
                    gets.push(shard.now() - begun);
                    assert!(got.is_some(), "every key was loaded");
                }
                for _ in 0..BATCH {
                    let place = shard.random() % (server.region_bytes - leaf_bytes as u64);
                    let (at, meter) = (RemotePtr::new(server.id, place & !63), Meter::default());
                    let begun = shard.now();
                    shard.read(&meter, at, leaf_bytes).await.map_err(|error| error.to_string())?;
                    reads.push(shard.now() - begun);
                }
                if batch == 0 {
                    // The cache of internal nodes is filled from here on.
                    gets.clear();
                    reads.clear();
                }
            }
            Ok::<_, String>((gets, reads))
        }
    })?;
    for measured in measured {
        let (mut gets, mut reads) = measured?;
        println!("{} gets and {} READs of {leaf_bytes} bytes, in us", gets.len(), reads.len());
        for (name, part) in [("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
            let (get, read) = (percentile(&mut gets, part), percentile(&mut reads, part));
            println!("{name}: get {get:.2}, READ {read:.2}, ratio {:.2}", get / read);
        }
    }
    block_on(cluster.control().drop_index(&name))?;
    Ok(())
}

/// In us.
fn percentile(times_ns: &mut [u64], part: f64) -> f64 {
    times_ns.sort_unstable();
    let place = (times_ns.len() as f64 * part) as usize;
    times_ns[place.min(times_ns.len() - 1)] as f64 / 1000.0
}

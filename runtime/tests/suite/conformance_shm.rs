//! The fabric contract on the shm fabric: a memory server per region file, connected over sockets, in the line mode
//! that the CPU gets and in that which every CPU has. That processes of their own change nothing is shown by
//! `alone/shared_region.rs` and by the command's tests.

use std::num::NonZero;
use std::sync::Arc;

use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::shm::{ShmCluster, ShmServer};
use farwood_runtime::{ComputeNode, Fabric as _, IndexId, NodeConfig, ServerId, Shard};
use futures::executor::block_on;

use crate::conformance::{Fabric, Main, Site, conformance_tests};
use crate::kit;
use crate::shard::TestShard;

struct Shm;

conformance_tests!(Shm);

impl Fabric<TestShard> for Shm {
    fn run(&self, shards: usize, main: &Main<TestShard>) {
        let _watchdog = kit::Watchdog::new("a part of the conformance body", 120);
        for (line_mode, pooled, credits) in [(LineMode::Auto, false, 4096), (LineMode::Sequence, true, 3)] {
            let servers: Vec<ShmServer> = (0..2).map(|_| kit::shm_server(line_mode)).collect();
            let names: Vec<&str> = servers.iter().map(|server| server.name().as_str()).collect();
            let cluster = ShmCluster::connect(&names).unwrap();
            let control = cluster.control();
            let index = block_on(control.create("site", "memory", &[])).unwrap().id;
            let area = |id| block_on(control.chunk(ServerId(id), index)).unwrap().start;
            let site = Site { starts: [area(0), area(1)], bytes: kit::AREA_BYTES };
            let config =
                NodeConfig { shards, credits: NonZero::new(credits).unwrap(), ..NodeConfig::default() };
            let node = ComputeNode::new(Arc::clone(&cluster), config).unwrap();
            let main = Arc::clone(main);
            let body = move |shard: Shard| {
                let body = main(TestShard::Node(shard.clone()), site);
                async move { if pooled { shard.spawn(body).await } else { body.await } }
            };
            node.run(body).unwrap();
        }
    }
}

/// Chunks belong to indexes of the catalog.
#[test]
fn chunks_of_no_index_are_refused() {
    let server = kit::shm_server(LineMode::Auto);
    let cluster = ShmCluster::connect(&[server.name().as_str()]).unwrap();
    let refused = block_on(cluster.control().chunk(ServerId(0), IndexId(77)));
    assert!(refused.unwrap_err().to_string().contains("no index with number 77"));
}

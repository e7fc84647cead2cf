//! The fabric contract on the embedded fabric: every part of the body in the line modes of this CPU, as tasks of
//! the executor with many credits and as clients of the pool with few.

use std::num::NonZero;
use std::sync::Arc;

use farwood_runtime::{ComputeNode, NodeConfig, Shard};

use crate::conformance::{Fabric, Main, Site, conformance_tests};
use crate::kit;
use crate::shard::TestShard;

struct Embedded;

conformance_tests!(Embedded);

impl Fabric<TestShard> for Embedded {
    fn run(&self, shards: usize, main: &Main<TestShard>) {
        let _watchdog = kit::Watchdog::new("a part of the conformance body", 120);
        for line_mode in kit::line_modes() {
            for (pooled, credits) in [(false, 4096), (true, 3)] {
                let cluster = kit::cluster(line_mode);
                let site = Site { starts: [0, 1].map(|id| kit::area(&cluster, id)), bytes: kit::AREA_BYTES };
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
}

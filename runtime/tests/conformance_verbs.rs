//! The fabric contract over libibverbs, from this host to itself: every part of the body as tasks of the executor with
//! many credits, and as clients of the pool with few, on shards that sleep as soon as they wait.
#![cfg(feature = "verbs")]

#[path = "kit/conformance/mod.rs"]
mod conformance;
mod kit;
#[path = "kit/verbs.rs"]
mod verbs;

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use farwood_runtime::ibverbs::VerbsDevice;
use farwood_runtime::{ComputeNode, NodeConfig, Shard};

use self::conformance::{Fabric, Main, Site, conformance_tests};

struct OverVerbs;

type V = Shard<VerbsDevice>;

conformance_tests!(OverVerbs);

impl Fabric<V> for OverVerbs {
    fn run(&self, shards: usize, main: &Main<V>) {
        let _watchdog = kit::Watchdog::new("a part of the conformance body", 600);
        for (pooled, credits, spin_us) in [(false, 4096, 50), (true, 3, 0)] {
            let servers = verbs::Servers::start();
            let starts = [0, 1].map(|id| kit::area(&servers.memory, id));
            let site = Site { starts, bytes: kit::AREA_BYTES };
            let config = NodeConfig {
                shards,
                credits: NonZero::new(credits).unwrap(),
                spin: Duration::from_micros(spin_us),
                ..NodeConfig::default()
            };
            let node = ComputeNode::new(Arc::clone(&servers.fabric), config).unwrap();
            let main = Arc::clone(main);
            let body = move |shard: V| {
                let body = main(shard.clone(), site);
                async move { if pooled { shard.spawn(body).await } else { body.await } }
            };
            node.run(body).unwrap();
        }
    }
}

//! What every index promises, on the embedded fabric: compute nodes of this process, each with its own executors.

#[path = "kit/conformance/mod.rs"]
mod conformance;
mod kit;

use std::future::Future;

use farwood::Shard;

use self::conformance::{Fabric, Size, index_conformance_tests};
use self::kit::nodes::run_nodes;
use self::kit::party::{Parties, Seat};

struct Embedded;

index_conformance_tests!(Embedded);

impl Fabric for Embedded {
    type V = Shard;

    const SIZE: Size = Size::FULL;

    fn run<F, R>(parties: Parties, make: impl Fn() -> F)
    where
        F: Fn(Seat<Shard>) -> R + Clone + Send + 'static,
        R: Future<Output = ()> + 'static,
    {
        let cluster = kit::cluster();
        let nodes = (0..parties.nodes()).map(|_| kit::node(&cluster, parties.shards()));
        run_nodes(nodes.collect(), make());
    }
}

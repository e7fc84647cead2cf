//! The promises of every index, on the embedded fabric: compute nodes of this process, each with its own executors.

use std::future::Future;

use farwood::Shard;

use crate::conformance::{Fabric, Size, index_conformance_tests};
use crate::kit;
use crate::kit::cluster::{Parties, Seat};
use crate::kit::nodes::run_nodes;

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

//! The promises of every index, on the embedded fabric: compute nodes of this process, each with its own executors.

use crate::conformance::{Fabric, Size, index_conformance_tests};
use crate::kit;
use crate::kit::cluster::{Main, Parties, Seat};
use crate::kit::{TestShard, on_node, run_nodes};

struct Embedded;

index_conformance_tests!(Embedded);

impl Fabric<TestShard> for Embedded {
    fn size(&self) -> Size {
        // Every mix is run here.
        Size::of_this_run()
    }

    fn run(&self, parties: Parties, make: &dyn Fn() -> Main<Seat<TestShard>>) {
        let cluster = kit::cluster();
        let nodes = (0..parties.nodes()).map(|_| kit::node(&cluster, parties.shards()));
        run_nodes(nodes.collect(), &on_node(&make()));
    }
}

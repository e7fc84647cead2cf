//! The promises of every index, over libibverbs: memory servers behind an RDMA device of this host, each compute node
//! with a connection and queue pairs of its own. Runs where there is such a device (`tests/verbs-vm`).
#![cfg(feature = "verbs")]

#[path = "kit/conformance/mod.rs"]
mod conformance;
mod kit;

use std::sync::Arc;

use farwood::runtime::ServerParts;
use farwood::runtime::ibverbs::{VerbsCluster, VerbsConfig, VerbsDevice, VerbsServer, VerbsServerConfig};
use farwood::runtime::service::ServiceTimes;
use farwood::{ComputeNode, NodeConfig, Shard};

use self::conformance::{Fabric, Size, index_conformance_tests};
use self::kit::cluster::{Main, Parties, Seat};
use self::kit::deaths::{Deadly, death_tests};
use self::kit::nodes::run_nodes;

struct Verbs;

index_conformance_tests!(Verbs);
death_tests!(Verbs);

impl Fabric<Shard<VerbsDevice>> for Verbs {
    fn size(&self) -> Size {
        Size::SMALL
    }

    fn run(&self, parties: Parties, make: &dyn Fn() -> Main<Seat<Shard<VerbsDevice>>>) {
        let servers = [server(), server()];
        let addresses: Vec<&str> = servers.iter().map(|server| server.address()).collect();
        let node = |_| {
            let cluster = VerbsCluster::connect(&addresses, &VerbsConfig::default()).unwrap();
            let config = NodeConfig { shards: parties.shards(), ..NodeConfig::default() };
            ComputeNode::new(cluster, config).unwrap()
        };
        run_nodes((0..parties.nodes()).map(node).collect(), &make());
    }
}

impl Deadly for Verbs {
    type Server = VerbsServer;
    type Cluster = VerbsCluster;
    type Verbs = Shard<VerbsDevice>;

    const ENDS_SILENT: bool = false;

    fn server(_: &str, parts: ServerParts, times: ServiceTimes) -> VerbsServer {
        let config = VerbsServerConfig::new("127.0.0.1:0", 32 << 20);
        VerbsServer::start(&VerbsServerConfig { parts, times, ..config }).unwrap()
    }

    fn nodes(server: &VerbsServer) -> usize {
        server.nodes().len()
    }

    fn address(server: &VerbsServer) -> &str {
        server.address()
    }

    fn connect(servers: &[&str]) -> Arc<VerbsCluster> {
        VerbsCluster::connect(servers, &VerbsConfig::default()).unwrap()
    }

    fn shard(shard: Shard<VerbsDevice>) -> Self::Verbs {
        shard
    }
}

/// Yields a small server at a port of its own.
fn server() -> VerbsServer {
    let config = VerbsServerConfig {
        parts: ServerParts { locks: 1024, chunk_bytes: 64 << 10, ..ServerParts::default() },
        ..VerbsServerConfig::new("127.0.0.1:0", 32 << 20)
    };
    VerbsServer::start(&config).unwrap_or_else(|error| panic!("this test needs an RDMA device: {error}"))
}

//! The promises of every index, on the shm fabric: memory servers behind sockets, each compute node with a connection
//! and a mapping of its own, as processes have them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farwood::runtime::ServerParts;
use farwood::runtime::service::ServiceTimes;
use farwood::runtime::shm::{ShmCluster, ShmName, ShmServer, ShmServerConfig};
use farwood::{ComputeNode, NodeConfig, Shard};

use crate::conformance::{Fabric, Size, index_conformance_tests};
use crate::kit::cluster::{Main, Parties, Seat};
use crate::kit::deaths::{Deadly, death_tests};
use crate::kit::{TestShard, on_node, run_nodes};

struct Shm;

index_conformance_tests!(Shm);
death_tests!(Shm);

impl Fabric<TestShard> for Shm {
    fn size(&self) -> Size {
        // Verbs are those of the embedded fabric, where every mix is run; only memory is come by in another way.
        Size { runs_mix: |place| place < 2 || place.is_multiple_of(5), ..Size::of_this_run() }
    }

    fn run(&self, parties: Parties, make: &dyn Fn() -> Main<Seat<TestShard>>) {
        let servers = [server(), server()];
        let names: Vec<&str> = servers.iter().map(|server| server.name().as_str()).collect();
        let node = |_| {
            let cluster = ShmCluster::connect(&names).unwrap();
            let config = NodeConfig { shards: parties.shards(), ..NodeConfig::default() };
            ComputeNode::new(Arc::clone(&cluster), config).unwrap()
        };
        run_nodes((0..parties.nodes()).map(node).collect(), &on_node(&make()));
    }
}

impl Deadly for Shm {
    type Server = ShmServer;
    type Cluster = ShmCluster;
    type Verbs = TestShard;

    const ENDS_SILENT: bool = true;

    fn server(name: &str, parts: ServerParts, times: ServiceTimes) -> ShmServer {
        let config = ShmServerConfig::new(ShmName::new(name).unwrap(), 64 << 20);
        ShmServer::start(&ShmServerConfig { parts, times, ..config }).unwrap()
    }

    fn nodes(server: &ShmServer) -> usize {
        server.nodes().len()
    }

    fn address(server: &ShmServer) -> &str {
        server.name().as_str()
    }

    fn connect(servers: &[&str]) -> Arc<ShmCluster> {
        ShmCluster::connect(servers).unwrap()
    }

    fn shard(shard: Shard) -> TestShard {
        TestShard::Node(shard)
    }
}

/// Yields a small server with a name that no other test of this host uses.
fn server() -> ShmServer {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let name = ShmName::new(&format!("index-test-{}-{number}", std::process::id())).unwrap();
    let parts = ServerParts { locks: 1024, chunk_bytes: 64 << 10, ..ServerParts::default() };
    // Each server's memory is cleared when it starts, some thousand times in all.
    ShmServer::start(&ShmServerConfig { parts, ..ShmServerConfig::new(name, 2 << 20) }).unwrap()
}

//! A shard that cannot be attached is an error that says why, and the node can be attached to again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farwood_runtime::control::{Control, ControlError};
use farwood_runtime::epoch::NodeEpochs;
use farwood_runtime::fabric::{DeviceContext, DeviceError};
use farwood_runtime::mapped::MappedDevice;
use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{
    Chain, Cluster, ComputeNode, Fabric, Meter, NodeConfig, NodeError, RemotePtr, Shard, ShardId, Verbs,
};
use futures::executor::block_on;
use futures::future::join;

use crate::kit;

const TIMER: Option<Duration> = Some(Duration::from_millis(10));
/// A time within which all shards are attached, however busy the machine is. Watchdogs bark before it is over.
const LONG: Duration = Duration::from_secs(100);

/// A fabric that refuses a number of devices, then none.
struct Refusing {
    cluster: Arc<Cluster>,
    refusals: AtomicUsize,
}

impl Fabric for Refusing {
    type Device = MappedDevice;

    fn control(self: &Arc<Self>) -> Arc<dyn Control> {
        self.cluster.control()
    }

    fn allocate_node_id(&self) -> Result<u16, ControlError> {
        self.cluster.allocate_node_id()
    }

    fn join_epochs(&self, node: u16, epochs: &Arc<NodeEpochs>) {
        self.cluster.join_epochs(node, epochs);
    }

    fn device(&self, context: &DeviceContext) -> Result<MappedDevice, DeviceError> {
        let refused =
            self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match refused {
            Ok(_) => Err(DeviceError("no memory to be locked".into())),
            Err(_) => self.cluster.device(context),
        }
    }
}

fn refusing(
    shards: usize,
    refusals: usize,
    attach_timeout: Duration,
) -> (Arc<ComputeNode<Refusing>>, RemotePtr) {
    let cluster = kit::cluster(LineMode::Auto);
    let at = kit::area(&cluster, 0);
    let fabric = Arc::new(Refusing { cluster, refusals: AtomicUsize::new(refusals) });
    let config = NodeConfig { shards, attach_timeout, ..NodeConfig::default() };
    (ComputeNode::new(fabric, config).unwrap(), at)
}

async fn works(shard: &Shard, at: RemotePtr) {
    let mut chain = Chain::new(at.server());
    chain.faa(at, 1);
    assert!(shard.submit(&Meter::default(), chain).await.is_ok());
}

/// Attaches two shards at once, and yields the outcome of each; those that were attached work, and are closed.
fn attach_two<F: Fabric<Device = MappedDevice>>(
    node: &Arc<ComputeNode<F>>,
    at: RemotePtr,
) -> Vec<Result<ShardId, NodeError>> {
    let node = Arc::clone(node);
    let both = kit::on_executor(TIMER, move || async move {
        let attached = || async {
            let shard = node.attach().await?;
            works(&shard, at).await;
            let id = shard.id();
            assert!(!shard.close().await.may_hold_locks());
            Ok(id)
        };
        let (first, second) = join(attached(), attached()).await;
        vec![first, second]
    });
    both.join().unwrap()
}

#[test]
fn a_refused_shard_can_be_attached_again() {
    let _watchdog = kit::Watchdog::new("a refused shard", 60);
    let (node, at) = refusing(2, 1, Duration::from_secs(1));
    let ends = attach_two(&node, at);
    assert!(matches!(&ends[0], Err(NodeError::Device(cause)) if cause.0.contains("memory")));
    // The other one had the same place after it: the first place is the one that is missing.
    assert!(matches!(&ends[1], Err(NodeError::NotAttached { missing, .. }) if missing.len() == 1));
    let ends: Vec<ShardId> = attach_two(&node, at).into_iter().map(Result::unwrap).collect();
    assert_eq!(ends, [ShardId(0), ShardId(1)]);
}

/// The others do not wait for one whose device was refused, and the node can be run again.
#[test]
fn a_run_with_a_refused_shard_ends() {
    let _watchdog = kit::Watchdog::new("a run with a refused shard", 60);
    let (node, at) = refusing(3, 1, LONG);
    let run = || node.run(move |shard: Shard| async move { works(&shard, at).await });
    assert!(matches!(run(), Err(NodeError::Device(_))));
    assert_eq!(run().unwrap().len(), 3);
    assert!(matches!(run(), Err(NodeError::AllAttached { shards: 3 })));
}

#[test]
fn shards_that_are_never_attached_are_named() {
    let _watchdog = kit::Watchdog::new("shards that are never attached", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let at = kit::area(&cluster, 0);
    let attach_timeout = Duration::from_millis(100);
    let config = NodeConfig { shards: 3, attach_timeout, ..NodeConfig::default() };
    let node = ComputeNode::new(Arc::clone(&cluster), config).unwrap();
    for ends in [attach_two(&node, at), attach_two(&node, at)] {
        for end in ends {
            let Err(error @ NodeError::NotAttached { shards: 3, .. }) = end else { panic!("{end:?}") };
            let said = error.to_string();
            assert!(said.contains("not attached within 100ms (number") && said.contains('2'), "{said}");
        }
    }
}

/// An attach that is dropped while it waits gives its place back.
#[test]
fn a_dropped_attach_gives_its_place_back() {
    let _watchdog = kit::Watchdog::new("a dropped attach", 60);
    let (node, at) = refusing(2, 0, LONG);
    let waiting = Arc::clone(&node);
    let dropped = kit::on_executor(TIMER, move || async move {
        let timeout =
            glommio::timer::timeout(Duration::from_millis(20), async { Ok(waiting.attach().await.is_ok()) });
        timeout.await.is_err()
    });
    assert!(dropped.join().unwrap());
    assert!(attach_two(&node, at).iter().all(Result::is_ok));
}

#[test]
fn attach_outside_an_executor_is_an_error() {
    let cluster = kit::cluster(LineMode::Auto);
    let node = kit::node(&cluster, 1, 50);
    let end = block_on(node.attach()).map(|shard| shard.id());
    assert!(matches!(&end, Err(NodeError::NoExecutor)), "{end:?}");
    assert!(node.run(|_| async {}).is_ok());
}

#[test]
fn a_node_that_cannot_be_is_an_error() {
    let cluster = kit::cluster(LineMode::Auto);
    let of = |shards| ComputeNode::new(Arc::clone(&cluster), NodeConfig { shards, ..NodeConfig::default() });
    let refused = of(NodeConfig::SHARDS_MAX + 1).err().expect("there are too many shards");
    assert!(matches!(refused, NodeError::TooManyShards { shards: 1025 }), "{refused}");
    // It has taken no id.
    assert_eq!(of(1).unwrap().id(), 1);
    // A node that never began has given its id back. When all ids are taken, the cluster takes in no further node.
    let ids = std::iter::repeat_with(|| cluster.allocate_node_id());
    assert_eq!(ids.take_while(Result::is_ok).count(), usize::from(u16::MAX));
    assert!(matches!(of(1), Err(NodeError::Control(_))));
}

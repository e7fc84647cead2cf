//! The end of shards that did not end by themselves: clients that go on, clients and `main`s that panic, handles that
//! are kept, executors that return without closing. Each ends with a report or an error, none with a hang; and a node's
//! id goes back only if no lock can be left that bears it.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farwood_runtime::control::{Control, ControlError};
use farwood_runtime::epoch::NodeEpochs;
use farwood_runtime::fabric::{DeviceContext, DeviceError};
use farwood_runtime::mapped::MappedDevice;
use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{
    Chain, Cluster, ComputeNode, Fabric, JoinError, Meter, NodeConfig, NodeError, RemotePtr, Shard, Verbs,
};
use futures::channel::oneshot;

use crate::kit;

const TIMER: Option<Duration> = Some(Duration::from_millis(10));

/// A fabric that counts the nodes that ended well.
struct Counting {
    cluster: Arc<Cluster>,
    ended: AtomicUsize,
}

impl Fabric for Counting {
    type Device = MappedDevice;

    fn control(self: &Arc<Self>) -> Arc<dyn Control> {
        self.cluster.control()
    }

    fn allocate_node_id(&self) -> Result<u16, ControlError> {
        self.cluster.allocate_node_id()
    }

    fn release_node_id(&self, node: u16) {
        assert_eq!(node, 1);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn join_epochs(&self, node: u16, epochs: &Arc<NodeEpochs>) {
        self.cluster.join_epochs(node, epochs);
    }

    fn device(&self, context: &DeviceContext) -> Result<MappedDevice, DeviceError> {
        self.cluster.device(context)
    }
}

struct Stage {
    fabric: Arc<Counting>,
    node: Arc<ComputeNode<Counting>>,
    at: RemotePtr,
}

impl Stage {
    fn new(shards: usize) -> Self {
        let cluster = kit::cluster(LineMode::Auto);
        let at = kit::area(&cluster, 0);
        let fabric = Arc::new(Counting { cluster, ended: AtomicUsize::new(0) });
        let config = NodeConfig { shards, close_timeout: Duration::from_millis(50), ..NodeConfig::default() };
        Stage { node: ComputeNode::new(Arc::clone(&fabric), config).unwrap(), fabric, at }
    }

    /// Counts how often the fabric heard that the node ended well.
    fn ended(&self) -> usize {
        self.fabric.ended.load(Ordering::Relaxed)
    }

    /// Returns the text of the panic that a run ends with.
    fn panic_of<R: Future<Output = ()> + 'static>(
        &self,
        main: impl Fn(Shard) -> R + Clone + Send + 'static,
    ) -> String {
        let panic = catch_unwind(AssertUnwindSafe(|| self.node.run(main))).expect_err("the run panics");
        panic.downcast_ref::<&str>().expect("a panic with a text").to_string()
    }
}

async fn add(shard: &Shard, at: RemotePtr) -> u64 {
    let mut chain = Chain::new(at.server());
    chain.faa(at, 1);
    shard.submit(&Meter::default(), chain).await.unwrap().atomics[0]
}

/// A guard that leaves something to the janitor when it is dropped, as a client with a lock does.
struct Leaves(Shard, RemotePtr);

impl Drop for Leaves {
    fn drop(&mut self) {
        let (shard, at) = (self.0.clone(), self.1);
        self.0.defer(async move {
            shard.pause(5_000_000).await;
            add(&shard, at).await;
        });
    }
}

#[test]
fn a_node_that_ends_by_itself_leaves_nothing() {
    let _watchdog = kit::Watchdog::new("a node that ends by itself", 60);
    let stage = Stage::new(2);
    let at = stage.at;
    let main = move |shard: Shard| async move {
        let own = shard.clone();
        // It has time enough to end.
        drop(shard.spawn(async move {
            own.pause(2_000_000).await;
            add(&own, at).await;
        }));
    };
    stage.node.run(main).unwrap();
    assert_eq!((stage.ended(), stage.node.abandoned()), (1, Default::default()));
}

/// Clients that never end are dropped, and the janitor is done with what they held before the id goes back.
#[test]
fn clients_that_go_on_are_dropped_and_counted() {
    let _watchdog = kit::Watchdog::new("clients that go on", 60);
    let stage = Stage::new(2);
    let at = stage.at;
    let main = move |shard: Shard| async move {
        for n in 0..3 {
            let left = Leaves(shard.clone(), at);
            drop(shard.spawn(async move {
                if n == 0 {
                    pending::<()>().await;
                }
                loop {
                    left.0.pause(100_000).await;
                }
            }));
        }
    };
    stage.node.run(main).unwrap();
    let abandoned = stage.node.abandoned();
    assert_eq!((abandoned.clients, abandoned.may_hold_locks(), stage.ended()), (6, false, 1));
    let counted =
        kit::node(&stage.fabric.cluster, 1, 50).run(move |shard| async move { add(&shard, at).await });
    assert_eq!(counted.unwrap(), [6], "the janitor was not waited for");
}

/// The task that awaits a client hears of its panic, and the shard works on.
#[test]
fn a_clients_panic_reaches_the_task_that_awaits_it() {
    let _watchdog = kit::Watchdog::new("a client that panics", 60);
    let stage = Stage::new(1);
    let at = stage.at;
    let main = move |shard: Shard| async move {
        let own = shard.clone();
        let client = shard.spawn(async move {
            let _left = Leaves(own.clone(), at);
            own.pause(1_000_000).await;
            if own.shards() == 1 {
                panic!("on purpose");
            }
        });
        let Err(JoinError::Panicked(panic)) = client.outcome().await else { panic!("it did not panic") };
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
        add(&shard, at).await;
    };
    stage.node.run(main).unwrap();
    assert_eq!((stage.ended(), stage.node.abandoned()), (1, Default::default()));
}

/// A client that is awaited by its handle alone takes the task that awaits it along.
#[test]
fn a_clients_panic_goes_on_in_main() {
    let _watchdog = kit::Watchdog::new("a client that panics in main", 60);
    let stage = Stage::new(1);
    let told = stage.panic_of(|shard| async move { shard.spawn(async { panic!("of a client") }).await });
    assert_eq!((&told[..], stage.ended()), ("of a client", 1));
}

/// A panic of an unawaited client ends the run, also if `main` waits for ever.
#[test]
fn a_detached_clients_panic_ends_the_run() {
    let _watchdog = kit::Watchdog::new("a detached client that panics", 60);
    let stage = Stage::new(2);
    let told = stage.panic_of(|shard| async move {
        if shard.id().0 == 1 {
            drop(shard.spawn(async { panic!("of a detached client") }));
        }
        pending().await
    });
    assert_eq!((&told[..], stage.node.abandoned().panicked), ("of a detached client", 1));
}

/// The other shards' `main`s wait for the one that panics: they are dropped, and what they left is cleared.
#[test]
fn a_panic_on_one_shard_ends_the_run() {
    let _watchdog = kit::Watchdog::new("a shard that panics", 60);
    let stage = Stage::new(3);
    let at = stage.at;
    let told = stage.panic_of(move |shard| async move {
        let _left = Leaves(shard.clone(), at);
        add(&shard, at).await;
        if shard.id().0 == 1 {
            panic!("of a shard");
        }
        pending().await
    });
    assert_eq!((&told[..], stage.ended()), ("of a shard", 1));
    let counted =
        kit::node(&stage.fabric.cluster, 1, 50).run(move |shard| async move { add(&shard, at).await });
    assert_eq!(counted.unwrap(), [6]);
}

/// A task that keeps a handle may go on to lock: the id does not go back.
#[test]
fn a_handle_that_is_kept_keeps_the_id() {
    let _watchdog = kit::Watchdog::new("a handle that is kept", 60);
    let stage = Stage::new(1);
    let main = |shard: Shard| async move {
        glommio::spawn_local(async move {
            // glommio drops tasks that nothing can wake.
            glommio::timer::sleep(Duration::from_secs(3600)).await;
            drop(shard);
        })
        .detach();
    };
    stage.node.run(main).unwrap();
    assert_eq!((stage.node.abandoned().handles, stage.ended()), (1, 0));
}

/// An executor that returns with its shard open: the others' `close` ends, and says so.
#[test]
fn an_executor_that_returns_without_closing_is_reported() {
    let _watchdog = kit::Watchdog::new("an executor that returns without closing", 60);
    for own_run in [false, true] {
        let stage = Stage::new(2);
        let (node, also) = (Arc::clone(&stage.node), Arc::clone(&stage.node));
        let (sender, is_over) = oneshot::channel();
        let leaving = move || async move {
            let shard = also.attach().await.unwrap();
            // An actor holds its shard: no task needs to.
            let own = shard.clone();
            shard.listen(farwood_runtime::Port(0), Rc::new(move |_, _| drop(own.clone())));
            sender.send(()).unwrap();
        };
        let first = if own_run {
            kit::on_executor(TIMER, leaving)
        } else {
            let run = move || glommio::LocalExecutorBuilder::default().make().unwrap().run(leaving());
            std::thread::spawn(run)
        };
        let second = kit::on_executor(TIMER, move || async move {
            let shard = node.attach().await.unwrap();
            is_over.await.unwrap();
            shard.close().await
        });
        first.join().unwrap();
        assert!(!second.join().unwrap().may_hold_locks());
        assert_eq!((stage.node.abandoned().shards, stage.ended()), (1, 0));
    }
}

/// A shard without handles is closed, for the others too.
#[test]
fn a_shard_that_is_dropped_counts_as_closed() {
    let _watchdog = kit::Watchdog::new("a shard that is dropped", 60);
    let stage = Stage::new(2);
    let (node, at) = (Arc::clone(&stage.node), stage.at);
    let both = kit::on_executor(TIMER, move || async move {
        let (first, second) = futures::future::join(node.attach(), node.attach()).await;
        let (first, second) = (first.unwrap(), second.unwrap());
        add(&first, at).await;
        drop(first);
        second.close().await
    });
    assert_eq!(both.join().unwrap(), Default::default());
    assert_eq!((stage.node.abandoned(), stage.ended()), (Default::default(), 1));
}

/// The task that closes may be a client of the pool: it does not wait for itself.
#[test]
fn a_client_may_close_its_shard() {
    let _watchdog = kit::Watchdog::new("a client that closes", 60);
    let stage = Stage::new(1);
    let node = Arc::clone(&stage.node);
    let closed = kit::on_executor(TIMER, move || async move {
        let shard = node.attach().await.unwrap();
        let own = Rc::new(RefCell::new(Some(shard.clone())));
        let done = Rc::new(Cell::new(false));
        let flag = Rc::clone(&done);
        let client = shard.spawn(async move {
            let own = own.take().unwrap();
            let closed = own.close().await;
            flag.set(true);
            closed
        });
        drop(shard);
        let closed = client.await;
        assert!(done.get());
        closed
    });
    assert_eq!((closed.join().unwrap(), stage.ended()), (Default::default(), 1));
}

/// The first error of a shard ends the run: the others' `main` are dropped, all shards are closed.
#[test]
fn an_error_ends_the_run() {
    let _watchdog = kit::Watchdog::new("a run with an error", 60);
    for failing in 0..3 {
        let stage = Stage::new(3);
        let at = stage.at;
        let ran: Result<Vec<()>, Failure> = stage.node.try_run(move |shard: Shard| async move {
            add(&shard, at).await;
            match shard.id().0 == failing {
                true => Err(Failure::Main(failing)),
                false => pending().await,
            }
        });
        assert!(matches!(ran, Err(Failure::Main(shard)) if shard == failing), "{ran:?}");
        assert_eq!((stage.node.abandoned(), stage.ended()), (Default::default(), 1));
        // A refusal by the node comes as the caller's error, too.
        let again = stage.node.try_run(async |_| Ok::<_, Failure>(()));
        assert!(matches!(again, Err(Failure::Node(NodeError::AllAttached { shards: 3 }))), "{again:?}");
    }
}

#[test]
fn a_run_without_an_error_yields_all_results() {
    let _watchdog = kit::Watchdog::new("a run that may fail", 60);
    let stage = Stage::new(3);
    let at = stage.at;
    let ran = stage.node.try_run(move |shard: Shard| async move {
        add(&shard, at).await;
        Ok::<_, Failure>(shard.id().0)
    });
    assert_eq!((ran.unwrap(), stage.ended()), (vec![0, 1, 2], 1));
}

#[derive(Debug)]
enum Failure {
    Main(u16),
    Node(NodeError),
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Failure::Node(error)
    }
}

/// A node of which no shard has begun holds no lock.
#[test]
fn a_node_that_never_began_gives_its_id_back() {
    let _watchdog = kit::Watchdog::new("a node that never began", 60);
    let Stage { fabric, node, .. } = Stage::new(2);
    drop(node);
    assert_eq!(fabric.ended.load(Ordering::Relaxed), 1);
}

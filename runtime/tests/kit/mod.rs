//! Tools that the scenarios share: tiny clusters, nodes, and a guard that ends a test that hangs.
#![allow(dead_code, clippy::allow_attributes, reason = "every scenario uses a part of it")]

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use farwood_runtime::control::Control;
use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::shm::{ShmName, ShmServer, ShmServerConfig};
use farwood_runtime::{
    Cluster, ComputeNode, EmbeddedConfig, IndexId, NodeConfig, RemotePtr, ServerId, ServerParts, run_executor,
};
use futures::executor::block_on;
use glommio::{LocalExecutorBuilder, Placement};

/// The size of an [`area`].
pub(crate) const AREA_BYTES: u64 = 1 << 20;

/// Lists the mechanisms that keep lines whole on this CPU. Prints once which they are, and which are not tested here.
pub(crate) fn line_modes() -> Vec<LineMode> {
    static SAID: Once = Once::new();
    let all = [LineMode::Vector, LineMode::Sequence];
    let (had, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(|mode| mode.detect().is_ok());
    SAID.call_once(|| {
        let auto = LineMode::Auto.detect().unwrap();
        say(&format!("line modes tested on this CPU: {had:?}, not tested: {refused:?}; Auto is {auto:?}"));
    });
    had
}

/// Prints a line past the test harness, which hides the output of tests that pass.
pub(crate) fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("standard error is open");
}

/// Makes a cluster of two small servers.
pub(crate) fn cluster(line_mode: LineMode) -> Arc<Cluster> {
    let config = EmbeddedConfig {
        servers: 2,
        bytes_per_server: 4 << 20,
        chunk_bytes: AREA_BYTES,
        locks_per_server: 64,
        line_mode,
        ..EmbeddedConfig::default()
    };
    Cluster::embedded(config).unwrap()
}

/// Starts a small memory server on the shm fabric, with a name that no other test of this host uses.
pub(crate) fn shm_server(line_mode: LineMode) -> ShmServer {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let name = ShmName::new(&format!("test-{}-{number}", std::process::id())).unwrap();
    let parts = ServerParts { locks: 64, chunk_bytes: AREA_BYTES, ..ServerParts::default() };
    let config = ShmServerConfig { parts, line_mode, ..ShmServerConfig::new(name, 4 << 20) };
    ShmServer::start(&config).unwrap()
}

/// Makes a node of `shards` shards that parks after `spin_us` microseconds.
pub(crate) fn node(cluster: &Arc<Cluster>, shards: usize, spin_us: u64) -> Arc<ComputeNode> {
    let config = NodeConfig { shards, spin: Duration::from_micros(spin_us), ..NodeConfig::default() };
    ComputeNode::new(Arc::clone(cluster), config).unwrap()
}

/// Runs a service on an executor and a thread of its own. Without a preemption timer it has glommio's usual one.
pub(crate) fn on_executor<R, T>(
    preempt_timer: Option<Duration>,
    service: impl FnOnce() -> R + Send + 'static,
) -> JoinHandle<T>
where
    R: Future<Output = T>,
    T: Send + 'static,
{
    std::thread::spawn(move || {
        let builder = LocalExecutorBuilder::new(Placement::Unbound);
        let executor = match preempt_timer {
            Some(timer) => builder.preempt_timer(timer),
            None => builder,
        };
        run_executor(&executor.make().unwrap(), service())
    })
}

/// Takes memory of `server` that is zero and belongs to the caller.
pub(crate) fn area(cluster: &Cluster, server: u16) -> RemotePtr {
    block_on(cluster.chunk(ServerId(server), IndexId(1))).unwrap().start
}

/// Lets one test of a program run at a time: for those that measure, or that need both cores.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A guard that aborts the process, naming the test that hung, unless it is dropped in time: a shard that stalls blocks
/// its thread's end, so that a test could not even fail.
pub(crate) struct Watchdog {
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn new(test: &'static str, seconds: u64) -> Self {
        let (alive, dropped) = channel::<()>();
        let thread = std::thread::spawn(move || {
            if dropped.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{test} has not ended after {seconds} s: a wake-up was lost, or a shard is stuck");
                std::process::abort();
            }
        });
        Watchdog { alive: Some(alive), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.alive.take());
        let joined = self.thread.take().map(JoinHandle::join);
        assert!(matches!(joined, Some(Ok(()))));
    }
}

/// Blocks the test's own thread, never an executor's.
pub(crate) fn wait(span: Duration) {
    let (_open, never) = channel::<()>();
    assert_eq!(never.recv_timeout(span), Err(RecvTimeoutError::Timeout));
}

//! A compute node that has ended leaves nothing behind, and one that begins does begin: a process may open and close
//! any number of them, on a busy machine too.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{Chain, Cluster, ComputeNode, Meter, NodeConfig, RemotePtr, Shard, Verbs};

use crate::kit;

const NODES: usize = 20;
/// Number of starts of nodes on a busy machine, and of executors with a tiny preemption timer.
const STARTS: usize = 200;

/// Returns the number of starts; runs by hand may set another: thousands take minutes.
fn starts() -> usize {
    std::env::var("FARWOOD_TEST_STARTS").map_or(STARTS, |starts| starts.parse().expect("a number of starts"))
}

/// Makes a node whose pollers step aside in every eighth turn: one that does so while its shard is closed has to come
/// back.
fn node(cluster: &Arc<Cluster>, shards: usize) -> Arc<ComputeNode> {
    let config = NodeConfig { shards, reactor_interval: Duration::from_micros(1), ..NodeConfig::default() };
    ComputeNode::new(Arc::clone(cluster), config).unwrap()
}

/// Works, and leaves the last chains unawaited.
async fn work(shard: Shard, at: RemotePtr) {
    for _ in 0..10 {
        let own = shard.clone();
        shard
            .spawn(async move {
                let mut chain = Chain::new(at.server());
                chain.faa(at, 1);
                own.submit(&Meter::default(), chain).await.unwrap();
                let mut chain = Chain::new(at.server());
                chain.faa(at, 1);
                drop(own.post(&Meter::default(), chain));
            })
            .await;
    }
}

#[test]
fn nodes_that_ran_are_gone() {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new("nodes that run and end", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let at = kit::area(&cluster, 0);
    let before = Arc::strong_count(&cluster);
    for _ in 0..NODES {
        node(&cluster, 2).run(move |shard| work(shard, at)).unwrap();
        assert_eq!(Arc::strong_count(&cluster), before);
    }
}

#[test]
fn nodes_that_were_attached_are_gone_when_they_are_closed() {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new("nodes that are attached and closed", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let at = kit::area(&cluster, 0);
    let before = Arc::strong_count(&cluster);
    for _ in 0..NODES {
        let node = node(&cluster, 1);
        let service = move || async move {
            let shard = node.attach().await.unwrap();
            work(shard.clone(), at).await;
            shard.close().await;
        };
        kit::on_executor(None, service).join().unwrap();
        assert_eq!(Arc::strong_count(&cluster), before);
    }
}

/// A guard that ends threads also when an assertion fails: a scope waits for its threads before it passes a panic on.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An executor whose thread loses its core for long enough between arming the preemption timer and its first task
/// goes to sleep with that task in its queue, and without a timer that would wake it.
#[test]
fn nodes_begin_on_a_busy_machine() {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new("nodes that begin on a busy machine", 3_600);
    let cluster = kit::cluster(LineMode::Auto);
    let over = AtomicBool::new(false);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&over);
        for _ in 0..4 * cores {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for _ in 0..starts() {
            assert_eq!(node(&cluster, 1).run(async |shard: Shard| shard.id().0).unwrap(), [0]);
        }
    });
}

/// Preemption timers, in us.
const TIMERS_US: [u64; 8] = [10, 20, 50, 100, 200, 500, 1_000, 2_000];
/// Variable that tells a child of this test its timer.
const TIMER: &str = "FARWOOD_TEST_TIMER_US";
/// Number of starts of a child; it is ended after [`CHILDS_SECONDS`].
const CHILDS_STARTS: usize = 10;
const CHILDS_SECONDS: u64 = 3;

/// Tests whether executors of this machine run anything under a timer: if it is shorter than the time between setting
/// it and the first task, none does. A child process can be ended then.
fn can_begin_under(timer_us: u64) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "node_ends::begins_under_the_timer_of_its_parent", "--test-threads=1"]);
    child.env(TIMER, timer_us.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
    child.status().unwrap().success()
}

#[test]
fn begins_under_the_timer_of_its_parent() {
    let Ok(timer_us) = std::env::var(TIMER) else { return };
    let _watchdog = kit::Watchdog::new("a timer that may be too short", CHILDS_SECONDS);
    begin_under(Duration::from_micros(timer_us.parse().unwrap()), CHILDS_STARTS);
}

/// The preemption timer fires before the first task of many a round: the heartbeat stands still now and then, also
/// after `main` was polled first. The timer is twice as long as the shortest under which this machine does anything.
#[test]
fn executors_with_a_tiny_preemption_timer_go_on() {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new("a tiny preemption timer", 3_600);
    let shortest = TIMERS_US.into_iter().find(|&timer_us| can_begin_under(timer_us));
    let timer = Duration::from_micros(2 * shortest.expect("a round takes less than 2 ms"));
    kit::say(&format!("a preemption timer of {timer:?}"));
    begin_under(timer, starts());
}

fn begin_under(timer: Duration, starts: usize) {
    let cluster = kit::cluster(LineMode::Auto);
    let at = kit::area(&cluster, 0);
    for _ in 0..starts {
        let node = node(&cluster, 1);
        let service = move || async move {
            let shard = node.attach().await.unwrap();
            work(shard.clone(), at).await;
            shard.close().await
        };
        assert_eq!(kit::on_executor(Some(timer), service).join().unwrap(), Default::default());
    }
}

/// Counts the file descriptors of this process, and its threads that are Farwood's.
fn held() -> (usize, usize) {
    let count = |path: &str| std::fs::read_dir(path).unwrap().count();
    let named = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread may end between the listing and the reading.
        let name = std::fs::read_to_string(task.ok()?.path().join("comm")).ok()?;
        name.starts_with("farwood").then_some(())
    };
    (count("/proc/self/fd"), std::fs::read_dir("/proc/self/task").unwrap().filter_map(named).count())
}

/// Executors of nodes that have run are reused by later nodes.
#[test]
fn nodes_leave_no_descriptors_and_no_threads() {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new("what nodes leave", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let at = kit::area(&cluster, 0);
    let run = || node(&cluster, 2).run(move |shard| work(shard, at)).unwrap();
    run();
    let (descriptors, threads) = held();
    for _ in 0..NODES {
        run();
        assert_eq!(held().0, descriptors);
    }
    // The thread that watches executors ends when none runs.
    while held().1 > threads {
        kit::wait(Duration::from_millis(10));
    }
}

/// A main that leaves its shard to a task of glommio's: the executor is not given to another node.
#[test]
fn an_executor_with_a_shard_left_on_it_is_not_borrowed_again() {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new("an executor with a shard on it", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let leave = |shard: Shard| async move {
        let tasks = std::thread::current().id();
        glommio::spawn_local(async move {
            // glommio drops tasks that nothing can wake.
            glommio::timer::sleep(Duration::from_secs(3600)).await;
            drop(shard);
        })
        .detach();
        tasks
    };
    let first = node(&cluster, 1).run(leave).unwrap();
    for _ in 0..NODES {
        assert_ne!(node(&cluster, 1).run(async |_: Shard| std::thread::current().id()).unwrap(), first);
    }
}

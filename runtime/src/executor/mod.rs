//! glommio, in this folder and nowhere else: runs executors so that they begin and go on, and shards on them.
//!
//! If its preemption timer fires before the first task of a scheduling round, glommio 0.9 goes to sleep although tasks
//! are runnable, until a timer or another thread wakes it (`executor/mod.rs`, `run`: what `run_task_queues` yields says
//! nothing of tasks that are left). On a busy machine, where a thread may lose its core for as long as that timer
//! takes, it does so now and then. Before the first task of all there is no timer, and no task that could wake it: it
//! would sleep for ever. Later, a timer that comes due in the very round whose tasks are not run is lost with them.
//!
//! So an executor has a heartbeat, which ends such a sleep in most cases, and a heart that stands still is noticed from
//! outside (`watch`): an interrupted `io_uring_enter` returns, and a new round begins.
//!
//! None of that helps an executor whose preemption timer is shorter than what lies between setting it and the round's
//! first task, two system calls: then no round has a task. Timers of 10 us are too short on some machines.
//!
//! - `watch`: the thread that interrupts executors that sleep; `pool`: threads whose executors nodes borrow.
//! - `poller`: the task that runs a shard, and alone knows shards; `reactor`: when it lets the executor look at I/O.

mod poller;
mod pool;
mod reactor;
mod watch;

use std::cell::RefCell;
use std::future::Future;
use std::panic::catch_unwind;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use glommio::LocalExecutor;
use glommio::timer::Timer;

pub(crate) use self::poller::run_shard;
pub(crate) use self::pool::{Borrowed, borrow, places};
use self::watch::Watched;

/// Bounds the stall of a wake-up that glommio loses; costs twenty wake-ups per second.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(50);

/// Runs an executor that a service has made, as [`LocalExecutor::run`] does, but the executor does not fall asleep over
/// its tasks: glommio's own may, for ever, if the machine is busy or its preemption timer short.
///
/// A task of this function's own beats every 50 ms. If none was seen for 100 ms, a thread of this process
/// interrupts this one by SIGURG, again and again; the signal's other handlers stay. Where this thread blocks that
/// signal, or there is no other thread to be had, only the beat is left; the latter is a warning of `tracing`. So is
/// an executor whose heart stands still for 5 s. A preemption timer of less than 100 us may leave no time for tasks at
/// all: setting it takes some 10 us, on slow machines several times as long.
///
/// ```
/// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, Shard, Verbs};
/// # let cluster = Cluster::embedded(EmbeddedConfig::small())?;
/// # let node = ComputeNode::new(cluster, NodeConfig { shards: 1, ..Default::default() })?;
/// let executor = glommio::LocalExecutorBuilder::default().make().unwrap();
/// farwood_runtime::run_executor(&executor, async {
///     let shard = node.attach().await?;
///     shard.pause(1_000).await;
///     let abandoned = shard.close().await;
///     assert!(!abandoned.may_hold_locks());
///     Ok::<_, farwood_runtime::NodeError>(())
/// })?;
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Panics
/// As [`LocalExecutor::run`] does: on a thread that runs an executor already, or if `main` panics.
pub fn run_executor<T>(executor: &LocalExecutor, main: impl Future<Output = T>) -> T {
    let mut result = None;
    run_to_end(executor, pin!(async { result = Some(main.await) }));
    result.expect("the executor has run `main` to its end")
}

/// Does the work of [`run_executor`], compiled once: glommio's executor is a lot of code for each type that it runs.
fn run_to_end(executor: &LocalExecutor, main: Pin<&mut dyn Future<Output = ()>>) {
    // Outlives the run, also one that panics: the signals must end before this thread does.
    let watched = Watched::begin();
    let beats = watched.beats();
    let _end = TellsEnd;
    executor.run(async {
        let heart = glommio::spawn_local(beat(beats));
        main.await;
        heart.cancel().await;
    });
}

/// Tells whether an executor runs on this thread.
pub(crate) fn is_here() -> bool {
    // glommio has no way to ask; its panic is printed.
    catch_unwind(|| glommio::executor().id()).is_ok()
}

/// Waits on this thread's executor.
pub(crate) async fn sleep(span: Duration) {
    glommio::timer::sleep(span).await;
}

/// Tells whether [`run_executor`] runs on this thread, so that its executor has a heartbeat.
pub(crate) fn is_watched() -> bool {
    watch::is_watched()
}

/// An object that has to know when its executor has ended: what it left there stands still.
pub(crate) trait Ending {
    fn executor_ended(&self);
}

thread_local! {
    static ENDINGS: Endings = const { Endings(RefCell::new(Vec::new())) };
}

/// Objects to be told of the end of this thread's executor: when [`run_executor`] is done, or the thread ends.
struct Endings(RefCell<Vec<Weak<dyn Ending>>>);

impl Endings {
    fn tell(&self) {
        let told = std::mem::take(&mut *self.0.borrow_mut());
        told.iter().filter_map(Weak::upgrade).for_each(|ending| ending.executor_ended());
    }
}

impl Drop for Endings {
    fn drop(&mut self) {
        self.tell();
    }
}

struct TellsEnd;

impl Drop for TellsEnd {
    fn drop(&mut self) {
        ENDINGS.with(Endings::tell);
    }
}

/// Registers `ending` for the end of this thread's executor. It is told if it still exists then.
pub(crate) fn tell_end(ending: Weak<dyn Ending>) {
    ENDINGS.with(|endings| {
        let mut endings = endings.0.borrow_mut();
        endings.retain(|ending| ending.strong_count() > 0);
        endings.push(ending);
    });
}

async fn beat(beats: Arc<AtomicU64>) {
    loop {
        beats.fetch_add(1, Ordering::Relaxed);
        Timer::new(HEARTBEAT).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_yields_what_main_does() {
        let executor = glommio::LocalExecutorBuilder::default().make().unwrap();
        for n in 0..3 {
            let spawned = async move { glommio::spawn_local(async move { (n, is_watched()) }).await };
            assert_eq!(run_executor(&executor, spawned), (n, true));
            assert!(!is_watched());
        }
    }
}

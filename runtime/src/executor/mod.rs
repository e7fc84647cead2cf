//! Running a glommio executor so that it begins and goes on. It knows nothing of shards.
//!
//! If its preemption timer fires before the first task of a scheduling round, glommio 0.9 goes to sleep although tasks
//! are runnable, until a timer or another thread wakes it (`executor/mod.rs`, `run`: what `run_task_queues` yields says
//! nothing of tasks that are left). On a busy machine, where a thread may lose its core for as long as that timer
//! takes, it does so now and then. Before the first task of all there is no timer and nobody who knows the executor: it
//! would sleep for ever. Later a timer that comes due in the very round whose tasks are not run is lost with them.
//!
//! So an executor has a heartbeat, which ends such a sleep in most cases, and a heart that stands still is noticed from
//! outside (`watch`): an interrupted `io_uring_enter` returns, and a new round begins.
//!
//! None of that helps an executor whose preemption timer is shorter than what lies between setting it and the round's
//! first task, two system calls: then no round has a task. Timers of 10 us are too short on some machines.
//!
//! - `watch`: the thread that interrupts executors that sleep; `pool`: threads whose executors nodes borrow.

mod pool;
mod watch;

use std::cell::RefCell;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use glommio::LocalExecutor;
use glommio::timer::Timer;

pub(crate) use self::pool::{Borrowed, borrow};
use self::watch::Watched;

/// Bounds the stall of a wake-up that glommio loses; costs twenty wake-ups per second.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(50);

/// [`LocalExecutor::run`] for services that make their executors themselves, but the executor does not fall asleep
/// over its tasks: glommio's own may, for ever, if the machine is busy or its preemption timer short.
///
/// A task of this function's own beats every 50 ms. If none was seen to for 100 ms, a thread of this process
/// interrupts this one by SIGURG, again and again; the signal's other handlers stay. Where this thread blocks that
/// signal, or there is no other thread to be had, only the beat is left; the latter is a warning of `tracing`. So is
/// an executor whose heart stands still for 5 s. A preemption timer of less than 100 us may leave no time for tasks at
/// all: setting it takes some 10 us, on slow machines several times as long.
///
/// # Panics
/// As [`LocalExecutor::run`] does: on a thread that runs an executor already, or if `main` panics.
pub fn run_executor<T>(executor: &LocalExecutor, main: impl Future<Output = T>) -> T {
    // Outlives the run also if that panics: the signals must end before this thread does.
    let watched = Watched::begin();
    let beats = watched.beats();
    let _end = TellsEnd;
    executor.run(async {
        let heart = glommio::spawn_local(beat(beats));
        let result = main.await;
        heart.cancel().await;
        result
    })
}

/// Whether [`run_executor`] runs on this thread, so that its executor has a heartbeat.
pub(crate) fn is_watched() -> bool {
    watch::is_watched()
}

/// Wants to know when an executor has ended: what it left on it stands still.
pub(crate) trait Ending {
    fn executor_ended(&self);
}

thread_local! {
    static ENDINGS: Endings = const { Endings(RefCell::new(Vec::new())) };
}

/// Objects that hear of the end of this thread's executor: when [`run_executor`] is done, or the thread ends.
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

/// From now on `ending` hears of this executor's end, if it is still there then.
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

//! Running a glommio executor so that it does begin. It knows nothing of shards.
//!
//! If its preemption timer fires before the first task of a scheduling round, glommio 0.9 goes to sleep although tasks
//! are runnable, until a timer or another thread wakes it (`executor/mod.rs`, `run`: what `run_task_queues` yields says
//! nothing of tasks that are left). A shard's heartbeat bounds that in later rounds. In the very first one there is no
//! timer yet and nobody who knows the executor: on a busy machine, where a thread may lose its core for as long as the
//! timer takes, it sleeps for ever with its first task in the queue. But an interrupted `io_uring_enter` returns, and
//! a new round begins.

use std::cell::Cell;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use glommio::LocalExecutor;
use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::Signal;
use signal_hook::SigId;
use signal_hook::consts::SIGURG;

/// Far longer than an executor needs for its first round where nothing disturbs it.
const INTERRUPT_EVERY: Duration = Duration::from_millis(100);

/// [`LocalExecutor::run`], but `main` does begin: for services that make their executors themselves. glommio's own may
/// sleep for ever before the first task of all, if the machine is busy.
///
/// Until `main` is polled for the first time, a thread interrupts this one by SIGURG every 100 ms; the signal's other
/// handlers stay. Where this thread blocks that signal, or there is no other thread to be had, this is no better than
/// [`LocalExecutor::run`]; the latter is a warning of `tracing`.
///
/// # Panics
/// As [`LocalExecutor::run`] does: on a thread that runs an executor already, or if `main` panics.
pub fn run_executor<T>(executor: &LocalExecutor, main: impl Future<Output = T>) -> T {
    // Held here and not by the task: glommio leaks the tasks of an executor that fails, and the signals must end
    // before this thread does.
    let alarm = Cell::new(Some(Alarm::start()));
    executor.run(async {
        drop(alarm.take());
        main.await
    })
}

/// Interrupts the thread that has started it, until it is dropped, which must be there.
struct Alarm {
    /// The handler that lets the signal interrupt instead of being ignored.
    signal: Option<SigId>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    stays_here: PhantomData<*const ()>,
}

impl Alarm {
    /// Without a thread or a handler (the system has none left) it does nothing.
    fn start() -> Self {
        let signal = signal_hook::flag::register(SIGURG, Arc::new(AtomicBool::new(false))).ok();
        let (end, ended) = channel();
        let sleeper = pthread_self();
        let interrupting = move || {
            while ended.recv_timeout(INTERRUPT_EVERY) == Err(RecvTimeoutError::Timeout) {
                // The sleeper waits for this thread before it ends. A refusal leaves things as they are.
                let _ = pthread_kill(sleeper, Signal::SIGURG);
            }
        };
        let thread = std::thread::Builder::new().name("farwood-alarm".into());
        let thread = signal.and_then(|_| thread.spawn(interrupting).ok());
        if thread.is_none() {
            tracing::warn!(
                "no thread or no signal handler for an executor's first round: it may never begin"
            );
        }
        Alarm { signal, end: Some(end), thread, stays_here: PhantomData }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        drop(self.end.take());
        // It has nothing to say but that it has ended.
        let _ = self.thread.take().map(JoinHandle::join);
        if let Some(signal) = self.signal.take() {
            signal_hook::low_level::unregister(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use nix::poll::poll;

    use super::*;

    /// A system call that waits is interrupted, again and again; afterwards none is.
    #[test]
    fn interrupts_its_thread_until_it_is_dropped() {
        let alarm = Alarm::start();
        for _ in 0..3 {
            assert_eq!(poll(&mut [], -1), Err(Errno::EINTR));
        }
        drop(alarm);
        assert_eq!(poll(&mut [], 3 * INTERRUPT_EVERY.as_millis() as i32), Ok(0));
    }

    #[test]
    fn runs_and_yields_what_main_does() {
        let executor = glommio::LocalExecutorBuilder::default().make().unwrap();
        assert_eq!(run_executor(&executor, async { glommio::spawn_local(async { 7 }).await }), 7);
    }
}

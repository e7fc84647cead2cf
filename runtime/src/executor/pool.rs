//! Threads with glommio executors that nodes borrow, one after the other.
//!
//! glommio 0.9 never gives an executor's eventfd back: each task holds a count of it that is not dropped with the task
//! (`task/raw.rs`, `destroy`). A process that made executors for each of its nodes would run out of file descriptors.
//! So it makes as many as its nodes have run at the same time, and these stay: each is a sleeping thread with its
//! rings.
//!
//! Tasks of glommio's that a borrower leaves behind stand still when it is done, and go on with the next one. A
//! borrower that knows of such a task does not give the executor back ([`Borrowed::join`] is then the end of the
//! thread).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::LocalBoxFuture;
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement, PoolPlacement};

/// Shorter timers lose wake-ups more often (see [`super`]); longer ones delay other executors' wake-ups.
const PREEMPT_TIMER: Duration = Duration::from_millis(10);

static IDLE: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

type Job = Box<dyn FnOnce(&LocalExecutor) + Send>;

/// A thread with an executor. It ends when this is dropped.
struct Worker {
    /// The core that it is pinned to, if any.
    core: Option<usize>,
    jobs: Sender<Job>,
}

/// Chooses where executors run: on cores of their own, as far from each other as can be, or anywhere if there are too
/// few.
///
/// # Errors
/// Why the cores of this machine cannot be told.
pub(crate) fn cores(executors: usize) -> Result<Vec<Option<usize>>, String> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    if executors > cores {
        return Ok(vec![None; executors]);
    }
    let cores = PoolPlacement::MaxSpread(executors, None).generate_cpu_set();
    let mut cores = cores.map_err(|cause| cause.to_string())?;
    Ok((0..executors).map(|_| cores.next().next().map(|core| core.cpu)).collect())
}

/// A service that runs on a borrowed executor.
pub(crate) struct Borrowed<T>(Receiver<Result<T, Box<dyn Any + Send>>>);

impl<T> Borrowed<T> {
    /// Waits until the service is done.
    ///
    /// # Errors
    /// With the panic of the executor's thread.
    pub(crate) fn join(self) -> Result<T, Box<dyn Any + Send>> {
        self.0.recv().expect("a worker reports the end of its job")
    }
}

/// Makes a service, on the executor's thread. It yields its result, and whether it has left nothing behind on the
/// executor.
pub(crate) type Service<T> = Box<dyn FnOnce() -> LocalBoxFuture<'static, (T, bool)> + Send>;

/// Runs a service on an executor that is pinned to `core`, or anywhere.
///
/// # Errors
/// Why there is no executor.
pub(crate) fn borrow<T: Send + 'static>(
    core: Option<usize>,
    service: Service<T>,
) -> Result<Borrowed<T>, String> {
    let waiting = {
        let mut idle = idle();
        let found = idle.iter().position(|worker| worker.core == core);
        found.map(|place| idle.swap_remove(place))
    };
    let worker = match waiting {
        Some(worker) => worker,
        None => Worker::start(core)?,
    };
    let jobs = worker.jobs.clone();
    let (sender, result) = channel();
    let job: Job = Box::new(move |executor| {
        let ran = catch_unwind(AssertUnwindSafe(|| super::run_executor(executor, service())));
        let result = match ran {
            Ok((result, is_clean)) => {
                if is_clean {
                    // Before the result is known, so that the next borrower finds this one.
                    self::idle().push(worker);
                }
                Ok(result)
            }
            Err(panic) => Err(panic),
        };
        // The borrower may have stopped waiting.
        let _ = sender.send(result);
    });
    jobs.send(job).expect("a worker waits for jobs until it is dropped");
    Ok(Borrowed(result))
}

fn idle() -> MutexGuard<'static, Vec<Worker>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    fn start(core: Option<usize>) -> Result<Self, String> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let (jobs, work) = channel::<Job>();
        let (sender, started) = channel();
        let thread = std::thread::Builder::new().name(format!("farwood-{number}"));
        let serve = move || {
            let placement = core.map_or(Placement::Unbound, Placement::Fixed);
            match LocalExecutorBuilder::new(placement).preempt_timer(PREEMPT_TIMER).make() {
                Ok(executor) => {
                    let _ = sender.send(Ok(()));
                    work.iter().for_each(|job| job(&executor));
                }
                Err(error) => drop(sender.send(Err(error.to_string()))),
            }
        };
        thread.spawn(serve).map_err(|error| error.to_string())?;
        started.recv().map_err(|_| "its thread has panicked".to_string())??;
        Ok(Worker { core, jobs })
    }
}

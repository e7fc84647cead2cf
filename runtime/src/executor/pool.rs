//! Threads with glommio executors that nodes borrow, one after the other.
//!
//! glommio 0.9 never gives an executor's eventfd back: each task holds a count of it that is not dropped with the task
//! (`task/raw.rs`, `destroy`). A process that made executors for each of its nodes would run out of file descriptors.
//! So it makes as many as its nodes have run at the same time, and these stay: each is a sleeping thread with its
//! rings.
//!
//! Each executor of a node is pinned to a core of its own, if there are enough, and nodes that run at the same time
//! share none while others are free: a shard spins while it waits, and if it shares its core with the one that it waits
//! for, it spins until the system takes the core away.
//!
//! Tasks of glommio's that a borrower leaves behind stand still when it is done, and go on with the next one. A
//! borrower that knows of such a task does not give the executor back ([`Borrowed::join`] is then the end of the
//! thread).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::future::LocalBoxFuture;
use glommio::{CpuSet, LocalExecutor, LocalExecutorBuilder, Placement, PoolPlacement};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

/// Shorter timers lose wake-ups more often (see [`super`]); longer ones delay other executors' wake-ups.
const PREEMPT_TIMER: Duration = Duration::from_millis(10);

static IDLE: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

/// The core of each [`Place`] there is.
static TAKEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

type Job = Box<dyn FnOnce(&LocalExecutor) + Send>;

/// A thread with an executor. It ends when this is dropped.
struct Worker {
    /// The core that it is pinned to, if any.
    core: Option<usize>,
    jobs: Sender<Job>,
}

/// The place of an executor: a core to which it is pinned, until this is dropped, or any.
pub(crate) struct Place(Option<usize>);

impl Place {
    fn take(core: Option<usize>, taken: &mut Vec<usize>) -> Self {
        taken.extend(core);
        Place(core)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&TAKEN);
        if let Some(at) = taken.iter().position(|core| Some(*core) == self.0) {
            taken.swap_remove(at);
        }
    }
}

/// Chooses where executors run: on cores of their own, those that the fewest others have, as far from each other as can
/// be; or anywhere if there are too few.
///
/// # Errors
/// Why the cores of this machine cannot be told.
pub(crate) fn places(executors: usize) -> Result<Vec<Place>, String> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let spread = spread()?;
    let spread = if executors > cores.min(spread.len()) { Vec::new() } else { spread };
    let mut taken = lock(&TAKEN);
    let free = freest_first(spread, &taken);
    Ok((0..executors).map(|number| Place::take(free.get(number).copied(), &mut taken)).collect())
}

/// Puts cores that fewer executors have before the others, and leaves the rest of their order as it is.
fn freest_first(mut cores: Vec<usize>, taken: &[usize]) -> Vec<usize> {
    cores.sort_by_key(|core| taken.iter().filter(|other| *other == core).count());
    cores
}

/// Lists the cores that this process may use, each as far from those before it as can be. The first depends on the
/// process, so that those of several processes are not all the same. Done once, since it takes a hundred system calls.
fn spread() -> Result<Vec<usize>, String> {
    static SPREAD: OnceLock<Result<Vec<usize>, String>> = OnceLock::new();
    let find = || {
        // The main thread's: the one that asks may be pinned to a core itself. In a container it has a part of them.
        let allowed = sched_getaffinity(Pid::this()).map_err(|errno| errno.to_string())?;
        let online = CpuSet::online().map_err(|cause| cause.to_string())?;
        let usable = online.filter(|core| allowed.is_set(core.cpu) == Ok(true));
        let cores = usable.len();
        let sets = PoolPlacement::MaxSpread(cores, Some(usable)).generate_cpu_set();
        let mut sets = sets.map_err(|cause| cause.to_string())?;
        let mut spread: Vec<usize> = (0..cores).flat_map(|_| sets.next()).map(|core| core.cpu).collect();
        spread.rotate_left(std::process::id() as usize % cores.max(1));
        Ok(spread)
    };
    SPREAD.get_or_init(find).clone()
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

/// Runs a service on an executor at `place`.
///
/// # Errors
/// Why there is no executor.
pub(crate) fn borrow<T: Send + 'static>(place: Place, service: Service<T>) -> Result<Borrowed<T>, String> {
    let core = place.0;
    let waiting = {
        let mut idle = lock(&IDLE);
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
        drop(place);
        let result = match ran {
            Ok((result, is_clean)) => {
                if is_clean {
                    // Before the result is known, so that the next borrower finds this one.
                    lock(&IDLE).push(worker);
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

fn lock<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn cores_are_shared_only_if_none_is_free() {
        let spread = vec![0, 2, 1, 3];
        assert_eq!(freest_first(spread.clone(), &[]), spread);
        assert_eq!(freest_first(spread.clone(), &[0, 1]), [2, 3, 0, 1]);
        assert_eq!(freest_first(spread.clone(), &[2, 0, 3, 1, 3]), [0, 2, 1, 3]);
        assert_eq!(freest_first(spread, &[0, 0, 3]), [2, 1, 3, 0]);
    }

    #[test]
    fn executors_of_a_node_have_cores_of_their_own_or_any() {
        let cores = std::thread::available_parallelism().unwrap().get();
        let own: HashSet<Option<usize>> = places(cores).unwrap().iter().map(|place| place.0).collect();
        assert!(own.len() == cores && !own.contains(&None), "{own:?}");
        assert!(places(cores + 1).unwrap().iter().all(|place| place.0.is_none()));
    }
}

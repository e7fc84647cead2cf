//! Runs parties on compute nodes whose shards are glommio executors, whatever memory they reach: one thread per node.
//!
//! A shard that panics ends the run, and fails its test alone. Its node drops what the other shards do; here the other
//! nodes do the same, which would wait for ever for what only the first one could give.

use std::any::Any;
use std::cell::RefCell;
use std::error::Error;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use farwood::runtime::Fabric;
use farwood::{ComputeNode, NodeContext, Shard};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{Either, select};

use super::cluster::{Main, Seat, as_main};
use super::shard::TestShard;

/// Far beyond what nodes take that end, each second or so after the other one.
const END_WITHIN: Duration = Duration::from_secs(20);

impl Seat<Shard> {
    /// Makes the seat one of those that all fabrics have.
    fn of_any(self) -> Seat<TestShard> {
        Seat { shard: TestShard::Node(self.shard), host: self.host, node: self.node }
    }
}

/// Lets shards of compute nodes run what shards of all fabrics can.
pub(crate) fn on_node<T: 'static>(main: &Main<Seat<TestShard>, T>) -> Main<Seat<Shard>, T> {
    let main = Arc::clone(main);
    as_main(move |seat: Seat<Shard>| main(seat.of_any()))
}

/// Runs `main` for every shard of all `nodes`, which work on the same cluster; results in the order of places.
///
/// # Panics
/// If a shard does, with the words of the first that did.
pub(crate) fn run_nodes<C, T>(
    nodes: Vec<Arc<ComputeNode<C>>>,
    main: &Main<Seat<Shard<C::Device>>, T>,
) -> Vec<T>
where
    C: Fabric,
    T: Send + 'static,
{
    use_small_pages();
    let run = Watched::begin();
    let (fall, fallen) = oneshot::channel::<()>();
    let fallen = fallen.shared();
    let (end, ends) = channel();
    let mut running = nodes.len();
    for (number, node) in nodes.into_iter().enumerate() {
        let (main, fallen, end) = (Arc::clone(main), fallen.clone(), end.clone());
        let notes = Arc::clone(&run.notes);
        std::thread::spawn(move || {
            let host = Arc::clone(&node);
            let ran = catch_unwind(AssertUnwindSafe(|| {
                node.try_run(move |shard| {
                    NOTES.set(Some(Arc::clone(&notes)));
                    let seat = Seat { shard, host: Arc::clone(&host) as Arc<dyn NodeContext>, node: number };
                    let (work, fallen) = (main(seat), fallen.clone());
                    async move {
                        match select(work, fallen).await {
                            Either::Left((result, _)) => Ok(result),
                            Either::Right(_) => Err("another compute node has failed".into()),
                        }
                    }
                })
            }));
            let _ = end.send((number, ran));
        });
    }
    let (mut results, mut fall, mut failure) = (Vec::new(), Some(fall), None);
    while running > 0 {
        let (number, ran): (_, Ran<T>) = ends.recv().expect("a compute node tells how it ended");
        running -= 1;
        match ran {
            Ok(Ok(ended)) => results.push((number, ended)),
            failed => {
                drop(fall.take());
                failure = failure.or(Some((number, failed)));
            }
        }
    }
    if let Some((number, failed)) = failure {
        panic!("compute node {number}: {}", run.why(failed));
    }
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().flat_map(|(_, ended)| ended).collect()
}

/// Keeps the memory of this process off huge pages, in which clusters come otherwise: to clear one for the few
/// kilobytes that a test uses of it took most of the time of many tests.
pub(crate) fn use_small_pages() {
    // It only takes longer if the kernel does not do it.
    let _ = nix::sys::prctl::set_thp_disable(true);
}

/// The end of a node's run: results or an error, or a panic.
type Ran<T> = Result<Result<Vec<T>, Box<dyn Error + Send + Sync>>, Box<dyn Any + Send>>;

/// A run whose panics are noted. If it is not over some time after the first one, the test process ends, with the
/// message on the real stderr: a client that no task awaits may have panicked, or a thread be stuck.
struct Watched {
    notes: Arc<Mutex<Notes>>,
    /// Tells by its end that the run is over.
    _runs: Sender<()>,
}

struct Notes {
    /// Panics of the run's shards, each with its place.
    panics: Vec<String>,
    /// Receiver of the run's end, until the hook waits for it.
    over: Option<Receiver<()>>,
}

thread_local! {
    /// Notes of the run that this executor worked for last.
    static NOTES: RefCell<Option<Arc<Mutex<Notes>>>> = const { RefCell::new(None) };
}

impl Watched {
    fn begin() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                before(info);
                if let Some(notes) = NOTES.with_borrow(Clone::clone) {
                    note(&notes, info.to_string());
                }
            }));
        });
        let (_runs, over) = channel();
        Watched { notes: Arc::new(Mutex::new(Notes { panics: Vec::new(), over: Some(over) })), _runs }
    }

    /// Says why a node has failed. What an executor prints goes to the test that it has run first.
    fn why<T>(&self, failed: Ran<T>) -> String {
        match failed {
            Ok(ended) => ended.err().expect("it has failed").to_string(),
            Err(_) => self.notes.lock().expect("no thread panics while it has it").panics.join("\n"),
        }
    }
}

/// Notes a panic, and ends the process if the run does not end.
fn note(notes: &Arc<Mutex<Notes>>, panic: String) {
    let over = {
        let mut notes = notes.lock().expect("no thread panics while it has it");
        notes.panics.push(panic.clone());
        notes.over.take()
    };
    let Some(over) = over else { return };
    std::thread::spawn(move || {
        if over.recv_timeout(END_WITHIN) == Err(RecvTimeoutError::Timeout) {
            let seconds = END_WITHIN.as_secs();
            let _ = writeln!(std::io::stderr(), "a run has not ended {seconds} s after this: {panic}");
            std::process::exit(101);
        }
    });
}

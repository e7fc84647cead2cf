//! The thread that reads the file: a read may block for ever (a terminal, a pipe), and no shard may. It hands every
//! block to every shard, and waits when one of them lags behind. The command does not wait for the thread: at an
//! interrupt it may sit in a read, and ends with the process.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use farwood::Limits;
use farwood::runtime::ShardId;
use futures::SinkExt;
use futures::channel::mpsc::{self, Receiver, Sender};
use futures::executor::block_on;

use super::Source;
use super::apply::Shared;
use super::blocks::{Block, Blocks};
use super::rejects::Rejects;
use crate::error::CliError;

/// Blocks that wait for a shard, beside the one that its sender may always add.
const WAITING_MAX: usize = 1;

/// State of the reading thread, as the command sees it.
pub(super) struct Reader(Arc<State>);

#[derive(Default)]
struct State {
    lines: AtomicU64,
    rejects: Mutex<Rejects>,
    failure: Mutex<Option<io::Error>>,
}

/// Receiver of one shard's blocks.
pub(super) type Inbox = Receiver<Arc<Block>>;

/// The inboxes that no shard has taken yet.
#[derive(Clone)]
pub(super) struct Inboxes(Arc<Mutex<Vec<Option<Inbox>>>>);

impl Inboxes {
    /// Takes the shard's own inbox; once.
    pub(super) fn take(&self, shard: ShardId) -> Inbox {
        let mut inboxes = lock(&self.0);
        inboxes[usize::from(shard.0)].take().expect("every shard takes its inbox once")
    }
}

impl Reader {
    /// Starts the thread.
    pub(super) fn start(
        source: Source,
        limits: Limits,
        shards: usize,
        shared: &Arc<Shared>,
    ) -> Result<(Self, Inboxes), CliError> {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..shards).map(|_| mpsc::channel(WAITING_MAX)).map(|(to, from)| (to, Some(from))).unzip();
        let state = Arc::new(State::default());
        let (told, shared) = (Arc::clone(&state), Arc::clone(shared));
        let blocks = Blocks::new(source.input, shared.operation, limits, shards);
        let thread = thread::Builder::new().name("farwood-reader".to_owned());
        let started = thread.spawn(move || read(blocks, source.bytes, senders, &told, &shared));
        started.map_err(|cause| CliError::Failed(format!("cannot start a thread that reads: {cause}")))?;
        Ok((Reader(state), Inboxes(Arc::new(Mutex::new(receivers)))))
    }

    /// Counts the lines that were read.
    pub(super) fn lines(&self) -> u64 {
        self.0.lines.load(Ordering::Acquire)
    }

    /// Returns the lines that were rejected.
    pub(super) fn rejects(&self) -> Rejects {
        lock(&self.0.rejects).clone()
    }

    /// Takes the error that ended reading early, if there is one.
    pub(super) fn failure(&self) -> Option<io::Error> {
        lock(&self.0.failure).take()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads to the end, or until the shards take no more. The shards see the end when the senders are dropped: the state
/// has to be complete before.
fn read(
    mut blocks: Blocks<Box<dyn io::Read + Send>>,
    bytes: Option<u64>,
    mut senders: Vec<Sender<Arc<Block>>>,
    state: &State,
    shared: &Shared,
) {
    let mut rejects = Rejects::default();
    loop {
        let block = match blocks.next(&mut rejects) {
            Ok(block) => block,
            Err(error) => {
                *lock(&state.failure) = Some(error);
                return;
            }
        };
        state.lines.store(blocks.lines(), Ordering::Release);
        lock(&state.rejects).clone_from(&rejects);
        match bytes {
            Some(bytes) => shared.progress.set_done(blocks.bytes() as f64 / bytes.max(1) as f64),
            None => shared.progress.set_unknown(),
        }
        let Some(block) = block.map(Arc::new) else { return };
        for sender in &mut senders {
            // A shard that takes no more has failed or was interrupted, and so have all.
            if block_on(sender.send(Arc::clone(&block))).is_err() {
                return;
            }
        }
    }
}

//! The thread that wakes sleeping shards: it waits for events of all armed completion queues of a cluster.
//!
//! ```text
//!   shard: parked = true, fence;  arm;  poll once more, sleep       event
//!   thread:                                                           └──> take it, acknowledge it, unpark
//! ```
//! A shard is announced as parked before it arms its queue, so whatever event comes finds it so. An event of a shard
//! that did not go to sleep after all wakes none.
//!
//! A queue whose descriptor has only an error to tell, as after its device was removed, is lost: it is not watched any
//! more, and its shard is woken to see that ([`Watched::is_lost`]).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::cq::CompletionQueue;
use super::error::VerbsError;
use crate::shard::Unpark;

/// Stands for the descriptor that ends the thread.
const STOP: u64 = 0;
const EVENTS_PER_WAIT: usize = 16;

/// The thread, which runs until this is dropped.
pub(super) struct CqEventThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    epoll: Epoll,
    stop: EventFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watched: BTreeMap<u64, Sleeper>,
    last_token: u64,
}

/// A shard that events of a queue wake.
struct Sleeper {
    cq: Arc<CompletionQueue>,
    unpark: Unpark,
    is_lost: Arc<AtomicBool>,
}

/// A completion queue that is watched until this is dropped.
pub(super) struct Watched {
    thread: Arc<CqEventThread>,
    token: u64,
    is_lost: Arc<AtomicBool>,
}

impl CqEventThread {
    pub(super) fn start() -> Result<Arc<Self>, VerbsError> {
        let refused = |cause| VerbsError::Refused { action: "watch its completions", cause };
        Self::start_thread().map(Arc::new).map_err(refused)
    }

    fn start_thread() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?;
        let shared = Arc::new(Shared { epoll, stop, state: Mutex::default() });
        shared.add(shared.stop.as_fd(), STOP)?;
        let inner = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("farwood-verbs".into()).spawn(move || inner.run())?;
        Ok(CqEventThread { shared, thread: Some(thread) })
    }

    /// Lets events of `cq` wake the shard of `unpark` from now on.
    pub(super) fn watch(
        self: &Arc<Self>,
        cq: &Arc<CompletionQueue>,
        unpark: Unpark,
    ) -> Result<Watched, VerbsError> {
        let mut state = self.shared.state();
        state.last_token += 1;
        let token = state.last_token;
        let is_lost = Arc::new(AtomicBool::new(false));
        state.watched.insert(token, Sleeper { cq: Arc::clone(cq), unpark, is_lost: Arc::clone(&is_lost) });
        drop(state);
        // Made before it is added: if that fails, dropping it cleans up.
        let watched = Watched { thread: Arc::clone(self), token, is_lost };
        let refused = |cause| VerbsError::Refused { action: "watch its completions", cause };
        self.shared.add(channel_of(cq), token).map_err(refused)?;
        Ok(watched)
    }
}

impl Watched {
    /// Tells whether no event will come any more: the device is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }
}

impl Drop for CqEventThread {
    fn drop(&mut self) {
        if self.shared.stop.write(1).is_ok() {
            let ended = self.thread.take().map(JoinHandle::join);
            assert!(!matches!(ended, Some(Err(_))), "the thread that watches completions panicked");
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let shared = &self.thread.shared;
        // Waits for the thread if it is at this queue.
        let mut state = shared.state();
        let removed = state.watched.remove(&self.token);
        if let Some(sleeper) = &removed {
            shared.remove(&sleeper.cq);
        }
        drop(state);
        // Perhaps the last handle to the queue, which is not destroyed under the lock.
        drop(removed);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it looks at the watched queues")
    }

    fn add(&self, fd: BorrowedFd, token: u64) -> io::Result<()> {
        self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token)).map_err(io::Error::from)
    }

    /// Stops watching a queue, if it is watched.
    fn remove(&self, cq: &CompletionQueue) {
        self.epoll.delete(channel_of(cq)).ok();
    }

    fn run(&self) {
        let mut events = [EpollEvent::empty(); EVENTS_PER_WAIT];
        loop {
            let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    let cause = io::Error::from(error);
                    tracing::error!("cannot wait for completions any more: {cause}");
                    return self.state().watched.values().for_each(Sleeper::lose);
                }
            };
            for event in &events[..count] {
                if event.data() == STOP {
                    return;
                }
                self.wake(event.data(), event.events());
            }
        }
    }

    fn wake(&self, token: u64, kinds: EpollFlags) {
        let state = self.state();
        // Else it was removed since.
        let Some(sleeper) = state.watched.get(&token) else { return };
        if sleeper.cq.take_events() > 0 {
            sleeper.unpark.unpark();
        } else if kinds.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP) {
            // Else it would be told again and again.
            self.remove(&sleeper.cq);
            sleeper.lose();
        }
    }
}

impl Sleeper {
    fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
        self.unpark.unpark();
    }
}

fn channel_of(cq: &CompletionQueue) -> BorrowedFd<'_> {
    cq.fd().expect("a completion queue that is watched has a channel")
}

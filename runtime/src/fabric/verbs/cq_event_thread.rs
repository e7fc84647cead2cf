//! The thread that wakes sleeping shards: it waits for events of all armed completion queues of a cluster.
//!
//! ```text
//!   shard: parked = true, fence;  arm;  poll once more, sleep       event
//!   thread:                                                           └──> take it, acknowledge it, unpark
//! ```
//! A shard is announced as parked before it arms its queue, so whatever event comes finds it so. An event of a shard
//! that did not go to sleep after all wakes nobody.
//!
//! A queue whose descriptor has only an error to tell, as after its device was removed, is lost: it is not watched any
//! more, and its shard is woken to see that ([`Watched::is_lost`]).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use super::cq::CompletionQueue;
use super::error::VerbsError;
use crate::shard::Unpark;

/// Stands for the descriptor that ends the thread.
const STOP: u64 = 0;
const EVENTS_PER_WAIT: usize = 16;

/// The thread, while anybody holds this.
pub(super) struct CqEventThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    epoll: OwnedFd,
    stop: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watched: BTreeMap<u64, Sleeper>,
    last_token: u64,
}

/// Whom events of a queue wake.
struct Sleeper {
    cq: Arc<CompletionQueue>,
    unpark: Unpark,
    is_lost: Arc<AtomicBool>,
}

/// A completion queue that is watched until this is dropped.
pub(super) struct Watched {
    thread: Arc<CqEventThread>,
    token: u64,
    fd: RawFd,
    is_lost: Arc<AtomicBool>,
}

impl CqEventThread {
    pub(super) fn start() -> Result<Arc<Self>, VerbsError> {
        let refused = |cause| VerbsError::Refused { action: "watch its completions", cause };
        Self::start_thread().map(Arc::new).map_err(refused)
    }

    fn start_thread() -> io::Result<Self> {
        // SAFETY: no pointers.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: no pointers.
        let stop = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
        let shared = Arc::new(Shared { epoll, stop, state: Mutex::default() });
        shared.add(shared.stop.as_raw_fd(), STOP)?;
        let inner = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("farwood-verbs".into()).spawn(move || inner.run())?;
        Ok(CqEventThread { shared, thread: Some(thread) })
    }

    /// From now on events of `cq` wake the shard of `unpark`.
    pub(super) fn watch(
        self: &Arc<Self>,
        cq: &Arc<CompletionQueue>,
        unpark: Unpark,
    ) -> Result<Watched, VerbsError> {
        let fd = cq.fd().expect("a completion queue that is watched has a channel");
        let mut state = self.shared.state();
        state.last_token += 1;
        let token = state.last_token;
        let is_lost = Arc::new(AtomicBool::new(false));
        state.watched.insert(token, Sleeper { cq: Arc::clone(cq), unpark, is_lost: Arc::clone(&is_lost) });
        drop(state);
        // Made before it is added: if that fails, dropping it cleans up.
        let watched = Watched { thread: Arc::clone(self), token, fd, is_lost };
        let refused = |cause| VerbsError::Refused { action: "watch its completions", cause };
        self.shared.add(fd, token).map_err(refused)?;
        Ok(watched)
    }
}

impl Watched {
    /// Whether no event will come any more: the device is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }
}

impl Drop for CqEventThread {
    fn drop(&mut self) {
        let one = 1u64;
        let stop = self.shared.stop.as_raw_fd();
        // SAFETY: an eventfd takes 8 bytes.
        let written = unsafe { libc::write(stop, (&raw const one).cast(), 8) };
        if written == 8 {
            let ended = self.thread.take().map(JoinHandle::join);
            assert!(!matches!(ended, Some(Err(_))), "the thread that watches completions panicked");
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let shared = &self.thread.shared;
        // The completion queue is in the map still.
        shared.remove(self.fd);
        // Also waits for the thread if it is at this queue.
        let removed = shared.state().watched.remove(&self.token);
        drop(removed);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it looks at the watched queues")
    }

    fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: both descriptors are open, and the event is copied.
        let failed = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Stops watching a descriptor that is open, if it is watched.
    fn remove(&self, fd: RawFd) {
        // SAFETY: removal takes no event.
        unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
        }
    }

    fn run(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_PER_WAIT];
        loop {
            let (room, forever) = (EVENTS_PER_WAIT as i32, -1);
            // SAFETY: there is room for as many events as it is told.
            let count =
                unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), room, forever) };
            if count < 0 {
                let cause = io::Error::last_os_error();
                if cause.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                tracing::error!("cannot wait for completions any more: {cause}");
                return self.state().watched.values().for_each(Sleeper::lose);
            }
            for event in &events[..count as usize] {
                if event.u64 == STOP {
                    return;
                }
                self.wake(event.u64, event.events);
            }
        }
    }

    fn wake(&self, token: u64, kinds: u32) {
        let state = self.state();
        // Else it was removed since.
        let Some(sleeper) = state.watched.get(&token) else { return };
        if sleeper.cq.take_events() > 0 {
            sleeper.unpark.unpark();
        } else if kinds & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0 {
            // Else it would be told again and again.
            self.remove(sleeper.cq.fd().expect("a completion queue that is watched has a channel"));
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

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

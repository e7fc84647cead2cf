//! The client pool: persistent futures in a slab, polled directly by key in the shard's turns.
//!
//! Resuming a client costs a queue entry instead of a waker's reference counts and a trip through the executor
//! (8 ns instead of 53, as measured). It works because every future that waits for something of the shard asks for a
//! [`Waiter`](crate::waiter::Waiter): if the context being polled is the client's own, its key is enough. Combinators
//! that poll with wakers of their own (`FuturesUnordered`, `join_all`) and wakes from other threads go through a real
//! waker, which ends up in the same ready queue.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use futures::FutureExt;
use futures::channel::oneshot;
use slab::Slab;
use thiserror::Error;

use super::parking::Parking;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The futures of one shard's pool.
pub(super) struct Clients {
    slab: RefCell<Slab<Client>>,
    ready: RefCell<VecDeque<u32>>,
    /// The client that is being polled: its key, and what its waker points to.
    current: Cell<Option<(u32, *const ())>>,
    /// Set if clients are dropped rather than spawned.
    is_discarded: Cell<bool>,
    foreign: Arc<ForeignWakes>,
}

struct Client {
    /// Out while it is being polled.
    running: Option<(Task, Waker)>,
    /// Set while the client is in the ready queue.
    queued: bool,
    /// Set for a task of the janitor, which is never dropped before its end.
    is_deferred: bool,
    /// Receiver of the client's panic; without one the panic goes on.
    on_panic: Option<OnPanic>,
}

/// Wakes that came through a waker, maybe from another thread.
struct ForeignWakes {
    keys: Mutex<Vec<u32>>,
    any: AtomicBool,
    parking: Arc<Parking>,
}

struct ClientWaker {
    key: u32,
    foreign: Arc<ForeignWakes>,
}

impl Clients {
    pub(super) fn new(parking: Arc<Parking>) -> Self {
        let foreign = ForeignWakes { keys: Mutex::new(Vec::new()), any: AtomicBool::new(false), parking };
        Clients {
            slab: RefCell::new(Slab::new()),
            ready: RefCell::new(VecDeque::new()),
            current: Cell::new(None),
            is_discarded: Cell::new(false),
            foreign: Arc::new(foreign),
        }
    }

    #[cfg(test)]
    fn spawn(&self, task: Task) {
        self.add(task, false, None);
    }

    /// Spawns a client whose panic is for `on_panic`, if [`Clients::run_ready`] polls it.
    pub(super) fn spawn_guarded(&self, task: Task, on_panic: OnPanic) {
        self.add(task, false, Some(on_panic));
    }

    /// Spawns a task of the janitor, whose panic is likewise for `on_panic`.
    pub(super) fn spawn_deferred(&self, task: Task, on_panic: OnPanic) {
        self.add(task, true, Some(on_panic));
    }

    fn add(&self, task: Task, is_deferred: bool, on_panic: Option<OnPanic>) {
        if self.is_discarded.get() {
            return;
        }
        let mut slab = self.slab.borrow_mut();
        let entry = slab.vacant_entry();
        let key = entry.key() as u32;
        let waker = Waker::from(Arc::new(ClientWaker { key, foreign: Arc::clone(&self.foreign) }));
        entry.insert(Client { running: Some((task, waker)), queued: true, is_deferred, on_panic });
        self.ready.borrow_mut().push_back(key);
    }

    /// Yields the key of the client that is being polled, if `waker` is its own and not some combinator's.
    #[inline]
    pub(super) fn current(&self, waker: &Waker) -> Option<u32> {
        self.current.get().filter(|(_, data)| *data == waker.data()).map(|(key, _)| key)
    }

    /// Puts a client into the ready queue. One that has ended or is there already is left alone.
    #[inline]
    pub(super) fn make_ready(&self, key: u32) {
        if let Some(client) = self.slab.borrow_mut().get_mut(key as usize)
            && !client.queued
        {
            client.queued = true;
            self.ready.borrow_mut().push_back(key);
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty() || self.foreign.any.load(Ordering::Acquire)
    }

    pub(super) fn alive(&self) -> usize {
        self.slab.borrow().len()
    }

    /// Yields the client that is being polled, also by a combinator.
    pub(super) fn polled(&self) -> Option<u32> {
        self.current.get().map(|(key, _)| key)
    }

    /// Counts clients but for `own` and the janitor's tasks.
    pub(super) fn clients_of_others(&self, own: Option<u32>) -> usize {
        self.slab.borrow().iter().filter(|(key, client)| client.is_of_others(*key, own)).count()
    }

    /// Drops all clients but `own` and the janitor's tasks; yields how many. What they spawn meanwhile stays.
    pub(super) fn drop_all_but(&self, own: Option<u32>) -> usize {
        let mut dropped = Vec::new();
        {
            let mut slab = self.slab.borrow_mut();
            let keys = slab.iter().filter(|(key, client)| client.is_of_others(*key, own));
            let keys: Vec<usize> = keys.map(|(key, _)| key).collect();
            dropped.extend(keys.into_iter().map(|key| slab.remove(key)));
        }
        // Keys of theirs in the ready queue may be given to others, which are then polled for nothing.
        dropped.len()
    }

    /// Polls every client that is ready now, once. Yields how many.
    pub(super) fn run_ready(&self) -> usize {
        if self.foreign.any.load(Ordering::Relaxed) {
            self.take_foreign();
        }
        let ready = self.ready.borrow().len();
        let mut left = ready;
        while left > 0 {
            // One guard around them all: one around each poll costs a get some 3 %.
            let polled = catch_unwind(AssertUnwindSafe(|| {
                while left > 0 {
                    left -= 1;
                    let next = self.ready.borrow_mut().pop_front();
                    self.run(next.expect("only this loop takes from the queue"));
                }
            }));
            if let Err(panic) = polled {
                self.bury(panic);
            }
        }
        ready
    }

    /// Removes the client that has panicked while it was polled, and passes its panic on.
    #[cold]
    fn bury(&self, panic: Panic) {
        let polled = self.current.take();
        let client = polled.and_then(|(key, _)| self.slab.borrow_mut().try_remove(key as usize));
        match client.and_then(|client| client.on_panic) {
            Some(on_panic) => on_panic(panic),
            None => resume_unwind(panic),
        }
    }

    /// Polls the client that has been ready for longest, if there is one. Its panic goes on.
    #[cfg(feature = "sim")]
    pub(super) fn run_next(&self) {
        if self.foreign.any.load(Ordering::Relaxed) {
            self.take_foreign();
        }
        let next = self.ready.borrow_mut().pop_front();
        if let Some(key) = next {
            self.run(key);
        }
    }

    /// Lets one of the ready clients, as `random` says, be the next one.
    #[cfg(feature = "sim")]
    pub(super) fn promote(&self, random: u64) {
        let mut ready = self.ready.borrow_mut();
        if let Some(place) = random.checked_rem(ready.len() as u64) {
            ready.swap(0, place as usize);
        }
    }

    /// Drops all clients, finished or not, and any that is spawned from now on.
    #[cfg(feature = "sim")]
    pub(super) fn discard(&self) {
        self.is_discarded.set(true);
        let clients = std::mem::take(&mut *self.slab.borrow_mut());
        self.ready.borrow_mut().clear();
        drop(clients);
    }

    #[inline]
    fn run(&self, key: u32) {
        let (mut task, waker) = {
            let mut slab = self.slab.borrow_mut();
            let Some(client) = slab.get_mut(key as usize) else { return };
            client.queued = false;
            // A key of the queue may have been freed and given to another client; it is polled for nothing.
            let Some(running) = client.running.take() else { return };
            running
        };
        self.current.set(Some((key, waker.data())));
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        self.current.set(None);
        match polled {
            Poll::Pending => self.slab.borrow_mut()[key as usize].running = Some((task, waker)),
            Poll::Ready(()) => drop(self.slab.borrow_mut().remove(key as usize)),
        }
    }

    fn take_foreign(&self) {
        self.foreign.any.store(false, Ordering::Relaxed);
        let mut keys = self.foreign.keys.lock().expect("no wake panics");
        for key in keys.drain(..) {
            self.make_ready(key);
        }
    }
}

impl Client {
    fn is_of_others(&self, key: usize, own: Option<u32>) -> bool {
        !self.is_deferred && own != Some(key as u32)
    }
}

impl Wake for ClientWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.foreign.keys.lock().expect("no wake panics").push(self.key);
        self.foreign.any.store(true, Ordering::Release);
        self.foreign.parking.unpark();
    }
}

/// The payload of a client's panic.
pub(crate) type Panic = Box<dyn Any + Send>;
/// Receives a client's panic.
pub(super) type OnPanic = Box<dyn FnOnce(Panic)>;

/// The reason why a client has no result.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The client panicked, with this payload.
    #[error("a client of the pool panicked")]
    Panicked(Box<dyn Any + Send>),
    /// The client was dropped unfinished, because its shard was closed or its executor ended.
    #[error("a client of the pool was dropped before its end: its shard was closed")]
    Dropped,
}

/// The end of a client: resolves to what its future returned. If the client panicked, so does a task that awaits this;
/// [`JoinHandle::outcome`] does not.
pub struct JoinHandle<T>(oneshot::Receiver<Result<T, Panic>>);

impl<T: 'static> JoinHandle<T> {
    /// Wraps a client whose panic goes to the task that awaits it, or to `unheard` if there is none: for
    /// [`Clients::spawn_guarded`].
    pub(super) fn guarded(
        client: impl Future<Output = T> + 'static,
        unheard: impl FnOnce(Panic) + 'static,
    ) -> (Task, OnPanic, Self) {
        let (sender, receiver) = oneshot::channel();
        // A client that panics is dropped while its panic is on its way (if that panics as well, the process ends); the
        // sender is not.
        let sender = Rc::new(Cell::new(Some(sender)));
        let of_panic = Rc::clone(&sender);
        let task = Box::pin(client.map(move |result| {
            if let Some(sender) = sender.take() {
                let _ = sender.send(Ok(result));
            }
        }));
        let on_panic = move |panic| match of_panic.take() {
            Some(sender) => {
                if let Err(Err(panic)) = sender.send(Err(panic)) {
                    unheard(panic);
                }
            }
            // Its result had been sent, and panicked when it was dropped unread.
            None => unheard(panic),
        };
        (task, Box::new(on_panic), JoinHandle(receiver))
    }

    /// Waits for the end of the client, by a result or a panic.
    ///
    /// ```
    /// # use farwood_runtime::{JoinError, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// assert_eq!(shard.spawn(async { 7 }).outcome().await?, 7);
    /// let buggy = shard.spawn(async { panic!("a bug") });
    /// assert!(matches!(buggy.outcome().await, Err::<(), _>(JoinError::Panicked(_))));
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the client has no result.
    pub async fn outcome(self) -> Result<T, JoinError> {
        match self.0.await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(panic)) => Err(JoinError::Panicked(panic)),
            Err(oneshot::Canceled) => Err(JoinError::Dropped),
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    /// # Panics
    /// If the client panicked, or was dropped unfinished because its shard was closed.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(cx).map(|ended| {
            match ended.expect("the client's shard ended before the client") {
                Ok(result) => result,
                Err(panic) => resume_unwind(panic),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    fn clients() -> Clients {
        Clients::new(Arc::new(Parking::default()))
    }

    #[test]
    fn polls_a_client_once_however_often_it_is_woken() {
        let clients = clients();
        let polls = Rc::new(Cell::new(0));
        let seen = Rc::clone(&polls);
        clients.spawn(Box::pin(std::future::poll_fn(move |_| {
            seen.set(seen.get() + 1);
            if seen.get() == 3 { Poll::Ready(()) } else { Poll::Pending }
        })));
        clients.run_ready();
        clients.make_ready(0);
        clients.make_ready(0);
        assert_eq!(clients.run_ready(), 1);
        assert_eq!((polls.get(), clients.alive()), (2, 1));
        clients.make_ready(0);
        clients.run_ready();
        assert_eq!((polls.get(), clients.alive()), (3, 0));
        clients.make_ready(0);
        assert_eq!(clients.run_ready(), 0);
    }

    #[test]
    fn a_panic_goes_to_whom_it_belongs_and_keeps_no_other_client() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let clients = clients();
        let polled = Rc::new(Cell::new(0));
        let spawn = |panics: bool| {
            let (polled, unheard) = (Rc::clone(&polled), Rc::clone(&polled));
            let client = async move {
                polled.set(polled.get() + 1);
                assert!(!panics, "a client");
            };
            let (task, on_panic, handle) =
                JoinHandle::guarded(client, move |_| unheard.set(unheard.get() + 100));
            clients.spawn_guarded(task, on_panic);
            handle
        };
        let mut handles = [false, true, false].map(spawn);
        drop(spawn(true));
        let unheard = Rc::clone(&polled);
        let (task, on_panic, handle) =
            JoinHandle::guarded(async { Bomb }, move |_| unheard.set(unheard.get() + 1_000));
        clients.spawn_guarded(task, on_panic);
        drop(handle);
        assert_eq!((clients.run_ready(), clients.alive(), clients.polled()), (5, 0, None));
        assert_eq!(polled.get(), 1_104);
        let ended =
            handles.each_mut().map(|handle| handle.0.try_recv().unwrap().expect("it has ended").is_ok());
        assert_eq!(ended, [true, false, true]);
    }

    #[test]
    fn knows_its_own_context_from_a_combinators() {
        let clients = Rc::new(clients());
        let inner = Rc::clone(&clients);
        clients.spawn(Box::pin(std::future::poll_fn(move |cx| {
            assert_eq!(inner.current(cx.waker()), Some(0));
            assert_eq!(inner.current(futures::task::noop_waker_ref()), None);
            Poll::Ready(())
        })));
        assert_eq!(clients.run_ready(), 1);
    }

    #[test]
    fn a_waker_resumes_from_another_thread() {
        let clients = clients();
        let (sender, receiver) = oneshot::channel();
        let done = Rc::new(Cell::new(false));
        let flag = Rc::clone(&done);
        clients.spawn(Box::pin(async move { flag.set(receiver.await == Ok(7)) }));
        clients.run_ready();
        std::thread::spawn(move || sender.send(7)).join().unwrap().unwrap();
        assert!(clients.has_ready());
        clients.run_ready();
        assert!(done.get());
    }
}

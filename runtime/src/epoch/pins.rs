//! The pins of one shard. Of its own thread; what other threads see of them is in [`NodeEpochs`].

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use super::{GRACE, NodeEpochs, RESTS};

/// Place of the first count of what operations have left.
const LEFT: usize = 2;

fn parity(epoch: u64) -> usize {
    (epoch & 1) as usize
}

/// The epochs that a shard pins: the cluster's, or the one before.
#[derive(Debug)]
pub struct Pins {
    node: Arc<NodeEpochs>,
    shard: usize,
    /// The epoch that operations pin which begin now.
    current: Cell<u64>,
    /// The oldest epoch that is pinned; the current one if none is older.
    oldest: Cell<u64>,
    /// Operations by the parity of the epoch that they pin, and behind them what operations have left.
    held: [Cell<u32>; 4],
    /// The parity that the task pins which runs now, if an operation has left it.
    running: Cell<Option<usize>>,
    rests: Cell<bool>,
}

impl Pins {
    /// Makes the pins of a shard that rests.
    pub(crate) fn new(node: Arc<NodeEpochs>, shard: usize) -> Rc<Self> {
        let known = node.known();
        Rc::new(Pins {
            node,
            shard,
            current: Cell::new(known),
            oldest: Cell::new(known),
            held: Default::default(),
            running: Cell::new(None),
            rests: Cell::new(true),
        })
    }

    /// Returns the epochs of the shard's compute node.
    pub(crate) fn node(&self) -> &Arc<NodeEpochs> {
        &self.node
    }

    /// Makes pins of a shard that is a node by itself, in no cluster: its epoch stays what it is.
    ///
    /// ```
    /// let pins = farwood_runtime::epoch::Pins::alone();
    /// assert!(!pins.is_over(pins.retired_now()));
    /// ```
    pub fn alone() -> Rc<Self> {
        Pins::new(Arc::new(NodeEpochs::new(1)), 0)
    }

    /// Pins the epoch, for an operation that begins: what it finds in the index is not used again before it drops the
    /// pin.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// let pin = shard.pins().pin();
    /// let is_there = async || true; // READs that follow pointers
    /// assert!(is_there().await);
    /// drop(pin);
    /// # Ok(()) }).unwrap();
    /// ```
    #[inline]
    pub fn pin(self: &Rc<Self>) -> Pin {
        if self.rests.get() {
            self.awaken();
        }
        self.hold(parity(self.current.get()))
    }

    /// Pins the epoch of an operation, for what it leaves behind: a chain that is not awaited, or a task. Which one it
    /// is of those that run, it does not say. So the oldest epoch is pinned while an operation pins that: when none
    /// does, all that was left since is of others. Else what is left all the time would pin the oldest epoch for ever.
    #[inline]
    pub(crate) fn pin_left(self: &Rc<Self>) -> Pin {
        if self.rests.get() {
            self.awaken();
        }
        let oldest = parity(self.oldest.get());
        let is_of = self.running.get().unwrap_or(match self.held[oldest].get() {
            0 => parity(self.current.get()),
            _ => oldest,
        });
        self.hold(LEFT + is_of)
    }

    /// Pins the epoch of an operation for a task that it leaves behind, and which may leave more: that of
    /// [`crate::Verbs::defer`].
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// let operation = shard.pins().pin();
    /// let cleans_up = shard.pins().leave(async { "clean" });
    /// drop(operation);
    /// assert_eq!(cleans_up.await, "clean");
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn leave<F: Future>(self: &Rc<Self>, task: F) -> impl Future<Output = F::Output> + use<F> {
        let pin = self.pin_left();
        async move {
            let pins = &*pin.pins;
            let run = || Run { pins, before: pins.running.replace(Some(pin.place - LEFT)) };
            // Dropped last, and first: what a task leaves that is dropped is of the same epoch.
            let _ended = Run { pins, before: None };
            let mut task = pin!(task);
            let _ends = Ends(|| std::mem::forget(run()));
            poll_fn(|cx| {
                let _runs = run();
                task.as_mut().poll(cx)
            })
            .await
        }
    }

    #[inline]
    fn hold(self: &Rc<Self>, place: usize) -> Pin {
        self.held[place].set(self.held[place].get() + 1);
        Pin { pins: Rc::clone(self), place }
    }

    /// Returns the epoch to be noted beside what is retired now.
    ///
    /// ```
    /// # let pins = farwood_runtime::epoch::Pins::alone();
    /// let since = pins.retired_now();
    /// assert!(!pins.is_over(since), "others may read it");
    /// ```
    pub fn retired_now(&self) -> u64 {
        self.node.known()
    }

    /// Tells whether no operation is left that may have the address of what was retired then.
    ///
    /// ```
    /// # let pins = farwood_runtime::epoch::Pins::alone();
    /// assert!(!pins.is_over(pins.retired_now()));
    /// ```
    pub fn is_over(&self, retired: u64) -> bool {
        self.node.known() >= retired + GRACE
    }

    /// Returns the epoch of the cluster's last flush: what a cache got before that is not to be used any more.
    ///
    /// ```
    /// assert_eq!(farwood_runtime::epoch::Pins::alone().flushed(), 0, "there was none");
    /// ```
    #[inline]
    pub fn flushed(&self) -> u64 {
        self.node.flushed()
    }

    /// Tells whether a flush has come since what was retired then had left all operations. Yields the epoch that it
    /// counts as retired in from then on: no operation that pins a later one but one finds its address anywhere.
    ///
    /// ```
    /// # let pins = farwood_runtime::epoch::Pins::alone();
    /// assert_eq!(pins.flushed_since(pins.retired_now()), None, "a cache may lead there");
    /// ```
    pub fn flushed_since(&self, retired: u64) -> Option<u64> {
        let flushed = self.flushed();
        // Operations that may have used a cache before it was emptied have pinned `flushed - 1` at most.
        (flushed >= retired + GRACE).then(|| flushed - 2)
    }

    /// Follows the cluster's epoch, and tells which one is the oldest that is pinned here. Called once a turn.
    #[inline]
    pub(crate) fn turn(&self) {
        if (self.oldest.get() != self.node.known()) & !self.rests.get() {
            self.follow();
        }
    }

    #[cold]
    fn follow(&self) {
        let known = self.node.known();
        debug_assert!(known - self.oldest.get() <= 1, "the epoch waits for this shard");
        self.current.set(known);
        let oldest = parity(self.oldest.get());
        let is_free = self.held[oldest].get() + self.held[LEFT + oldest].get() == 0;
        if self.oldest.get() < known && is_free {
            self.oldest.set(known);
            self.node.publish(self.shard, known);
        }
    }

    /// Lets the epoch move on without this shard, which is about to sleep, if it pins none.
    pub(crate) fn rest(&self) {
        self.turn();
        if self.held.iter().all(|held| held.get() == 0) && !self.rests.replace(true) {
            self.node.publish(self.shard, RESTS);
        }
    }

    #[cold]
    fn awaken(&self) {
        let known = self.node.awaken(self.shard);
        self.current.set(known);
        self.oldest.set(known);
        self.rests.set(false);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        // Each pin holds the pins.
        self.node.publish(self.shard, RESTS);
    }
}

/// Tells that a task runs which an operation has left, until it is dropped.
struct Run<'p> {
    pins: &'p Pins,
    before: Option<usize>,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.pins.running.set(self.before);
    }
}

/// Does something when it is dropped.
struct Ends<F: Fn()>(F);

impl<F: Fn()> Drop for Ends<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A pinned epoch, until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the protection"]
pub struct Pin {
    pins: Rc<Pins>,
    /// Place of its count.
    place: usize,
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        let held = &self.pins.held[self.place];
        held.set(held.get() - 1);
    }
}

#[cfg(test)]
impl Pins {
    pub(super) fn current(&self) -> u64 {
        self.current.get()
    }

    pub(super) fn oldest(&self) -> u64 {
        self.oldest.get()
    }

    pub(super) fn rests(&self) -> bool {
        self.rests.get()
    }
}

#[cfg(test)]
impl Pin {
    pub(super) fn place(&self) -> usize {
        self.place
    }
}

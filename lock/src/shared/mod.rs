//! Locks that many clients share, or one has alone: Dolphin's Spear (its paper, section III-C), with owners.
//!
//! Clients that change one entry of a node share its lock; a client that changes the structure has it alone. The lock
//! word says who has the lock alone: it is today's word within a node, with its queue, hand-over and janitor
//! ([`crate::Held`]). Right behind it are *presence words*, a bit for each *lane*. A lane is a shard's place among
//! those that share locks of an index; the *lane directory*, a word for each lane, says whose it is. A shard's bit is
//! set while clients of it share the lock, so the first of them sets it and the last one clears it, each by a FAA.
//!
//! ```text
//!   sharer   FAA bit, READ word, READ rest ──> ... ──> WRITE entry, FAA bit      2 round trips
//!   joins         READ word, READ rest ──> ... ──> WRITE entry                   2 round trips, no atomic
//!   alone    CAS word, READ words, READ rest ──> ... ──> WRITE node, unlock      2 round trips
//! ```
//!
//! # Why it excludes
//!
//! Each side first shows itself, then looks for the other, in one chain: a READ behind an atomic is executed after it.
//! So of a sharer and a client that wants the lock alone at least one sees the other. A sharer that finds the word
//! taken takes its bit back. A client whose CAS has won and that finds bits waits until there are none: sharers that
//! come now find its word, so it waits for those alone that are in already, and for bits that are on their way back.
//!
//! ```text
//!   sharer   FAA bit ── READ word: free                                WRITE, FAA bit
//!   alone                                CAS word ── READ words: a bit ················ READ words: none, READ rest
//!
//!   alone    CAS word ── READ words: none ······················· WRITE, unlock
//!   sharer                                 FAA bit ── READ word: taken ── FAA bit ─ READ word ─ FAA bit, READ: free
//! ```
//!
//! Data must be as new as the words. Lines of one READ are read in any order, so what is to be relied on stands in
//! parts of the node *behind* the first, which has the words: READs of one chain are executed in order. Data of the
//! first part itself counts if its versions say that no client has rewritten the node in between:
//!
//! ```text
//!   alone    CAS word                        WRITE node, unlock
//!   sharer            FAA bit, READ: line 2 ··················· line 1: the word is free, and line 2 is old
//! ```
//!
//! # Unknown outcomes
//!
//! A FAA whose chain fails has been executed or not. A count in a word, as in the paper, would never tell. A bit does:
//! only its shard changes it, one chain at a time (`presence`), and nothing of a failed chain takes effect later. So
//! one READ settles it, and no FAA is added to a bit that may be set: nothing ever carries into a neighbour's.
//!
//! ```text
//!   sharer   FAA bit ✗ ── READ words: set, free: it is in              clear: FAA bit again
//!   leaves   WRITE, FAA bit ✗ ── READ words: clear: all took effect    set: FAA bit; the WRITE is of unknown effect
//! ```
//!
//! A write-back that may have taken effect is not redone, as it is under a lock that is held alone. Others change what
//! it has changed, and a value must not come back that was overwritten:
//!
//! ```text
//!   first    WRITE a ✗ took effect                      WRITE a again
//!   other                          WRITE b, done                      a reader saw a, b, and sees a
//! ```
//!
//! # No client starves or spins
//!
//! Once a client of a shard has seen the word taken, no other joins: the shard leaves when those that are in have left.
//! While it is not present one client of it, the leader, looks at the word, with growing pauses, and the others wait
//! for the leader. One that was overtaken by [`Lanes::overtaken_max`] clients that had the lock alone queues up to have
//! it alone, too. A client that waits longer than [`crate::LockConfig::wait_max`] fails with an error that names the
//! compute node: the word's, or that of a lane whose bit is set.
//!
//! # What the dead leave
//!
//! A compute node that dies leaves its word or its bits, and the directory says which lanes are its. Its word is taken
//! over as any other's ([`crate::LockTable::attach_with_intents`]), by sharers that meet it, too: what it was about to
//! write it began when no client shared the lock. Its bits are taken away by clients that wait for the lock alone
//! (`absent`). Its lanes stay its own: they are lost to others.
//!
//! A process that ends in order has no bits anywhere and gives its lanes back.
//!
//! # How many
//!
//! [`Lanes::COUNT_MAX`] shards have lanes. Further ones, and shards that have not asked for one yet
//! ([`Lanes::after`]), have locks alone instead of sharing them: their operations take as many round trips and exclude
//! each other, as with Sherman's locks.
//!
//! # What else was considered
//!
//! - One count for all, as published: see above; a lost FAA bars structure changes for good, and no error can say whose
//!   it was.
//! - A count for each compute node: settling a lost FAA means stopping all its shards; a bit for each compute node,
//!   counted at the lock's home: two messages for each operation.
//! - The word's state in what the FAA finds, to read once less: then a client that wants the lock alone has to close
//!   and open every presence word by atomics, behind which its unlock needs a fence.
//! - Intents in a page of each client: one more WRITE for each operation, and they say who may be counted, not who is.

mod absent;
mod alone;
mod claim;
mod entry;
mod guard;
mod presence;
mod stats;
mod vacate;
mod words;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farwood_runtime::{FabricError, Meter, RemotePtr, Verbs, Waiter};

pub use self::guard::Shared;
use self::presence::{Own, Part, Presences};
pub use self::stats::SharedStats;
pub use self::words::{Lanes, LockWords};
use crate::error::LockError;
use crate::held::Held;
use crate::patience::{Patience, Waited};
use crate::slots::{Delivery, Slots};
use crate::stats::Counters;
use crate::table::{LockTable, Table};
use crate::word::{LockWord, WORD_BYTES};

/// A handle to a shard's locks that can be shared; clones are cheap. There is one for each lock table of an index that
/// has lanes.
///
/// ```
/// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
/// let mut read = locks.share_and_read(&meter, node, node, shard.lease(64), &[0..16, 16..64]).await?;
/// let mut buf = read.1.into_buf();
/// buf[56..].copy_from_slice(b"new data");
/// let mut chain = Chain::with_buffer(node.server(), buf);
/// chain.write(node.add(56), 56..64);
/// read.0.release(&meter, chain).await?;
/// assert_eq!(meter.usage().round_trips, 2);
/// # });
/// ```
pub struct SharedLocks<V: Verbs>(Rc<Sharing<V>>);

impl<V: Verbs> Clone for SharedLocks<V> {
    fn clone(&self) -> Self {
        SharedLocks(Rc::clone(&self.0))
    }
}

impl<V: Verbs> SharedLocks<V> {
    /// Makes the shared locks of the index whose lock table that is. When the last handle has gone, and the last
    /// [`Shared`], the shard gives its lane back.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// use farwood_lock::shared::{Lanes, SharedLocks};
    /// let shared = SharedLocks::new(&locks, Lanes::new(RemotePtr::new(node.server(), node.offset() - 512), 64));
    /// assert_eq!((shared.in_use(), shared.stats().shared), (0, 0));
    /// # });
    /// ```
    pub fn new(locks: &LockTable<V>, lanes: Lanes) -> Self {
        SharedLocks(Rc::new(Sharing {
            locks: locks.clone(),
            patience: Patience::new(locks.table().config.wait_max),
            lanes,
            lane: Cell::new(Lane::Wanting { alone: 0 }),
            presences: RefCell::default(),
            slots: RefCell::new(Slots::new()),
            counters: Counters::default(),
        }))
    }

    /// Waits for the local lock of `node`, whose lock is at `lock`, to have it alone: [`LockTable::acquire_embedded`].
    /// The global lock comes with [`SharedLocks::lock_and_read`], and ends as that of any [`Held`].
    ///
    /// A client that shares the lock gives that back first: it would wait for itself.
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire(&meter, node, node).await?;
    /// locks.lock_and_read(&meter, &mut held, shard.lease(64), &[0..16, 16..64], true).await?;
    /// held.release(&meter, Chain::new(node.server()), true).await?;
    /// assert_eq!(meter.usage().round_trips, 2);
    /// # });
    /// ```
    ///
    /// # Errors
    /// See [`LockTable::acquire`].
    ///
    /// # Panics
    /// If the lock is not in one line, or not on the node's server.
    pub async fn acquire(
        &self,
        meter: &Meter,
        node: RemotePtr,
        lock: RemotePtr,
    ) -> Result<Held<V>, LockError> {
        self.0.acquire(meter, (node, lock)).await
    }

    /// Takes the local lock of `node` as [`SharedLocks::acquire`] does, if it is free, and its global lock at once or
    /// not at all: for a client that has another lock alone ([`LockTable::try_acquire_embedded`]). It waits for those
    /// that share the lock, which wait for no other.
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// let held = locks.try_acquire(node, node).await?.expect("it is free");
    /// assert!(locks.try_acquire(node, node).await?.is_none());
    /// held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`LockTable::try_acquire`].
    ///
    /// # Panics
    /// If the lock is not in one line, or not on the node's server.
    pub async fn try_acquire(&self, node: RemotePtr, lock: RemotePtr) -> Result<Option<Held<V>>, LockError> {
        self.0.check((node, lock));
        self.0.locks.try_acquire_embedded(node, lock).await
    }

    /// Reads who has each lane: a word of the compute node, or `None`. One round trip.
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// let owners = locks.lane_owners(&meter).await?;
    /// assert!(owners.iter().flatten().all(|word| word.owner() == shard.node_id()));
    /// # });
    /// ```
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub async fn lane_owners(&self, meter: &Meter) -> Result<Vec<Option<LockWord>>, FabricError> {
        self.0.lane_owners(meter).await
    }

    /// Takes away the bit of a dead compute node's lane from `lock`, as a client does that waits for the lock alone.
    /// `owner` is the lane's word in the directory. Yields whether there is no such bit any more.
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// let read = locks.share_and_read(&meter, node, node, shard.lease(64), &[0..64]).await?;
    /// let own = locks.lane_owners(&meter).await?[0].unwrap();
    /// assert!(!locks.take_over(node, own).await?, "it lives");
    /// # read.0.release(&meter, Chain::new(node.server())).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// If a memory server cannot be read.
    pub async fn take_over(&self, lock: RemotePtr, owner: LockWord) -> Result<bool, FabricError> {
        self.0.take_over(lock, owner).await
    }

    /// Yields the lane of this shard, if it has one by now.
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// assert_eq!(locks.lane(), Some(0));
    /// # });
    /// ```
    pub fn lane(&self) -> Option<u16> {
        self.0.lane()
    }

    /// Counts the locks that this shard shares, is about to, or of which it does not know whether it does. 0 at rest.
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// let read = locks.share_and_read(&meter, node, node, shard.lease(64), &[0..64]).await?;
    /// assert_eq!(locks.in_use(), 1);
    /// read.0.release(&meter, Chain::new(node.server())).await?;
    /// assert_eq!(locks.in_use(), 0);
    /// # });
    /// ```
    pub fn in_use(&self) -> usize {
        self.0.presences.borrow().len()
    }

    /// Yields the counters of this shard's clients.
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// let before = locks.stats().shared;
    /// let read = locks.share_and_read(&meter, node, node, shard.lease(64), &[0..64]).await?;
    /// assert_eq!(locks.stats().shared - before, 1);
    /// # read.0.release(&meter, Chain::new(node.server())).await?;
    /// # });
    /// ```
    pub fn stats(&self) -> SharedStats {
        self.0.counters.read()
    }

    /// Counts the bytes that this shard's part takes.
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// assert!(locks.bytes() > 0);
    /// # });
    /// ```
    pub fn bytes(&self) -> usize {
        size_of::<Sharing<V>>() + self.0.presences.borrow().bytes() + self.0.slots.borrow().bytes()
    }
}

/// State that the handles of one shard share.
pub(crate) struct Sharing<V: Verbs> {
    locks: LockTable<V>,
    lanes: Lanes,
    lane: Cell<Lane>,
    presences: RefCell<Presences>,
    /// Clients that wait for the leader of their shard.
    slots: RefCell<Slots<Part, Waiter>>,
    counters: Counters<SharedStats>,
    patience: Patience,
}

/// The lane of a shard.
#[derive(Clone, Copy)]
enum Lane {
    /// It has none, and has had so many locks alone for want of one.
    Wanting {
        alone: u32,
    },
    /// It asks for one.
    Claiming,
    Own {
        lane: u16,
        word: LockWord,
    },
}

impl<V: Verbs> Sharing<V> {
    fn table(&self) -> &Rc<Table<V>> {
        self.locks.table()
    }

    fn lane(&self) -> Option<u16> {
        if let Lane::Own { lane, .. } = self.lane.get() { Some(lane) } else { None }
    }

    /// Queues up to have a lock alone. `at` are the node and its lock.
    async fn acquire(
        self: &Rc<Self>,
        meter: &Meter,
        at: (RemotePtr, RemotePtr),
    ) -> Result<Held<V>, LockError> {
        self.check(at);
        match self.locks.acquire_embedded(meter, at.0, at.1).await {
            Err(LockError::Contended { .. }) => Err(self.overdue(meter, at, 0).await),
            acquired => acquired,
        }
    }

    /// Makes the error of an operation that has waited for too long. It names the compute node that has the lock alone;
    /// if that is this one, or none, one that shares it, for which clients here wait. A few round trips.
    #[cold]
    async fn overdue(&self, meter: &Meter, at: (RemotePtr, RemotePtr), attempts: u32) -> LockError {
        match self.find_owner(meter, at.1).await {
            Ok(word) => self.table().contended(meter, at, word, attempts),
            Err(error) => error,
        }
    }

    /// Reads the word of the compute node that keeps others waiting.
    async fn find_owner(&self, meter: &Meter, lock: RemotePtr) -> Result<u64, LockError> {
        let table = self.table();
        let word = table.found_in(meter, lock).await?;
        if LockWord::from_bits(word).is_some_and(|word| word.owner() != table.verbs.node_id()) {
            return Ok(word);
        }
        let mut words = vec![0; self.lanes.lock_bytes()];
        for at in (WORD_BYTES..words.len()).step_by(WORD_BYTES) {
            let found = table.found_in(meter, lock.add(at as u64)).await?;
            words[at..][..WORD_BYTES].copy_from_slice(&found.to_le_bytes());
        }
        let other = LockWords::new(&words).lanes().find(|lane| Some(*lane) != self.lane());
        match other {
            Some(lane) => table.found_in(meter, self.lanes.word_of(lane)).await,
            None => Ok(word),
        }
    }

    fn check(&self, (node, lock): (RemotePtr, RemotePtr)) {
        assert!(
            lock.server() == node.server() && self.lanes.fit(lock),
            "a lock that can be shared is in one line, on the node's server"
        );
    }

    /// Ends the lead of `lock`; if another client waits, it leads now.
    fn lay_down(&self, lock: RemotePtr, own: Own) {
        let next = self.presences.borrow_mut().lay_down(lock.to_bits(), own);
        next.into_iter().for_each(|token| self.tell(token, Part::Lead(own)));
    }

    /// Makes the shard present, with the leader and all that wait.
    fn enter(&self, lock: RemotePtr) {
        self.presences.borrow_mut().entered(lock.to_bits());
        loop {
            let next = self.presences.borrow_mut().next_joiner(lock.to_bits());
            let Some(token) = next else { return };
            self.tell(token, Part::Join);
        }
    }

    fn tell(&self, token: u32, part: Part) {
        let delivery = self.slots.borrow_mut().tell(token, || part);
        match delivery {
            Delivery::Waiting(waiter) => {
                waiter.into_iter().for_each(|waiter| self.table().verbs.wake(waiter))
            }
            Delivery::Gone => unreachable!("a client that is dropped leaves the queue at once"),
        }
    }
}

impl<V: Verbs> Waited for Sharing<V> {
    type Verbs = V;

    fn verbs(&self) -> &V {
        &self.table().verbs
    }

    fn patience(&self) -> &Patience {
        &self.patience
    }

    fn find_overdue(&self, now_ns: u64, overdue: &mut Vec<Waiter>) -> bool {
        self.slots.borrow_mut().find_overdue(now_ns, overdue)
    }
}

impl<V: Verbs> Drop for Sharing<V> {
    fn drop(&mut self) {
        if let Lane::Own { lane, word } = self.lane.get()
            && self.presences.borrow().len() == 0
        {
            let (verbs, at) = (self.table().verbs.clone(), self.lanes.word_of(lane));
            self.table().verbs.attend(claim::give_back(verbs, at, word));
        }
    }
}

//! A shard's part of the lock tables: the handle that clients acquire with, and the actor that talks to the other
//! shards. It carries out what [`crate::handover`] decides; it decides nothing itself.

mod again;
mod trying;

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use farwood_runtime::{Chain, FabricError, Message, Meter, Port, RemotePtr, ShardId, Verbs, Waiter};

use crate::audit;
use crate::backlog::Backlog;
use crate::backoff::{LONG_NS, Pauses};
use crate::config::LockConfig;
use crate::deaths::{self, Deaths};
use crate::error::{LockError, OnceDead};
use crate::handover::{Action, Home, WaiterId};
use crate::held::Held;
use crate::hint::{Hint, LockSlots};
use crate::images::Images;
use crate::intents::page::Owner;
use crate::intents::{self, IntentLog, Intents};
use crate::janitor;
use crate::message::{Grant, LockMessage, MessageKind, Release};
use crate::pace::PAUSE_NS_MIN;
use crate::patience::{Patience, Waited, is_over};
use crate::place::{Places, home_of};
use crate::recovery::{self, Recoveries};
use crate::slots::Delivery;
use crate::stats::{Counters, LockStats};
use crate::word::{Claim, LockWord, Nonces, WordCodec};

/// Queue pairs that may break under a client that asks which compute node has the lock, each after a pause twice as
/// long.
const OWNER_ATTEMPTS_MAX: u32 = 10;

/// A handle to a shard's locks; clones are cheap. There is one table per shard and index, with the same port and
/// configuration on all shards of a compute node.
///
/// ```
/// # farwood_doctest::locks!(|shard, locks, node, meter| {
/// let mut held = locks.acquire(&meter, node).await?;
/// let mut buf = held.lock_and_read(&meter, shard.lease(64), 64, true).await?.into_buf();
/// buf[..8].copy_from_slice(b"new data");
/// let mut chain = Chain::with_buffer(node.server(), buf);
/// chain.write(node, 0..64);
/// held.release(&meter, chain, true).await?;
/// assert_eq!(meter.usage().round_trips, 2);
/// # });
/// ```
pub struct LockTable<V: Verbs>(Rc<Table<V>>, Option<Rc<Ending<V>>>);

impl<V: Verbs> Clone for LockTable<V> {
    fn clone(&self) -> Self {
        LockTable(Rc::clone(&self.0), self.1.clone())
    }
}

/// The thing that the handles of a table with intents share: with the last one, its slots come to their end.
struct Ending<V: Verbs> {
    verbs: V,
    intents: Rc<Intents>,
}

impl<V: Verbs> Drop for Ending<V> {
    fn drop(&mut self) {
        self.verbs.attend(intents::give_back(self.verbs.clone(), Rc::clone(&self.intents)));
    }
}

impl<V: Verbs> LockTable<V> {
    /// Yields what the handles of one shard share.
    pub(crate) fn table(&self) -> &Rc<Table<V>> {
        &self.0
    }

    /// Attaches a lock table to `verbs`' shard. It receives on `port` for as long as that is leased, or the shard
    /// lives: the shard is the home of locks that clients elsewhere use, also when this handle is gone.
    ///
    /// ```
    /// # use farwood_lock::{LockConfig, LockTable};
    /// # use farwood_runtime::NodeContext;
    /// # farwood_doctest::run(async |node, shard| {
    /// let port = node.allocate_port();
    /// let locks = LockTable::attach(shard, port.port(), LockConfig::default());
    /// assert_eq!(locks.in_use(), (0, 0));
    /// # Ok(()) });
    /// ```
    pub fn attach(verbs: V, port: Port, config: LockConfig) -> Self {
        Self::attach_with_images(verbs, port, config, Arc::default())
    }

    /// Attaches a lock table as [`LockTable::attach`] does, whose clients share images with those of the other tables
    /// that get the same: those of the other shards of a compute node. Otherwise clients of one shard do among
    /// themselves.
    ///
    /// ```
    /// # use farwood_lock::{Images, LockConfig, LockTable};
    /// # use farwood_runtime::NodeContext;
    /// # use std::sync::Arc;
    /// # farwood_doctest::run(async |node, shard| {
    /// let (port, images) = (node.allocate_port(), Arc::new(Images::default()));
    /// LockTable::attach_with_images(shard, port.port(), LockConfig::default(), Arc::clone(&images));
    /// # Ok(()) });
    /// ```
    pub fn attach_with_images(verbs: V, port: Port, config: LockConfig, images: Arc<Images>) -> Self {
        Self::attach_with_intents(verbs, port, config, images, None)
    }

    /// Attaches a lock table as [`LockTable::attach_with_images`] does. With a log, releases that could leave a node
    /// half written first write what they are about to, at the cost of one WRITE more, and of another one where the
    /// lock is passed on; and locks of compute nodes that are dead, and fenced, are taken over if those have done so,
    /// too.
    ///
    /// That does not hold for locks that are shared ([`crate::shared`]); nor for one whose free word carries something,
    /// if its owner had not begun to write back: what it carried is lost.
    ///
    /// ```
    /// # use farwood_lock::{IntentLog, LockConfig, LockTable};
    /// # use farwood_runtime::{Chain, Meter, NodeAllocator, NodeContext, Verbs};
    /// # use std::rc::Rc;
    /// # farwood_doctest::run(async |node, shard| {
    /// let index = node.control().create("mine", "my kind", b"").await?;
    /// let pins = Rc::clone(shard.pins());
    /// let allocator = Rc::new(NodeAllocator::new(node.control(), index.id, 0, pins));
    /// let leaf = allocator.allocate(128).await?;
    /// let log = IntentLog { head: index.root.add(8), allocator, node_bytes: 128, mending: None };
    /// let port = node.allocate_port();
    /// let (config, images) = (LockConfig::default(), Default::default());
    /// let locks = LockTable::attach_with_intents(shard.clone(), port.port(), config, images, Some(log));
    /// let meter = Meter::default();
    /// let mut held = locks.acquire(&meter, leaf).await?;
    /// let image = held.lock_and_read(&meter, shard.lease(128), 128, true).await?.into_buf();
    /// held.write_back(&meter, image, true).await?;
    /// assert_eq!((locks.stats().recorded, meter.usage().round_trips), (1, 2));
    /// # Ok(()) });
    /// ```
    pub fn attach_with_intents(
        verbs: V,
        port: Port,
        config: LockConfig,
        images: Arc<Images>,
        log: Option<IntentLog>,
    ) -> Self {
        let owner = Owner::new(verbs.node_id(), verbs.shard(), port);
        let intents = log.map(|log| Intents::new(log, owner));
        let own_word = LockWord::new(verbs.node_id(), config.tag, 0);
        let table = Rc::new(Table {
            me: verbs.shard(),
            shards: verbs.shards(),
            port,
            places: Places::new(verbs.control().servers(), config.on_chip),
            patience: Patience::new(config.wait_max),
            pauses: Pauses::new(config.backoff),
            config,
            nonces: Nonces::new(verbs.shard(), verbs.shards(), port),
            own: own_word,
            home: RefCell::default(),
            slots: RefCell::new(LockSlots::new()),
            counters: Counters::default(),
            images,
            backlog: Rc::default(),
            deaths: Deaths::default(),
            intents: intents.clone(),
            recoveries: Recoveries::default(),
            verbs,
        });
        let actor = Rc::clone(&table);
        let handler = Rc::new(move |from, message| actor.receive(from, message));
        let resting = Rc::clone(&table);
        let at_rest = Rc::new(move || resting.slots.borrow().len() + resting.home.borrow().len() == 0);
        table.verbs.listen_while_leased(port, handler, at_rest);
        let ending = intents.map(|intents| Rc::new(Ending { verbs: table.verbs.clone(), intents }));
        LockTable(table, ending)
    }

    /// Waits for the local lock of `node`, first come first served among the clients of this compute node. It costs no
    /// round trip; the global lock comes with [`Held::lock_and_read`] or [`Held::lock`].
    ///
    /// A client that holds a lock does not call it: nodes share lock words, so it could wait for its own. See
    /// [`LockTable::try_acquire`].
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let held = locks.acquire(&meter, node).await?;
    /// assert_eq!(meter.usage().round_trips, 0);
    /// held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`LockError::Contended`] if the wait takes too long ([`LockConfig::wait_max`]): the owner is the compute node
    /// that holds the global lock, or this one, where one of its clients holds the lock and does not go on.
    /// [`LockError::Fabric`] if the owner cannot be read. [`LockError::ShardEnded`] if the lock's queue is on a shard
    /// of this compute node that has ended.
    pub fn acquire(
        &self,
        meter: &Meter,
        node: RemotePtr,
    ) -> impl Future<Output = Result<Held<V>, LockError>> {
        self.acquire_word(meter, node, self.0.places.lock_of(node))
    }

    /// Waits as [`LockTable::acquire`] does, where the global lock of `node` is `word`, a part of the node itself, and
    /// not a word of the lock region. It holds a [`LockWord`], and 0 in a new node. All clients that lock the node must
    /// name the same word, and write to it only with [`Held::release`] and [`Held::release_rear`]: a write-back leaves
    /// it out. [`LockConfig::codec`] says what it carries while it is free.
    ///
    /// [`LockTable::words_held`] does not look there, nor does `on_chip` mean such words.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let word = node.add(56);
    /// let mut held = locks.acquire_embedded(&meter, node, word).await?;
    /// held.lock(&meter).await?;
    /// let found = shard.read(&meter, word, 8).await?.into_buf();
    /// assert_ne!(found[..8], [0; 8], "the lock is taken");
    /// held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// See [`LockTable::acquire`].
    ///
    /// # Panics
    /// If `word` is not on the node's server.
    pub fn acquire_embedded(
        &self,
        meter: &Meter,
        node: RemotePtr,
        word: RemotePtr,
    ) -> impl Future<Output = Result<Held<V>, LockError>> {
        assert_eq!(word.server(), node.server(), "a node's lock is on the node's server");
        self.acquire_word(meter, node, word)
    }

    async fn acquire_word(
        &self,
        meter: &Meter,
        node: RemotePtr,
        lock: RemotePtr,
    ) -> Result<Held<V>, LockError> {
        let table = &self.0;
        if !table.config.hierarchical {
            return Ok(Held::new(Rc::clone(table), node, lock, None, Grant::default()));
        }
        let home = home_of(lock, table.shards);
        if home != table.me && table.verbs.has_ended(home) {
            return Err(LockError::ShardEnded { shard: home });
        }
        let (ticket, granted) = table.request(lock, home);
        // The grant of a free lock is known here: not copying it around saves a few ns.
        if granted {
            return Ok(Held::new(Rc::clone(table), node, lock, Some(ticket), Grant::default()));
        }
        match (Waiting { table, meter, lock, ticket: Some(ticket) }.await) {
            Some(grant) => Ok(Held::new(Rc::clone(table), node, lock, Some(ticket), grant)),
            None if table.verbs.has_ended(home) => Err(LockError::ShardEnded { shard: home }),
            None => {
                let found = table.found_in(meter, lock).await?;
                Err(table.contended(meter, (node, lock), found, 0))
            }
        }
    }

    /// Yields the word of the lock region that locks `node`.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire(&meter, node).await?;
    /// held.lock(&meter).await?;
    /// assert_eq!(locks.words_held(&meter).await?[0].0, locks.word_of(node));
    /// # held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    pub fn word_of(&self, node: RemotePtr) -> RemotePtr {
        self.0.places.lock_of(node)
    }

    /// Reads the lock words that are taken now, in all regions that this table has its locks in: one round trip per 64
    /// KiB of them. An index at rest has none, unless their owners are dead. Words that do not concern this index are
    /// among them ([`LockTable::is_foreign`]).
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire(&meter, node).await?;
    /// held.lock(&meter).await?;
    /// assert_eq!(locks.words_held(&meter).await?[0].1.owner(), shard.node_id());
    /// held.release(&meter, Chain::new(node.server()), true).await?;
    /// assert!(locks.words_held(&meter).await?.is_empty());
    /// # });
    /// ```
    ///
    /// # Errors
    /// If a memory server cannot be read.
    pub async fn words_held(&self, meter: &Meter) -> Result<Vec<(RemotePtr, LockWord)>, FabricError> {
        audit::words_held(&self.0.verbs, meter, self.0.places.regions()).await
    }

    /// Takes over `lock`, in which a check has found that word, if its owner is dead, and fenced, and has kept intents:
    /// what a client does that waits for the lock. Yields whether the lock has another word now, or none.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire(&meter, node).await?;
    /// held.lock(&meter).await?;
    /// let (lock, word) = locks.words_held(&meter).await?[0];
    /// assert!(!locks.take_over(lock, word).await?, "its owner lives");
    /// held.release(&meter, Chain::new(node.server()), true).await?;
    /// assert!(locks.take_over(lock, word).await?, "it is free");
    /// # });
    /// ```
    ///
    /// # Errors
    /// If the memory server cannot be read. That the control plane does not answer is not one: no lock is taken then.
    pub async fn take_over(&self, lock: RemotePtr, word: LockWord) -> Result<bool, LockError> {
        let table = &self.0;
        if table.may_take_over(word) {
            if !table.deaths.contain(word.owner()) {
                deaths::ask(table).await;
            }
            if table.deaths.contain(word.owner()) {
                recovery::begin(table, lock, word);
            }
            while recovery::is_under_way(table, lock, word) {
                table.verbs.pause(PAUSE_NS_MIN).await;
            }
        }
        Ok(table.found_in(&Meter::default(), lock).await? != word.to_bits())
    }

    /// Tells whether that word of the lock region guards no node of this index: its owner died before the index was
    /// made ([`LockConfig::dead_owners`]), or holds the lock for another index, and so has left no node of this one
    /// torn.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// assert!(locks.is_foreign(LockWord::new(7, 2, 0)), "of another index");
    /// assert!(!locks.is_foreign(LockWord::new(7, 1, 0)));
    /// # });
    /// ```
    pub fn is_foreign(&self, word: LockWord) -> bool {
        self.0.config.is_leftover(word) || word.is_of_other_index(self.0.config.tag)
    }

    /// Yields the counters of this shard's clients.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire(&meter, node).await?;
    /// held.lock(&meter).await?;
    /// assert_eq!((locks.stats().acquired, locks.stats().handed_over), (1, 0));
    /// # held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    pub fn stats(&self) -> LockStats {
        self.0.counters.read()
    }

    /// Counts the bytes of the index's memory that this shard has allocated for intents.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// assert_eq!(locks.intent_bytes(), 0, "it keeps none");
    /// # });
    /// ```
    pub fn intent_bytes(&self) -> u64 {
        self.0.intents.as_ref().map_or(0, |intents| intents.page_bytes())
    }

    /// Counts the bytes that this shard's part of the tables takes, without the images.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let before = locks.bytes();
    /// let held = locks.acquire(&meter, node).await?;
    /// assert!(locks.bytes() >= before);
    /// # held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    pub fn bytes(&self) -> usize {
        let table = &self.0;
        size_of::<Table<V>>()
            + table.places.bytes()
            + table.home.borrow().bytes()
            + table.slots.borrow().bytes()
    }

    /// Counts the acquisitions of this shard's clients that wait, hold, or are being cancelled, and the locks at home
    /// here that are held or waited for. Both are 0 at rest.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let held = locks.acquire(&meter, node).await?;
    /// assert_eq!(locks.in_use(), (1, 1));
    /// held.release(&meter, Chain::new(node.server()), true).await?;
    /// assert_eq!(locks.in_use(), (0, 0));
    /// # });
    /// ```
    pub fn in_use(&self) -> (usize, usize) {
        (self.0.slots.borrow().len(), self.0.home.borrow().len())
    }
}

/// A client's place in a local lock: the shard that keeps the lock, and the client's token there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalTicket {
    home: ShardId,
    token: u32,
}

/// State that the handles of one shard share.
pub(crate) struct Table<V: Verbs> {
    pub(crate) verbs: V,
    pub(crate) config: LockConfig,
    pub(crate) counters: Counters<LockStats>,
    pub(crate) patience: Patience,
    pub(crate) pauses: Pauses,
    pub(crate) images: Arc<Images>,
    pub(crate) backlog: Rc<Backlog>,
    pub(crate) deaths: Deaths,
    /// The slots for intents of releases, if they are recorded.
    pub(crate) intents: Option<Rc<Intents>>,
    pub(crate) recoveries: Recoveries,
    me: ShardId,
    shards: usize,
    port: Port,
    places: Places,
    nonces: Nonces,
    /// A word of this compute node, for this index.
    own: LockWord,
    home: RefCell<Home>,
    slots: RefCell<LockSlots<Waiter>>,
}

impl<V: Verbs> Table<V> {
    /// Makes the word of a new acquisition.
    pub(crate) fn word(&self) -> LockWord {
        self.own.with_nonce(self.nonces.next())
    }

    /// Tells whether `lock` can be taken with `found` in it: free, or a leftover. A word within a node is never one:
    /// the node is as old as the index at most, and belongs to no other.
    #[cold]
    pub(crate) fn is_vacant(&self, lock: RemotePtr, found: u64) -> bool {
        self.codec_of(lock).holder(found).is_none_or(|word| {
            let is_over = self.is_of_other_index(lock, word) && self.deaths.contain(word.owner());
            is_over || self.config.is_leftover(word) && self.places.contain(lock)
        })
    }

    /// Yields the codec of the word of `lock`.
    #[cold]
    pub(crate) fn codec_of(&self, lock: RemotePtr) -> WordCodec {
        if self.carries(lock) { self.config.codec } else { WordCodec::PLAIN }
    }

    /// Tells whether a free word of `lock` may carry something: it lies in a node, and is that node's only.
    pub(crate) fn carries(&self, lock: RemotePtr) -> bool {
        !self.places.contain(lock)
    }

    /// Tells whether `lock`, with that word in it, is held for another index: a node of that one has the same lock.
    #[cold]
    pub(crate) fn is_of_other_index(&self, lock: RemotePtr, word: LockWord) -> bool {
        word.is_of_other_index(self.config.tag) && self.places.contain(lock)
    }

    /// Notes that `found` has been in `lock` for `unchanged_ns`: after so long a time its owner may be dead. If it is,
    /// and held the lock for another index, the word counts as free; one of this index is taken over in the background.
    #[cold]
    pub(crate) fn suspect(self: &Rc<Self>, lock: RemotePtr, found: u64, unchanged_ns: u64, now_ns: u64) {
        let Some(word) = LockWord::from_bits(found).filter(|_| unchanged_ns >= LONG_NS) else { return };
        if self.is_of_other_index(lock, word) {
            deaths::ask_again(self, now_ns, deaths::ASK_AGAIN_NS);
        } else if self.may_take_over(word) {
            match self.deaths.contain(word.owner()) {
                true => recovery::begin(self, lock, word),
                false => deaths::ask_again(self, now_ns, deaths::ASK_SOON_NS),
            }
        }
    }

    /// Tells whether a lock with that word could be taken over if its owner were dead, as far as the word says.
    #[cold]
    fn may_take_over(&self, word: LockWord) -> bool {
        self.intents.is_some() && word.keeps_intents() && word.tag() == self.config.tag
    }

    /// Counts a leftover that was taken over.
    #[cold]
    pub(crate) fn taken_over(&self, lock: RemotePtr, claim: Claim) {
        let owner = LockWord::from_bits(claim.vacant).map_or(0, LockWord::owner);
        tracing::debug!(name: "lock.taken_over", %lock, owner, "a lock that guards nothing here is taken over");
        self.counters.count(|stats| stats.taken_over += 1);
    }

    /// Reads what is in `lock`: one round trip, and one more after a pause each time that a queue pair breaks.
    #[cold]
    pub(crate) async fn found_in(&self, meter: &Meter, lock: RemotePtr) -> Result<u64, LockError> {
        let mut attempt = 0;
        loop {
            match janitor::read_back(&self.verbs, meter, lock).await {
                Ok(found) => return Ok(found),
                Err(failed) if failed.cause().is_passing() && attempt < OWNER_ATTEMPTS_MAX => meter.retry(),
                Err(failed) => return Err(failed.into()),
            }
            self.verbs.pause(PAUSE_NS_MIN << attempt).await;
            attempt += 1;
        }
    }

    /// Makes the error of an operation that has waited for that node's lock for too long, and found that word in it. If
    /// the word is free, clients of this compute node have the lock.
    #[cold]
    pub(crate) fn contended(
        &self,
        meter: &Meter,
        (node, lock): (RemotePtr, RemotePtr),
        found: u64,
        attempts: u32,
    ) -> LockError {
        let (waiter, word) = (self.verbs.node_id(), self.codec_of(lock).holder(found));
        let owner = word.map_or(waiter, LockWord::owner);
        tracing::debug!(name: "lock.exhausted", %lock, waiter, owner, ?word, attempts, "a lock does not come free");
        self.taken(meter, (node, lock), found, attempts)
    }

    /// Makes the error of an operation that does not get that node's lock, since it has found that word in it.
    #[cold]
    pub(crate) fn taken(
        &self,
        meter: &Meter,
        (node, lock): (RemotePtr, RemotePtr),
        found: u64,
        attempts: u32,
    ) -> LockError {
        let word = self.codec_of(lock).holder(found);
        let owner = word.map_or(self.verbs.node_id(), LockWord::owner);
        let once_dead = match word {
            Some(word) if self.is_of_other_index(lock, word) => OnceDead::Unharmed,
            Some(word) if self.may_take_over(word) => OnceDead::Recovered,
            _ => OnceDead::Lost,
        };
        let ((waited_ns, _), index) = (self.patience.spent(&self.verbs, meter), self.config.name.clone());
        LockError::Contended { index, node, lock, owner, once_dead, attempts, waited_ns }
    }

    /// Tells whether a WRITE may clear a lock word: a CAS of others that does not fit never undoes it.
    #[inline]
    pub(crate) fn unlocks_by_write(&self) -> bool {
        self.verbs.capabilities().atomic_writes
    }

    /// Adds the unlock of a word that is `claim`'s.
    ///
    /// ```text
    ///   holder   WRITE word = free ···················> undone, for good: no client has this claim
    ///   other      CAS: finds the claim's word, does not fit, puts it back ──^
    /// ```
    /// Where that can happen it is a CAS, which finds the claim's word: no other client changes it. So it can be posted
    /// again like a WRITE.
    #[inline]
    pub(crate) fn add_unlock(&self, chain: &mut Chain, lock: RemotePtr, claim: Claim) {
        match self.unlocks_by_write() {
            true => chain.write_word(lock, claim.vacant),
            false => chain.cas(lock, claim.word.to_bits(), claim.vacant),
        };
    }

    /// Tells whether the holder of `ticket` knows of a waiter.
    pub(crate) fn hinted(&self, ticket: LocalTicket) -> bool {
        self.slots.borrow().hinted(ticket.token)
    }

    /// Gives the local lock back: the last act of a holder, after its chain has completed.
    #[inline]
    pub(crate) fn give_back(self: &Rc<Self>, lock: RemotePtr, ticket: LocalTicket, kept: Option<Claim>) {
        self.slots.borrow_mut().close(ticket.token);
        let release = Release { kept, unused: false };
        if ticket.home != self.me {
            self.tell_home(lock, ticket, MessageKind::Release(release));
            return;
        }
        // Without the detour through a message: most releases on one's own shard end here.
        let client = WaiterId { shard: self.me, token: ticket.token };
        let action = self.home.borrow_mut().release(lock.to_bits(), client, release);
        if action != Action::Nothing {
            self.perform(lock, action);
        }
    }

    /// Goes on after the home's janitor has cleared the word of `lock`.
    pub(crate) fn unlocked(self: &Rc<Self>, lock: RemotePtr) {
        let action = self.home.borrow_mut().unlocked(lock.to_bits());
        self.perform(lock, action);
    }

    /// Asks for the lock; yields whether it was free, which only a home on this shard can tell at once.
    #[inline]
    fn request(self: &Rc<Self>, lock: RemotePtr, home: ShardId) -> (LocalTicket, bool) {
        let key = lock.to_bits();
        let ticket = LocalTicket { home, token: self.slots.borrow_mut().open(Hint::none(key)) };
        if home != self.me {
            self.tell_home(lock, ticket, MessageKind::Request);
            return (ticket, false);
        }
        let client = WaiterId { shard: self.me, token: ticket.token };
        let action = self.home.borrow_mut().request(key, client);
        let granted = matches!(action, Action::Grant { .. });
        if granted {
            self.slots.borrow_mut().skip_waiting(ticket.token);
        } else {
            self.counters.count(|stats| stats.waited += 1);
            self.perform(lock, action);
        }
        (ticket, granted)
    }

    fn abandon(self: &Rc<Self>, lock: RemotePtr, ticket: LocalTicket) {
        let granted = self.slots.borrow_mut().abandon(ticket.token);
        let kind = granted.map_or(MessageKind::Cancel, |grant| declined(lock, grant));
        self.tell_home(lock, ticket, kind);
    }

    fn receive(self: &Rc<Self>, from: ShardId, message: Message) {
        let message =
            LockMessage::decode(message, self.own).expect("the port carries this crate's messages only");
        match message.kind {
            MessageKind::Request | MessageKind::Release(_) | MessageKind::Cancel => {
                self.at_home(from, message)
            }
            MessageKind::Grant(_) | MessageKind::Hint | MessageKind::Cancelled => {
                self.at_client(from, message)
            }
        }
    }

    fn tell_home(self: &Rc<Self>, lock: RemotePtr, ticket: LocalTicket, kind: MessageKind) {
        let message = LockMessage { lock, token: ticket.token, kind };
        if ticket.home == self.me {
            self.at_home(self.me, message);
        } else {
            self.verbs.send(ticket.home, self.port, message.encode());
        }
    }

    fn tell_client(self: &Rc<Self>, to: WaiterId, lock: RemotePtr, kind: MessageKind) {
        let message = LockMessage { lock, token: to.token, kind };
        if to.shard == self.me {
            self.at_client(self.me, message);
        } else {
            self.verbs.send(to.shard, self.port, message.encode());
        }
    }

    /// Handles a message from a client on shard `from` to the home of its lock.
    fn at_home(self: &Rc<Self>, from: ShardId, message: LockMessage) {
        let (key, client) = (message.lock.to_bits(), WaiterId { shard: from, token: message.token });
        let action = {
            let mut home = self.home.borrow_mut();
            match message.kind {
                MessageKind::Request => home.request(key, client),
                MessageKind::Release(release) => home.release(key, client, release),
                MessageKind::Cancel => home.cancel(key, client),
                _ => unreachable!("said to a client"),
            }
        };
        if message.kind == MessageKind::Request && !matches!(action, Action::Grant { .. }) {
            self.counters.count(|stats| stats.waited += 1);
        }
        self.perform(message.lock, action);
    }

    /// Handles a message from the home on shard `from` to a client here.
    fn at_client(self: &Rc<Self>, from: ShardId, message: LockMessage) {
        let mut slots = self.slots.borrow_mut();
        match message.kind {
            MessageKind::Grant(grant) => {
                let delivery = slots.granted(message.token, grant);
                drop(slots);
                match delivery {
                    Delivery::Waiting(Some(waiter)) => self.verbs.wake(waiter),
                    Delivery::Waiting(None) => {}
                    Delivery::Gone => {
                        let ticket = LocalTicket { home: from, token: message.token };
                        self.tell_home(message.lock, ticket, declined(message.lock, grant));
                    }
                }
            }
            MessageKind::Hint => slots.hint(message.token, message.lock.to_bits()),
            MessageKind::Cancelled => slots.cancelled(message.token),
            _ => unreachable!("said to a home"),
        }
    }

    fn perform(self: &Rc<Self>, lock: RemotePtr, action: Action) {
        match action {
            Action::Nothing => {}
            Action::Grant { to, grant } => self.tell_client(to, lock, MessageKind::Grant(grant)),
            Action::Hint { to } => self.tell_client(to, lock, MessageKind::Hint),
            Action::Cancelled { to } => self.tell_client(to, lock, MessageKind::Cancelled),
            Action::Unlock { kept } => {
                let task = self.backlog.begin(lock.server());
                self.verbs.defer(janitor::unlock_unclaimed(Rc::clone(self), task, lock, kept))
            }
        }
    }
}

/// Answers a grant that comes too late, as its client was cancelled.
fn declined(lock: RemotePtr, grant: Grant) -> MessageKind {
    tracing::debug!(name: "lock.grant.declined", %lock, kept = grant.kept.is_some(), "a lock comes too late");
    MessageKind::Release(Release { kept: grant.kept, unused: true })
}

impl<V: Verbs> Waited for Table<V> {
    type Verbs = V;

    fn verbs(&self) -> &V {
        &self.verbs
    }

    fn patience(&self) -> &Patience {
        &self.patience
    }

    fn find_overdue(&self, now_ns: u64, overdue: &mut Vec<Waiter>) -> bool {
        self.slots.borrow_mut().find_overdue(now_ns, overdue)
    }
}

/// A client in the queue of a local lock: ready with nothing if it has waited for too long. Dropping it leaves the
/// queue.
struct Waiting<'a, V: Verbs> {
    table: &'a Rc<Table<V>>,
    meter: &'a Meter,
    lock: RemotePtr,
    /// `None` once the lock is held.
    ticket: Option<LocalTicket>,
}

impl<V: Verbs> Future for Waiting<'_, V> {
    type Output = Option<Grant>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Grant>> {
        let table = self.table;
        let ticket = self.ticket.expect("polled after it was ready");
        let polled = table.slots.borrow_mut().poll(ticket.token, || table.verbs.waiter(cx));
        match polled {
            Some(grant) => {
                self.ticket = None;
                Poll::Ready(Some(grant))
            }
            None => {
                let note = |until_ns| table.slots.borrow_mut().wait_until(ticket.token, until_ns);
                if is_over(table, self.meter, note) { Poll::Ready(None) } else { Poll::Pending }
            }
        }
    }
}

impl<V: Verbs> Drop for Waiting<'_, V> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.table.abandon(self.lock, ticket);
        }
    }
}

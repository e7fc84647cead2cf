//! Locks for clients that hold one already: such a client tries, and never waits, for the one that it would wait for
//! may wait for it. What is tried on the global word, `held/taking.rs` knows.

use std::pin::pin;
use std::rc::Rc;

use farwood_runtime::{Meter, RemotePtr, Verbs};
use futures::future::{Either, select};

use super::{LockTable, Waiting};
use crate::error::LockError;
use crate::held::Held;
use crate::message::Grant;
use crate::place::home_of;

/// The time in ns that a home on another shard has to say whether a lock is free.
const TRY_NS: u64 = 20_000;

impl<V: Verbs> LockTable<V> {
    /// Takes the local lock of `node` as [`LockTable::acquire`] does, if it is free: for a client that holds another
    /// lock, and so must not wait. Whether it is free, a home on another shard has to say: within 20 us. The CAS of
    /// the global lock is tried once, too: if that is taken, [`Held::lock_and_read`] fails with
    /// [`LockError::Contended`] at once.
    ///
    /// Nodes share lock words ([`LockTable::word_of`]): a client that holds the word already does not get it.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let held = locks.try_acquire(node).await?.expect("it is free");
    /// assert!(locks.try_acquire(node).await?.is_none());
    /// held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`LockError::ShardEnded`], as [`LockTable::acquire`].
    pub async fn try_acquire(&self, node: RemotePtr) -> Result<Option<Held<V>>, LockError> {
        self.try_word(node, self.word_of(node)).await
    }

    /// Takes the local lock of `node` as [`LockTable::try_acquire`] does, where the global one is `word`, a part of the
    /// node ([`LockTable::acquire_embedded`]).
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let held = locks.try_acquire_embedded(node, node.add(56)).await?.expect("it is free");
    /// assert!(locks.try_acquire_embedded(node, node.add(56)).await?.is_none());
    /// held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`LockTable::try_acquire`].
    ///
    /// # Panics
    /// If `word` is not on the node's server.
    pub async fn try_acquire_embedded(
        &self,
        node: RemotePtr,
        word: RemotePtr,
    ) -> Result<Option<Held<V>>, LockError> {
        assert_eq!(word.server(), node.server(), "a node's lock is on the node's server");
        self.try_word(node, word).await
    }

    async fn try_word(&self, node: RemotePtr, lock: RemotePtr) -> Result<Option<Held<V>>, LockError> {
        let table = &self.0;
        let once = |mut held: Held<V>| {
            held.tries_once = true;
            Some(held)
        };
        if !table.config.hierarchical {
            return Ok(once(Held::new(Rc::clone(table), node, lock, None, Grant::default())));
        }
        let home = home_of(lock, table.shards);
        if home != table.me && table.verbs.has_ended(home) {
            return Err(LockError::ShardEnded { shard: home });
        }
        let (ticket, granted) = table.request(lock, home);
        if granted {
            return Ok(once(Held::new(Rc::clone(table), node, lock, Some(ticket), Grant::default())));
        }
        let meter = Meter::default();
        let waiting = Waiting { table, meter: &meter, lock, ticket: Some(ticket) };
        if home == table.me {
            return Ok(None);
        }
        let in_time = pin!(table.verbs.pause(TRY_NS));
        Ok(match select(waiting, in_time).await {
            Either::Left((Some(grant), _)) => {
                once(Held::new(Rc::clone(table), node, lock, Some(ticket), grant))
            }
            _ => None,
        })
    }
}

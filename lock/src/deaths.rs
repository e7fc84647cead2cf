//! The dead compute nodes that a shard's lock table knows of. It asks the control plane only when a lock stays taken:
//! one of the lock region for another index, whose word protects nothing here if the owner is dead, and fenced
//! ([`crate::word`]); or one whose word can then be taken over ([`crate::recovery`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use farwood_runtime::Verbs;

use crate::table::Table;

/// The time between two questions, in ns: a client that falls silent is dead for the control plane seconds later.
pub(crate) const ASK_AGAIN_NS: u64 = 100_000_000;
/// That time where clients of this index wait for the answer: one of a process that has ended is there at once.
pub(crate) const ASK_SOON_NS: u64 = 10_000_000;

/// The dead compute nodes that a table knows of.
#[derive(Default)]
pub(crate) struct Deaths {
    /// Their ids, ascending.
    known: RefCell<Arc<[u16]>>,
    /// The time from which on the control plane is asked again: none while it is being asked.
    ask_from_ns: Cell<u64>,
}

impl Deaths {
    pub(crate) fn is_empty(&self) -> bool {
        self.known.borrow().is_empty()
    }

    pub(crate) fn contain(&self, node: u16) -> bool {
        self.known.borrow().binary_search(&node).is_ok()
    }
}

/// Asks the control plane which compute nodes are dead, unless it was asked a moment ago; for the next `rest_ns` it is
/// not asked again. In the background: it may take longer to answer than an operation may wait.
#[cold]
pub(crate) fn ask_again<V: Verbs>(table: &Rc<Table<V>>, now_ns: u64, rest_ns: u64) {
    if now_ns < table.deaths.ask_from_ns.get() {
        return;
    }
    table.deaths.ask_from_ns.set(u64::MAX);
    let table = Rc::clone(table);
    table.clone().verbs.attend(async move {
        ask(&table).await;
        table.deaths.ask_from_ns.set(table.verbs.now() + rest_ns);
    });
}

/// Asks the control plane which compute nodes are dead.
#[cold]
pub(crate) async fn ask<V: Verbs>(table: &Table<V>) {
    match table.verbs.control().dead().await {
        Ok(dead) => *table.deaths.known.borrow_mut() = dead,
        Err(error) => tracing::debug!(%error, "it cannot be found out which compute nodes are dead"),
    }
}

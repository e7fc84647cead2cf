//! Leases the ports of a compute node, and decides when the actors of a lease that has gone are removed.
//!
//! An actor serves clients of other shards also when no client of its own shard needs it. So the actors of a port go
//! together, when its lease has gone (then no client is left on any shard), and when all of them are at rest: twice one
//! after the other. One may rest while a message is on its way to it; but the actor that sent it, or that awaits its
//! answer, does not.
//!
//! ```text
//!   leased ──> all have rested ──> all have rested again ──> all are removed ──> free, for the next generation
//! ```

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Unpark;
use crate::message::{Port, PortLease, ShardId};
use crate::ports::Ports;

/// Rounds over all shards until a port is free: two of rest, and the one that removes.
const ROUNDS: u8 = 3;

/// The ports of one compute node.
pub(crate) struct PortBook {
    entries: Mutex<Entries>,
    /// Ports whose lease has gone and whose actors have not.
    leaving: AtomicUsize,
    shards: Vec<Unpark>,
}

#[derive(Default)]
struct Entries {
    /// By place: the port that has it, or had it last, and on how many shards an actor listens there.
    ports: Vec<(Port, usize)>,
    free: VecDeque<Port>,
    leaving: Vec<Leaving>,
}

struct Leaving {
    port: Port,
    round: u8,
    /// By shard: set when this round is over for it.
    done: Vec<bool>,
}

impl PortBook {
    pub(crate) fn new(shards: Vec<Unpark>) -> Arc<Self> {
        Arc::new(PortBook { entries: Mutex::default(), leaving: AtomicUsize::new(0), shards })
    }

    /// Leases a port that is not leased already.
    ///
    /// # Panics
    /// If 65,536 are leased.
    pub(crate) fn lease(self: &Arc<Self>) -> PortLease {
        let mut entries = self.entries();
        let port = entries.free.pop_front().unwrap_or_else(|| {
            let place =
                u16::try_from(entries.ports.len()).expect("a compute node leases 65,536 ports at most");
            entries.ports.push((Port(u32::from(place)), 0));
            Port(u32::from(place))
        });
        entries.ports[port.place()] = (port, 0);
        drop(entries);
        let book = Arc::clone(self);
        PortLease::new(port, move || book.give_back(port))
    }

    /// Notes that an actor listens on a port, which may be leased or not.
    pub(crate) fn listens(&self, port: Port) {
        if let Some((leased, listeners)) = self.entries().ports.get_mut(port.place())
            && *leased == port
        {
            *listeners += 1;
        }
    }

    /// Counts ports that are leased, or whose actors are not removed yet.
    pub(crate) fn in_use(&self) -> usize {
        let entries = self.entries();
        entries.ports.len() - entries.free.len()
    }

    fn give_back(&self, port: Port) {
        let mut entries = self.entries();
        if entries.ports[port.place()].1 == 0 {
            entries.free.push_back(port.next());
            return;
        }
        entries.leaving.push(Leaving { port, round: 0, done: vec![false; self.shards.len()] });
        self.leaving.fetch_add(1, Ordering::Release);
        drop(entries);
        self.shards.iter().for_each(Unpark::unpark);
    }

    /// Tells whether [`PortBook::visit`] may have something to do.
    #[inline]
    pub(crate) fn has_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed) > 0
    }

    /// Does a shard's part in the rounds of ports that are leaving, again whenever one has moved on.
    pub(crate) fn visit(&self, shard: ShardId, ports: &Ports) {
        let (mut removed, mut has_moved) = (Vec::new(), false);
        let mut entries = self.entries();
        let Entries { free, leaving, .. } = &mut *entries;
        leaving.retain_mut(|leaving| {
            let done = &mut leaving.done[usize::from(shard.0)];
            if *done || (leaving.round < ROUNDS - 1 && !ports.is_at_rest(leaving.port)) {
                return true;
            }
            (*done, has_moved) = (true, true);
            if leaving.round == ROUNDS - 1 {
                removed.extend(ports.remove(leaving.port));
            }
            if leaving.done.iter().all(|done| *done) {
                leaving.round += 1;
                leaving.done.fill(false);
            }
            if leaving.round == ROUNDS {
                self.leaving.fetch_sub(1, Ordering::Relaxed);
                free.push_back(leaving.port.next());
            }
            leaving.round < ROUNDS
        });
        drop(entries);
        // Actors hold their shard; what they do when they are dropped is theirs.
        drop(removed);
        if has_moved {
            self.shards.iter().for_each(Unpark::unpark);
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Bounds on how long clients wait for others of their compute node, and what resumes them in the end.
//!
//! A waiting client may wait for ever: the one before it may wait for a lock that a dead compute node holds, or its
//! future may be held by a task that does not poll it. So as long as any client of a table waits, a task of the shard
//! looks every few ms for clients whose time is over. It resumes them; they leave as if they had been dropped. A timer
//! for each would cost as much as a hand-over, and most waits last microseconds.
//!
//! Only time in which the shard was running counts: a process that was stopped, and goes on, finds clients that seem to
//! have waited for very long, for others of their own process.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use farwood_runtime::clock::nanoseconds;
use farwood_runtime::{Meter, Verbs, Waiter};

/// The longest time between two looks, in ns: a wait may end late by that much.
const LOOK_NS_MAX: u64 = 10_000_000;
/// A shard whose clients wait and that has not looked for this long was not running.
const STILL_NS: u64 = 1_000_000_000;

/// The longest wait of one table's clients, and whether its shard watches those that wait.
pub(crate) struct Patience {
    wait_ns_max: u64,
    looking: Cell<bool>,
    /// The time of the last look for waits that are over, and the time when the shard went on after it had stood still.
    looked_ns: Cell<u64>,
    resumed_ns: Cell<u64>,
}

impl Patience {
    /// Makes the bound; [`Duration::MAX`] is for ever.
    pub(crate) fn new(wait_max: Duration) -> Self {
        let wait_ns_max = nanoseconds(wait_max);
        let (looking, looked_ns, resumed_ns) = (Cell::new(false), Cell::new(0), Cell::new(0));
        Patience { wait_ns_max, looking, looked_ns, resumed_ns }
    }

    /// Yields how long the operation of `meter` has waited so far, in ns, and whether that is enough.
    pub(crate) fn spent<V: Verbs>(&self, verbs: &V, meter: &Meter) -> (u64, bool) {
        let now_ns = verbs.now();
        let waited_ns = now_ns.saturating_sub(self.since(meter, now_ns));
        (waited_ns, waited_ns >= self.wait_ns_max)
    }

    /// Yields the time from which on the wait of `meter` counts.
    fn since(&self, meter: &Meter, now_ns: u64) -> u64 {
        self.look(now_ns);
        meter.waits_since(now_ns).max(self.resumed_ns.get())
    }

    /// Takes note of the time.
    fn look(&self, now_ns: u64) {
        if now_ns.saturating_sub(self.looked_ns.replace(now_ns)) > STILL_NS {
            self.resumed_ns.set(now_ns);
        }
    }
}

/// A table in which clients wait.
pub(crate) trait Waited: 'static {
    type Verbs: Verbs;

    fn verbs(&self) -> &Self::Verbs;
    fn patience(&self) -> &Patience;
    /// Adds to `overdue` what resumes the clients that wait until `now_ns` at most; yields whether any client waits.
    fn find_overdue(&self, now_ns: u64, overdue: &mut Vec<Waiter>) -> bool;
}

/// Tells whether the operation of `meter`, which has to wait in `table`, has waited long enough. If not, `note` gets
/// the time until which it may, and it is resumed then.
pub(crate) fn is_over<T: Waited>(table: &Rc<T>, meter: &Meter, note: impl FnOnce(u64)) -> bool {
    let patience = table.patience();
    if patience.wait_ns_max == u64::MAX {
        return false;
    }
    let now_ns = table.verbs().now();
    let until_ns = patience.since(meter, now_ns).saturating_add(patience.wait_ns_max);
    if now_ns < until_ns {
        note(until_ns);
        if !patience.looking.replace(true) {
            table.verbs().attend(look_after(Rc::clone(table)));
        }
    }
    now_ns >= until_ns
}

async fn look_after<T: Waited>(table: Rc<T>) {
    let (verbs, patience) = (table.verbs(), table.patience());
    let mut waits = true;
    while waits {
        verbs.pause((patience.wait_ns_max / 8).clamp(1, LOOK_NS_MAX)).await;
        let (now_ns, mut overdue) = (verbs.now(), Vec::new());
        patience.look(now_ns);
        waits = table.find_overdue(now_ns, &mut overdue);
        overdue.into_iter().for_each(|waiter| verbs.wake(waiter));
    }
    patience.looking.set(false);
}

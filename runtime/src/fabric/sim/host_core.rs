//! A simulated core: the runner of one shard's driver, in virtual time. It takes the shard's turns in pieces, each at a
//! moment of its own, and has a clock that runs ahead of the world's while the core computes.
//!
//! A client runs at one moment of the world's time, and what it costs is added to the core's clock: what it posts then
//! leaves later, and the next client gets its turn when the core is free again. A message does not wait for that; its
//! handler runs when it arrives and delays the core by what it costs, as in a poller that looks at its mailbox between
//! any two pieces of work. Between pieces the shard sleeps; whatever wakes it makes the core look for what to post.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Wake, Waker};

use smallvec::SmallVec;

use super::fabric::{Event, Notice};
use super::shard::{SimDevice, SimHost, SimShard};
use super::world::Woken;
use crate::engine::{Engine, SlotKey};
use crate::message::ShardId;
use crate::shard::Driver;
use crate::verbs::FabricError;

/// A core and the shard on it.
pub(super) struct HostCore {
    host: Rc<SimHost>,
    driver: Driver<SimDevice>,
    machine: u16,
    /// Ends the shard's sleep.
    waker: Waker,
    /// When messages from each shard of the node have arrived here so far.
    pub(super) heard_ns: RefCell<Vec<u64>>,
    /// Set if any of the ready clients has the next turn, rather than the one that has been ready for longest.
    any_order: bool,
    busy_until_ns: Cell<u64>,
    /// CPU time of completions that were found and not yet accounted for.
    debt_ns: Cell<u64>,
    turn_posted: Cell<bool>,
    /// Moments at which the core looks for pauses that are over, the next one last.
    alarms_ns: RefCell<SmallVec<[u64; 4]>>,
    /// Until when it does nothing; 0 if it is not stalled.
    stalled_until_ns: Cell<u64>,
    /// Notices that came while it was stalled.
    held_back: RefCell<Vec<Notice>>,
}

impl HostCore {
    pub(super) fn new(
        host: Rc<SimHost>,
        driver: Driver<SimDevice>,
        machine: u16,
        shards: usize,
        any_order: bool,
    ) -> Self {
        let waker = CoreWaker { core: host.id, woken: Arc::clone(&host.world.woken) };
        let core = HostCore {
            host,
            driver,
            machine,
            waker: Waker::from(Arc::new(waker)),
            heard_ns: RefCell::new(vec![0; shards]),
            any_order,
            busy_until_ns: Cell::new(0),
            debt_ns: Cell::new(0),
            turn_posted: Cell::new(false),
            alarms_ns: RefCell::default(),
            stalled_until_ns: Cell::new(0),
            held_back: RefCell::default(),
        };
        core.driver.announce_sleep(&core.waker);
        core
    }

    /// Makes one more handle to the shard.
    pub(super) fn shard(&self) -> SimShard {
        self.driver.handle()
    }

    pub(super) fn driver(&self) -> &Driver<SimDevice> {
        &self.driver
    }

    pub(super) fn engine(&self) -> RefMut<'_, Engine<SimDevice>> {
        self.driver.engine()
    }

    pub(super) fn id(&self) -> u32 {
        self.host.id
    }

    pub(super) fn node(&self) -> u16 {
        self.host.node
    }

    pub(super) fn node_id(&self) -> u16 {
        self.host.node_id
    }

    pub(super) fn machine(&self) -> u16 {
        self.machine
    }

    pub(super) fn is_dead(&self) -> bool {
        self.host.is_dead.get()
    }

    /// Stops the core for good, whatever it was about to do.
    pub(super) fn stop(&self) {
        self.host.is_dead.set(true);
    }

    /// Lets the core do nothing for so long: no turns, no messages, no look at what was completed.
    pub(super) fn stall(&self, ns: u64) {
        let until = self.busy_until_ns.get().max(self.world_now()) + ns;
        self.busy_until_ns.set(until);
        self.stalled_until_ns.set(until);
        self.post(until, Event::Resumed(self.host.id));
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_until_ns.get() > 0
    }

    pub(super) fn hold_back(&self, notice: Notice) {
        self.held_back.borrow_mut().push(notice);
    }

    /// Lets the core go on, unless it was stalled once more; yields what came in the meantime.
    pub(super) fn resume(&self) -> Vec<Notice> {
        if self.world_now() < self.stalled_until_ns.get() {
            return Vec::new();
        }
        self.stalled_until_ns.set(0);
        self.settle();
        self.held_back.take()
    }

    /// Gives a client its turn.
    pub(super) fn take_turn(&self) {
        self.turn_posted.set(false);
        if self.is_dead() {
            return;
        }
        let now = self.world_now();
        if self.busy_until_ns.get() <= now {
            self.host.clock_ns.set(now + self.debt_ns.replace(0));
            self.driver.awaken();
            self.driver.run_one(self.any_order);
            self.busy_until_ns.set(self.host.clock_ns.get());
        }
        self.settle();
    }

    /// Handles a message that has arrived from a shard of the node. `hear` is told its first two words.
    pub(super) fn receive(&self, from: ShardId, sender: &HostCore, cpu_ns: u64, hear: impl FnOnce(u64, u64)) {
        // A message that its ring had no room for is still with the sender.
        sender.driver.flush();
        let envelope =
            self.driver.take_message(from).expect("messages arrive in the order in which they left");
        hear(envelope.message.0[0], envelope.message.0[1]);
        if self.is_dead() {
            return;
        }
        let now = self.world_now();
        self.host.clock_ns.set(now + cpu_ns);
        self.driver.awaken();
        self.driver.deliver(from, envelope);
        let cost = self.host.clock_ns.get() - now;
        self.busy_until_ns.set(self.busy_until_ns.get().max(now) + cost);
        self.settle();
    }

    /// Takes a chain's outcome. To find it and to look at what it brought costs `cpu_ns`.
    pub(super) fn complete(
        &self,
        slot: SlotKey,
        outcome: Result<(), FabricError>,
        span_ns: u32,
        cpu_ns: u64,
    ) {
        self.debt_ns.set(self.debt_ns.get() + cpu_ns);
        self.engine().device_mut().finish(slot, outcome, span_ns);
        self.driver.awaken();
        self.driver.poll_engine();
        if !self.turn_posted.get() && self.busy_until_ns.get() <= self.world_now() {
            // The core is free: an event for this very moment would only cost time.
            return self.take_turn();
        }
        self.settle();
    }

    /// Ends the pauses that are over.
    pub(super) fn ring(&self) {
        let now = self.world_now();
        self.alarms_ns.borrow_mut().retain(|at| *at > now);
        self.driver.awaken();
        self.driver.fire_timers(now);
        self.settle();
    }

    /// Lets the shard sleep, and sees to it that ready clients get a turn and pauses end.
    pub(super) fn settle(&self) {
        if self.is_dead() {
            return;
        }
        self.driver.announce_sleep(&self.waker);
        if !self.is_stalled() {
            // As that may wake the shard, for the next round.
            self.driver.visit_ports();
        }
        if !self.turn_posted.get() && self.driver.has_ready() {
            self.turn_posted.set(true);
            self.post(self.busy_until_ns.get(), Event::Turn(self.host.id));
        }
        let mut alarms = self.alarms_ns.borrow_mut();
        if let Some(at) = self.driver.next_deadline()
            && alarms.last().is_none_or(|next| at < *next)
        {
            alarms.push(at);
            self.post(at, Event::Alarm(self.host.id));
        }
    }

    fn world_now(&self) -> u64 {
        self.host.world.now()
    }

    fn post(&self, at: u64, event: Event) {
        self.host.world.fabric.borrow_mut().events.post(at, event);
    }
}

/// Tells the world that the shard of a core was woken.
struct CoreWaker {
    core: u32,
    woken: Arc<Woken>,
}

impl Wake for CoreWaker {
    fn wake(self: Arc<Self>) {
        self.woken.add(self.core);
    }
}

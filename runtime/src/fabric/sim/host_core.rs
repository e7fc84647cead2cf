//! A simulated core and the shard on it: clients that take turns, chains, pauses, mailboxes, and a clock that runs
//! ahead of the world's while the core computes.
//!
//! A client runs at one moment of the world's time, and what it costs is added to the core's clock: what it posts then
//! leaves later, and the next client gets its turn when the core is free again. A message does not wait for that; its
//! handler runs when it arrives and delays the core by what it costs, as in a poller that looks at its mailbox between
//! any two pieces of work.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::num::NonZero;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use smallvec::SmallVec;

use super::fabric::{Event, Fabric, Notice};
use super::world::{Woken, World};
use crate::buffer::BufferPool;
use crate::chain::Chain;
use crate::control::Control;
use crate::engine::{Device, Engine, SlotKey, Slots};
use crate::message::{Envelope, ShardId};
use crate::ports::Ports;
use crate::shard::{Clients, Parking};
use crate::verbs::{Capabilities, FabricError};
use crate::waiter::Waiter;

/// Parts that a core is made of.
pub(super) struct HostCoreParts {
    pub(super) id: u32,
    pub(super) shard: ShardId,
    pub(super) shards: usize,
    pub(super) node: u16,
    pub(super) node_id: u16,
    pub(super) machine: u16,
    pub(super) control: Arc<dyn Control>,
    pub(super) capabilities: Capabilities,
    pub(super) credits: NonZero<usize>,
    pub(super) any_order: bool,
    pub(super) seed: u64,
}

/// A core and its shard.
pub(super) struct HostCore {
    pub(super) id: u32,
    pub(super) shard: ShardId,
    pub(super) shards: usize,
    /// The compute node, by its place in the simulation, and by its id in the cluster.
    pub(super) node: u16,
    pub(super) node_id: u16,
    machine: u16,
    pub(super) control: Arc<dyn Control>,
    pub(super) capabilities: Capabilities,
    pub(super) world: Rc<World>,
    engine: RefCell<Engine<SimDevice>>,
    pub(super) clients: Clients,
    pub(super) buffers: BufferPool,
    pub(super) ports: Ports,
    /// Chains so far.
    pub(super) posted: Cell<u64>,
    /// Payload bytes that they write.
    pub(super) written: Cell<u64>,
    timers: RefCell<BTreeMap<u32, Waiter>>,
    timers_made: Cell<u32>,
    /// When messages from each shard of the node have arrived here so far.
    pub(super) heard_ns: RefCell<Vec<u64>>,
    /// Set if any of the ready clients has the next turn, rather than the one that has been ready for longest.
    any_order: bool,
    rng: RefCell<SmallRng>,
    clock: Rc<Cell<u64>>,
    busy_until_ns: Cell<u64>,
    /// CPU time of completions that were found and not yet accounted for.
    debt_ns: Cell<u64>,
    /// The latest time that a client or handler was told.
    told_ns: Cell<u64>,
    turn_posted: Cell<bool>,
    /// Until when it does nothing; 0 if it is not stalled.
    stalled_until_ns: Cell<u64>,
    /// Notices that came while it was stalled.
    held_back: RefCell<Vec<Notice>>,
    is_dead: Cell<bool>,
    parking: Arc<Parking>,
    waker: Waker,
}

impl HostCore {
    pub(super) fn new(parts: HostCoreParts, world: Rc<World>) -> Self {
        let clock = Rc::new(Cell::new(0));
        let parking = Arc::new(Parking::default());
        let servers = parts.control.servers().len();
        let device = SimDevice {
            core: parts.id,
            clock: Rc::clone(&clock),
            fabric: Rc::clone(&world.fabric),
            capabilities: parts.capabilities,
            finished: Vec::new(),
        };
        let waker = Waker::from(Arc::new(CoreWaker { core: parts.id, woken: Arc::clone(&world.woken) }));
        let core = HostCore {
            id: parts.id,
            shard: parts.shard,
            shards: parts.shards,
            node: parts.node,
            node_id: parts.node_id,
            machine: parts.machine,
            control: parts.control,
            capabilities: parts.capabilities,
            world,
            engine: RefCell::new(Engine::new(device, servers, parts.credits)),
            clients: Clients::new(Arc::clone(&parking)),
            buffers: BufferPool::new(),
            ports: Ports::default(),
            posted: Cell::new(0),
            written: Cell::new(0),
            timers: RefCell::default(),
            timers_made: Cell::new(0),
            heard_ns: RefCell::new(vec![0; parts.shards]),
            any_order: parts.any_order,
            rng: RefCell::new(SmallRng::seed_from_u64(parts.seed)),
            clock,
            busy_until_ns: Cell::new(0),
            debt_ns: Cell::new(0),
            told_ns: Cell::new(0),
            turn_posted: Cell::new(false),
            stalled_until_ns: Cell::new(0),
            held_back: RefCell::default(),
            is_dead: Cell::new(false),
            parking,
            waker,
        };
        core.parking.prepare(&core.waker);
        core
    }

    pub(super) fn machine(&self) -> u16 {
        self.machine
    }

    pub(super) fn engine(&self) -> RefMut<'_, Engine<SimDevice>> {
        self.engine.borrow_mut()
    }

    /// Returns the core's own time.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.clock.get().max(self.world.now())
    }

    /// Returns the core's own time for its clients and handlers. It never goes back, although a handler that interrupts
    /// a client's turn runs at an earlier time than the end of that turn.
    #[inline]
    pub(super) fn tell_time(&self) -> u64 {
        let now = self.now().max(self.told_ns.get());
        self.told_ns.set(now);
        now
    }

    /// Lets the core compute for so long.
    #[inline]
    pub(super) fn work(&self, ns: u64) {
        self.clock.set(self.now() + ns);
    }

    pub(super) fn random(&self) -> u64 {
        self.rng.borrow_mut().random()
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.get()
    }

    /// Stops the core for good, whatever it was about to do.
    pub(super) fn stop(&self) {
        self.is_dead.set(true);
    }

    /// Lets the core do nothing for so long: no turns, no messages, no look at what was completed.
    pub(super) fn stall(&self, ns: u64) {
        let until = self.busy_until_ns.get().max(self.world.now()) + ns;
        self.busy_until_ns.set(until);
        self.stalled_until_ns.set(until);
        self.world.fabric.borrow_mut().events.post(until, Event::Resumed(self.id));
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_until_ns.get() > 0
    }

    pub(super) fn hold_back(&self, notice: Notice) {
        self.held_back.borrow_mut().push(notice);
    }

    /// Lets the core go on, unless it was stalled once more; yields what came in the meantime.
    pub(super) fn resume(&self) -> Vec<Notice> {
        if self.world.now() < self.stalled_until_ns.get() {
            return Vec::new();
        }
        self.stalled_until_ns.set(0);
        self.held_back.take()
    }

    pub(super) fn wake(&self, waiter: Waiter) {
        match waiter {
            Waiter::Client(key) => {
                self.clients.make_ready(key);
                self.request_turn();
            }
            Waiter::Task(waker) => waker.wake(),
        }
    }

    pub(super) fn waiter(&self, cx: &mut Context<'_>) -> Waiter {
        match self.clients.current(cx.waker()) {
            Some(key) => Waiter::Client(key),
            None => Waiter::Task(cx.waker().clone()),
        }
    }

    /// Sees to it that ready clients get a turn.
    pub(super) fn request_turn(&self) {
        if !self.parking.is_parked() {
            self.parking.prepare(&self.waker);
        }
        if !self.turn_posted.get() && !self.is_dead.get() && self.clients.has_ready() {
            self.turn_posted.set(true);
            self.world.fabric.borrow_mut().events.post(self.busy_until_ns.get(), Event::Turn(self.id));
        }
    }

    /// Gives a client its turn.
    pub(super) fn take_turn(&self) {
        self.turn_posted.set(false);
        if self.is_dead.get() {
            return;
        }
        let now = self.world.now();
        if self.busy_until_ns.get() <= now {
            self.clock.set(now + self.debt_ns.replace(0));
            if self.any_order {
                self.clients.promote(self.random());
            }
            self.clients.run_next();
            self.busy_until_ns.set(self.clock.get());
        }
        self.request_turn();
    }

    /// Handles a message that has arrived.
    pub(super) fn receive(&self, from: ShardId, envelope: Envelope, cpu_ns: u64) {
        if self.is_dead.get() {
            return;
        }
        let now = self.world.now();
        self.clock.set(now + cpu_ns);
        self.ports.deliver(from, envelope);
        let cost = self.clock.get() - now;
        self.busy_until_ns.set(self.busy_until_ns.get().max(now) + cost);
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
        // Wakers may run code that submits: they are called when the engine is free again.
        let mut tasks: SmallVec<[Waiter; 4]> = SmallVec::new();
        let mut engine = self.engine.borrow_mut();
        engine.device_mut().finished.push((slot, outcome, span_ns));
        engine.poll(&mut |waiter| match waiter {
            Waiter::Client(key) => self.clients.make_ready(key),
            Waiter::Task(_) => tasks.push(waiter),
        });
        drop(engine);
        for waiter in tasks {
            self.wake(waiter);
        }
        if !self.turn_posted.get() && self.busy_until_ns.get() <= self.world.now() {
            // The core is free: an event for this very moment would only cost time.
            return self.take_turn();
        }
        self.request_turn();
    }

    /// Wakes `waiter` at `at`; yields what [`HostCore::cancel_timer`] wants.
    pub(super) fn set_timer(&self, at: u64, waiter: Waiter) -> u32 {
        let timer = self.timers_made.get();
        self.timers_made.set(timer.wrapping_add(1));
        self.timers.borrow_mut().insert(timer, waiter);
        self.world.fabric.borrow_mut().events.post(at, Event::Timer { core: self.id, timer });
        timer
    }

    pub(super) fn cancel_timer(&self, timer: u32) {
        let cancelled = self.timers.borrow_mut().remove(&timer);
        drop(cancelled);
    }

    /// Replaces the waiter of a timer.
    pub(super) fn replace_timer(&self, timer: u32, waiter: Waiter) {
        self.timers.borrow_mut().insert(timer, waiter);
    }

    /// Drops all timers: no client waits any more.
    pub(super) fn clear_timers(&self) {
        let timers = std::mem::take(&mut *self.timers.borrow_mut());
        drop(timers);
    }

    /// Ends a pause.
    pub(super) fn ring(&self, timer: u32) {
        let waiter = self.timers.borrow_mut().remove(&timer);
        if let Some(waiter) = waiter {
            self.wake(waiter);
        }
    }
}

/// Hands chains to the fabric, and hears from it what became of them.
pub(super) struct SimDevice {
    core: u32,
    clock: Rc<Cell<u64>>,
    fabric: Rc<RefCell<Fabric>>,
    capabilities: Capabilities,
    finished: Vec<(SlotKey, Result<(), FabricError>, u32)>,
}

impl Device for SimDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn post(&mut self, key: SlotKey, chain: &Chain) {
        let mut fabric = self.fabric.borrow_mut();
        let clock = self.clock.get().max(fabric.events.now()) + fabric.profile.post_ns;
        self.clock.set(clock);
        fabric.post(self.core, clock, key, chain.server());
    }

    fn poll(&mut self, slots: &mut Slots) -> usize {
        let finished = self.finished.len();
        for (key, outcome, span_ns) in self.finished.drain(..) {
            slots.complete(key, outcome, span_ns);
        }
        finished
    }
}

/// Tells the world that a client of a core was woken by a waker of its own.
struct CoreWaker {
    core: u32,
    woken: Arc<Woken>,
}

impl Wake for CoreWaker {
    fn wake(self: Arc<Self>) {
        self.woken.add(self.core);
    }
}

//! Everything that is simulated together: the fabric, the cores, the messages between them, and the loop that lets one
//! event happen after the other.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::Rng;

use super::control::LateReplies;
use super::fabric::{Event, Fabric, Notice};
use super::host_core::HostCore;
use super::shard::SimHost;
use super::trace::Mark;
use super::{DEAD_AFTER_NS, FENCED_AFTER_NS};
use crate::fabric::embedded::Cluster;
use crate::message::ShardId;

/// The world of one simulation.
pub(super) struct World {
    pub(super) fabric: Rc<RefCell<Fabric>>,
    pub(super) cores: RefCell<Vec<Rc<HostCore>>>,
    pub(super) woken: std::sync::Arc<Woken>,
    late: std::sync::Arc<LateReplies>,
    stopped: Cell<u16>,
    now: Cell<u64>,
    message_cpu_ns: u64,
    /// The control services that are told of compute nodes which have stopped, if they are.
    deaths: Option<std::sync::Arc<Cluster>>,
    /// Set if the simulation is being taken apart: nothing new begins.
    is_over: Cell<bool>,
}

/// Cores whose shards were woken.
#[derive(Default)]
pub(super) struct Woken {
    any: AtomicBool,
    cores: Mutex<Vec<u32>>,
}

impl Woken {
    pub(super) fn add(&self, core: u32) {
        self.cores.lock().expect("nothing panics while it holds the list").push(core);
        self.any.store(true, Ordering::Relaxed);
    }
}

impl World {
    pub(super) fn new(
        fabric: Fabric,
        late: std::sync::Arc<LateReplies>,
        deaths: Option<std::sync::Arc<Cluster>>,
    ) -> Rc<Self> {
        let message_cpu_ns = fabric.profile.message_cpu_ns;
        Rc::new(World {
            fabric: Rc::new(RefCell::new(fabric)),
            cores: RefCell::new(Vec::new()),
            woken: std::sync::Arc::default(),
            late,
            stopped: Cell::new(0),
            now: Cell::new(0),
            message_cpu_ns,
            deaths,
            is_over: Cell::new(false),
        })
    }

    /// Returns the virtual time in ns.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.now.get()
    }

    /// Lets events happen until one concerns a shard, and tells the shard. False if nothing is left to happen.
    #[inline]
    pub(super) fn step(&self) -> bool {
        // A shard that settles may wake others.
        while self.woken.any.swap(false, Ordering::Relaxed) {
            self.settle_woken();
        }
        let notice = {
            let cores = self.cores.borrow();
            let mut fabric = self.fabric.borrow_mut();
            let notice = loop {
                if let Some(notice) = fabric.pop_notice() {
                    break Some(notice);
                }
                match fabric.step(&cores) {
                    Some(Notice::Nothing) => {}
                    notice => break notice,
                }
            };
            self.now.set(fabric.events.now());
            notice
        };
        let Some(notice) = notice else { return false };
        self.perform(notice);
        self.late.take_new(|reply, after_ns| {
            let at = self.now() + after_ns;
            self.fabric.borrow_mut().events.post(at, Event::Reply(reply));
        });
        true
    }

    fn perform(&self, notice: Notice) {
        match notice {
            Notice::Nothing => {}
            Notice::Reply(reply) => self.late.arrive(reply),
            Notice::Turn(core) => self.core(core).take_turn(),
            Notice::Stop { core } => self.stop_node(self.core(core).node()),
            Notice::Dead(id) => {
                let deaths = self.deaths.as_ref().expect("it was posted because deaths are found out");
                deaths.died(id);
            }
            Notice::Stall { core, ns } => self.core(core).stall(ns),
            Notice::Resumed(core) => {
                let core = self.core(core);
                for notice in core.resume() {
                    self.reach(&core, notice);
                }
            }
            Notice::Alarm(core) | Notice::Completed { core, .. } | Notice::Message { to: core, .. } => {
                self.reach(&self.core(core), notice)
            }
        }
    }

    /// Passes what comes from outside on to a core, or keeps it until a stalled one goes on.
    #[inline]
    fn reach(&self, core: &HostCore, notice: Notice) {
        if core.is_stalled() {
            return core.hold_back(notice);
        }
        match notice {
            Notice::Alarm(_) => core.ring(),
            Notice::Completed { slot, outcome, span_ns, cpu_ns, .. } => {
                core.complete(slot, outcome, span_ns, cpu_ns);
            }
            Notice::Message { to, from, shard } => {
                core.receive(shard, &self.core(from), self.message_cpu_ns, |first, second| {
                    let mark = first ^ second.rotate_left(16);
                    self.fabric.borrow_mut().trace.mark(self.now(), Mark::Message, u64::from(to), mark);
                });
            }
            _ => unreachable!("only these come from outside"),
        }
    }

    /// Counts the compute nodes that have stopped.
    pub(super) fn nodes_stopped(&self) -> u16 {
        self.stopped.get()
    }

    pub(super) fn core(&self, id: u32) -> Rc<HostCore> {
        Rc::clone(&self.cores.borrow()[id as usize])
    }

    /// Stops all cores of a compute node for good.
    pub(super) fn stop_node(&self, node: u16) {
        let cores = self.cores.borrow();
        let alive = |core: &&Rc<HostCore>| core.node() == node && !core.is_dead();
        self.stopped.set(self.stopped.get() + u16::from(cores.iter().any(|core| alive(&core))));
        for core in cores.iter().filter(alive) {
            core.stop();
            let mut fabric = self.fabric.borrow_mut();
            fabric.orphan(core.id());
            if self.deaths.is_some() {
                fabric.events.post(self.now() + FENCED_AFTER_NS, Event::Cut(core.id()));
                fabric.events.post(self.now() + DEAD_AFTER_NS, Event::Dead(core.node_id()));
            }
        }
    }

    /// Lets a message that leaves at `at` arrive at a shard of the same node.
    pub(super) fn send(&self, from: &SimHost, to: ShardId, mut at: u64) {
        if self.is_over.get() {
            return;
        }
        let receiver = self.core(from.id - u32::from(from.shard.0) + u32::from(to.0));
        let mut fabric = self.fabric.borrow_mut();
        if to != from.shard {
            at += fabric.profile.message_ns;
            let jitter = fabric.reordering.jitter_ns;
            if jitter > 0 {
                at += fabric.rng.random_range(0..=jitter);
            }
        }
        // Messages between two shards arrive in order.
        let mut heard = receiver.heard_ns.borrow_mut();
        let last = &mut heard[from.shard.0 as usize];
        *last = at.max(*last);
        fabric.events.post(*last, Event::Message { to: receiver.id(), from: from.id, shard: from.shard });
    }

    fn settle_woken(&self) {
        let woken =
            std::mem::take(&mut *self.woken.cores.lock().expect("nothing panics while it holds the list"));
        for core in woken {
            self.core(core).settle();
        }
    }

    /// Takes the world apart: shards hold actors, clients and the world, and the world holds its shards.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        let cores = std::mem::take(&mut *self.cores.borrow_mut());
        for core in &cores {
            core.driver().discard();
        }
    }
}

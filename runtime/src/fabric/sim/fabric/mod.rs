//! The way of every verb through the simulated NICs, event by event.
//!
//! ```text
//!  requester's machine                                      memory server's machine
//!  posted ──> requester, gather DMA ──> link out ── wire ──> link in ──> delivered: wait for a slot
//!                                                                            │ responder
//!                                                                          served
//!      WRITE: PCIe write, line by line, visible ───────────────────────────┤
//!      READ:  PCIe read, line by line, sampled ────────────────────────────┤
//!      atomic: its bucket's queue, compared when served ───────────────────┤
//!                                                                         over: the slot is free
//!  completed <── payload DMA <── link in <── wire ── link out <── answer, in the order of the requests
//! ```
//!
//! The order of the fabric contract on a queue pair is kept so: every stage up to the responder is first come first
//! served; a WRITE's first line is not before the last line of the WRITE before it; a READ's first line is neither
//! before the last line of the WRITEs and READs before it, nor before the atomics before it; an atomic is not before
//! the WRITEs before it. WRITEs and atomics overtake READs and atomics ([`Op::may_overtake`](crate::chain::Op)): a
//! READ brings what a later WRITE wrote. A fenced verb, and all behind it, waits at the requester for the responses of
//! all READs and atomics before it. It knows nothing of clients; what a shard has to hear of is returned.
//!
//! `requester`, `responder` and `answers` are the way, in this order; `faults`: chains that fail, queue pairs that
//! break, and rules that strike; `overtaken`: READs that last.

mod answers;
mod faults;
mod overtaken;
mod requester;
mod responder;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use slab::Slab;

use self::overtaken::{Boundary, Overtaken};
use super::events::Events;
use super::flight::{Flight, FlightId, Group, GroupId, GroupState, Qp, QpId};
use super::host_core::HostCore;
use super::nic::Nic;
use super::profile::Profile;
use super::rules::{Fault, Reordering, Rule};
use super::trace::Trace;
use crate::control::{Control, ServerInfo};
use crate::engine::SlotKey;
use crate::fabric::embedded::Cluster;
use crate::message::ShardId;
use crate::pointer::ServerId;
use crate::verbs::FabricError;

/// Something that happens at a moment of virtual time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A chain's doorbell has reached the NIC.
    Posted(GroupId),
    /// A queue pair that was broken may be in order again.
    Restored(QpId),
    /// The requester has a verb in hand.
    Requested(FlightId),
    /// A verb leaves the requester for the link.
    Sent(FlightId),
    /// The head of a request reaches the other machine.
    Head(FlightId),
    /// The whole request is there.
    Delivered(FlightId),
    /// The responder has looked at it.
    Served(FlightId),
    /// A piece of a READ or WRITE happens.
    Piece(FlightId, u16),
    /// The rest of a READ that is held back happens, unless it has, by its place among those.
    RestAtLast(u32),
    /// An atomic may enter its bucket.
    Atomic(FlightId),
    /// An atomic's time in its bucket is over.
    AtomicOver(FlightId),
    /// A response is ready for the link.
    Answer(FlightId),
    /// The head of a response reaches the requester's machine.
    AnswerHead(FlightId),
    /// The whole response is there.
    Answered(FlightId),
    /// A chain is completed, or its failure is noticed.
    Completed(GroupId),
    /// A fault strikes, by its place among those that are about to.
    Strike(u32),
    /// A core has time for a client.
    Turn(u32),
    /// A message from another core reaches its shard.
    Message { to: u32, from: u32, shard: ShardId },
    /// A core looks for pauses that are over.
    Alarm(u32),
    /// A core that was stalled may go on.
    Resumed(u32),
    /// The queue pairs of a core that has stopped are cut.
    Cut(u32),
    /// It is known that the compute node with that id is dead.
    Dead(u16),
    /// A late reply of a control service is there.
    Reply(u32),
}

/// News for a shard, or for the world.
pub(super) enum Notice {
    Nothing,
    Turn(u32),
    /// A message from a shard, and from its core.
    Message {
        to: u32,
        from: u32,
        shard: ShardId,
    },
    Alarm(u32),
    /// A chain's outcome.
    Completed {
        core: u32,
        slot: SlotKey,
        outcome: Result<(), FabricError>,
        span_ns: u32,
        cpu_ns: u64,
    },
    /// A fault that strikes the shard's whole compute node, or the shard.
    Stop {
        core: u32,
    },
    Stall {
        core: u32,
        ns: u64,
    },
    Resumed(u32),
    Dead(u16),
    Reply(u32),
}

/// NICs, links, memory, and everything that is on its way between them.
pub(super) struct Fabric {
    pub(super) events: Events<Event>,
    pub(super) profile: Profile,
    pub(super) reordering: Reordering,
    /// Set if fences have no effect.
    pub(super) ignores_fences: bool,
    pub(super) trace: Trace,
    pub(super) rng: SmallRng,
    rules: Vec<(Rule, u32)>,
    memory: Arc<Cluster>,
    nics: Vec<Nic>,
    /// Machine of each memory server.
    servers: Vec<Machine>,
    qps: Vec<Qp>,
    groups: Slab<Group>,
    flights: Slab<Flight>,
    /// Faults that are about to strike.
    strikes: Slab<Strike>,
    /// Cores whose compute nodes stop within the next WRITE of several lines.
    tearing: Vec<u32>,
    /// READs whose rest is held back, and the boundaries of lines that entries lie across, those written last at the
    /// end.
    overtaken: Slab<Overtaken>,
    crossed: VecDeque<Boundary>,
    /// Atomics that each word has met since there are rules.
    atomics: HashMap<(ServerId, u64), u8>,
    /// Notices of the last event beside its own result.
    notices: Vec<Notice>,
}

/// A fault, and whom it strikes.
struct Strike {
    fault: Fault,
    qp: QpId,
    core: u32,
    server: ServerId,
}

struct Machine {
    nic: u16,
    on_chip: Range<u64>,
    away_until_ns: u64,
}

impl Fabric {
    pub(super) fn new(
        seed: u64,
        profile: Profile,
        reordering: Reordering,
        memory: Arc<Cluster>,
        nics: Vec<u16>,
    ) -> Self {
        let servers = memory.servers().iter().zip(&nics);
        let servers =
            servers.map(|(info, &nic)| Machine { nic, on_chip: on_chip(info), away_until_ns: 0 }).collect();
        Fabric {
            events: Events::new(),
            profile,
            reordering,
            ignores_fences: false,
            trace: Trace::new(),
            rng: SmallRng::seed_from_u64(seed),
            rules: Vec::new(),
            memory,
            nics: Vec::new(),
            servers,
            qps: Vec::new(),
            groups: Slab::new(),
            flights: Slab::new(),
            strikes: Slab::new(),
            tearing: Vec::new(),
            overtaken: Slab::new(),
            crossed: VecDeque::new(),
            atomics: HashMap::new(),
            notices: Vec::new(),
        }
    }

    /// Makes sure that there are so many NICs and queue pairs.
    pub(super) fn provide(&mut self, nics: usize, qps: usize) {
        while self.nics.len() < nics {
            self.nics.push(Nic::new(&self.profile));
        }
        self.qps.resize_with(qps, Qp::default);
    }

    pub(super) fn machines(&self) -> usize {
        self.nics.len()
    }

    pub(super) fn set_rules(&mut self, rules: &[Rule]) {
        let of_the_fabric = rules.iter().filter(|rule| !rule.fault.is_of_control());
        self.rules = of_the_fabric.map(|&rule| (rule, 0)).collect();
    }

    /// Brings servers back that are away, and ends partitions.
    pub(super) fn heal(&mut self) {
        self.strikes.clear();
        self.tearing.clear();
        for server in &mut self.servers {
            server.away_until_ns = 0;
        }
        for qp in &mut self.qps {
            (qp.requests_lost_until_ns, qp.responses_lost_until_ns) = (0, 0);
        }
    }

    /// Notes that the compute node of a core has stopped: what is on its way from there may be lost.
    pub(super) fn orphan(&mut self, core: u32) {
        for qp in self.qps_of(core) {
            self.qps[qp].is_orphan = true;
        }
    }

    /// Cuts the queue pairs of a core that has stopped: nothing of it takes effect any more.
    fn cut(&mut self, core: u32) {
        for place in self.qps_of(core) {
            let server = ServerId((place % self.servers.len()) as u16);
            self.break_qp(QpId(place as u32), &FabricError::QueuePair { server }, 0, 0);
            self.qps[place].waiting.clear();
            self.qps[place].is_cut = true;
        }
    }

    /// Returns the queue pairs of a core, by the number of the server.
    fn qps_of(&self, core: u32) -> Range<usize> {
        let servers = self.servers.len();
        core as usize * servers..(core as usize + 1) * servers
    }

    /// Takes a chain over from a shard whose core's clock shows `clock_ns`.
    pub(super) fn post(&mut self, core: u32, clock_ns: u64, slot: SlotKey, server: ServerId) {
        let servers = self.servers.len();
        let known = (server.0 as usize) < servers;
        let qp = QpId(core * servers as u32 + u32::from(server.0));
        let error = FabricError::NoSuchServer { server, servers };
        let group = self.groups.insert(Group {
            core,
            slot,
            server,
            qp,
            posted_ns: clock_ns,
            read_bytes: 0,
            pending: 0,
            flights: 0,
            done_ns: 0,
            state: if known { GroupState::Running } else { GroupState::Failed(error) },
        });
        let group = GroupId(group as u32);
        let doorbell = clock_ns + self.profile.pcie_write_ns;
        if !known {
            return self.events.post(doorbell, Event::Completed(group));
        }
        // A core's clock may be ahead when a completion lets a chain go that waited for a credit: still in line.
        let qp = self.qp(qp);
        qp.posted_ns = qp.posted_ns.max(doorbell);
        let doorbell = qp.posted_ns;
        self.events.post(doorbell, Event::Posted(group));
    }

    /// Takes a notice of the last event beside its own result.
    pub(super) fn pop_notice(&mut self) -> Option<Notice> {
        self.notices.pop()
    }

    /// Lets the next event happen. `None` if there is none.
    #[inline]
    pub(super) fn step(&mut self, cores: &[Rc<HostCore>]) -> Option<Notice> {
        let event = self.events.next()?;
        match event {
            Event::Turn(core) => return Some(Notice::Turn(core)),
            Event::Message { to, from, shard } => return Some(Notice::Message { to, from, shard }),
            Event::Alarm(core) => return Some(Notice::Alarm(core)),
            Event::Resumed(core) => return Some(Notice::Resumed(core)),
            Event::Dead(node) => return Some(Notice::Dead(node)),
            Event::Reply(reply) => return Some(Notice::Reply(reply)),
            Event::Completed(group) => return Some(self.completed(group)),
            Event::Posted(group) => self.posted(group, cores),
            Event::Restored(qp) => self.restored(qp, cores),
            Event::Requested(flight) => self.requested(flight, cores),
            Event::Sent(flight) => self.sent(flight, cores),
            Event::Head(flight) => self.head(flight),
            Event::Delivered(flight) => self.delivered(flight),
            Event::Served(flight) => self.served(flight),
            Event::Piece(flight, piece) => self.piece(flight, piece, cores),
            Event::RestAtLast(place) => self.rest_at_last(place),
            Event::Atomic(flight) => self.atomic(flight, cores),
            Event::AtomicOver(flight) => self.atomic_over(flight, cores),
            Event::Answer(flight) => self.answer(flight),
            Event::AnswerHead(flight) => self.answer_head(flight),
            Event::Answered(flight) => self.answered(flight),
            Event::Strike(strike) => self.strike(strike, cores),
            Event::Cut(core) => self.cut(core),
        }
        Some(Notice::Nothing)
    }

    /// Tells whether nothing is on its way, and nothing waits for what is not.
    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        let is_idle = |qp: &Qp| {
            let lines = [&qp.fenced, &qp.held, &qp.answers];
            (qp.unanswered, qp.atomics) == (0, 0)
                && qp.waiting.is_empty()
                && lines.iter().all(|line| line.is_empty())
        };
        self.flights.is_empty()
            && self.groups.is_empty()
            && self.strikes.is_empty()
            && self.qps.iter().all(is_idle)
            && self.nics.iter().all(|nic| nic.is_at_rest(&self.profile))
    }

    fn now(&self) -> u64 {
        self.events.now()
    }

    fn flight(&mut self, id: FlightId) -> &mut Flight {
        &mut self.flights[id.0 as usize]
    }

    fn qp(&mut self, id: QpId) -> &mut Qp {
        &mut self.qps[id.0 as usize]
    }
}

/// Offsets of a server's memory on its NIC.
fn on_chip(info: &ServerInfo) -> Range<u64> {
    info.device_locks.map_or(0..0, |locks| locks.base.offset()..locks.base.offset() + 8 * locks.count)
}

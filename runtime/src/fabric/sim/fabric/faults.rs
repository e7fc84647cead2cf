//! Faults of the fabric: chains that fail, queue pairs that break, and rules that strike.

use std::rc::Rc;

use rand::Rng;

use super::super::flight::{Flight, FlightId, FlightState, GroupId, GroupState, QpId};
use super::super::host_core::HostCore;
use super::super::rules::{Fault, Rule};
use super::super::trace::Mark;
use super::{Event, Fabric, Notice, Strike};
use crate::pointer::ServerId;
use crate::verbs::FabricError;

/// A fault that a verb draws when it is sent strikes within that time, so that it meets chains at every stage.
const STRIKE_WITHIN_NS: u64 = 3_000;
/// A verb of a rare path draws faults so many times as often: else they would meet lookups and locks only. Faults that
/// strike a few times only may be nearly certain there, and spikes are frequent, which only let others come first; the
/// rest would let nothing rare succeed.
const RARE_HASTE: u32 = 6;
const RARE_HASTE_OF_FEW: u32 = 30;
/// No more than one in so many of them for that: a node that is frozen takes dozens of such verbs.
const RARE_ONE_IN: u32 = 8;
/// A word is seldom changed that met so many atomics so far.
const ATOMICS_MAX: u8 = 3;
/// Lookups, locks and common writes are shorter chains.
const LONG_CHAIN: u32 = 3;
/// Of a compute node that has stopped one in so many requests that are still on their way is lost.
const LOST_ONE_IN: u32 = 6;
/// Time that a requester tries to reach a server that does not answer.
const TIMEOUT_NS: u64 = 60_000;

/// Ways in which a compute node stops at a verb that it is about to send.
#[derive(Clone, Copy, Debug)]
enum Halt {
    Before,
    /// In the middle of a WRITE of several lines.
    Within,
    Behind,
    /// Within the next WRITE of its core that tears what others may read: few verbs are such WRITEs.
    Tearing,
    /// At a moment soon after.
    Later,
}

impl Fabric {
    /// Fails a chain that cannot go on: what it has done stays, the rest of it is cancelled.
    pub(super) fn fail_group(&mut self, id: GroupId, error: FabricError) {
        let group = &mut self.groups[id.0 as usize];
        if group.state != GroupState::Running {
            return;
        }
        group.state = GroupState::Failed(error);
        let qp = group.qp;
        let at = self.now() + self.profile.wire_ns;
        self.events.post(at, Event::Completed(id));
        self.cancel(qp, |flight| flight.group == id);
    }

    /// Breaks a queue pair: nothing of what is in flight on it takes effect any more.
    pub(super) fn break_qp(&mut self, qp: QpId, error: &FabricError, noticed_ns: u64, down_ns: u64) {
        let now = self.now();
        self.trace.mark(now, Mark::Broken, u64::from(qp.0), noticed_ns);
        for (id, group) in &mut self.groups {
            if group.qp == qp && group.state == GroupState::Running && group.flights > 0 {
                group.state = GroupState::Failed(error.clone());
                self.events.post(now + noticed_ns, Event::Completed(GroupId(id as u32)));
            }
        }
        self.cancel(qp, |_| true);
        let qp = self.qp(qp);
        qp.down_until_ns = qp.down_until_ns.max(now + down_ns);
        // It is connected anew: what comes does not wait for what was cancelled.
        (qp.sent_ns, qp.arrived_ns, qp.answered_ns, qp.written_ns, qp.read_ns) = (0, 0, 0, 0, 0);
    }

    /// Tells whether neither requests nor responses of a server pass.
    pub(super) fn is_away(&self, server: ServerId) -> bool {
        self.servers[server.0 as usize].away_until_ns > self.now()
    }

    /// Gives up the queue pair of a requester that hears nothing of a server.
    pub(super) fn lose_server(&mut self, qp: QpId, server: ServerId) {
        self.break_qp(qp, &FabricError::ServerGone { server }, TIMEOUT_NS, TIMEOUT_NS);
    }

    /// Cancels flights of a queue pair. Those that no event will come up for go at once.
    fn cancel(&mut self, qp_id: QpId, which: impl Fn(&Flight) -> bool) {
        let mut cancelled = Vec::new();
        for (id, flight) in &mut self.flights {
            if flight.qp == qp_id && flight.state != FlightState::Cancelled && which(flight) {
                let qp = &mut self.qps[qp_id.0 as usize];
                qp.unanswered -= u32::from(std::mem::take(&mut flight.is_unanswered));
                qp.atomics -= u32::from(std::mem::take(&mut flight.is_executing));
                let state = std::mem::replace(&mut flight.state, FlightState::Cancelled);
                cancelled.push((FlightId(id as u32), state));
            }
        }
        let is_cancelled = |id: &FlightId| self.flights[id.0 as usize].state == FlightState::Cancelled;
        let qp = &mut self.qps[qp_id.0 as usize];
        for line in [&mut qp.held, &mut qp.fenced, &mut qp.answers] {
            line.retain(|id| !is_cancelled(id));
        }
        for (id, state) in cancelled {
            match state {
                FlightState::Fenced | FlightState::Ready => self.discard(id),
                FlightState::Held => self.abandon(id),
                FlightState::Out | FlightState::InSlot | FlightState::Back | FlightState::Cancelled => {}
            }
        }
        // What was in line behind them goes on.
        self.begin_held(qp_id);
        self.pass_fence(qp_id);
        self.send_answers(qp_id);
    }

    /// Draws a delay that `pick` asks about, for a verb that may be of a rare path; yields what `pick` made of it.
    #[inline]
    pub(super) fn delay<T>(&mut self, is_rare: bool, pick: impl Fn(Fault) -> Option<T>) -> Option<T> {
        for (rule, struck) in &mut self.rules {
            if let Some(delay) = pick(rule.fault)
                && *struck < rule.most
                && self.rng.random_range(0..one_in(rule, is_rare)) == 0
            {
                *struck += 1;
                return Some(delay);
            }
        }
        None
    }

    /// Draws faults that strike the queue pair, the node, the shard or the server of a verb that is about to be sent;
    /// yields whether it is.
    #[inline]
    pub(super) fn draw_strikes(&mut self, id: FlightId, is_rare: bool) -> bool {
        let mut is_sent = true;
        if !self.tearing.is_empty() && self.tears(id) {
            return true;
        }
        for place in 0..self.rules.len() {
            let (rule, struck) = self.rules[place];
            if rule.fault.is_delay()
                || struck >= rule.most
                || self.rng.random_range(0..one_in(&rule, is_rare)) != 0
            {
                continue;
            }
            self.rules[place].1 += 1;
            let flight = self.flights[id.0 as usize];
            if rule.fault == Fault::NodeStop && self.halts_now(id, &mut is_sent) {
                continue;
            }
            let group = &self.groups[flight.group.0 as usize];
            let strike = Strike { fault: rule.fault, qp: flight.qp, core: group.core, server: group.server };
            let strike = self.strikes.insert(strike);
            let at = self.now() + self.rng.random_range(0..=STRIKE_WITHIN_NS);
            self.events.post(at, Event::Strike(strike as u32));
        }
        is_sent
    }

    /// Tells whether few verbs are like this one: atomics on a word that is seldom changed, such as the root's or a
    /// slot's, and those of the chains that write new nodes.
    pub(super) fn is_of_rare_path(&mut self, id: FlightId) -> bool {
        if self.rules.is_empty() {
            return false;
        }
        let flight = self.flights[id.0 as usize];
        let group = &self.groups[flight.group.0 as usize];
        if flight.is_atomic() {
            let atomics = self.atomics.entry((group.server, flight.offset())).or_default();
            *atomics = atomics.saturating_add(1);
            return *atomics <= ATOMICS_MAX;
        }
        // Of its verbs those that are still under way: the last ones of a long chain may count as a short one's.
        group.flights >= LONG_CHAIN
    }

    /// Stops the compute node of a verb at this very verb; false if it is to stop later.
    fn halts_now(&mut self, id: FlightId, is_sent: &mut bool) -> bool {
        let lines = self.flights[id.0 as usize].lines_written();
        let halt = match self.rng.random_range(0..8) {
            0 => Halt::Before,
            1 => Halt::Later,
            2..=4 if lines > 1 => Halt::Within,
            2..=3 => Halt::Tearing,
            _ => Halt::Behind,
        };
        match halt {
            Halt::Later => return false,
            Halt::Tearing => {
                let core = self.core_of(id);
                self.tearing.push(core);
                return true;
            }
            Halt::Before => *is_sent = false,
            Halt::Within | Halt::Behind => {}
        }
        self.halt(id, halt);
        true
    }

    /// Stops the compute node of a verb, if it is to stop within a WRITE that tears what others may read.
    #[cold]
    fn tears(&mut self, id: FlightId) -> bool {
        let core = self.core_of(id);
        let tears = self.tearing.contains(&core) && self.overwrites(self.flights[id.0 as usize]);
        if tears {
            self.tearing.retain(|&other| other != core);
            self.halt(id, Halt::Within);
        }
        tears
    }

    /// Tells whether it is a WRITE of several lines to where something is already. New memory is zero.
    fn overwrites(&self, flight: Flight) -> bool {
        if flight.lines_written() < 2 {
            return false;
        }
        let server = self.groups[flight.group.0 as usize].server;
        let mut old = vec![0; flight.len() as usize];
        let read = self.memory.mapped()[server.0 as usize].region().read(flight.offset(), &mut old);
        read.is_ok() && old.iter().any(|&byte| byte != 0)
    }

    fn halt(&mut self, id: FlightId, halt: Halt) {
        if let Halt::Within = halt {
            let lines = self.flights[id.0 as usize].lines_written();
            self.flight(id).arriving = match self.reordering.in_order_write {
                true => (1 << self.rng.random_range(1..lines.min(64))) - 1,
                false => self.rng.random(),
            };
        }
        let (now, core, flight) = (self.now(), self.core_of(id), self.flights[id.0 as usize]);
        let server = self.groups[flight.group.0 as usize].server;
        self.trace.note(now, || {
            format!("NodeStop strikes core {core}, server {}: {halt:?} {:?}", server.0, flight.op)
        });
        self.notices.push(Notice::Stop { core });
    }

    fn core_of(&self, id: FlightId) -> u32 {
        self.groups[self.flights[id.0 as usize].group.0 as usize].core
    }

    /// Tells whether a request that arrives is one of those that went with the compute node that had sent them: one is
    /// lost, and with it all behind it on its queue pair.
    pub(super) fn is_lost_with_its_node(&mut self, qp: QpId) -> bool {
        if !self.qp(qp).is_orphan {
            return false;
        }
        let is_lost = self.rng.random_range(0..LOST_ONE_IN) == 0;
        self.qp(qp).is_cut |= is_lost;
        self.qp(qp).is_cut
    }

    pub(super) fn strike(&mut self, id: u32, cores: &[Rc<HostCore>]) {
        // One that was drawn before the faults were ended strikes no more.
        let Some(Strike { fault, qp, core, server }) = self.strikes.try_remove(id as usize) else { return };
        let now = self.now();
        self.trace.note(now, || format!("{fault:?} strikes core {core}, server {}", server.0));
        match fault {
            Fault::QueuePairError(down_ns) => {
                self.break_qp(qp, &FabricError::QueuePair { server }, 2 * self.profile.wire_ns, down_ns);
            }
            Fault::NodeStop => self.notices.push(Notice::Stop { core }),
            Fault::ServerAway(ns) => {
                let away_until = &mut self.servers[server.0 as usize].away_until_ns;
                *away_until = (*away_until).max(now + ns);
                self.stop_meanwhile(Strike { fault: Fault::NodeStop, qp, core, server }, now, ns);
            }
            Fault::Partition(ns) => self.part(core, server, now + ns, cores),
            Fault::StalledShard(ns) => {
                let ns = self.rng.random_range(0..=ns);
                self.notices.push(Notice::Stall { core, ns });
            }
            Fault::DelayedLine(_) | Fault::OvertakenRead { .. } | Fault::LatencySpike(_) => {
                unreachable!("delays strike accesses and messages")
            }
            Fault::LateReply(_) | Fault::LostReply | Fault::FailedRequest | Fault::NoMemory => {
                unreachable!("these strike requests to control services")
            }
        }
    }

    /// Stops a compute node within the next `ns`, every other time, where rules say so: there are few verbs to draw it
    /// while a server is away.
    fn stop_meanwhile(&mut self, strike: Strike, now: u64, ns: u64) {
        let may_stop = |(rule, struck): &&mut (Rule, u32)| rule.fault == strike.fault && *struck < rule.most;
        let Some((_, struck)) = self.rules.iter_mut().find(may_stop) else { return };
        if self.rng.random() {
            *struck += 1;
            let strike = self.strikes.insert(strike);
            self.events.post(now + self.rng.random_range(0..=ns), Event::Strike(strike as u32));
        }
    }

    /// Parts the compute node of `core` from `server` until then, in one direction or in both.
    fn part(&mut self, core: u32, server: ServerId, until_ns: u64, cores: &[Rc<HostCore>]) {
        let (requests, responses) = [(true, true), (true, false), (false, true)][self.rng.random_range(0..3)];
        let node = cores[core as usize].node();
        for core in cores.iter().filter(|core| core.node() == node) {
            let qp = self.qps_of(core.id()).start + usize::from(server.0);
            let qp = &mut self.qps[qp];
            if requests {
                qp.requests_lost_until_ns = qp.requests_lost_until_ns.max(until_ns);
            }
            if responses {
                qp.responses_lost_until_ns = qp.responses_lost_until_ns.max(until_ns);
            }
        }
    }
}

/// Returns of how many verbs a rule strikes one, on average.
fn one_in(rule: &Rule, is_rare: bool) -> u32 {
    let at_least = rule.one_in.min(RARE_ONE_IN);
    match (rule.fault, rule.most) {
        _ if !is_rare => rule.one_in,
        (Fault::LatencySpike(_), _) => (rule.one_in / RARE_HASTE_OF_FEW).max(at_least),
        (_, u32::MAX) => (rule.one_in / RARE_HASTE).max(at_least),
        _ => (rule.one_in / RARE_HASTE_OF_FEW).max(1),
    }
}

//! What goes wrong: chains that fail, queue pairs that break, and rules that strike.

use rand::Rng;

use super::super::flight::{Flight, FlightId, FlightState, GroupId, GroupState, QpId};
use super::super::rules::Fault;
use super::super::trace::Mark;
use super::{Event, Fabric, Notice, Strike};
use crate::pointer::ServerId;
use crate::verbs::FabricError;

/// A fault that a verb draws when it is sent strikes within that time, so that it meets chains at every stage.
const STRIKE_WITHIN_NS: u64 = 3_000;
/// How long a requester tries to reach a server that does not answer.
const TIMEOUT_NS: u64 = 60_000;

impl Fabric {
    /// A chain cannot go on: what it has done stays, the rest of it is cancelled.
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

    /// A queue pair breaks: nothing of what is in flight on it takes effect any more.
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

    /// Neither requests nor responses pass.
    pub(super) fn is_away(&self, server: ServerId) -> bool {
        self.servers[server.0 as usize].away_until_ns > self.now()
    }

    /// A requester that hears nothing of a server gives the queue pair up.
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

    /// Whether a delay that `pick` asks about strikes now, and how long it may take.
    #[inline]
    pub(super) fn delay(&mut self, pick: impl Fn(Fault) -> Option<u64>) -> Option<u64> {
        for (rule, struck) in &mut self.rules {
            if let Some(ns) = pick(rule.fault)
                && *struck < rule.most
                && self.rng.random_range(0..rule.one_in) == 0
            {
                *struck += 1;
                return Some(ns);
            }
        }
        None
    }

    /// Whether faults will strike the queue pair, the node, the shard or the server of a verb that is sent.
    #[inline]
    pub(super) fn draw_strikes(&mut self, id: FlightId) {
        for place in 0..self.rules.len() {
            let (rule, struck) = self.rules[place];
            let is_delay = matches!(rule.fault, Fault::DelayedLine(_) | Fault::LatencySpike(_));
            if is_delay || struck >= rule.most || self.rng.random_range(0..rule.one_in) != 0 {
                continue;
            }
            self.rules[place].1 += 1;
            let flight = self.flights[id.0 as usize];
            let group = &self.groups[flight.group.0 as usize];
            let strike = Strike { fault: rule.fault, qp: flight.qp, core: group.core, server: group.server };
            let strike = self.strikes.insert(strike);
            let at = self.now() + self.rng.random_range(0..=STRIKE_WITHIN_NS);
            self.events.post(at, Event::Strike(strike as u32));
        }
    }

    pub(super) fn strike(&mut self, id: u32) {
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
            }
            Fault::StalledShard(ns) => {
                let ns = self.rng.random_range(0..=ns);
                self.notices.push(Notice::Stall { core, ns });
            }
            Fault::DelayedLine(_) | Fault::LatencySpike(_) => {
                unreachable!("delays strike accesses and messages")
            }
        }
    }
}

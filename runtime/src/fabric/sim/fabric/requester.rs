//! The requester's side of the fabric: a chain's verbs leave its machine one after the other, those behind a fence when
//! the responses that it waits for have come.

use std::rc::Rc;

use rand::Rng;

use super::super::flight::{Flight, FlightId, FlightState, GroupId, QpId};
use super::super::host_core::HostCore;
use super::super::rules::Fault;
use super::{Event, Fabric};
use crate::chain::{Chain, Op, Verb};

impl Fabric {
    /// Begins a chain that has reached the NIC. Those that meet a broken queue pair wait in line until it is in order
    /// again.
    pub(super) fn posted(&mut self, id: GroupId, cores: &[Rc<HostCore>]) {
        let (now, qp_id) = (self.now(), self.groups[id.0 as usize].qp);
        let qp = self.qp(qp_id);
        if now >= qp.down_until_ns && qp.waiting.is_empty() {
            return self.begin(id, cores);
        }
        qp.waiting.push_back(id);
        if qp.waiting.len() == 1 {
            let at = qp.down_until_ns;
            self.events.post(at, Event::Restored(qp_id));
        }
    }

    /// Lets the chains go that waited, unless the queue pair was broken once more.
    pub(super) fn restored(&mut self, id: QpId, cores: &[Rc<HostCore>]) {
        let down_until = self.qp(id).down_until_ns;
        if down_until > self.now() {
            return self.events.post(down_until, Event::Restored(id));
        }
        while let Some(next) = self.qp(id).waiting.pop_front() {
            self.begin(next, cores);
        }
    }

    /// Makes flights of a chain's verbs.
    fn begin(&mut self, id: GroupId, cores: &[Rc<HostCore>]) {
        let now = self.now();
        let group = &self.groups[id.0 as usize];
        let (core, slot, qp_id, server) = (group.core, group.slot, group.qp, group.server);
        let to = self.servers[server.0 as usize].nic;
        let from = cores[core as usize].machine();
        let keeps_fences = !self.ignores_fences;
        let mut engine = cores[core as usize].engine();
        let chain = engine.slots_mut().chain_mut(slot);
        let (count, atomics) = (chain.verbs().len(), atomics_of(chain));
        if count == 0 {
            // An empty chain is a round trip without effect.
            self.groups[id.0 as usize].done_ns = now;
            return self.events.post(now + 2 * self.profile.wire_ns, Event::Completed(id));
        }
        let mut atomic = 0;
        for (place, &Verb { op, fenced }) in chain.verbs().iter().enumerate() {
            let mut flight = Flight {
                group: id,
                qp: qp_id,
                op,
                fenced: fenced && keeps_fences,
                answered: place + 1 == count || op.returns_data(),
                atomic,
                from,
                to,
                pieces: 0,
                arriving: u64::MAX,
                on_chip: false,
                is_unanswered: false,
                is_executing: false,
                state: FlightState::Out,
            };
            flight.on_chip = self.servers[server.0 as usize].on_chip.contains(&flight.offset());
            atomic += u16::from(flight.is_atomic());
            let group = &mut self.groups[id.0 as usize];
            group.flights += 1;
            group.pending += u32::from(flight.answered);
            group.read_bytes += if flight.is_read() { flight.len() } else { 0 };
            let flight = FlightId(self.flights.insert(flight) as u32);
            self.offer(flight);
        }
        engine.slots_mut().parts(slot).1.resize(atomics, 0);
    }

    /// Sends a verb, or puts it in line behind a fence.
    fn offer(&mut self, id: FlightId) {
        let flight = self.flights[id.0 as usize];
        let qp = self.qp(flight.qp);
        if !qp.fenced.is_empty() || (flight.fenced && qp.unanswered > 0) {
            qp.fenced.push_back(id);
            self.flight(id).state = FlightState::Fenced;
        } else {
            self.send(id);
        }
    }

    fn send(&mut self, id: FlightId) {
        let now = self.now();
        let from = self.flight(id).from;
        let in_hand = self.nics[from as usize].requester.claim(now, self.profile.requester_ps).end;
        let flight = self.flight(id);
        flight.state = FlightState::Out;
        flight.is_unanswered = flight.op.returns_data();
        let (qp, unanswered) = (flight.qp, u32::from(flight.is_unanswered));
        self.qp(qp).unanswered += unanswered;
        self.events.post(in_hand, Event::Requested(id));
    }

    /// Fetches the payload of a long WRITE; what follows on the queue pair waits for it.
    pub(super) fn requested(&mut self, id: FlightId, cores: &[Rc<HostCore>]) {
        let flight = self.flights[id.0 as usize];
        if flight.state == FlightState::Cancelled {
            return self.discard(id);
        }
        let now = self.now();
        let mut ready = now;
        if let Op::Write { len, .. } = flight.op
            && u64::from(len) > self.profile.inline_bytes
        {
            let service = self.profile.on_pcie_ps(u64::from(len));
            let stay = self.nics[flight.from as usize].pcie_read.claim(now, service);
            ready = stay.end + self.profile.pcie_read_ns;
        }
        let qp = self.qp(flight.qp);
        let is_next = qp.sent_ns < now;
        qp.sent_ns = qp.sent_ns.max(ready);
        let at = qp.sent_ns;
        if is_next && at == now {
            // Nothing before it is still to be sent: no need for another event.
            return self.sent(id, cores);
        }
        self.events.post(at, Event::Sent(id));
    }

    pub(super) fn sent(&mut self, id: FlightId, cores: &[Rc<HostCore>]) {
        let flight = self.flights[id.0 as usize];
        let core = self.groups[flight.group.0 as usize].core;
        if flight.state == FlightState::Cancelled || cores[core as usize].is_dead() {
            return self.discard(id);
        }
        let is_rare = self.is_of_rare_path(id);
        if !self.draw_strikes(id, is_rare) {
            return self.discard(id);
        }
        let late = self.lateness(is_rare);
        let now = self.now();
        let at = if flight.from == flight.to {
            now + self.profile.loopback_ns
        } else {
            let service = self.profile.on_link_ps(flight.request_payload(), true);
            let stay = self.nics[flight.from as usize].link_out.claim(now, service);
            stay.begin + self.profile.wire_ns
        };
        let qp = self.qp(flight.qp);
        qp.arrived_ns = qp.arrived_ns.max(at + late);
        let at = qp.arrived_ns;
        self.events.post(at, if flight.from == flight.to { Event::Delivered(id) } else { Event::Head(id) });
    }

    pub(super) fn pass_fence(&mut self, qp: QpId) {
        while let Some(&next) = self.qp(qp).fenced.front() {
            if self.flights[next.0 as usize].fenced && self.qp(qp).unanswered > 0 {
                return;
            }
            self.qp(qp).fenced.pop_front();
            self.send(next);
        }
    }

    /// Draws how much longer than usual a message takes, which may be of a rare path: in ns.
    pub(super) fn lateness(&mut self, is_rare: bool) -> u64 {
        let jitter = self.reordering.jitter_ns;
        let jitter = if jitter == 0 { 0 } else { self.rng.random_range(0..=jitter) };
        jitter
            + self
                .delay(is_rare, |fault| match fault {
                    Fault::LatencySpike(ns) => Some(ns),
                    _ => None,
                })
                .map_or(0, |ns| self.rng.random_range(0..=ns))
    }
}

fn atomics_of(chain: &Chain) -> usize {
    chain.verbs().iter().filter(|verb| verb.op.is_atomic()).count()
}

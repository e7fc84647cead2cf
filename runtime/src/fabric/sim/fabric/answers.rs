//! The way back: responses in the order of their requests, completed chains, and what is over.

use super::super::flight::{FlightId, FlightState, GroupId, GroupState, QpId};
use super::super::trace::Mark;
use super::{Event, Fabric, Notice};

impl Fabric {
    /// Notes a response that is ready: it leaves when those of all requests before it on its queue pair have left.
    pub(super) fn answer(&mut self, id: FlightId) {
        let flight = self.flights[id.0 as usize];
        if flight.state == FlightState::Cancelled {
            return self.abandon(id);
        }
        self.flight(id).state = FlightState::Ready;
        self.leave_slot(flight.to);
        self.send_answers(flight.qp);
    }

    pub(super) fn send_answers(&mut self, qp: QpId) {
        while let Some(&next) = self.qp(qp).answers.front() {
            let flight = self.flights[next.0 as usize];
            if flight.state != FlightState::Ready {
                return;
            }
            let server = self.groups[flight.group.0 as usize].server;
            if self.is_away(server) || self.qp(qp).responses_lost_until_ns > self.now() {
                // What was executed stays so; its client does not hear of it.
                return self.lose_server(qp, server);
            }
            self.qp(qp).answers.pop_front();
            self.send_answer(next);
        }
    }

    fn send_answer(&mut self, id: FlightId) {
        let flight = self.flights[id.0 as usize];
        self.flight(id).state = FlightState::Back;
        let late = self.lateness(false);
        let now = self.now();
        let at = if flight.from == flight.to {
            now + self.profile.loopback_ns
        } else {
            let service = self.profile.on_link_ps(flight.response_payload(), false);
            self.nics[flight.to as usize].link_out.claim(now, service).begin + self.profile.wire_ns
        };
        let qp = self.qp(flight.qp);
        qp.answered_ns = qp.answered_ns.max(at + late);
        let at = qp.answered_ns;
        self.events
            .post(at, if flight.from == flight.to { Event::Answered(id) } else { Event::AnswerHead(id) });
    }

    pub(super) fn answer_head(&mut self, id: FlightId) {
        let flight = self.flights[id.0 as usize];
        if flight.state == FlightState::Cancelled {
            return self.discard(id);
        }
        let service = self.profile.on_link_ps(flight.response_payload(), false);
        let now = self.now();
        let stay = self.nics[flight.from as usize].link_in.claim(now, service);
        self.events.post(stay.end, Event::Answered(id));
    }

    pub(super) fn answered(&mut self, id: FlightId) {
        let flight = self.flights[id.0 as usize];
        if flight.state == FlightState::Cancelled {
            return self.discard(id);
        }
        let now = self.now();
        if flight.is_unanswered {
            self.flight(id).is_unanswered = false;
            self.qp(flight.qp).unanswered -= 1;
            self.pass_fence(flight.qp);
        }
        let payload = flight.response_payload();
        let service = self.profile.on_pcie_ps(payload);
        let there =
            self.nics[flight.from as usize].pcie_write.claim(now, service).end + self.profile.pcie_write_ns;
        let group = &mut self.groups[flight.group.0 as usize];
        group.done_ns = group.done_ns.max(there);
        group.pending -= 1;
        if group.pending == 0 && group.state == GroupState::Running {
            let at = group.done_ns;
            self.events.post(at, Event::Completed(flight.group));
        }
        self.discard(id);
    }

    pub(super) fn completed(&mut self, id: GroupId) -> Notice {
        let now = self.now();
        let group = &mut self.groups[id.0 as usize];
        let state = std::mem::replace(&mut group.state, GroupState::Announced);
        let outcome = match state {
            GroupState::Running => Ok(()),
            GroupState::Failed(error) => Err(error),
            GroupState::Announced => return Notice::Nothing,
        };
        let (core, slot) = (group.core, group.slot);
        let cpu_ns = self.profile.poll_ns + group.read_bytes * self.profile.search_ps_per_byte / 1000;
        // What a requester can know: everything happened between the doorbell and the completion.
        let span_ns = (now - group.posted_ns).min(u64::from(u32::MAX)) as u32;
        self.forget_if_over(id);
        self.trace.mark(now, Mark::Completed, u64::from(core), u64::from(outcome.is_ok()));
        Notice::Completed { core, slot, outcome, span_ns, cpu_ns }
    }

    /// Removes a flight that is over and holds no slot.
    pub(super) fn discard(&mut self, id: FlightId) {
        let flight = self.flights.remove(id.0 as usize);
        self.groups[flight.group.0 as usize].flights -= 1;
        self.forget_if_over(flight.group);
    }

    /// Removes a cancelled flight and gives its slot back.
    pub(super) fn abandon(&mut self, id: FlightId) {
        let to = self.flights[id.0 as usize].to;
        self.discard(id);
        self.leave_slot(to);
    }

    fn forget_if_over(&mut self, id: GroupId) {
        let group = &self.groups[id.0 as usize];
        if group.flights == 0 && group.state == GroupState::Announced {
            self.groups.remove(id.0 as usize);
        }
    }
}

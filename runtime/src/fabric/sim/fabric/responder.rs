//! The responder's side of the fabric: requests wait for a slot, are looked at, and take effect piece by piece.

use std::ops::Range;
use std::rc::Rc;

use rand::Rng;

use super::super::flight::{Flight, FlightId, FlightState, QpId};
use super::super::host_core::HostCore;
use super::super::rules::Fault;
use super::super::trace::Mark;
use super::{Event, Fabric};
use crate::chain::{MASKED_BYTES, Op};
use crate::mapped::line::LINE_BYTES;
use crate::verbs::FabricError;

const LINE: u64 = LINE_BYTES as u64;
/// A PCIe read request, the piece that a READ happens in where lines have no times of their own.
const READ_REQUEST_BYTES: u64 = 512;
/// Beyond, the CPU's own prefetcher has noticed.
const PREFETCH_BYTES_MAX: u64 = 2048;

impl Fabric {
    pub(super) fn head(&mut self, id: FlightId) {
        let flight = self.flights[id.0 as usize];
        if flight.state == FlightState::Cancelled {
            return self.discard(id);
        }
        let service = self.profile.on_link_ps(flight.request_payload(), true);
        let now = self.now();
        let stay = self.nics[flight.to as usize].link_in.claim(now, service);
        self.events.post(stay.end, Event::Delivered(id));
    }

    pub(super) fn delivered(&mut self, id: FlightId) {
        let flight = self.flights[id.0 as usize];
        if flight.state == FlightState::Cancelled {
            return self.discard(id);
        }
        let server = self.groups[flight.group.0 as usize].server;
        if self.is_away(server) || self.qp(flight.qp).requests_lost_until_ns > self.now() {
            self.lose_server(flight.qp, server);
            return self.discard(id);
        }
        if self.is_lost_with_its_node(flight.qp) {
            return self.discard(id);
        }
        // Some of our own time passes until it is executed: enough to fetch what it will touch.
        self.memory.mapped()[server.0 as usize]
            .region()
            .prefetch(flight.offset(), flight.len().min(PREFETCH_BYTES_MAX));
        self.nics[flight.to as usize].receive(id);
        self.admit(flight.to);
    }

    fn admit(&mut self, nic: u16) {
        while let Some(id) = self.nics[nic as usize].admit() {
            let flight = self.flights[id.0 as usize];
            if flight.state == FlightState::Cancelled {
                self.nics[nic as usize].leave();
                self.discard(id);
                continue;
            }
            let service = match flight.op {
                Op::Read { .. } => self.profile.read_ps,
                Op::Write { .. } | Op::WriteWord { .. } => self.profile.write_ps,
                Op::Cas { .. } | Op::MaskedCas { .. } | Op::Faa { .. } => self.profile.atomic_ps,
            };
            self.flight(id).state = FlightState::InSlot;
            if flight.answered {
                self.qp(flight.qp).answers.push_back(id);
            }
            let now = self.now();
            let stay = self.nics[nic as usize].respond(now, service);
            self.events.post(stay.end, Event::Served(id));
        }
    }

    pub(super) fn leave_slot(&mut self, nic: u16) {
        self.nics[nic as usize].leave();
        self.admit(nic);
    }

    pub(super) fn served(&mut self, id: FlightId) {
        if self.flights[id.0 as usize].state == FlightState::Cancelled {
            return self.abandon(id);
        }
        let flight = self.flights[id.0 as usize];
        if let Err(error) = self.check_bounds(&flight) {
            // Before it or anything behind it has touched memory.
            self.fail_group(flight.group, error);
            return self.abandon(id);
        }
        let (now, qp) = (self.now(), &mut self.qps[flight.qp.0 as usize]);
        match flight.op {
            Op::Write { .. } | Op::WriteWord { .. } => {
                let after = qp.written_ns;
                self.begin_write(id, after);
            }
            Op::Read { .. } if qp.atomics > 0 => {
                qp.held.push_back(id);
                self.flight(id).state = FlightState::Held;
            }
            Op::Read { .. } => self.begin_read(id),
            Op::Cas { .. } | Op::MaskedCas { .. } | Op::Faa { .. } => {
                qp.atomics += 1;
                let at = qp.written_ns.max(now);
                self.flight(id).is_executing = true;
                self.events.post(at, Event::Atomic(id));
            }
        }
    }

    fn begin_write(&mut self, id: FlightId, after: u64) {
        let flight = self.flights[id.0 as usize];
        let now = self.now();
        let at = if flight.on_chip {
            now
        } else {
            let service = self.profile.on_pcie_ps(flight.request_payload());
            self.nics[flight.to as usize].pcie_write.claim(now, service).end
        };
        let last = self.scatter(id, at.max(after), 0);
        self.qp(flight.qp).written_ns = last;
    }

    fn begin_read(&mut self, id: FlightId) {
        let flight = self.flights[id.0 as usize];
        let now = self.now();
        let (begin, per_piece_ps) = if flight.on_chip {
            (now, 0)
        } else {
            let service = self.profile.on_pcie_ps(flight.response_payload());
            let stay = self.nics[flight.to as usize].pcie_read.claim(now, service);
            (stay.begin + self.profile.pcie_read_ns / 2, self.profile.on_pcie_ps(self.piece_bytes(&flight)))
        };
        let qp = &self.qps[flight.qp.0 as usize];
        let begin = begin.max(qp.written_ns).max(qp.read_ns);
        let last = self.scatter(id, begin, per_piece_ps);
        self.qp(flight.qp).read_ns = last;
    }

    /// Begins READs that waited for atomics, when those have been executed.
    pub(super) fn begin_held(&mut self, qp: QpId) {
        while self.qp(qp).atomics == 0
            && let Some(read) = self.qp(qp).held.pop_front()
        {
            self.flight(read).state = FlightState::InSlot;
            self.begin_read(read);
        }
    }

    /// Returns the bytes of a piece: what happens at one moment.
    fn piece_bytes(&self, flight: &Flight) -> u64 {
        match flight.op {
            _ if self.reordering.lines || flight.is_torn() => LINE,
            Op::Read { .. } => READ_REQUEST_BYTES,
            _ => u64::MAX / 2,
        }
    }

    /// Returns the range of the access that is piece number `piece`; pieces begin at line boundaries.
    fn piece_range(&self, flight: &Flight, piece: u16) -> Range<u64> {
        let (at, len, size) = (flight.offset(), flight.len(), self.piece_bytes(flight));
        let first_line = at / LINE * LINE;
        let begin = (first_line + u64::from(piece) * size).max(at);
        let end = first_line
            .saturating_add((u64::from(piece) + 1).saturating_mul(size))
            .min(at.saturating_add(len));
        begin..end
    }

    /// Posts the pieces of an access that begins at `begin`; yields the time of the last one.
    fn scatter(&mut self, id: FlightId, begin: u64, per_piece_ps: u64) -> u64 {
        let flight = self.flights[id.0 as usize];
        let size = self.piece_bytes(&flight);
        let (at, len) = (flight.offset(), flight.len());
        let pieces = (at - at / LINE * LINE).saturating_add(len).div_ceil(size).max(1) as u16;
        self.flight(id).pieces = pieces;
        let scattered = match self.reordering.scatter_one_in {
            0 => 0,
            one_in if self.rng.random_range(0..one_in) == 0 => self.reordering.scatter_ns,
            _ => 0,
        };
        let late_line = self.delay(false, |fault| match fault {
            Fault::DelayedLine(ns) => Some(ns),
            _ => None,
        });
        let late_line = late_line.map(|ns| (self.rng.random_range(0..pieces), self.rng.random_range(0..=ns)));
        let in_order = self.reordering.in_order_write && !flight.is_read();
        let (at_once, mut last) = self.hold_back(id, pieces, begin).unwrap_or((pieces, begin));
        let mut previous = begin;
        for piece in 0..at_once {
            let mut time = begin + u64::from(piece) * per_piece_ps / 1000;
            if scattered > 0 {
                time += self.rng.random_range(0..=scattered);
            }
            if let Some((late, ns)) = late_line
                && late == piece
            {
                time += ns;
            }
            if in_order {
                time = time.max(previous);
                previous = time;
            }
            last = last.max(time);
            self.events.post(time, Event::Piece(id, piece));
        }
        last
    }

    pub(super) fn piece(&mut self, id: FlightId, piece: u16, cores: &[Rc<HostCore>]) {
        let flight = self.flights[id.0 as usize];
        self.flight(id).pieces -= 1;
        let is_cancelled = flight.state == FlightState::Cancelled;
        if !is_cancelled && flight.arrives(piece) {
            let at = self.access(&flight, piece, cores);
            self.note_access(id, &flight, piece, at);
        }
        if flight.pieces > 1 {
            return;
        }
        if is_cancelled {
            return self.abandon(id);
        }
        if flight.is_read() {
            // The slot is held until the data is there.
            let at = self.now() + if flight.on_chip { 0 } else { self.profile.pcie_read_ns / 2 };
            return self.events.post(at, Event::Answer(id));
        }
        self.over(id);
    }

    /// Moves the bytes of one piece between memory and the chain's buffer; yields where they are in memory.
    fn access(&mut self, flight: &Flight, piece: u16, cores: &[Rc<HostCore>]) -> u64 {
        let range = self.piece_range(flight, piece);
        let group = &self.groups[flight.group.0 as usize];
        let region = self.memory.mapped()[group.server.0 as usize].region();
        let mut engine = cores[group.core as usize].engine();
        let chain = engine.slots_mut().chain_mut(group.slot);
        let skip = range.start - flight.offset();
        let local = |start: u32| {
            let start = u64::from(start) + skip;
            start as usize..(start + (range.end - range.start)) as usize
        };
        let done = match flight.op {
            Op::Read { to, .. } => {
                let buf = chain.buffer_mut().expect("chains check their ranges against their buffer");
                region.read(range.start, &mut buf[local(to)])
            }
            Op::Write { from, .. } => {
                let buf = chain.buffer().expect("chains check their ranges against their buffer");
                region.write(range.start, &buf[local(from)])
            }
            Op::WriteWord { at, word } => region.write_word(at, word),
            Op::Cas { .. } | Op::MaskedCas { .. } | Op::Faa { .. } => {
                unreachable!("atomics have no pieces")
            }
        };
        done.expect("its bounds were checked when it arrived");
        self.trace.mark(self.events.now(), Mark::Access, range.start, u64::from(group.core));
        range.start
    }

    fn check_bounds(&self, flight: &Flight) -> Result<(), FabricError> {
        let server = self.groups[flight.group.0 as usize].server;
        let region_bytes = self.memory.mapped()[server.0 as usize].region().bytes();
        let (offset, len) = (flight.offset(), flight.len());
        match offset.checked_add(len) {
            Some(end) if end <= region_bytes => Ok(()),
            _ => Err(FabricError::OutOfBounds { server, offset, len, region_bytes }),
        }
    }

    pub(super) fn atomic(&mut self, id: FlightId, cores: &[Rc<HostCore>]) {
        let flight = self.flights[id.0 as usize];
        if flight.state == FlightState::Cancelled {
            return self.abandon(id);
        }
        if self.nics[flight.to as usize].enter_bucket(flight.offset(), id) {
            self.serve_atomic(id, cores);
        }
    }

    /// Executes the first atomic of a bucket, which keeps the bucket busy for a while.
    fn serve_atomic(&mut self, id: FlightId, cores: &[Rc<HostCore>]) {
        let flight = self.flights[id.0 as usize];
        let now = self.now();
        if flight.state == FlightState::Cancelled {
            return self.events.post(now, Event::AtomicOver(id));
        }
        let group = &self.groups[flight.group.0 as usize];
        let (core, slot, server) = (group.core, group.slot, group.server);
        let region = self.memory.mapped()[server.0 as usize].region();
        let mut engine = cores[core as usize].engine();
        let found = match flight.op {
            Op::Cas { at, expected, desired } => region.cas(at, expected, desired),
            Op::MaskedCas { at, expected, desired, to } => {
                let buf = engine.slots_mut().chain_mut(slot).buffer_mut();
                let buf = buf.expect("chains check their ranges against their buffer");
                let all = &mut buf[to as usize..][..MASKED_BYTES];
                let found = region.read(at - at % MASKED_BYTES as u64, all);
                found.and_then(|()| region.cas(at, expected, desired))
            }
            Op::Faa { at, add } => region.faa(at, add),
            _ => unreachable!("only atomics enter buckets"),
        };
        let found = found.expect("its bounds were checked when it arrived");
        let changes = !matches!(flight.op,
            Op::Cas { expected, .. } | Op::MaskedCas { expected, .. } if expected != found);
        engine.slots_mut().parts(slot).1[flight.atomic as usize] = found;
        drop(engine);
        self.trace.mark(now, Mark::Atomic, flight.offset(), found);
        let service = match (flight.on_chip, changes) {
            (true, _) => self.profile.on_chip_ns,
            (false, true) => self.profile.cas_success_ns,
            (false, false) => self.profile.cas_failure_ns,
        };
        self.events.post(now + service, Event::AtomicOver(id));
    }

    pub(super) fn atomic_over(&mut self, id: FlightId, cores: &[Rc<HostCore>]) {
        let flight = self.flights[id.0 as usize];
        if let Some(next) = self.nics[flight.to as usize].leave_bucket(flight.offset()) {
            self.serve_atomic(next, cores);
        }
        if flight.state == FlightState::Cancelled {
            return self.abandon(id);
        }
        self.flight(id).is_executing = false;
        self.qp(flight.qp).atomics -= 1;
        self.begin_held(flight.qp);
        self.over(id);
    }

    /// Ends a WRITE or an atomic that has taken effect.
    fn over(&mut self, id: FlightId) {
        if self.flights[id.0 as usize].answered {
            let now = self.now();
            return self.events.post(now, Event::Answer(id));
        }
        let to = self.flights[id.0 as usize].to;
        self.discard(id);
        self.leave_slot(to);
    }
}

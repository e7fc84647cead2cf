//! READs whose rest comes late: not before others have written what lies across a line's boundary so many times more.
//! If that is as often as versions wrap around, such a READ finds the same version in both lines, of different writes.
//! It knows where WRITEs cross boundaries, and nothing of versions.

use super::super::flight::{Flight, FlightId};
use super::super::rules::Fault;
use super::{Event, Fabric};
use crate::mapped::line::LINE_BYTES;
use crate::pointer::ServerId;

/// Boundaries that are remembered: those which WRITEs have crossed last.
const BOUNDARIES_MAX: usize = 8;
/// Longer WRITEs are whole nodes.
const LINES_OF_ENTRIES_MAX: u64 = 4;

/// Where one line ends and another begins that a WRITE has changed together.
pub(super) type Boundary = (ServerId, u64);

/// A READ of which all from one piece on is still to come.
pub(super) struct Overtaken {
    read: FlightId,
    pieces: std::ops::Range<u16>,
    boundary: Boundary,
    /// Set if the piece in front of the boundary has been read.
    has_begun: bool,
    /// WRITEs across the boundary until the rest is read; 0 if it was.
    left: u32,
}

impl Fabric {
    /// Holds the rest of a READ back that begins now, if such a fault strikes: yields its first piece, and when it is
    /// read at the latest. A READ behind a CAS of its chain is not held back: if the CAS took a lock, no WRITE comes,
    /// and if not, its reader does not look at it, and would only be late at its next try.
    pub(super) fn hold_back(&mut self, id: FlightId, pieces: u16, begin: u64) -> Option<(u16, u64)> {
        let flight = self.flights[id.0 as usize];
        if !self.reordering.lines || !flight.is_read() || flight.atomic > 0 || self.crossed.is_empty() {
            return None;
        }
        let server = self.groups[flight.group.0 as usize].server;
        let range = flight.offset() + 1..flight.offset() + flight.len();
        let lies_across = |boundary: &&Boundary| boundary.0 == server && range.contains(&boundary.1);
        let boundary = *self.crossed.iter().rev().find(lies_across)?;
        let (writes, within_ns) = self.delay(false, |fault| match fault {
            Fault::OvertakenRead { writes, within_ns } => Some((writes, within_ns)),
            _ => None,
        })?;
        let line = LINE_BYTES as u64;
        let first = ((boundary.1 - flight.offset() / line * line) / line) as u16;
        let rest = Overtaken { read: id, pieces: first..pieces, boundary, has_begun: false, left: writes };
        let place = self.overtaken.insert(rest);
        self.events.post(begin + within_ns, Event::RestAtLast(place as u32));
        Some((first, begin + within_ns))
    }

    /// Notes that a piece was accessed, which may be what others wait for.
    #[inline]
    pub(super) fn note_access(&mut self, id: FlightId, flight: &Flight, piece: u16, at: u64) {
        if self.reordering.lines && flight.lines_written() <= LINES_OF_ENTRIES_MAX {
            self.note_entry(id, flight, piece, at);
        }
    }

    fn note_entry(&mut self, id: FlightId, flight: &Flight, piece: u16, at: u64) {
        if flight.is_read() {
            for (_, rest) in &mut self.overtaken {
                rest.has_begun |= rest.read == id && rest.pieces.start == piece + 1;
            }
            return;
        }
        if piece == 0 {
            return;
        }
        let boundary = (self.groups[flight.group.0 as usize].server, at);
        if self.crossed.back() != Some(&boundary) {
            self.crossed.retain(|other| *other != boundary);
            self.crossed.push_back(boundary);
            if self.crossed.len() > BOUNDARIES_MAX {
                self.crossed.pop_front();
            }
        }
        let waits = |rest: &Overtaken| rest.has_begun && rest.left > 0 && rest.boundary == boundary;
        let waiting = self.overtaken.iter().filter(|(_, rest)| waits(rest));
        for place in waiting.map(|(place, _)| place).collect::<Vec<_>>() {
            self.overtaken[place].left -= 1;
            if self.overtaken[place].left == 0 {
                tracing::debug!(name: "sim.read.overtaken", "WRITEs have overtaken a READ");
                self.read_rest(place);
            }
        }
    }

    /// Reads the rest of a READ when the time is over in which WRITEs may overtake it.
    pub(super) fn rest_at_last(&mut self, place: u32) {
        if self.overtaken[place as usize].left > 0 {
            self.read_rest(place as usize);
        }
        self.overtaken.remove(place as usize);
    }

    fn read_rest(&mut self, place: usize) {
        let (now, rest) = (self.now(), &self.overtaken[place]);
        for piece in rest.pieces.clone() {
            self.events.post(now, Event::Piece(rest.read, piece));
        }
    }
}

//! One machine's NIC as queues: the requester, both directions of link and PCIe, the responder with its slots, and the
//! buckets that serialise atomics. Compute and memory roles of a machine share it. Pure state; when things happen is
//! the business of [`super::fabric`], which claims a resource when a message arrives at it, never in advance.

use std::collections::VecDeque;

use super::flight::FlightId;
use super::profile::Profile;

/// A resource that serves one after the other in the order of their claims.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Fifo {
    free_at_ps: u64,
}

/// A stay at a [`Fifo`], in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    pub(super) begin: u64,
    pub(super) end: u64,
}

impl Fifo {
    /// Takes the resource for `service_ps` from `now_ns` on, or as soon as it is free.
    #[inline]
    pub(super) fn claim(&mut self, now_ns: u64, service_ps: u64) -> Stay {
        let begin = self.free_at_ps.max(now_ns * 1000);
        self.free_at_ps = begin + service_ps;
        Stay { begin: begin.div_ceil(1000), end: self.free_at_ps.div_ceil(1000) }
    }
}

/// One machine's NIC.
pub(super) struct Nic {
    pub(super) requester: Fifo,
    pub(super) link_out: Fifo,
    pub(super) link_in: Fifo,
    /// Reads of host memory by the NIC: what READs fetch and what WRITEs gather.
    pub(super) pcie_read: Fifo,
    /// Writes to host memory by the NIC: what WRITEs bring and what READs return.
    pub(super) pcie_write: Fifo,
    responder: Fifo,
    slots_free: usize,
    /// Requests that arrived and have no slot yet.
    inbox: VecDeque<FlightId>,
    /// Atomics by bucket: the first of each is being served.
    buckets: Vec<VecDeque<FlightId>>,
}

impl Nic {
    pub(super) fn new(profile: &Profile) -> Self {
        Nic {
            requester: Fifo::default(),
            link_out: Fifo::default(),
            link_in: Fifo::default(),
            pcie_read: Fifo::default(),
            pcie_write: Fifo::default(),
            responder: Fifo::default(),
            slots_free: profile.responder_slots,
            inbox: VecDeque::new(),
            // Words are 8 bytes apart: of the buckets that the low bits name, every eighth is used.
            buckets: vec![VecDeque::new(); (profile.atomic_buckets / 8).max(1) as usize],
        }
    }

    /// Queues a request that has arrived.
    pub(super) fn receive(&mut self, flight: FlightId) {
        self.inbox.push_back(flight);
    }

    /// Takes the next request that may go to the responder: it holds a slot from now on. Requests wait in one line,
    /// whatever they ask for: those behind a full house of waiting atomics wait for them.
    #[inline]
    pub(super) fn admit(&mut self) -> Option<FlightId> {
        if self.slots_free == 0 {
            return None;
        }
        let next = self.inbox.pop_front()?;
        self.slots_free -= 1;
        Some(next)
    }

    /// Claims the responder's own time for an admitted request.
    #[inline]
    pub(super) fn respond(&mut self, now_ns: u64, service_ps: u64) -> Stay {
        self.responder.claim(now_ns, service_ps)
    }

    /// Gives a slot back.
    #[inline]
    pub(super) fn leave(&mut self) {
        self.slots_free += 1;
    }

    /// Puts an atomic on the word at `offset` into its bucket; true if it is served at once.
    pub(super) fn enter_bucket(&mut self, offset: u64, flight: FlightId) -> bool {
        let bucket = self.bucket(offset);
        self.buckets[bucket].push_back(flight);
        self.buckets[bucket].len() == 1
    }

    /// Ends the atomic that is served in the bucket of `offset`; yields the next one there.
    pub(super) fn leave_bucket(&mut self, offset: u64) -> Option<FlightId> {
        let bucket = self.bucket(offset);
        self.buckets[bucket].pop_front();
        self.buckets[bucket].front().copied()
    }

    /// Tells whether nothing waits and every slot is free.
    #[cfg(test)]
    pub(super) fn is_at_rest(&self, profile: &Profile) -> bool {
        self.slots_free == profile.responder_slots
            && self.inbox.is_empty()
            && self.buckets.iter().all(VecDeque::is_empty)
    }

    fn bucket(&self, offset: u64) -> usize {
        (offset / 8) as usize % self.buckets.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_serves_in_the_order_of_claims() {
        let mut fifo = Fifo::default();
        let stays = [fifo.claim(10, 2500), fifo.claim(10, 2500), fifo.claim(100, 500)];
        assert_eq!(stays.map(|stay| (stay.begin, stay.end)), [(10, 13), (13, 15), (100, 101)]);
    }

    #[test]
    fn requests_wait_for_slots_in_line() {
        let mut nic = Nic::new(&Profile { responder_slots: 2, ..Profile::CONNECTX5 });
        for id in 0..3 {
            nic.receive(FlightId(id));
        }
        assert_eq!((nic.admit(), nic.admit(), nic.admit()), (Some(FlightId(0)), Some(FlightId(1)), None));
        nic.leave();
        assert_eq!((nic.admit(), nic.admit()), (Some(FlightId(2)), None));
    }

    #[test]
    fn atomics_with_the_same_low_bits_are_served_one_by_one() {
        let mut nic = Nic::new(&Profile::CONNECTX5);
        assert!(nic.enter_bucket(8, FlightId(0)));
        assert!(!nic.enter_bucket(8 + 4096, FlightId(1)));
        assert!(nic.enter_bucket(16, FlightId(2)));
        assert_eq!(nic.leave_bucket(8), Some(FlightId(1)));
        assert_eq!(nic.leave_bucket(8), None);
    }
}

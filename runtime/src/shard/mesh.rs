//! Mailboxes between the shards of a node: one single-producer ring per ordered pair, drained by the receiver's turns.
//!
//! An executor's own channels are served once per preemption quantum while a shard spins, a ring in 0.3 us.
//! A full ring overflows into a queue on the sender's side, so sending never waits: two shards that waited for each
//! other's ring would deadlock. Order between two shards is kept: nothing bypasses the overflow.

use std::collections::VecDeque;
use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};

use super::parking::{Parking, Unpark};
use crate::message::{Envelope, ShardId};

/// Messages that a ring between two threads has room for.
pub(crate) const RING_MESSAGES: usize = 1024;

/// One shard's ends of the rings.
pub(crate) struct MeshEnds {
    own: ShardId,
    /// By receiving shard; none for the shard itself.
    outgoing: Vec<Option<Outgoing>>,
    /// By sending shard; none for the shard itself.
    incoming: Vec<Option<Consumer<Envelope>>>,
    to_self: VecDeque<Envelope>,
    parkings: Vec<Arc<Parking>>,
    overflowing: usize,
}

struct Outgoing {
    ring: Producer<Envelope>,
    overflow: VecDeque<Envelope>,
}

/// Makes the rings between `shards` shards, each with room for `messages`: for each shard its ends.
pub(crate) fn mesh(shards: usize, messages: usize) -> Vec<MeshEnds> {
    let parkings: Vec<Arc<Parking>> = (0..shards).map(|_| Arc::default()).collect();
    let mut ends: Vec<MeshEnds> = (0..shards)
        .map(|own| MeshEnds {
            own: ShardId(own as u16),
            outgoing: (0..shards).map(|_| None).collect(),
            incoming: (0..shards).map(|_| None).collect(),
            to_self: VecDeque::new(),
            parkings: parkings.clone(),
            overflowing: 0,
        })
        .collect();
    for from in 0..shards {
        for to in (0..shards).filter(|&to| to != from) {
            let (producer, consumer) = RingBuffer::new(messages);
            ends[from].outgoing[to] = Some(Outgoing { ring: producer, overflow: VecDeque::new() });
            ends[to].incoming[from] = Some(consumer);
        }
    }
    ends
}

impl MeshEnds {
    pub(crate) fn shard(&self) -> ShardId {
        self.own
    }

    /// Yields what wakes this shard.
    pub(crate) fn unpark(&self) -> Unpark {
        Unpark::new(Arc::clone(self.own_parking()))
    }

    pub(super) fn shards(&self) -> usize {
        self.parkings.len()
    }

    pub(super) fn own_parking(&self) -> &Arc<Parking> {
        &self.parkings[self.own.0 as usize]
    }

    /// Sends a message, and yields whether that leaves work to the sender's own turns: a message to itself, or one that
    /// overflowed.
    pub(super) fn send(&mut self, to: ShardId, envelope: Envelope) -> bool {
        let Some(outgoing) = &mut self.outgoing[to.0 as usize] else {
            self.to_self.push_back(envelope);
            return true;
        };
        if !outgoing.overflow.is_empty() {
            outgoing.overflow.push_back(envelope);
        } else if let Err(rtrb::PushError::Full(envelope)) = outgoing.ring.push(envelope) {
            outgoing.overflow.push_back(envelope);
            self.overflowing += 1;
        }
        self.parkings[to.0 as usize].unpark();
        !outgoing.overflow.is_empty()
    }

    /// Moves what overflowed into rings that have room again.
    pub(super) fn flush(&mut self) {
        if self.overflowing == 0 {
            return;
        }
        for (to, outgoing) in self.outgoing.iter_mut().enumerate() {
            let Some(Outgoing { ring, overflow }) = outgoing else { continue };
            if overflow.is_empty() {
                continue;
            }
            while let Some(&envelope) = overflow.front() {
                if ring.push(envelope).is_err() {
                    break;
                }
                overflow.pop_front();
            }
            self.overflowing -= usize::from(overflow.is_empty());
            self.parkings[to].unpark();
        }
    }

    /// Takes up to `most` messages from each sender: no busy one keeps the others waiting.
    pub(super) fn receive(&mut self, most: usize, into: &mut Vec<(ShardId, Envelope)>) {
        for _ in 0..most.min(self.to_self.len()) {
            into.extend(self.to_self.pop_front().map(|envelope| (self.own, envelope)));
        }
        for (from, ring) in self.incoming.iter_mut().enumerate() {
            let Some(ring) = ring else { continue };
            for _ in 0..most {
                let Ok(envelope) = ring.pop() else { break };
                into.push((ShardId(from as u16), envelope));
            }
        }
    }

    /// Takes the next message from one sender.
    #[cfg(feature = "sim")]
    pub(super) fn take_from(&mut self, from: ShardId) -> Option<Envelope> {
        match &mut self.incoming[usize::from(from.0)] {
            Some(ring) => ring.pop().ok(),
            None => self.to_self.pop_front(),
        }
    }

    /// Tells whether a message has arrived or waits for room.
    pub(super) fn has_work(&self) -> bool {
        self.overflowing > 0
            || !self.to_self.is_empty()
            || self.incoming.iter().flatten().any(|ring| !ring.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Message, Port};

    fn numbered(n: u64) -> Envelope {
        Envelope { port: Port(0), message: Message([n, 0, 0]) }
    }

    #[test]
    fn a_full_ring_overflows_and_keeps_the_order() {
        let mut ends = mesh(2, 32);
        let total = 1_000;
        for n in 0..total {
            ends[0].send(ShardId(1), numbered(n));
        }
        let mut seen = 0;
        while seen < total {
            let mut batch = Vec::new();
            ends[1].receive(100, &mut batch);
            for (from, envelope) in batch {
                assert_eq!((from, envelope.message.0[0]), (ShardId(0), seen));
                seen += 1;
            }
            ends[0].flush();
        }
        assert!(!ends[0].has_work() && !ends[1].has_work());
    }

    #[test]
    fn a_shard_can_write_to_itself() {
        let mut ends = mesh(1, 32);
        ends[0].send(ShardId(0), numbered(5));
        assert!(ends[0].has_work());
        let mut batch = Vec::new();
        ends[0].receive(10, &mut batch);
        assert_eq!(batch[0].1.message.0[0], 5);
    }
}

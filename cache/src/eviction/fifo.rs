//! First in, first out: a queue of what came in. Nodes that left by other ways stay in the queue until they
//! reach its head, or until they are more than the nodes that live.

use std::collections::VecDeque;

use super::{Cached, Eviction, Place};

#[derive(Default)]
pub(super) struct Fifo {
    queue: VecDeque<Entry>,
    /// Bytes of the low keys in the queue.
    low_bytes: usize,
}

struct Entry {
    low: Box<[u8]>,
    born: u32,
}

impl Eviction for Fifo {
    fn inserted(&mut self, low: &[u8], born: u32, cached: &dyn Cached, nodes: usize) {
        self.low_bytes += low.len();
        self.queue.push_back(Entry { low: low.into(), born });
        if self.queue.len() > 2 * nodes + 8 {
            self.queue.retain(|entry| cached.find(&entry.low, entry.born).is_some());
            self.queue.shrink_to(2 * nodes);
            self.low_bytes = self.queue.iter().map(|entry| entry.low.len()).sum();
        }
    }

    fn victim(&mut self, cached: &dyn Cached) -> Option<Place> {
        while let Some(entry) = self.queue.pop_front() {
            self.low_bytes -= entry.low.len();
            if let Some(place) = cached.find(&entry.low, entry.born) {
                return Some(place);
            }
        }
        None
    }

    fn cleared(&mut self) {
        *self = Fifo::default();
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.queue.capacity() * size_of::<Entry>() + self.low_bytes
    }
}

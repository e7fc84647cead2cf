//! The nodes that a bulk load writes, many at a time, and which go back if it does not come to its end. It does not
//! know what is in a node.

use std::collections::VecDeque;

use farwood_runtime::alloc::AllocError;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, ServerId, Verbs};

use crate::error::AccessError;
use crate::layout::LINE_BYTES;
use crate::shell::algorithm::Algorithm;
use crate::shell::handle::Local;

/// Nodes that are written at the same time.
const WRITES_IN_FLIGHT: usize = 32;

/// The writer of a load's nodes. They go back to the allocator when this is dropped, unless they were published.
pub(crate) struct BulkWriter<'l, A: Algorithm, V: Verbs> {
    local: &'l Local<A, V>,
    pub(crate) meter: Meter,
    writes: VecDeque<(RemotePtr, V::Submission)>,
    allocated: Vec<Run>,
}

/// Nodes of one size, one behind the other.
pub(crate) struct Run {
    first: RemotePtr,
    bytes: u64,
    count: u64,
}

impl<'l, A: Algorithm, V: Verbs> BulkWriter<'l, A, V> {
    pub(crate) fn new(local: &'l Local<A, V>) -> Self {
        BulkWriter { local, meter: Meter::default(), writes: VecDeque::new(), allocated: Vec::new() }
    }

    /// Tells whether no node would go back.
    pub(crate) fn is_empty(&self) -> bool {
        self.allocated.is_empty()
    }

    /// Allocates a node, on that memory server if one is named and has memory left.
    pub(crate) async fn allocate(
        &mut self,
        near: Option<ServerId>,
        bytes: usize,
    ) -> Result<RemotePtr, AllocError> {
        let allocator = &self.local.allocator;
        let node = match near {
            Some(server) => allocator.allocate_near(server, bytes as u64).await?.at,
            None => allocator.allocate(bytes as u64).await?,
        };
        let bytes = (bytes as u64).next_multiple_of(LINE_BYTES as u64);
        match self.allocated.last_mut() {
            Some(run) if run.bytes == bytes && run.first.add(run.count * bytes) == node => run.count += 1,
            _ => self.allocated.push(Run { first: node, bytes, count: 1 }),
        }
        Ok(node)
    }

    /// WRITEs a node, while others are on their way.
    pub(crate) async fn write(&mut self, at: RemotePtr, buf: Buf) -> Result<(), AccessError> {
        self.drain(WRITES_IN_FLIGHT - 1).await?;
        let bytes = buf.len();
        let mut chain = Chain::with_buffer(at.server(), buf);
        chain.write(at, 0..bytes);
        self.writes.push_back((at, self.local.verbs.post(&self.meter, chain)));
        Ok(())
    }

    /// Waits until at most `left` WRITEs are in flight.
    pub(crate) async fn drain(&mut self, left: usize) -> Result<(), AccessError> {
        let mut budget = self.local.budget();
        while self.writes.len() > left {
            let (at, mut write) = self.writes.pop_front().expect("there are more than `left`");
            while let Err(failed) = write.await {
                write = self.local.verbs.submit(&self.meter, budget.post_again(&self.meter, at, failed)?);
            }
        }
        Ok(())
    }

    /// Marks the nodes as ones that other clients may find from here on. Yields them.
    pub(crate) fn publish(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.allocated)
    }

    /// Takes nodes back that turn out not to have been found.
    pub(crate) fn withdraw(&mut self, nodes: Vec<Run>) {
        self.allocated = nodes;
    }
}

impl<A: Algorithm, V: Verbs> Drop for BulkWriter<'_, A, V> {
    fn drop(&mut self) {
        // WRITEs to them may be in flight: their next owner writes behind those, on the same queue pairs.
        for Run { first, bytes, count } in &self.allocated {
            (0..*count)
                .for_each(|place| self.local.allocator.return_extent(first.add(place * bytes), *bytes));
        }
    }
}

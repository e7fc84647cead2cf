//! Nodes on the fabric, for all algorithms: READs that are posted again, locks, and nodes that are new. It does not
//! know what is in a node.

use farwood_lock::{Held, LockError};
use farwood_runtime::alloc::AllocError;
use farwood_runtime::{Buf, Chain, Completion, Meter, RemotePtr, ServerId, Verbs};
use smallvec::SmallVec;

use crate::error::{AccessError, WriteError};
use crate::shell::algorithm::Algorithm;
use crate::shell::handle::Local;
use crate::step::Budget;

/// Attempts of a janitor to find out what became of a CAS, within two seconds, while its memory server does not answer.
const ATTEMPTS_MAX: u32 = 20;
/// Its pauses in ns, each twice as long as the one before.
const PAUSE_NS_MIN: u64 = 16_000;
const PAUSE_NS_MAX: u64 = 1 << 28;

/// Addresses of nodes, and their bytes.
pub type NodeList = SmallVec<[(RemotePtr, u64); 2]>;

/// Nodes that were allocated and that nothing refers to yet. They go back to the allocator when this is dropped, unless
/// they were published.
pub struct NewNodes<'l, A: Algorithm, V: Verbs> {
    local: &'l Local<A, V>,
    nodes: NodeList,
}

impl<'l, A: Algorithm, V: Verbs> NewNodes<'l, A, V> {
    /// Takes over nodes that other clients cannot reach.
    pub fn of(local: &'l Local<A, V>, nodes: NodeList) -> Self {
        NewNodes { local, nodes }
    }

    /// Lists the nodes.
    pub fn list(&self) -> &[(RemotePtr, u64)] {
        &self.nodes
    }

    /// Adds a node that was allocated.
    pub fn push(&mut self, node: RemotePtr, bytes: usize) {
        self.nodes.push((node, bytes as u64));
    }

    /// Allocates one more, on that memory server if one is named and has memory left.
    ///
    /// # Errors
    /// If no memory server has memory left.
    pub async fn allocate(&mut self, near: Option<ServerId>, bytes: usize) -> Result<RemotePtr, AllocError> {
        let allocator = &self.local.allocator;
        let node = match near {
            Some(server) => allocator.allocate_near(server, bytes as u64).await?.at,
            None => allocator.allocate(bytes as u64).await?,
        };
        self.push(node, bytes);
        Ok(node)
    }

    /// Allocates one more, on any memory server, and writes `image` there: one round trip, and one more for each queue
    /// pair that breaks meanwhile. No client reads what a failed attempt has left there, so it is simply posted again.
    ///
    /// # Errors
    /// If there is no memory left, or the fabric fails for good.
    pub async fn write(
        &mut self,
        meter: &Meter,
        image: Buf,
        budget: &mut Budget,
    ) -> Result<RemotePtr, WriteError> {
        let node = self.allocate(None, image.len()).await?;
        self.write_all(meter, [(node, image)], budget).await?;
        Ok(node)
    }

    /// Writes nodes that were allocated, in parallel: one round trip, and one more for each queue pair that breaks
    /// meanwhile.
    ///
    /// # Errors
    /// If the fabric fails for good.
    pub async fn write_all(
        &self,
        meter: &Meter,
        images: impl IntoIterator<Item = (RemotePtr, Buf)>,
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        let verbs = &self.local.verbs;
        meter.round_trip();
        let post = |(node, image): (RemotePtr, Buf)| {
            let bytes = image.len();
            let mut chain = Chain::with_buffer(node.server(), image);
            chain.write(node, 0..bytes);
            (node, verbs.post(meter, chain))
        };
        let posted: SmallVec<[_; 2]> = images.into_iter().map(post).collect();
        for (node, written) in posted {
            let mut written = written.await;
            while let Err(failed) = written {
                written = verbs.submit(meter, budget.post_again(meter, node, failed)?).await;
            }
        }
        Ok(())
    }

    /// Marks the nodes as ones that other clients may find from here on: they never go back. Yields them.
    pub fn publish(&mut self) -> NodeList {
        std::mem::take(&mut self.nodes)
    }
}

impl<A: Algorithm, V: Verbs> Drop for NewNodes<'_, A, V> {
    fn drop(&mut self) {
        // WRITEs to them may be in flight: their next owner writes behind those, on the same queue pairs.
        for &(node, bytes) in &self.nodes {
            self.local.allocator.return_extent(node, bytes);
        }
    }
}

impl<A: Algorithm, V: Verbs> Local<A, V> {
    /// Does in the background what a dropped operation has left: `attempt`, until it succeeds, for two seconds.
    pub(crate) async fn persist<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, AccessError>,
    ) -> Result<T, AccessError> {
        let mut pauses = (0..ATTEMPTS_MAX).map(|number| (PAUSE_NS_MIN << number).min(PAUSE_NS_MAX));
        loop {
            match (attempt().await, pauses.next()) {
                (Err(error), Some(pause)) => {
                    tracing::debug!(name: "janitor.again", %error, "what a dropped operation left is tried again");
                    self.verbs.pause(pause).await;
                }
                (done, _) => return done,
            }
        }
    }

    /// Makes an empty list of new nodes.
    pub fn new_nodes(&self) -> NewNodes<'_, A, V> {
        NewNodes::of(self, NodeList::new())
    }

    /// Locks and reads a node of `bytes` bytes: one round trip with `fused` or when the lock is handed over, else two.
    ///
    /// # Errors
    /// If the lock does not come free, or the fabric fails for good.
    pub async fn lock_and_read(
        &self,
        meter: &Meter,
        node: RemotePtr,
        bytes: usize,
        fused: bool,
    ) -> Result<(Held<V>, Buf), AccessError> {
        let held = self.locks.acquire(meter, node).await?;
        Ok(self.read_with_lock(meter, held, bytes, fused).await?)
    }

    /// Locks and reads a node whose local lock is held, as [`Local::lock_and_read`] does.
    ///
    /// # Errors
    /// If the lock does not come free, or the fabric fails for good.
    pub(crate) async fn read_with_lock(
        &self,
        meter: &Meter,
        mut held: Held<V>,
        bytes: usize,
        fused: bool,
    ) -> Result<(Held<V>, Buf), LockError> {
        let buf = self.verbs.lease(bytes);
        let read = held.lock_and_read(meter, buf, bytes, fused).await?;
        Ok((held, read.into_buf()))
    }

    /// Takes a node's lock and gives it back: afterwards, all that its previous holder began has taken effect.
    pub(crate) async fn settle_node(&self, meter: &Meter, node: RemotePtr) -> Result<(), AccessError> {
        let mut held = self.locks.acquire(meter, node).await?;
        held.lock(meter).await?;
        Ok(held.unlock(meter).await?)
    }

    /// READs `bytes` bytes at `at`: one round trip, and one more for each queue pair that breaks meanwhile.
    ///
    /// # Errors
    /// The cause, if asking again does not help or the budget is spent.
    #[inline]
    pub async fn fetch(
        &self,
        meter: &Meter,
        at: RemotePtr,
        bytes: usize,
        budget: &mut Budget,
    ) -> Result<Completion, AccessError> {
        loop {
            match self.verbs.read(meter, at, bytes).await {
                Ok(read) => return Ok(read),
                Err(failed) => drop(budget.post_again(meter, at, failed)?),
            }
        }
    }

    /// READs as [`Local::fetch`] does; yields the bytes alone.
    ///
    /// # Errors
    /// As [`Local::fetch`].
    #[inline]
    pub async fn read(
        &self,
        meter: &Meter,
        at: RemotePtr,
        bytes: usize,
        budget: &mut Budget,
    ) -> Result<Buf, AccessError> {
        Ok(self.fetch(meter, at, bytes, budget).await?.into_buf())
    }

    /// Writes a word of a node whose lock is held: one round trip, and one more for each queue pair that breaks
    /// meanwhile.
    ///
    /// # Errors
    /// The cause, if posting it again does not help.
    pub(crate) async fn write_word(
        &self,
        meter: &Meter,
        at: RemotePtr,
        word: u64,
    ) -> Result<(), AccessError> {
        let mut budget = self.budget();
        let mut chain = Chain::new(at.server());
        chain.write_word(at, word);
        loop {
            match self.verbs.submit(meter, chain).await {
                Ok(_) => return Ok(()),
                Err(failed) => chain = budget.post_again(meter, at, failed)?,
            }
        }
    }

    /// READs one word: one round trip, and one more for each queue pair that breaks meanwhile.
    ///
    /// # Errors
    /// As [`Local::fetch`].
    pub async fn read_word(
        &self,
        meter: &Meter,
        at: RemotePtr,
        budget: &mut Budget,
    ) -> Result<u64, AccessError> {
        let buf = self.read(meter, at, 8, budget).await?;
        Ok(u64::from_le_bytes(buf[..8].try_into().expect("eight bytes")))
    }
}

//! Operations on the fabric. Each `.await` on a submission is a round trip; an operation that is dropped at one leaves
//! nothing behind: locks see to themselves, and new nodes go back unless they were published.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Mutex;

use farwood_index::check::inside;
use farwood_index::layout::{LeafLayout, NodeVersion, Rejection, wrap_ns};
use farwood_index::shell::{Local, NewNodes};
use farwood_index::write_op::WriteOp;
use farwood_index::{AccessError, Budget, Bytes, WriteError};
use farwood_lock::Held;
use farwood_runtime::{Buf, Meter, RemotePtr, Verbs};

use super::OwnIndex;
use super::bucket::Bucket;

/// The index as one shard works on it.
pub(super) type Here<V> = Local<OwnIndex, V>;

/// The memory of a compute node: where buckets begin, and are. That stays so: a bucket gives its upper keys to others,
/// and neither moves nor goes.
pub(super) type Directory = Mutex<BTreeMap<Bytes, RemotePtr>>;

/// An operation under way.
pub(super) struct Operation<'o, V: Verbs> {
    local: &'o Rc<Here<V>>,
    meter: &'o Meter,
    budget: Budget,
    pub(super) layout: LeafLayout,
    /// Buckets that nothing leads to yet.
    new: NewNodes<'o, OwnIndex, V>,
}

impl<'o, V: Verbs> Operation<'o, V> {
    pub(super) fn new(local: &'o Rc<Here<V>>, meter: &'o Meter) -> Self {
        let (layout, _) = local.shared.persisted.layouts().expect("the shell has checked the sizes");
        Operation { local, meter, budget: local.budget(), layout, new: local.new_nodes() }
    }

    /// Yields the last bucket known that may be the one for `key`.
    fn known(&self, key: &[u8]) -> Option<RemotePtr> {
        let directory = self.local.shared.state.lock().expect("no holder panics");
        Some(*directory.range(..=Bytes::from_slice(key)).next_back()?.1)
    }

    /// Yields the address of the first bucket, null if there is none. One round trip.
    pub(super) async fn first(&mut self) -> Result<RemotePtr, AccessError> {
        let root = self.local.shared.entry.root;
        Ok(RemotePtr::from_bits(self.local.read_word(self.meter, root, &mut self.budget).await?))
    }

    /// Finds the bucket for `key`, if there is one: a round trip for each bucket from the last one known on.
    pub(super) async fn seek(&mut self, key: &[u8]) -> Result<Option<(RemotePtr, Bucket)>, AccessError> {
        let mut at = if let Some(at) = self.known(key) { at } else { self.first().await? };
        let mut low = Bytes::new();
        while !at.is_null() {
            let bucket = self.read(at).await?;
            if bucket.low < low {
                return Err(AccessError::corrupt(at, "it is not to the right of the bucket that leads here"));
            }
            self.local.shared.state.lock().expect("no holder panics").insert(bucket.low.clone(), at);
            if bucket.is_for(key) {
                return Ok(Some((at, bucket)));
            }
            (at, low) = (bucket.next, bucket.high.unwrap_or_default());
        }
        Ok(None)
    }

    /// Reads a bucket as one writer has left it. If one is at work there it waits for the lock, which also tells if
    /// that writer has died.
    pub(super) async fn read(&mut self, at: RemotePtr) -> Result<Bucket, AccessError> {
        match self.look(at).await? {
            Ok(bucket) => return Ok(bucket),
            Err(rejection) => self.budget.spend(self.meter, at, Some(rejection))?,
        }
        let (held, bucket) = self.lock(at).await?;
        held.unlock(self.meter).await?;
        Ok(bucket)
    }

    /// Reads a bucket, which may be torn. One round trip.
    pub(super) async fn look(&mut self, at: RemotePtr) -> Result<Result<Bucket, Rejection>, AccessError> {
        let (verbs, bytes) = (&self.local.verbs, self.layout.node_bytes());
        inside(verbs.control().servers(), at, bytes).map_err(|fault| AccessError::corrupt(at, fault))?;
        let read = self.local.fetch(self.meter, at, bytes, &mut self.budget).await?;
        // Sooner than this, no bucket was written so often that its version is the old one again.
        let bound_ns = wrap_ns(NodeVersion::COUNT, verbs.capabilities().write_interval_ns, bytes);
        if u64::from(read.span_ns) >= bound_ns {
            return Ok(Err(Rejection::Slow));
        }
        Ok(Bucket::parse(&read.into_buf(), self.layout))
    }

    async fn lock(&self, at: RemotePtr) -> Result<(Held<V>, Bucket), AccessError> {
        let (held, image) = self.lock_bytes(at, self.layout.node_bytes()).await?;
        let parsed = Bucket::parse(&image, self.layout);
        Ok((held, parsed.map_err(|rejection| AccessError::corrupt(at, rejection))?))
    }

    async fn lock_bytes(&self, at: RemotePtr, bytes: usize) -> Result<(Held<V>, Buf), AccessError> {
        self.local.lock_and_read(self.meter, at, bytes, self.local.techniques.fused).await
    }

    pub(super) async fn write(&mut self, key: &[u8], op: WriteOp<'_>) -> Result<bool, WriteError> {
        let mut known = self.known(key);
        let (held, mut bucket) = loop {
            let Some(at) = known else {
                match self.seek(key).await? {
                    Some((at, _)) => known = Some(at),
                    None if op.creates() => drop(self.make_first(&Bucket::default()).await?),
                    None => return Ok(false),
                }
                continue;
            };
            let (held, bucket) = self.lock(at).await?;
            if bucket.is_for(key) {
                break (held, bucket);
            }
            tracing::debug!(name: "own_index.behind", %at, "a bucket was split since it was seen");
            held.unlock(self.meter).await?;
            self.budget.spend(self.meter, at, None)?;
            known = None;
        };
        if !op.applies(bucket.pairs.contains_key(key)) {
            held.unlock(self.meter).await?;
            return Ok(false);
        }
        match op {
            WriteOp::Remove => bucket.pairs.remove(key),
            _ => bucket.pairs.insert(Bytes::from_slice(key), Bytes::from_slice(op.value())),
        };
        if bucket.pairs.len() > self.layout.slots() {
            let right = bucket.split(bucket.pairs.len().div_ceil(2));
            bucket.next = self.add(&right).await?;
            tracing::debug!(name: "own_index.split", node = %bucket.next, "a bucket is split");
        }
        self.write_back(held, self.image(&bucket)).await?;
        Ok(true)
    }

    /// Makes this the first bucket, unless there is one; yields whether there was none.
    pub(super) async fn make_first(&mut self, bucket: &Bucket) -> Result<bool, WriteError> {
        let first = self.add(bucket).await?;
        let (held, mut word) = self.lock_bytes(self.local.shared.entry.root, 8).await?;
        if word.iter().any(|byte| *byte != 0) {
            tracing::debug!(name: "own_index.lost", %first, "another client was first");
            // What was added goes back.
            self.new = self.local.new_nodes();
            held.unlock(self.meter).await?;
            return Ok(false);
        }
        word.copy_from_slice(&first.to_bits().to_le_bytes());
        self.write_back(held, word).await?;
        Ok(true)
    }

    /// Writes a new bucket. One round trip.
    pub(super) async fn add(&mut self, bucket: &Bucket) -> Result<RemotePtr, WriteError> {
        let image = self.image(bucket);
        self.new.write(self.meter, image, &mut self.budget).await
    }

    fn image(&self, bucket: &Bucket) -> Buf {
        let mut image = self.local.verbs.lease(self.layout.node_bytes());
        bucket.build(&mut image, self.layout);
        image
    }

    /// Writes what was locked, which leads to all that was added, and unlocks. One round trip.
    async fn write_back(&mut self, held: Held<V>, image: Buf) -> Result<(), AccessError> {
        // From here on it may take effect, whatever happens to this future: the lock sees to that.
        self.new.publish();
        held.write_back(self.meter, image, true).await?;
        Ok(())
    }
}

//! A sorted list of buckets as an index of one's own: little, but right under concurrency, cancellation and faults. A
//! compute node remembers where buckets begin, so it finds the bucket of a key by a search in its own memory.
//!
//! ```text
//! root word ──> bucket ──> bucket ──> bucket      each with the pairs from where it begins to where the next one does
//!               from ""    from "h"   from "s"
//! ```
//!
//! - A bucket that gets too large gives its upper pairs to a new one behind it. It keeps the lower ones, and its
//!   place: so what a compute node remembers leads to the bucket of the key, or to one left of it, and never astray.
//! - Each bucket has a lock, and so has the root word. What leads to a new bucket is written under one, when the new
//!   bucket is complete.
//! - The lines of one READ may be of several moments: a reader believes them if they are of one version. If not it
//!   reads the bucket again under the lock, and so waits for the writer, or learns that it has died there.
//!
//! # Round trips (places known, no conflict)
//!
//! | operation | |
//! |---|---|
//! | get | 1 |
//! | put, insert, update, remove | 2, without `fused` 3; with a split 1 more |
//! | scan | 1 for each bucket |
//!
//! A client of a compute node that knows nothing yet takes a round trip for each bucket up to that of its key.
//!
//! This file is a module of an example, and also of `farwood_index` once it lies there (`tests/own-index`): it calls
//! that crate by its name.

mod bucket;
mod operation;

use std::ops::{Bound, RangeInclusive};
use std::rc::Rc;

use farwood_index::check::{AtRest, CheckReport};
use farwood_index::layout::Rejection;
use farwood_index::shell::{Algorithm, Options, Trial, scan};
use farwood_index::sherman::Geometry;
use farwood_index::write_op::WriteOp;
use farwood_index::{AccessError, Bytes, LoadError, OpenError, Scan, TreeShape, Value, WriteError};
use farwood_runtime::{Meter, RemotePtr, ServerInfo, Verbs};

use self::bucket::Bucket;
use self::operation::{Directory, Here, Operation};

farwood_index::techniques! {
    /// The techniques that this index can do without.
    pub struct Techniques {
        /// The lock's CAS and the first READ in one chain.
        pub fused: bool = true,
    }
}

/// The algorithm, for the shell that all indexes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnIndex {}

impl Algorithm for OwnIndex {
    const KIND: &'static str = "own_index";
    const TRIAL: Trial =
        Trial { rare_paths: &["own_index.behind", "own_index.lost", "own_index.split"], ..Trial::COMMON };

    /// Buckets are Sherman's leaves; the sizes of its inner nodes say nothing here.
    type Geometry = Geometry;
    type Techniques = Techniques;
    type PersistedConfig = Geometry;
    type NodeState = Directory;
    type ShardState = ();

    fn agree(sizes: Geometry, _: Techniques, _: &[ServerInfo]) -> Result<Geometry, OpenError> {
        Ok(sizes)
    }

    fn geometry(sizes: &Geometry) -> Geometry {
        *sizes
    }

    fn round_trips(_: Geometry, on: Techniques) -> (RangeInclusive<u64>, RangeInclusive<u64>) {
        // A compute node that does not know the way to a bucket yet walks there.
        (1..=u64::MAX, 3 - u64::from(on.fused)..=u64::MAX)
    }

    fn node_state(_: &Geometry, _: &Options<Techniques>, _: u64) -> Result<Directory, OpenError> {
        Ok(Directory::default())
    }

    fn shard_state(_: &Directory) {}

    fn cache_bytes(directory: &Directory) -> usize {
        directory.lock().expect("no holder panics").len() * size_of::<(Bytes, RemotePtr)>()
    }

    fn empty_caches(directory: &Directory) {
        directory.lock().expect("no holder panics").clear();
    }

    async fn lookup<V: Verbs>(
        local: &Rc<Here<V>>,
        meter: &Meter,
        key: &[u8],
    ) -> Result<Option<Value>, AccessError> {
        let found = Operation::new(local, meter).seek(key).await?;
        Ok(found.and_then(|(_, mut bucket)| bucket.pairs.remove(key)).map(Value::from))
    }

    async fn write<V: Verbs>(
        local: &Rc<Here<V>>,
        meter: &Meter,
        key: &[u8],
        op: WriteOp<'_>,
    ) -> Result<bool, WriteError> {
        Operation::new(local, meter).write(key, op).await
    }

    fn scan<V: Verbs>(local: Rc<Here<V>>, range: (Bound<Bytes>, Bound<Bytes>), limit: Option<usize>) -> Scan {
        scan::by_leaf(local, range, limit, async |local: &Rc<Here<V>>, meter: &Meter, key: &[u8]| {
            let found = Operation::new(local, meter).seek(key).await?;
            Ok(found.map(|(_, bucket)| (bucket.pairs.into_iter().collect(), bucket.high)))
        })
    }

    async fn bulk_load<V: Verbs, K: AsRef<[u8]>, U: AsRef<[u8]>>(
        local: &Rc<Here<V>>,
        pairs: &mut dyn Iterator<Item = Result<(K, U), LoadError>>,
        fill: f64,
    ) -> Result<u64, LoadError> {
        let meter = Meter::default();
        let mut operation = Operation::new(local, &meter);
        if !operation.first().await?.is_null() {
            return Err(LoadError::NotEmpty);
        }
        let own = |(key, value): (K, U)| (Bytes::from_slice(key.as_ref()), Bytes::from_slice(value.as_ref()));
        let mut rest = Bucket::default();
        rest.pairs = pairs.map(|pair| pair.map(own)).collect::<Result<_, _>>()?;
        let (count, kept) = (rest.pairs.len(), (operation.layout.slots() as f64 * fill).max(1.0) as usize);
        // From the right to the left: a bucket names the one behind it.
        while rest.pairs.len() > kept {
            let last = rest.split((rest.pairs.len() - 1) / kept * kept);
            rest.next = operation.add(&last).await?;
        }
        if count > 0 && !operation.make_first(&rest).await? {
            return Err(LoadError::NotEmpty);
        }
        Ok(count as u64)
    }

    async fn walk<V: Verbs>(
        local: &Rc<Here<V>>,
        meter: &Meter,
        at_rest: Option<AtRest<'_>>,
        report: &mut CheckReport,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), AccessError> {
        let mut operation = Operation::new(local, meter);
        let (mut at, mut low) = (operation.first().await?, Bytes::new());
        while !at.is_null() {
            let bucket = match (operation.look(at).await?, &at_rest) {
                (Ok(bucket), _) => bucket,
                // A slow READ is no damage: the thread lost its core in the middle of it.
                (Err(Rejection::Slow), _) | (Err(_), None) => operation.read(at).await?,
                (Err(_), Some(rest)) if rest.exempt.contains(&local.locks.word_of(at)) => {
                    report.torn.push(at);
                    break;
                }
                (Err(rejection), Some(_)) => return Err(AccessError::corrupt(at, rejection)),
            };
            if bucket.low != low || bucket.high.is_none() != bucket.next.is_null() {
                return Err(AccessError::corrupt(at, "its keys are not those between its neighbours'"));
            }
            report.reach(at, operation.layout.node_bytes() as u64);
            bucket.pairs.iter().for_each(|(key, value)| visit(key, value));
            let (leaves, keys) = (report.survey.leaves + 1, report.survey.keys + bucket.pairs.len() as u64);
            let used_bytes = leaves * operation.layout.node_bytes() as u64;
            let load_factor = keys as f64 / (leaves * operation.layout.slots() as u64) as f64;
            report.survey = TreeShape { keys, leaves, inner_nodes: 0, height: 1, used_bytes, load_factor };
            (at, low) = (bucket.next, bucket.high.unwrap_or_default());
        }
        Ok(())
    }
}

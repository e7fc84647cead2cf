//! A hash of buckets as an index of one's own: little, but right under concurrency, cancellation and faults. Gets and
//! writes take few round trips; a scan reads everything and sorts, since a hash keeps no order.
//!
//! ```text
//! root word ──> table: a word per chain ──> bucket ──> bucket ──> ...    each word is 0 at first, and set once
//!
//! bucket  | checksum 8 | next 8 | entry | entry | .. | 0 .. |
//! entry   | length of the key + 1: 2 | length of the value 2 | key | value |
//! ```
//!
//! - The lines of one READ may be of several moments: a reader believes the checksum. If that is wrong it reads the
//!   bucket again under the lock, and so waits for the writer, or learns that it has died there.
//! - The lock of a chain's first bucket protects the chain, so all of it is on one memory server. A write reads the
//!   chain, and sends one bucket whole with the unlock behind it; before it, if none has room, a new one.
//! - A key stays in its bucket while it is there, and buckets stay in their chain: a client that reads the chain once
//!   meets it.
//! - A word that is set stays: compute nodes remember it, and a CAS of unknown outcome is posted again, since it then
//!   finds what the word holds for good.
//!
//! # Round trips (words known, no conflict)
//!
//! | operation | |
//! |---|---|
//! | get | 1 for each bucket of the chain, up to the one with the key |
//! | put, insert, update, remove | 2, without `fused` 3; 1 more for each bucket behind the first |
//! | scan | 1 for the table, 1 for each window of buckets |
//!
//! This file is a module of an example, and also of `farwood_index` once it lies there (`tests/own-index`): it calls
//! that crate by its name.

mod bucket;
mod operation;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use farwood_index::check::{Broken, CheckOptions, CheckReport};
use farwood_index::layout::Bytes;
use farwood_index::shell::{Algorithm, Filled, Geometry, Options, Trial};
use farwood_index::stats::OpKind;
use farwood_index::write_op::WriteOp;
use farwood_index::{AccessError, LoadError, OpenError, ReadError, WriteError};
use farwood_index::{Pair, Scan, TreeShape, Value, techniques};
use farwood_lock::LockConfig;
use farwood_lock::window::WindowConfig;
use farwood_runtime::{Meter, RemotePtr, ServerInfo, Verbs};
use futures::{StreamExt, TryFutureExt, stream};

pub use self::bucket::Sizes;
use self::bucket::{build, entries};
use self::operation::{Here, Operation, Unpublished};

techniques! {
    /// The techniques that this index can do without.
    pub struct Techniques {
        /// The lock's CAS and the first READ in one chain.
        pub fused: bool = true,
        /// Gets of one key that wait for each other share one. The shell does it.
        pub delegation: bool = false,
        /// Puts, or updates, of one key that wait for each other become one. The shell does it.
        pub combining: bool = false,
    }
}

/// The algorithm, for the shell that all indexes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnIndex {}

impl Algorithm for OwnIndex {
    const KIND: &'static str = "own_index";
    const FILLED: Filled = Filled::Leaves;
    const TRIAL: Trial = Trial {
        rare_paths: &["own_index.lost", "own_index.overflow"],
        bytes_per_server: 1 << 20,
        cache_bytes: &[1 << 20],
        is_radix: false,
        inserts_in_place: true,
        finishes_what_was_dropped: false,
        long_key: 300,
        height_min: 3,
        load_factor_min: 0.5,
    };
    const SCAN_WINDOW: usize = 32;

    type Geometry = Sizes;
    type Techniques = Techniques;
    type PersistedConfig = Sizes;
    /// The words that are known: of the chains, and the root word.
    type NodeState = Box<[AtomicU64]>;
    type ShardState = ();

    fn agree(sizes: Sizes, _: Techniques, _: &[ServerInfo]) -> Result<Sizes, OpenError> {
        sizes.check()?;
        Ok(sizes)
    }

    fn geometry(sizes: &Sizes) -> Sizes {
        *sizes
    }

    fn round_trips(techniques: Techniques) -> (RangeInclusive<u64>, RangeInclusive<u64>) {
        // A chain may be of any length.
        (1..=u64::MAX, 3 - u64::from(techniques.fused)..=u64::MAX)
    }

    fn updates_in_place(_: Techniques) -> bool {
        true
    }

    fn meet(techniques: Techniques, locks: LockConfig) -> (LockConfig, WindowConfig) {
        let Techniques { delegation, combining, .. } = techniques;
        (
            LockConfig { on_chip: false, ..locks },
            WindowConfig { delegation, combining, ..WindowConfig::default() },
        )
    }

    fn node_state(sizes: &Sizes, _: &Options<Techniques>, _: u64) -> Result<Box<[AtomicU64]>, OpenError> {
        sizes.check()?;
        Ok((0..=sizes.chains).map(|_| AtomicU64::new(0)).collect())
    }

    fn shard_state(_: &Box<[AtomicU64]>) {}

    fn cache_bytes(known: &Box<[AtomicU64]>) -> usize {
        size_of_val(&**known)
    }

    async fn lookup<V: Verbs>(
        local: &Rc<Here<V>>,
        meter: &Meter,
        key: &[u8],
    ) -> Result<Option<Value>, AccessError> {
        Operation::new(local, meter).lookup(key).await
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
        let all = async move {
            let (meter, limit, mut pairs) = (Meter::default(), limit.unwrap_or(usize::MAX), BTreeMap::new());
            let take = |_, _, _, bucket: Result<&[u8], Broken>| {
                for (key, value) in bucket.into_iter().flat_map(entries) {
                    let key = Bytes::from_slice(key);
                    if range.contains(&key) {
                        pairs.insert(key, Bytes::from_slice(value));
                    }
                    if pairs.len() > limit {
                        pairs.pop_last();
                    }
                }
            };
            if limit > 0 {
                Operation::new(&local, &meter).each(true, take).await?;
            }
            let count = pairs.len() as u64;
            let ended = stream::poll_fn(move |_| {
                local.record(OpKind::Scan, &meter, true, count);
                None::<Result<Pair, ReadError>>.into()
            });
            Ok(stream::iter(pairs.into_iter().map(Ok)).chain(ended))
        };
        all.try_flatten_stream().boxed_local()
    }

    async fn bulk_load<V: Verbs, K: AsRef<[u8]>, U: AsRef<[u8]>>(
        local: &Rc<Here<V>>,
        pairs: &mut dyn Iterator<Item = (K, U)>,
        fill: f64,
    ) -> Result<u64, LoadError> {
        let (sizes, meter, mut last) = (local.shared.persisted, Meter::default(), None::<Bytes>);
        let mut operation = Operation::new(local, &meter);
        if operation.table().await?.is_some() {
            return Err(LoadError::NotEmpty);
        }
        let (mut chains, mut position) = (BTreeMap::<usize, Vec<(K, U)>>::new(), 0);
        for (key, value) in pairs {
            local.check_key(key.as_ref())?;
            local.check_value(value.as_ref())?;
            if last.is_some_and(|last| *last >= *key.as_ref()) {
                return Err(LoadError::Unsorted { position });
            }
            last = Some(Bytes::from_slice(key.as_ref()));
            chains.entry(sizes.chain_of(key.as_ref())).or_default().push((key, value));
            position += 1;
        }
        if chains.is_empty() {
            return Ok(0);
        }
        let mut unpublished = Unpublished::new(local, local.shared.entry.root);
        let mut words = local.verbs.lease(sizes.table_bytes());
        words.fill(0);
        let mut heads = Vec::with_capacity(chains.len() + 1);
        for (chain, pairs) in chains {
            let mut next = RemotePtr::NULL;
            for part in pairs.chunks(sizes.slots_at(fill)).rev() {
                let mut image = local.verbs.lease(sizes.bucket_bytes());
                build(&mut image, next, part.iter().map(|(key, value)| (key.as_ref(), value.as_ref())));
                let near = (!next.is_null()).then(|| next.server());
                next = unpublished.write(&mut operation, near, image).await?;
            }
            words[8 * chain..][..8].copy_from_slice(&next.to_bits().to_le_bytes());
            heads.push((chain, next));
        }
        let table = unpublished.write(&mut operation, None, words).await?;
        if operation.claim(unpublished).await? != table {
            return Err(LoadError::NotEmpty);
        }
        for (place, node) in heads.into_iter().chain([(sizes.chains, table)]) {
            local.shared.state[place].store(node.to_bits(), Ordering::Relaxed);
        }
        Ok(position)
    }

    async fn survey<V: Verbs>(local: &Rc<Here<V>>) -> Result<TreeShape, AccessError> {
        let (meter, mut report) = (Meter::default(), CheckReport::new(1));
        Operation::new(local, &meter).walk(true, &mut report, &BTreeSet::new()).await?;
        report.shape()
    }

    async fn check<V: Verbs>(
        local: &Rc<Here<V>>,
        options: &CheckOptions,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<CheckReport, AccessError> {
        let (meter, mut report) = (Meter::default(), CheckReport::new(options.kept_max));
        let held = local.locks.words_held(&meter).await?;
        let exempt = report.note_locks(options, held, |word| local.locks.is_foreign(word));
        let pairs = Operation::new(local, &meter).walk(false, &mut report, &exempt).await?;
        pairs.iter().for_each(|(key, value)| visit(key, value));
        Ok(report)
    }
}

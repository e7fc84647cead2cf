//! The one interface of all indexes: byte-string keys in lexicographic order, byte-string values.
//!
//! Point operations are linearizable. An empty key and any byte value are legal; integers keep their order as
//! big-endian bytes. Every operation may be dropped at any await point: it then has taken effect or has not (what it
//! had posted last may do so within a round trip), and leaves no lock, buffer or waiter behind.

use std::future::Future;

use futures::stream::LocalBoxStream;

use crate::error::IndexError;
use crate::key_range::KeyRange;
use crate::layout::Bytes;
use crate::stats::IndexStats;
use crate::value::Value;

/// A key and its value, as scans return them.
pub type Pair = (Bytes, Bytes);

/// The pairs of a scan. Dropping it ends the scan.
pub type Scan = LocalBoxStream<'static, Result<Pair, IndexError>>;

/// An ordered index, as one shard's clients use it. Clones are handles to the same index on the same shard.
pub trait RangeIndex: Clone + 'static {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Value>, IndexError>>;

    /// Sets the value of `key`, whether it is present or not.
    fn put(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<(), IndexError>>;

    /// Sets the value of `key` if it is absent; false, and no effect, if it is present.
    fn insert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<bool, IndexError>>;

    /// Sets the value of `key` if it is present; false, and no effect, if it is absent.
    fn update(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<bool, IndexError>>;

    /// Removes `key`; false if it was absent.
    fn remove(&self, key: &[u8]) -> impl Future<Output = Result<bool, IndexError>>;

    /// Streams the pairs with keys in `range`, ascending, at most `limit` of them: `scan("a".."c", None)`,
    /// `scan(key.., Some(10))`, `scan(.., None)` ([`KeyRange`]).
    ///
    /// Keys come without duplicates; a key that is present during the whole scan comes exactly once; each value was
    /// current at some moment during the scan. A scan is no snapshot. After an error the stream ends.
    fn scan(&self, range: impl KeyRange, limit: Option<usize>) -> Scan;

    /// Streams the pairs whose keys begin with `prefix`, ascending, at most `limit` of them ([`RangeIndex::scan`]).
    fn scan_prefix(&self, prefix: impl AsRef<[u8]>, limit: Option<usize>) -> Scan {
        let prefix = prefix.as_ref();
        match after_prefix(prefix) {
            Some(end) => self.scan(prefix..&end[..], limit),
            None => self.scan(prefix.., limit),
        }
    }

    /// The values of several keys, read in parallel. Each is a get of its own.
    fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> impl Future<Output = Result<Vec<Option<Value>>, IndexError>>;

    /// Fills an index that nothing was written to with pairs in strictly ascending order, nodes filled to `fill` of
    /// their slots. Yields how many pairs. Readers see all of them or none.
    fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, V)>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, IndexError>>;

    /// Walks the whole tree and reports its shape. Meant for an index at rest: concurrent changes may show or not.
    fn survey(&self) -> impl Future<Output = Result<Survey, IndexError>>;

    /// What this shard's operations have counted so far.
    fn stats(&self) -> IndexStats;
}

/// The shape of a tree.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Survey {
    /// Keys.
    pub keys: u64,
    /// Leaves.
    pub leaves: u64,
    /// Nodes above the leaves.
    pub inner_nodes: u64,
    /// Levels, leaves included; 0 for an index that nothing was written to.
    pub height: u8,
    /// Bytes of all nodes on the memory servers.
    pub used_bytes: u64,
    /// Keys per slot of the leaves.
    pub load_factor: f64,
}

/// Yields the least key that is greater than all that begin with `prefix`, if there is one.
fn after_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = Bytes::from_slice(&prefix[..=last]);
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_no_key_begins_with_it() {
        for (prefix, end) in [
            (&b"ab"[..], Some(&b"ac"[..])),
            (b"a\xff\xff", Some(b"b")),
            (b"\x00", Some(b"\x01")),
            (b"\xff\xff", None),
            (b"", None),
        ] {
            assert_eq!(after_prefix(prefix).as_deref(), end, "{prefix:?}");
        }
    }
}

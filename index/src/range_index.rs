//! The one interface of all indexes: byte-string keys in lexicographic order, byte-string values.
//!
//! Point operations are linearizable. An empty key and any byte value are legal; integers keep their order as
//! big-endian bytes. Every operation may be dropped at any await point: it then has taken effect or has not (what it
//! had posted last may do so within a round trip), and leaves no lock, buffer or waiter behind.

use std::future::Future;

use futures::stream::LocalBoxStream;

use crate::error::{AccessError, LoadError, ReadError, WriteError};
use crate::key_range::KeyRange;
use crate::layout::Bytes;
use crate::stats::IndexStats;
use crate::value::Value;

/// A key and its value, as scans return them.
pub type Pair = (Bytes, Bytes);

/// The pairs of a scan. Dropping it ends the scan.
pub type Scan = LocalBoxStream<'static, Result<Pair, ReadError>>;

/// An ordered index, as one shard's clients use it. Clones are handles to the same index on the same shard.
pub trait RangeIndex: Clone + 'static {
    /// Yields the value of `key`.
    ///
    /// ```
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// let value = index.get(b"anna").await?;
    /// assert_eq!(value.as_deref(), Some(&b"1"[..]));
    /// assert!(index.get(b"berta").await?.is_none());
    /// # });
    /// ```
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Value>, ReadError>>;

    /// Sets the value of `key`, whether it is present or not.
    ///
    /// # Errors
    /// A put that failed may have taken effect all the same, or may do so within seconds, if
    /// [`WriteError::outcome_unknown`] says so. This holds for all writes.
    ///
    /// ```
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// index.put(b"anna", b"2").await?;
    /// assert_eq!(index.get(b"anna").await?.as_deref(), Some(&b"2"[..]));
    /// # });
    /// ```
    fn put(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<(), WriteError>>;

    /// Sets the value of `key` if it is absent; false, and no effect, if it is present.
    ///
    /// ```
    /// # farwood_doctest::index!(|index| {
    /// assert!(index.insert(b"anna", b"1").await?);
    /// assert!(!index.insert(b"anna", b"2").await?);
    /// assert_eq!(index.get(b"anna").await?.as_deref(), Some(&b"1"[..]));
    /// # });
    /// ```
    fn insert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<bool, WriteError>>;

    /// Sets the value of `key` if it is present; false, and no effect, if it is absent.
    ///
    /// ```
    /// # farwood_doctest::index!(|index| {
    /// assert!(!index.update(b"anna", b"1").await?);
    /// index.put(b"anna", b"1").await?;
    /// assert!(index.update(b"anna", b"2").await?);
    /// # });
    /// ```
    fn update(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<bool, WriteError>>;

    /// Removes `key`; false if it was absent.
    ///
    /// ```
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// assert!(index.remove(b"anna").await?);
    /// assert!(!index.remove(b"anna").await?);
    /// # });
    /// ```
    fn remove(&self, key: &[u8]) -> impl Future<Output = Result<bool, WriteError>>;

    /// Streams the pairs with keys in `range` ([`KeyRange`]), ascending, at most `limit` of them.
    ///
    /// Keys come without duplicates; a key that is present during the whole scan comes exactly once; each value was
    /// current at some moment during the scan. A scan is no snapshot. After an error the stream ends.
    ///
    /// ```
    /// # use futures::TryStreamExt;
    /// # farwood_doctest::index!(|index| {
    /// for name in ["anna", "berta", "clara", "dora"] {
    ///     index.put(name.as_bytes(), b"").await?;
    /// }
    /// let mut pairs = index.scan("b".."d", None);
    /// while let Some((key, value)) = pairs.try_next().await? {
    ///     assert!(&key[..] == b"berta" || &key[..] == b"clara");
    /// }
    /// let from: &[u8] = b"berta";
    /// let first: Vec<_> = index.scan(from.., Some(2)).try_collect().await?;
    /// let all: Vec<_> = index.scan(.., None).try_collect().await?;
    /// assert_eq!((first.len(), all.len()), (2, 4));
    /// # });
    /// ```
    fn scan(&self, range: impl KeyRange, limit: Option<usize>) -> Scan;

    /// Streams the pairs whose keys begin with `prefix`, ascending, at most `limit` of them ([`RangeIndex::scan`]).
    ///
    /// ```
    /// # use futures::TryStreamExt;
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"user/1", b"anna").await?;
    /// index.put(b"user/2", b"berta").await?;
    /// index.put(b"zone/1", b"north").await?;
    /// let users: Vec<_> = index.scan_prefix("user/", None).try_collect().await?;
    /// assert_eq!(users.len(), 2);
    /// # });
    /// ```
    fn scan_prefix(&self, prefix: impl AsRef<[u8]>, limit: Option<usize>) -> Scan {
        let prefix = prefix.as_ref();
        match after_prefix(prefix) {
            Some(end) => self.scan(prefix..&end[..], limit),
            None => self.scan(prefix.., limit),
        }
    }

    /// Yields the values of several keys, read in parallel. Each is a get of its own.
    ///
    /// ```
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// let values = index.multi_get(&["anna", "berta"]).await?;
    /// assert!(values[0].is_some() && values[1].is_none());
    /// # });
    /// ```
    fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> impl Future<Output = Result<Vec<Option<Value>>, ReadError>>;

    /// Fills an index that nothing was written to with pairs in strictly ascending order, nodes filled to `fill` of
    /// their slots. Yields the number of pairs. Readers see all of them or none.
    ///
    /// ```
    /// # farwood_doctest::index!(|index| {
    /// let pairs = (0..1000_u64).map(|n| (n.to_be_bytes(), "value"));
    /// assert_eq!(index.bulk_load(pairs, 0.8).await?, 1000);
    /// assert!(index.get(&7_u64.to_be_bytes()).await?.is_some());
    /// # });
    /// ```
    fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, V)>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, LoadError>>;

    /// Walks the whole tree and reports its shape. Meant for an index at rest: concurrent changes may show or not.
    ///
    /// ```
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// let survey = index.survey().await?;
    /// assert_eq!((survey.keys, survey.leaves, survey.height), (1, 1, 1));
    /// # });
    /// ```
    fn survey(&self) -> impl Future<Output = Result<TreeShape, AccessError>>;

    /// Yields what this shard's operations have counted so far.
    ///
    /// ```
    /// # use farwood_index::OpKind;
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// index.get(b"anna").await?;
    /// let gets = *index.stats().kind(OpKind::Get);
    /// assert_eq!(gets.ops, 1);
    /// # });
    /// ```
    fn stats(&self) -> IndexStats;
}

/// The shape of a tree.
///
/// ```
/// # farwood_doctest::index!(|index| {
/// index.bulk_load((0..1000_u64).map(|n| (n.to_be_bytes(), "")), 1.0).await?;
/// let shape = index.survey().await?;
/// assert_eq!((shape.keys, shape.height, shape.inner_nodes), (1000, 2, 1));
/// assert!(shape.load_factor > 0.9 && shape.used_bytes == (shape.leaves + 1) * 1024);
/// # });
/// ```
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct TreeShape {
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

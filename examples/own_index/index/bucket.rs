//! A bucket out of its bytes, and back. The bytes are a leaf's ([`LeafLayout`]). Pure.

use std::collections::BTreeMap;

use farwood_index::layout::{Bytes, LeafLayout, NodeHeader, NodeVersion, Rejection};
use farwood_runtime::RemotePtr;

/// The contents of a bucket.
#[derive(Default)]
pub(super) struct Bucket {
    /// Its keys are from here on,
    pub(super) low: Bytes,
    /// and below this; none if it is the last bucket.
    pub(super) high: Option<Bytes>,
    /// The bucket whose keys begin there; null for the last one.
    pub(super) next: RemotePtr,
    pub(super) pairs: BTreeMap<Bytes, Bytes>,
    version: NodeVersion,
}

impl Bucket {
    /// Reads an image. It is from the fabric: it may hold anything.
    pub(super) fn parse(image: &[u8], layout: LeafLayout) -> Result<Bucket, Rejection> {
        let leaf = layout.view(image)?;
        let (header, pairs) = (leaf.header(), leaf.sorted_pairs()?.into_iter().collect());
        let (low, high, next) = (header.low(), header.high(), header.sibling());
        Ok(Bucket { low, high, next, pairs, version: header.node_version() })
    }

    /// Makes the image that replaces the one which the bucket was read from.
    pub(super) fn build(&self, image: &mut [u8], layout: LeafLayout) {
        let Bucket { low, high, next: sibling, pairs, version } = self;
        let (high, sibling, node_version) = (high.as_deref(), *sibling, version.next());
        let header = NodeHeader { level: 0, low, high, sibling, incarnation: 0, node_version };
        layout.build(image, &header, pairs.iter().map(|(key, value)| (&key[..], &value[..])));
    }

    /// Tells whether the bucket is the one for `key`, which is not below its keys.
    pub(super) fn is_for(&self, key: &[u8]) -> bool {
        self.high.as_ref().is_none_or(|high| *key < high[..])
    }

    /// Takes the last pairs out into a new bucket behind this one, which keeps so many. Its address is not known yet.
    pub(super) fn split(&mut self, kept: usize) -> Bucket {
        let low = self.pairs.keys().nth(kept).expect("there are more pairs").clone();
        let (high, next, pairs) = (self.high.replace(low.clone()), self.next, self.pairs.split_off(&low));
        Bucket { low, high, next, pairs, ..Bucket::default() }
    }
}

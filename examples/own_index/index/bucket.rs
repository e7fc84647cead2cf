//! The index's sizes, and its buckets as bytes. Pure. It knows no fabric and no other node.

use std::iter;
use std::ops::Range;

use farwood_index::layout::{LINE_BYTES, LayoutError, Malformed, Rejection};
use farwood_index::layout::{MAX_KEY_BYTES, MAX_NODE_BYTES, MAX_VALUE_BYTES};
use farwood_index::shell::{Geometry, Limits, Nodes};
use farwood_runtime::RemotePtr;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

const HEADER_BYTES: usize = 16;
const NEXT: Range<usize> = 8..16;
const LENGTHS_BYTES: usize = 4;

/// The sizes of an index. Compute nodes have to agree on nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sizes {
    max_key: usize,
    max_value: usize,
    /// Entries of a bucket, at most.
    pub(super) slots: usize,
    pub(super) chains: usize,
}

impl Sizes {
    pub(super) fn bucket_bytes(&self) -> usize {
        let entry = LENGTHS_BYTES + self.max_key + self.max_value;
        (HEADER_BYTES + self.slots * entry).next_multiple_of(LINE_BYTES)
    }

    pub(super) fn table_bytes(&self) -> usize {
        (8 * self.chains).next_multiple_of(LINE_BYTES)
    }

    pub(super) fn chain_of(&self, key: &[u8]) -> usize {
        (xxh3_64(key) % self.chains as u64) as usize
    }

    pub(super) fn slots_at(&self, fill: f64) -> usize {
        ((self.slots as f64 * fill) as usize).max(1)
    }
}

impl Geometry for Sizes {
    const USUAL_LIMITS: Limits = Limits { max_key: 32, max_value: 32 };

    fn new(Limits { max_key, max_value }: Limits, nodes: Nodes) -> Self {
        let sizes = |slots, chains| Sizes { max_key, max_value, slots, chains };
        match nodes {
            Nodes::Least => sizes(2, 8),
            Nodes::Tiny => sizes(4, 16),
            Nodes::Usual => {
                let roomy = |slots: &usize| sizes(*slots, 1).bucket_bytes() <= 1024;
                sizes((8..64).rev().find(roomy).unwrap_or(8), 4096)
            }
        }
    }

    fn draw(mut choose: impl FnMut(usize) -> usize) -> Self {
        let (max_key, max_value) = ([8, 8, 12, 30][choose(4)], [8, 8, 40, 100][choose(4)]);
        Sizes { max_key, max_value, slots: 2 + choose(6), chains: [4, 8, 16, 64][choose(4)] }
    }

    fn check(&self) -> Result<(), LayoutError> {
        let Sizes { max_key, max_value, slots, chains } = *self;
        match self.bucket_bytes().max(self.table_bytes()) {
            _ if !(1..=MAX_KEY_BYTES).contains(&max_key) => Err(LayoutError::KeyBytes { max_key }),
            _ if max_value > MAX_VALUE_BYTES => Err(LayoutError::ValueBytes { max_value }),
            _ if slots * chains == 0 => Err(LayoutError::SlotCount { slots: 0, least: 1 }),
            node_bytes if node_bytes > MAX_NODE_BYTES => Err(LayoutError::NodeBytes { node_bytes }),
            _ => Ok(()),
        }
    }

    fn limits(&self) -> Limits {
        Limits { max_key: self.max_key, max_value: self.max_value }
    }

    fn leaf_bytes(&self) -> usize {
        self.bucket_bytes()
    }

    /// Counts the full buckets, and one more for each chain.
    fn leaves(&self, keys: u64, fill: f64) -> u64 {
        keys.min(self.chains as u64) + keys / self.slots_at(fill) as u64
    }

    fn bytes_for(&self, keys: u64, fill: f64) -> u64 {
        self.table_bytes() as u64 + self.leaves(keys, fill) * self.bucket_bytes() as u64
    }

    fn kept_node_bytes(&self) -> Option<u64> {
        Some(self.bucket_bytes().max(self.table_bytes()) as u64)
    }
}

pub(super) fn word(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes"))
}

pub(super) fn next_of(bucket: &[u8]) -> RemotePtr {
    RemotePtr::from_bits(word(bucket, NEXT.start))
}

/// Checks whether a writer has sent that image.
pub(super) fn examine(bucket: &[u8]) -> Result<(), Rejection> {
    if word(bucket, 0) != xxh3_64(&bucket[8..]) {
        return Err(Rejection::Torn);
    }
    let is_aligned = next_of(bucket).to_bits().is_multiple_of(LINE_BYTES as u64);
    if is_aligned { Ok(()) } else { Err(Malformed::MisalignedSibling.into()) }
}

/// Yields where the keys and values are. Whatever the bytes, they are inside.
pub(super) fn places(bucket: &[u8]) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let mut at = HEADER_BYTES;
    iter::from_fn(move || {
        let lengths = bucket.get(at..at + LENGTHS_BYTES)?;
        let length = |at: usize| usize::from(u16::from_le_bytes([lengths[at], lengths[at + 1]]));
        let key = at + LENGTHS_BYTES;
        let value = key + length(0).checked_sub(1)?;
        at = value + length(2);
        bucket.get(key..at).map(|_| (key..value, value..at))
    })
}

pub(super) fn entries(bucket: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    places(bucket).map(|(key, value)| (&bucket[key], &bucket[value]))
}

/// Makes the image of a bucket with those entries.
pub(super) fn build<'e>(
    bucket: &mut [u8],
    next: RemotePtr,
    entries: impl IntoIterator<Item = (&'e [u8], &'e [u8])>,
) {
    bucket.fill(0);
    bucket[NEXT].copy_from_slice(&next.to_bits().to_le_bytes());
    let mut at = HEADER_BYTES;
    for (key, value) in entries {
        let lengths = [key.len() as u16 + 1, value.len() as u16].map(u16::to_le_bytes);
        for part in [&lengths[0], &lengths[1], key, value] {
            bucket[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }
    let checksum = xxh3_64(&bucket[8..]);
    bucket[..8].copy_from_slice(&checksum.to_le_bytes());
}

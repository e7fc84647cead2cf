//! One entry, one replica: fields and versions.

use super::super::header::{LEAF, kind_of_byte};
use super::super::slot::Slot;
use super::super::stream::{self, StreamRange};
use super::super::version::{self, EntryVersion, NodeVersion};
use super::super::{BlockPtr, Malformed, Rejection};
use super::{FENCE_LENGTHS, HEAD_BYTES, HopLayout, REPLICA_BYTES};

pub(super) const PRESENT: u16 = 0x80;
pub(super) const KEY_SHORT: u16 = 0x40;
pub(super) const VALUE_SHORT: u16 = 0x20;

/// The low eight bits of a node version, as entries and replicas have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ShortVersion(pub(super) u8);

impl ShortVersion {
    pub(super) fn of(version: NodeVersion) -> Self {
        ShortVersion(version.number() as u8)
    }
}

impl HopLayout {
    pub(super) fn head(&self, image: &[u8], slot: usize) -> u16 {
        u16::from_le_bytes(stream::array(image, self.entry(slot).start()))
    }

    pub(super) fn is_present(&self, image: &[u8], slot: usize) -> bool {
        self.head(image, slot) & PRESENT != 0
    }

    /// Yields the bits of the keys whose home is `slot`: bit j for the slot j steps ahead.
    pub(super) fn hops(&self, image: &[u8], slot: usize) -> u16 {
        let at = self.entry(slot).start() + HEAD_BYTES;
        match self.hops_bytes() {
            0 => 0,
            1 => u16::from(stream::byte(image, at)),
            _ => u16::from_le_bytes(stream::array(image, at)),
        }
    }

    pub(super) fn key_slot(&self, slot: usize) -> Slot {
        Slot { start: self.entry(slot).start() + HEAD_BYTES + self.hops_bytes(), size: self.key_bytes }
    }

    pub(super) fn value_slot(&self, slot: usize) -> Slot {
        let key = self.key_slot(slot);
        Slot { start: key.start + key.size, size: self.value_bytes }
    }

    /// Yields the key in `slot`, which is present.
    pub(super) fn key(&self, image: &[u8], slot: usize) -> Result<StreamRange, Rejection> {
        let short = self.head(image, slot) & KEY_SHORT != 0;
        Ok(self.key_slot(slot).used(image, short).ok_or(Malformed::KeyLength { slot })?)
    }

    /// Yields the value in `slot`, which is present.
    pub(super) fn value(&self, image: &[u8], slot: usize) -> Result<StreamRange, Rejection> {
        let short = self.head(image, slot) & VALUE_SHORT != 0;
        Ok(self.value_slot(slot).used(image, short).ok_or(Malformed::ValueLength { slot })?)
    }

    /// Yields the block of the pair in `slot`, which is present, in an indirect leaf.
    ///
    /// # Errors
    /// If no writer leaves such an address.
    pub fn block(&self, image: &[u8], slot: usize) -> Result<BlockPtr, Rejection> {
        let blocks = self.blocks.as_ref().expect("the leaf is indirect");
        blocks.pointer_of(u64::from_le_bytes(stream::array(image, self.value_slot(slot).start)))
    }

    /// Tells whether the entry in `slot`, which is present, is of that key with that hash. Of an indirect leaf: whether
    /// it has the key's fingerprint.
    pub(super) fn is_of(&self, image: &[u8], slot: usize, key: &[u8], hash: u64) -> Result<bool, Rejection> {
        match self.blocks {
            None => Ok(stream::compare(image, self.key(image, slot)?, key).is_eq()),
            Some(_) => Ok(self.hash_of(image, slot)? == hash),
        }
    }

    /// Tells whether all lines of the entry come from one entry write, and from writes of this version of the node.
    pub(super) fn entry_is_of(&self, image: &[u8], slot: usize, version: ShortVersion) -> bool {
        let head = self.head(image, slot);
        let expected = EntryVersion::from_bits(head as u8);
        let mut lines = self.entry(slot).further_lines();
        (head >> 8) as u8 == version.0
            && lines.all(|line| {
                version::entry_version(image, line) == expected && line_is_of(image, line, version)
            })
    }

    /// Reads the version of replica `group`, if the replica is a leaf's and whole.
    pub(super) fn replica_version(&self, image: &[u8], group: usize) -> Result<ShortVersion, Rejection> {
        let replica = self.replica(group);
        let kind = stream::byte(image, replica.start());
        if kind != LEAF {
            return Err(
                kind_of_byte(kind).map_or_else(|rejection| rejection, |found| Rejection::WrongKind { found })
            );
        }
        let version = ShortVersion(stream::byte(image, replica.start() + 1));
        let whole = replica.further_lines().all(|line| line_is_of(image, line, version));
        if whole { Ok(version) } else { Err(Rejection::Torn) }
    }

    /// Yields the right neighbour that replica `group` names, as bits of its address.
    pub(super) fn sibling_bits(&self, image: &[u8], group: usize) -> u64 {
        u64::from_le_bytes(stream::array(image, self.replica(group).start() + 2))
    }

    /// Yields the fences of replica `group`: the high one is none for plus infinity. None at all if replicas have none.
    pub(super) fn fences(
        &self,
        image: &[u8],
        group: usize,
    ) -> Result<Option<(StreamRange, Option<StreamRange>)>, Rejection> {
        if !self.has_fences {
            return Ok(None);
        }
        let at = self.replica(group).start() + REPLICA_BYTES;
        let [low, high] = [at, at + 2].map(|at| u16::from_le_bytes(stream::array(image, at)));
        let keys = at + FENCE_LENGTHS;
        if usize::from(low) > self.max_key || (usize::from(high) > self.max_key && high != u16::MAX) {
            return Err(Malformed::FenceLength.into());
        }
        let high = (high != u16::MAX).then(|| StreamRange::new(keys + self.max_key, usize::from(high)));
        Ok(Some((StreamRange::new(keys, usize::from(low)), high)))
    }
}

fn line_is_of(image: &[u8], line: usize, version: ShortVersion) -> bool {
    version::line_version(image, line).number() as u8 == version.0
}

//! Keys on their way to be packed again: unpacked into one buffer, because a writer handles hundreds of them
//! at once.

use crate::keys::{self, Keys};

/// Byte strings, one behind the other in one allocation.
#[derive(Default)]
pub(crate) struct KeyList {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl KeyList {
    /// Appends the key at `index` of `keys`.
    pub(crate) fn push(&mut self, keys: Keys<'_>, index: usize) {
        keys.copy(index, &mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// Packs the keys; None where `keys::pack` refuses.
    pub(crate) fn pack(&self) -> Option<Box<[u64]>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let keys: Vec<&[u8]> = starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end]).collect();
        let mut words = Vec::new();
        keys::pack(&keys, &mut words).then(|| words.into())
    }
}

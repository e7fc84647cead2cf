//! Changing a leaf: fresh images, and entry writes that say which bytes a WRITE must send.

use super::{HEAD_BYTES, KEY_SHORT, LeafLayout, PRESENT, VACANT, VALUE_SHORT, fingerprint};
use crate::layout::Patch;
use crate::layout::header::{Header, Kind, NodeHeader};
use crate::layout::stream::{self, LINE_BYTES, StreamRange};
use crate::layout::version::{self, EntryVersion};

impl LeafLayout {
    /// Puts `key` and `value` into `slot`, a vacancy or the slot that holds the key already, and increments the
    /// entry's version in all of its lines. The image must be whole (a view of it has been made) and the node
    /// locked. Lengths beyond the layout's, or a slot that does not exist, panic.
    ///
    /// Returns what to send: the entry, and after it the fingerprint's word unless that stays the same, as in an
    /// update.
    pub fn write_entry(&self, image: &mut [u8], slot: usize, key: &[u8], value: &[u8]) -> Patch {
        self.check_slot(image, slot);
        let head = stream::byte(image, self.entry(slot).start());
        self.store(image, slot, key, value, EntryVersion::from_bits(head).next());
        let sent = self.entry(slot);
        self.patch(image, slot, sent, fingerprint(key))
    }

    /// Empties `slot`. The image must be whole and the node locked. A slot that does not exist panics.
    ///
    /// Returns what to send: the head's word and the fingerprint's. The entry's version stays as it is: the head,
    /// which is all that changes, lies in one line, and the next entry in this slot gets the next version.
    pub fn clear_entry(&self, image: &mut [u8], slot: usize) -> Patch {
        self.check_slot(image, slot);
        let head = self.entry(slot).start();
        let version = EntryVersion::from_bits(stream::byte(image, head));
        stream::write(image, head, &[version.bits()]);
        self.patch(image, slot, StreamRange::new(head, HEAD_BYTES), VACANT)
    }

    /// Makes `image`, whatever it held, a leaf with `header` (of level 0) and `entries`. More entries than slots,
    /// or lengths beyond the layout's, panic. The image is to be written as a whole.
    pub fn build<'e>(
        &self,
        image: &mut [u8],
        header: &NodeHeader<'_>,
        entries: impl IntoIterator<Item = (&'e [u8], &'e [u8])>,
    ) {
        self.check_len(image);
        Header::build(image, self.max_key, Kind::Leaf, header);
        for (slot, (key, value)) in entries.into_iter().enumerate() {
            assert!(slot < self.slots, "a leaf has room for {} entries", self.slots);
            self.store(image, slot, key, value, EntryVersion::default());
            stream::write(image, self.fingerprint_at(slot), &[fingerprint(key)]);
        }
    }

    fn store(&self, image: &mut [u8], slot: usize, key: &[u8], value: &[u8], version: EntryVersion) {
        let entry = self.entry(slot);
        let key_short = if self.key_slot(entry).write(image, key) { KEY_SHORT } else { 0 };
        let value_short = if self.value_slot(entry).write(image, value) { VALUE_SHORT } else { 0 };
        stream::write(image, entry.start(), &[PRESENT | key_short | value_short | version.bits()]);
        for line in entry.further_lines() {
            version::set_entry_version(image, line, version);
        }
    }

    /// Sets the slot's fingerprint and returns what to send if `entry` of the slot's entry has changed.
    ///
    /// The two become one WRITE only where the fingerprint shares the line of the entry's head: the lines of one
    /// WRITE may become visible in any order, and a fingerprint must not before its entry.
    fn patch(&self, image: &mut [u8], slot: usize, entry: StreamRange, fingerprint: u8) -> Patch {
        let at = self.fingerprint_at(slot);
        let mut patch = Patch::new();
        patch.push(entry.write_range());
        if stream::byte(image, at) == fingerprint {
            return patch;
        }
        stream::write(image, at, &[fingerprint]);
        let word = StreamRange::new(at, 1).write_range();
        let entry = &mut patch[0];
        // Fingerprints lie before all entries.
        if word.end >= entry.start && word.start / LINE_BYTES == entry.start / LINE_BYTES {
            entry.start = word.start;
        } else {
            patch.push(word);
        }
        patch
    }

    fn check_slot(&self, image: &[u8], slot: usize) {
        self.check_len(image);
        assert!(slot < self.slots, "there is no such slot");
    }
}

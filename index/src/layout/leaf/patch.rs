//! Changes of a leaf: new images, and entry writes with the bytes that a WRITE must send.

use std::ops::Range;

use super::{HEAD_BYTES, KEY_SHORT, LeafLayout, PRESENT, VACANT, VALUE_SHORT, fingerprint};
use crate::layout::Patch;
use crate::layout::header::{Header, Kind, NodeHeader};
use crate::layout::stream::{self, LINE_BYTES, StreamRange};
use crate::layout::version::{self, EntryVersion};

impl LeafLayout {
    /// Puts `key` and `value` into `slot`, a vacancy or the slot that holds the key already, and gives the entry a
    /// version that none of its lines has. The image must be whole (a view of it has been made) and the node locked.
    /// Lengths beyond the layout's, or a slot that does not exist, panic.
    ///
    /// Returns the bytes to send: the fingerprint's word, unless that stays the same, as in an update, and then the
    /// entry.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// let vacancy = layout.view(&image)?.vacancy().expect("there is room");
    /// let patch = layout.write_entry(&mut image, vacancy, b"berta", b"2");
    /// assert!(patch.iter().map(|bytes| bytes.len()).sum::<usize>() < image.len());
    /// assert!(layout.view(&image)?.find(b"berta")?.is_some());
    /// # });
    /// ```
    pub fn write_entry(&self, image: &mut [u8], slot: usize, key: &[u8], value: &[u8]) -> Patch {
        self.check_slot(image, slot);
        let entry = self.entry(slot);
        // A writer that has died may have left the next version beyond the head's line (`tail_first`).
        let last = match entry.further_lines().last() {
            Some(line) => version::entry_version(image, line),
            None => EntryVersion::from_bits(stream::byte(image, entry.start())),
        };
        self.store(image, slot, key, value, last.next());
        let mut patch = Patch::new();
        patch.extend(self.set_fingerprint(image, slot, fingerprint(key)));
        patch.push(entry.write_range());
        join_within_a_line(patch)
    }

    /// Empties `slot`. The image must be whole and the node locked. A slot that does not exist panics.
    ///
    /// Returns the bytes to send: the head's word and then the fingerprint's. The entry's version stays as it is: the
    /// head, which is all that changes, lies in one line, and the next entry in this slot gets the next version.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// let slot = layout.view(&image)?.find(b"anna")?.expect("it is there").slot;
    /// layout.clear_entry(&mut image, slot);
    /// assert_eq!(layout.lookup(&image, b"anna")?, LeafLookup::Absent);
    /// # });
    /// ```
    pub fn clear_entry(&self, image: &mut [u8], slot: usize) -> Patch {
        self.check_slot(image, slot);
        let head = self.entry(slot).start();
        let version = EntryVersion::from_bits(stream::byte(image, head));
        stream::write(image, head, &[version.bits()]);
        let mut patch = Patch::new();
        patch.push(StreamRange::new(head, HEAD_BYTES).write_range());
        patch.extend(self.set_fingerprint(image, slot, VACANT));
        join_within_a_line(patch)
    }

    /// Makes `image`, whatever it held, a leaf with `header` (of level 0) and `entries`. More entries than slots,
    /// or lengths beyond the layout's, panic. The image is to be written as a whole.
    ///
    /// ```
    /// # use farwood_index::layout::*;
    /// # use farwood_runtime::RemotePtr;
    /// let layout = LeafLayout::for_slots(4, 8, 8)?;
    /// let mut image = vec![0; layout.node_bytes()];
    /// let header = NodeHeader {
    ///     level: 0,
    ///     low: b"",
    ///     high: None,
    ///     sibling: RemotePtr::NULL,
    ///     incarnation: 1,
    ///     node_version: NodeVersion::default(),
    /// };
    /// layout.build(&mut image, &header, [(&b"anna"[..], &b"1"[..])]);
    /// assert_eq!(layout.view(&image).map(|leaf| leaf.len()), Ok(1));
    /// # Ok::<_, LayoutError>(())
    /// ```
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

    /// Sets the slot's fingerprint; yields the word to send, or none if it is that already.
    fn set_fingerprint(&self, image: &mut [u8], slot: usize, fingerprint: u8) -> Option<Range<usize>> {
        let at = self.fingerprint_at(slot);
        let changes = stream::byte(image, at) != fingerprint;
        stream::write(image, at, &[fingerprint]);
        changes.then(|| StreamRange::new(at, 1).write_range())
    }

    fn check_slot(&self, image: &[u8], slot: usize) {
        self.check_len(image);
        assert!(slot < self.slots, "there is no such slot");
    }
}

/// Divides the WRITE of an entry that goes from one line into the next, of a patch that puts a key into a vacancy: what
/// is beyond the head's line goes first. Then the leaf is whole between any two WRITEs, as the slot stays a vacancy
/// until its head is there: a writer that dies in between has left bytes that no reader looks at.
///
/// ```text
///   WRITE fingerprint, WRITE tail ✗ dies       the slot is vacant     next entry: a version that neither line has
///   WRITE fingerprint, WRITE tail, WRITE head ✗ dies                  the key is in the leaf
/// ```
///
/// ```
/// # use farwood_index::layout::tail_first;
/// # farwood_doctest::leaf!(|layout, image| {
/// layout.clear_entry(&mut image, 1);
/// let mut patch = layout.write_entry(&mut image, 1, b"berta", b"2");
/// tail_first(&mut patch);
/// let lines: Vec<_> = patch.iter().map(|bytes| bytes.start / 64).collect();
/// assert_eq!(lines, [0, 1, 0], "fingerprint, tail, head");
/// # });
/// ```
pub fn tail_first(patch: &mut Patch) {
    let Some(entry) = patch.last_mut() else { return };
    let end = (entry.start / LINE_BYTES + 1) * LINE_BYTES;
    if (end + 1..=end + LINE_BYTES).contains(&entry.end) {
        let tail = end..entry.end;
        entry.end = end;
        patch.insert(patch.len() - 1, tail);
    }
}

/// Makes one WRITE of a fingerprint and an entry that are next to each other, if the entry's head is in the
/// fingerprint's line, which becomes visible at once. Elsewhere there must be two, for the lines of one WRITE may
/// become visible in any order.
fn join_within_a_line(mut patch: Patch) -> Patch {
    if let [one, other] = &*patch {
        let both = one.start.min(other.start)..one.end.max(other.end);
        let touch = both.len() <= one.len() + other.len();
        if touch && one.start / LINE_BYTES == other.start / LINE_BYTES {
            patch.truncate(1);
            patch[0] = both;
        }
    }
    patch
}

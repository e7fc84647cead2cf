//! From a node's address to the place of its copy: a hash table that grows by splitting pages, so that growth never
//! needs twice the memory. A split looks at every copy of a page: 3,700 of them in a cache of 600 MB.
//!
//! ```text
//! hash:       | directory index |    ..    | start in page |  ..  | tag |
//! directory:  page, page, ..       one slot for each value of the index; neighbours share pages
//! page:       entry, entry, ..     linear probing, at most 9/10 full
//! entry:      | tag | place |      32 bits, 0 is empty
//! ```
//!
//! Readers take no notice of writers: the table promises nothing but that an entry, whenever it is read, is the
//! place of a copy that is valid at that moment. A reader may miss a node whose entry is being moved. That is
//! why memory once given to the table stays with the table.

use super::arena::{Arena, Place};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Pages that a segment is divided into. Few, so that the directories are small (32 KiB for a cache of 64 MiB): each
/// lookup reads them at random places, once and more per level.
pub(super) const PAGES_PER_SEGMENT: u32 = 4;
/// Slots of the directory for each segment that the budget allows: enough for the smallest copies in pages as
/// empty as they are right after a split.
const DIRECTORY_PER_SEGMENT: usize = 2;
const START_SHIFT: u32 = 20;

/// A page of entries: a part of a segment.
#[derive(Clone, Copy)]
pub(super) struct Page<'a> {
    words: &'a [AtomicU64],
}

impl Page<'_> {
    /// Counts the entries that it has room for: a power of two.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.words.len() * 2
    }

    #[inline]
    pub(super) fn entry(&self, index: usize) -> u32 {
        (self.words[index / 2].load(Ordering::Acquire) >> (index % 2 * 32)) as u32
    }

    /// Sets an entry. Only under the writer lock.
    pub(super) fn set(&self, index: usize, entry: u32) {
        let shift = index % 2 * 32;
        let others = self.words[index / 2].load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        self.words[index / 2].store(others | u64::from(entry) << shift, Ordering::Release);
    }

    /// Empties the page. Only under the writer lock.
    pub(super) fn clear(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    /// Yields where the search for a node with this hash begins.
    #[inline]
    pub(super) fn start(&self, hash: u64) -> usize {
        (hash >> START_SHIFT) as usize & (self.capacity() - 1)
    }

    #[inline]
    pub(super) fn next(&self, index: usize) -> usize {
        (index + 1) & (self.capacity() - 1)
    }

    /// Yields the most entries that it should hold.
    pub(super) fn limit(&self) -> usize {
        self.capacity() * 29 / 32
    }
}

/// The part of the table that readers see.
pub(super) struct Table {
    /// Page numbers plus 1; 0 where there is no page yet.
    directory: Box<[AtomicU32]>,
    tag_mask: u32,
    place_bits: u32,
}

impl Table {
    pub(super) fn new(arena: &Arena) -> Self {
        let slots = (arena.segments_max() * DIRECTORY_PER_SEGMENT).next_power_of_two();
        Table {
            directory: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            tag_mask: u32::MAX.checked_shl(arena.place_bits()).unwrap_or(0),
            place_bits: arena.place_bits(),
        }
    }

    pub(super) fn directory(&self) -> &[AtomicU32] {
        &self.directory
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.directory)
    }

    /// Yields the directory slot for a hash.
    #[inline]
    pub(super) fn slot(&self, hash: u64) -> usize {
        // In two steps, because the directory may have a single slot.
        ((hash >> 1) >> (63 - self.directory.len().ilog2())) as usize
    }

    #[inline]
    pub(super) fn page_number(&self, hash: u64) -> Option<u32> {
        self.directory[self.slot(hash)].load(Ordering::Acquire).checked_sub(1)
    }

    #[inline]
    pub(super) fn page<'a>(&self, arena: &'a Arena, number: u32) -> Option<Page<'a>> {
        let words = arena.get(number / PAGES_PER_SEGMENT)?.words();
        let len = words.len() / PAGES_PER_SEGMENT as usize;
        let first = (number % PAGES_PER_SEGMENT) as usize * len;
        Some(Page { words: &words[first..first + len] })
    }

    #[inline]
    pub(super) fn tag(&self, hash: u64) -> u32 {
        (hash as u32).checked_shl(self.place_bits).unwrap_or(0)
    }

    /// Searches a page from `index` on, once around, for an entry with this tag before the first empty one; yields its
    /// index and the entry. A page close to a split makes long searches, so this reads two entries at a time.
    #[inline]
    pub(super) fn seek(&self, page: Page<'_>, index: usize, tag: u32) -> Option<(usize, u32)> {
        let ends = |entry: u32| entry == 0 || entry & self.tag_mask == tag;
        let found = |index: usize, entry: u32| (entry != 0).then_some((index, entry));
        if index % 2 == 1 {
            let entry = page.entry(index);
            if ends(entry) {
                return found(index, entry);
            }
        }
        let first = index.div_ceil(2);
        for index in first..first + page.words.len() {
            let index = index & (page.words.len() - 1);
            let word = page.words[index].load(Ordering::Acquire);
            let (even, odd) = (word as u32, (word >> 32) as u32);
            if ends(even) {
                return found(index * 2, even);
            }
            if ends(odd) {
                return found(index * 2 + 1, odd);
            }
        }
        None
    }

    /// Finds the index of the node's entry in its page, and its place. For the writer.
    pub(super) fn locate(&self, arena: &Arena, node: u64) -> Option<(u32, usize, Place)> {
        let hash = hash(node);
        let number = self.page_number(hash)?;
        let page = self.page(arena, number)?;
        let tag = self.tag(hash);
        let mut start = page.start(hash);
        while let Some((index, entry)) = self.seek(page, start, tag) {
            let place = arena.decode(entry);
            if arena.node_at(place) == node {
                return Some((number, index, place));
            }
            start = page.next(index);
        }
        None
    }

    /// Finds the entry that points to `place`, as [`Table::locate`] does, for a copy that is known to be of
    /// `node`. Looks at no copies.
    pub(super) fn locate_place(&self, arena: &Arena, node: u64, place: Place) -> Option<(u32, usize)> {
        let hash = hash(node);
        let number = self.page_number(hash)?;
        let page = self.page(arena, number)?;
        let wanted = self.tag(hash) | arena.encode(place);
        let mut index = page.start(hash);
        for _ in 0..page.capacity() {
            match page.entry(index) {
                0 => return None,
                entry if entry == wanted => return Some((number, index)),
                _ => index = page.next(index),
            }
        }
        None
    }

    /// Puts an entry for `node` where its search will find it. The page must have room.
    pub(super) fn put(&self, page: Page<'_>, node: u64, place: u32) {
        let hash = hash(node);
        let mut index = page.start(hash);
        while page.entry(index) != 0 {
            index = page.next(index);
        }
        page.set(index, self.tag(hash) | place);
    }

    /// Takes the entry at `index` out and moves those behind it up, so that searches still find them.
    pub(super) fn take_out(&self, arena: &Arena, page: Page<'_>, index: usize) {
        let mut hole = index;
        let mut index = page.next(index);
        loop {
            let entry = page.entry(index);
            if entry == 0 {
                break;
            }
            let start = page.start(hash(arena.node_at(arena.decode(entry))));
            let behind = |from: usize| index.wrapping_sub(from) & (page.capacity() - 1);
            // Its search begins at the hole or before it: it may move there.
            if behind(start) >= behind(hole) {
                page.set(hole, entry);
                hole = index;
            }
            index = page.next(index);
        }
        page.set(hole, 0);
    }
}

/// Mixes an address: addresses of neighbours differ in few bits, and all bits of the result are used.
#[inline]
pub(super) fn hash(node: u64) -> u64 {
    let mixed = (node ^ node >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_ends_where_one_entry_after_the_other_would_end_it() {
        const TAG: u32 = 0xA000_0000;
        // Empty, of this tag, of another one.
        const ENTRIES: [u32; 3] = [0, TAG | 7, 0xB000_0007];
        let table = Table { directory: Box::default(), tag_mask: 0xF000_0000, place_bits: 28 };
        let words: [AtomicU64; 4] = Default::default();
        let page = Page { words: &words };
        for case in 0..ENTRIES.len().pow(page.capacity() as u32) {
            for index in 0..page.capacity() {
                page.set(index, ENTRIES[case / ENTRIES.len().pow(index as u32) % ENTRIES.len()]);
            }
            for start in 0..page.capacity() {
                let mut around = (0..page.capacity()).map(|step| (start + step) % page.capacity());
                let end = around.find(|index| page.entry(*index) != ENTRIES[2]);
                let expected = end.map(|index| (index, page.entry(index))).filter(|(_, entry)| *entry != 0);
                assert_eq!(table.seek(page, start, TAG), expected, "case {case} from {start}");
            }
        }
    }
}

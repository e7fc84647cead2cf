//! Amending a copy by one slot, which a client has just changed in the node itself. Without it the next
//! client that uses the copy would find it out of date.

use smallvec::SmallVec;

use super::copy::{self, Change, Copy, PREFIX_BYTES_MAX};
use super::part::Part;
use super::store::Store;
use super::{RadixCache, RadixImage};
use crate::sync::Ordering;

/// A copy, unpacked.
struct Unpacked {
    class: u8,
    depth: u8,
    prefix: SmallVec<[u8; PREFIX_BYTES_MAX]>,
    slots: SmallVec<[u64; 32]>,
}

impl Unpacked {
    fn of(copy: &Copy<'_>) -> Self {
        let prefix = copy.prefix().to_le_bytes().into_iter().take(copy.prefix_len()).collect();
        let slots = (0..copy.claimed()).map(|index| copy.slot(index)).collect();
        Unpacked { class: copy.class(), depth: copy.depth(), prefix, slots }
    }
}

/// Numbers of amended copies.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct AmendStats {
    /// Times that the copy was changed where it lies.
    pub in_place: u64,
    /// Times that it was packed anew: these count as inserted, too.
    pub anew: u64,
}

impl RadixCache {
    /// Lets the copy of a node say that its slot `index` holds `word`. Does nothing if there is no copy, if it lacks
    /// slots before that one, if the word may not be cached, or if another thread is changing this part of the cache,
    /// for which it does not wait. Mostly changes the copy where it lies; what does not fit there makes a new copy,
    /// with room for more slots if this one is new.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// let moved = leaf + 1;
    /// cache.amend(64, 0, moved);
    /// assert_eq!(reader.find(b"anna").and_then(|route| route.slot), Some((0, moved)));
    /// # });
    /// ```
    pub fn amend(&self, node: u64, index: usize, word: u64) {
        let (part, hash) = self.part(node);
        part.amend(hash, node, index, word);
    }

    /// Yields the counts of amended copies so far.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// cache.amend(64, 0, leaf + 1);
    /// let amended = cache.amend_stats();
    /// assert_eq!(amended.in_place + amended.anew, 1);
    /// # });
    /// ```
    pub fn amend_stats(&self) -> AmendStats {
        AmendStats {
            in_place: self.sum(|counters| &counters.amended_in_place),
            anew: self.sum(|counters| &counters.amended_anew),
        }
    }
}

impl Part {
    fn amend(&self, hash: u64, node: u64, index: usize, word: u64) {
        // Without the lock, because most nodes of a tree beyond the budget have no copy.
        let is_news = copy::is_sound_slot(word)
            && self.visit(hash, node, |copy| copy.is_news(index, word)) == Some(true);
        if !is_news {
            return;
        }
        let Some(mut writer) = self.try_lock() else { return };
        let Some(present) = writer.present(self.shared(), node) else { return };
        match present.change(index, word) {
            Change::None => {}
            Change::Made => {
                self.counters.amended_in_place.fetch_add(1, Ordering::Relaxed);
            }
            Change::DoesNotFit => self.amend_anew(&mut writer, &present, index, word),
        }
    }

    fn amend_anew(&self, writer: &mut Store, present: &Copy<'_>, index: usize, word: u64) {
        let mut unpacked = Unpacked::of(present);
        let grows = index == unpacked.slots.len();
        match unpacked.slots.get_mut(index) {
            Some(slot) => *slot = word,
            None => unpacked.slots.push(word),
        }
        let Unpacked { class, depth, prefix, slots } = &unpacked;
        let image = RadixImage { node: present.node(), class: *class, depth: *depth, prefix, slots };
        let grows = grows || present.is_growing();
        let packed = if grows { copy::pack_growing(&image) } else { copy::pack(&image) };
        if packed.is_some_and(|copy| writer.insert(self.shared(), image.node, &copy)) {
            self.counters.amended_anew.fetch_add(1, Ordering::Relaxed);
            self.counters.inserted.fetch_add(1, Ordering::Relaxed);
        }
        self.clock.follow(writer.renewal());
        self.report(writer);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RadixConfig, slot};
    use super::*;
    use crate::eviction::Policy;

    /// 28 slots are added to a copy of two: the first one makes a copy with room for 8, then 16, 24 and 36. A change
    /// fits where it lies unless its bits are in two words, a tombstone like any other child.
    #[test]
    fn most_changes_need_no_new_copy() {
        let cache = RadixCache::new(RadixConfig { budget_bytes: 1 << 20, policy: Policy::Fifo, seed: 1 });
        // 3 + 11 bits and 2 of kind: no value is in two words.
        let word = |index: u64, class: u64| {
            let child = (index % 8) << slot::CHILD_SERVER_SHIFT | (2047 - index * 64);
            index << slot::PARTIAL_SHIFT | slot::LEAF | class << slot::CLASS_SHIFT | child
        };
        let mut slots = vec![(1 << slot::CHILD_SERVER_SHIFT | 1) | slot::LEAF, word(7, 1)];
        let image =
            |slots: &[u64]| cache.insert(&RadixImage { node: 300, class: 1, depth: 0, prefix: &[], slots });
        assert!(image(&slots));
        let stats = || (cache.amend_stats().anew, cache.amend_stats().in_place, cache.stats().inserted);
        for index in 2..30 {
            slots.push(word(index, 1) + (100 << slot::PARTIAL_SHIFT));
            cache.amend(300, index as usize, slots[index as usize]);
            let anew = 1 + [9, 17, 25].iter().filter(|count| slots.len() >= **count).count() as u64;
            assert_eq!(stats(), (anew, slots.len() as u64 - 2 - anew, 1 + anew), "{} slots", slots.len());
        }
        // Other children, other kinds, no child.
        for index in 0..30 {
            let kinds = [slot::LEAF | 1 << slot::CLASS_SHIFT, slot::LEAF | 2 << slot::CLASS_SHIFT];
            let partial = slots[index] >> slot::PARTIAL_SHIFT << slot::PARTIAL_SHIFT;
            slots[index] = partial | kinds[index % 2] | if index == 9 { 0 } else { 1024 + index as u64 };
            cache.amend(300, index, slots[index]);
        }
        assert_eq!(stats(), (4, 24 + 30, 5));
        let copied = |slots: &[u64]| {
            let image = RadixImage { node: 300, class: 1, depth: 0, prefix: &[], slots };
            cache.visit(300, |copy| copy.is_copy_of(&image))
        };
        assert_eq!(copied(&slots), Some(true));
        // Nothing new, nothing sound, nothing that comes too early.
        cache.amend(300, 3, slots[3]);
        cache.amend(300, 3, slots[3] | slot::FROZEN);
        cache.amend(300, 3, 0);
        cache.amend(300, 31, slots[3]);
        assert_eq!((stats(), copied(&slots)), ((4, 54, 5), Some(true)));
        // A child further away than any so far needs more bits.
        slots[4] |= 4096;
        cache.amend(300, 4, slots[4]);
        assert_eq!((stats(), copied(&slots)), ((5, 54, 6), Some(true)));
    }

    #[test]
    fn one_slot_changes_and_the_rest_stays() {
        let cache = RadixCache::new(RadixConfig { budget_bytes: 1 << 20, policy: Policy::Fifo, seed: 1 });
        let reader = cache.reader();
        let leaf = |byte: u8, child: u64| u64::from(byte) << 56 | slot::LEAF | 1 << 49 | child;
        cache.set_root(1 << 49 | 7);
        cache.amend(7, 0, leaf(b'a', 1));
        assert_eq!(reader.find(b"xya").unwrap().node, 0, "there is no copy to amend");
        let slots = [leaf(b'a', 100), leaf(b'b', 200)];
        assert!(cache.insert(&RadixImage { node: 7, class: 1, depth: 0, prefix: b"xy", slots: &slots }));
        cache.amend(7, 2, leaf(b'c', 300));
        cache.amend(7, 0, leaf(b'a', 101));
        cache.amend(7, 4, leaf(b'd', 400));
        let find = |key: &[u8]| reader.find(key).unwrap();
        for (key, slot) in [
            (b"xya", Some((0, leaf(b'a', 101)))),
            (b"xyb", Some((1, leaf(b'b', 200)))),
            (b"xyc", Some((2, leaf(b'c', 300)))),
            (b"xyd", None),
        ] {
            let route = find(key);
            assert_eq!((route.node, route.pos, route.slot, route.claimed), (7, 2, slot, 3));
        }
    }
}

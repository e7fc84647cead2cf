//! Amending a copy by one slot: what a client knows who has just changed that slot of the node itself. Without it the
//! next client to come by the copy would find it out of date.

use smallvec::SmallVec;

use super::copy::{Copy, PREFIX_BYTES_MAX};
use super::{RadixCache, RadixImage};

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

impl RadixCache {
    /// Lets the copy of a node say that its slot `index` holds `word`. Does nothing if there is no copy, or if it lacks
    /// slots before that one.
    pub fn amend(&self, node: u64, index: usize, word: u64) {
        let Some(mut copy) = self.visit(node, Unpacked::of) else { return };
        let claimed = copy.slots.len();
        match copy.slots.get_mut(index) {
            Some(slot) => *slot = word,
            None if index == claimed => copy.slots.push(word),
            None => return,
        }
        let Unpacked { class, depth, prefix, slots } = &copy;
        self.insert(&RadixImage { node, class: *class, depth: *depth, prefix, slots });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RadixConfig, slot};
    use super::*;
    use crate::eviction::Policy;

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
            let steer = find(key);
            assert_eq!((steer.node, steer.pos, steer.slot, steer.claimed), (7, 2, slot, 3));
        }
    }
}

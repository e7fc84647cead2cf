//! The reader of a shard. Takes no lock, allocates nothing and writes nothing shared, except a copy's use
//! stamp once per epoch.

use std::cell::Cell;
use std::sync::Arc;

use super::copy::Copy;
use smallvec::SmallVec;

use super::slot::{self, CHILD, END, LEAF};
use super::{RadixCache, RadixImage};
use crate::stats::CacheStats;

/// A reader moves the use clock on once in this many lookups.
const LOOKUPS_PER_TICK: u64 = 1 << 20;

/// The most nodes on the way to a leaf: one for each key byte, and one for the end.
const NODES_ON_A_WAY_MAX: usize = 256;

/// The end of the cached part of a key's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedRoute {
    /// The deepest cached node on the path; 0 for the root slot itself.
    pub node: u64,
    /// The node's type; 0 for the root slot.
    pub class: u8,
    /// The index of the key byte that the node's slots are about: its depth and the length of its prefix. 0 for
    /// the root slot.
    pub pos: usize,
    /// The slot that matches the key: its index in the node and its word, exactly as it came. The root slot has
    /// index 0. None if the copy has none for the key.
    pub slot: Option<(usize, u64)>,
    /// True if that slot is the last one before the key ([`RadixReader::find_covering`]), and not the key's own.
    pub is_before: bool,
    /// Slots in the copy.
    pub claimed: usize,
}

impl CachedRoute {
    fn root(word: u64) -> Self {
        CachedRoute { node: 0, class: 0, pos: 0, slot: Some((0, word)), is_before: false, claimed: 1 }
    }
}

/// One shard's reader of a [`RadixCache`]. Not `Sync`; make one per shard.
pub struct RadixReader {
    cache: Arc<RadixCache>,
    lookups: Cell<u64>,
    hits: Cell<u64>,
}

impl RadixReader {
    pub(super) fn new(cache: Arc<RadixCache>) -> Self {
        RadixReader { cache, lookups: Cell::new(0), hits: Cell::new(0) }
    }

    /// Yields the cache that this reads.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// assert_eq!(reader.cache().root(), cache.root());
    /// # });
    /// ```
    pub fn cache(&self) -> &Arc<RadixCache> {
        &self.cache
    }

    /// Finds the deepest cached node on the path of `key`, and its slot. None if the root is not known.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// let route = reader.find(b"anna").expect("the root is known");
    /// assert_eq!((route.node, route.pos, route.slot), (64, 0, Some((0, leaf))));
    /// assert_eq!(reader.find(b"berta").and_then(|route| route.slot), None);
    /// # });
    /// ```
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<CachedRoute> {
        self.route::<false>(key)
    }

    /// Finds the deepest cached node on the way to `key` as [`RadixReader::find`] does, where slots are also for the
    /// keys behind their own that have none: the slot is that of the key's symbol, or else the last one before it,
    /// below which the way goes on to the last slots of all. In a node about the first key byte only that of the
    /// symbol will do.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// let inner = u64::from(b'c') << 56 | 1 << slot::CLASS_SHIFT | 256;
    /// let below = (leaf ^ 1 << 20) & !(0xff << 56) | u64::from(b'x') << 56;
    /// cache.insert(&RadixImage { node: 64, class: 1, depth: 0, prefix: b"", slots: &[inner] });
    /// cache.insert(&RadixImage { node: 256, class: 1, depth: 1, prefix: b"", slots: &[below] });
    /// let found = |key| reader.find_covering(key).map(|route| (route.slot, route.is_before));
    /// assert_eq!(found(b"cx"), Some((Some((0, below)), false)));
    /// assert_eq!(found(b"cz"), Some((Some((0, below)), true)));
    /// assert_eq!(found(b"ca"), Some((None, true)));
    /// assert_eq!(found(b"d"), Some((None, false)));
    /// # });
    /// ```
    #[inline]
    pub fn find_covering(&self, key: &[u8]) -> Option<CachedRoute> {
        self.route::<true>(key)
    }

    /// Drops the cached nodes on the way to `key` from the one on that has no slot of its own for it: it has led a
    /// client to a wrong place, since the key has got one there meanwhile, or in one of those below.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// let inner = u64::from(b'c') << 56 | 1 << slot::CLASS_SHIFT | 256;
    /// let below = (leaf ^ 1 << 20) & !(0xff << 56) | u64::from(b'x') << 56;
    /// cache.insert(&RadixImage { node: 64, class: 1, depth: 0, prefix: b"", slots: &[inner] });
    /// cache.insert(&RadixImage { node: 256, class: 1, depth: 1, prefix: b"", slots: &[below] });
    /// reader.forget_before(b"cx");
    /// assert!(reader.slots_of(256).is_some(), "the key has a slot of its own");
    /// reader.forget_before(b"cz");
    /// assert!(reader.slots_of(256).is_none() && reader.slots_of(64).is_some());
    /// # });
    /// ```
    #[cold]
    pub fn forget_before(&self, key: &[u8]) {
        let (mut route, mut outdated) = (CachedRoute::root(self.cache.root()), SmallVec::<[u64; 16]>::new());
        while let Some((_, word)) = route.slot.filter(|(_, word)| word & LEAF == 0) {
            match self.cache.visit(word & CHILD, |copy| step(copy, key, &route, true)).flatten() {
                Some(deeper) => route = deeper,
                None => break,
            }
            if route.is_before {
                outdated.push(route.node);
            }
        }
        outdated.into_iter().for_each(|node| self.cache.invalidate(node));
    }

    /// Finds the end of the cached way to `key`, or to the last slot before it, if it has none and `COVERS`. Twice in
    /// the program, so that each is one loop without a call.
    #[inline(always)]
    fn route<const COVERS: bool>(&self, key: &[u8]) -> Option<CachedRoute> {
        let lookups = self.lookups.get() + 1;
        self.lookups.set(lookups);
        if lookups.is_multiple_of(LOOKUPS_PER_TICK) {
            self.cache.parts.iter().for_each(|part| part.clock.advance());
        }
        let root = self.cache.root();
        if root == 0 {
            return None;
        }
        let mut route = CachedRoute::root(root);
        // Until the key's leaf is known, or that it has none.
        while let Some((_, word)) = route.slot.filter(|(_, word)| word & LEAF == 0) {
            match self.cache.visit(word & CHILD, |copy| step(copy, key, &route, COVERS)).flatten() {
                Some(deeper) => route = deeper,
                None => return Some(route),
            }
        }
        self.hits.set(self.hits.get() + 1);
        Some(route)
    }

    /// Yields the slots of a cached node, in the order of their symbols, and the index of the key byte that they are
    /// about.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// let (position, slots) = reader.slots_of(64).expect("it is cached");
    /// assert_eq!((position, &slots[..]), (0, &[leaf][..]));
    /// assert!(reader.slots_of(128).is_none());
    /// # });
    /// ```
    pub fn slots_of(&self, node: u64) -> Option<(usize, SmallVec<[u64; 32]>)> {
        let slots = |copy: &Copy<'_>| {
            let position = usize::from(copy.depth()) + copy.prefix_len();
            (position, (0..copy.claimed()).map(|index| copy.slot(index)).collect())
        };
        let (position, mut slots): (_, SmallVec<[u64; 32]>) = self.cache.visit(node, slots)?;
        slots.sort_unstable_by_key(|word| (word & END == 0, slot::partial(*word)));
        Some((position, slots))
    }

    /// Counts the slots of a cached node that lead somewhere, up to `most`. None if the node is not cached.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// assert_eq!((reader.children_of(64, 2), reader.children_of(128, 2)), (Some(1), None));
    /// # });
    /// ```
    pub fn children_of(&self, node: u64, most: usize) -> Option<usize> {
        let leads = |copy: &Copy<'_>, index: &usize| copy.slot(*index) & CHILD != 0;
        self.cache
            .visit(node, |copy| (0..copy.claimed()).filter(|index| leads(copy, index)).take(most).count())
    }

    /// Yields the slots of leaves behind the one that [`RadixReader::find_covering`] finds for `key`, in the order of
    /// their keys, one for each leaf: at most so many, and none behind a node that is not cached.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// let inner = u64::from(b'c') << 56 | 1 << slot::CLASS_SHIFT | 256;
    /// let below = (leaf ^ 1 << 20) & !(0xff << 56) | u64::from(b'x') << 56;
    /// cache.insert(&RadixImage { node: 64, class: 1, depth: 0, prefix: b"", slots: &[leaf, inner] });
    /// assert!(reader.leaves_behind(b"anna", 8).is_empty(), "the next node is not cached");
    /// cache.insert(&RadixImage { node: 256, class: 1, depth: 1, prefix: b"", slots: &[below] });
    /// assert_eq!(reader.leaves_behind(b"anna", 8)[..], [below]);
    /// assert!(reader.leaves_behind(b"cx", 8).is_empty(), "it is the last one");
    /// # });
    /// ```
    pub fn leaves_behind(&self, key: &[u8], most: usize) -> SmallVec<[u64; 32]> {
        // Nodes on the way to the last leaf so far, and the symbol of the slot there that leads to it.
        let mut way: SmallVec<[(u64, Option<Option<u8>>); 16]> = SmallVec::new();
        let mut route = CachedRoute::root(self.cache.root());
        while let Some((_, word)) = route.slot.filter(|(_, word)| word & LEAF == 0 && word & CHILD != 0) {
            match self.cache.visit(word & CHILD, |copy| step(copy, key, &route, true)).flatten() {
                Some(deeper) => route = deeper,
                None => return SmallVec::new(),
            }
            let Some((_, word)) = route.slot else { return SmallVec::new() };
            way.push((route.node, Some(symbol_of(word))));
        }
        let (mut leaves, mut last) = (SmallVec::new(), route.slot.map_or(0, |(_, word)| word & CHILD));
        while leaves.len() < most
            && let Some((node, symbol)) = way.last_mut()
        {
            match self.cache.visit(*node, |copy| copy.first_behind(*symbol)) {
                None => break,
                Some(None) => drop(way.pop()),
                Some(Some(word)) => {
                    *symbol = Some(symbol_of(word));
                    if word & CHILD == 0 {
                        continue;
                    }
                    if word & LEAF != 0 {
                        // A leaf has a slot in each node that some of its keys lead to.
                        if word & CHILD != last {
                            leaves.push(word);
                        }
                        last = word & CHILD;
                    } else if way.len() < NODES_ON_A_WAY_MAX {
                        way.push((word & CHILD, None));
                    } else {
                        break;
                    }
                }
            }
        }
        leaves
    }

    /// Caches a node: see [`RadixCache::insert`].
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// let node = RadixImage { node: 64, class: 1, depth: 0, prefix: b"", slots: &[] };
    /// assert!(reader.insert(&node));
    /// assert_eq!(reader.find(b"anna").and_then(|route| route.slot), None);
    /// # });
    /// ```
    pub fn insert(&self, image: &RadixImage<'_>) -> bool {
        self.cache.insert(image)
    }

    /// Yields what the cache holds, what has happened to it, and how often this reader found something.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// reader.find(b"anna");
    /// assert_eq!((reader.stats().hits, reader.stats().nodes), (1, 1));
    /// # });
    /// ```
    pub fn stats(&self) -> CacheStats {
        CacheStats { lookups: self.lookups(), hits: self.hits(), ..self.cache.stats() }
    }

    /// Counts the lookups so far.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// reader.find(b"anna");
    /// assert_eq!(reader.lookups(), 1);
    /// # });
    /// ```
    pub fn lookups(&self) -> u64 {
        self.lookups.get()
    }

    /// Counts the lookups that needed no inner node beyond the cached ones: they found the address of a leaf,
    /// or that the key has none.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// reader.find(b"anna");
    /// cache.invalidate(64);
    /// reader.find(b"anna");
    /// assert_eq!((reader.lookups(), reader.hits()), (2, 1));
    /// # });
    /// ```
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }
}

/// Yields the key byte that a slot is about; none for the end of keys.
fn symbol_of(word: u64) -> Option<u8> {
    (word & END == 0).then(|| slot::partial(word))
}

/// Yields where a node's copy leads for `key`, whose bytes before `next` are known to fit. None if the copy
/// lacks some of the bytes from there on (a header split has put a node above it that is not cached), or is
/// not about `key`.
#[inline(always)]
fn step(copy: &Copy<'_>, key: &[u8], from: &CachedRoute, covers: bool) -> Option<CachedRoute> {
    // The root slot is before all key bytes; a node's slot is about the byte at its position.
    let next = if from.node == 0 { 0 } else { from.pos + 1 };
    let depth = usize::from(copy.depth());
    let pos = depth + copy.prefix_len();
    // A child is about a later byte than its parent: also what ends the descent if the words are not of a tree.
    if depth > next || pos < next {
        return None;
    }
    let route = |slot, is_before| CachedRoute {
        node: copy.node(),
        class: copy.class(),
        pos,
        slot,
        is_before,
        claimed: copy.claimed(),
    };
    if covers && from.is_before {
        return Some(route(copy.last(), true));
    }
    if !copy.has_prefix(key.get(depth..pos)?) {
        return None;
    }
    let byte = key.get(pos).copied();
    Some(match (copy.find(byte), byte) {
        (None, Some(byte)) if covers && pos > 0 => route(copy.last_before(byte), true),
        (found, _) => route(found, false),
    })
}

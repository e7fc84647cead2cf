//! Changes of a leaf: new images, halves, and entry writes with the bytes that a WRITE must send.

use std::cell::Cell;
use std::ops::Range;

use smallvec::SmallVec;

use super::super::header::{Header, Kind, LEAF, NodeHeader};
use super::super::stream::{self, StreamRange, WORD_BYTES};
use super::super::version::{self, EntryVersion};
use super::super::{Malformed, Patch, Rejection};
use super::entry::{KEY_SHORT, PRESENT, ShortVersion, VALUE_SHORT};
use super::{HEAD_BYTES, HopLayout, Placement, Vacancy};

/// Slots of a leaf that a write changes.
pub(super) type Slots = SmallVec<[usize; 8]>;

impl HopLayout {
    /// Makes `image`, whatever it held, a leaf with `header` (of level 0) and as many of `pairs` as there is room for
    /// in their order; yields their number. The image is to be written as a whole.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// # let header = NodeHeader {
    /// #     level: 0,
    /// #     low: b"",
    /// #     high: None,
    /// #     sibling: RemotePtr::NULL,
    /// #     incarnation: 1,
    /// #     node_version: NodeVersion::new(8),
    /// # };
    /// assert_eq!(layout.build(&mut image, &header, [(&b"dora"[..], &b"4"[..])]), 1);
    /// assert!(layout.lookup(&image, b"dora", false)?.found.is_some());
    /// assert!(layout.lookup(&image, b"anna", false)?.found.is_none());
    /// # });
    /// ```
    pub fn build<'p>(
        &self,
        image: &mut [u8],
        header: &NodeHeader<'_>,
        pairs: impl IntoIterator<Item = (&'p [u8], &'p [u8])>,
    ) -> usize {
        self.check_len(image);
        image.fill(0);
        self.set_header(image, header);
        let mut placed = 0;
        for (key, value) in pairs {
            let Ok(Some(placement)) = self.place(image, self.home(key)) else { break };
            self.insert(image, &placement, key, value);
            placed += 1;
        }
        self.set_vacancy(image, self.vacancy_of(image));
        placed
    }

    /// Places a key with this home in an image of which everything from the home on to the first vacancy was read. None
    /// if there is no room.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let placement = layout.place(&image, layout.home(b"berta"))?.expect("there is room");
    /// assert!(placement.hops.is_empty() && layout.is_vacant(&image, placement.slot));
    /// # });
    /// ```
    ///
    /// # Errors
    /// If a key on the way is not as writers leave it.
    pub fn place(&self, image: &[u8], home: usize) -> Result<Option<Placement>, Rejection> {
        self.with_homes(image, |home_of| self.ring.place(home, home_of))
    }

    /// Places a key with this home, in whose neighbourhood there is no vacancy, by hops back, in an image of which all
    /// was read. None if there is no room.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let home = layout.home(b"anna");
    /// while let Some(placement) = layout.place(&image, home)? {
    ///     layout.insert(&mut image, &placement, b"anna", b"");
    /// }
    /// assert_eq!(layout.place_back(&image, home)?, None, "all that are near have that home");
    /// # });
    /// ```
    ///
    /// # Errors
    /// If a key is not as writers leave it.
    pub fn place_back(&self, image: &[u8], home: usize) -> Result<Option<Placement>, Rejection> {
        self.with_homes(image, |home_of| self.ring.place_back(home, home_of))
    }

    /// Calls `place` with what yields the home of the key in a slot.
    fn with_homes(
        &self,
        image: &[u8],
        place: impl FnOnce(&dyn Fn(usize) -> Option<usize>) -> Option<Placement>,
    ) -> Result<Option<Placement>, Rejection> {
        let wrong = Cell::new(None);
        let placement = place(&|slot| {
            let other = self.is_present(image, slot).then(|| self.home_of(image, slot))?;
            // Any home will do: the placement is not used.
            Some(other.unwrap_or_else(|rejection| {
                wrong.set(Some(rejection));
                slot
            }))
        });
        wrong.into_inner().map_or(Ok(placement), Err)
    }

    /// Counts the keys, from the first one on, that a new leaf has room for.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let keys: Vec<[u8; 1]> = (0..9).map(|key| [key]).collect();
    /// assert_eq!(layout.room_for([&b"anna"[..], b"clara"]), 2);
    /// assert!(layout.room_for(keys.iter().map(|key| &key[..])) <= 8);
    /// # });
    /// ```
    pub fn room_for<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) -> usize {
        let mut homes = vec![None; self.ring.slots];
        let mut count = 0;
        for key in keys {
            let home = self.home(key);
            let Some(placement) = self.ring.place(home, |slot| homes[slot]) else { break };
            for hop in placement.hops {
                homes[hop.to] = homes[hop.from].take();
            }
            homes[placement.slot] = Some(home);
            count += 1;
        }
        count
    }

    /// Gives a whole image another header, with its version in all lines, replicas and entries. Lock and vacancies
    /// stay.
    pub fn set_header(&self, image: &mut [u8], header: &NodeHeader<'_>) {
        Header::set(image, self.max_key, Kind::Leaf, header);
        let short = ShortVersion::of(header.node_version);
        for group in 0..self.ring.slots / self.ring.reach {
            let replica = self.replica(group).start();
            stream::write(image, replica, &[LEAF, short.0]);
            stream::write(image, replica + 2, &header.sibling.to_bits().to_le_bytes());
            if self.has_fences {
                self.set_fences(image, replica + super::REPLICA_BYTES, header);
            }
        }
        for slot in 0..self.ring.slots {
            stream::write(image, self.entry(slot).start() + 1, &[short.0]);
        }
    }

    fn set_fences(&self, image: &mut [u8], at: usize, header: &NodeHeader<'_>) {
        let high_len = header.high.map_or(u16::MAX, |high| high.len() as u16);
        stream::write(image, at, &(header.low.len() as u16).to_le_bytes());
        stream::write(image, at + 2, &high_len.to_le_bytes());
        stream::write(image, at + super::FENCE_LENGTHS, header.low);
        stream::write(image, at + super::FENCE_LENGTHS + self.max_key, header.high.unwrap_or_default());
    }

    /// Puts a new pair where `placement` says, after its hops. Of the image everything from where that begins on to the
    /// farthest slot named was read; yields the bytes to send, which are among that.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let placement = layout.place(&image, layout.home(b"berta"))?.expect("there is room");
    /// layout.insert(&mut image, &placement, b"berta", b"2");
    /// assert!(layout.lookup(&image, b"berta", false)?.found.is_some());
    /// # });
    /// ```
    pub fn insert(&self, image: &mut [u8], placement: &Placement, key: &[u8], value: &[u8]) -> Patch {
        let (mut entries, mut homes) = self.make_room(image, placement);
        let hash = Self::hash(key);
        self.store(image, placement.slot, key, value);
        self.add_key(image, placement.slot, hash);
        entries.push(placement.slot);
        homes.push(self.home_of_hash(hash));
        self.write_of(image, placement.begin, entries, &homes)
    }

    /// Moves the keys that hop for a new one; yields the slots that have changed, and the homes of these keys.
    pub(super) fn make_room(&self, image: &mut [u8], placement: &Placement) -> (Slots, Slots) {
        let (mut entries, mut homes) = (Slots::new(), Slots::new());
        for hop in &placement.hops {
            let owner = self.home_of(image, hop.from).expect("the hops were planned on this image");
            self.move_entry(image, hop.from, hop.to);
            self.flip_hop(image, owner, hop.from);
            self.flip_hop(image, owner, hop.to);
            entries.extend([hop.from, hop.to]);
            homes.push(owner);
        }
        (entries, homes)
    }

    /// Notes the new key in `slot` in the sum, and in the bits of its home.
    pub(super) fn add_key(&self, image: &mut [u8], slot: usize, hash: u64) {
        self.add_to_sum(image, hash);
        self.flip_hop(image, self.home_of_hash(hash), slot);
    }

    /// Yields the bytes to send before those of an insert with hops, so that its leaf can be mended
    /// ([`HopLayout::mend`]): each key that hops, in its new slot, and in the order of the hops, before another one
    /// takes its old slot. None if a word of one has bytes of an entry that changes later: part of that would come
    /// before its version.
    ///
    /// ```text
    ///   WRITE 4 in slot 6 ✗                   4 is in its old slot, and perhaps in both
    ///   WRITE 4 in slot 6, WRITE X ✗          4 is in its new slot, X whole or not
    ///   without it         WRITE both ✗       X is in slot 4, and 4 not yet in 6: it is lost
    /// ```
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let placement = layout.place(&image, layout.home(b"berta"))?.expect("there is room");
    /// assert_eq!(layout.copies_first(&placement).as_deref(), Some(&[][..]), "no key hops");
    /// # });
    /// ```
    pub fn copies_first(&self, placement: &Placement) -> Option<Patch> {
        let bytes = |slot| self.entry(slot).write_range();
        let mut copies = Patch::new();
        for (place, hop) in placement.hops.iter().enumerate() {
            let copy = bytes(hop.to);
            let mut later = placement.hops[place + 1..].iter().map(|hop| hop.to).chain([placement.slot]);
            if later.any(|slot| bytes(slot).start < copy.end && copy.start < bytes(slot).end) {
                return None;
            }
            copies.push(copy);
        }
        Some(copies)
    }

    /// Gives the present entry in `slot` another value; yields the bytes to send.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let slot = layout.lookup(&image, b"anna", false)?.found.expect("it is there").slot;
    /// let patch = layout.update(&mut image, slot, b"2");
    /// assert_eq!(patch[..], [layout.entry_range(slot)]);
    /// assert_eq!(layout.view(&image)?.pair(slot)?.1[..], *b"2");
    /// # });
    /// ```
    pub fn update(&self, image: &mut [u8], slot: usize, value: &[u8]) -> Patch {
        assert!(self.is_present(image, slot), "an update has found its key");
        let short = if self.value_slot(slot).write(image, value) { VALUE_SHORT } else { 0 };
        self.set_flags(image, slot, self.head(image, slot) & !VALUE_SHORT | short);
        self.write_of(image, slot, Slots::from_slice(&[slot]), &[])
    }

    /// Removes the entry in `slot`, which is present; yields the bytes to send.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let slot = layout.lookup(&image, b"anna", false)?.found.expect("it is there").slot;
    /// layout.remove(&mut image, slot)?;
    /// assert!(layout.lookup(&image, b"anna", false)?.found.is_none());
    /// # });
    /// ```
    pub fn remove(&self, image: &mut [u8], slot: usize) -> Result<Patch, Rejection> {
        let hash = self.hash_of(image, slot)?;
        let home = self.home_of_hash(hash);
        self.vacate(image, slot, home);
        self.add_to_sum(image, hash);
        Ok(self.write_of(image, home, Slots::from_slice(&[slot]), &[home]))
    }

    /// Makes a whole image that of a leaf with `header` and those of its entries whose slots `keeps` tells, each in its
    /// slot. Its lock stays.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// # let header = NodeHeader {
    /// #     level: 0,
    /// #     low: b"",
    /// #     high: Some(b"c"),
    /// #     sibling: RemotePtr::NULL,
    /// #     incarnation: 1,
    /// #     node_version: NodeVersion::new(8),
    /// # };
    /// let slot = layout.lookup(&image, b"anna", false)?.found.expect("it is there").slot;
    /// layout.keep(&mut image, &header, |other| other == slot)?;
    /// assert!(layout.lookup(&image, b"anna", false)?.found.is_some());
    /// assert!(layout.lookup(&image, b"clara", false)?.found.is_none());
    /// # });
    /// ```
    ///
    /// # Errors
    /// If a key is not as writers leave it.
    pub fn keep(
        &self,
        image: &mut [u8],
        header: &NodeHeader<'_>,
        keeps: impl Fn(usize) -> bool,
    ) -> Result<(), Rejection> {
        for slot in 0..self.ring.slots {
            if self.is_present(image, slot) && !keeps(slot) {
                let hash = self.hash_of(image, slot)?;
                self.vacate(image, slot, self.home_of_hash(hash));
                self.add_to_sum(image, hash);
            }
        }
        self.set_header(image, header);
        self.set_vacancy(image, self.vacancy_of(image));
        Ok(())
    }

    /// Puts a new pair into a whole image, which is to be written as such and has room in the key's neighbourhood.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// layout.insert_near(&mut image, b"berta", b"2")?;
    /// assert_eq!(layout.view(&image)?.present().count(), 3);
    /// # });
    /// ```
    ///
    /// # Errors
    /// If a key on the way is not as writers leave it, or there is no room.
    pub fn insert_near(&self, image: &mut [u8], key: &[u8], value: &[u8]) -> Result<(), Rejection> {
        let placement = self.place(image, self.home(key))?.ok_or(Malformed::Count)?;
        self.insert(image, &placement, key, value);
        self.set_vacancy(image, self.vacancy_of(image));
        Ok(())
    }

    /// Frees the lock in the image of a new leaf.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// image[layout.lock_at()] = 1;
    /// layout.unlock(&mut image);
    /// assert_eq!(image[layout.lock_at()], 0);
    /// # });
    /// ```
    pub fn unlock(&self, image: &mut [u8]) {
        image[self.words..self.words + WORD_BYTES].fill(0);
    }

    /// Tells whether `slot`, which was read, has no entry.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!((0..8).filter(|slot| layout.is_vacant(&image, *slot)).count(), 6);
    /// # });
    /// ```
    pub fn is_vacant(&self, image: &[u8], slot: usize) -> bool {
        !self.is_present(image, slot)
    }

    /// Counts the vacancies of a whole image.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(layout.vacancy_of(&image), layout.vacancy(&image));
    /// # });
    /// ```
    pub fn vacancy_of(&self, image: &[u8]) -> Vacancy {
        Vacancy::new(self.ring, |slot| !self.is_present(image, slot))
    }

    /// Notes in the vacancy word which of so many slots from `from` on, which were read, are vacant now; yields the
    /// bytes to send: that word, and the sum of the keys.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let slot = layout.lookup(&image, b"anna", false)?.found.expect("it is there").slot;
    /// layout.remove(&mut image, slot)?;
    /// assert_eq!(layout.note_vacancies(&mut image, slot, 1).len(), 16);
    /// assert_eq!(layout.vacancy(&image), layout.vacancy_of(&image));
    /// # });
    /// ```
    pub fn note_vacancies(&self, image: &mut [u8], from: usize, count: usize) -> Range<usize> {
        let vacancy = self.vacancy(image);
        let vacancy = vacancy.updated(self.ring, (from, count), |slot| !self.is_present(image, slot));
        self.set_vacancy(image, vacancy);
        self.vacancy_at()..self.sum_at() + WORD_BYTES
    }

    /// Reads the vacancy word.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let near = layout.vacancy(&image).slots_to_vacancy(layout.ring(), 0, 0);
    /// assert!(near.is_some_and(|slots| slots <= 3), "two of eight slots are taken");
    /// # });
    /// ```
    pub fn vacancy(&self, image: &[u8]) -> Vacancy {
        Vacancy::from_bits(word(image, self.vacancy_at()))
    }

    /// Sets the vacancy word; yields the bytes to send.
    pub(super) fn set_vacancy(&self, image: &mut [u8], vacancy: Vacancy) {
        let at = self.vacancy_at();
        image[at..at + WORD_BYTES].copy_from_slice(&vacancy.bits().to_le_bytes());
    }

    /// Reads the sum of the keys.
    pub(super) fn sum(&self, image: &[u8]) -> u64 {
        word(image, self.sum_at())
    }

    /// Adds a key to the sum, or takes one off it.
    pub(super) fn add_to_sum(&self, image: &mut [u8], hash: u64) {
        let (at, sum) = (self.sum_at(), self.sum(image) ^ hash);
        image[at..at + WORD_BYTES].copy_from_slice(&sum.to_le_bytes());
    }

    /// Stores a new pair, or its fingerprint and what leads to its block.
    fn store(&self, image: &mut [u8], slot: usize, key: &[u8], value: &[u8]) {
        assert!(!self.is_present(image, slot), "a new pair goes into a vacancy");
        let fingerprint = Self::hash(key).to_le_bytes();
        let key = if self.blocks.is_some() { &fingerprint } else { key };
        let key_short = if self.key_slot(slot).write(image, key) { KEY_SHORT } else { 0 };
        let value_short = if self.value_slot(slot).write(image, value) { VALUE_SHORT } else { 0 };
        let others = self.head(image, slot) & !(KEY_SHORT | VALUE_SHORT);
        self.set_flags(image, slot, others | PRESENT | key_short | value_short);
    }

    /// Copies flags, key and value; what the slot says as a home stays.
    fn move_entry(&self, image: &mut [u8], from: usize, to: usize) {
        const FLAGS: u16 = PRESENT | KEY_SHORT | VALUE_SHORT;
        let pair = |slot| StreamRange::new(self.key_slot(slot).start, self.key_bytes + self.value_bytes);
        let bytes = stream::gather(image, pair(from));
        stream::write(image, pair(to).start(), &bytes);
        let flags = self.head(image, from) & FLAGS;
        self.set_flags(image, to, self.head(image, to) & !FLAGS | flags);
        self.set_flags(image, from, self.head(image, from) & !FLAGS);
    }

    fn vacate(&self, image: &mut [u8], slot: usize, home: usize) {
        self.set_flags(image, slot, self.head(image, slot) & !(PRESENT | KEY_SHORT | VALUE_SHORT));
        self.flip_hop(image, home, slot);
    }

    pub(super) fn set_flags(&self, image: &mut [u8], slot: usize, head: u16) {
        stream::write(image, self.entry(slot).start(), &head.to_le_bytes());
    }

    fn flip_hop(&self, image: &mut [u8], home: usize, slot: usize) {
        if !self.has_hops() {
            return;
        }
        let hops = self.hops(image, home) ^ 1 << self.ring.distance(home, slot);
        let at = self.entry(home).start() + HEAD_BYTES;
        stream::write(image, at, &hops.to_le_bytes()[..self.hops_bytes()]);
    }

    /// Increments the versions of the entries that have changed, and yields the bytes that hold them, and the hop bits
    /// of those homes: as one range, or two around the end.
    ///
    /// A home's own entry keeps its version: readers compare the bits with the keys, and [`HopLayout::mend`] takes an
    /// entry with two versions for one that is half written.
    fn write_of(&self, image: &mut [u8], from: usize, mut changed: Slots, homes: &[usize]) -> Patch {
        changed.sort_unstable();
        changed.dedup();
        for slot in &changed {
            let head = self.head(image, *slot);
            let next = EntryVersion::from_bits(head as u8).next();
            self.set_flags(image, *slot, head & !0x1f | u16::from(next.bits()));
            for line in self.entry(*slot).further_lines() {
                version::set_entry_version(image, line, next);
            }
        }
        if self.has_hops() {
            changed.extend_from_slice(homes);
        }
        changed.sort_unstable_by_key(|slot| self.ring.distance(from, *slot));
        let (first, last) = (changed[0], changed[changed.len() - 1]);
        let range = |first, last| {
            let start = self.entry(first).start();
            StreamRange::new(start, self.entry(last).end() - start).write_range()
        };
        let mut ranges = Patch::new();
        if first <= last {
            ranges.push(range(first, last));
        } else {
            ranges.push(range(first, self.ring.slots - 1));
            ranges.push(range(0, last));
        }
        ranges
    }
}

fn word(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(image[at..at + WORD_BYTES].try_into().expect("a word has eight bytes"))
}

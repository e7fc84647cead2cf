//! One key in the neighbourhood that was read for it. No allocation, nothing is copied.
//!
//! Checks the three levels of CHIME's section 4.1: node versions, the found entry's version, and, before it says that a
//! key is absent, that the bits of the home name exactly the slots whose keys have this home.

use std::ops::Range;

use farwood_runtime::RemotePtr;
use smallvec::SmallVec;

use super::super::header::{Header, Kind, Position};
use super::super::stream::{self, StreamRange};
use super::super::{BlockPtr, Bytes, Malformed, Rejection, is_aligned};
use super::HopLayout;
use super::entry::ShortVersion;

/// Versions in a neighbourhood: each entry's, and the node's.
pub type Versions = SmallVec<[u16; 20]>;

/// The number of node versions that entries and replicas tell apart.
pub const SHORT_VERSIONS: u32 = 1 << 8;

/// Writes of one leaf that hide a key ([`HopLayout::lookup`]): a READ that proves it absent is shorter than the time
/// from the first of them to the last.
pub const WRITES_THAT_HIDE: u32 = 2;

/// Entries that may hold the key, with their blocks.
pub type Candidates = SmallVec<[(usize, BlockPtr); 1]>;

/// An entry that holds the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HopFound {
    /// The slot's index.
    pub slot: usize,
    /// Place of the value, or of what leads to the block; [`crate::layout::make_contiguous`] gathers it.
    pub value: StreamRange,
    /// True if the entry lies in several lines. Its five-bit version then guards it, so the read must have been shorter
    /// than it takes from the first of [`crate::layout::EntryVersion::COUNT`] writes of the entry to the last.
    pub spans_lines: bool,
}

/// Findings of a lookup in one neighbourhood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbourhood {
    /// The entry with the key, if there is one. Of an indirect leaf one that has the key's fingerprint: the blocks of
    /// those that do tell ([`HopLayout::candidates`]).
    pub found: Option<HopFound>,
    /// The right neighbour, [`RemotePtr::NULL`] for none: sibling-based validation compares it with what the parent
    /// says (section 4.2.3).
    pub sibling: RemotePtr,
    /// Where the key lies relative to the fences, if they are among what was read.
    pub position: Option<Position>,
}

impl HopLayout {
    /// Looks `key` up in an image of [`HopLayout::node_bytes`] bytes (others panic), of which at least the
    /// [`HopLayout::neighbourhood`] of the key's home was read, and if `has_header` that too.
    ///
    /// An absent key is absent at one moment of the READ only if no [`WRITES_THAT_HIDE`] lie within it:
    ///
    /// ```text
    ///   writers    k hops from a to b        another key of k's home goes to a
    ///   reader     b: vacant, bits: a                                    a: the other key          k seems absent
    /// ```
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let found = layout.lookup(&image, b"anna", false)?.found.expect("it is there");
    /// let value = make_contiguous(&mut image, found.value);
    /// assert_eq!(image[value], *b"1");
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if what was read is of different moments; other rejections if it is no leaf's, or not as
    /// writers leave it.
    pub fn lookup(&self, image: &[u8], key: &[u8], has_header: bool) -> Result<Neighbourhood, Rejection> {
        self.look(image, key, has_header, true)
    }

    /// Looks `key` up in an indirect leaf none of whose blocks is of that key: entries with its fingerprint are of
    /// other keys.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert!(layout.lookup_others(&image, b"anna", false)?.found.is_none());
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`HopLayout::lookup`].
    pub fn lookup_others(
        &self,
        image: &[u8],
        key: &[u8],
        has_header: bool,
    ) -> Result<Neighbourhood, Rejection> {
        self.look(image, key, has_header, false)
    }

    fn look(
        &self,
        image: &[u8],
        key: &[u8],
        has_header: bool,
        finds: bool,
    ) -> Result<Neighbourhood, Rejection> {
        self.check_len(image);
        let hash = Self::hash(key);
        let home = self.home_of_hash(hash);
        let replica = self.replica_of(home);
        let version = self.replica_version(image, replica)?;
        let sibling = RemotePtr::from_bits(self.sibling_bits(image, replica));
        if !is_aligned(sibling) {
            return Err(Malformed::MisalignedSibling.into());
        }
        let position = match has_header {
            true => Some(self.header(image, version)?.position(key)),
            false => self.position(image, replica, key)?,
        };
        let mut seen = Neighbourhood { found: None, sibling, position };
        let mut torn = false;
        for slot in self.ring.neighbourhood(home) {
            let whole = self.entry_is_of(image, slot, version);
            torn |= !whole;
            if finds && whole && self.is_present(image, slot) && self.is_of(image, slot, key, hash)? {
                let value = self.value(image, slot)?;
                let mut spans_lines = !self.entry(slot).further_lines().is_empty();
                // Of an indirect leaf several entries may count.
                spans_lines |= self.blocks.is_some() && seen.found.is_some_and(|found| found.spans_lines);
                seen.found = Some(HopFound { slot, value, spans_lines });
            }
        }
        if !torn && (seen.found.is_some() || self.bits_are_of_keys(image, home)?) {
            Ok(seen)
        } else {
            Err(Rejection::Torn)
        }
    }

    /// Looks `key` up in `slot` alone, of which nothing but [`HopLayout::entry_range`] was read. None says no more than
    /// that the key is not in this slot.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let slot = layout.lookup(&image, b"anna", false)?.found.expect("it is there").slot;
    /// assert!(layout.lookup_slot(&image, b"anna", slot)?.is_some());
    /// assert!(layout.lookup_slot(&image, b"berta", slot)?.is_none());
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`HopLayout::lookup`].
    pub fn lookup_slot(&self, image: &[u8], key: &[u8], slot: usize) -> Result<Option<HopFound>, Rejection> {
        self.check_len(image);
        if !self.is_present(image, slot) {
            return Ok(None);
        }
        let version = ShortVersion((self.head(image, slot) >> 8) as u8);
        if !self.entry_is_of(image, slot, version) {
            return Err(Rejection::Torn);
        }
        if !self.is_of(image, slot, key, Self::hash(key))? {
            return Ok(None);
        }
        let spans_lines = !self.entry(slot).further_lines().is_empty();
        Ok(Some(HopFound { slot, value: self.value(image, slot)?, spans_lines }))
    }

    /// Yields the entries of an indirect leaf's neighbourhood that have the fingerprint of `key`, and their blocks:
    /// what a lookup that has found one of them reads.
    ///
    /// ```
    /// # farwood_doctest::indirect_leaf!(|layout, image| {
    /// assert_eq!(layout.candidates(&image, b"anna")?[0].1.address(), RemotePtr::from_bits(640));
    /// # });
    /// ```
    ///
    /// # Errors
    /// If no writer leaves such an entry.
    pub fn candidates(&self, image: &[u8], key: &[u8]) -> Result<Candidates, Rejection> {
        let hash = Self::hash(key);
        let mut candidates = Candidates::new();
        for slot in self.ring.neighbourhood(self.home_of_hash(hash)) {
            if self.is_present(image, slot) && self.is_of(image, slot, key, hash)? {
                candidates.push((slot, self.block(image, slot)?));
            }
        }
        Ok(candidates)
    }

    /// Yields the bytes of the image that the entry in `slot` takes.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let slot = layout.lookup(&image, b"anna", false)?.found.expect("it is there").slot;
    /// let (mut read, part) = (vec![0; layout.node_bytes()], layout.entry_range(slot));
    /// read[part.clone()].copy_from_slice(&image[part]);
    /// assert!(layout.lookup_slot(&read, b"anna", slot)?.is_some());
    /// # });
    /// ```
    pub fn entry_range(&self, slot: usize) -> Range<usize> {
        self.entry(slot).write_range()
    }

    /// Yields the versions in a neighbourhood that was read: two READs, one behind the other, that bring the same ones
    /// bring what was there between them, if an entry's version cannot have come back meanwhile.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let (home, found) = (layout.home(b"anna"), layout.lookup(&image, b"anna", false)?.found);
    /// let before = layout.versions(&image, home);
    /// layout.update(&mut image, found.expect("it is there").slot, b"2");
    /// assert_ne!(layout.versions(&image, home), before);
    /// # });
    /// ```
    pub fn versions(&self, image: &[u8], home: usize) -> Versions {
        let replica = self.replica(self.replica_of(home)).start();
        let slots = self.ring.neighbourhood(home).map(|slot| self.head(image, slot));
        slots.chain([u16::from_le_bytes(stream::array(image, replica))]).collect()
    }

    /// Yields where the leaf ends, as its header says, or else the replica of that neighbourhood: none for plus
    /// infinity, or if it is torn.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(layout.high(&image, 0, true).as_deref(), Some(&b"m"[..]));
    /// assert_eq!(layout.high(&image, 0, false), None, "replicas have no fences here");
    /// # });
    /// ```
    pub fn high(&self, image: &[u8], home: usize, has_header: bool) -> Option<Bytes> {
        if has_header {
            return self.header_of(image).ok()?.high();
        }
        let (_, high) = self.fences(image, self.replica_of(home)).ok()??;
        Some(stream::to_bytes(image, high?))
    }

    /// Yields the right neighbour that the replica of that neighbourhood names, [`RemotePtr::NULL`] for none.
    pub(crate) fn sibling(&self, image: &[u8], home: usize) -> RemotePtr {
        RemotePtr::from_bits(self.sibling_bits(image, self.replica_of(home)))
    }

    /// Reads the header, if it is of this version of the node.
    fn header<'a>(&self, image: &'a [u8], version: ShortVersion) -> Result<Header<'a>, Rejection> {
        let header = self.header_of(image)?;
        if ShortVersion::of(header.node_version()) == version { Ok(header) } else { Err(Rejection::Torn) }
    }

    fn header_of<'a>(&self, image: &'a [u8]) -> Result<Header<'a>, Rejection> {
        let lines = stream::lines(StreamRange::new(0, Header::bytes(self.max_key)));
        Header::parse(&image[lines], self.max_key, Kind::Leaf)
    }

    /// Tells whether the bits of `home` name the slots of its neighbourhood whose keys have it as their home.
    pub(super) fn bits_are_of_keys(&self, image: &[u8], home: usize) -> Result<bool, Rejection> {
        Ok(!self.has_hops() || self.bits_of_keys(image, home)? == self.hops(image, home))
    }

    /// Yields the bits that name the slots of the neighbourhood of `home` whose keys have it as their home.
    pub(super) fn bits_of_keys(&self, image: &[u8], home: usize) -> Result<u16, Rejection> {
        let mut bits = 0;
        for (steps, slot) in self.ring.neighbourhood(home).enumerate() {
            if self.is_present(image, slot) && self.home_of(image, slot)? == home {
                bits |= 1 << steps;
            }
        }
        Ok(bits)
    }

    /// Yields the home of the key in `slot`, which is present.
    pub(super) fn home_of(&self, image: &[u8], slot: usize) -> Result<usize, Rejection> {
        Ok(self.home_of_hash(self.hash_of(image, slot)?))
    }

    /// Yields the hash of the key in `slot`, which is present.
    pub(super) fn hash_of(&self, image: &[u8], slot: usize) -> Result<u64, Rejection> {
        if self.blocks.is_some() {
            return Ok(u64::from_le_bytes(stream::array(image, self.key_slot(slot).start)));
        }
        let key = self.key(image, slot)?;
        Ok(match stream::in_one_line(image, key) {
            Some(key) => Self::hash(key),
            None => Self::hash(&stream::gather(image, key)),
        })
    }

    fn position(&self, image: &[u8], replica: usize, key: &[u8]) -> Result<Option<Position>, Rejection> {
        Ok(self.fences(image, replica)?.map(|(low, high)| {
            if stream::compare(image, low, key).is_gt() {
                Position::Left
            } else if high.is_some_and(|high| stream::compare(image, high, key).is_le()) {
                Position::Right
            } else {
                Position::Here
            }
        }))
    }
}

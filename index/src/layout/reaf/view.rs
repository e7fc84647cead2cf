//! A leaf as it was read: checks that its lines are of one version, and answers for a key. Bytes are untrusted.

use super::slot::{State, VALUE_SHORT, filled, is_same_key, key_of, key_slot};
use super::{LINE_WORDS, ReafHeader, ReafLayout, UNBOUNDED, WORD_BYTES, at};
use crate::layout::radix::Link;
use crate::layout::{Bytes, LINE_BYTES, Malformed, NodeVersion, Rejection};

/// The top byte of each control word: one that unrelated memory is unlikely to hold.
const KIND: u8 = 0xD3;

/// A leaf, or the part of it without values, whose lines are of one version.
#[derive(Clone, Copy, Debug)]
pub struct ReafView<'a> {
    layout: ReafLayout,
    image: &'a [u8],
    version: NodeVersion,
    depth: usize,
}

/// The answer of a leaf for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReafFound {
    /// The leaf does not answer for the key: it has another prefix, or is out of its bounds.
    Outside,
    /// The key has that slot.
    Slot {
        /// The slot's index.
        slot: usize,
        /// Its state, which is not vacant.
        state: State,
    },
    /// The key has no slot. The first vacant one may be claimed for it.
    Absent {
        /// Its index; `None` if the leaf is full.
        vacancy: Option<usize>,
    },
}

impl ReafLayout {
    /// Parses a leaf, or its key part.
    ///
    /// # Errors
    /// [`Rejection::Torn`] if lines are of different versions; another one if it is no leaf.
    ///
    /// # Panics
    /// If the image is neither a leaf nor its key part.
    pub fn parse<'a>(&self, image: &'a [u8]) -> Result<ReafView<'a>, Rejection> {
        assert!([self.key_part().end, self.node_bytes()].contains(&image.len()), "a leaf, or its key part");
        let mut lines =
            image.chunks(LINE_BYTES).map(|line| u64::from_le_bytes(*line.first_chunk().expect("8 bytes")));
        let first = lines.next().expect("it has lines");
        if (first >> 56) as u8 != KIND {
            return Err(Rejection::NotANode { found: (first >> 56) as u8 });
        }
        if lines.any(|line| line != first) {
            return Err(Rejection::Torn);
        }
        let mut view = ReafView { layout: *self, image, version: NodeVersion::new(first as u16), depth: 0 };
        let bounds = view.word(self.bounds_word());
        view.depth = (bounds >> 32 & 0xFFFF) as usize;
        let low = view.low().ok_or(Malformed::FenceLength)?;
        let high = view.high().ok_or(Malformed::FenceLength)?;
        if view.depth == 0 || view.depth > low.len() {
            return Err(Malformed::Level.into());
        }
        if high.is_some_and(|high| high <= low) {
            return Err(Malformed::FenceOrder.into());
        }
        Link::from_bits(view.word(1 + self.presence_words))?;
        Ok(view)
    }

    /// Writes a leaf whole into `image`, with these pairs in its first slots. Lock and presence are 0.
    ///
    /// # Panics
    /// If there are more pairs than slots, or one that is not the leaf's.
    pub fn build<'p>(
        &self,
        image: &mut [u8],
        header: &ReafHeader<'_>,
        pairs: impl IntoIterator<Item = (&'p [u8], &'p [u8])>,
    ) {
        assert!(image.len() == self.node_bytes() && header.depth > 0 && header.low.len() >= header.depth);
        image.fill(0);
        let control = u64::from(KIND) << 56 | u64::from(header.version.number());
        for line in image.chunks_mut(LINE_BYTES) {
            line[..WORD_BYTES].copy_from_slice(&control.to_le_bytes());
        }
        self.put_word(image, 1 + self.presence_words, header.link.bits());
        let high_len = header.high.map_or(UNBOUNDED, |high| high.len() as u16);
        let bounds = (header.depth as u64) << 32 | u64::from(high_len) << 16 | header.low.len() as u64;
        let (first, words) = (self.bounds_word(), self.bound_words());
        self.put_word(image, first, bounds);
        self.put_bytes(image, first + 1, header.low);
        self.put_bytes(image, first + 1 + words, header.high.unwrap_or_default());
        for (slot, (key, value)) in pairs.into_iter().enumerate() {
            assert!(slot < self.slots && key.starts_with(&header.low[..header.depth]), "a pair of this leaf");
            self.put_pair(image, slot, (&key[header.depth..], value), State::Present);
        }
    }

    pub(super) fn put_word(&self, image: &mut [u8], word: usize, bits: u64) {
        image[at(word)..][..WORD_BYTES].copy_from_slice(&bits.to_le_bytes());
    }

    /// Scatters bytes into words from that one on, the last of them filled up with zeros.
    pub(super) fn put_bytes(&self, image: &mut [u8], first: usize, bytes: &[u8]) {
        for (word, piece) in (first..).zip(bytes.chunks(WORD_BYTES)) {
            let mut padded = [0; WORD_BYTES];
            padded[..piece.len()].copy_from_slice(piece);
            image[at(word)..][..WORD_BYTES].copy_from_slice(&padded);
        }
    }
}

impl<'a> ReafView<'a> {
    /// Yields the version of the last write of the whole leaf.
    pub fn version(&self) -> NodeVersion {
        self.version
    }

    /// Yields how many bytes the keys share that are not stored.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Yields the reverse pointer.
    pub fn link(&self) -> Link {
        Link::from_bits(self.word(1 + self.layout.presence_words)).expect("it was parsed")
    }

    /// Yields the bounds of the leaf's keys: the least, and the least beyond them.
    pub fn bounds(&self) -> (Bytes, Option<Bytes>) {
        (self.low().expect("it was parsed"), self.high().expect("it was parsed"))
    }

    /// Looks for a key.
    pub fn find(&self, key: &[u8]) -> ReafFound {
        let (low, high) = self.bounds();
        let is_outside = *key < *low || high.is_some_and(|high| *key >= *high);
        if is_outside || !key.starts_with(&low[..self.depth]) || key.len() > self.layout.max_key {
            return ReafFound::Outside;
        }
        let wanted =
            key_slot(&key[self.depth..], self.layout.key_words() * WORD_BYTES, State::Present, false);
        let mut vacancy = None;
        for slot in 0..self.layout.slots {
            let found = self.key_slot(slot);
            match State::of(found[0]) {
                State::Vacant => vacancy = vacancy.or(Some(slot)),
                state if is_same_key(&found, &wanted) => return ReafFound::Slot { slot, state },
                _ => {}
            }
        }
        ReafFound::Absent { vacancy }
    }

    /// Yields the state of a slot.
    pub fn state(&self, slot: usize) -> State {
        State::of(self.key_slot(slot)[0])
    }

    /// Yields the key of a slot that is not vacant.
    ///
    /// # Errors
    /// If its length is impossible.
    pub fn key(&self, slot: usize) -> Result<Bytes, Rejection> {
        let found = self.key_slot(slot);
        let mut key = self.low().expect("it was parsed");
        key.truncate(self.depth);
        key.extend_from_slice(key_of(&found).ok_or(Malformed::KeyLength { slot })?);
        Ok(key)
    }

    /// Yields the value of a slot whose key is present.
    ///
    /// # Errors
    /// If its length is impossible.
    ///
    /// # Panics
    /// If only the key part was read.
    pub fn value(&self, slot: usize) -> Result<Bytes, Rejection> {
        let bytes = self.gather(self.layout.value_word(slot), self.layout.value_words() * WORD_BYTES);
        let short = self.key_slot(slot)[0] & VALUE_SHORT != 0;
        Ok(Bytes::from_slice(filled(&bytes, short).ok_or(Malformed::ValueLength { slot })?))
    }

    pub(super) fn key_slot(&self, slot: usize) -> Bytes {
        self.gather(self.layout.key_word(slot), self.layout.key_words() * WORD_BYTES)
    }

    fn low(&self) -> Option<Bytes> {
        let lengths = self.word(self.layout.bounds_word());
        self.bound(0, lengths as u16)
    }

    /// Yields the upper bound, if there is one; `None` if its length is impossible.
    fn high(&self) -> Option<Option<Bytes>> {
        let lengths = self.word(self.layout.bounds_word());
        match (lengths >> 16) as u16 {
            UNBOUNDED => Some(None),
            length => self.bound(self.layout.bound_words(), length).map(Some),
        }
    }

    fn bound(&self, words: usize, length: u16) -> Option<Bytes> {
        let length = usize::from(length);
        let first = self.layout.bounds_word() + 1 + words;
        (length <= self.layout.max_key).then(|| self.gather(first, length))
    }

    fn word(&self, word: usize) -> u64 {
        u64::from_le_bytes(self.image[at(word)..][..WORD_BYTES].try_into().expect("8 bytes"))
    }

    /// Gathers bytes from words, from that one on.
    fn gather(&self, first: usize, bytes: usize) -> Bytes {
        let (mut gathered, mut word) = (Bytes::new(), first);
        while gathered.len() < bytes {
            // Words of a line are side by side.
            let whole = (LINE_WORDS - word % LINE_WORDS) * WORD_BYTES;
            let piece = whole.min(bytes - gathered.len());
            gathered.extend_from_slice(&self.image[at(word)..][..piece]);
            word += piece.div_ceil(WORD_BYTES);
        }
        gathered
    }
}

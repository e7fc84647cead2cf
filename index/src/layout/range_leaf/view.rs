//! A leaf as it was read: checks that its lines are of one version, and answers for a key. Bytes are untrusted.

use std::array;
use std::cmp::Ordering;
use std::ops::RangeBounds;

use smallvec::{Array, SmallVec};

use super::slot::{SCRATCH_BYTES, Scratch, State, VALUE_SHORT, filled, is_same_begin, key_of, key_slot};
use super::standing::Standing;
use super::{LINE_WORDS, REUSED, RangeHeader, RangeLayout, UNBOUNDED, WORD_BYTES, at, unstored};
use crate::layout::radix::Child;
use crate::layout::slot_order::{SlotKey, SlotOrder, is_between};
use crate::layout::{Bytes, INLINE_BYTES, LINE_BYTES, Malformed, NodeVersion, Rejection, stream};

/// The upper bound of the leaf of the empty key, whose lower bound is the empty key.
const ABOVE_EMPTY: &[u8] = &[0];

/// A leaf, or the part of it without values, whose lines are of one version.
#[derive(Clone, Copy, Debug)]
pub struct RangeView<'a> {
    layout: RangeLayout,
    image: &'a [u8],
    version: NodeVersion,
}

/// A key where it lies, of so many bytes.
struct RangeKey<'a> {
    view: RangeView<'a>,
    slot: usize,
    len: usize,
}

impl RangeKey<'_> {
    /// Compares with a key.
    fn order(&self, key: &[u8]) -> Ordering {
        let ours = (0..self.len).step_by(WORD_BYTES).map(|at| self.word(at).0);
        ours.cmp(key.chunks(WORD_BYTES).map(stream::in_order)).then(self.len.cmp(&key.len()))
    }
}

impl SlotKey for RangeKey<'_> {
    /// The key's first byte is where the head is in the slot's first word, so words of the slot are those of the key.
    #[inline]
    fn word(&self, at: usize) -> (u64, usize) {
        let left = self.len - at;
        if left == 0 {
            return (0, 0);
        }
        let view = &self.view;
        let mut bytes = view.word(view.layout.key_word(self.slot) + at / WORD_BYTES).to_le_bytes();
        if at == 0 {
            bytes[0] = view.image[super::at(view.low().first)];
        }
        let kept = !(u64::MAX.checked_shr(8 * left as u32).unwrap_or(0));
        (u64::from_be_bytes(bytes) & kept, left)
    }

    #[inline]
    fn is_in(&self, bounds: &impl RangeBounds<[u8]>) -> bool {
        is_between(bounds, |bound| self.order(bound))
    }
}

/// The place of a bound: its first word, and its bytes.
#[derive(Clone, Copy)]
struct Bound {
    first: usize,
    bytes: usize,
}

/// The answer of a leaf for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeFound {
    /// The key is below the leaf's bounds, or has another first byte.
    Before,
    /// The key is beyond the leaf's bounds. The leaf that was split off last is on the way to it, if there is one.
    Beyond(Option<Child>),
    /// The key has that slot.
    Slot {
        /// The slot's index.
        slot: usize,
        /// True if the key is present, false if it was removed.
        is_present: bool,
    },
    /// The key has no slot.
    Absent {
        /// The first vacant slot; `None` if the leaf is full.
        vacancy: Option<usize>,
    },
}

impl RangeLayout {
    /// Parses a leaf, or its key part.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// assert_eq!(layout.parse(&image)?.version(), NodeVersion::new(7));
    /// image[64] += 1;
    /// assert!(layout.parse(&image).is_err(), "a line of another write");
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if lines are of different versions; [`Rejection::Frozen`] or [`Rejection::Freed`] if it is
    /// none of its tree; another one if it is no leaf.
    ///
    /// # Panics
    /// If the image is neither a leaf nor its key part.
    pub fn parse<'a>(&self, image: &'a [u8]) -> Result<RangeView<'a>, Rejection> {
        assert!([self.key_part().end, self.node_bytes()].contains(&image.len()), "a leaf, or its key part");
        let mut lines =
            image.chunks(LINE_BYTES).map(|line| u64::from_le_bytes(*line.first_chunk().expect("8 bytes")));
        let first = lines.next().expect("it has lines");
        match Standing::of(first)? {
            Standing::Live => {}
            Standing::Frozen => return Err(Rejection::Frozen),
            Standing::Freed => return Err(Rejection::Freed),
        }
        if first == RangeLayout::TORN || lines.any(|line| line != first) {
            return Err(Rejection::Torn);
        }
        let view = self.parsed(image);
        let (low, high) = (view.low(), view.high());
        if low.bytes > self.max_key || high.is_some_and(|high| high.bytes > self.max_key) {
            return Err(Malformed::FenceLength.into());
        }
        let is_empty_key = low.bytes == 0 && !high.is_some_and(|high| view.order(high, ABOVE_EMPTY).is_eq());
        if is_empty_key || high.is_some_and(|high| view.order_of(high, low).is_le()) {
            return Err(Malformed::FenceOrder.into());
        }
        Ok(view)
    }

    /// Views an image that was parsed before, without the checks.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// layout.parse(&image)?;
    /// assert_eq!(layout.parsed(&image).version(), NodeVersion::new(7));
    /// # });
    /// ```
    ///
    /// # Panics
    /// If the image is shorter than a word. Of an image that was not parsed the view may panic, or say anything.
    pub fn parsed<'a>(&self, image: &'a [u8]) -> RangeView<'a> {
        let version = u64::from_le_bytes(*image.first_chunk().expect("a leaf has lines"));
        RangeView { layout: *self, image, version: NodeVersion::new(version as u16) }
    }

    /// Writes a leaf whole into `image`, with these pairs in its first slots. Lock and presence are 0.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// let (version, is_reused) = (NodeVersion::new(8), false);
    /// let header = RangeHeader { version, next: None, low: b"am", high: None, is_reused };
    /// layout.build(&mut image, &header, []);
    /// assert_eq!(layout.parse(&image)?.find(b"anna"), RangeFound::Absent { vacancy: Some(0) });
    /// # });
    /// ```
    ///
    /// # Panics
    /// If there are more pairs than slots, or one that is not the leaf's.
    pub fn build<'p>(
        &self,
        image: &mut [u8],
        header: &RangeHeader<'_>,
        pairs: impl IntoIterator<Item = (&'p [u8], &'p [u8])>,
    ) {
        assert_eq!(image.len(), self.node_bytes(), "a whole leaf");
        image.fill(0);
        self.put_version(image, header.version);
        self.put_word(image, 1 + self.presence_words, header.next.map_or(0, Child::bits));
        let high_len = header.high.map_or(UNBOUNDED, |high| high.len() as u16);
        let reused = if header.is_reused { REUSED } else { 0 };
        let bounds = reused | u64::from(high_len) << 16 | header.low.len() as u64;
        let (first, words) = (self.bounds_word(), self.bound_words());
        self.put_word(image, first, bounds);
        self.put_bytes(image, first + 1, header.low);
        self.put_bytes(image, first + 1 + words, header.high.unwrap_or_default());
        for (slot, (key, value)) in pairs.into_iter().enumerate() {
            assert!(slot < self.slots && key.first() == header.low.first(), "a pair of this leaf");
            self.put_pair(image, slot, &key[unstored(key)..], value);
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

impl<'a> RangeView<'a> {
    /// Yields the version of the last write of the whole leaf.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// assert_eq!(layout.parse(&image)?.version().number(), 7);
    /// # });
    /// ```
    pub fn version(&self) -> NodeVersion {
        self.version
    }

    /// Yields the leaf that was split off last, if any was.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// assert_eq!(layout.parse(&image)?.next(), None);
    /// # });
    /// ```
    pub fn next(&self) -> Option<Child> {
        Child::of(self.word(1 + self.layout.presence_words))
    }

    /// Tells whether another leaf was in this memory before.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// assert!(!layout.parse(&image)?.is_reused());
    /// # });
    /// ```
    pub fn is_reused(&self) -> bool {
        self.word(self.layout.bounds_word()) & REUSED != 0
    }

    /// Yields the bounds of the leaf's keys: the least, and the least beyond them.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// let (low, high) = layout.parse(&image)?.bounds();
    /// assert_eq!((&low[..], high.as_deref()), (&b"a"[..], Some(&b"b"[..])));
    /// # });
    /// ```
    pub fn bounds(&self) -> (Bytes, Option<Bytes>) {
        let gathered = |bound: Bound| self.gather(bound.first, bound.bytes);
        (gathered(self.low()), self.high().map(gathered))
    }

    /// Looks for a key.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// let leaf = layout.parse(&image)?;
    /// assert_eq!(leaf.find(b"anna"), RangeFound::Slot { slot: 0, is_present: true });
    /// assert_eq!(leaf.find(b"asta"), RangeFound::Absent { vacancy: Some(1) });
    /// assert_eq!(leaf.find(b"b"), RangeFound::Beyond(None));
    /// # });
    /// ```
    pub fn find(&self, key: &[u8]) -> RangeFound {
        if self.high().is_some_and(|high| self.order(high, key).is_le()) {
            return RangeFound::Beyond(self.next());
        }
        let low = self.low();
        let shares_first = low.bytes.min(1) == unstored(key)
            && key.first().is_none_or(|first| self.image[at(low.first)] == *first);
        if !shares_first || self.order(low, key).is_gt() {
            return RangeFound::Before;
        }
        if key.len() > self.layout.max_key {
            // Of a scan: no leaf has it.
            return RangeFound::Absent { vacancy: None };
        }
        let words = self.layout.key_words();
        let stored = key_slot(&key[unstored(key)..], words * WORD_BYTES, State::Present, false);
        let wanted = |word: usize| {
            u64::from_le_bytes(stored[word * WORD_BYTES..][..WORD_BYTES].try_into().expect("8 bytes"))
        };
        let mut from = 0;
        while let Some((slot, first)) = self.next_candidate(from, wanted(0)) {
            match State::of(first as u8) {
                State::Vacant => return RangeFound::Absent { vacancy: Some(slot) },
                state => {
                    let at = self.layout.key_word(slot);
                    if (1..words).all(|i| self.word(at + i) == wanted(i)) {
                        return RangeFound::Slot { slot, is_present: state == State::Present };
                    }
                }
            }
            from = slot + 1;
        }
        RangeFound::Absent { vacancy: None }
    }

    /// Finds the first slot from that one on that is vacant or begins as `wanted`; yields its first word, too.
    fn next_candidate(&self, from: usize, wanted: u64) -> Option<(usize, u64)> {
        let is_candidate =
            |first: u64| is_same_begin(first, wanted) || State::of(first as u8) == State::Vacant;
        if self.layout.key_words() > 1 {
            let mut slots =
                (from..self.layout.slots).map(|slot| (slot, self.word(self.layout.key_word(slot))));
            return slots.find(|(_, first)| is_candidate(*first));
        }
        // Keys of one word are side by side. A line is looked at as a whole, which compilers turn into vectors.
        let (mut slot, mut word) = (from, self.layout.key_word(from));
        while slot < self.layout.slots {
            let line: &[u8; LINE_BYTES] =
                self.image[word / LINE_WORDS * LINE_BYTES..].first_chunk().expect("a whole line");
            let words: [u64; LINE_WORDS] = array::from_fn(|i| {
                u64::from_le_bytes(line[(1 + i) * WORD_BYTES..][..WORD_BYTES].try_into().expect("8 bytes"))
            });
            let begin = word % LINE_WORDS;
            let count = (LINE_WORDS - begin).min(self.layout.slots - slot);
            let hits = (0..LINE_WORDS).fold(0_u8, |hits, i| hits | u8::from(is_candidate(words[i])) << i);
            let hits = hits >> begin & ((1 << count) - 1);
            if hits != 0 {
                let hit = hits.trailing_zeros() as usize;
                return Some((slot + hit, words[begin + hit]));
            }
            slot += count;
            word += count;
        }
        None
    }

    /// Yields the slots whose keys are present.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// assert!(layout.parse(&image)?.present().eq([0]));
    /// # });
    /// ```
    pub fn present(&self) -> impl Iterator<Item = usize> + use<'a> {
        let view = *self;
        (0..view.layout.slots).filter(move |slot| view.state(*slot) == State::Present)
    }

    /// Yields the state of a slot.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// let leaf = layout.parse(&image)?;
    /// assert_eq!((leaf.state(0), leaf.state(1)), (State::Present, State::Vacant));
    /// # });
    /// ```
    pub fn state(&self, slot: usize) -> State {
        State::of(self.word(self.layout.key_word(slot)) as u8)
    }

    /// Yields the key of a slot that is not vacant.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// assert_eq!(&layout.parse(&image)?.key(0)?[..], b"anna");
    /// # });
    /// ```
    ///
    /// # Errors
    /// If its length is impossible.
    pub fn key(&self, slot: usize) -> Result<Bytes, Rejection> {
        let (low, place, words) = (self.low(), self.layout.key_word(slot), self.layout.key_words());
        let first = low.bytes.min(1);
        let mut room = [0; INLINE_BYTES];
        room[0] = self.image[at(low.first)];
        if words == 1 {
            let found = self.word(place).to_le_bytes();
            let rest = key_of(&found).ok_or(Malformed::KeyLength { slot })?.len();
            room[first..first + WORD_BYTES - 1].copy_from_slice(&found[1..]);
            return Ok(Bytes::from_buf_and_len(room, first + rest));
        }
        let mut key = Bytes::from_buf_and_len(room, first);
        let found: Scratch = self.gather(place, words * WORD_BYTES);
        key.extend_from_slice(key_of(&found).ok_or(Malformed::KeyLength { slot })?);
        Ok(key)
    }

    /// Counts the bytes of the key of a slot that is not vacant.
    fn key_len(&self, slot: usize) -> Result<usize, Rejection> {
        let (place, words) = (self.layout.key_word(slot), self.layout.key_words());
        let stored = match words {
            1 => key_of(&self.word(place).to_le_bytes()).map(<[u8]>::len),
            _ => key_of(&self.gather::<[u8; SCRATCH_BYTES]>(place, words * WORD_BYTES)).map(<[u8]>::len),
        };
        Ok(self.low().bytes.min(1) + stored.ok_or(Malformed::KeyLength { slot })?)
    }

    /// Yields the value of a slot whose key is present.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// assert_eq!(&layout.parse(&image)?.value(0)?[..], b"1");
    /// # });
    /// ```
    ///
    /// # Errors
    /// If its length is impossible.
    ///
    /// # Panics
    /// If only the key part was read.
    pub fn value(&self, slot: usize) -> Result<Bytes, Rejection> {
        let (place, words) = (self.layout.value_word(slot), self.layout.value_words());
        let short = self.word(self.layout.key_word(slot)) as u8 & VALUE_SHORT != 0;
        if words == 1 {
            let mut room = [0; INLINE_BYTES];
            let (value, _) = room.split_first_chunk_mut().expect("a word fits");
            *value = self.word(place).to_le_bytes();
            let length = filled(value, short).ok_or(Malformed::ValueLength { slot })?.len();
            return Ok(Bytes::from_buf_and_len(room, length));
        }
        let mut value: Bytes = self.gather(place, words * WORD_BYTES);
        let length = filled(&value, short).ok_or(Malformed::ValueLength { slot })?.len();
        value.truncate(length);
        Ok(value)
    }

    /// Appends the pairs with keys in `bounds` to `pairs`, ascending by key, but at most `limit` of them.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// let (mut order, mut pairs) = (SlotOrder::default(), Vec::new());
    /// layout.parse(&image)?.copy_sorted(&.., 1, &mut order, &mut pairs)?;
    /// assert_eq!(pairs[0].0[..], *b"anna");
    /// # });
    /// ```
    ///
    /// # Errors
    /// If the length of a key, in `bounds` or not, or of a value is impossible. Nothing is appended then.
    ///
    /// # Panics
    /// If only the key part was read.
    pub fn copy_sorted(
        &self,
        bounds: &impl RangeBounds<[u8]>,
        limit: usize,
        order: &mut SlotOrder,
        pairs: &mut Vec<(Bytes, Bytes)>,
    ) -> Result<(), Rejection> {
        let before = pairs.len();
        let key = |slot| Ok(Some(RangeKey { view: *self, slot, len: self.key_len(slot)? }));
        for slot in order.sorted(bounds, self.present(), key)?.take(limit) {
            match self.key(slot).and_then(|key| Ok((key, self.value(slot)?))) {
                Ok(pair) => pairs.push(pair),
                Err(rejection) => {
                    pairs.truncate(before);
                    return Err(rejection);
                }
            }
        }
        Ok(())
    }

    fn low(&self) -> Bound {
        let lengths = self.word(self.layout.bounds_word());
        Bound { first: self.layout.bounds_word() + 1, bytes: usize::from(lengths as u16) }
    }

    fn high(&self) -> Option<Bound> {
        let lengths = self.word(self.layout.bounds_word());
        let first = self.layout.bounds_word() + 1 + self.layout.bound_words();
        let length = (lengths >> 16) as u16;
        (length != UNBOUNDED).then_some(Bound { first, bytes: usize::from(length) })
    }

    /// Compares a bound with a key.
    fn order(&self, bound: Bound, key: &[u8]) -> Ordering {
        let theirs = key.chunks(WORD_BYTES).map(stream::in_order);
        self.numbers(bound).cmp(theirs).then(bound.bytes.cmp(&key.len()))
    }

    /// Compares two bounds.
    fn order_of(&self, one: Bound, other: Bound) -> Ordering {
        self.numbers(one).cmp(self.numbers(other)).then(one.bytes.cmp(&other.bytes))
    }

    /// Yields the words of a bound as numbers that are in the order of their bytes.
    fn numbers(&self, bound: Bound) -> impl Iterator<Item = u64> {
        (0..bound.bytes.div_ceil(WORD_BYTES)).map(move |i| {
            let bytes = (bound.bytes - i * WORD_BYTES).min(WORD_BYTES);
            stream::in_order(&self.image[at(bound.first + i)..][..bytes])
        })
    }

    fn word(&self, word: usize) -> u64 {
        u64::from_le_bytes(self.image[at(word)..][..WORD_BYTES].try_into().expect("8 bytes"))
    }

    /// Gathers bytes from words, from that one on.
    fn gather<A: Array<Item = u8>>(&self, first: usize, bytes: usize) -> SmallVec<A> {
        let (mut gathered, mut word) = (SmallVec::new(), first);
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

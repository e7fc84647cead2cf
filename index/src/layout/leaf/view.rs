//! A leaf as a writer or a scan sees it: header, vacancies, all entries.

use std::ops::RangeBounds;

use super::lookup::{Found, LeafLookup};
use super::{HEAD_BYTES, KEY_SHORT, LeafLayout, entry_is_whole, fingerprint};
use crate::layout::header::{Header, Kind, Position};
use crate::layout::slot_order::{SlotKey, SlotOrder, StreamKey};
use crate::layout::stream::{self, StreamRange};
use crate::layout::{Bytes, Malformed, Rejection};

/// An image whose header is that of a leaf and whose lines carry the same node version.
#[derive(Clone, Copy)]
pub struct LeafView<'a> {
    pub(super) layout: &'a LeafLayout,
    pub(super) image: &'a [u8],
    header: Header<'a>,
}

/// An entry, copied out of the leaf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The slot's index.
    pub slot: usize,
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
}

impl LeafLayout {
    /// Parses an image of [`LeafLayout::node_bytes`] bytes (others panic).
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert!(layout.view(&image).is_ok());
    /// image[64] ^= 1;
    /// assert!(matches!(layout.view(&image), Err(Rejection::Torn)), "a line of another version");
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if the lines' node versions differ; other rejections if the image is no leaf, or has a
    /// header that no writer leaves.
    pub fn view<'a>(&'a self, image: &'a [u8]) -> Result<LeafView<'a>, Rejection> {
        self.check_len(image);
        let header = Header::parse(image, self.max_key, Kind::Leaf)?;
        header.check(Kind::Leaf)?;
        Ok(LeafView { layout: self, image, header })
    }
}

impl<'a> LeafView<'a> {
    /// Yields fences, neighbour, identity and version.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// let leaf = layout.view(&image)?;
    /// assert_eq!(leaf.header().low()[..], *b"a");
    /// # });
    /// ```
    pub fn header(&self) -> &Header<'a> {
        &self.header
    }

    /// Yields the entry that holds `key`, whatever the fences say.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// let found = layout.view(&image)?.find(b"anna")?.expect("it is there");
    /// let value = make_contiguous(&mut image, found.value);
    /// assert_eq!(image[value], *b"1");
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if the entry's lines come from different moments; [`Rejection::Malformed`].
    pub fn find(&self, key: &[u8]) -> Result<Option<Found>, Rejection> {
        Ok(match self.layout.find(self.image, key, fingerprint(key))? {
            LeafLookup::Found(found) => Some(found),
            _ => None,
        })
    }

    /// Yields the first slot that a new entry can take.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert_eq!(layout.view(&image)?.vacancy(), Some(2));
    /// # });
    /// ```
    pub fn vacancy(&self) -> Option<usize> {
        self.slots().find(|slot| self.layout.is_vacant(self.image, *slot))
    }

    /// Counts the slots that are not vacant.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert_eq!(layout.view(&image)?.len(), 2);
    /// # });
    /// ```
    pub fn len(&self) -> usize {
        self.slots().filter(|slot| !self.layout.is_vacant(self.image, *slot)).count()
    }

    /// Tells whether all slots are vacant.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert!(!layout.view(&image)?.is_empty());
    /// # });
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Yields all entries, in the order of their slots, which is no order of keys. In a leaf at rest, exactly those
    /// that a lookup finds.
    ///
    /// An item is [`Rejection::Torn`] if the entry's lines come from different moments, [`Rejection::Malformed`]
    /// if no writer leaves such an entry.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// let entries = layout.view(&image)?.entries().collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!((entries[0].slot, &entries[0].key[..]), (0, &b"anna"[..]));
    /// # });
    /// ```
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry, Rejection>> + 'a {
        let view = *self;
        view.slots().filter_map(move |slot| view.entry(slot).transpose())
    }

    /// Yields the pairs of all entries, ascending, checked to lie between the fences and to be there once.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// layout.write_entry(&mut image, 2, b"berta", b"2");
    /// let pairs = layout.view(&image)?.sorted_pairs()?;
    /// assert_eq!(pairs[1].0[..], *b"berta");
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Malformed::KeyOrder`], or that of an entry.
    pub fn sorted_pairs(&self) -> Result<Vec<(Bytes, Bytes)>, Rejection> {
        // Room for one more: the caller is about to split the leaf.
        let mut pairs = Vec::with_capacity(self.layout.slots + 1);
        for entry in self.entries() {
            let Entry { key, value, .. } = entry?;
            if self.header.position(&key) != Position::Here {
                return Err(Malformed::KeyOrder.into());
            }
            pairs.push((key, value));
        }
        pairs.sort();
        let ascend = pairs.is_sorted_by(|(a, _), (b, _)| a < b);
        if ascend { Ok(pairs) } else { Err(Malformed::KeyOrder.into()) }
    }

    /// Appends the entries with keys in `bounds` to `pairs`, ascending by key, but at most `limit` of them. A key
    /// that was removed and put back while the leaf was read may show in two slots; it comes once.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// let (mut order, mut pairs) = (SlotOrder::default(), Vec::new());
    /// layout.view(&image)?.copy_sorted(&.., 1, &mut order, &mut pairs)?;
    /// assert_eq!(pairs[0].0[..], *b"anna");
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if the lines of any entry, in `bounds` or not, come from different moments: the key that
    /// it seems to hold proves nothing. [`Rejection::Malformed`] if no writer leaves such an entry. Nothing is
    /// appended then.
    pub fn copy_sorted(
        &self,
        bounds: &impl RangeBounds<[u8]>,
        limit: usize,
        order: &mut SlotOrder,
        pairs: &mut Vec<(Bytes, Bytes)>,
    ) -> Result<(), Rejection> {
        let before = pairs.len();
        for slot in order
            .sorted(bounds, self.slots(), |slot| Ok(self.key(slot)?.map(|key| self.sort_key(key))))?
            .take(limit)
        {
            match self.pair(slot) {
                Ok(pair) => pairs.push(pair),
                Err(rejection) => {
                    pairs.truncate(before);
                    return Err(rejection);
                }
            }
        }
        Ok(())
    }

    /// Tells whether [`LeafView::copy_sorted`] of `bounds` relies on entry versions, which prove nothing if the READ
    /// took too long. An entry in one line needs none. Nor does one that is not wanted, if its key is in one line: the
    /// key is then one that a writer left there, and no mixture.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert!(layout.view(&image)?.rests_on_entry_versions(&..), "the second entry is in two lines");
    /// layout.clear_entry(&mut image, 1);
    /// assert!(!layout.view(&image)?.rests_on_entry_versions(&..));
    /// # });
    /// ```
    pub fn rests_on_entry_versions(&self, bounds: &impl RangeBounds<[u8]>) -> bool {
        let layout = self.layout;
        self.slots().filter(|slot| !layout.is_vacant(self.image, *slot)).any(|slot| {
            let entry = layout.entry(slot);
            let up_to_key = StreamRange::new(entry.start(), HEAD_BYTES + layout.max_key);
            !entry.further_lines().is_empty()
                && (!up_to_key.further_lines().is_empty()
                    || self.stored_key(slot).is_ok_and(|key| self.sort_key(key).is_in(bounds)))
        })
    }

    fn sort_key(&self, range: StreamRange) -> StreamKey<'a> {
        StreamKey { image: self.image, range }
    }

    pub(super) fn slots(&self) -> std::ops::Range<usize> {
        0..self.layout.slots
    }

    fn entry(&self, slot: usize) -> Result<Option<Entry>, Rejection> {
        if self.key(slot)?.is_none() {
            return Ok(None);
        }
        let (key, value) = self.pair(slot)?;
        Ok(Some(Entry { slot, key, value }))
    }

    /// Yields the key in `slot`, if there is an entry.
    pub(super) fn key(&self, slot: usize) -> Result<Option<StreamRange>, Rejection> {
        let (layout, image) = (self.layout, self.image);
        if layout.is_vacant(image, slot) {
            return Ok(None);
        }
        let entry = layout.entry(slot);
        if !entry_is_whole(image, entry, stream::byte(image, entry.start())) {
            return Err(Rejection::Torn);
        }
        self.stored_key(slot).map(Some)
    }

    /// Yields the bytes that `slot` holds as a key, whether its entry is present or not.
    pub(super) fn stored_key(&self, slot: usize) -> Result<StreamRange, Rejection> {
        let entry = self.layout.entry(slot);
        let short = stream::byte(self.image, entry.start()) & KEY_SHORT != 0;
        let key = self.layout.key_slot(entry).used(self.image, short);
        Ok(key.ok_or(Malformed::KeyLength { slot })?)
    }

    /// Yields key and value in `slot`, copied out.
    pub(super) fn pair(&self, slot: usize) -> Result<(Bytes, Bytes), Rejection> {
        let key = stream::to_bytes(self.image, self.stored_key(slot)?);
        let value = stream::to_bytes(self.image, self.layout.value_range(self.image, slot)?);
        Ok((key, value))
    }
}
